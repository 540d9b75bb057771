"""The least work of an operator: floating-point operations, and bytes that it has to read and to write.

One table, a function for each kind of operator. Bytes are compulsory: each input is read once and each output is
written once, however often a kernel does so. A product of (m, k) and (k, n) is 2 m k n operations; what else a kernel
computes (exponentials, comparisons) is not counted, since memory limits such kernels. Where inputs do not tell the work
(sequences of unknown lengths, a stride that is not recorded), there is none: such time is not modelled.

Sources: the schemas of `aten/src/ATen/native/native_functions.yaml` (torch 2.9) for the order of inputs, and for their
own `csrc/common_extension.cc` of sgl-kernel and `csrc/torch_bindings.cpp` of vLLM; Williams et al., "Roofline" (CACM
2009) for compulsory traffic; cuDNN's documentation for convolutions; the documentation of torch.optim for what
optimizers read and write. Attention and images have modules of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from tb_ddp_doctor.digest.attention_work import ATTENTION_WORK, sum_of_seen
from tb_ddp_doctor.digest.compiled_products import matrix_product
from tb_ddp_doctor.digest.image_work import IMAGE_WORK, at
from tb_ddp_doctor.digest.least_work import Work, WorkOf, aten
from tb_ddp_doctor.digest.model import GpuTime
from tb_ddp_doctor.digest.operator_inputs import Dims, Inputs, LookupSizes, Tensor, count_of
from tb_ddp_doctor.trace import names

#: More operations or bytes in one operator are nonsense.
_MOST = 10**16
#: Bytes of a number in half precision, and dimensions of a matrix.
_HALF, _MATRIX = 2, 2
_INDEX = "aten::index"
#: Bytes that a block of torch's vectorised gather copies: 256 threads of 16 (`IndexKernelUtils.cu`).
_GATHERED = 256 * 16
#: Bytes of an element by c10's number of its type, as inputs have it: "15" is bfloat16.
_BY_CODE = {"0": 1, "1": 1, "2": 2, "3": 4, "4": 8, "5": 2, "6": 4, "7": 8, "11": 1, "15": 2, "23": 1, "24": 1}


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
    return _compiled_product if names.is_compiled_product(operator) else None


def is_modelled(operator: str) -> bool:
    """Whether the table has an operator."""
    return operator in _WORK


# -- GEMMs


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
        return _gemm(inputs.tensor(0), inputs.tensor(1), more, _BY_CODE.get(inputs.value(code), 2))

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


def _compiled_product(inputs: Inputs) -> Work:
    """Reads all tensors but the last one, and writes that. Whether float32 is multiplied in TF32 is not recorded."""
    tensors = [one for one in inputs.every() if one.sizes]
    product = matrix_product([one.sizes for one in tensors])
    if product is None:
        raise LookupError
    element = tensors[product.left].element
    if element > _HALF or {tensors[product.right].element, tensors[0].element} != {element}:
        raise LookupError
    return Work(GpuTime.GEMM, product.flops, count_of(tensors[:-1]), tensors[-1].bytes)


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


def gathers(operator: str) -> bool:
    """Whether an operator's indices are in a list, whose sizes are not recorded."""
    return operator == _INDEX


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
    return _loop(GpuTime.NORM, [given, made], Tensor(given.sizes, _BY_CODE.get(inputs.value(3), given.element)))


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


# -- embeddings and indices


def _embedding(inputs: Inputs) -> Work:
    """Reads the rows that are asked for: at most all of the table. Of equal rows one is read."""
    table, rows = inputs.tensor(0), inputs.tensor(1)
    width = math.prod(table.sizes[1:]) * table.element
    return Work(GpuTime.EMBEDDING, 0, rows.bytes + min(rows.elements, table.sizes[0]) * width, rows.elements * width)


def _embedding_backward(inputs: Inputs) -> Work:
    """Reads gradients and rows, and writes the whole table's gradient."""
    given, rows = inputs.tensor(0), inputs.tensor(1)
    return Work(GpuTime.EMBEDDING, 0, given.bytes + rows.bytes, int(inputs.value(2)) * given.sizes[-1] * given.element)


