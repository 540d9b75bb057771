"""The pure modules of the tab, by Node's own test runner."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

FRONTEND = Path(__file__).parent.parent / "frontend"

pytestmark = pytest.mark.skipif(
    "CI" not in os.environ and not shutil.which("node"), reason="no node; in CI this would fail"
)


@pytest.mark.parametrize("file", sorted((FRONTEND / "test").glob("*.test.js")), ids=lambda file: file.stem)
def test_pure_modules(file: Path) -> None:
    ran = subprocess.run(["node", "--test", str(file)], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "# tests 0" not in ran.stdout
