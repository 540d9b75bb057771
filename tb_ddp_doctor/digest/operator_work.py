"""The least work of an operator: floating-point operations, and bytes that it has to read and to write.

One table, a function for each kind of operator. Bytes are compulsory: each input is read once and each output is
written once, however often a kernel does so. What a kernel computes beside products (exponentials, comparisons) is not
counted, since memory limits such kernels. Where inputs do not tell the work (sequences of unknown lengths, a stride
that is not recorded), there is none: such time is not modelled. GEMMs, attention, embeddings and images have modules of
their own, whose tables are joined here.

Sources: the schemas of `aten/src/ATen/native/native_functions.yaml` (torch 2.9) for the order of inputs, and for their
own `csrc/common_extension.cc` of sgl-kernel and `csrc/torch_bindings.cpp` of vLLM; Williams et al., "Roofline" (CACM
2009) for compulsory traffic; cuDNN's documentation for convolutions; the documentation of torch.optim for what
optimizers read and write.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from tb_ddp_doctor.digest.attention_work import ATTENTION_WORK, sum_of_seen
from tb_ddp_doctor.digest.embedding_work import EMBEDDING_WORK
from tb_ddp_doctor.digest.gemm_work import GEMM_WORK, compiled_product
from tb_ddp_doctor.digest.image_work import IMAGE_WORK, at
from tb_ddp_doctor.digest.least_work import Work, WorkOf, aten, each
from tb_ddp_doctor.digest.model import GpuTime
from tb_ddp_doctor.digest.operator_inputs import BYTES_BY_CODE, Dims, Inputs, Tensor, count_of
from tb_ddp_doctor.trace import names

#: More operations or bytes in one operator are nonsense.
_MOST = 10**16


def work(operator: str, inputs: Inputs, kernel: str) -> Work | None:
    """The least work of a call; None where its inputs do not tell. `kernel` is the longest one that it launched."""
    function = _WORK.get(operator)
    is_linear = names.is_linear(operator) or names.is_linear_backward(operator)
    if is_linear and names.product(kernel) is names.Product.NONE:
        # Its products are another operator's, or were not recorded: what is left are casts and norms.
        return None
    if names.is_pipeline(operator) and not names.normalises(kernel):
        # Any other pipeline of Transformer Engine's.
        return None
    if function is None:
        function = _of_compiled(operator, kernel)
        if function is None or not inputs.every():
            return None
    try:
        least = function(inputs)
    except (LookupError, ValueError, ZeroDivisionError):
        return None
    counts = (least.flops, least.read, least.written, least.most_flops)
    return least if all(0 <= count <= _MOST for count in counts) and any(counts) else None


def _of_compiled(operator: str, kernel: str) -> WorkOf | None:
    """What a kernel of torch.compile's does, whose operator has its name; None for any other operator."""
    if not kernel or not operator.startswith(kernel):
        return None
    if names.is_compiled_loop(operator):
        return _compiled_loop
    return compiled_product if names.is_compiled_product(operator) else None


def is_modelled(operator: str) -> bool:
    """Whether the table has an operator."""
    return operator in _WORK


# -- convolutions


def _convolution(stride: int, padding: int, dilation: int, transposed: int | None = None) -> WorkOf:
    """Of an input (N, C, ...) and weights (C_out, C / groups, ...); the arguments say which input has what."""

    def function(inputs: Inputs) -> Work:
        taken, weight = inputs.tensor(0), inputs.tensor(1)
        if transposed is not None and inputs.is_true(transposed):
            raise LookupError
        window = weight.sizes[2:]
        if not window or len(taken.sizes) != len(weight.sizes):
            raise ValueError
        made: Sequence[int] = inputs.output[2:]
        if not made:
            steps, pads, apart = (inputs.integers(index) for index in (stride, padding, dilation))
            made = [
                (size + 2 * at(pads, i) - at(apart, i) * (kernel - 1) - 1) // at(steps, i) + 1
                for i, (size, kernel) in enumerate(zip(taken.sizes[2:], window, strict=True))
            ]
        pixels = taken.sizes[0] * math.prod(max(size, 0) for size in made)
        return Work(
            GpuTime.CONVOLUTION,
            flops=2 * pixels * weight.elements,
            read=taken.bytes + weight.bytes,
            written=pixels * weight.sizes[0] * taken.element,
        )

    return function


