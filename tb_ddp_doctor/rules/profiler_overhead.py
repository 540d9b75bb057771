"""See `ProfilerOverhead`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tb_ddp_doctor.digest.model import CpuTime, RankOwner, Starved
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.host import Starvation
from tb_ddp_doctor.facts.whatif import WhatIf
from tb_ddp_doctor.rules.support import blocking_calls, text
from tb_ddp_doctor.rules.support.base import Clear, Fault, Result, Rule, threshold


@dataclass(frozen=True)
class ProfilerOverhead(Rule):
    """Tracing itself slows the traced steps.

    What:
        The device starves while the profiler holds a launch ("Command Buffer Full") or because recording its events
        slows a host that is not ahead.
    Why:
        Recording costs a host event a microsecond or two, unevenly over ranks, and full buffers stall it for
        milliseconds. A host that is ahead of its device does not mind; one that is not makes the traced step longer
        than the untraced one, and other findings about the host larger than they are.
    Evidence:
        The longest idle stretch of the rank that loses most. The cost is what the device starves for it: what the
        traced step loses, and the untraced one never had.
    Fix:
        Trace fewer steps, without shapes, stacks and memory; judge the untraced step by its own time.
    Limits:
        Recording is an estimate by the number of events, 1.5 us each. Stalls of a host that is ahead are not counted.
    """

    id: ClassVar[str] = "profiler-overhead"
    of_every_program: ClassVar[bool] = True
    only_informs: ClassVar[bool] = True
    is_of_tracing: ClassVar[bool] = True

    min_cost: float = threshold(
        0.005, "of the step", "Less is not worth a line; what it takes is in the account anyway."
    )

    def check(self, *, frame: Frame, whatif: WhatIf, starvation: Starvation, places: Places) -> Result:
        stalled, recording = starvation.of(Starved.OVERHEAD), starvation.of(Starved.RECORDING)
        lost = stalled + recording
        cost = whatif.tracing_ns
        if cost < self.min_cost * frame.step_ns:
            most = float(frame.recording_ns.max(initial=0.0))
            return Clear(f"Recording takes a host up to about {text.ms(most)} a step, and the device has enough to do.")
        ranks = blocking_calls.affected(lost)
        seen = int((whatif.at_slowest(lost) > 0).sum())
        level, basis = text.confidence(frame, cost, seen)
        recorded = float(whatif.at_slowest(whatif.host_ns(CpuTime.RECORDING)).mean())
        held = float(whatif.at_slowest(whatif.host_ns(CpuTime.OVERHEAD)).mean())
        worst = int(lost.mean(axis=1).argmax())
        step = int(lost[worst].argmax())
        return Fault(
            change=whatif.tracing,
            ranks=frame.rank_numbers(ranks),
            steps=frame.all_steps,
            cause="full_buffers" if stalled.sum() > recording.sum() else "recording",
            confidence="medium" if level == "high" and recording.sum() > stalled.sum() else level,
            title=f"Tracing slows the traced step by about {text.ms(cost)} of {text.ms(frame.step_ns)}.",
            why=f"Recording takes the CPU of the slowest rank about {text.ms(recorded)} a step, by the length of its "
            f"launches; the profiler's buffers stall it for {text.ms(held)}. {basis}",
            fix=_FIX,
            evidence=(
                places.longest(worst, step, RankOwner.DISPATCH, "Device idle while the host launches and records."),
            ),
        )


_FIX = """\
Time some steps without the profiler and compare. Then trace few steps, and record no more than is looked at.

from torch.profiler import profile, schedule
from torch.profiler import tensorboard_trace_handler as handler

with profile(
    schedule=schedule(wait=5, warmup=3, active=3, repeat=1),
    record_shapes=False,
    with_stack=False,
    profile_memory=False,
    on_trace_ready=handler(logdir, use_gzip=True),
) as prof:
    for batch in loader:
        train(batch)
        prof.step()"""
