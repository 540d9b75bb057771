"""Text in the lines of a terminal: wrapped between words, and never within what belongs together.

A number keeps its unit, "rank" and "step" their number, a call its arguments. Code is not wrapped at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tb_ddp_doctor.report.escape import printable

#: Spaces that do not end a line: before a unit, after the noun of a number, within a call's parentheses.
_UNIT = re.compile(
    r"(?<=\d) (?=(?:%|[nµm]?s|[kMGT]?B|[KMG]iB|[GM]B/s|[TGM]?FLOPS?|ranks?|steps?|nodes?|GPUs?|calls?|checks?)\b|%)"
)
_NUMBERED = re.compile(r"(?i:(?<=\brank)|(?<=\branks)|(?<=\bstep)|(?<=\bsteps)) (?=\d)|(?<=±) (?=\d)")
#: From a name's first letter on: a search from each of a million letters would take hours.
_CALL = re.compile(r"(?<![\w.])[\w.]+\([^()]*\)")
_GLUE = "\N{NO-BREAK SPACE}"
#: Spaces at the end of a line, before what resets its colours.
_TRAILING = re.compile(r" +((?:\x1b\[[\d;]*m)*)$", re.MULTILINE)


def wrapped(said: str, width: int, indent: int = 0, first: int | None = None) -> str:
    """A paragraph in lines of at most so many columns, each after so many spaces; the first after `first`.

    A word that is longer than a line has a line of its own, whole.
    """
    lines: list[str] = []
    line = " " * (indent if first is None else first)
    is_empty = True
    for word in _glued(said).split(" "):
        if not is_empty and cell_len(line) + 1 + cell_len(word) > width:
            lines.append(line)
            line, is_empty = " " * indent, True
        line += word if is_empty else f" {word}"
        is_empty = False
    return "\n".join([*lines, line]).replace(_GLUE, " ")


def _glued(said: str) -> str:
    said = _NUMBERED.sub(_GLUE, _UNIT.sub(_GLUE, said))
    return _CALL.sub(lambda call: call[0].replace(" ", _GLUE), said)


def print_wrapped(console: Console, said: str, style: str = "", indent: int = 0, first: int | None = None) -> None:
    """Print a paragraph."""
    print_code(console, wrapped(said, console.width, indent, first), style)


def print_code(console: Console, lines: str, style: str = "", indent: int = 0) -> None:
    """Print lines as they are."""
    shown = "\n".join(" " * indent + line if line else "" for line in lines.split("\n"))
    console.print(Text(shown, style), soft_wrap=True)


def titled(title: str, *columns: str, gap: int | None = None, no_wrap: bool = False) -> Table:
    """A table without lines, with `gap` spaces between columns; ">ms" is a column of numbers, which stand to the right.

    `no_wrap` keeps numbers whole where the terminal is narrow. Names that are longer than their column go on in
    the next line: those of torch.compile's kernels end with what they were fused from.
    """
    padding = (0, 1) if gap is None else (0, gap, 0, 0)
    table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=padding)
    for column in columns:
        is_number = column.startswith(">")
        side: Literal["left", "right"] = "right" if is_number else "left"
        name = column.removeprefix(">")
        table.add_column(name, justify=side, no_wrap=is_number and no_wrap, overflow="fold")
    return table


def print_table(console: Console, table: Table, rows: Iterable[Sequence[str]], more: str = "") -> None:
    """Print a table with these rows, and what is left out of it below."""
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    table.caption = more or None
    console.print(table)


@contextmanager
def without_trailing_spaces(console: Console) -> Iterator[None]:
    """What is printed meanwhile goes out at the end, with no spaces at the ends of its lines."""
    with console.capture() as captured:
        yield
    console.file.write(_TRAILING.sub(r"\1", captured.get()))
