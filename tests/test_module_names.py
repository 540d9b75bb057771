"""What names modules beside `Doctor.watch` and stacks: NVTX ranges of servers, and torch.compile's regions."""

from __future__ import annotations

from collections import Counter

import pytest
from test_modules import RUNS, Call, Kernel, op, paths, read, times

from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.trace import names

STEP: Call = ("user_annotation", "ProfilerStep#1", 0, 100, 1, None)


def marker(path: str, start: int, end: int) -> Call:
    text = f"{{'Module': '{path}', 'TrainableParams': {{'weight': [8, 8]}}, 'Inputs': [[1, 8]]}}"
    return ("user_annotation", text, start, end, 1, None)


def computed(found: RankDigest) -> dict[tuple[str, str], int]:
    """µs of kernels by path and phase."""
    return {(path, phase): time for (path, phase, kind), time in times(found).items() if kind == "compute"}


def test_nvtx_ranges_of_servers_name_modules() -> None:
    calls = [STEP, marker("model.layers.0", 1, 20), marker("model.layers.0.mlp", 10, 19)]
    calls += [op("aten::relu", 2, 9), op("aten::mm", 11, 18)]
    kernels = [(3, 1, 10, 20, 7, "relu"), (12, 1, 20, 40, 7, "gemm")]
    found = read(calls, kernels)
    assert found.modules.named_by == "NVTX ranges"
    assert computed(found) == {("model.layers.0", "other"): 10, ("model.layers.0.mlp", "other"): 20}


def ranges(*names: str) -> list[Call]:
    """Ranges of 10 µs after each other, with an operator of 6 µs in each."""
    calls: list[Call] = [STEP]
    for at, name in enumerate(names):
        start = 1 + 10 * at
        calls += [("user_annotation", name, start, start + 10, 1, None), op(f"aten::op{at}", start + 1, start + 7)]
    return calls


def test_annotations_that_are_paths_of_layers_name_modules() -> None:
    """Of three layers; what is no path is no module, and a pass is no level."""
    found = read([*ranges("layers.0.mlp", "layers.1.mlp.forward", "layers.2.mlp", "layers.2.mlp.backward", "my part")])
    assert found.modules.named_by == "annotations"
    by_path = Counter({path: 0 for path, _ in computed(found)})
    for (path, _), time in computed(found).items():
        by_path[path] += time
    assert by_path == {"layers.0.mlp": 6, "layers.1.mlp": 6, "layers.2.mlp": 12, "": 6}


@pytest.mark.parametrize("spelled", ["layer_{}", "layer={}", "Layer {}", "layer{}", "block_{:02d}", "decoder_layer_{}"])
def test_annotations_that_number_layers_name_modules(spelled: str) -> None:
    found = read(ranges(*(spelled.format(number) for number in range(3)), "loss"))
    assert found.modules.named_by == "annotations"
    by_path = Counter({path.rpartition(".")[2]: time for (path, _), time in computed(found).items()})
    assert by_path == {"0": 6, "1": 6, "2": 6, "": 6}


@pytest.mark.parametrize(
    "of",
    [
        # Megatron-LM: the function's path and what it does, its schedules, layers of a chunk forward beside backward.
        "megatron.core.transformer.transformer_layer._forward_attention.self_attention",
        "megatron.core.transformer.attention.forward.qkv",
        "megatron.core.pipeline_parallel.schedules.forward_backward_pipelining_without_interleaving.warmup",
        "layer_{}f-layer_5b",
        "layer_{}f",
        "layer_{}b",
        # Transformer Engine, and DeepSpeed: the function's name with its class.
        "transformer_engine._LayerNormMLP.forward.fc1_gemm",
        "transformer_engine.AttnFuncWithCPAndKVP2P.forward",
        "DeepSpeedEngine.forward",
        "PartitionedParameterCoordinator.fetch_sub_module",
        "DeepSpeedZeroOptimizer_Stage{}.step",
        "Init.__init__.<locals>.partition",
        "TransformerLayer.self_attention",
    ],
)
def test_ranges_of_functions_are_no_modules(of: str) -> None:
    """Which layer they are of, they do not say; layers that repeat are guessed as without them."""
    names_of_ranges = [of.format(number) for number in range(4)]
    assert all(names.module_path(name) == "" for name in names_of_ranges)
    assert read(ranges(*names_of_ranges)).modules.named_by == ""


