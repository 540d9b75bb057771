"""See `NoTensorCores`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_

import numpy as np
from msgspec.structs import replace

from tb_ddp_doctor import kernel_names, wording
from tb_ddp_doctor.digest.model import GpuTime, RankOwner
from tb_ddp_doctor.facts.compute import Gemms
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.roofline import JobRoofline
from tb_ddp_doctor.facts.shortened_calls import ShortenedCalls
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support import certainty, limits, part
from tb_ddp_doctor.rules.support.affected import most_affected
from tb_ddp_doctor.rules.support.base import Clear, Fault, Result, Rule, threshold
from tb_ddp_doctor.trace.model import Ints
from tb_ddp_doctor.trace.names import Precision, Product, product


class NoTensorCores(Rule):
    """GEMMs, convolutions or attention do not use tensor cores.

    What:
        GEMM kernels in float32 without TF32, or in half precision with misaligned dimensions, on a GPU that has tensor
        cores (AMD: matrix cores).
    Why:
        Tensor cores have eight to sixteen times the FLOPS in bfloat16 that the other cores have in float32, and half of
        that in TF32.
    Evidence:
        The longest such kernel; the names of those that take most time, with the input shapes where these are recorded.
        The cost is their time in excess of what they would take on tensor cores.
    Fix:
        Autocast to bfloat16; or TF32, which changes one line and keeps float32's range; dimensions in multiples of 8.
    Limits:
        Recognised by kernel names; names of compiled kernels (Triton) show neither type nor instruction. Matrix-vector
        multiplications and depthwise convolutions gain nothing and are not counted, nor is float64. The speed-up is an
        assumption, limited by the peaks of the GPU where these are known: small GEMMs gain less. With shapes, GEMMs of
        misaligned dimensions are taken to come as close to their peak as the job's other GEMMs in half precision.
        float32 on AMD's matrix cores counts as using them. Misaligned GEMMs of unfused attention are not counted:
        unfused-attention has them.
    """

    id = "no-tensor-cores"
    subject = "Compute without tensor cores"
    looks_again = True
    of_every_program = True
    finds_in_floor = True

    speedup: float = threshold(
        8.0,
        "times as fast",
        "Peak bfloat16 over float32 is 8 (V100 in float16) to 16 (A100, H100); measured on an H200: 10.5 for GEMMs "
        "and attention, 7.7 with the casts that autocast adds.",
    )
    speedup_most: float = threshold(
        2.0,
        "times the assumed speed-up, at most",
        "float32 kernels may reach a smaller share of their peak than tensor cores: published for GEMMs of 8,000 on an "
        "RTX 3090 Ti, 53 % of it in float32 and 83 % in float16.",
        least=1.0,
    )
    speedup_aligned: float = threshold(*limits.ALIGNED)
    shortest: float = threshold(5.0, "µs", "A GEMM on tensor cores takes at least this long, however small.")
    min_cost: float = threshold(*limits.WORTH_A_LINE)

    def check(
        self,
        *,
        frame: Frame,
        whatif: WhatIf,
        gemms: Gemms,
        calls: ShortenedCalls,
        roofline: JobRoofline,
        places: Places,
    ) -> Result:
        gemms = _without_scores(gemms, roofline)
        slow_ns = gemms.work.float32_ns + gemms.work.misaligned_ns
        slowest = most_affected(slow_ns)
        if not len(slowest):
            return Clear("No GEMM runs without tensor cores, by the kernel names.")
        by_kind = self._saved(gemms, roofline, 1.0)
        change, saved = _change(by_kind, gemms, calls), sum(by_kind.values(), np.zeros(slow_ns.shape, np.int64))
        cost = whatif.cost_ns(change)
        slowed = part.mean(slow_ns[slowest], frame.window_ns[slowest])
        if cost < self.min_cost * frame.step_ns:
            return Clear(
                f"GEMMs without tensor cores take {wording.ms(slowed.ns)} a step; tensor cores would save nothing."
            )
        at_half, at_most = (
            _change(self._saved(gemms, roofline, share), gemms, calls) for share in (0.5, self.speedup_most)
        )
        is_float32 = gemms.work.float32_ns.sum() >= gemms.work.misaligned_ns.sum()
        seen = int((whatif.at_slowest(saved) > self.min_cost * frame.step_ns).sum())
        level, basis = certainty.confidence(frame, cost, seen)
        products = whatif.at_slowest(gemms.work.float32_products + gemms.work.misaligned_products)
        most = wording.listing(
            [f"{kernel_names.short(name)}{f' (of {inputs})' if inputs else ''}" for name, inputs in gemms.slowest]
        )
        what = "in float32, without tensor cores" if is_float32 else "in half precision, with misaligned dimensions"
        affected = most_affected(saved)
        return Fault(
            change=change,
            ranks=frame.rank_numbers(affected),
            cause="float32" if is_float32 else "misaligned",
            confidence=level,
            title=f"GEMMs take {slowed}{_on(frame, slowest)} {what}.",
            why=f"{wording.decimals(float(products.mean()), 0)} of these a step; the longest are {most}. At half "
            f"the assumed speed-up the fix would save {wording.ms(whatif.cost_ns(at_half))}. {basis}",
            fix=_fix(gemms, is_float32=is_float32, trains=frame.trains),
            evidence=places.longest_spans(
                affected[:2],
                gemms.work.slow_product_start_ns,
                gemms.work.slow_product_end_ns,
                "The longest GEMM without tensor cores.",
                (RankOwner.COMPUTE, "GEMMs without tensor cores."),
            ),
            between=(at_half, at_most),
        )

    def _aligned(self, roofline: JobRoofline) -> float:
        """How many times as fast misaligned GEMMs are when aligned: as close to their roof as the job's other GEMMs.

        Without shapes, or where all are misaligned, the assumed speed-up.
        """
        took_ns, least_ns = np.zeros(2), np.zeros(2)
        for one in roofline.kernels:
            if one.kind is GpuTime.GEMM and one.precision == Precision.HALF.value and one.limit == "compute":
                misaligned = int(product(one.name) is Product.MISALIGNED)
                took_ns[misaligned] += one.step_ns
                least_ns[misaligned] += one.attainable_ns
        if not least_ns.all():
            return self.speedup_aligned
        others, misaligned_share = least_ns / took_ns
        return max(float(others / misaligned_share), 1.0)

    def _saved(self, gemms: Gemms, roofline: JobRoofline, share: float) -> dict[Product, Ints]:
        """Time that each rank would save on its device at a share of the assumed speed-ups, shape (R, S), ns."""
        work, speedup = gemms.work, min(self.speedup, gemms.fastest or self.speedup)
        aligned = self._aligned(roofline)
        return {
            Product.FLOAT32: self._faster(work.float32_ns, work.float32_products, max(speedup * share, 1.0)),
            Product.MISALIGNED: self._faster(work.misaligned_ns, work.misaligned_products, max(aligned * share, 1.0)),
        }

    def _faster(self, taken_ns: Ints, count: Ints, speedup: float) -> Ints:
        """What a number of GEMMs with this total time would save."""
        remaining = np.maximum(taken_ns / speedup, count * self.shortest * 1e3)
        saved: Ints = np.maximum(taken_ns - remaining, 0).astype(np.int64)
        return saved


def _without_scores(gemms: Gemms, roofline: JobRoofline) -> Gemms:
    """The GEMMs without misaligned ones of unfused attention, which fused attention does in blocks of its own."""
    on_scores = [one.step_ns for one in roofline.kernels if one.on_scores and product(one.name) is Product.MISALIGNED]
    left = np.maximum(gemms.work.misaligned_ns - int(sum(on_scores)), 0)
    return replace(gemms, work=replace(gemms.work, misaligned_ns=left))


def _on(frame: Frame, ranks: Ints) -> str:
    return f" on {wording.ranks(frame.rank_numbers(ranks))}" if len(ranks) < len(frame.ranks) else ""


def _change(saved: Mapping[Product, Ints], gemms: Gemms, calls: ShortenedCalls) -> Change:
    taken = {Product.FLOAT32: gemms.work.float32_ns, Product.MISALIGNED: gemms.work.misaligned_ns}
    each = (Change(device_ns=ns, of_calls=calls.of_products(kind, ns, taken[kind])) for kind, ns in saved.items())
    return reduce(or_, each)


def _fix(gemms: Gemms, *, is_float32: bool, trains: bool) -> str:
    if not is_float32:
        return _ALIGN if trains else _ALIGN_A_MODEL
    if not gemms.has_bfloat16:
        return _FLOAT16 if trains else _A_MODEL.format(dtype="float16")
    return (_BFLOAT16 if trains else _A_MODEL.format(dtype="bfloat16")) + (_TF32 if gemms.has_tf32 else "")


_BFLOAT16 = """\
Let autocast run GEMMs in bfloat16. Weights and the optimizer stay float32, and no loss scaling is needed.

