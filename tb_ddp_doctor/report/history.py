"""A job's hours as text: ten lines for a terminal, Markdown, one line of JSON for a webhook, OpenMetrics."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import msgspec

from tb_ddp_doctor import wording
from tb_ddp_doctor.history.collective_sentences import sentences
from tb_ddp_doctor.history.collectives import CollectiveHours
from tb_ddp_doctor.history.events import Event
from tb_ddp_doctor.history.sentences import (
    Price,
    beside,
    cost,
    headline,
    read_from,
    sentence,
    trend,
    what,
)
from tb_ddp_doctor.history.summary import Summary
from tb_ddp_doctor.report.escape import markdown, printable, printable_json_line, table
from tb_ddp_doctor.view.history import ATTACHED, begins_with_first, nearest
from tb_ddp_doctor.wording import duration, percent

#: Events that are shown without --json.
_SHOWN = 6
#: Events in Markdown.
_LISTED = 30

#: Name, what it is, and values by labels.
_Gauge: TypeAlias = tuple[str, str, list[tuple[str, float]]]


class Nearest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The folders of the captures on either side of an event; None where there is none."""

    before: str | None
    after: str | None
    #: Whether all ranks are slower from the first capture on.
    begins_with_first: bool = False

    @classmethod
    def of(cls, event: Event, captures: Mapping[int, Path]) -> Nearest:
        """Those of an event; `captures` are folders by step."""
        before, after = (None if path is None else str(path) for path in nearest(event, captures))
        return cls(before, after, begins_with_first(event, captures))


class HistoryAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What `ddp-doctor history --json` prints."""

    schema_version: int = 1
    logdir: str
    #: None where there are no step times.
    summary: Summary | None
    #: Of each event, in the same order.
    nearest_captures: tuple[Nearest, ...]
    #: What the Inspector of NCCL or RCCL wrote; None where it wrote nothing.
    collectives: CollectiveHours | None = None
    #: With --compare: what the captures around an event differ in, by the event's number from 0 on.
    compared: dict[int, str] = {}


def history_lines(answer: HistoryAnswer, price: Price | None) -> list[str]:
    """The job's hours in some ten lines, without colours."""
    return list(map(printable, (*_of_steps(answer, price), *_of_collectives(answer))))


def _of_steps(answer: HistoryAnswer, price: Price | None) -> Iterator[str]:
    summary = answer.summary
    if summary is None:
        return
    yield facts(summary)
    yield headline(summary)
    for number, event in enumerate(summary.events[:_SHOWN]):
        yield f"{number + 1:2}  {sentence(event, summary, price)}{_attached(answer, number)}{_captures(answer, number)}"
    if len(summary.events) > _SHOWN:
        yield f"    {len(summary.events) - _SHOWN} more: --json has all."
    yield from notes(summary)


def _of_collectives(answer: HistoryAnswer) -> Iterator[str]:
    if answer.collectives is not None:
        yield from sentences(answer.collectives)


def history_markdown(answer: HistoryAnswer, price: Price | None) -> str:
    """The job's hours as Markdown: the headline, a table of events, and the time by what it went to."""
    pieces = [f"## ddp-doctor history: {markdown(answer.logdir)}"]
    summary = answer.summary
    if summary is not None:
        pieces += [f"**{markdown(headline(summary))}**", markdown(f"{facts(summary)}.")]
        if summary.events:
            pieces.append(_event_table(answer, summary, price))
        if len(summary.events) > _LISTED:
            pieces.append(f"{len(summary.events) - _LISTED} more: --json has all.")
        pieces.append(_items(notes(summary)))
    pieces += filter(None, [_items(_of_collectives(answer))])
    return "\n\n".join(pieces) + "\n"


def _event_table(answer: HistoryAnswer, summary: Summary, price: Price | None) -> str:
    rows = [
        (
            str(number + 1),
            f"{what(event, summary)}{beside(event)}.{_attached(answer, number)}".removesuffix("."),
            cost(event, summary, price),
            _near(answer, number),
        )
        for number, event in enumerate(summary.events[:_LISTED])
    ]
    heads = ("", "What changed", "Costs", "Captures")
    return table(heads, ("--:", "---", "---", "---"), rows)


def _items(lines: Iterable[str]) -> str:
    return "\n".join(f"- {markdown(line)}" for line in lines)


def facts(summary: Summary) -> str:
    """How many steps of which job these are, and how long they take."""
    return (
        f"{summary.steps:,} steps ({summary.first_step:,} to {summary.last_step:,}){_whose(summary)}, "
        f"{_hours(summary.end_s - summary.begin_s)}, "
        f"{duration(summary.median_step_ms)} a step (p99 {duration(summary.p99_step_ms)})"
    )


