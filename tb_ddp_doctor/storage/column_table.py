"""A table is a struct of columns: arrays of one length, with an element for each row."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar, get_type_hints

import msgspec
import numpy as np

from tb_ddp_doctor.storage.array_type import element_type

T = TypeVar("T", bound=msgspec.Struct)


class ColumnTable(msgspec.Struct, frozen=True, eq=False):
    """The base of tables. The length of a table is the number of its rows, by its first field."""

    def __len__(self) -> int:
        return len(getattr(self, self.__struct_fields__[0]))


def column_types(kind: type[msgspec.Struct]) -> dict[str, np.dtype[Any]]:
    """The element type of each column of a table, by the column's name, in the order of the fields."""
    return {name: dtype for name, (_, dtype) in _fields(kind).items() if dtype is not None}


def empty(kind: type[T]) -> T:
    """A table without rows. All fields of its type are columns of one axis, or structs of such columns."""
    fields = _fields(kind).items()
    return kind(**{name: empty(hint) if dtype is None else np.empty(0, dtype) for name, (hint, dtype) in fields})


@cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, tuple[Any, np.dtype[Any] | None]]:
    """The type of each field, and the element type of those that are columns; None for a struct of columns."""
    return {name: (hint, element_type(hint)) for name, hint in get_type_hints(kind).items()}
