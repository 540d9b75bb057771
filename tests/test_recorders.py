"""The table of docs/recorders.md: made of drawn jobs, a few rows of which are made here again."""

from __future__ import annotations

import pytest
import recorders
from generate import COMMAND, RECORDERS

from tb_ddp_doctor.rules import CATALOGUE


def test_every_rule_has_a_row() -> None:
    page = RECORDERS.read_text(encoding="utf-8")
    lacking = [rule for rule in CATALOGUE if f"| [{rule}](rules/{rule}.md) |" not in page]
    assert not lacking, f"run: {COMMAND}"


@pytest.mark.parametrize("rule", ["straggler", "dataloader-stall", "slow-link", "memory-fragmentation"])
def test_a_row_is_what_the_recorders_tell(rule: str) -> None:
    assert recorders.row(rule) in RECORDERS.read_text(encoding="utf-8"), f"run: {COMMAND}"
