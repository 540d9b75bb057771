"""What docs/rules shows of each rule: a trace with the fault, and one without."""

from __future__ import annotations

import pytest
from examples import EXAMPLES

from tb_ddp_doctor.rules import CATALOGUE


@pytest.mark.parametrize("rule", EXAMPLES)
def test_the_faulty_trace_is_found_and_the_healthy_one_is_clear(rule: str) -> None:
    assert EXAMPLES[rule].found(rule)
    assert EXAMPLES[rule].clear(rule).status == "clear"


@pytest.mark.parametrize("rule", EXAMPLES)
def test_the_whole_engine_finds_the_rules_fault(rule: str) -> None:
    diagnosis = EXAMPLES[rule].diagnosed(faulty=True)
    (outcome,) = [outcome for outcome in diagnosis.outcomes if outcome.rule == rule]
    is_fault = not CATALOGUE[rule].is_opportunity
    assert outcome.status == ("finding" if is_fault else "opportunity"), (
        f"{outcome.reason} The verdict is {diagnosis.verdict}. If that is a more general rule, this one refines it "
        "(`refines`, docs/adding-a-rule.md)."
    )
    assert rule in {one.rule for one in (diagnosis.findings if is_fault else diagnosis.opportunities)}


@pytest.mark.parametrize("rule", EXAMPLES)
def test_the_whole_engine_finds_the_healthy_twin_healthy(rule: str) -> None:
    diagnosis = EXAMPLES[rule].diagnosed(faulty=False)
    # Of a server, no verdict is healthy.
    serves = diagnosis.kind == "inference server"
    assert diagnosis.verdict == ("unknown" if serves else "healthy"), diagnosis.headline
