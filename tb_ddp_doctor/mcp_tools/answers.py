"""What tools answer. A number has the name and the value that it has in the JSON, and a unit and a definition here."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, TypeAlias, TypeVar, get_args, get_type_hints

import msgspec

from tb_ddp_doctor.findings import Confidence, LineKind, SeverityLabel
from tb_ddp_doctor.mcp_tools.wrapping import BRIEF_LETTERS, MOST_LETTERS, NOTE, data, listed

#: Text between the marks of `wrapping`, of at most so many letters.
Data: TypeAlias = Annotated[str, msgspec.Meta(extra={"letters": MOST_LETTERS})]
Brief: TypeAlias = Annotated[str, msgspec.Meta(extra={"letters": BRIEF_LETTERS})]
A = TypeVar("A", bound=msgspec.Struct)


def _number(unit: str, definition: str) -> msgspec.Meta:
    return msgspec.Meta(description=f"{unit}: {definition}", extra_json_schema={"x-unit": unit})


_STEP = _number("ms", "length of a step, mean over ranks and steps")
_COST = _number("ms a step", "how much shorter the step gets with this fixed, once findings before it are fixed")
_ALONE = _number("ms a step", "the same with nothing else fixed")
_RANGE = _number("ms a step", "from where to where the value lies in 8 of 10 jobs")
_SHARE = _number("of the step, 0 to 1", "share of the step")
_RANK = _number("rank", "global rank, as torch has it")
_STEP_NUMBER = _number("step", "number of a ProfilerStep")
_MEAN = _number("ms a step", "mean over ranks and steps")
_WITH_FIXES = _number("ms", "the predicted step with these fixed")
_PREDICTED = _number("ms", "the predicted step")


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A row of an answer."""


class PageOfRows(msgspec.Struct, frozen=True, kw_only=True):
    """A page of rows, and what holds for all of them."""

    note: str = NOTE
    total_rows: Annotated[int, _number("rows", "rows of all pages")] = 0
    #: The offset of the next page; None on the last one.
    next_offset: Annotated[int | None, _number("rows", "offset of the next page")] = None
    #: Of each number in this answer, by its name: its unit, then what it is.
    definitions: dict[str, str] = {}

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "definitions", definitions(type(self)))


class RunRow(Row, frozen=True, kw_only=True):
    """A run of a log directory."""

    run: Data
    #: "traces", "dumps" of a job that hangs (tool stuck), or "memory": snapshots of memory alone (tool memory).
    kind: str
    ranks: Annotated[int, _number("ranks", "ranks with a file")]
    world_size: Annotated[int | None, _number("ranks", "ranks of the job, as its files say")] = None
    bytes: Annotated[int | None, _number("bytes", "size of its files")] = None
    written: Annotated[str, msgspec.Meta(description="when its last file was written, UTC")] = ""


class RunRows(PageOfRows, frozen=True, kw_only=True):
    """The runs of the log directories."""

    #: What was left out, and why.
    left_out: Data = ""
    rows: tuple[RunRow, ...]


class FindingRow(Row, frozen=True, kw_only=True):
    """A finding or an opportunity in short."""

    finding: str
    severity: SeverityLabel
    cost_ms: Annotated[float, _COST]
    alone_ms: Annotated[float, _ALONE]
    range_ms: Annotated[tuple[float, float], _RANGE]
    ranks: Annotated[str, msgspec.Meta(description="ranks that have it")]
    steps: Annotated[str, msgspec.Meta(description="steps that have it")]
    cause: str | None
    confidence: Confidence
    title: Brief
    money_per_day: Annotated[float | None, _number("`currency`, a day", "what the fix saves, of all GPUs")] = None
    energy_kwh_per_day: Annotated[
        float | None, _number("kWh a day", "what the fix saves at most, of all GPUs at their highest power")
    ] = None


