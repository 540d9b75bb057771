"""The layers of a model by the sizes of its gradients: sizes that repeat are layers that do.

Traces name modules only where stacks are recorded; the sizes of a transformer's gradients repeat from block to block.
"""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.trace.model import Ints


def repeated_layers(elements: Ints) -> Ints:
    """Index of the last gradient of each layer, ascending, with one before the first of them; empty where none repeat.

    From elements of gradients in their order. Of all stretches that repeat themselves the one with most elements is
    taken, in its shortest period.
    """
    best, found = 0, np.empty(0, np.int64)
    for period in range(1, len(elements) // 2 + 1):
        first, same = _longest(elements[:-period] == elements[period:])
        layers = (same + period) // period
        covered = int(elements[first : first + layers * period].sum()) if same >= period else 0
        if covered > best:
            best, found = covered, first - 1 + period * np.arange(layers + 1)
    return found


def _longest(same: np.ndarray) -> tuple[int, int]:
    """Where the longest run of True begins, and its length."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], same, [False])).astype(np.int8)))
    if not len(edges):
        return 0, 0
    lengths = edges[1::2] - edges[::2]
    longest = int(lengths.argmax())
    return int(edges[2 * longest]), int(lengths[longest])
