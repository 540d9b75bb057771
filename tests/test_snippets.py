"""Every command and snippet that the pages show is executed here, or by the test that `ELSEWHERE` names.

Commands of the doctor run in a folder that has what they name. Lines of a training loop run with stand-ins for what is
around them, and with a Doctor that takes only what the real one takes.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import MagicMock, create_autospec

import pandas as pd
import pytest
from test_history_summary import QUIET, drawn, written
from traces import ranks, write

import tb_ddp_doctor.capture
from tb_ddp_doctor import trackers
from tb_ddp_doctor.check.options import add_options
from tb_ddp_doctor.choices import Parser
from tb_ddp_doctor.cli import main
from tb_ddp_doctor.commands.examples import EXAMPLES
from tb_ddp_doctor.commands.options import parser
from tb_ddp_doctor.config.read import NAME, read_config

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
OTHER = """
    rank# step |1
          gpu  [fwd....][bwd.]
          nccl                [ar........]
"""
SLOW = """
    rank# step |1
          gpu  [fwd........][bwd.]
          nccl                    [ar....]
"""
#: Languages of blocks, and which tests execute them; "text" is what no computer reads.
ELSEWHERE = {"text": "", "yaml": "test_action, test_site", "bash": "test_action", "diff": "test_adding_a_rule"}
ELSEWHERE |= {"js": "test_tab_every_view", "json": "below, and test_docs", "toml": "below", "python": "below"}
#: Pages whose Python is executed by tests of their own.
OWN_TESTS = {"adding-a-rule.md", "adding-a-recorder.md", "python.md"}
#: What this machine has not, or tests/test_wheel.py and .ci/run execute.
OTHER_PROGRAMS = ("docker ", "nsys ", "py-spy ", "git clone ", "python -m build", "CC=", "python3 -m venv .venv && ")
#: Commands that do not end by themselves, or start what tests/test_check.py starts; and those that read very much.
ENDLESS = ("mcp", "demo", "check")
WHOLE = (["diagnose", "/", "--everywhere"], ["diagnose", "demo_logs"])
#: What the jobs that the commands are tried on have not.
LACKS = ("no step times", "there is no finding 'no-overlap'", "No trace names the model's modules")
#: What stands for a value in a command that a page shows.
PLACES = {
    "FINDING": "straggler",
    "N": "1",
    "R": "0",
    "Q": "1",
    "RUN": "BEFORE",
    "VALUE": "0.1",
    "both.pftrace/before": "BEFORE",
    "both.pftrace/after": "AFTER",
    "RULE.THRESHOLD=VALUE": "straggler.min_excess=0.1",
}


class Block(NamedTuple):
    page: Path
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.stem}: {self.text[:30]!r}"


def blocks() -> Iterator[Block]:
    for page in PAGES:
        for found in re.finditer(r"^( *)```(\w*)\n(.*?)^\1```", page.read_text(), re.DOTALL | re.MULTILINE):
            text = re.sub(rf"^{found[1]}", "", found[3], flags=re.MULTILINE)
            yield Block(page, found[2], text)


BLOCKS = list(blocks())
SHELL = [
    line
    for block in BLOCKS
    if not block.language and not block.text.startswith("$")
    for line in block.text.splitlines()
]
INLINE = sorted({found for page in PAGES for found in re.findall(r"`(ddp-doctor [^`]+)`", page.read_text())})
HELP = [line for examples in EXAMPLES.values() for line, _ in examples]
#: Fragments name no log directory: tests/test_site.py checks their options.
COMMANDS = sorted({line for line in (*SHELL, *INLINE, *HELP) if re.match(r"ddp-doctor \S+ [^-]", line)})
SNIPPETS = [
    block
    for block in BLOCKS
    if block.language == "python" and (block.page.name not in OWN_TESTS or "trackers" in block.text)
]


def test_no_block_is_of_a_kind_that_nobody_executes() -> None:
    assert {block.language for block in BLOCKS} - {""} <= set(ELSEWHERE)
    shown = [block for block in BLOCKS if block.text.startswith("$ ddp-doctor")]
    assert len(shown) > 5 and {block.language for block in shown} == {""}
    known = ("ddp-doctor ", "torchrun ... ", "pip install ", *OTHER_PROGRAMS)
    assert [
        line
        for line in SHELL
        if line.strip() and not re.sub(r"--nnodes \d+ --nproc-per-node \d+ ", "", line).startswith(known)
    ] == []
    assert len(COMMANDS) > 40 and len(SNIPPETS) > 15


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the directories that the pages name: traces, hours of a job, and dumps of one that hangs."""
    made = tmp_path_factory.mktemp("snippets")
    for name in (
        "LOGDIR",
        "DIR",
        "BEFORE",
        "AFTER",
        "before",
        "after",
        "baseline",
        "branch",
        "logs/before",
        "logs/after",
    ):
        write(made / name, ranks(OTHER, SLOW, OTHER))
    written(made / "logs" / "my_job", drawn(QUIET + "b ....................####################"))
    write(made / "logs" / "my_job" / "step_2000", ranks(OTHER, SLOW, OTHER, OTHER))
    (made / "LOGDIR" / "hang").symlink_to(ROOT / "tests" / "flight_recorder" / "gpu_error_1st")
    (made / "hang").symlink_to(ROOT / "tests" / "flight_recorder" / "gpu_error_1st")
    (made / "demo_logs").symlink_to(ROOT / "demo_logs")
    return made


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_does_what_it_says(
    line: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("DDP_DOCTOR_CACHE", str(folder / "cache"))
    plain = re.sub(r"\[,.*?\]|[][]", "", line).replace('"$LOGDIR"', "LOGDIR").split(" > ")[0]
    words = [PLACES.get(word, word) for word in shlex.split(plain, comments=True)][1:]
    words = [re.sub(r"^/(shared/)?logs/(my_)?job", "logs/my_job", word) for word in words]
    options = parser().parse_args(words)
    if words[0] in ENDLESS or words in WHOLE:
        return
    if words[0] == "plan":
        words[1] = "demo_logs/no_overlap"
    status = main(words)
    said, complained = capfd.readouterr()
    if words[0] == "dump" or (words[0] == "capture" and not options.dynolog):
        assert status == 2 and "No job" in complained
    elif status == 2:
        assert any(said in complained for said in LACKS)
    else:
        assert status == (1 if "--fail-on" in words else 0), complained
        assert said or complained


def test_a_command_of_the_check_has_its_options() -> None:
    check = Parser()
    add_options(check)
    lines = [line.split("-m tb_ddp_doctor.check")[1] for line in SHELL if "-m tb_ddp_doctor.check" in line]
    for line in lines:
        check.parse_args(shlex.split(line))
    assert lines


def test_what_pip_installs_is_an_extra_that_there_is() -> None:
    extras = re.findall(
        r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text().split("optional-dependencies]")[1], re.MULTILINE
    )
    texts = " ".join(page.read_text() for page in PAGES)
    named = set(re.findall(r"tb-ddp-doctor\[([\w,]+)\]", texts))
    assert len(named) > 4 and {one for names in named for one in names.split(",")} <= set(extras)


def test_the_settings_that_the_page_shows_are_taken(tmp_path: Path) -> None:
    (text,) = (block.text for block in BLOCKS if block.language == "toml")
    (tmp_path / NAME).write_text(text)
    found = read_config([tmp_path], None)
    assert found.warnings == () and found.currency == "EUR" and found.workload.gpu_hour == 2.5
    assert found.thresholds == {"straggler": {"min_excess": 0.05}}


def test_agents_start_the_server_as_the_page_says() -> None:
    (text,) = (block.text for block in BLOCKS if block.page.name == "agents.md" and block.language == "json")
    (server,) = json.loads(text)["mcpServers"].values()
    assert server["command"] == "ddp-doctor" and parser().parse_args(server["args"]).command == "mcp"


#: What frameworks have that a snippet takes from them.
FRAMEWORKS: dict[str, dict[str, Any]] = {
    "lightning": {},
    "lightning.pytorch": {"Callback": type("Callback", (), {})},
    "transformers": {"TrainerCallback": type("TrainerCallback", (), {})},
    "torchtitan": {},
    "torchtitan.train": {"Trainer": type("Trainer", (), {"step": 7, "train_step": lambda *_: None})},
    "megatron": {},
    "megatron.training": {"get_args": MagicMock(), "training": MagicMock()},
    "torch": {"__getattr__": lambda name: MagicMock()},
    "torch.profiler": {"__getattr__": lambda name: MagicMock()},
}


def names_around() -> dict[str, Any]:
    """What a training loop has."""
    known = {"loader": [1, 2], "logdir": "logs/my_job", "WEBHOOK": "http://localhost/"}
    others = ("model", "save", "train_step", "count_tokens", "Trainer", "accelerator", "model_engine", "torch")
    return {**known, **{name: MagicMock() for name in others}}


@pytest.mark.parametrize("block", SNIPPETS, ids=str)
def test_a_snippet_runs(block: Block, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    # matplotlib draws, which the doctor does not need.
    monkeypatch.setattr(pd.Series, "plot", lambda series: None)
    doctor = create_autospec(tb_ddp_doctor.capture.Doctor)
    for module in ("tb_ddp_doctor.capture", "tb_ddp_doctor.capture.doctor"):
        monkeypatch.setattr(f"{module}.Doctor", doctor)
    for name, has in FRAMEWORKS.items():
        stand_in = ModuleType(name)
        vars(stand_in).update(has)
        monkeypatch.setitem(sys.modules, name, stand_in)
        monkeypatch.delitem(sys.modules, f"tb_ddp_doctor.capture.{name}", raising=False)
    for log in ("log_to_wandb", "log_to_mlflow"):
        monkeypatch.setattr(trackers, log, create_autospec(getattr(trackers, log)))
    names = {**names_around(), "doctor": doctor("logs/my_job"), "tb_ddp_doctor": tb_ddp_doctor}
    exec(compile(block.text, block.page.name, "exec"), names)
    if "to_chat" in names:
        sent: list[Any] = []
        monkeypatch.setattr("urllib.request.urlopen", lambda request, timeout: sent.append(request.data))
        names["to_chat"](SimpleNamespace(confidence="high", line="Rank 5 ..."))
        names["to_chat"](SimpleNamespace(confidence="low", line="Rank 6 ..."))
        assert sent == [b'{"text": "Rank 5 ..."}']
