"""What a question changes in the steps besides which collectives are launched. R = played ranks, S = steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec
import numpy as np

from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.model import Parts
from tb_ddp_doctor.trace.model import Floats, Ints

#: Gives, for the parts of a schedule, the factor by which each one's transfer gets longer, shape (parts,).
Factor: TypeAlias = Callable[[Parts], Floats]


class Effect(msgspec.Struct, frozen=True):
    """What a question changes besides which collectives are launched."""

    #: What is removed from the steps.
    change: Change = msgspec.field(default_factory=Change)
    #: The factors of transfers, to be multiplied.
    factors: tuple[Factor, ...] = ()
    #: The factor of the device's own work, shape (R, S); None for 1.
    device: Floats | None = None
    #: Time that is added to each step, ns.
    added_ns: float = 0.0
    #: The factor by which bytes move faster.
    pace: float = 1.0

    def transfer_ns(self, parts: Parts) -> Ints:
        """How long each part then transfers, shape (parts,), ns."""
        takes = parts.transfer_ns.astype(np.float64)
        for factor in self.factors:
            takes = takes * factor(parts)
        return np.rint(takes).astype(np.int64)

    def __or__(self, other: Effect) -> Effect:
        """Both effects together."""
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
