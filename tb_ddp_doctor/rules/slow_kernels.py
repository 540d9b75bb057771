"""See `SlowKernels`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.model import GpuTime
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.modules import ModuleTree
from tb_ddp_doctor.facts.roofline import JudgedRoofline, KernelRoof
from tb_ddp_doctor.facts.without_faults import Charged
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support import certainty
from tb_ddp_doctor.rules.support.base import Clear, Fault, Result, Rule, threshold
from tb_ddp_doctor.rules.support.gemm_tiles import gemm
from tb_ddp_doctor.rules.support.redundant import of_step
from tb_ddp_doctor.rules.support.roofline import (
    KernelCase,
    at_share,
    in_modules,
    is_charged,
    listed,
    longest,
    spared_ns,
)
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.program_names import Program

#: What makes kernels faster: how much the least is of what is to be expected, 0 to 1, that change, and the most.
_Faster: TypeAlias = tuple[float, Change, Change]


class SlowKernels(Rule):
    """Kernels run far below the speed that the GPU's memory and peak FLOPS allow.

    What:
        Kernels that take more than twice their attainable time: the longer of FLOPs at the peak and of bytes, each
        read and written once, at the memory's bandwidth. A finding per kind of kernel.
    Why:
        A kernel may read its tensor several times, use few multiprocessors, or have sizes that its tiles do not fit.
        Another kernel for the same op is often much faster.
    Evidence:
        The longest calls. The saving is the step if these kernels reached a usual share of their attainable speed.
    Fix:
        By kind: fused attention, fused norms, channels_last, sizes that are multiples of 64, fewer and larger tensors.
    Limits:
        It needs shapes, and the peaks of the GPU: from its data sheet, or as tb_ddp_doctor.check measured them. Of
        unfused attention and unfused optimizers that are findings already nothing is counted again.
    """

    id = "slow-kernels"
    subject = "Kernels below their attainable speed"
    refines = ("lower-precision", "larger-batch")
    is_opportunity = True
    of_every_program = True

    slow: float = threshold(0.5, "of the attainable speed", "Kernels above half of it are seldom worth the work.")
    reached: float = threshold(
        0.75, "of the attainable speed", "Well-tuned GEMMs and copies reach 70 to 90 % of the data sheet's rates."
    )
    reached_least: float = threshold(0.5, "of the attainable speed", "The lower end of the interval.")
    attention: float = threshold(
        0.55,
        "of the attainable speed",
        "FlashAttention-3 on an H100 reaches 75 % forward and 55 % backward.",
    )
    min_cost: float = threshold(0.01, "of the step", "Below this a kind of kernel is not worth a line.")

    def check(
        self,
        *,
        frame: Frame,
        whatif: WhatIf,
        roofline: JudgedRoofline,
        charged: Charged,
        modules: ModuleTree | None,
        places: Places,
    ) -> Result:
        case = KernelCase(frame, whatif, roofline, places)
        slow = [
            one
            for one in roofline.kernels
            if one.limit in ("memory", "compute") and 0 < one.of_attainable < self.slow and not is_charged(one, charged)
        ]
        groups: dict[str, list[KernelRoof]] = {}
        has_softmax = any(names.is_softmax(one.operator) for one in slow)
        for one in slow:
            groups.setdefault(_group(one, has_softmax), []).append(one)
        changes = {cause: self._changes(cause, some, roofline) for cause, some in groups.items()}
        whatif.foresee(reached for _, reached, _ in changes.values())
        faults = [self._fault(cause, some, changes[cause], case, modules) for cause, some in groups.items()]
        costly = tuple(one for one in faults if one)
        if not costly:
            total = of_step(sum(one.above_ns for one in slow), frame.step_ns)
            return Clear(f"Kernels below half of their attainable speed are {total} above it, in all.")
        whatif.foresee(change for one in costly for change in one.tried)
        return costly

    def _changes(self, cause: str, kernels: Sequence[KernelRoof], roofline: JudgedRoofline) -> _Faster:
        """What makes kernels of a kind as fast as others are."""
        shares = self.reached_least, self.reached, 1.0
        if cause == "fused_attention":
            shares = self.slow * self.attention / self.reached, self.attention, self.reached
        of_least, of_reached = (sum(spared_ns(one, share) for one in kernels) for share in shares[:2])
        reached, most = (at_share(kernels, share, roofline) for share in shares[1:])
        return of_least / max(of_reached, 1.0), reached, most

    def _fault(
        self, cause: str, kernels: Sequence[KernelRoof], faster: _Faster, case: KernelCase, modules: ModuleTree | None
    ) -> Fault | None:
        """The opportunity in one kind of kernels; None where it saves too little."""
        (least, change, most), frame, roofline = faster, case.frame, case.roofline
        if change.is_nothing or (cost := case.whatif.cost_ns(change)) < self.min_cost * frame.step_ns:
            return None
        level, basis = certainty.confidence(frame, cost, len(frame.steps))
        taken = of_step(sum(one.step_ns for one in kernels), frame.step_ns)
        now = sum(one.attainable_ns for one in kernels) / max(sum(one.step_ns for one in kernels), 1.0)
        title, remedy, fix = _of(cause, kernels, frame.program)
        where = in_modules(kernels, roofline, modules, frame.ranks)
        return Fault(
            change=change,
            modules=where.modules,
            cause=cause,
            confidence=level,
            title=f"{taken} are {title} at {wording.percent(now)} of the attainable speed; faster kernels would "
            "shorten the step.",
            why=f"Of their attainable speed: {listed(kernels)}.{where} {basis}",
            fix=fix,
            evidence=longest(kernels[:2], case.places),
            remedy=remedy,
            between=(least, most),
        )


def _group(one: KernelRoof, has_softmax: bool) -> str:
    """What kind of kernel it is, by what is known to be better."""
    if names.is_softmax(one.operator) or (has_softmax and names.is_batched_product(one.operator)):
        return "attention"
    cause = _OF_CLASS.get(one.kind, "other")
    if one.operator.startswith(_BY_INDUCTOR):
        return "compiled"
    # An optimizer that is fused already is no better for being fused.
    return "other" if cause == "optimizer" and "_fused" in one.operator else cause


def _of(cause: str, kernels: Sequence[KernelRoof], program: str) -> tuple[str, str, str]:
    """What they are, the fix in a few words, and the fix: nothing that these kernels have already, and of a server what
    its operator can set.
    """
    title, remedy, fix = _GROUPS[cause]
    if program == Program.SERVING.value:
        return title, *_OF_SERVERS.get(cause, _OF_SERVERS["other"])
    if cause == "fused_attention":
        used = {backend for text, backend in _BACKENDS.items() if any(text in one.operator for one in kernels)}
        first, *others = [one for one in _BACKENDS.values() if one not in used] or list(_BACKENDS.values())
        return title, remedy, fix.format(backend=first, others=", ".join(others))
    if cause == "gemm" and _fits_tiles(max(kernels, key=lambda one: one.above_ns)):
        return title, *_OF_SIZES_THAT_FIT
    return title, remedy, fix


def _fits_tiles(one: KernelRoof) -> bool:
    """Whether all dimensions of a GEMM are known to be multiples of a tile."""
    sizes = gemm(one)
    return sizes is not None and not any(size % _TILE for size in (sizes.m, sizes.k, sizes.n))


#: Names that Inductor gives to the kernels that it makes.
_BY_INDUCTOR = tuple(f"triton_{kind}_" for kind in ("poi", "per", "red", "tem", "for", "mm"))
#: A tile of tensor cores has as many rows and columns, or a multiple of it.
_TILE = 64
#: PyTorch's backends of fused attention by what names of their operators have in them, those with new kernels first.
_BACKENDS = {"cudnn": "CUDNN_ATTENTION", "flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION"}


_OF_CLASS: Mapping[GpuTime, str] = {
    GpuTime.GEMM: "gemm",
    GpuTime.CONVOLUTION: "convolution",
    GpuTime.ATTENTION: "fused_attention",
    GpuTime.NORM: "norm",
    GpuTime.ELEMENTWISE: "elementwise",
    GpuTime.COPY: "copy",
    GpuTime.OPTIMIZER: "optimizer",
    GpuTime.EMBEDDING: "embedding",
}

#: The fix of GEMMs in a few words, and the fix, where there is nothing to pad.
_OF_SIZES_THAT_FIT = (
    "measured kernels, larger GEMMs",
    """\
