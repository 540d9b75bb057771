"""Plays the steps of a job with other collectives, transfers and device work. All predictions are made with it.

R = played ranks, S = steps of the job.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_ddp_doctor.digest.intervals import Intervals
from tb_ddp_doctor.digest.track import LONG_AGO
from tb_ddp_doctor.planning.edits.recorded_rows import RecordedRows
from tb_ddp_doctor.planning.refusal import CannotPlanError
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.model import Lengths, Parts, Played
from tb_ddp_doctor.replay.order import CircularWaitError
from tb_ddp_doctor.replay.play import play
from tb_ddp_doctor.replay.replay import Replay
from tb_ddp_doctor.replay.schedule import scheduled
from tb_ddp_doctor.trace.model import Ints

#: Kernels beside communication take longer, which changes how much of them is beside it: so steps are played this many
#: times. Each time leaves at most a third of the error, if kernels take 40 % longer beside communication.
_ROUNDS = 4
#: Longer than any record, ns: added to times once for each rank, so that ranks lie one after the other on one axis.
_APART_NS = 1 << 46


def _as_recorded(parts: Parts) -> Ints:
    return parts.transfer_ns


class Otherwise(msgspec.Struct, frozen=True, eq=False):
    """How the steps are changed, apart from which collectives are launched."""

    #: What fixes remove from the steps.
    change: Change = msgspec.field(default_factory=Change)
    #: How long each part transfers once all its ranks have arrived, ns.
    transfer_ns: Callable[[Parts], Ints] = _as_recorded
    #: The factor of the device's own work, shape (R, S); None for 1.
    device: NDArray[np.float64] | None = None
    #: The share by which kernels take longer beside communication than alone.
    slowdown: float = 0.0
    #: The factor by which bytes move faster than recorded; `transfer_ns` includes it. The time that moving a byte takes
    #: from kernels stays the same.
    pace: float = 1.0


class Split(msgspec.Struct, frozen=True):
    """The parts of a step, which sum to it; ns."""

    #: Device work.
    compute_ns: float
    #: Exposed communication before all ranks have arrived.
    wait_ns: float
    #: Exposed communication after that.
    transfer_ns: float
    #: Idle time of the device.
    idle_ns: float


class PlayedSteps:
    """The steps of R ranks with one set of collectives, to be played with changes."""

    def __init__(self, tracks: RecordedRows, recorded: PlayedSteps | None = None) -> None:
        """`recorded` are the steps as recorded, if `tracks` are changed ones. Raises CannotPlanError."""
        try:
            schedule = scheduled(tracks, tracks.part_table, tracks.table.awaits, tracks.frame)
        except CircularWaitError as error:
            raise CannotPlanError(
                "In these steps collectives would wait for each other in a circle: ranks launch others in other orders."
            ) from error
        self._replay: Replay = Replay(schedule, recorded._replay if recorded else None)
        self._order = np.argsort(schedule.rows.rank, kind="stable")
        self._origin_ns = int(schedule.frame.host_start_ns.min())
        before: RecordedRows = tracks if recorded is None else recorded._tracks
        self._tracks: RecordedRows = before
        communication = self._union(before.part_table.rank[:-1], before.arrival_ns[:-1], before.end_ns[:-1])
        #: How long each row's device work ran beside communication in the record, ns.
        self._beside_ns = np.empty(len(self._order), np.int64)
        self._beside_ns[self._order] = self._measured(
            communication, tracks.table.rank, tracks.done_ns, tracks.table.device_ns
        )

    @property
    def recorded_ns(self) -> Ints:
        """How long each step took as recorded, shape (R, S), ns."""
        return self._replay.recorded_ns

    def windows_ns(self, otherwise: Otherwise) -> Ints:
        """How long each step takes with a change, shape (R, S), ns."""
        return self._replay.steps_ns(self._lengths(otherwise))

    def split_ns(self, otherwise: Otherwise) -> Split:
        """The parts of a step with a change, mean over ranks and steps."""
        schedule, lengths = self._replay.schedule, self._lengths(otherwise)
        played = self._replay.steady_play(lengths)
        ends, ranks = self._replay.step_ends(played), np.arange(len(schedule.frame.step_index))[:, None]
        index, axis = schedule.frame.step_index, ranks * _APART_NS - self._origin_ns
        begin, end = axis + ends[ranks, index], axis + ends[ranks, index + 1]
        arrived = np.full(int(schedule.parts.collective.max()) + 1, LONG_AGO)
        np.maximum.at(arrived, schedule.parts.collective[:-1], played.arrival_ns[:-1])
        last = arrived[schedule.parts.collective[:-1]]
        rows, of_part = schedule.rows.rank.astype(np.int64), schedule.parts.rank[:-1]
        done = rows * _APART_NS - self._origin_ns + played.done_ns
        compute = Intervals.union(done - np.maximum(lengths.device_ns, 0), done)
        wait = self._union(of_part, played.arrival_ns[:-1], np.minimum(last, played.end_ns[:-1])) - compute
        transfer = self._union(of_part, np.minimum(last, played.end_ns[:-1]), played.end_ns[:-1]) - compute - wait
        works, waits, transfers = (float(one.measure(begin, end).mean()) for one in (compute, wait, transfer))
        return Split(works, waits, transfers, float((end - begin).mean()) - works - waits - transfers)

    def _lengths(self, otherwise: Otherwise) -> Lengths:
        """How long rows and parts take with a change."""
        lengths = replace(self._replay.lengths(otherwise.change), transfer_ns=self._transfers(otherwise))
        if otherwise.device is not None:
            lengths = self._with_device(lengths, np.rint(lengths.device_ns * self._of_rows(otherwise.device)))
        return self._slowed(lengths, otherwise)

    def _transfers(self, otherwise: Otherwise) -> Ints:
        """How long each part takes from the last traced arrival to its end with a change, shape (parts,), ns.

        That is what fixes leave of it, plus the change of its transfer.
        """
        parts = self._replay.schedule.parts
        with_fixes = self._replay.lengths(otherwise.change).transfer_ns
        transfer = otherwise.transfer_ns(parts)
        takes: Ints = np.maximum(with_fixes + transfer - parts.transfer_ns, 0)
        return takes

    def _of_rows(self, share: NDArray[np.float64]) -> NDArray[np.float64]:
        """For each row, the value of its rank and step in `share`, (R, S); the rank's mean for steps left out."""
        rows = self._replay.schedule.rows
        mean = share.mean(axis=1)
        return np.where(rows.step >= 0, share[rows.rank, np.maximum(rows.step, 0)], mean[rows.rank])

    def _slowed(self, lengths: Lengths, otherwise: Otherwise) -> Lengths:
        """The lengths, with device work slowed down for as long as it runs beside communication."""
        if otherwise.slowdown <= 0:
            return lengths
        lost = otherwise.slowdown / (1 + otherwise.slowdown)
        need = lengths.device_ns - lost * np.minimum(self._beside_ns, lengths.device_ns)
        paced = replace(lengths, transfer_ns=np.rint(lengths.transfer_ns * otherwise.pace).astype(np.int64))
        slowed = paced
        for _ in range(_ROUNDS):
            beside = self._beside(play(self._replay.schedule, slowed, kept=True), slowed)
            slowed = self._with_device(paced, need + lost * beside)
        return replace(slowed, transfer_ns=lengths.transfer_ns)

    def _with_device(self, lengths: Lengths, need: NDArray[np.float64]) -> Lengths:
        """The lengths with other device work, `need` in ns by row, and the times that depend on it."""
        need_ns = np.maximum(np.rint(need), 0).astype(np.int64)
        rows = self._replay.schedule.rows
        behind = np.flatnonzero(rows.queue_row >= 0)
        row = rows.queue_row[behind]
        tail = lengths.queue_tail_ns.copy()
        tail[behind] = np.rint(tail[behind] * (need_ns[row] / np.maximum(lengths.device_ns[row], 1)))
        return replace(
            lengths,
            device_ns=need_ns,
            lead_ns=lengths.lead_ns - (lengths.device_ns - need_ns),
            queue_tail_ns=tail,
        )

    def _beside(self, played: Played, lengths: Lengths) -> Ints:
        """How long each row's device work runs beside communication, ns."""
        schedule = self._replay.schedule
        launched = played.arrival_ns[:-1] > self._origin_ns - _APART_NS // 2
        parts = np.flatnonzero(launched)
        communication = self._union(schedule.parts.rank[parts], played.arrival_ns[parts], played.end_ns[parts])
        return self._measured(communication, schedule.rows.rank, played.done_ns, lengths.device_ns)

    def _union(self, rank: NDArray[np.integer], start_ns: Ints, end_ns: Ints) -> Intervals:
        known = start_ns > self._origin_ns - _APART_NS // 2
        base = rank[known].astype(np.int64) * _APART_NS - self._origin_ns
        return Intervals.union(base + start_ns[known], base + end_ns[known])

    def _measured(self, communication: Intervals, rank: NDArray[np.integer], done_ns: Ints, need_ns: Ints) -> Ints:
        """How long the device work of each row overlaps communication, ns."""
        done = rank.astype(np.int64) * _APART_NS + done_ns - self._origin_ns
        return communication.measure(done - np.maximum(need_ns, 0), done)
