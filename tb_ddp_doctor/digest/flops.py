"""Floating-point operations of matrix products, convolutions and attention, from the shapes of operators.

A product of (m, k) and (k, n) is 2 m k n operations. Backward multiplies twice as much as forward. Convolutions are
counted where their gradients are computed, whose operator alone shows the sizes of what goes in and what comes out:
once for forward and twice for backward. Causal attention counts as if all of its scores were used, as is usual.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from tb_ddp_doctor.digest.compiled_products import matrix_product
from tb_ddp_doctor.digest.fused_linear import fused_linears
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.model import FlopWork, Steps
from tb_ddp_doctor.digest.shapes import Dims, dims
from tb_ddp_doctor.digest.steps import within
from tb_ddp_doctor.digest.vocabulary import Mask
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Bytes8, Ints
from tb_ddp_doctor.trace.names import Multiplies

#: More in one operator is nonsense.
_MOST = 10**16
#: What backward computes as well where it computes forward once more.
_FORWARD = (Multiplies.ADDED, Multiplies.ATTENTION, Multiplies.ATTENTION_BY_ROWS, Multiplies.FUSED_LINEAR)
#: More in one step is too, and both columns together must fit into an int64.
_MOST_OF_A_STEP = 2**61


def flops(host: HostCalls, steps: Steps) -> FlopWork:
    """Operations of the model, and those that were done again, by the step of their host."""
    multiplies = host.names.kinds(names.multiplies)
    operators = np.flatnonzero(host.is_operator & host.named(names.multiplies))
    operators = operators[host.shape[operators] >= 0]
    kind, shape = multiplies[host.name[operators]], host.shape[operators]
    # A product's shape says most of its kind: each pair is counted once.
    pairs, which = np.unique(kind * np.int64(len(host.trace.strings)) + shape, return_inverse=True)
    pair_names = (divmod(pair, len(host.trace.strings)) for pair in pairs.tolist())
    done = np.array([_count(Multiplies(kind), dims(host.trace.strings[shape])) for kind, shape in pair_names])
    done = done.reshape(-1, 2)[which].astype(np.int64)
    model, again = done[:, 0], done[:, 1]
    linears = fused_linears(host)
    once = np.array([*(one.flops for one in linears.sizes), 0], np.int64)
    model = model + once[linears.of(operators)] * np.where(kind == Multiplies.FUSED_LINEAR_BACKWARD, 2, 1)
    accumulated = np.flatnonzero(host.is_operator & host.named(names.accumulates))
    of_weights = _gradients_of_weights(host, accumulated, operators, once[linears.of(accumulated)])
    repeated = _repeated(host, operators, kind)
    step = within(host.start_ns[operators], steps)
    return FlopWork(
        model_flops=np.minimum(
            _summed(step, np.where(repeated, 0, model), len(steps))
            + _summed(within(host.start_ns[accumulated], steps), of_weights, len(steps)),
            _MOST_OF_A_STEP,
        ),
        repeated_flops=_summed(step, np.where(repeated, model, again), len(steps)),
    )


def _summed(step: Ints, amount: Ints, size: int) -> Ints:
    """Sum of what each step does, shape (size,); exact below 2 ** 53."""
    summed = np.bincount(step[step >= 0], weights=amount[step >= 0], minlength=size)
    return np.minimum(summed, _MOST_OF_A_STEP).astype(np.int64)


def _gradients_of_weights(host: HostCalls, layers: Ints, operators: Ints, once: Ints) -> Ints:
    """Operations of a product that no operator shows, of the backward passes of Megatron-LM's linear layers: where only
    the gradient of the input has an operator. `once` is what each layer's product takes.
    """
    is_layer = np.zeros(len(host), np.bool_)
    is_layer[layers] = True
    around = host.around(operators, is_layer)
    products = np.bincount(around[around >= 0], minlength=len(host))[layers]
    return np.where(products == 1, once, 0)


def _repeated(host: HostCalls, operators: Ints, kind: Bytes8) -> Mask:
    """Which operators compute forward once more: in a checkpoint's own backward, or such as backward has no use for."""
    around = host.around(operators, host.is_operator & host.named(names.is_backward))
    inside = around >= 0
    checkpoint = np.zeros(len(operators), np.bool_)
    checkpoint[inside] = host.names.among(host.name[around[inside]], names.is_checkpoint)
    forward = np.isin(kind, _FORWARD)
    return checkpoint | (inside & forward)


def _count(kind: Multiplies, inputs: list[Dims]) -> tuple[int, int]:
    """Operations of the model that an operator stands for, and those beside them that it does again."""
    try:
        model, again = _COUNTS[kind](inputs)
    except (IndexError, ZeroDivisionError):
        return 0, 0
    return (model, again) if 0 <= model <= _MOST and 0 <= again <= _MOST else (0, 0)


def _product(left: Dims, right: Dims) -> tuple[int, int]:
    return (2 * math.prod(left) * right[-1], 0) if left[-1] == right[-2] else (0, 0)


def _template(inputs: list[Dims]) -> tuple[int, int]:
    product = matrix_product(inputs)
    return (product.flops if product else 0), 0


def _attention(query: Dims, key: Dims, rows: int) -> int:
    """Of one product of queries and keys; `rows` is the dimension of their rows."""
    return 2 * math.prod(query) * key[rows]


def _convolution(taken: Dims, made: Dims, weight: Dims) -> tuple[int, int]:
    """Of a convolution's input, output and weights; each weight is used once for every pixel of one of the former."""
    if made[1] == taken[1]:
        # As many channels come in as go out: what is no smaller than the other is not what is strided over.
        pixels = min(made, taken, key=lambda sizes: math.prod(sizes[2:]))
    else:
        # A transposed convolution's weights begin with the channels that come in.
        pixels = made if weight[0] == made[1] else taken
    return 3 * 2 * pixels[0] * math.prod(pixels[2:]) * math.prod(weight), 0


def _elsewhere(_inputs: list[Dims]) -> tuple[int, int]:
    """Of layers whose sizes are not in one operator's inputs (`digest.fused_linear`)."""
    return 0, 0


_COUNTS: Mapping[Multiplies, Callable[[list[Dims]], tuple[int, int]]] = {
    Multiplies.FUSED_LINEAR: _elsewhere,
    Multiplies.FUSED_LINEAR_BACKWARD: _elsewhere,
    Multiplies.TEMPLATE: _template,
    Multiplies.PLAIN: lambda inputs: _product(inputs[0], inputs[1]),
    Multiplies.ADDED: lambda inputs: _product(inputs[1], inputs[2]),
    Multiplies.CONVOLUTION_BACKWARD: lambda inputs: _convolution(inputs[1], inputs[0], inputs[2]),
    Multiplies.OLD_CONVOLUTION_BACKWARD: lambda inputs: _convolution(*inputs[:3]) if len(inputs) > 2 else (0, 0),
    Multiplies.ATTENTION: lambda inputs: (2 * _attention(inputs[0], inputs[1], -2), 0),
    Multiplies.ATTENTION_BACKWARD: lambda inputs: (
        4 * _attention(inputs[1], inputs[2], -2),
        _attention(inputs[1], inputs[2], -2),
    ),
    Multiplies.ATTENTION_BY_ROWS: lambda inputs: (2 * _attention(inputs[0], inputs[1], -3), 0),
    Multiplies.ATTENTION_BY_ROWS_BACKWARD: lambda inputs: (
        4 * _attention(inputs[1], inputs[2], -3),
        _attention(inputs[1], inputs[2], -3),
    ),
}
