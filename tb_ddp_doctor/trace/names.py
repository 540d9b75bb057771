"""The only place that knows what torch, CUDA, HIP, NCCL and gloo call things.

Every function here answers for one name; callers ask once per vocabulary entry, never once per event.
Names are matched loosely, since each release renames some: see the trap "Names move" in the tests.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from enum import Enum, IntEnum
from functools import lru_cache

from tb_ddp_doctor.trace.model import MODULE, Category

#: Categories of today and of 2021 ("Operator", "Kernel", ...), and other vendors' runtimes.
CATEGORIES: dict[str, Category] = {
    "cpu_op": Category.OP,
    "Operator": Category.OP,
    "user_annotation": Category.ANNOTATION,
    "cuda_runtime": Category.RUNTIME,
    "cuda_driver": Category.RUNTIME,
    "Runtime": Category.RUNTIME,
    "hip_runtime": Category.RUNTIME,
    "xpu_runtime": Category.RUNTIME,
    "xpu_driver": Category.RUNTIME,
    "mtia_runtime": Category.RUNTIME,
    "privateuse1_runtime": Category.RUNTIME,
    "privateuse1_driver": Category.RUNTIME,
    "glow_runtime": Category.RUNTIME,
    "kernel": Category.KERNEL,
    "Kernel": Category.KERNEL,
    "gpu_memcpy": Category.MEMCPY,
    "Memcpy": Category.MEMCPY,
    "gpu_memset": Category.MEMSET,
    "Memset": Category.MEMSET,
    "overhead": Category.OVERHEAD,
    # Accelerators whose streams and launches are not known here, from Kineto's list of activities.
    "mtia_ccp_events": Category.MTIA,
    "mtia_insight": Category.MTIA_INSIGHT,
    "mtia_workloadd": Category.MTIA_WORKLOADD,
    "hpu_op": Category.HPU,
}
#: Those of them that are device work that no rule can read.
UNKNOWN_DEVICES = ("mtia_ccp_events", "mtia_insight", "mtia_workloadd", "hpu_op")
#: Whose they are, and what others left to know them by, by the beginning of the category's name.
_ACCELERATORS = {"mtia_": "MTIA, Meta's accelerator", "hpu_": "HPUs (Intel Gaudi)", "async_npu": "Ascend NPUs"}
#: Categories and phases that are dropped because no rule needs them: any other may be work that is not known here.
NO_WORK = {
    "Trace", "ac2g", "fwdbwd", "async", "async_cpu_to_gpu", "async_gpu", "gpu_user_annotation", "external_correlation",
    "python_function", "Python", "cpu_instant_event", "cuda_sync", "cuda_profiler_range", "gpu_pm_counter", "unknown",
}  # fmt: skip

RECORD_PARAM_COMMS = "record_param_comms"
#: Category, phase and name of what an allocator did.
INSTANT = "cpu_instant_event"
INSTANT_PHASE = "i"
MEMORY = "[memory]"
#: Category of what the doctor itself writes into slices.
OWN = "ddp-doctor"
#: Categories of Python functions (with_stack=True), today's and that of 2021.
PYTHON = ("python_function", "Python")

_STEP = re.compile(r"ProfilerStep#(\d{1,18})$")
_LOADER = re.compile(r"enumerate\(DataLoader\)#(\w+)\.__next__")
#: Libraries of collectives, the custom AllReduces of inference engines, of torch's symmetric memory, of Transformer
#: Engine's user buffers, and NVSHMEM's own kernels.
_COMMUNICATION_KERNEL = re.compile(
    r"^(nccl|rccl|mscclpp|msccl)|ncclDevKernel|ncclKernel|oneccl_[a-z]|cross_device_reduce|multimem_all_|"
    r"(one|two)_?shot_?all_?reduce|all_?reduce_\w{0,64}(one|two)_?shot|nvshmem|all_gather_kernel|reduce_scatter_kernel|"
    r"userbuffers_(fp16|bf16|fp8|push|pull|all|reduce)",
    re.IGNORECASE,
)
#: Expert parallelism: tokens go to their experts (dispatch) and back (combine). Libraries and how their kernels are
#: called. Not everything in their namespaces communicates: `get_dispatch_layout` and the scans that CUB does there only
#: count.
_EXPERT_PARALLEL = (
    (
        "DeepEP",
        re.compile(
            r"^(void )?(\w+::){0,3}(deep_ep|dpsk::ep|hybrid_ep)::(\w+::){0,3}"
            r"(?!get_)\w*(dispatch|combine|notify)\w*(?=[<(]|$)"
        ),
    ),
    ("UCCL", re.compile(r"^(void )?uccl::(\w+::){0,3}(?!get_)\w*(dispatch|combine|notify)\w*(?=[<(]|$)")),
    ("MORI", re.compile(r"^(void )?(mori::moe::)?Ep(Dispatch|Combine)\w*Kernel")),
    (
        "pplx",
        re.compile(r"^(void )?(\w+::|\(anonymous namespace\)::){0,3}(a2a_)?(dispatch|combine)(_(send|recv)_k|K)ernel"),
    ),
    ("TensorRT-LLM", re.compile(r"^(void )?(\w+::){0,4}(moeA2A(Dispatch|Combine)|moeAllToAll)Kernel")),
)
#: The range of a module's call as layerwise NVTX markers of vLLM, SGLang and TensorRT-LLM push it: a dictionary with
#: the module's whole path, its parameters and inputs.
_MODULE_RANGE = re.compile(r"\{'Module': '([^']*)'")
#: A path with a number in it, as "layers.3" and "model.layers.3.mlp"; and what may follow it.
_NUMBERED_PATH = re.compile(r"((?:[A-Za-z_]\w*\.)+\d+(?:\.\w+)*?)(?:[ .:/_](?:forward|backward|fwd|bwd))?")
#: And the number alone: "layer_3", "layer=3", "block 3".
_NUMBERED_LAYER = re.compile(r"((?:[A-Za-z_]+[_ ])?(?:[Ll]ayer|[Bb]lock)s?)[_ =#:-]?(\d{1,4})")
_COMPILED_GRAPH = re.compile(r"## Call CompiledFxGraph (\w{1,8})\w* ##")
#: Words of annotations: "## data_load ##", "[Strategy]DDPStrategy.backward", "forward-compute", "## optimizer ##".
_DATA = {"data", "batch", "batches", "inputs", "dataloader", "dataset"}
_LOADS = {"load", "loading", "loader", "next", "get", "fetch", "wait", "read", "prefetch", "copy", "dataloader"}
#: Ranges that are called as their function is: "DeepSpeedZeroOptimizer_Stage3.step", "FP16_Optimizer.backward".
_OPTIMIZERS_METHOD = re.compile(r"(?:\w+\.)*(?:\w*Optimizer(?:_\w+)?|(?:DeepSpeed\w*|Pipeline)Engine)\.(backward|step)")
_OPTIMIZER = {"optimizer", "optimiser", "optim", "zero_grad"}
#: Half-precision products that leave the tensor cores idle, or feed them element by element: odd dimensions.
_MISALIGNED_PRODUCT = re.compile(
    r"(fp16|bf16|[^t]f16)_sgemm|(?<![a-z])hgemm|xmma_gemm_b?f16\w*_ffma|"
    r"(convolve_sgemm|dgrad_engine|wgrad_alg\w*)<__half|tensorop_(b?f16_\w*gemm|\w*gemm_b?f16)_\w*align[12](?!\d)"
)
#: Products in float32 on ordinary cores (cuBLAS, cuDNN, CUTLASS, MAGMA, MIOpen), and attention that emulates float32
#: in three passes of TF32.
_FLOAT32_PRODUCT = re.compile(
    r"sgemm|scudnn|simt_s[fdw]|xmma_\w*f32f32_f32f32_f32\w*ffma|(dgrad_engine|wgrad_alg\w*)<float|fmha_cutlass[FB]_f32_|"
    r"miopenSp3AsmConv\w*fp32|OpClassSimt"
)
#: Tensile's products in single precision; those with "MI" in their name use the matrix cores.
_FLOAT32_TENSILE = re.compile(r"^(Custom_)?Cijk_[A-Za-z]+_[A-Za-z]+_(SB|S_B)_(?!.*_MI\d)")
#: Products in float32 on AMD's matrix cores (Tensile, MIOpen); "S_MX" is AMD's XF32.
_FLOAT32_ON_MATRIX_CORES = re.compile(r"^(Custom_)?Cijk_[A-Za-z]+_[A-Za-z]+_(SB|S_B)_|_gtcx\w*_fp32_")
#: nvjet's letters are the types of what goes in, of the sums and of the result: q and r are FP8, o FP4, s float32.
_FP8_PRODUCT = re.compile(r"e4m3|e5m2|fp8|float8|nvjet_(sm\d+_)?[qro]|Cijk_[A-Za-z]+_[A-Za-z]+_[FB]8", re.IGNORECASE)
#: Multiplying by 16 x 8 x 8 with float32 outside is TF32, unless it is half precision on Turing.
_TF32_PRODUCT = re.compile(
    r"tf32|^(?!.*(fp16|bf16|f16|half)).*s1688gemm|xf32|nvjet_(sm\d+_)?s[^m]|Cijk_[A-Za-z]+_[A-Za-z]+_S_MX_",
    re.IGNORECASE,
)
_TENSOR_PRODUCT = re.compile(
    r"(?<!sub)tensorop|_tensor\d|_warpgroupsize|wmma|gmma|[shi_](884|1688|16816|16832)[a-z]|[hiq]mma|tf32|nvjet|tcgen05|utcmma|fmha|sdpa|"
    r"flash_?(fwd|bwd|fprop|bprop|attn|mla)|bmm_\w*(E4m3|E2m1|Bfloat16|Fp16)|fp8_gemm|deep_?gemm|"
    r"mfma|xdl|_gtcx|^(Custom_)?Cijk_.*_MI\d|attn_fwd|bwd_kernel_d[kq]",
    re.IGNORECASE,
)
#: Layouts, offsets and partial sums beside products, and products with a vector: memory limits them.
_NO_PRODUCT = re.compile(
    r"splitK_?reduce|Offsets|nchwToNhwc|nhwcToNchw|gemv|winograd_nonfused|GenericTranspose", re.IGNORECASE
)
_TENSOR_CORES = re.compile(r"MI[1-9]\d\d|gfx(908|90a|9[45])")
_NO_TENSOR_CORES = re.compile(r"GTX 16|\bMX\d|T(4|5|6|10|12)00\b")

#: Kernels whose kind is remembered: rules ask for those of each rank, and thousands of ranks run the same ones.
_REMEMBERED = 4096
#: What is looked at of a kernel's name: it tells its kind early, and patterns take time with the cube of its length.
_LETTERS = 1024

_FRAME = re.compile(r"(?P<path>[^\n]{1,4096}\.py)\((?P<line>[0-9]{1,9})\): (?P<function>[^\n]{1,400})")
_MOST_LETTERS_OF_FUNCTION = 400
_INSTALLED = re.compile(r"\A.*/(site|dist)-packages/")
#: Inductor's cache has the file of each code at "ab/cab...", by a hash of what is in it.
_GENERATED = re.compile(r"(?:\A|/)([a-z2-7]{2})/c\1[a-z2-7]{30,}\.py\Z")
_STANDARD_LIBRARY = re.compile(r"/lib/python\d[\d.]*/(?!(site|dist)-packages/)")
#: Top-level modules; torch gives paths from the module search path on.
_NOT_OWN = sys.stdlib_module_names | {"torch", "torchvision", "numpy", "triton"}


def _matching(pattern: str, flags: int = 0, most: int | None = None) -> Callable[[str], bool]:
    """A test of names: whether the pattern is in one, in its first `most` letters."""
    search = re.compile(pattern, flags).search
    return lambda name: search(name[:most]) is not None


class Phase(IntEnum):
    """What a training loop is at."""

    LOADING = 0
    FORWARD = 1
    BACKWARD = 2
    OPTIMIZER = 3
    OTHER = 4


class Loader(IntEnum):
    """How a DataLoader works, from its annotation."""

    SINGLE_PROCESS = 0
    WORKERS = 1


class HostMemory(IntEnum):
    """Host side of a copy."""

    #: Device to device.
    NONE = 0
    PAGEABLE = 1
    PINNED = 2
    #: Between host and device, and its name does not say.
    UNNAMED = 3


def is_own_code(frame: str) -> bool:
    """Whether a Python function, as "train.py(41): step", is not torch's, of Python's own library or generated."""
    match = _FRAME.fullmatch(frame)
    if not match:
        return False
    path = match["path"].replace("\\", "/")
    if _STANDARD_LIBRARY.search(path) or _GENERATED.search(path):
        return False
    top = _INSTALLED.sub("", path).partition("/")[0].removesuffix(".py")
    return top not in _NOT_OWN


#: Of a function's name, path and all: a longer one says no more, and every letter is looked at many times.
_MOST_LETTERS = 500


def source(frame: str) -> tuple[str, int, str] | None:
    """File, line and name of a Python function, "train.py(41): step"; None if it is none that has them."""
    match = _FRAME.fullmatch(frame)
    return (match["path"], int(match["line"]), match["function"]) if match else None


def kernel_function(file: str, kernel: str) -> str:
    """How a stack would name a kernel that torch.compile wrote to a file; "" where that is no Python file.

    Nothing tells the line at which the kernel begins, so it is the first one of the file.
    """
    text = f"{file}(1): {kernel[:_MOST_LETTERS_OF_FUNCTION]}"
    return text if source(text) == (file, 1, kernel[:_MOST_LETTERS_OF_FUNCTION]) else ""


def is_generated(frame: str) -> bool:
    """Whether a function is in a file that torch.compile wrote, by the place of such files in its cache."""
    match = _FRAME.fullmatch(frame)
    return match is not None and _GENERATED.search(match["path"].replace("\\", "/")) is not None


class Activity(Enum):
    """What the host does while it stalls, outside operators; the value is its name in findings. The first wins."""

    GARBAGE = "garbage_collection"
    SLEEP = "sleep"
    CHECKPOINT = "checkpoint"
    LOGGING = "logging"
    INPUT_OUTPUT = "io"
    PYTHON = "python"


def activity(function: str) -> Activity:
    """What a Python function or an annotation does, by its name."""
    if is_module(function):  # which may have any name
        return Activity.PYTHON
    lowered = function[:_MOST_LETTERS].lower()
    return next((kind for kind, part in _ACTIVITIES if part.search(lowered)), Activity.PYTHON)


class Multiplies(IntEnum):
    """What an operator multiplies, by the order of its inputs."""

    NOTHING = 0
    #: The first input by the second; the second by the third, added to the first.
    PLAIN = 1
    ADDED = 2
    #: Gradient of the output, input, weights.
    CONVOLUTION_BACKWARD = 3
    #: Queries, keys, values of (batch, heads, rows, width); in backward after the gradient of the output.
    ATTENTION = 4
    ATTENTION_BACKWARD = 5
    #: The same of (batch, rows, heads, width).
    ATTENTION_BY_ROWS = 6
    ATTENTION_BY_ROWS_BACKWARD = 7
    #: Input, gradient of the output, weights: before torch 1.11.
    OLD_CONVOLUTION_BACKWARD = 8
    #: A layer of Transformer Engine (`digest.fused_linear`).
    FUSED_LINEAR = 9
    FUSED_LINEAR_BACKWARD = 10
    #: A Triton template of torch.compile's: both matrices and the result (`digest.compiled_products`).
    TEMPLATE = 11


class Precision(Enum):
    """In what a kernel multiplies; the value is what findings call it."""

    FP8 = "8-bit floats"
    HALF = "half precision"
    TF32 = "TF32"
    FLOAT32 = "float32"


class Product(IntEnum):
    """What a device kernel is to the tensor cores (AMD: matrix cores)."""

    #: No product of matrices, or none that its name tells.
    NONE = 0
    #: A matrix product, convolution or attention on tensor cores, at their full precision or TF32.
    TENSOR = 1
    #: One in float32, on ordinary cores or emulated.
    FLOAT32 = 2
    #: One in half precision whose dimensions or addresses do not fit the tensor cores.
    MISALIGNED = 3


#: Transformer Engine's, as autograd calls them.
_FUSED_MLP = "_LayerNormMLP"
_FUSED_LINEAR = ("_Linear", "_LayerNormLinear", "_GroupedLinear", _FUSED_MLP)
_MULTIPLIES = {
    "aten::mm": Multiplies.PLAIN,
    "aten::bmm": Multiplies.PLAIN,
    "aten::_scaled_mm": Multiplies.PLAIN,
    "aten::addmm": Multiplies.ADDED,
    "aten::baddbmm": Multiplies.ADDED,
    "aten::convolution_backward": Multiplies.CONVOLUTION_BACKWARD,
    **{
        f"aten::{library}_convolution{way}_backward": Multiplies.OLD_CONVOLUTION_BACKWARD
        for library in ("cudnn", "miopen")
        for way in ("", "_transpose")
    },
    "aten::miopen_depthwise_convolution_backward": Multiplies.OLD_CONVOLUTION_BACKWARD,
    **{
        f"aten::_scaled_dot_product_{kind}_attention{way}": code
        for kind in ("flash", "efficient", "cudnn")
        for way, code in (("", Multiplies.ATTENTION), ("_backward", Multiplies.ATTENTION_BACKWARD))
    },
    "flash_attn::_flash_attn_forward": Multiplies.ATTENTION_BY_ROWS,
    "flash_attn::_flash_attn_backward": Multiplies.ATTENTION_BY_ROWS_BACKWARD,
    **dict.fromkeys(_FUSED_LINEAR, Multiplies.FUSED_LINEAR),
    **{f"{name}Backward": Multiplies.FUSED_LINEAR_BACKWARD for name in _FUSED_LINEAR},
}


def step_number(name: str) -> int | None:
    """N of "ProfilerStep#N"; None for every other name."""
    match = _STEP.match(name)
    return int(match[1]) if match else None


#: Words of the descriptions of process groups: dimensions of a DeviceMesh ("mesh_dp_shard"), groups of Megatron-LM
#: ("TENSOR_MODEL_PARALLEL_GROUP") and of vLLM ("tp:0").
_DIMENSIONS = {
    "tp": {"tp", "tensor"},
    "dp": {"dp", "data", "ddp", "fsdp", "hsdp"},
    "pp": {"pp", "pipeline", "pipe"},
    "ep": {"ep", "expert", "moe"},
    "cp": {"cp", "context"},
    "sp": {"sp", "sequence", "ulysses"},
}
#: Parts of data parallelism: HSDP shards within a group of ranks and replicates the groups.
_PARTS_OF_DATA = {"replicate": "dp_replicate", "shard": "dp_shard"}
_WORD = re.compile(r"[a-z]+")


def parallelism(description: str) -> str:
    """What a process group is for by its description, as "TP" or "TP+DP"; "" where that does not say."""
    words = set(_WORD.findall(description.lower()))
    return "+".join(name.upper() for name, known in _DIMENSIONS.items() if known & words)


def dimensions(description: str) -> frozenset[str]:
    """The dimensions of parallelism that a process group's description names: {"tp"}, {"dp", "cp"} of a group that
    spans two, {} where it names none.

    HSDP's are "dp_replicate" and "dp_shard". Megatron-LM's groups of experts ("EXPERT_DATA_PARALLEL_GROUP") have "ep"
    beside what they span.
    """
    words = set(_WORD.findall(description.lower()))
    named = {name for name, known in _DIMENSIONS.items() if known & words}
    part = [name for word, name in _PARTS_OF_DATA.items() if word in words]
    return frozenset(named - {"dp"} | {part[0]} if "dp" in named and len(part) == 1 else named)


def is_step(name: str) -> bool:
    """Whether an annotation marks a step of the profiler."""
    return step_number(name) is not None


def loader(name: str) -> Loader | None:
    """The kind of DataLoader whose `__next__` this annotation is; None for every other name."""
    match = _LOADER.search(name)
    if not match:
        return None
    return Loader.SINGLE_PROCESS if "SingleProcess" in match[1] else Loader.WORKERS


def is_loader(name: str) -> bool:
    """Whether an annotation is a DataLoader's `__next__`."""
    return loader(name) is not None


