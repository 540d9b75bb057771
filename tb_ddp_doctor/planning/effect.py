"""What a question changes in the steps besides buckets and what is launched. R = ranks that are played, S = steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec
import numpy as np

from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.model import Parts
from tb_ddp_doctor.trace.model import Floats, Ints

#: How many times as long each part transfers, shape (parts,).
Factor: TypeAlias = Callable[[Parts], Floats]


class Effect(msgspec.Struct, frozen=True):
    """What a question changes besides buckets."""

    change: Change = msgspec.field(default_factory=Change)
    factors: tuple[Factor, ...] = ()
    #: How many times as long the device's own work takes, shape (R, S); None for as long as recorded.
    device: Floats | None = None
    #: What a step takes on top, ns.
    added_ns: float = 0.0
    #: How many times as fast bytes move.
    pace: float = 1.0

    def transfer_ns(self, parts: Parts) -> Ints:
        """How long each part transfers, ns."""
        takes = parts.transfer_ns.astype(np.float64)
        for factor in self.factors:
            takes = takes * factor(parts)
        return np.rint(takes).astype(np.int64)

    def __or__(self, other: Effect) -> Effect:
        device = self.device if other.device is None else other.device
        if self.device is not None and other.device is not None:
            device = self.device * other.device
        return Effect(
            self.change | other.change,
            self.factors + other.factors,
            device,
            self.added_ns + other.added_ns,
            self.pace * other.pace,
        )
