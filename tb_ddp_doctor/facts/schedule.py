"""What follows what in the steps of all ranks: the order in which a replay plays them.

The host runs ahead, launches gate kernels, and streams and collectives order them: each rank's `Track` is followed row
by row, and a collective starts when its last rank has arrived. Which row follows which does not depend on how long
anything takes. So it is computed once, as rounds of rows and collectives that can be played together over all ranks,
and a job of 4,096 ranks takes as many numpy calls as one of four.

Times are ns on the common clock. R = ranks, S = steps of the job; rows and parts are those of all ranks, joined; a part
is one rank's share of a collective.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.model import CpuTime, RankDigest
from tb_ddp_doctor.digest.track import BEFORE, LATENCY_NS, LONG_AGO
from tb_ddp_doctor.job.beginnings import Beginnings, beginnings
from tb_ddp_doctor.job.calls import job_steps
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.job.numbering import numbered
from tb_ddp_doctor.trace.model import Indices, Ints

Flags = NDArray[np.bool_]
#: Indices, as a slice where they follow each other: it is copied from and to several times as fast.
Some: TypeAlias = slice | NDArray[np.integer[Any]]


_NONE = np.empty(0, np.int64)


class StuckError(Exception):
    """Rows wait for each other in a circle: some match of collectives is wrong."""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The rows of all tracks, round by round; the columns of `Track` with indices into all rows and parts."""

    rank: Indices
    #: Index of the step in the rank's digest, and in the job; -1 if the job leaves it out.
    own_step: Indices
    step: Indices
    #: The host's time in the row but for what holds it at the end.
    work_ns: Ints
    blocked_by: Indices
    blocked_ns: Ints
    #: Whether what holds it waits for its device work.
    waits: Flags
    #: What leaves the launch queue first: an earlier row, or -1; whether what was launched before the record; a part,
    #: the last where it is none.
    queue_row: Indices
    queue_before: Flags
    queue_tail_ns: Ints
    queue_part: Indices
    queue_ns: Ints
    #: Whether that holds the row's end.
    synced: Flags
    device_ns: Ints
    lead_ns: Ints
    fed_ns: Ints
    #: Index of a part; the last, which was over long ago, where the row awaits none.
    awaits: Indices
    delay_ns: Ints
    launches: Indices
    #: How many collectives the rank has launched in the step before.
    between: Indices


@dataclass(frozen=True, slots=True, eq=False)
class Spent:
    """The host's time that goes to one kind of thing."""

    #: Rows, and how much of each row's `work_ns` it is.
    working: Indices
    work_ns: Ints
    #: Rows that it holds at their end.
    holding: Indices

    @property
    def is_some(self) -> bool:
        return bool(len(self.working) or len(self.holding))


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """The parts of all ranks, round by round as they complete, those that nothing launches, and one more that was over
    long ago.
    """

    rank: Indices
    #: Which of the rank's `Collectives` it is.
    row: Indices
    own_step: Indices
    step: Indices
    #: The collective that it is a part of.
    collective: Indices
    #: For how long it waits for ranks that have no trace, after those that have one; and then transfers.
    absent_ns: Ints
    transfer_ns: Ints
    #: The part of `transfer_ns` with nothing beside it.
    exposed_ns: Ints
    #: As recorded: what no row launches ends so.
    end_ns: Ints
    #: The part before it on its stream; the last of all where there is none.
    after: Indices
    #: Index of the row whose device work it awaits, -1 for none.
    needs: Indices
    ready_ns: Ints
    #: Which kind and size it is of, and how many of these the rank has launched in the step before.
    like: Indices
    ordinal: Indices


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """What can be played together: rows, one per rank at most; then parts of collectives that complete."""

    rows: slice
    #: The rows' ranks; and whether some row awaits a collective, leaves the launch queue only after something else, or
    #: is held at its end.
    ranks: Some
    gated: bool
    queued: bool
    held: bool
    #: Which of the rows launch a part, and the part; whether some of these need device work.
    launching: Some
    launched: Some
    needing: bool
    #: By collective; what is before each on its stream; where each collective's begin, and how many it has.
    completed: slice
    after: Some
    starts: Ints
    sizes: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """The steps of R ranks, ready to be played."""

    rows: Rows
    parts: Parts
    rounds: tuple[Round, ...]
    spent: Mapping[CpuTime, Spent]
    #: When each rank's host and device begin the first step of its record, shape (R,).
    host_start_ns: Ints
    device_start_ns: Ints
    beginnings: Beginnings
    #: Of the rank that recorded most.
    most_steps: int
    #: Index of each of the job's steps in the rank's digest, shape (R, S).
    step_index: Ints
    #: Which ranks and steps have the same collectives, and as many messages; indices of shape (R, S).
    sequence: Ints