Their sizes fit the tiles of tensor cores. Let torch measure which kernel is fastest for each, join GEMMs with one \
input (q, k and v), and batch small ones; look whether the GPU's clock is low.

model = torch.compile(model, mode="max-autotune-no-cudagraphs")
qkv = torch.nn.Linear(width, 3 * width)""",
)

#: Of servers: the fix in a few words, and the fix.
_OF_SERVERS: Mapping[str, tuple[str, str]] = {
    "gemm": (
        "quantised weights, more requests at a time",
        """\
Of few tokens a GEMM reads all of its weights: read fewer bytes (8-bit or 4-bit weights), or decode more requests at a \
time.

vllm serve ... --quantization fp8 --max-num-seqs 512
python -m sglang.launch_server ... --quantization fp8 --max-running-requests 512""",
    ),
    "fused_attention": (
        "another attention backend",
        """\
Try the other attention backends: which one is fastest depends on head size, lengths and GPU.

VLLM_ATTENTION_BACKEND=FLASHINFER vllm serve ...
python -m sglang.launch_server ... --attention-backend flashinfer  # or fa3, triton""",
    ),
    "other": (
        "compiled or custom kernels",
        """\
Let the server compile the model, with its fused kernels.

vllm serve ...                                   # without --enforce-eager
python -m sglang.launch_server ... --enable-torch-compile""",
    ),
}

