"""Attention that is computed as product, softmax and product, known by its operators' names and shapes.

The score matrix, (batch times heads, queries, keys), is what fused attention never writes to memory. It is known where
a softmax stands between two batched products on its thread, the first making a matrix of the softmax's shape, the
second multiplying it. Whatever else then has an input of that shape, forward or backward, is a pass over the scores.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np

from tb_ddp_doctor.digest.launches import enclosing
from tb_ddp_doctor.digest.model import AttentionWork, Steps
from tb_ddp_doctor.digest.owners import by_name
from tb_ddp_doctor.digest.shapes import Dims, dims
from tb_ddp_doctor.digest.steps import within
from tb_ddp_doctor.digest.sums import Mask, count, longest, total
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Category, Ints, RankTrace

#: Batch, rows and columns of a stack of matrices.
Matrices: TypeAlias = tuple[int, int, int]


def attention(trace: RankTrace, rows: Ints, launch: Ints, step: Ints, steps: Steps) -> AttentionWork:
    """The attention of the steps, from compute kernels `rows`, the row of each one's launch and its step (or -1)."""
    events, size = trace.events, len(steps)
    operators = np.flatnonzero((events.category == Category.OP) & (events.shape >= 0))
    is_product = np.zeros(len(events), np.bool_)
    is_product[operators] = by_name(trace, operators, names.is_batched_product) > 0
    scores = _scores(trace, operators, is_product)
    product, other = np.zeros(len(rows), np.bool_), np.zeros(len(rows), np.bool_)
    if scores:
        known = np.flatnonzero((launch >= 0) & (step >= 0))
        start = events.start_ns[operators]
        inside = enclosing(
            start,
            start + events.duration_ns[operators],
            events.thread[operators],
            events.start_ns[launch[known]],
            events.thread[launch[known]],
        )
        known, operator = known[inside >= 0], operators[inside[inside >= 0]]
        touches = _touches(trace, operator, is_product, scores)
        product[known] = touches & is_product[operator]
        other[known] = touches & ~is_product[operator]
    length = events.duration_ns[rows]
    longest_start, longest_end = longest(step, other, events.start_ns[rows], length, size)
    fallback = events.start_ns[operators[by_name(trace, operators, names.is_attention_fallback) > 0]]
    return AttentionWork(
        attention_fallbacks=count(within(fallback, steps), np.ones(len(fallback), np.bool_), size),
        score_products_ns=total(step, product, length, size),
        score_passes=count(step, other, size),
        score_passes_ns=total(step, other, length, size),
        score_pass_start_ns=longest_start,
        score_pass_end_ns=longest_end,
    )


def _scores(trace: RankTrace, operators: Ints, is_product: Mask) -> set[Matrices]:
    """Shapes of the score matrices that the trace's softmaxes and products show."""
    events = trace.events
    gemms = operators[is_product[operators]]
    found: set[Matrices] = set()
    if not len(gemms):
        return found
    softmaxes = operators[by_name(trace, operators, names.is_softmax) > 0]
    for thread in np.unique(events.thread[softmaxes]):
        here = gemms[events.thread[gemms] == thread]
        here = here[np.argsort(events.start_ns[here], kind="stable")]
        middle = softmaxes[events.thread[softmaxes] == thread]
        following = np.searchsorted(events.start_ns[here], events.start_ns[middle])
        between = (following > 0) & (following < len(here))
        middle, following = middle[between], following[between]
        # Each trio of shapes once: a model repeats its layers.
        shapes = np.stack((events.shape[here[following - 1]], events.shape[middle], events.shape[here[following]]))
        for first, softmax, second in np.unique(shapes, axis=1).T.tolist():
            inputs = dims(trace.strings[softmax])
            score = _matrices(inputs[0]) if inputs else None
            made, used = _factors(trace.strings[first]), _factors(trace.strings[second])
            if score is None or made is None or used is None:
                continue
            left, right = made
            # Scores no larger than queries and keys cannot be told from these, and cost as little.
            if score == (left[0], left[1], right[2]) == used[0] and score[2] > left[2]:
                found.add(score)
    return found


def _touches(trace: RankTrace, operators: Ints, is_product: Mask, scores: set[Matrices]) -> Mask:
    """Which operators have a score matrix among their inputs; of products, also as their result."""
    kinds, which = np.unique(
        np.stack((trace.events.shape[operators], is_product[operators])), axis=1, return_inverse=True
    )
    touches = []
    for shape, product in kinds.T.tolist():
        text = trace.strings[shape]
        matrices: list[Matrices | None] = [_matrices(sizes) for sizes in dims(text)]
        factors = _factors(text) if product else None
        if factors:
            matrices.append((factors[0][0], factors[0][1], factors[1][2]))
        touches.append(any(stack in scores for stack in matrices if stack))
    mask: Mask = np.array(touches, np.bool_)[which.reshape(-1)]
    return mask


def _matrices(sizes: Dims) -> Matrices | None:
    """A tensor of three or more dimensions as a stack of matrices."""
    return (math.prod(sizes[:-2]), sizes[-2], sizes[-1]) if len(sizes) > 2 else None


def _factors(text: str) -> tuple[Matrices, Matrices] | None:
    """The two stacks that a batched product multiplies, from its raw "Input Dims"; baddbmm's first input is added."""
    stacks = [stack for sizes in dims(text) if (stack := _matrices(sizes))]
    return (stacks[-2], stacks[-1]) if len(stacks) > 1 else None