def is_communication_kernel(name: str) -> bool:
    """Whether a device kernel moves data between ranks."""
    return bool(_COMMUNICATION_KERNEL.search(name[:_LETTERS]) or exchanges_tokens(name))


def exchanges_tokens(kernel: str) -> str:
    """The library whose kernel sends tokens to their experts or back, such as "DeepEP"; "" for every other kernel."""
    kernel = kernel[:_LETTERS]
    return next((library for library, pattern in _EXPERT_PARALLEL if pattern.search(kernel)), "")


#: Whether a kernel counts the tokens that a rank will receive (DeepEP, UCCL): the CPU that launches it looks again and
#: again for the counts, in no call that is recorded, since it allocates memory for them. Dispatches with a handle of an
#: earlier one (`cached_`) have the counts.
is_polled = _matching(r"(?<![a-z_])notify_dispatch(?=[<(]|$)", most=_LETTERS)


#: Whether a kernel looks up the embedding tables of a recommender (FBGEMM, torch), or updates them.
looks_up_embeddings = _matching(
    r"split_embedding\w*codegen|permute_pooled_embs|fbgemm_gpu::\w*jagged|EmbeddingBag_", most=_LETTERS
)


#: Whether a kernel or an operator is of a loss, forward or backward: of torch, fused by its compiler, of apex,
#: Transformer Engine, Megatron-LM or Liger.
computes_loss = _matching(r"nll_loss|cross_?entropy|(mse|l1|huber|kl_div|bce|ctc)_loss", re.IGNORECASE, most=_LETTERS)


