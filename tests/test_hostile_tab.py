"""Files made to harm, in a TensorBoard of its own process: each costs itself and a sentence, and nobody waits."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hostile_files import CASES, MOST_BYTES, SILENT, same_hash
from load import tensorboard

from tb_ddp_doctor.workers.limits import limits_for

#: All is read by then, also on a busy machine.
ALL_S = 1800.0
MOST_RSS = 512 << 20
#: Of the usual times that files may take: what hangs is given up sooner.
PATIENCE = "0.25"


class Watched:
    """What is seen of a server while it reads."""

    def __init__(self, base: str, server: psutil.Process) -> None:
        self.base, self.server = base, server
        self.answers = 0
        #: The most that each process has had, bytes.
        self.rss: dict[int, int] = {}

    def get(self, route: str, **query: str) -> Any:
        """A route's answer."""
        with urllib.request.urlopen(f"{self.base}/{route}?{urllib.parse.urlencode(query)}", timeout=60) as response:
            answer = json.load(response)
        self.answers += 1
        return answer

    def look(self) -> None:
        with contextlib.suppress(psutil.Error):
            for process in (self.server, *self.server.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    self.rss[process.pid] = max(self.rss.get(process.pid, 0), process.memory_info().rss)

    @contextlib.contextmanager
    def looked_at(self) -> Iterator[None]:
        done = threading.Event()

        def look() -> None:
            while not done.wait(0.1):
                self.look()

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Path]]:
    folder = tmp_path_factory.mktemp("hostile")
    return folder, {name: case(folder / name) for name, case in CASES.items()}


def test_each_hostile_file_is_small(logs: tuple[Path, dict[str, Path]]) -> None:
    for path in logs[1].values():
        assert path.is_symlink() or path.is_dir() or path.stat().st_size < MOST_BYTES, path.name
    limits = limits_for(MOST_BYTES, 16 * MOST_BYTES)
    assert limits.seconds <= 30 and limits.cpu_s <= 30 and limits.bytes + (100 << 20) <= MOST_RSS


def test_pairs_have_one_hash() -> None:
    pairs = [pair for pair, _ in zip(same_hash(), range(100), strict=False)]
    assert len(set(pairs)) == 100 and len({hash(pair) for pair in pairs}) == 1


def test_hostile_files_cost_themselves_and_a_sentence(
    logs: tuple[Path, dict[str, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All at once: a run of each, which is asked for while others ask for what is known of the runs."""
    monkeypatch.setenv("DDP_DOCTOR_PATIENCE", PATIENCE)
    folder, paths = logs
    with tensorboard(folder) as (base, server):
        seen = Watched(base, server)
        with seen.looked_at():
            answers = _all(seen, set(CASES))
        assert seen.answers > 2 * len(CASES)
        assert max(seen.rss.values()) < MOST_RSS, {pid: rss >> 20 for pid, rss in seen.rss.items() if rss > MOST_RSS}
        for name, path in paths.items():
            answer = answers[name]
            assert answer["state"] == "ready", (name, answer)
            _check(name, path, answer["diagnosis"])
        _overwrite(paths["digest_that_is_overwritten"])
        for of in ("operators", "ranks", "communication"):
            assert seen.get("detail", run="digest_that_is_overwritten", of=of)
        assert not seen.get("detail", run="log_of_many_clocks", of="history").get("steps")
        assert server.is_running() and seen.get("runs")["runs"]


def _all(seen: Watched, names: set[str]) -> dict[str, Any]:
    """The answer for each run, once it is there."""
    answers: dict[str, Any] = {}
    until = time.monotonic() + ALL_S
    while len(answers) < len(names):
        assert time.monotonic() < until, sorted(names - answers.keys())
        known = {run["name"] for run in seen.get("runs")["runs"]}
        for name in sorted((known & names) - answers.keys()):
            answer = seen.get("run", run=name)
            if answer["state"] in ("ready", "failed"):
                answers[name] = answer
                break
        time.sleep(0.2)
    return answers


def _check(name: str, path: Path, diagnosis: Any) -> None:
    is_dump = "dumps" in str(diagnosis["warnings"]) or name.startswith(("dump_", "answer_", "stacks_"))
    assert diagnosis["verdict"] == ("stuck" if is_dump else "straggler"), (name, diagnosis["headline"])
    if CASES[name] not in SILENT:
        said = [
            one["message"] for one in diagnosis["warnings"] if path.name in one["file"] or path.name in one["message"]
        ]
        assert said, (name, diagnosis["warnings"])
        assert not any("the doctor's fault" in one for one in said), said


def _overwrite(path: Path) -> None:
    """As `cp` does: the file is there as it was, and shorter."""
    with path.open("r+b") as file:
        file.truncate(100)
        file.write(os.urandom(50))
