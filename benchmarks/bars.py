"""The bars of a benchmark, and whether they are reached."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table


def print_bars(console: Console, results: Iterable[tuple[str, str, str, bool]]) -> int:
    """Print what was measured, its bar, its value and whether it is reached; returns the exit code, 1 if one is not."""
    table = Table("measured", "bar", "value", "", box=None)
    is_missed = False
    for name, bar, value, reached in results:
        table.add_row(name, bar, value, "ok" if reached else "MISSED")
        is_missed |= not reached
    console.print(table)
    return int(is_missed)
