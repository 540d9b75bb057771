"""The documentation says what the code does."""

import re
from pathlib import Path

import msgspec
import pytest

from tb_ddp_doctor import findings
from tb_ddp_doctor.rules import documentation

DOCS = Path(__file__).parents[1] / "docs"


def test_the_page_of_rules_is_fresh() -> None:
    assert (DOCS / "rules.md").read_text() == documentation.markdown(), (
        "run: python -m tb_ddp_doctor.rules.documentation > docs/rules.md"
    )


@pytest.mark.parametrize(
    "name", ["Diagnosis", "Clock", "Finding", "Evidence", "Threshold", "RuleOutcome", "FileWarning"]
)
def test_the_page_of_the_json_has_every_field_and_no_other(name: str) -> None:
    struct = getattr(findings, name)
    section = re.search(rf"^### {name}\n(.*?)(?=^#|\Z)", (DOCS / "json.md").read_text(), re.MULTILINE | re.DOTALL)
    assert section, f"docs/json.md has no section {name}"
    documented = re.findall(r"^\| `(\w+)` \|", section[1], re.MULTILINE)
    assert documented == [field.name for field in msgspec.structs.fields(struct)]
