"""The first hour: the demo, help with examples, and completion in a shell."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest

from tb_ddp_doctor import engine
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.cli import main
from tb_ddp_doctor.commands.examples import EXAMPLES
from tb_ddp_doctor.commands.options import parser
from tb_ddp_doctor.demo import FOLDER, JOBS
from tb_ddp_doctor.discover.runs import discover

COMMAND = str(Path(sys.executable).parent / "ddp-doctor")
COMMANDS = next(action.choices for action in parser()._actions if action.dest == "command")


@pytest.mark.parametrize(
    ("name", "verdict", "cost_ms"), [("straggler_cpu", "straggler", 125.2), ("zero_workers", "dataloader-stall", 103.2)]
)
def test_the_demos_jobs_are_small_and_say_what_those_of_demo_logs_say(
    name: str, verdict: str, cost_ms: float, tmp_path: Path
) -> None:
    (run,) = [one for one in discover(FOLDER) if one.name == name]
    diagnosis = engine.diagnose(run, reading=engine.Reading(Cache(None))).diagnosis
    assert diagnosis.verdict == verdict and name in JOBS
    assert diagnosis.findings[0].cost_ms == pytest.approx(cost_ms, rel=0.02)


def test_the_demo_takes_less_than_2_mb() -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*.gz")) < 2_000_000


def test_demo_opens_tensorboard_on_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--where"]) == 0
    assert capsys.readouterr().out.strip() == str(FOLDER)
    process = subprocess.Popen([COMMAND, "demo", "--port", "0"], stdout=subprocess.PIPE, text=True)
    timer = threading.Timer(90, process.kill)
    timer.start()
    try:
        assert process.stdout
        said = process.stdout.readline()
        found = re.match(r"(http://\S+/)#ddp_doctor shows two jobs", said)
        assert found, said
        with urllib.request.urlopen(f"{found[1]}data/plugin/ddp_doctor/runs?reload", timeout=60) as answer:
            assert answer.status == 200
    finally:
        timer.cancel()
        process.terminate()
        process.wait(timeout=30)
        process.stdout.close()


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples_that_the_command_takes(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    printed = capsys.readouterr().out
    for line, what in EXAMPLES[command]:
        assert f"  {line}\n      {what}\n" in printed
        words = shlex.split(line.split(" > ")[0])
        assert parser().parse_args(words[1:]).command == command
    assert list(EXAMPLES) == list(dict.fromkeys([*EXAMPLES, *COMMANDS]))


def test_completion_knows_commands_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    ask = 'COMP_WORDS=(ddp-doctor "$@"); COMP_CWORD=$#; _shtab_ddp_doctor; printf "%s\\n" "${COMPREPLY[@]}"'
    name = re.search(r"^complete .*-F (\w+) ddp-doctor", script, re.MULTILINE)
    assert name, script[-500:]
    ask = ask.replace("_shtab_ddp_doctor", name[1])

    def completed(*words: str) -> set[str]:
        done = subprocess.run(
            ["bash", "-c", f"{script}\n{ask}", "bash", *words], capture_output=True, text=True, check=False
        )
        return set(done.stdout.split())

    assert {"diagnose", "demo"} <= completed("d")
    assert completed("diagnose", "--fail") == {"--fail-on"}


def test_completion_says_which_package_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tb_ddp_doctor.commands.completion.find_spec", lambda name: None)
    assert main(["completion", "zsh"]) == 2
    assert "pip install 'tb-ddp-doctor[completion]'" in capsys.readouterr().err
