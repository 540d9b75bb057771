"""What a CPU does beside launching, in sentences."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.facts.host import HostOverheads
from tb_ddp_doctor.trace.model import Ints
from tb_ddp_doctor.trace.program_names import ServerWork

#: What takes less of a step is not said.
_LEAST_SHARE = 0.01
#: What skips guards, a sentence and a space.
GUARDS = """\
Skip the guards once all graphs are compiled and inputs keep their shapes: torch.compiler.set_stance("default", \
skip_guard_eval_unsafe=True). """
_SERVER = {
    ServerWork.SCHEDULING: "scheduling",
    ServerWork.SAMPLING: "sampling",
    ServerWork.DETOKENISING: "detokenising",
}


def said(overheads: HostOverheads, ranks: Ints, step_ns: float) -> str:
    """What the CPUs of some ranks (indices) do beside launching, mean over their steps, sentences and a space; "" where
    the traces show nothing of it.
    """
    guards = float(overheads.guard_ns[ranks].mean())
    sentences = ""
    if guards >= _LEAST_SHARE * step_ns:
        sentences = f"The guards of torch.compile take {wording.ms(guards)} of CPU time a step. "
    server = overheads.server_ns[ranks].mean(axis=(0, 1))
    parts = [
        f"{name} {wording.ms(float(server[kind]))}"
        for kind, name in _SERVER.items()
        if server[kind] >= _LEAST_SHARE * step_ns
    ]
    if parts:
        sentences += f"While the GPU idles, the CPU spends {wording.listing(parts)} an iteration. "
    return sentences


def guards_are_most(overheads: HostOverheads, ranks: Ints, cost_ns: float) -> bool:
    """Whether guards alone take half of what launching costs."""
    return bool(2 * np.mean(overheads.guard_ns[ranks]) >= cost_ns)
