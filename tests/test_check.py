"""A check of real ranks on CPUs over gloo: what it finds, who does not answer, and that nothing stays behind."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import pytest

from tb_ddp_doctor.calibration.load import load
from tb_ddp_doctor.report.schema import schema

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="needs PyTorch: pip install -e '.[test,torch]'"
)
#: All that comes at all comes sooner, on a machine that does much else, s.
PATIENCE_S = 120
LITTLE = ("--seconds", "0.5", "--repeat", "0.01", "--max-bytes", "16K")


@dataclass(frozen=True)
class Checked:
    """What the ranks of a check that measures little left (check_ranks.py)."""

    folder: Path

    def said(self, rank: int) -> str:
        return (self.folder / f"rank{rank}.out").read_text()

    def exits(self) -> dict[int, int]:
        """By rank."""
        found = {int(path.name.removeprefix("exit")): path for path in self.folder.glob("exit?")}
        return {rank: int(path.read_text()) for rank, path in sorted(found.items())}

    def errors(self) -> str:
        return "".join(path.read_text() for path in self.folder.glob("rank?.err"))


@pytest.fixture(scope="module")
def checks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Checked]]:
    """All checks, one after the other."""
    folder = tmp_path_factory.mktemp("checks")
    written = ("-o", str(folder), "--html", str(folder / "check.html"))
    wanted = {
        "all": (3, [], (*LITTLE, *written, "--patience", "120")),
        # Ranks that begin long after each other would be named too: the first has four times that patience.
        "absent": (3, [1], (*LITTLE, "--patience", "1", "--json")),
        "stopped": (3, [], (*LITTLE, "--patience", "15", "--json", "--seconds", "60")),
    }
    script = Path(__file__).with_name("check_ranks.py")
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    process = subprocess.Popen(
        [sys.executable, str(script), str(folder), json.dumps(wanted)], env=environ, start_new_session=True
    )
    try:
        stop_a_rank(folder / "stopped")
        assert process.wait(PATIENCE_S) == 0
        yield {name: Checked(folder / name) for name in wanted}
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def stop_a_rank(folder: Path) -> None:
    """Stop rank 2 while it measures, until the others have ended."""
    awaited((folder / "pid2").exists, 3 * PATIENCE_S)
    pid = int((folder / "pid2").read_text())
    awaited(lambda: _measures(pid), PATIENCE_S)
    os.kill(pid, signal.SIGSTOP)
    awaited(lambda: all((folder / f"exit{rank}").exists() for rank in (0, 1)), PATIENCE_S)
    os.kill(pid, signal.SIGKILL)


def awaited(what: Callable[[], bool], patience_s: float) -> None:
    until = time.monotonic() + patience_s
    while not what():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_all_ranks_are_measured_and_the_calibration_is_read_again(checks: dict[str, Checked]) -> None:
    checked = checks["all"]
    folder = checked.folder.parent
    assert checked.exits() == {0: 0, 1: 0, 2: 0}, checked.errors()
    found = load(folder / "calibration.json")
    jsonschema.validate(json.loads((folder / "calibration.json").read_bytes()), schema("calibration"))
    assert (found.world_size, found.backend, found.source) == (3, "gloo", "check")
    measures = {measure.name: measure for measure in found.measures}
    for name in ("GEMM float32", "memory bandwidth", "launch latency"):
        assert all(value is not None and value > 0 for value in measures[name].values)
        assert all(spread is not None for spread in measures[name].spreads)
    assert {curve.kind for curve in found.curves} == {"all_reduce", "all_gather", "reduce_scatter"}
    for curve in found.curves:
        sizes = [point.bytes for point in curve.points]
        assert curve.ranks == (0, 1, 2) and sizes[0] >= 1024 and all(point.count >= 3 for point in curve.points)
    assert [pair.ranks for pair in found.pairs] == [(0, 1), (0, 2)]
    assert found.curve("all_reduce", 3, within_node=True)
    text = (folder / "check.html").read_text()
    assert text.count("<svg") == 2 and "rank 2 on" in text and "<script" not in text
    assert "3 ranks on 1 node" in checked.said(0) and not any(map(checked.said, (1, 2)))


def test_a_rank_that_never_starts_is_named(checks: dict[str, Checked]) -> None:
    checked = checks["absent"]
    exits = checked.exits()
    assert max(exits.values()) == 3
    (found,) = [json.loads(text) for text in map(checked.said, exits) if text]
    assert {"rank": 1, "phase": "start"} in found["no_answer"]


def test_a_rank_that_stops_is_named_by_those_that_wait_for_it(checks: dict[str, Checked]) -> None:
    checked = checks["stopped"]
    assert checked.exits() == {0: 3, 1: 0, 2: -signal.SIGKILL}
    assert [one["rank"] for one in json.loads(checked.said(0))["no_answer"]] == [2]
    assert not checked.said(1)


def _measures(pid: int) -> bool:
    """Whether a rank has a connection to the store and to others: it is past the start."""
    return sum(map(_is_socket, Path(f"/proc/{pid}/fd").iterdir())) >= 4


def _is_socket(link: Path) -> bool:
    try:
        return os.readlink(link).startswith("socket:")
    except FileNotFoundError:  # closed since
        return False


def test_a_rank_whose_board_ends_after_it_has_posted_is_done() -> None:
    """The first rank keeps the board, and ends once it has reported what the others posted."""
    from tb_ddp_doctor.check.run import Check

    posted: list[str] = []

    def ended(*_: object) -> list[int]:
        raise RuntimeError("Connection reset by peer")

    check = Check.__new__(Check)
    check._reported, check._found = threading.Lock(), None  # type: ignore[assignment]
    check._board = SimpleNamespace(post=lambda phase, _: posted.append(phase), wait_for=ended)  # type: ignore[assignment]
    assert check._report("curves", None) is None
    assert posted == ["results"]
