"""What is printed points to what every installation has: `ddp-doctor explain`."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import tb_ddp_doctor
from tb_ddp_doctor.cli import main
from tb_ddp_doctor.report.glossary import GLOSSARY
from tb_ddp_doctor.rules import CATALOGUE


def explained(capsys: pytest.CaptureFixture[str], *terms: str) -> str:
    assert main(["explain", *terms]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("rule", CATALOGUE)
def test_every_rule_is_explained_with_its_thresholds(rule: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = " ".join(explained(capsys, rule).split())
    assert said.startswith(f"{rule}: ") and "Limits: " in said
    assert all(f"--set {rule}.{limit.name}=" in said for limit in CATALOGUE[rule].thresholds())


def test_every_term_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    for term in GLOSSARY:
        assert term.split()[0] in explained(capsys, term)
    assert "algbw x factor" in explained(capsys, "BusBW").replace("\n", " ")


def test_without_a_term_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    said = explained(capsys)
    assert all(name in said for name in (*CATALOGUE, *GLOSSARY))


def test_a_word_that_is_none_is_told_with_what_is_like_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "straglers"]) == 2
    assert "Did you mean 'straggler'" in capsys.readouterr().err
    assert main(["explain", "x" * 30]) == 2
    assert "lists all" in capsys.readouterr().err


def test_nothing_that_is_printed_points_to_a_file_of_the_repository() -> None:
    """Whoever installed the package has no docs/: docstrings of modules and comments may name them."""
    for path in Path(tb_ddp_doctor.__file__).parent.rglob("*.py"):
        tree = ast.parse(path.read_text())
        docstrings = {ast.get_docstring(node, clean=False) for node in ast.walk(tree) if isinstance(node, ast.Module)}
        docstrings |= {
            ast.get_docstring(node, clean=False)
            for node in ast.walk(tree)
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and "rules" not in path.parts
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in docstrings:
                assert not re.search(r"docs/[\w-]+\.md", node.value), f"{path}:{node.lineno}"