def is_host_collective(name: str) -> bool:
    """Whether a host event is a collective that the CPU itself carries out (gloo, MPI, UCC on CPU tensors)."""
    return name.startswith(("gloo:", "mpi:", "ucc:"))


def enqueues_collective(name: str) -> bool:
    """Whether an operator only starts or awaits a collective: it may block, but computes nothing."""
    return name == RECORD_PARAM_COMMS or name.startswith(("c10d::", "_c10d_functional::", "c10d_functional::"))


def launches_collective(name: str) -> bool:
    """Whether what is launched directly inside a host event moves data between ranks, and waits for them."""
    return enqueues_collective(name) or is_host_collective(name) or name.startswith("nccl:")


#: Whether a collective or kernel name is a send or receive, which only two ranks take part in.
is_point_to_point = _matching(r"^(send|recv|irecv|isend|batch_isend_irecv|coalesced)$|SendRecv", re.IGNORECASE)


#: Whether a runtime call starts work on a device, whoever made that: a kernel, a graph, a function of a program.
launches_work = _matching(
    r"Launch(Cooperative)?(Kernel|Graph|Host)|GraphLaunch|^runFunction|EnqueueKernel|AppendLaunchKernel"
)


#: Whether a runtime call starts a captured graph.
launches_graph = _matching(r"^(cuda|cu|hip)GraphLaunch")


