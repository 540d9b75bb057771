"""Checks of the arguments of a Doctor: each raises ValueError with the name of the argument, and what it may be."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import SupportsFloat, SupportsIndex, TypeVar

from tb_ddp_doctor.choices import refusal

S = TypeVar("S", bound=str)


def check_choice(name: str, value: S, choices: Sequence[S]) -> S:
    """One of some texts."""
    if value not in choices:
        raise ValueError(refusal(name, value, choices))
    return value


def check_flags(**flags: object) -> None:
    """True or False, by the arguments' names."""
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise ValueError(f"{name} is True or False, not {flag!r}.")


def check_whole(name: str, value: object) -> int:
    """A number of steps or times, of whichever type."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise ValueError(f"{name} is a whole number, such as 1000, not {value!r}.")
    return operator.index(value)


def check_number(name: str, value: object, *, above: bool = False) -> float:
    """A finite number from 0 on, or only above 0."""
    is_number = isinstance(value, SupportsFloat) and not isinstance(value, bool)
    number = float(value) if is_number else math.nan  # type: ignore[arg-type]
    if not 0 <= number < math.inf or (above and not number):
        raise ValueError(f"{name} is a number {'above 0' if above else 'from 0 on'}, such as 1.5, not {value!r}.")
    return number


def given_number(name: str, value: object, *, above: bool = False) -> float | None:
    """As `check_number`; None where it was not given."""
    return None if value is None else check_number(name, value, above=above)


def given_numbers(**values: object) -> dict[str, float]:
    """The numbers above 0 among some arguments that need not be given, by name."""
    return {name: check_number(name, value, above=True) for name, value in values.items() if value is not None}
