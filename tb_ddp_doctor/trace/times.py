"""Times as a file spells them, microseconds in decimal digits, to integer nanoseconds: exactly.

Floats cannot do it: a double loses up to 125 ns of an epoch time, and `rint(us * 1000)` is 1 ns wrong on a quarter
of a real file's events. So the digits are read as integers, in bulk.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Context, Decimal

import numpy as np
from msgspec import Raw

from tb_ddp_doctor.trace.model import Ints

#: Start, duration and base each stay below it (the year 2096), so that their sum fits an int64.
MAX_NS = 3 * 10**18
#: What stands for a time that is missing, negative, not a number or beyond MAX_NS.
UNUSABLE = -1

_SPACE, _DOT, _ZERO = b" .0"
_PLAIN = b"0123456789. "
#: An int64 holds every number of 18 digits.
_SAFE_DIGITS = 18
#: Longer literals are no times; the cap keeps Decimal cheap.
_MAX_LITERAL = 64
#: Decimal alone takes more: space around a number, "_" between its digits.
_NUMBER = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:[eE]([+-]?\d+))?", re.ASCII)
#: Beyond it any exponent does the same; Decimal has limits of its own.
_MAX_EXPONENT = 10_000
_POWERS = 10 ** np.arange(_SAFE_DIGITS + 1, dtype=np.int64)
_EXACT = Context(prec=2 * _MAX_LITERAL, rounding=ROUND_HALF_UP)


def nanoseconds(literals: Sequence[Raw]) -> Ints:
    """JSON literals in microseconds to ns; what lies below 1 ns is rounded, half up. UNUSABLE where there is none.

    Plain decimals of up to 18 digits go in bulk; anything else (exponents, strings, null) one by one.
    """
    if not literals:
        return np.empty(0, np.int64)
    text = b" ".join(literals)
    if text.translate(None, _PLAIN):
        return _one_by_one(literals)
    characters = np.frombuffer(text, np.uint8)
    marks = np.flatnonzero(characters < _ZERO)
    is_dot = characters[marks] == _DOT
    ends = np.append(marks[~is_dot], len(text))
    owner = np.cumsum(~is_dot)[is_dot]
    decimals = np.zeros(len(ends), np.int64)
    decimals[owner] = ends[owner] - marks[is_dot] - 1
    width = np.diff(ends, prepend=-1) - 1
    if len(ends) != len(literals) or width.min() < 1 or width.max() - bool(len(owner)) > _SAFE_DIGITS:
        return _one_by_one(literals)
    number = np.fromstring(text.replace(b".", b""), np.int64, sep=" ")
    if not np.all(decimals == 3):
        number = _scaled(number, decimals)
    return np.where(number <= MAX_NS, number, UNUSABLE)


def _scaled(number: Ints, decimals: Ints) -> Ints:
    """`number` * 10 ** (3 - `decimals`), rounded half up; above MAX_NS where it would overflow."""
    up = _POWERS[np.maximum(3 - decimals, 0)]
    down = _POWERS[np.maximum(decimals - 3, 0)]
    multiplied = np.where(number <= MAX_NS // up, number * up, MAX_NS + 1)
    whole, rest = np.divmod(multiplied, down)
    return whole + (2 * rest >= down) * (down > 1)


def _one_by_one(literals: Sequence[Raw]) -> Ints:
    return np.fromiter(map(_exact, literals), np.int64, len(literals))


def _exact(literal: Raw) -> int:
    text = bytes(literal).removeprefix(b'"').removesuffix(b'"').decode("ascii", "replace")
    number = _NUMBER.fullmatch(text)
    if not number or len(text) > _MAX_LITERAL:
        return UNUSABLE
    exponent = max(-_MAX_EXPONENT, min(int(number[2] or 0), _MAX_EXPONENT))
    microseconds = Decimal(f"{number[1]}e{exponent}")
    if microseconds < 0 or microseconds > MAX_NS:
        return UNUSABLE
    ns = int(_EXACT.to_integral_value(_EXACT.multiply(microseconds, Decimal(1000))))
    return ns if ns <= MAX_NS else UNUSABLE
