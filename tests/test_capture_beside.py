"""A job that has a torch.profiler of its own beside the Doctor: both trace, neither ends the training."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_capture_gloo import PYTHON

from tb_ddp_doctor import engine
from tb_ddp_doctor.capture.directory import CaptureFolder, CaptureVerdict, read_json
from tb_ddp_doctor.capture.windows import CaptureWindow
from tb_ddp_doctor.discover.runs import only_run

pytestmark = pytest.mark.skipif(
    sys.executable == PYTHON and find_spec("torch") is None, reason="needs PyTorch: pip install -e '.[test,torch]'"
)
#: Steps that the job's own profiler waits: it ends before the capture of steps 10 to 12, or runs into it from any side.
WAITS = (1, *range(4, 15))
SCRIPT = """
import json, logging, sys, time
from pathlib import Path
import torch
import torch._inductor.config
from torch.profiler import profile, schedule
from tb_ddp_doctor.capture import Doctor

logging.basicConfig(format="%(message)s", stream=sys.stdout)
torch.set_num_threads(1)
model = torch.nn.Linear(32, 32)


def train(folder, wait, doctors_first):
    traced = []

    def ready(profiler):
        profiler.export_chrome_trace(str(folder / "own.json"))
        events = json.loads((folder / "own.json").read_text())["traceEvents"]
        traced.append(sum(event["name"].startswith("ProfilerStep#") for event in events if event["ph"] == "X"))

    doctor = Doctor(folder / "job", every=10, steps=3, poll_s=0.05, scratch=folder)
    with profile(schedule=schedule(wait=wait, warmup=2, active=2, repeat=1), on_trace_ready=ready) as own:
        for step in range(20):
            model(torch.ones(8, 32)).sum().backward()
            time.sleep(0.005)
            for each in (lambda: doctor.step(step), own.step)[::1 if doctors_first else -1]:
                model(torch.ones(8, 32))
                each()
    doctor.close(wait_s=600)
    return traced


for wait in map(int, sys.argv[2:]):
    for doctors_first in (True, False):
        folder = Path(sys.argv[1]) / f"{wait}-{doctors_first}"
        folder.mkdir()
        (folder / "traced").write_text(json.dumps(train(folder, wait, doctors_first)))
"""


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder with all jobs, and what they said."""
    folder = tmp_path_factory.mktemp("beside")
    package = str(Path(engine.__file__).parents[1])
    command = [PYTHON, "-c", SCRIPT, str(folder), *map(str, WAITS)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
        env={"PYTHONPATH": package, "PATH": "/usr/bin"},
    )
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("wait", WAITS)
def test_the_jobs_own_profiler_has_its_trace(jobs: tuple[Path, str], wait: int, first: bool) -> None:
    traced: list[Any] = json.loads((jobs[0] / f"{wait}-{first}" / "traced").read_text())
    assert traced == [2]


@pytest.mark.parametrize("first", [True, False])
def test_a_capture_beside_steps_that_another_profiler_marks_is_whole(jobs: tuple[Path, str], first: bool) -> None:
    """Its schedule has ended, and it goes on to mark steps."""
    captured = CaptureFolder.of(jobs[0] / f"1-{first}" / "job", 10)
    assert read_json(captured.verdict, CaptureVerdict) is not None
    result = engine.diagnose(only_run(str(captured.path)))
    assert result.job.steps.tolist() == [10, 11, 12]
    assert not result.diagnosis.warnings


def test_a_trace_that_torch_did_not_write_is_a_full_disk(tmp_path: Path) -> None:
    """Torch says nothing of it, and leaves no file or half of one."""
    pytest.importorskip("torch")
    from tb_ddp_doctor.capture.recorder import WindowRecorder

    trace = tmp_path / "step_10" / "trace.json"
    for written in (None, '{"traceEvents": [', '{"traceEvents": []}'):
        recorder = WindowRecorder(CaptureWindow(10, 3), {}, None, {})
        recorder._profile = SimpleNamespace(  # type: ignore[assignment]
            export_chrome_trace=lambda path, text=written: None if text is None else Path(path).write_text(text)
        )
        if written and written.endswith("}"):
            recorder.save(trace)
        else:
            with pytest.raises(OSError, match="No space left on device"):
                recorder.save(trace)


def test_a_capture_gives_way_once(jobs: tuple[Path, str]) -> None:
    said = jobs[1].splitlines()
    gave_way = [line for line in said if "gives up the capture of steps 10 to 12: another profiler began" in line]
    missing = [line for line in said if "is missing from the capture of steps 10 to 12: another profiler" in line]
    captured = [line for line in said if "step 10: " in line]
    assert gave_way and missing
    assert len(gave_way) + len(missing) + len(captured) == 2 * len(WAITS)
    assert "captures nothing more" not in jobs[1]
