"""The least work of GEMMs: dense, grouped, of packed and 8-bit weights, of fused layers, and of experts.

(m, k) times (k, n) is 2 m k n operations. Both matrices are read and the result is written once, however often a kernel
does so. Where weights are packed, their bytes are those of the packed tensors and of their scales.

Sources: the schemas of `aten/src/ATen/native/native_functions.yaml` (torch 2.9) for the order of inputs, and for their
own `csrc/common_extension.cc` of sgl-kernel and `csrc/torch_bindings.cpp` of vLLM.
"""

from __future__ import annotations

import math

from tb_ddp_doctor.digest.compiled_products import matrix_product
from tb_ddp_doctor.digest.least_work import Work, WorkOf, aten, each
from tb_ddp_doctor.digest.model import GpuTime
from tb_ddp_doctor.digest.operator_inputs import BYTES_BY_CODE, Inputs, Tensor, count_of

#: Bytes of a number in half precision, and dimensions of a matrix.
_HALF, _MATRIX = 2, 2


def _gemm(left: Tensor, right: Tensor, added: int = 0, element: int = 0) -> Work:
    """Of (..., m, k) and (..., k, n); `added` bytes are added to it, an output's element has `element` bytes."""
    if left.sizes[-1] != right.sizes[-2] or len(left.sizes) != len(right.sizes):
        raise ValueError
    made = left.elements // max(left.sizes[-1], 1) * right.sizes[-1]
    return Work(
        GpuTime.GEMM,
        flops=2 * made * left.sizes[-1],
        read=left.bytes + right.bytes + added,
        written=made * (element or left.element),
    )


def _added(inputs: Inputs) -> Work:
    """Of the second and third input, added to the first, which is not read if it counts nothing (beta = 0)."""
    added = 0 if inputs.value(3) in ("0", "0.", "0.0") else inputs.tensor(0).bytes
    return _gemm(inputs.tensor(1), inputs.tensor(2), added)


def _scaled(code: int) -> WorkOf:
    """Of 8-bit matrices, with what stands between them and the output's type (input `code`): bfloat16 unless told."""

    def function(inputs: Inputs) -> Work:
        more = count_of([one for some in inputs.tensors[2:code] for one in some])
        return _gemm(inputs.tensor(0), inputs.tensor(1), more, BYTES_BY_CODE.get(inputs.value(code), 2))

    return function


def _grouped(ends: int) -> WorkOf:
    """Of groups one after the other, whose ends are input `ends`, without values: all rows are in some group.

    (M, k) x (groups, k, n) multiplies each row with its group's matrix, as experts do; (m, K) x (K, n) makes a matrix
    of each group of columns, as the gradients of their weights do. What stands before the ends are scales.
    """

    def function(inputs: Inputs) -> Work:
        left, right = inputs.tensor(0), inputs.tensor(1)
        groups, rows, columns = inputs.tensor(ends).elements, left.sizes[-2], right.sizes[-1]
        if len(left.sizes) == len(right.sizes) == 3:
            return _gemm(left, right)
        if left.sizes[-1] != right.sizes[-2]:
            raise ValueError
        made = rows * columns * (groups if len(left.sizes) == len(right.sizes) else 1)
        flops = 2 * rows * columns * left.sizes[-1]
        read = count_of([one for some in inputs.tensors[: ends + 1] for one in some])
        return Work(GpuTime.GEMM, flops, read, made * max(left.element, 2))

    return function


def _vector(first: int = 0) -> WorkOf:
    """A matrix, input `first`, times a vector; what stands before is added."""

    def function(inputs: Inputs) -> Work:
        matrix, vector = inputs.tensor(first), inputs.tensor(first + 1)
        rows = matrix.elements // max(vector.elements, 1)
        return Work(GpuTime.GEMM, 2 * matrix.elements, count_of(inputs.every()), rows * matrix.element)

    return function


