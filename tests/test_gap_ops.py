"""Without stacks the ops around a gap say where in the code it is; with them, a line of the file where that is here."""

from __future__ import annotations

from pathlib import Path

import pytest
from traces import digests

from tb_ddp_doctor.findings import Source
from tb_ddp_doctor.view.source_line import source_line

GAPS = """
    rank0 step   |1                                       |2
          host   [a.....][b][c..........]      [d][e]        [f]
          within [inner.]
          gpu    [a.....][b]                    [d][e]        [f]
"""


def around(drawing: str) -> list[tuple[str, str]]:
    """The ops before and after each gap, the longest of a step first."""
    (digest,) = digests(drawing).values()
    pairs = zip(digest.gap_ops.before.tolist(), digest.gap_ops.after.tolist(), strict=True)
    return [(digest.strings[before], digest.strings[after]) for before, after in pairs]


def test_a_gap_lies_between_the_outermost_ops_around_it() -> None:
    assert ("aten::c", "aten::d") in around(GAPS)
    assert ("aten::e", "aten::f") in around(GAPS)


def test_before_the_first_op_and_after_the_last_there_is_none() -> None:
    found = around("""
        rank0 step |1               |2
              host      [a]     [b]
              gpu       [a]     [b]
    """)
    assert ("", "aten::a") in found
    assert all(before != "aten::b" for before, _ in found)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("import torch\n\n    def step(batch):\n        pass\n")
    (tmp_path / "secret.txt").write_text("a\nb\ndef step(): the secret\n")
    (tmp_path / "large.py").write_text("\n\ndef step():" + " " * (1 << 20))
    (tmp_path.parent / "beside.py").write_text("\n\ndef step(outside):\n")
    return tmp_path


def test_the_line_of_a_function_is_read_where_its_file_is_here(project: Path) -> None:
    found = source_line(Source("train.py", 3, "step"), project)
    assert found and (found.text, found.path) == ("def step(batch):", str(project.resolve() / "train.py"))
    assert source_line(Source(str(project / "train.py"), 3, "Trainer.step"), project) == found


@pytest.mark.parametrize(
    ("file", "line", "function"),
    [
        ("train.py", 2, "step"),
        ("train.py", 99, "step"),
        ("train.py", 3, "forward"),
        ("train.py", 3, ""),
        ("secret.txt", 3, "step"),
        ("large.py", 3, "step"),
        ("../beside.py", 3, "step"),
        ("absent.py", 3, "step"),
        ("train.py\0", 3, "step"),
        ("/etc/passwd", 1, "root"),
        ("a" * 5000 + ".py", 1, "step"),
    ],
)
def test_nothing_else_is_read(project: Path, file: str, line: int, function: str) -> None:
    assert source_line(Source(file, line, function), project) is None
