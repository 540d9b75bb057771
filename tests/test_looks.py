"""In which order rules look at a job again: one fault hides another."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np

from tb_ddp_doctor.digest.model import CpuTime
from tb_ddp_doctor.facts.change import Change
from tb_ddp_doctor.facts.facts import Facts
from tb_ddp_doctor.facts.whatif import WhatIf, whatif
from tb_ddp_doctor.rules.support import looks
from tb_ddp_doctor.rules.support.base import Clear, Fault, Result, Rule

_LEAST = 3
_NOTHING = Change()


@dataclass(frozen=True)
class Steps:
    """Steps of 100 ms of three ranks: the first one's device takes 100, all load for 50, and the last stalls for 10.

    Devices take 54 ms otherwise, and hide what the host does up to that.
    """

    base: Change = _NOTHING
    tracing: ClassVar[Change] = _NOTHING
    plays: ClassVar[bool] = True
    recorded_ns: ClassVar[np.ndarray] = np.full((3, 1), 100)
    faultless: ClassVar[Change] = Change(device_at_median=np.ones((3, 1), np.bool_), no_host=True)

    def step_ns(self, change: Change) -> np.ndarray:
        """The step of all ranks is the longest, ms."""
        slow = change.device_at_median is None or not change.device_at_median[0]
        host = {CpuTime.INPUT: np.full((3, 1), 50.0), CpuTime.STALL: np.array([[0.0], [0.0], [10.0]])}
        left = sum(spent * (1 - change.of_host.get(kind, 0)) for kind, spent in host.items())
        device = np.array([[100 if slow else 54], [54], [54]])
        longest = device.max() if change.no_host else max(device.max(), np.max(left))
        return np.full((3, 1), longest)

    def cost_ns(self, change: Change) -> float:
        return float((self.step_ns(self.base) - self.step_ns(self.base | change)).mean())

    def after(self, fixed: Change) -> Steps:
        return replace(self, base=self.base | fixed)


def fault(change: Change, *ranks: int) -> Fault:
    return Fault(change, ranks, (1,), None, "high", "", "", "", ())


SLOW_DEVICE = fault(Change(device_at_median=np.array([[True], [False], [False]])), 0)
STALLS = fault(Change({CpuTime.STALL: np.array([[0.0], [0.0], [1.0]])}), 2)
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


def found(monkeypatch: Any) -> dict[str, tuple[str, ...]]:
    """What the rules find, by rule, and what hid it."""
    monkeypatch.setattr(looks, "_cannot_hold", lambda rule, job: None)
    facts = Facts(cast(Any, None)).replaced(whatif, cast(WhatIf, Steps()))
    _, everything = looks.look([SlowRanks(), Loader()], facts)
    return {each.rule.id: each.hidden_by for each in everything}


def test_a_fault_of_all_is_looked_for_before_ranks_that_cost_nothing_by_themselves_are_fixed(monkeypatch: Any) -> None:
    # With the device and the last rank's stalls fixed, loading hides behind the devices; with the device alone, not.
    assert Steps(SLOW_DEVICE.change | STALLS.change).cost_ns(LOADS.change) == 0
    assert Steps(SLOW_DEVICE.change).cost_ns(LOADS.change) > _LEAST
    assert found(monkeypatch) == {"straggler": (), "dataloader-stall": ("straggler",)}
