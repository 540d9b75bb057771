"""Real jobs that hang, on CPUs over gloo: torch 2.13 records its collectives in the Flight Recorder too."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import gloo_hang
import pytest
from dumps import faults

from tb_ddp_doctor.stuck.model import StuckRun
from tb_ddp_doctor.stuck.run import examine_all

#: torch may lie in another environment than the tests': `DDP_DOCTOR_TORCH_PYTHON=/path/to/python`.
PYTHON = os.environ.get("DDP_DOCTOR_TORCH_PYTHON", sys.executable)


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dumps of a job for each fault, in a folder of its name."""
    folder = tmp_path_factory.mktemp("dumps")
    ran = subprocess.run([PYTHON, gloo_hang.__file__, folder, "missing", "order", "fine"], timeout=300, check=False)
    if ran.returncode == gloo_hang.NO_RECORDER:
        pytest.skip("no torch that records gloo (2.13)")
    assert ran.returncode == 0
    return folder


def hung(dumps: Path, fault: str, *, waited_s: float) -> StuckRun:
    """What the dumps of a real job say, as if they had been written so long after it hung."""
    for path in (dumps / fault).iterdir():
        os.utime(path, (time.time(), time.time() + waited_s))
    (run,) = examine_all(dumps / fault)
    return run


def test_a_rank_that_never_comes(dumps: Path) -> None:
    run = hung(dumps, "missing", waited_s=60)
    assert run.verdict == "stuck"
    assert faults(run) == [("missing", (1,))]
    (finding,) = run.findings
    assert (finding.call.backend, finding.call.kind, finding.call.timeout_s) == ("gloo", "all_reduce", 600)
    assert finding.call.site is not None and finding.call.site.function == "hang"
    assert "do not list the ranks of groups" in run.warnings[0].message


def test_two_ranks_in_another_order(dumps: Path) -> None:
    run = hung(dumps, "order", waited_s=60)
    assert faults(run) == [("wrong-order", (0, 1))]
    assert run.findings[0].waiting == (2,)


def test_no_fault(dumps: Path) -> None:
    run = hung(dumps, "fine", waited_s=0)
    assert (run.verdict, faults(run)) == ("healthy", [])
