"""Real jobs of four processes over gloo that are captured while they train, with what may go wrong (capture_job.py)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from tb_ddp_doctor import engine
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.capture.directory import CaptureFolder, CaptureVerdict, capture_folders, read_json
from tb_ddp_doctor.capture.requests import Mailbox, Request
from tb_ddp_doctor.capture.starts import starts
from tb_ddp_doctor.cli import main
from tb_ddp_doctor.discover.names import DIGEST_SUFFIX
from tb_ddp_doctor.discover.runs import discover, only_run

#: torch may lie in another environment than the tests': `DDP_DOCTOR_TORCH_PYTHON=/path/to/python`.
PYTHON = os.environ.get("DDP_DOCTOR_TORCH_PYTHON", sys.executable)
SCENARIOS = ("requests", "terminated", "scheduled-kept", "watched", "faults", "missing", "unwritable", "again")
#: On a machine that does much else: for one thing of a job, and for all jobs.
PATIENCE_S, IN_ALL_S = 300.0, 1200.0

pytestmark = pytest.mark.skipif(
    sys.executable == PYTHON and find_spec("torch") is None, reason="needs PyTorch: pip install -e '.[test,torch]'"
)


@dataclass(frozen=True)
class Jobs:
    folder: Path
    #: What `ddp-doctor capture --ranks 0,2` printed.
    printed: str

    def exits(self, scenario: str) -> list[int]:
        return [int(code) for code in (self.folder / scenario / "exits").read_text().split()]

    def said(self, scenario: str, rank: int) -> str:
        return (self.folder / scenario / f"rank{rank}.log").read_text()

    def captured(self, scenario: str) -> dict[int, set[int]]:
        """By first step, the ranks that reported."""
        folders = capture_folders(self.folder / scenario / "job")
        return {folder.step: set(folder.records()) for folder in folders}

    def traced_steps(self, scenario: str) -> dict[int, set[tuple[int, ...]]]:
        """By first step, the steps in each rank's digest."""
        cache = Cache(None)
        return {
            folder.step: {
                tuple(cache.digest(path).steps.number.tolist()) for path in folder.path.glob(f"*{DIGEST_SUFFIX}")
            }
            for folder in capture_folders(self.folder / scenario / "job")
        }


