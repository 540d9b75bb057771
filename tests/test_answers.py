"""What commands printed is printed again, until something changes that it depends on."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from traces import ranks, write

from tb_ddp_doctor import cli
from tb_ddp_doctor.storage import transient

STEPS = """
    rank# step |1
          host [a][b]
          gpu  [a...][b......]
          nccl               [ar...]
"""
HOUR_S = 3600.0


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A job's traces, written an hour ago."""
    write(tmp_path / "logs" / "job", ranks(STEPS, STEPS))
    _age(tmp_path)
    return tmp_path / "logs"


@pytest.fixture
def ask(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> Callable[..., tuple[int, bytes, bytes, int]]:
    """Status and output of `diagnose`, and how often a command had to run for it."""
    runs = []
    run = cli._run

    def counted(*arguments: object) -> int:
        runs.append(arguments)
        return run(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(cli, "_run", counted)

    def asked(*options: str) -> tuple[int, bytes, bytes, int]:
        before = len(runs)
        status = cli.main(["diagnose", str(logs), "--cache", str(tmp_path / "cache" / "here"), *options])
        out, err = capsysbinary.readouterr()
        return status, out, err, len(runs) - before

    return asked


def _age(folder: Path) -> None:
    then = time.time() - HOUR_S
    for path in folder.rglob("*"):
        os.utime(path, (then, then))


@pytest.mark.parametrize("options", [(), ("--json",), ("-v",), ("--fail-on", "info")])
def test_the_same_question_is_answered_at_once(
    ask: Callable[..., tuple[int, bytes, bytes, int]], options: tuple[str, ...]
) -> None:
    *first, ran = ask(*options)
    *again, ran_again = ask(*options)
    assert (ran, ran_again) == (1, 0)
    assert again == first and first[1]


def test_what_was_complained_of_is_complained_of_again(
    ask: Callable[..., tuple[int, bytes, bytes, int]], logs: Path
) -> None:
    (logs / "other").mkdir()
    (logs / "other" / "rank0.pt.trace.json").write_bytes(b"{ no JSON")
    _age(logs)
    *first, _ = ask()
    assert b"ddp-doctor: other:" in first[2]
    *again, ran = ask()
    assert again == first and not ran


def _touched(logs: Path) -> None:
    trace = next((logs / "job").iterdir())
    os.utime(trace, (time.time() - 60, time.time() - 60))


def _added(logs: Path) -> None:
    (logs / "job" / "notes.txt").write_text("")
    _age(logs)


def _beside(logs: Path) -> None:
    (logs.parent / "calibration.json").write_text("{}")
    _age(logs.parent)


def _beside_in_a_folder(logs: Path) -> None:
    (logs.parent / "memory_snapshot" / "step_3").mkdir(parents=True)
    (logs.parent / "memory_snapshot" / "step_3" / "rank0.pickle").write_bytes(b"")
    _age(logs.parent)


@pytest.mark.parametrize("change", [_touched, _added, _beside, _beside_in_a_folder])
def test_a_change_below_or_beside_the_directory_asks_anew(
    ask: Callable[..., tuple[int, bytes, bytes, int]], logs: Path, change: Callable[[Path], None]
) -> None:
    ask()
    change(logs)
    assert ask()[-1] == 1


def test_other_options_and_terminals_are_other_questions(
    ask: Callable[..., tuple[int, bytes, bytes, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ask()
    assert ask("-v")[-1] == 1
    monkeypatch.setenv("COLUMNS", "60")
    assert ask()[-1] == 1


def test_what_was_written_just_now_may_change_and_is_not_kept(
    ask: Callable[..., tuple[int, bytes, bytes, int]], logs: Path
) -> None:
    soon = time.time() + HOUR_S
    os.utime(next((logs / "job").iterdir()), (soon, soon))
    ask()
    assert ask()[-1] == 1


@pytest.mark.parametrize("options", [("--no-cache",), ("--html", "report.html")])
def test_what_is_to_be_read_or_written_is(
    ask: Callable[..., tuple[int, bytes, bytes, int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    ask(*options)
    assert ask(*options)[-1] == 1


def test_a_damaged_answer_is_made_anew(ask: Callable[..., tuple[int, bytes, bytes, int]], tmp_path: Path) -> None:
    first = ask()
    for kept in tmp_path.rglob("*.answer"):
        kept.write_bytes(kept.read_bytes()[:-20])
    assert ask() == first


def test_answering_again_takes_no_numpy(logs: Path, tmp_path: Path) -> None:
    arguments = ["diagnose", str(logs), "--cache", str(tmp_path / "cache" / "here")]
    code = f"import sys; from tb_ddp_doctor.cli import main; main({arguments!r}); sys.exit('numpy' in sys.modules)"
    asked = [subprocess.run([sys.executable, "-c", code], capture_output=True, check=False) for _ in range(2)]
    assert [run.returncode for run in asked] == [1, 0]
    assert asked[0].stdout == asked[1].stdout and asked[0].stdout


def test_what_may_be_read_now_is_asked_anew(logs: Path, ask: Callable[..., tuple[int, bytes, bytes, int]]) -> None:
    """A chmod changes neither size nor time of modification; root, too, may find a file unreadable on NFS."""
    ask()
    (path, *_) = sorted(logs.rglob("*.json"))
    path.chmod(0o600)
    assert ask()[3] == 1


def test_what_could_not_be_read_for_a_reason_that_may_pass_is_asked_anew(
    logs: Path, ask: Callable[..., tuple[int, bytes, bytes, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = cli._run

    def late(*arguments: object) -> int:
        transient.note()
        return run(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(cli, "_run", late)
        assert (ask()[3], ask()[3]) == (1, 1)
    assert (ask()[3], ask()[3]) == (1, 0)


def _entry(tmp_path: Path) -> Path:
    (entry,) = tmp_path.rglob("*.answer")
    return entry


def test_an_answer_with_one_flipped_bit_is_made_anew(
    ask: Callable[..., tuple[int, bytes, bytes, int]], tmp_path: Path
) -> None:
    first = ask()
    data = bytearray(_entry(tmp_path).read_bytes())
    data[len(data) // 2] ^= 1
    _entry(tmp_path).write_bytes(data)
    assert ask() == first


@pytest.mark.parametrize("planted", [b"\x1b]0;title\x07", b"\x1b[2J", "\u202e".encode(), b"\r"])
def test_an_answer_that_a_terminal_would_obey_is_made_anew(
    ask: Callable[..., tuple[int, bytes, bytes, int]], tmp_path: Path, planted: bytes
) -> None:
    first = ask()
    data = msgspec.msgpack.encode({"status": 0, "printed": planted + first[1], "complaints": ()})
    _entry(tmp_path).write_bytes(hashlib.sha256(data).digest() + data)
    assert ask() == first
