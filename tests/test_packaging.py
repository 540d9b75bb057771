"""What the source distribution holds: all that README's commands ask for."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_what_readmes_commands_name_is_in_the_source_distribution() -> None:
    code = re.findall(r"^```\w*\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    words = {word.strip("'\"").rstrip("/") for block in code for word in block.split()}
    named = {word.split("/")[0] for word in words if (ROOT / word).exists() and not word.startswith((".", "/"))}
    assert "demo_logs" in named
    grafted = set(re.findall(r"^graft (\w+)$", (ROOT / "MANIFEST.in").read_text(), re.MULTILINE))
    assert named | {"tests", "docs"} <= grafted | {"tb_ddp_doctor"}
