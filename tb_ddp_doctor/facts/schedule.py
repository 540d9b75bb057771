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
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.model import CpuTime, RankDigest
from tb_ddp_doctor.digest.track import BEFORE, LONG_AGO
from tb_ddp_doctor.facts.cells import numbered
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.trace.model import Ints

Flags = NDArray[np.bool_]


class StuckError(Exception):
    """Rows wait for each other in a circle: some match of collectives is wrong."""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The rows of all tracks, round by round; the columns of `Track` with indices into all rows and parts."""

    rank: Ints
    #: Index of the step in the rank's digest, and in the job; -1 if the job leaves it out.
    own_step: Ints
    step: Ints
    #: The host's time in the row but for what holds it at the end.
    work_ns: Ints
    blocked_by: Ints
    blocked_ns: Ints
    #: Whether what holds it waits for its device work.
    waits: Flags
    #: What leaves the launch queue first: an earlier row, or -1; whether what was launched before the record; a part,
    #: the last where it is none.
    queue_row: Ints
    queue_before: Flags
    queue_tail_ns: Ints
    queue_part: Ints
    queue_ns: Ints
    #: Whether that holds the row's end.
    synced: Flags
    device_ns: Ints
    lead_ns: Ints
    fed_ns: Ints
    #: Index of a part; the last, which was over long ago, where the row awaits none.
    awaits: Ints
    delay_ns: Ints
    launches: Ints
    #: How many collectives the rank has launched in the step before.
    between: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Spent:
    """The host's time that goes to one kind of thing."""

    #: Rows, and how much of each row's `work_ns` it is.
    working: Ints
    work_ns: Ints
    #: Rows that it holds at their end.
    holding: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """The parts of all ranks, rank by rank, and one more that was over long ago."""

    rank: Ints
    own_step: Ints
    step: Ints
    #: The collective that it is a part of.
    collective: Ints
    #: For how long it waits for ranks that have no trace, after those that have one; and then transfers.
    absent_ns: Ints
    transfer_ns: Ints
    #: The part of `transfer_ns` with nothing beside it.
    exposed_ns: Ints
    #: As recorded: what no row launches ends so.
    end_ns: Ints
    #: The part before it on its stream; the last of all where there is none.
    after: Ints
    #: Index of the row whose device work it awaits, -1 for none.
    needs: Ints
    ready_ns: Ints
    #: Which kind and size it is of, and how many of these the rank has launched in the step before.
    like: Ints
    ordinal: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """What can be played together: rows, one per rank at most; then parts of collectives that complete."""

    rows: slice
    #: Whether each rank has a row here; and whether some row awaits a collective, leaves the launch queue only after
    #: something else, or is held at its end.
    of_all: bool
    gated: bool
    queued: bool
    held: bool
    #: Which of the rows launch a part, and the part; whether some of these need device work.
    launching: Ints
    launched: Ints
    needing: bool
    #: By collective; where each collective's begin, and how many it has.
    completed: Ints
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
    #: Of the rank that recorded most.
    most_steps: int
    #: Index of each of the job's steps in the rank's digest, shape (R, S).
    step_index: Ints
    #: Which ranks and steps have the same collectives, and as many messages; indices of shape (R, S).
    sequence: Ints


def schedule(job: Job) -> Schedule:
    """Compute what follows what in a job. Raises StuckError."""
    digests = job.digests
    parts = _parts(job)
    rows, first = _rows(digests, job.step_index)
    order, plan = _ordered(rows, parts, first)
    ordered, parts = _in_order(rows, order), replace(parts, needs=_moved(parts.needs, order))
    host_start_ns, device_start_ns = _starts(job)
    return Schedule(
        rows=ordered,
        parts=parts,
        rounds=tuple(_rounds(plan, ordered, parts, len(digests))),
        spent=_spent(digests, order, ordered),
        host_start_ns=host_start_ns,
        device_start_ns=device_start_ns,
        most_steps=max(len(digest.steps) for digest in digests),
        step_index=job.step_index,
        sequence=_sequences(parts, digests, job.step_index),
    )


def _starts(job: Job) -> tuple[Ints, Ints]:
    begin = np.array([(digest.steps.host_start_ns[0], digest.steps.start_ns[0]) for digest in job.digests], np.int64)
    common = begin - job.clock.correction(np.arange(len(begin))[:, None], begin)
    return common[:, 0], common[:, 1]


def _of_job(step_index: Ints, rank: Ints, own_step: Ints, sizes: Ints) -> Ints:
    """The job's step of the steps of ranks that have so many, -1 for none."""
    base = np.cumsum(sizes + 1) - (sizes + 1)
    of_job = np.full(int((sizes + 1).sum()), -1)
    of_job[base[:, None] + step_index] = np.arange(step_index.shape[1])
    # What belongs to no step has the one after the last.
    steps: Ints = of_job[base[rank] + np.where(own_step >= 0, own_step, sizes[rank])]
    return steps


def _base(counts: Sequence[int]) -> Ints:
    """Where each one's things begin, and where the last one's end, once all are joined."""
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int64)


