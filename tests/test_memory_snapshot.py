"""Snapshots of torch.cuda.memory beside traces: sizes in MB, segments drawn as text.

`"aa..bbb."` is a segment of 8 MB: two MB that `a` allocated, two free ones, three of `b`, one free.
"""

from __future__ import annotations

import gzip
import os
import pickle
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from traces import ranks, write

from tb_ddp_doctor.account import memory_text
from tb_ddp_doctor.cli import main
from tb_ddp_doctor.discover.recorders.memory_snapshots import MemorySnapshots
from tb_ddp_doctor.discover.walk import beside
from tb_ddp_doctor.findings import MemorySnapshot
from tb_ddp_doctor.memory_snapshot.read import read
from tb_ddp_doctor.memory_snapshot.summary import SnapshotError, summary
from tb_ddp_doctor.workers import pool

MB = 1_000_000
#: Stacks by letter, innermost first.
STACKS: dict[str, list[tuple[str, str]]] = {
    "a": [("torch/nn/functional.py", "linear"), ("train.py", "forward")],
    "g": [("torch/autograd/graph.py", "_engine_run_backward"), ("train.py", "step")],
    "o": [("torch/optim/adam.py", "_init_group"), ("train.py", "step")],
    "p": [("torch/nn/modules/linear.py", "__init__"), ("model.py", "build")],
    "c": [("torch/distributed/distributed_c10d.py", "all_gather"), ("train.py", "step")],
    "x": [("cache.py", "keep")],
    "n": [],
}
ROOT = Path(__file__).parents[1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run's. What lies above it is looked at too, which is other tests' if it is not one down."""
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


def frames(letter: str) -> list[dict[str, Any]]:
    return [{"filename": file, "name": name, "line": 7} for file, name in STACKS[letter]]


def snapshot(*segments: str, oom: tuple[int, int] | None = None, **more: Any) -> dict[str, Any]:
    """A snapshot with these segments; `oom` is a request that failed and what the device had free, MB."""
    listed, at = [], 1 << 30
    for drawn in segments:
        blocks, start = [], at
        for letter, run in groupby(drawn):
            size = len([*run]) * MB
            state = "inactive" if letter == "." else "active_allocated"
            stack = [] if letter == "." else frames(letter)
            blocks.append({"address": at, "size": size, "state": state, "frames": stack})
            at += size
        listed.append({"address": start, "total_size": at - start, "stream": 0, "blocks": blocks})
    failed = [{"action": "oom", "size": oom[0] * MB, "device_free": oom[1] * MB, "frames": frames("a")}] if oom else []
    return {"segments": listed, "device_traces": [failed], **more}


def of(*segments: str, **more: Any) -> MemorySnapshot:
    return summary(pickle.loads(pickle.dumps(snapshot(*segments, **more))), "file", 0)


def some(categories: Mapping[str, int]) -> dict[str, int]:
    return {name: size // MB for name, size in categories.items() if size}


def test_blocks_are_of_what_their_stacks_say() -> None:
    got = of("aaag.oopcx")
    assert some(got.categories) == {
        "activations": 3, "gradients": 1, "optimizer_states": 2, "parameters": 1, "communication": 1, "other": 1,
    }  # fmt: skip
    assert (got.allocated, got.reserved, got.reserved_but_unallocated) == (9 * MB, 10 * MB, MB)
    assert sum(got.categories.values()) == got.allocated


@pytest.mark.parametrize(
    ("stack", "category"),
    [
        # What torchrun runs is called by its wrapper.
        (["torch/nn/functional.py:linear", "model.py:forward", "torch/distributed/launcher/api.py:__call__",
          "torch/distributed/elastic/multiprocessing/errors/__init__.py:wrapper"], "activations"),
        (["torch/nn/functional.py:linear", "torch/nn/modules/module.py:_call_impl",
          "torch/distributed/algorithms/_checkpoint/checkpoint_wrapper.py:forward"], "activations"),
        (["loader.py:read", "torch/distributed/elastic/multiprocessing/errors/__init__.py:wrapper"], "other"),
        (["??:c10::cuda::CUDACachingAllocator::malloc", "??:at::empty", "torch/distributed/fsdp/_flat_param.py:"
          "_alloc_padded_unsharded_flat_param", "train.py:forward"], "communication"),
        (["??:c10d::ProcessGroupNCCL::allgather", "train.py:gather"], "communication"),
        # Of FSDP's own files some functions shard, others gather.
        (["torch/distributed/fsdp/_fully_shard/_fsdp_param.py:_init_sharded_param", "model.py:build"], "parameters"),
        (["torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py:foreach_reduce"], "communication"),
        # DTensor runs every operator; tensor-parallel activations are no communication.
        (["torch/distributed/tensor/_dispatch.py:dispatch", "torch/nn/modules/linear.py:forward"], "activations"),
        # What checkpointing computes again during backward.
        (["torch/nn/functional.py:linear", "model.py:forward", "torch/utils/checkpoint.py:recompute_fn",
          "??:torch::autograd::Engine::evaluate_function(std::shared_ptr<torch::autograd::GraphTask>&)"],
         "activations"),
        (["??:at::native::mm(at::Tensor const&)", "??:torch::autograd::Engine::thread_main(int)"], "gradients"),
        # What an update works with is gone after it: what is still there is the momentum.
        (["torch/optim/sgd.py:_multi_tensor_sgd", "torch/optim/sgd.py:step"], "optimizer_states"),
        # DDP's buckets, made again in the order of the first backward pass.
        (["torch/nn/parallel/distributed.py:_pre_forward", "torch/nn/parallel/distributed.py:forward"],
         "communication"),
        (["megatron/core/utils.py:get_tensor", "megatron/core/tensor_parallel/layers.py:forward"], "communication"),
        (["deepspeed/runtime/zero/stage3.py:_create_fp32_partitions",
          "deepspeed/runtime/zero/stage3.py:__init__"], "optimizer_states"),
        (["transformers/cache_utils.py:update", "transformers/models/llama.py:forward"], "other"),
        (["torch/functional.py:broadcast_tensors", "model.py:forward"], "activations"),
        # A loss, or a model that is no module.
        (["torch/nn/functional.py:cross_entropy", "train.py:main"], "activations"),
        (["torch/nn/functional.py:linear", "layer.py:backward"], "gradients"),
        # What a server keeps of its requests is no parameter, though it is allocated like one.
        (["sglang/srt/mem_cache/memory_pool.py:_create_buffers", "sglang/srt/mem_cache/memory_pool.py:__init__"],
         "other"),
        (["vllm/v1/worker/gpu_model_runner.py:_allocate_kv_cache_tensors", "vllm/v1/worker/gpu_worker.py:load_model"],
         "other"),
        (["vllm/model_executor/layers/linear.py:create_weights"], "parameters"),
        (["transformers/modeling_utils.py:_load_state_dict_into_meta_model", "train.py:main"], "parameters"),
        (["safetensors/torch.py:load_file", "train.py:main"], "parameters"),
        (["peft/utils/other.py:prepare_model_for_kbit_training", "train.py:main"], "parameters"),
        (["job/muon.py:step", "train.py:main"], "optimizer_states"),
        (["torchao/optim/adam.py:_new_buffer"], "optimizer_states"),
        # Lightning hands the optimizer's step a closure: what runs in it is the step's computation.
        (["torch/nn/functional.py:cross_entropy", "model.py:training_step", "lightning/loops/automatic.py:closure",
          "??:_PyEval_Vector", "torch/optim/adam.py:step", "torch/optim/optimizer.py:wrapper"], "activations"),
        (["lion.py:step", "torch/utils/_contextlib.py:decorate_context", "torch/optim/optimizer.py:wrapper"],
         "optimizer_states"),
    ],
)  # fmt: skip
def test_what_a_stack_allocates_for_is_told_by_the_innermost_function(stack: list[str], category: str) -> None:
    told = snapshot("n")
    named = [frame.partition(":")[::2] for frame in stack]
    told["segments"][0]["blocks"][0]["frames"] = [{"filename": file, "name": name, "line": 1} for file, name in named]
    assert some(summary(told, "file", 0).categories) == {category: 1}


def test_what_an_update_works_with_is_temporary_while_it_runs() -> None:
    told = snapshot("n", oom=(3, 0))
    stack = [{"filename": "torch/optim/adamw.py", "name": name, "line": 1} for name in ("_multi_tensor_adamw", "step")]
    told["segments"][0]["blocks"][0]["frames"] = told["device_traces"][0][0]["frames"] = stack
    assert some(summary(told, "file", 0).categories) == {"temporary": 1}


def test_sums_of_categories_are_those_of_an_independent_count() -> None:
    """To the byte, of 300 blocks of chance sizes and stacks, counted block by block as they are drawn."""
    chance = random.Random(38)
    told: dict[str, Any] = {"segments": [], "device_traces": []}
    expected = Counter[str]()
    of_letter = {"a": "activations", "g": "gradients", "o": "optimizer_states", "p": "parameters",
                 "c": "communication", "x": "other", "n": "other"}  # fmt: skip
    for number in range(30):
        blocks = []
        for letter in chance.choices([*STACKS, "."], k=10):
            size = chance.randrange(1, 1 << 30)
            state = chance.choice(("active_allocated", "active_awaiting_free")) if letter != "." else "inactive"
            blocks.append({"size": size, "state": state, "frames": frames(letter) if letter != "." else []})
            expected[of_letter.get(letter, "free")] += size
        total = sum(block["size"] for block in blocks)
        told["segments"].append({"address": number << 40, "total_size": total, "blocks": blocks})
    got = summary(told, "file", 0)
    assert {name: size for name, size in got.categories.items() if size} == {
        name: size for name, size in expected.items() if name != "free"
    }
    assert (got.reserved_but_unallocated, got.reserved) == (expected["free"], expected.total())


def of_optimizer(line: int) -> list[dict[str, Any]]:
    return [{"filename": "torch/optim/adam.py", "name": "_init_group", "line": line}]


def allocated(sizes: Iterable[int], stack: list[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
    """Blocks of 512 bytes more than what was asked for."""
    return [
        {"size": size + 512, "requested_size": size, "state": "active_allocated", "frames": stack or []}
        for size in sizes
    ]


ENGINE = [{"filename": "??", "name": "torch::autograd::Engine::evaluate_function()", "line": 0}]


@settings(max_examples=50)
@given(
    sizes=st.lists(st.integers(10_000, 1 << 40).map(lambda size: 2 * size), min_size=1, max_size=20),
    half=st.booleans(),
    seed=st.randoms(use_true_random=False),
)
def test_parameters_and_gradients_are_inferred_from_the_optimizers_states(
    sizes: list[int], half: bool, seed: random.Random
) -> None:
    """Of any sizes, in any order, in half precision or not; what the backward pass allocated beyond is temporary."""
    of_model = [size // 2 if half else size for size in sizes]
    drawn = {
        "optimizer_states": allocated(sizes, of_optimizer(174)) + allocated(sizes, of_optimizer(178)),
        "": allocated(of_model) + allocated([9_000, 9_001]),
        "gradients": allocated(of_model, ENGINE) + allocated([9_002], ENGINE),
    }
    listed = [block for some in drawn.values() for block in some]
    seed.shuffle(listed)
    got = summary({"segments": [{"address": 1, "blocks": listed}]}, "file", 0)
    each = sum(of_model) + 512 * len(sizes)
    expected = {
        "parameters": each, "gradients": each, "optimizer_states": 2 * (sum(sizes) + 512 * len(sizes)),
        "temporary": 9_002 + 512, "other": 9_000 + 9_001 + 1024,
    }  # fmt: skip
    assert {name: size for name, size in got.categories.items() if size} == expected


def test_sizes_that_do_not_fit_the_optimizers_states_stay_what_they_are() -> None:
    listed = allocated([4 * MB, MB], of_optimizer(1)) + allocated([7 * MB, MB]) + allocated([3 * MB], ENGINE)
    got = summary({"segments": [{"address": 1, "blocks": listed}]}, "file", 0)
    assert some(got.categories) == {"gradients": 3, "optimizer_states": 5, "other": 8}


def test_gradients_may_lie_in_what_reduce_scatter_wrote() -> None:
    scatter = [
        {"filename": "torch/distributed/fsdp/_runtime_utils.py", "name": "_get_reduce_scatter_tensors", "line": 9}
    ]
    listed = allocated([4 * MB], of_optimizer(1)) + allocated([4 * MB]) + allocated([4 * MB, 16 * MB], scatter)
    got = summary({"segments": [{"address": 1, "blocks": listed}]}, "file", 0)
    assert some(got.categories) == {"parameters": 4, "gradients": 4, "optimizer_states": 4, "communication": 16}


def stack(*functions: str) -> list[dict[str, Any]]:
    """A stack of "file:line:function", innermost first."""
    parts = [function.rsplit(":", 2) for function in functions]
    return [{"filename": file, "line": int(line), "name": name} for file, line, name in parts]


def categories_of(*listed: list[dict[str, Any]], traces: Iterable[Any] = ()) -> dict[str, int]:
    blocks = [block for some in listed for block in some]
    told = {"segments": [{"address": 1, "blocks": blocks}], "device_traces": [list(traces)]}
    return some(summary(told, "file", 0).categories)


def test_states_are_told_apart_by_the_optimizers_lines_not_by_what_it_calls() -> None:
    """DTensor allocates every state in one function."""
    dispatch = "torch/distributed/tensor/_dispatch.py:1:dispatch"
    kept = [allocated([4 * MB, MB], stack(dispatch, f"torch/optim/adam.py:{line}:_init_group")) for line in (174, 178)]
    muon = allocated([3 * MB], stack(dispatch, "torch/optim/_muon.py:157:_init_group"))
    got = categories_of(*kept, muon, allocated([MB, 4 * MB, 3 * MB, 9 * MB]))
    assert got == {"parameters": 8, "optimizer_states": 13, "other": 9}


def test_what_backward_allocates_in_no_parameters_size_is_temporary() -> None:
    got = categories_of(
        allocated([4 * MB, MB], of_optimizer(1)), allocated([4 * MB, MB]), allocated([MB, 7 * MB], ENGINE)
    )
    assert got == {"parameters": 5, "gradients": 1, "optimizer_states": 5, "temporary": 7}


def updates(file: str, *sizes: int, function: str = "_multi_tensor_adamw", at: int = 5) -> list[dict[str, Any]]:
    """What one update of an optimizer works with, MB: it is gone after it."""
    frames_of = stack(f"torch/optim/{file}.py:9:{function}", f"torch/optim/{file}.py:8:step")
    rows = [
        {"addr": (100 + number) << 20, "size": size * MB, "time_us": at + number} for number, size in enumerate(sizes)
    ]
    done = at + len(sizes)
    return [
        *({"action": "alloc", "frames": frames_of} | row for row in rows),
        *({"action": "free_requested"} | row | {"time_us": done} for row in rows),
    ]


@pytest.mark.parametrize(
    ("file", "found"),
    [
        ("adamw", {"parameters": 5, "optimizer_states": 10}),
        # What it keeps is not known, but it works with a tensor as large as each parameter.
        ("rmsprop", {"parameters": 5}),
        ("own", {"parameters": 5}),
    ],
)
def test_where_the_record_began_after_the_first_update_its_updates_tell_the_parameters(
    file: str, found: dict[str, int]
) -> None:
    got = categories_of(allocated([4 * MB, MB, MB, 4 * MB, 4 * MB, MB, 6 * MB]), traces=updates(file, 4, 1))
    assert got == found | {"other": 21 - sum(found.values())}


def test_where_updates_allocate_nothing_parameters_are_as_large_as_what_backward_leaves() -> None:
    """SGD with momentum works in place, and 8-bit states have sizes of their own."""
    rows = [("alloc", 1, 4, ENGINE), ("alloc", 2, 9, ENGINE), ("free_requested", 2, 9, ENGINE)]
    rows += [("alloc", 3, 1, ENGINE), ("free_requested", 1, 4, []), ("free_requested", 3, 1, [])]
    rows += [("alloc", 4, 6, stack("model.py:3:forward"))]
    traces = [
        {"action": action, "addr": addr << 20, "size": size * MB, "time_us": at, "frames": frames}
        for at, (action, addr, size, frames) in enumerate(rows, 5)
    ]
    old = allocated([size * MB for size in (4, 1, 4, 1, 9, 7)])
    assert categories_of(old, traces=traces) == {"parameters": 5, "other": 21}
    assert categories_of(old, traces=traces[:4]) == {"other": 26}  # of a pass that is not over nothing is known


def test_what_a_closure_allocates_is_of_no_update() -> None:
    """Lightning's optimizers call the forward pass."""
    closure = stack("model.py:9:training_step", "automatic.py:3:closure", "torch/optim/adamw.py:8:step")
    loss = [{"action": "alloc", "addr": 9, "size": 6 * MB, "time_us": 3, "frames": closure}]
    old = allocated([size * MB for size in (4, 1, 1, 4, 4, 1, 6, 6, 6)])
    assert categories_of(old, traces=loss + updates("adamw", 4, 1)) == {
        "parameters": 5, "optimizer_states": 10, "other": 18,
    }  # fmt: skip


def test_without_a_tensor_for_each_parameter_adam_keeps_two_of_those_that_it_updates() -> None:
    """One after another, several of each: what they count is not known. What is frozen is in no update."""
    single = updates("adamw", 4, 4, 1, 1, function="_single_tensor_adamw")
    got = categories_of(allocated([size * MB for size in (4, 1, 1, 4, 4, 1, *[7] * 6)]), traces=single)
    assert got == {"parameters": 5, "optimizer_states": 10, "other": 42}


@pytest.mark.parametrize(("released_at", "gradients"), [(3, 5), (30, 0)])
def test_what_was_there_before_the_record_are_gradients_only_where_these_are_kept(
    released_at: int, gradients: int
) -> None:
    """Else another copy of the parameters, as of their averages. Kept gradients are added to: what backward
    allocates is gone before the update.
    """
    rows = [{"addr": number << 10, "size": size * MB, "time_us": number} for number, size in ((1, 4), (2, 1))]
    backward = [
        *({"action": "alloc", "frames": ENGINE} | row for row in rows),
        *({"action": "free_requested"} | row | {"time_us": released_at} for row in rows),
    ]
    traces = sorted(backward + updates("adamw", 4, 1), key=lambda event: event["time_us"])
    got = categories_of(allocated([4 * MB, MB] * 4), traces=traces)
    assert got == some_of(parameters=5, optimizer_states=10, gradients=gradients, other=5 - gradients)


def test_what_is_copied_beyond_what_the_optimizer_updates_is_no_parameter() -> None:
    """Averages of the parameters, or a model to compare with. A model of copied layers has as many as states."""
    copied = stack("torch/nn/parameter.py:89:__deepcopy__", "copy.py:143:deepcopy", "ema.py:5:__init__")
    states = allocated([4 * MB, MB], of_optimizer(174))
    assert categories_of(states, allocated([4 * MB, MB], frames("p")), allocated([4 * MB, MB], copied)) == {
        "parameters": 5, "optimizer_states": 5, "other": 5,
    }  # fmt: skip
    assert categories_of(states, allocated([4 * MB, MB], copied)) == {"parameters": 5, "optimizer_states": 5}


def test_what_ones_own_code_makes_beyond_what_the_optimizer_updates_is_no_parameter() -> None:
    """A class for averages clones the parameters. What torch's layers make may be frozen."""
    own, states = stack("ema.py:5:__init__", "train.py:9:main"), allocated([4 * MB, MB], of_optimizer(174))
    made = allocated([4 * MB, MB], frames("p"))
    assert categories_of(states, made, allocated([4 * MB, MB], own)) == {
        "parameters": 5, "optimizer_states": 5, "other": 5,
    }  # fmt: skip
    assert categories_of(states, made, made) == {"parameters": 10, "optimizer_states": 5}


def test_where_gradients_lie_in_a_buffer_backward_allocates_what_it_works_with() -> None:
    """Megatron-LM: all gradients of a rank."""
    buffer = stack("megatron/core/distributed/param_and_grad_buffer.py:803:__init__", "train.py:1:main")
    layer = [*stack("megatron/core/tensor_parallel/layers.py:551:backward"), *ENGINE]
    assert categories_of(allocated([4 * MB], buffer), allocated([MB], layer), allocated([2 * MB], ENGINE)) == {
        "gradients": 4, "temporary": 3,
    }  # fmt: skip


LAYERS = [8, 3, 2, 2, 4, 3, 2, 2, 4, 1, 8]


@pytest.mark.parametrize(("more", "buckets"), [([], 0), ([39], 39)])
def test_where_no_update_is_in_the_record_three_of_each_size_are_a_parameter_and_its_states(
    more: list[int], buckets: int
) -> None:
    """DDP's buckets are as large as all parameters."""
    listed = allocated([size * MB for size in LAYERS * 3 + more])
    activations = allocated([5 * MB], frames("a"))
    assert categories_of(listed, activations) == some_of(
        parameters=39, optimizer_states=78, communication=buckets, activations=5
    )


@pytest.mark.parametrize("sizes", [[4, 3, 2] * 12, [8, *[3, 2] * 3], LAYERS * 3 + [7], LAYERS * 2])
def test_what_may_as_well_be_a_model_of_three_layers_is_not_inferred(sizes: list[int]) -> None:
    listed = allocated([size * MB for size in sizes])
    assert categories_of(listed) == {"other": sum(sizes)}


@pytest.mark.parametrize("has_engine", [False, True])
@pytest.mark.parametrize("buckets", [[], [39]])
def test_without_stacks_states_are_known_by_the_order_of_the_parameters(
    buckets: list[int], *, has_engine: bool
) -> None:
    """Two of each parameter in the order of the parameters; what comes later is of the last step."""
    counters = [size for twice in zip(LAYERS, LAYERS, strict=True) for size in (*twice, 0)]
    sizes = LAYERS + counters + buckets + [6, 6, 5, 2, 6]
    listed, traces = [], []
    for number, size in enumerate(sizes):
        (block,) = allocated([size * MB or 4])
        listed.append(block | {"address": (1 + number) << 40})
        traces.append(
            {"action": "alloc", "addr": (1 + number) << 40, "size": size * MB, "time_us": 1 + number, "frames": []}
        )
    late = (1 + len(sizes)) << 40
    last = [allocated([7 * MB], ENGINE)[0] | {"address": late}] if has_engine else []
    assert some_of(**categories_of(listed, last, traces=traces)) == some_of(
        parameters=39, optimizer_states=78, communication=sum(buckets), activations=25, temporary=7 * has_engine
    )


def test_a_second_copy_of_the_parameters_is_no_bucket() -> None:
    """Without stacks: averages of parameters, or gradients that are kept, in the sizes of the parameters."""
    counters = [size for twice in zip(LAYERS, LAYERS, strict=True) for size in (*twice, 0)]
    listed, traces = [], []
    for number, size in enumerate(LAYERS + LAYERS + counters):
        (block,) = allocated([size * MB or 4])
        listed.append(block | {"address": (1 + number) << 40})
        traces.append(
            {"action": "alloc", "addr": (1 + number) << 40, "size": size * MB, "time_us": 1 + number, "frames": []}
        )
    assert categories_of(listed, traces=traces) == some_of(parameters=39, optimizer_states=78, other=39)


def some_of(**categories: int) -> dict[str, int]:
    return {name: size for name, size in categories.items() if size}


def test_temporary_memory_of_backward_is_known_where_the_record_began_after_the_first_update() -> None:
    """Logits' gradients, in a stack without Python, are no gradients of parameters."""
    got = categories_of(allocated([4 * MB, 4 * MB, 4 * MB]), allocated([9 * MB], ENGINE), traces=updates("adamw", 4))
    assert got == {"parameters": 4, "optimizer_states": 8, "temporary": 9}


def test_gradients_are_as_large_as_parameters_before_the_first_update_too() -> None:
    """The first backward pass fails: stacks show the parameters, and no optimizer has states yet."""
    made = allocated([4 * MB, MB], frames("p"))
    got = categories_of(made, allocated([MB, 7 * MB], ENGINE))
    assert got == {"parameters": 5, "gradients": 1, "temporary": 7}


def test_a_gradient_is_as_large_as_something_older() -> None:
    """Where the record began late, and no optimizer tells the parameters, they are among what was there before."""
    late = allocated([3 * MB], frames("p"))
    assert categories_of(allocated([4 * MB, MB]), late, allocated([MB, 7 * MB], ENGINE)) == {
        "parameters": 3, "other": 5, "gradients": 1, "temporary": 7,
    }  # fmt: skip


def test_backward_has_no_stack_where_only_pythons_are_kept() -> None:
    """Its threads run no Python. Where nothing has a stack, none was recorded."""
    traces = [
        {"action": "alloc", "addr": (1 + number) << 40, "size": size * MB, "time_us": 5 + number, "frames": []}
        for number, size in enumerate((4, 7))
    ]
    late = [
        block | {"address": event["addr"]} for block, event in zip(allocated([4 * MB, 7 * MB]), traces, strict=True)
    ]
    made = allocated([4 * MB, 2 * MB], frames("p"))
    assert categories_of(made, late, traces=traces) == {"parameters": 6, "gradients": 4, "temporary": 7}
    assert categories_of(late, traces=traces) == {"other": 11}


def test_fsdp_keeps_the_parameters_of_a_group_in_one_tensor() -> None:
    states = [allocated([4 * MB, MB, 2 * MB, 3 * MB], of_optimizer(line)) for line in (1, 2)]
    assert categories_of(*states, allocated([5 * MB, 5 * MB])) == {"parameters": 10, "optimizer_states": 20}


def test_what_reduce_scatter_leaves_are_gradients_and_what_it_reads_is_not() -> None:
    """FSDP2: the gradients of a group of parameters are one buffer, which no state is as large as."""
    allocate, file = "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py:108:allocate", "_fsdp_collectives.py"
    scatter = f"torch/distributed/fsdp/_fully_shard/{file}"
    reads, writes = (stack(allocate, f"{scatter}:{line}:foreach_reduce") for line in (580, 610))
    got = categories_of(
        allocated([2 * MB] * 6, of_optimizer(1)), allocated([2 * MB] * 6),
        allocated([16 * MB] * 2, reads), allocated([4 * MB] * 3, writes),
    )  # fmt: skip
    assert got == {"parameters": 12, "gradients": 12, "optimizer_states": 12, "communication": 32}


@pytest.mark.parametrize(
    ("file", "function", "first"),
    [
        ("megatron/core/distributed/param_and_grad_buffer.py", "__init__", "parameters"),
        ("deepspeed/runtime/zero/stage3.py", "_setup_for_real_optimizer", "communication"),
    ],
)
def test_what_one_function_allocates_is_told_by_the_order_of_its_lines(file: str, function: str, first: str) -> None:
    one, other = (stack(f"{file}:{line}:{function}", "train.py:1:main") for line in (775, 783))
    assert categories_of(allocated([4 * MB], other), allocated([2 * MB], one)) == {first: 2, "gradients": 4}
    assert categories_of(allocated([4 * MB], other)) == {"gradients": 4}


@pytest.mark.parametrize(
    ("around", "category"),
    [("a.g", "activations"), ("a.", "activations"), ("a.n", "activations"), ("o.a", "other"), ("a.o", "other")],
)
def test_what_is_allocated_between_forward_and_backward_is_of_the_loss(around: str, category: str) -> None:
    """Logits in float32, in a function of the user's. Backward passes have no stacks where only Python's are kept."""
    own = stack("loss.py:3:compute_loss", "train.py:9:main")
    letters = {**STACKS, "o": [("torch/optim/adam.py", "_init_group"), ("torch/optim/adam.py", "step")]}
    traces = [
        {"action": "alloc", "addr": 1 if letter == "." else 100 + at, "size": MB, "time_us": at + 5, "frames":
            own if letter == "." else [{"filename": f, "name": n, "line": 7} for f, n in letters[letter]]}
        for at, letter in enumerate(around)
    ]  # fmt: skip
    assert categories_of([{"address": 1} | block for block in allocated([MB], own)], traces=traces) == {category: 1}


def test_blocks_of_torch_2_0_have_a_history() -> None:
    history = [{"addr": 1, "frames": frames(letter), "real_size": MB} for letter in "pa"]
    assert categories_of([{"size": 2 * MB, "state": "active_allocated", "history": history}]) == {"parameters": 2}


def test_a_snapshot_may_be_gzip(folder: Path) -> None:
    packed = gzip.compress(pickle.dumps(snapshot("aaoo")))
    (folder / "rank3.pickle.gz").write_bytes(packed)
    (folder / "rank4.pickle.gz").write_bytes(packed[: len(packed) // 2])
    (folder / "rank5.pickle.gz").write_bytes(packed[:40] + b"not deflate" + packed[51:])
    found, warnings = read(sorted(folder.iterdir()))
    assert [(one.rank, one.allocated) for one in found] == [(3, 4 * MB)]
    assert {one.file.rpartition("/")[2] for one in warnings} == {"rank4.pickle.gz", "rank5.pickle.gz"}
    assert not MemorySnapshots().begins(packed[:20] + b"not deflate")


def test_what_is_allocated_is_listed_by_place_and_module() -> None:
    layer = [
        {"filename": "torch/nn/functional.py", "name": "linear", "line": 2},
        {"filename": "torch/nn/modules/linear.py", "name": "forward", "line": 3},
        {"filename": "model.py", "name": "forward", "line": 41},
    ]
    listed = allocated([2 * MB, 3 * MB], layer) + allocated(
        [MB], [*of_optimizer(1), {"filename": "t.py", "name": "go", "line": 8}]
    )
    got = summary({"segments": [{"address": 1, "blocks": listed}]}, "file", 0)
    assert [(one.module, one.bytes // MB, one.count) for one in got.modules] == [("model.py, linear", 5, 2)]
    assert [(one.category, one.source and one.source.line, one.bytes // MB) for one in got.holders] == [
        ("activations", 41, 5), ("optimizer_states", 8, 1),
    ]  # fmt: skip


def test_a_snapshot_in_which_nothing_is_allocated_gets_a_sentence() -> None:
    (said,) = memory_text.snapshot_sentences(of("....", ".."))
    assert said.startswith("Rank 0 has nothing allocated, and 6.0 MB reserved in 2 blocks: ")
    (said,) = memory_text.snapshot_sentences(of())
    assert said.startswith("Rank 0 has nothing allocated or reserved: ")
    assert len(memory_text.snapshot_sentences(of("....", oom=(9, 1)))) > 1


def test_a_block_without_a_stack_is_of_what_was_annotated_when_it_was_allocated() -> None:
    allocation = {"action": "alloc", "addr": 1 << 30, "size": MB, "time_us": 50}
    notes = [
        {"stage": stage, "name": "## forward ##", "device": 0, "time_us": time}
        for stage, time in (("START", 40), ("END", 60))
    ]
    told = snapshot("n.") | {"device_traces": [[allocation]], "external_annotations": notes}
    assert some(summary(told, "file", 0).categories) == {"activations": 1}
    later = told | {"device_traces": [[allocation | {"time_us": 70}]]}
    assert some(summary(later, "file", 0).categories) == {"other": 1}


def test_what_a_segment_has_beyond_its_blocks_is_split_by_its_sums() -> None:
    told = snapshot("aa")
    told["segments"][0] |= {"total_size": 10 * MB, "active_size": 7 * MB}
    got = summary(told, "file", 0)
    assert some(got.categories) == {"activations": 2, "other": 5}
    assert (got.reserved, got.largest_free) == (10 * MB, 3 * MB)


def test_segments_with_most_that_is_free_come_first_with_what_keeps_them() -> None:
    got = of("aaaa", "x.....", "a..a..")
    assert [(one.inactive // MB, one.largest_free // MB) for one in got.segments] == [(5, 5), (4, 2)]
    (holder,) = got.segments[0].holders
    assert (holder.category, holder.bytes, holder.count) == ("other", MB, 1)
    assert holder.source is not None and (holder.source.file, holder.source.function) == ("cache.py", "keep")
    assert (got.free_blocks, got.largest_free) == (3, 5 * MB)


def test_for_a_failed_request_the_fewest_bytes_are_released() -> None:
    got = of("aaa..aaaa", "aa...x..aa", oom=(6, 1)).failure
    assert got is not None
    assert (got.bytes, got.device_free, got.to_release, got.whole_segments) == (6 * MB, MB, MB, False)
    assert [(one.category, one.bytes) for one in got.holders] == [("other", MB)]
    assert got.source is not None and got.source.function == "forward"


def test_a_request_gets_memory_of_its_own_gpu_and_of_no_private_pool() -> None:
    """6 MB are free on another GPU, and in the pool of a CUDA graph."""
    told = snapshot("aaaaaaa.", "......x", "x......", oom=(6, 1))
    told["segments"][1]["device"] = 1
    told["segments"][2]["segment_pool_id"] = (0, 1)
    got = summary(told, "file", 0)
    assert got.failure
    assert (got.failure.free_in_segments, got.failure.free_in_pools) == (MB, 6 * MB)
    assert (got.failure.to_release, got.failure.whole_segments) == (7 * MB, False)
    assert got.devices == {0: 8 * MB, 1: MB}
    said = memory_text.snapshot_sentences(got)
    assert "The process has memory of 2 GPUs: 8.0 MB on GPU 0 and 1.0 MB on GPU 1." in said
    assert "with 1.0 MB of GPU 0 free" in said[-1]
    assert "6.0 MB are free in private pools, as those of CUDA graphs, which other requests" in said[-1]


def oom(size: int, time: int = 0) -> dict[str, Any]:
    return {"action": "oom", "size": size * MB, "device_free": 0, "time_us": time, "frames": frames("x")}


def alloc(size: int, time: int = 0) -> dict[str, Any]:
    return {"action": "alloc", "addr": 9, "size": size * MB, "time_us": time}


@pytest.mark.parametrize(
    ("traces", "asked", "went_on"),
    [
        ([[oom(80), alloc(1), oom(5)]], 5, False),
        # Of 8 MB, 2 and 7 were allocated since.
        ([[oom(8), alloc(2), alloc(7)]], 8, True),
        ([[oom(8), alloc(2)]], 8, False),
        ([[oom(8, 10)], [oom(5, 20)], []], 5, False),
        ([[alloc(90), oom(8, 10)], []], 8, False),
    ],
)
def test_the_last_request_that_failed_counts(traces: list[list[Any]], asked: int, went_on: bool) -> None:
    got = summary(snapshot("aa..x.") | {"device_traces": traces}, "file", 0)
    assert got.failure and (got.failure.bytes, got.failure.went_on) == (asked * MB, went_on)
    said = memory_text.snapshot_sentences(got)[-1]
    assert ("the job went on: more than that was allocated since." in said) == went_on


def test_what_was_released_after_the_failure_is_not_said_to_be_lacking() -> None:
    assert "as much was free in one place" in memory_text.snapshot_sentences(of("aa....x", oom=(3, 0)))[-1]


def test_blocks_without_stacks_are_said() -> None:
    said = memory_text.snapshot_sentences(of("nnna."))
    assert said[1].startswith("3.0 MB of what is allocated has no stack") and "_record_memory_history" in said[1]
    assert of("nnna.").without_stack == 3 * MB
    assert not any("no stack" in one for one in memory_text.snapshot_sentences(of("naaaaaaaaaa.")))


def test_where_no_segment_is_as_large_whole_ones_go() -> None:
    got = of("aaa.", "x...", "aaaa", oom=(9, 2)).failure
    assert got is not None and got.whole_segments
    assert got.to_release == 4 * MB


def test_without_a_failed_request_nothing_has_to_be_released() -> None:
    assert of("aa..").failure is None


class Evil:
    """What would run a command where it is unpickled without care."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch evil",)


def test_nothing_in_a_snapshot_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "rank0.pickle").write_bytes(pickle.dumps(snapshot("a") | {"more": Evil()}))
    found, warnings = read(beside([MemorySnapshots()], [folder], folder)[MemorySnapshots])
    assert not found
    assert "more than plain data" in warnings[0].message
    assert not (folder / "evil").exists()


@pytest.mark.parametrize("data", [None, [], {}, {"segments": {}}, "segments"])
def test_what_is_no_snapshot_is_refused(data: Any) -> None:
    with pytest.raises(SnapshotError, match="no list of segments"):
        summary(data, "file", 0)


def test_odd_values_count_as_missing() -> None:
    odd: dict[str, Any] = snapshot("a.", oom=(1, 0))
    odd["segments"] += [None, {"blocks": [3, {"size": "x", "state": 5, "frames": [1, {"name": 3}]}], "total_size": -1}]
    odd["segments"].append({"blocks": [{"size": 1 << 80, "frames": [{"filename": "\ud800.py", "name": "f"}]}]})
    odd["device_traces"].append([{"action": "alloc", "addr": []}])
    assert summary(odd, "file", 0).allocated == MB


def test_the_last_snapshot_of_each_rank_beside_the_traces_is_read(folder: Path) -> None:
    for step, drawn in ((9, "a"), (10, "aa")):
        of_step = folder / "memory_snapshot" / f"step_{step}"
        of_step.mkdir(parents=True)
        for rank in (0, 1):
            (of_step / f"rank{rank}_memory_snapshot.pickle").write_bytes(pickle.dumps(snapshot(drawn * (rank + 1))))
    (folder / "weights.pkl").write_bytes(pickle.dumps({"weights": [1]}))
    found, warnings = read(beside([MemorySnapshots()], [folder], folder)[MemorySnapshots])
    assert [(one.rank, one.allocated // MB) for one in found] == [(0, 2), (1, 4)]
    assert not warnings


def test_a_diagnosis_has_the_snapshots_beside_its_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "job", ranks("rank# step |1\n host [fwd]\n gpu [fwd....]", steps=2))
    (tmp_path / "job" / "rank0.pickle").write_bytes(pickle.dumps(snapshot("aa..x.", oom=(3, 0))))
    assert main(["diagnose", str(tmp_path / "job"), "--no-cache", "--memory"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Rank 0 has 3.0 MB allocated of 6.0 MB reserved: activations 2.0 MB and other 1.0 MB." in said
    assert "For it 1.0 MB would have to be released, in one place: other at cache.py:7 (keep) (1.0 MB)." in said


BLOCK = {"size": MB, "state": "active_allocated", "frames": []}


@pytest.mark.parametrize(
    "content",
    [
        {"segments": [{"address": i, "blocks": [BLOCK] * 100_000} for i in range(50)], "_blocks": 0},
        {"segments": [], "device_traces": [[{"action": "alloc"}] * 100_000] * 10_000},
    ],
    ids=["blocks", "events"],
)
def test_a_snapshot_whose_lists_are_shared_costs_itself(folder: Path, content: dict[str, Any]) -> None:
    """A list that is many segments' blocks, or many devices' events: half a megabyte, and gigabytes written out."""
    blocks = [BLOCK] * 100_000
    for segment in content["segments"]:
        segment["blocks"] = blocks
    path = folder / "rank0_snapshot.pickle"
    path.write_bytes(pickle.dumps(content))
    assert path.stat().st_size < 2 << 20
    found, (warning,) = read([path])
    assert not found
    assert warning.message == (
        "As a snapshot of memory: Written out, its shared lists are over 4,000,000 values: it is not read."
    )


def test_a_request_of_no_bytes_is_none_that_failed() -> None:
    assert of("a.", oom=(0, 0)).failure is None


def test_a_snapshot_that_no_reader_foresaw_hides_no_other(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in (0, 1):
        (folder / f"rank{rank}_snapshot.pickle").write_bytes(pickle.dumps(snapshot("a." if rank else "aa")))

    def run(function: Callable[[Path], MemorySnapshot], files: Iterable[tuple[Path, int]], **_: object) -> object:
        for path, _size in files:
            found: Future[MemorySnapshot] = Future()
            found.set_result(function(path)) if "1" in path.name else found.set_exception(ZeroDivisionError())
            yield path, found

    monkeypatch.setattr(pool, "run", run)
    found, (warning,) = read(sorted(folder.iterdir()))
    assert [one.rank for one in found] == [1]
    assert warning.message == "As a snapshot of memory: reading it failed (ZeroDivisionError)."


def test_annotations_that_are_never_closed_are_read_once(folder: Path) -> None:
    """100,000 of them: each event looked at all that were open, which took hours."""
    opened = [{"name": f"range {i}", "stage": "START", "time_us": i} for i in range(100_000)]
    opened += [{"name": "## backward ##", "stage": "START", "time_us": 100_000}]
    data = snapshot("n") | {"external_annotations": opened}
    data["device_traces"] = [[{"action": "alloc", "addr": 1 << 30, "time_us": 100_001}]]
    assert summary(data, "a", 0).categories["gradients"] == MB


def test_the_fewest_bytes_are_sought_once(folder: Path) -> None:
    """Windows of ever fewer active bytes: each was written out, 20,000 blocks long."""
    blocks = []
    for i in range(20_000):
        blocks += [{"size": 40_000 - i, "state": "active_allocated"}, {"size": MB + i, "state": "inactive"}]
    data = {"segments": [{"address": 1, "blocks": blocks}]}
    data["device_traces"] = [[{"action": "oom", "size": 10_000 * MB, "device_free": 0}]]  # type: ignore[assignment]
    failure = summary(data, "a", 0).failure
    assert failure is not None and not failure.whole_segments