#: Whether a runtime call ends the capture of a graph, or makes what was captured ready to be launched.
captures_graph = _matching(r"^(cuda|cu|hip)(StreamEndCapture|GraphInstantiate)")


#: Whether a runtime call begins the capture of a graph.
begins_capture = _matching(r"^(cuda|cu|hip)StreamBeginCapture")


#: Whether a runtime call ends the capture of a graph.
ends_capture = _matching(r"^(cuda|cu|hip)StreamEndCapture")


#: Whether a runtime call waits for all that a device was given.
awaits_device = _matching(r"^(cuda|cu|hip)(Device|Ctx)Synchronize")


#: Whether an operator, annotation or Python function is torch.compile at work: Dynamo, AOTAutograd or Inductor, by
#: their marks (`dynamo_timed`, of torch 2.13 the phase alone) and their functions in stacks. Inductor's graphs have the
#: same mark when they are captured, which compiles nothing.
compiles = _matching(
    r"^(?!CUDAGraph).*\(dynamo_timed\)|^entire_(?:frame|backward)_compile$|^backend_compile$|"
    r"torch/_dynamo/convert_frame\.py\(\d+\): _?compile|torch/_inductor/compile_fx\.py\(\d+\): compile_fx",
    most=_LETTERS,
)


#: Whether an operator looks up the code compiled for a call, whose guards it evaluates: "TorchDynamo Cache Lookup".
looks_up_compiled = _matching(r"^TorchDynamo Cache Lookup")