def _parts(job: Job) -> Parts:
    digests, matched = job.digests, job.matched
    tables = [digest.collectives for digest in digests]
    tracks = [digest.track for digest in digests]
    base, first_row = _base([len(table) for table in tables]), _base([len(track) for track in tracks])
    nothing = int(base[-1])
    rank = np.repeat(np.arange(len(tables)), np.diff(base))
    own_step = np.concatenate([table.step for table in tables]).astype(np.int64)
    end = np.concatenate([table.end_ns for table in tables])
    arrived, traced = (np.concatenate(of) for of in (job.waiting.all_arrived_ns, job.waiting.all_traced_arrived_ns))

    collective = np.full(nothing + 1, -1)
    of_match, of_rank = np.nonzero(matched.present)
    collective[base[of_rank] + matched.row[of_match, of_rank]] = of_match
    alone = collective < 0
    collective[alone] = len(matched) + np.arange(int(alone.sum()))

    on = np.repeat(np.arange(len(tracks)), np.diff(first_row))
    launches = np.concatenate([track.launches for track in tracks])
    launching = np.flatnonzero(launches >= 0)
    on, launched = on[launching], base[on[launching]] + launches[launching]

    def of_launch(column: str, first: Ints, missing: int) -> Ints:
        """An index by rank that a launching row has, as one into the joined things."""
        own = np.concatenate([getattr(track, column) for track in tracks])[launching].astype(np.int64)
        joined = np.full(nothing + 1, missing)
        joined[launched] = np.where(own >= 0, first[on] + own, missing)
        return joined

    ready = np.zeros(nothing + 1, np.int64)
    ready[launched] = np.concatenate([track.ready_ns for track in tracks])[launching]
    kind = (_names(digests), *(np.concatenate([getattr(t, of) for t in tables]) for of in ("elements", "group_size")))
    like = numbered(kind) if nothing else np.empty(0, np.int64)
    sizes = np.array([len(digest.steps) for digest in digests])
    exposed = [
        exposed.measure(start, table.end_ns)
        for exposed, start, table in zip(job.waiting.exposed, job.waiting.all_arrived_ns, tables, strict=True)
    ]
    return Parts(
        rank=np.append(rank, 0),
        own_step=np.append(own_step, -1),
        step=np.append(_of_job(job.step_index, rank, own_step, sizes), -1),
        collective=collective,
        absent_ns=np.append(arrived - traced, 0),
        transfer_ns=np.append(end - arrived, 0),
        exposed_ns=np.append(np.concatenate(exposed), 0),
        end_ns=np.append(end - job.clock.correction(rank, end), LONG_AGO),
        after=of_launch("after", base, nothing),
        needs=of_launch("needs", first_row, -1),
        ready_ns=ready,
        like=np.append(like, 0),
        ordinal=np.append(_ordinals(numbered((rank, own_step, like))) if nothing else like, 0),
    )


def _names(digests: Sequence[RankDigest]) -> Ints:
    """The kind of each collective of all ranks, as an index that ranks share."""
    index: dict[str, int] = {}
    joined = []
    for digest in digests:
        shared = np.zeros(max(len(digest.strings), 1), np.int64)
        for kind in np.unique(digest.collectives.kind).tolist():
            shared[kind] = index.setdefault(digest.strings[kind], len(index))
        joined.append(shared[digest.collectives.kind])
    return np.concatenate(joined)


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
    return numbered((total.view(np.int64), np.repeat(messages, steps))).reshape(ranks, steps)


def _rows(digests: Sequence[RankDigest], step_index: Ints) -> tuple[Rows, Ints]:
    """The rows of all ranks, rank by rank, and where each rank's begin, shape (R + 1,)."""
    tracks = [digest.track for digest in digests]
    base, base_part = _base([len(track) for track in tracks]), _base([len(digest.collectives) for digest in digests])
    rank, nothing = np.repeat(np.arange(len(tracks)), np.diff(base)), int(base_part[-1])

    def joined(column: str) -> Ints:
        values: Ints = np.concatenate([getattr(track, column) for track in tracks]).astype(np.int64, copy=False)
        return values

    def parts(column: str, missing: int) -> Ints:
        values = joined(column)
        return np.where(values >= 0, values + base_part[rank], missing)

    queue_row, queue_part, blocked_by = joined("queue_row"), parts("queue_part", nothing), joined("blocked_by")
    own_step, launches, waits = joined("step"), parts("launches", -1), joined("waits").astype(np.bool_)
    rows = Rows(
        rank=rank,
        own_step=own_step,
        step=_of_job(step_index, rank, own_step, np.array([len(digest.steps) for digest in digests])),
        work_ns=np.concatenate([track.host_ns.sum(axis=1) for track in tracks]),
        blocked_by=blocked_by,
        blocked_ns=joined("blocked_ns"),
        waits=waits,
        queue_row=np.where(queue_row >= 0, queue_row + base[rank], -1),
        queue_before=queue_row == BEFORE,
        queue_tail_ns=joined("queue_tail_ns"),
        queue_part=queue_part,
        queue_ns=joined("queue_ns"),
        synced=joined("synced").astype(np.bool_),
        device_ns=joined("device_ns"),
        lead_ns=joined("lead_ns"),
        fed_ns=joined("fed_ns"),
        awaits=parts("awaits", nothing),
        delay_ns=joined("delay_ns"),
        launches=launches,
        between=_since_step(launches >= 0, rank, own_step),
    )
    return rows, base


