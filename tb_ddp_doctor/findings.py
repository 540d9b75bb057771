"""What the doctor says: findings, outcomes and the diagnosis of a run, as frozen data with one JSON form.

Every stage may import this module; it imports none of them. Times inside are int64 nanoseconds; the JSON
carries milliseconds where a name ends in ``_ms`` and microseconds where it ends in ``_us``.
`docs/json.md` documents the JSON, and a test holds the two together.
"""

from __future__ import annotations

import re
from enum import IntEnum
from html import escape
from typing import TYPE_CHECKING, Literal, get_args

import msgspec

from tb_ddp_doctor import step_parts
from tb_ddp_doctor.choices import refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

SCHEMA_VERSION = 2

#: Every class that a nanosecond of a step can belong to, in the order of precedence.
OWNERS = tuple(step_parts.OWNERS)

#: What a training loop is at.
PHASES = tuple(step_parts.PHASES)

#: What allocated memory is for.
MEMORY = tuple(step_parts.MEMORY)

Status = Literal["finding", "opportunity", "clear", "not-applicable", "error"]
Confidence = Literal["high", "medium", "low"]
LineKind = Literal["floor", "tracing", "no-requests", "finding", "unexplained"]
#: Kinds of jobs; "inference" is forward passes alone.
JobKind = Literal["training", "recommender", "RL", "inference server", "diffusion", "inference", "benchmark", "unknown"]
#: What a diagnosis has as a table.
Table = Literal[
    "findings", "opportunities", "outcomes", "communication", "budget", "phases", "account", "floor", "measurements",
    "thresholds", "evidence", "critical_path", "memory", "gains", "warnings",
    "layers", "layer_kernels",
]  # fmt: skip


SeverityLabel = Literal["opportunity", "info", "minor", "major", "critical"]
_LABELS: tuple[SeverityLabel, ...] = ("opportunity", "info", "minor", "major", "critical")
#: How a verdict is shown.
Level = Literal[SeverityLabel, "healthy"]


class Severity(IntEnum):
    """How much of the step a finding costs; OPPORTUNITY where nothing is wrong and the step could be shorter still."""

    OPPORTUNITY = -1
    INFO = 0
    MINOR = 1
    MAJOR = 2
    CRITICAL = 3

    @classmethod
    def of_share(cls, share: float) -> Severity:
        """The severity of a cost that is `share` of the step (0 to 1)."""
        return max(each for each in cls if each is cls.INFO or (each > cls.INFO and share >= each.least_share))

    @property
    def least_share(self) -> float:
        """The share of the step from which on a cost is this severe."""
        return (0.0, 0.0, 0.03, 0.10, 0.20)[self + 1]

    @property
    def label(self) -> SeverityLabel:
        return _LABELS[self + 1]


#: What a warning means for its file: nothing but what it says; events are missing from it; its end is missing, and may
#: yet come; it is no beginning of a trace, so that nothing may; it is still being written, and is left
#: out until it is whole.
WarningKind = Literal["note", "lost-events", "lost-end", "not-json", "arriving"]


class FileWarning(msgspec.Struct, frozen=True):
    """Something that a user must know about an input: which file, and what was wrong and what was kept."""

    file: str
    message: str
    kind: WarningKind = "note"

    @property
    def loses_events(self) -> bool:
        """Whether the file lacks events, at its end or elsewhere."""
        return self.kind in ("lost-events", "lost-end")


class Source(msgspec.Struct, frozen=True):
    """A function of the user's own code, as Python stacks have it, or a kernel that torch.compile generated."""

    file: str
    #: Where the function begins, 1 for a generated kernel; of one that ran already when recording began, where it was
    #: then. Stacks tell no other.
    line: int
    function: str


class Evidence(msgspec.Struct, frozen=True):
    """A window of the trace that proves a finding: where to look, and what to see there."""

    rank: int
    step: int
    #: Absolute time on the rank's own clock, ns since the epoch (or the trace's own zero where it has no epoch).
    start_ns: int
    end_ns: int
    what: str
    #: What the host is in, or was in when it launched what the device runs; None without stacks (with_stack=True), and
    #: where no one function has most of the window.
    source: Source | None = None
    #: Where the host is outside any op: the last op that ended before and the first that starts after; "" if unknown.
    op_before: str = ""
    op_after: str = ""


class Measurement(msgspec.Struct, frozen=True):
    """A number that a finding rests on."""

    name: str
    value: float
    #: "ms", "µs", "GB/s", "of the step", "1" for counts ...
    unit: str
    #: What it was measured on, and how many things it sums; empty and None where it is of the whole job.
    ranks: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    count: float | None = None
    #: Of time that the fix removes: the owner of the step's time that goes with it; None of all else.
    owner: str | None = None


class AccountLine(msgspec.Struct, frozen=True):
    """A part of the step."""

    kind: LineKind
    #: The finding's id, None for the other kinds.
    finding: str | None
    #: Summed over ranks and steps, ns; the lines of an account sum to its total.
    total_ns: int
    #: Mean over ranks and steps, and its share of the step, 0 to 1.
    ms: float
    share: float


