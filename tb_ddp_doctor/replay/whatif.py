"""Answers what-if questions: how long a step would take if a fault were fixed.

There are two ways. The replay plays the steps of all ranks again with the change (`replay.py`). Where the steps cannot
be replayed (`playable.py`), busy times are compared instead:

- A rank's busy time is its step minus straggler wait. The step ends when the slowest rank's busy time ends.
- Idle time of the device shrinks with the work of the host that the device idles for.
- A rank that waits computes nothing beside the transfers that follow, so its transfers are exposed although nothing is
  wrong with them. Once no rank is late, they overlap as well as on the rank that the others waited for. So no rank is
  charged with more exposed transfer than that rank has.

Recording a trace slows the job down, which is no fault of the job. So savings are relative to the steps as they would
be without tracing. R = ranks, S = steps of the job.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from functools import cached_property, reduce
from itertools import islice
from operator import or_
from threading import BoundedSemaphore

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.model import CpuTime, RankDigest
from tb_ddp_doctor.digest.spending import SPENDING
from tb_ddp_doctor.job import job_kind
from tb_ddp_doctor.job.collectives import Matched
from tb_ddp_doctor.job.model import Budget, Job
from tb_ddp_doctor.job.rl_roles import parts_of_roles
from tb_ddp_doctor.replay import device_work
from tb_ddp_doctor.replay.asynchronous import awaited_engines
from tb_ddp_doctor.replay.bindings import Bindings
from tb_ddp_doctor.replay.bound_roles import bound_roles
from tb_ddp_doctor.replay.cells import lower_median
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.guests import share_of_kernels
from tb_ddp_doctor.replay.needless_idle import needless_idle
from tb_ddp_doctor.replay.playable import MOST_MISSED, replay_of
from tb_ddp_doctor.replay.replay import FAR_MORE, Replay
from tb_ddp_doctor.trace.model import Floats, Ints
from tb_ddp_doctor.trace.program_names import Program

#: Results of this many plays are kept: rules, the account and the what-if ask for the same ones.
_KEPT = 64
#: So many plays ahead at the same time: each waits for memory most of the time, and more would share what there is.
_AT_ONCE = 2
_turns = BoundedSemaphore(_AT_ONCE)
#: The same as `replay.FAR_MORE` for all time that a rank needs for a step. That differs less than one kind of time:
#: with noise of 6 % a step, medians over steps differ by less than 4 %.
_FAR_MORE_IN_ALL = 1.1
#: A rank's time is its own fault, not shared, if in a step it is this many times the median rank's. Loaders of healthy
#: jobs differ by a third in single steps.
_FAR_MORE_IN_A_STEP = 2
#: A rank's time is its own fault, too, if over all steps it is this many times the median rank's, and exceeds that by
#: this share of the step. Loaders of healthy jobs differ by a tenth over all steps.
_MORE_IN_ALL_STEPS, _MORE_BY = 1.25, 0.10
#: The kinds of host time that show as idle time of the device in the budget.
_SEEN_AS_IDLE = (CpuTime.ALLOC, CpuTime.SYNC, CpuTime.INPUT, CpuTime.STALL, CpuTime.WORK)
#: The owner of that idle time; on jobs of CPUs alone, ops are compute.
_OF_DEVICES: Mapping[CpuTime, str] = {kind: SPENDING[kind].owner for kind in _SEEN_AS_IDLE}
_OF_CPUS: Mapping[CpuTime, str] = {**_OF_DEVICES, CpuTime.WORK: "compute"}


class Saving(msgspec.Struct, frozen=True, eq=False):
    """How much shorter a fix makes the steps."""

    #: By step, shape (S,), ns; negative where a step gets longer.
    by_step_ns: NDArray[np.float64]

    @property
    def mean_ns(self) -> float:
        """Mean over steps, ns, never negative."""
        return max(float(self.by_step_ns.mean()), 0.0)


class WhatIf:
    """A job's steps with what-if changes."""

    def __init__(
        self,
        budget: Budget,
        replay: Replay | None = None,
        *,
        has_device: bool = True,
        absent_ns: Ints | None = None,
        digests: Sequence[RankDigest] = (),
        matched: Matched | None = None,
        pace: Floats | None = None,
        roles: Sequence[Ints] = (),
        bound_roles: Sequence[Ints] = (),
        no_replay: str = "",
        needless_idle: Mapping[CpuTime, Ints] | None = None,
    ) -> None:
        self._budget, self._digests, self._matched = budget, digests, matched
        #: The ranks (indices) of each role of reinforcement learning, which together are all; none for other jobs.
        self._roles = roles
        #: The ranks (indices) of each role of reinforcement learning that takes as long for a round as the others.
        self._bound_roles = bound_roles
        #: For changes that are more than a `Change`; None where busy times are compared.
        self.replay = replay
        #: Why there is none, in sentences; "" with a replay.
        self.no_replay = no_replay
        self._absent_ns = np.zeros_like(budget.busy_ns) if absent_ns is None else absent_ns
        self._owners = _OF_DEVICES if has_device else _OF_CPUS
        self._needless_idle = needless_idle or {}
        #: How long each step's kernels take, as a multiple of what as many with such grids usually take on the rank,
        #: shape (R, S).
        self.pace = np.ones(budget.busy_ns.shape) if pace is None else pace
        #: By change what was played, or is being played ahead.
        self._played: dict[object, Ints | Future[Ints]] = {}
        #: The change that removes what tracing adds to the steps.
        self.tracing = self.without(CpuTime.OVERHEAD, CpuTime.RECORDING)
        #: What no fix can save: what tracing adds, and the time in which a server has no request. Savings are relative
        #: to the steps with `_base`: this change, and those of the faults that are fixed already.
        self.no_fault = self._base = self.tracing
        #: Whether findings are fixed in this job. Faults that were hidden behind them show in no gap of the record.
        self.fixes_something = False
        #: Whether the rules look for the last time: they found no more, but much of the step is still unexplained.
        self.is_last_look = False
        #: The faults that are fixed already, without `tracing`.
        self._fixed = Change()

    @classmethod
    def of(cls, job: Job) -> WhatIf:
        """The what-if of a job, with a replay where its steps can be replayed."""
        played = replay_of(job)
        replay, no_replay = (None, played) if isinstance(played, str) else (played, "")
        return cls(
            job.budget,
            replay,
            has_device=job.has_device,
            absent_ns=job.waiting.absent_ns,
            digests=job.digests,
            matched=job.matched,
            pace=_pace(job),
            roles=_roles(job),
            bound_roles=bound_roles(job, replay.schedule) if replay else (),
            no_replay=no_replay,
            needless_idle=None if replay else needless_idle(job),
        )

    def after(self, fixed: Change, *, supposed: bool = False) -> WhatIf:
        """The same job with `fixed` applied: savings are on top of that change.

        `supposed` says that the change is only an assumption, not the fix of findings.
        """
        later = copy(self)
        later.fixes_something = not supposed
        later._base, later._fixed = self._base | fixed, self._fixed | fixed
        for of_base in ("_base_ns", "busy_ns", "for_more_work_ns"):
            later.__dict__.pop(of_base, None)
        return later

    def without_idle(self, requests: Change) -> WhatIf:
        """The same job, in which savings are relative to the steps without the time that `requests` removes: that in
        which there is no request to serve.
        """
        busy = copy(self)
        busy.no_fault = busy._base = self.tracing | requests
        return busy

    @cached_property
    def slowest(self) -> NDArray[np.int64]:
        """Index of the rank that waits least in each step as recorded, shape (S,). Its transfers are not exposed by any
        wait. Roles of reinforcement learning wait in pauses, too, and nobody waits for engines that generate ahead.
        """
        busy = self._budget.busy_ns
        if self.replay and self._bound_roles:
            alone = self._played_ns(self.replay, Change(), alone=True)
            busy = np.where(self.replay.schedule.frame.ahead[:, None], -1, np.minimum(busy, alone))
        slowest: NDArray[np.int64] = busy.argmax(axis=0)
        return slowest

    @cached_property
    def busy_ns(self) -> Ints:
        """How long each rank alone needs for a step, without waiting for others, shape (R, S), ns.

        Faults that are fixed already are left out.
        """
        return self.alone_ns(self._fixed)

    def gains_alone_ns(self, change: Change) -> Ints:
        """How much less time each rank alone needs for a step with a change, shape (R, S), ns."""
        return self.alone_ns(self._base) - self.alone_ns(self._base | change)

    @property
    def shape(self) -> tuple[int, ...]:
        """Ranks and steps of the job: (R, S)."""
        return self._budget.window_ns.shape

    def without(self, *kinds: CpuTime) -> Change:
        """The change that removes all host time of some kinds on all ranks."""
        return Change({kind: np.broadcast_to(1.0, self.shape) for kind in kinds})

    def host_ns(self, kind: CpuTime) -> Ints:
        """How long each host spends on one kind of work, shape (R, S), ns.

        Without a replay, the idle time of the device that this work owns.
        """
        if self.replay:
            return self.replay.host_ns(kind)
        return self._budget.of(self._owners[kind]) if kind in self._owners else np.zeros(self.shape, np.int64)

    def typical(self, values: Ints) -> Ints:
        """The typical value for each rank and step, shape (R, S): the lower median of the comparable ones."""
        return self._typical(values, None, FAR_MORE)

    def typical_need(self, need_ns: Ints, among: NDArray[np.bool_] | None = None) -> Ints:
        """The same of all that ranks need for a step, such as `busy_ns`: noise differs less than in one kind of time.

        `among`, flags of shape (R,), limits the ranks that are compared with (see `Replay.typical`).
        """
        return self._typical(need_ns, among, _FAR_MORE_IN_ALL)

    def _typical(self, values: Ints, among: NDArray[np.bool_] | None, far_more: float) -> Ints:
        if self.replay:
            return self.replay.typical(values, among, far_more)
        rows = values if among is None or not among.any() else values[among]
        return np.broadcast_to(lower_median(rows), values.shape)

    def typical_of_step(self, values: Ints) -> Ints:
        """The lower median of the comparable ranks in the same step, for each rank and step, shape (R, S)."""
        if self.replay:
            return self.replay.typical_of_step(values)
        return np.broadcast_to(lower_median(values), values.shape)

    def alone_ns(self, change: Change) -> Ints:
        """How long each rank alone needs for a step with a change, without waiting for others, shape (R, S), ns."""
        if self.replay:
            return self._played_ns(self.replay, change, alone=True)
        return self._compared_ns - self._busy_part(change)

    def at_the_median(
        self,
        chosen: NDArray[np.bool_],
        among: NDArray[np.bool_] | None = None,
        kinds: Collection[CpuTime] = tuple(CpuTime),
    ) -> Change:
        """The change that lowers host time and device work of some ranks and steps to those of the median.

        `chosen` flags these ranks and steps, shape (R, S). The median is that of comparable ranks and steps; `among`,
        flags of shape (R,), limits the ranks to compare with. `kinds` are the kinds of host time to lower; the device
        is lowered only with all of them.
        """
        if not self.replay:
            return Change(device_at_median=chosen)
        host: dict[CpuTime, NDArray[np.float64]] = {}
        launching = _with_step_before(chosen)
        whole = launching.astype(np.float64)
        for kind in kinds:
            spent = self.replay.host_ns(kind)
            share = whole
            if spent.any():
                typical = self.replay.typical(spent, among)
                share = np.where(launching, np.maximum(1 - typical / np.maximum(spent, 1), 0), 0.0)
            if share.any():
                host[kind] = share
        if len(kinds) < len(CpuTime):
            return Change(host)
        if among is None:
            return Change(host, device_at_median=chosen)
        device = self.replay.device_ns
        excess = np.maximum(device - self.replay.typical(device, among), 0)
        return Change(host, device_ns=np.where(chosen, excess, 0))

    def shared_in(self, steps: NDArray[np.bool_]) -> Change:
        """The change that removes what makes all hosts slower in some steps than in comparable steps.

        `steps` flags these steps, shape (S,). At most the median rank's excess is removed from each rank: the rest is
        that rank's own.
        """
        chosen = _with_step_before(np.broadcast_to(steps, self.shape))
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
        """The change that removes one kind of host time from all ranks, as far as all ranks share it.

        A rank that has far more of it than the median rank of its role, in a step or over all steps, keeps its excess:
        that is its own fault. Small differences are noise and are removed too. With `among`, flags of shape (R,), the
        median is that of these ranks.
        """
        spent = self.host_ns(kind)
        median = np.empty(spent.shape)
        for role in self._roles or [np.arange(len(spent))]:
            compared = role if among is None or not among[role].any() else role[among[role]]
            median[role] = lower_median(spent[compared])
        mean, typical = spent.mean(axis=1), median.mean(axis=1)
        least = _MORE_BY * float(self._budget.window_ns.mean())
        in_all_steps = (mean > _MORE_IN_ALL_STEPS * typical) & (mean - typical > least)
        own = (spent > _FAR_MORE_IN_A_STEP * median) | (in_all_steps[:, None] & (spent > median))
        return Change(shared={kind: np.where(own, median / np.maximum(spent, 1), 1.0)})

    def shorter_transfers(self, rows: Ints, share: Floats | float) -> Change:
        """The change that removes a share of some transfers, hidden or exposed.

        `rows` are those of the job's matched collectives, `share` is one for each, 0 to 1. Without a replay it
        removes nothing.
        """
        if self.replay is None:
            return Change()
        of_each = np.zeros(int(self.replay.schedule.parts.collective.max(initial=0)) + 1)
        of_each[rows] = share
        if self._matched is not None:
            first_call = np.cumsum([0, *(len(digest.collectives) for digest in self._digests)])
            of_each = share_of_kernels(self._matched, first_call, self.replay.schedule.parts, of_each)
        return Change(of_collectives=of_each)

    @property
    def engines(self) -> Ints:
        """The ranks (indices) that generate all the time for reinforcement learning, each by itself, and not ahead."""
        return awaited_engines(self.replay.schedule) if self.replay else np.empty(0, np.int64)

    @property
    def device_ns(self) -> Ints:
        """How long each device needs for the work of each step, shape (R, S), ns; zeros without a replay."""
        return self.replay.device_ns if self.replay else np.zeros(self.shape, np.int64)

    def have_as_much_work(self, chosen: NDArray[np.bool_]) -> bool:
        """Whether the devices of some ranks, flags of shape (R,), have as much work as those of all ranks.

        They have if they need about as long for it, or run as many and as large kernels (`device_work.as_much`).
        """
        needed = self.device_ns.mean(axis=1)
        long_as_others = np.median(needed[chosen]) >= (1 - device_work.AS_MUCH) * np.median(needed)
        return bool(needed.any() and (long_as_others or device_work.as_much(self._digests, chosen)))

    @cached_property
    def for_more_work_ns(self) -> Ints:
        """How much longer each device computes because its batch is larger than the others' of the step, (R, S), ns;
        negative for smaller ones, 0 unless batches vary or ranks have requests of their own. What is fixed already is
        no longer in it.
        """
        if self.replay and self.replay.spread:
            more = np.rint(self.replay.spread.above_ns.sum(axis=1)).reshape(self.shape).astype(np.int64)
        elif self.replay and self.replay.schedule.frame.batches_vary:
            more = self.device_ns - np.rint(self.device_ns / self.replay.schedule.frame.work).astype(np.int64)
        else:
            return np.zeros(self.shape, np.int64)
        left = more - (self.device_ns - self.replay.remaining_device_ns(self._base))
        still: Ints = np.clip(left, np.minimum(more, 0), np.maximum(more, 0))
        return still

    @property
    def sending_ns(self) -> Ints:
        """How long each rank alone sends weights to ranks of another role, without a collective, shape (R, S), ns."""
        return self.replay.schedule.frame.sending_ns if self.replay else np.zeros(self.shape, np.int64)

    def excess_over_length_ns(self) -> Ints:
        """How much longer the median rank alone needs for each step than its sequences' length explains, (S,), ns.

        0 in steps that can be compared with others of the same length.
        """
        slow = self.replay.slow_for_their_length if self.replay else np.zeros(self.shape[1], np.bool_)
        if not slow.any():
            return np.zeros(self.shape[1], np.int64)
        chosen = np.broadcast_to(slow, self.shape)
        gains: Ints = lower_median(self.gains_alone_ns(Change(device_at_median=chosen)))
        return np.where(slow, np.maximum(gains, 0), 0)

    @property
    def faultless(self) -> Change:
        """The change that fixes every fault at once: what then remains of a step is the floor (`account.savings`)."""
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
        """Whether the steps are played again; else only busy times are compared."""
        return self.replay is not None

    def saving(self, change: Change) -> Saving:
        """How much shorter a change makes the steps, relative to the steps without what is no fault (`no_fault`)."""
        if change.is_nothing:
            return Saving(np.zeros(self.shape[1]))
        return Saving(np.asarray((self._base_ns - self.step_ns(self._base | change)).mean(axis=0)))

    def unbound_ns(self, change: Change) -> Ints:
        """How long each step takes with a change, without what is no fault or fixed already, shape (R, S), ns: of each
        role of reinforcement learning as if the others kept up (see `_bound`).
        """
        change = self._base | change
        return self._played_ns(self.replay, change) if self.replay else self.step_ns(change)

    def step_ns(self, change: Change) -> Ints:
        """How long each step takes with a change, shape (R, S), ns. It still has what tracing adds (see `tracing`)."""
        if self.replay:
            return self._bound(self.replay, change, self._played_ns(self.replay, change))
        own = self._compared_ns.max(axis=0) - self.alone_ns(change).max(axis=0)
        # The slowest rank waits only for ranks without a trace.
        own += self.at_slowest(self._absent_ns) * change.absent
        remaining: Ints = np.maximum(self._budget.window_ns - own.astype(np.int64), 0)
        return remaining

    def _bound(self, replay: Replay, change: Change, played_ns: Ints) -> Ints:
        """The played steps, shape (R, S), ns, where no role of reinforcement learning gains more than another one.

        Roles that wait for each other take as long for a round: what one is through with earlier in the last round of
        the record it would wait in the next. Where one generates ahead, it and all others take as long as they do.
        """
        if not self._bound_roles:
            return played_ns
        base, bound = replay.in_effect(self._base), np.array(played_ns)
        stages = [(Change(), self.recorded_ns), (base, self._played_ns(replay, base)), (change, played_ns)]
        steady = [
            sum(self._steady_gain(replay, one, other, ranks) for one, other in itertools.pairwise(stages))
            for ranks in self._bound_roles
        ]
        others = np.setdiff1d(np.arange(len(bound)), np.concatenate(self._bound_roles))
        is_ahead = replay.schedule.frame.ahead[others].any()
        for ranks in (*self._bound_roles, *([others] if is_ahead else [])):
            gained = float((self.recorded_ns - played_ns)[ranks].mean())
            bound[ranks] += round(gained - min(steady))
        return bound

    def _steady_gain(
        self, replay: Replay, before: tuple[Change, Ints], after: tuple[Change, Ints], ranks: Ints
    ) -> float:
        """How much shorter the rounds of a role become from one change, and how long the steps then take, to another,
        in the mean, ns.

        What a role waits for in the first round began before the record, and is as late there as recorded. So that
        round gains as much as the later ones, as far as the change removes as much of it.
        """
        (less, before_ns), (more, after_ns) = before, after
        gained = (before_ns - after_ns)[ranks].mean(axis=0)
        if len(gained) > 1:
            removed = replay.removed_in_steps_ns(more) - replay.removed_in_steps_ns(less)
            share = min(float(removed[0]) / max(float(removed[1:].mean()), 1.0), 1.0)
            gained[0] = max(float(gained[0]), share * float(gained[1:].mean()))
        return float(gained.mean())

    def foresee(self, fixes: Iterable[Change]) -> None:
        """Begins to play fixes that `saving` will be asked for: those of large jobs, beside what the caller does."""
        self.foresee_steps(self._base | fix for fix in fixes if not fix.is_nothing)

    def foresee_steps(self, changes: Iterable[Change]) -> None:
        """The same for `step_ns`. More than are kept are not played."""
        if self.replay is None or not self.replay.is_large:
            return
        replay, threads = self.replay, ThreadPoolExecutor(_AT_ONCE)
        for effect in map(replay.in_effect, islice(changes, _KEPT // 2)):
            if (key := (False, effect.key())) not in self._played:
                self._keep(key, threads.submit(_in_turn, replay, effect))
        threads.shutdown(wait=False)

    def _played_ns(self, replay: Replay, change: Change, *, alone: bool = False) -> Ints:
        """How long the steps take when played with a change, shape (R, S), ns; the last `_KEPT` results are kept.

        With `alone`, how long each rank alone needs.
        """
        change = replay.in_effect(change)
        key = (alone, change.key())
        if key not in self._played:
            self._keep(key, replay.step_ns(change, alone=alone))
        step_ns = self._played[key]
        return step_ns.result() if isinstance(step_ns, Future) else step_ns

    def _keep(self, key: object, step_ns: Ints | Future[Ints]) -> None:
        if len(self._played) >= _KEPT:
            del self._played[next(iter(self._played))]
        self._played[key] = step_ns

    @property
    def bindings(self) -> Bindings | None:
        """What each event of the record waited for; None without a replay."""
        return Bindings(self.replay) if self.replay else None

    @property
    def recorded_ns(self) -> Ints:
        """How long each step took as recorded, shape (R, S), ns."""
        return self.replay.recorded_ns if self.replay else self._budget.window_ns

    @property
    def tracing_ns(self) -> float:
        """How much tracing adds to a step, mean over ranks and steps, ns; never negative."""
        return max(float((self.recorded_ns - self.step_ns(self.tracing)).mean()), 0.0)

    @cached_property
    def _base_ns(self) -> Ints:
        return self.step_ns(self._base)

    @cached_property
    def _compared_ns(self) -> Ints:
        """The busy times that are compared without a replay, as recorded, shape (R, S), ns."""
        return _compared_busy_ns(self._budget)

    def cost_ns(self, change: Change) -> float:
        """How much shorter a change makes a step, mean over steps, ns; never negative."""
        return self.saving(change).mean_ns

    def saves_more_than_it_removes(self, change: Change) -> bool:
        """Whether the replay saves more time than the change removes from all ranks together, which is impossible.

        True shows an error of the replay. Always False without a replay.
        """
        if self.replay is None:
            return False
        saved = self.cost_ns(change) * self.shape[1]
        # A cheap lower bound first: how long removed calls waited for the device needs one more play.
        removed = sum(float((share * self.host_ns(kind)).sum()) for kind, share in change.of_host.items())
        if change.device_ns is not None:
            # A change may ask for more than there is.
            removed += float(np.minimum(change.device_ns, self.device_ns).sum())
        within = MOST_MISSED * float(self.recorded_ns.mean())
        return saved > removed + within and saved > self.replay.removed_ns(change) + within

    def costs_ns(self, several: Sequence[Change]) -> list[float]:
        """Divides what several fixes save together among them, mean over steps, ns.

        Each fix gets a part in proportion to what it saves once the others are made. So each of two slow ranks has a
        part, although fixing only one of them saves nothing: the step would stay as long as the other rank needs.
        """
        together = reduce(or_, several)
        if len(several) == 1:
            return [self.cost_ns(together)]
        without_one = [reduce(or_, [*several[:i], *several[i + 1 :]], Change()) for i in range(len(several))]
        self.foresee([together, *without_one])
        total = self.cost_ns(together)
        last = [max(total - self.cost_ns(others), 0.0) for others in without_one]
        return [total * (cost / sum(last) if sum(last) else 1 / len(last)) for cost in last]

    def _busy_part(self, change: Change) -> Ints:
        """How much of each rank's recorded busy time a change removes, shape (R, S), ns."""
        busy_ns, removed = self._compared_ns, np.zeros(self.shape)
        needless = self._needless_idle if change.no_host else {}
        for kind in {**change.of_host, **needless}:
            removed += np.maximum(change.of_host.get(kind, 0.0) * self.host_ns(kind), needless.get(kind, 0))
        for amount in (change.device_ns, change.transfer_ns):
            if amount is not None:
                removed += amount
        removed = np.minimum(removed, busy_ns)
        if change.device_at_median is not None:
            # What the rest of the change removes may have been the excess.
            remaining = busy_ns - removed
            excess = np.maximum(remaining - lower_median(remaining), 0)
            removed += np.where(change.device_at_median, excess, 0)
        return np.rint(removed).astype(np.int64)

    def at_slowest(self, values: Ints) -> Ints:
        """The value of each step's slowest rank, shape (S,); `values` has the shape (R, S)."""
        return values[self.slowest, np.arange(len(self.slowest))]


def _with_step_before(chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Flags the chosen steps of each rank and the step before each, shape (R, S).

    The end of a host's step delays the device's next step, since the host runs ahead.
    """
    return chosen | np.pad(chosen[:, 1:], ((0, 0), (0, 1)))


def _compared_busy_ns(budget: Budget) -> Ints:
    """Each rank's step minus straggler wait, with no more exposed transfer than the slowest rank has, (R, S), ns."""
    transfer = budget.of("transfer")
    slowest = budget.busy_ns.argmax(axis=0)
    undelayed = transfer[slowest, np.arange(len(slowest))]
    compared: Ints = budget.busy_ns - np.maximum(transfer - undelayed, 0)
    return compared


def _in_turn(replay: Replay, change: Change) -> Ints:
    """How long the steps take with a change, when it is this play's turn."""
    with _turns:
        return replay.step_ns(change)


def _roles(job: Job) -> list[Ints]:
    """See `WhatIf._roles`."""
    return parts_of_roles(job) if job_kind.program(job) is Program.RL else []


def _pace(job: Job) -> Floats:
    """See `WhatIf.pace`."""
    takes, typical, count = (
        job.work(which)
        for which in (
            lambda work: work.kernels.kernel_ns,
            lambda work: work.kernels.sized_ns,
            lambda work: work.kernels.kernels,
        )
    )
    typical = typical * count / np.maximum(count.mean(axis=1, keepdims=True), 1)
    pace: Floats = np.where(typical > 0, takes / np.maximum(typical, 1), 1.0)
    return pace
