"""The rules' documentation, made from their docstrings and thresholds.

python -m tb_ddp_doctor.rules.documentation > docs/rules.md
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass

from tb_ddp_doctor.rules import CATALOGUE
from tb_ddp_doctor.rules.base import SECTIONS, Rule


@dataclass(frozen=True, slots=True)
class Page:
    """What a rule's docstring says."""

    summary: str
    #: Text of each of `base.SECTIONS`, paragraphs on one line each.
    sections: dict[str, str]


def page(rule: Rule) -> Page:
    """Parse a rule's docstring. Raises ValueError if a section is missing or out of order."""
    text = inspect.cleandoc(type(rule).__doc__ or "")
    summary, *parts = re.split(r"^(\w+):\n", text, flags=re.MULTILINE)
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    if tuple(sections) != SECTIONS:
        raise ValueError(f"The docstring of rule {rule.id} needs the sections {', '.join(SECTIONS)}, in this order.")
    return Page(_unwrap(summary), {name: _unwrap(body) for name, body in sections.items()})


_INTRODUCTION = """\
# Rules

<!-- Made by `python -m tb_ddp_doctor.rules.documentation > docs/rules.md`; a test fails when it is stale. -->

A rule ends as a *finding*, *clear*, *not applicable* (with what it would need) or *error*. A finding's severity follows
its cost: critical from 20 % of the step, major from 10 %, minor from 3 %, info below. Thresholds are set with
`ddp-doctor diagnose --set RULE.THRESHOLD=VALUE`."""


def markdown() -> str:
    """All rules as one Markdown page."""
    lines = [_INTRODUCTION]
    for rule in CATALOGUE.values():
        content = page(rule)
        lines += ["", f"## {rule.id}", "", content.summary]
        for name, body in content.sections.items():
            lines += ["", f"**{name}.** {body}"]
        if rule.thresholds():
            lines += ["", "| threshold | value | why |", "|---|---|---|"]
        lines += [f"| `{t.name}` | {t.value:g} {t.unit} | {t.reason} |" for t in rule.thresholds()]
    return "\n".join(lines) + "\n"


def _unwrap(text: str) -> str:
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n"))


if __name__ == "__main__":
    print(markdown(), end="")  # noqa: T201