#: From this share of the step on what nothing explains, with findings too small to be an alarm, is not healthy. Healthy
#: jobs of 4 and 8 ranks leave up to 3 %, and noise of 2 % in every kernel as much; faults that cost 8 % leave about 7 %
#: if no rule sees them.
MOST_UNEXPLAINED = 0.06


class Unexplained(msgspec.Struct, frozen=True):
    """Where the unexplained part of the step lies."""

    #: The owner of most of it.
    owner: str
    #: None where the traces do not tell phases.
    phase: str | None
    ranks: tuple[int, ...]
    steps: tuple[int, ...]


class LeftOutStep(msgspec.Struct, frozen=True):
    """A step that is in the traces and not in the account."""

    step: int
    #: Its length, mean over ranks.
    ms: float
    reason: str


#: Parts of the floor: what this model takes at least on this device; kernels above their roofline; reads that fusion
#: avoids; exposed communication below the link's speed; kernels whose work is not known.
FloorKind = Literal["limit", "below-attainable", "avoidable-traffic", "below-link-speed", "not-modelled"]


class FloorLine(msgspec.Struct, frozen=True):
    """A part of the floor."""

    kind: FloorKind
    #: Summed over ranks and steps, ns; the lines of a floor sum to its total.
    total_ns: int
    #: Mean over ranks and steps, and its share of the step, 0 to 1.
    ms: float
    share: float
    #: From where to where it lies, ms: what fusion avoids may be its reads alone, or its writes too.
    range_ms: tuple[float, float]
    #: `ms` by class of kernels, those with none left out.
    by_class: dict[str, float]
    #: What to record so that more is known, or "".
    note: str = ""


class Account(msgspec.Struct, frozen=True):
    """The whole step: floor + tracing + findings + unexplained."""

    #: "replay", or "busy_time" where the steps cannot be replayed: `no_replay` says why.
    method: Literal["replay", "busy_time"]
    #: All steps of all ranks, ns.
    total_ns: int
    #: The floor first, then tracing, the time in which a server has no request (only where there is some), the findings
    #: in the order in which they are charged, and what is unexplained.
    lines: tuple[AccountLine, ...]
    #: None where nothing is.
    unexplained: Unexplained | None
    left_out: tuple[LeftOutStep, ...] = ()
    #: The floor, against what the device could do; in the order of `FloorKind`.
    floor_lines: tuple[FloorLine, ...] = ()
    #: Why the steps cannot be replayed, in sentences; "" where they are.
    no_replay: str = ""

    def line(self, kind: LineKind) -> AccountLine:
        """The line of the floor, of tracing, or of what is unexplained."""
        return next(line for line in self.lines if line.kind == kind)


class Prospect(msgspec.Struct, frozen=True):
    """The step if some faults were fixed."""

    #: Ids of the findings that are fixed.
    fixed: tuple[str, ...]
    #: Mean over ranks and steps, now and then, ms.
    step_ms: float
    without_ms: float
    #: From where to where `without_ms` lies in 8 of 10 jobs.
    range_ms: tuple[float, float]


class Threshold(msgspec.Struct, frozen=True):
    """A limit that a rule compared with, shown beside its finding."""

    name: str
    value: float
    unit: str
    reason: str


class Together(msgspec.Struct, frozen=True):
    """What else to fix where the fix of one finding alone saves much less than the finding costs."""

    #: Ids of the other findings.
    findings: tuple[str, ...]
    #: What all these fixes save together, ms a step.
    saved_ms: float
    #: The same in one sentence.
    sentence: str


class Headline(msgspec.Struct, frozen=True):
    """What a finding costs, as the parts of a sentence: "Rank 5 (node2) costs 43.0 ms of 148.0 ms a step (29 %)."."""

    #: Who or what costs it: ranks with their nodes, a kind of fault, or the job.
    subject: str
    verb: Literal["cost", "costs"]
    #: What it costs of how long a step, and which share that is; rounded as everywhere.
    cost: str
    step: str
    share: str
    #: "seen once in 6 steps" of a fault that one of several steps shows; else "".
    often: str = ""

    @property
    def sentence(self) -> str:
        often = f", {self.often}" if self.often else ""
        return f"{self.subject} {self.verb} {self.cost} of {self.step} a step ({self.share}){often}."


#: What follows the first sentence, and what leads over to commands for a process that runs, at the end of advice.
_SECOND_SENTENCE = re.compile(r"(?<=[.]) (?=[A-Z`])")
_WHILE_IT_RUNS = re.compile(r"\s*While it [^.:]*:$")


class FixParts(msgspec.Struct, frozen=True):
    """The text of a fix in parts, so that nobody takes it apart."""

    #: The first sentence of the advice, and all of it.
    first: str = ""
    advice: str = ""
    #: The advice for a job that has ended: without the words that lead over to commands for its processes.
    ended: str = ""
    #: Code or commands to copy; "" where there are none.
    code: str = ""

    @classmethod
    def of(cls, fix: str) -> FixParts:
        """The parts of a text that has the code after its first empty line."""
        advice, _, code = fix.partition("\n\n")
        return cls(_SECOND_SENTENCE.split(advice, maxsplit=1)[0], advice, _WHILE_IT_RUNS.sub("", advice), code.strip())


