"""Plays the steps of all ranks again with a what-if change, and says how long each step then takes.

1. `Replay.lengths` shortens the rows and parts of the schedule as the change says.
2. `play.py` plays them in the order of the schedule. What was hidden behind the removed time then shows.
3. Steps before the record were like those in it: `_steady_ends` plays again until each host begins as far ahead of its
   device as it ends.

Played without a change this gives the recorded times to the nanosecond. Times are ns on the common clock. R = ranks,
S = steps of the job; rows and parts are those of the schedule.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np
from msgspec.structs import replace

from tb_ddp_doctor.digest.model import CpuTime
from tb_ddp_doctor.digest.numbering import in_order, numbered
from tb_ddp_doctor.digest.track import LONG_AGO
from tb_ddp_doctor.replay import native_library
from tb_ddp_doctor.replay.cells import (
    Cells,
    LargestAt,
    lower_median,
    lower_medians,
    most_of_most,
    of_equal,
    share_at_median,
    share_if_even,
)
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.lengths import share_at_length
from tb_ddp_doctor.replay.model import Cut, Lengths, Parts, Played, Schedule, TrackRows
from tb_ddp_doctor.replay.own_requests import Spread, spread
from tb_ddp_doctor.replay.play import play
from tb_ddp_doctor.replay.routing import Routing, routing
from tb_ddp_doctor.replay.shortened import shortened
from tb_ddp_doctor.replay.tied_tracks import HAND_OVER
from tb_ddp_doctor.trace.model import Flags, Floats, Ints

#: With fewer comparable transfers, none is compared: their median does not show which of them is slow.
_FEWEST_LIKE = 3
#: Noise makes the median over ranks and steps at most this many times the median step of the median rank: loaders of
#: healthy jobs differ by a third in single steps.
FAR_MORE = 1.25
#: At most this many passes search the lead that hosts both begin and end with.
_MOST_PASSES = 6
#: As many rows are played in some 2 ms.
_LARGE = 100_000
#: Leads that change by less than this share of a step from pass to pass are steady.
_STEADY = 0.002
#: A lead that changes steadily in one direction is moved by this many passes at once.
_LEAP = 4


class Replay:
    """The steps of R ranks, to be played with what-if changes."""

    def __init__(self, schedule: Schedule, recorded: Replay | None = None) -> None:
        """`recorded` is the replay of the job as recorded, if `schedule` is a changed one: leads are relative to it."""
        self.schedule = schedule
        rows, parts, shape = schedule.rows, schedule.parts, schedule.frame.step_index.shape
        changes = schedule.frame.left_out_meet
        self._cells = Cells.of(rows.rank, rows.step, shape, changes_left_out=changes)
        self._hand_overs = parts.row == HAND_OVER
        self._part_cells = Cells.of(parts.rank, parts.step, shape, changes_left_out=changes)
        places = (shape[0], schedule.frame.most_steps + 2)
        last = _last_rows(rows)
        self._last_row = LargestAt.of(rows.rank[last], rows.own_step[last] + 1, places, last)
        last = _last_parts(parts, schedule.rounds[-1].completed.stop if schedule.rounds else 0)
        self._last_part = LargestAt.of(parts.rank[last], parts.own_step[last] + 1, places, last)
        #: Rows that wait until device work of an earlier row leaves the launch queue.
        self._behind = np.flatnonzero(rows.queue_row >= 0)
        #: Rows that are issued some time after the launch queue has a place for them.
        self._after_queue = np.flatnonzero((rows.queue_ns > 0) & ~rows.synced)
        self._host_ns: dict[CpuTime, Ints] = {}
        self._spending: dict[CpuTime, Flags] = {}
        self._lowered_last: tuple[Flags, Ints] | None = None
        #: Ranks and steps that can be compared with each other, as indices into the flat shape (R, S).
        self._comparable = tuple(of_equal(schedule.frame.sequence.ravel()))
        self._recorded: Ints = recorded._recorded if recorded else self._ends(self.lengths(Change()))

    def step_ns(self, change: Change, *, alone: bool = False) -> Ints:
        """How long each step takes with a change, shape (R, S), ns.

        With `alone`, no rank waits for another: each collective begins when the rank itself arrives.
        """
        if change.is_nothing and not alone:
            return self.recorded_ns
        shortened = native_library.is_available() and not (change.no_host and self._updates)
        lengths = self._cut_natively(change) if shortened else self.lengths(change)
        if alone and self._hand_overs.any():
            # Nor does a role wait for another one.
            lengths = replace(lengths, transfer_ns=np.where(self._hand_overs, LONG_AGO // 8, lengths.transfer_ns))
        return self.steps_ns(replace(lengths, alone=alone))

    @property
    def is_large(self) -> bool:
        """Whether a play takes so long that threads are worth their start: they only help in the native library."""
        return native_library.is_available() and len(self.schedule.rows.rank) >= _LARGE

    def in_effect(self, change: Change) -> Change:
        """The same change without those parts that change nothing here: shares of kinds of work that nobody does there.

        Equal results then have equal changes, and need one play only.
        """
        host = {} if change.no_host else change.of_host
        host = {kind: share for kind, share in host.items() if self._has(kind, share)}
        balanced = change.balanced if len(self.routing.rank) else None
        even = change.even_requests and self.spread is not None
        return replace(change, host=host, shared={}, balanced=balanced, even_requests=even)

    def _has(self, kind: CpuTime, share: Floats) -> bool:
        """Whether a share of a kind of host time, shape (R, S), removes anything: if some rank spends such time."""
        if kind not in self._spending:
            spent = self.schedule.spent[kind]
            self._spending[kind] = self._cells.with_any(spent.working) | self._cells.with_any(spent.blocking)
        spending = self._spending[kind]
        if not spending.any() or not (there := share > 0).any():
            return False
        return bool((there & spending[:, :-1]).any() or (there.any(axis=1) & spending[:, -1]).any())

    def steps_ns(self, lengths: Lengths) -> Ints:
        """How long each step takes if rows and parts take `lengths`, shape (R, S), ns."""
        return self._windows(self._steady_ends(lengths)[0])

    def steady_play(self, lengths: Lengths) -> Played:
        """When everything happens if rows and parts take `lengths`."""
        _, lead, sooner = self._steady_ends(lengths)
        return play(self.schedule, lengths, lead, sooner, kept=True)

    def _steady_ends(self, lengths: Lengths) -> tuple[Ints, Ints, Ints]:
        """Ends of all steps, shape (R, steps + 2), and the lead and earlier begin of each rank's first step, (R,), ns.

        The steps before the record are assumed to be like those in it. So what changes the lead of a host over its
        device, or delays a rank, has done so before the record too:

        1. Play the steps with the recorded leads and begins.
        2. Set each host's lead to the one that it has at the end (`_lead_after`), and each rank's begin to that of the
           step after the last (`_sooner_after`).
        3. Play again, until neither changes by `_STEADY` of a step, or `_MOST_PASSES` times.

        A record without marks of steps begins as recorded: nothing says that like steps came before it.
        """
        lead, moved, sooner = np.zeros((3, len(self._recorded)), np.int64)
        ends, steady = self._ends(lengths), _STEADY * float(self.recorded_ns.mean())
        repeats = self.schedule.frame.repeats and self.schedule.frame.left_out_meet
        for _ in range(_MOST_PASSES if repeats else 0):
            move = np.zeros_like(lead) if lengths.no_host else self._lead_after(ends) - lead
            before, sooner = sooner, self._sooner_after(ends)
            if max(np.abs(move).max(), np.abs(sooner - before).max()) <= steady:
                break
            # A lead that changes as in the pass before will go on doing so for many steps.
            drifts = (np.sign(move) == np.sign(moved)) & (2 * np.abs(move) > np.abs(moved))
            lead = lead + np.where(drifts, _LEAP * move, move)
            moved = move
            ends = self._ends(lengths, lead, sooner)
        return ends, lead, sooner

    def _lead_after(self, ends: Ints) -> Ints:
        """How much further than recorded each host would begin ahead of its device, in ns, shape (R,).

        That is how much further than recorded it is ahead at the end, from `ends` of shape (R, steps + 2). The lead
        stays between the one that the record begins with and the one that the steps end with.
        """
        begins, at_end = self.schedule.frame.device_start_ns - self.schedule.frame.host_start_ns, ends[:, -1]
        lead = begins + at_end - self._recorded[:, -1]
        steady: Ints = np.clip(lead, np.minimum(begins, at_end), np.maximum(begins, at_end)) - begins
        return steady

    def _sooner_after(self, ends: Ints) -> Ints:
        """How much earlier than recorded each rank would begin its first step, in ns, shape (R,).

        `ends` are the ends of all steps, shape (R, steps + 2). Two cases shift a rank:

        1. Its own CPU delays its first launch: it begins earlier by as much as it ends earlier, relative to the first
           rank to end.
        2. Its record begins some steps later than others': it begins earlier by the median gain of the ranks that it
           joins.
        """
        begins = self.schedule.frame.beginnings
        sooner: Ints = np.clip(_late_at_end(self._recorded) - _late_at_end(ends), 0, begins.again_ns)
        for joined in begins.joined:
            gained = (self._recorded - ends)[joined.others, joined.index]
            sooner[joined.ranks] = max(lower_median(gained), 0)
        return sooner

    @cached_property
    def recorded_ns(self) -> Ints:
        """How long each step took as recorded, shape (R, S), ns."""
        return self._windows(self._recorded)

    def host_ns(self, kind: CpuTime) -> Ints:
        """How long each host spends on one kind of work, blocked or working, shape (R, S), ns."""
        if kind not in self._host_ns:
            spent = self.schedule.spent[kind]
            blocked_ns = self.schedule.rows.blocked_ns[spent.blocking]
            self._host_ns[kind] = self._cells.sum(spent.work_ns, spent.working) + self._cells.sum(
                blocked_ns, spent.blocking
            )
        return self._host_ns[kind]

    @cached_property
    def device_ns(self) -> Ints:
        """How long each device needs for the work of each step, without idle time, shape (R, S), ns."""
        return self._cells.sum(self.schedule.rows.device_ns)

    def remaining_device_ns(self, change: Change) -> Ints:
        """How long each device needs for the work of each step that a change leaves, without idle time, (R, S), ns."""
        return self._cells.sum(self._device(change))

    def typical(self, values: Ints, among: Flags | None = None, far_more: float = FAR_MORE) -> Ints:
        """The typical value for each rank and step: the lower median of the comparable ones, shape (R, S).

        Ranks that are slow in all steps and steps that are slow on all ranks may together be most of the values. If the
        median is more than `far_more` times the value of the median step of the median rank, that one is typical. If
        `among`, shape (R,), flags some ranks, the median is taken over these, unless none of them is comparable.
        """
        if not values.any():
            return np.zeros_like(values)
        flat, typical = values.ravel(), np.empty(values.size, values.dtype)
        asked = np.repeat(np.ones(len(values), np.bool_) if among is None else among, values.shape[1])
        for same in self._comparable:
            cells = same[asked[same]] if asked[same].any() else same
            step, of_cells = cells % values.shape[1], lower_median(flat[cells])
            if of_cells and most_of_most(of_cells > far_more * flat[cells], step):
                typical[same] = lower_median(lower_medians(flat[cells], step))
            else:
                typical[same] = of_cells
        return typical.reshape(values.shape)

    def typical_of_step(self, values: Ints) -> Ints:
        """The lower median of the comparable ranks in the same step, for each rank and step, shape (R, S)."""
        typical = np.empty(values.size, values.dtype)
        for same in self._comparable_in_step:
            typical[same] = lower_median(values.ravel()[same])
        return typical.reshape(values.shape)

    @cached_property
    def _comparable_in_step(self) -> tuple[Ints, ...]:
        """Ranks that can be compared within one step, as indices into the flat shape (R, S)."""
        sequence = self.schedule.frame.sequence
        step = np.broadcast_to(np.arange(sequence.shape[1]), sequence.shape)
        return tuple(of_equal(numbered(sequence.ravel(), step.ravel())))

    def _ends(self, lengths: Lengths, lead_ns: Ints | int = 0, sooner_ns: Ints | int = 0) -> Ints:
        """Each rank's start of the first step, the ends of all steps, and its host's lead at the end; ns.

        Shape (R, steps + 2). The lead is how much earlier the host is through with the last step than the device.
        """
        played = play(self.schedule, lengths, lead_ns, sooner_ns)
        ends = self.step_ends(played)
        ends[:, -1] = ends[:, -2] - played.host_end_ns
        return ends

    def step_ends(self, played: Played) -> Ints:
        """When each rank starts the first step of its record and ends each step; shape (R, steps + 2), ns.

        The last column repeats the end of the last step: there is place for the lead in `_ends`.
        """
        ends = np.full((len(self.schedule.frame.step_index), self.schedule.frame.most_steps + 2), LONG_AGO)
        self._last_row.raise_to(ends, played.done_ns)
        self._last_part.raise_to(ends, played.end_ns)
        ends[:, 0] = played.begin_ns
        return np.maximum.accumulate(ends, axis=1)

    def _windows(self, ends: Ints) -> Ints:
        """How long each of the job's steps takes, shape (R, S), ns, from `ends` as `step_ends` has them."""
        each, index = np.arange(len(ends))[:, None], self.schedule.frame.step_index
        return ends[each, index + 1] - ends[each, index]

    def lengths(self, change: Change) -> Lengths:
        """How long rows and parts take with a change."""
        rows = self.schedule.rows
        work, blocked, queue = self._host(change)
        need = self._device(change)
        lead, tail = rows.lead_ns, rows.queue_tail_ns
        if need is not rows.device_ns:
            lead = lead - (rows.device_ns - need)
            mine, row = self._behind, rows.queue_row[self._behind]
            tail = tail.copy()
            tail[mine] = np.rint(tail[mine] * (need[row] / np.maximum(rows.device_ns[row], 1))).astype(np.int64)
        if change.no_host and self._updates:
            # Work that is launched after an update on the CPU cannot begin before that update is done.
            lead = np.where(rows.lead_ns > LONG_AGO // 2, np.maximum(lead, need), lead)
        return Lengths(work, blocked, need, lead, tail, queue, self._transfer(change), change.no_host)

    def _cut_natively(self, change: Change) -> Lengths:
        """How long rows and parts take with a change that the native library applies to the rows while playing them.

        The columns of rows are as recorded: no copy of them is made for each change.
        """
        host = {}
        if not change.no_host:
            host = {kind: self._cells.padded(share) for kind, share in self._shares(change).items()}
        return replace(
            self.schedule.lengths,
            transfer_ns=self._transfer(change),
            no_host=change.no_host,
            cut=self._device_cut(change, host),
        )

    def _device_cut(self, change: Change, host: Mapping[CpuTime, Floats]) -> Cut:
        """What a change removes of rows: `host` of the time of their hosts, and the rest of the devices'."""
        at_median, gone_ns = change.device_at_median, self._gone_ns(change)
        if change.device_ns is not None or change.balanced is not None or change.even_requests:
            need, whole = self._device_but_rows(change)
            return Cut(host, need, gone_ns=gone_ns) if whole is need else Cut(host, self._device(change))
        if at_median is None:
            return Cut(host, gone_ns=gone_ns)
        chosen = None if at_median.all() else self._cells.padded(at_median.astype(np.float64)) >= 0.5
        return Cut(host, self._device_at_median, chosen, gone_ns)

    def removed_ns(self, change: Change) -> int:
        """How much time a change removes from the record on all ranks together, ns: no fix can save more than that.

        It counts work of CPUs and devices, transfers, and the time for which calls that are removed waited for the
        device. Time before the job's first step counts too: without it the CPU begins that step further ahead.
        """
        lengths = self.lengths(change)
        of_rows, of_parts = self._removed_work(lengths)
        return int(of_rows.sum() + self._removed_waits(lengths).sum()) + int(of_parts.sum())

    def shorter_transfers_ns(self, change: Change) -> Ints:
        """By how much a change shortens the transfers of each rank and step, hidden or exposed, shape (R, S), ns."""
        return self._part_cells.sum(self.schedule.lengths.transfer_ns - self._transfer(change))

    def removed_in_steps_ns(self, change: Change) -> Ints:
        """How much work of CPUs and devices and transfers a change removes from each step on all ranks, (S,), ns."""
        of_rows, of_parts = self._removed_work(self.lengths(change))
        removed: Ints = (self._cells.sum(of_rows) + self._part_cells.sum(of_parts)).sum(axis=0)
        return removed

    def _removed_work(self, lengths: Lengths) -> tuple[Ints, Ints]:
        """How much less CPUs and devices do in each row, and each part transfers, if they take `lengths`, ns.

        Shapes (rows,) and (parts,). The time for which blocked CPUs wait for the device is not work.
        """
        rows = self.schedule.rows
        blocked = np.where(rows.waits | rows.synced, 0, np.maximum(rows.blocked_ns - lengths.blocked_ns, 0))
        of_device = np.maximum(rows.device_ns - lengths.device_ns, 0)
        of_parts = np.maximum(self.schedule.lengths.transfer_ns - lengths.transfer_ns, 0)
        return rows.work_ns - lengths.work_ns + blocked + of_device, of_parts

    def _removed_waits(self, lengths: Lengths) -> Ints:
        """How much less CPUs wait for the device at the end of each row if they take `lengths`, shape (rows,), ns."""
        rows, recorded = self.schedule.rows, play(self.schedule, self.lengths(Change()), kept=True)
        waits = rows.waits | rows.synced
        gone = (lengths.blocked_ns < LONG_AGO // 8) | (lengths.queue_ns < LONG_AGO // 8)
        shorter = np.maximum(rows.blocked_ns - lengths.blocked_ns, 0)
        return np.where(waits, np.where(gone, recorded.ended_ns - recorded.issued_ns, shorter), 0)

    def _shares(self, change: Change) -> dict[CpuTime, Floats]:
        """For each kind of work that hosts do, the share that a change removes, 0 to 1, shape (R, S)."""
        spent = self.schedule.spent
        return {kind: share for kind, share in change.of_host.items() if spent[kind].is_some and share.any()}

    def _host(self, change: Change) -> tuple[Ints, Ints, Ints]:
        """How long each row's host works, how long it is blocked at the row's end, and `queue_ns`, with a change.

        All of the shape (rows,), ns; the recorded columns themselves where nothing changes.
        """
        rows = self.schedule.rows
        if change.no_host:
            return self._of_updates
        shares = self._shares(change)
        if not shares:
            return rows.work_ns, rows.blocked_ns, rows.queue_ns
        work, blocked, queue = rows.work_ns.copy(), rows.blocked_ns, rows.queue_ns
        for kind, share in shares.items():
            spent = self.schedule.spent[kind]
            some, gone = self._cells.with_share(share, spent.working)
            work[spent.working[some]] -= np.rint(spent.work_ns[some] * gone).astype(np.int64)
            some, gone = self._cells.with_share(share, spent.blocking)
            mine = spent.blocking[some]
            if not len(mine):
                continue
            blocked, queue = _writable(blocked, rows.blocked_ns), _writable(queue, rows.queue_ns)
            # A call that is removed as a whole waits for nothing: its wait ends long before the device's work.
            blocked[mine] = np.where(
                gone >= 1, np.where(rows.waits[mine], LONG_AGO // 4, 0), blocked[mine] * (1 - gone)
            )
            queue[mine] = np.where((gone >= 1) & rows.synced[mine], LONG_AGO // 4, queue[mine])
        # The time between a free place in the queue and the row's issue is work: it shrinks as the row's work does.
        worked = self._after_queue[work[self._after_queue] < rows.work_ns[self._after_queue]]
        if len(worked):
            queue = _writable(queue, rows.queue_ns)
            queue[worked] = np.rint(queue[worked] * (work[worked] / rows.work_ns[worked])).astype(np.int64)
        return work, blocked, queue

    @property
    def _updates(self) -> bool:
        """Whether some optimizer updates parameters on the CPU: that is work, not overhead of the CPU."""
        return self.schedule.spent[CpuTime.UPDATE].is_some

    @cached_property
    def _of_updates(self) -> tuple[Ints, Ints, Ints]:
        """What `_host` returns if CPUs need no time, except for updates of parameters on the CPU.

        Each update takes at most as long as the median rank's, and begins once the gradients that it reads are there.
        """
        rows, spent = self.schedule.rows, self.schedule.spent
        nothing, never = (np.broadcast_to(np.int64(ns), rows.work_ns.shape) for ns in (0, LONG_AGO // 4))
        blocked = np.where(rows.waits, never, nothing)
        if not self._updates:
            return nothing, blocked, never
        work, queue = nothing.copy(), never.copy()
        update, awaited = spent[CpuTime.UPDATE], spent[CpuTime.READ].blocking
        took = self.host_ns(CpuTime.UPDATE)
        excess = np.maximum(1 - self.typical(took) / np.maximum(took, 1), 0)
        work[update.working] = update.work_ns
        blocked[update.blocking] = rows.blocked_ns[update.blocking]
        for amount, mine in ((work, update.working), (blocked, update.blocking)):
            some, gone = self._cells.with_share(excess, mine)
            amount[mine[some]] -= np.rint(amount[mine[some]] * gone).astype(np.int64)
        blocked[awaited], queue[awaited] = rows.blocked_ns[awaited], rows.queue_ns[awaited]
        return work, blocked, queue

    def _device(self, change: Change) -> Ints:
        """How long the device needs for each row with a change, shape (rows,), ns."""
        (need, whole), gone_ns = self._device_but_rows(change), self._gone_ns(change)
        return need if gone_ns is None else shortened(need, whole, self.schedule.rows.device_ns, gone_ns)

    def _device_but_rows(self, change: Change) -> tuple[Ints, Ints]:
        """The same without what the change removes of single rows (`_gone_ns`).

        Last with what it takes of calls by name: that leaves other calls as they were. Twice the same if it takes none.
        """
        need = self.schedule.rows.device_ns
        if change.device_at_median is not None:
            need = self._lowered(change.device_at_median)
        if change.balanced is not None:
            at_median = change.device_at_median
            lowered = self._cells.chosen(at_median) if at_median is not None else np.zeros(len(need), np.bool_)
            shared = self._device_balanced(change.balanced)
            need = np.where(lowered, np.minimum(need, shared), shared)
        if change.even_requests and self.spread is not None:
            even = self.schedule.rows.device_ns - self.spread.gone_ns
            need = np.where(self.spread.gone_ns > 0, np.minimum(need, even), need)
        if change.device_ns is None:
            return need, need
        rest = change.device_ns
        if change.device_at_median is not None:
            rest = self._above_median(rest, change.device_at_median, need)
        if change.of_calls is None or not len(self.schedule.recorded):
            need = need - self._cells.spread(need, rest)
            return need, need
        calls_ns = self._cells.spread(np.minimum(self._of_calls(change.of_calls), need), rest)
        rest = np.maximum(rest - self._cells.sum(calls_ns), 0)
        need = need - self._cells.spread(need - calls_ns, rest)
        return need - calls_ns, need

    def _above_median(self, gone_ns: Ints, chosen: Flags, need: Ints) -> Ints:
        """What of `gone_ns` is left to remove in each step, shape (R, S), once the chosen ones are at the median.

        What a step has more of than comparable ones is what made it longer, as copies of a checkpoint: that is gone
        already. `need` is how long the device then needs for each row.
        """
        lowered = self._cells.sum(self.schedule.rows.device_ns - need)
        left = np.maximum(gone_ns - lowered, np.minimum(gone_ns, self.typical(gone_ns)))
        return np.where(chosen, left, gone_ns)

    def _lowered(self, chosen: Flags) -> Ints:
        """How long the device needs for each row if it is no slower than the median in some steps, shape (R, S).

        What is tried on top of the same fixes one after the other asks for the same.
        """
        if chosen.all():
            return self._device_at_median
        last = self._lowered_last
        if last is None or last[0] is not chosen:
            need = np.where(self._cells.chosen(chosen), self._device_at_median, self.schedule.rows.device_ns)
            self._lowered_last = last = chosen, need
        return last[1]

    def _gone_ns(self, change: Change) -> Ints | None:
        """What a change removes of each row by `row_ns` and by a share of the calls in it, shape (rows,), ns; None if
        nothing.
        """
        share, row_ns, recorded = change.shorter_calls, change.row_ns, self.schedule.recorded
        if not len(recorded) or (share is None and row_ns is None):
            return None
        gone_ns: Ints = np.zeros(len(self.schedule.rows.rank), np.int64) if share is None else self._of_calls(share)
        if row_ns is not None:
            gone_ns[recorded] = row_ns if share is None else gone_ns[recorded] + row_ns
        return gone_ns

    def _of_calls(self, share: Floats) -> Ints:
        """Device time of each row in a share of each call, 0 to 1 as `Change.of_calls` has it, (rows,), ns."""
        return self.schedule.frame.calls.of_share(share, self.schedule.recorded, len(self.schedule.rows.rank))

    @cached_property
    def routing(self) -> Routing:
        """The ranks' device work between exchanges of tokens, for jobs with expert parallelism."""
        return routing(self.schedule, self._attention_ns)

    @cached_property
    def spread(self) -> Spread | None:
        """How unevenly requests are spread over the ranks of a server that have some of their own."""
        return None if self._attention_ns is None else spread(self.schedule, self._attention_ns)

    @cached_property
    def _attention_ns(self) -> Ints | None:
        """How long each row's attention takes, shape (rows,), ns; None unless ranks have requests of their own."""
        requests = self.schedule.frame.requests
        if requests is None or not len(self.schedule.recorded):
            return None
        attention: Ints = np.zeros(len(self.schedule.rows.rank), np.int64)
        attention[self.schedule.recorded] = self.schedule.frame.calls.varying_ns(requests.attends)
        return attention

    def _device_balanced(self, among: Flags) -> Ints:
        """How long the device needs for each row if the experts' load is balanced, shape (rows,), ns.

        Between two exchanges of tokens, the ranks and steps of `among`, flags of shape (R, S), then all compute as long
        as they do on average: those with few tokens longer than recorded.
        """
        pieces, need = self.routing, self.schedule.rows.device_ns
        remaining = 1 - pieces.above_mean_ns(among) / np.maximum(pieces.work_ns, 1)
        mine = np.flatnonzero(pieces.piece >= 0)
        shorter: Ints = need.copy()
        shorter[mine] = np.rint(need[mine] * remaining[pieces.piece[mine]])
        return shorter

    @cached_property
    def _device_at_median(self) -> Ints:
        """How long the device needs for each row if no rank's device is slower than the median, shape (rows,), ns.

        The work between the same two collectives is compared over the comparable ranks and steps, and shortened to
        their median. Where ranks differ in where they send and receive, the work of the whole step is compared. In
        steps that the job leaves out a rank's device is as much faster as in the others. Where batches vary, the ranks
        of a step take what the median rank takes for what they have to do on average.
        """
        rows, (ranks, steps) = self.schedule.rows, self.schedule.frame.step_index.shape
        mine = np.flatnonzero(rows.step >= 0)
        most = int(rows.between.max(initial=0)) + 1
        cell = rows.rank[mine] * steps + rows.step[mine]
        total = np.bincount(cell * most + rows.between[mine], rows.device_ns[mine], ranks * steps * most)
        total = total.reshape(ranks * steps, most)
        even = np.maximum(total - self.spread.above_ns, 0) if self.spread else total
        share = np.ones(total.shape)
        order = self.schedule.frame.order.ravel()
        vary, work = self.schedule.frame.batches_vary, self.schedule.frame.work.ravel()
        for same in self._comparable_in_step if vary else self._comparable:
            compared = even[same] if (order[same] == order[same[0]]).all() else even[same].sum(axis=1, keepdims=True)
            share[same] = share_if_even(compared, work[same]) if vary else share_at_median(compared)
        if self.spread:
            share = np.minimum(share * even / np.maximum(total, 1), 1)
        need = rows.device_ns.copy()
        share *= self._share_at_length.reshape(-1, 1)
        need[mine] = np.rint(need[mine] * share[cell, rows.between[mine]])
        left_out = np.flatnonzero((rows.step < 0) & self.schedule.frame.left_out_meet)
        before, after = (np.bincount(rows.rank[mine], each[mine], ranks) for each in (rows.device_ns, need))
        need[left_out] = np.rint(need[left_out] * (after / np.maximum(before, 1))[rows.rank[left_out]])
        shorter: Ints = need
        return shorter

    @property
    def slow_for_their_length(self) -> Flags:
        """Flags the steps in which devices take far longer than the sequences' length explains, shape (S,)."""
        return np.asarray((self._share_at_length < 1).any(axis=0))

    @cached_property
    def _share_at_length(self) -> Floats:
        """Factors for the device time of slow steps whose length no other step has, shape (R, S); else 1."""
        frame = self.schedule.frame
        return share_at_length(self.device_ns, frame.sequence, frame.but_for_length, frame.length)

    def _transfer(self, change: Change) -> Ints:
        """How long each part takes from the last traced arrival to its end with a change, shape (parts,), ns."""
        parts, takes = self.schedule.parts, self.schedule.lengths.transfer_ns
        if change.transfers_at_median is not None:
            chosen = self._part_cells.chosen(change.transfers_at_median)
            takes = np.where(chosen, parts.absent_ns + np.minimum(parts.transfer_ns, self._transfers_at_median), takes)
        if change.absent:
            takes = takes - parts.absent_ns
        if change.transfers is not None:
            takes = np.rint(takes * (1 - self._part_cells.of_each(change.transfers))).astype(np.int64)
        if change.of_collectives is not None:
            matched = (parts.collective >= 0) & (parts.collective < len(change.of_collectives))
            kept = np.where(matched, 1 - change.of_collectives[np.where(matched, parts.collective, 0)], 1.0)
            takes = np.rint(takes * kept).astype(np.int64)
        if change.transfer_ns is None:
            return takes
        removed = self._part_cells.spread(parts.exposed_ns, change.transfer_ns, parts.first_exposed_ns)
        return takes - np.minimum(removed, takes)

    @cached_property
    def _transfers_at_median(self) -> Ints:
        """How long each part transfers, at most the median of comparable ones, shape (parts,), ns.

        Comparable are collectives of the same kind and size at the same place in a step.
        """
        parts = self.schedule.parts
        known = np.flatnonzero(parts.step >= 0)
        # All parts of a collective transfer for the same time; a straggler's own part may show less of it.
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


def _writable(values: Ints, recorded: Ints) -> Ints:
    """The values for writing: a copy of them if they are the recorded column itself."""
    return values.copy() if values is recorded else values


def _last_rows(rows: TrackRows) -> Ints:
    """The rows whose device work may end a step of the rank: the last row of each rank and step.

    Also each row before one of negative `device_ns`: only there the later row may be done first.
    """
    order = in_order(rows.rank)
    changes = (np.diff(rows.rank[order], append=-1) != 0) | (np.diff(rows.own_step[order], append=-1) != 0)
    changes[:-1] |= rows.device_ns[order[1:]] < 0
    last: Ints = order[changes]
    return last


def _last_parts(parts: Parts, played: int) -> Ints:
    """Indices of the parts that may end their step.

    These are all parts of a step except those that one of the first `played` parts follows on the same stream in the
    same step: that one ends later.
    """
    ends_after = (parts.own_step[parts.after] == parts.own_step) & (parts.ready_ns >= 0) & (parts.transfer_ns >= 0)
    follows = np.flatnonzero(ends_after[:played])
    last = parts.own_step >= 0
    last[parts.after[follows]] = False
    return np.flatnonzero(last)


def _late_at_end(ends: Ints) -> Ints:
    """How much later than the first rank each rank would begin one more step, ns, shape (R,).

    `ends` has the shape (R, steps + 2), with the host's lead at the end in the last column.
    """
    # A negative lead: the host ends after its device, so the device has to wait for it.
    begins = ends[:, -2] + np.maximum(-ends[:, -1], 0)
    late: Ints = begins - begins.min()
    return late
