"""See `LowerPrecision`."""

from __future__ import annotations

from collections.abc import Mapping

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.model import GpuTime
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.peaks import Roofs
from tb_ddp_doctor.facts.roofline import LEAST_NS, JudgedRoofline, KernelRoof
from tb_ddp_doctor.facts.without_faults import Charged
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support import certainty, limits
from tb_ddp_doctor.rules.support.base import Clear, Fault, Result, Rule, threshold
from tb_ddp_doctor.rules.support.gemm_tiles import gemm
from tb_ddp_doctor.rules.support.redundant import of_step
from tb_ddp_doctor.rules.support.roofline import KernelCase, is_charged, listed, longest, smaller
from tb_ddp_doctor.trace.names import Precision

_PRODUCTS = (GpuTime.GEMM, GpuTime.CONVOLUTION, GpuTime.ATTENTION)
#: Loops over elements: their time is that of their bytes.
_LOOPS = (GpuTime.ELEMENTWISE, GpuTime.NORM, GpuTime.COPY, GpuTime.EMBEDDING)
_WIDE = (Precision.TF32.value, Precision.FLOAT32.value)


class LowerPrecision(Rule):
    """Kernels could run in a narrower type: bfloat16 for float32, or 8-bit floats for bfloat16.

    What:
        Kernels on float32 tensors, in bfloat16: half of the bytes, and GEMMs at the peak of half precision; a finding.
        And GEMMs in half precision that FLOPs limit, on a GPU with 8-bit floats: at their peak, with the casts of both
        inputs; another finding.
    Why:
        Half as wide, a tensor takes half the time to read and write, and tensor cores multiply twice as fast.
    Evidence:
        The longest kernels. The saving is a share of what their roof falls by.
    Fix:
        Autocast over more of the model, or parameters in bfloat16; Transformer Engine's or torchao's fp8 linear layers.
    Limits:
        A possibility with a price: narrower types round more. Norms, losses and sums over many elements often need
        float32, the optimizer's states are not counted, and 8-bit floats need scaling. Compare losses before adopting
        it. GEMMs in float32 off the tensor cores are a fault of their own, no-tensor-cores. It needs shapes.
    """

    id = "lower-precision"
    subject = "Wider types than needed"
    refines = "larger-batch"
    is_opportunity = True
    of_every_program = True

    gained: float = threshold(
        0.75,
        "of what the roof falls by",
        "Chosen: kernels reach less of a higher roof, and some ops stay in the wider type.",
        least=0.01,
    )
    gained_least: float = threshold(0.25, "of what the roof falls by", "The lower end of the interval.")
    min_cost: float = threshold(*limits.WORTH_A_LINE)

    def check(
        self, *, frame: Frame, whatif: WhatIf, roofline: JudgedRoofline, charged: Charged, places: Places
    ) -> Result:
        case, roofs = KernelCase(frame, whatif, roofline, places), roofline.roofs
        falls: dict[str, dict[KernelRoof, float]] = {cause: {} for cause in _CAUSES}
        for one in roofline.kernels:
            if one.kind is GpuTime.OPTIMIZER or is_charged(one, charged) or not one.attainable_ns:
                continue
            for cause, least in (("bfloat16", _in_half(one, roofs)), ("fp8", _in_fp8(one, roofs))):
                if least is not None and (share := 1 - max(least, LEAST_NS) * one.count / one.attainable_ns) > 0:
                    falls[cause][one] = share
        faults = [self._fault(cause, some, case) for cause, some in falls.items()]
        costly = tuple(one for one in faults if one)
        return costly or Clear("Narrower types would hardly shorten the step.")

    def _fault(self, cause: str, falls: Mapping[KernelRoof, float], case: KernelCase) -> Fault | None:
        """The opportunity in one type; None where it saves too little. `falls` is by which share each roof falls."""
        frame, roofline = case.frame, case.roofline
        change = smaller({one: self.gained * share for one, share in falls.items()}, roofline)
        if change.is_nothing or (cost := case.whatif.cost_ns(change)) < self.min_cost * frame.step_ns:
            return None
        level, basis = certainty.confidence(frame, cost, len(frame.steps))
        kernels = sorted(falls, key=lambda one: -falls[one] * one.step_ns)
        taken = of_step(sum(one.step_ns for one in kernels), frame.step_ns)
        title, caveat, remedy, fix = _CAUSES[cause]
        if not frame.trains:
            fix = _OF_A_MODEL[cause]
        return Fault(
            change=change,
            cause=cause,
            confidence=certainty.LOWER[level],
            title=f"{taken} are {title}",
            why=f"{caveat} Of their attainable speed: {listed(kernels)}. With {wording.percent(self.gained)} of what "
            f"their roof falls by the step is {wording.ms(cost)} shorter. {basis}",
            fix=fix,
            evidence=longest(kernels[:2], case.places),
            remedy=remedy,
            between=(self.gained_least / self.gained, smaller(falls, roofline)),
        )