class Finding(msgspec.Struct, frozen=True):
    """One fault: what is wrong, on which ranks and steps, what it costs, how to fix it, where to look."""

    #: The rule's name, and a number after a colon where the rule has several findings.
    id: str
    rule: str
    severity: SeverityLabel
    #: Predicted fall of the step time if the fault were fixed, ms, without what findings before it would give back too:
    #: its line of the account. Together the findings cost what fixing all of them saves.
    cost_ms: float
    #: The same if nothing else were fixed, ms.
    alone_ms: float
    #: From where to where the cost lies in 8 of 10 jobs, ms.
    range_ms: tuple[float, float]
    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    #: The kind of cause, from the rule's own list; None where the rule knows only one.
    cause: str | None
    confidence: Confidence
    #: One sentence that names the ranks, or what is slow.
    title: str
    #: One sentence: who or what costs how much of the step; the title of what costs nothing.
    headline: str
    #: What was seen that says so, and what the confidence rests on.
    why: str
    #: Advice in words; then, after an empty line, the code or command to copy.
    fix: str
    evidence: tuple[Evidence, ...]
    #: The numbers that it rests on, and the steps from them to the cost.
    measurements: tuple[Measurement, ...] = ()
    thresholds: tuple[Threshold, ...] = ()
    #: None where its fix alone saves at least 80 % of what it costs, and of findings that only inform.
    together: Together | None = None
    #: The parts of the headline; None of what costs nothing.
    headline_parts: Headline | None = None
    #: The parts of `fix`.
    fix_parts: FixParts = FixParts()
    #: Paths of the model's modules that `why` names, as in `LayerRow`.
    modules: tuple[str, ...] = ()


class RuleOutcome(msgspec.Struct, frozen=True):
    """How a rule ended, with the reason in words: "no data" is never "healthy"."""

    rule: str
    status: Status
    reason: str


class Clock(msgspec.Struct, frozen=True):
    """How well the ranks' clocks agree after alignment."""

    #: Median spread of the ends of matched collectives after correction, us; None where nothing could be matched.
    residual_us: float | None
    #: What was subtracted from each rank's clock, us, by rank.
    offset_us: dict[str, float]


class AlphaBeta(msgspec.Struct, frozen=True):
    """How transfer grows with bytes, least squares over a kind and group: alpha + bytes / bandwidth."""

    alpha_us: float
    #: GB = 1e9 bytes; None where size makes no difference.
    bandwidth_gb_s: float | None
    r2: float
    #: Root mean square of what the line misses.
    residual_us: float
    #: Largest bytes over smallest.
    spread: float
    #: Whether sizes differ enough, and explain the times well enough, to believe it.
    significant: bool


class TrafficRow(msgspec.Struct, frozen=True):
    """What the collectives of one kind do in one process group in a step, mean over steps; GB = 1e9 bytes."""

    kind: str
    #: Name of the group as the trace has it, "" if unknown.
    group: str
    #: What the group is for (TP, DP, PP, EP, CP, SP, or several joined by "+"), "" where its description does not say.
    parallelism: str
    #: Its ranks that have a trace, and how many it has.
    ranks: tuple[int, ...]
    size: int
    #: Element types, as torch names them.
    dtypes: tuple[str, ...]
    calls: float
    #: 1e6 bytes; None, as the bandwidths, where the trace does not tell the sizes.
    megabytes: float | None
    #: From a rank's arrival to the last one's, hidden or exposed, mean over ranks.
    wait_ms: float
    #: From the last arrival to the end, and the share of that beside compute on the rank that arrives last.
    transfer_ms: float
    hidden_share: float
    #: Bytes over transfer, and the same on each link (with nccl-tests' factors).
    algorithm_gb_s: float | None
    bus_gb_s: float | None
    #: None where the sizes are unknown, or all the same.
    fit: AlphaBeta | None


class MeshDimension(msgspec.Struct, frozen=True):
    """One way in which parallelism divides the ranks, and what its collectives and its sends and receives do in a step.

    Times are of one of its groups, mean over groups and steps.
    """

    #: "dp", "dp_replicate", "dp_shard", "tp", "pp", "ep", "cp", "sp", or several joined by "+".
    name: str
    #: Ranks of one group; from one of them to the next, 0 where that differs.
    size: int
    stride: int
    #: Why it is taken for that dimension, where no description of its process groups names it; "" where one does.
    inferred: str
    #: Whether it divides the ranks in another way than the axes before it: groups of experts often do not.
    is_axis: bool
    #: Whether all its groups lie within a node; None where nodes are not known.
    within_node: bool | None
    #: Collectives of a group, and 1e6 bytes of them; None where the traces do not tell the sizes. The calls and all
    #: below are None where no group has the traces of two ranks with matched collectives.
    calls: float | None
    megabytes: float | None
    #: Bus bandwidth as in nccl-tests, GB = 1e9 bytes per second; None where sizes are not known.
    bus_gb_s: float | None
    #: Straggler wait, mean over ranks; communication without wait; the part of it with no compute beside it.
    wait_ms: float | None
    transfer_ms: float | None
    exposed_ms: float | None
    #: The same three as shares of the step.
    wait_share: float | None
    transfer_share: float | None
    share: float | None
    #: What could be better about it though nothing is wrong, in sentences.
    advice: tuple[str, ...] = ()