#: Whether an operator, annotation or Python function times kernels to choose one.
autotunes = _matching(
    r"benchmark_all_configs|(?<![a-z])do_bench|autotune_(to_one_config|at_compile_time|process)", most=_LETTERS
)


#: Whether an annotation is a phase of torch.compile: "backend_compile_data: compile_id=0/12".
is_phase_of_compiling = _matching(r"_data: compile_id=\d")


def compiled_region(name: str) -> str:
    """The code that a compiled region runs: "3" of "Torch-Compiled Region: 3/1"; "" for every other name.

    The number after the slash counts how often this code was compiled.
    """
    match = _COMPILED_REGION.match(name)
    return match[1] if match else ""


def copies(call: str) -> bool:
    """Whether a runtime call copies between host and device, or within one."""
    return "Memcpy" in call


def runs_on_device(name: str) -> bool:
    """Whether an operator or annotation can only work on a device, whether or not that was recorded."""
    return name.startswith(("nccl:", "rccl:", "hccl:", "xccl:")) or bool(_DEVICE_OPERATOR.match(name))


#: Whether a call of the runtime returns once all work of the device is done, on all of its streams.
awaits_device = _matching(r"(Device|Ctx|Context)Synchronize$|^cudaThreadSynchronize$")


def frees_memory(name: str) -> bool:
    """Whether a runtime call gives device memory back to the driver, for which it waits until nothing runs."""
    return name in ("cudaFree", "hipFree")


#: Whether a runtime call blocks the host until the device has caught up.
is_sync = _matching(
    r"(Stream|Device|Event|Ctx|Context|Queue)Synchronize|^cudaThreadSynchronize$|^hipMemcpy(WithStream|DtoH|HtoD)?$|^cudaMemcpy$"
    r"|^ze(Event|Fence)HostSynchronize$|^ur(QueueFinish|EventWait)$"
)


def needs_event(name: str) -> bool:
    """Whether a runtime call needs events to be over: whoever calls it has waited for them."""
    return name in ("cudaEventElapsedTime", "hipEventElapsedTime")


def is_full_queue(name: str) -> bool:
    """Whether an event of category `overhead` says that a launch waited for a place in the launch queue."""
    return name == "Command Buffer Full"


#: Whether a runtime or driver call launches one kernel: cudaLaunchKernelExC, cuLaunchKernel, hipLaunchKernel.
launches_kernel = _matching(r"Launch\w*Kernel")


#: Whether a runtime call only asks whether work is done: cudaEventQuery, cuStreamQuery, hipEventQuery.
is_query = _matching(r"^(cuda|cu|hip)(Event|Stream)Query")


#: Whether backward of an operator needs what it wrote, as of softmax and tanh.
saves_output = _matching(r"softmax|sigmoid|tanh|relu|exp|sqrt|dropout")


#: Whether a runtime call allocates or frees device or pinned memory: it may stop the device.
is_alloc = _matching(
    r"^(cu|cuda|hip)(Mem)?(Malloc|Free|Alloc|HostAlloc|FreeHost|HostMalloc|HostFree|HostRegister|HostUnregister)"
    r"|^(cu|cuda|hip)Mem(Create|Map|Unmap|Release|SetAccess|AddressReserve|AddressFree)"
)


def reads_value(name: str) -> bool:
    """Whether an operator only brings a value to the host: what it does there would not be missed."""
    return name in ("aten::_local_scalar_dense", "aten::item")


def moves_tensor(name: str) -> bool:
    """Whether an operator copies a tensor, as to the host (`.cpu()`, `.tolist()`)."""
    return name in ("aten::copy_", "aten::_to_copy", "aten::to")


def accumulates_gradient(name: str) -> bool:
    """Whether an op adds to a parameter's gradient, which is complete with it."""
    return name == "torch::autograd::AccumulateGrad"


#: Whether an operator belongs to autograd's backward pass.
is_backward = _matching(r"^autograd::engine::evaluate_function|^torch::autograd::|Backward\d*$")


def is_optimizer_step(name: str) -> bool:
    """Whether an annotation is an optimizer's step."""
    return name.startswith("Optimizer.step#")


def phase(annotation: str) -> Phase:
    """The phase that an annotation stands for: torch's own, or a name that says so; OTHER for every other name.

    What comes before and after a module's forward, as FSDP annotates its hooks, is not the phase itself.
    """
    if loader(annotation) is not None:
        return Phase.LOADING
    if is_module(annotation):  # which may have any name
        return Phase.OTHER
    words = set(re.findall(r"zero_grad|[a-z]+", annotation.lower()))
    if words & {"pre", "post"}:
        return Phase.OTHER
    if method := _OPTIMIZERS_METHOD.fullmatch(annotation[:_LETTERS]):
        # Of DeepSpeed's and apex's optimizers, backward scales the loss and runs the pass.
        return {"backward": Phase.BACKWARD, "step": Phase.OPTIMIZER}[method[1]]
    if words & _OPTIMIZER:
        return Phase.OPTIMIZER
    forward, backward = bool(words & {"forward", "fwd"}), bool(words & {"backward", "bwd"})
    if forward != backward:
        return Phase.FORWARD if forward else Phase.BACKWARD
    return Phase.LOADING if words & _DATA and words & _LOADS else Phase.OTHER


def clears_gradients(annotation: str) -> bool:
    """Whether an annotation is of an optimizer that sets gradients to zero, which may happen anywhere in a step."""
    return "zero_grad" in annotation


#: Whether an operator or call does once what later calls need not: it loads a module, tunes or compiles. Such are
#: cuModuleLoadData, cuLibraryLoadData, hipModuleLoad; Dynamo's and Inductor's own annotations; creation of handles.
prepares = _matching(
    r"ModuleLoad|LibraryLoad|LinkCreate|dynamo_timed|CachingAutotuner|async_compile|benchmark_all_configs|"
    r"^entire_(?:frame|backward)_compile$|^backend_compile$|"
    r"(?:cublas|cudnn|hipblas|rocblas|miopen)\w*Create(?!\w*Descriptor)"
)


def takes_norm(operator: str) -> bool:
    """Whether an operator takes norms of tensors, as clip_grad_norm_ does of all gradients."""
    return operator in ("aten::_foreach_norm", "aten::linalg_vector_norm", "aten::norm")


