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


def test_peaks_of_the_users_are_said_and_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "job", ranks(FAULTY, FAULTY), **SLOW)
    assert main(["diagnose", str(tmp_path / "job"), "--roofline"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Peaks of NVIDIA H100 80GB HBM3: 1,979 TFLOPS in 8-bit floats" in said
    assert "3,350 GB/s of memory (data sheet: https://www.nvidia.com/en-us/data-center/h100/)" in said
    # At 1 TB/s the 3.28 GB take 3.3 of the 20 ms.
    assert main(["diagnose", str(tmp_path / "job"), "--roofline", "--peaks", "H100:memory=1"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "1,000 GB/s of memory (as given; else data sheet" in said
    assert "gelu 4000x102400 1 20.00 16.72 16 % 164 GB/s" in said


def test_peaks_that_are_none_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "job", ranks(FAULTY, FAULTY), **SLOW)
    assert main(["diagnose", str(tmp_path / "job"), "--peaks", "speed=1"]) == 2
    assert "A peak is one of half, tf32" in " ".join(capsys.readouterr().err.split())
