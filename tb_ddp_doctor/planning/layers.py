"""Finds the layers of a model by its gradients: in a transformer, the sizes of gradients repeat from block to block.

Traces name modules only if stacks are recorded, so names alone are not enough.
"""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.trace.model import Ints


def repeated_layers(elements: Ints) -> Ints:
    """Index of the gradient before the first layer, then of the last gradient of each layer; empty if no sizes repeat.

    `elements` are the gradients' elements in their order. Of all stretches that repeat themselves, the one with most
    elements is taken, with its shortest period: 9, [4, 2], [4, 2], [4, 2] gives 0, 2, 4, 6.
    """
    best, lasts = 0, np.empty(0, np.int64)
    for period in range(1, len(elements) // 2 + 1):
        first, same = _longest(elements[:-period] == elements[period:])
        layers = (same + period) // period
        covered = int(elements[first : first + layers * period].sum()) if same >= period else 0
        if covered > best:
            best, lasts = covered, first - 1 + period * np.arange(layers + 1)
    return lasts


def _longest(same: np.ndarray) -> tuple[int, int]:
    """The index at which the longest run of True begins, and the run's length."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], same, [False])).astype(np.int8)))
    if not len(edges):
        return 0, 0
    lengths = edges[1::2] - edges[::2]
    longest = int(lengths.argmax())
    return int(edges[2 * longest]), int(lengths[longest])
