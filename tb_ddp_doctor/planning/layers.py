"""Finds the layers of a model by its gradients: in a transformer, the sizes of gradients repeat from block to block.

Traces name modules only if stacks are recorded, so names alone are not enough.
"""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest.repeats import repeats
from tb_ddp_doctor.trace.model import Ints


def repeated_layers(elements: Ints) -> Ints:
    """Index of the gradient before the first layer, then of the last gradient of each layer; empty if no sizes repeat.

    `elements` are the gradients' elements in their order: 9, [4, 2], [4, 2], [4, 2] gives 0, 2, 4, 6.
    """
    layers = repeats(elements)
    return np.append(layers.first[:1], layers.end) - 1
