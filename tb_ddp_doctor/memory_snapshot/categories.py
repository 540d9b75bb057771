"""What memory was allocated for, by the stack that allocated it. Pure: a stack in, a category out.

The innermost function that shows a category decides. Such as of what activation checkpointing computes again:

    torch/nn/functional.py      linear                          shows nothing
    model.py                    forward                         activations
    torch/utils/checkpoint.py   recompute_fn                    further out: not asked
    ??                          torch::autograd::Engine::...    further out: not asked

So what torchrun, FSDP and activation checkpointing run from functions of torch.distributed is no communication buffer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from tb_ddp_doctor.findings import Source
from tb_ddp_doctor.flight.model import StackFrame
from tb_ddp_doctor.trace import names


class _Shows(NamedTuple):
    """What shows a category: a part of the file's name, or the whole name of a function."""

    category: str
    file: re.Pattern[str] | None
    function: re.Pattern[str] | None

    def at(self, frame: StackFrame) -> bool:
        """Whether this function shows it. If both are given, both have to be there."""
        if self.file and not self.file.search(frame.file):
            return False
        return self.function is None or self.function.fullmatch(frame.function) is not None


def _shows(category: str, file: str = "", function: str = "") -> _Shows:
    return _Shows(category, re.compile(file) if file else None, re.compile(function) if function else None)


#: The keys and values of a server's requests, which it allocates at its start: no parameters.
_KEYS_AND_VALUES = (
    _shows("other", r"mem_cache/|kv_?cache\w*\.py|memory_pool\w*\.py|transformers/cache_utils\.py"),
    _shows("other", function=r"\w*(allocate|init|initialize|create)_kv_?cache\w*"),
)
#: Asked of each function in this order.
_TABLE = (
    # FSDP shards parameters, gathers them and scatters gradients from the same files.
    _shows("parameters", r"torch/distributed/fsdp/", r"flatten_tensors\w*|_get(_unpadded)?_shard|shard|flat_param_to|"
           r"_init_sharded_param|reset_sharded_param|_move_states_to_device"),
    _shows("gradients", r"torch/distributed/fsdp/", r"to_accumulated_grad_if_needed|_cast_grad_to_param_dtype|"
           r"unshard_grad|prepare_gradient_for_\w+|_use_(un)?sharded_grad_views"),
    _shows("communication", r"torch/distributed/fsdp/", r"_alloc_padded_unsharded_flat_param|_use_low_precision_shard|"
           r"_get_reduce_scatter_tensors|init_flat_param_attributes|\w*all_gather_(in|out)puts"),
    _shows("communication", r"torch/distributed/(distributed_c10d|_functional_collectives|nn/|_symmetric_memory|"
           r"pipelining/|algorithms/ddp_comm_hooks/|tensor/_collective_utils|fsdp/_fully_shard/_fsdp_collectives)|"
           r"torch/nn/parallel/comm\.py|deepspeed/comm/|tensor_parallel/mappings\.py|p2p_communication\.py"),
    # DDP makes its buckets anew in the order of the first backward pass, before the next forward pass.
    # What ZeRO 3 makes of the parts that it has gathered.
    _shows("communication", r"zero/partition_parameters\.py", r"wait"),
    _shows("communication", r"torch/nn/parallel/distributed\.py", r"_pre_forward|_ddp_init_helper|_sync_\w+"),
    _shows("communication", function=r"c10d.*|.*\bc10d::.*|_ddp_init_helper|_sync_module_states"),
    _shows("communication", function=r"_?(all_?gather|reduce_?scatter|all_?reduce|all_?to_?all|allgather_base)\w*"),
    # Megatron-LM's gradients lie in one buffer; what sequence parallelism gathers in another.
    _shows("gradients", r"param_and_grad_buffer\.py"),
    _shows("gradients", r"megatron/", r"_?copy_(model|group)_grads\w*"),
    _shows("communication", r"megatron/core/utils\.py", r"get_tensor"),
    # DeepSpeed's copies of parameters in float32 are of the optimizer, as ZeRO counts them.
    _shows("optimizer_states", r"deepspeed/runtime/", r"_create_fp32_partitions"),
    _shows("gradients", r"deepspeed/runtime/", r"_setup_for_real_optimizer|initialize_optimizer_states"),
    # What an update works with is gone after it.
    _shows("temporary", r"torch/optim/", r"_(multi_tensor|single_tensor|fused)_\w+"),
    _shows("temporary", r"torch/nn/utils/clip_grad\.py"),
    _shows("optimizer_states", r"torch/optim/|optimizer\.py|adamw?\.py|/optim(izers?)?/|/(muon|lion|adafactor)\w*\.py"),
    _shows("optimizer_states", function=r"_init_group|optimizer_step"),
    _shows("gradients", r"torch/autograd/__init__\.py"),
    _shows("gradients", function=r"_engine_run_backward|backward|torch::autograd::(Engine|AccumulateGrad)\b.*"),
    _shows("activations", function=r"forward|_call_impl|_wrapped_call_impl"),
    *_KEYS_AND_VALUES,
    _shows("parameters", r"torch/nn/parameter\.py"),
    _shows("parameters", function=r"__init__|_apply|reset_parameters|\w*load_state_dict\w*|convert|from_pretrained|"
           r"load_(model|weights)|create_weights|\w*materialize\w*|set_module_tensor_to_device|prepare_model_for_\w+"),
    _shows("parameters", r"safetensors/torch\.py"),
)  # fmt: skip
#: FSDP's functions that allocate a reduce-scatter's input, and its output: the gradients of a group of parameters.
_FSDP, _SCATTERS = "torch/distributed/fsdp/", re.compile(r"foreach_reduce|_get_reduce_scatter_tensors")
_TORCHS = re.compile(r"(?:\A|/)torch/(\w+)")
_FORWARD = "forward"
_FUNCTIONAL = re.compile(r"torch/nn/functional\.py$")
#: Functions that are remembered: a program's stacks consist of some thousand.
_MOST_FUNCTIONS = 1 << 14
#: Torch's layers: "torch/nn/modules/linear.py".
_LAYER = re.compile(r"torch/nn/modules/(?!module\.py|container\.py)(\w+)\.py$")


