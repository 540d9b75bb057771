"""Attention that is computed as product, softmax and product, known by its operators' names and shapes.

The score matrix, (batch times heads, queries, keys), is what fused attention never writes to memory. It is known where
a softmax stands between two batched products on its thread, the first making a matrix of the softmax's shape, the
second multiplying it. Whatever else then has an input of that shape, forward or backward, is a pass over the scores.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

import numpy as np

from tb_ddp_doctor.digest.device_events import DeviceEvents
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.model import AttentionWork, Steps
from tb_ddp_doctor.digest.shapes import Dims, dims
from tb_ddp_doctor.digest.steps import within
from tb_ddp_doctor.digest.sums import count, longest, total
from tb_ddp_doctor.digest.vocabulary import Mask
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Ints

#: Batch, rows and columns of a stack of matrices.
Matrices: TypeAlias = tuple[int, int, int]


class OnScores(NamedTuple):
    """Which device events read or write a score matrix: products, and all others."""

    products: Mask
    passes: Mask


def on_scores(host: HostCalls, device: DeviceEvents) -> OnScores:
    """The device events of the steps that read or write a score matrix."""
    with_shape = host.is_operator & (host.shape >= 0)
    is_product = with_shape & host.named(names.is_batched_product)
    scores = _scores(host, is_product, np.flatnonzero(with_shape & host.named(names.is_softmax)))
    product, other = np.zeros(len(device), np.bool_), np.zeros(len(device), np.bool_)
    if scores:
        # A clone of scores is a copy within the device.
        runs = device.computes | device.is_copy
        known = np.flatnonzero(runs & device.is_launched & (device.step >= 0))
        inside = host.around(device.launch[known], with_shape)
        known, operator = known[inside >= 0], inside[inside >= 0]
        touches = _touches(host, operator, is_product, scores)
        product[known] = touches & is_product[operator]
        other[known] = touches & ~is_product[operator]
    return OnScores(product, other)


def attention(host: HostCalls, device: DeviceEvents, steps: Steps, on_scores: OnScores) -> AttentionWork:
    """The attention of the steps."""
    size, step = len(steps), device.step
    product, other = on_scores
    with_shape = host.is_operator & (host.shape >= 0)
    longest_start, longest_end = longest(step, other, device.start_ns, device.length_ns, size)
    fallback = host.start_ns[with_shape & host.named(names.is_attention_fallback)]
    return AttentionWork(
        attention_fallbacks=count(within(fallback, steps), np.ones(len(fallback), np.bool_), size),
        score_products_ns=total(step, product, device.length_ns, size),
        score_passes=count(step, other, size),
        score_passes_ns=total(step, other, device.length_ns, size),
        score_pass_start_ns=longest_start,
        score_pass_end_ns=longest_end,
    )


def _scores(host: HostCalls, is_product: Mask, softmaxes: Ints) -> set[Matrices]:
    """Shapes of the score matrices that the trace's softmaxes and products show."""
    gemms = np.flatnonzero(is_product)
    products: set[Matrices] = set()
    if not len(gemms):
        return products
    strings = host.trace.strings
    for thread in np.unique(host.thread[softmaxes]):
        here, middle = gemms[host.thread[gemms] == thread], softmaxes[host.thread[softmaxes] == thread]
        following = np.searchsorted(host.start_ns[here], host.start_ns[middle])
        between = (following > 0) & (following < len(here))
        middle, following = middle[between], following[between]
        # Each trio of shapes once: a model repeats its layers.
        shapes = np.stack((host.shape[here[following - 1]], host.shape[middle], host.shape[here[following]]))
        for first, softmax, second in np.unique(shapes, axis=1).T.tolist():
            inputs = dims(strings[softmax])
            score = _matrices(inputs[0]) if inputs else None
            made, used = _factors(strings[first]), _factors(strings[second])
            if score is None or made is None or used is None:
                continue
            left, right = made
            # Scores no larger than queries and keys cannot be told from these, and cost as little.
            if score == (left[0], left[1], right[2]) == used[0] and score[2] > left[2]:
                products.add(score)
    return products


def _touches(host: HostCalls, operators: Ints, is_product: Mask, scores: set[Matrices]) -> Mask:
    """Which operators have a score matrix among their inputs; of products, also as their result."""
    kinds, which = np.unique(2 * host.shape[operators].astype(np.int64) + is_product[operators], return_inverse=True)
    touches = []
    for kind in kinds.tolist():
        text = host.trace.strings[kind // 2]
        matrices: list[Matrices | None] = [_matrices(sizes) for sizes in dims(text)]
        factors = _factors(text) if kind % 2 else None
        if factors:
            matrices.append((factors[0][0], factors[0][1], factors[1][2]))
        touches.append(any(stack in scores for stack in matrices if stack))
    return np.array(touches, np.bool_)[which]


def _matrices(sizes: Dims) -> Matrices | None:
    """A tensor of three or more dimensions as a stack of matrices."""
    return (math.prod(sizes[:-2]), sizes[-2], sizes[-1]) if len(sizes) > 2 else None


def _factors(text: str) -> tuple[Matrices, Matrices] | None:
    """The two stacks that a batched product multiplies, from its raw "Input Dims"; baddbmm's first input is added."""
    stacks = [stack for sizes in dims(text) if (stack := _matrices(sizes))]
    return (stacks[-2], stacks[-1]) if len(stacks) > 1 else None
