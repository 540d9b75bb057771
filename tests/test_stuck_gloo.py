"""Real jobs that hang, on CPUs over gloo: torch 2.13 records its collectives in the Flight Recorder too."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from dumps import faults

from tb_ddp_doctor.stuck.model import StuckRun
from tb_ddp_doctor.stuck.run import examine_all

JOB = Path(__file__).parent / "gloo_hang.py"
#: torch may lie in another environment than the tests': `DDP_DOCTOR_TORCH_PYTHON=/path/to/python`.
PYTHON = os.environ.get("DDP_DOCTOR_TORCH_PYTHON", sys.executable)
_ASKED = "import torch; from torch._C import _distributed_c10d as c; assert hasattr(c, '_dump_fr_trace')"

pytestmark = pytest.mark.skipif(
    subprocess.run([PYTHON, "-c", _ASKED], capture_output=True, check=False).returncode != 0,
    reason="no torch that records gloo (2.13)",
)


def hung(tmp_path: Path, fault: str, *, waited_s: float) -> StuckRun:
    """What the dumps of a real job say, as if they had been written so long after it hung."""
    folder = tmp_path / "dumps"
    folder.mkdir()
    environment = {**os.environ, "TORCH_FR_BUFFER_SIZE": "100", "WORLD_SIZE": "3"}
    ranks = [
        subprocess.Popen(
            [PYTHON, str(JOB), str(tmp_path / "store"), fault, str(folder)], env={**environment, "RANK": str(rank)}
        )
        for rank in range(3)
    ]
    assert [rank.wait(120) for rank in ranks] == [0, 0, 0]
    for path in folder.iterdir():
        os.utime(path, (time.time(), time.time() + waited_s))
    (run,) = examine_all(tmp_path)
    return run


def test_a_rank_that_never_comes(tmp_path: Path) -> None:
    run = hung(tmp_path, "missing", waited_s=60)
    assert run.verdict == "stuck"
    assert faults(run) == [("missing", (1,))]
    (finding,) = run.findings
    assert (finding.call.backend, finding.call.kind, finding.call.timeout_s) == ("gloo", "all_reduce", 60)
    assert finding.call.site is not None and finding.call.site.function == "hang"
    assert "do not list the ranks of groups" in run.warnings[0].message


def test_two_ranks_in_another_order(tmp_path: Path) -> None:
    run = hung(tmp_path, "order", waited_s=60)
    assert faults(run) == [("wrong-order", (0, 1))]
    assert run.findings[0].waiting == (2,)


def test_no_fault(tmp_path: Path) -> None:
    run = hung(tmp_path, "fine", waited_s=0)
    assert (run.verdict, faults(run)) == ("healthy", [])
