"""Plays the steps of all ranks again with something taken out, so that what is removed may expose what it hid.

The host runs ahead, launches gate kernels, and streams and collectives order them: each rank's `Track` is played row by
row, and a collective starts when its last rank has arrived. Played with nothing taken out, this gives the recorded
times to the nanosecond.

Which row follows which does not depend on what is taken out. So it is settled once, as rounds of rows and collectives
that can be played together over all ranks, and a job of 4,096 ranks takes as many numpy calls as one of four. Times are
ns on the common clock. R = ranks, S = steps of the job; rows and parts are those of all ranks, joined; a part is one
rank's share of a collective.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.model import Held, RankDigest
from tb_ddp_doctor.digest.track import BEFORE, LONG_AGO
from tb_ddp_doctor.job.clock import ClockFit
from tb_ddp_doctor.job.collectives import Matched
from tb_ddp_doctor.trace.model import Indices, Ints

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
#: So many ranks tell what is usual.
_ASKED = 64
#: The steps are played at most so often in search of the lead that hosts begin and end with; leads that move by less
#: than this share of a step are steady; one that drifts is taken to be so many passes further.
_MOST_PASSES = 6
_STEADY = 0.002
_LEAP = 4


@dataclass(frozen=True, slots=True, eq=False)
class Removed:
    """What a fix takes out of the steps."""

    #: Share of the host's time that goes, 0 to 1, by what it was spent on; shape (R, S).
    host: Mapping[Held, Floats] = field(default_factory=dict)
    #: What the device need no longer do, shape (R, S), ns; and the same of what it does beyond the usual rank, which
    #: goes from where it does more between the same collectives.
    device_ns: Ints | None = None
    beyond_ns: Ints | None = None
    #: Exposed transfer that goes, shape (R, S), ns.
    transfer_ns: Ints | None = None
    #: Whether nobody waits any more for ranks that have no trace.
    absent: bool = False

    def __or__(self, other: Removed) -> Removed:
        """Both: what two fixes take from the same host time is taken once."""
        host = dict(self.host)
        for kind, share in other.host.items():
            host[kind] = np.maximum(host[kind], share) if kind in host else share
        return Removed(
            host,
            _sum(self.device_ns, other.device_ns),
            _sum(self.beyond_ns, other.beyond_ns),
            _sum(self.transfer_ns, other.transfer_ns),
            self.absent or other.absent,
        )

    @property
    def is_nothing(self) -> bool:
        """Whether all stays as it is."""
        amounts = [*self.host.values(), self.device_ns, self.beyond_ns, self.transfer_ns]
        return not self.absent and not any(amount is not None and amount.any() for amount in amounts)


def _sum(one: Ints | None, other: Ints | None) -> Ints | None:
    if one is None or other is None:
        return one if other is None else other
    total: Ints = one + other
    return total


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """The rows of all tracks, round by round; the columns of `Track` with indices into all rows and parts."""

    rank: Ints
    #: Index of the step in the rank's digest, and in the job; -1 if the job leaves it out.
    own_step: Ints
    step: Ints
    #: The host's time in the row but for what holds it at the end.
    work_ns: Ints
    hold: Ints
    hold_ns: Ints
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
    #: Index of a part; the last, which was over long ago, where the row awaits none.
    awaits: Ints
    delay_ns: Ints
    launches: Ints
    #: How many collectives the rank has launched in the step before.
    between: Ints


@dataclass(frozen=True, slots=True, eq=False)
class _Spent:
    """The host's time that goes to one kind of thing."""

    #: Rows, and how much of each row's `work_ns` it is.
    working: Ints
    work_ns: Ints
    #: Rows that it holds at their end.
    holding: Ints


@dataclass(frozen=True, slots=True, eq=False)
class _Parts:
    """The parts of all ranks, and one more that was over long ago."""

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
    after: Ints
    needs_device: Flags
    ready_ns: Ints


@dataclass(frozen=True, slots=True, eq=False)
class _Left:
    """What is left of rows and parts without what a fix removes; columns of `_Rows` and `_Parts`."""

    work_ns: Ints
    held_ns: Ints
    device_ns: Ints
    lead_ns: Ints
    queue_tail_ns: Ints
    queue_ns: Ints
    transfer_ns: Ints


