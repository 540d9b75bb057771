"""Linear layers that one operator multiplies whole: Transformer Engine's, with their norms, casts and experts.

Forward says the sizes of its input and weights, backward those of the output's gradient alone; they have the same
sequence number. With sequence parallelism the layer gathers its input, or scatters its output, over the ranks of its
tensor: the product has the rows of whichever has more.

    forward   _LayerNormLinear          4,096 x 1,024 (a quarter of the rows), weights 3,072 x 1,024
    backward  _LayerNormLinearBackward  16,384 x 3,072                          -> 16,384 rows, 1,024 -> 3,072

Both matrices of a gated or plain MLP (`_LayerNormMLP`) count as one: (rows, hidden) x (hidden, columns of both).
Neither its input nor its output has the rows that sequence parallelism gathers: these are in the gather within the
call. Userbuffers gather without an operator, so that no MLP is known in a trace with their kernels.

The order of inputs is that of `transformer_engine/pytorch/module`, in 1.x and 2.x: weights first, or a norm's input
first. Megatron-LM's layer has its input first. Its products are operators of their own, but for the gradient of its
weights where that is added to the accumulated one at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tb_ddp_doctor.digest.autograd_nodes import makers
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.known_sizes import KnownSizes
from tb_ddp_doctor.digest.operator_inputs import LinearSizes
from tb_ddp_doctor.digest.shapes import Dims, dims
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Ints

#: More operations in one layer are nonsense.
_MOST = 10**16
#: Of an MLP whose rows no operator tells.
_UNKNOWN = -2


def fused_linears(host: HostCalls) -> KnownSizes[LinearSizes]:
    """The calls of fused linear layers that a rank made."""
    forward = np.flatnonzero(host.is_operator & host.named(names.is_linear) & (host.shape >= 0))
    if not len(forward):
        return KnownSizes.none()
    backward = np.flatnonzero(host.is_operator & host.named(names.is_linear_backward))
    made_by = makers(host, forward[host.thread[forward] == host.training_thread], backward)
    known = made_by >= 0
    backward, made_by = backward[known], made_by[known]
    gradient = np.full(len(host), -1, np.int64)
    gradient[made_by] = host.shape[backward]
    columns = np.stack([host.name[forward], host.shape[forward], gradient[forward], _gathered(host, forward)])
    keys, which = np.unique(columns.astype(np.int64), axis=1, return_inverse=True)
    strings = host.trace.strings
    sizes = [
        None if _UNKNOWN in shapes else _sizes(strings[name], *(_dims(strings, one) for one in shapes))
        for name, *shapes in keys.T.tolist()
    ]
    of_call = np.full(len(host), -1, np.int64)
    of_call[forward] = np.where([one is not None for one in sizes], np.arange(len(sizes)), -1)[which.reshape(-1)]
    of_call[backward] = of_call[made_by]
    call = np.flatnonzero(of_call >= 0)
    return KnownSizes(call, of_call[call], [one or LinearSizes(0, 0, 0, 0) for one in sizes])


def _dims(strings: Sequence[str], shape: int) -> list[Dims]:
    return dims(strings[shape]) if shape >= 0 else []


def _gathered(host: HostCalls, forward: Ints) -> Ints:
    """The shapes of the first gather within each MLP: an index of strings, -1 for none; `_UNKNOWN` of all MLPs where
    Userbuffers gather.
    """
    shapes = np.full(len(host), -1, np.int64)
    is_mlp = host.named(names.is_fused_mlp)
    if is_mlp[forward].any():
        gathers = np.flatnonzero(host.is_operator & host.named(names.gathers) & (host.shape >= 0))
        around = host.around(gathers, is_mlp)
        inside = around >= 0
        shapes[around[inside][::-1]] = host.shape[gathers[inside][::-1]]
        if any(map(names.is_userbuffers, host.trace.strings)):
            shapes[is_mlp] = _UNKNOWN
    return shapes[forward]


def _sizes(
    operator: str, inputs: Sequence[Dims], gradients: Sequence[Dims], gathered: Sequence[Dims]
) -> LinearSizes | None:
    """Sizes of a product, from the inputs of forward and of backward; None where they do not fit each other.

    `gathered`: what the first gather within an MLP is given.
    """
    tensors = [one for one in inputs if len(one) >= 2 and all(size > 0 for size in one)]
    if len(tensors) < 2:
        return None
    if names.is_fused_mlp(operator):
        return _mlp(tensors, gathered)
    if operator == "_Linear":
        weight, given = tensors[0], next((one for one in reversed(tensors[1:]) if one[-1] == tensors[0][-1]), ())
        weights = [weight]
    else:
        given = tensors[0]
        weights = [one for one in tensors[1:] if len(one) == 2 and one[-1] == given[-1]]
        weights = weights if operator == "_GroupedLinear" else weights[:1]
    if not given or not weights or len(weights[0]) != 2 or len(set(weights)) > 1:
        return None
    outer, inner = weights[0]
    made = next((one for one in gradients if one and one[-1] == outer), ())
    rows = max(math.prod(given[:-1]), math.prod(made[:-1]) if made else 0)
    sizes = LinearSizes(rows, inner, outer, len(weights))
    return sizes if 0 < sizes.flops <= _MOST else None


def _mlp(tensors: Sequence[Dims], gathered: Sequence[Dims]) -> LinearSizes | None:
    """Of an input of (..., hidden), weights of (columns, hidden) and weights of (hidden, columns or half as many)."""
    given, *others = tensors
    hidden = given[-1]
    up = next((one[0] for one in others if len(one) == 2 and one[-1] == hidden), 0)
    down = next((one[1] for one in reversed(others) if len(one) == 2 and one[0] == hidden), 0)
    if not up or down not in (up, up // 2):
        return None
    # A gather is given what it fills and what each rank has; several at once are a list, whose sizes do not fit.
    rows = max((math.prod(one[:-1]) for one in gathered or [given] if one and one[-1] == hidden), default=0)
    sizes = LinearSizes(rows, hidden, up + down, 1, made=hidden)
    return sizes if 0 < sizes.flops <= _MOST else None
