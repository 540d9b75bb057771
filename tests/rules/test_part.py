"""What is said of a step is measured in the steps that it is said of."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tb_ddp_doctor import rules
from tb_ddp_doctor.rules.support import part
from tb_ddp_doctor.rules.support.affected import most_affected

TIMES = arrays(np.int64, (3, 4), elements=st.integers(0, 10**12))


@given(TIMES, TIMES)
def test_a_part_is_never_more_than_its_steps(times: np.ndarray, steps: np.ndarray) -> None:
    for said in (part.mean(times, steps), part.median(times, steps)):
        assert 0 <= said.ns <= said.step_ns
        assert 0 <= said.share <= 1


@given(arrays(np.int64, (3, 4), elements=st.integers(0, 2)))
def test_ranks_are_affected_where_there_is_anything(times: np.ndarray) -> None:
    found = most_affected(times)
    assert (len(found) > 0) == times.any()
    assert not times.any() or times.sum(axis=1).argmax() in found


def test_times_of_other_ranks_or_steps_are_refused() -> None:
    steps = np.full((3, 4), 10)
    for other in (steps[:2], steps[:, :2], steps.mean(axis=0)):
        with pytest.raises(ValueError, match="no part of steps"):
            part.mean(other, steps)


def test_both_numbers_are_said() -> None:
    times, steps = np.array([1_000_000, 2_000_000, 9_000_000]), np.array([10_000_000, 20_000_000, 60_000_000])
    assert str(part.mean(times, steps)) == "4.0 ms of every 30.0 ms"
    assert str(part.median(times, steps)) == "2.0 ms of every 20.0 ms"


def test_no_rule_puts_the_two_numbers_together_itself() -> None:
    own = Path(rules.__file__).parent
    for file in [path for path in own.rglob("*.py") if path.name not in ("part.py", "verdict.py")]:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                texts = [each.value for each in node.values if isinstance(each, ast.Constant)]
                assert not any("of every" in str(text) for text in texts), f"{file.name}:{node.lineno}"
