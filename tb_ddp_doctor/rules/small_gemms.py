"""See `SmallGemms`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.model import GpuTime
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.roofline import JudgedRoofline, KernelRoof
from tb_ddp_doctor.facts.without_faults import Charged
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support import certainty, limits
from tb_ddp_doctor.rules.support.base import Clear, Fault, Result, Rule, threshold
from tb_ddp_doctor.rules.support.gemm_tiles import Gemm, TileUse, fit, gemm, is_misaligned
from tb_ddp_doctor.rules.support.redundant import of_step
from tb_ddp_doctor.rules.support.roofline import KernelCase, faster, is_charged, listed, longest


class _Wasted(msgspec.Struct, frozen=True, eq=False):
    """A GEMM, and which shares of its time its sizes waste."""

    kernel: KernelRoof
    sizes: Gemm
    fit: TileUse
    is_misaligned: bool
    #: Of its time, 0 to 1; and by what most of it: "sizes" that do not fit tiles and alignment, or "waves" of tiles
    #: that do not fill the GPU.
    share: float
    cause: str

    @property
    def wasted_ns(self) -> float:
        return self.share * self.kernel.step_ns


class SmallGemms(Rule):
    """The sizes of GEMMs do not fit the GPU: tiles that are partly empty, or too few tiles.

    What:
        GEMMs of which a part of the work is of no use: dimensions that are no multiple of their kernel's tile or of
        16 bytes, or fewer tiles than the GPU has multiprocessors. A finding for sizes and one for too few tiles.
    Why:
        A GEMM kernel computes its output in tiles of, say, 128 x 128, one for each multiprocessor at a time. A
        dimension of 129 takes two tiles, and 24 tiles keep 24 of 132 multiprocessors busy. Rows that are no multiple
        of 16 bytes, as of a vocabulary of 50,257, need kernels with narrow loads.
    Evidence:
        The longest calls. The saving is the part of their time that is of no use, as far as it is above their
        attainable time; at the lower end of its interval half of that.
    Fix:
        Pad dimensions; batch or group GEMMs of the same sizes; join GEMMs of one input, such as q, k and v.
    Limits:
        It needs shapes. The tile is the one in the kernel's name; where the name has none, only alignment is judged.
        GEMMs that need each other's results cannot be batched. Too few tiles are counted only of GEMMs that memory
        does not limit and that a step calls several times with the same sizes.
    """

    id = "small-gemms"
    subject = "GEMMs of sizes that do not fit the GPU"
    refines = ("slow-kernels", "lower-precision", "larger-batch")
    is_opportunity = True
    of_every_program = True

    least_wasted: float = threshold(0.1, "of a GEMM's time", "Every size leaves some of the last tiles empty.")
    speedup_aligned: float = threshold(*limits.ALIGNED, least=1.0)
    repeated: float = threshold(2.0, "calls a step", "A GEMM that a step calls once has none to be batched with.")
    saved_least: float = threshold(0.5, "of the wasted time", "The lower end of the interval.")
    min_cost: float = threshold(*limits.WORTH_A_LINE)

    def check(
        self, *, frame: Frame, whatif: WhatIf, roofline: JudgedRoofline, charged: Charged, places: Places
    ) -> Result:
        case = KernelCase(frame, whatif, roofline, places)
        wasted = [
            wasted_part
            for one in roofline.kernels
            if one.kind is GpuTime.GEMM
            and not is_charged(one, charged)
            and (wasted_part := self._wasted(one, roofline))
        ]
        faults = [self._fault(cause, wasted, case) for cause in _CAUSES]
        if worth := tuple(one for one in faults if one):
            return worth
        if not any(one.kind is GpuTime.GEMM for one in roofline.kernels):
            return Clear("No GEMM with known sizes runs.")
        taken = of_step(sum(one.wasted_ns for one in wasted), frame.step_ns)
        return Clear(f"The sizes of GEMMs waste {taken}.")

    def _wasted(self, one: KernelRoof, roofline: JudgedRoofline) -> _Wasted | None:
        """What a GEMM's sizes waste, at most its time above attainable; None if that is little."""
        sizes = gemm(one)
        if sizes is None or not one.step_ns:
            return None
        fits = fit(one.name, sizes, roofline.roofs.multiprocessors)
        misaligned = is_misaligned(one.name, sizes, one.dtype)
        by_sizes = 1 - fits.tiles if one.limit != "memory" else 0.0
        if misaligned:
            by_sizes = max(by_sizes, 1 - 1 / self.speedup_aligned)
        alone = one.limit == "memory" or one.count < self.repeated
        by_waves = 0.0 if alone else (1 - by_sizes) * (1 - fits.waves)
        share = min(by_sizes + by_waves, one.above_ns / one.step_ns)
        if share < self.least_wasted:
            return None
        return _Wasted(one, sizes, fits, misaligned, share, "sizes" if by_sizes >= by_waves else "waves")

    def _fault(self, cause: str, wasted: Sequence[_Wasted], case: KernelCase) -> Fault | None:
        """The opportunity in sizes, or in too few tiles; None where it saves too little."""
        frame, roofline = case.frame, case.roofline
        some = sorted((one for one in wasted if one.cause == cause), key=lambda one: -one.wasted_ns)
        change = faster({one.kernel: one.share for one in some}, roofline)
        if change.is_nothing or (cost := case.whatif.cost_ns(change)) < self.min_cost * frame.step_ns:
            return None
        level, basis = certainty.confidence(frame, cost, len(frame.steps))
        kernels = [one.kernel for one in some]
        taken = of_step(sum(one.step_ns for one in kernels), frame.step_ns)
        title, remedy, fix = _CAUSES[cause]
        return Fault(
            change=change,
            cause=cause,
            confidence=level,
            title=f"{taken} are {title}",
            why=f"{_reason(some[0], cause, roofline.roofs.multiprocessors)} Of their attainable speed: "
            f"{listed(kernels)}. {basis}",
            fix=fix if frame.trains else _OF_A_MODEL[cause],
            evidence=longest(kernels[:2], case.places),
            remedy=remedy,
            between=(self.saved_least, change),
        )


