"""Calls that block the CPU: what the rules on syncs and on allocations share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.model import CpuTime, RankOwner
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.host import BlockingCallsOfOp
from tb_ddp_doctor.findings import Evidence
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.trace.model import Ints

#: Calls that a finding names.
_NAMED = 3
#: Less than this share of what a fix saves is saved without the stalls of single ranks: the rest is theirs.
_OF_CALLS = 0.5


def named(calls: Sequence[BlockingCallsOfOp]) -> str:
    """The calls that cost most, each with its operator and the module of its longest call.

    "9 cudaFree outside any op and 2 cudaMalloc in aten::mm (the longest in layers.3.mlp)".
    """
    return wording.listing([_named(call) for call in calls[:_NAMED]])


def _named(call: BlockingCallsOfOp) -> str:
    module = f" (the longest in {call.module})" if call.module else ""
    return f"{count(call.count)} {call.call} {f'in {call.op}' if call.op else 'outside any op'}{module}"


def removable(whatif: WhatIf, kind: CpuTime, idle_ns: Ints) -> NDArray[np.float64]:
    """The share of the host's blocked time of a kind that goes with its calls, shape (R, S).

    All of it where steps are played again. Else the blocked time is the GPU's idle time meanwhile, which may have other
    causes, such as a copy that the call waits for; of that, `late_launch_ns` is what the calls themselves cause.
    """
    if whatif.plays:
        return np.ones(whatif.shape)
    blocked = whatif.host_ns(kind)
    return np.minimum(idle_ns / np.maximum(blocked, 1), 1.0)


def cost_ns(whatif: WhatIf, change: Change, kind: CpuTime) -> float:
    """What removing blocking calls of a kind saves, mean over steps, ns.

    If most of that is gone in a job whose CPUs do not stall, and take as long as the median rank's for everything else,
    it is what is saved there.

    Without the calls a CPU runs further ahead of its GPU. That may hide what the CPU does outside any op, or for longer
    than the others', which is no fault of the calls:

        rank 0  [launch][sync at the end of the step ...]
        rank 1  [launch][stall 40 ms][launch][sync ...  ]    without the syncs it stalls while its GPU still works
    """
    cost = whatif.cost_ns(change)
    if not cost or not whatif.plays:
        return cost
    others = [one for one in CpuTime if one not in (kind, CpuTime.STALL)]
    as_median = whatif.at_the_median(np.ones(whatif.shape, np.bool_), kinds=others) | whatif.without(CpuTime.STALL)
    shared = whatif.after(as_median, supposed=True).cost_ns(change)
    return shared if shared < _OF_CALLS * cost else cost


def count(number: float) -> str:
    """A mean count: "12", "2.5" below ten, "0.33" below one."""
    return wording.decimals(number, 0 if number >= 10 or number == round(number) else 1 if number >= 1 else 2)


def evidence(calls: Sequence[BlockingCallsOfOp], places: Places, what: str) -> tuple[Evidence, ...]:
    """The longest of each of the calls that cost most; `what` has a place for the call and its operator."""
    windows = [
        places.between(
            call.rank,
            call.start_ns,
            call.end_ns,
            RankOwner.SYNC,
            what.format(call=call.call, op=(call.op or "the loop") + (f" in {call.module}" if call.module else "")),
            call.own,
        )
        for call in calls[:_NAMED]
    ]
    return tuple(window for window in windows if window)
