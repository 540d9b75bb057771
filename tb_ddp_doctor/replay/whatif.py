"""What the step would take if a fault were fixed.

The steps are played again without it (see `replay`). A trace was slowed by its recording, and what that takes is no
fault of the job: what a fix saves is what it saves of the steps as they would be untraced. Where host and device cannot
be told apart, on CPUs and without launch records, busy times are compared instead: a rank's busy time is its step
without the waiting for others, and the step ends when the slowest rank's busy time does. There, what the device idles
for goes with what the host spends its time on.

A rank that waits computes nothing beside the transfers that follow, so its transfers are exposed although nothing is
wrong with them; once nobody is late they hide as well as they do on the rank that kept the others waiting. Where busy
times are compared, that rank's exposed transfer is therefore the most that any of them is charged with.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from functools import cached_property, reduce
from operator import or_

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.model import CpuTime, RankDigest
from tb_ddp_doctor.digest.spending import SPENDING
from tb_ddp_doctor.job.model import Budget, Job
from tb_ddp_doctor.replay import device_work
from tb_ddp_doctor.replay.bindings import Bindings
from tb_ddp_doctor.replay.cells import lower_median
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.order import CircularWaitError
from tb_ddp_doctor.replay.replay import Replay
from tb_ddp_doctor.replay.schedule import schedule
from tb_ddp_doctor.trace.model import Ints

#: Plays of the steps that are kept: rules, the account and the what-if ask for the same ones.
_KEPT = 64
#: So many times the median rank's time is far beyond it in a step, and so many over all steps, if by this share of the
#: step. Loaders of healthy jobs differ by a third in single steps, and by a tenth over all.
_FAR_BEYOND = 2
_ALWAYS_BEYOND, _ALWAYS_BEYOND_BY = 1.25, 0.10
#: Steps played with nothing removed miss the recorded ones by no more than this share; else something else went on.
_MOST_MISSED = 0.01
#: What a host's time goes to that shows as idle time of the device, without a replay too.
_SEEN_AS_IDLE = (CpuTime.ALLOC, CpuTime.SYNC, CpuTime.INPUT, CpuTime.STALL, CpuTime.WORK)
#: The owner of the device's idle time meanwhile; and the same of CPUs, whose operations are what they compute.
_OF_DEVICES: Mapping[CpuTime, str] = {kind: SPENDING[kind].owner for kind in _SEEN_AS_IDLE}
_OF_CPUS: Mapping[CpuTime, str] = {**_OF_DEVICES, CpuTime.WORK: "compute"}


class Saving(msgspec.Struct, frozen=True, eq=False):
    """What a fix gives back."""

    #: Shape (S,), ns; negative where a step gets longer.
    by_step_ns: NDArray[np.float64]

    @property
    def mean_ns(self) -> float:
        """Mean over steps, never negative."""
        return max(float(self.by_step_ns.mean()), 0.0)

    @property
    def range_ns(self) -> tuple[float, float]:
        """The least and the most that any step gains, never negative."""
        return max(float(self.by_step_ns.min()), 0.0), max(float(self.by_step_ns.max()), 0.0)


class WhatIf:
    """The steps of a job without what a fix removes; R ranks, S steps."""

    def __init__(
        self,
        budget: Budget,
        replay: Replay | None = None,
        *,
        has_device: bool = True,
        absent_ns: Ints | None = None,
        digests: Sequence[RankDigest] = (),
    ) -> None:
        self._budget, self._replay, self._digests = budget, replay, digests
        self._absent_ns = np.zeros_like(budget.busy_ns) if absent_ns is None else absent_ns
        self._owners = _OF_DEVICES if has_device else _OF_CPUS
        self._played: dict[object, Ints] = {}
        #: What tracing adds to the steps; and what savings are on top of: that, and what is fixed already.
        self.tracing = self._base = self.without(CpuTime.OVERHEAD, CpuTime.RECORDING)
        #: Whether this is the job with what was found fixed: what hides behind that shows in no gap of the record.
        self.fixes_something = False
        #: Whether no rule has found more in it, and much is left that a fix would give back.
        self.is_last_look = False
        #: What each rank needs for a step by itself, shape (R, S), ns: the step if it waited for nobody.
        self.busy_ns: Ints = self._played_ns(replay, Change(), alone=True) if replay else _compared_busy_ns(budget)
        #: Index of the rank that waits least in each step as recorded, shape (S,): the one whose transfers are exposed
        #: for no other's sake.
        self.slowest: NDArray[np.int64] = budget.busy_ns.argmax(axis=0)

    @classmethod
    def of(cls, job: Job) -> WhatIf:
        """From a job, with a replay where every rank's host and device can be told apart."""
        return cls(
            job.budget,
            _replay(job),
            has_device=job.has_device,
            absent_ns=job.waiting.absent_ns,
            digests=job.digests,
        )

    def after(self, fixed: Change, *, supposed: bool = False) -> WhatIf:
        """The same job once something is fixed, or supposed to be gone: savings are on top of that."""
        later = copy(self)
        later.fixes_something = not supposed
        later._base = self._base | fixed
        later.__dict__.pop("_base_ns", None)
        later.busy_ns = self.alone_ns(fixed)
        return later

    def gains_alone_ns(self, change: Change) -> Ints:
        """How much less each rank needs for a step by itself without what is removed, shape (R, S), ns."""
        return self.alone_ns(self._base) - self.alone_ns(self._base | change)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a job's amounts by rank and step: (R, S)."""
        return self._budget.window_ns.shape

    def without(self, *kinds: CpuTime) -> Change:
        """All of the host's time of some kinds, on all ranks."""
        return Change({kind: np.broadcast_to(1.0, self.shape) for kind in kinds})

    def host_ns(self, kind: CpuTime) -> Ints:
        """The host's time that goes to something, shape (R, S), ns; where it is not known, the device's idle time."""
        if self._replay:
            return self._replay.host_ns(kind)
        return self._budget.of(self._owners[kind]) if kind in self._owners else np.zeros(self.shape, np.int64)

    def typical(self, values: Ints, among: NDArray[np.bool_] | None = None) -> Ints:
        """Of values of shape (R, S), the lower median over comparable ranks and steps, of some ranks, shape (R, S)."""
        if self._replay:
            return self._replay.typical(values, among)
        rows = values if among is None or not among.any() else values[among]
        typical: Ints = np.broadcast_to(lower_median(rows), values.shape)
        return typical

    def typical_of_step(self, values: Ints) -> Ints:
        """Of values of shape (R, S), the lower median over comparable ranks in the same step, shape (R, S)."""
        if self._replay:
            return self._replay.typical_of_step(values)
        typical: Ints = np.broadcast_to(lower_median(values), values.shape)
        return typical

    def alone_ns(self, change: Change) -> Ints:
        """What each rank needs for a step by itself without what is removed, shape (R, S), ns."""
        if self._replay:
            return self._played_ns(self._replay, change, alone=True)
        return self.busy_ns - self._busy_part(change)

    def like_the_median(
        self,
        chosen: NDArray[np.bool_],
        among: NDArray[np.bool_] | None = None,
        kinds: Collection[CpuTime] = tuple(CpuTime),
    ) -> Change:
        """What makes the chosen ranks' steps, shape (R, S), like the median of comparable ranks and steps.

        If `among`, shape (R,), is given, only these ranks are compared with; `kinds` are those of the host's time.
        """
        if not self._replay:
            return Change(device_at_median=chosen)
        host: dict[CpuTime, NDArray[np.float64]] = {}
        there = _and_before(chosen)
        whole = there.astype(np.float64)
        for kind in kinds:
            spent = self._replay.host_ns(kind)
            share = whole
            if spent.any():
                typical = self._replay.typical(spent, among)
                share = np.where(there, np.maximum(1 - typical / np.maximum(spent, 1), 0), 0.0)
            if share.any():
                host[kind] = share
        if len(kinds) < len(CpuTime):
            return Change(host)
        if among is None:
            return Change(host, device_at_median=chosen)
        device = self._replay.device_ns
        beyond = np.maximum(device - self._replay.typical(device, among), 0)
        return Change(host, device_ns=np.where(chosen, beyond, 0))

    def shared_in(self, steps: NDArray[np.bool_]) -> Change:
        """What the hosts of all ranks do longer in the chosen steps, shape (S,), than in comparable ones.

        As much of it as the median rank does: what one rank does on top is its own.
        """
        chosen = _and_before(np.broadcast_to(steps, self.shape))
        host: dict[CpuTime, NDArray[np.float64]] = {}
        for kind in CpuTime:
            if kind is not CpuTime.RECORDING:
                spent = self.host_ns(kind)
                typical = self.typical(spent)
                longer = np.minimum(np.maximum(lower_median(spent) - typical, 0), np.maximum(spent - typical, 0))
                share = np.where(chosen, longer / np.maximum(spent, 1), 0.0)
                if share.any():
                    host[kind] = share
        return Change(shared=host)

    def shared(self, kind: CpuTime, among: NDArray[np.bool_] | None = None) -> Change:
        """The host's time of one kind on all ranks, as far as they share it.

        What one rank has far beyond the median rank, in the step or over all steps, is its own; what ranks have a
        little more is chance. If `among`, shape (R,), is given, the median is that of these ranks.
        """
        spent = self.host_ns(kind)
        median = np.broadcast_to(lower_median(spent if among is None else spent[among]), spent.shape)
        mean, usual = spent.mean(axis=1), float(median[0].mean())
        least = _ALWAYS_BEYOND_BY * float(self._budget.window_ns.mean())
        always = (mean > _ALWAYS_BEYOND * usual) & (mean - usual > least)
        own = (spent > _FAR_BEYOND * median) | (always[:, None] & (spent > median))
        return Change(shared={kind: np.where(own, median / np.maximum(spent, 1), 1.0)})

    @property
    def device_ns(self) -> Ints:
        """What each rank's device needs, shape (R, S), ns; zeros where steps are not played."""
        return self._replay.device_ns if self._replay else np.zeros(self.shape, np.int64)

    def have_as_much_work(self, chosen: NDArray[np.bool_]) -> bool:
        """Whether the devices of the chosen ranks, shape (R,), have as much to do as the others', if not as long."""
        needed = self.device_ns.mean(axis=1)
        long_as_others = np.median(needed[chosen]) >= (1 - device_work.AS_MUCH) * np.median(needed)
        return bool(needed.any() and (long_as_others or device_work.as_much(self._digests, chosen)))

    def beyond_their_length_ns(self) -> Ints:
        """How much less the median rank would need by itself in each step if devices took as long as the length of its
        sequences lets expect, shape (S,), ns; 0 in steps that can be compared with others of their length.
        """
        slow = self._replay.slow_for_their_length if self._replay else np.zeros(self.shape[1], np.bool_)
        if not slow.any():
            return np.zeros(self.shape[1], np.int64)
        chosen = np.broadcast_to(slow, self.shape)
        gains: Ints = lower_median(self.gains_alone_ns(Change(device_at_median=chosen)))
        return np.where(slow, np.maximum(gains, 0), 0)

    @property
    def faultless(self) -> Change:
        """What a job without any fault would be without: see `account.savings`."""
        everywhere = np.ones(self.shape, np.bool_)
        return Change(
            device_at_median=everywhere,
            transfers_at_median=everywhere,
            balanced=everywhere,
            absent=True,
            no_host=True,
        )

    @property
    def plays(self) -> bool:
        """Whether steps are played again, not only own times compared."""
        return self._replay is not None

    def saving(self, change: Change) -> Saving:
        """What the untraced steps save without what is removed."""
        if change.is_nothing:
            return Saving(np.zeros(self.shape[1]))
        return Saving(np.asarray((self._base_ns - self.step_ns(self._base | change)).mean(axis=0)))

    def step_ns(self, change: Change) -> Ints:
        """The steps without what is removed, tracing included if it is not; shape (R, S), ns."""
        if self._replay:
            return self._played_ns(self._replay, change)
        own = self.busy_ns.max(axis=0) - (self.busy_ns - self._busy_part(change)).max(axis=0)
        # The slowest rank waits for none of those that have a trace.
        own += self.at_slowest(self._absent_ns) * change.absent
        left: Ints = np.maximum(self._budget.window_ns - own.astype(np.int64), 0)
        return left

    def _played_ns(self, replay: Replay, change: Change, *, alone: bool = False) -> Ints:
        """The steps played without what is removed, or each rank's by itself, shape (R, S), ns; the last are kept."""
        change = replay.in_effect(change)
        key = (alone, change.key())
        if key not in self._played:
            if len(self._played) >= _KEPT:
                del self._played[next(iter(self._played))]
            self._played[key] = replay.step_ns(change, alone=alone)
        return self._played[key]

    @property
    def replay(self) -> Replay | None:
        """The steps to be played otherwise than without something; None where they are not played."""
        return self._replay

    @property
    def bindings(self) -> Bindings | None:
        """What bound each event of the record; None where steps are not played."""
        return Bindings(self._replay) if self._replay else None

    @property
    def recorded_ns(self) -> Ints:
        """The steps with nothing removed, shape (R, S), ns."""
        return self._replay.recorded_ns if self._replay else self._budget.window_ns

    @property
    def tracing_ns(self) -> float:
        """What tracing adds to the step, mean over ranks and steps, ns; never negative."""
        return max(float((self.recorded_ns - self.step_ns(self.tracing)).mean()), 0.0)

    @cached_property
    def _base_ns(self) -> Ints:
        return self.step_ns(self._base)

    def cost_ns(self, change: Change) -> float:
        """Predicted fall of the step time without what is removed, mean over steps, ns; never negative."""
        return self.saving(change).mean_ns

    def saves_more_than_it_removes(self, change: Change) -> bool:
        """Whether a play saves the job more time than the change takes out on all ranks together, which none can.

        Never where steps are not played.
        """
        if self._replay is None:
            return False
        saved = self.cost_ns(change) * self.shape[1]
        # What the CPUs spend goes without a play; calls that wait for the device need one.
        removed = sum(float((share * self.host_ns(kind)).sum()) for kind, share in change.of_host.items())
        removed += sum(float(amount.sum()) for amount in (change.device_ns, change.transfer_ns) if amount is not None)
        within = _MOST_MISSED * float(self.recorded_ns.mean())
        return saved > removed + within and saved > self._replay.removed_ns(change) + within

    def costs_ns(self, several: Sequence[Change]) -> list[float]:
        """What each of several fixes of one kind gives back, ns: all of them together, shared among them.

        Each has a share like what it gives once the others are made. So of two slow ranks each has its part, though
        the step stays as long as the other one's if only one is mended.
        """
        total = self.cost_ns(reduce(or_, several))
        if len(several) == 1:
            return [total]
        last = [
            max(total - self.cost_ns(reduce(or_, [*several[:i], *several[i + 1 :]], Change())), 0.0)
            for i in range(len(several))
        ]
        return [total * (cost / sum(last) if sum(last) else 1 / len(last)) for cost in last]

    def _busy_part(self, change: Change) -> Ints:
        """What goes of each rank's own time, shape (R, S), ns."""
        gone = np.zeros(self.busy_ns.shape)
        for kind, share in change.of_host.items():
            gone += share * self.host_ns(kind)
        for amount in (change.device_ns, change.transfer_ns):
            if amount is not None:
                gone += amount
        if change.device_at_median is not None:
            gone += np.where(change.device_at_median, np.maximum(self.busy_ns - lower_median(self.busy_ns), 0), 0)
        return np.rint(np.minimum(gone, self.busy_ns)).astype(np.int64)

    def at_slowest(self, values: Ints) -> Ints:
        """Of values of shape (R, S) those of each step's slowest rank, shape (S,)."""
        return values[self.slowest, np.arange(len(self.slowest))]


def _and_before(chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The chosen steps of each rank and those before, shape (R, S): the end of a host's step holds up the next one's
    device.
    """
    return chosen | np.pad(chosen[:, 1:], ((0, 0), (0, 1)))


def _compared_busy_ns(budget: Budget) -> Ints:
    """The step without waiting, with transfers as exposed as they are on the slowest rank, shape (R, S), ns."""
    transfer = budget.of("transfer")
    slowest = budget.busy_ns.argmax(axis=0)
    undelayed = transfer[slowest, np.arange(len(slowest))]
    compared: Ints = budget.busy_ns - np.maximum(transfer - undelayed, 0)
    return compared


def _replay(job: Job) -> Replay | None:
    if not all(len(digest.track) for digest in job.digests):
        return None
    try:
        replay = Replay(schedule(job))
    except CircularWaitError:
        return None
    missed = np.abs(replay.recorded_ns - job.budget.window_ns).mean()
    return replay if missed <= _MOST_MISSED * job.budget.window_ns.mean() else None
