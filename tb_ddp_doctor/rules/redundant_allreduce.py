"""See `RedundantAllreduce`."""

from __future__ import annotations

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.model import RankOwner
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.needless_allreduces import RepeatedAllReduces
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support import certainty
from tb_ddp_doctor.rules.support.base import Clear, Fault, NotApplicable, Result, Rule, threshold


class RedundantAllreduce(Rule):
    """Accumulated gradients are reduced in each backward pass, not only in the last.

    What:
        Several backward passes before one step of the optimizer, each followed by AllReduces of the same sizes.
    Why:
        Only the last of these AllReduces is needed: the sum over ranks can be taken once the sum over micro-steps is
        complete. The earlier ones send their bytes for nothing, and each exposes the tail of its last bucket.
    Evidence:
        The longest exposed stretch of a repeated AllReduce. The cost is the exposed communication of all repeated ones.
    Fix:
        `no_sync()` around all but the last micro-step; in FSDP2 `set_requires_gradient_sync(False)`.
    Limits:
        The optimizer's steps must be annotated (torch does) and the AllReduces' sizes be recorded. Groups that also
        reduce activations are not judged. Two models of the same sizes, each with a backward pass before one step of
        the optimizer, look the same. The compute that a repeated AllReduce slows is not counted.
    """

    id = "redundant-allreduce"
    subject = "Reducing gradients more often than once a step"
    refines = "communication-bound"

    min_share: float = threshold(
        0.75, "of the steps", "Accumulation repeats in every step; two backward passes in one step alone are noise."
    )

    def check(self, *, frame: Frame, whatif: WhatIf, repeats: RepeatedAllReduces, places: Places) -> Result:
        if repeats.lack:
            return NotApplicable(repeats.lack)
        # All ranks take part in each: where one alone lacks some, its trace lacks an event.
        seen = int(((repeats.calls > 0).mean(axis=0) > _MOST).sum())
        if seen < max(self.min_share * len(frame.steps), 1):
            return Clear("No AllReduce of gradients is repeated before the optimizer uses them.")
        change = Change(transfer_ns=repeats.exposed_ns)
        cost = whatif.cost_ns(change)
        calls, passes = float(repeats.calls.mean()), float(repeats.passes.mean())
        exposed = float(repeats.exposed_ns.mean())
        level, basis = certainty.confidence(frame, cost, seen, of_transfer=True)
        window = (
            places.between(
                *repeats.longest,
                RankOwner.COMMUNICATION,
                "Exposed AllReduce that a later one repeats.",
            )
            if (repeats.longest)
            else None
        )
        return Fault(
            change=change,
            confidence=level,
            title=f"Gradients are reduced in each of {wording.decimals(passes + 1, 0)} backward passes of a step, "
            "but used once.",
            why=f"{wording.decimals(calls, 0)} AllReduces a step, of {wording.decimals(passes, 0)} passes, are "
            "repeated with the same sizes before the "
            f"optimizer's step; {wording.ms(exposed)} of their communication are exposed. {basis}",
            fix=_FIX,
            evidence=(window,) if window else (),
        )


#: Of the ranks.
_MOST = 0.5

_FIX = """\
Accumulate without AllReduce: run all but the last micro-step under no_sync().

from contextlib import nullcontext

for i, micro_batch in enumerate(micro_batches):
    last = i == len(micro_batches) - 1
    with nullcontext() if last else model.no_sync():  # forward and backward, both
        loss = loss_of(model(micro_batch)) / len(micro_batches)
        loss.backward()
optimizer.step(); optimizer.zero_grad(set_to_none=True)

# FSDP2: model.set_requires_gradient_sync(last)
# transformers / Accelerate: with accelerator.accumulate(model): ..."""
