"""Tables: structs of columns of one length."""

from __future__ import annotations

from typing import NewType

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.storage.column_table import ColumnTable, column_types, empty

Row = NewType("Row", NDArray[np.int32])


class Times(ColumnTable, frozen=True, eq=False):
    row: Row
    ns: NDArray[np.int64]


class Calls(ColumnTable, frozen=True, eq=False):
    waits: NDArray[np.bool_]
    times: Times


class Both(msgspec.Struct, frozen=True, eq=False):
    calls: Calls
    others: Times


def test_a_table_is_as_long_as_its_columns() -> None:
    assert len(Times(Row(np.arange(3, dtype=np.int32)), np.zeros(3, np.int64))) == 3


def test_an_empty_table_has_columns_of_their_types() -> None:
    both = empty(Both)

    assert len(both.calls) == len(both.calls.times) == len(both.others) == 0
    assert both.calls.waits.dtype == np.bool_
    assert (both.calls.times.row.dtype, both.calls.times.ns.dtype) == (np.int32, np.int64)


def test_types_of_columns_come_in_the_order_of_fields() -> None:
    assert [*column_types(Times).items()] == [("row", np.dtype(np.int32)), ("ns", np.dtype(np.int64))]
