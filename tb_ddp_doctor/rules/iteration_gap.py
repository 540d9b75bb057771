"""See `IterationGap`."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.model import CpuTime, RankOwner
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.host import HostOverheads
from tb_ddp_doctor.facts.iterations import Pending
from tb_ddp_doctor.findings import Measurement
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support import host_overheads
from tb_ddp_doctor.rules.support.base import Clear, Fault, NotApplicable, Result, Rule, threshold
from tb_ddp_doctor.rules.support.slowness import shared
from tb_ddp_doctor.trace.program_names import Program


class IterationGap(Rule):
    """The GPU idles between iterations of a server or a pipeline, while the CPU is outside any op on all ranks.

    What:
        Time outside any op, as between two iterations, which the GPU waits for. Of a server only between iterations
        that both have requests in decode: there is work. The cost is what an iteration would save without it.
    Why:
        The server schedules, samples and detokenises in turn with the GPU, and all requests in decode wait meanwhile. A
        pipeline calls its user's code, or reads values, between two steps.
    Evidence:
        The longest such gap; where functions or marks show it, how much is scheduling, sampling and detokenising.
    Fix:
        Schedule the next iteration while the GPU works on this one; give the server's processes cores of their own.
    Limits:
        A server's GPU also idles where no request is there: marks of vLLM, SGLang or TensorRT-LLM tell how many
        requests each iteration decodes, and Python stacks that the server waits for some. Without either, iterations of
        at most twice the median length are judged, and those before others that only decode, if kernels tell these.
        What one rank alone takes is a straggler.
    """

    id = "iteration-gap"
    subject = "GPU idle between iterations"
    of_every_program = True

    min_share: float = threshold(0.1, "of the iteration", "Servers that schedule ahead idle for less.")

    def check(
        self, *, frame: Frame, whatif: WhatIf, pending: Pending, overheads: HostOverheads, places: Places
    ) -> Result:
        if frame.program not in _FIXES:
            return Clear("This program has no iterations but training steps, and host-stall judges these.")
        if frame.is_sampled:
            return NotApplicable("The traces are sampled: a stretch without events need not be a gap.")
        is_known = frame.has_steps and len(frame.steps) >= _FEWEST
        if frame.program == Program.SERVING.value and not is_known:
            return NotApplicable("Fewer than three iterations of these traces are known.")
        if not whatif.plays:
            return NotApplicable("Iterations cannot be replayed, so it is not known what the gaps cost.")
        every = shared(whatif, frame, CpuTime.STALL)
        change = Change(shared={kind: np.where(pending.flags, share, 0.0) for kind, share in every.shared.items()})
        cost = whatif.cost_ns(change)
        if cost < self.min_share * frame.step_ns:
            return Clear(f"GPUs that idle between iterations cost {wording.ms(cost)} an iteration.")
        stalled = whatif.host_ns(CpuTime.STALL) * pending.flags
        worst = int(stalled.mean(axis=1).argmax())
        ranks = np.arange(len(frame.ranks))
        numbers = frame.rank_numbers(ranks)
        median_ns = np.median(stalled, axis=0)
        seen = median_ns > self.min_share * frame.step_ns
        if 0 < 2 * seen.sum() <= len(seen):
            said = f"after {int(seen.sum())} of {len(seen)} iterations: the CPU is outside any op there for "
            said += f"{wording.ms(float(median_ns[seen].mean()))}."
        else:
            seen, mean = pending.flags, wording.ms(float(median_ns.mean()))
            when = "between iterations: the" if is_known else "between forward passes or within them: the"
            said = f"{when} CPU is outside any op for {mean} of each {wording.ms(frame.step_ns)}."
        return Fault(
            change=change,
            steps=tuple(frame.steps[seen].tolist()),
            confidence="high" if seen.sum() >= _FEWEST else "medium",
            title=f"GPUs idle {said}",
            why=f"{host_overheads.said(overheads, ranks, frame.step_ns)}{_WHY[frame.program]}",
            fix=_FIXES[frame.program],
            evidence=(
                places.longest(worst, int(stalled[worst].argmax()), RankOwner.HOST, "GPU idle, CPU outside any op."),
            ),
            measurements=(
                Measurement("CPU outside any op", float(median_ns.mean()) / 1e6, "ms", numbers, frame.all_steps),
            ),
        )


#: Of fewer iterations none is usual.
_FEWEST = 3
_WHY = {
    Program.SERVING.value: "All requests in decode wait meanwhile.",
    Program.DIFFUSION.value: "Between its steps the pipeline runs Python: callbacks, progress bars, its scheduler.",
    Program.INFERENCE.value: "Between forward passes the program runs Python, or waits for its inputs.",
}
_FIXES = {
    Program.SERVING.value: """\
Schedule the next iteration while the GPU works on this one, sample on the GPU, and give the server's processes cores \
of their own.

vllm serve ... --async-scheduling
python -m sglang.launch_server ...               # without --disable-overlap-schedule""",
    Program.DIFFUSION.value: """\
Find what runs between the pipeline's steps, and do it after the last one: callbacks, previews, progress bars, values \
that are read.

images = pipeline(prompt, callback_on_step_end=None)
pipeline.set_progress_bar_config(disable=True)""",
    Program.INFERENCE.value: """\
Prepare inputs and handle outputs in other threads or processes while the GPU works, and batch more inputs.

loader = DataLoader(dataset, num_workers=4, pin_memory=True, prefetch_factor=4)""",
}
