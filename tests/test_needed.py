"""Which of several findings a job needs."""

from __future__ import annotations

from typing import cast

import numpy as np

from tb_ddp_doctor.account.needed import needed
from tb_ddp_doctor.digest.model import CpuTime
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules import CATALOGUE
from tb_ddp_doctor.rules.support.base import Fault, RuleFaults


class HostOrDevice:
    """Steps of four ranks that end when the last host has loaded and stalled, and the devices are done, ms."""

    shape = (4, 2)
    no_fault = Change()
    plays = True

    def __init__(self, load: int, stall: tuple[int, ...], device: int) -> None:
        self._device = device
        self._host = {CpuTime.INPUT: np.full(self.shape, load), CpuTime.STALL: np.repeat([stall], 2, axis=0).T}
        self.recorded_ns = self.step_ns(Change())

    def host_ns(self, kind: CpuTime) -> np.ndarray:
        return self._host[kind]

    def step_ns(self, change: Change) -> np.ndarray:
        left = sum(spent * (1 - change.of_host.get(kind, 0)) for kind, spent in self._host.items())
        return np.maximum(np.broadcast_to(left.max(axis=0), self.shape), self._device).astype(np.int64)

    def cost_ns(self, change: Change) -> float:
        return float((self.recorded_ns - self.step_ns(change)).mean())


def needed_of(whatif: HostOrDevice) -> set[str]:
    """The rules of which a job needs the fix, of a loader on all ranks and a host that stalls on rank 2."""

    def found(rule: str, change: Change, ranks: tuple[int, ...]) -> RuleFaults:
        fault = Fault(change, "high", "", "", "", (), ranks=ranks, steps=(1, 2))
        return RuleFaults(CATALOGUE[rule], (fault,), change)

    loading = Change(shared={CpuTime.INPUT: np.ones((4, 2))})
    stalling = Change({CpuTime.STALL: np.array([[0.0] * 2, [0.0] * 2, [1.0] * 2, [0.0] * 2])})
    everything = [found("dataloader-stall", loading, (0, 1, 2, 3)), found("straggler", stalling, (2,))]
    return {each.rule.id for each in needed(everything, cast(WhatIf, whatif), np.arange(4))}


def test_a_slow_rank_is_not_needed_where_a_larger_fault_of_all_explains_the_step() -> None:
    assert needed_of(HostOrDevice(load=60_000, stall=(0, 0, 20_000, 0), device=60_000)) == {"dataloader-stall"}


def test_a_fault_of_all_that_is_smaller_than_what_one_rank_does_explains_no_step() -> None:
    assert "straggler" in needed_of(HostOrDevice(load=20_000, stall=(0, 0, 60_000, 0), device=60_000))


def test_a_slow_rank_and_a_fault_of_all_may_both_be_needed() -> None:
    both = needed_of(HostOrDevice(load=60_000, stall=(0, 0, 50_000, 0), device=30_000))
    assert both == {"dataloader-stall", "straggler"}


class RunsAhead(HostOrDevice):
    """Steps in which a stall of rank 2's host costs time until no allocation and no sync blocks any host, ms.

    Then hosts run ahead of their devices, and the stall is hidden.
    """

    def __init__(self, allocate: int, sync: int, stall: int, device: int) -> None:
        self._device = device
        self._host = {kind: np.full(self.shape, ms) for kind, ms in ((CpuTime.ALLOC, allocate), (CpuTime.SYNC, sync))}
        self._host[CpuTime.STALL] = np.repeat([(0, 0, stall, 0)], 2, axis=0).T
        self.recorded_ns = self.step_ns(Change())

    def step_ns(self, change: Change) -> np.ndarray:
        left = {kind: spent * (1 - change.of_host.get(kind, 0)) for kind, spent in self._host.items()}
        blocks = (left[CpuTime.ALLOC] + left[CpuTime.SYNC]).max() > 0
        host = left[CpuTime.ALLOC].max() + (left[CpuTime.STALL].max() if blocks else 0)
        return np.full(self.shape, host + self._device, np.int64)


def test_a_fix_for_all_ranks_that_saves_less_takes_nothing_of_what_one_rank_has() -> None:
    whatif = RunsAhead(allocate=60_000, sync=30_000, stall=20_000, device=100_000)
    of_all = {
        "allocator-churn": Change(shared={CpuTime.ALLOC: np.ones((4, 2))}),
        "host-sync": Change(shared={CpuTime.SYNC: np.ones((4, 2))}),
    }
    stall = Change({CpuTime.STALL: np.array([[0.0] * 2, [0.0] * 2, [1.0] * 2, [0.0] * 2])})
    faults = {
        rule: (Fault(change, "high", "", "", "", (), ranks=(0, 1, 2, 3), steps=(1, 2)),)
        for rule, change in of_all.items()
    }
    faults["straggler"] = (Fault(stall, "high", "", "", "", (), ranks=(2,), steps=(1, 2)),)
    everything = [RuleFaults(CATALOGUE[rule], found, found[0].change) for rule, found in faults.items()]
    left = {each.rule.id for each in needed(everything, cast(WhatIf, whatif), np.arange(4))}
    assert left == {"allocator-churn", "host-sync", "straggler"}


class Devices(HostOrDevice):
    """Steps as long as the slower of the hosts and of the slowest device, ms."""

    def __init__(self, host: int, device: tuple[int, ...]) -> None:
        self._host_ns, self._device_ns = host, np.repeat([device], 2, axis=0).T
        self.recorded_ns = self.step_ns(Change())

    def step_ns(self, change: Change) -> np.ndarray:
        typical = np.sort(self._device_ns, axis=0)[1]
        at_median = np.zeros(self.shape, np.bool_) if change.device_at_median is None else change.device_at_median
        left = np.where(at_median, typical, self._device_ns)
        if change.device_ns is not None:
            left = left - np.where(at_median, typical // 2, change.device_ns)
        return np.full(self.shape, max(self._host_ns, int(left.max())), np.int64)


def test_slow_kernels_of_all_ranks_take_nothing_of_what_a_slow_device_has() -> None:
    """Kernels of half the length would save more than a device like the others, and hide it behind the CPUs."""
    device = (60_000, 60_000, 100_000, 60_000)
    whatif = Devices(host=50_000, device=device)
    halved = Change(device_ns=np.repeat([device], 2, axis=0).T // 2)
    slow = np.zeros((4, 2), np.bool_)
    slow[2] = True
    at_median = Change(device_at_median=slow)
    assert whatif.cost_ns(at_median) < whatif.cost_ns(halved) == whatif.cost_ns(halved | at_median)
    faults = {"no-tensor-cores": (halved, (0, 1, 2, 3)), "straggler": (at_median, (2,))}
    everything = [
        RuleFaults(CATALOGUE[rule], (Fault(change, "high", "", "", "", (), ranks=on, steps=(1, 2)),), change)
        for rule, (change, on) in faults.items()
    ]
    left = {each.rule.id for each in needed(everything, cast(WhatIf, whatif), np.arange(4))}
    assert left == {"no-tensor-cores", "straggler"}