class MeshTable(msgspec.Struct, frozen=True):
    """The dimensions of a job and each rank's place in them."""

    dimensions: tuple[MeshDimension, ...]
    #: Of each rank its place in its group of each dimension; dimensions in which it has no group are left out.
    coordinates: dict[str, dict[str, int]]


class NcclCalls(msgspec.Struct, frozen=True):
    """Calls of one kind and size, as NCCL logged them (NCCL_DEBUG_SUBSYS=COLL)."""

    #: "all_reduce" ...
    kind: str
    #: What one rank gives, as the call's count and element type say.
    bytes: int
    #: Of all processes.
    times: int


class NcclChoice(msgspec.Struct, frozen=True):
    """What NCCL's tuner chose for a kind and size, by the traces, else by its log (NCCL_DEBUG_SUBSYS=TUNING)."""

    kind: str
    bytes: int
    #: "ring", "tree", "NVLS" ..., and "LL", "LL128" or "Simple".
    algorithm: str
    protocol: str
    #: Channels that it goes through; 0 where that is not logged.
    channels: int
    times: int
    #: Name of the process group, where calls could be matched to its collectives by opCount: then those beside the
    #: traced ones are counted. Else "".
    group: str = ""


class Network(msgspec.Struct, frozen=True):
    """What NCCL's own logs (NCCL_DEBUG=INFO) say that the job's ranks use."""

    version: str
    #: "P2P", "SHM", "NET/IB/GDRDMA", "NET/Socket" ..., each with the ranks that use it, as far as they are known.
    transports: dict[str, tuple[int, ...]]
    #: Channels of collectives, of the communicator that has fewest; 0 if unknown.
    channels: int
    #: The ranks in the order of the first channel's ring; empty if unknown.
    ring: tuple[int, ...]
    #: Interfaces and network cards.
    interfaces: tuple[str, ...]
    #: Networks that NCCL tried to use and could not, such as "IB".
    unavailable: tuple[str, ...]
    #: NCCL_... variables that the job set.
    settings: dict[str, str]
    #: Lines of NCCL WARN, after their time where they have one.
    warnings: tuple[str, ...]
    #: Lines of all files, whoever wrote them.
    lines: int = 0
    #: Calls and choices, those that came most often first.
    calls: tuple[NcclCalls, ...] = ()
    choices: tuple[NcclChoice, ...] = ()
    #: The parent of each rank in the first channel's tree, -1 of the root; empty if unknown.
    tree: tuple[int, ...] = ()


class PathPiece(msgspec.Struct, frozen=True):
    """A stretch of the critical path on one rank."""

    rank: int
    #: One of `OWNERS`; "wait" only for ranks without a trace.
    owner: str
    #: One of `PHASES`, on the device that of what launched it; None where the trace does not tell.
    phase: str | None
    #: The collective's kind, the call that blocks, or the user's own function; "" if unknown.
    what: str
    #: Since the step's start.
    start_ms: float
    ms: float


class PathStep(msgspec.Struct, frozen=True):
    """The critical path's part in a step: between the ends of the step before and of this one, on their last ranks."""

    step: int
    #: On the clock of the first rank, ns.
    start_ns: int
    end_ns: int
    #: In order of time; they sum to the part.
    pieces: tuple[PathPiece, ...]


class MemoryBlock(msgspec.Struct, frozen=True):
    """An allocation that is alive at the peak."""

    bytes: int
    #: One of `MEMORY`, and the phase in which it was allocated.
    category: str
    phase: str
    #: The op that allocates it, "" if unknown; the module and the user's own function around it, where stacks are
    #: recorded.
    op: str
    module: str
    source: Source | None


class MemoryRank(msgspec.Struct, frozen=True):
    """A rank at the peak of its allocated memory; bytes."""

    rank: int
    step: int
    phase: str
    #: Allocated at the peak, and reserved beside it.
    allocated: int
    reserved: int
    #: What is allocated is made of, by category: sums to it.
    categories: dict[str, int]
    #: More than the median rank, and the category that has most of it; 0 and None where it is comparable.
    excess: int = 0
    excess_category: str | None = None


class MemoryPhase(msgspec.Struct, frozen=True):
    """What a phase does to allocated memory, mean over steps; bytes."""

    phase: str
    change: int
    #: Allocated at most; None where nothing is allocated or released in it.
    peak: int | None


class MemoryPlace(msgspec.Struct, frozen=True):
    """Where memory is allocated that stays."""

    op: str
    source: Source | None
    #: Per step.
    bytes: int


class GrowingMemory(msgspec.Struct, frozen=True):
    """Allocated memory that grows from step to step: a leak, if it goes on."""

    rank: int
    #: Per step, the median; in so many steps.
    bytes: int
    steps: int
    #: What is allocated in most steps and not released, the largest first.
    places: tuple[MemoryPlace, ...]


class ModelStates(msgspec.Struct, frozen=True):
    """What the model's states take on a rank, by its gradients; bytes, None where that is not known."""

    parameters: int | None
    gradients: int | None
    optimizer_states: int | None
    #: Class of the optimizer, "" if unknown.
    optimizer: str