#: What they are, the fix in a few words, and the fix.
_GROUPS: Mapping[str, tuple[str, str, str]] = {
    "attention": (
        "softmax and the GEMMs of attention around it",
        "scaled_dot_product_attention",
        """\
Compute attention in one kernel, which never writes the scores to memory.

out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)""",
    ),
    "fused_attention": (
        "attention kernels",
        "another attention backend",
        """\
Try the other backends of fused attention: which one is fastest depends on head size, sequence length and GPU.

from torch.nn.attention import SDPBackend, sdpa_kernel
with sdpa_kernel([SDPBackend.{backend}]):  # or {others}
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)""",
    ),
    "gemm": (
        "GEMMs",
        "sizes that are multiples of 64, larger GEMMs",
        """\
Give GEMMs sizes that fit the tiles of tensor cores: multiples of 64, a vocabulary of 50,304 instead of 50,257; join \
GEMMs with one input (q, k and v), and batch small ones.

vocabulary = (vocabulary + 63) // 64 * 64
qkv = torch.nn.Linear(width, 3 * width)""",
    ),
    "convolution": (
        "convolutions",
        "channels_last, cuDNN benchmark",
        """\
Use NHWC, and let cuDNN (MIOpen on AMD GPUs) measure which of its kernels is fastest for these sizes.

model, images = model.to(memory_format=torch.channels_last), images.to(memory_format=torch.channels_last)
torch.backends.cudnn.benchmark = True""",
    ),
    "norm": (
        "norms and reductions",
        "fused norms, torch.compile",
        """\
Compile the model, or use fused norms; in bfloat16 a norm moves half of the bytes.

model = torch.compile(model)""",
    ),
    "elementwise": (
        "elementwise kernels",
        "torch.compile",
        """\
Compile the model: its kernels read contiguous tensors in wide loads.

model = torch.compile(model)""",
    ),
    "copy": (
        "copies and casts",
        "contiguous tensors, no cat",
        """\
Avoid copies of strided tensors: write parts into one tensor instead of `cat`, keep one layout, and compile the model.

model = torch.compile(model)""",
    ),
    "optimizer": (
        "the optimizer's kernels",
        "fused=True",
        """\
Update all tensors in one kernel.

optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)""",
    ),
    "embedding": (
        "embeddings, gathers and scatters",
        "sorted indices, larger rows",
        """\
Look up rows once: join tables with one index, sort indices, and keep rows a multiple of 128 bytes.

table = torch.nn.EmbeddingBag(rows, width, mode="sum")""",
    ),
    "compiled": (
        "compiled kernels",
        "tuned kernels",
        """\
Let Inductor measure more variants of the kernels that it makes, and look at the code of the slowest one: views that \
make it read with gaps, a reduction over few elements.

torch._inductor.config.coordinate_descent_tuning = True
# TORCH_LOGS=output_code python <script>""",
    ),
    "other": (
        "other kernels",
        "torch.compile",
        """\
Compile the model, or look at one kernel by itself.

# ncu --set full --kernel-name <name> python <script>""",
    ),
}
