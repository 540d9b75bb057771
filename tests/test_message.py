"""What processes hand back: read by its type, whatever is in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from typing_extensions import TypeAliasType

from tb_ddp_doctor.storage.array_type import element_type
from tb_ddp_doctor.storage.message import MessageError, packed, unpacked


class Table(msgspec.Struct):
    name: str
    numbers: NDArray[np.int64]
    flags: NDArray[np.bool_]
    path: Path = Path()


class Pair(NamedTuple):
    low: int
    high: int


TABLE = Table("a", np.arange(6, dtype=np.int64).reshape(2, 3), np.array([True, False]), Path("a/b"))


def test_what_is_sent_arrives() -> None:
    (found, pairs) = unpacked(packed(([TABLE], {"x": Pair(1, 2)})), tuple[list[Table], dict[str, Pair]])
    assert found[0].numbers.tolist() == [[0, 1, 2], [3, 4, 5]] and found[0].flags.tolist() == [True, False]
    assert (found[0].name, found[0].path) == ("a", Path("a/b")) and pairs == {"x": Pair(1, 2)}


def test_a_column_is_known_by_either_form_of_its_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy 2.5 made `NDArray` an alias with a name, which is not resolved."""
    element = TypeVar("element", bound=np.generic)
    named: Any = TypeAliasType("named", np.ndarray[Any, np.dtype[element]], type_params=(element,))
    monkeypatch.setattr("numpy.typing.NDArray", named)
    assert element_type(np.ndarray[Any, np.dtype[np.int16]]) == np.int16
    assert element_type(named[np.int32]) == np.int32
    assert element_type(int) is None and element_type(list[int]) is None


def test_half_characters_are_spelled_out() -> None:
    assert unpacked(packed([msgspec.structs.replace(TABLE, name="a\udcff")]), list[Table])[0].name == "a\\udcff"


def column(dtype: str = "<i8", shape: tuple[Any, ...] = (2,), data: bytes = bytes(16)) -> tuple[Any, ...]:
    return dtype, shape, data


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        (column("<i4", (4,)), "column of '<i4'"),
        (column("|O", (2,)), "column of '|O'"),
        (column(shape=(3,)), r"column of \[3\] values in 16 bytes"),
        (column(shape=(1 << 40, 1 << 40)), "in 16 bytes"),
        (column(shape=(-1, -2)), r"column of \[-1, -2\]"),
        (column(shape=("2",)), "Expected `int`"),
        ([], "Expected"),
        ("text", "Expected"),
    ],
)
def test_a_column_that_is_none_is_refused(numbers: Any, said: str) -> None:
    with pytest.raises(MessageError, match=said):
        unpacked(packed({"name": "a", "numbers": numbers, "flags": column("|b1")}), Table)


def test_a_flag_is_true_or_false() -> None:
    found = unpacked(packed({"name": "a", "numbers": column(), "flags": column("|b1", (3,), b"\0\1\7")}), Table)
    assert found.flags.view(np.uint8).tolist() == [0, 1, 1]


@pytest.mark.parametrize("message", [b"", b"\xc1", b"\xdd\xff\xff\xff\xff", b"\x91" * 100_000])
def test_bytes_that_are_no_message_are_refused(message: bytes) -> None:
    with pytest.raises(MessageError):
        unpacked(message, list[Table])


def test_what_has_no_message_is_not_sent() -> None:
    with pytest.raises(NotImplementedError, match="function cannot be sent"):
        packed(lambda: 0)