def _in_half(one: KernelRoof, roofs: Roofs) -> float | None:
    """The least time of one call in half precision, ns; None where it is no float32 that half precision shortens."""
    moves = one.bytes / 2 / roofs.bandwidth * 1e9
    if one.kind in _LOOPS:
        return moves if one.dtype == "float32" and one.limit == "memory" else None
    peak = roofs.flops.get(Precision.HALF.value, 0.0)
    if one.kind not in _PRODUCTS or one.precision not in _WIDE or not peak:
        return None
    return max(moves, one.flops / peak * 1e9)


def _in_fp8(one: KernelRoof, roofs: Roofs) -> float | None:
    """The same of a GEMM in 8-bit floats, with the casts of its inputs: 2 bytes of each element read, 1 written."""
    peak, sizes = roofs.flops.get(Precision.FP8.value, 0.0), gemm(one)
    if one.precision != Precision.HALF.value or one.limit != "compute" or not peak or sizes is None:
        return None
    inputs = sizes.batch * sizes.k * (sizes.m + sizes.n)
    return one.flops / peak * 1e9 + 3 * inputs / roofs.bandwidth * 1e9


#: What the kernels are, the caveat, the fix in a few words, and the fix.
_CAUSES = {
    "bfloat16": (
        "kernels on float32 tensors; bfloat16 would shorten the step.",
        "A bfloat16 number has three digits: sums over many elements, losses and small updates may need float32.",
        "bfloat16",
        """\
Let autocast cover more of the model, or keep activations and parameters in bfloat16. Compare the loss of both before \
you adopt it.

with torch.autocast("cuda", dtype=torch.bfloat16):
    loss = criterion(model(batch), target)

model = model.to(torch.bfloat16)  # the optimizer then keeps a float32 copy""",
    ),
    "fp8": (
        "GEMMs in half precision; 8-bit floats would shorten the step.",
        "8-bit floats have two or three bits of mantissa and need scaling; casts of both inputs are counted.",
        "fp8 linear layers",
        """\
Compute the large linear layers in 8-bit floats, and leave the first and the last one as they are. Compare the loss of \
both before you adopt it.

from torchao.float8 import convert_to_float8_training
convert_to_float8_training(model, module_filter_fn=lambda module, name: "head" not in name)
model = torch.compile(model)""",
    ),
}

#: The fix of a model that does not train.
_OF_A_MODEL = {
    "bfloat16": """\
Keep the model in bfloat16, and compare what it answers in both before you adopt it.

model = model.to(torch.bfloat16)  # a server: --dtype bfloat16""",
    "fp8": """\
Compute the large linear layers in 8-bit floats, and leave the first and the last one as they are. Compare what it \
answers in both before you adopt it.

from torchao.quantization import Float8DynamicActivationFloat8WeightConfig, quantize_
quantize_(model, Float8DynamicActivationFloat8WeightConfig())  # a server: --quantization fp8
model = torch.compile(model)""",
}
