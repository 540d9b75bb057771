"""The pure modules of the tab, by Node's own test runner: the Node that Playwright brings with it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from playwright._impl._driver import compute_driver_executable

from tb_ddp_doctor.rules.support import savings

TESTS = sorted((Path(__file__).parent.parent / "frontend" / "test").glob("*.test.js"))


@pytest.mark.parametrize("file", TESTS, ids=lambda file: file.stem)
def test_pure_modules(file: Path) -> None:
    node, _ = compute_driver_executable()
    ran = subprocess.run([node, "--test", file], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "fail 0" in ran.stdout and "pass 0" not in ran.stdout, ran.stdout


def test_what_a_fix_removes_is_known_by_its_measurement() -> None:
    model = (Path(__file__).parent.parent / "frontend" / "src" / "model.js").read_text()
    names = {f"CPU time that the fix removes: {kind}" for kind in savings._HOST_TIME.values()}
    names |= {"GPU work that the fix removes", "exposed communication that the fix removes"}
    assert set(re.findall(r'\["([^"]+ that the fix removes[^"]*)", "\w+"\]', model)) == names