def _index(inputs: Inputs) -> Work:
    """Slices of the first dimension: one for each block of the grid's first dimension, which fill the second one."""
    table = inputs.tensor(0)
    count, blocks, _ = inputs.grid
    width = table.bytes // max(table.sizes[0], 1)
    if table.sizes[0] < _MATRIX or blocks != max(-(-width // _GATHERED), 1):
        # Another dimension was indexed.
        raise LookupError
    return Work(GpuTime.EMBEDDING, 0, 8 * count + min(count, table.sizes[0]) * width, count * width)


def _index_select(inputs: Inputs) -> Work:
    table, rows, dimension = inputs.tensor(0), inputs.tensor(2), int(inputs.value(1))
    slices = table.sizes[dimension]
    width = table.bytes // max(slices, 1)
    return Work(GpuTime.EMBEDDING, 0, rows.bytes + min(rows.elements, slices) * width, rows.elements * width)


def _gather(inputs: Inputs) -> Work:
    table, indices = inputs.tensor(0), inputs.tensor(2)
    moved = indices.elements * table.element
    return Work(GpuTime.EMBEDDING, 0, indices.bytes + min(moved, table.bytes), moved)


def _scatter(inputs: Inputs) -> Work:
    """Reads indices and what goes there, and writes as much."""
    table, indices = inputs.tensor(0), inputs.tensor(2)
    source = inputs.tensor(3).bytes if inputs.has(3) else 0
    return Work(GpuTime.EMBEDDING, 0, indices.bytes + source, indices.elements * table.element)


def _index_add(inputs: Inputs) -> Work:
    source = inputs.tensor(3)
    return Work(GpuTime.EMBEDDING, 0, source.bytes + inputs.tensor(2).bytes, source.bytes)


def _index_put(inputs: Inputs) -> Work:
    """Writes as many elements as it is given; what they are added to (input 3) is read first."""
    source = inputs.tensor(2)
    if not source.sizes:
        # How many places one number goes to is told by indices, whose sizes are not recorded.
        raise LookupError
    return Work(GpuTime.EMBEDDING, 0, source.bytes * (1 + inputs.is_true(3)), source.bytes)


def _index_fill(inputs: Inputs) -> Work:
    table, rows = inputs.tensor(0), inputs.tensor(2)
    width = table.bytes // max(table.sizes[int(inputs.value(1))], 1)
    return Work(GpuTime.EMBEDDING, 0, rows.bytes, rows.elements * width)


def _take(inputs: Inputs) -> Work:
    table, indices = inputs.tensor(0), inputs.tensor(1)
    moved = indices.elements * table.element
    return Work(GpuTime.EMBEDDING, 0, indices.bytes + min(moved, table.bytes), moved)


def _nonzero(inputs: Inputs) -> Work:
    """How many there are, and so what it writes, no trace shows."""
    return Work(GpuTime.EMBEDDING, 0, inputs.tensor(0).bytes, 0)


def _bags(inputs: Inputs) -> Work:
    """Sums of rows, a sum for each offset; the last one is an end where input 7 says so."""
    table, rows, offsets = (inputs.tensor(index) for index in range(3))
    width = math.prod(table.sizes[1:]) * table.element
    read = rows.bytes + offsets.bytes + min(rows.elements, table.sizes[0]) * width
    return Work(GpuTime.EMBEDDING, 0, read, (offsets.elements - inputs.is_true(7)) * width)


def _table_batched(inputs: Inputs) -> Work:
    """FBGEMM's lookups of all tables: each row that is asked for, and its sums (its benchmarks count the same)."""
    of = inputs.looked_up
    if of is None:
        raise LookupError
    moved = min(of.lookups, of.rows) * of.width * of.element
    sums = of.samples * of.features * of.width * (of.made or of.element)
    return Work(GpuTime.EMBEDDING, 0, _of_indices(of) + moved, sums)


def _table_batched_update(inputs: Inputs) -> Work:
    """Backward of that with row-wise Adagrad: gradients, and each row and its number of momentum, read and written.

    Where lookups count differently, how much they do has gradients, too.
    """
    of = inputs.looked_up
    if of is None:
        raise LookupError
    moved = min(of.lookups, of.rows) * (of.width * of.element + 4)
    counts = 4 * of.lookups * of.is_weighted
    return Work(GpuTime.EMBEDDING, 0, inputs.tensor(0).bytes + _of_indices(of) + moved, moved + counts)


def _checked(inputs: Inputs) -> Work:
    """Reads indices and offsets, inputs 1 and 2; writes those that are no rows alone."""
    return Work(GpuTime.EMBEDDING, 0, inputs.tensor(1).bytes + inputs.tensor(2).bytes, 0)


def _of_indices(of: LookupSizes) -> int:
    """Bytes of indices, offsets, and of how much each lookup counts."""
    return of.index * (of.lookups + of.samples * of.features + 1) + 4 * of.lookups * of.is_weighted


def _bags_backward(inputs: Inputs) -> Work:
    """Gradients of the sums, rows, and the bag of each, to the whole table's gradient; input 5 is its rows."""
    given = inputs.tensor(0)
    read = given.bytes + inputs.tensor(1).bytes + inputs.tensor(2).bytes
    return Work(GpuTime.EMBEDDING, 0, read, int(inputs.value(5)) * given.sizes[-1] * given.element)


def _nll_loss(inputs: Inputs) -> Work:
    """One score for each target."""
    scores, targets = inputs.tensor(0), inputs.tensor(1)
    return Work(GpuTime.EMBEDDING, 0, targets.bytes + targets.elements * scores.element, scores.element)


def _nll_loss_backward(inputs: Inputs) -> Work:
    """One gradient for each target: the zeros of the others are an operator of their own."""
    scores, targets = inputs.tensor(1), inputs.tensor(2)
    return Work(GpuTime.EMBEDDING, 0, targets.bytes, targets.elements * scores.element)


def _in_and_out(kind: GpuTime, *changed: int) -> WorkOf:
    """Reads some inputs and writes them again; reads the others."""

    def function(inputs: Inputs) -> Work:
        return Work(kind, 0, count_of(inputs.every()), sum(inputs.tensor(index).bytes for index in changed))

    return function


def _routed(inputs: Inputs) -> Work:
    """Transformer Engine's: rows, input 0, once for each expert that has them, so many (input 2) in all."""
    rows, made = inputs.tensor(0), int(inputs.value(2))
    if made <= 0:
        raise LookupError
    width = rows.bytes // max(rows.sizes[0], 1)
    others = count_of(inputs.every(0))
    return Work(GpuTime.EMBEDDING, 0, min(rows.sizes[0], made) * width + others, made * width)


def _rotary(inputs: Inputs) -> Work:
    """VLLM's: of a table of angles, input 4, the rows of the positions, input 0, for queries and keys in place."""
    table, positions = inputs.tensor(4), inputs.tensor(0)
    turned = count_of([one for some in inputs.tensors[1:3] for one in some])
    rows = min(positions.elements, table.sizes[0]) * table.bytes // max(table.sizes[0], 1)
    return Work(GpuTime.ELEMENTWISE, 0, positions.bytes + turned + rows, turned)


def _cached(parts: int) -> WorkOf:
    """Writes its first inputs to a cache, the input after them; the number of a row's place in it is read."""

    def function(inputs: Inputs) -> Work:
        given, cache = [inputs.tensor(index) for index in range(parts)], inputs.tensor(parts)
        return Work(GpuTime.EMBEDDING, 0, count_of(given), cache.element * sum(one.elements for one in given))

    return function


def _into_first(kind: GpuTime) -> WorkOf:
    """Writes its first input, and reads the others."""
    return lambda inputs: _loop(kind, inputs.every(0), inputs.tensor(0))


def _each(function: WorkOf, *operators: str) -> dict[str, WorkOf]:
    return dict.fromkeys(operators, function)


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
_PLACES = ("inplace", "outplace")
_FILLS = "fill_ zero_ normal_ uniform_ random_ bernoulli_ exponential_ log_normal_"
_REDUCTIONS = "sum mean var std prod amax amin logsumexp nansum var_mean std_mean"
_PERMUTED_BACKWARD = (
    "torch::autograd::CppNode<fbgemm_gpu::PermutePooledEmbsFunction<&fbgemm_gpu::permute_pooled_embs_gpu> >"
)
_OPTIMIZERS = "adagrad adam lamb lars_sgd none partial_rowwise_adam partial_rowwise_lamb rowwise_adagrad sgd"
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
    # GEMMs. https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication
    **aten(lambda inputs: _gemm(inputs.tensor(0), inputs.tensor(1)), "mm bmm _int_mm"),
    **aten(_added, "addmm baddbmm _addmm_activation addmm_ baddbmm_"),
    "aten::_scaled_mm": _scaled(6),
    **_each(
        _scaled(4), "sgl_kernel::fp8_scaled_mm", "sgl_kernel::int8_scaled_mm", "sgl_kernel::fp8_blockwise_scaled_mm"
    ),
    # Transformer Engine: in 1.x its products may be operators, else they are parts of autograd's.
    "tex_ts::te_gemm_ts": _of_three(0, 5, 10),
    **_each(_fused_linear(1), "_Linear", "_LayerNormLinear", "_GroupedLinear", "_LayerNormMLP"),
    **_each(_fused_linear(2), "_LinearBackward", "_LayerNormLinearBackward", "_GroupedLinearBackward"),
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
    **_each(_into, "_C::cutlass_scaled_mm", "vllm::cutlass_scaled_mm"),
    **_each(_linear, "vllm::rocm_unquantized_gemm", "vllm::rocm_unquantized_gemm_impl"),
    "_C::awq_gemm": _by_scales(2),
    "_C::gptq_gemm": _by_scales(3),
    **_each(_by_numbers, *(f"{library}::gptq_marlin_gemm" for library in ("_C", "sgl_kernel"))),
    **_each(_by_numbers, "_C::marlin_gemm", "_C::fp8_marlin_gemm", "_C::gptq_marlin_24_gemm"),
    **_each(_experts, *(f"{library}::{word}_fused_experts" for library in ("vllm", "sglang") for word in _PLACES)),
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
    **_each(_norm, "FusedLayerNormAffineFunction", "FusedRMSNormAffineFunction", "ScaledMaskedSoftmax"),
    # Transformer Engine's, 1.x and 2.x.
    **_each(_norm, "_LayerNorm", "_RMSNorm"),
    "_OperationFuserAutogradFunction": _norm_alone,
    "_OperationFuserAutogradFunctionBackward": _alone_backward,
    **_each(_alone_backward, "FusedLayerNormAffineFunctionBackward", "FusedRMSNormAffineFunctionBackward"),
    **_each(_alone_backward, "_LayerNormBackward", "_RMSNormBackward"),
    **_each(_alone_backward, "ScaledMaskedSoftmaxBackward"),
    "ScaledUpperTriangMaskedSoftmax": _causal_softmax,
    **_each(_norm, "aiter::rms_norm", "aiter::_groupnorm_run"),
    **_each(_into_first(GpuTime.NORM), "_C::rms_norm", "sgl_kernel::rmsnorm", "sgl_kernel::gemma_rmsnorm"),
    "_C::rms_norm_static_fp8_quant": _into_first(GpuTime.NORM),
    "_C::fused_add_rms_norm_static_fp8_quant": _norm_of_sum(read=(1, 2, 3, 4), written=(0, 2)),
    "aiter::rmsnorm2d_fwd_with_add_ck": _norm_of_sum(read=(1, 2, 4), written=(0, 3)),
    "aiter::rmsnorm2d_fwd_ck": _norm,
    **_each(_in_and_out(GpuTime.NORM, 0, 1), "_C::fused_add_rms_norm", "sgl_kernel::fused_add_rmsnorm"),
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
    **_each(_elementwise(2), "GeLUFunction"),
    # Transformer Engine's rotary embeddings, with their table of angles, and what routes rows to experts.
    **_each(_in_and_out(GpuTime.ELEMENTWISE, 0), "FusedRoPEFunc", "FusedRoPEFuncBackward"),
    **_each(_in_and_out(GpuTime.EMBEDDING, 0), "_moe_chunk_sort", "_moe_chunk_sortBackward"),
    "_moe_permute_mask_map": _routed,
    **_each(_halves, "SwiGLUFunction", "BiasSwiGLUFunction"),
    **_each(
        _into_first(GpuTime.ELEMENTWISE),
        *(f"{library}::{word}_and_mul" for library in ("_C", "sgl_kernel") for word in ("silu", "gelu", "gelu_tanh")),
    ),
    "_C::rotary_embedding": _rotary,
    **_each(
        _into_first(GpuTime.ELEMENTWISE), "_C::silu_and_mul_quant", "_C::gelu_new", "_C::gelu_fast", "_C::gelu_quick"
    ),
    # Copies and casts.
    "aten::copy_": _copy,
    **aten(_concatenation, "cat _chunk_cat"),
    "fsdp::chunk_cat": _concatenation,
    **_each(_first_copied, "fsdp::split_with_sizes_copy", "aten::split_with_sizes_copy", "aten::flip", "aten::roll"),
    **_each(_first_copied, "fbgemm::permute_pooled_embs", "fbgemm::permute_pooled_embs_auto_grad", _PERMUTED_BACKWARD),
    "fbgemm::FloatToFP8RowwiseQuantized": _cast(1),
    "fbgemm::FP8RowwiseQuantizedToFloat": _cast(4),
    "fbgemm::FloatToHFP8Quantized": _cast(1),
    "fbgemm::HFP8QuantizedToFloat": _cast(4),
    **_each(_quantized_into, "_C::static_scaled_fp8_quant", "_C::dynamic_scaled_fp8_quant"),
    **_each(_quantized_into, "_C::dynamic_per_token_scaled_fp8_quant"),
    "_C::per_token_group_fp8_quant": _quantized_from,
    "bitsandbytes::dequantize_4bit": _from_4_bits,
    **_each(_quantized_from, "sgl_kernel::sgl_per_token_quant_fp8", "sgl_kernel::sgl_per_tensor_quant_fp8"),
    **_each(_quantized_from, "sgl_kernel::sgl_per_token_group_quant_fp8", "sgl_kernel::sgl_per_token_group_quant_int8"),
    "sgl_kernel::sgl_per_token_group_quant_8bit": _quantized_from,
    # Optimizers. https://docs.pytorch.org/docs/stable/optim.html: parameters, gradients, states.
    **aten(_fused(4, 3), "_fused_adam_ _fused_adamw_"),
    **aten(_fused(3, 2), "_fused_sgd_ _fused_adagrad_"),
    **aten(_foreach, " ".join(f"_foreach_{word} _foreach_{word}_" for word in _FOREACH.split())),
    "aten::_foreach_copy_": _copy_lists,
    "aten::_foreach_norm": _foreach_norm,
    "aten::_amp_foreach_non_finite_check_and_unscale_": _foreach,
    # Embeddings and indices.
    **aten(_embedding, "embedding"),
    "aten::embedding_dense_backward": _embedding_backward,
    _INDEX: _index,
    "aten::index_select": _index_select,
    "aten::gather": _gather,
    **aten(_scatter, "scatter scatter_ scatter_add scatter_add_ scatter_reduce scatter_reduce_"),
    **aten(_index_add, "index_add index_add_ index_copy index_copy_"),
    **aten(_index_put, "index_put_ _index_put_impl_"),
    "aten::index_fill_": _index_fill,
    "aten::take": _take,
    "aten::nonzero": _nonzero,
    "aten::_embedding_bag": _bags,
    # FBGEMM's: https://github.com/pytorch/FBGEMM, fbgemm_gpu/codegen and fbgemm_gpu/bench.
    **_each(
        _table_batched,
        *(f"fbgemm::split_embedding_codegen_lookup_{optimizer}_function" for optimizer in _OPTIMIZERS.split()),
    ),
    "torch::autograd::CppNode<SplitLookupFunction_rowwise_adagrad_Op>": _table_batched_update,
    "fbgemm::bounds_check_indices": _checked,
    "aten::_embedding_bag_dense_backward": _bags_backward,
    **aten(_nll_loss, "nll_loss_forward nll_loss2d_forward"),
    **aten(_nll_loss_backward, "nll_loss_backward nll_loss2d_backward"),
    **_each(_cached(2), "_C_cache_ops::reshape_and_cache_flash", "_C_cache_ops::reshape_and_cache"),
    "_C_cache_ops::concat_and_cache_mla": _cached(2),
}


_SPELLED = {"float": "float32", "double": "float64", "c10::Half": "float16", "long int": "int64", "long": "int64"}


def element_text(inputs: Inputs) -> str:
    """The type of the first tensor that a call is given, as users spell it, such as "bfloat16"; "" if none is told."""
    for kind, some in zip(inputs.types, inputs.tensors, strict=False):
        if some and some[0].sizes and kind in names.OPERATOR_ELEMENT_BYTES:
            return _SPELLED.get(kind, kind.removeprefix("c10::").lower())
    return ""
