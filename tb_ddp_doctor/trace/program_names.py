"""What the names of operators, annotations, kernels and Python functions say of the program that has them.

Pure: a name in, what it says out. Callers ask once per name, never once per event.
"""

from __future__ import annotations

import re
from enum import Enum, IntEnum

import msgspec

from tb_ddp_doctor.trace import names

#: What is looked at of a name: it says early what it is.
_LETTERS = 1024


class Program(Enum):
    """What a program does; digests have the value."""

    TRAINING = "training"
    #: Training, or forward passes, with sharded embedding tables.
    RECOMMENDER = "recommender"
    #: Generates and trains on what it generated.
    RL = "rl"
    SERVING = "serving"
    DIFFUSION = "diffusion"
    #: Forward passes alone.
    INFERENCE = "inference"
    #: The same few kernels over and over, or collectives alone.
    BENCHMARK = "benchmark"
    UNKNOWN = "unknown"


class Role(Enum):
    """What a process, or a stretch of one, does in reinforcement learning; the value is its name in sentences."""

    ROLLOUT = "rollout"
    REWARD = "reward"
    #: Log-probabilities and values of what was generated, by the policy and by a reference.
    LOG_PROB = "log-prob"
    UPDATE = "update"
    WEIGHT_SYNC = "weight sync"


#: Backward passes and optimizers that no operator shows: those of a graph, in a compiled region, without CPU events.
_TRAINING_KERNEL = re.compile(
    r"bprop|backward|(?<![a-z])bwd(?![a-z])|(?<![a-z])bw_|wgrad|igemm_wrw|BwdSpatial|Fused(Adam|Sgd|Adagrad)|fused_adam",
    re.IGNORECASE,
)
#: Megatron-LM's linear layers add to the gradient of their weights. In forward, FSDP and DDP prepare a backward pass
#: where there will be one.
_TRAINING_OPERATOR = re.compile(r"GradAccumulation|RegisterPostBackwardFunction|_DDPSink")
#: Embedding tables of recommenders, their lookups and their metrics: FBGEMM, torchrec, NVIDIA's HugeCTR and dynamic
#: tables, and torch's lookups of several rows for each sample.
_EMBEDDINGS = re.compile(
    r"split_embedding|(^|[^a-z])_?embedding_bag|EmbeddingBag|permute_[12]D_(sparse|lengths)|all2all_data:kjt|"
    r"KJTAllToAll|PooledEmbedding|block_bucketize_sparse|rec_?metrics?(?![a-z])|RecMetric|"
    r"[Hh]uge_?[Cc][Tt][Rr]|(?<![a-z])dyn_emb|[Dd]ynamic_?[Ee]mb",
)
#: A lookup in a table of embeddings of any model.
_LOOKS_UP = re.compile(r"^aten::embedding$")
#: What only a server runs: attention to a cache in pages, and marks of its own.
_GENERATES = re.compile(
    r"reshape_and_cache|paged_attention|[Bb]atch_?(mla|MLA|[Dd]ecode|[Pp]refill)\w*([Pp]aged?|_attention)|"
    r"unified_kv_cache|\[(DECODE|TARGET_VERIFY|PREFILL|EXTEND|MIXED)\b"
)
_SERVES = re.compile(
    r"(^|[/:. _])(vllm|sglang|sgl_kernel|tensorrt_llm|lmdeploy|turbomind|text_generation_server|ray/serve)([/:._ ]|$)|"
    r"kv_?cache|copy_kv|kv_(indices|index)"
)
#: Libraries, marks of the loop, and classes of models: U-Nets, diffusion transformers, and what decodes latent images.
_DIFFUSION = re.compile(
    r"(^|[/ ])(diffusers|xfuser|comfy)/|execute_diffusion|(?<![a-z])denois(e|ing)(?![a-z])|"
    r"UNet\w*Model|Transformer[23]DModel|Autoencoder(KL|DC)|(?<![A-Za-z])(MM)?DiT(?![a-z])"
)
_BENCHMARK = re.compile(r"triton/testing\.py|torch/utils/benchmark/|(?<![a-z])do_bench(?![a-z])")
#: An iteration of vLLM, SGLang and TensorRT-LLM: how many requests are in their prefill, and how many in their decode.
_VLLM = re.compile(r"context_(\d{1,9})(?:\([^)]{0,200}\))?_generation_(\d{1,9})")
_VLLM_OF_2024 = re.compile(r"execute_new_(\d{1,9})_cached_(\d{1,9})")
_SGLANG = re.compile(r"step\[(DECODE|TARGET_VERIFY|PREFILL|EXTEND|MIXED|IDLE)\b(?:[^\]]{0,200}\bbs=(\d{1,9}))?")
_TENSORRT_LLM = re.compile(
    r"\[Executor\] _forward_step(?: \d{1,18})?: (\d{1,9}) ctx reqs, (?:\d{1,9} ctx tokens, )?(\d{1,9}) gen reqs"
)
#: Attention of a single query to a cache, as only answers have it; and of many queries at once, as only prompts have
#: it. Kernels of either kind of work, such as FlashAttention's with a cache in pages, are of none.
_ATTENDS_ONE = re.compile(
    r"Batch_?Decode|masked_multihead_attention|(?<![a-z])xqa|(?<![a-z])paged_attention_(v[12]|ll4mi|kernel)|"
    r"flash_decod|decode_(grouped_)?att|splitkv_mla|flash_fwd_mla|_fwd_(grouped_)?kernel_stage[12]|fmhaSm\d+\w*ForGen",
    re.IGNORECASE,
)
_ATTENDS_MANY = re.compile(
    r"BatchPrefill|(context|prefill|extend)_attention|flash_fwd_kernel|fmha_v2|FmhaFwdKernel|fmhaSm\d+\w*Context|"
    r"^_fwd_kernel(_with_v1|_alibi|_no_prompt_cache|_flashattn)?$"
)