with torch.autocast("cuda", dtype=torch.bfloat16):
    loss = criterion(model(batch), target)
loss.backward()"""

#: The fix of a model that does not train.
_A_MODEL = """\
Keep the model in {dtype}, and compare what it answers in both before you adopt it.

model = model.to(torch.{dtype})  # a server: --dtype {dtype}"""

_ALIGN_A_MODEL = """\
Make every dimension of the GEMMs a multiple of 8 (64 is better): pad the weights with zeros when they are loaded, and \
inputs of odd length.

weight = torch.nn.functional.pad(weight, (0, -weight.shape[1] % 8, 0, -weight.shape[0] % 8))"""

_TF32 = """

# or, with float32's range and ten bits of mantissa: about half of the gain, none for attention
torch.set_float32_matmul_precision("high")
torch.backends.cudnn.allow_tf32 = True"""

_FLOAT16 = """\
Let autocast run GEMMs in float16, with loss scaling; this GPU's tensor cores do not support bfloat16.

scaler = torch.amp.GradScaler("cuda")
with torch.autocast("cuda", dtype=torch.float16):
    loss = criterion(model(batch), target)
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()"""

_ALIGN = """\
Make every dimension of the GEMMs a multiple of 8 (64 is better): pad the vocabulary, channels and heads, and drop \
or pad batches of odd size.

vocabulary = (vocabulary + 63) // 64 * 64
model = torch.nn.Linear(features, classes + -classes % 8)"""
