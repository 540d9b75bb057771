"""The callbacks for Lightning and Hugging Face's Trainer, with the real packages.

They are tried only where DDP_DOCTOR_TRAINERS_PYTHON names a Python that has them (`tests/conftest.py`), after
`pip install -e '.[torch,lightning,transformers]'`: 200 MB and a minute more than CI spends.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.capture.directory import capture_folders

PYTHON = os.environ["DDP_DOCTOR_TRAINERS_PYTHON"]
JOB = Path(__file__).with_name("trainers_job.py")


@pytest.mark.parametrize("trainer", ["lightning", "transformers"])
def test_a_callback_captures_the_same_steps_on_all_ranks(trainer: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(JOB.parents[1]), "GLOO_SOCKET_IFNAME": "lo"}
    launcher = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*launcher, str(JOB), trainer, str(tmp_path)], env=environment, check=True, timeout=300)
    # 24 batches with Lightning, 20 optimizer steps with the Trainer: captures at 8 and 16, of two steps each.
    folders = capture_folders(tmp_path / "job")
    assert [folder.step for folder in folders] == [8, 16]
    for folder in folders:
        digests = [Cache(None).digest(path) for path in sorted(folder.path.glob("*.digest"))]
        assert [digest.steps.number.tolist() for digest in digests] == [[folder.step, folder.step + 1]] * 2
        assert all(len(digest.collectives) for digest in digests)
