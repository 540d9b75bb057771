"""The pure modules of the tab, by Node's own test runner: the Node that Playwright brings with it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from playwright._impl._driver import compute_driver_executable

TESTS = sorted((Path(__file__).parent.parent / "frontend" / "test").glob("*.test.js"))


@pytest.mark.parametrize("file", TESTS, ids=lambda file: file.stem)
def test_pure_modules(file: Path) -> None:
    node, _ = compute_driver_executable()
    ran = subprocess.run([node, "--test", file], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "fail 0" in ran.stdout and "pass 0" not in ran.stdout, ran.stdout
