"""What rules on the roofline share: which kernels, where they are, and what they would save."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from tb_ddp_doctor import kernel_names, wording
from tb_ddp_doctor.digest.model import GpuTime, RankOwner
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.modules import ModuleTree, calls_ns
from tb_ddp_doctor.facts.roofline import JobRoofline, JudgedRoofline, KernelRoof
from tb_ddp_doctor.facts.without_faults import Charged
from tb_ddp_doctor.findings import Evidence
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support.layers import Where, where
from tb_ddp_doctor.trace.model import Floats, Ints
from tb_ddp_doctor.trace.names import Product, product

#: Operators that are named.
_NAMED = 3


class KernelCase(msgspec.Struct, frozen=True, eq=False):
    """What a rule judges by whether other kernels are worth it."""

    frame: Frame
    whatif: WhatIf
    roofline: JudgedRoofline
    places: Places


def is_charged(one: KernelRoof, charged: Charged) -> bool:
    """Whether a fault has the time of a kernel already."""
    if one.kind is GpuTime.OPTIMIZER:
        return "unfused-optimizer" in charged.rules
    if one.on_scores and "unfused-attention" in charged.rules:
        return True
    off_tensor_cores = product(one.name) in (Product.FLOAT32, Product.MISALIGNED)
    return off_tensor_cores and "no-tensor-cores" in charged.rules


def operators(kernels: Sequence[KernelRoof]) -> str:
    """The operators with most of the kernels' time, as "gelu (2.8 ms), add (2.3 ms) and cat (1.2 ms)"."""
    taken: defaultdict[str, float] = defaultdict(float)
    for one in kernels:
        taken[plain(one)] += one.step_ns
    most = sorted(taken, key=lambda name: -taken[name])[:_NAMED]
    return wording.listing([f"{name} ({wording.ms(taken[name])})" for name in most])


def plain(one: KernelRoof) -> str:
    """The operator's name without its namespace, else the kernel's."""
    return one.operator.rpartition("::")[2] or kernel_names.short(one.name)


def listed(kernels: Sequence[KernelRoof]) -> str:
    """The first few, as "softmax of 16x5185x5185, 262.4 ms in 120 calls, 787 GB/s (23 %)".

    Times are of a step, percents of the attainable speed.
    """
    said = []
    for one in kernels[:_NAMED]:
        by_bytes = one.limit == "memory"
        rate = wording.memory_rate(one.achieved_bandwidth) if by_bytes else wording.flop_rate(one.achieved_flops)
        inputs = f" of {one.inputs}" if one.inputs else ""
        calls = f"{wording.decimals(one.count, 0)} call{'s' * (round(one.count) != 1)}"
        said.append(
            f"{plain(one).strip('_')}{inputs}, {wording.ms(one.step_ns)} in {calls}, {rate} "
            f"({wording.percent(one.of_attainable)})"
        )
    more = f"; and {len(kernels) - _NAMED} more" if len(kernels) > _NAMED else ""
    return f"{'; '.join(said)}{more}"


def in_modules(kernels: Sequence[KernelRoof], roofline: JobRoofline, modules: ModuleTree | None, ranks: Ints) -> Where:
    """A sentence, with a space before it, on the modules that run some kernels; nothing where traces do not tell.

    It is said of the rank with the longest call: other ranks of the same program hardly differ. `ranks` are the ranks'
    numbers, shape (R,).
    """
    if modules is None or not kernels:
        return Where()
    rank = max(kernels, key=lambda one: one.step_ns).rank
    chosen = np.isin(np.arange(len(roofline.kernels)), [roofline.kernels.index(one) for one in kernels])
    own_ns = calls_ns(modules, rank, roofline.ranks[rank].digest, chosen[roofline.ranks[rank].kernels])
    return where(modules, own_ns).within(f" Of their time on rank {ranks[rank]}, ", ".")


def longest(kernels: Sequence[KernelRoof], places: Places) -> tuple[Evidence, ...]:
    """The longest call of each of some kernels."""
    calls = [
        places.between(one.rank, one.start_ns, one.end_ns, RankOwner.COMPUTE, f"The longest call of {plain(one)}.")
        for one in kernels
    ]
    return tuple(one for one in calls if one)


def at_share(kernels: Sequence[KernelRoof], reached: float, roofline: JobRoofline) -> Change:
    """What goes if each of some kernels reached a share of its attainable speed, 0 to 1."""
    return faster({one: spared_ns(one, reached) / one.step_ns for one in kernels}, roofline)


def spared_ns(one: KernelRoof, reached: float) -> float:
    """The time of a kernel that goes if it reached a share of its attainable speed, 0 to 1; mean as `step_ns` is."""
    return max(one.step_ns - one.attainable_ns / reached, 0.0)


def faster(removed: Mapping[KernelRoof, float], roofline: JobRoofline) -> Change:
    """What goes if faster kernels take the place of some, which save a share of their time, 0 to 1."""
    return Change(faster_calls=_of_calls(removed, roofline))


def smaller(removed: Mapping[KernelRoof, float], roofline: JobRoofline) -> Change:
    """What goes if some kernels have less to do, by a share of their time, 0 to 1, however fast they are."""
    return Change(smaller_calls=_of_calls(removed, roofline))


def _of_calls(removed: Mapping[KernelRoof, float], roofline: JobRoofline) -> Floats:
    """The share of each row of the ranks' `RooflineCalls`."""
    return np.array([removed.get(one, 0.0) for one in roofline.kernels]).take(roofline.kernel_of)