class AccountRow(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the step; together they sum to it."""

    kind: LineKind
    finding: str | None
    ms: Annotated[float, _MEAN]
    share: Annotated[float, _SHARE]


class Diagnosed(PageOfRows, frozen=True, kw_only=True):
    """The verdict of a run, where the step goes, and its findings, the costliest first, then opportunities."""

    run: Data
    verdict: str
    headline: Data
    step_ms: Annotated[float, _STEP]
    world_size: Annotated[int, _number("ranks", "ranks of the job")]
    ranks: Annotated[str, msgspec.Meta(description="ranks with a trace")]
    missing_ranks: Annotated[str, msgspec.Meta(description="ranks without a trace")]
    steps: Annotated[str, msgspec.Meta(description="steps that were diagnosed")]
    #: step = floor + tracing + findings + unexplained.
    account: tuple[AccountRow, ...]
    #: Checks that lack data, by rule: what is not checked is not healthy.
    not_checked: tuple[str, ...]
    #: What is wrong with files; contradictions between witnesses.
    warnings: tuple[Data, ...]
    job_money_per_day: Annotated[float | None, _number("`currency`, a day", "what all GPUs of the job cost")] = None
    currency: Annotated[str, msgspec.Meta(description="of money; empty where nobody named it")] = ""
    job_energy_kwh_per_day: Annotated[
        float | None, _number("kWh a day", "of all GPUs of the job at their highest power")
    ] = None
    tab_link: Annotated[str, msgspec.Meta(description="this run in TensorBoard")]
    rows: tuple[FindingRow, ...]


class DetailRow(Row, frozen=True, kw_only=True):
    """A number that a finding rests on, a threshold that was compared with, or a piece of evidence."""

    #: "measurement", "threshold" or "evidence".
    kind: str
    name: str = ""
    value: Annotated[float | None, _number("as in `unit`", "a number that the finding rests on, or a limit")] = None
    unit: str = ""
    ranks: str = ""
    steps: str = ""
    #: Why the threshold is what it is; what is seen in the evidence.
    text: Data = ""
    #: Of evidence: its number, for the tool slice.
    evidence: Annotated[int | None, _number("number", "of the evidence, for the tool slice")] = None
    rank: Annotated[int | None, _RANK] = None
    step: Annotated[int | None, _STEP_NUMBER] = None
    start_ns: Annotated[int | None, _number("ns", "where the evidence begins, on its rank's own clock")] = None
    end_ns: Annotated[int | None, _number("ns", "where it ends")] = None
    source: Data = ""


class FindingRows(PageOfRows, frozen=True, kw_only=True):
    """One finding: why, how to fix it, and in rows its arithmetic, thresholds and evidence."""

    run: Data
    finding: str
    rule: str
    severity: SeverityLabel
    confidence: Confidence
    cause: str | None
    cost_ms: Annotated[float, _COST]
    alone_ms: Annotated[float, _ALONE]
    range_ms: Annotated[tuple[float, float], _RANGE]
    step_ms: Annotated[float, _STEP]
    ranks: str
    steps: str
    title: Data
    why: Data
    fix: Data
    #: The rule's page in one sentence.
    rule_summary: str
    tab_link: str
    rows: tuple[DetailRow, ...]


class RankRow(Row, frozen=True, kw_only=True):
    """A rank's step, by owner."""

    rank: Annotated[int, _RANK]
    node: Data = ""
    #: None in a mean over steps.
    step: Annotated[int | None, _STEP_NUMBER] = None
    step_ms: Annotated[float, _number("ms", "length of this rank's step")]
    busy_ms: Annotated[float, _number("ms", "step minus straggler wait")]
    budget_ms: Annotated[
        dict[str, float], _number("ms", "the step by owner, which sum to it; those without time left out")
    ]


class Ranks(PageOfRows, frozen=True, kw_only=True):
    """A table of ranks, or of ranks and steps."""

    run: Data
    #: What the owners are, in a few words.
    owners: dict[str, str]
    tab_link: str
    rows: tuple[RankRow, ...]


class ProspectRow(Row, frozen=True, kw_only=True):
    """The step with some findings fixed."""

    fixed: tuple[str, ...]
    without_ms: Annotated[float, _WITH_FIXES]
    range_ms: Annotated[tuple[float, float], _number("ms", "from where to where `without_ms` lies in 8 of 10 jobs")]


class WhatIfRows(PageOfRows, frozen=True, kw_only=True):
    """Predicted steps with findings fixed."""

    run: Data
    step_ms: Annotated[float, _STEP]
    rows: tuple[ProspectRow, ...]


class PlanRow(Row, frozen=True, kw_only=True):
    """A predicted step."""

    #: What is otherwise, in a few words.
    question: Data
    step_ms: Annotated[float, _PREDICTED]
    low_ms: Annotated[float, _number("ms", "the least that the step is expected to take")]
    high_ms: Annotated[float, _number("ms", "the most that it is expected to take")]
    change_ms: Annotated[float, _number("ms", "predicted minus recorded step")]


class Planned(PageOfRows, frozen=True, kw_only=True):
    """Predicted steps with other settings; what cannot be predicted, with the reason."""

    run: Data
    now_ms: Annotated[float, _number("ms", "the step as recorded")]
    refusals: tuple[Data, ...]
    rows: tuple[PlanRow, ...]


class ChangeRow(Row, frozen=True, kw_only=True):
    """An amount in both runs."""

    name: Data
    #: Of findings: fixed, better, same, worse or new.
    fate: str = ""
    before_ms: Annotated[float | None, _number("ms a step", "in the earlier run, mean over ranks and steps")] = None
    after_ms: Annotated[float | None, _number("ms a step", "in the later run")] = None
    before_host_ms: Annotated[float | None, _number("ms a step", "Self CPU in the earlier run")] = None
    after_host_ms: Annotated[float | None, _number("ms a step", "Self CPU in the later run")] = None
    before_device_ms: Annotated[float | None, _number("ms a step", "Self CUDA in the earlier run")] = None
    after_device_ms: Annotated[float | None, _number("ms a step", "Self CUDA in the later run")] = None
    before_count: Annotated[float | None, _number("calls a step", "in the earlier run")] = None
    after_count: Annotated[float | None, _number("calls a step", "in the later run")] = None


class ComparedRuns(PageOfRows, frozen=True, kw_only=True):
    """What differs between two runs."""

    before: Data
    after: Data
    headline: Data
    story: tuple[Data, ...]
    before_ms: Annotated[float, _number("ms", "step of the earlier run")]
    after_ms: Annotated[float, _number("ms", "step of the later run")]
    change: Annotated[float, _number("of the earlier step", "how much longer the later one is; below 0: shorter")]
    interval: Annotated[
        tuple[float, float] | None, _number("of the earlier step", "where `change` lies with 95 % confidence")
    ]
    is_significant: Annotated[bool, msgspec.Meta(description="whether the change is more than noise")]
    table: str
    rows: tuple[ChangeRow, ...]


class EventRow(Row, frozen=True, kw_only=True):
    """Something that made steps longer or shorter."""

    kind: str
    level: str
    ranks: str
    node: Data = ""
    first_step: Annotated[int, _STEP_NUMBER]
    last_step: Annotated[int, _STEP_NUMBER]
    began: Annotated[str, msgspec.Meta(description="UTC")]
    added_ms: Annotated[float, _number("ms", "busy time that it adds to a step of its ranks")]
    added_share: Annotated[float, _number("of a median step, 0 to 1", "the same as a share")]
    every: Annotated[int | None, _number("steps", "of periods: from one to the next")] = None
    times: Annotated[int | None, _number("count", "how often it came")] = None
    cost_s: Annotated[float, _number("s", "what the job's steps are longer by in all")]
    range_s: Annotated[tuple[float, float], _number("s", "80 % interval of cost_s")]
    cost_share: Annotated[float, _number("of the time of all steps, 0 to 1", "the same as a share")]


class JobHours(PageOfRows, frozen=True, kw_only=True):
    """The hours of a job: what changed, when and on which rank."""

    directory: Data
    source: Annotated[Data, msgspec.Meta(description="the log that they are from; empty where a Doctor recorded them")]
    ranks: Annotated[int, _number("ranks", "ranks with step times; 0 where a log does not say")]
    nodes: Annotated[int, _number("nodes", "hosts of these ranks")]
    steps: Annotated[int, _number("steps", "steps with a time")]
    first_step: Annotated[int, _STEP_NUMBER]
    last_step: Annotated[int, _STEP_NUMBER]
    median_step_ms: Annotated[float, _number("ms", "median step")]
    p99_step_ms: Annotated[float, _number("ms", "99th percentile of steps")]
    names_ranks: Annotated[
        bool, msgspec.Meta(description="whether waits were recorded, without which no rank is named")
    ]
    goodput: Annotated[float, _number("of the job's time, 0 to 1", "share that trained a step that counts")]
    time_s: Annotated[dict[str, float], _number("s", "the job's time by what it went to")]
    restarts: Annotated[int, _number("count", "restarts of the job")]
    rows: tuple[EventRow, ...]


class CollectiveRow(Row, frozen=True, kw_only=True):
    """Calls of one kind and size, a change of their bandwidth, a late rank, or the transfers between two ranks."""

    collective: Data = ""
    size: Annotated[int | None, _number("bytes", "size of a call; of peers, of the median transfer")] = None
    ranks: Annotated[int, _number("ranks", "ranks of the group")]
    nodes: Annotated[int | None, _number("nodes", "hosts of the group; 0 where unknown")] = None
    hosts: Data = ""
    rank: Annotated[int | None, _number("rank", "rank within its group that arrives last")] = None
    sender: Annotated[int | None, _number("rank", "rank within its communicator that sends")] = None
    receiver: Annotated[int | None, _number("rank", "rank within its communicator that receives")] = None
    calls: Annotated[int | None, _number("calls", "calls of these, or transfers")] = None
    busbw_gbs: Annotated[float | None, _number("GB/s", "bus bandwidth of the median call, without waiting")] = None
    low_gbs: Annotated[float | None, _number("GB/s", "one call in 20 is slower")] = None
    transfer_s: Annotated[float | None, _number("s", "transfer time of all calls")] = None
    began: Annotated[str, msgspec.Meta(description="UTC")] = ""
    before_gbs: Annotated[float | None, _number("GB/s", "median busbw before the change")] = None
    after_gbs: Annotated[float | None, _number("GB/s", "median busbw since")] = None
    cost_s: Annotated[float | None, _number("s", "what calls since took longer in all; below 0: shorter")] = None
    late_share: Annotated[
        float | None, _number("of the calls, 0 to 1", "how often the rank, or of peers the sender, arrives last")
    ] = None
    wait_ms: Annotated[float | None, _number("ms", "what the first rank then waits, median")] = None


class CollectivesOfHours(PageOfRows, frozen=True, kw_only=True):
    """What the Inspector of NCCL or RCCL wrote."""

    directory: Data
    table: str
    calls: Annotated[int, _number("calls", "calls of collectives")]
    transfers: Annotated[int, _number("transfers", "transfers between two ranks")]
    groups: Annotated[int, _number("groups", "groups with collectives")]
    began: Annotated[str, msgspec.Meta(description="when the first call was written, UTC")]
    ended: Annotated[str, msgspec.Meta(description="when the last call was written, UTC")]
    said: Annotated[tuple[Data, ...], msgspec.Meta(description="the same in sentences, the costliest first")]
    rows: tuple[CollectiveRow, ...]


class StuckRow(Row, frozen=True, kw_only=True):
    """Ranks at the root of waiting."""

    finding: str
    cause: str
    severity: str
    confidence: Confidence
    ranks: str
    hosts: Data
    title: Brief
    why: Data
    fix: Data
    waiting: Annotated[str, msgspec.Meta(description="ranks that wait for these")]
    waiting_count: Annotated[int, _number("ranks", "how many ranks wait for these")]
    waited_at_most_s: Annotated[float | None, _number("s", "what the rank that waits longest had waited, at most")] = (
        None
    )


class Stuck(PageOfRows, frozen=True, kw_only=True):
    """What the dumps of a job that hangs say."""

    run: Data
    verdict: str
    headline: Data
    world_size: Annotated[int, _number("ranks", "ranks of the job")]
    ranks: str
    missing_ranks: str
    tab_link: str
    rows: tuple[StuckRow, ...]


class MemoryRow(Row, frozen=True, kw_only=True):
    """What the last snapshot of a rank holds."""

    rank: Annotated[int | None, _RANK] = None
    file: Data
    allocated: Annotated[int, _number("bytes", "allocated at the end")]
    reserved: Annotated[int, _number("bytes", "reserved of the GPU by the allocator")]
    largest_free: Annotated[int, _number("bytes", "the largest block that is reserved but unallocated")]
    categories: Annotated[dict[str, int], _number("bytes", "what is allocated, by what it is for; sums to it")]
    failed: Annotated[int | None, _number("bytes", "the request that failed")] = None
    to_release: Annotated[int | None, _number("bytes", "what it lacked: the least that has to be released for it")] = (
        None
    )
    largest: Annotated[str, msgspec.Meta(description="the largest that is allocated, by line")]


class MemoryOfRanks(PageOfRows, frozen=True, kw_only=True):
    """What snapshots of torch.cuda.memory say of a job without traces."""

    run: Data
    verdict: str
    headline: Data
    said: Annotated[tuple[str, ...], msgspec.Meta(description="how ranks differ")]
    why: Data
    fix: Data
    tab_link: str
    rows: tuple[MemoryRow, ...]


class Sliced(PageOfRows, frozen=True, kw_only=True):
    """A part of the traces that shows a piece of evidence, as a file for Perfetto, and the same in the tab."""

    run: Data
    finding: str
    path: Annotated[str, msgspec.Meta(description="a file of Perfetto's format; it goes when the server ends")]
    rank: Annotated[int, _RANK]
    step: Annotated[int, _STEP_NUMBER]
    what: Data
    ranks: Annotated[str, msgspec.Meta(description="ranks in the file, on one clock")]
    length_ms: Annotated[float, _number("ms", "length of the evidence")]
    tab_link: str


class TermRow(Row, frozen=True, kw_only=True):
    """A word and what it means."""

    name: str
    text: str


class Explained(PageOfRows, frozen=True, kw_only=True):
    """What rules and terms mean."""

    rows: tuple[TermRow, ...]


def like(answer: type[A], of: object, **given: Any) -> A:
    """An answer, or a row, with what is given, and else with what `of` has by the same name: a number has the name that
    it has in the JSON. Texts come between marks, and numbers of ranks and steps as "0-3, 7".
    """
    fields = {name: getattr(of, name) for name in _types(answer) if name not in given and hasattr(of, name)}
    return answer(**{name: _as(_types(answer)[name], value) for name, value in fields.items()}, **given)


def _as(kind: Any, value: Any) -> Any:
    """A value as a field of this type has it."""
    if getattr(kind, "__origin__", kind) is str and isinstance(value, tuple):
        return listed(value)
    most = [meta.extra["letters"] for meta in getattr(kind, "__metadata__", ()) if meta.extra]
    return data(value, *most) if most else value


@cache
def _types(of: type[msgspec.Struct]) -> dict[str, Any]:
    hints = get_type_hints(of, include_extras=True)
    return {name: hints[name] for name in of.__struct_fields__}


@cache
def definitions(of: type[PageOfRows]) -> dict[str, str]:
    """By the names of an answer's numbers: unit and definition. A name that two rows use means the same in both."""
    return {name: text for name, text in _numbers(of) if name not in ("total_rows", "next_offset")}


def _numbers(of: Any) -> Iterator[tuple[str, str]]:
    for name, hint in get_type_hints(of, include_extras=True).items():
        for meta in getattr(hint, "__metadata__", ()):
            if meta.extra_json_schema:
                yield name, meta.description
        for part in get_args(hint):
            if isinstance(part, type) and issubclass(part, msgspec.Struct):
                yield from _numbers(part)