class MemorySaving(msgspec.Struct, frozen=True):
    """What would save memory at the peak, and what it costs."""

    name: str
    #: What it is, in a few words.
    title: str
    #: Bytes of a rank, at most.
    bytes: int
    #: Per step, ms; None where the traces do not tell.
    cost_ms: float | None
    #: What the numbers rest on.
    why: str
    #: Advice in words; then, after an empty line, the code or command to copy.
    fix: str
    #: The parts of `fix`.
    fix_parts: FixParts = FixParts()


class Memory(msgspec.Struct, frozen=True):
    """What allocated memory is made of, on the rank with the highest peak, and what would save some of it; bytes."""

    #: Whether it is the CPU's, whose allocator counts from the beginning of the recording.
    on_cpu: bool
    #: The rank with the highest peak.
    peak: MemoryRank
    #: What stands out, a sentence or two for each thing.
    said: tuple[str, ...]
    #: What the GPU has; None if unknown.
    capacity: int | None
    #: At the peak; and what was reserved but unallocated when the allocator reserved more all the same, since it was in
    #: pieces, at most: nothing could use it.
    reserved_but_unallocated: int
    unusable: int
    phases: tuple[MemoryPhase, ...]
    largest: tuple[MemoryBlock, ...]
    states: ModelStates
    growth: GrowingMemory | None
    #: How many times the batch would fit; None where the capacity is not known.
    largest_batch: float | None
    #: Those that save most first.
    savings: tuple[MemorySaving, ...]
    ranks: tuple[MemoryRank, ...]


class MemoryHolder(msgspec.Struct, frozen=True):
    """Blocks of one category that one function allocated."""

    category: str
    source: Source | None
    bytes: int
    count: int


class MemoryModule(msgspec.Struct, frozen=True):
    """What the forward pass of a kind of module allocated, in a snapshot of torch.cuda.memory."""

    #: The file that has its `forward`, and torch's layer below: "model.py, linear".
    module: str
    bytes: int
    count: int


class MemorySegment(msgspec.Struct, frozen=True):
    """A segment that the allocator reserves, and that is in use in part; bytes."""

    bytes: int
    #: Reserved but unallocated, and the largest block of that.
    inactive: int
    largest_free: int
    #: What is allocated in it, so that it cannot be given back, the largest first.
    holders: tuple[MemoryHolder, ...]


class MemoryFailure(msgspec.Struct, frozen=True):
    """The last request that failed for lack of memory; bytes."""

    bytes: int
    #: Number of the GPU, in the process.
    device: int
    #: Whether more was allocated since than it asked for: then the snapshot does not show what it lacked.
    went_on: bool
    #: What the GPU had free beside what was reserved.
    device_free: int
    #: What is reserved on the GPU but unallocated: where the request could be, and in private pools of CUDA graphs.
    free_in_segments: int
    free_in_pools: int
    source: Source | None
    #: Whether no segment is as large, so that whole ones would have to be given back.
    whole_segments: bool
    #: What would have to be released for it, at least: the total, and what it is.
    to_release: int
    holders: tuple[MemoryHolder, ...]


class MemorySnapshot(msgspec.Struct, frozen=True):
    """What a snapshot of torch.cuda.memory beside the traces holds; bytes."""

    file: str
    #: What stands out, a sentence or two for each thing.
    said: tuple[str, ...]
    #: As the file's name or its folder's says; None where neither does.
    rank: int | None
    allocated: int
    reserved: int
    reserved_but_unallocated: int
    #: What is allocated is made of, by category, as stacks and annotations tell: sums to it.
    categories: dict[str, int]
    #: Of what is other, what is allocated by blocks without a stack.
    without_stack: int
    #: What is allocated on each GPU of the process, by its number in the process.
    devices: dict[int, int]
    #: Whether segments grow (expandable_segments).
    expandable: bool
    #: Blocks that are reserved but unallocated, and the largest: no larger request fits without cudaMalloc.
    free_blocks: int
    largest_free: int
    #: The segments with most that is reserved but unallocated.
    segments: tuple[MemorySegment, ...]
    failure: MemoryFailure | None
    #: What is allocated, by category and line, the largest first; and what forward passes allocated, by module.
    holders: tuple[MemoryHolder, ...] = ()
    modules: tuple[MemoryModule, ...] = ()


class MemoryFinding(msgspec.Struct, frozen=True):
    """Ranks that ran out of memory, and what to do about it."""

    severity: str
    ranks: tuple[int, ...]
    title: str
    why: str
    #: Advice in words; then, after an empty line, the code or command to copy; and its parts.
    fix: str
    fix_parts: FixParts


class MemoryRun(msgspec.Struct, frozen=True):
    """What snapshots of torch.cuda.memory say of a job without traces."""

    name: str
    #: Those whose snapshot's name tells the rank.
    ranks: tuple[int, ...]
    #: "unknown": no request failed, so nothing says that there was too little memory.
    verdict: Literal["out-of-memory", "unknown"]
    headline: str
    #: How the ranks differ, a sentence each.
    said: tuple[str, ...]
    #: None or one.
    findings: tuple[MemoryFinding, ...]
    #: The last of each rank.
    snapshots: tuple[MemorySnapshot, ...]
    warnings: tuple[FileWarning, ...]