#: Attention of any kind, by kernel. It reads the keys and values of each request, so that it takes as much longer as
#: requests are more or longer. GEMMs of answers read the weights, however many requests there are.
_ATTENDS = re.compile(
    r"att(n|ention)(?![a-z])|Att(n|ention)|fmha|flash_(fwd|decod)|(?<![a-zA-Z])(flash_?)?mla(?![a-z])|Mla|MLA",
)


class ServerWork(IntEnum):
    """What a server's CPU does beside the model: the columns of `ServingWork.idle_ns`."""

    SCHEDULING = 0
    SAMPLING = 1
    DETOKENISING = 2
    #: Nothing: it waits for requests.
    WAITING = 3


#: Python functions of servers, and of these functions and of annotations of vLLM, what they do: the innermost first.
_OF_SERVER = re.compile(r"(^|[/\\])(vllm|sglang|lightllm|lmdeploy|tensorrt_llm)[/\\]")
_SERVER_WORK = (
    (
        ServerWork.DETOKENISING,
        re.compile(
            r"^llm_engine step: process_outputs|/detokenizer\w*\.py\(\d+\): |/output_processor\.py\(\d+\): |"
            r"\): (_?stream_output\w*|convert_ids_to_tokens|batch_decode)$"
        ),
    ),
    (
        ServerWork.SAMPLING,
        re.compile(
            r"^gpu_model_runner: (sample|postprocess|bookkeep|draft)|^(Sample|Postprocess|Bookkeep|Draft)$|"
            r"/(sampler|rejection_sampler|sampling_batch_info)\.py\(\d+\): |\): (_?sample|compute_logits)$"
        ),
    ),
    (
        ServerWork.SCHEDULING,
        re.compile(
            r"^schedule: |^gpu_model_runner: preprocess|^Preprocess$|"
            r"/sched/\w+\.py\(\d+\): |/schedule_(batch|policy)\.py\(\d+\): |"
            r"\): (schedule|get_(next|new)_batch\w*|update_running_batch|recv_requests|process_input_requests|"
            r"process_batch_result\w*|_update_states|_prepare_inputs)$"
        ),
    ),
)


#: Functions in which a server takes new requests: what blocks in them waits for requests, since with work at hand they
#: only look. SGLang instead looks again and again, and checks itself each time that it has nothing to do.
_TAKES_REQUESTS = re.compile(r"\): (_process_input_queue|_?get_from_request_queue|maybe_sleep(_on_idle)?)$")
_CHECKS_ITSELF_IDLE = re.compile(r"\): (self_check_during_idle|on_idle)$")
#: lightllm's loop sleeps where it has neither prompts nor answers to work on; all else in the loop waits for threads.
_LOOPS = re.compile(r"(^|[/\\])lightllm[/\\].*\): infer_loop$")
_SLEEPS = re.compile(r"^<built-in (method|function) sleep\b")
_BLOCKS = re.compile(r"^<built-in (method|function) (acquire|wait|poll|zmq_poll|select|recv\w*|sleep|sched_yield)\b")


class Iteration(msgspec.Struct, frozen=True):
    """What a server's iteration works on."""

    #: Requests whose prompt is read, in whole or in part; and requests of which each gets a token.
    prefills: int
    decodes: int


