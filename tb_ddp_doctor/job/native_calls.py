"""Sums over the calls of rows in the native library (native/calls.h), as `pair_sums.py` has them with numpy."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import CDLL, byref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest import native
from tb_ddp_doctor.digest.model import RooflineStretches
from tb_ddp_doctor.trace.model import Floats, Indices, Ints


class NativeCalls:
    """The rows, calls and pairs of ranks as the library takes them. Raises IndexError for indices out of range."""

    def __init__(
        self,
        library: CDLL,
        begins: tuple[Ints, Ints],
        places: tuple[Indices, Indices],
        stretches: Sequence[RooflineStretches],
    ) -> None:
        """`begins` is where each rank's rows and calls begin, `places` the first pair of each row and the one behind
        its last, and `stretches` are each rank's pairs.
        """
        rows, calls = begins
        self._library, self._rows, self._calls = library, int(rows[-1]), int(calls[-1])
        pairs = np.array([len(one) for one in stretches], np.int64)
        columns = [
            [native.plain(getattr(one, name), kind) for one in stretches]
            for name, kind in (("call", np.int32), ("count", np.int64), ("ns", np.int64))
        ]
        _refuse_calls_of_others(columns[0], pairs, np.diff(calls))
        of_row = np.repeat(pairs + 1, np.diff(rows))
        for place in places:
            if len(place) and not (place.min() >= 0 and (place < of_row).all()):
                raise IndexError("a row's calls are out of range")
        every = (
            *(native.plain(one) for one in (rows, calls, pairs)),
            *(np.array([column.ctypes.data for column in each], np.uintp) for each in columns),
            *(native.plain(one, np.int32) for one in places),
        )
        self._size = int(pairs.max(initial=0)) + 1
        self._table = native.CallsTable(len(pairs), *native.addresses(*every), self._size)
        self._kept = (columns, every)

    def in_share(self, share: Floats) -> Floats:
        """As `PairSums.in_share` has it."""
        share, ns, room = self._of_calls(share), np.empty(self._rows), self._room()
        self._library.calls_share(byref(self._table), *native.addresses(share, ns, room))
        return ns

    def placed(self, share: Floats, part: Floats, place: Indices, size: int) -> Ints:
        """As `PairSums.placed` has it; raises IndexError for columns of another length than the rows."""
        part, place = native.plain(part, np.float64), native.plain(place, np.int32)
        if not len(part) == len(place) == self._rows:
            raise IndexError("not a part and a place for each row")
        share, ns, room = self._of_calls(share), np.zeros(size, np.int64), self._room()
        self._library.calls_placed(
            byref(self._table), *native.addresses(share, part, place), size, *native.addresses(ns, room)
        )
        return ns

    def excess(self, least_ns: Floats, remains: Floats) -> list[Floats]:
        """The columns of `ExcessSums`."""
        columns = [self._of_calls(column) for column in (least_ns, remains)]
        sums, room = [np.empty(self._rows) for _ in range(4)], self._room()
        known, out = native.CallsLeast(*native.addresses(*columns)), native.CallsExcess(*native.addresses(*sums))
        self._library.calls_sums(byref(self._table), byref(known), byref(out), *native.addresses(room))
        return sums

    def _room(self) -> Floats:
        """Where one call of the library may write: threads have one each."""
        return np.empty(4 * self._size)

    def _of_calls(self, column: NDArray[Any], dtype: type[np.generic] = np.float64) -> NDArray[Any]:
        """A column of the calls as the library reads it. Raises IndexError for one of another length."""
        if len(column) != self._calls:
            raise IndexError(f"{len(column)} values for {self._calls} calls")
        return native.plain(column, dtype)


def _refuse_calls_of_others(call: Sequence[Indices], pairs: Ints, calls: Ints) -> None:
    """Raise IndexError unless the calls of each rank's pairs are among the rank's: the library checks no bounds."""
    some = np.flatnonzero(pairs)
    if not len(some):
        return
    every, first = np.concatenate(call), np.cumsum(pairs)[some] - pairs[some]
    if every.min() < 0 or (np.maximum.reduceat(every, first) >= calls[some]).any():
        raise IndexError("calls out of range")