class Setting(msgspec.Struct, frozen=True):
    """What a job is, as far as advice depends on it."""

    #: How many hosts the ranks are on; 0 where some rank's host is not known.
    hosts: int = 0
    #: What carries out collectives: "nccl" (RCCL too), or the CPU's "gloo", "mpi" or "ucc".
    backend: str = "nccl"
    #: What computes.
    device: Literal["cuda", "rocm", "cpu"] = "cuda"
    #: Whether the doctor's own `Doctor` captured it; else a profiler that the training script sets up did.
    has_doctor: bool = False
    #: The log directory of that `Doctor`; "" without one.
    logdir: str = ""
    #: What recorded it: torch.profiler, in a `Doctor` or not, or Nsight Systems.
    recorder: Literal["profiler", "nsys"] = "profiler"

    @property
    def may_use_network(self) -> bool:
        """Whether ranks may be on several hosts."""
        return self.hosts != 1

    @property
    def uses_nccl(self) -> bool:
        return self.backend == "nccl"

    @property
    def has_gpu(self) -> bool:
        return self.device != "cpu"

    @property
    def skew(self) -> str:
        """What the ends of collectives differ by: on one host, which has one clock, that is no clock skew."""
        return "clock skew" if self.may_use_network else "spread of the ends of collectives"


class Workload(msgspec.Struct, frozen=True):
    """What a step of the whole job does and what a GPU costs, as the user says; None where the user does not."""

    tokens_per_step: float | None = None
    samples_per_step: float | None = None
    #: Floating-point operations of the model, forward and backward, without what is computed again.
    model_flops_per_step: float | None = None
    #: The price of a GPU for an hour, in any currency.
    gpu_hour: float | None = None


class ConfigUse(msgspec.Struct, frozen=True):
    """A file `ddp-doctor.toml`, and what it sets."""

    file: str
    #: By name: thresholds as "straggler.min_excess", "gpu_hour" ...
    values: dict[str, float | str]


class DevicePeaks(msgspec.Struct, frozen=True):
    """What a rank's GPU, or its part of one, can do at most, as the user says; None where the user does not."""

    #: A part of the devices' name; "" for every device.
    device: str = ""
    #: TFLOPS by precision.
    half: float | None = None
    tf32: float | None = None
    float32: float | None = None
    fp8: float | None = None
    #: Memory bandwidth, TB/s; bandwidth of links to other GPUs of the node in one direction, GB/s.
    memory: float | None = None
    link: float | None = None


class RateGain(msgspec.Struct, frozen=True):
    """What the fix of a finding or an opportunity alone would bring; None where the workload does not say."""

    #: Its id.
    finding: str
    #: More tokens and samples a second and GPU.
    tokens_per_second: float | None
    samples_per_second: float | None
    #: What the same steps would cost less in a day, of all GPUs.
    money_per_day: float | None
    #: Energy that the same steps would take less in a day, of all GPUs, kWh, at most.
    energy_kwh_per_day: float | None = None


class Rates(msgspec.Struct, frozen=True):
    """The step in the user's units, and energy; None where the workload, or no captured power, does not say."""

    workload: Workload
    #: Per GPU.
    tokens_per_second: float | None
    samples_per_second: float | None
    #: Of all GPUs of the job.
    money_per_day: float | None
    #: Share of the peak FLOPS that the user's model FLOPs take, and with what is computed again; and the same of the
    #: FLOPs that the doctor counts, 0 to 1. None where the peak is not known, too.
    mfu: float | None
    hfu: float | None
    counted_mfu: float | None
    counted_hfu: float | None
    #: Of each finding and opportunity that costs something, in their order.
    gains: tuple[RateGain, ...]
    #: Of the price, as the user writes it: "EUR"; "" if unknown.
    currency: str = ""
    #: Of all GPUs of the job in a day, kWh, at the highest power that was seen on each: at most.
    energy_kwh_per_day: float | None = None


#: Of the bar in a notebook, light or dark.
_BAR_COLOURS: dict[LineKind, str] = {
    "floor": "#8a94a6",
    "tracing": "#c3c9d4",
    "no-requests": "#e3e7ee",
    "finding": "#d1495b",
    "unexplained": "#e9a346",
}


class IterationKind(msgspec.Struct, frozen=True):
    """A server's iterations of one kind, mean over them."""

    #: Of prompts, of answers, or of both.
    kind: Literal["prefill", "decode", "mixed"]
    count: int
    mean_ms: float
    #: Requests whose prompt is read, and requests of which each gets a token.
    prefills: float
    decodes: float


