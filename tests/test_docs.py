"""The documentation says what the code does."""

import re
import subprocess
import sys
from pathlib import Path

import limits_in_docs
import msgspec
import pytest
from generate import COMMAND, SHOWING, made, with_output

from tb_ddp_doctor import findings
from tb_ddp_doctor.comparison import model as comparison
from tb_ddp_doctor.planning import model as plans
from tb_ddp_doctor.rules import CATALOGUE, page
from tb_ddp_doctor.stuck import model as stuck
from tb_ddp_doctor.view import rule_pages

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


@pytest.mark.parametrize("path", made(), ids=lambda path: path.name)
def test_what_is_made_from_the_code_is_fresh(path: Path) -> None:
    assert path.read_text() == made()[path](), f"run: {COMMAND}"


@pytest.mark.parametrize("path", SHOWING, ids=lambda path: path.name)
def test_a_page_shows_what_commands_print_and_all_rules(path: Path) -> None:
    page = path.read_text()
    assert with_output(page) == page, f"run: {COMMAND}"


@pytest.mark.parametrize("path", limits_in_docs.PAGES, ids=lambda path: path.name)
def test_a_page_says_the_limits_that_the_code_has(path: Path) -> None:
    page = path.read_text()
    assert limits_in_docs.with_limits(page) == page, f"run: {COMMAND}"


#: Shares that were measured, and one of the frontend.
NO_LIMITS = {
    "method.md": ["faults that cost 8 % of the step leave 7 % or more if no rule sees"],
    "performance.md": ["the call tree 11 % and no other one more than 7 %."],
    "tab.md": ["ranks that are 10 % or more above the median"],
}


@pytest.mark.parametrize("path", [ROOT / "README.md", *sorted(DOCS.glob("*.md"))], ids=lambda path: path.name)
def test_a_limit_that_a_page_says_is_written_from_the_code(path: Path) -> None:
    said = [
        words
        for words in limits_in_docs.unmarked(path.read_text())
        if not any(known[:40] in words or words[:40] in known for known in NO_LIMITS.get(path.name, []))
    ]
    assert not said, "mark them as tests/limits_in_docs.py says, or name them in NO_LIMITS if they were measured"


def test_a_limit_that_a_rules_page_says_is_that_of_the_code() -> None:
    limits = {"straggler": "rules.support.slowness._CLEAR_OF_NOISE"}
    for rule in CATALOGUE.values():
        said = " ".join(limits_in_docs.unmarked(" ".join(page(rule).sections.values())))
        assert (f" {limits_in_docs.shown(limits_in_docs.value_of(limits[rule.id]))} " in said) if said else True


def test_the_readme_and_other_pages_show_what_commands_print() -> None:
    assert [path.name for path in SHOWING] == [
        "README.md",
        "capturing.md",
        "command-line.md",
        "compare.md",
        "plan.md",
        "tour.md",
    ]


def test_each_rule_has_a_page_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "a-rule-that-was.md").write_text("")
    rule_pages.write(tmp_path)
    assert {path.stem for path in tmp_path.iterdir()} == {"index", *CATALOGUE}
    assert "[no-overlap](no-overlap.md)" in (tmp_path / "communication-bound.md").read_text()
    listed = re.findall(r"^\| \[([\w-]+)\]\(\1\.md\) \| .+\. \|$", (tmp_path / "index.md").read_text(), re.MULTILINE)
    assert listed == list(CATALOGUE)


def test_the_readme_leads_to_the_page_of_each_rule() -> None:
    linked = re.findall(r"\[`?([\w-]+)`?\]\(docs/rules/([\w-]+)\.md\)", (ROOT / "README.md").read_text())
    assert {page for name, page in linked if name == page} == set(CATALOGUE)


@pytest.mark.parametrize(
    "name",
    [
        "Diagnosis",
        "Memory",
        "MemoryRank",
        "MemoryPhase",
        "MemoryBlock",
        "ModelStates",
        "GrowingMemory",
        "MemoryPlace",
        "MemorySaving",
        "MemorySnapshot",
        "MemoryModule",
        "MemoryRun",
        "MemoryFinding",
        "MemorySegment",
        "MemoryHolder",
        "MemoryFailure",
        "PathStep",
        "PathPiece",
        "Account",
        "AccountLine",
        "Unexplained",
        "FloorLine",
        "LeftOutStep",
        "Clock",
        "TrafficRow",
        "AlphaBeta",
        "Network",
        "Setting",
        "Finding",
        "Measurement",
        "Evidence",
        "Source",
        "Prospect",
        "Threshold",
        "FixParts",
        "RuleOutcome",
        "FileWarning",
        "Comparison",
        "StepTime",
        "ComparedAmount",
        "FindingChange",
        "KernelChange",
        "OperatorChange",
        "Compared",
        "StuckRun",
        "StuckFinding",
        "StuckCall",
        "CallSite",
        "RankState",
        "RankWait",
        "GroupProgress",
    ],
)
def test_the_page_of_the_json_has_every_field_and_no_other(name: str) -> None:
    struct = next(getattr(module, name) for module in (findings, comparison, stuck) if hasattr(module, name))
    section = re.search(rf"^### {name}\n(.*?)(?=^#|\Z)", (DOCS / "json.md").read_text(), re.MULTILINE | re.DOTALL)
    assert section, f"docs/json.md has no section {name}"
    documented = re.findall(r"^\| `(\w+)` \|", section[1], re.MULTILINE)
    assert documented == [field.name for field in msgspec.structs.fields(struct)]


@pytest.mark.parametrize(
    "name",
    [
        "PlanReport",
        "PlanResult",
        "Question",
        "Prediction",
        "Rests",
        "Refusal",
        "ShardedRecord",
        "PlanCurve",
        "Buckets",
        "Bucket",
    ],
)
def test_the_page_of_plans_has_every_field_of_their_json(name: str) -> None:
    section = re.search(rf"^### {name}\n(.*?)(?=^#|\Z)", (DOCS / "plan.md").read_text(), re.MULTILINE | re.DOTALL)
    assert section, f"docs/plan.md has no section {name}"
    documented = re.findall(r"^\| `(\w+)` \|", section[1], re.MULTILINE)
    assert documented == [field.name for field in msgspec.structs.fields(getattr(plans, name))]


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    assert "straggler/" in (tmp_path / "site" / "rules" / "index.html").read_text()
    assert "slow-link" in (tmp_path / "site" / "rules" / "straggler" / "index.html").read_text()
