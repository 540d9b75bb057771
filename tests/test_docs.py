"""The documentation says what the code does."""

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tb_ddp_doctor import cli, findings
from tb_ddp_doctor.comparison import model as comparison
from tb_ddp_doctor.rules import CATALOGUE
from tb_ddp_doctor.rules.support import documentation

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def test_the_pages_of_rules_are_fresh() -> None:
    written = {path.name: path.read_text() for path in (DOCS / "rules").iterdir()}
    assert written == documentation.pages(), "run: python -m tb_ddp_doctor.rules.support.documentation docs/rules"


def test_each_rule_has_a_page_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "a-rule-that-was.md").write_text("")
    documentation.write(tmp_path)
    assert {path.stem for path in tmp_path.iterdir()} == {"index", *CATALOGUE}
    assert "[no-overlap](no-overlap.md)" in (tmp_path / "communication-bound.md").read_text()
    listed = re.findall(r"^\| \[([\w-]+)\]\(\1\.md\) \| .+\. \|$", (tmp_path / "index.md").read_text(), re.MULTILINE)
    assert listed == list(CATALOGUE)


def test_the_readme_leads_to_the_page_of_each_rule() -> None:
    linked = re.findall(r"\[`?([\w-]+)`?\]\(docs/rules/([\w-]+)\.md\)", (ROOT / "README.md").read_text())
    assert {page for name, page in linked if name == page} == set(CATALOGUE)


@pytest.mark.parametrize(
    "command",
    [
        "diagnose demo_logs/straggler_cpu",
        "whatif demo_logs/zero_workers",
        "compare demo_logs/zero_workers demo_logs/four_workers",
    ],
)
def test_the_readme_shows_what_the_command_prints(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "100")
    cli.main(command.split())
    readme = (ROOT / "README.md").read_text()
    shown = re.search(rf"ddp-doctor {command}(?: \| head -(\d+))?\n(.*?)\n```", readme, re.DOTALL)
    assert shown, "the README does not show it"
    lines = [line.rstrip() for line in capsys.readouterr().out.rstrip().splitlines()]
    printed = "\n".join(lines[: int(shown[1]) if shown[1] else None])
    assert shown[2] == printed, f"put this into the README:\n{printed}"


def test_the_page_on_comparing_shows_what_the_command_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "115")
    cli.main(["compare", "demo_logs/zero_workers", "demo_logs/four_workers"])
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()[:9]]
    assert "\n".join(printed) in (DOCS / "compare.md").read_text()


@pytest.mark.parametrize(
    "name",
    [
        "Diagnosis",
        "PathStep",
        "PathPiece",
        "Account",
        "AccountLine",
        "Unexplained",
        "LeftOutStep",
        "Clock",
        "Traffic",
        "AlphaBeta",
        "Network",
        "Finding",
        "Measurement",
        "Evidence",
        "Source",
        "Prospect",
        "Threshold",
        "RuleOutcome",
        "FileWarning",
        "Comparison",
        "StepTime",
        "Change",
        "FindingChange",
        "KernelChange",
        "OperationChange",
        "Compared",
    ],
)
def test_the_page_of_the_json_has_every_field_and_no_other(name: str) -> None:
    struct = getattr(findings, name, None) or getattr(comparison, name)
    section = re.search(rf"^### {name}\n(.*?)(?=^#|\Z)", (DOCS / "json.md").read_text(), re.MULTILINE | re.DOTALL)
    assert section, f"docs/json.md has no section {name}"
    documented = re.findall(r"^\| `(\w+)` \|", section[1], re.MULTILINE)
    assert documented == [field.name for field in msgspec.structs.fields(struct)]


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    assert "straggler/" in (tmp_path / "site" / "rules" / "index.html").read_text()
    assert "slow-link" in (tmp_path / "site" / "rules" / "straggler" / "index.html").read_text()
