"""Sizes of calls that their own inputs do not tell: forward and backward tell them together."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec
import numpy as np

from tb_ddp_doctor.trace.model import Ints

Sizes = TypeVar("Sizes")


class KnownSizes(msgspec.Struct, Generic[Sizes], frozen=True, eq=False):
    """Calls whose sizes are known; shape (calls,)."""

    #: Index of `HostCalls`, ascending.
    call: Ints
    #: Index of `sizes`.
    which: Ints
    sizes: list[Sizes]

    @classmethod
    def none(cls) -> KnownSizes[Sizes]:
        """Those of a rank without such calls."""
        nothing = np.empty(0, np.int64)
        return cls(nothing, nothing, [])

    def of(self, calls: Ints) -> Ints:
        """Index of `sizes` of some calls, -1 where it is not known."""
        if not len(self.call):
            return np.full(len(calls), -1, np.int64)
        at = np.minimum(np.searchsorted(self.call, calls), len(self.call) - 1)
        return np.where(self.call[at] == calls, self.which[at], -1)

    def at(self, index: int) -> Sizes | None:
        """Some sizes by an index that `of` gave."""
        return self.sizes[index] if index >= 0 else None
