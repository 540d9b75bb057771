"""The page on adding a rule leads to a rule that works."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from traces import MS, job, ranks

from tb_ddp_doctor.digest.model import RankOwner
from tb_ddp_doctor.facts.facts import Facts
from tb_ddp_doctor.facts.whatif import whatif
from tb_ddp_doctor.rules.support.base import Rule, run
from tb_ddp_doctor.rules.support.documentation import page
from tb_ddp_doctor.rules.support.savings import Savings

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "adding-a-rule.md").read_text()


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the page's code defines."""
    module = ModuleType("slow_copies")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # dataclasses look their module up
    for code in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        exec(code, module.__dict__)
    return module.__dict__


def test_the_pages_rule_finds_its_fault_and_leaves_the_healthy_twin_alone(written: dict[str, Any]) -> None:
    rule: Rule = written["SlowCopies"]()
    facts = Facts(job(ranks(*[written["FAULTY"]] * 2)))
    outcome, found = run(rule, facts)
    assert outcome.status == "finding" and found
    assert Savings([found], facts.get(whatif), facts.job).findings[0].cost_ms > 0
    assert run(rule, Facts(job(ranks(*[written["HEALTHY"]] * 2))))[0].status == "clear"


def test_the_pages_rule_is_documented_as_all_are(written: dict[str, Any]) -> None:
    assert page(written["SlowCopies"]()).summary == "Copies from pageable memory delay the GPU."


def test_the_pages_code_has_the_right_types(tmp_path: Path) -> None:
    _, tests, rule = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "slow_copies.py").write_text(rule)
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(tmp_path)]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
    assert 'finding("slow-copies"' in tests


def test_a_drawing_has_any_number_of_streams_and_threads() -> None:
    (digest,) = job(
        """
        rank# step    |1
              host    [fwd]
              thread2 [side......]
              gpu     [fwd...]
              gpu2       [side.....]
              gpu13         [other....]
    """.replace("#", "0")
    ).digests
    (busy_ns,) = digest.work.owner_ns[:, RankOwner.COMPUTE].tolist()
    assert busy_ns == 17 * MS


def test_the_page_has_five_steps() -> None:
    assert re.findall(r"^\*\*(\d)\.", TEXT, re.MULTILINE) == list("12345")
