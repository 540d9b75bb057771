"""Sizes of tensors from the raw JSON of "Input Dims"."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from tb_ddp_doctor.storage.message import REFUSALS

Dims: TypeAlias = tuple[int, ...]
#: torch's own limit. Products of sizes from a file without one could take any time.
_MOST_DIMENSIONS = 64


def dims(text: str) -> list[Dims]:
    """Sizes of each input; () of inputs that are no tensors, or lists of them, or have more dimensions than any."""
    try:
        inputs = msgspec.json.decode(text, type=list[msgspec.Raw])
    except REFUSALS:
        return []
    sizes: list[Dims] = []
    for raw in inputs:
        try:
            dimensions = msgspec.json.decode(raw, type=tuple[int, ...])
            sizes.append(dimensions if len(dimensions) <= _MOST_DIMENSIONS else ())
        except REFUSALS:
            sizes.append(())
    return sizes
