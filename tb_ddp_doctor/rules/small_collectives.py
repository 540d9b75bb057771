"""See `SmallCollectives`."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.calibration.transfer_fit import TransferFit
from tb_ddp_doctor.digest.model import BUFFERS, METRIC, NORM, RankOwner
from tb_ddp_doctor.facts.arrivals import Purpose, Sized, TinyCalls
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.traffic import Traffic
from tb_ddp_doctor.job.model import Budget
from tb_ddp_doctor.planning.fact import Plans
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support import certainty, limits, part
from tb_ddp_doctor.rules.support.base import Clear, Fault, NotApplicable, Result, Rule, threshold
from tb_ddp_doctor.rules.support.exposed import most_exposed


class SmallCollectives(Rule):
    """Small collectives, many or in every step: most of their time is latency.

    What:
        Kinds of collectives with many calls a step, in which latency is a large part of the time. Also small
        collectives in every step outside the backward pass, by purpose: `buffers` (DDP broadcasts its buffers in
        forward), `gradient_norm` (clip_grad_norm_), `metric` (an all_reduce of a few bytes).
    Why:
        A collective takes a latency alpha, for any size, and beta for each byte. Below alpha / beta bytes it is mostly
        latency, and fewer, larger collectives take less time.
    Evidence:
        The fit of time against bytes over the matched collectives of one kind and group, without straggler wait. The
        cost is the exposed communication that large messages, with the overlap of DDP, would save. Latency that is
        hidden behind compute costs nothing, and is reported as info.
    Fix:
        Larger buckets; coalesced collectives; fewer wrapped modules in FSDP.
    Limits:
        Sizes must be recorded, and differ by a factor of four, otherwise latency and bandwidth cannot be separated.
        Without sizes or matches, only very many very short calls are reported (`unsized`), with the latency that fewer
        calls would save.
    """

    id = "small-collectives"
    subject = "The latency of small collectives"
    refines = "communication-bound"

    min_calls: float = threshold(12.0, "a step", "DDP with five buckets, or as many FSDP units, has fewer of one kind.")
    min_latency: float = threshold(
        0.25, "of the communication", "Messages of three times alpha / beta and more lose less."
    )
    min_spread: float = threshold(4.0, "x", "Sizes that differ by less do not separate latency from bandwidth.")
    min_r2: float = threshold(0.7, "R2", "Below it, size does not explain how long a collective takes.")
    min_tiny_calls: float = threshold(100.0, "a step", "One for each parameter, where sizes are not recorded.")
    tiny: float = threshold(50.0, "µs", "Half of the calls take no longer: NCCL's latency for any size.")
    min_purpose: float = threshold(
        0.01, "of the step", "Buffers, norms and metrics that are exposed for less are not worth a finding."
    )
    large_message: float = threshold(4.0, "x alpha / beta", "Latency is then a fifth of a message's time.")
    achievable: float = threshold(*limits.ACHIEVABLE_OVERLAP)

    def check(
        self,
        *,
        frame: Frame,
        budget: Budget,
        whatif: WhatIf,
        sized: Sized | None,
        tiny_calls: TinyCalls | None,
        purposes: tuple[Purpose, ...],
        places: Places,
        plans: Plans,
    ) -> Result:
        named = tuple(
            self._named(purpose, frame, whatif, places)
            for purpose in purposes
            if float(purpose.exposed_ns.mean()) >= self.min_purpose * frame.step_ns
        )
        many: Fault | Clear | NotApplicable = NotApplicable("No collective appears in the traces.")
        if sized:
            many = self._check_sized(frame, budget, whatif, sized, places, plans)
        elif tiny_calls:
            many = self._check_unsized(frame, whatif, tiny_calls, places)
        return (*([many] if isinstance(many, Fault) else []), *named) if named else many

    def _named(self, purpose: Purpose, frame: Frame, whatif: WhatIf, places: Places) -> Fault:
        """Small collectives of a known purpose, that a fix drops."""
        change = Change(transfer_ns=purpose.exposed_ns)
        cost = whatif.cost_ns(change)
        seen = int((purpose.exposed_ns > 0).any(axis=0).sum())
        level, basis = certainty.confidence(frame, cost, seen, of_transfer=True)
        cause = _CAUSES[purpose.what]
        waits = (
            f" Ranks wait for each other in it another {wording.ms(purpose.wait_ns)} a step." if purpose.wait_ns else ""
        )
        exposed = part.mean(purpose.exposed_ns, frame.window_ns)
        number = f"{wording.decimals(purpose.calls, 0)} times a step" if purpose.calls >= 1.5 else "once a step"
        return Fault(
            change=change,
            cause=cause,
            confidence=level,
            title=f"The {purpose.what} runs {number}, exposed for {exposed}.",
            why=f"It is so small that its time is latency, and all ranks have to arrive.{waits} {basis}",
            fix=_FIX_OF[cause],
            evidence=(places.of_most(purpose.exposed_ns, _EXPOSED, RankOwner.COMMUNICATION),),
        )

    def _check_unsized(self, frame: Frame, whatif: WhatIf, tiny: TinyCalls, places: Places) -> Fault | NotApplicable:
        """By their number and how long each takes: such short ones are latency, whatever their size."""
        many = f"{wording.decimals(tiny.calls, 0)} {f'calls of {tiny.kind}' if tiny.kind else 'collectives'} a step"
        short = f"half of them take {wording.us(tiny.median_ns)} or less"
        if tiny.calls < self.min_tiny_calls or tiny.median_ns > self.tiny * 1e3:
            return NotApplicable(f"The traces do not have the sizes of collectives. There are {many}, and {short}.")
        # As many as DDP's buckets would stay.
        stays = min(self.min_calls / max(tiny.calls, 1.0), 1.0)
        change = Change(transfer_ns=(tiny.latency_ns * (1 - stays)).astype(np.int64))
        cost = whatif.cost_ns(change)
        level, basis = certainty.confidence(frame, cost, len(frame.steps), of_transfer=True)
        exposed = part.mean(tiny.exposed_ns, frame.window_ns)
        return Fault(
            change=change,
            cause="unsized",
            confidence="medium" if level == "high" else level,
            title=f"{many}, and {short}: each is mostly latency.",
            why=f"They are exposed for {exposed}, waits included, and "
            f"each has its own launch. Larger messages would take {wording.ms(cost)} of latency less; "
            "without sizes or matches in the traces, savings of straggler wait are not known. "
            f"{basis}",
            fix=_UNSIZED_FIX,
            evidence=(places.of_most(tiny.exposed_ns, _EXPOSED, RankOwner.COMMUNICATION),),
        )

    def _check_sized(
        self, frame: Frame, budget: Budget, whatif: WhatIf, measured: Sized, places: Places, plans: Plans
    ) -> Fault | Clear | NotApplicable:
        sized = [traffic for traffic in measured.traffic if traffic.has_bytes]
        many = [traffic for traffic in sized if traffic.calls >= self.min_calls]
        if not many:
            calls = max(traffic.calls for traffic in sized)
            return Clear(f"At most {wording.decimals(calls, 0)} collectives of a kind and group run in a step.")
        judged = [
            (traffic, traffic.line) for traffic in many if traffic.line and traffic.line.spread >= self.min_spread
        ]
        if not judged:
            return NotApplicable(
                f"The {wording.decimals(many[0].calls, 0)} {many[0].kind} of a step have similar sizes, so latency and "
                "bandwidth cannot be separated."
            )
        small = [
            (traffic, line)
            for traffic, line in judged
            if traffic.latency_share >= self.min_latency and line.r2 >= self.min_r2
        ]
        if not small:
            traffic, line = judged[0]
            return Clear(
                f"Latency takes {wording.percent(traffic.latency_share)} of {wording.decimals(traffic.calls, 0)} "
                f"{traffic.kind} a step (R2 {wording.decimals(line.r2, 2)})."
            )
        saved = sum(self._saved_ns(traffic, line) for traffic, line in small)
        total = whatif.at_slowest(measured.transfers.total_ns)
        exposed = whatif.at_slowest(budget.of("transfer"))
        remaining = np.maximum(total - saved, 0)
        remains = remaining - self.achievable * np.minimum(remaining, whatif.at_slowest(budget.of("compute")))
        saving = np.clip(exposed - remains, 0, np.minimum(exposed, saved)).astype(np.int64)
        change = Change(transfer_ns=np.broadcast_to(saving, whatif.shape))
        cost = whatif.cost_ns(change)
        level, basis = certainty.confidence(frame, max(cost, saved), len(frame.steps), of_transfer=True)
        traffic, line = max(small, key=lambda one: one[1].alpha_ns * one[0].calls)
        return Fault(
            change=change,
            confidence=level,
            title=f"{wording.decimals(traffic.calls, 0)} {traffic.kind} a step of "
            f"{wording.size(traffic.bytes_per_step / traffic.calls)} on average: latency takes "
            f"{wording.percent(traffic.latency_share)} of their {wording.ms(traffic.transfer_per_step_ns)}.",
            why=f"Each takes {wording.decimals(line.alpha_ns / 1e3, 0)} µs and 1 ms for {_per_ms(line)} (R2 "
            f"{wording.decimals(line.r2, 2)}); larger "
            f"messages would take {wording.ms(saved)} less, of which {wording.ms(cost)} are exposed. {basis}",
            fix=_fix(line, self.large_message, plans),
            evidence=most_exposed(exposed, whatif, places),
        )

    def _saved_ns(self, traffic: Traffic, line: TransferFit) -> float:
        """What the same bytes take less in large messages."""
        size = traffic.bytes_per_step
        least = max(self.large_message * line.alpha_ns / line.beta_ns, 1.0) if line.beta_ns > 0 else size
        return line.alpha_ns * max(traffic.calls - max(size / least, 1.0), 0.0)


def _per_ms(line: TransferFit) -> str:
    return f"{wording.decimals(1 / line.beta_ns, 1)} MB" if line.beta_ns > 0 else "any size"


def _fix(line: TransferFit, large: float, plans: Plans) -> str:
    size = large * line.alpha_ns / line.beta_ns / 2**20 if line.beta_ns > 0 else 25
    best = plans.best_buckets()
    bucket = min(max(round(size), 1), 25)
    if best and best.question.bucket_mb:
        bucket = round(best.question.bucket_mb)
    return f"""\