#: Whether an operator does no more than allocate, so that the one around it says what for.
only_allocates = _matching(r"^aten::(new_)?empty\w*$|^aten::resize_$")


def is_module(frame: str) -> bool:
    """Whether a Python function, as with_stack=True records it, or a mark of `Doctor.watch` is the call of a module.

    NVTX ranges with modules are, too (`is_module_range`).
    """
    return frame.startswith(MODULE) or is_module_range(frame)


def is_module_range(name: str) -> bool:
    """Whether an annotation is the NVTX range of a module's call: "{'Module': 'model.layers.0', 'Inputs': ...}"."""
    return _MODULE_RANGE.match(name) is not None


def module_name(frame: str) -> str:
    """A module's name, as "Linear_0", from its call; "" for "" alone."""
    marked = _MODULE_RANGE.match(frame)
    return marked[1] if marked else frame.removeprefix(MODULE)


def module_path(annotation: str) -> str:
    """The path of a layer or of a module in one, as "layers.3.mlp" of the range "layers.3.mlp.forward"; "" for others.

    Jobs that push a range for each module name it so, or number their layers, as "layer_3". Paths without a number, as
    "head", may be anything, and ranges of functions, as "TransformerLayer.forward", are of no certain layer.
    """
    if match := _NUMBERED_PATH.fullmatch(annotation):
        return match[1]
    match = _NUMBERED_LAYER.fullmatch(annotation)
    return f"{match[1]}.{int(match[2])}" if match else ""


def compiled_graph(annotation: str) -> str:
    """What a range of Inductor's runs, as "compiled graph fqonmpyq" (the graph's hash); "" for others."""
    match = _COMPILED_GRAPH.fullmatch(annotation)
    return f"compiled graph {match[1]}" if match else ""


def is_graph_walk(name: str) -> bool:
    """Whether an operator is DDP's walk of the autograd graph for parameters that this step does not use."""
    return name.endswith("reducer::search_unused_parameters")


@lru_cache(maxsize=_REMEMBERED)
def product(kernel: str) -> Product:
    """What a device kernel's name says of the tensor cores. float64 counts as none: nobody takes it by mistake."""
    kernel = kernel[:_LETTERS]
    if _NO_PRODUCT.search(kernel):
        return Product.NONE
    if _MISALIGNED_PRODUCT.search(kernel):
        return Product.MISALIGNED
    if _FLOAT32_PRODUCT.search(kernel) or _FLOAT32_TENSILE.search(kernel):
        return Product.FLOAT32
    return Product.TENSOR if _TENSOR_PRODUCT.search(kernel) else Product.NONE


@lru_cache(maxsize=_REMEMBERED)
def precision(kernel: str) -> Precision | None:
    """In what a product's kernel multiplies, as far as its name tells; None of what is no product."""
    kind = product(kernel)
    if kind is Product.NONE:
        return None
    kernel = kernel[:_LETTERS]
    if kind is Product.FLOAT32 or _FLOAT32_ON_MATRIX_CORES.search(kernel):
        return Precision.FLOAT32
    if _FP8_PRODUCT.search(kernel):
        return Precision.FP8
    return Precision.TF32 if _TF32_PRODUCT.search(kernel) else Precision.HALF


def multiplies(operator: str) -> Multiplies:
    """What an operator multiplies. Operators that only call others of these multiply nothing themselves."""
    other = Multiplies.TEMPLATE if is_compiled_product(operator) else Multiplies.NOTHING
    return _MULTIPLIES.get(operator, other)


#: Whether an operator is a kernel that torch.compile wrote (loops over elements, reductions, several of these at once):
#: all that it reads and writes are its arguments. Users' own Triton kernels have any other name.
is_compiled_loop = _matching(r"^triton_(coo|for|mix|per|poi|red|spl|unk)_")


#: Whether an operator is a Triton template of torch.compile's that multiplies two matrices, not stacks of them.
is_compiled_product = _matching(
    r"^triton_tem_fused_(?!.*(bmm|convolution|flex|grouped|attention))(.*_)?(addmm|_?scaled_mm|mm)_"
)


def is_fused_linear(operator: str) -> bool:
    """Whether an operator is a linear layer of Transformer Engine."""
    return multiplies(operator) is Multiplies.FUSED_LINEAR


def is_fused_linear_backward(operator: str) -> bool:
    """Whether an operator is the backward pass of such a layer."""
    return multiplies(operator) is Multiplies.FUSED_LINEAR_BACKWARD


#: Megatron-LM's linear layer. Its backward pass adds the gradient of the weights to what is accumulated in float32 by a
#: kernel of its own, which no operator launches (gradient_accumulation_fusion).
_ACCUMULATING = "LinearWithGradAccumulationAndAsyncCommunication"

_PIPELINE = "_OperationFuserAutogradFunction"


def accumulates(operator: str) -> bool:
    """Whether an operator is the backward pass of Megatron-LM's linear layer."""
    return operator == f"{_ACCUMULATING}Backward"


#: Whether a kernel copies a slice for each index: torch's, with a row of blocks for each (from 2.8 on).
gathers_slices = _matching(r"vectorized_gather_kernel<")


#: Whether an operator looks up rows of FBGEMM's tables, or is the backward pass of that, which updates these rows.
looks_up_rows = _matching(r"^fbgemm::split_embedding_codegen_lookup_\w+_function$")
updates_rows = _matching(r"^torch::autograd::CppNode<SplitLookupFunction_\w+_Op>$")


def is_fused_mlp(operator: str) -> bool:
    """Whether an operator is an MLP of Transformer Engine, with its norm."""
    return operator == _FUSED_MLP


#: Whether an operator gathers what the ranks have: rows of sequence parallelism before a product.
gathers = _matching(r"all_?gather", re.IGNORECASE)


#: Whether a kernel is of Transformer Engine's Userbuffers, which gather and scatter beside GEMMs without an operator.
is_userbuffers = _matching("userbuffers")


#: Whether a kernel is a norm of Transformer Engine's or cuDNN's, forward or backward.
normalises = _matching(r"(^|[^a-z])(layer|rms)_?norm|(^|[^a-z])ln_(fwd|bwd)", re.IGNORECASE)


