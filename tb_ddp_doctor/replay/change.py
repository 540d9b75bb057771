"""A what-if change: what a fix removes from the steps, by rank and step. R = ranks, S = steps of the job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np

from tb_ddp_doctor.digest.model import CpuTime
from tb_ddp_doctor.trace.model import Flags, Floats, Ints


class Change(msgspec.Struct, frozen=True, eq=False):
    """What a fix removes from the steps. None, an empty mapping and False remove nothing.

    A loader that stalls rank 1 of two, in one step: `Change(host={CpuTime.INPUT: [[0.0], [1.0]]})`.
    """

    #: The share of each kind of host time that is removed, 0 to 1, shape (R, S).
    host: Mapping[CpuTime, Floats] = msgspec.field(default_factory=dict)
    #: The same for time that all ranks share. It adds to `host`, where single ranks' excess over the median rank is.
    shared: Mapping[CpuTime, Floats] = msgspec.field(default_factory=dict)
    #: Device work that is removed, shape (R, S), ns.
    device_ns: Ints | None = None
    #: The calls from which `device_ns` is removed: for each rank, the share of each row of its `RooflineCalls`, 0 to 1.
    #: If these calls have less time than that, the rest is removed from all device work of the rank and step. None
    #: removes all of it from there.
    of_calls: tuple[Floats, ...] | None = None
    #: Device work that is removed from each row of each rank's `Track`, ns: for each rank an array of shape (rows,).
    #: It is removed from what the fields above leave of the row.
    row_ns: tuple[Ints, ...] | None = None
    #: Calls that get faster kernels: for each rank, the share that is removed of each row of its `RooflineCalls`, 0
    #: to 1. If two changes make a call faster, the larger share counts, since both are shares of the recorded kernel.
    #: It is removed together with `row_ns`.
    faster_calls: tuple[Floats, ...] | None = None
    #: Calls with less work, in the same form: the share that is removed of what `faster_calls` leaves of each call.
    smaller_calls: tuple[Floats, ...] | None = None
    #: Exposed transfer that is removed, shape (R, S), ns.
    transfer_ns: Ints | None = None
    #: Flags ranks and steps, shape (R, S). Their device work between the same collectives is lowered to the median of
    #: comparable ranks and steps.
    device_at_median: Flags | None = None
    #: Flags ranks and steps, shape (R, S), whose transfers are lowered to the median of comparable transfers.
    transfers_at_median: Flags | None = None
    #: Flags ranks and steps, shape (R, S), that then share equally what they compute between exchanges of tokens (see
    #: `routing`).
    balanced: Flags | None = None
    #: Whether waits for ranks that have no trace are removed.
    absent: bool = False
    #: Whether hosts need no time at all, and wait for nothing.
    no_host: bool = False

    def __or__(self, other: Change) -> Change:
        """Both changes. Of shares of the same host time the larger one counts; amounts of work and transfer add up."""
        return Change(
            _larger(self.host, other.host),
            _larger(self.shared, other.shared),
            _sum(self.device_ns, other.device_ns),
            _by_rank(self.of_calls, other.of_calls, lambda one, more: np.minimum(one + more, 1.0)),
            _by_rank(self.row_ns, other.row_ns, np.add),
            _by_rank(self.faster_calls, other.faster_calls, np.maximum),
            _by_rank(self.smaller_calls, other.smaller_calls, _of_both),
            _sum(self.transfer_ns, other.transfer_ns),
            _either(self.device_at_median, other.device_at_median),
            _either(self.transfers_at_median, other.transfers_at_median),
            _either(self.balanced, other.balanced),
            self.absent or other.absent,
            self.no_host or other.no_host,
        )

    @property
    def of_host(self) -> Mapping[CpuTime, Floats]:
        """The share of each kind of host time that is removed in all, 0 to 1, shape (R, S)."""
        if not self.shared:
            return self.host
        return {
            kind: np.minimum(self.host.get(kind, 0.0) + self.shared.get(kind, np.zeros(1)), 1.0)
            for kind in {**self.host, **self.shared}
        }

    @property
    def shorter_calls(self) -> tuple[Floats, ...] | None:
        """The share of each call that faster kernels and less work remove together, as `faster_calls` has it."""
        return _by_rank(self.faster_calls, self.smaller_calls, _of_both)

    def of_ranks(self, ranks: Ints) -> Change:
        """The change of some ranks alone, given their indices: the shapes become (len(ranks), S)."""

        def chosen(amount: Any) -> Any:
            return None if amount is None else amount[ranks]

        def of_each(amounts: Any) -> Any:
            return None if amounts is None else tuple(amounts[rank] for rank in ranks.tolist())

        return Change(
            {kind: share[ranks] for kind, share in self.host.items()},
            {kind: share[ranks] for kind, share in self.shared.items()},
            chosen(self.device_ns),
            of_each(self.of_calls),
            of_each(self.row_ns),
            of_each(self.faster_calls),
            of_each(self.smaller_calls),
            chosen(self.transfer_ns),
            chosen(self.device_at_median),
            chosen(self.transfers_at_median),
            chosen(self.balanced),
            self.absent,
            self.no_host,
        )

    def key(self) -> tuple[object, ...]:
        """A key for caches: equal for equal changes, and almost surely different for others."""
        amounts = ((name, _hashed(amount)) for name, amount in self._amounts() if amount is not None)
        rows = [
            (name, *map(_hashed, arrays))
            for name in ("of_calls", "row_ns", "faster_calls", "smaller_calls")
            if (arrays := getattr(self, name)) is not None
        ]
        return (self.absent, self.no_host, *amounts, *rows)

    @property
    def is_nothing(self) -> bool:
        """Whether the change removes nothing."""
        amounts = (amount for _, amount in self._amounts() if amount is not None)
        of_rows = (self.row_ns, self.faster_calls, self.smaller_calls)
        rows = any(amount.any() for amounts in of_rows for amount in amounts or ())
        return not self.absent and not self.no_host and not rows and not any(amount.any() for amount in amounts)

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


def _by_rank(
    one: tuple[Any, ...] | None, other: tuple[Any, ...] | None, together: Callable[[Any, Any], Any]
) -> tuple[Any, ...] | None:
    """What two changes remove of each rank's rows or calls, together."""
    if one is None or other is None:
        return one if other is None else other
    return tuple(together(mine, more) for mine, more in zip(one, other, strict=True))


def _of_both(one: Floats, other: Floats) -> Floats:
    """The share that goes if two shares are removed one after the other."""
    return 1 - (1 - one) * (1 - other)


def _hashed(amount: Floats | Ints | Flags) -> int:
    """A hash of an array's shape, type and values; of a broadcast value only that value is read."""
    distinct = amount[:1] if not any(amount.strides) else np.ascontiguousarray(amount)
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
    return one + other


def _either(one: Flags | None, other: Flags | None) -> Flags | None:
    if one is None or other is None:
        return one if other is None else other
    return np.asarray(one | other)
