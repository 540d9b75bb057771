"""GEMMs of Triton templates, from the sizes of their tensors alone."""

from __future__ import annotations

import pytest

from tb_ddp_doctor.digest.compiled_products import matrix_product
from tb_ddp_doctor.digest.shapes import Dims

MKN = 8192 * 1024 * 4096
LEFT, RIGHT, MADE = (8192, 1024), (1024, 4096), (8192, 4096)


@pytest.mark.parametrize(
    "sizes",
    [
        [LEFT, RIGHT, MADE],
        # Weights as they are stored, a batch of rows, and a view of the result.
        [(8, 1024, 1024), (4096, 1024), (8, 1024, 16, 256)],
        # A bias before, a scale, something as large as the result that is added; inputs that are no tensors.
        [(4096,), LEFT, RIGHT, (), MADE, (1,), MADE],
        # The result is added to in place, and so comes first.
        [MADE, LEFT, RIGHT],
    ],
)
def test_sizes_that_fit_one_product(sizes: list[Dims]) -> None:
    found = matrix_product(sizes)
    assert found is not None and found.flops == 2 * MKN


@pytest.mark.parametrize(
    "sizes",
    [
        [],
        [MADE],
        [LEFT, MADE],
        [LEFT, (1025, 4096), MADE],
        # A quarter of a buffer is read: its elements fit, its sizes do not.
        [(8192, 4096), RIGHT, MADE],
        # Two products, added: A B + C D.
        [LEFT, RIGHT, LEFT, RIGHT, MADE],
        [(512, 512)] * 5,
        [(0, 4), (4, 0), (0, 0)],
        [LEFT, RIGHT, MADE] * 6,
    ],
)
def test_sizes_that_fit_none(sizes: list[Dims]) -> None:
    assert matrix_product(sizes) is None
