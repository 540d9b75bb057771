"""See `UnfusedOptimizer`."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.model import CpuTime, OptimizerWork, RankOwner
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.shortened_calls import ShortenedCalls
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support import certainty, limits, part
from tb_ddp_doctor.rules.support.base import Clear, Fault, Result, Rule, threshold


class UnfusedOptimizer(Rule):
    """The optimizer launches kernels for each tensor separately.

    What:
        Kernels that the optimizer's step launches for single tensors, in a loop over the parameters.
    Why:
        Adam needs about eight ops; a loop launches each of them for every tensor, mostly with too little work to keep
        the GPU busy until the next launch. `foreach` and `fused` process all tensors at once.
    Evidence:
        From the first such kernel to the end of the last. The cost is the CPU time of the loop minus that of one call
        for all tensors, and the part of the kernels' time that reads and writes intermediate results.
    Fix:
        `fused=True`, otherwise `foreach=True`; compile the step of an optimizer that supports neither.
    Limits:
        Detected by the annotation of torch's optimizers and the names of their multi-tensor kernels. The remaining cost
        is assumed to be that of Adam. launch-bound does not charge this cost again.
    """

    id = "unfused-optimizer"
    subject = "The unfused optimizer"
    refines = "launch-bound"

    min_kernels: float = threshold(
        100.0,
        "kernels",
        "A loop launches eight for each tensor; foreach and fused optimizers one for dozens of tensors.",
    )
    host_kept: float = threshold(
        0.25,
        "of the CPU time",
        "CPU time of foreach compared with a loop: 7 ms instead of 30 for AdamW with 292 tensors.",
    )
    traffic_kept: float = threshold(
        0.35, "of the kernels' time", "Fused AdamW reads and writes 7 values for each parameter, the loop's kernels 20."
    )
    min_cost: float = threshold(*limits.WORTH_A_LINE)

    def check(
        self, *, frame: Frame, whatif: WhatIf, optimizers: OptimizerWork, calls: ShortenedCalls, places: Places
    ) -> Result:
        kernels = optimizers.optimizer_kernels
        many = kernels >= self.min_kernels
        most = float(kernels.mean(axis=1).max())
        if not many.any():
            return Clear(f"The optimizer launches {wording.decimals(most, 0)} kernels a step for single tensors.")
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
            of_calls=calls.of_updates(device_ns, optimizers.optimizer_ns),
        )
        cost = whatif.cost_ns(change)
        if cost < self.min_cost * frame.step_ns:
            return Clear(
                f"The optimizer launches {wording.decimals(most, 0)} kernels a step for single tensors, which costs "
                "nothing."
            )
        affected = np.flatnonzero(many.any(axis=1))
        span = optimizers.optimizer_end_ns - optimizers.optimizer_start_ns
        level, basis = certainty.confidence(frame, cost, int(many.all(axis=0).sum()), affected.tolist(), on_host=True)
        busy = float(optimizers.optimizer_ns[affected].mean())
        launching = part.mean(optimizers.optimizer_host_ns[affected], frame.window_ns[affected])
        worst = affected[np.argsort(-span[affected].mean(axis=1), kind="stable")][:2]
        return Fault(
            change=change,
            ranks=frame.rank_numbers(affected),
            confidence=level,
            title=f"The optimizer updates tensor by tensor, which takes the CPU {launching}.",
            why=f"Its step launches {wording.decimals(most, 0)} kernels for one tensor each; they run "
            f"{wording.ms(busy)} on the GPU, "
            f"{wording.ms(float(span[affected].mean()))} from the first to the last. {basis}",
            fix=_FIX,
            evidence=places.longest_spans(
                worst,
                optimizers.optimizer_start_ns,
                optimizers.optimizer_end_ns,
                "The optimizer's kernels, one tensor after the other.",
                (RankOwner.DISPATCH, "The optimizer's launches."),
            ),
        )


_FIX = """\
Update all tensors at once. Adam, AdamW, SGD and Adagrad have a fused kernel; most others support foreach. Compile \
the step of those that support neither.

optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)  # otherwise foreach=True

step = torch.compile(optimizer.step)"""
