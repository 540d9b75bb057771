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

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.model import Held, RankDigest
from tb_ddp_doctor.digest.track import BEFORE, LONG_AGO
from tb_ddp_doctor.job.clock import ClockFit
from tb_ddp_doctor.job.collectives import Matched
from tb_ddp_doctor.trace.model import Indices, Ints

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
#: So few like transfers have no median that tells which of them is slow.
_FEWEST_LIKE = 3
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
    #: The same of what all ranks share, which goes beside what single ranks have beyond the others.
    shared: Mapping[Held, Floats] = field(default_factory=dict)
    #: What the device need no longer do, shape (R, S), ns.
    device_ns: Ints | None = None
    #: Exposed transfer that goes, shape (R, S), ns.
    transfer_ns: Ints | None = None
    #: Ranks and steps, shape (R, S), whose device work between the same collectives takes no longer than the median of
    #: comparable ranks and steps, and whose transfers no longer than the median of like ones.
    device_at_median: Flags | None = None
    transfers_at_median: Flags | None = None
    #: Whether nobody waits any more for ranks that have no trace.
    absent: bool = False
    #: Whether the hosts need no time at all, and wait for nothing.
    no_host: bool = False

    def __or__(self, other: Removed) -> Removed:
        """Both: what two fixes take from the same host time is taken once."""
        return Removed(
            _larger(self.host, other.host),
            _larger(self.shared, other.shared),
            _sum(self.device_ns, other.device_ns),
            _sum(self.transfer_ns, other.transfer_ns),
            _either(self.device_at_median, other.device_at_median),
            _either(self.transfers_at_median, other.transfers_at_median),
            self.absent or other.absent,
            self.no_host or other.no_host,
        )

    @property
    def of_host(self) -> Mapping[Held, Floats]:
        """Share of the host's time that goes in all, 0 to 1, by what it was spent on; shape (R, S)."""
        if not self.shared:
            return self.host
        return {
            kind: np.minimum(self.host.get(kind, 0.0) + self.shared.get(kind, np.zeros(1)), 1.0)
            for kind in {**self.host, **self.shared}
        }

    def key(self) -> bytes:
        """Equal for what is equal, and in all likelihood for nothing else."""
        said = hashlib.blake2b(f"{self.absent} {self.no_host}".encode(), digest_size=16)
        named: list[tuple[str, NDArray[Any] | None]] = [
            (f"host {kind}", share) for kind, share in sorted(self.host.items())
        ]
        named += [(f"shared {kind}", share) for kind, share in sorted(self.shared.items())]
        named += [
            (name, getattr(self, name))
            for name in ("device_ns", "transfer_ns", "device_at_median", "transfers_at_median")
        ]
        for name, amount in named:
            if amount is not None:
                said.update(name.encode() + np.ascontiguousarray(amount).tobytes())
        return said.digest()

    @property
    def is_nothing(self) -> bool:
        """Whether all stays as it is."""
        amounts = [
            *self.host.values(),
            *self.shared.values(),
            self.device_ns,
            self.transfer_ns,
            self.device_at_median,
            self.transfers_at_median,
        ]
        return (
            not self.absent and not self.no_host and not any(amount is not None and amount.any() for amount in amounts)
        )


def _larger(one: Mapping[Held, Floats], other: Mapping[Held, Floats]) -> Mapping[Held, Floats]:
    larger = dict(one)
    for kind, share in other.items():
        larger[kind] = np.maximum(larger[kind], share) if kind in larger else share
    return larger


def _sum(one: Ints | None, other: Ints | None) -> Ints | None:
    if one is None or other is None:
        return one if other is None else other
    total: Ints = one + other
    return total


def _either(one: Flags | None, other: Flags | None) -> Flags | None:
    if one is None or other is None:
        return one if other is None else other
    return np.asarray(one | other)


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
    fed_ns: Ints
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
    #: Index of the row whose device work it awaits, -1 for none.
    needs: Ints
    ready_ns: Ints
    #: What it is like: index of its kind and size, and how many of these the rank has launched in the step before.
    like: Ints
    ordinal: Ints


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
    no_host: bool
    #: Whether nobody waits for other ranks.
    alone: bool = False


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
class _Times:
    """When things happened in a play; the first three by row, the others by part."""

    issued_ns: Ints
    ended_ns: Ints
    done_ns: Ints
    #: Of the rank itself.
    arrival_ns: Ints
    end_ns: Ints