def _linear(inputs: Inputs) -> Work:
    """(..., k) times the transpose of weights (n, k)."""
    left, weights = inputs.tensor(0), inputs.tensor(1)
    if left.sizes[-1] != weights.sizes[-1] or len(weights.sizes) != _MATRIX:
        raise ValueError
    rows, columns = left.elements // max(left.sizes[-1], 1), weights.sizes[0]
    return Work(GpuTime.GEMM, 2 * left.elements * columns, count_of(inputs.every()), rows * columns * left.element)


def _by_scales(index: int) -> WorkOf:
    """(m, k) times packed weights, whose scales, input `index`, are (k / group, n)."""

    def function(inputs: Inputs) -> Work:
        left, columns = inputs.tensor(0), inputs.tensor(index).sizes[-1]
        return _of_packed_weights(left, columns, inputs)

    return function


def _by_numbers(inputs: Inputs) -> Work:
    """(m, k) times packed weights, as Marlin has them: m, n and k are numbers, one after the other."""
    left = inputs.tensor(0)
    rows, inner = left.elements // max(left.sizes[-1], 1), left.sizes[-1]
    numbers = [int(text) if text.isdigit() else -1 for text in inputs.values]
    triples = zip(numbers, numbers[1:], numbers[2:], strict=False)
    columns = next((n for m, n, k in triples if (m, k) == (rows, inner) and n > 0), 0)
    if not columns:
        raise LookupError
    return _of_packed_weights(left, columns, inputs)


def _of_packed_weights(left: Tensor, columns: int, inputs: Inputs) -> Work:
    """Weights, scales and zeros are read; an output that is given is not."""
    rows = left.elements // max(left.sizes[-1], 1)
    read = sum(one.bytes for one in inputs.every() if one.sizes != (rows, columns))
    return Work(GpuTime.GEMM, 2 * left.elements * columns, read, rows * columns * left.element)


