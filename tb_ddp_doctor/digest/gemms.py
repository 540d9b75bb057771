"""Products of matrices, on tensor cores and off them."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest.launches import enclosing
from tb_ddp_doctor.digest.model import GemmWork
from tb_ddp_doctor.digest.owners import by_name
from tb_ddp_doctor.digest.shapes import dims
from tb_ddp_doctor.digest.sums import count, longest, total
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Category, Ints, RankTrace

#: Of a product's inputs, those that are multiplied, and what is added to them.
_INPUTS = 3
#: Tensors with more dimensions, or larger ones, are no matrices of a model.
_DIMENSIONS = 8
_LARGEST = 2**40


def gemms(trace: RankTrace, rows: Ints, step: Ints, size: int) -> GemmWork:
    """The products of the steps, from compute kernels `rows`, and the step of each."""
    kinds = by_name(trace, rows, names.product)
    start, length = trace.events.start_ns[rows], trace.events.duration_ns[rows]
    float32, misaligned = kinds == names.Product.FLOAT32, kinds == names.Product.MISALIGNED
    slow_start, slow_end = longest(step, float32 | misaligned, start, length, size)
    return GemmWork(
        tensor_ns=total(step, kinds == names.Product.TENSOR, length, size),
        float32_products=count(step, float32, size),
        float32_ns=total(step, float32, length, size),
        misaligned_products=count(step, misaligned, size),
        misaligned_ns=total(step, misaligned, length, size),
        slow_product_start_ns=slow_start,
        slow_product_end_ns=slow_end,
    )


def slow_inputs(trace: RankTrace, rows: Ints, launch: Ints) -> list[str]:
    """What the operators that launched kernels `rows` were given, as in "64x512, 512x30"; "" where that is not told.

    Only of products off the tensor cores: their dimensions say what to change.
    """
    events = trace.events
    told = [""] * len(rows)
    slow = np.isin(by_name(trace, rows, names.product), (names.Product.FLOAT32, names.Product.MISALIGNED))
    asked = np.flatnonzero(slow & (launch >= 0))
    if not len(asked):
        return told
    operators = np.flatnonzero((events.category == Category.OP) & (events.shape >= 0))
    around = enclosing(
        events.start_ns[operators],
        events.start_ns[operators] + events.duration_ns[operators],
        events.thread[operators],
        events.start_ns[launch[asked]],
        events.thread[launch[asked]],
    )
    for i, operator in zip(asked[around >= 0].tolist(), operators[around[around >= 0]].tolist(), strict=True):
        inputs = dims(trace.strings[events.shape[operator]])
        matrices = [sizes for sizes in inputs if 1 < len(sizes) <= _DIMENSIONS and max(sizes) <= _LARGEST]
        told[i] = ", ".join("x".join(map(str, sizes)) for sizes in matrices[:_INPUTS] if min(sizes) >= 0)
    return told
