"""See `OffloadCopies`."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.model import CopyWork, CpuTime, RankOwner
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.shortened_calls import ShortenedCalls
from tb_ddp_doctor.findings import Measurement
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support import certainty, part
from tb_ddp_doctor.rules.support.base import Clear, Fault, Result, Rule, threshold
from tb_ddp_doctor.trace.model import Flags
from tb_ddp_doctor.trace.names import HostMemory
from tb_ddp_doctor.trace.program_names import Program

_LEAST_SIZE = (1.0, "MB an iteration", "Tokens, positions and tables of pages are some hundred kilobytes.")


class OffloadCopies(Rule):
    """Iterations wait for copies of weights, adapters or caches between CPU and GPU.

    What:
        Large copies between host and GPU in iterations of a server or a diffusion pipeline, while nothing else runs on
        the GPU: LoRA adapters that are loaded when requests ask for them, weights that are kept on the CPU, keys and
        values that are moved out and in.
    Why:
        An iteration needs a few kilobytes of input. A link to the CPU moves weights some fifty times slower than the
        GPU's memory does.
    Evidence:
        The longest such copy. The cost is that of the replay without these copies, and without what they block the CPU.
    Fix:
        Keep on the GPU what iterations use again, or copy it beside compute, on a stream of its own.
    Limits:
        Traces do not say what is copied. Where the GPU's memory holds less than is used, something has to be copied:
        on a stream of its own it costs nothing as long as compute takes longer.
    """

    id = "offload-copies"
    subject = "Copies of weights or caches between CPU and GPU"
    of_every_program = True
    refines = "pageable-memcpy"

    least_size: float = threshold(*_LEAST_SIZE)
    min_cost: float = threshold(0.03, "of the iteration", "Below this it is not worth a line.")

    def check(
        self, *, frame: Frame, whatif: WhatIf, copies: CopyWork, shortened: ShortenedCalls, places: Places
    ) -> Result:
        if frame.program not in _FIXES:
            return Clear("What training and forward passes copy are batches; pageable-memcpy judges these.")
        large = are_large(copies, frame.program, self.least_size)
        if not large.any():
            return Clear("No iteration waits for a large copy between CPU and GPU.")
        exposed = np.where(large, copies.pageable_exposed_ns + copies.pinned_exposed_ns, 0)
        # What one rank copies alone, or more slowly than the others, makes it a straggler.
        copied = np.minimum(exposed, whatif.typical_of_step(exposed))
        copied_ns = copies.pageable_ns + copies.pinned_ns
        of_calls = shortened.of_copies(copied, copied_ns, HostMemory.PAGEABLE, HostMemory.PINNED)
        change = Change(device_ns=copied, of_calls=of_calls) | whatif.without(CpuTime.COPY)
        cost = whatif.cost_ns(change)
        if cost < self.min_cost * frame.step_ns:
            return Clear(f"Large copies between CPU and GPU cost {wording.ms(cost)} an iteration.")
        steps = np.flatnonzero(large.any(axis=0))
        rank, step = divmod(int(copied.argmax()), copied.shape[1])
        level, basis = certainty.confidence(frame, cost, len(steps))
        size = copies.pageable_bytes + copies.pinned_bytes
        moved, takes = float(size[large].mean()), float(exposed[large].mean())
        affected = np.flatnonzero(copied.mean(axis=1) > 0.5 * copied.mean())
        return Fault(
            change=change,
            ranks=frame.rank_numbers(affected),
            steps=tuple(frame.steps[steps].tolist()),
            confidence=level,
            title=f"Copies between CPU and GPU delay iterations by {part.mean(copied, frame.window_ns)}.",
            why=f"{wording.capital(wording.steps_seen(len(steps), len(frame.steps)))} copy "
            f"{wording.size(moved)} each, and the GPU does nothing else for {wording.ms(takes)}. {basis}",
            fix=_FIXES[frame.program],
            evidence=(places.longest(rank, step, RankOwner.COPY, "Only a copy runs on the GPU."),),
            measurements=(Measurement("only copies run", takes / 1e6, "ms", frame.rank_numbers(affected)),),
        )


def are_large(copies: CopyWork, program: str, least_size: float = _LEAST_SIZE[0]) -> Flags:
    """In which iterations of a server or a diffusion pipeline ranks copy so much, in MB, that it is no input, and wait
    for it; shape (R, S).
    """
    exposed = copies.pageable_exposed_ns + copies.pinned_exposed_ns
    large = (exposed > 0) & (copies.pageable_bytes + copies.pinned_bytes >= least_size * 1e6)
    return np.asarray(large & (program in _FIXES))


_FIXES = {
    Program.SERVING.value: """\
Keep adapters and weights that requests ask for again on the GPU, and sample there: what samples on the CPU copies all \
logits. Move keys and values in pinned memory, on a stream of their own.

vllm serve ... --enable-lora --max-loras 8 --max-cpu-loras 32  # as many as are asked for at a time
python -m sglang.launch_server ... --max-loras-per-batch 8""",
    Program.DIFFUSION.value: """\
Keep the model on the GPU, or load the next block's weights while one computes.

pipeline.to("cuda")                      # not pipeline.enable_sequential_cpu_offload()
cuda, cpu = torch.device("cuda"), torch.device("cpu")
pipeline.transformer.enable_group_offload(cuda, cpu, offload_type="leaf_level", use_stream=True)""",
}
