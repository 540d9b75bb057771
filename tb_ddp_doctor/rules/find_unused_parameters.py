"""See `FindUnusedParameters`."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.model import CpuTime
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.needless_allreduces import UnusedSearch
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support import certainty
from tb_ddp_doctor.rules.support.base import Clear, Fault, Result, Rule, threshold


class FindUnusedParameters(Rule):
    """DDP searches for unused parameters in every step.

    What:
        The walk of the autograd graph, and the AllReduce of which parameters were used, that
        `find_unused_parameters=True` adds to each step.
    Why:
        A model that uses all its parameters in each step needs neither. The search also keeps DDP from ordering its
        buckets as gradients become ready, so that AllReduces may overlap less with the backward pass.
    Evidence:
        The walks on the CPU and the AllReduces of int32, with their time. The walk costs time only where the GPU waits
        for launches, the AllReduce only where it is exposed. That is often close to zero, and then reported as info.
    Fix:
        `find_unused_parameters=False`; or `static_graph=True` where the same parameters stay unused in all steps.
    Limits:
        A trace does not show whether a parameter really is unused. What a better order of buckets would hide is
        no-overlap.
    """

    id = "find-unused-parameters"
    subject = "The search for unused parameters"
    refines = "launch-bound"

    min_steps: float = threshold(0.75, "of the steps", "The search is in each step of a model, or in none.")

    def check(self, *, frame: Frame, whatif: WhatIf, unused_search: UnusedSearch, places: Places) -> Result:
        searched = unused_search.walks > 0
        seen = int(searched.any(axis=0).sum())
        if seen < max(self.min_steps * len(frame.steps), 1):
            return Clear("DDP does not search for unused parameters.")
        change = Change(
            host={CpuTime.WORK: np.minimum(unused_search.walk_ns / np.maximum(whatif.host_ns(CpuTime.WORK), 1), 1)},
            transfer_ns=unused_search.exposed_ns,
        )
        cost = whatif.cost_ns(change)
        level, basis = certainty.confidence(frame, cost, seen, on_host=True)
        return Fault(
            change=change,
            ranks=frame.rank_numbers(np.flatnonzero(searched.any(axis=1))),
            steps=tuple(int(number) for number in frame.steps[searched.any(axis=0)]),
            confidence=level,
            title="DDP searches for unused parameters in each step.",
            why=f"The walk of the autograd graph takes the CPU {wording.ms(float(unused_search.walk_ns.mean()))} a "
            "step. "
            f"{_reduction(unused_search)}{basis}",
            fix=_FIX,
            evidence=(places.of_most(unused_search.walk_ns, "The step with the longest walk of the autograd graph."),),
        )


def _reduction(search: UnusedSearch) -> str:
    """What is known of the AllReduce, a sentence and a space; "" where none was seen."""
    if not search.calls.any():
        return ""
    exposed = wording.ms(float(search.exposed_ns.mean()))
    return f"The AllReduce of the bitmap of {search.parameters} used parameters is exposed for {exposed}. "


_FIX = """\
Turn the search off if every parameter is used in every step; torch warns at the first step if it found no unused \
ones. If the same parameters are unused in all steps, declare the graph static: then it is searched once.

model = DistributedDataParallel(model, device_ids=[local_rank])  # find_unused_parameters=False is the default
model = DistributedDataParallel(model, device_ids=[local_rank], static_graph=True)

# which ones are unused: after loss.backward(), before the optimizer's step
print([name for name, parameter in model.named_parameters() if parameter.grad is None])"""
