"""Operations that operators stand for, by their shapes."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from traces import columns

from tb_ddp_doctor.digest.flops import flops
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.model import Steps
from tb_ddp_doctor.trace.model import Category, CommArgs, Frames, Header, MemoryEvents, RankTrace

STEPS = Steps(*(np.array([value]) for value in (1, 0, 100, 0, 100)))
NODE = "autograd::engine::evaluate_function: "


def counted(*operators: tuple[str, str, int, int], steps: Steps = STEPS) -> tuple[int, int]:
    """Operations of the model and repeated ones of operators (name, shapes, start, end) on one thread."""
    strings = tuple(text for name, shapes, _, _ in operators for text in (name, shapes))
    size = len(operators)
    empty = np.empty(0, np.int64)
    trace = RankTrace(
        file="drawn",
        header=Header(),
        strings=strings,
        threads=(("1", "1"),),
        events=columns(
            name=[2 * i for i in range(size)],
            category=[int(Category.OP)] * size,
            start_ns=[start for _, _, start, _ in operators],
            duration_ns=[end - start for _, _, start, end in operators],
            shape=[2 * i + 1 if shapes else -1 for i, (_, shapes, _, _) in enumerate(operators)],
        ),
        comms=CommArgs(*(empty for _ in CommArgs.__struct_fields__)),
        memory=MemoryEvents(*(empty for _ in MemoryEvents.__struct_fields__)),
        frames=Frames(*(empty for _ in Frames.__struct_fields__)),
        dropped={},
        warnings=(),
    )
    found = flops(HostCalls.of(replace(trace)), steps)
    return int(found.model_flops.sum()), int(found.repeated_flops.sum())


@pytest.mark.parametrize(
    ("name", "shapes", "model", "again"),
    [
        ("aten::mm", "[[2, 3], [3, 5]]", 2 * 2 * 3 * 5, 0),
        ("aten::addmm", "[[5], [2, 3], [3, 5], [], []]", 2 * 2 * 3 * 5, 0),
        # Of torch.compile's templates the result is the last tensor.
        ("triton_tem_fused_addmm_relu_7", "[[5], [2, 3], [5, 3], [2, 5], [], [], []]", 2 * 2 * 3 * 5, 0),
        ("triton_tem_fused_flex_attention_7", "[[2, 3], [3, 5], [2, 5]]", 0, 0),
        ("aten::bmm", "[[7, 2, 3], [7, 3, 5]]", 2 * 7 * 2 * 3 * 5, 0),
        ("aten::baddbmm", "[[7, 2, 5], [7, 2, 3], [7, 3, 5]]", 2 * 7 * 2 * 3 * 5, 0),
        # Eight channels of 16 by 16 from four of 32 by 32, kernels of 3 by 3.
        (
            "aten::convolution_backward",
            "[[2, 8, 16, 16], [2, 4, 32, 32], [8, 4, 3, 3]]",
            3 * 2 * 2 * 256 * 8 * 4 * 9,
            0,
        ),
        # The same upwards: from four of 16 by 16.
        (
            "aten::convolution_backward",
            "[[2, 8, 32, 32], [2, 4, 16, 16], [4, 8, 3, 3]]",
            3 * 2 * 2 * 256 * 8 * 4 * 9,
            0,
        ),
        # Upwards with as many channels out as in, which the weights do not tell from downwards.
        (
            "aten::convolution_backward",
            "[[2, 4, 32, 32], [2, 4, 16, 16], [4, 4, 3, 3]]",
            3 * 2 * 2 * 256 * 4 * 4 * 9,
            0,
        ),
        # Before torch 1.11 the input came first.
        (
            "aten::cudnn_convolution_backward",
            "[[2, 4, 32, 32], [2, 8, 16, 16], [8, 4, 3, 3]]",
            3 * 2 * 2 * 256 * 8 * 4 * 9,
            0,
        ),
        ("aten::cudnn_convolution_backward", "[[2, 4, 32, 32]]", 0, 0),
        (
            "aten::_scaled_dot_product_flash_attention",
            "[[2, 4, 64, 16], [2, 4, 64, 16], []]",
            4 * 2 * 4 * 64 * 64 * 16,
            0,
        ),
        (
            "aten::_scaled_dot_product_efficient_attention_backward",
            "[[2, 4, 64, 16], [2, 4, 64, 16], [2, 4, 64, 16]]",
            8 * 2 * 4 * 64 * 64 * 16,
            2 * 2 * 4 * 64 * 64 * 16,
        ),
        ("flash_attn::_flash_attn_forward", "[[2, 64, 4, 16], [2, 64, 4, 16]]", 4 * 2 * 4 * 64 * 64 * 16, 0),
        ("aten::linear", "[[2, 3], [5, 3]]", 0, 0),
        ("aten::mm", "[[2, 3], [4, 5]]", 0, 0),
        ("aten::mm", "[[2], []]", 0, 0),
        ("aten::mm", "nonsense", 0, 0),
        ("aten::mm", "[[9223372036854775807, 3], [3, 5]]", 0, 0),
        ("aten::mm", "[[-2, 3], [3, 5]]", 0, 0),
    ],
)
def test_operations_of_an_operator(name: str, shapes: str, model: int, again: int) -> None:
    assert counted((name, shapes, 10, 20)) == (model, again)


def test_outside_of_the_steps_nothing_is_counted() -> None:
    assert counted(("aten::mm", "[[2, 3], [3, 5]]", 100, 110)) == (0, 0)


def test_a_checkpoint_computes_forward_again() -> None:
    product = "[[2, 3], [3, 5]]"
    assert counted(
        ("aten::mm", product, 1, 2),
        (f"{NODE}CheckpointFunctionBackward", "", 10, 50),
        ("aten::mm", product, 12, 14),
        (f"{NODE}MmBackward0", "", 20, 30),
        ("aten::mm", product, 22, 24),
    ) == (120, 60)


def test_backward_has_no_use_for_added_products_and_attention_forward() -> None:
    assert counted((f"{NODE}ViewBackward0", "", 10, 50), ("aten::addmm", "[[5], [2, 3], [3, 5]]", 12, 14)) == (0, 60)


def test_no_number_of_products_is_too_large_to_be_summed() -> None:
    huge = "[[100000, 50000], [50000, 90000]]"
    operators = [("aten::mm", huge, 10, 20)] * 20_000
    assert counted(*operators)[0] == 2**61


def test_without_steps_nothing_is_counted() -> None:
    empty = Steps(*(np.empty(0, np.int64) for _ in range(5)))
    assert counted(("aten::mm", "[[2, 3], [3, 5]]", 10, 20), steps=empty) == (0, 0)
