"""What a rule declares, checked when it is imported: what is misspelt or missing is said in a sentence."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter

from tb_ddp_doctor.choices import did_you_mean
from tb_ddp_doctor.rules.support.asked_facts import ContractError, asked
from tb_ddp_doctor.rules.support.base import Rule


def catalogue(rules: Iterable[Rule]) -> dict[str, Rule]:
    """The rules by id, in the order of ids. Raises ContractError if one of them is declared wrongly."""
    by_id: dict[str, Rule] = {}
    for rule in rules:
        if not hasattr(rule, "id"):
            raise ContractError(f"Rule {type(rule).__name__} has no id.")
        if rule.id in by_id:
            raise ContractError(
                f"Both {type(by_id[rule.id]).__name__} and {type(rule).__name__} have the id {rule.id}."
            )
        by_id[rule.id] = rule
        _check_declarations(type(rule))
        asked(type(rule).check, rule.id)
    for rule in by_id.values():
        for general in rule.refined():
            if general not in by_id:
                near = did_you_mean(general, by_id)
                raise ContractError(f"Rule {rule.id} refines {general!r}, but there is no such rule.{near}")
    try:
        TopologicalSorter({rule.id: rule.refined() for rule in by_id.values()}).prepare()
    except CycleError as error:
        raise ContractError(f"These rules refine each other in a circle: {', '.join(error.args[1][1:])}.") from None
    return dict(sorted(by_id.items()))


def _check_declarations(rule: type[Rule]) -> None:
    """Raise ContractError if a rule declares what no rule has, which would have no effect."""
    thresholds = {field.name: field.metadata for field in dataclasses.fields(rule)}
    for name, metadata in thresholds.items():
        if "unit" not in metadata:
            raise ContractError(
                f"Rule {rule.id} has a field {name!r} that is no threshold: write threshold(value, unit, reason), or "
                "leave out the type of what all rules have."
            )
    known = {**Rule.__annotations__, **vars(Rule)}
    declared = {**vars(rule).get("__annotations__", {}), **vars(rule)}
    for name, value in declared.items():
        is_method = callable(value) or hasattr(value, "__get__")
        if not (name.startswith("_") or is_method or name in known or name in thresholds):
            raise ContractError(f"Rule {rule.id} declares {name!r}, which no rule has.{did_you_mean(name, known)}")