class Event(IntEnum):
    """What a node of `Bindings` is the end of."""

    #: The host has issued all that the row launches; what holds it at the row's end no longer does; the device has done
    #: what the row launched.
    ISSUED = 0
    ENDED = 1
    DONE = 2
    #: The rank arrives at a collective; the collective ends.
    ARRIVED = 3
    COMPLETED = 4


@dataclass(frozen=True, slots=True, eq=False)
class Bindings:
    """The recorded play as a graph: what bound each event, one node an event, shape (nodes,)."""

    #: An `Event`, and the row (of the rank's track) or part (row of the rank's collectives) that it is of.
    event: Ints
    row: Ints
    rank: Ints
    #: The node without which it would have been earlier, -1 where the record does not hold it; and from when on only
    #: this event's own time counts.
    by: Ints
    since_ns: Ints
    #: For how long of that a collective waits for ranks that have no trace.
    absent_ns: Ints
    #: The last node of each of the job's steps, on the rank where it ends last, -1 where there is none; when the
    #: step begins, where what was before it ends last; when it ends; shape (S,), ns.
    last: Ints
    start_ns: Ints
    end_ns: Ints


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
        self._rows, self._parts = _in_order(rows, order), replace(parts, needs=_moved(parts.needs, order))
        #: Which ranks and steps can be compared, shape (R, S): those with the same collectives.
        self._sequence = _sequences(parts, digests, step_index)
        self._spent = _spent(digests, order, self._rows)
        self._cells = _Cells.of(self._rows.rank, self._rows.step, step_index.shape)
        self._part_cells = _Cells.of(parts.rank, parts.step, step_index.shape)
        shape = (len(digests), self._most_steps + 2)
        self._last_row = _Groups.of(self._rows.rank, self._rows.own_step + 1, shape)
        known = np.flatnonzero(parts.own_step >= 0)
        self._last_part = _Groups.of(parts.rank[known], parts.own_step[known] + 1, shape, known)
        self._recorded = self._play(self._without(Removed()))

    def alone_ns(self, removed: Removed) -> Ints:
        """The same if no rank waited for another: collectives begin when the rank itself arrives."""
        return self.step_ns(removed, alone=True)

    def step_ns(self, removed: Removed, *, alone: bool = False) -> Ints:
        """Windows of the job's steps without what is removed, shape (R, S), ns.

        Earlier steps were like these: each host begins with the lead that it has gained or lost at the end, and the
        steps are played again until that is so.
        """
        left = replace(self._without(removed), alone=alone)
        if left.no_host:
            return self._windows(self._play(left))
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
            return _Left(
                work, held, need, rows.lead_ns, rows.queue_tail_ns, queue, self._transfer(removed), removed.no_host
            )
        lead = rows.lead_ns - (rows.device_ns - need)
        share = (need / np.maximum(rows.device_ns, 1))[rows.queue_row]
        tail = np.rint(rows.queue_tail_ns * share).astype(np.int64)
        return _Left(work, held, need, lead, tail, queue, self._transfer(removed), removed.no_host)

    def _play(self, left: _Left, lead_ns: Ints | int = 0, times: _Times | None = None) -> Ints:
        """Ends of all steps of each rank, after the start of the first; last, the host's lead at the end.

        `lead_ns` is by how much more than recorded each host begins ahead of its device; `times` are filled.
        """
        rows, parts = self._rows, self._parts
        work, held, need, lead, transfer = left.work_ns, left.held_ns, left.device_ns, left.lead_ns, left.transfer_ns
        tail, queue = left.queue_tail_ns, left.queue_ns
        host_at, device_at = self._host_ns - lead_ns, self._device_ns.copy()
        if left.no_host:
            host_at = np.full_like(host_at, LONG_AGO // 2)
        done = np.empty(len(work), np.int64)
        needs = parts.needs
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
            if times:
                times.issued_ns[now], times.ended_ns[now] = issued, ended
            launched = step.launched
            ready[launched] = (
                np.maximum(ended[step.launching], np.where(needs[launched] >= 0, done[needs[launched]], LONG_AGO))
                + parts.ready_ns[launched]
            )
            if len(step.starts):
                mine = step.completed
                arrival = np.maximum(ready[mine], end[parts.after[mine]] + parts.ready_ns[mine])
                if times:
                    times.arrival_ns[mine] = arrival
                if not left.alone:
                    arrival = np.repeat(np.maximum.reduceat(arrival, step.starts), step.sizes)
                end[mine] = arrival + transfer[mine]
        if times:
            times.done_ns[:], times.end_ns[:] = done, end
        ends = np.full((len(self._index), self._most_steps + 2), LONG_AGO)
        self._last_row.raise_to(ends, done)
        self._last_part.raise_to(ends, end)
        ends[:, 0] = self._device_ns
        ends[:, :-1] = np.maximum.accumulate(ends[:, :-1], axis=1)
        ends[:, -1] = ends[:, -2] - host_at
        return ends

    def bindings(self) -> Bindings:
        """What bound each event of the recorded play."""
        rows, parts, left = self._rows, self._parts, self._without(Removed())
        count, size = len(rows.rank), len(parts.rank)
        times = _Times(*(np.full(count, LONG_AGO) for _ in range(3)), *(np.full(size, LONG_AGO) for _ in range(2)))
        ends = self._play(left, times=times)
        # Rows of a rank are played in their order.
        by_rank = np.argsort(rows.rank, kind="stable")
        first = np.searchsorted(rows.rank[by_rank], np.arange(len(ends)))
        before, place = np.full(count, -1), np.empty(count, np.int64)
        place[by_rank] = np.arange(count) - first[rows.rank[by_rank]]
        before[by_rank[1:]] = np.where(place[by_rank[1:]] > 0, by_rank[:-1], -1)

        host_at = np.where(before >= 0, times.ended_ns[before], self._host_ns[rows.rank])
        device_at = np.where(before >= 0, times.done_ns[before], self._device_ns[rows.rank])
        queue_ns = np.where(
            rows.queue_row >= 0, times.done_ns[rows.queue_row] - rows.queue_tail_ns, times.end_ns[rows.queue_part]
        )
        queue_ns = np.where(rows.queue_before, self._device_ns[rows.rank], queue_ns)
        row_node, part_node = np.arange(count), np.arange(size)
        issued, ended, done = (row_node + event * count for event in (Event.ISSUED, Event.ENDED, Event.DONE))
        arrived, completed = 3 * count + part_node, 3 * count + size + part_node

        def node(nodes: Ints, chosen: Ints) -> Ints:
            found: Ints = np.where(chosen >= 0, nodes[chosen], -1) if len(nodes) else chosen
            return found

        of_queue = np.where(
            rows.queue_row >= 0,
            node(done, rows.queue_row),
            np.where(rows.queue_before | (rows.queue_part == size - 1), -1, completed[rows.queue_part]),
        )
        # Where two bind alike, the host's own work does, and on the device its own.
        full = ~rows.synced & (queue_ns + left.queue_ns > host_at + left.work_ns)
        waits = rows.waits & (times.done_ns > times.issued_ns)
        synced = rows.synced & (queue_ns + left.queue_ns > times.issued_ns + left.held_ns)
        free_ns, gate_ns = device_at, times.end_ns[rows.awaits]
        starved = times.issued_ns + left.lead_ns > np.maximum(gate_ns + rows.delay_ns, free_ns) + left.device_ns
        launched_ns = np.where(rows.fed_ns >= 0, times.done_ns - rows.fed_ns, times.issued_ns)
        gated = ~starved & (gate_ns + rows.delay_ns > free_ns)

        launching = np.flatnonzero(rows.launches >= 0)
        by_row = np.full(size, -1)
        by_row[rows.launches[launching]] = launching
        launched = by_row >= 0
        launch_ns = np.where(launched, times.ended_ns[by_row], LONG_AGO)
        needs_ns = np.where(launched & (parts.needs >= 0), times.done_ns[parts.needs], LONG_AGO)
        chain_ns = np.where(launched, times.end_ns[parts.after], LONG_AGO)
        chained = (parts.after < size - 1) & (chain_ns > np.maximum(launch_ns, needs_ns))
        last = np.full(int(parts.collective.max()) + 1, -1)
        order = np.flatnonzero(launched)
        order = order[np.argsort(times.arrival_ns[order], kind="stable")]
        last[parts.collective[order]] = order
        last = np.where(launched, last[parts.collective], -1)
        arrival_ns = np.where(launched, times.arrival_ns[last], parts.end_ns)

        part_row = part_node - np.searchsorted(parts.rank[:-1], parts.rank)
        rank, step = np.arange(len(ends))[:, None], self._index
        finish, begin = ends[rank, step + 1], ends[rank, step]
        slowest = finish.argmax(axis=0)
        at_end = [self._last_node(times, int(r), int(step[r, s])) for s, r in enumerate(slowest)]
        return Bindings(
            event=np.repeat(list(Event), [count, count, count, size, size]),
            row=np.concatenate((place, place, place, part_row, part_row)),
            rank=np.concatenate((rows.rank, rows.rank, rows.rank, parts.rank, parts.rank)),
            by=np.concatenate(
                (
                    np.where(full, of_queue, node(ended, before)),
                    np.where(synced, of_queue, np.where(waits, done, issued)),
                    np.where(starved, issued, np.where(gated, completed[rows.awaits], node(done, before))),
                    np.where(
                        chained,
                        completed[parts.after],
                        np.where(needs_ns > launch_ns, node(done, parts.needs), node(ended, by_row)),
                    ),
                    node(arrived, last),
                )
            ),
            since_ns=np.concatenate(
                (
                    np.where(full, queue_ns, host_at),
                    np.where(synced, queue_ns, np.where(waits, times.done_ns, times.issued_ns)),
                    np.where(starved, launched_ns, np.where(gated, gate_ns, free_ns)),
                    np.maximum(np.maximum(launch_ns, needs_ns), chain_ns),
                    arrival_ns,
                )
            ),
            absent_ns=np.concatenate((np.zeros(3 * count + size, np.int64), parts.absent_ns)),
            last=np.array(at_end, np.int64),
            start_ns=begin.max(axis=0),
            end_ns=finish.max(axis=0),
        )

    def _last_node(self, times: _Times, rank: int, own_step: int) -> int:
        """The node of `Bindings` that a step of a rank ends with, -1 if none."""
        rows, parts = self._rows, self._parts
        count, size = len(rows.rank), len(parts.rank)
        mine = np.flatnonzero((rows.rank == rank) & (rows.own_step <= own_step))
        own = np.flatnonzero((parts.rank == rank) & (parts.own_step >= 0) & (parts.own_step <= own_step))
        ends = np.concatenate((times.done_ns[mine], times.end_ns[own]))
        nodes = np.concatenate((mine + Event.DONE * count, own + 3 * count + size))
        # Of those that end last the latest: the device's rows that do nothing end with the one before.
        return int(nodes[len(ends) - 1 - ends[::-1].argmax()]) if len(ends) else -1

    def _host(self, removed: Removed) -> tuple[Ints, Ints, Ints]:
        """The host's time in each row, how long it is held at the end, and how long after what left the queue."""
        rows = self._rows
        if removed.no_host:
            never = np.full(len(rows.work_ns), LONG_AGO // 4)
            return np.zeros_like(never), np.where(rows.waits, never, 0), never
        work, held, queue = rows.work_ns.copy(), rows.hold_ns.copy(), rows.queue_ns.copy()
        for kind, share in removed.of_host.items():
            spent = self._spent[kind]
            gone = self._cells.of_each(share, spent.working)
            work[spent.working] -= np.rint(spent.work_ns * gone).astype(np.int64)
            mine = spent.holding
            gone = self._cells.of_each(share, mine)
            # A call that is gone waits for nothing: far earlier than the device.
            held[mine] = np.where(gone >= 1, np.where(rows.waits[mine], LONG_AGO // 4, 0), held[mine] * (1 - gone))
            queue[mine] = np.where((gone >= 1) & rows.synced[mine], LONG_AGO // 4, queue[mine])
        # What a row needs longer than the queue that blocked it is work after that, and goes as its work goes.
        worked = np.flatnonzero((rows.queue_ns > 0) & ~rows.synced & (work < rows.work_ns))
        queue[worked] = np.rint(queue[worked] * (work[worked] / rows.work_ns[worked])).astype(np.int64)
        return work, held, queue

    def _device(self, removed: Removed) -> Ints:
        """What the device needs for each row."""
        need = self._rows.device_ns
        if removed.device_at_median is not None:
            chosen = self._cells.of_each(removed.device_at_median.astype(np.float64)) >= 0.5
            need = np.where(chosen, self._device_at_median, need)
        if removed.device_ns is not None:
            need = need - self._cells.spread(need, removed.device_ns)
        return need

    @cached_property
    def _device_at_median(self) -> Ints:
        """What the device needs for each row if no place takes longer than the median of comparable ranks and steps.

        A place is what lies between the same two collectives. Steps that the job leaves out are compared with none.
        """
        rows, (ranks, steps) = self._rows, self._index.shape
        mine = np.flatnonzero(rows.step >= 0)
        most = int(rows.between.max(initial=0)) + 1
        cell = rows.rank[mine] * steps + rows.step[mine]
        total = np.bincount(cell * most + rows.between[mine], rows.device_ns[mine], ranks * steps * most)
        total = total.reshape(ranks * steps, most)
        share = np.ones(total.shape)
        for same in _alike(self._sequence.ravel()):
            share[same] = _share_at_median(total[same])
        need = rows.device_ns.copy()
        need[mine] = np.rint(need[mine] * share[cell, rows.between[mine]])
        shorter: Ints = need
        return shorter

    @cached_property
    def _transfers_at_median(self) -> Ints:
        """How long each part transfers, at most the median of those that are like it and at its place in a step."""
        parts = self._parts
        known = np.flatnonzero(parts.step >= 0)
        # All parts of a collective transfer alike; one with a straggler that came last has the least of it.
        takes = np.zeros(int(parts.collective.max(initial=0)) + 1, np.int64)
        np.maximum.at(takes, parts.collective[known], parts.transfer_ns[known])
        collective, first = np.unique(parts.collective[known], return_index=True)
        like = parts.like[known][first] * (int(parts.ordinal.max(initial=0)) + 1) + parts.ordinal[known][first]
        limit = np.full(len(takes), np.iinfo(np.int64).max)
        for same in _alike(like):
            if len(same) >= _FEWEST_LIKE:
                limit[collective[same]] = lower_median(takes[collective[same]])
        least: Ints = np.minimum(parts.transfer_ns, limit[parts.collective])
        return least

    def typical(self, values: Ints, among: Flags | None = None) -> Ints:
        """Of values of shape (R, S), the lower median over ranks and steps that can be compared, shape (R, S).

        If `among`, shape (R,), is given, only these ranks are compared with, where there are any.
        """
        flat, typical = values.ravel(), np.empty(values.size, values.dtype)
        asked = np.repeat(np.ones(len(values), np.bool_) if among is None else among, values.shape[1])
        for same in _alike(self._sequence.ravel()):
            typical[same] = lower_median(flat[same][asked[same]] if asked[same].any() else flat[same])
        of_cells: Ints = typical.reshape(values.shape)
        return of_cells

    def _transfer(self, removed: Removed) -> Ints:
        """How long each part takes from the arrival of the last rank that has a trace."""
        parts = self._parts
        transfer = parts.transfer_ns
        if removed.transfers_at_median is not None:
            chosen = self._part_cells.of_each(removed.transfers_at_median.astype(np.float64)) >= 0.5
            transfer = np.where(chosen, np.minimum(transfer, self._transfers_at_median), transfer)
        takes = transfer if removed.absent else parts.absent_ns + transfer
        if removed.transfer_ns is None:
            return takes
        return takes - np.minimum(self._part_cells.spread(parts.exposed_ns, removed.transfer_ns), takes)


def lower_median(values: NDArray[Any]) -> Any:
    """The lower median over the first axis, so that of two the better one is typical."""
    middle = (len(values) - 1) // 2
    return np.partition(values, middle, axis=0)[middle]


def _share_at_median(total: NDArray[Any]) -> NDArray[np.float64]:
    """By what to multiply amounts of shape (cells, places) so that none is above its place's median.

    Noise is above the median somewhere in every cell, and the medians of places sum to less than the median cell. So
    no cell is left with less than that, or than it had.
    """
    capped = np.minimum(total, lower_median(total))
    had, has = total.sum(axis=1), capped.sum(axis=1)
    back = np.maximum(np.minimum(had, lower_median(had)) - has, 0) / np.maximum(had - has, 1)
    share: NDArray[np.float64] = (capped + (total - capped) * back[:, None]) / np.maximum(total, 1)
    return share


def _alike(keys: Ints) -> Iterator[Ints]:
    """Indices of equal keys, key by key."""
    order = np.argsort(keys, kind="stable")
    return iter(np.split(order, np.flatnonzero(np.diff(keys[order])) + 1)) if len(order) else iter(())


def _moved(rows: Ints, order: Ints) -> Ints:
    """Indices of rows (-1 for none) after the rows have been put in an order."""
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    moved: Ints = np.where(rows >= 0, place[rows], -1) if len(order) else rows
    return moved


def _kinds(digest: RankDigest, kinds: dict[tuple[object, ...], int]) -> Ints:
    """What each collective of a rank is like, as an index that all ranks share."""
    table = digest.collectives
    columns = np.column_stack((table.kind, table.elements, table.group_size)).astype(np.int64)
    distinct, which = np.unique(columns, axis=0, return_inverse=True)
    names = [(digest.strings[kind], elements, size) for kind, elements, size in distinct.tolist()]
    indices = np.array([kinds.setdefault(name, len(kinds)) for name in names], np.int64)
    return indices[which.reshape(-1)] if names else np.empty(0, np.int64)


def _ordinals(like: Ints, step: Indices) -> Ints:
    """How many of a rank's collectives are like each one and before it in the step."""
    order = np.lexsort((like, step))
    new = (np.diff(like[order], prepend=-1) != 0) | (np.diff(step[order], prepend=-2) != 0)
    first = np.flatnonzero(new)
    ordinal = np.empty(len(like), np.int64)
    ordinal[order] = np.arange(len(like)) - np.repeat(first, np.diff(first, append=len(like)))
    return ordinal


def _sequences(parts: _Parts, digests: Sequence[RankDigest], step_index: Ints) -> Ints:
    """Which ranks and steps have the same collectives, and as many messages; indices of shape (R, S)."""
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
    keys = np.column_stack((total, np.repeat(messages, steps).astype(np.uint64)))
    which: Ints = np.unique(keys, axis=0, return_inverse=True)[1].reshape(ranks, steps)
    return which


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
    after, needs, ready = np.full(size, size - 1), np.full(size, -1), np.zeros(size, np.int64)
    like, ordinal = np.zeros((2, size), np.int64)
    kinds: dict[tuple[object, ...], int] = {}
    first_row = np.concatenate(([0], np.cumsum([len(digest.track) for digest in digests])))
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
        needed = track.needs[launching]
        needs[launched] = np.where(needed >= 0, needed + first_row[rank], -1)
        ready[launched] = track.ready_ns[launching]
        like[here] = _kinds(digest, kinds)
        ordinal[here] = _ordinals(like[here], table.step)
    alone = collective < 0
    collective[alone] = len(matched) + np.arange(int(alone.sum()))
    ranks = np.append(np.repeat(np.arange(len(digests)), counts), 0)
    return _Parts(ranks, own_step, step, collective, absent, transfer, exposed, end, after, needs, ready, like, ordinal)


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
        waits=joined("waits").astype(np.bool_),
        queue_row=np.where(queue_row >= 0, queue_row + np.repeat(base[:-1], lengths), -1),
        queue_before=queue_row == BEFORE,
        queue_tail_ns=joined("queue_tail_ns"),
        queue_part=parts("queue_part", int(nothing)),
        queue_ns=joined("queue_ns"),
        synced=((joined("hold") == Held.SYNC) | (joined("hold") == Held.STALL))
        & ~joined("waits")
        & ((queue_row != -1) | (joined("queue_part") >= 0)),
        device_ns=joined("device_ns"),
        lead_ns=joined("lead_ns"),
        fed_ns=joined("fed_ns"),
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
    columns = {name: getattr(rows, name)[order] for name in _Rows.__slots__}
    columns["queue_row"] = _moved(columns["queue_row"], order)
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