def schedule(job: Job) -> Schedule:
    """Compute what follows what in a job. Raises StuckError."""
    tracks = _Tracks(job.digests)
    parts = _parts(job, tracks)
    awaits = _awaited(tracks, parts)
    order, completed, plan = _ordered(tracks, parts, awaits)
    rows = _rows(tracks, awaits, job.step_index, order, completed)
    parts = _completing(parts, order, completed)
    host_start_ns, device_start_ns = _starts(job)
    return Schedule(
        rows=rows,
        parts=parts,
        rounds=tuple(_rounds(plan, rows, parts)),
        spent=_spent(tracks, order, rows),
        host_start_ns=host_start_ns,
        device_start_ns=device_start_ns,
        beginnings=beginnings(job.digests, job.clock),
        most_steps=max(len(digest.steps) for digest in job.digests),
        step_index=job.step_index,
        sequence=_sequences(parts, job.digests, job.step_index),
    )


def _starts(job: Job) -> tuple[Ints, Ints]:
    begin = np.array([(digest.steps.host_start_ns[0], digest.steps.start_ns[0]) for digest in job.digests], np.int64)
    common = begin - job.clock.correction(np.arange(len(begin))[:, None], begin)
    return common[:, 0], common[:, 1]


class _Tracks:
    """The tracks of all ranks joined, rank by rank."""

    def __init__(self, digests: Sequence[RankDigest]) -> None:
        self._tracks = [digest.track for digest in digests]
        self._steps = np.array([len(digest.steps) for digest in digests])
        #: Where each rank's rows and parts begin, and where the last one's end, shape (R + 1,).
        self.first = _base([len(track) for track in self._tracks])
        self.first_part = _base([len(digest.collectives) for digest in digests])
        self.rank = np.repeat(np.arange(len(digests), dtype=np.int32), np.diff(self.first))

    def column(self, name: str) -> NDArray[Any]:
        """A column of `Track`."""
        return np.concatenate([getattr(track, name) for track in self._tracks])

    def parts(self, name: str, missing: int) -> Indices:
        """A column with rows of the rank's `Collectives`, as parts."""
        own = self.column(name)
        joined: Indices = np.where(own >= 0, own + self._base_of_each(self.first_part), missing).astype(np.int32)
        return joined

    def rows(self, name: str) -> Indices:
        """A column with rows of the rank's track, as rows of all; what is negative stays so."""
        own = self.column(name)
        joined: Indices = np.where(own >= 0, own + self._base_of_each(self.first), own).astype(np.int32)
        return joined

    def _base_of_each(self, first: Ints) -> Ints:
        return np.repeat(first[:-1], np.diff(self.first))

    def job_step(self, step_index: Ints) -> Indices:
        """The job's step of each row, -1 for none."""
        return job_steps(step_index, self.rank, self.column("step"), self._steps)

    def host_ns(self, kind: CpuTime) -> Ints:
        """The host's time that goes to something."""
        return np.concatenate([track.host_ns[:, kind] for track in self._tracks])


def _base(counts: Sequence[int]) -> Ints:
    """Where each one's things begin, and where the last one's end, once all are joined."""
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int64)


