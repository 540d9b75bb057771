"""In which order rules look at a job again: one fault hides another."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np

from tb_ddp_doctor.account import looks
from tb_ddp_doctor.digest.model import CpuTime
from tb_ddp_doctor.facts import Facts
from tb_ddp_doctor.facts.without_faults import whatif
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support.base import Clear, Fault, Result, Rule, RuleFaults

_LEAST = 3
_NOTHING = Change()


@dataclass(frozen=True)
class Steps:
    """Steps of 100 ms of three ranks: the first one's device takes 100, all load, and the last stalls.

    Devices take 54 ms otherwise, and hide what the host does up to that.
    """

    base: Change = _NOTHING
    loading: float = 50.0
    stalling: float = 10.0
    no_fault: ClassVar[Change] = _NOTHING
    plays: ClassVar[bool] = True
    recorded_ns: ClassVar[np.ndarray] = np.full((3, 1), 100)
    faultless: ClassVar[Change] = Change(device_at_median=np.ones((3, 1), np.bool_), no_host=True)

    def step_ns(self, change: Change) -> np.ndarray:
        """The step of all ranks is the longest, ms."""
        slow = change.device_at_median is None or not change.device_at_median[0]
        host = {CpuTime.INPUT: np.full((3, 1), self.loading), CpuTime.STALL: np.array([[0.0], [0.0], [self.stalling]])}
        left = sum(spent * (1 - change.of_host.get(kind, 0)) for kind, spent in host.items())
        device = np.array([[100 if slow else 54], [54], [54]])
        longest = device.max() if change.no_host else max(device.max(), np.max(left))
        return np.full((3, 1), longest)

    def saves_more_than_it_removes(self, change: Change) -> bool:
        return False

    def cost_ns(self, change: Change) -> float:
        return float((self.step_ns(self.base) - self.step_ns(self.base | change)).mean())

    def after(self, fixed: Change, *, supposed: bool = False) -> Steps:
        return replace(self, base=self.base | fixed)


def fault(change: Change, *ranks: int) -> Fault:
    return Fault(change, "high", "", "", "", (), ranks=ranks, steps=(1,))


SLOW_DEVICE = fault(Change(device_at_median=np.array([[True], [False], [False]])), 0)
STALLS = fault(Change({CpuTime.STALL: np.array([[0.0], [0.0], [1.0]])}), 2)
FAST = fault(Change({CpuTime.STALL: np.array([[0.0], [1.0], [0.0]])}), 1)
LOADS = fault(Change({CpuTime.INPUT: np.ones((3, 1))}), 0, 1, 2)


class SlowRanks(Rule):
    id: ClassVar[str] = "straggler"
    names_stragglers: ClassVar[bool] = True

    def check(self) -> Result:
        return SLOW_DEVICE, STALLS


class Loader(Rule):
    id: ClassVar[str] = "dataloader-stall"
    looks_again: ClassVar[bool] = True

    def check(self, whatif: WhatIf) -> Result:
        return LOADS if whatif.cost_ns(LOADS.change) >= _LEAST else Clear("It is hidden.")


class CostlySlowRanks(Rule):
    id: ClassVar[str] = "straggler"
    names_stragglers: ClassVar[bool] = True
    looks_again: ClassVar[bool] = True

    def check(self, whatif: WhatIf) -> Result:
        return SLOW_DEVICE if whatif.cost_ns(SLOW_DEVICE.change) >= _LEAST else Clear("They cost nothing.")


def found(monkeypatch: Any, steps: Steps, *rules: Rule) -> list[RuleFaults]:
    monkeypatch.setattr(looks._Limits, "of", lambda job: looks._Limits(False, False, True))
    return looks.look(rules, Facts(cast(Any, None)).replaced(whatif, cast(WhatIf, steps)))[1]


def test_a_fault_of_all_is_looked_for_before_ranks_that_cost_nothing_by_themselves_are_fixed(monkeypatch: Any) -> None:
    # With the device and the last rank's stalls fixed, loading hides behind the devices; with the device alone, not.
    assert Steps(SLOW_DEVICE.change | STALLS.change).cost_ns(LOADS.change) == 0
    assert Steps(SLOW_DEVICE.change).cost_ns(LOADS.change) > _LEAST
    both = found(monkeypatch, Steps(), SlowRanks(), Loader())
    hidden_by = {each.rule.id: {fault.hidden_by for fault in each.faults} for each in both}
    assert hidden_by == {"straggler": {()}, "dataloader-stall": {("straggler",)}}


def test_faults_of_cpus_and_of_gpus_that_take_equally_long_are_found_and_share_what_both_save(monkeypatch: Any) -> None:
    steps = Steps(loading=90.0)
    assert steps.cost_ns(SLOW_DEVICE.change) == steps.cost_ns(LOADS.change) == 0
    both = found(monkeypatch, steps, CostlySlowRanks(), Loader())
    hides_with = {each.rule.id: each.hides_with for each in both}
    assert hides_with == {"straggler": ("dataloader-stall",), "dataloader-stall": ("straggler",)}


def test_a_fault_that_takes_longer_than_the_other_is_not_found_with_it(monkeypatch: Any) -> None:
    (one,) = found(monkeypatch, Steps(loading=40.0), CostlySlowRanks(), Loader())
    assert one.rule.id == "straggler" and not one.hides_with


class OneSlowRank(Rule):
    """Finds the slowest rank alone, and where none is, one that is as fast as the others."""

    id: ClassVar[str] = "straggler"
    names_stragglers: ClassVar[bool] = True
    looks_again: ClassVar[bool] = True

    def check(self, whatif: WhatIf) -> Result:
        slowest = max((SLOW_DEVICE, STALLS), key=lambda one: whatif.cost_ns(one.change))
        return slowest if whatif.cost_ns(slowest.change) >= _LEAST else FAST


def test_ranks_that_are_slow_beside_a_slower_one_are_found_with_it(monkeypatch: Any) -> None:
    (one,) = found(monkeypatch, Steps(), OneSlowRank())
    assert [(each.ranks, each.hidden_by) for each in one.faults] == [((0,), ()), ((2,), ("straggler",))]
    assert Steps().cost_ns(one.change) == Steps().cost_ns(SLOW_DEVICE.change | STALLS.change)


def test_a_slow_rank_that_costs_nothing_is_no_reason_not_to_find_another(monkeypatch: Any) -> None:
    steps = Steps(loading=120.0, stalling=0.0)
    assert steps.cost_ns(SLOW_DEVICE.change) == steps.cost_ns(FAST.change) == 0
    loads, slow = found(monkeypatch, steps, OneSlowRank(), Loader())
    assert loads.faults == (LOADS,)
    assert [(each.ranks, each.hidden_by) for each in slow.faults] == [((0,), ("dataloader-stall",))]


class SlowKernels(Loader):
    """Finds what takes as long on all ranks, which nothing leaves unexplained."""

    id: ClassVar[str] = "no-tensor-cores"
    finds_in_floor: ClassVar[bool] = True


def test_what_is_equally_slow_everywhere_shows_behind_a_slow_rank_though_all_is_explained(monkeypatch: Any) -> None:
    steps = Steps(loading=60.0, stalling=0.0)
    monkeypatch.setattr(Steps, "faultless", SLOW_DEVICE.change)
    assert steps.cost_ns(LOADS.change) == 0
    assert [each.rule.id for each in found(monkeypatch, steps, CostlySlowRanks(), Loader())] == ["straggler"]
    _, slow = found(monkeypatch, steps, CostlySlowRanks(), SlowKernels())
    assert (slow.rule.id, slow.faults[0].hidden_by) == ("no-tensor-cores", ("straggler",))
