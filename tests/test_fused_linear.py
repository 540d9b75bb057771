"""Linear layers of Transformer Engine: sizes of their products, from forward and backward together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from traces import columns

from tb_ddp_doctor.digest.flops import flops
from tb_ddp_doctor.digest.fused_linear import fused_linears
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.model import GpuTime, Steps
from tb_ddp_doctor.digest.operator_inputs import LinearSizes
from tb_ddp_doctor.discover.runs import discover
from tb_ddp_doctor.engine import diagnose
from tb_ddp_doctor.trace.model import Category, CommArgs, Frames, Header, Ints, MemoryEvents, RankTrace
from tb_ddp_doctor.trace.reader import decode

#: Name, sizes of its inputs, sequence number; `BACK` is on autograd's thread.
Call = tuple[str, list[list[int]], int]
#: A norm's input and its two parameters, then the weights of a quarter of 12,288 outputs, and their bias.
COLUMN: Call = ("_LayerNormLinear", [[512, 2, 1024], [1024], [1024], [3072, 1024], [3072], []], 7)
#: Each rank of tensor parallelism has a quarter of the rows, and multiplies all of them.
COLUMN_BACK: Call = ("_LayerNormLinearBackward", [[2048, 2, 3072]], 7)
ROW: Call = ("_Linear", [[1024, 768], [2048, 2, 768], [1024], []], 8)
ROW_BACK: Call = ("_LinearBackward", [[512, 2, 1024]], 8)


def host(*calls: Call) -> HostCalls:
    """Calls one after the other, 10 ns each, within a step; those of backward on a thread of their own."""
    texts = (text for name, sizes, _ in calls for text in (name, json.dumps(sizes)))
    strings, size, empty = ("ProfilerStep#1", "", *texts), len(calls), np.empty(0, np.int64)
    events = columns(
        name=[2 * i for i in range(size + 1)],
        category=[int(Category.ANNOTATION), *[int(Category.OP)] * size],
        start_ns=[0, *(10 * i for i in range(size))],
        duration_ns=[10 * size, *[10] * size],
        shape=[-1, *(2 * i + 3 for i in range(size))],
        sequence=[-1, *(number for _, _, number in calls)],
        thread=[0, *(int(name.endswith("Backward")) for name, _, _ in calls)],
    )
    tables = {
        name: kind(*(empty for _ in kind.__struct_fields__))
        for name, kind in (("comms", CommArgs), ("memory", MemoryEvents), ("frames", Frames))
    }
    threads = (("1", "1"), ("1", "2"))
    trace = RankTrace(
        file="drawn",
        header=Header(),
        strings=strings,
        threads=threads,
        events=events,
        dropped={},
        warnings=(),
        **tables,
    )
    return HostCalls.of(trace)


def _calls(of: HostCalls) -> Ints:
    """Indices of the operators, in order of time."""
    operators = np.flatnonzero(of.is_operator)
    result: Ints = operators[np.argsort(of.start_ns[operators])]
    return result


def sizes(*calls: Call) -> list[LinearSizes | None]:
    """What is known of each call."""
    of = host(*calls)
    found = fused_linears(of)
    return [found.sizes[which] if which >= 0 else None for which in found.of(_calls(of)).tolist()]


def test_a_gathered_input_has_the_rows_of_the_outputs_gradient() -> None:
    product = LinearSizes(rows=4096, inner=1024, outer=3072, matrices=1)
    assert sizes(COLUMN, COLUMN_BACK) == [product, product]
    # Of forward alone only the rows are known that this rank has.
    assert sizes(COLUMN) == [product._replace(rows=1024)]


def test_a_scattered_output_has_fewer_rows_than_the_product() -> None:
    product = LinearSizes(rows=4096, inner=768, outer=1024, matrices=1)
    assert sizes(ROW, ROW_BACK) == [product, product]


def test_backward_is_that_of_its_sequence_number() -> None:
    narrow: Call = ("_Linear", [[16, 768], [2048, 2, 768]], 9)
    narrow_back: Call = ("_LinearBackward", [[2048, 2, 16]], 9)
    other: Call = ("_LinearBackward", [[2048, 2, 16]], 10)
    found = sizes(ROW, narrow, narrow_back, ROW_BACK, other)
    assert [one and one.outer for one in found] == [1024, 16, 16, 1024, None]


def test_8_bit_weights_beside_the_weights_are_no_input() -> None:
    """In 1.x weights are followed by their 8-bit copy, and its transpose."""
    old: Call = ("_Linear", [[1024, 768], [1024, 768], [768, 1024], [4096, 768], [1024]], 3)
    assert sizes(old) == [LinearSizes(4096, 768, 1024, 1)]


def test_each_row_of_a_grouped_layer_meets_one_of_its_matrices() -> None:
    grouped: Call = ("_GroupedLinear", [[4096, 512], [], *[[1024, 512]] * 8], 4)
    assert sizes(grouped, ("_GroupedLinearBackward", [[4096, 1024]], 4)) == [LinearSizes(4096, 512, 1024, 8)] * 2


@pytest.mark.parametrize(
    "inputs",
    [[], [[4]], [[1024, 768], [4096, 769]], [[0, 0], [0, 0]], [[1 << 40, 1 << 40], [1 << 40, 1 << 40]]],
)
def test_sizes_that_fit_no_product_are_unknown(inputs: list[list[int]]) -> None:
    assert sizes(("_Linear", inputs, 1), ("_LinearBackward", [[1]], 1)) == [None, None]


def test_the_models_operations_have_twice_as_many_backward() -> None:
    steps = Steps(*(np.array([value]) for value in (1, 0, 100, 0, 100)))
    found = flops(host(COLUMN, ROW, ROW_BACK, COLUMN_BACK), steps)
    assert found.model_flops.tolist() == [3 * 2 * 4096 * 1024 * (3072 + 768)]
    assert found.repeated_flops.tolist() == [0]


def kernels(folder: Path, *calls: tuple[Call, list[tuple[str, float]]]) -> dict[str, tuple[GpuTime, int, int, int]]:
    """Kind, count, operations and time of calls by operator, which launch kernels (name, us) in each of four steps."""
    events: list[dict[str, Any]] = []

    def add(category: str, name: str, at: float, length: float, tid: int, **args: Any) -> None:
        place = {"ph": "X", "cat": category, "name": name, "ts": at, "dur": length, "pid": 1, "tid": tid}
        events.append({**place, "args": args})

    number, at = 0, 0.0
    for step in range(4):
        begin = at
        for (name, given, sequence), launched in calls:
            thread, length = 1 + name.endswith("Backward"), 10.0 * len(launched)
            shown = {
                "Input Dims": given,
                "Input type": ["c10::BFloat16"] * len(given),
                "Sequence number": 100 * step + sequence,
            }
            add("cpu_op", name, at, length - 1, thread, **shown)
            for place, (kernel, took) in enumerate(launched):
                number += 1
                add("cuda_runtime", "cudaLaunchKernel", at + 10 * place + 1, 4, thread, correlation=number)
                start = at + 10 * place + 6
                add("kernel", kernel, start, took, 7, device=0, stream=7, correlation=number)
            at += length + sum(took for _, took in launched)
        add("user_annotation", f"ProfilerStep#{step}", begin, at - begin, 1)
    head = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132}]}
    text = json.dumps({**head, "distributedInfo": {"rank": 0, "world_size": 1}, "traceEvents": events})
    (folder / "rank0.pt.trace.json").write_text(text)
    digest = diagnose(discover(folder)[0]).job.digests[0]
    calls = digest.roofline.calls
    return {
        digest.strings[operator]: (GpuTime(kind), count, flops, total)
        for operator, kind, count, flops, total in zip(
            *(column.tolist() for column in (calls.operator, calls.kind, calls.count, calls.flops, calls.total_ns)),
            strict=True,
        )
    }


def test_a_layer_is_modelled_with_all_of_its_kernels(tmp_path: Path) -> None:
    """Its norm and casts are the layer's; where its products are another operator's, what is left is not modelled."""
    norm, product = ("void rmsnorm_fwd_tuned_kernel<bf16>()", 4.0), ("nvjet_tst_128x256_64x4", 8.0)
    found = kernels(
        tmp_path,
        (COLUMN, [norm, product]),
        (COLUMN_BACK, [product, ("nvjet_tst_192x192_64x4", 9.0), norm]),
        (("_Linear", [[16, 768], [64, 768]], 20), [("void cast_to_fp8<bf16>()", 3.0)]),
    )
    once, us = 2 * 4096 * 1024 * 3072, 1000
    assert found["_LayerNormLinear"] == (GpuTime.GEMM, 4, once, 4 * 12 * us)
    assert found["_LayerNormLinearBackward"] == (GpuTime.GEMM, 4, 2 * once, 4 * 21 * us)
    assert found["_Linear"][0] == GpuTime.NOT_MODELLED


#: A gated MLP of 1,024 rows: from 1,024 to twice 2,816, and back.
MLP: Call = ("_LayerNormMLP", [[512, 2, 1024], [1024], [], [5632, 1024], [], [1024, 2816], []], 9)
MLP_BACK: Call = ("_LayerNormMLPBackward", [[512, 2, 1024]], 9)


def test_both_matrices_of_an_mlp_count_as_one() -> None:
    product = LinearSizes(rows=1024, inner=1024, outer=5632 + 2816, matrices=1, made=1024)
    assert sizes(MLP, MLP_BACK) == [product, product]
    # In 1.x 8-bit copies and their transposes stand between.
    old = [[1024, 1024], [1024], [4096, 1024], [4096, 1024], [1024, 4096], [4096], [1024, 4096], [1024, 4096]]
    assert sizes(("_LayerNormMLP", old, 9)) == [LinearSizes(1024, 1024, 8192, 1, made=1024)]
    assert sizes(("_LayerNormMLP", [[512, 2, 1024], [4096, 1024], [1024, 1000]], 9)) == [None]


@pytest.mark.parametrize(
    ("inside", "rows"),
    [
        (("c10d::_allgather_base_", [[2048, 2, 1024], [512, 2, 1024], [], []]), 4096),
        # FP8 gathers rows that are flat, or data and scales at once, as a list.
        (("c10d::_allgather_base_", [[4096, 1024], [1024, 1024], [], []]), 4096),
        (("c10d::allgather_into_tensor_coalesced_", [[[4096, 1024]], [[1024, 1024]], []]), None),
        (("userbuffers_fp16_sum_inplace_gpu_rr_ag", []), None),
        (("aten::empty", [[], []]), 1024),
    ],
)
def test_an_mlp_has_the_rows_that_it_gathers(inside: tuple[str, list[Any]], rows: int | None) -> None:
    name, given, number = MLP
    events = [
        {"ph": "X", "cat": cat, "name": text, "pid": 1, "tid": 1, "ts": at, "dur": took, "args": args}
        for cat, text, at, took, args in (
            ("user_annotation", "ProfilerStep#1", 0, 100, {}),
            ("cpu_op", name, 10, 50, {"Input Dims": given, "Sequence number": number}),
            ("cpu_op", inside[0], 20, 10, {"Input Dims": inside[1]}),
        )
    ]
    host = HostCalls.of(decode([json.dumps({"traceEvents": events}).encode()], "rank0.json"))
    found = fused_linears(host)
    assert [one.rows for one in found.sizes if one.rows] == ([rows] if rows else [])


def test_an_mlp_and_norms_of_transformer_engine_are_modelled(tmp_path: Path) -> None:
    """As TE 2.x records them: norms are pipelines of operations, and its own kernels have no operator of their own."""
    norm, product = (
        ("void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<bf16>()", 2.0),
        ("nvjet_tst", 9.0),
    )
    back = ("void transformer_engine::normalization::rmsnorm_bwd_tuned_kernel<bf16>()", 3.0)
    pipeline = "_OperationFuserAutogradFunction"
    found = kernels(
        tmp_path,
        ((pipeline, [[512, 2, 1024], [1024]], 40), [norm]),
        (MLP, [norm, product, ("void transformer_engine::gated_act_kernel<bf16>()", 1.0), product]),
        (MLP_BACK, [product] * 4),
        ((f"{pipeline}Backward", [[512, 2, 1024]], 40), [back]),
    )
    once = 2 * 1024 * 1024 * (5632 + 2816)
    assert found["_LayerNormMLP"] == (GpuTime.GEMM, 4, once, 4 * 21 * 1000)
    assert found["_LayerNormMLPBackward"] == (GpuTime.GEMM, 4, 2 * once, 4 * 36 * 1000)
    assert found[pipeline] == (GpuTime.NORM, 4, 0, 4 * 2 * 1000)
    assert found[f"{pipeline}Backward"] == (GpuTime.NORM, 4, 0, 4 * 3 * 1000)


#: Megatron-LM's: 2,048 rows of 4,096 to 1,536; what it multiplies has operators.
MEGATRON = "LinearWithGradAccumulationAndAsyncCommunication"
LAYER: Call = (MEGATRON, [[512, 4, 4096], [1536, 4096], [1536]], 30)
LAYER_BACK: Call = (f"{MEGATRON}Backward", [[512, 4, 1536]], 30)


def test_gradients_that_megatron_accumulates_at_once_are_a_product(tmp_path: Path) -> None:
    product = [("nvjet_tst_128x256_64x4", 9.0)]
    found = kernels(tmp_path, (LAYER, [("void add_bias_kernel<bf16>()", 1.0)]), (LAYER_BACK, product))
    once = 2 * 2048 * 4096 * 1536
    assert found[LAYER_BACK[0]] == (GpuTime.GEMM, 4, once, 4 * 9 * 1000)


def test_gradients_of_weights_that_no_operator_shows_are_the_models_operations() -> None:
    once, product = 2 * 2048 * 4096 * 1536, [[2048, 1536], [1536, 4096]]
    layers = [(*LAYER, 0, 10, 1), (*LAYER_BACK, 20, 50, 2)]

    def operations(products: int) -> list[int]:
        inside = [("aten::mm", product, -1, 22 + 10 * index, 5, 2) for index in range(products)]
        calls = [("ProfilerStep#1", [], -1, 0, 100, 1), *layers, *inside]
        events = [
            {
                "ph": "X",
                "cat": "cpu_op" if given else "user_annotation",
                "name": name,
                "pid": 1,
                "tid": thread,
                "ts": start,
                "dur": length,
                "args": {"Input Dims": given, "Sequence number": number},
            }
            for name, given, number, start, length, thread in calls
        ]
        host = HostCalls.of(decode([json.dumps({"traceEvents": events}).encode()], "rank0.json"))
        steps = Steps(*(np.array([value]) for value in (1, 0, 100_000, 0, 100_000)))
        return flops(host, steps).model_flops.tolist()

    assert operations(1) == [2 * once]
    assert operations(2) == [2 * once]