@pytest.mark.parametrize("of", [("layers.0", "layers.1"), ("chunk.0", "step.1", "part.2"), ("a", "b", "c.d")])
def test_annotations_of_fewer_layers_are_no_modules(of: tuple[str, ...]) -> None:
    assert read(ranges(*of)).modules.named_by == ""


def test_marks_go_before_annotations_that_are_paths() -> None:
    found = read([*ranges("layers.0", "layers.1", "layers.2"), ("user_annotation", "nn.Module: net", 1, 90, 1, None)])
    assert found.modules.named_by == "Doctor.watch"


@pytest.mark.parametrize("text", ["Optimizer.step#AdamW.step", "ProfilerStep#1", "3.mlp", "layers.3x", "a b.3", ""])
def test_other_annotations_are_no_paths(text: str) -> None:
    assert names.module_path(text) == ""


@pytest.mark.parametrize("text", ["{'Module': 'a.b'}", "nn.Module: a.b", "{'Module': 'a.b', 'Inputs': [[1]]}"])
def test_a_mark_has_the_modules_path(text: str) -> None:
    assert names.is_module(text) and names.module_name(text) == "a.b"


@pytest.mark.parametrize("text", ["Module", "{'module': 'a'}", "x {'Module': 'a'}", "{'Module': 3}"])
def test_other_names_are_no_marks(text: str) -> None:
    assert not names.is_module(text)


COMPILED: list[Call] = [
    STEP,
    op("Torch-Compiled Region: 0/0", 1, 10),
    op("CompiledFunction", 2, 9, sequence=5),
    ("user_annotation", "## Call CompiledFxGraph fqonmpyxxitesii ##", 3, 8, 1, None),
    op("Torch-Compiled Region: 1/2", 11, 20),
    op("CompiledFunction", 12, 19, sequence=6),
    op(f"{RUNS}CompiledFunctionBackward", 30, 40, thread=2, sequence=6),
    op(f"{RUNS}CompiledFunctionBackward", 41, 50, thread=2, sequence=5),
]
KERNELS: list[Kernel] = [
    (4, 1, 10, 20, 7, "triton_poi_fused_add_0"),
    (13, 1, 20, 40, 7, "gemm"),
    (31, 2, 45, 75, 7, "gemm"),
    (42, 2, 75, 80, 7, "triton_poi_fused_add_1"),
]


def test_compiled_regions_stand_for_modules_where_nothing_names_any() -> None:
    found = read(COMPILED, KERNELS)
    assert found.modules.named_by == "torch.compile"
    assert paths(found) == ["", "compiled region 0", "compiled region 1"]
    assert computed(found) == {
        ("compiled region 0", "forward"): 10,
        ("compiled region 1", "forward"): 20,
        ("compiled region 1", "backward"): 30,
        ("compiled region 0", "backward"): 5,
    }


def test_without_regions_inductors_graphs_do() -> None:
    calls = [call for call in COMPILED if not call[1].startswith("Torch-Compiled")]
    found = read(calls, KERNELS)
    assert paths(found) == ["", "compiled graph fqonmpyx"]
    assert computed(found)["compiled graph fqonmpyx", "forward"] == 10


def test_a_name_goes_before_a_compiled_region() -> None:
    found = read([*COMPILED, ("user_annotation", "nn.Module: net", 0, 25, 1, None)], KERNELS)
    assert (found.modules.named_by, paths(found)) == ("Doctor.watch", ["", "net"])
