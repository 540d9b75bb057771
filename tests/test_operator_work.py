"""The least work of operators, each example computed by hand."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest
from msgspec.structs import replace
from random_traces import trace

from tb_ddp_doctor.digest import operator_work
from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.digest.least_work import Work
from tb_ddp_doctor.digest.model import GpuTime
from tb_ddp_doctor.digest.operator_inputs import LinearSizes, LookupSizes, inputs
from tb_ddp_doctor.digest.operator_work import convolved, element_text, work
from tb_ddp_doctor.trace.model import Category

BF16, FP32, FP8, LONG = "c10::BFloat16", "float", "c10::Float8_e4m3fn", "long int"


def of(operator: str, *given: tuple[object, str] | str, kernel: str = "") -> Work | None:
    """The work of a call; tensors are (sizes, type), everything else is text."""
    sizes = [one[0] if isinstance(one, tuple) else [] for one in given]
    types = [one[1] if isinstance(one, tuple) else "Scalar" for one in given]
    values = ["" if isinstance(one, tuple) else one for one in given]
    return work(operator, inputs(*map(json.dumps, (sizes, types, values)), kernel), kernel)


def flops_and_bytes(found: Work | None) -> tuple[int, int, int]:
    assert found is not None
    return found.flops, found.read, found.written


def test_gemms() -> None:
    # (24576, 256) x (256, 1024): 2 m k n; both are read, the product is written, 2 bytes an element.
    mnk = 2 * 24576 * 256 * 1024
    read, written = 2 * (24576 * 256 + 256 * 1024), 2 * 24576 * 1024
    left, right = ([24576, 256], BF16), ([256, 1024], BF16)
    assert flops_and_bytes(of("aten::mm", left, right)) == (mnk, read, written)
    bias = ([1024], BF16)
    assert flops_and_bytes(of("aten::addmm", bias, left, right, "1", "1")) == (mnk, read + 2048, written)
    assert of("aten::mm", left, ([255, 1024], BF16)) is None
    stack, other = ([16, 5185, 64], BF16), ([16, 64, 5185], BF16)
    assert flops_and_bytes(of("aten::bmm", stack, other)) == (
        2 * 16 * 5185 * 64 * 5185,
        2 * 2 * 16 * 5185 * 64,
        2 * 16 * 5185 * 5185,
    )


def test_a_bias_that_counts_nothing_is_not_read() -> None:
    added = ([32, 2048, 2048], BF16)
    left, right = ([32, 2048, 64], BF16), ([32, 64, 2048], BF16)
    found = of("aten::baddbmm", added, left, right, "0.", "0.125")
    assert found is not None
    assert found.read == 2 * 2 * 32 * 2048 * 64


def test_8_bit_gemms_write_16_bits() -> None:
    eight = "c10::Float8_e4m3fn"
    given = [([4096, 768], eight), ([768, 50304], eight), ([], FP32), ([], FP32), "", "", "15", "True"]
    assert flops_and_bytes(of("aten::_scaled_mm", *given)) == (
        2 * 4096 * 768 * 50304,
        4096 * 768 + 768 * 50304 + 8,
        2 * 4096 * 50304,
    )


def test_grouped_gemms_multiply_each_row_once() -> None:
    # 4,096 tokens of width 512 to 8 experts of 512 x 1,024: each token meets one expert.
    tokens, experts, ends = ([4096, 512], BF16), ([8, 512, 1024], BF16), ([8], "int")
    assert flops_and_bytes(of("aten::_grouped_mm", tokens, experts, ends)) == (
        2 * 4096 * 512 * 1024,
        2 * (4096 * 512 + 8 * 512 * 1024) + 4 * 8,
        2 * 4096 * 1024,
    )
    # The gradient of the experts' weights: (512, 4096) x (4096, 1024), a matrix for each expert.
    turned, gradient = ([512, 4096], BF16), ([4096, 1024], BF16)
    assert flops_and_bytes(of("aten::_grouped_mm", turned, gradient, ends)) == (
        2 * 4096 * 512 * 1024,
        2 * (4096 * 512 + 4096 * 1024) + 4 * 8,
        2 * 8 * 512 * 1024,
    )
    assert of("aten::_grouped_mm", tokens, ([8, 511, 1024], BF16), ends) is None


def test_linear_layers_of_transformer_engine() -> None:
    # 4,096 rows from 1,024 to 3,072, as `digest.fused_linear` knows; what they read and write is bfloat16.
    rows, inner, outer = 4096, 1024, 3072
    kernel, sizes = "nvjet_tst_128x256_64x4", LinearSizes(rows, inner, outer, 1)

    def layer(name: str, linear: LinearSizes | None, kernel: str = kernel) -> Work | None:
        given = inputs(json.dumps([[rows, inner]]), json.dumps([BF16]), "", kernel)
        return work(name, replace(given, linear=linear), kernel)

    mkn, taken, made, weights = rows * inner * outer, 2 * rows * inner, 2 * rows * outer, 2 * inner * outer
    assert flops_and_bytes(layer("_Linear", sizes)) == (2 * mkn, taken + weights, made)
    assert flops_and_bytes(layer("_LayerNormLinear", sizes)) == (2 * mkn, taken + weights, made)
    # Two products: the gradients of the input and of the weights, of the output's.
    back = layer("_LinearBackward", sizes)
    assert flops_and_bytes(back) == (4 * mkn, taken + made + weights, taken + weights)
    # Each row meets one of eight experts, all of which are read.
    grouped = layer("_GroupedLinear", sizes._replace(matrices=8))
    assert flops_and_bytes(grouped) == (2 * mkn, taken + 8 * weights, made)
    # Megatron-LM's gradient of the weights, which is added to 4 bytes an element.
    sums = layer("LinearWithGradAccumulationAndAsyncCommunicationBackward", sizes)
    assert flops_and_bytes(sums) == (2 * mkn, taken + made + 2 * weights, 2 * weights)
    # Both matrices of an MLP as one, whose result is as wide as its input.
    mlp = LinearSizes(rows, inner, 3 * outer, 1, made=inner)
    assert flops_and_bytes(layer("_LayerNormMLP", mlp)) == (6 * mkn, taken + 3 * weights, taken)
    back = layer("_LayerNormMLPBackward", mlp)
    assert flops_and_bytes(back) == (12 * mkn, taken + taken + 3 * weights, taken + 3 * weights)
    assert layer("_Linear", None) is None
    assert layer("_Linear", sizes, "void cast_to_fp8<bf16>()") is None


def test_pipelines_of_transformer_engine_are_norms_where_their_kernel_is_one() -> None:
    name, norm = "_OperationFuserAutogradFunction", "void transformer_engine::normalization::ln_fwd_tuned_kernel<>()"
    rows, width = ([512, 2, 1024], BF16), ([1024], BF16)
    size = 2 * 1024 * 1024
    assert flops_and_bytes(of(name, rows, width, width, kernel=norm)) == (0, size + 2 * 2 * 1024, size)
    # A linear layer beside the norm, another pipeline, and backward, which names the gradient alone.
    assert of(name, rows, width, ([4096, 1024], BF16), kernel=norm) is None
    assert of(name, rows, width, kernel="void transformer_engine::quantize_kernel<>()") is None
    back = norm.replace("ln_fwd", "rmsnorm_bwd")
    assert flops_and_bytes(of(f"{name}Backward", rows, kernel=back)) == (0, 2 * size, size)


def test_products_of_transformer_engine_as_operators() -> None:
    # Weights (3072, 1024), input (4096, 1024) and output (4096, 3072), in any layout; FP8 is recorded as bytes.
    weights, given, made = ([3072, 1024], "unsigned char"), ([4096, 1024], "unsigned char"), ([4096, 3072], BF16)
    found = of("tex_ts::te_gemm_ts", weights, "", "", "", "1", given, "", "", "", "0", made)
    assert flops_and_bytes(found) == (2 * 3072 * 1024 * 4096, 1024 * (3072 + 4096), 2 * 4096 * 3072)
    assert of("tex_ts::te_gemm_ts", weights, "", "", "", "1", given, "", "", "", "0", ([4096, 3071], BF16)) is None


def test_convolutions_with_strides_and_groups() -> None:
    image, weight = ([1, 3, 1008, 1008], BF16), ([1024, 3, 14, 14], BF16)
    # 1008 / 14 = 72 pixels a side.
    pixels, taps = 72 * 72, 1024 * 3 * 14 * 14
    found = of("aten::cudnn_convolution", image, weight, "[0, 0]", "[14, 14]", "[1, 1]", "1", "False", "False", "True")
    assert flops_and_bytes(found) == (2 * pixels * taps, 2 * (3 * 1008 * 1008 + taps), 2 * pixels * 1024)
    # 32 groups: each output sees 128 / 32 channels, as the weights' sizes say. 28 x 28, padded by 1, stride 2: 14.
    image, weight = ([8, 128, 28, 28], FP32), ([128, 4, 3, 3], FP32)
    found = of("aten::cudnn_convolution", image, weight, "[1, 1]", "[2, 2]", "[1, 1]", "32", "False", "False", "True")
    assert flops_and_bytes(found)[0] == 2 * 8 * 14 * 14 * 128 * 4 * 9


def test_convolution_backward_has_one_product_for_each_gradient() -> None:
    made, taken, weight = ([8, 64, 56, 56], FP32), ([8, 32, 56, 56], FP32), ([64, 32, 3, 3], FP32)
    once = 2 * 8 * 56 * 56 * 64 * 32 * 9
    rest = ["", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]
    both = of("aten::convolution_backward", made, taken, weight, *rest, "[True, True, False]")
    first = of("aten::convolution_backward", made, taken, weight, *rest, "[False, True, False]")
    assert flops_and_bytes(both)[0] == 2 * once
    assert flops_and_bytes(first)[0] == once


def test_attention_of_all_backends() -> None:
    # 24 x 4 heads, 1,024 queries and keys of width 64: two products; causal, 1024 * 1025 / 2 of 1024^2 scores.
    qkv = [([24, 4, 1024, 64], BF16)] * 3
    whole, causal = 4 * 96 * 1024 * 1024 * 64, 4 * 96 * (1024 * 1025 // 2) * 64
    given = 3 * 2 * 24 * 4 * 1024 * 64
    written = given // 3 + 96 * 1024 * 4
    cudnn = of("aten::_cudnn_attention_forward", *qkv, *[""] * 3, "1024", "1024", "True", "0.", "True", "False", "")
    assert flops_and_bytes(cudnn) == (causal // 64 // 4 * 4 * 64, given, written)
    flash = of("aten::_scaled_dot_product_flash_attention", *qkv, "0.", "False", "False", "")
    assert flops_and_bytes(flash) == (whole, given, written)
    rows = [([24, 1024, 4, 64], BF16)] * 3
    efficient = of("aten::_efficient_attention_forward", *rows, *[""] * 5, "0.", "1", "True", "", "", "")
    assert flops_and_bytes(efficient)[0] == causal


def test_grouped_heads_are_read_once() -> None:
    query, key = ([2, 32, 512, 128], BF16), ([2, 8, 512, 128], BF16)
    found = of("aten::_scaled_dot_product_flash_attention", query, key, key, "0.", "False", "False", "")
    assert flops_and_bytes(found)[:2] == (4 * 2 * 32 * 512 * 512 * 128, 2 * 2 * 512 * 128 * (32 + 8 + 8))


def test_attention_backward_has_five_products() -> None:
    of_output, qkv = ([24, 4, 1024, 64], BF16), [([24, 4, 1024, 64], BF16)] * 4
    statistics = ([24, 4, 1024, 1], FP32)
    name = "aten::_cudnn_attention_backward"
    found = of(name, of_output, *qkv, statistics, *[""] * 5, "1024", "1024", "0.", "False", "")
    size = 2 * 24 * 4 * 1024 * 64
    assert flops_and_bytes(found) == (10 * 96 * 1024 * 1024 * 64, 5 * size + 96 * 1024 * 4, 3 * size)


def packed(backward: bool, longest: int, window: str, starts: int = 17) -> Work | None:
    """FlashAttention 3 over 16,384 rows of 6 heads of 128, causal."""
    rows = ([16384, 6, 128], BF16)
    if backward:
        given = [rows] * 5 + [([6, 16384], FP32)] + [""] * 3 + [([starts], "int")] * 2 + [""] * 2
        return of("flash_attn_3::bwd", *given, str(longest), str(longest), "0.1", "True", window, "0")
    given = [rows] * 3 + [""] * 4 + [([starts], "int")] * 2 + [""] * 3
    return of("flash_attn_3::fwd", *given, str(longest), str(longest), *[""] * 9, "0.1", "True", window, "0")


def test_packed_sequences_of_the_longest_length_have_all_of_its_scores() -> None:
    # 16 sequences of 1,024: each has a triangle of scores.
    scores = 6 * 16 * (1024 * 1025 // 2)
    size = 2 * 16384 * 6 * 128
    assert flops_and_bytes(packed(False, 1024, "-1")) == (4 * scores * 128, 3 * size, size + 4 * 6 * 16384)
    assert flops_and_bytes(packed(True, 1024, "-1")) == (10 * scores * 128, 5 * size + 4 * 6 * 16384, 3 * size)
    # A window of 127 before each: a triangle of 128, then 128 each.
    windowed = 6 * 16 * (128 * 129 // 2 + (1024 - 128) * 128)
    assert flops_and_bytes(packed(False, 1024, "127"))[0] == 4 * windowed * 128


def test_packed_sequences_whose_lengths_may_differ_have_a_range_of_scores() -> None:
    # 16 sequences of up to 4,096 in 16,384 rows: 16 of 1,024 have a quarter of the scores of 4 of 4,096.
    found = packed(False, 4096, "-1")
    fewest, most = (6 * count * (rows * (rows + 1) // 2) for count, rows in ((16, 1024), (4, 4096)))
    assert found is not None and (found.flops, found.most_flops) == (4 * fewest * 128, 4 * most * 128)
    back = packed(True, 4096, "-1")
    assert back is not None and (back.flops, back.most_flops) == (10 * fewest * 128, 10 * most * 128)
    # With a window they have nearly as many.
    fewest, most = (6 * count * (128 * 129 // 2 + (rows - 128) * 128) for count, rows in ((16, 1024), (4, 4096)))
    found = packed(False, 4096, "127")
    assert found is not None and (found.flops, found.most_flops) == (4 * fewest * 128, 4 * most * 128)
    assert packed(False, 0, "-1") is None and packed(False, 1024, "-1", starts=1) is None


def test_a_convolution_without_strides_is_known_by_its_backward() -> None:
    texts = [json.dumps(one) for one in ([[8, 32, 56, 56], [8, 64, 28, 28], [64, 32, 3, 3]], ["float"] * 3)]
    told = convolved("aten::cudnn_convolution_backward", inputs(*texts, "", ""))
    assert told == ((8, 32, 56, 56), (64, 32, 3, 3), (8, 64, 28, 28))
    assert convolved("aten::relu", inputs(*texts, "", "")) is None
    forward = [json.dumps(one) for one in ([[8, 32, 56, 56], [64, 32, 3, 3]], ["float"] * 2)]
    given = inputs(*forward, "", "")
    assert work("aten::cudnn_convolution", given, "") is None
    found = work("aten::cudnn_convolution", replace(given, output=told[2]), "")
    assert flops_and_bytes(found)[0] == 2 * 8 * 28 * 28 * 64 * 32 * 9


def test_norms_and_reductions() -> None:
    hidden, width = ([24, 1024, 256], FP32), ([256], FP32)
    size = 4 * 24 * 1024 * 256
    found = of("aten::native_layer_norm", hidden, "[256]", width, width, "1e-05")
    assert flops_and_bytes(found) == (0, size + 2 * 1024, size)
    scores = ([16, 5185, 5185], BF16)
    size = 2 * 16 * 5185 * 5185
    assert flops_and_bytes(of("aten::_softmax", scores, "-1", "False")) == (0, size, size)
    assert flops_and_bytes(of("aten::_log_softmax", scores, "-1", "True")) == (0, size, 2 * size)
    assert flops_and_bytes(of("aten::sum", hidden, "[0, 1]", "False", "")) == (0, 4 * 24 * 1024 * 256, 4 * 256)
    assert flops_and_bytes(of("aten::mean", hidden, "[1]", "False", ""))[2] == 4 * 24 * 256
    assert flops_and_bytes(of("aten::max", hidden))[2] == 4


def test_causal_softmax_reads_half() -> None:
    found = of("ScaledUpperTriangMaskedSoftmax", ([32, 2048, 2048], "c10::Half"))
    assert flops_and_bytes(found) == (0, 2 * 32 * 2048 * 2049 // 2, 2 * 32 * 2048 * 2048)


def test_elementwise_with_broadcast_and_outputs() -> None:
    hidden, row = ([24, 1024, 256], FP32), ([1024, 256], FP32)
    size = 4 * 24 * 1024 * 256
    assert flops_and_bytes(of("aten::add", hidden, row, "1")) == (0, size + 4 * 1024 * 256, size)
    assert flops_and_bytes(of("aten::mul", hidden, ([], "double"), hidden)) == (0, size + 8, size)
    assert flops_and_bytes(of("aten::add_", hidden, hidden, "1")) == (0, 2 * size, size)
    assert flops_and_bytes(of("aten::fill_", hidden, "0")) == (0, 0, size)
    assert flops_and_bytes(of("aten::gt", hidden, "0"))[2] == size // 4
    assert flops_and_bytes(of("aten::native_dropout", hidden, "0.1", "True"))[2] == size + size // 4


def test_copies_and_casts() -> None:
    wide, narrow = ([256, 1024], FP32), ([256, 1024], BF16)
    assert flops_and_bytes(of("aten::copy_", narrow, wide, "False")) == (0, 4 * 256 * 1024, 2 * 256 * 1024)
    # The list does not say of what it is; the kernel does.
    kernel = "void CatArrayBatchedCopy<at::native::(anonymous namespace)::OpaqueType<2u>, unsigned int, 4, 64, 64>"
    given = ([[24, 4, 1024, 64], [24, 4, 1024, 64]], "TensorList")
    size = 2 * 2 * 24 * 4 * 1024 * 64
    assert flops_and_bytes(of("aten::cat", given, "0", kernel=kernel)) == (0, size, size)


def test_optimizers() -> None:
    several = ([[256, 1024], [256]], "TensorList")
    kernel = "multi_tensor_apply_kernel<at::native::TensorListMetadata<4>, FusedAdamMathFunctor<float, 4>>"
    size = 4 * (256 * 1024 + 256)
    fused = of("aten::_fused_adamw_", *[several] * 4, "", several, kernel=kernel)
    assert flops_and_bytes(fused) == (0, 4 * size, 3 * size)
    foreach = of("aten::_foreach_lerp_", several, several, "0.1", kernel=kernel)
    assert flops_and_bytes(foreach) == (0, 2 * size, size)
    # torch records no sizes of long lists: they are those of all parameters, where these are known.
    unsized = json.dumps([[], []]), json.dumps(["TensorList", "TensorList"]), json.dumps(["", ""])
    found = work("aten::_foreach_lerp_", inputs(*unsized, kernel, listed=1000), kernel)
    assert flops_and_bytes(found) == (0, 8000, 4000)
    assert of("aten::_foreach_lerp_", ([], "TensorList"), ([], "TensorList"), "0.1", kernel=kernel) is None


def test_embeddings_and_indices() -> None:
    table, rows = ([4096, 256], FP32), ([24, 1024], LONG)
    found = of("aten::embedding", table, rows, "-1", "False", "False")
    # No more than the 4,096 rows of the table need to be read for 24,576 of them.
    assert flops_and_bytes(found) == (0, 8 * 24576 + 4 * 4096 * 256, 4 * 24576 * 256)
    gradient = ([24, 1024, 256], FP32)
    found = of("aten::embedding_dense_backward", gradient, rows, "4096", "-1", "False")
    assert flops_and_bytes(found) == (0, 4 * 24576 * 256 + 8 * 24576, 4 * 4096 * 256)


def test_table_batched_embeddings_move_each_row_that_is_asked_for() -> None:
    # 5,000 of 10,000 rows of 64 in float16, for 256 samples of 3 features; sums are float32.
    sizes = LookupSizes(
        lookups=5000,
        samples=256,
        features=3,
        rows=10000,
        width=64,
        element=2,
        index=8,
        made=4,
        is_weighted=False,
        is_certain=True,
    )
    forward = "fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function"
    backward = "torch::autograd::CppNode<SplitLookupFunction_rowwise_adagrad_Op>"
    given = inputs("[[256, 192]]", '["float"]', "", "")

    def moved(name: str, sizes: LookupSizes | None) -> tuple[int, int, int]:
        return flops_and_bytes(work(name, replace(given, looked_up=sizes), ""))

    indices, sums = 8 * (5000 + 256 * 3 + 1), 4 * 256 * 192
    assert moved(forward, sizes) == (0, indices + 2 * 5000 * 64, sums)
    # Row-wise Adagrad has a number of 4 bytes for each row.
    updated = 5000 * (2 * 64 + 4)
    assert moved(backward, sizes) == (0, sums + indices + updated, updated)
    # Of 100 rows no more are read; lookups that count differently have a number each, with a gradient.
    few = replace(sizes, rows=100, is_weighted=True)
    assert moved(forward, few) == (0, indices + 4 * 5000 + 2 * 100 * 64, sums)
    updated = 100 * (2 * 64 + 4)
    assert moved(backward, few) == (0, sums + indices + 4 * 5000 + updated, updated + 4 * 5000)
    assert work(forward, given, "") is work(backward, given, "") is None
    checked = of("fbgemm::bounds_check_indices", ([3], LONG), ([5000], LONG), ([769], LONG), "1", ([1], LONG))
    assert flops_and_bytes(checked) == (0, 8 * (5000 + 769), 0)


def test_rows_that_are_indexed_by_a_list_are_told_by_the_grid() -> None:
    # 48 rows of 2,880 in bfloat16, 5,760 bytes: two blocks for each of 48 indices.
    given = inputs("[[32, 2880], []]", '["c10::BFloat16", ""]', "", "")
    found = work("aten::index", replace(given, grid=(48, 2, 1)), "")
    assert flops_and_bytes(found) == (0, 8 * 48 + 32 * 5760, 48 * 5760)
    # Without a grid; a slice of another size; an index of another dimension.
    assert work("aten::index", given, "") is work("aten::index", replace(given, grid=(48, 1, 1)), "") is None
    inner = inputs("[[1, 32, 2880], []]", '["c10::BFloat16", ""]', "", "")
    assert work("aten::index", replace(inner, grid=(48, 2, 1)), "") is None


def test_gather_and_scatter_move_what_is_indexed() -> None:
    table, indices = ([4096, 256], FP32), ([1024, 256], LONG)
    moved, of_indices = 4 * 1024 * 256, 8 * 1024 * 256
    assert flops_and_bytes(of("aten::gather", table, "0", indices, "False")) == (0, of_indices + moved, moved)
    source = ([1024, 256], FP32)
    assert flops_and_bytes(of("aten::scatter_add_", table, "0", indices, source)) == (0, of_indices + moved, moved)
    # A number goes there, which need not be read.
    assert flops_and_bytes(of("aten::scatter_", table, "0", indices, "1.")) == (0, of_indices, moved)
    rows = ([1024], LONG)
    assert flops_and_bytes(of("aten::index_select", table, "0", rows)) == (0, 8 * 1024 + moved, moved)
    assert flops_and_bytes(of("aten::index_add_", table, "0", rows, source, "1")) == (0, moved + 8 * 1024, moved)


#: 1,024 tokens of width 256, in bfloat16 and in float32, and what is as wide as a token.
TOKENS, WIDE, ROW = ([1024, 256], BF16), ([1024, 256], FP32), ([256], BF16)
ELEMENTS = 1024 * 256
#: Images of 32 x 32, halved.
IMAGES, HALVED = ([8, 64, 32, 32], FP32), ([8, 64, 16, 16], FP32)
LISTS = ([[256, 1024], [256]], "TensorList")
FLOATS = "multi_tensor_apply_kernel<at::native::TensorListMetadata<2>, CopyFunctor<float, float>>"
BY_HAND: dict[str, tuple[Work | None, tuple[int, int, int]]] = {
    # A matrix and a vector: 2 operations for each element of the matrix.
    "mv": (of("aten::mv", TOKENS, ROW), (2 * ELEMENTS, 2 * (ELEMENTS + 256), 2 * 1024)),
    "output first": (
        of("_C::cutlass_scaled_mm", ([64, 512], BF16), ([64, 256], FP8), ([256, 512], FP8), ([1], FP32), ([1], FP32)),
        (2 * 64 * 256 * 512, 64 * 256 + 256 * 512 + 8, 2 * 64 * 512),
    ),
    # Gradient and input are read, and the weights; a gradient is written.
    "norm backward": (
        of("aten::native_layer_norm_backward", TOKENS, TOKENS, "[256]", ROW),
        (0, 2 * (2 * ELEMENTS + 256), 2 * ELEMENTS),
    ),
    "fused norm backward": (of("FusedLayerNormAffineFunctionBackward", TOKENS), (0, 4 * ELEMENTS, 2 * ELEMENTS)),
    # Of bfloat16's softmax, computed in float32: the gradient that is written is bfloat16 (c10's type 15).
    "softmax backward": (
        of("aten::_softmax_backward_data", WIDE, WIDE, "-1", "15"),
        (0, 8 * ELEMENTS, 2 * ELEMENTS),
    ),
    "into the first": (of("_C::rms_norm", TOKENS, TOKENS, ROW, "1e-6"), (0, 2 * (ELEMENTS + 256), 2 * ELEMENTS)),
    "in and out": (
        of("_C::fused_add_rms_norm", TOKENS, TOKENS, ROW, "1e-6"),
        (0, 2 * (2 * ELEMENTS + 256), 4 * ELEMENTS),
    ),
    # A quarter of the values, each with the index of its maximum.
    "pool": (
        of("aten::max_pool2d_with_indices", IMAGES, "[2, 2]", "[2, 2]", "[0, 0]", "[1, 1]", "False"),
        (0, 4 * 8 * 64 * 1024, (4 + 8) * 8 * 64 * 256),
    ),
    "pool backward": (
        of("aten::max_pool2d_with_indices_backward", HALVED, IMAGES, "[2, 2]", "[2, 2]", ([8, 64, 16, 16], LONG)),
        (0, (4 + 8) * 8 * 64 * 256, 4 * 8 * 64 * 1024),
    ),
    "pool to a size": (of("aten::_adaptive_avg_pool2d", IMAGES, "[1, 1]"), (0, 4 * 8 * 64 * 1024, 4 * 8 * 64)),
    "interpolation": (of("aten::upsample_nearest2d", HALVED, "[32, 32]"), (0, 4 * 8 * 64 * 256, 4 * 8 * 64 * 1024)),
    "interpolation backward": (
        of("aten::upsample_nearest2d_backward", IMAGES, "[32, 32]", "[8, 64, 16, 16]"),
        (0, 4 * 8 * 64 * 1024, 4 * 8 * 64 * 256),
    ),
    "padding": (of("aten::reflection_pad2d", IMAGES, "[1, 1, 2, 2]"), (0, 4 * 8 * 64 * 1024, 4 * 8 * 64 * 34 * 36)),
    "windows": (
        of("aten::im2col", IMAGES, "[2, 2]", "[1, 1]", "[0, 0]", "[2, 2]"),
        (0, 4 * 8 * 64 * 1024, 4 * 8 * 64 * 1024),
    ),
    "of windows": (
        of("aten::col2im", ([8, 256, 256], FP32), "[32, 32]", "[2, 2]"),
        (0, 4 * 8 * 64 * 1024, 4 * 8 * 64 * 1024),
    ),
    # Of an image each place of the grid takes an element of each channel.
    "samples": (
        of("aten::grid_sampler_2d", IMAGES, ([8, 7, 9, 2], FP32)),
        (0, 4 * 8 * 63 * (64 + 2), 4 * 8 * 63 * 64),
    ),
    "samples backward": (
        of(
            "aten::grid_sampler_2d_backward",
            ([8, 64, 7, 9], FP32),
            IMAGES,
            ([8, 7, 9, 2], FP32),
            "",
            "",
            "",
            "[True, True]",
        ),
        (0, 4 * 8 * (63 * (64 + 2) + 64 * 1024), 4 * 8 * (64 * 1024 + 63 * 2)),
    ),
    "statistics of a batch": (of("aten::batch_norm_stats", IMAGES, "1e-5"), (0, 4 * 8 * 64 * 1024, 0)),
    "largest": (of("aten::topk", WIDE, "8", "-1", "True", "True"), (0, 4 * ELEMENTS, (4 + 8) * 8 * 1024)),
    "frequencies": (of("aten::_fft_r2c", WIDE, "[1]", "0", "True"), (0, 4 * ELEMENTS, 8 * 1024 * 129)),
    "waves": (
        of("aten::_fft_c2r", ([1024, 129], "c10::complex<float>"), "[1]", "2", "256"),
        (0, 8 * 1024 * 129, 4 * ELEMENTS),
    ),
    "transformed": (
        of("aten::_fft_c2c", ([1024, 256], "c10::complex<float>"), "[1]", "0", "True"),
        (0, 8 * ELEMENTS, 8 * ELEMENTS),
    ),
    "complex": (of("aten::polar", WIDE, WIDE), (0, 8 * ELEMENTS, 8 * ELEMENTS)),
    "halves backward": (of("aten::glu_backward", ([1024, 128], BF16), TOKENS, "-1"), (0, 3 * ELEMENTS, 2 * ELEMENTS)),
    "slopes backward": (
        of("aten::_prelu_kernel_backward", TOKENS, TOKENS, ([1, 256], BF16)),
        (0, 2 * (2 * ELEMENTS + 256), 2 * 2 * ELEMENTS),
    ),
    # Eight rows of four: (8, 4) x (4, 16), whose weights are half a byte each, in groups of two.
    "4 bits": (
        of("aten::_weight_int4pack_mm", ([8, 4], BF16), ([2, 1, 32, 1], "int"), "2", ([2, 16, 2], BF16)),
        (2 * 8 * 4 * 16, 2 * 32 + 4 * 64 + 2 * 64, 2 * 8 * 16),
    ),
    "put": (
        of("aten::_index_put_impl_", WIDE, "", ([30, 256], FP32), "True", "False"),
        (0, 8 * 30 * 256, 4 * 30 * 256),
    ),
    "filled rows": (of("aten::index_fill_", WIDE, "0", ([3], LONG), "1."), (0, 24, 4 * 3 * 256)),
    "taken": (of("aten::take", WIDE, ([30], LONG)), (0, (8 + 4) * 30, 4 * 30)),
    "which": (of("aten::nonzero", ([1024], "bool")), (0, 1024, 0)),
    # Thirty rows, in three bags.
    "bags": (of("aten::_embedding_bag", WIDE, ([30], LONG), ([3], LONG)), (0, 8 * 33 + 4 * 30 * 256, 4 * 3 * 256)),
    "bags backward": (
        of(
            "aten::_embedding_bag_dense_backward",
            ([3, 256], FP32),
            ([30], LONG),
            ([30], LONG),
            ([3], LONG),
            ([3], LONG),
            "1024",
        ),
        (0, 4 * 3 * 256 + 2 * 8 * 30, 4 * ELEMENTS),
    ),
    # Input first, then 8 bits of each element and a scale of each row.
    "quantised from": (
        of("sgl_kernel::sgl_per_token_quant_fp8", TOKENS, ([1024, 256], FP8), ([1024, 1], FP32)),
        (0, 2 * ELEMENTS, ELEMENTS + 4 * 1024),
    ),
    "SGLang's 8 bits": (
        of(
            "sgl_kernel::fp8_scaled_mm",
            ([8, 16], FP8),
            ([16, 4], FP8),
            ([8, 1], FP32),
            ([1, 4], FP32),
            "15",
            ([4], BF16),
        ),
        (2 * 8 * 16 * 4, 8 * 16 + 16 * 4 + 4 * 12, 2 * 8 * 4),
    ),
    # 1,024 rows of 256 times the transpose of weights (512, 256), in a byte each, with a scale of each column.
    "8-bit weights": (
        of("aten::_weight_int8pack_mm", TOKENS, ([512, 256], "signed char"), ([512], BF16)),
        (2 * ELEMENTS * 512, 2 * ELEMENTS + 512 * 256 + 2 * 512, 2 * 1024 * 512),
    ),
    "added to a vector": (
        of("aten::addmv", ([1024], BF16), TOKENS, ([256], BF16), "1", "1"),
        (2 * ELEMENTS, 2 * (ELEMENTS + 1024 + 256), 2 * 1024),
    ),
    # 8-bit experts, 8 of 256 x 512; the scales of 1,024 rows and of the experts' columns stand before the ends.
    "grouped 8 bits": (
        of(
            "aten::_scaled_grouped_mm",
            ([1024, 256], FP8),
            ([8, 256, 512], FP8),
            ([1024], FP32),
            ([8, 512], FP32),
            ([8], "int"),
        ),
        (2 * ELEMENTS * 512, ELEMENTS + 8 * 256 * 512 + 4 * (1024 + 8 * 512 + 8), 2 * 1024 * 512),
    ),
    # 4 bits, eight in an int: (256, 512 / 8); scales and zeros of groups of 128.
    "AWQ": (
        of(
            "_C::awq_gemm",
            TOKENS,
            ([256, 64], "int"),
            ([2, 512], BF16),
            ([2, 64], "int"),
            "8",
        ),
        (2 * ELEMENTS * 512, 2 * ELEMENTS + 4 * 256 * 64 + 2 * 2 * 512 + 4 * 2 * 64, 2 * 1024 * 512),
    ),
    # Marlin's sizes are numbers, one after the other; the output that is given is not read.
    "Marlin": (
        of(
            "_C::gptq_marlin_gemm",
            TOKENS,
            ([1024, 512], BF16),
            ([16, 1024], "int"),
            ([2, 512], BF16),
            "772",
            "1024",
            "512",
            "256",
            "True",
        ),
        (2 * ELEMENTS * 512, 2 * ELEMENTS + 4 * 16 * 1024 + 2 * 2 * 512, 2 * 1024 * 512),
    ),
    # Each of four rows of 256 goes to two of 64 experts, of gate and up (2 x 128) and down: eight are read at most.
    "experts": (
        of(
            "vllm::inplace_fused_experts",
            ([4, 256], BF16),
            ([64, 256, 256], BF16),
            ([64, 256, 128], BF16),
            ([4, 2], FP32),
            ([4, 2], "int"),
        ),
        (2 * 8 * 256 * 3 * 128, 2 * 4 * 256 + 2 * 8 * 256 * 3 * 128 + 4 * 8, 2 * 4 * 256),
    ),
    # 32 queries of 8 heads of 64 and keys of 2 turn by 32 of the 131,072 rows of angles.
    "rotary": (
        of("_C::rotary_embedding", ([32], LONG), ([32, 512], BF16), ([32, 128], BF16), "64", ([131072, 64], BF16)),
        (0, 8 * 32 + 2 * 32 * (512 + 128 + 64), 2 * 32 * (512 + 128)),
    ),
    "cache of 8 bits": (
        of(
            "_C_cache_ops::reshape_and_cache_flash",
            ([32, 2, 64], BF16),
            ([32, 2, 64], BF16),
            ([100, 16, 2, 64], FP8),
            ([100, 16, 2, 64], FP8),
            ([32], LONG),
        ),
        (0, 2 * 2 * 32 * 128, 2 * 32 * 128),
    ),
    "norm of a sum": (
        of(
            "aiter::rmsnorm2d_fwd_with_add_ck",
            *[TOKENS] * 4,
            ([256], BF16),
            "1e-5",
        ),
        (0, 2 * (2 * ELEMENTS + 256), 2 * 2 * ELEMENTS),
    ),
    "of 4 bits": (
        of("bitsandbytes::dequantize_4bit", ([131072, 1], "unsigned char"), ([4096], FP32), "64", ""),
        (0, 131072 + 4 * 4096, 2 * 2 * 131072),
    ),
    # Over all: one element; the norm's power stands before its dimensions.
    "norm of columns": (of("aten::linalg_vector_norm", WIDE, "2", "[0]", "False"), (0, 4 * ELEMENTS, 4 * 256)),
    "largest of rows": (of("aten::max", WIDE, "-1", "False"), (0, 4 * ELEMENTS, (4 + 8) * 1024)),
    "place of the largest": (of("aten::argmax", TOKENS, "-1", "False"), (0, 2 * ELEMENTS, 8 * 1024)),
    "where": (of("aten::where", ([1024, 256], "bool"), TOKENS, TOKENS), (0, 5 * ELEMENTS, 2 * ELEMENTS)),
    "halves": (of("aten::glu", TOKENS, "-1"), (0, 2 * ELEMENTS, ELEMENTS)),
    "copied": (of("aten::flip", TOKENS, "[0]"), (0, 2 * ELEMENTS, 2 * ELEMENTS)),
    # A byte for each of four.
    "cast": (of("fbgemm::FloatToFP8RowwiseQuantized", WIDE, "True"), (0, 4 * ELEMENTS, ELEMENTS)),
    "quantised": (of("_C::static_scaled_fp8_quant", ([1024, 256], FP8), TOKENS), (0, 2 * ELEMENTS, ELEMENTS)),
    # Angles of 512 positions; each of 1,024 rows goes to two experts of four.
    "rotary of TE": (
        of("FusedRoPEFunc", ([512, 2, 16, 64], BF16), ([512, 1, 1, 64], FP32), "False"),
        (0, 2 * 512 * 2 * 1024 + 4 * 512 * 64, 2 * 512 * 2 * 1024),
    ),
    "routed by TE": (
        of("_moe_permute_mask_map", TOKENS, ([1024, 4], "bool"), "2048", ([1024, 4], FP32)),
        (0, 2 * ELEMENTS + 4 * 1024 + 4 * 4 * 1024, 2 * 2 * ELEMENTS),
    ),
    "sorted by TE": (of("_moe_chunk_sort", TOKENS, ([8], "int"), ([8], "int")), (0, 2 * ELEMENTS + 64, 2 * ELEMENTS)),
    "lists": (of("aten::_foreach_copy_", LISTS, LISTS, kernel=FLOATS), (0, 4 * (ELEMENTS + 256), 4 * (ELEMENTS + 256))),
    "norms of lists": (of("aten::_foreach_norm", LISTS, "2", kernel=FLOATS), (0, 4 * (ELEMENTS + 256), 0)),
    # One score of each row.
    "loss": (of("aten::nll_loss_forward", WIDE, ([1024], LONG)), (0, (8 + 4) * 1024, 4)),
    "loss backward": (of("aten::nll_loss_backward", ([], FP32), WIDE, ([1024], LONG)), (0, 8 * 1024, 4 * 1024)),
}


@pytest.mark.parametrize("what", BY_HAND)
def test_other_operators(what: str) -> None:
    found, expected = BY_HAND[what]
    assert flops_and_bytes(found) == expected


def test_each_formula_has_an_example() -> None:
    here = Path(__file__).read_text()
    kinds: defaultdict[str, list[str]] = defaultdict(list)
    for operator, function in operator_work._WORK.items():
        kinds[function.__qualname__.partition(".<locals>")[0]].append(operator)
    assert [kind for kind, some in kinds.items() if not any(f'"{operator}"' in here for operator in some)] == []


def test_kernels_of_torch_compile_have_all_of_their_tensors_as_inputs() -> None:
    name = "triton_poi_fused_add_gelu_0"
    hidden = ([1024, 256], BF16)
    assert flops_and_bytes(of(name, hidden, hidden, hidden, "262144", kernel=name)) == (0, 3 * 2 * 1024 * 256, 0)
    assert of(name, hidden, kernel="something_else") is None
    # A slice of a table: no more than the loop's elements.
    table = ([50304, 768], BF16)
    found = of(name, table, hidden, "262144", kernel=name)
    assert flops_and_bytes(found) == (0, 2 * 2 * 262144, 0)


def test_a_template_of_torch_compile_is_a_gemm() -> None:
    # A bias of 4,096, 8,192 rows of 1,024, weights of 1,024 to 4,096, and the result; then its grid.
    name = "triton_tem_fused_addmm_gelu_view_4"
    bias, rows, weights, made = ((sizes, BF16) for sizes in ([4096], [8, 1024, 1024], [4096, 1024], [8, 1024, 4096]))
    grid = ("2048", "1", "1")
    found = of(name, bias, rows, weights, made, *grid, kernel=name)
    read = 2 * (4096 + 8192 * 1024 + 1024 * 4096)
    assert flops_and_bytes(found) == (2 * 8192 * 1024 * 4096, read, 2 * 8192 * 4096)
    assert found is not None and found.kind is GpuTime.GEMM
    # TF32 or float32; a part of a buffer; other templates.
    floats = [(sizes, FP32) for sizes, _ in (bias, rows, weights, made)]
    assert of(name, *floats, *grid, kernel=name) is None
    assert of(name, bias, ([8, 1024, 4096], BF16), weights, made, *grid, kernel=name) is None
    for other in ("triton_tem_fused_bmm_4", "triton_tem_fused_flex_attention_4", "triton_tem_fused_convolution_4"):
        assert of(other, rows, weights, made, *grid, kernel=other) is None


def test_what_a_users_own_triton_kernel_computes_is_not_known() -> None:
    # X times its transpose, of which half may be computed; and one that gets its sizes alone.
    square = ([2, 768, 768], BF16)
    assert of("XXT_kernel_0", ([2, 768, 3072], BF16), square, "768", "3072", kernel="XXT_kernel") is None
    assert of("linear_relu_square_kernel_0", "16384", "3072", "768", kernel="linear_relu_square_kernel") is None


@pytest.mark.parametrize(
    "operator", ["aten::mm", "aten::sum", "aten::copy_", "aten::cat", "aten::_cudnn_attention_forward"]
)
@pytest.mark.parametrize(
    "sizes", ["", "[", "null", "[[-1]]", "[[1e99]]", "[[99999999999999999999]]", '["x"]', "[[], []]"]
)
def test_inputs_that_are_none_have_no_work(operator: str, sizes: str) -> None:
    found = work(operator, inputs(sizes, '["float", "float"]', "[null]", ""), "")
    assert found is None or max(found.flops, found.read, found.written) <= 16


def test_types_as_users_spell_them() -> None:
    assert element_text(inputs("[[2, 2]]", '["c10::BFloat16"]', "", "")) == "bfloat16"
    assert element_text(inputs("[[], [2]]", '["Scalar", "float"]', "", "")) == "float32"


def test_classes() -> None:
    found = of("aten::gelu", ([4, 4], BF16))
    assert found is not None
    assert found.kind is GpuTime.ELEMENTWISE


@pytest.mark.parametrize("operator", ["aiter::_flash_attn_forward", "aiter::mha_fwd", "aiter::fmha_v3_fwd"])
def test_attention_of_aiter_is_that_of_flash_attention(operator: str) -> None:
    heads, expected = ([2, 512, 16, 64], BF16), "flash_attn::_flash_attn_forward"
    given = [heads, heads, heads, "0.", "0.125"]
    for causal in ("True", "False"):
        assert of(operator, *given, causal) == of(expected, *given, causal)
    back = [heads, heads, heads, heads, heads, ([2, 16, 512], FP32)]
    flash = of("flash_attn::_flash_attn_backward", *back, heads, heads, heads, "0.", "0.125", "True")
    assert flash is not None and flash.flops > 0
    with_bias = of("aiter::_flash_attn_backward", *back, heads, heads, heads, "", "0.", "0.125", "True")
    assert (with_bias, of("aiter::mha_bwd", *back, "0.", "0.125", "True")) == (flash, flash)


def test_a_trace_of_kernels_alone_has_no_operators_to_look_at() -> None:
    digest(trace([(int(Category.KERNEL), 8, 0, 1, 0, 0)], device=True))