def is_pipeline(operator: str) -> bool:
    """Whether an operator runs a pipeline of Transformer Engine's operations, as its norms are from 2.0 on."""
    return operator in (_PIPELINE, f"{_PIPELINE}Backward")


def is_linear(operator: str) -> bool:
    """Whether an operator is a linear layer whose sizes forward and backward tell together."""
    return operator == _ACCUMULATING or is_fused_linear(operator)


def is_linear_backward(operator: str) -> bool:
    """Whether an operator is the backward pass of such a layer."""
    return accumulates(operator) or is_fused_linear_backward(operator)


#: Whether an operator multiplies matrices or calls one that does: layers do, the preparation of data does not.
multiplies_matrices = _matching(r"(mm|matmul|linear)(_|\.out)?$|conv\w*$|attention|gemm", re.IGNORECASE)


_FORWARD_ONLY = frozenset(
    f"aten::{name}"
    for name in (
        "linear",
        "layer_norm",
        "rms_norm",
        "group_norm",
        "batch_norm",
        "conv1d",
        "conv2d",
        "conv3d",
        "dropout",
        "embedding",
        "scaled_dot_product_attention",
    )
)
_COPIES_TENSOR = frozenset(f"aten::{name}" for name in ("copy_", "clone", "to", "_to_copy", "_copy_from"))


def is_checkpoint(name: str) -> bool:
    """Whether an autograd node is a checkpoint's, which computes forward again."""
    return "CheckpointFunction" in name


def is_forward_only(operator: str) -> bool:
    """Whether only forward calls an operator: no formula of a gradient does."""
    return operator in _FORWARD_ONLY


def casts(operator: str) -> bool:
    """Whether an operator gives a tensor another type, or brings it elsewhere."""
    return operator in ("aten::to", "aten::_to_copy")


def adds(operator: str) -> bool:
    """Whether an operator adds two tensors, as a residual connection ends."""
    return operator in ("aten::add", "aten::add_")


#: Whether an operator is attention or its softmax, of which a transformer's layer has one.
attends = _matching(r"attention|attn|fmha|softmax", re.IGNORECASE)


def copies_tensor(operator: str) -> bool:
    """Whether an operator only copies what the one around it wants copied."""
    return operator in _COPIES_TENSOR


def needs_layout(operator: str) -> bool:
    """Whether an operator copies its tensor only where the strides do not fit."""
    return operator in ("aten::contiguous", "aten::reshape")


#: Whether a kernel brings images from one layout to another, as cuDNN does around convolutions.
changes_layout = _matching(r"nchwToNhwc|nhwcToNchw|nchwToFold|batched_transpose", re.IGNORECASE)


#: Whether a device is AMD's, by its name.
is_amd = _matching(r"AMD|Radeon|Instinct|gfx\d")


def has_tensor_cores(device: str, capability: float | None) -> bool | None:
    """Whether a device has tensor or matrix cores, from its name and compute capability; None where neither says.

    NVIDIA's have them since 7.0, but for the GTX 16 series; AMD's since MI100 (CDNA), whose capability tells nothing.
    """
    if _TENSOR_CORES.search(device):
        return True
    if is_amd(device) or capability is None:
        return None
    return capability >= 7.0 and not _NO_TENSOR_CORES.search(device)


def has_bfloat16_cores(device: str, capability: float | None) -> bool:
    """Whether a device with tensor cores multiplies bfloat16 on them: NVIDIA's since Ampere, all of AMD's."""
    return is_amd(device) or (capability or 0.0) >= 8.0


def has_tf32(device: str, capability: float | None) -> bool:
    """Whether torch's TF32 switch does anything for a device: NVIDIA since Ampere."""
    return not is_amd(device) and (capability or 0.0) >= 8.0


#: Whether a kernel works on a list of tensors at once, as those of foreach and fused optimizers do.
updates_many_tensors = _matching(r"multi_tensor_apply|fused_?adam|fused_?sgd|FusedAdam|FusedSgd", re.IGNORECASE)


def updates_lists(operator: str) -> bool:
    """Whether an operator works on lists of tensors, as optimizers do on all parameters at once."""
    return operator.startswith(("aten::_foreach_", "aten::_fused_adam", "aten::_fused_sgd", "aten::_fused_adagrad"))


#: Whether an operator is a softmax, forward; Megatron and Apex have their own.
is_softmax = _matching(r"^aten::(_?softmax|_safe_softmax|_masked_softmax)$|^Scaled\w*Softmax$")


#: Whether an operator multiplies batches of matrices, and does nothing else on the device.
is_batched_product = _matching(r"^aten::(bmm|baddbmm)(_|\.out)?$")


def is_attention_fallback(operator: str) -> bool:
    """Whether an operator is scaled_dot_product_attention made of separate operations, where no fused kernel fits."""
    return operator == "aten::_scaled_dot_product_attention_math"


#: Whether an event is an annotation by its name alone: in 2021 these were operators like any other.
is_annotation = _matching(r"^(ProfilerStep#|enumerate\(DataLoader\)#|Optimizer\.(step|zero_grad)#)")


def host_memory(memcpy: str) -> HostMemory:
    """The host side of a copy named like "Memcpy HtoD (Pageable -> Device)"; ROCm's names do not say."""
    if "Pageable" in memcpy:
        return HostMemory.PAGEABLE
    if "Pinned" in memcpy:
        return HostMemory.PINNED
    return HostMemory.UNNAMED if "HtoD" in memcpy or "DtoH" in memcpy else HostMemory.NONE


def is_to_device(memcpy: str) -> bool:
    """Whether a copy goes from the host to the device."""
    return "HtoD" in memcpy


def is_to_host(memcpy: str) -> bool:
    """Whether a copy goes from the device to the host."""
    return "DtoH" in memcpy


_COMPILED_REGION = re.compile(r"Torch-Compiled Region: (\d{1,9})/\d")
_DEVICE_OPERATOR = re.compile(r"^aten::(_?cudnn|miopen)_")

