"""Every rule is named, documented and tested alike, and only looks."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from traces import job, ranks

from tb_ddp_doctor.account.savings import Savings
from tb_ddp_doctor.facts import Fact, Facts
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules import CATALOGUE
from tb_ddp_doctor.rules.support.asked_facts import FACTS, asked
from tb_ddp_doctor.rules.support.base import SECTIONS, Rule, configured, run

RULES = pytest.mark.parametrize("rule", CATALOGUE.values(), ids=list(CATALOGUE))
STALLED = """
    rank# step     |1
          host     [load..][fwd]
          autograd              [bwd][ar]
          gpu              [pageable][fwd][bwd.]
          nccl                                  [ar....]
"""
SLOW = """
    rank# step     |1
          host     [load..][fwd]
          autograd              [bwd][ar]
          gpu              [pageable][fwd][bwd....]
          nccl                                     [ar.]
"""


def drawn() -> Job:
    """A job with something for every rule to look at."""
    return job(ranks(STALLED, SLOW, STALLED, STALLED))


@RULES
def test_a_rule_has_its_name_in_its_file_and_its_tests(rule: Rule) -> None:
    name = rule.id.replace("-", "_")
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", rule.id)
    assert CATALOGUE[rule.id] is rule
    assert Path(inspect.getfile(type(rule))).stem == name
    assert (Path(__file__).parent / f"test_{name}.py").exists()
    assert type(rule).__name__.lower() == name.replace("_", "")


@RULES
def test_a_rules_docstring_has_its_sections_in_order(rule: Rule) -> None:
    text = inspect.getdoc(type(rule)) or ""
    assert tuple(re.findall(r"^(\w+):$", text, re.MULTILINE)) == SECTIONS
    assert all(section.strip() for section in re.split(r"^\w+:$", text, flags=re.MULTILINE))


@RULES
def test_a_rule_takes_facts_by_name(rule: Rule) -> None:
    parameters = inspect.signature(rule.check).parameters
    assert all(parameter.kind is inspect.Parameter.KEYWORD_ONLY for parameter in parameters.values())


@RULES
def test_a_threshold_has_a_unit_and_a_reason(rule: Rule) -> None:
    assert rule.thresholds()
    for limit in rule.thresholds():
        assert limit.unit and limit.reason.endswith(".")
        assert isinstance(limit.value, float)


@RULES
def test_a_threshold_can_be_set(rule: Rule) -> None:
    name = rule.thresholds()[0].name
    assert getattr(configured(rule, {name: 0.123}), name) == 0.123
    with pytest.raises(ValueError, match="has no threshold 'nonsense'"):
        configured(rule, {"nonsense": 1.0})


@RULES
def test_a_threshold_that_makes_no_sense_is_refused(rule: Rule) -> None:
    for field in dataclasses.fields(rule):
        assert field.metadata["least"] <= getattr(rule, field.name) <= field.metadata["most"]
        for value in (-0.1, math.nan, math.inf, -math.inf, field.metadata["most"] + 1):
            if value < field.metadata["least"] or not value <= field.metadata["most"] or math.isinf(value):
                with pytest.raises(ValueError, match=rf"^{rule.id}\.{field.name} is .*, not \S+\.$"):
                    configured(rule, {field.name: value})


@RULES
def test_a_rule_changes_nothing_that_it_is_given(rule: Rule) -> None:
    given = drawn()
    for array in arrays(given):
        array.flags.writeable = False
    (one, found), (other, again) = run(rule, Facts(given)), run(rule, Facts(given))
    assert one == other
    whatif = WhatIf.of(given)
    first, second = (Savings([each] if each else [], whatif, given).findings for each in (found, again))
    assert first == second


@RULES
def test_a_rule_ends_in_one_of_four_ways(rule: Rule) -> None:
    for given in (drawn(), job(ranks(STALLED)), job("host [a]")):
        outcome, found = run(rule, Facts(given))
        assert outcome.rule == rule.id
        assert (outcome.status == "finding") == bool(found)
        assert outcome.status in ("finding", "clear", "not-applicable")
        assert outcome.reason.endswith(".")


@pytest.mark.parametrize("fact", FACTS.values(), ids=map(str, FACTS))
def test_every_fact_is_asked_for_by_a_rule(fact: Fact) -> None:
    assert any(fact in asked(type(rule).check, rule.id).values() for rule in CATALOGUE.values())


def arrays(value: Any) -> Iterator[np.ndarray[Any, Any]]:
    """All arrays within structs and tuples."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from arrays(item)
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from arrays(getattr(value, name))
