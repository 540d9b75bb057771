"""Which facts a rule asks for.

A rule asks for a fact by its type: the annotation of each parameter of `check` is the type that some function marked
with `@fact` returns. Such functions stand in the modules of `facts/`, in `planning/fact.py`, or in the rule's own file.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, get_origin, get_type_hints

from tb_ddp_doctor import facts
from tb_ddp_doctor.choices import did_you_mean
from tb_ddp_doctor.facts import Fact, is_fact
from tb_ddp_doctor.planning import fact as of_plans


class ContractError(TypeError):
    """A rule or a fact that is declared wrongly. Its text is a sentence for whoever writes it."""


def type_hints(of: Any, who: str) -> dict[str, Any]:
    """The types that a function or class names. Raises ContractError for one that its file does not import."""
    try:
        return get_type_hints(of)
    except NameError as error:
        raise ContractError(f"{who} names the type {error.name!r}, which its file does not import.") from None


def by_type(makers: Iterable[Fact], known: Mapping[Any, Fact]) -> dict[Any, Fact]:
    """The facts that are known and those that the given functions make, by type.

    Raises ContractError where two functions return the same type, or one does not say what it returns.
    """
    fact_of = dict(known)
    for make in makers:
        made = type_hints(make, f"The fact {_place(make)}").get("return")
        if made is None:
            raise ContractError(f"The fact {_place(make)} does not say what it returns: rules ask for it by that type.")
        if other := fact_of.get(made):
            raise ContractError(
                f"Both {_place(other)} and {_place(make)} make {_shown(made)}, and rules ask for facts by type: give "
                "one of them a type of its own."
            )
        fact_of[made] = make
    return fact_of


def _shared() -> Iterator[Fact]:
    """The facts that every rule may ask for."""
    for module in pkgutil.iter_modules(facts.__path__, f"{facts.__name__}."):
        yield from _defined_in(vars(importlib.import_module(module.name)))
    yield from _defined_in(vars(of_plans))


def _defined_in(names: Mapping[str, Any]) -> Iterator[Fact]:
    """The facts that a module makes itself, by its global names."""
    yield from (value for value in names.values() if is_fact(value) and value.__module__ == names["__name__"])


def _place(make: Fact) -> str:
    return f"{make.__module__}.{getattr(make, '__qualname__', make)}"


def _shown(kind: Any) -> str:
    """A type as it is written: "Network | None"."""
    is_plain = isinstance(kind, type) and get_origin(kind) is None
    return kind.__qualname__ if is_plain else re.sub(r"\b(?:\w+\.)+(?=\w)", "", str(kind))


#: The facts that every rule may ask for, by type.
FACTS: dict[Any, Fact] = by_type(_shared(), {})


@functools.cache
def asked(check: Callable[..., object], rule: str) -> dict[str, Fact]:
    """The fact that makes each parameter of a rule's `check`, by the parameter's name; `rule` is the rule's id.

    Raises ContractError where a parameter has no type, or one that no fact has.
    """
    hints = type_hints(check, f"Rule {rule}")
    known = by_type(_defined_in(getattr(check, "__globals__", {})), FACTS)
    wanted = {}
    for name in list(inspect.signature(check).parameters)[1:]:
        if name not in hints:
            raise ContractError(f"Rule {rule} asks for {name!r} without a type: facts are asked for by their type.")
        if hints[name] not in known:
            kind, kinds = _shown(hints[name]), sorted(map(_shown, known))
            raise ContractError(
                f"Rule {rule} asks for {name!r} of the type {kind}, which no fact has.{did_you_mean(kind, kinds)} "
                f"Facts are {', '.join(kinds)}. A fact of its own is a function of Facts, marked with @fact, in the "
                "rule's file."
            )
        wanted[name] = known[hints[name]]
    return wanted