def _since_step(launches: Flags, rank: Ints, step: Ints) -> Ints:
    """How many rows of the same rank and step launch something before each row; rows rank by rank, by time."""
    before: Ints = np.cumsum(launches) - launches
    first = np.flatnonzero((np.diff(rank, prepend=-1) != 0) | (np.diff(step, prepend=-1) != 0))
    return before - np.repeat(before[first], np.diff(first, append=len(before)))


def _spent(digests: Sequence[RankDigest], order: Ints, rows: Rows) -> dict[CpuTime, Spent]:
    """What the host's time goes to, by kind; most rows have no more than one or two."""
    host_ns = np.concatenate([digest.track.host_ns for digest in digests])
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    spent = {}
    for kind in CpuTime:
        working = np.flatnonzero(host_ns[:, kind])
        spent[kind] = Spent(place[working], host_ns[working, kind], np.flatnonzero(rows.blocked_by == kind))
    return spent


def _moved(rows: Ints, order: Ints) -> Ints:
    """Indices of rows (-1 for none) after the rows have been put in an order."""
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    moved: Ints = np.where(rows >= 0, place[rows], -1) if len(order) else rows
    return moved


def _in_order(rows: Rows, order: Ints) -> Rows:
    columns = {name: getattr(rows, name)[order] for name in Rows.__slots__}
    columns["queue_row"] = _moved(columns["queue_row"], order)
    return Rows(**columns)


@dataclass(frozen=True, slots=True, eq=False)
class _Together:
    """Rows that follow no other ones still to be played, and the parts that complete with them; as in `Round`."""

    rows: slice
    launching: Ints
    launched: Ints
    completed: Ints


def _rounds(plan: Sequence[_Together], rows: Rows, parts: Parts, ranks: int) -> Iterator[Round]:
    nothing = len(parts.rank) - 1
    for together in plan:
        now = together.rows
        starts = np.flatnonzero(np.diff(parts.collective[together.completed], prepend=-1))
        yield Round(
            rows=now,
            of_all=now.stop - now.start == ranks,
            gated=bool((rows.awaits[now] < nothing).any()),
            queued=bool(((rows.queue_row[now] >= 0) | rows.queue_before[now] | (rows.queue_part[now] < nothing)).any()),
            held=bool((rows.blocked_by[now] >= 0).any()),
            launching=together.launching,
            launched=together.launched,
            needing=bool((parts.needs[together.launched] >= 0).any()),
            completed=together.completed,
            starts=starts,
            sizes=np.diff(starts, append=len(together.completed)),
        )


def _ordered(rows: Rows, parts: Parts, first: Ints) -> tuple[Ints, list[_Together]]:
    """The rows in the order in which they can be played, and what can be played together. Raises StuckError."""
    launches = np.flatnonzero(rows.launches >= 0)
    launched = np.zeros(len(parts.rank), np.bool_)
    launched[rows.launches[launches]] = True
    done = ~launched
    following = np.full(len(parts.rank), -1)
    chained = np.flatnonzero(launched & ~done[parts.after])
    following[parts.after[chained]] = chained
    missing = np.bincount(parts.collective[launched], minlength=int(parts.collective.max()) + 1)
    members = np.flatnonzero(launched)
    members = members[np.argsort(parts.collective[members], kind="stable")]
    at = np.searchsorted(parts.collective[members], np.arange(len(missing) + 1))

    place, last = first[:-1].copy(), first[1:]
    queued = np.zeros(len(parts.rank), np.bool_)
    order: list[Ints] = []
    plan: list[_Together] = []
    played = 0
    while (active := np.flatnonzero(place < last)).size:
        row = place[active]
        row = row[done[rows.awaits[row]] & done[rows.queue_part[row]]]
        if not len(row):
            raise StuckError("Collectives wait for each other in a circle.")
        place[rows.rank[row]] += 1
        launching = np.flatnonzero(rows.launches[row] >= 0)
        new = rows.launches[row][launching]
        queued[new] = True
        now = slice(played, played + len(row))
        played += len(row)
        order.append(row)
        for completed in _completed(new, parts, queued, done, following, missing, members, at):
            plan.append(_Together(now, launching, new, completed))
            now, launching, new = slice(played, played), launching[:0], new[:0]
        if now.stop > now.start:
            plan.append(_Together(now, launching, new, launching[:0]))
    return np.concatenate(order) if order else np.empty(0, np.int64), plan


def _completed(
    new: Ints, parts: Parts, queued: Flags, done: Flags, following: Ints, missing: Ints, members: Ints, at: Ints
) -> Iterator[Ints]:
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