#: Backward of convolutions: which inputs are forward's input, its weights, and the gradient of its output.
_CONVOLVED = {
    "aten::convolution_backward": (1, 2, 0),
    "aten::cudnn_convolution_backward": (0, 2, 1),
    "aten::miopen_convolution_backward": (0, 2, 1),
}


def convolved(operator: str, inputs: Inputs) -> tuple[Dims, Dims, Dims] | None:
    """Sizes of a convolution's input, weights and output, as its backward tells them; None for any other operator.

    Where no strides are recorded (before torch 2.1), forward's output is known by them.
    """
    places = _CONVOLVED.get(operator)
    try:
        taken, weight, made = (inputs.tensor(place).sizes for place in places or ())
    except (LookupError, ValueError):
        return None
    return taken, weight, made


def is_forward_convolution(operator: str) -> bool:
    """Whether an operator is a convolution whose output its strides tell."""
    return operator in _FORWARD_CONVOLUTIONS


def _convolution_backward(inputs: Inputs) -> Work:
    """Gradients of input and weights from that of the output; which of them is the last value ("[True, False, ..]")."""
    made, taken, weight = (inputs.tensor(index) for index in range(3))
    mask = inputs.value(10)
    wanted = mask.strip("[]").split(", ")[:2] if mask else ["True", "True"]
    of_input, of_weight = (one == "True" for one in wanted)
    return _gradients(made, taken, weight, of_input=of_input, of_weight=of_weight)


def _old_convolution_backward(inputs: Inputs) -> Work:
    """Before torch 1.11: input, gradient of the output, weights."""
    taken, made, weight = (inputs.tensor(index) for index in range(3))
    return _gradients(made, taken, weight, of_input=True, of_weight=True)


def _gradients(made: Tensor, taken: Tensor, weight: Tensor, *, of_input: bool, of_weight: bool) -> Work:
    # Each weight is used once for every pixel of the output, or of a transposed convolution's input.
    transposed = weight.sizes[0] != made.sizes[1]
    pixels = (taken if transposed else made).sizes
    once = 2 * pixels[0] * math.prod(pixels[2:]) * weight.elements
    return Work(
        GpuTime.CONVOLUTION,
        flops=once * (of_input + of_weight),
        read=made.bytes + taken.bytes * of_weight + weight.bytes * of_input,
        written=taken.bytes * of_input + weight.bytes * of_weight,
    )


# -- normalisation and reduction


def _norm(inputs: Inputs) -> Work:
    """Reads its first input and the parameters, writes as much as the first."""
    return _loop(GpuTime.NORM, inputs.every(), inputs.tensor(0))


def _norm_alone(inputs: Inputs) -> Work:
    """A norm whose operator may do more: its parameters are as wide as a row, so that nothing is multiplied."""
    taken, *parameters = inputs.every()
    if not parameters or any(one.sizes != taken.sizes[-1:] for one in parameters):
        raise LookupError
    return _norm(inputs)


def _norm_of_sum(read: Sequence[int], written: Sequence[int]) -> WorkOf:
    """Of an input and what is added to it, which is written as well; outputs are inputs, too."""

    def function(inputs: Inputs) -> Work:
        given, made = ([inputs.tensor(index) for index in some] for some in (read, written))
        return Work(GpuTime.NORM, 0, count_of(given), count_of(made), made[0].elements)

    return function


