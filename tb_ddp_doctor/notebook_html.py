"""HTML that notebooks show of a result: tables, and a bar of parts. All text is escaped: names come from traces."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from html import escape

import msgspec


class BarPart(msgspec.Struct, frozen=True):
    """A part of a bar."""

    name: str
    ms: float
    #: Of the whole bar, 0 to 1.
    share: float
    #: As CSS has it, for light and dark pages.
    colour: str


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, left: Collection[int]) -> str:
    """A table, "" without rows; text of the columns `left` begins at the left."""
    style = ["style='text-align:left'" if column in left else "" for column in range(len(heads))]
    body = "".join(f"<tr>{_cells('td', row, style)}</tr>" for row in rows)
    return f"<table><tr>{_cells('th', heads, style)}</tr>{body}</table>" if body else ""


def _cells(tag: str, texts: Sequence[str], style: Sequence[str]) -> str:
    return "".join(f"<{tag}{how and ' '}{how}>{escape(text)}</{tag}>" for text, how in zip(texts, style, strict=True))


def bar(parts: Sequence[BarPart]) -> str:
    """A bar whose parts are as wide as their shares, with their names and times below it and on pointing at them."""
    drawn = "".join(
        f"<span title='{escape(part.name)}: {part.ms:.1f} ms' style='flex:{part.share:.4f} 1 0;"
        f"background:{part.colour};border-right:1px solid #fff'></span>"
        for part in parts
    )
    names = ", ".join(f"{escape(part.name)} {part.ms:.1f} ms" for part in parts)
    return f"<div style='display:flex;height:14px;max-width:60em'>{drawn}</div><small>{names}</small>"