def _parts(job: Job, tracks: _Tracks) -> Parts:
    """The parts of all ranks, rank by rank, and one more."""
    calls, matched, waiting = job.calls, job.matched, job.waiting
    rank, nothing = calls.rank, len(calls)
    own_step, end = calls.column("step"), calls.column("end_ns")
    arrived, traced = waiting.all_arrived_ns, waiting.all_traced_arrived_ns

    collective = np.full(nothing + 1, -1, np.int32)
    of_match, of_rank = np.nonzero(matched.present)
    collective[calls.first[of_rank] + matched.row[of_match, of_rank]] = of_match
    alone = collective < 0
    collective[alone] = len(matched) + np.arange(int(alone.sum()))

    launches = tracks.parts("launches", -1)
    launching = np.flatnonzero(launches >= 0)

    def of_launch(values: NDArray[Any], missing: int) -> NDArray[Any]:
        """What the row that launches a part has."""
        of_part = np.full(nothing + 1, missing, values.dtype)
        of_part[launches[launching]] = values[launching]
        return of_part

    like = numbered(calls.text("kind").code, calls.column("elements"), calls.column("group_size"))
    exposed = waiting.exposed.measure(job.axis.place(rank, arrived), job.axis.place(rank, end))
    return Parts(
        rank=_and(rank, 0),
        row=_and(np.arange(nothing) - calls.first[rank], -1),
        own_step=_and(own_step, -1),
        step=_and(job.call_step, -1),
        collective=collective,
        absent_ns=np.append(arrived - traced, 0),
        transfer_ns=np.append(end - arrived, 0),
        exposed_ns=np.append(exposed, 0),
        end_ns=np.append(end - job.clock.correction(rank, end), LONG_AGO),
        after=of_launch(tracks.parts("after", nothing), nothing),
        needs=of_launch(tracks.rows("needs"), -1),
        ready_ns=of_launch(tracks.column("ready_ns"), 0),
        like=_and(like, 0),
        ordinal=_and(_ordinals(numbered(rank, own_step, like)), 0),
    )


def _and(indices: NDArray[Any], of_nothing: int) -> Indices:
    """Indices, and one more."""
    return np.append(indices, of_nothing).astype(np.int32)


def _ordinals(of: Ints) -> Ints:
    """How many equal ones are before each one."""
    order = np.argsort(of, kind="stable")
    first = np.flatnonzero(np.diff(of[order], prepend=-1))
    ordinal = np.empty(len(of), np.int64)
    ordinal[order] = np.arange(len(of)) - np.repeat(first, np.diff(first, append=len(of)))
    return ordinal


