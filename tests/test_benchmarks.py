"""Benchmarks whose inputs are made by hand still fit the code."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def test_made_up_ranks_are_diagnosed(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(BENCHMARKS / "many_ranks.py"))["main"](["--ranks", "32", "--steps", "4"])
    printed = capsys.readouterr().out
    assert "24 collectives matched" in printed
    assert "critical straggler host" in printed and "straggler slow_device" in printed
