"""The critical path across ranks: a chain of pieces of work, each of which waited for the one before it.

1. Start at the end of the last step, on the rank that ends it last.
2. Ask `bindings` what this event waited for: device work, a collective, a launch, or the host.
3. Go on there, on another rank if the event waited for that rank. So the path never waits for another traced rank.
4. Stop at the begin of the first step.

Step k has the pieces between the ends of steps k - 1 and k, each on the rank that ends it last. They sum to that time,
to the nanosecond. Times are ns on the common clock.

    rank 0   [fwd][AllReduce: wait........][transfer]
    rank 1   [load..............][fwd]     [transfer]     path: rank 1 input, rank 1 compute, rank 1 transfer
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_ddp_doctor.digest.model import CodeOf, CpuTime, RankDigest, RankOwner
from tb_ddp_doctor.digest.spending import SPENDING
from tb_ddp_doctor.digest.track import LATENCY_NS
from tb_ddp_doctor.findings import PHASES
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.replay.bindings import Bindings, EventKind
from tb_ddp_doctor.trace.model import Indices, Ints
from tb_ddp_doctor.trace.names import Phase

#: Pieces shorter than this share of the step are joined with their neighbours.
_SHORTEST = 0.001
#: A call with this share of the time stands for all of it.
_MOST = 0.9
#: Up to this many calls are named together.
_CALLS = 2
_OF_CPUS = "collective of the CPUs (gloo)"
_PROFILER = "profiler overhead"
_LOADER = "DataLoader.__next__"
_UPDATE = "optimizer on the CPU"


class Piece(msgspec.Struct, frozen=True):
    """A stretch of the path: one rank does one thing."""

    #: Index of the rank.
    rank: int
    #: One of `findings.OWNERS`. A "wait" is one for ranks without a trace.
    owner: str
    #: One of `findings.PHASES`: the phase that launched it; None if the trace does not show phases.
    phase: str | None
    #: The collective's kind, the call that blocks, or the user's function; "" if unknown.
    what: str
    start_ns: int
    end_ns: int

    @property
    def label(self) -> tuple[int, str, str | None, str]:
        """What neighbours have in common if they are joined into one piece."""
        return self.rank, self.owner, self.phase, self.what


class PathOfStep(msgspec.Struct, frozen=True):
    """The path within one step."""

    #: Index of the job's step.
    step: int
    start_ns: int
    end_ns: int
    #: In order of time; their lengths sum to `end_ns - start_ns`.
    pieces: tuple[Piece, ...]


def critical_path(job: Job, bindings: Bindings) -> tuple[PathOfStep, ...]:
    """The path through all steps of a job, in order of time."""
    start_ns, end_ns = bindings.start_ns.tolist(), bindings.end_ns.tolist()
    backwards = _walk(job, bindings)
    parts = []
    piece = next(backwards)
    for step in range(len(end_ns) - 1, -1, -1):
        mine = []
        while True:
            start, end = max(piece.start_ns, start_ns[step]), min(piece.end_ns, end_ns[step])
            if start < end:
                mine.append(replace(piece, start_ns=start, end_ns=end))
            if piece.start_ns <= start_ns[step]:
                break
            piece = next(backwards)
        shortest = round(_SHORTEST * (end_ns[step] - start_ns[step]))
        parts.append(PathOfStep(step, start_ns[step], end_ns[step], tuple(_joined(mine[::-1], shortest))))
    return tuple(parts[::-1])


class PathStretch(NamedTuple):
    """A stretch of the path that led to one event of a rank."""

    #: Index of the rank.
    rank: int
    #: What it led to; None for the time before the first event, in which there is only the host.
    event: EventKind | None
    #: The event's row in the rank's track, or in its collectives.
    row: int
    start_ns: int
    end_ns: int
    #: How long of it a collective waits for ranks without a trace.
    absent_ns: int


def stretches(bindings: Bindings) -> Iterator[PathStretch]:
    """The path from its end back to its begin, without a gap."""
    node, time, begin = bindings.last, int(bindings.end_ns[-1]), int(bindings.start_ns[0])
    rank = 0
    while node and time > begin:
        binding = bindings.of(node)
        rank = binding.rank
        since = min(binding.since_ns, time)
        if since < time:
            yield PathStretch(rank, node.event, binding.row, since, time, binding.absent_ns)
            time = since
        node = binding.by
    # The event waited for something before the record.
    yield PathStretch(rank, None, -1, begin, time, 0)


def _walk(job: Job, bindings: Bindings) -> Iterator[Piece]:
    """The path's pieces from its end back to its begin, without a gap."""
    ranks: dict[int, _Rank] = {}
    for rank, event, row, start, end, absent in stretches(bindings):
        if event is None:
            yield Piece(rank, "host", None, "", start, end)
            continue
        if rank not in ranks:
            ranks[rank] = _Rank(job, rank)
        yield from ranks[rank].pieces(event, row, start, end, absent)