def _sequences(parts: Parts, digests: Sequence[RankDigest], step_index: Ints) -> Ints:
    ranks, steps = step_index.shape
    known = np.flatnonzero(parts.step >= 0)
    cell = parts.rank[known] * steps + parts.step[known]
    # How many there are of each kind, as a sum of hashes: order differs between streams.
    place = parts.ordinal[known]
    hashed = (parts.like[known].astype(np.uint64) + 1) * np.uint64(0x9E3779B97F4A7C15) ^ (
        (place.astype(np.uint64) + 1) * np.uint64(0xC2B2AE3D27D4EB4F)
    )
    total = np.zeros(ranks * steps, np.uint64)
    np.add.at(total, cell, hashed * (hashed >> np.uint64(29)))
    messages = np.array([int(digest.messages.count.sum()) // max(len(digest.steps), 1) for digest in digests])
    return numbered(total.view(np.int64), np.repeat(messages, steps)).reshape(ranks, steps)


def _rows(tracks: _Tracks, awaits: Indices, step_index: Ints, order: Ints, completed: Ints) -> Rows:
    """The rows in an order; `completed` is that of the parts."""
    place, place_of_part = _places(order), _places(completed)
    nothing = len(completed) - 1
    own_step, launches = tracks.column("step"), tracks.parts("launches", -1)

    def ordered(values: NDArray[Any]) -> NDArray[Any]:
        """A column in order; one value that all rows have is held once."""
        if len(values) and (values == values[0]).all():
            return np.broadcast_to(values[:1].copy(), values.shape)
        return values[order]

    return Rows(
        rank=ordered(tracks.rank),
        own_step=ordered(own_step),
        step=ordered(tracks.job_step(step_index)),
        work_ns=ordered(reduce(np.add, map(tracks.host_ns, CpuTime))),
        blocked_by=ordered(tracks.column("blocked_by")),
        blocked_ns=ordered(tracks.column("blocked_ns")),
        waits=ordered(tracks.column("waits")),
        queue_row=ordered(_moved(tracks.rows("queue_row"), place)),
        queue_before=ordered(tracks.column("queue_row") == BEFORE),
        queue_tail_ns=ordered(tracks.column("queue_tail_ns")),
        queue_part=ordered(place_of_part[tracks.parts("queue_part", nothing)]),
        queue_ns=ordered(tracks.column("queue_ns")),
        synced=ordered(tracks.column("synced")),
        device_ns=ordered(tracks.column("device_ns")),
        lead_ns=ordered(tracks.column("lead_ns")),
        fed_ns=ordered(tracks.column("fed_ns")),
        awaits=ordered(place_of_part[awaits]),
        delay_ns=ordered(tracks.column("delay_ns")),
        launches=ordered(_moved(launches, place_of_part)),
        between=ordered(_since_step(launches >= 0, tracks.rank, own_step)),
    )


def _completing(parts: Parts, order: Ints, completed: Ints) -> Parts:
    """The parts in the order `completed`; `order` is that of the rows."""
    columns = {name: getattr(parts, name)[completed] for name in Parts.__slots__}
    columns["after"] = _places(completed)[columns["after"]]
    columns["needs"] = _moved(columns["needs"], _places(order))
    return Parts(**columns)


def _awaited(tracks: _Tracks, parts: Parts) -> Indices:
    """The part that each row awaits; the last where it awaits none.

    What comes after a collective only for want of its launch need not await it. It does if it has to on other ranks,
    and does not if more of them go on without waiting.
    """
    nothing = len(parts.rank) - 1
    awaits = tracks.parts("awaits", nothing)
    gated = np.flatnonzero(awaits < nothing)
    proven = tracks.column("delay_ns")[gated] < LATENCY_NS
    # Of each part: 0 if no row awaits it, 1 if one does so for all that is known, 2 if one has to.
    how = np.zeros(nothing, np.int8)
    np.maximum.at(how, awaits[gated], 1 + proven.astype(np.int8))
    collectives = int(parts.collective.max()) + 1
    free, held = (np.bincount(parts.collective[:-1][how == it], minlength=collectives) for it in (0, 2))
    of = parts.collective[awaits[gated]]
    awaits[gated[~proven & (free[of] > held[of])]] = nothing
    return awaits


def _since_step(launches: Flags, rank: Indices, step: Indices) -> Indices:
    """How many rows of the same rank and step launch something before each row; rows rank by rank, by time."""
    before: Ints = np.cumsum(launches) - launches
    first = np.flatnonzero((np.diff(rank, prepend=-1) != 0) | (np.diff(step, prepend=-1) != 0))
    return (before - np.repeat(before[first], np.diff(first, append=len(before)))).astype(np.int32)


def _spent(tracks: _Tracks, order: Ints, rows: Rows) -> dict[CpuTime, Spent]:
    """What the host's time goes to, by kind; most rows have no more than one or two."""
    spent = {}
    for kind in CpuTime:
        host_ns = tracks.host_ns(kind)
        host_ns = host_ns[order] if host_ns.any() else host_ns[:0]
        working = np.flatnonzero(host_ns).astype(np.int32)
        holding = np.flatnonzero(rows.blocked_by == kind).astype(np.int32)
        spent[kind] = Spent(working, host_ns[working], holding)
    return spent


def _places(order: Ints) -> Indices:
    """Where each thing is once they have been put in an order."""
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    return place


def _moved(things: Indices, place: Indices) -> Indices:
    """Indices of things (-1 for none) after these have been put in other places."""
    moved: Indices = np.where(things >= 0, place[things], -1) if len(place) else things
    return moved


@dataclass(frozen=True, slots=True, eq=False)
class _Together:
    """Rows that follow no other ones still to be played, and the parts that complete with them; as in `Round`."""

    rows: slice
    launching: Ints
    completed: slice


def _rounds(plan: Sequence[_Together], rows: Rows, parts: Parts) -> Iterator[Round]:
    nothing = len(parts.rank) - 1
    for together in plan:
        now, completed = together.rows, together.completed
        launched = rows.launches[now][together.launching]
        starts = np.flatnonzero(np.diff(parts.collective[completed], prepend=-1))
        yield Round(
            rows=now,
            ranks=_some(rows.rank[now]),
            gated=bool((rows.awaits[now] < nothing).any()),
            queued=bool(((rows.queue_row[now] >= 0) | rows.queue_before[now] | (rows.queue_part[now] < nothing)).any()),
            held=bool((rows.blocked_by[now] >= 0).any()),
            launching=_some(together.launching),
            launched=_some(launched),
            needing=bool((parts.needs[launched] >= 0).any()),
            completed=completed,
            after=_some(parts.after[completed]),
            starts=starts,
            sizes=np.diff(starts, append=completed.stop - completed.start),
        )


def _some(indices: NDArray[np.integer[Any]]) -> Some:
    if not len(indices):
        return slice(0, 0)
    first = int(indices[0])
    until = first + len(indices)
    return slice(first, until) if np.array_equal(indices, np.arange(first, until)) else indices


def _ordered(tracks: _Tracks, parts: Parts, awaits: Indices) -> tuple[Ints, Ints, list[_Together]]:
    """Rows and parts in the order in which they can be played, and what can be played together. Raises StuckError."""
    launches, queue_part = tracks.parts("launches", -1), tracks.parts("queue_part", len(parts.rank) - 1)
    launched = np.zeros(len(parts.rank), np.bool_)
    launched[launches[launches >= 0]] = True
    done = ~launched
    following = np.full(len(parts.rank), -1)
    chained = np.flatnonzero(launched & ~done[parts.after])
    following[parts.after[chained]] = chained
    missing = np.bincount(parts.collective[launched], minlength=int(parts.collective.max()) + 1)
    members = np.flatnonzero(launched)
    members = members[np.argsort(parts.collective[members], kind="stable")]
    at = np.searchsorted(parts.collective[members], np.arange(len(missing) + 1))

    place, last = tracks.first[:-1].copy(), tracks.first[1:]
    queued = np.zeros(len(parts.rank), np.bool_)
    order: list[Ints] = []
    completing: list[NDArray[np.integer[Any]]] = []
    plan: list[_Together] = []
    played = complete = 0
    while (active := np.flatnonzero(place < last)).size:
        row = place[active]
        row = row[done[awaits[row]] & done[queue_part[row]]]
        if not len(row):
            raise StuckError("Collectives wait for each other in a circle.")
        place[tracks.rank[row]] += 1
        launching = np.flatnonzero(launches[row] >= 0)
        new = launches[row][launching]
        queued[new] = True
        now = slice(played, played + len(row))
        played += len(row)
        order.append(row)
        for completed in _completed(new, parts, queued, done, following, missing, members, at):
            plan.append(_Together(now, launching, slice(complete, complete + len(completed))))
            complete += len(completed)
            completing.append(completed)
            now, launching = slice(played, played), launching[:0]
        if now.stop > now.start:
            plan.append(_Together(now, launching, slice(complete, complete)))
    never = np.ones(len(parts.rank), np.bool_)
    for completed in completing:
        never[completed] = False
    return np.concatenate(order or [_NONE]), np.concatenate([*completing, np.flatnonzero(never)]), plan


def _completed(
    new: Indices, parts: Parts, queued: Flags, done: Flags, following: Ints, missing: Ints, members: Ints, at: Ints
) -> Iterator[NDArray[np.integer[Any]]]:
    """Parts, by collective, that complete once the `new` ones are queued; and those that follow on their streams."""
    arriving = new[done[parts.after[new]]]
    while len(arriving):
        np.subtract.at(missing, parts.collective[arriving], 1)
        touched = np.unique(parts.collective[arriving])
        full = touched[missing[touched] == 0]
        completed = np.concatenate([members[at[i] : at[i + 1]] for i in full]) if len(full) else arriving[:0]
        done[completed] = True
        if len(completed):
            yield completed
        after = following[completed]
        after = after[after >= 0]
        arriving = after[queued[after]]
