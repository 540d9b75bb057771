"""Owners and phases have their names from one table wherever they stand."""

from __future__ import annotations

import re
from pathlib import Path

from tb_ddp_doctor.digest.model import RankOwner
from tb_ddp_doctor.step_parts import IDLE, OWNERS, PHASES
from tb_ddp_doctor.trace.names import Phase

DOCS = Path(__file__).parents[1] / "docs"


def test_one_rank_knows_all_owners_but_who_waits_for_whom() -> None:
    of_rank = [owner.name.lower() for owner in RankOwner]
    assert of_rank == ["compute", "copy", "communication", *IDLE]


def test_phases_are_those_of_traces() -> None:
    assert list(PHASES) == [phase.name.lower() for phase in Phase]


def test_each_phase_has_the_colour_of_an_owner_of_its_own() -> None:
    colours = [phase.colour for phase in PHASES.values()]
    assert set(colours) <= set(OWNERS) and len(set(colours)) == len(colours)


def test_the_glossary_and_the_page_of_the_json_have_all_of_them_in_order() -> None:
    glossary = re.findall(r"^\| ([^|`]+) \(`(\w+)`\) \|", (DOCS / "glossary.md").read_text(), re.MULTILINE)
    assert [name for _, name in glossary] == list(OWNERS)
    assert all(OWNERS[name].title.startswith(title) for title, name in glossary)
    page = (DOCS / "json.md").read_text()
    for field, names in (("budget_ms", OWNERS), ("phases_ms", PHASES)):
        (listed,) = re.findall(rf"^\| `{field}` \|[^(]*\((.*?)\)", page, re.MULTILINE)
        assert re.findall(r"`(\w+)`", listed) == list(names)