def _norm_backward(made: int = 0, taken: int = 1) -> WorkOf:
    """Reads the output's gradient (input `made`) and forward's input (`taken`); writes a gradient like the latter."""

    def function(inputs: Inputs) -> Work:
        like = inputs.tensor(taken)
        parameters = [one for one in inputs.every(made, taken) if one.elements < like.elements]
        return _loop(GpuTime.NORM, [inputs.tensor(made), like, *parameters], like)

    return function


def _alone_backward(inputs: Inputs) -> Work:
    """Fused norms and softmaxes of Megatron and apex: backward names the gradient alone; forward's is as large."""
    like = inputs.tensor(0)
    return _loop(GpuTime.NORM, [like, like], like)


def _softmax(inputs: Inputs) -> Work:
    taken = inputs.tensor(0)
    widens = inputs.is_true(2) and taken.element == 2
    return _loop(GpuTime.NORM, [taken], Tensor(taken.sizes, 4 if widens else taken.element))


def _softmax_backward(inputs: Inputs) -> Work:
    given, made = inputs.tensor(0), inputs.tensor(1)
    return _loop(GpuTime.NORM, [given, made], Tensor(given.sizes, BYTES_BY_CODE.get(inputs.value(3), given.element)))


def _causal_softmax(inputs: Inputs) -> Work:
    """Megatron's: what is above the diagonal is not read."""
    scores = inputs.tensor(0)
    below = scores.bytes * sum_of_seen(*scores.sizes[-2:]) // max(math.prod(scores.sizes[-2:]), 1)
    return Work(GpuTime.NORM, 0, below, scores.bytes, scores.elements)


def _reduction(over: int = 1, made: int = 0, index_bytes: int = 0) -> WorkOf:
    """Reads its input; writes what is left of it over the dimensions of input `over`, at least an element.

    `made`: bytes of what it writes, if they are not those of its input; `index_bytes` of where it found that, which it
    writes as well where it reduces one dimension.
    """

    def function(inputs: Inputs) -> Work:
        taken = inputs.tensor(0)
        remaining, more = 1, 0
        text = inputs.value(over).strip()
        if text.startswith("[") and text != "[]":
            dimensions = {index % max(len(taken.sizes), 1) for index in inputs.integers(over)}
            remaining = math.prod(size for index, size in enumerate(taken.sizes) if index not in dimensions)
        elif text.lstrip("-").isdigit() and taken.sizes:
            remaining = taken.elements // max(taken.sizes[int(text) % len(taken.sizes)], 1)
            more = index_bytes
        return Work(GpuTime.NORM, 0, taken.bytes, remaining * ((made or taken.element) + more))

    return function


def _statistics(given: int) -> WorkOf:
    """Reads so many tensors, and writes next to nothing: statistics of each channel."""
    return lambda inputs: Work(GpuTime.NORM, 0, sum(inputs.tensor(index).bytes for index in range(given)), 0)


def _topk(inputs: Inputs) -> Work:
    """Of one dimension (input 2) the largest so many (input 1), and their indices of 8 bytes."""
    taken, kept = inputs.tensor(0), int(inputs.value(1))
    made = taken.elements // max(taken.sizes[int(inputs.value(2))], 1) * kept
    return Work(GpuTime.NORM, 0, taken.bytes, made * (taken.element + 8))


# -- Fourier transforms: memory limits them, with some 5 n log2(n) operations for 16 n bytes


def _fft_of_reals(inputs: Inputs) -> Work:
    """Over the dimensions of input 1; a one-sided result (input 3) has half of the last one's frequencies."""
    taken, over = inputs.tensor(0), inputs.integers(1)
    sizes = list(taken.sizes)
    if inputs.is_true(3):
        sizes[over[-1]] = sizes[over[-1]] // 2 + 1
    return Work(GpuTime.OTHER, 0, taken.bytes, math.prod(sizes) * 2 * taken.element)