class _Rank:
    """Cuts a rank's stretches of the path into pieces and names what it does in each."""

    def __init__(self, job: Job, rank: int) -> None:
        self._rank, self._digest = rank, job.digests[rank]
        self._clock = job.clock
        named = self._digest.work.phases.host_ns[:, [Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]]
        self._has_phases = bool(named.any())
        table = self._digest.collectives
        self._groups = len({self._digest.strings[group] for group in set(table.group.tolist())} - {""})

    def pieces(self, event: EventKind, row: int, start: int, end: int, absent: int) -> Iterator[Piece]:
        """The pieces from `start` to `end`, the latest first, given the event that they led to.

        `row` is the event's row in the rank's track, or in its collectives; `absent` is how long of the time a
        collective waits for ranks without a trace. Times are ns.
        """
        if event in (EventKind.ARRIVED, EventKind.COMPLETED):
            yield from self._of_collective(event, row, start, end, absent)
            return
        phase = self._phase(row)
        if event is EventKind.DONE:
            for owner, since, until in self._device(start, end):
                yield Piece(self._rank, owner, phase, self._function(CodeOf.COMPUTE, since, until), since, until)
            return
        track = self._digest.track
        if event is EventKind.ISSUED:
            host_ns = dict(self._host_ns.get(row, {}))
            # Recording is only an estimate, and spread over the whole row.
            host_ns[CpuTime.WORK] = host_ns.get(CpuTime.WORK, 0) + host_ns.pop(CpuTime.RECORDING, 0)
            spent = max(sorted(host_ns), key=host_ns.__getitem__)
        else:
            spent = CpuTime(max(int(track.blocked_by[row]), 0))
        yield Piece(self._rank, SPENDING[spent].owner, phase, self._doing(spent, start, end), start, end)

    def _of_collective(self, event: EventKind, row: int, start: int, end: int, absent: int) -> Iterator[Piece]:
        """The pieces before a rank arrived at a collective, or between the last arrival and the collective's end."""
        if row < 0:
            yield Piece(
                self._rank, "transfer" if event is EventKind.COMPLETED else "dispatch", None, _OF_CPUS, start, end
            )
            return
        table = self._digest.collectives
        phase = self._phase(int(self._launching[row]))
        name = self._digest.strings[int(table.kind[row])] or "communication"
        group = self._digest.strings[int(table.group[row])]
        what = f"{name} in {group}" if group and self._groups > 1 else name
        if event is EventKind.ARRIVED:
            # Later than its launch explains: the device was busy with work whose launch is not recorded.
            owner = "dispatch" if end - start <= LATENCY_NS else "compute"
            yield Piece(self._rank, owner, phase, f"before {what}", start, end)
            return
        arrived = min(start + absent, end)
        if arrived < end:
            yield Piece(self._rank, "transfer", phase, what, arrived, end)
        if start < arrived:
            yield Piece(self._rank, "wait", phase, what, start, arrived)

    def _phase(self, row: int) -> str | None:
        """The phase of a row of the track; None if the trace does not show phases, or for row -1."""
        return PHASES[int(self._digest.track.phase[row])] if self._has_phases and row >= 0 else None

    @cached_property
    def _host_ns(self) -> dict[int, dict[CpuTime, int]]:
        """For each row of the track, the host time by kind, ns."""
        return self._digest.track.host.by_row()

    @cached_property
    def _launching(self) -> Ints:
        """The row of the track that launches each collective, -1 if none does."""
        launches = self._digest.track.launches
        rows = np.flatnonzero((launches >= 0) & (launches < len(self._digest.collectives)))
        launching = np.full(len(self._digest.collectives), -1)
        launching[launches[rows]] = rows
        return launching

    def _device(self, start: int, end: int) -> Iterator[tuple[str, int, int]]:
        """The device's owners from `start` to `end` with their times, the latest first: copies, and compute else."""
        copied_from, copied_until = self._copies
        first = int(np.searchsorted(copied_until, start, side="right"))
        last = int(np.searchsorted(copied_from, end))
        for since, until in zip(
            copied_from[first:last][::-1].tolist(), copied_until[first:last][::-1].tolist(), strict=True
        ):
            since, until = max(since, start), min(until, end)
            if until < end:
                yield "compute", until, end
            if since < until:
                yield "copy", since, until
            end = min(since, end)
        if start < end:
            yield "compute", start, end

    @cached_property
    def _copies(self) -> tuple[Ints, Ints]:
        """Starts and ends of the rank's copies, ns on the common clock."""
        pieces = self._digest.pieces
        chosen = pieces.owner == RankOwner.COPY
        return self._common(pieces.start_ns[chosen]), self._common(pieces.end_ns[chosen])

    def _common(self, times: Ints) -> Ints:
        """Times of the rank's clock on the common clock, ns."""
        return times - self._clock.correction(self._rank, times)

    def _doing(self, spent: CpuTime, start: int, end: int) -> str:
        """What the host does from `start` to `end`, given the kind of its time; "" if unknown."""
        if spent is CpuTime.INPUT:
            return _LOADER
        if spent is CpuTime.OVERHEAD:
            return _PROFILER
        if spent is CpuTime.STALL:
            return self._stall(start, end) or self._function(CodeOf.HOST, start, end)
        if spent is CpuTime.WORK:
            return self._function(CodeOf.HOST, start, end)
        if spent is CpuTime.OP_STALL:
            return self._op_stall(start, end)
        return _UPDATE if spent in (CpuTime.READ, CpuTime.UPDATE) else self._calls[spent]

    def _stall(self, start: int, end: int) -> str:
        """What the host does in a stall; "" unless it is the longest of its kind, of which alone the time is known."""
        stalled = self._digest.stalled
        from_ns, until_ns = self._common(stalled.longest_start_ns), self._common(stalled.longest_end_ns)
        within = np.minimum(until_ns, end) - np.maximum(from_ns, start)
        if not len(within) or 2 * within.max() <= end - start:
            return ""
        return self._digest.strings[int(stalled.doing[within.argmax()])]

    def _op_stall(self, start: int, end: int) -> str:
        """The op or launch call with the longest stall between `start` and `end`; "" if none is known."""
        stalls = self._digest.op_stalls
        within = np.minimum(self._common(stalls.end_ns), end) - np.maximum(self._common(stalls.start_ns), start)
        if not len(within) or within.max() <= 0:
            return ""
        longest = int(within.argmax())
        op, call = (str(self._digest.strings[column[longest]]) for column in (stalls.op, stalls.call))
        return op or call

    @cached_property
    def _calls(self) -> dict[CpuTime, str]:
        """The names of the calls that block the host, by kind of time."""
        return {
            kind: _named(self._digest, self._digest.blocking.kind == SPENDING[kind].delays)
            for kind in (CpuTime.ALLOC, CpuTime.COPY, CpuTime.SYNC)
        }

    def _function(self, of: CodeOf, start: int, end: int) -> str:
        """The user's function with more than half of the time from `start` to `end`; "" if none, or without stacks."""
        if not len(self._digest.code):
            return ""
        first, until, functions = self._code[of]
        within = slice(int(np.searchsorted(until, start, side="right")), int(np.searchsorted(first, end)))
        length = np.minimum(until[within], end) - np.maximum(first[within], start)
        if not len(length):
            return ""
        names, which = np.unique(functions[within], return_inverse=True)
        total = np.bincount(which, weights=length)
        longest = int(total.argmax())
        return self._digest.strings[int(names[longest])] if 2 * total[longest] > end - start else ""

    @cached_property
    def _code(self) -> dict[CodeOf, tuple[Ints, Ints, Indices]]:
        """Starts and ends (ns, common clock) and functions of the stretches of user code, by what they are of."""
        code = self._digest.code
        chosen: dict[CodeOf, NDArray[np.bool_]] = {of: code.of == of for of in CodeOf}
        return {
            of: (self._common(code.start_ns[mine]), self._common(code.end_ns[mine]), code.function[mine])
            for of, mine in chosen.items()
        }