Send more with each call: larger DDP buckets (about {bucket} MB here, torch's default is 25), several transformer \
blocks in one FSDP unit, coalesced calls for many small tensors.{plans.said(best)}

model = DistributedDataParallel(model, device_ids=[local_rank], bucket_cap_mb={bucket})

with torch.distributed._coalescing_manager(device=device, async_ops=True) as handle:
    for tensor in tensors:
        torch.distributed.all_reduce(tensor)
handle.wait()"""


_EXPOSED = "Exposed communication: no compute beside it."
_CAUSES = {BUFFERS: "buffers", NORM: "gradient_norm", METRIC: "metric"}
_FIX_OF = {
    "buffers": """\
If buffers (BatchNorm's running statistics) may differ a little between ranks, they need no broadcast in every forward \
pass; if they must be equal, use SyncBatchNorm, or broadcast before a checkpoint.

model = DistributedDataParallel(model, device_ids=[local_rank], broadcast_buffers=False)""",
    "gradient_norm": """\
Compute the gradient norm without an extra collective: with DDP, gradients are equal on all ranks, and so is their \
norm; with FSDP clip every n-th step, or with foreach=True and error_if_nonfinite=False.

torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)""",
    "metric": """\
Sum the metric locally and reduce it only when it is logged, several metrics in one tensor, without waiting for it.

total += loss.detach()                     # every step, no communication
if step % 100 == 0:
    torch.distributed.all_reduce(total)""",
}

_UNSIZED_FIX = """\
Send more with each call: one call per parameter is typical of a hand-written loop. Let DDP collect gradients in \
buckets, or coalesce the calls.

model = DistributedDataParallel(model, device_ids=[local_rank])   # buckets of 25 MB

with torch.distributed._coalescing_manager(device=device, async_ops=True) as handle:
    for parameter in model.parameters():
        torch.distributed.all_reduce(parameter.grad)
handle.wait()"""