_ACTIVITIES = (
    (Activity.GARBAGE, re.compile(r"function collect\b|garbage")),
    (Activity.SLEEP, re.compile(r"\bsleep\b")),
    # torch/utils/checkpoint.py recomputes activations.
    (
        Activity.CHECKPOINT,
        re.compile(r"^(?!.*torch/utils/checkpoint).*(checkpoint|ckpt|serialization|(?:\b|_)save(?!d)|pickle|\bdump\b)"),
    ),
    (
        Activity.LOGGING,
        re.compile(r"\blog(ging|ger|s|_\w+)?\b|\bprint\b|\bemit\b|tensorboard|wandb|mlflow|summary_?writer|tqdm"),
    ),
    (
        Activity.INPUT_OUTPUT,
        re.compile(r"_io\.|\bopen\b|\bread|\bwrite|\bflush\b|\bfsync\b|socket|\bssl\b|http|subprocess"),
    ),
)

#: Tokens to their experts, and back: the two halves of an exchange in expert parallelism.
DISPATCH, COMBINE = "dispatch", "combine"
#: Kernel-name spelling of each collective, longest first, for traces without metadata.
_COLLECTIVE_IN_KERNEL = (
    ("reducescatter", "reduce_scatter"),
    ("reduce_scatter", "reduce_scatter"),
    ("allgather", "all_gather"),
    ("all_gather", "all_gather"),
    ("allreduce", "all_reduce"),
    ("all_reduce", "all_reduce"),
    ("cross_device_reduce", "all_reduce"),
    ("alltoall", "all_to_all"),
    ("all_to_all", "all_to_all"),
    ("broadcast", "broadcast"),
    ("sendrecv", "send_recv"),
    ("barrier", "barrier"),
    ("reduce", "reduce"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("recv", "recv"),
    ("send", "send"),
)


def accelerator(category: str) -> str:
    """What accelerator has events of a category that is no GPU's, as "Ascend NPUs"; "" where that is not known."""
    return next((called for start, called in _ACCELERATORS.items() if category.startswith(start)), "")


def collective(name: str) -> str:
    """One spelling for a collective, from "allreduce", "nccl:all_reduce", "_all_gather_base" or a kernel's name.

    "" where the name does not say (`ncclDevKernel_Generic`).
    """
    if exchanges_tokens(name):
        return COMBINE if "combine" in name.lower() else DISPATCH
    lowered = name.lower()
    return next((kind for part, kind in _COLLECTIVE_IN_KERNEL if part in lowered), "")


_CALL = re.compile(r"(?:OpName\.)?[a-z_]{3,40}")


def is_collective_call(name: str) -> bool:
    """Whether a text is the name of a collective, or of a send or receive, as "all_reduce", and nothing else."""
    called = name.removeprefix("OpName.")
    return bool(_CALL.fullmatch(name)) and (called in ("send", "recv") or bool(collective(called)))


#: Of what is only known in bytes.
UNKNOWN_DTYPE = "unknown type"
#: Bytes of an element by torch's dtype names, as `record_param_comms` spells them.
_ELEMENT_BYTES: dict[str, int] = {
    "Byte": 1, "Char": 1, "Bool": 1, "QInt8": 1, "QUInt8": 1,
    "Float8_e4m3fn": 1, "Float8_e5m2": 1, "Float8_e4m3fnuz": 1, "Float8_e5m2fnuz": 1,
    "Short": 2, "Half": 2, "BFloat16": 2, "UInt16": 2,
    "Int": 4, "Float": 4, "UInt32": 4, "ComplexHalf": 4,
    "Long": 8, "Double": 8, "UInt64": 8, "ComplexFloat": 8,
    "ComplexDouble": 16,
    UNKNOWN_DTYPE: 1,
}  # fmt: skip
#: Torch's names of the types that NCCL's profiler plugin tells.
_DTYPE_OF_NCCL = {
    "ncclInt8": "Char", "ncclUint8": "Byte", "ncclFloat8e4m3": "Float8_e4m3fn", "ncclFloat8e5m2": "Float8_e5m2",
    "ncclFloat16": "Half", "ncclBfloat16": "BFloat16", "ncclInt32": "Int", "ncclUint32": "UInt32",
    "ncclFloat32": "Float", "ncclInt64": "Long", "ncclUint64": "UInt64", "ncclFloat64": "Double",
}  # fmt: skip


def torch_dtype(name: str) -> str:
    """A collective's type as torch names it, where NCCL's profiler plugin told it: ncclFloat32 is Float."""
    return _DTYPE_OF_NCCL.get(name, name)


def element_bytes(dtype: str) -> int:
    """Bytes of an element of a collective's type; -1 of an unknown one."""
    return _ELEMENT_BYTES.get(torch_dtype(dtype), -1)


#: Bytes of an element by the type of an operator's input ("Input type"), as C++ and torch spell it.
OPERATOR_ELEMENT_BYTES: dict[str, int] = {
    "unsigned char": 1, "signed char": 1, "char": 1, "bool": 1,
    "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1, "c10::Float8_e4m3fnuz": 1, "c10::Float8_e5m2fnuz": 1,
    "c10::Float8_e8m0fnu": 1, "c10::qint8": 1, "c10::quint8": 1,
    "short": 2, "short int": 2, "unsigned short": 2, "c10::Half": 2, "c10::BFloat16": 2,
    "int": 4, "unsigned int": 4, "float": 4, "c10::complex<c10::Half>": 4,
    "long": 8, "long int": 8, "long long": 8, "unsigned long": 8, "double": 8, "c10::complex<float>": 8,
    "c10::complex<double>": 16,
}  # fmt: skip
#: Those of them that are floating-point numbers.
FLOATING_TYPES = frozenset(
    kind for kind in OPERATOR_ELEMENT_BYTES if "Float" in kind or kind in ("float", "double", "c10::Half")
)
_ELEMENT_TYPE = re.compile(r"\b(c10::BFloat16|c10::Half|float|double)\b|OpaqueType<(\d+)u?>")
_OPAQUE = {"1": "bool", "2": "c10::Half", "4": "float", "8": "double", "16": "c10::complex<double>"}


@lru_cache(maxsize=_REMEMBERED)
def element_type(kernel: str) -> str:
    """The type of a torch kernel's elements: the first among its template's arguments, "" if there is none."""
    start = kernel.find("<")
    match = _ELEMENT_TYPE.search(kernel, start) if start >= 0 else None
    if not match:
        return ""
    return match[1] or _OPAQUE.get(match[2], "")
