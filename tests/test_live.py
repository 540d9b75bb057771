"""Log directories that change while TensorBoard runs, through the plugin's routes and the real engine."""

from __future__ import annotations

import gzip
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from soak import HEALTHY, SLOW, server, soak
from tensorboard.plugins import base_plugin
from traces import draw, in_row, ranks, write
from werkzeug.test import TestResponse

from tb_ddp_doctor import engine
from tb_ddp_doctor.discover import runs
from tb_ddp_doctor.discover.head import RememberedHeads, peek
from tb_ddp_doctor.plugin import analyses, arrivals
from tb_ddp_doctor.plugin.arrivals import FileArrivals, Stamp
from tb_ddp_doctor.plugin.examination import Examination
from tb_ddp_doctor.plugin.plugin import DiagnosisPlugin

TRACES = in_row(ranks(HEALTHY, SLOW, HEALTHY))
Get = Callable[..., TestResponse]
#: For what takes a second on a machine that has nothing else to do.
PATIENCE_S = 120


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analyses, "RESCAN_S", 0.1)
    monkeypatch.setattr(analyses, "ARRIVING_RESCAN_S", 0.1)
    monkeypatch.setattr(arrivals, "SETTLED_S", 0.2)


def entry_when(get: Get, true: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The only run, once nothing is being renewed and it is as the test waits for."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        listing = get("/runs").get_json()
        if listing["state"] == "ready" and len(listing["runs"]) == 1 and true(listing["runs"][0]):
            run: dict[str, Any] = listing["runs"][0]
            return run
        time.sleep(0.02)
    raise AssertionError(f"it did not come to that: {listing}")


def diagnosis(get: Get) -> dict[str, Any]:
    answer: dict[str, Any] = get("/run", run="job").get_json()["diagnosis"]
    return answer


def is_ready(run: dict[str, Any]) -> bool:
    return bool(run["state"] == "ready" and not run["arriving"])


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.json*"))


def age(folder: Path, seconds: float = 3600) -> None:
    """Let the files be of an hour ago."""
    for path in files(folder):
        os.utime(path, (time.time() - seconds,) * 2)


def test_ranks_that_arrive_in_pieces(tmp_path: Path) -> None:
    seen = soak(tmp_path, world=8, seconds=4)
    assert not seen.problems
    assert seen.answers
    assert seen.final == seen.cold
    assert seen.final["verdict"] == "straggler"


def test_a_search_that_finds_nothing_new_reads_nothing(tmp_path: Path) -> None:
    folder = write(tmp_path / "logs" / "job", TRACES)
    read: list[Path] = []

    def count(path: Path) -> Any:
        read.append(path)
        return peek(path)

    heads = RememberedHeads(count)
    first = runs.discover(tmp_path / "logs", peek=heads.peek)
    assert sorted(read) == files(folder)
    assert runs.discover(tmp_path / "logs", peek=heads.peek) == first
    assert len(read) == 3
    os.utime(files(folder)[1])
    runs.discover(tmp_path / "logs", peek=heads.peek)
    assert read[3:] == [files(folder)[1]]


def test_a_rank_that_comes_later_is_taken_up_without_a_restart(tmp_path: Path) -> None:
    folder = write(tmp_path / "job", TRACES)
    age(folder)
    later = files(folder)[2]
    data = later.read_bytes()
    later.unlink()
    get = server(tmp_path)
    assert entry_when(get, is_ready)["ranks"] == 2
    assert diagnosis(get)["missing_ranks"] == [2]
    later.write_bytes(data)
    # What was known stays until more is.
    while get("/runs").get_json()["runs"][0]["ranks"] == 2:
        assert get("/run", run="job").status_code == 200
    assert diagnosis(get)["missing_ranks"] == []


def test_a_half_written_file_waits_until_it_is_whole(tmp_path: Path) -> None:
    folder = write(tmp_path / "job", TRACES)
    age(folder)
    half = files(folder)[2]
    data = gzip.compress(half.read_bytes())
    half.unlink()
    half = half.with_name(half.name + ".gz")
    half.write_bytes(data[: len(data) // 2])
    get = server(tmp_path)
    run = entry_when(get, lambda run: run["state"] == "ready")
    assert (run["ranks"], run["arriving"]) == (2, 1)
    found = diagnosis(get)
    assert found["headline"].endswith(". 1 file is still arriving.")
    assert [w["file"] for w in found["warnings"] if w["kind"] == "arriving"] == [str(half)]
    half.write_bytes(data)
    assert entry_when(get, is_ready)["ranks"] == 3
    assert "arriving" not in str(diagnosis(get))


def test_what_a_half_written_file_has_shown_is_told_to_who_asks(tmp_path: Path) -> None:
    folder = write(tmp_path / "job", TRACES)
    age(folder)
    half = files(folder)[2]
    data = half.read_bytes()
    half.write_bytes(data[: len(data) * 9 // 10])
    get = server(tmp_path)
    entry_when(get, lambda run: bool(run["state"] == "ready" and run["arriving"]))
    assert get("/run", run="job", arriving="").status_code == 202
    assert entry_when(get, is_ready)["ranks"] == 3
    assert any("cut off" in warning["message"] for warning in diagnosis(get)["warnings"])
    assert diagnosis(get)["headline"].endswith(". 1 file is incomplete.")


def test_a_file_that_nobody_goes_on_writing_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "job", TRACES)
    half = files(folder)[2]
    data = half.read_bytes()
    half.write_bytes(data[: len(data) * 9 // 10])
    age(folder, 30)
    get = server(tmp_path)
    assert entry_when(get, lambda run: run["state"] == "ready")["arriving"] == 1
    monkeypatch.setattr(arrivals, "ABANDONED_S", 30.0)
    assert entry_when(get, is_ready)["ranks"] == 3
    assert any("cut off" in warning["message"] for warning in diagnosis(get)["warnings"])


def test_a_file_without_device_events_is_left_out_once_nothing_more_is_expected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kineto writes the host's events first: what has arrived looks like a rank whose device did nothing."""
    folder = write(tmp_path / "job", TRACES)
    half = files(folder)[2]
    data = half.read_bytes()
    half.write_bytes(data[: data.index(b'"kernel"')])
    age(folder, 30)
    get = server(tmp_path)
    assert entry_when(get, lambda run: run["state"] == "ready")["arriving"] == 1
    assert diagnosis(get)["missing_ranks"] == [2]
    monkeypatch.setattr(arrivals, "ABANDONED_S", 30.0)
    assert entry_when(get, is_ready)["ranks"] == 2
    found = diagnosis(get)
    assert found["missing_ranks"] == [2] and found["headline"].endswith(". 1 file is incomplete.")
    assert any("Rank 2 is left out" in warning["message"] for warning in found["warnings"])


def test_a_job_of_which_nothing_is_whole_yet_has_not_failed(tmp_path: Path) -> None:
    folder = write(tmp_path / "job", TRACES)
    for path in files(folder):
        path.write_bytes(b"")
    get = server(tmp_path)
    run = entry_when(get, lambda run: bool(run["arriving"]))
    assert (run["state"], run["error"]) == ("queued", None)
    write(tmp_path / "job", TRACES)
    assert entry_when(get, is_ready)["ranks"] == 3


def test_a_deleted_file_leaves_the_last_result_and_says_so(tmp_path: Path) -> None:
    folder = write(tmp_path / "job", TRACES)
    age(folder)
    get = server(tmp_path)
    entry_when(get, is_ready)
    before = diagnosis(get)
    kept = {path: path.read_bytes() for path in files(folder)}
    gone = files(folder)[0]
    gone.unlink()
    assert entry_when(get, lambda run: run["deleted"] == 1)["ranks"] == 3
    assert diagnosis(get) == before
    for path in files(folder):
        path.unlink()
    assert entry_when(get, lambda run: run["deleted"] == 3)["state"] == "ready"
    assert diagnosis(get) == before
    for path, data in kept.items():
        path.write_bytes(data)
    age(folder, 60)
    assert entry_when(get, lambda run: not run["deleted"])["ranks"] == 3


def test_a_run_that_is_renamed_by_what_is_added_is_not_called_deleted(tmp_path: Path) -> None:
    folder = write(tmp_path / "job", TRACES)
    age(folder)
    get = server(tmp_path)
    entry_when(get, is_ready)
    for path in files(folder):
        path.with_name(path.name.replace("17000000000", "17000009000")).write_bytes(path.read_bytes())
    until = time.monotonic() + PATIENCE_S
    while [run["name"] for run in get("/runs").get_json()["runs"]] != ["job/span_1", "job/span_2"]:
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.parametrize(
    "name",
    [
        ".host0_100.1700000000000000000.pt.trace.json.gz.k3Jx0Q",  # rsync
        ".~tmp~/host0_100.1700000000000000000.pt.trace.json.gz",  # rsync --delay-updates
        ".rsync-partial/host0_100.1700000000000000000.pt.trace.json.gz",  # rsync --partial-dir
        "host0_100.1700000000000000000.pt.trace.json.tmp",  # Kineto
        "host0_100.1700000000000000000.pt.trace.json.gz.6eF5bB4a",  # aws s3 cp
        "host0_100.1700000000000000000.pt.trace.json.gz.a1b2c3d4.partial",  # rclone
        "host0_100.1700000000000000000.pt.trace.json.gz_.gstmp",  # gsutil
        "host0_100.1700000000000000000.pt.trace.json.filepart",  # WinSCP
        "host0_100.1700000000000000000.pt.trace.json~",
    ],
)
def test_names_of_what_is_not_finished_are_passed_over(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(draw(TRACES)[0])
    assert runs.discover(tmp_path) == []


def test_the_reload_button_has_the_directory_searched_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analyses, "RESCAN_S", 3600)
    folder = write(tmp_path / "job", TRACES)
    age(folder)
    get = server(tmp_path)
    entry_when(get, is_ready)
    write(tmp_path / "later", TRACES)
    time.sleep(0.3)
    assert len(get("/runs").get_json()["runs"]) == 1
    get("/runs", reload="")
    until = time.monotonic() + PATIENCE_S
    while len(get("/runs").get_json()["runs"]) < 2:
        assert time.monotonic() < until


def test_a_file_that_changes_while_it_is_read_is_read_again(tmp_path: Path) -> None:
    folder = write(tmp_path / "job", TRACES)
    age(folder)
    reads = []

    def diagnose(run: Any, *_: object) -> engine.Result:
        result = engine.diagnose(run)
        reads.append(len(result.diagnosis.ranks))
        if len(reads) == 1:
            os.utime(files(folder)[0])
        return result

    context = base_plugin.TBContext(logdir=str(tmp_path))
    plugin = DiagnosisPlugin(context, examiner=Examination(diagnose=diagnose))
    get = server(tmp_path, plugin)
    entry_when(get, is_ready)
    assert len(reads) > 1


def test_times_of_other_clocks() -> None:
    """A node's clock may be ahead; that must not keep its files out for ever."""
    seen = FileArrivals()
    ahead = {"a": Stamp(1, time.time_ns() + 3600 * 10**9), "b": Stamp(1, -1)}
    seen.see(ahead)
    assert seen.changing(["a", "b", "unknown"]) == {"a"}
    time.sleep(0.3)
    seen.see(ahead)
    assert seen.changing(["a"]) == frozenset()
    assert seen.expected(["a", "b"]) == {"a"}
    seen.see({"b": Stamp(2, -1)})
    assert seen.changing(["a", "b"]) == {"b"}


@pytest.mark.parametrize("raw", [b"a b", b"a#b", b"50%", b"a%20b", b"new\nline", b"a&b=c?d", b"\xc3\xbc", b"\xff\xfe"])
def test_odd_names_of_folders_and_files(tmp_path: Path, raw: bytes) -> None:
    folder = write(tmp_path / os.fsdecode(raw), TRACES)
    for path in files(folder):
        path.rename(path.with_name(os.fsdecode(raw) + path.name))
    age(folder)
    get = server(tmp_path)
    run = entry_when(get, is_ready)
    assert run["ranks"] == 3
    response = get("/run", run=run["name"])
    assert response.status_code == 200
    assert response.get_json()["diagnosis"]["verdict"] == "straggler"


def test_paths_with_dots_and_links_out_of_the_directory(tmp_path: Path) -> None:
    age(write(tmp_path / "elsewhere" / "job", TRACES))
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "linked").symlink_to(tmp_path / "elsewhere" / "job")
    (logs / "broken").symlink_to(tmp_path / "nowhere")
    (logs / "loop").symlink_to(logs)
    get = server(tmp_path / "elsewhere" / ".." / "logs")
    run = entry_when(get, is_ready)
    assert (run["name"], run["ranks"]) == ("linked", 3)
    # A name is looked up among those that were found: it is no path.
    for name in ("../elsewhere/job", "linked/../linked", str(tmp_path / "elsewhere" / "job"), "./linked"):
        assert get("/run", run=name).status_code == 404
