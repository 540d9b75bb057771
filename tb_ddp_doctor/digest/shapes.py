"""Sizes of tensors from the raw JSON of "Input Dims"."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

Dims: TypeAlias = tuple[int, ...]
_REFUSALS = (msgspec.DecodeError, UnicodeError, RecursionError)


def dims(text: str) -> list[Dims]:
    """Sizes of each input; () of inputs that are no tensors, or lists of them."""
    try:
        inputs = msgspec.json.decode(text, type=list[msgspec.Raw])
    except _REFUSALS:
        return []
    sizes: list[Dims] = []
    for raw in inputs:
        try:
            sizes.append(msgspec.json.decode(raw, type=tuple[int, ...]))
        except _REFUSALS:
            sizes.append(())
    return sizes
