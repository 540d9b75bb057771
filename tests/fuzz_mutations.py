"""Random changes of values, of bytes and of text, for the fuzz targets."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

INTEGERS = (
    0, 1, -1, -2, 2, 3, 7, 255, 1 << 16, (1 << 31) - 1, 1 << 31, -(1 << 31), 1 << 53, (1 << 62) - 1, 1 << 62,
    -(1 << 62), (1 << 63) - 1, 1 << 63, -(1 << 63), 1 << 64, 10**19, 10**30,
)  # fmt: skip
TEXTS = (
    "", "0", "1", "-1", "x", "\u0663", "\ud800", "\0", "\x1b[2J", "\u202e", "a" * 5000, "9" * 500, "[0, 1]", "[" * 500,
    "<b>&", "a\nb", "nan", "None", "%s{}", "../..",
)  # fmt: skip
#: What texts and bytes are cut out of, and put into.
TOKENS = (
    b"\0", b"\n", b"\r", b"\x1b[2J", b"\xff", b"\xed\xa0\x80", b"-1", b"0", b"99999999999999999999", b"1e999", b"nan",
    b"null", b"[", b"]", b"{", b"}", b'"', b":", b",", b" ", b"=", b"(", b")", b"\xd9\xa3",
)  # fmt: skip


def scalar(draw: random.Random) -> Any:
    """A hostile value without parts."""
    kind = draw.randrange(6)
    if kind < 2:
        return draw.choice(INTEGERS)
    if kind == 2:
        return draw.randrange(-(1 << draw.randrange(1, 64)), 1 << draw.randrange(1, 64))
    if kind == 3:
        return draw.choice(TEXTS)
    return draw.choice((None, True, False, 0.5, -0.0, 1e308, float("inf"), float("nan"), (), [], {}, [[]], {"": None}))


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container of a value with each of its keys; each container once."""
    ahead, seen = [value], set[int]()
    while ahead and len(seen) < 20_000:
        one = ahead.pop()
        if not isinstance(one, (dict, list)) or id(one) in seen:
            continue
        seen.add(id(one))
        for key in list(one) if isinstance(one, dict) else range(len(one)):
            yield one, key
            ahead.append(one[key])


def written_out(value: Any) -> float:
    """How many values it is once those that are named twice are written twice; infinite for what holds itself."""
    known: dict[int, float] = {}

    def count(one: Any, depth: int) -> float:
        if not isinstance(one, (dict, list, tuple)):
            return 1
        if id(one) not in known:
            known[id(one)] = float("inf")
            parts = one.values() if isinstance(one, dict) else one
            known[id(one)] = float("inf") if depth > 900 else 1 + sum(count(part, depth + 1) for part in parts)
        return known[id(one)]

    return count(value, 0)


def changed(value: Any, draw: random.Random) -> Any:
    """The value with one of its parts changed, in place where it has parts."""
    found = list(places(value))
    if not found or draw.random() < 0.01:
        return scalar(draw)
    at, key = draw.choice(found)
    draw.choice(_CHANGES)(at, key, found, draw)
    return value


def _swapped(at: Any, key: Any, _found: Places, draw: random.Random) -> None:
    at[key] = scalar(draw)


def _shared(at: Any, key: Any, found: Places, draw: random.Random) -> None:
    """The very same part in two places, as a pickle's memo has it."""
    other, there = draw.choice(found)
    at[key] = other[there]


def _removed(at: Any, key: Any, _found: Places, _draw: random.Random) -> None:
    del at[key]


def _repeated(at: Any, key: Any, _found: Places, draw: random.Random) -> None:
    if isinstance(at, list):
        at[key:key] = [at[key]] * draw.choice((1, 3, 50, 2000))
    else:
        at[draw.choice(TEXTS)] = at[key]


def _nested(at: Any, key: Any, _found: Places, draw: random.Random) -> None:
    inner = at[key]
    for _ in range(draw.choice((1, 5, 60, 2000))):
        inner = [inner] if draw.random() < 0.5 else {"a": inner}
    at[key] = inner


def _doubled(at: Any, key: Any, _found: Places, draw: random.Random) -> None:
    """Two to the power of so many, once it is written out."""
    inner = [at[key]]
    for _ in range(draw.choice((2, 20, 60))):
        inner = [inner, inner]
    at[key] = inner


def _adjusted(at: Any, key: Any, _found: Places, draw: random.Random) -> None:
    """A number that is off, a text or a list that is cut."""
    known = at[key]
    if isinstance(known, int) and not isinstance(known, bool):
        at[key] = known + draw.choice((1, -1, 1 << 20, -(1 << 20), known))
    elif isinstance(known, (list, str)) and known:
        at[key] = known[: draw.randrange(len(known))]
    else:
        at[key] = scalar(draw)


Places = list[tuple[Any, Any]]
_CHANGES = (_swapped,) * 4 + (_shared, _removed, _repeated, _nested, _doubled, _adjusted, _adjusted)


def bytes_changed(data: bytes, draw: random.Random) -> bytes:
    """Some bytes flipped, removed, doubled, or replaced."""
    if not data:
        return draw.choice(TOKENS)
    at = draw.randrange(len(data))
    size = min(draw.choice((1, 1, 2, 4, 8, 40, 400)), len(data) - at)
    kind = draw.randrange(7)
    if kind == 0:
        return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]
    if kind == 1:
        return data[:at] + draw.choice(TOKENS) + data[at:]
    if kind == 2:
        return data[:at] + draw.choice(TOKENS) * draw.choice((1, 20, 3000)) + data[at + size :]
    if kind == 3:
        return data[:at] + data[at + size :]
    if kind == 4:
        return data[:at] + data[at : at + size] * draw.choice((2, 3, 100)) + data[at + size :]
    if kind == 5:
        there = draw.randrange(len(data))
        return data[:at] + data[there : there + size] + data[at + size :]
    return data[:at]


def lines_changed(data: bytes, draw: random.Random) -> bytes:
    """A line removed, doubled, moved, or with another number; or some bytes changed."""
    lines = data.splitlines(keepends=True)
    if draw.random() < 0.4 or not lines:
        return bytes_changed(data, draw)
    at = draw.randrange(len(lines))
    kind = draw.randrange(4)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines[at:at] = [lines[at]] * draw.choice((1, 2, 500))
    elif kind == 2:
        lines.insert(draw.randrange(len(lines)), lines.pop(at))
    else:
        lines[at] = _renumbered(lines[at], draw)
    return b"".join(lines)


def _renumbered(line: bytes, draw: random.Random) -> bytes:
    """With another value in place of one of its numbers, or words."""
    words = line.split(b" ")
    at = draw.randrange(len(words))
    words[at] = str(draw.choice((draw.choice(INTEGERS), draw.choice(TEXTS)))).encode("utf-8", "surrogatepass")
    return b" ".join(words) + (b"\n" if at == len(words) - 1 else b"")
