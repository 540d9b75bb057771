"""Answers of at most 16,000 characters: as many rows as fit, and where the next page begins."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from tb_ddp_doctor.mcp_tools.answers import PageOfRows

#: Characters of an answer's JSON.
MOST_CHARACTERS = 16_000
A = TypeVar("A", bound=PageOfRows)
R = TypeVar("R")


def page(made: Callable[..., A], rows: Sequence[R], offset: int) -> A:
    """The answer with the rows from `offset` on that fit; `made` takes `rows`, `total_rows` and `next_offset`.

    Rows are short enough by themselves that one of them always fits.
    """
    offset = min(max(offset, 0), len(rows))

    def answer(count: int) -> A:
        end = offset + count
        return made(rows=tuple(rows[offset:end]), total_rows=len(rows), next_offset=end if end < len(rows) else None)

    counts = range(1, len(rows) - offset + 1)
    return answer(bisect_right(counts, MOST_CHARACTERS, key=lambda count: characters(answer(count))))


def characters(answer: PageOfRows) -> int:
    """Characters of the JSON of an answer."""
    return len(msgspec.json.encode(answer).decode())
