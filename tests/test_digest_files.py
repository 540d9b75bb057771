"""`ddp-doctor digest`: digests stand for their traces."""

from __future__ import annotations

import gzip
import re
import shutil
from pathlib import Path

import pytest
import traces

from tb_ddp_doctor import cli, engine
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.discover.runs import discover
from tb_ddp_doctor.storage.column_file import dump
from tb_ddp_doctor.storage.whole_file import written_whole
from tb_ddp_doctor.workers import pool

STRAGGLER = traces.ranks(
    """
    rank# step |1
          host [fwd][bwd] [sync.......]
          gpu   [fwd.][bwd.]
          nccl              [ar.......]
    """,
    """
    rank# step |1
          host [fwd]       [bwd] [sync]
          gpu   [fwd.]      [bwd.]
          nccl                    [ar.]
    """,
)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    traces.write(tmp_path / "logs" / "job", STRAGGLER)
    return tmp_path / "logs"


@pytest.fixture
def digests(logs: Path, tmp_path: Path) -> Path:
    assert cli.main(["digest", str(logs), "-o", str(tmp_path / "digests")]) == 0
    return tmp_path / "digests"


def test_digests_are_diagnosed_as_the_traces_byte_for_byte(
    logs: Path, digests: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert cli.main(["diagnose", str(logs), "--json"]) == 0
    from_traces = capsys.readouterr().out
    assert cli.main(["diagnose", str(digests), "--json"]) == 0
    assert capsys.readouterr().out == from_traces
    assert '"straggler"' in from_traces


def test_it_is_said_that_the_traces_are_not_there(digests: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    cli.main(["diagnose", str(digests)])
    assert "from digests" in capsys.readouterr().out
    assert engine.diagnose(discover(digests)[0]).from_digests


def test_digests_are_not_kept_again_and_nobody_is_warned(
    digests: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "cache"
    assert cli.main(["diagnose", str(digests), "--cache", str(cache)]) == 0
    assert not caplog.records


def test_digests_are_read_without_other_processes(digests: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(pool, "run", fail)
    (run,) = discover(digests)
    assert engine.diagnose(run).diagnosis.ranks == (0, 1)


def test_nodes_digest_their_own_ranks_and_are_joined_later(logs: Path, tmp_path: Path) -> None:
    for rank in (0, 1):
        (own,) = (logs / "job").glob(f"host{rank}_*")
        node = tmp_path / f"disk{rank}"
        node.mkdir()
        own.rename(node / own.name)
        assert cli.main(["digest", str(node), "-o", str(tmp_path / "all")]) == 0
    (run,) = discover(tmp_path / "all")
    assert engine.diagnose(run).diagnosis.verdict == "straggler"


def test_nothing_is_written_into_the_log_directory(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(logs.rglob("*"))
    assert cli.main(["digest", str(logs), "-o", str(logs / "digests")]) == 2
    assert "is inside of the log directory" in capsys.readouterr().err
    assert sorted(logs.rglob("*")) == before


def test_a_bad_trace_is_named_and_the_others_are_digested(
    logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (logs / "job" / "host2_102.1700000000000000000.pt.trace.json").write_text("no")
    assert cli.main(["digest", str(logs), "-o", str(tmp_path / "digests")]) == 0
    told = capsys.readouterr().err
    assert "host2_102" in told and "2 of 2" in told


def test_a_damaged_digest_costs_its_rank(digests: Path) -> None:
    damaged = min(digests.rglob("*.digest"))
    damaged.write_bytes(damaged.read_bytes()[:-100])
    diagnosis = engine.diagnose(discover(digests)[0], reading=engine.Reading(Cache())).diagnosis
    assert diagnosis.ranks == (1,)
    assert any("damaged" in warning.message for warning in diagnosis.warnings)


def test_a_digest_beside_its_trace_is_read_in_its_stead(logs: Path, digests: Path) -> None:
    for path in digests.rglob("*.digest"):
        shutil.copy(path, logs / path.relative_to(digests))
    (run,) = discover(logs)
    assert {file.path.suffix for file in run.files} == {".digest"}
    assert not run.warnings
    result = engine.diagnose(run)
    assert not result.from_digests
    assert {path.suffix for path in result.files} == {".json"}


def test_a_run_with_some_traces_shows_those(logs: Path, digests: Path) -> None:
    first, *_ = sorted(logs.rglob("*.json"))
    shutil.copy(first, digests / first.relative_to(logs))
    result = engine.diagnose(discover(digests)[0])
    assert not result.from_digests
    assert [path.suffix for path in result.files] == [".json", ".digest"]


def test_a_digest_of_another_release_leaves_the_trace_beside_it(logs: Path, digests: Path) -> None:
    for path in digests.rglob("*.digest"):
        digest = Cache(None).digest(path)
        with written_whole(logs / path.relative_to(digests)) as file:
            dump(digest, "of another release", file)
    result = engine.diagnose(discover(logs)[0])
    assert result.diagnosis.ranks == (0, 1)
    assert not result.diagnosis.missing_ranks


@pytest.mark.parametrize("compressed", [False, True])
def test_a_digest_of_another_trace_than_the_one_beside_it_is_left_out(
    logs: Path, digests: Path, compressed: bool
) -> None:
    """A job that runs again writes the same names: its traces are not the ones that were digested."""
    for path in digests.rglob("*.digest"):
        shutil.copy(path, logs / path.relative_to(digests))
    first, second = sorted(logs.rglob("*.json"))
    text = first.read_bytes()
    if compressed:
        first.unlink()
        shutil.move(f"{first}.digest", f"{first}.gz.digest")
        first = first.with_name(f"{first.name}.gz")
        first.write_bytes(gzip.compress(text))
        assert {file.path.suffix for file in discover(logs)[0].files} == {".digest"}
    later = re.sub(rb'"ts":(\d)', rb'"ts":1\1', text)
    assert later != text
    first.write_bytes(gzip.compress(later) if compressed else later)
    (run,) = discover(logs)
    assert {file.path for file in run.files} == {first, second.with_name(f"{second.name}.digest")}
    assert [(warning.file, warning.message) for warning in run.warnings] == [
        (f"{first}.digest", "Left out: this digest was made of another trace than the one beside it, which is read.")
    ]


def test_a_digest_whose_trace_grew_is_left_out(logs: Path, digests: Path) -> None:
    for path in digests.rglob("*.digest"):
        shutil.copy(path, logs / path.relative_to(digests))
    first, _ = sorted(logs.rglob("*.json"))
    with first.open("ab") as file:
        file.write(b"\n")
    assert sorted(file.path.suffix for file in discover(logs)[0].files) == [".digest", ".json"]
