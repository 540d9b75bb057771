"""Writes what is made from the code: pages and table of rules, terminal output, schemas, golden results and digests.

    python tests/generate.py

Tests fail when one of these files is stale, and name this command. Read the difference before you commit it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import frontend_sources
import golden_digests
import limits_in_docs
import recorders
from examples import EXAMPLES, Example
from test_golden import GOLDEN, diagnose, essence, names

from tb_ddp_doctor.report import schema
from tb_ddp_doctor.view import rule_pages

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
COMMAND = "python tests/generate.py"
#: Pages that show what commands print.
SHOWING = [path for path in (ROOT / "README.md", *sorted(DOCS.glob("*.md"))) if "$ ddp-doctor" in path.read_text()]
#: Width of the terminal.
_COLUMNS = "80"
_SHOWN = re.compile(
    r"(?<=^```\n)\$ ddp-doctor (?P<command>[^|\n]+?)(?: \| head -(?P<lines>\d+))?\n(?P<output>.*?)(?=\n```)",
    re.MULTILINE | re.DOTALL,
)
_TABLE = re.compile(r"(?<=<!-- Made by `python tests/generate\.py`\. -->\n\n).*?(?=\n\n)", re.DOTALL)


def made() -> dict[Path, Callable[[], str]]:
    """What gives the text of each file that needs no diagnosis of a real job, by path."""
    rules = {DOCS / "rules" / f"{rule}.md": partial(rule_page, rule) for rule in EXAMPLES}
    pages = {DOCS / "rules" / name: partial(str, text) for name, text in rule_pages.pages().items()}
    schemas = {DOCS / f"{name}.schema.json": partial(schema.text, name) for name in schema.SCHEMAS}
    frontend = {
        frontend_sources.FRONTEND / "step_parts.js": frontend_sources.step_parts,
        frontend_sources.FRONTEND / "rounding.js": frontend_sources.rounding,
        frontend_sources.FRONTEND / "glossary.js": frontend_sources.glossary,
        frontend_sources.FRONTEND / "quantities.js": frontend_sources.quantities,
        frontend_sources.FRONTEND.parents[1]
        / "tb_ddp_doctor"
        / "report"
        / "glossary.json": frontend_sources.glossary_of_commands,
        frontend_sources.FRONTEND.parent / "schema.d.ts": frontend_sources.schema,
    }
    pages[DOCS / "quantities.md"] = frontend_sources.quantities_page
    return {**pages, **rules, **schemas, **frontend}


def rule_page(rule: str) -> str:
    """A rule's page with its example."""
    return rule_pages.pages()[f"{rule}.md"] + shown(rule, EXAMPLES[rule])


def shown(rule: str, example: Example) -> str:
    """What traces without and with the fault look like, what is said, and the fix with its code."""
    found = example.found(rule)
    text, _, code = found.fix.partition("\n\n")
    fix = [text, *(["", "```", code, "```"] if code else [])]
    return "\n".join(
        [
            "\n## What it looks like",
            "",
            "A character is a millisecond, a box what runs there ([the lanes](../adding-a-rule.md)). A healthy trace:",
            "",
            *("```text", example.healthy.shown(), "```"),
            "",
            "A faulty one:",
            "",
            *("```text", example.faulty.shown(), "```"),
            "",
            f"> {found.title}",
            "",
            "## The fix",
            "",
            *fix,
            "",
        ]
    )


def with_output(page: str) -> str:
    """A page with what its commands print now, and the table of rules where it has one."""

    def printed(shown: re.Match[str]) -> str:
        output = "\n".join(terminal(shown["command"]).splitlines()[: int(shown["lines"]) if shown["lines"] else None])
        return shown[0].removesuffix(shown["output"]) + output

    return _SHOWN.sub(printed, _TABLE.sub(lambda _: rule_pages.table("docs/rules/"), page))


def terminal(command: str) -> str:
    """What `ddp-doctor COMMAND` prints in the repository, without spaces at the ends of lines."""
    whole = [sys.executable, "-m", "tb_ddp_doctor.cli", *command.split()]
    environment = {**os.environ, "COLUMNS": _COLUMNS}
    said = subprocess.run(whole, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    return "\n".join(line.rstrip() for line in said.rstrip().splitlines())


#: The page of recorders: its table takes a diagnosis for each rule and recorder.
RECORDERS = DOCS / "recorders.md"
_OF_RECORDERS = re.compile(
    r"(?<=<!-- Made by `python tests/generate\.py` of drawn jobs\. -->\n\n).*?(?=\n\n)", re.DOTALL
)


def main() -> None:
    """Write all of it."""
    page = RECORDERS.read_text(encoding="utf-8")
    RECORDERS.write_text(_OF_RECORDERS.sub(lambda _: recorders.table(), page), encoding="utf-8")
    rule_pages.write(DOCS / "rules")
    for path, text in made().items():
        path.write_text(text(), encoding="utf-8")
    for path in limits_in_docs.PAGES:
        path.write_text(limits_in_docs.with_limits(path.read_text(encoding="utf-8")), encoding="utf-8")
    for path in SHOWING:
        page = path.read_text(encoding="utf-8")
        if (fresh := with_output(page)) != page:
            path.write_text(fresh, encoding="utf-8")
    golden_digests.write()
    GOLDEN.write_text(json.dumps({name: essence(diagnose(name)) for name in names()}, indent=2) + "\n")


if __name__ == "__main__":
    main()
