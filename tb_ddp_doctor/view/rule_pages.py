"""The rules' documentation, made from their docstrings and thresholds; `python tests/generate.py` writes it."""

from __future__ import annotations

import re
from pathlib import Path

from tb_ddp_doctor.findings import Severity
from tb_ddp_doctor.rules import CATALOGUE, Rule, page

_MADE_BY = "<!-- Made by `python tests/generate.py`. -->"
_INTRODUCTION = f"""\
# Rules

{_MADE_BY}

A rule ends as a *finding*, *clear*, *not applicable* (with what it would need) or *error*. A finding's severity follows
its cost: critical from {100 * Severity.CRITICAL.least_share:g} % of the step, major from \
{100 * Severity.MAJOR.least_share:g} %, minor from {100 * Severity.MINOR.least_share:g} %, info below.
Some rules look for *opportunities*: nothing is wrong, but the step could be shorter still. They are charged after all
faults, and are never the verdict. Thresholds are set with
`ddp-doctor diagnose --set RULE.THRESHOLD=VALUE`.
"""
#: A rule's name in a text; one without a hyphen, such as "straggler", may be only a word.
_NAME = re.compile(rf"(?<![\w`-])({'|'.join(name for name in CATALOGUE if '-' in name)})(?![\w`-])")


def table(folder: str = "") -> str:
    """What each rule finds, as a Markdown table with links to the pages in a folder."""
    listed = [f"| [{rule.id}]({folder}{rule.id}.md) | {page(rule).summary} |" for rule in CATALOGUE.values()]
    return "\n".join(["| rule | what it finds |", "|---|---|", *listed])


def pages() -> dict[str, str]:
    """The Markdown pages by file name: one with all rules, and one of each."""
    index = {"index.md": f"{_INTRODUCTION}\n{table()}\n"}
    return index | {f"{rule.id}.md": _markdown(rule) for rule in CATALOGUE.values()}


def _markdown(rule: Rule) -> str:
    content = page(rule)
    lines = [f"# {rule.id}", "", _MADE_BY, "", _linked(content.summary, rule)]
    for name, body in content.sections.items():
        lines += ["", f"**{name}.** {_linked(body, rule)}"]
    if rule.thresholds():
        lines += ["", "| threshold | value | why |", "|---|---|---|"]
    lines += [f"| `{t.name}` | {t.value:g} {t.unit} | {_linked(t.reason, rule)} |" for t in rule.thresholds()]
    return "\n".join(lines) + "\n"


def _linked(text: str, rule: Rule) -> str:
    """The text, with links from the names of other rules to their pages."""
    return _NAME.sub(lambda name: name[1] if name[1] == rule.id else f"[{name[1]}]({name[1]}.md)", text)


def write(folder: Path) -> None:
    """Make the folder hold these pages, and no others."""
    folder.mkdir(parents=True, exist_ok=True)
    made = pages()
    for path in folder.glob("*.md"):
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        (folder / name).write_text(text, encoding="utf-8")
