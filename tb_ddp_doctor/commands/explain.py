"""Say what a word of the doctor's means: a rule, or a term of the glossary."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterator

from rich.console import Console

from tb_ddp_doctor.quantities import QUANTITIES
from tb_ddp_doctor.report.escape import printable_lines
from tb_ddp_doctor.report.glossary import GLOSSARY
from tb_ddp_doctor.report.wrapping import wrapped
from tb_ddp_doctor.rules import CATALOGUE, Rule, page

_WIDTH = 100


def run(options: argparse.Namespace, _errors: Console) -> int:
    """Print it. Raises ValueError for a word that is none, with those that are like it."""
    if options.term is None:
        sys.stdout.write(f"Rules: {', '.join(CATALOGUE)}.\n\nTerms: {', '.join(_meanings())}.\n")
        return 0
    wanted = options.term.casefold().strip()
    rule = CATALOGUE.get(wanted)
    terms = {name: meaning for name, meaning in _meanings().items() if wanted in _names(name)}
    if rule is None and not terms:
        known = [*CATALOGUE, *(name for term in _meanings() for name in _names(term))]
        close = difflib.get_close_matches(wanted, known, n=3)
        meant = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
        raise ValueError(
            f"{options.term!r} is no rule and no term.{meant} `ddp-doctor explain` lists all rules and terms."
        )
    said = [wrapped(f"{name}: {meaning}", _WIDTH) for name, meaning in terms.items()]
    said += list(_of_rule(rule)) if rule else []
    sys.stdout.write(printable_lines("\n".join(said)) + "\n")
    return 0


def _meanings() -> dict[str, str]:
    """What terms and figures mean, by name; of a figure also of which ranks and steps it is, and where it stands."""
    figures = {
        name: f"{one.meaning or GLOSSARY[name]}. Of: {one.over}. In the tab: {one.view}"
        f"{f'; in the JSON: {one.field}' if one.field else ''}"
        for name, one in QUANTITIES.items()
    }
    return GLOSSARY | figures


def _names(term: str) -> set[str]:
    """What a row of the glossary may be asked for by: "rank" and "world size" of "rank, world size"."""
    plain = term.casefold().replace("`", "")
    parts = plain.replace("(", ",").replace(")", "").split(",")
    return {plain, *(part.strip(" ±") for part in parts)} - {""}


def _of_rule(rule: Rule) -> Iterator[str]:
    text = page(rule)
    yield wrapped(f"{rule.id}: {text.summary}", _WIDTH)
    for heading, body in text.sections.items():
        yield ""
        yield wrapped(f"{heading}: {body}", _WIDTH)
    for limit in rule.thresholds():
        yield ""
        yield wrapped(f"--set {rule.id}.{limit.name}={limit.value:g} ({limit.unit}): {limit.reason}", _WIDTH)