class LayerRow(msgspec.Struct, frozen=True):
    """Time of a step in one of the model's modules, with all modules within it; the median over ranks, ms."""

    #: As "layers.0.mlp", or "layer 3" where layers are guessed; "" for the whole step, which is the first row.
    path: str
    #: Modules around it.
    level: int
    step_ms: float
    #: In which kernels and copies of it run: in forward, in backward, forward computed again within backward, and else.
    forward_ms: float
    backward_ms: float
    recomputed_ms: float
    other_ms: float
    #: In which only communication runs that it launched; and in which nothing runs before its next kernel.
    communication_ms: float
    idle_ms: float
    #: On the rank that takes longest in it.
    longest_ms: float
    longest_rank: int
    #: Memory that it allocates: held when most is allocated, and all of a step, bytes. None where no trace records
    #: memory (profile_memory=True).
    peak_bytes: int | None = None
    allocated_bytes: int | None = None
    #: What its operators have to do in a step: floating-point operations, and bytes, each tensor read or written once;
    #: and their time beyond what the GPU needs for both. None where it is not known (no shapes, or an unknown GPU).
    flops: float | None = None
    moved_bytes: float | None = None
    above_ms: float | None = None
    #: In which communication runs beside its kernels, and how much longer these take than the same ones alone. None
    #: where nothing in the model runs beside communication.
    beside_ms: float | None = None
    beside_longer_ms: float | None = None
    #: The 99th percentile over steps, the median over ranks.
    p99_ms: float = 0.0
    #: In the steps `LayerTable.slowest_step` and `median_step`; None where there are none.
    slowest_step_ms: float | None = None
    median_step_ms: float | None = None
    #: Of the critical path's part in a step, what lies in it; of the whole step all. None without a critical path.
    critical_ms: float | None = None
    #: An estimate of how long the optimizer works on its parameters: the optimizer's time in proportion to the elements
    #: of gradients; it is in no other time of the module. None where sizes of gradients or an optimizer are not there.
    optimizer_ms: float | None = None


class LayerKernel(msgspec.Struct, frozen=True):
    """Time of a step in one kernel of one of the model's modules, without modules within it; the median over ranks."""

    #: The module's, as in `LayerRow`; "" for what no module launches.
    path: str
    #: "forward", "backward", "recomputed", "other", "communication", or "idle": nothing runs before this kernel.
    part: str
    #: The innermost operator that launched it, "" where none is recorded.
    operator: str
    #: "" on a CPU, where operators are the kernels.
    kernel: str
    #: The user's function that launched it, in backward that of its forward; null without stacks.
    source: Source | None
    step_ms: float
    #: How often it runs in a step; 0 for idle time.
    calls: float
    #: On the rank that takes longest in it.
    longest_ms: float
    longest_rank: int
    #: As in `LayerRow`. An operator's work is that of its longest kernel.
    flops: float | None = None
    moved_bytes: float | None = None
    above_ms: float | None = None
    p99_ms: float = 0.0
    slowest_step_ms: float | None = None
    median_step_ms: float | None = None
    #: Of the critical path's part in a step, what lies in it, on all ranks together. None without a critical path.
    critical_ms: float | None = None


class LayerTable(msgspec.Struct, frozen=True):
    """Where in the model a step's time goes."""

    #: What names modules: "Doctor.watch", "NVTX ranges", "stacks", "annotations" that are paths, "CUDA graph
    #: annotations" of a capture, "torch.compile" where its regions stand for modules, or "repeats" where layers are
    #: guessed from operators that repeat; several, with "and", where ranks differ.
    named_by: str
    #: Kernels of a guessed layer in a step; 0 if modules are named.
    layer_events: int
    #: Each module is followed by those within it. Those with less than a thousandth of the step are left out.
    rows: tuple[LayerRow, ...]
    #: What runs in the modules, those with most time, at most 256; the longest first.
    kernels: tuple[LayerKernel, ...] = ()
    #: Sentences on the layers that take longer because communication runs beside them.
    said: tuple[str, ...] = ()
    #: Numbers of the slowest step and of the median one, as most ranks have them, and how many ranks these are. None
    #: and 0 where no rank has several steps.
    slowest_step: int | None = None
    median_step: int | None = None
    step_ranks: int = 0


