"""Plays the steps of all ranks again without what a fix removes, so that what goes may expose what it hid.

The host runs ahead, launches gate kernels, and streams and collectives order them (see `schedule`). Played with nothing
removed, this gives the recorded times to the nanosecond. Times are ns on the common clock. R = ranks, S = steps of the
job; rows and parts are those of the schedule.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from msgspec.structs import replace

from tb_ddp_doctor.digest.model import CpuTime
from tb_ddp_doctor.digest.track import LONG_AGO
from tb_ddp_doctor.job.numbering import in_order, numbered
from tb_ddp_doctor.replay import native_library
from tb_ddp_doctor.replay.cells import (
    Cells,
    LargestAt,
    lower_median,
    lower_medians,
    most_of_most,
    of_equal,
    share_at_median,
)
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.lengths import share_at_length
from tb_ddp_doctor.replay.model import Cut, Lengths, Parts, Played, Schedule, TrackRows
from tb_ddp_doctor.replay.play import play
from tb_ddp_doctor.replay.routing import Routing, routing
from tb_ddp_doctor.trace.model import Flags, Floats, Ints

#: So few like transfers have no median that tells which of them is slow.
_FEWEST_LIKE = 3
#: Noise makes the median over ranks and steps so many times the median step of the median rank at most: loaders of
#: healthy jobs differ by a third in single steps.
_FAR_MORE = 1.25
#: The steps are played at most so often in search of the lead that hosts begin and end with; leads that move by less
#: than this share of a step are steady; one that drifts is taken to be so many passes further.
_MOST_PASSES = 6
_STEADY = 0.002
_LEAP = 4


class Replay:
    """The steps of R ranks, to be played without this or that."""

    def __init__(self, schedule: Schedule, recorded: Replay | None = None) -> None:
        """`recorded` is the replay of the record itself, where the schedule is another one."""
        self.schedule = schedule
        rows, parts, shape = schedule.rows, schedule.parts, schedule.frame.step_index.shape
        changes = schedule.frame.left_out_meet
        self._cells = Cells.of(rows.rank, rows.step, shape, changes_left_out=changes)
        self._part_cells = Cells.of(parts.rank, parts.step, shape, changes_left_out=changes)
        places = (shape[0], schedule.frame.most_steps + 2)
        last = _last_rows(rows)
        self._last_row = LargestAt.of(rows.rank[last], rows.own_step[last] + 1, places, last)
        last = _last_parts(parts, schedule.rounds[-1].completed.stop if schedule.rounds else 0)
        self._last_part = LargestAt.of(parts.rank[last], parts.own_step[last] + 1, places, last)
        #: Rows that wait for device work of an earlier one; those that need longer than the queue that blocked them.
        self._behind = np.flatnonzero(rows.queue_row >= 0)
        self._after_queue = np.flatnonzero((rows.queue_ns > 0) & ~rows.synced)
        self._host_ns: dict[CpuTime, Ints] = {}
        self._spending: dict[CpuTime, Flags] = {}
        #: Ranks and steps that can be compared, as indices into all of them.
        self._comparable = tuple(of_equal(schedule.frame.sequence.ravel()))
        self._recorded: Ints = recorded._recorded if recorded else self._ends(self.without(Change()))

    def step_ns(self, change: Change, *, alone: bool = False) -> Ints:
        """Windows of the job's steps without what is removed, shape (R, S), ns.

        `alone` as if no rank waited for another: collectives begin when the rank itself arrives.
        """
        if change.is_nothing and not alone:
            return self.recorded_ns
        shortened = native_library.is_available() and not (change.no_host and self._updates)
        lengths = self._cut(change) if shortened else self.without(change)
        return self.settled_ns(replace(lengths, alone=alone))

    def in_effect(self, change: Change) -> Change:
        """The same change without the shares of what none of its ranks and steps spends time on, or has at all."""
        host = {} if change.no_host else change.of_host
        host = {kind: share for kind, share in host.items() if self._has(kind, share)}
        balanced = change.balanced if len(self.routing.rank) else None
        return replace(change, host=host, shared={}, balanced=balanced)

    def _has(self, kind: CpuTime, share: Floats) -> bool:
        """Whether a share of the host's time of a kind, shape (R, S), takes away anything."""
        if kind not in self._spending:
            spent = self.schedule.spent[kind]
            self._spending[kind] = self._cells.hold(spent.working) | self._cells.hold(spent.holding)
        spending = self._spending[kind]
        if not spending.any() or not (there := share > 0).any():
            return False
        return bool((there & spending[:, :-1]).any() or (there.any(axis=1) & spending[:, -1]).any())

    def settled_ns(self, lengths: Lengths) -> Ints:
        """Windows of the job's steps where things take so long, shape (R, S), ns."""
        return self._windows(self._settled(lengths)[0])

    def settled_play(self, lengths: Lengths) -> Played:
        """When everything happens where things take so long."""
        _, lead, sooner = self._settled(lengths)
        return play(self.schedule, lengths, lead, sooner, kept=True)

    def _settled(self, lengths: Lengths) -> tuple[Ints, Ints, Ints]:
        """Ends of all steps, shape (R, steps + 2), and by how much each host begins ahead and each rank sooner, (R,).

        Earlier steps were like these: each host begins with the lead that it has gained or lost at the end, each rank
        as much sooner as it would end, and the steps are played again until that is so. A record without marks of steps
        begins as it is recorded.
        """
        lead, moved, sooner = np.zeros((3, len(self._recorded)), np.int64)
        ends, steady = self._ends(lengths), _STEADY * float(self.recorded_ns.mean())
        settles = self.schedule.frame.repeats and self.schedule.frame.left_out_meet
        for _ in range(_MOST_PASSES if settles else 0):
            move = np.zeros_like(lead) if lengths.no_host else self._lead_after(ends) - lead
            before, sooner = sooner, self._sooner_after(ends)
            if max(np.abs(move).max(), np.abs(sooner - before).max()) <= steady:
                break
            # A lead that shrinks or grows as before does so for many steps more.
            drifts = (np.sign(move) == np.sign(moved)) & (2 * np.abs(move) > np.abs(moved))
            lead = lead + np.where(drifts, _LEAP * move, move)
            moved = move
            ends = self._ends(lengths, lead, sooner)
        return ends, lead, sooner

    def _lead_after(self, ends: Ints) -> Ints:
        """By how much more than recorded each host would begin ahead, given how far it is ahead at the end, shape (R,).

        Never ahead by more, nor less, than the record begins with and the steps end with.
        """
        begins, at_end = self.schedule.frame.device_start_ns - self.schedule.frame.host_start_ns, ends[:, -1]
        lead = begins + at_end - self._recorded[:, -1]
        steady: Ints = np.clip(lead, np.minimum(begins, at_end), np.maximum(begins, at_end)) - begins
        return steady

    def _sooner_after(self, ends: Ints) -> Ints:
        """By how much sooner than recorded each rank would begin, given the ends of all steps, shape (R,).

        One that its own CPU holds up as much sooner as it would be through at the end, compared with other ranks; one
        that joins others in a later step as much sooner as they get there.
        """
        begins = self.schedule.frame.beginnings
        sooner: Ints = np.clip(_late_at_end(self._recorded) - _late_at_end(ends), 0, begins.again_ns)
        for joined in begins.joined:
            gained = (self._recorded - ends)[joined.others, joined.index]
            sooner[joined.ranks] = max(lower_median(gained), 0)
        return sooner

    @cached_property
    def recorded_ns(self) -> Ints:
        """Windows of the job's steps with nothing removed, shape (R, S), ns."""
        return self._windows(self._recorded)

    def host_ns(self, kind: CpuTime) -> Ints:
        """The host's time that goes to something, shape (R, S), ns."""
        if kind not in self._host_ns:
            spent = self.schedule.spent[kind]
            blocked_ns = self.schedule.rows.blocked_ns[spent.holding]
            self._host_ns[kind] = self._cells.sum(spent.work_ns, spent.working) + self._cells.sum(
                blocked_ns, spent.holding
            )
        return self._host_ns[kind]

    @cached_property
    def device_ns(self) -> Ints:
        """What the device needs, shape (R, S), ns."""
        return self._cells.sum(self.schedule.rows.device_ns)

    def typical(self, values: Ints, among: Flags | None = None) -> Ints:
        """Of values of shape (R, S), the lower median over ranks and steps that can be compared, shape (R, S).

        A rank that is slow in all steps and steps that are slow on all ranks may be most cells together. Where the
        median step of the median rank has far less, that is typical. If `among`, shape (R,), is given, only these
        ranks are compared with, where there are any.
        """
        if not values.any():
            return np.zeros_like(values)
        flat, typical = values.ravel(), np.empty(values.size, values.dtype)
        asked = np.repeat(np.ones(len(values), np.bool_) if among is None else among, values.shape[1])
        for same in self._comparable:
            cells = same[asked[same]] if asked[same].any() else same
            step, of_cells = cells % values.shape[1], lower_median(flat[cells])
            # Whether the median step of the median rank is far less.
            if of_cells and most_of_most(of_cells > _FAR_MORE * flat[cells], step):
                typical[same] = lower_median(lower_medians(flat[cells], step))
            else:
                typical[same] = of_cells
        return typical.reshape(values.shape)

    def typical_of_step(self, values: Ints) -> Ints:
        """Of values of shape (R, S), the lower median over comparable ranks in the same step, shape (R, S)."""
        typical = np.empty(values.size, values.dtype)
        for same in self._comparable_in_step:
            typical[same] = lower_median(values.ravel()[same])
        of_cells: Ints = typical.reshape(values.shape)
        return of_cells

    @cached_property
    def _comparable_in_step(self) -> tuple[Ints, ...]:
        """Ranks that can be compared in one step, as indices into all ranks and steps."""
        sequence = self.schedule.frame.sequence
        step = np.broadcast_to(np.arange(sequence.shape[1]), sequence.shape)
        return tuple(of_equal(numbered(sequence.ravel(), step.ravel())))

    def _ends(self, lengths: Lengths, lead_ns: Ints | int = 0, sooner_ns: Ints | int = 0) -> Ints:
        """Ends of all steps of each rank, after the start of the first; last, the host's lead at the end; shape
        (R, steps + 2).
        """
        played = play(self.schedule, lengths, lead_ns, sooner_ns)
        ends = self.step_ends(played)
        ends[:, -1] = ends[:, -2] - played.host_end_ns
        return ends

    def step_ends(self, played: Played) -> Ints:
        """When each rank starts the first step of its record and ends each one, and one more; shape (R, steps + 2)."""
        ends = np.full((len(self.schedule.frame.step_index), self.schedule.frame.most_steps + 2), LONG_AGO)
        self._last_row.raise_to(ends, played.done_ns)
        self._last_part.raise_to(ends, played.end_ns)
        ends[:, 0] = played.begin_ns
        return np.maximum.accumulate(ends, axis=1)

    def _windows(self, ends: Ints) -> Ints:
        """From ends of all steps, shape (R, steps + 2), the first one where the first step starts."""
        each, index = np.arange(len(ends))[:, None], self.schedule.frame.step_index
        windows: Ints = ends[each, index + 1] - ends[each, index]
        return windows

    def without(self, change: Change) -> Lengths:
        """What remains of the steps without what is removed."""
        rows = self.schedule.rows
        work, held, queue = self._host(change)
        need = self._device(change)
        lead, tail = rows.lead_ns, rows.queue_tail_ns
        if need is not rows.device_ns:
            lead = lead - (rows.device_ns - need)
            mine, row = self._behind, rows.queue_row[self._behind]
            tail = tail.copy()
            tail[mine] = np.rint(tail[mine] * (need[row] / np.maximum(rows.device_ns[row], 1))).astype(np.int64)
        if change.no_host and self._updates:
            # What is launched once an update is through cannot begin before.
            lead = np.where(rows.lead_ns > LONG_AGO // 2, np.maximum(lead, need), lead)
        return Lengths(work, held, need, lead, tail, queue, self._transfer(change), change.no_host)

    def _cut(self, change: Change) -> Lengths:
        """The same, with what goes of rows left to the native library."""
        rows, host, chosen = self.schedule.rows, {}, None
        if not change.no_host:
            host = {kind: self._cells.padded(share) for kind, share in self._shares(change).items()}
        need: Ints | None = None
        if change.device_ns is not None or change.balanced is not None:
            need = self._device(change)
        elif change.device_at_median is not None:
            need = self._device_at_median
            if not change.device_at_median.all():
                chosen = self._cells.padded(change.device_at_median.astype(np.float64)) >= 0.5
        return Lengths(
            work_ns=rows.work_ns,
            blocked_ns=rows.blocked_ns,
            device_ns=rows.device_ns,
            lead_ns=rows.lead_ns,
            queue_tail_ns=rows.queue_tail_ns,
            queue_ns=rows.queue_ns,
            transfer_ns=self._transfer(change),
            no_host=change.no_host,
            cut=Cut(host, need, chosen),
        )

    def removed_ns(self, change: Change) -> int:
        """The time that a change takes out of the record on all ranks together, ns: no play may save more.

        Of CPUs, devices and transfers; and of calls that go as a whole the time that they waited for the device. What
        goes from before the job's first step counts: a CPU that it held up begins that step as much further ahead.
        """
        rows, parts, lengths = self.schedule.rows, self.schedule.parts, self.without(change)
        takes = parts.absent_ns + parts.transfer_ns
        recorded = play(self.schedule, self.without(Change()), kept=True)
        waits = rows.waits | rows.synced
        gone = waits & ((lengths.blocked_ns < LONG_AGO // 8) | (lengths.queue_ns < LONG_AGO // 8))
        waited = np.where(gone, recorded.ended_ns - recorded.issued_ns, 0)
        blocked = np.where(waits & gone, 0, rows.blocked_ns - lengths.blocked_ns)
        of_host = (rows.work_ns - lengths.work_ns) + np.maximum(blocked, 0) + waited
        of_device = np.maximum(rows.device_ns - lengths.device_ns, 0)
        of_transfers = np.maximum(takes - lengths.transfer_ns, 0)
        return int((of_host + of_device).sum()) + int(of_transfers.sum())

    def _shares(self, change: Change) -> dict[CpuTime, Floats]:
        """What goes of the host's time by what some of it is spent on; shape (R, S)."""
        spent = self.schedule.spent
        return {kind: share for kind, share in change.of_host.items() if spent[kind].is_some and share.any()}

    def _host(self, change: Change) -> tuple[Ints, Ints, Ints]:
        """The host's time in each row, how long it is held at the end, and how long after what left the queue."""
        rows = self.schedule.rows
        if change.no_host:
            return self._of_updates
        shares = self._shares(change)
        if not shares:
            return rows.work_ns, rows.blocked_ns, rows.queue_ns
        work, held, queue = rows.work_ns.copy(), rows.blocked_ns, rows.queue_ns
        for kind, share in shares.items():
            spent = self.schedule.spent[kind]
            some, gone = self._cells.with_some(share, spent.working)
            work[spent.working[some]] -= np.rint(spent.work_ns[some] * gone).astype(np.int64)
            some, gone = self._cells.with_some(share, spent.holding)
            mine = spent.holding[some]
            if not len(mine):
                continue
            held, queue = _own(held, rows.blocked_ns), _own(queue, rows.queue_ns)
            # A call that is gone waits for nothing: far earlier than the device.
            held[mine] = np.where(gone >= 1, np.where(rows.waits[mine], LONG_AGO // 4, 0), held[mine] * (1 - gone))
            queue[mine] = np.where((gone >= 1) & rows.synced[mine], LONG_AGO // 4, queue[mine])
        # What a row needs longer than the queue that blocked it is work after that, and goes as its work goes.
        worked = self._after_queue[work[self._after_queue] < rows.work_ns[self._after_queue]]
        if len(worked):
            queue = _own(queue, rows.queue_ns)
            queue[worked] = np.rint(queue[worked] * (work[worked] / rows.work_ns[worked])).astype(np.int64)
        return work, held, queue

    @property
    def _updates(self) -> bool:
        """Whether some optimizer works on the CPU: that is no overhead of the CPU."""
        return self.schedule.spent[CpuTime.UPDATE].is_some

    @cached_property
    def _of_updates(self) -> tuple[Ints, Ints, Ints]:
        """The same of CPUs that need no time, but for optimizers: the median rank's, once what they update is there."""
        rows, spent = self.schedule.rows, self.schedule.spent
        nothing, never = (np.broadcast_to(np.int64(ns), rows.work_ns.shape) for ns in (0, LONG_AGO // 4))
        held = np.where(rows.waits, never, nothing)
        if not self._updates:
            return nothing, held, never
        work, queue = nothing.copy(), never.copy()
        update, awaited = spent[CpuTime.UPDATE], spent[CpuTime.READ].holding
        took = self.host_ns(CpuTime.UPDATE)
        beyond = np.maximum(1 - self.typical(took) / np.maximum(took, 1), 0)
        work[update.working] = update.work_ns
        held[update.holding] = rows.blocked_ns[update.holding]
        for amount, mine in ((work, update.working), (held, update.holding)):
            some, gone = self._cells.with_some(beyond, mine)
            amount[mine[some]] -= np.rint(amount[mine[some]] * gone).astype(np.int64)
        held[awaited], queue[awaited] = rows.blocked_ns[awaited], rows.queue_ns[awaited]
        return work, held, queue

    def _device(self, change: Change) -> Ints:
        """What the device needs for each row."""
        need = self.schedule.rows.device_ns
        if change.device_at_median is not None and change.device_at_median.all():
            need = self._device_at_median
        elif change.device_at_median is not None:
            chosen = self._cells.chosen(change.device_at_median)
            need = np.where(chosen, self._device_at_median, need)
        if change.balanced is not None:
            need = np.minimum(need, self._device_balanced(change.balanced))
        if change.device_ns is not None:
            need = need - self._cells.spread(need, change.device_ns)
        return need

    @cached_property
    def routing(self) -> Routing:
        """What the ranks compute between exchanges of tokens."""
        return routing(self.schedule)

    def _device_balanced(self, among: Flags) -> Ints:
        """What the device needs for each row if some ranks and steps, shape (R, S), compute no longer than these ranks
        do on average between two exchanges of tokens.
        """
        pieces, need = self.routing, self.schedule.rows.device_ns
        left = 1 - pieces.excess_ns(among) / np.maximum(pieces.work_ns, 1)
        mine = np.flatnonzero(pieces.piece >= 0)
        shorter: Ints = need.copy()
        shorter[mine] = np.rint(need[mine] * left[pieces.piece[mine]])
        return shorter

    @cached_property
    def _device_at_median(self) -> Ints:
        """What the device needs for each row if no place takes longer than the median of comparable ranks and steps.

        A place is what lies between the same two collectives, or the whole step where ranks send and receive at other
        places between them. Steps that the job leaves out are compared with none.
        """
        rows, (ranks, steps) = self.schedule.rows, self.schedule.frame.step_index.shape
        mine = np.flatnonzero(rows.step >= 0)
        most = int(rows.between.max(initial=0)) + 1
        cell = rows.rank[mine] * steps + rows.step[mine]
        total = np.bincount(cell * most + rows.between[mine], rows.device_ns[mine], ranks * steps * most)
        total = total.reshape(ranks * steps, most)
        share = np.ones(total.shape)
        order = self.schedule.frame.order.ravel()
        for same in self._comparable:
            if (order[same] == order[same[0]]).all():
                share[same] = share_at_median(total[same])
            else:
                share[same] = share_at_median(total[same].sum(axis=1, keepdims=True))
        need = rows.device_ns.copy()
        share *= self._share_at_length.reshape(-1, 1)
        need[mine] = np.rint(need[mine] * share[cell, rows.between[mine]])
        shorter: Ints = need
        return shorter

    @property
    def slow_for_their_length(self) -> Flags:
        """Which steps take all comparable ranks' devices far longer than their sequences explain, shape (S,)."""
        return np.asarray((self._share_at_length < 1).any(axis=0))

    @cached_property
    def _share_at_length(self) -> Floats:
        """By what to multiply what devices need in steps that are alone of their length, shape (R, S)."""
        frame = self.schedule.frame
        return share_at_length(self.device_ns, frame.sequence, frame.but_for_length, frame.length)

    def _transfer(self, change: Change) -> Ints:
        """How long each part takes from the arrival of the last rank that has a trace."""
        parts = self.schedule.parts
        transfer = parts.transfer_ns
        if change.transfers_at_median is not None:
            chosen = self._part_cells.chosen(change.transfers_at_median)
            transfer = np.where(chosen, np.minimum(transfer, self._transfers_at_median), transfer)
        takes = transfer if change.absent else parts.absent_ns + transfer
        if change.transfer_ns is None:
            return takes
        return takes - np.minimum(self._part_cells.spread(parts.exposed_ns, change.transfer_ns), takes)

    @cached_property
    def _transfers_at_median(self) -> Ints:
        """How long each part transfers, at most the median of those that are like it and at its place in a step."""
        parts = self.schedule.parts
        known = np.flatnonzero(parts.step >= 0)
        # All parts of a collective transfer alike; one with a straggler that came last has the least of it.
        takes = np.zeros(int(parts.collective.max(initial=0)) + 1, np.int64)
        np.maximum.at(takes, parts.collective[known], parts.transfer_ns[known])
        collective, first = np.unique(parts.collective[known], return_index=True)
        like = parts.like[known][first] * (int(parts.ordinal.max(initial=0)) + 1) + parts.ordinal[known][first]
        limit = np.full(len(takes), np.iinfo(np.int64).max)
        for same in of_equal(like):
            if len(same) >= _FEWEST_LIKE:
                limit[collective[same]] = lower_median(takes[collective[same]])
        least: Ints = np.minimum(parts.transfer_ns, limit[parts.collective])
        return least


def _own(values: Ints, recorded: Ints) -> Ints:
    """The values, to be written to: a copy where they are the recorded ones."""
    return values.copy() if values is recorded else values


def _last_rows(rows: TrackRows) -> Ints:
    """The last row of each rank and step, which is done last: no row is done before the one before it."""
    order = in_order(rows.rank)
    changes = (np.diff(rows.rank[order], append=-1) != 0) | (np.diff(rows.own_step[order], append=-1) != 0)
    changes[:-1] |= rows.device_ns[order[1:]] < 0
    last: Ints = order[changes]
    return last


def _last_parts(parts: Parts, played: int) -> Ints:
    """The parts of steps but for those that another one of their step, of the first so many, follows on its stream, and
    so ends after.
    """
    ends_after = (parts.own_step[parts.after] == parts.own_step) & (parts.ready_ns >= 0) & (parts.transfer_ns >= 0)
    follows = np.flatnonzero(ends_after[:played])
    last = parts.own_step >= 0
    last[parts.after[follows]] = False
    return np.flatnonzero(last)


def _late_at_end(ends: Ints) -> Ints:
    """How much later than the first rank each would begin one more step, from ends of shape (R, steps + 2)."""
    # A host that is not through yet is what the device waits for.
    begins = ends[:, -2] + np.maximum(-ends[:, -1], 0)
    late: Ints = begins - begins.min()
    return late
