"""See `ProfilerOverhead`."""

from __future__ import annotations

from tb_ddp_doctor import record_again, wording
from tb_ddp_doctor.digest.model import CpuTime, LaunchDelay, RankOwner
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.host import LateLaunches
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support import certainty, part
from tb_ddp_doctor.rules.support.affected import most_affected
from tb_ddp_doctor.rules.support.base import Clear, Fault, Result, Rule, threshold
from tb_ddp_doctor.trace.program_names import Program


class ProfilerOverhead(Rule):
    """Tracing itself slows the traced steps.

    What:
        GPU idle because the profiler blocks a launch ("Command Buffer Full"), or because recording slows a CPU that is
        not ahead of the GPU. The launch of a CUDA graph takes far longer while each of its kernels is recorded.
    Why:
        Recording costs a microsecond or two per CPU event, different on each rank, and full buffers stall the CPU for
        milliseconds. If the CPU is ahead of the GPU, this is hidden. If not, the traced step is longer than the
        untraced one, and other findings about the CPU look larger than they are.
    Evidence:
        The longest GPU idle on the rank that loses most. The cost is the GPU idle time from tracing: the traced step
        has it, the untraced step does not.
    Fix:
        Trace fewer steps, without shapes, stacks and memory; measure the untraced step time.
    Limits:
        Recording is estimated by the number of events: 0.4 to 4 µs each, by how long the median launch takes, and
        1.5 µs where that is 10 µs or more, as on a slow CPU. Of a CUDA graph's launch all but 0.2 µs a kernel counts
        as recording, unless it takes over 5 µs a kernel. Stalls of a CPU that is ahead are not counted.
    """

    id = "profiler-overhead"
    subject = "Tracing"
    of_every_program = True
    only_informs = True
    is_of_tracing = True

    min_cost: float = threshold(0.005, "of the step", "Less is not worth a finding; it is in the account anyway.")

    def check(self, *, frame: Frame, whatif: WhatIf, late_launches: LateLaunches, places: Places) -> Result:
        stalled, recording = late_launches.of(LaunchDelay.OVERHEAD), late_launches.of(LaunchDelay.RECORDING)
        lost = stalled + recording
        cost = whatif.tracing_ns
        if cost < self.min_cost * frame.step_ns:
            most = float(frame.recording_ns.max(initial=0.0))
            return Clear(
                f"Recording takes the CPU up to about {wording.ms(most)} a step, and the GPU has enough queued work."
            )
        # Where the GPU never idles for it, tracing may still cost time: of those whose CPUs record most.
        ranks = most_affected(lost if lost.any() else whatif.host_ns(CpuTime.RECORDING))
        seen = int(((whatif.recorded_ns - whatif.step_ns(whatif.tracing)).mean(axis=0) > 0).sum())
        level, basis = certainty.confidence(frame, cost, seen)
        recorded = float(whatif.at_slowest(whatif.host_ns(CpuTime.RECORDING)).mean())
        stalled_ns = float(whatif.at_slowest(whatif.host_ns(CpuTime.OVERHEAD)).mean())
        worst = int(lost.mean(axis=1).argmax())
        step = int(lost[worst].argmax())
        stalls = "graph_kernels" if frame.launches_graphs else "full_buffers"
        return Fault(
            change=whatif.tracing,
            ranks=frame.rank_numbers(ranks),
            cause="recording" if stalled.sum() <= recording.sum() else stalls,
            confidence="medium" if level == "high" and recording.sum() > stalled.sum() else level,
            title=f"Tracing slows the traced step by about {part.of_cost(cost, frame.window_ns)}.",
            why=f"Recording takes the CPU of the slowest rank about {wording.ms(recorded)} a step, estimated from the "
            f"length of its launches; {_STALLS[stalls]} it for {wording.ms(stalled_ns)}. {basis}",
            fix=_fix(frame),
            evidence=(places.longest(worst, step, RankOwner.DISPATCH, "GPU idle while the CPU launches and records."),),
        )


def _fix(frame: Frame) -> str:
    setting = frame.setting
    if setting.has_doctor:
        return f"{_OF_DOCTOR}\n\n{record_again.command(setting, steps=3)}"
    if setting.recorder == "nsys":
        return _OF_NSYS
    if frame.program == Program.SERVING.value:
        return _OF_SERVERS
    loop = ("for batch in loader:", "train(batch)") if frame.trains else ("for batch in batches:", "model(batch)")
    return _FIX.format(*loop)


_OF_DOCTOR = """\
Measure some steps without a capture and compare. A capture without stacks and memory records least."""
#: What stalls the CPU, as a clause begins.
_STALLS = {
    "full_buffers": "the profiler's buffers stall",
    "graph_kernels": "recording each kernel of CUDA graphs, and the profiler's buffers, stall",
}
_OF_NSYS = f"""\
Measure some steps without nsys and compare. Then record few steps, and record only what you need: no samples, and no \
operators (emit_nvtx).

{record_again.NSYS} --sample=none --cpuctxsw=none --capture-range=cudaProfilerApi {record_again.NSYS_OUTPUT}

# in the loop
if step == 100:
    torch.cuda.profiler.start()
if step == 105:
    torch.cuda.profiler.stop()"""
_OF_SERVERS = f"""\
Measure tokens per second without the profiler and compare. Then trace few iterations, without stacks and shapes.

{record_again.of_server(steps=5, stacks=False, shapes=False)}"""
_FIX = """\
Measure some steps without the profiler and compare. Then trace few steps, and record only what you need.

from torch.profiler import profile, schedule
from torch.profiler import tensorboard_trace_handler as handler

with profile(
    schedule=schedule(wait=5, warmup=3, active=3, repeat=1),
    record_shapes=False,
    with_stack=False,
    profile_memory=False,
    on_trace_ready=handler(logdir, use_gzip=True),
) as prof:
    {}
        {}
        prof.step()"""
