"""Files that commands write: a name that cannot be is told before the work, in a sentence, and no folder is made."""

from __future__ import annotations

from pathlib import Path

import pytest
from traces import ranks, write

from tb_ddp_doctor.cli import main
from tb_ddp_doctor.commands.output import reason

JOB = """
    rank# step |1
          gpu  [fwd]
          nccl      [ar]
"""
COMMANDS = [["slice", "-o"], ["merge", "-o"], ["diagnose", "--html"]]


@pytest.fixture
def logdir(tmp_path: Path) -> Path:
    return write(tmp_path / "logs", ranks(JOB, JOB))


@pytest.mark.parametrize(("name", "option"), COMMANDS, ids=[name for name, _ in COMMANDS])
@pytest.mark.parametrize(
    ("at", "said"),
    [
        ("typo/out.json", "there is no folder"),
        ("file/out.json", "is a file"),
        ("folder.json", "is a folder: name a file in it"),
    ],
)
def test_a_file_that_cannot_be_written_is_told(
    logdir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, option: str, at: str, said: str
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.json").mkdir()
    before = sorted(tmp_path.rglob("*"))
    assert main([name, str(logdir), option, str(tmp_path / at), "--no-cache"]) == 2
    told = capsys.readouterr()
    assert said in told.err and "Errno" not in told.err and str(tmp_path / at) in told.err
    assert told.out == ""
    assert sorted(tmp_path.rglob("*")) == before


def test_what_a_file_system_says_is_a_sentence() -> None:
    assert reason(OSError(28, "No space left on device", "a/b")) == "a/b: no space left on device."
    assert reason(OSError(28, "No space left on device")) == "No space left on device."
    assert reason(ValueError("It is so.")) == "It is so."
    assert reason(TimeoutError("It does not answer.")) == "It does not answer."