class Diagnosis(msgspec.Struct, frozen=True):
    """All that the doctor says of one run."""

    name: str
    world_size: int
    ranks: tuple[int, ...]
    missing_ranks: tuple[int, ...]
    #: Files of which a part or all is not in here: cut off, damaged, still arriving, unreadable.
    incomplete: tuple[str, ...]
    steps: tuple[int, ...]
    step_ms: float
    #: The rule of the costliest finding of at least minor severity; "unexplained" if more of the step than that has no
    #: explanation; "unknown" if the traces cannot tell; else "healthy".
    verdict: str
    #: The verdict in one sentence, for people. It says so where it rests on incomplete files, and where
    #: "healthy" rests on less than the whole job.
    headline: str
    account: Account
    #: Mean over steps, by rank, by owner.
    budget_ms: dict[str, dict[str, float]]
    #: The same by phase, on the device (without one, on the host), and on the host; empty where the traces do not tell.
    phases_ms: dict[str, dict[str, float]]
    host_phases_ms: dict[str, dict[str, float]]
    clock: Clock
    #: By kind and process group, those that transfer longest first; empty where no collective could be matched.
    communication: tuple[TrafficRow, ...]
    #: None where no log of NCCL lies beside the traces.
    network: Network | None
    findings: tuple[Finding, ...]
    outcomes: tuple[RuleOutcome, ...]
    warnings: tuple[FileWarning, ...]
    #: What each step's length hangs on, across ranks; empty where steps cannot be played again (`Account.method`).
    critical_path: tuple[PathStep, ...] = ()
    #: None where no trace has memory events (profile_memory=True).
    memory: Memory | None = None
    #: The last snapshot of torch.cuda.memory of each rank beside the traces.
    memory_snapshots: tuple[MemorySnapshot, ...] = ()
    setting: Setting = Setting()
    #: Where who waits, the critical path and the replay disagree on who is slow, each in a sentence; then the findings
    #: concerned have less confidence.
    contradictions: tuple[str, ...] = ()
    #: The parts that the headline begins with, None where it tells no cost; and what it says after them, or after its
    #: first sentence.
    headline_parts: Headline | None = None
    headline_rest: str = ""
    #: What is no fault and could be faster still, the largest saving first: findings of severity "opportunity". Their
    #: costs are what their fixes save in turn once all `findings` are fixed; they lie within the account's floor.
    opportunities: tuple[Finding, ...] = ()
    #: None where the user says neither what a step does nor what a GPU costs, and no power was captured.
    rates: Rates | None = None
    #: The dimensions of parallelism; None where no process group and no message shows one.
    mesh: MeshTable | None = None
    #: Files with settings that this diagnosis was made with, the project's first.
    config: tuple[ConfigUse, ...] = ()
    #: What the job does, as far as its traces show.
    kind: JobKind = "unknown"
    #: Of a server whose marks tell what its iterations work on; empty otherwise.
    iterations: tuple[IterationKind, ...] = ()
    #: The model's modules, or its layers where these are guessed; None where the traces show neither.
    layers: LayerTable | None = None

    @property
    def level(self) -> Level:
        """How the verdict is shown: a severity, "healthy", or "info" where healthy rests on part of the job."""
        match self.verdict:
            case "unknown":
                return Severity.INFO.label
            case "unexplained":
                return Severity.of_share(self.account.line("unexplained").share).label
            case "healthy":
                # No data is not healthy.
                return Severity.INFO.label if self.missing_ranks or self.incomplete else "healthy"
            case _:
                return self.findings[0].severity

    def _rows(self, table: Literal["memory", "layers", "layer_kernels"]) -> Sequence[msgspec.Struct]:
        """The rows of a table that traces may not tell of."""
        if table == "memory":
            return self.memory.ranks if self.memory else ()
        if self.layers is None:
            return ()
        return self.layers.rows if table == "layers" else self.layers.kernels

    def to_pandas(self, table: Table = "findings") -> pd.DataFrame:
        """One of its tables as a data frame: a row per finding, rule, collective, rank, line or stretch of time.

        Raises ImportError where pandas is not installed, and ValueError for a table that there is not.
        """
        if table not in get_args(Table):
            raise ValueError(refusal("A table", table, get_args(Table)))
        import pandas as pd

        match table:
            case "findings" | "opportunities" | "outcomes" | "communication":
                return pd.DataFrame([msgspec.to_builtins(row) for row in getattr(self, table)])
            case "account" | "floor":
                lines = self.account.lines if table == "account" else self.account.floor_lines
                return pd.DataFrame([msgspec.to_builtins(line) for line in lines])
            case "measurements" | "thresholds" | "evidence":
                named_rows = ((one.id, row) for one in self.all_findings for row in getattr(one, table))
                return pd.DataFrame([{"finding": name, **msgspec.to_builtins(row)} for name, row in named_rows])
            case "critical_path":
                pieces = ((part.step, piece) for part in self.critical_path for piece in part.pieces)
                return pd.DataFrame([{"step": step, **msgspec.to_builtins(piece)} for step, piece in pieces])
            case "memory" | "layers" | "layer_kernels":
                return pd.DataFrame([msgspec.to_builtins(row) for row in self._rows(table)])
            case "gains":
                return pd.DataFrame([msgspec.to_builtins(row) for row in (self.rates.gains if self.rates else ())])
            case "warnings":
                return pd.DataFrame([msgspec.to_builtins(row) for row in self.warnings])
            case "budget" | "phases":
                by_rank = self.budget_ms if table == "budget" else self.phases_ms
                frame = pd.DataFrame.from_dict(by_rank, orient="index")
                frame.index = frame.index.astype(int).rename("rank")
                return frame

    @property
    def all_findings(self) -> tuple[Finding, ...]:
        """Findings, then opportunities."""
        return (*self.findings, *self.opportunities)

    def _repr_html_(self) -> str:
        """What a notebook shows: the verdict, where the step goes, and a row for each finding."""
        from tb_ddp_doctor.notebook_html import BarPart, bar, table

        lines = [
            BarPart(line.finding or line.kind, line.ms, line.share, _BAR_COLOURS[line.kind])
            for line in self.account.lines
            if line.share > 0
        ]
        rows = [(each.severity, each.rule, f"{each.cost_ms:.1f}", each.title) for each in self.all_findings]
        return (
            f"<p><b>{escape(self.name)}</b>: {escape(self.headline)} ({len(self.ranks)} of {self.world_size} ranks, "
            f"{self.step_ms:.1f} ms a step)</p>{bar(lines)}"
            + table(("severity", "rule", "ms a step", "what"), rows, left=(3,))
        )


class Report(msgspec.Struct, frozen=True):
    """What `ddp-doctor diagnose --json` prints."""

    schema_version: int
    runs: tuple[Diagnosis, ...]