def iteration(annotation: str) -> Iteration | None:
    """The requests of a server's iteration, as its mark tells them; None for every other annotation.

    SGLang does not say how a mixed batch is divided: at least one request is of either kind. One that verifies drafted
    tokens (speculative decoding) decodes. A rank without requests, whose experts others use, has an iteration of none.
    """
    annotation = annotation[:_LETTERS]
    if mark := _VLLM.search(annotation) or _VLLM_OF_2024.match(annotation) or _TENSORRT_LLM.match(annotation):
        return Iteration(int(mark[1]), int(mark[2]))
    if mark := _SGLANG.match(annotation):
        requests = max(int(mark[2] or 1), 1)
        match mark[1]:
            case "DECODE" | "TARGET_VERIFY":
                return Iteration(0, requests)
            case "IDLE":
                return Iteration(0, 0)
            case "MIXED":
                return Iteration(1, max(requests - 1, 1))
            case _:
                return Iteration(requests, 0)
    return None


def server_work(name: str) -> ServerWork | None:
    """What a Python function or an annotation of a server does beside the model; None for every other one."""
    name = name[:_LETTERS]
    if ".py(" in name and not _OF_SERVER.search(name):
        return None
    return next((kind for kind, pattern in _SERVER_WORK if pattern.search(name)), None)


def server_function(name: str) -> ServerWork | None:
    """What a server's own Python function does beside the model; None for every other name."""
    return server_work(name) if ".py(" in name else None


def takes_requests(function: str) -> bool:
    """Whether a server takes new requests in this Python function."""
    return bool(_TAKES_REQUESTS.search(function[:_LETTERS]) and _OF_SERVER.search(function[:_LETTERS]))


def checks_itself_idle(function: str) -> bool:
    """Whether a server calls this Python function only when it has no request."""
    return bool(_CHECKS_ITSELF_IDLE.search(function[:_LETTERS]) and _OF_SERVER.search(function[:_LETTERS]))


def blocks(function: str) -> bool:
    """Whether this is a built-in function in which Python waits."""
    return bool(_BLOCKS.match(function[:_LETTERS]))


def loops(function: str) -> bool:
    """Whether this Python function is a server's loop that sleeps, itself, only without requests."""
    return bool(_LOOPS.search(function[:_LETTERS]))


def sleeps(function: str) -> bool:
    """Whether this is the built-in function in which Python sleeps for a given time."""
    return bool(_SLEEPS.match(function[:_LETTERS]))


def attends_one(kernel: str) -> bool:
    """Whether a kernel is attention of single queries, of requests in decode."""
    return bool(_ATTENDS_ONE.search(kernel[:_LETTERS]))


def attends_many(kernel: str) -> bool:
    """Whether a kernel is attention of many queries at once, of prompts."""
    return bool(_ATTENDS_MANY.search(kernel[:_LETTERS])) and not attends_one(kernel)


def attends(kernel: str) -> bool:
    """Whether a kernel is attention to keys and values, of prompts or of answers."""
    return bool(_ATTENDS.search(kernel[:_LETTERS])) or attends_one(kernel) or attends_many(kernel)


#: What vLLM runs on a rank of data-parallel attention that has no request while others have some.
_RUNS_WITHOUT_REQUESTS = re.compile(r"(^|[/\\])vllm[/\\].*\): execute_dummy_batch$")


def runs_without_requests(function: str) -> bool:
    """Whether this Python function is an iteration of a rank without requests, for the experts that others use."""
    return bool(_RUNS_WITHOUT_REQUESTS.search(function[:_LETTERS]))


def program(name: str) -> Program | None:
    """What a program is that has this operator, annotation, kernel or Python function; None where that says nothing."""
    name = name[:_LETTERS]
    if _GENERATES.search(name) or _SERVES.search(name) or iteration(name):
        return Program.SERVING
    if _DIFFUSION.search(name):
        return Program.DIFFUSION
    return Program.BENCHMARK if _BENCHMARK.search(name) else None


def generates(name: str) -> bool:
    """Whether an operator, annotation or kernel is one that only the generation of tokens has."""
    return bool(_GENERATES.search(name[:_LETTERS])) or iteration(name) is not None


def is_of_embeddings(name: str) -> bool:
    """Whether an operator, annotation or kernel works on the embedding tables of a recommender."""
    return bool(_EMBEDDINGS.search(name[:_LETTERS]))


def looks_up(operator: str) -> bool:
    """Whether an operator looks up rows of a table, as words of a language model or features of a recommender."""
    return bool(_LOOKS_UP.match(operator[:_LETTERS]))


def trains(name: str) -> bool:
    """Whether an operator or an annotation is of a backward pass or of an optimizer."""
    return names.is_backward(name) or bool(_TRAINING_OPERATOR.search(name[:_LETTERS]))


def is_training_kernel(kernel: str) -> bool:
    """Whether a kernel computes gradients or updates parameters, by its name."""
    return bool(_TRAINING_KERNEL.search(kernel[:_LETTERS]))