@dataclass(frozen=True, slots=True, eq=False)
class _Round:
    """What can be played together: rows, one per rank at most; then parts of collectives that complete."""

    rows: slice
    #: Which of the rows launch a part, and the part.
    launching: Ints
    launched: Ints
    #: By collective; where each collective's begin, and how many it has.
    completed: Ints
    starts: Ints
    sizes: Ints


@dataclass(frozen=True, slots=True, eq=False)
class _Cells:
    """To which rank and step of the job things belong, as one index; each rank has one more cell, for the steps that
    the job leaves out. They are taken to be like its other steps.
    """

    cell: Ints
    shape: tuple[int, int]

    @classmethod
    def of(cls, rank: Ints, step: Ints, shape: tuple[int, int]) -> _Cells:
        ranks, steps = shape
        return cls(rank * (steps + 1) + np.where(step >= 0, step, steps), (ranks, steps))

    def sum(self, values: Ints, things: Ints | None = None) -> Ints:
        """Of one value of each thing, or of some things, shape (R, S)."""
        total: Ints = self._total(values, things).astype(np.int64)
        return total

    def of_each(self, share: Floats, things: Ints | None = None) -> Floats:
        """The share, shape (R, S), of the cell of each thing, or of some things."""
        padded = np.concatenate((share, share.mean(axis=1, keepdims=True)), axis=1)
        shares: Floats = padded.ravel()[self.cell if things is None else self.cell[things]]
        return shares

    def spread(self, weights: Ints, amount: Ints) -> Ints:
        """Amounts of shape (R, S) over what each cell consists of, by weight; never more than the weight."""
        share = np.minimum(amount / np.maximum(self._total(weights), 1), 1)
        spread: Ints = np.rint(weights * self.of_each(share)).astype(np.int64)
        return spread

    def _total(self, values: Ints, things: Ints | None = None) -> Floats:
        ranks, steps = self.shape
        cell = self.cell if things is None else self.cell[things]
        total = np.bincount(cell, weights=values, minlength=ranks * (steps + 1)).astype(np.float64, copy=False)
        return total.reshape(ranks, steps + 1)[:, :steps]


