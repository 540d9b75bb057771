"""Calls of the roofline are placed where the track has their kernels: in the row that launches them."""

from __future__ import annotations

import numpy as np
import pytest
from traces import digests

#: One call launches a graph of more kernels than a row of the track has, and ends in a later row than it begins in.
GRAPH = """
    rank0 step |1                              |2
          host [fwd][graph......][item.......] [fwd][graph......][item.......]
          gpu   [fwd][graph*300.........]       [fwd][graph*300.........]
"""


@pytest.mark.parametrize("text", [GRAPH, GRAPH.replace("*300", "*3")])
def test_calls_are_in_the_row_whose_device_time_they_are(text: str) -> None:
    (rank,) = digests(text, world_size=1).values()
    placed = np.zeros(len(rank.track), np.int64)
    placed[rank.roofline.rows.row] = rank.roofline.rows.ns
    assert placed.sum() > 0
    # The device time has the gaps between kernels of one row, too.
    assert (placed <= rank.track.device_ns).all()
