"""What docs/rules shows of each rule: a trace with the fault, and one without."""

from __future__ import annotations

import pytest
from examples import EXAMPLES


@pytest.mark.parametrize("rule", EXAMPLES)
def test_the_faulty_trace_is_found_and_the_healthy_one_is_clear(rule: str) -> None:
    assert EXAMPLES[rule].found(rule)
    assert EXAMPLES[rule].clear(rule).status == "clear"