@dataclass(frozen=True, slots=True, eq=False)
class _Groups:
    """Things by their place in a table, for the largest value of each."""

    #: Things, those of one place together; where each place's begin; the places.
    things: Ints
    starts: Ints
    places: tuple[Ints, Ints]

    @classmethod
    def of(cls, row: Ints, column: Ints, shape: tuple[int, int], things: Ints | None = None) -> _Groups:
        place = row * shape[1] + column
        order = np.argsort(place, kind="stable")
        starts = np.flatnonzero(np.diff(place[order], prepend=-1))
        distinct = place[order][starts]
        return cls(order if things is None else things[order], starts, (distinct // shape[1], distinct % shape[1]))

    def raise_to(self, table: Ints, values: Ints) -> None:
        """Raise the table to the largest value of each place."""
        if len(self.starts):
            largest = np.maximum.reduceat(values[self.things], self.starts)
            table[self.places] = np.maximum(table[self.places], largest)


class StuckError(Exception):
    """Rows wait for each other in a circle: some match of collectives is wrong."""


class Replay:
    """The steps of R ranks, ready to be played."""

    def __init__(
        self,
        digests: Sequence[RankDigest],
        step_index: Ints,
        matched: Matched,
        clock: ClockFit,
        seen_ns: Sequence[Ints],
        complete_ns: Sequence[Ints],
        exposed_ns: Sequence[Ints],
    ) -> None:
        """Settle what follows what.

        `complete_ns` says for each collective of each rank when it has all its ranks, on the rank's own clock,
        `seen_ns` when it has those with a trace, and `exposed_ns` how much of its transfer is exposed. Raises
        StuckError.
        """
        self._index = step_index
        self._most_steps = max(len(digest.steps) for digest in digests)
        self._host_ns, self._device_ns = _starts(digests, clock)
        parts = _parts(digests, step_index, matched, clock, seen_ns, complete_ns, exposed_ns)
        rows, first = _rows(digests, step_index)
        order, self._rounds = _settle(rows, parts, first)
        self._rows, self._parts = _in_order(rows, order), parts
        self._spent = _spent(digests, order, self._rows)
        self._cells = _Cells.of(self._rows.rank, self._rows.step, step_index.shape)
        self._part_cells = _Cells.of(parts.rank, parts.step, step_index.shape)
        shape = (len(digests), self._most_steps + 2)
        self._last_row = _Groups.of(self._rows.rank, self._rows.own_step + 1, shape)
        known = np.flatnonzero(parts.own_step >= 0)
        self._last_part = _Groups.of(parts.rank[known], parts.own_step[known] + 1, shape, known)
        self._recorded = self._play(self._without(Removed()))

    def step_ns(self, removed: Removed) -> Ints:
        """Windows of the job's steps without what is removed, shape (R, S), ns.

        Earlier steps were like these: each host begins with the lead that it has gained or lost at the end, and the
        steps are played again until that is so.
        """
        left = self._without(removed)
        lead, moved = np.zeros(len(self._index), np.int64), np.zeros(len(self._index), np.int64)
        ends = self._play(left)
        for _ in range(_MOST_PASSES):
            move = self._lead_after(ends) - lead
            if np.abs(move).max() <= _STEADY * self._recorded_step_ns:
                break
            # A lead that shrinks or grows as before does so for many steps more.
            drifts = (np.sign(move) == np.sign(moved)) & (2 * np.abs(move) > np.abs(moved))
            lead = lead + np.where(drifts, _LEAP * move, move)
            moved = move
            ends = self._play(left, lead)
        return self._windows(ends)

    def _lead_after(self, ends: Ints) -> Ints:
        """By how much more than recorded each host would begin ahead, given how far it is ahead at the end, shape (R,).

        Never ahead by more, nor less, than the record begins with and the steps end with.
        """
        begins, at_end = self._device_ns - self._host_ns, ends[:, -1]
        lead = begins + at_end - self._recorded[:, -1]
        steady: Ints = np.clip(lead, np.minimum(begins, at_end), np.maximum(begins, at_end)) - begins
        return steady

    @property
    def _recorded_step_ns(self) -> float:
        return float(self.recorded_ns.mean())

    @property
    def recorded_ns(self) -> Ints:
        """Windows of the job's steps with nothing removed, shape (R, S), ns."""
        return self._windows(self._recorded)

    def host_ns(self, kind: Held) -> Ints:
        """The host's time that goes to something, shape (R, S), ns."""
        spent = self._spent[kind]
        return self._cells.sum(spent.work_ns, spent.working) + self._cells.sum(
            self._rows.hold_ns[spent.holding], spent.holding
        )

    @property
    def device_ns(self) -> Ints:
        """What the device needs, shape (R, S), ns."""
        return self._cells.sum(self._rows.device_ns)

    def _windows(self, ends: Ints) -> Ints:
        """From ends of all steps, shape (R, steps + 2), the first one where the first step starts."""
        each = np.arange(len(ends))[:, None]
        windows: Ints = ends[each, self._index + 1] - ends[each, self._index]
        return windows

    def _without(self, removed: Removed) -> _Left:
        rows = self._rows
        work, held, queue = self._host(removed)
        need = self._device(removed)
        if need is rows.device_ns:
            return _Left(work, held, need, rows.lead_ns, rows.queue_tail_ns, queue, self._transfer(removed))
        lead = rows.lead_ns - (rows.device_ns - need)
        share = (need / np.maximum(rows.device_ns, 1))[rows.queue_row]
        tail = np.rint(rows.queue_tail_ns * share).astype(np.int64)
        return _Left(work, held, need, lead, tail, queue, self._transfer(removed))

    def _play(self, left: _Left, lead_ns: Ints | int = 0) -> Ints:
        """Ends of all steps of each rank, after the start of the first; last, the host's lead at the end.

        `lead_ns` is by how much more than recorded each host begins ahead of its device.
        """
        rows, parts = self._rows, self._parts
        work, held, need, lead, transfer = left.work_ns, left.held_ns, left.device_ns, left.lead_ns, left.transfer_ns
        tail, queue = left.queue_tail_ns, left.queue_ns
        host_at, device_at = self._host_ns - lead_ns, self._device_ns.copy()
        done = np.empty(len(work), np.int64)
        ready = np.full(len(parts.rank), LONG_AGO)
        end = parts.end_ns.copy()
        for step in self._rounds:
            now = step.rows
            rank = rows.rank[now]
            gate, free = end[rows.awaits[now]], device_at[rank]
            behind = rows.queue_row[now]
            taken = np.where(behind >= 0, done[behind] - tail[now], end[rows.queue_part[now]])
            taken = np.where(rows.queue_before[now], self._device_ns[rank], taken)
            issued, taken = host_at[rank] + work[now], taken + queue[now]
            synced = rows.synced[now]
            issued = np.maximum(issued, np.where(synced, LONG_AGO, taken))
            finished = np.maximum(np.maximum(gate + rows.delay_ns[now], free) + need[now], issued + lead[now])
            done[now] = finished
            ended = np.maximum(issued, np.where(rows.waits[now], finished, issued) + held[now])
            ended = np.where(synced, np.maximum(ended, taken), ended)
            host_at[rank], device_at[rank] = ended, finished
            launched = step.launched
            ready[launched] = (
                np.maximum(
                    ended[step.launching], np.where(parts.needs_device[launched], finished[step.launching], LONG_AGO)
                )
                + parts.ready_ns[launched]
            )
            if len(step.starts):
                mine = step.completed
                arrival = np.maximum(ready[mine], end[parts.after[mine]] + parts.ready_ns[mine])
                last = np.maximum.reduceat(arrival, step.starts)
                end[mine] = np.repeat(last, step.sizes) + transfer[mine]
        ends = np.full((len(self._index), self._most_steps + 2), LONG_AGO)
        self._last_row.raise_to(ends, done)
        self._last_part.raise_to(ends, end)
        ends[:, 0] = self._device_ns
        ends[:, :-1] = np.maximum.accumulate(ends[:, :-1], axis=1)
        ends[:, -1] = ends[:, -2] - host_at
        return ends

    def _host(self, removed: Removed) -> tuple[Ints, Ints, Ints]:
        """The host's time in each row, how long it is held at the end, and how long after what left the queue."""
        rows = self._rows
        work, held, queue = rows.work_ns.copy(), rows.hold_ns.copy(), rows.queue_ns.copy()
        for kind, share in removed.host.items():
            spent = self._spent[kind]
            gone = self._cells.of_each(share, spent.working)
            work[spent.working] -= np.rint(spent.work_ns * gone).astype(np.int64)
            mine = spent.holding
            gone = self._cells.of_each(share, mine)
            # A call that is gone waits for nothing: far earlier than the device.
            held[mine] = np.where(gone >= 1, np.where(rows.waits[mine], LONG_AGO // 4, 0), held[mine] * (1 - gone))
            queue[mine] = np.where((gone >= 1) & rows.synced[mine], LONG_AGO // 4, queue[mine])
        return work, held, queue

    def _device(self, removed: Removed) -> Ints:
        """What the device needs for each row."""
        need = self._rows.device_ns
        if removed.beyond_ns is not None:
            gone = self._cells.spread(self._beyond_ns(removed.beyond_ns), removed.beyond_ns)
            # Work that the usual rank does elsewhere in the step is beyond it nowhere.
            left = removed.beyond_ns - self._cells.sum(gone)
            need = need - gone - self._cells.spread(need - gone, np.maximum(left, 0))
        if removed.device_ns is not None:
            need = need - self._cells.spread(need, removed.device_ns)
        return need

    def _beyond_ns(self, amount: Ints) -> Ints:
        """Of each row, what its device does beyond the usual rank's between the same collectives of the step.

        Only rows of ranks with some amount, shape (R, S), count.
        """
        rows = self._rows
        asked = np.unique(np.linspace(0, len(amount) - 1, min(len(amount), _ASKED)).astype(np.int64))
        usual = np.sort(self._needs(asked)[0], axis=0)[(len(asked) - 1) // 2]
        needs, mine, rank, place = self._needs(np.flatnonzero(amount.any(axis=1)))
        share = np.maximum(1 - usual / np.maximum(needs, 1), 0)
        beyond = np.zeros_like(rows.device_ns)
        beyond[mine] = np.rint(rows.device_ns[mine] * share[rank, place])
        return beyond

    def _needs(self, ranks: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """What the devices of some ranks need between collectives, shape (ranks, places), where a place is a step and
        the number of collectives before; these ranks' rows, and the rank (as an index) and the place of each row.
        """
        rows, steps = self._rows, self._index.shape[1]
        index = np.full(len(self._index), -1)
        index[ranks] = np.arange(len(ranks))
        mine = np.flatnonzero(index[rows.rank] >= 0)
        most = int(rows.between.max(initial=0)) + 1
        # Steps that the job leaves out are places of their own.
        place = np.where(rows.step[mine] >= 0, rows.step[mine], steps) * most + rows.between[mine]
        rank, size = index[rows.rank[mine]], (steps + 1) * most
        total = np.bincount(rank * size + place, weights=rows.device_ns[mine], minlength=len(ranks) * size)
        return total.astype(np.int64).reshape(len(ranks), size), mine, rank, place

    def _transfer(self, removed: Removed) -> Ints:
        """How long each part takes from the arrival of the last rank that has a trace."""
        parts = self._parts
        takes = parts.transfer_ns if removed.absent else parts.absent_ns + parts.transfer_ns
        if removed.transfer_ns is None:
            return takes
        return takes - self._part_cells.spread(parts.exposed_ns, removed.transfer_ns)


def _starts(digests: Sequence[RankDigest], clock: ClockFit) -> tuple[Ints, Ints]:
    """When each rank's host and device begin the first step, shape (R,)."""
    begin = np.array([(digest.steps.host_start_ns[0], digest.steps.start_ns[0]) for digest in digests], np.int64)
    common = np.stack([times - clock.correction(rank, times) for rank, times in enumerate(begin)])
    return common[:, 0], common[:, 1]


def _of_job(digest: RankDigest, index: Ints, own_step: Indices) -> Ints:
    """The job's step of each of a rank's own steps, -1 for none."""
    of_job = np.full(len(digest.steps) + 1, -1)
    of_job[index] = np.arange(len(index))
    steps: Ints = of_job[own_step]
    return steps


def _parts(
    digests: Sequence[RankDigest],
    step_index: Ints,
    matched: Matched,
    clock: ClockFit,
    seen_ns: Sequence[Ints],
    complete_ns: Sequence[Ints],
    exposed_ns: Sequence[Ints],
) -> _Parts:
    counts = [len(digest.collectives) for digest in digests]
    base = np.concatenate(([0], np.cumsum(counts)))
    size = int(base[-1]) + 1
    collective = np.full(size, -1)
    after, needs, ready = np.full(size, size - 1), np.zeros(size, np.bool_), np.zeros(size, np.int64)
    own_step, step = np.full((2, size), -1)
    absent, transfer, exposed = np.zeros((3, size), np.int64)
    end = np.full(size, LONG_AGO)
    for rank, (digest, index) in enumerate(zip(digests, step_index, strict=True)):
        table, track, here = digest.collectives, digest.track, slice(base[rank], base[rank + 1])
        own_step[here] = table.step
        step[here] = _of_job(digest, index, table.step)
        absent[here] = complete_ns[rank] - seen_ns[rank]
        transfer[here] = table.end_ns - complete_ns[rank]
        exposed[here] = exposed_ns[rank]
        end[here] = table.end_ns - clock.correction(rank, table.end_ns)
        together = matched.of_rank(rank)
        collective[base[rank] + matched.row[together, rank]] = together
        launching = np.flatnonzero(track.launches >= 0)
        launched = base[rank] + track.launches[launching]
        before = track.after[launching]
        after[launched] = np.where(before >= 0, base[rank] + before, size - 1)
        needs[launched], ready[launched] = track.needs_device[launching], track.ready_ns[launching]
    alone = collective < 0
    collective[alone] = len(matched) + np.arange(int(alone.sum()))
    ranks = np.append(np.repeat(np.arange(len(digests)), counts), 0)
    return _Parts(ranks, own_step, step, collective, absent, transfer, exposed, end, after, needs, ready)


def _rows(digests: Sequence[RankDigest], step_index: Ints) -> tuple[_Rows, Ints]:
    """The rows of all ranks, rank by rank, and where each rank's begin, shape (R + 1,)."""
    tracks = [digest.track for digest in digests]
    lengths = np.array([len(track) for track in tracks])
    base = np.concatenate(([0], np.cumsum(lengths)))
    base_part = np.concatenate(([0], np.cumsum([len(digest.collectives) for digest in digests])))
    nothing = base_part[-1]

    def joined(column: str) -> Ints:
        values: Ints = np.concatenate([getattr(track, column) for track in tracks])
        return values

    def parts(column: str, missing: int) -> Ints:
        values = joined(column).astype(np.int64)
        return np.where(values >= 0, values + np.repeat(base_part[:-1], lengths), missing)

    queue_row = joined("queue_row").astype(np.int64)
    rows = _Rows(
        rank=np.repeat(np.arange(len(tracks)), lengths),
        own_step=joined("step").astype(np.int64),
        step=np.concatenate(
            [_of_job(digest, index, digest.track.step) for digest, index in zip(digests, step_index, strict=True)]
        ),
        work_ns=np.concatenate([track.host_ns.sum(axis=1) for track in tracks]),
        hold=joined("hold").astype(np.int64),
        hold_ns=joined("hold_ns"),
        waits=joined("waits"),
        queue_row=np.where(queue_row >= 0, queue_row + np.repeat(base[:-1], lengths), -1),
        queue_before=queue_row == BEFORE,
        queue_tail_ns=joined("queue_tail_ns"),
        queue_part=parts("queue_part", int(nothing)),
        queue_ns=joined("queue_ns"),
        synced=(joined("hold") == Held.SYNC) & ~joined("waits") & ((queue_row != -1) | (joined("queue_part") >= 0)),
        device_ns=joined("device_ns"),
        lead_ns=joined("lead_ns"),
        awaits=parts("awaits", int(nothing)),
        delay_ns=joined("delay_ns"),
        launches=parts("launches", -1),
        between=_since_step(joined("launches") >= 0, np.repeat(np.arange(len(tracks)), lengths), joined("step")),
    )
    return rows, base


def _since_step(launches: Flags, rank: Ints, step: Ints) -> Ints:
    """How many rows of the same rank and step launch something before each row; rows rank by rank, by time."""
    before: Ints = np.cumsum(launches) - launches
    first = np.flatnonzero((np.diff(rank, prepend=-1) != 0) | (np.diff(step, prepend=-1) != 0))
    return before - np.repeat(before[first], np.diff(first, append=len(before)))


def _spent(digests: Sequence[RankDigest], order: Ints, rows: _Rows) -> dict[Held, _Spent]:
    """What the host's time goes to, by kind; most rows have no more than one or two."""
    host_ns = np.concatenate([digest.track.host_ns for digest in digests])
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    spent = {}
    for kind in Held:
        working = np.flatnonzero(host_ns[:, kind])
        spent[kind] = _Spent(place[working], host_ns[working, kind], np.flatnonzero(rows.hold == kind))
    return spent


def _in_order(rows: _Rows, order: Ints) -> _Rows:
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    columns = {name: getattr(rows, name)[order] for name in _Rows.__slots__}
    behind = columns["queue_row"]
    columns["queue_row"] = np.where(behind >= 0, place[behind], -1)
    return _Rows(**columns)


def _settle(rows: _Rows, parts: _Parts, first: Ints) -> tuple[Ints, list[_Round]]:
    """The rows in the order of rounds, and the rounds. Raises StuckError."""
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
    rounds: list[_Round] = []
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
            starts = np.flatnonzero(np.diff(parts.collective[completed], prepend=-1))
            sizes = np.diff(starts, append=len(completed))
            rounds.append(_Round(now, launching, new, completed, starts, sizes))
            now, launching, new = slice(played, played), launching[:0], new[:0]
        if now.stop > now.start:
            nobody = launching[:0]
            rounds.append(_Round(now, launching, new, nobody, nobody, nobody))
    return np.concatenate(order) if order else np.empty(0, np.int64), rounds


def _completed(
    new: Ints, parts: _Parts, queued: Flags, done: Flags, following: Ints, missing: Ints, members: Ints, at: Ints
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
