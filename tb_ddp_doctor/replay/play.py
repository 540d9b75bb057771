"""Plays a schedule: when everything happens, given how long each thing takes. Times are ns on the common clock."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest.track import LONG_AGO
from tb_ddp_doctor.replay import native, native_library
from tb_ddp_doctor.replay.model import Lengths, Played, Round, Schedule
from tb_ddp_doctor.trace.model import Ints


def play(
    schedule: Schedule, lengths: Lengths, lead_ns: Ints | int = 0, sooner_ns: Ints | int = 0, *, kept: bool = False
) -> Played:
    """Play all rounds of a schedule: when each row and each part ends if they take `lengths`, ns on the common clock.

    `lead_ns` is how much further than recorded each host begins ahead of its device, and `sooner_ns` how much earlier
    than recorded each rank begins, both of shape (R,) or one number for all. With `kept`, the result also has when each
    row was issued, when its host went on and when each part arrived, which takes twice the memory.
    """
    playing = _Playing(schedule, lengths, lead_ns, sooner_ns, kept)
    if native_library.is_available():
        playing.natively()
    else:
        playing.with_numpy()
    return playing.played


class _Playing:
    """The state of a play: when each host and device is free, and what has been played so far."""

    def __init__(
        self, schedule: Schedule, lengths: Lengths, lead_ns: Ints | int, sooner_ns: Ints | int, kept: bool
    ) -> None:
        self._schedule, self._lengths, self._kept = schedule, lengths, kept
        rows, parts = len(schedule.rows.rank), len(schedule.parts.rank)
        begin_ns = schedule.frame.device_start_ns - sooner_ns
        self._device_at = begin_ns.copy()
        self._host_at = schedule.frame.host_start_ns - sooner_ns - lead_ns
        if lengths.no_host:
            self._host_at = np.full_like(self._device_at, LONG_AGO // 2)
        #: When each part may start by its own launch and by the device work that it needs, shape (parts,), ns.
        self._ready = np.full(parts, LONG_AGO)
        sooner = sooner_ns if isinstance(sooner_ns, int) else sooner_ns[schedule.parts.rank]
        self.played = Played(
            done_ns=np.empty(rows, np.int64),
            # Parts that no row launches are not played: they end as much earlier as their rank begins.
            end_ns=schedule.parts.end_ns - sooner,
            begin_ns=begin_ns,
            host_end_ns=self._host_at,
            issued_ns=np.empty(rows if kept else 0, np.int64),
            ended_ns=np.empty(rows if kept else 0, np.int64),
            arrival_ns=np.full(parts if kept else 0, LONG_AGO),
        )

    def natively(self) -> None:
        """Play all rounds in the native library."""
        begin_ns = self.played.begin_ns
        native.play(self._schedule, self._lengths, begin_ns, self._host_at, self._ready, self.played)

    def with_numpy(self) -> None:
        """Play all rounds with numpy, to the same nanosecond."""
        for each in self._schedule.rounds:
            if each.rows.start < each.rows.stop:
                self._rows(each)
            if len(each.starts):
                self._parts(each)

    def _rows(self, now: Round) -> None:
        """Play the rows of a round: when the host issues each row, when the device is done, when the host goes on."""
        rows, lengths, played, here, ranks = self._schedule.rows, self._lengths, self.played, now.rows, now.ranks
        issued, free = self._host_at[ranks] + lengths.work_ns[here], self._device_at[ranks]
        if now.queued:
            synced, free_ns = rows.synced[here], self._queue_free_ns(now)
            issued = np.maximum(issued, np.where(synced, LONG_AGO, free_ns))
        if now.gated:
            free = np.maximum(free, played.end_ns[rows.awaits[here]] + rows.delay_ns[here])
        done = np.maximum(free + lengths.device_ns[here], issued + lengths.lead_ns[here])
        ended = issued
        if now.blocked:
            ended = np.maximum(issued, np.where(rows.waits[here], done, issued) + lengths.blocked_ns[here])
        if now.queued:
            ended = np.where(synced, np.maximum(ended, free_ns), ended)
        self._host_at[ranks], self._device_at[ranks] = ended, done
        played.done_ns[here] = done
        if self._kept:
            played.issued_ns[here], played.ended_ns[here] = issued, ended
        self._launch(now, ended)

    def _queue_free_ns(self, now: Round) -> Ints:
        """When the launch queue has a place for each row of a round; for a `synced` row, when its event is over."""
        rows, lengths, played, here = self._schedule.rows, self._lengths, self.played, now.rows
        behind = rows.queue_row[here]
        free_ns = np.where(
            behind >= 0, played.done_ns[behind] - lengths.queue_tail_ns[here], played.end_ns[rows.queue_part[here]]
        )
        free_ns = np.where(rows.queue_before[here], played.begin_ns[rows.rank[here]], free_ns)
        return free_ns + lengths.queue_ns[here]

    def _launch(self, now: Round, ended: Ints) -> None:
        """Launch the parts of a round; `ended` is when the host of each of its rows went on."""
        parts, launched, launch = self._schedule.parts, now.launched, ended[now.launching]
        if now.needing:
            needs = parts.needs[launched]
            launch = np.maximum(launch, np.where(needs >= 0, self.played.done_ns[needs], LONG_AGO))
        self._ready[launched] = launch + parts.ready_ns[launched]

    def _parts(self, now: Round) -> None:
        """Play the collectives of a round: all parts of one end `transfer_ns` after the last of them has arrived."""
        parts, played, here = self._schedule.parts, self.played, now.completed
        arrival = np.maximum(self._ready[here], played.end_ns[now.after] + parts.ready_ns[here])
        if self._kept:
            played.arrival_ns[here] = arrival
        if not self._lengths.alone:
            arrival = np.repeat(np.maximum.reduceat(arrival, now.starts), now.sizes)
        played.end_ns[here] = arrival + self._lengths.transfer_ns[here]