def category(frames: Sequence[StackFrame]) -> tuple[str, StackFrame | None]:
    """What a stack allocates for, as `step_parts.MEMORY` calls it, and the function that shows it; "" if none does.

    Innermost first. A stack with none of those functions, but one of torch.nn.functional, is of a loss or of a model
    that is no module.
    """
    called: StackFrame | None = None
    for frame in frames:
        if shown := _of_function(frame):
            return ("activations", called) if called and _is_closure(called, frame) else (shown, frame)
        called = frame if frame.file.endswith(".py") else called
    return next((("activations", frame) for frame in frames if _FUNCTIONAL.search(frame.file)), ("", None))


def is_update(frames: Sequence[StackFrame]) -> bool:
    """Whether an optimizer's update allocates."""
    shown, frame = category(frames)
    return shown == "optimizer_states" or (frame is not None and _is_of_torchs_optimizers(frame))


def _is_closure(called: StackFrame, by: StackFrame) -> bool:
    """Whether an optimizer's step calls what computes the loss (Lightning): of others it calls nothing else."""
    return by.function == "step" and _is_of_torchs_optimizers(by) and not _TORCHS.search(called.file)


def _is_of_torchs_optimizers(frame: StackFrame) -> bool:
    named = _TORCHS.search(frame.file)
    return named is not None and named[1] == "optim" and not frame.file.endswith("/optimizer.py")


def scatters_gradients(frames: Sequence[StackFrame]) -> StackFrame | None:
    """Where FSDP allocates what a reduce-scatter reads or writes; None elsewhere."""
    return next((frame for frame in frames if _SCATTERS.fullmatch(frame.function) and _FSDP in frame.file), None)


@lru_cache(_MOST_FUNCTIONS)
def _of_function(frame: StackFrame) -> str:
    return next((one.category for one in _TABLE if one.at(frame)), "")


def is_of_keys_and_values(source: Source) -> bool:
    """Whether a function allocates the keys and values of a server's requests."""
    return any(one.at(StackFrame(source.file, source.line, source.function)) for one in _KEYS_AND_VALUES)


def module(frames: Sequence[StackFrame]) -> str:
    """The module whose forward pass allocates, by its file and torch's layer: "model.py, linear"; "" elsewhere."""
    own = next((frame for frame in frames if frame.function == _FORWARD and is_own(frame)), None)
    layers = (_LAYER.search(frame.file) for frame in frames if frame.function == _FORWARD)
    layer = next((named[1] for named in layers if named), "")
    return ", ".join(filter(None, (own.file.rpartition("/")[2] if own else "", layer)))


@lru_cache(_MOST_FUNCTIONS)
def is_own(frame: StackFrame) -> bool:
    """Whether a function is neither torch's nor of Python's own library."""
    return names.is_own_code(f"{frame.file}({frame.line}): {frame.function}")
