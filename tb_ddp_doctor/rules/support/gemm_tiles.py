"""How well the sizes of GEMMs fit the tiles of their kernels, and these the multiprocessors of the GPU.

A kernel computes its output in tiles, a multiprocessor one tile at a time. A (1000, 64) x (64, 300) GEMM in tiles of
128 x 128 on 132 multiprocessors:

    tiles        8 x 3 = 24, which hold 1024 x 384 elements: 300,000 of 393,216 are of use, 76 %
    waves        24 tiles in one wave of 132: 18 %

Source: NVIDIA, "Matrix Multiplication Background", tile and wave quantization, and alignment to 16 bytes.
"""

from __future__ import annotations

import re
from itertools import pairwise

import msgspec

from tb_ddp_doctor.facts.roofline import KernelRoof

#: Two sizes, as in "_128x256_" or "_tilesize64x64x32_", between words.
_TILE = re.compile(r"(?<!\d)(\d{2,3})x(\d{2,3})(?!\d)")
_SMALLEST, _LARGEST = 16, 512
#: Several multiprocessors share an output's tile: the number of tiles does not tell that of waves.
_SPLIT = re.compile(r"split_?k|stream_?k", re.IGNORECASE)
_ALIGNED_TO = re.compile(r"align(\d+)")
_ALIGNMENT_BYTES = 16
_ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1}


class Gemm(msgspec.Struct, frozen=True):
    """`batch` GEMMs of (m, k) and (k, n)."""

    batch: int
    m: int
    n: int
    k: int


class TileUse(msgspec.Struct, frozen=True):
    """Which share of a kernel's work is of use, 0 to 1 each; 1 where the kernel does not tell."""

    #: Of the elements in its tiles, and of the multiprocessors in its waves of tiles.
    tiles: float
    waves: float
    #: Output tiles; 0 if unknown.
    count: int


def gemm(one: KernelRoof) -> Gemm | None:
    """The sizes of a GEMM by its inputs, the first two that fit each other and the FLOPs; None for what is none."""
    try:
        inputs = [[int(size) for size in each.split("x")] for each in one.inputs.split(", ")]
    except ValueError:
        return None
    for left, right in pairwise(inputs):
        if len(left) < 2 or len(left) != len(right) or left[-1] != right[-2]:
            continue
        batch = one.flops // max(2 * left[-2] * left[-1] * right[-1], 1)
        if batch and 2 * batch * left[-2] * left[-1] * right[-1] == one.flops:
            return Gemm(batch, m=left[-2], n=right[-1], k=left[-1])
    return None


def fit(kernel: str, sizes: Gemm, multiprocessors: int) -> TileUse:
    """How well sizes fit the tiles that a kernel's name tells; of the two orientations of a tile the better one.

    `multiprocessors` is 0 if unknown.
    """
    sides = next((pair for pair in _TILE.findall(kernel) if _is_tile(*map(int, pair))), None)
    if sides is None:
        return TileUse(1.0, 1.0, 0)
    one, other = map(int, sides)
    rows, columns = max(
        ((one, other), (other, one)), key=lambda tile: _of_use(sizes.m, tile[0]) * _of_use(sizes.n, tile[1])
    )
    count = sizes.batch * -(-sizes.m // rows) * -(-sizes.n // columns)
    split = not multiprocessors or _SPLIT.search(kernel)
    waves = 1.0 if split else _of_use(count, multiprocessors)
    return TileUse(_of_use(sizes.m, rows) * _of_use(sizes.n, columns), waves, count)


def is_misaligned(kernel: str, sizes: Gemm, dtype: str) -> bool:
    """Whether the kernel reads or writes rows that are no multiple of 16 bytes, by its name, else by its output's."""
    element = _ELEMENT_BYTES.get(dtype)
    if element is None:
        return False
    if named := _ALIGNED_TO.search(kernel):
        return int(named[1]) * element < _ALIGNMENT_BYTES
    return sizes.n * element % _ALIGNMENT_BYTES > 0


def _is_tile(rows: int, columns: int) -> bool:
    return all(_SMALLEST <= size <= _LARGEST and size % 8 == 0 for size in (rows, columns))


def _of_use(size: int, unit: int) -> float:
    """Which share of the units that hold a size is of use."""
    return size / (-(-size // unit) * unit)