def _reason(one: _Wasted, cause: str, multiprocessors: int) -> str:
    """What the sizes of one GEMM waste, a sentence."""
    sizes, operator = one.sizes, one.kernel.operator.rpartition("::")[2]
    what = f"{operator} of ({sizes.m:,}, {sizes.k:,}) x ({sizes.k:,}, {sizes.n:,})"
    if cause == "waves":
        batch = f" in a batch of {sizes.batch:,}" if sizes.batch > 1 else ""
        return (
            f"{what}{batch} has {one.fit.count:,} tiles for {multiprocessors} multiprocessors: "
            f"{wording.percent(one.fit.waves)} of them are busy."
        )
    if one.is_misaligned:
        return f"{what} has rows that are no multiple of 16 bytes."
    return f"{what} fills {wording.percent(one.fit.tiles)} of its tiles."


#: What the GEMMs are, the fix in a few words, and the fix.
_CAUSES = {
    "sizes": (
        "GEMMs whose sizes do not fit their tiles; padded ones would shorten the step.",
        "multiples of 64",
        """\
Give GEMMs dimensions that are multiples of 64 (of 8 at least): a vocabulary of 50,304 instead of 50,257, padded heads \
and channels, batches and sequences of even sizes.

vocabulary = (vocabulary + 63) // 64 * 64
head = torch.nn.Linear(width, vocabulary)""",
    ),
    "waves": (
        "GEMMs with too few tiles for the GPU; batched ones would shorten the step.",
        "batched or grouped GEMMs",
        """\
Run GEMMs of the same sizes as one: join the weights of those with one input, batch independent ones, and group those \
of experts.

qkv = torch.nn.Linear(width, 3 * width)  # instead of three
out = torch.bmm(torch.stack(inputs), torch.stack(weights))  # instead of a loop over mm""",
    ),
}

#: Of programs that do not train: the model's weights are what they are when it is loaded.
_OF_A_MODEL = {
    "sizes": """\
Give GEMMs dimensions that are multiples of 64 (of 8 at least): batches and lengths of even sizes, and weights that \
are padded once, when the model is loaded.

weight = torch.nn.functional.pad(weight, (0, 0, 0, -len(weight) % 64))  # and cut off what that adds to results""",
    "waves": """\
Run GEMMs of the same sizes as one: join the weights of those with one input when the model is loaded, batch \
independent ones, and group those of experts.

weight = torch.cat([query.weight, key.weight, value.weight])  # one GEMM instead of three
out = torch.bmm(torch.stack(inputs), torch.stack(weights))  # instead of a loop over mm""",
}
