"""The page on adding a rule leads to a rule that works: it is added to a copy of the repository, and runs there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from traces import MS, job

from tb_ddp_doctor.digest.model import RankOwner
from tb_ddp_doctor.rules.support.base import Rule

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "adding-a-rule.md").read_text()
RULE, TEST = Path("tb_ddp_doctor/rules/exposed_copies.py"), Path("tests/rules/test_exposed_copies.py")
#: What the copy needs of the repository, which nothing is written into.
LINKED = ("README.md", "benchmarks", "demo_logs", "docs", "frontend", "native", "pyproject.toml")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the repository with the page's rule, its test and a line in the changelog."""
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in ("tb_ddp_doctor", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored, symlinks=True)
    for name in LINKED:
        (tmp_path / name).symlink_to(ROOT / name)
    drawings, test, rule = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / RULE).write_text(rule)
    imports, _, body = test.partition("\n\n\n")
    (tmp_path / TEST).write_text(f"{imports}\n\n{drawings}\n\n{body}")
    (tmp_path / "CHANGELOG.md").write_text((ROOT / "CHANGELOG.md").read_text() + "- `exposed-copies`.\n")
    return tmp_path


def run(copy: Path, *command: str) -> str:
    """What a module of Python prints that runs in the copy; the test fails if it does."""
    found = subprocess.run(
        [sys.executable, "-P", "-m", *command],
        cwd=copy,
        env={"PYTHONPATH": str(copy), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


def is_a_rule_like_all(copy: Path) -> None:
    """Run the rule's tests, and those that all rules have: of what it declares, and of both drawings with all rules."""
    run(copy, "ruff", "check", "-q", "--no-cache", str(RULE), str(TEST))
    tests = (str(TEST), "tests/rules/test_catalogue.py", "tests/test_examples.py")
    printed = run(copy, "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *tests, "-k", "exposed")
    assert re.search(r"^1[3-9] passed", printed, re.MULTILINE), printed


def changed(copy: Path) -> list[str]:
    """The files that differ from the repository's."""
    files = [path for path in copy.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    own = [path.relative_to(copy) for path in files if not any(path.is_relative_to(copy / name) for name in LINKED)]
    return sorted(str(path) for path in own if not same(copy / path, ROOT / path))


def same(one: Path, other: Path) -> bool:
    return other.exists() and one.read_bytes() == other.read_bytes()


def add_column(copy: Path) -> None:
    """Change the copy by the page's differences, each a file's name and pieces of it with what is before and after."""
    for name, pieces in re.findall(r"```diff\n--- (\S+)\n(.*?)```", TEXT, re.DOTALL):
        text = (copy / name).read_text()
        for piece in pieces.split("@@\n"):
            lines = piece.splitlines(keepends=True)
            before, after = ("".join(line[1:] or "\n" for line in lines if line[0] in f" \n{sign}") for sign in "-+")
            assert text.count(before) == 1, f"{name} has not once:\n{before}"
            text = text.replace(before, after)
        (copy / name).write_text(text)


def test_a_rule_takes_three_files(copy: Path) -> None:
    is_a_rule_like_all(copy)
    assert changed(copy) == sorted(map(str, (RULE, TEST, "CHANGELOG.md")))


def test_a_rule_with_a_column_of_the_digest_and_a_fact_of_its_own_takes_five(copy: Path) -> None:
    add_column(copy)
    is_a_rule_like_all(copy)
    columns = ("tb_ddp_doctor/digest/model.py", "tb_ddp_doctor/digest/copies.py")
    assert changed(copy) == sorted(map(str, (RULE, TEST, "CHANGELOG.md", *columns)))


@pytest.mark.parametrize("wrong", ["", "Frame"])
def test_the_rules_types_are_checked(copy: Path, wrong: str) -> None:
    """The page's rule passes mypy, and does not with the type of another fact."""
    rule = (copy / RULE).read_text()
    checked = copy / "checked" / RULE.name
    checked.parent.mkdir()
    checked.write_text(rule.replace("copies: CopyWork", f"copies: {wrong}") if wrong else rule)
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(checked.parent)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == (1 if wrong else 0), found.stdout
    assert ('"Frame" has no attribute "pinned_exposed_ns"' in found.stdout) == bool(wrong)


def test_the_page_says_all_that_a_rule_declares() -> None:
    said = re.findall(r"^\| `(\w+)` \| \S", TEXT, re.MULTILINE)
    lanes = {"step", "autograd", "gpu", "copy", "nccl", "python", "host"}
    assert [name for name in said if name not in lanes] == [name for name in Rule.__annotations__ if name != "check"]


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