def _experts(inputs: Inputs) -> Work:
    """Gated MLPs of experts: rows (m, k), weights (experts, 2 n, k) and (experts, k, n), how much each expert
    of a row counts, and which experts these are, (m, chosen). An expert that several rows choose is read once.

    Whether 8-bit weights are multiplied as such is not told.
    """
    rows, up, down, chosen = (inputs.tensor(index) for index in (0, 1, 2, 4))
    if min(up.element, rows.element) < _HALF:
        raise LookupError
    experts, both, inner = up.sizes[0], up.sizes[1], rows.sizes[-1]
    products = 2 * chosen.elements * inner * (both + both // 2)
    read = min(chosen.elements, experts) * (up.bytes + down.bytes) // max(experts, 1)
    return Work(GpuTime.GEMM, products, rows.bytes + read + chosen.bytes, rows.bytes)


def _in_4_bits(inputs: Inputs) -> Work:
    """(m, k) times weights of 4 bits; their scales, input 3, are (k / group, n, 2)."""
    left, weights, scales = inputs.tensor(0), inputs.tensor(1), inputs.tensor(3)
    rows, columns = left.elements // max(left.sizes[-1], 1), scales.sizes[1]
    read = left.bytes + weights.bytes + scales.bytes
    return Work(GpuTime.GEMM, 2 * left.elements * columns, read, rows * columns * left.element)


def _into(inputs: Inputs) -> Work:
    """VLLM's products, which get their output first."""
    out, more = inputs.tensor(0), count_of(inputs.every(0, 1, 2))
    return _gemm(inputs.tensor(1), inputs.tensor(2), more, out.element)


def _fused_linear(products: int) -> WorkOf:
    """Transformer Engine's: one product forward, two backward, of input and weights, output and gradients."""

    def function(inputs: Inputs) -> Work:
        if inputs.linear is None:
            raise LookupError
        rows, inner, outer, matrices, columns = inputs.linear
        taken, made, weights = rows * inner, rows * (columns or outer), inner * outer * matrices
        read, written = (taken + weights, made) if products == 1 else (made + taken + weights, taken + weights)
        element = inputs.every()[0].element
        return Work(GpuTime.GEMM, products * inputs.linear.flops, read * element, written * element)

    return function


def _accumulated(inputs: Inputs) -> Work:
    """Megatron-LM's gradient of weights, added to one of 4 bytes an element: of a layer's input and its output's
    gradient.
    """
    if inputs.linear is None:
        raise LookupError
    rows, inner, outer, *_ = inputs.linear
    sums = 4 * inner * outer
    read = rows * (inner + outer) * inputs.every()[0].element
    return Work(GpuTime.GEMM, inputs.linear.flops, read + sums, sums)


def _of_three(left: int, right: int, made: int) -> WorkOf:
    """A product whose layouts do not matter: (m, k), (k, n) and (m, n) have (m k n) ** 2 elements multiplied."""

    def function(inputs: Inputs) -> Work:
        matrices = [inputs.tensor(index) for index in (left, right, made)]
        squared = math.prod(one.elements for one in matrices)
        product = math.isqrt(squared)
        if product**2 != squared:
            raise ValueError
        return Work(GpuTime.GEMM, 2 * product, matrices[0].bytes + matrices[1].bytes, matrices[2].bytes)

    return function


def compiled_product(inputs: Inputs) -> Work:
    """Reads all tensors but the last one, and writes that. Whether float32 is multiplied in TF32 is not recorded."""
    tensors = [one for one in inputs.every() if one.sizes]
    product = matrix_product([one.sizes for one in tensors])
    if product is None:
        raise LookupError
    element = tensors[product.left].element
    if element > _HALF or {tensors[product.right].element, tensors[0].element} != {element}:
        raise LookupError
    return Work(GpuTime.GEMM, product.flops, count_of(tensors[:-1]), tensors[-1].bytes)


_PLACES = ("inplace", "outplace")
GEMM_WORK: dict[str, WorkOf] = {
    # https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication
    **aten(lambda inputs: _gemm(inputs.tensor(0), inputs.tensor(1)), "mm bmm _int_mm"),
    **aten(_added, "addmm baddbmm _addmm_activation addmm_ baddbmm_"),
    "aten::_scaled_mm": _scaled(6),
    **each(
        _scaled(4), "sgl_kernel::fp8_scaled_mm", "sgl_kernel::int8_scaled_mm", "sgl_kernel::fp8_blockwise_scaled_mm"
    ),
    # Transformer Engine: in 1.x its products may be operators, else they are parts of autograd's.
    "tex_ts::te_gemm_ts": _of_three(0, 5, 10),
    **each(_fused_linear(1), "_Linear", "_LayerNormLinear", "_GroupedLinear", "_LayerNormMLP"),
    **each(_fused_linear(2), "_LinearBackward", "_LayerNormLinearBackward", "_GroupedLinearBackward"),
    "_LayerNormMLPBackward": _fused_linear(2),
    # Megatron-LM: https://github.com/NVIDIA/Megatron-LM, core/tensor_parallel/layers.py.
    "LinearWithGradAccumulationAndAsyncCommunicationBackward": _accumulated,
    "aten::_grouped_mm": _grouped(ends=2),
    "aten::_scaled_grouped_mm": _grouped(ends=4),
    "aten::_weight_int4pack_mm": _in_4_bits,
    "aten::_weight_int8pack_mm": _linear,
    **aten(_vector(), "mv dot vdot"),
    **aten(_vector(1), "addmv addmv_"),
    # vLLM's and SGLang's: https://github.com/vllm-project/vllm, csrc/torch_bindings.cpp.
    **each(_into, "_C::cutlass_scaled_mm", "vllm::cutlass_scaled_mm"),
    **each(_linear, "vllm::rocm_unquantized_gemm", "vllm::rocm_unquantized_gemm_impl"),
    "_C::awq_gemm": _by_scales(2),
    "_C::gptq_gemm": _by_scales(3),
    **each(_by_numbers, *(f"{library}::gptq_marlin_gemm" for library in ("_C", "sgl_kernel"))),
    **each(_by_numbers, "_C::marlin_gemm", "_C::fp8_marlin_gemm", "_C::gptq_marlin_24_gemm"),
    **each(_experts, *(f"{library}::{word}_fused_experts" for library in ("vllm", "sglang") for word in _PLACES)),
}