def _named(digest: RankDigest, blocking: NDArray[np.bool_]) -> str:
    """The calls with most of the time of the flagged rows of `Blocking`, such as "cudaMalloc in aten::empty".

    If several ops make the call, only the call; if two calls share the time, both; "" if more do.
    """
    table, strings = digest.blocking, digest.strings
    times, calls, ops = table.blocked_ns[blocking], table.call[blocking], table.op[blocking]
    total = times.sum()
    if not total:
        return ""
    row = int(times.argmax())
    if times[row] >= _MOST * total and strings[int(ops[row])]:
        return f"{strings[int(calls[row])]} in {strings[int(ops[row])]}"
    distinct, which = np.unique(calls, return_inverse=True)
    of_call = np.bincount(which, weights=times)
    order = np.argsort(-of_call, kind="stable")
    enough = int(np.searchsorted(np.cumsum(of_call[order]), _MOST * total)) + 1
    return ", ".join(strings[int(distinct[i])] for i in order[:enough]) if enough <= _CALLS else ""


def _joined(pieces: Sequence[Piece], shortest: int) -> list[Piece]:
    """The pieces, given by time and without a gap, with short ones joined to others, so that few remain to be read.

    Short neighbours are joined until they are at least `shortest`, and named for what most of their time is. What
    stays too short is joined to the long piece beside it.
    """
    joined: list[Piece] = []
    few: list[Piece] = []
    for piece in _with_equal_labels_joined(pieces):
        if piece.end_ns - piece.start_ns < shortest:
            few.append(piece)
            if piece.end_ns - few[0].start_ns >= shortest:
                joined.append(_one(few))
                few = []
            continue
        joined.append(replace(piece, start_ns=few[0].start_ns) if few else piece)
        few = []
    if few and joined:
        joined[-1] = replace(joined[-1], end_ns=few[-1].end_ns)
    elif few:
        joined.append(_one(few))
    return list(_with_equal_labels_joined(joined))


def _one(pieces: Sequence[Piece]) -> Piece:
    """One piece in place of several neighbours, named for what most of their time is."""
    total: dict[tuple[int, str, str | None, str], int] = {}
    for piece in pieces:
        total[piece.label] = total.get(piece.label, 0) + piece.end_ns - piece.start_ns
    most = max(total, key=lambda label: total[label])
    return Piece(*most, pieces[0].start_ns, pieces[-1].end_ns)


def _with_equal_labels_joined(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """The pieces, with neighbours of the same label joined into one."""
    last: Piece | None = None
    for piece in pieces:
        if last and last.label == piece.label:
            last = replace(last, end_ns=piece.end_ns)
            continue
        if last:
            yield last
        last = piece
    if last:
        yield last
