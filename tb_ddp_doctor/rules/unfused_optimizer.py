"""See `UnfusedOptimizer`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tb_ddp_doctor.digest.model import CpuTime, RankOwner
from tb_ddp_doctor.facts.change import Change
from tb_ddp_doctor.facts.compute import Optimizers
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.whatif import WhatIf
from tb_ddp_doctor.findings import Evidence
from tb_ddp_doctor.rules.support import text
from tb_ddp_doctor.rules.support.base import Clear, Fault, Result, Rule, threshold


@dataclass(frozen=True)
class UnfusedOptimizer(Rule):
    """The optimizer updates its tensors one by one.

    What:
        Kernels that the optimizer's step launches for single tensors, in a loop over the parameters.
    Why:
        Adam needs some eight operations; a loop launches each of them for every tensor, mostly with too little work
        to keep the device busy until the next one comes. `foreach` and `fused` take all tensors at once.
    Evidence:
        From the first such kernel to the end of the last. The cost is that of the host's time in the loop beyond what
        one call for all tensors takes, and of the share of the kernels' time that goes into moving intermediate
        results.
    Fix:
        `fused=True`, else `foreach=True`; compile the step of an optimizer that knows neither.
    Limits:
        Known from the annotation of torch's optimizers and from the names of their kernels for lists of tensors. What
        stays is an assumption, for Adam. launch-bound leaves its cost out.
    """

    id: ClassVar[str] = "unfused-optimizer"

    min_kernels: float = threshold(
        100.0,
        "kernels",
        "A loop launches eight for each tensor; foreach and fused optimizers one for dozens of tensors.",
    )
    host_kept: float = threshold(
        0.25,
        "of the host's time",
        "The host's time for foreach against a loop: 7 ms instead of 30 for AdamW of 292 tensors.",
    )
    traffic_kept: float = threshold(
        0.35, "of the kernels' time", "Fused AdamW reads and writes 7 values for each parameter, the loop's kernels 20."
    )
    min_cost: float = threshold(0.005, "of the step", "Below this it is not worth a line.")

    def check(self, *, frame: Frame, whatif: WhatIf, optimizers: Optimizers, places: Places) -> Result:
        kernels = optimizers.optimizer_kernels
        many = kernels >= self.min_kernels
        most = float(kernels.mean(axis=1).max())
        if not many.any():
            return Clear(f"The optimizer launches {most:.0f} kernels a step for single tensors.")
        host_ns, device_ns = (
            np.where(many, taken * (1 - kept), 0)
            for taken, kept in (
                (optimizers.optimizer_host_ns, self.host_kept),
                (optimizers.optimizer_ns, self.traffic_kept),
            )
        )
        change = Change(
            host={CpuTime.WORK: np.minimum(host_ns / np.maximum(whatif.host_ns(CpuTime.WORK), 1), 1)},
            device_ns=device_ns.astype(np.int64),
        )
        cost = whatif.cost_ns(change)
        if cost < self.min_cost * frame.step_ns:
            return Clear(f"The optimizer launches {most:.0f} kernels a step for single tensors, which costs nothing.")
        affected = np.flatnonzero(many.any(axis=1))
        span = optimizers.optimizer_end_ns - optimizers.optimizer_start_ns
        level, basis = text.confidence(frame, cost, int(many.all(axis=0).sum()), affected.tolist(), on_host=True)
        busy = float(optimizers.optimizer_ns[affected].mean())
        launching = float(optimizers.optimizer_host_ns[affected].mean())
        worst = affected[np.argsort(-span[affected].mean(axis=1), kind="stable")][:2]
        return Fault(
            change=change,
            ranks=frame.rank_numbers(affected),
            steps=frame.all_steps,
            cause=None,
            confidence=level,
            title=f"The optimizer updates tensor by tensor, which takes the host {text.ms(launching)} of every "
            f"{text.ms(frame.step_ns)}.",
            why=f"Its step launches {most:.0f} kernels for one tensor each; they run {text.ms(busy)} on the device, "
            f"{text.ms(float(span[affected].mean()))} from the first to the last. {basis}",
            fix=_FIX,
            evidence=tuple(_window(optimizers, places, int(rank), int(span[rank].argmax())) for rank in worst),
        )


def _window(optimizers: Optimizers, places: Places, rank: int, step: int) -> Evidence:
    start, end = int(optimizers.optimizer_start_ns[rank, step]), int(optimizers.optimizer_end_ns[rank, step])
    found = places.between(rank, start, end, RankOwner.COMPUTE, "The optimizer's kernels, one tensor after the other.")
    return found or places.longest(rank, step, RankOwner.DISPATCH, "The optimizer's launches.")


_FIX = """\
Update all tensors at once. Adam, AdamW, SGD and Adagrad have a fused kernel; most others know foreach. Compile the \
step of those that know neither.

optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)  # else foreach=True

step = torch.compile(optimizer.step)"""
