"""The roofline in the terminal and in the tab's numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from rules.test_slow_kernels import FAULTY, SLOW
from traces import ranks, write

from tb_ddp_doctor.cli import main


def test_the_terminal_lists_kernels_above_attainable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "job", ranks(FAULTY, FAULTY), **SLOW)
    assert main(["diagnose", str(tmp_path / "job"), "--roofline"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "below attainable: 19.0 ms of the floor" in said
    assert "gelu 4000x102400 1 20.00 19.02 4.9 % 164 GB/s" in said