def notes(summary: Summary) -> Iterator[str]:
    """Sentences on the whole job: where its time went, its slowdown, its restarts, and what was not read."""
    account = summary.account
    if account.time_s:
        whole = max(summary.end_s - summary.begin_s, sum(account.time_s.values()))
        parts = [
            f"{name} {percent(value / whole)}" for name, value in account.time_s.items() if value / whole >= 0.0005
        ]
        yield f"Time: {', '.join(parts)}."
    if went := trend(summary):
        yield f"Goodput: {went}."
    if account.slowdown is not None:
        of_slowest = ""
        if account.slowest_workers is not None:
            of_slowest = f"; {percent(account.slowest_workers)} of what it lost is due to its slowest 3 % of ranks"
        if account.last_stage is not None:
            of_slowest += f", {percent(account.last_stage)} to the last stage of its pipeline"
        yield (
            f"Slowdown: the job took {wording.decimals(account.slowdown, 3)} times as long as with every rank and step "
            f"at the median{of_slowest}."
        )
    if summary.restarts:
        yield f"Restarts: {summary.restarts}, steps trained again: {summary.trained_again:,}."
    if summary.logged_by is not None:
        yield read_from(summary.logged_by)
    elif not summary.names_ranks and summary.ranks > 1:
        yield "No rank can be named: doctor.watch(model) or doctor.waits() records when each waits for others."
    if summary.lost_bytes or summary.left_out:
        yield f"Not read: {summary.lost_bytes:,} damaged bytes, {summary.left_out:,} earlier steps."


def _whose(summary: Summary) -> str:
    """The ranks of the job, and the nodes, as far as they are known."""
    on = f" on {summary.nodes} node{'s' if summary.nodes != 1 else ''}" if summary.nodes else ""
    return f" of {summary.ranks} ranks{on}" if summary.ranks else ""


def _captures(answer: HistoryAnswer, number: int) -> str:
    """What the captures around an event differ in, or the command that says it; "" where a side has none."""
    near = answer.nearest_captures[number]
    if number in answer.compared:
        return f" Captures: {answer.compared[number]}."
    if (
        answer.summary is None
        or answer.summary.events[number].kind != "change"
        or near.before is None
        or near.after is None
    ):
        return ""
    return f" Compare: ddp-doctor compare {shlex.quote(near.before)} {shlex.quote(near.after)}"


def _attached(answer: HistoryAnswer, number: int) -> str:
    return f" {ATTACHED}" if answer.nearest_captures[number].begins_with_first else ""


def _near(answer: HistoryAnswer, number: int) -> str:
    """What the captures around an event differ in, or which they are; "" where there are none."""
    near = answer.nearest_captures[number]
    if number in answer.compared:
        return answer.compared[number]
    return " / ".join(path for path in (near.before, near.after) if path)


def webhook_line(answer: HistoryAnswer) -> bytes:
    """One line of JSON that chats and pagers take: `text`, and each event."""
    said = headline(answer.summary) if answer.summary else " ".join(_of_collectives(answer))
    events = answer.summary.events if answer.summary else ()
    return printable_json_line({"text": printable(f"{answer.logdir}: {said}"), "events": events})


def openmetrics(answer: HistoryAnswer) -> str:
    """OpenMetrics text: the step, time by what it went to, goodput, the cost of events, bandwidth of collectives."""
    gauges = [*(_gauges(answer.summary) if answer.summary else ()), *_bandwidth(answer.collectives)]
    lines = []
    for name, help_, values in gauges:
        lines += [f"# TYPE ddp_doctor_{name} gauge", f"# HELP ddp_doctor_{name} {help_}"]
        lines += [f"ddp_doctor_{name}{'{' + labels + '}' if labels else ''} {value:.6g}" for labels, value in values]
    return "\n".join([*lines, "# EOF", ""])


def _gauges(summary: Summary) -> Iterator[_Gauge]:
    yield "step_seconds", "Median length of a step.", [("", summary.median_step_ms / 1000)]
    yield "goodput_ratio", "Share of the job's time that trained steps that count.", [("", summary.account.goodput)]
    yield "restarts", "How often the job ended and went on.", [("", float(summary.restarts))]
    times = [(_label("kind", kind), value) for kind, value in summary.account.time_s.items()]
    yield "time_seconds", "Time by what it went to.", times
    if summary.account.slowdown is not None:
        help_ = "Time of all steps over that with every rank and step at the median."
        yield "slowdown_ratio", help_, [("", summary.account.slowdown)]
    costs: dict[str, float] = {}
    for event in summary.events:
        key = f"{_label('kind', event.kind)},{_label('level', event.level)}"
        costs[key] = costs.get(key, 0.0) + event.cost_s
    yield "event_cost_seconds", "What the job is longer by for events.", list(costs.items())


def _bandwidth(collectives: CollectiveHours | None) -> Iterator[_Gauge]:
    if collectives is not None:
        values = []
        for one in collectives.kinds:
            named = {"collective": one.collective, "bytes": one.size, "ranks": one.ranks, "nodes": one.nodes}
            labels = ",".join(_label(name, str(value)) for name, value in named.items())
            values.append((labels, one.busbw_gbs * 1e9))
        yield "busbw_bytes_per_second", "Bus bandwidth of the median call, without waiting.", values


def _hours(seconds: float) -> str:
    return f"{wording.decimals(seconds / 3600, 1)} h" if seconds >= 3600 else duration(seconds * 1000)


def _label(name: str, value: str) -> str:
    escaped = printable(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'{name}="{escaped}"'
