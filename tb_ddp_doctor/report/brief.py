"""A diagnosis in six lines: the job, its verdict, the three costliest findings, and what was not checked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from string import ascii_uppercase

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from tb_ddp_doctor import wording
from tb_ddp_doctor.engine import Result
from tb_ddp_doctor.findings import Diagnosis, Finding
from tb_ddp_doctor.report import shown
from tb_ddp_doctor.report.escape import printable
from tb_ddp_doctor.report.wrapping import print_code, print_wrapped

STYLES = {
    "critical": "bold red",
    "major": "red",
    "minor": "yellow",
    "info": "dim",
    "opportunity": "green",
    "healthy": "bold green",
}
#: Findings that have a line each, and incomplete files that are named.
_SHOWN = 3


def print_brief(console: Console, result: Result, *, is_all: bool) -> None:
    """Print the lines; `is_all` if the rest follows."""
    diagnosis = result.diagnosis
    print_code(console, _cropped(f"{printable(diagnosis.name)}: {size(result)}", console.width), "bold")
    if rates := wording.rates(diagnosis.rates):
        print_wrapped(console, f"{rates}.", "bold")
    for sentence in shown.config(diagnosis):
        print_wrapped(console, printable(sentence), "dim")
    level = diagnosis.level
    print_wrapped(console, printable(_verdict(diagnosis)), "bold" if level == "info" else STYLES[level])
    listed = marked(diagnosis)[:_SHOWN]
    money = [shown.money(finding, diagnosis) for _, finding in listed]
    for (mark, finding), saved in zip(listed, money, strict=True):
        # With money there is no room for causes: the line has to end with the ranks.
        what = f"{saved:>{max(map(len, money))}}  {finding.rule}" if any(money) else label(finding)
        line = Text(_cropped(f"{mark:>2}  {_row(finding, diagnosis, what)}", console.width))
        line.stylize(STYLES[finding.severity], 4, 4 + len(_level(finding)))
        console.print(line, soft_wrap=True)
    if files := diagnosis.incomplete:
        print_wrapped(console, printable(f"Incomplete: {_named(files)}."), "dim")
    # Where a file is damaged, that rank's is there already.
    if diagnosis.missing_ranks and not diagnosis.incomplete:
        missing = wording.capital(wording.ranks(diagnosis.missing_ranks))
        verb = "has" if len(diagnosis.missing_ranks) == 1 else "have"
        print_wrapped(console, f"{missing} {verb} no trace in this folder: add what the profiler wrote there.", "dim")
    print_wrapped(console, _rest(diagnosis, console.width, "" if is_all else " -v shows all."), "dim")


def marked(diagnosis: Diagnosis) -> list[tuple[str, Finding]]:
    """The findings with their numbers, as `slice --finding` takes them, then the opportunities with their letters."""
    numbered = [(str(number), finding) for number, finding in enumerate(diagnosis.findings, 1)]
    return numbered + list(zip(ascii_uppercase, diagnosis.opportunities, strict=False))


def size(result: Result) -> str:
    """What kind of job it is, how much of it was seen, and how long its step is."""
    diagnosis = result.diagnosis
    steps = f"step {diagnosis.steps[0]}" if len(diagnosis.steps) == 1 else f"{len(diagnosis.steps)} steps"
    source = ", from digests alone" if result.from_digests else ""
    length = wording.duration(diagnosis.step_ms)
    kind = wording.kind(diagnosis.kind)
    return f"{kind}, {len(diagnosis.ranks)} of {diagnosis.world_size} ranks, {steps}, {length} a step{source}"


def label(finding: Finding) -> str:
    """The rule, and the kind of cause."""
    return finding.rule + (f" ({finding.cause.replace('_', ' ')})" if finding.cause else "")


def _verdict(diagnosis: Diagnosis) -> str:
    """The headline, with what is wrong in place of its cost, which the line of the costliest finding has."""
    if diagnosis.headline_parts is None:
        return diagnosis.headline
    first = next(each for each in diagnosis.findings if each.headline_parts == diagnosis.headline_parts)
    return first.title + diagnosis.headline_rest


def _named(files: Sequence[str]) -> str:
    """The first files, each with its folder, since names alone may be those of all ranks; more are counted."""
    names = ["/".join(file.replace("\\", "/").split("/")[-2:]) for file in files[:_SHOWN]]
    more = len(files) - len(names)
    return wording.listing([*names, f"{more} more"] if more else names)


def _level(finding: Finding) -> str:
    """The severity in eight letters."""
    return "Possible" if finding.severity == "opportunity" else finding.severity.capitalize()


def _row(finding: Finding, diagnosis: Diagnosis, what: str) -> str:
    share = wording.percent(finding.cost_ms / diagnosis.step_ms if diagnosis.step_ms else 0.0)
    cost = wording.duration(finding.cost_ms)
    cost = f"{'no cost':<18}" if cost == wording.duration(0.0) else f"{cost:>10}  {share:>6}"
    on = (
        f"all {len(finding.ranks)} ranks"
        if 1 < len(finding.ranks) == len(diagnosis.ranks)
        else wording.ranks(finding.ranks)
        if finding.ranks
        else ""
    )
    return f"{_level(finding):<8}  {cost}  {', '.join(filter(None, (what, on)))}"


def _rest(diagnosis: Diagnosis, width: int, hint: str) -> str:
    """What has no line: further findings, checks that were not made, warnings; within the width."""
    unseen = [outcome.rule for outcome in diagnosis.outcomes if outcome.status in ("not-applicable", "error")]
    for named in range(len(unseen), -1, -1):
        line = f"{'; '.join(_parts(diagnosis, unseen, named))}.{hint}"
        line = line[0].upper() + line[1:]
        if cell_len(line) <= width:
            break
    return line


def _parts(diagnosis: Diagnosis, unseen: Sequence[str], shown: int) -> Iterator[str]:
    if remaining := len(diagnosis.findings[_SHOWN:]):
        yield f"{remaining} more finding{'s' if remaining > 1 else ''}"
    listed = max(_SHOWN - len(diagnosis.findings), 0)
    if remaining := len(diagnosis.opportunities[listed:]):
        yield f"{remaining} {'more ' if listed else ''}opportunit{'ies' if remaining > 1 else 'y'}"
    if not unseen:
        yield f"all {len(diagnosis.outcomes)} checks made"
    elif not shown:
        yield f"{len(unseen)} of {len(diagnosis.outcomes)} checks not made (lack data)"
    else:
        others = f" and {len(unseen) - shown} more" if shown < len(unseen) else ""
        yield f"not checked (lacks data): {', '.join(unseen[:shown])}{others}"
    if warnings := len(diagnosis.warnings):
        yield f"{warnings} warning{'s' if warnings > 1 else ''}"


def _cropped(line: str, width: int) -> str:
    return line if cell_len(line) <= width else f"{set_cell_size(line, width - 1).rstrip()}…"
