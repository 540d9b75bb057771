"""What a rule's docstring says: its summary, and its sections by their headings."""

from __future__ import annotations

import inspect
import re

import msgspec

from tb_ddp_doctor.rules.support.base import SECTIONS, Rule


class Page(msgspec.Struct, frozen=True):
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


def _unwrap(text: str) -> str:
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n"))