def awaited(what: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    """All scenarios, run one after the other."""
    folder = tmp_path_factory.mktemp("jobs")
    package = Path(engine.__file__).parents[1]
    script = Path(__file__).with_name("capture_job.py")
    job = subprocess.Popen(
        [PYTHON, str(script), str(folder), *SCENARIOS],
        env={**os.environ, "PYTHONPATH": str(package)},
        start_new_session=True,
    )
    try:
        printed = ask(folder / "requests")
        terminate(folder / "terminated")
        assert job.wait(IN_ALL_S) == 0
    finally:
        with suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    return Jobs(folder, printed)


def ask(folder: Path) -> str:
    """Ask twice at once, by signal, and by the command; what that printed."""
    logdir, mailbox = folder / "job", Mailbox(folder / "job")
    awaited(mailbox.is_open)
    for steps in (2, 4):
        mailbox.ask(Request(time.time(), "a test", steps))
    awaited(lambda: len(capture_folders(logdir)) == 2)
    os.kill(int((folder / "pid3").read_text()), signal.SIGUSR2)
    awaited(lambda: len(capture_folders(logdir)) == 3)
    asked = [sys.executable, "-m", "tb_ddp_doctor.cli", "capture", str(logdir), "--ranks", "0,2", "--steps", "1"]
    printed = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout
    (folder / "stop").touch()
    awaited((folder / "exits").exists)
    return printed


def terminate(folder: Path) -> None:
    """End a job while it is recorded, as a scheduler does: long before it would end by itself."""
    awaited(lambda: all((folder / f"recording{rank}").exists() for rank in range(4)))
    for rank in range(4):
        os.kill(int((folder / f"pid{rank}").read_text()), signal.SIGTERM)
    awaited((folder / "exits").exists)


def test_scheduled_captures_have_the_same_steps_on_all_ranks(jobs: Jobs) -> None:
    assert jobs.exits("scheduled-kept") == [0, 0, 0, 0]
    assert jobs.captured("scheduled-kept") == {12: {0, 1, 2, 3}}
    assert jobs.traced_steps("scheduled-kept") == {12: {(12, 13, 14)}}


def test_a_capture_that_the_end_of_training_cuts_off_is_given_up(jobs: Jobs) -> None:
    for rank in range(4):
        assert "gives up the capture of steps 24 to 26: the training ends" in jobs.said("scheduled-kept", rank)


def test_digests_give_the_verdict_of_the_traces(jobs: Jobs, tmp_path: Path) -> None:
    captured = jobs.folder / "scheduled-kept" / "job" / "step_12"
    diagnoses = []
    for kept in (f"*{DIGEST_SUFFIX}", "*.json.gz"):
        alone = tmp_path / kept.strip("*.") / "step_12"
        alone.mkdir(parents=True)
        for path in captured.glob(kept):
            shutil.copy(path, alone)
        assert len(list(alone.iterdir())) == 4
        diagnoses.append(engine.diagnose(only_run(str(alone))).diagnosis)
    of_digests, of_traces = diagnoses
    assert of_digests == msgspec.structs.replace(of_traces, warnings=of_digests.warnings)


def test_a_capture_with_traces_is_diagnosed_from_digests_and_shows_the_traces(jobs: Jobs) -> None:
    (run,) = discover(jobs.folder / "scheduled-kept")
    assert {file.path.suffix for file in run.files} == {DIGEST_SUFFIX}
    result = engine.diagnose(run)
    assert not result.from_digests
    assert [path.name for path in result.files] == [f"rank{rank}.pt.trace.json.gz" for rank in range(4)]


def test_the_verdict_is_one_line_in_the_log(jobs: Jobs) -> None:
    verdict = read_json(jobs.folder / "scheduled-kept" / "job" / "step_12" / "verdict.json", CaptureVerdict)
    assert verdict is not None
    assert verdict.line.startswith("step 12: ")
    assert f"ddp-doctor: {verdict.line}\n" in jobs.said("scheduled-kept", 0)
    assert verdict.line not in jobs.said("scheduled-kept", 1)


def test_each_request_is_answered_in_turn(jobs: Jobs) -> None:
    """Two at once, one by signal, one for two ranks."""
    assert jobs.exits("requests") == [0, 0, 0, 0]
    traced = jobs.traced_steps("requests")
    windows = [next(iter(steps)) for _, steps in sorted(traced.items())]
    assert [len(steps) for steps in traced.values()] == [1, 1, 1, 1]
    assert sorted(len(steps) for steps in windows[:2]) == [2, 4]
    assert [len(steps) for steps in windows[2:]] == [3, 1]
    assert all(before[-1] < after[0] for before, after in pairwise(windows))
    assert list(jobs.captured("requests").values()) == [{0, 1, 2, 3}] * 3 + [{0, 2}]
    assert "as SIGUSR2 to rank 3 asked" in jobs.said("requests", 0)


def test_the_command_says_which_step_and_the_verdict(jobs: Jobs) -> None:
    step = max(jobs.captured("requests"))
    planned, verdict = jobs.printed.splitlines()
    assert planned == f"Step {step} will be captured."
    assert verdict.startswith(f"step {step}: ")


def test_ranks_that_hang_start_late_or_are_killed_hold_up_nobody(jobs: Jobs) -> None:
    assert jobs.exits("faults") == [0, 0, 0, -signal.SIGKILL]
    assert jobs.captured("faults")[12] == {0, 1, 2}
    assert jobs.traced_steps("faults")[12] == {(12, 13, 14)}
    assert "Without rank 3, which did not report." in jobs.said("faults", 0)


def test_ranks_that_stop_are_elsewhere_or_cannot_write_are_missing(jobs: Jobs) -> None:
    assert jobs.exits("missing") == [0, 0, 0, 0]
    assert jobs.captured("missing")[12] == {0}
    assert jobs.captured("missing")[1008] == {2}
    assert "rank 1 is missing from the capture of steps 12 to 14: its trace cannot be" in jobs.said("missing", 1)
    assert "Without ranks 1-3, which did not report." in jobs.said("missing", 0)
    assert "Without ranks 0, 1 and 3, which did not report." in jobs.said("missing", 2)


def test_a_directory_that_cannot_be_written_to_is_said_once(jobs: Jobs) -> None:
    assert jobs.exits("unwritable") == [0, 0, 0, 0]
    for rank in range(4):
        assert jobs.said("unwritable", rank).count("/proc/doctor cannot be written to") == 1


def test_a_log_directory_that_is_used_again_has_runs_apart(jobs: Jobs) -> None:
    assert jobs.exits("again") == [0] * 6
    runs = {run.name: [file.rank for file in run.files] for run in discover(jobs.folder / "again" / "job")}
    assert runs == {"step_12": [0, 1, 2, 3], "start_2/step_12": [0, 1]}
    assert "has captures of an earlier start; those of this one go to" in jobs.said("again", 0)
    assert "which did not report" not in jobs.said("again", 0)
    assert [one.has_ended for one in starts(jobs.folder / "again" / "job")] == [True, True]


def test_a_job_that_is_terminated_in_a_capture_ends(jobs: Jobs) -> None:
    assert jobs.exits("terminated") == [-signal.SIGTERM] * 4
    assert jobs.captured("terminated") == {}


def test_a_job_that_is_watched_shows_modules_and_loading(jobs: Jobs) -> None:
    folder = CaptureFolder.of(jobs.folder / "watched" / "job", 12)
    for record in folder.records().values():
        loading = record.evidence.loading
        assert loading is not None
        assert loading.workers == 2
        assert 40 <= loading.median_ms <= loading.longest_ms
    diagnosis = engine.diagnose(only_run(str(folder.path))).diagnosis
    (straggler,) = [finding for finding in diagnosis.findings if finding.rule == "straggler"]
    assert straggler.ranks == (1,)
    assert ", in module readout." in straggler.evidence[0].what
    assert "in Python, for example in nn.Module: readout" in straggler.why


def test_a_job_that_is_watched_shows_the_modules_of_forward_and_backward(jobs: Jobs) -> None:
    digest = Cache(None).digest(CaptureFolder.of(jobs.folder / "watched" / "job", 12).digest(0))
    first = digest.code.start_ns < digest.steps.end_ns[0]
    functions = [digest.strings[name] for name in digest.code.function[first].tolist()]
    assert functions == [f"nn.Module: {layer}" for layer in (0, 1, 2, 2, 1, 0)]


def test_captures_are_runs_by_step(jobs: Jobs, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(jobs.folder / "requests"), "--no-cache"]) == 0
    steps = sorted(jobs.captured("requests"))
    names = [line.split(":")[0] for line in capsys.readouterr().out.splitlines() if line.startswith("job/step_")]
    assert names == [f"job/step_{step}" for step in steps]
    assert CaptureFolder.of(jobs.folder, steps[0]).step == steps[0]
