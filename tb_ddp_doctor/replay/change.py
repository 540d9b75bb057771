"""A what-if change: what a fix removes from the steps, by rank and step. R = ranks, S = steps of the job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np

from tb_ddp_doctor.digest.model import CpuTime
from tb_ddp_doctor.job.row_calls import RowCalls
from tb_ddp_doctor.trace.model import Flags, Floats, Ints

#: Arrays of as many values are hashed by their blocks, whose values have these weights.
_LARGE = 1 << 16
_WEIGHTS = np.random.default_rng(0).integers(0, 1 << 64, 1 << 10, np.uint64) | np.uint64(1)


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
    #: The calls from which `device_ns` is removed: the share of each row of the ranks' `RooflineCalls`, 0 to 1, one
    #: rank's after the other's. If these calls have less time than that, the rest is removed from all device work of
    #: the rank and step. None removes all of it from there.
    of_calls: Floats | None = None
    #: Device work that is removed from each row of the ranks' `Track`s, one rank's after the other's, ns. It is removed
    #: from what the fields above leave of the row.
    row_ns: Ints | None = None
    #: Calls that get faster kernels: the share that is removed of each, as in `of_calls`. If two changes make a call
    #: faster, the larger share counts, since both are shares of the recorded kernel. It is removed together with
    #: `row_ns`.
    faster_calls: Floats | None = None
    #: Calls with less work, in the same form: the share that is removed of what `faster_calls` leaves of each call.
    smaller_calls: Floats | None = None
    #: Exposed transfer that is removed, shape (R, S), ns.
    transfer_ns: Ints | None = None
    #: The share of each transfer that is removed, hidden ones too, 0 to 1, shape (R, S).
    transfers: Floats | None = None
    #: The share of each matched collective's transfer that is removed, hidden or exposed, 0 to 1, shape (collectives,).
    #: Shares of two changes add up: both are of the recorded transfer.
    of_collectives: Floats | None = None
    #: Flags ranks and steps, shape (R, S). Their device work between the same collectives is lowered to the median of
    #: comparable ranks and steps.
    device_at_median: Flags | None = None
    #: Flags ranks and steps, shape (R, S), whose transfers are lowered to the median of comparable transfers.
    transfers_at_median: Flags | None = None
    #: Flags ranks and steps, shape (R, S), that then share equally what they compute between exchanges of tokens (see
    #: `routing`).
    balanced: Flags | None = None
    #: Whether ranks with requests of their own share these equally (see `own_requests`).
    even_requests: bool = False
    #: Whether waits for ranks that have no trace are removed.
    absent: bool = False
    #: Whether hosts need no time at all, and wait for nothing.
    no_host: bool = False

    def __or__(self, other: Change) -> Change:
        """Both changes. Of shares of the same host time the larger one counts; amounts of work and transfer add up."""
        return Change(
            _larger(self.host, other.host),
            _larger(self.shared, other.shared),
            _both(self.device_ns, other.device_ns, np.add),
            _both(self.of_calls, other.of_calls, lambda one, more: np.minimum(one + more, 1.0)),
            _both(self.row_ns, other.row_ns, np.add),
            _both(self.faster_calls, other.faster_calls, np.maximum),
            _both(self.smaller_calls, other.smaller_calls, _of_both),
            _both(self.transfer_ns, other.transfer_ns, np.add),
            _both(self.transfers, other.transfers, np.maximum),
            _both(self.of_collectives, other.of_collectives, lambda one, more: np.minimum(one + more, 1.0)),
            _both(self.device_at_median, other.device_at_median, np.logical_or),
            _both(self.transfers_at_median, other.transfers_at_median, np.logical_or),
            _both(self.balanced, other.balanced, np.logical_or),
            self.even_requests or other.even_requests,
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
    def shorter_calls(self) -> Floats | None:
        """The share of each call that faster kernels and less work remove together, as `faster_calls` has it."""
        shorter: Floats | None = _both(self.faster_calls, self.smaller_calls, _of_both)
        return shorter

    def of_ranks(self, ranks: Ints, calls: RowCalls) -> Change:
        """The change of some ranks alone, given their indices: the shapes become (len(ranks), S).

        `calls` are those of all ranks.
        """

        def chosen(amount: Any) -> Any:
            return None if amount is None else amount[ranks]

        def of_each(amounts: Any, begins: Ints) -> Any:
            if amounts is None:
                return None
            return np.concatenate([amounts[begins[rank] : begins[rank + 1]] for rank in ranks.tolist()])

        return Change(
            {kind: share[ranks] for kind, share in self.host.items()},
            {kind: share[ranks] for kind, share in self.shared.items()},
            chosen(self.device_ns),
            of_each(self.of_calls, calls.calls_begin),
            of_each(self.row_ns, calls.begins),
            of_each(self.faster_calls, calls.calls_begin),
            of_each(self.smaller_calls, calls.calls_begin),
            chosen(self.transfer_ns),
            chosen(self.transfers),
            self.of_collectives,
            chosen(self.device_at_median),
            chosen(self.transfers_at_median),
            chosen(self.balanced),
            self.even_requests,
            self.absent,
            self.no_host,
        )

    def key(self) -> tuple[object, ...]:
        """A key for caches: equal for equal changes, and almost surely different for others."""
        amounts = ((name, _hashed(amount)) for name, amount in self._amounts() if amount is not None)
        return (*self._flags, *amounts)

    @property
    def is_nothing(self) -> bool:
        """Whether the change removes nothing."""
        amounts = (amount for name, amount in self._amounts() if amount is not None and name != "of_calls")
        return not any(self._flags) and not any(amount.any() for amount in amounts)

    @property
    def _flags(self) -> tuple[bool, ...]:
        return self.even_requests, self.absent, self.no_host

    def _amounts(self) -> Iterator[tuple[str, Floats | Ints | Flags | None]]:
        for kind, share in sorted(self.host.items()):
            yield f"host {kind}", share
        for kind, share in sorted(self.shared.items()):
            yield f"shared {kind}", share
        for name in self.__struct_fields__:
            if name not in ("host", "shared", "even_requests", "absent", "no_host"):
                yield name, getattr(self, name)


def _both(one: Any, other: Any, together: Callable[[Any, Any], Any]) -> Any:
    """What two changes remove together; None if neither removes any."""
    if one is None or other is None:
        return one if other is None else other
    return together(one, other)


def _of_both(one: Floats, other: Floats) -> Floats:
    """The share that goes if two shares are removed one after the other."""
    return 1 - (1 - one) * (1 - other)


def _hashed(amount: Floats | Ints | Flags) -> int:
    """A hash of an array's shape, type and values; of a broadcast value only that value is read.

    Of a large array sums of its blocks are hashed, in which each place of a block has a weight of its own: a hash reads
    1 GB a second, and some amounts have 16 MB.
    """
    distinct = amount[:1] if not any(amount.strides) else np.ascontiguousarray(amount).ravel()
    kind = amount.shape, amount.dtype.char
    if distinct.itemsize != _WEIGHTS.itemsize or distinct.size < _LARGE:
        return hash((*kind, distinct.tobytes()))
    rest = distinct.size % len(_WEIGHTS)
    blocks = distinct[: distinct.size - rest].view(np.uint64).reshape(-1, len(_WEIGHTS))
    return hash((*kind, (blocks @ _WEIGHTS).tobytes(), distinct[distinct.size - rest :].tobytes()))


def _larger(one: Mapping[CpuTime, Floats], other: Mapping[CpuTime, Floats]) -> Mapping[CpuTime, Floats]:
    larger = dict(one)
    for kind, share in other.items():
        known = larger.get(kind)
        larger[kind] = share if known is None or known is share else np.maximum(known, share)
    return larger
