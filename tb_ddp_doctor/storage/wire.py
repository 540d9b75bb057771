"""Protobuf on the wire: numbers of seven bits a byte, and the fields of a message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

NUMBER, EIGHT_BYTES, BYTES, FOUR_BYTES = 0, 1, 2, 5
_MOST_BYTES = 10
_MASK = (1 << 64) - 1


#: Of small numbers, which most are.
_SMALL = tuple(bytes((number,)) for number in range(0x80))


class WireError(ValueError):
    """Bytes that are no message."""


class CutError(WireError):
    """Bytes that end too early: more of them could help."""


class WireField(NamedTuple):
    """A field of a message."""

    number: int
    wire: int
    #: Of 64 bits, without sign; 0 of bytes.
    value: int
    #: b"" of numbers.
    data: bytes


def encoded(number: int) -> bytes:
    """A number from 0 on: seven bits a byte, the lowest first, the high bit on all but the last."""
    if number < 0x80:
        return _SMALL[number]
    groups = bytearray()
    while number >= 0x80:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)


def number_at(data: bytes, at: int) -> tuple[int, int]:
    """The number that begins at a place, and the place behind it. Raises CutError and WireError."""
    value = 0
    for count in range(_MOST_BYTES):
        if at + count >= len(data):
            raise CutError
        byte = data[at + count]
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value & _MASK, at + count + 1
    raise WireError


def fields(data: bytes) -> Iterator[WireField]:
    """The fields of a message, in order. Raises WireError at the first that is none."""
    at = 0
    while at < len(data):
        tag, at = number_at(data, at)
        number, wire = tag >> 3, tag & 7
        if not number:
            raise WireError
        if wire == NUMBER:
            value, at = number_at(data, at)
            yield WireField(number, wire, value, b"")
            continue
        if wire == BYTES:
            size, at = number_at(data, at)
        elif wire in (EIGHT_BYTES, FOUR_BYTES):
            size = 8 if wire == EIGHT_BYTES else 4
        else:
            raise WireError
        if size > len(data) - at:
            raise CutError
        piece = data[at : at + size]
        at += size
        if wire == BYTES:
            yield WireField(number, wire, 0, piece)
        else:
            yield WireField(number, wire, int.from_bytes(piece, "little"), b"")


def message(data: bytes) -> list[WireField] | None:
    """All fields of a message; None where it is none."""
    try:
        return list(fields(data))
    except WireError:
        return None
