"""The GEMM of a Triton template, which torch.compile picks where it tunes (mode="max-autotune"), from its tensors.

A template has the buffers of both matrices, of the result, and of what it fuses: a bias, something added. A buffer has
the sizes that it was made with, and may be transposed or flattened; the last one is the result:

    triton_tem_fused_addmm_gelu_view_4   [4096], [8, 1024, 1024], [4096, 1024], [8, 1024, 4096]
                                          bias    8,192 x 1,024    1,024 x 4,096   8,192 x 4,096
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

from tb_ddp_doctor.digest.shapes import Dims

#: Dimensions of a matrix.
_MATRIX = 2
#: More tensors than a template fuses.
_MOST_TENSORS = 16


class MatrixProduct(NamedTuple):
    """Of (rows, inner) and (inner, columns), which are these tensors of the call."""

    left: int
    right: int
    rows: int
    inner: int
    columns: int

    @property
    def flops(self) -> int:
        """A multiplication and an addition each."""
        return 2 * self.rows * self.inner * self.columns


def matrix_product(sizes: Sequence[Dims]) -> MatrixProduct | None:
    """The product whose result is the last tensor; None where sizes fit none, or several that differ.

    A buffer of which only a part is multiplied does not fit.
    """
    tensors = [one for one in sizes if one]
    if not 0 < len(tensors) <= _MOST_TENSORS:
        return None
    products = list(_products(tensors[:-1], tensors[-1]))
    return products[0] if len({one.flops for one in products}) == 1 else None


def _products(given: Sequence[Dims], made: Dims) -> Iterator[MatrixProduct]:
    elements, result = [math.prod(one) for one in given], math.prod(made)
    for left, right in combinations(range(len(given)), 2):
        if min(len(given[left]), len(given[right])) < _MATRIX or not all((elements[left], elements[right], result)):
            continue
        # (m k) (m n) / (k n) = m ** 2, and so on.
        rows = _root(elements[left] * result, elements[right])
        inner = _root(elements[left] * elements[right], result)
        columns = _root(elements[right] * result, elements[left])
        others = [size for index, size in enumerate(elements) if index not in (left, right)]
        fits = _splits(given[left], rows, inner) and _splits(given[right], inner, columns)
        if fits and _splits(made, rows, columns) and _are_fused(others, rows, columns):
            yield MatrixProduct(left, right, rows, inner, columns)


def _root(product: int, divisor: int) -> int:
    """The whole square root of a quotient, 0 where there is none."""
    squared, rest = divmod(product, divisor)
    root = math.isqrt(squared)
    return 0 if rest or root**2 != squared else root


def _splits(sizes: Dims, rows: int, columns: int) -> bool:
    """Whether a tensor is a matrix of so many rows and columns, or the transpose of one, once flattened."""
    return any({math.prod(sizes[:at]), math.prod(sizes[at:])} == {rows, columns} for at in range(1, len(sizes)))


def _are_fused(elements: Sequence[int], rows: int, columns: int) -> bool:
    """Whether other tensors can be what is fused: numbers, one for each row or column, at most one whole matrix."""
    wholes = [count for count in elements if count not in (1, rows, columns)]
    return wholes in ([], [rows * columns])