def _fft_to_reals(inputs: Inputs) -> Work:
    """Back from a one-sided one: the last dimension has the size that input 3 is."""
    taken, over = inputs.tensor(0), inputs.integers(1)
    sizes = list(taken.sizes)
    sizes[over[-1]] = int(inputs.value(3))
    return Work(GpuTime.OTHER, 0, taken.bytes, math.prod(sizes) * taken.element // 2)


def _fft(inputs: Inputs) -> Work:
    return Work(GpuTime.OTHER, 0, inputs.tensor(0).bytes, inputs.tensor(0).bytes)


def _loop(kind: GpuTime, read: Iterable[Tensor], written: Tensor) -> Work:
    """Reads some tensors, and writes one."""
    return Work(kind, 0, sum(one.bytes for one in read), written.bytes, written.elements)


# -- elementwise


def _elementwise(arity: int, element: int = 0) -> WorkOf:
    """A loop over elements of so many tensors at most; one more is the output. `element`: bytes of what it writes."""

    def function(inputs: Inputs) -> Work:
        given = [some[0] for some in inputs.tensors if some]
        taken, out = given[:arity], given[arity:]
        made = out[0] if out else _broadcast(taken, element)
        return _loop(GpuTime.ELEMENTWISE, taken, made)

    return function


def _in_place(inputs: Inputs) -> Work:
    """Reads all of its inputs, and writes the first."""
    return _loop(GpuTime.ELEMENTWISE, inputs.every(), inputs.tensor(0))


def _fill(inputs: Inputs) -> Work:
    """Writes its first input, and reads nothing of it."""
    return _loop(GpuTime.ELEMENTWISE, (), inputs.tensor(0))


def _broadcast(tensors: Sequence[Tensor], element: int) -> Tensor:
    """What some tensors make together; of one type, that of the widest that is not a scalar."""
    if not tensors:
        raise LookupError
    longest = max(len(one.sizes) for one in tensors)
    padded = [(1,) * (longest - len(one.sizes)) + one.sizes for one in tensors]
    sizes: Dims = tuple(0 if 0 in column else max(column) for column in zip(*padded, strict=True))
    whole = [one for one in tensors if one.sizes] or tensors
    # Where some are floating-point numbers, the widest of these.
    floats = [one for one in whole if one.is_float] or whole
    return Tensor(sizes, element or max(one.element for one in floats), bool(floats))


def _where(inputs: Inputs) -> Work:
    """A condition and two alternatives."""
    made = _broadcast([some[0] for some in inputs.tensors[1:3] if some], 0)
    shape = _broadcast([some[0] for some in inputs.tensors[:3] if some], made.element)
    return _loop(GpuTime.ELEMENTWISE, inputs.every()[:3], shape)


def _dropout(inputs: Inputs) -> Work:
    """Writes a mask of bytes too."""
    taken = inputs.tensor(0)
    return Work(GpuTime.ELEMENTWISE, 0, taken.bytes, taken.bytes + taken.elements, taken.elements)


def _halves(inputs: Inputs) -> Work:
    """A gated unit, which writes half as much as it reads."""
    taken = inputs.tensor(0)
    return Work(GpuTime.ELEMENTWISE, 0, taken.bytes, taken.bytes // 2, taken.elements // 2)


def _halves_backward(inputs: Inputs) -> Work:
    """Of a gated unit: reads the gradient and forward's input, and writes as much as the latter."""
    return _loop(GpuTime.ELEMENTWISE, (inputs.tensor(0), inputs.tensor(1)), inputs.tensor(1))


def _prelu_backward(inputs: Inputs) -> Work:
    """Gradient, input and slopes to gradients of input and slopes, each as large as the input."""
    taken = inputs.tensor(1)
    return Work(GpuTime.ELEMENTWISE, 0, count_of(inputs.every()), 2 * taken.bytes, taken.elements)


def _complex(inputs: Inputs) -> Work:
    """A complex number of two real ones."""
    parts = [inputs.tensor(0), inputs.tensor(1)]
    return _loop(GpuTime.ELEMENTWISE, parts, _broadcast(parts, 2 * parts[0].element))


def _compiled_loop(inputs: Inputs) -> Work:
    """Each tensor is read or written, once for each element of the kernel's loop or of the tensor itself.

    Which of them are written is not told: all count as read.
    """
    tensors = inputs.every()
    # Its last arguments say over how many elements it loops: of a slice of a tensor it reads no more.
    counts = [
        int(text) for text, some in zip(inputs.values, inputs.tensors, strict=False) if not some and text.isdigit()
    ]
    loop = math.prod(counts) if counts else max(one.elements for one in tensors)
    return Work(GpuTime.OTHER, 0, sum(min(one.elements, loop) * one.element for one in tensors), 0)


# -- copies


def _copy(inputs: Inputs) -> Work:
    """From the second input to the first."""
    to, of = inputs.tensor(0), inputs.tensor(1)
    return _loop(GpuTime.COPY, (of,), to)


def _concatenation(inputs: Inputs) -> Work:
    given = inputs.every()
    return Work(GpuTime.COPY, 0, count_of(given), count_of(given))


def _first_copied(inputs: Inputs) -> Work:
    given = inputs.tensor(0)
    return Work(GpuTime.COPY, 0, given.bytes, given.bytes)


def _cast(element_of_output: float) -> WorkOf:
    """Reads a tensor, and writes so many bytes for each element."""

    def function(inputs: Inputs) -> Work:
        taken = inputs.tensor(0)
        return Work(GpuTime.COPY, 0, taken.bytes, int(taken.elements * element_of_output))

    return function


def _from_4_bits(inputs: Inputs) -> Work:
    """bitsandbytes: two numbers of a byte, with a scale for each block, to two bytes each."""
    packed = inputs.tensor(0)
    return Work(GpuTime.COPY, 0, packed.bytes + inputs.tensor(1).bytes, 2 * 2 * packed.bytes)


def _quantized_into(inputs: Inputs) -> Work:
    """vLLM: output first, then the input."""
    return Work(GpuTime.COPY, 0, inputs.tensor(1).bytes, inputs.tensor(0).bytes)


def _quantized_from(inputs: Inputs) -> Work:
    """SGLang: the input first, then the output and its scales."""
    return Work(GpuTime.COPY, 0, inputs.tensor(0).bytes, count_of(inputs.every(0)))


# -- optimizers


def _fused(read: int, written: int) -> WorkOf:
    """Of the lists of tensors of a fused optimizer, how many are read and how many written, as large as the first."""

    def function(inputs: Inputs) -> Work:
        size = count_of(inputs.tensors[0])
        states = sum(bool(some) for some in inputs.tensors[:read])
        return Work(GpuTime.OPTIMIZER, 0, size * min(read, states), size * min(written, states))

    return function


def _foreach(inputs: Inputs) -> Work:
    """A loop over lists of tensors: reads all, writes as much as the first has."""
    size = count_of(inputs.tensors[0])
    if not size:
        raise LookupError
    elements = sum(one.elements for one in inputs.tensors[0])
    return Work(GpuTime.OPTIMIZER, 0, count_of(inputs.every()), size, elements)


def _copy_lists(inputs: Inputs) -> Work:
    """From the second list to the first."""
    return Work(GpuTime.COPY, 0, count_of(inputs.tensors[1]), count_of(inputs.tensors[0]))


def _foreach_norm(inputs: Inputs) -> Work:
    return Work(GpuTime.OPTIMIZER, 0, count_of(inputs.every()), 0)


# -- of several kinds


def _in_and_out(kind: GpuTime, *changed: int) -> WorkOf:
    """Reads some inputs and writes them again; reads the others."""

    def function(inputs: Inputs) -> Work:
        return Work(kind, 0, count_of(inputs.every()), sum(inputs.tensor(index).bytes for index in changed))

    return function


def _rotary(inputs: Inputs) -> Work:
    """VLLM's: of a table of angles, input 4, the rows of the positions, input 0, for queries and keys in place."""
    table, positions = inputs.tensor(4), inputs.tensor(0)
    turned = count_of([one for some in inputs.tensors[1:3] for one in some])
    rows = min(positions.elements, table.sizes[0]) * table.bytes // max(table.sizes[0], 1)
    return Work(GpuTime.ELEMENTWISE, 0, positions.bytes + turned + rows, turned)


def _into_first(kind: GpuTime) -> WorkOf:
    """Writes its first input, and reads the others."""
    return lambda inputs: _loop(kind, inputs.every(0), inputs.tensor(0))


_UNARY = """
    abs acos asin atan bitwise_not ceil clamp clamp_max clamp_min cos cosh elu erf erfc exp exp2 expm1 floor frac gelu
    hardsigmoid hardswish hardtanh leaky_relu log log10 log1p log2 log_sigmoid_forward logical_not mish nan_to_num neg
    reciprocal relu relu6 round rsqrt sigmoid sign silu sin sinh softplus sqrt square tan tanh threshold tril triu trunc
"""
_BINARY = """
    add atan2 bitwise_and bitwise_or bitwise_xor div div_ floor_divide fmod maximum minimum mul pow remainder rsub sub
    gelu_backward hardswish_backward hardtanh_backward leaky_relu_backward elu_backward mish_backward sigmoid_backward
    silu_backward softplus_backward tanh_backward threshold_backward hardsigmoid_backward masked_fill mse_loss
    native_dropout_backward _masked_scale smooth_l1_loss huber_loss logical_and logical_or logical_xor xlogy
    binary_cross_entropy _prelu_kernel
"""
_COMPARISONS = "eq ne lt le gt ge isnan isinf isfinite"
_IN_PLACE = """
    add sub mul div pow sqrt rsqrt exp log neg abs clamp clamp_min clamp_max relu sigmoid tanh silu gelu threshold
    leaky_relu hardtanh addcmul addcdiv lerp masked_fill sign reciprocal floor round bitwise_and bitwise_or logical_and
    logical_or logical_not erf sin cos hardswish elu square maximum tril triu
"""
_FILLS = "fill_ zero_ normal_ uniform_ random_ bernoulli_ exponential_ log_normal_"
_REDUCTIONS = "sum mean var std prod amax amin logsumexp nansum var_mean std_mean"
_PERMUTED_BACKWARD = (
    "torch::autograd::CppNode<fbgemm_gpu::PermutePooledEmbsFunction<&fbgemm_gpu::permute_pooled_embs_gpu> >"
)
_FOREACH = """
    add addcdiv addcmul clamp_max clamp_min div exp lerp log max maximum mul neg pow reciprocal round rsqrt sigmoid
    sign sqrt sub tanh zero abs
"""

_FORWARD_CONVOLUTIONS: Mapping[str, WorkOf] = {
    "aten::cudnn_convolution": _convolution(stride=3, padding=2, dilation=4),
    "aten::cudnn_convolution_relu": _convolution(stride=3, padding=4, dilation=5),
    "aten::miopen_convolution": _convolution(stride=4, padding=3, dilation=5),
    "aten::miopen_depthwise_convolution": _convolution(stride=4, padding=3, dilation=5),
    "aten::_conv_depthwise2d": _convolution(stride=4, padding=5, dilation=6),
    "aten::_slow_conv2d_forward": _convolution(stride=4, padding=5, dilation=4),
    "aten::_convolution": _convolution(stride=3, padding=4, dilation=5, transposed=6),
}
_WORK: Mapping[str, WorkOf] = {
    **GEMM_WORK,
    # Convolutions. https://docs.nvidia.com/deeplearning/performance/dl-performance-convolutional
    **_FORWARD_CONVOLUTIONS,
    "aten::convolution_backward": _convolution_backward,
    **aten(_old_convolution_backward, "cudnn_convolution_backward miopen_convolution_backward"),
    **ATTENTION_WORK,
    # Normalisation and reduction.
    **aten(_norm, "native_layer_norm native_group_norm _fused_rms_norm cudnn_batch_norm native_batch_norm"),
    **aten(_norm, "miopen_batch_norm _batch_norm_with_update _native_batch_norm_legit rms_norm"),
    **aten(_norm_backward(), "native_layer_norm_backward _fused_rms_norm_backward native_group_norm_backward"),
    **aten(_norm_backward(), "native_batch_norm_backward"),
    **aten(_norm_backward(1, 0), "cudnn_batch_norm_backward miopen_batch_norm_backward batch_norm_backward"),
    **aten(_softmax, "_softmax _log_softmax"),
    **aten(_softmax_backward, "_softmax_backward_data _log_softmax_backward_data"),
    **aten(_reduction(), _REDUCTIONS),
    **aten(_reduction(over=2), "norm linalg_vector_norm"),
    **aten(_reduction(index_bytes=8), "max min"),
    **aten(_reduction(made=8), "argmax argmin count_nonzero"),
    **aten(_reduction(made=1), "all any"),
    **aten(_norm, "cumsum cumprod sort"),
    **each(_norm, "FusedLayerNormAffineFunction", "FusedRMSNormAffineFunction", "ScaledMaskedSoftmax"),
    # Transformer Engine's, 1.x and 2.x.
    **each(_norm, "_LayerNorm", "_RMSNorm"),
    "_OperationFuserAutogradFunction": _norm_alone,
    "_OperationFuserAutogradFunctionBackward": _alone_backward,
    **each(_alone_backward, "FusedLayerNormAffineFunctionBackward", "FusedRMSNormAffineFunctionBackward"),
    **each(_alone_backward, "_LayerNormBackward", "_RMSNormBackward"),
    **each(_alone_backward, "ScaledMaskedSoftmaxBackward"),
    "ScaledUpperTriangMaskedSoftmax": _causal_softmax,
    **each(_norm, "aiter::rms_norm", "aiter::_groupnorm_run"),
    **each(_into_first(GpuTime.NORM), "_C::rms_norm", "sgl_kernel::rmsnorm", "sgl_kernel::gemma_rmsnorm"),
    "_C::rms_norm_static_fp8_quant": _into_first(GpuTime.NORM),
    "_C::fused_add_rms_norm_static_fp8_quant": _norm_of_sum(read=(1, 2, 3, 4), written=(0, 2)),
    "aiter::rmsnorm2d_fwd_with_add_ck": _norm_of_sum(read=(1, 2, 4), written=(0, 3)),
    "aiter::rmsnorm2d_fwd_ck": _norm,
    **each(_in_and_out(GpuTime.NORM, 0, 1), "_C::fused_add_rms_norm", "sgl_kernel::fused_add_rmsnorm"),
    "sgl_kernel::gemma_fused_add_rmsnorm": _in_and_out(GpuTime.NORM, 0, 1),
    **aten(_norm, "batch_norm_elemt batch_norm_backward_elemt"),
    **aten(_statistics(1), "batch_norm_stats"),
    **aten(_statistics(2), "batch_norm_backward_reduce"),
    "aten::topk": _topk,
    # Images. https://docs.pytorch.org/docs/stable/nn.functional.html
    **IMAGE_WORK,
    # Fourier transforms of real and complex numbers.
    "aten::_fft_r2c": _fft_of_reals,
    "aten::_fft_c2c": _fft,
    "aten::_fft_c2r": _fft_to_reals,
    # Elementwise.
    **aten(_elementwise(1), _UNARY),
    **aten(_elementwise(2), _BINARY),
    **aten(_elementwise(2, element=1), _COMPARISONS),
    **aten(_elementwise(3), "addcmul addcdiv lerp mse_loss_backward smooth_l1_loss_backward huber_loss_backward"),
    **aten(_elementwise(3), "binary_cross_entropy_backward"),
    **aten(_in_place, _IN_PLACE, "_"),
    **aten(_fill, _FILLS),
    "aten::where": _where,
    **aten(_dropout, "native_dropout _fused_dropout"),
    **aten(_halves, "glu"),
    "aten::glu_backward": _halves_backward,
    "aten::_prelu_kernel_backward": _prelu_backward,
    **aten(_complex, "complex polar"),
    **each(_elementwise(2), "GeLUFunction"),
    # Transformer Engine's rotary embeddings, with their table of angles, and what routes rows to experts.
    **each(_in_and_out(GpuTime.ELEMENTWISE, 0), "FusedRoPEFunc", "FusedRoPEFuncBackward"),
    **each(_in_and_out(GpuTime.EMBEDDING, 0), "_moe_chunk_sort", "_moe_chunk_sortBackward"),
    **each(_halves, "SwiGLUFunction", "BiasSwiGLUFunction"),
    **each(
        _into_first(GpuTime.ELEMENTWISE),
        *(f"{library}::{word}_and_mul" for library in ("_C", "sgl_kernel") for word in ("silu", "gelu", "gelu_tanh")),
    ),
    "_C::rotary_embedding": _rotary,
    **each(
        _into_first(GpuTime.ELEMENTWISE), "_C::silu_and_mul_quant", "_C::gelu_new", "_C::gelu_fast", "_C::gelu_quick"
    ),
    # Copies and casts.
    "aten::copy_": _copy,
    **aten(_concatenation, "cat _chunk_cat"),
    "fsdp::chunk_cat": _concatenation,
    **each(_first_copied, "fsdp::split_with_sizes_copy", "aten::split_with_sizes_copy", "aten::flip", "aten::roll"),
    **each(_first_copied, "fbgemm::permute_pooled_embs", "fbgemm::permute_pooled_embs_auto_grad", _PERMUTED_BACKWARD),
    "fbgemm::FloatToFP8RowwiseQuantized": _cast(1),
    "fbgemm::FP8RowwiseQuantizedToFloat": _cast(4),
    "fbgemm::FloatToHFP8Quantized": _cast(1),
    "fbgemm::HFP8QuantizedToFloat": _cast(4),
    **each(_quantized_into, "_C::static_scaled_fp8_quant", "_C::dynamic_scaled_fp8_quant"),
    **each(_quantized_into, "_C::dynamic_per_token_scaled_fp8_quant"),
    "_C::per_token_group_fp8_quant": _quantized_from,
    "bitsandbytes::dequantize_4bit": _from_4_bits,
    **each(_quantized_from, "sgl_kernel::sgl_per_token_quant_fp8", "sgl_kernel::sgl_per_tensor_quant_fp8"),
    **each(_quantized_from, "sgl_kernel::sgl_per_token_group_quant_fp8", "sgl_kernel::sgl_per_token_group_quant_int8"),
    "sgl_kernel::sgl_per_token_group_quant_8bit": _quantized_from,
    # Optimizers. https://docs.pytorch.org/docs/stable/optim.html: parameters, gradients, states.
    **aten(_fused(4, 3), "_fused_adam_ _fused_adamw_"),
    **aten(_fused(3, 2), "_fused_sgd_ _fused_adagrad_"),
    **aten(_foreach, " ".join(f"_foreach_{word} _foreach_{word}_" for word in _FOREACH.split())),
    "aten::_foreach_copy_": _copy_lists,
    "aten::_foreach_norm": _foreach_norm,
    "aten::_amp_foreach_non_finite_check_and_unscale_": _foreach,
    **EMBEDDING_WORK,
}


_SPELLED = {"float": "float32", "double": "float64", "c10::Half": "float16", "long int": "int64", "long": "int64"}


def element_text(inputs: Inputs) -> str:
    """The type of the first tensor that a call is given, as users spell it, such as "bfloat16"; "" if none is told."""
    for kind, some in zip(inputs.types, inputs.tensors, strict=False):
        if some and some[0].sizes and kind in names.OPERATOR_ELEMENT_BYTES:
            return _SPELLED.get(kind, kind.removeprefix("c10::").lower())
    return ""
