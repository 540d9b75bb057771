"""The field's words in all that users read: none of the old words comes back."""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_golden import diagnose, names

from tb_ddp_doctor import wording
from tb_ddp_doctor.commands import options
from tb_ddp_doctor.rules import CATALOGUE
from tb_ddp_doctor.view import rule_pages

REPOSITORY = Path(__file__).parents[1]
#: Old words, as patterns without regard to case, and what stands for them.
WORDS = {
    r"\bown time\b": "busy time",
    r"\busual (rank|one)\b": "median rank",
    r"\bthe others'": "the median rank's",
    r"\bthan (the )?others\b": "than the median rank",
    r"\bthe others (also )?(wait|have|do|need|seem)\b": "the other ranks",
    r"\b(hold|holds|held|holding) up\b": "delays, is the straggler",
    r"\bnothing (else )?hides\b|\blies bare\b": "exposed communication",
    r"\bwaited for\b.*\bas far as\b": "straggler wait, estimated from transfers",
    r"\bin no (operation|operator|op)\b": "outside any op",
    r"\bstarv(e|es|ed|ing|ation)\b|\brun empty\b": "GPU idle, waiting for launches",
    r"\bsynchroni[sz]ing\b|\bsynchronisations?\b": "sync",
    r"\boutside of (loading|all phases)\b": "outside forward/backward/optimizer",
    r"\baccus(e|es|ed|ing)\b|\bguilty\b|\bculprits?\b": "straggler, affected rank",
    r"\bon the bus\b": "busbw",
    r"\bby the line\b": "fit",
    r"\bnot in use\b|\bmemory (that is )?held\b|\bholds? \S+ GB\b": "reserved, allocated, reserved but unallocated",
    r"\bself on host\b|\bms by themselves\b": "Self CPU, Self CUDA",
    r"\bproducts?\b": "GEMMs",
    r"\boperations?\b": "operator, op",
    r"\bdid not apply\b|\bcould not (look|see|be applied)\b": "not checked (lacks data)",
    r"\brules looked\b": "checks passed",
    r"\bclocks agree\b": "clock skew",
    r"\bbeyond the (others|median)\b": "on top of, in excess of",
    r"\btells\b|\btelling\b|\b(is|are|then|not) told\b": "significant; shows",
    r"\bchance\b": "noise",
    r"\bstory\b": "explanation",
    r"\bdrawn out\b": "widened",
    r"\b(hold|holds|held) (the|a|its) (host|CPU)\b": "block the CPU",
    r"\btaken out\b": "what-if change",
    r"\balike\b|\bits like\b|\btheir like\b": "comparable",
    r"\bmended\b": "fixed",
    r"\bmessages (travel|between)\b|\bonly messages\b": "point-to-point transfers",
    r"(?<=\d )us\b|\bin us\b|, us\b": "µs",
}
#: Words that STYLE.md bans, as parts of names.
BANNED = {"held", "hold", "holds", "holding", "told", "tells", "settle", "settled", "starve", "starved", "starves"}
BANNED |= {"starvation", "mended", "alike", "beyond", "usual", "things", "found", "chance", "telling"}
#: `tells` is a field of the JSON of comparisons.
ALLOWED = {"comparison": {"tells"}}
#: Pages that may name old words: what the words stand for, and what has changed.
NAMING = {"glossary.md", "CHANGELOG.md"}
#: Names in the JSON, in code, in commands and in comments, which no reader sees, stay what they are.
_CODE = re.compile(r"^```(?:python|json)\n.*?^```$|`[^`\n]+`|<!--.*?-->", re.DOTALL | re.MULTILINE)


def old(said: str) -> list[str]:
    """The old words in a text, each with its line and what should stand there."""
    lines = _CODE.sub("", said).splitlines()
    return [
        f"{line.strip()!r}: {found[0]!r} -> {new!r}"
        for line in lines
        for pattern, new in WORDS.items()
        if (found := re.search(pattern, line, re.IGNORECASE))
    ]


@pytest.mark.parametrize("name", names())
def test_what_is_said_of_a_demo_job_has_the_fields_words(name: str) -> None:
    diagnosis = diagnose(name)
    said = [diagnosis.headline, *(outcome.reason for outcome in diagnosis.outcomes)]
    said += [warning.message for warning in diagnosis.warnings]
    for finding in diagnosis.findings:
        said += [finding.title, finding.why, finding.fix, *(evidence.what for evidence in finding.evidence)]
    assert old("\n".join(said)) == []


@pytest.mark.parametrize("page", sorted(rule_pages.pages()))
def test_a_page_on_rules_has_the_fields_words(page: str) -> None:
    assert old(rule_pages.pages()[page]) == []


@pytest.mark.parametrize("path", sorted([REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")]), ids=str)
def test_a_page_has_the_fields_words(path: Path) -> None:
    if path.name not in NAMING:
        assert old(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("rule", sorted(CATALOGUE))
def test_a_rules_sentences_have_the_fields_words(rule: str) -> None:
    """All that its file can say, whether or not a demo job has the fault."""
    path = REPOSITORY / "tb_ddp_doctor" / "rules" / f"{rule.replace('-', '_')}.py"
    assert old("\n".join(_sentences(path.read_text(encoding="utf-8")))) == []


def test_the_commands_help_has_the_fields_words() -> None:
    assert old("\n".join(_helps(options.parser()))) == []


@pytest.mark.parametrize(
    ("said", "has"),
    [
        ("Rank 1 holds up the job.", True),
        ("The device starves for 3 ms.", True),
        ("It takes 20 us.", True),
        ("`tells` is a field of the JSON.", False),
        ("GPU idle, launch-bound (CPU overhead).", False),
    ],
)
def test_old_words_are_seen_and_others_are_not(said: str, has: bool) -> None:
    assert bool(old(said)) is has


def test_short_times_are_in_microseconds() -> None:
    assert wording.us(12_000) == "12 µs"


@pytest.mark.parametrize(("least", "most", "said"), [(0.12, 0.154, "12 to 15 %"), (0.031, 0.042, "3.1 to 4.2 %")])
def test_a_range_of_shares_has_the_digits_of_its_larger_end(least: float, most: float, said: str) -> None:
    assert wording.percents(least, most) == said


def _sentences(source: str) -> Iterator[str]:
    """The sentences in the strings of a module: what has a space and is not only a name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.value


def _helps(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield parser.format_help()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _helps(command)


def names_of(source: str) -> Iterator[str]:
    """The names that a module gives."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def banned(source: str) -> set[str]:
    """The names that have a banned word."""
    return {name for name in names_of(source) if BANNED & set(re.sub("(?=[A-Z])", "_", name).lower().split("_"))}


@pytest.mark.parametrize("part", sorted((REPOSITORY / "tb_ddp_doctor").glob("[a-z]*")), ids=lambda part: part.name)
def test_names_have_the_fields_words(part: Path) -> None:
    names = {
        path: banned(path.read_text(encoding="utf-8")) - ALLOWED.get(part.name, set())
        for path in (part.rglob("*.py") if part.is_dir() else [part] if part.suffix == ".py" else [])
    }
    assert {path: bad for path, bad in names.items() if bad} == {}


def test_a_banned_name_is_seen() -> None:
    assert banned("held_ns = 1\nclass IsAlike: ...\ndef holds(told): ...\n") == {"held_ns", "IsAlike", "holds", "told"}
    assert banned("found = 1\nclass Found: ...\n") == {"found", "Found"}
    assert banned("household = 1\n") == set()
