"""Limits that prose names: their values are written from the code.

`<!-- limit missing-straggler.min_share -->7 %<!-- -->` is "7 %" to readers. A name is a rule's threshold, or a number
in a module of `tb_ddp_doctor`: `findings.MOST_UNEXPLAINED`. A share is shown in percent.
"""

from __future__ import annotations

import importlib
import re
from functools import reduce
from pathlib import Path

from tb_ddp_doctor.rules import CATALOGUE

ROOT = Path(__file__).parents[1]
#: Pages that have one.
PAGES = [
    path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if "<!-- limit " in path.read_text()
]
_MARKED = re.compile(r"(?<=<!-- limit )(?P<name>\S+)( -->)(?P<value>[^<]*)(?=<!-- -->)")
#: What says a limit in percent: a share from which on, or below which, something is so.
_SAID = re.compile(
    r"\b(?:from|over|under|below|less than|more than|at least|at most)(?: the| a)? ([\d.]+ %)|([\d.]+ %) or more"
)


def with_limits(page: str) -> str:
    """A page with the values that the limits have now. Raises LookupError for a name that is none."""
    return _MARKED.sub(lambda found: f"{found['name']}{found[2]}{shown(value_of(found['name']))}", page)


def value_of(name: str) -> float:
    """The value of a limit."""
    rule, _, field = name.partition(".")
    if rule in CATALOGUE:
        return float(getattr(CATALOGUE[rule], field))
    *parts, last = name.split(".")
    for size in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(["tb_ddp_doctor", *parts[:size]]))
        except ModuleNotFoundError:
            continue
        return float(reduce(getattr, [*parts[size:], last], module))
    raise LookupError(f"there is no limit {name}")


def shown(value: float) -> str:
    """A share in percent, another number as it is."""
    return f"{100 * value:g} %" if value <= 1 else f"{value:g}"


def unmarked(page: str) -> list[str]:
    """The limits in percent that a page says and does not mark, each with the words around it."""
    text = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    text = re.sub(r"<!-- limit \S+ -->[^<]*<!-- -->", "LIMIT", text)
    joined = " ".join(text.split())
    return [joined[max(found.start() - 40, 0) : found.end() + 20] for found in _SAID.finditer(joined)]
