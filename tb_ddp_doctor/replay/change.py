"""What a fix takes out of the steps, as amounts by rank and step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np

from tb_ddp_doctor.digest.model import CpuTime
from tb_ddp_doctor.trace.model import Flags, Floats, Ints


class Change(msgspec.Struct, frozen=True, eq=False):
    """What a fix takes out of the steps."""

    #: Share of the host's time that goes, 0 to 1, by what it was spent on; shape (R, S).
    host: Mapping[CpuTime, Floats] = msgspec.field(default_factory=dict)
    #: The same of what all ranks share, which goes beside what single ranks have on top of the median rank.
    shared: Mapping[CpuTime, Floats] = msgspec.field(default_factory=dict)
    #: What the device need no longer do, shape (R, S), ns.
    device_ns: Ints | None = None
    #: Exposed transfer that goes, shape (R, S), ns.
    transfer_ns: Ints | None = None
    #: Ranks and steps, shape (R, S), whose device work between the same collectives takes no longer than the median of
    #: comparable ranks and steps, and whose transfers no longer than the median of like ones.
    device_at_median: Flags | None = None
    transfers_at_median: Flags | None = None
    #: Ranks and steps, shape (R, S), that share equally what they compute between exchanges of tokens (see `routing`).
    balanced: Flags | None = None
    #: Whether nobody waits any more for ranks that have no trace.
    absent: bool = False
    #: Whether the hosts need no time at all, and wait for nothing.
    no_host: bool = False

    def __or__(self, other: Change) -> Change:
        """Both: what two fixes take from the same host time is taken once."""
        return Change(
            _larger(self.host, other.host),
            _larger(self.shared, other.shared),
            _sum(self.device_ns, other.device_ns),
            _sum(self.transfer_ns, other.transfer_ns),
            _either(self.device_at_median, other.device_at_median),
            _either(self.transfers_at_median, other.transfers_at_median),
            _either(self.balanced, other.balanced),
            self.absent or other.absent,
            self.no_host or other.no_host,
        )

    @property
    def of_host(self) -> Mapping[CpuTime, Floats]:
        """Share of the host's time that goes in all, 0 to 1, by what it was spent on; shape (R, S)."""
        if not self.shared:
            return self.host
        return {
            kind: np.minimum(self.host.get(kind, 0.0) + self.shared.get(kind, np.zeros(1)), 1.0)
            for kind in {**self.host, **self.shared}
        }

    def of_ranks(self, ranks: Ints) -> Change:
        """The same of some ranks alone."""

        def chosen(amount: Any) -> Any:
            return None if amount is None else amount[ranks]

        return Change(
            {kind: share[ranks] for kind, share in self.host.items()},
            {kind: share[ranks] for kind, share in self.shared.items()},
            chosen(self.device_ns),
            chosen(self.transfer_ns),
            chosen(self.device_at_median),
            chosen(self.transfers_at_median),
            chosen(self.balanced),
            self.absent,
            self.no_host,
        )

    def key(self) -> tuple[object, ...]:
        """Equal for what is equal, and in all likelihood for nothing else."""
        amounts = ((name, _hashed(amount)) for name, amount in self._amounts() if amount is not None)
        return (self.absent, self.no_host, *amounts)

    @property
    def is_nothing(self) -> bool:
        """Whether all stays as it is."""
        amounts = (amount for _, amount in self._amounts() if amount is not None)
        return not self.absent and not self.no_host and not any(amount.any() for amount in amounts)

    def _amounts(self) -> Iterator[tuple[str, Floats | Ints | Flags | None]]:
        for kind, share in sorted(self.host.items()):
            yield f"host {kind}", share
        for kind, share in sorted(self.shared.items()):
            yield f"shared {kind}", share
        yield "device_ns", self.device_ns
        yield "transfer_ns", self.transfer_ns
        yield "device_at_median", self.device_at_median
        yield "transfers_at_median", self.transfers_at_median
        yield "balanced", self.balanced


def _hashed(amount: Floats | Ints | Flags) -> int:
    """Of what an array holds; of one value that is broadcast, the value alone is read."""
    distinct = amount[:1, :1] if not any(amount.strides) else np.ascontiguousarray(amount)
    return hash((amount.shape, amount.dtype.char, distinct.tobytes()))


def _larger(one: Mapping[CpuTime, Floats], other: Mapping[CpuTime, Floats]) -> Mapping[CpuTime, Floats]:
    larger = dict(one)
    for kind, share in other.items():
        known = larger.get(kind)
        larger[kind] = share if known is None or known is share else np.maximum(known, share)
    return larger


def _sum(one: Ints | None, other: Ints | None) -> Ints | None:
    if one is None or other is None:
        return one if other is None else other
    total: Ints = one + other
    return total


def _either(one: Flags | None, other: Flags | None) -> Flags | None:
    if one is None or other is None:
        return one if other is None else other
    return np.asarray(one | other)
