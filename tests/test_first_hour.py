"""The first hour: the demo, help with examples, and completion in a shell."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import threading
import time
import urllib.request
from importlib.util import find_spec
from pathlib import Path

import pytest
from first_hour import FirstHour

from tb_ddp_doctor import engine
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.cli import main
from tb_ddp_doctor.commands.examples import EXAMPLES
from tb_ddp_doctor.commands.options import parser
from tb_ddp_doctor.demo import FOLDER, JOBS
from tb_ddp_doctor.discover.runs import discover

ROOT = Path(__file__).parents[1]
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


#: In place of a rank of the check: says where it is and what it was given, and outlives the first rank.
RANK = """
import os, sys, time
rank = os.environ.get("RANK", "alone")
print(f"{rank} of {os.environ.get('WORLD_SIZE')} {os.environ.get('MASTER_ADDR')} {sys.argv[1:]}", flush=True)
time.sleep(60 if rank == "1" else 0)
sys.exit(1)
"""


def test_check_starts_a_rank_for_each_gpu_and_ends_with_the_first(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tb_ddp_doctor.commands.check.find_spec", lambda name: name)
    monkeypatch.setattr("tb_ddp_doctor.commands.check.PROGRAM", (sys.executable, "-c", RANK))
    monkeypatch.setattr("tb_ddp_doctor.commands.check._LAST_S", 0.01)
    assert main(["check", "--ranks", "2", "-o", "logs", "--max-bytes", "64M", "--cpu", "--seconds", "3"]) == 1
    given = "['--output', 'logs', '--seconds', '3.0', '--max-bytes', '67108864', '--cpu']"
    assert f"0 of 2 127.0.0.1 {given}" in capfd.readouterr().out.splitlines()
    assert main(["check"]) == 1
    assert capfd.readouterr().out == "alone of None None []\n"


def test_check_says_that_it_needs_pytorch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("tb_ddp_doctor.commands.check.find_spec", lambda name: None)
    assert main(["check"]) == 2
    assert "PyTorch is not installed here" in capsys.readouterr().err


def test_a_clone_is_small() -> None:
    """A cache of 299 MB that a benchmark left behind was once committed."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    files = [ROOT / os.fsdecode(name) for name in listed.split(b"\0") if name]
    assert len(files) > 500
    assert not [path for path in files if path.suffix in (".columns", ".answer")]
    assert sum(path.stat().st_size for path in files if path.is_file()) < 40e6


@pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch: pip install -e '.[test,torch]'")
def test_from_a_clone_to_the_verdict_of_ones_own_job_as_the_readme_says(tmp_path: Path) -> None:
    """README's lines in a job of two processes over gloo, from a clone; .ci/first_hour also installs it."""
    subprocess.run(["git", "clone", "--quiet", "--depth=1", f"file://{ROOT}", "clone"], cwd=tmp_path, check=True)
    first_hour = FirstHour(tmp_path / "clone")
    (tmp_path / "train.py").write_text(first_hour.script)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "clone"), "GLOO_SOCKET_IFNAME": "lo"}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    subprocess.run(launcher, cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=300)
    printed = ""
    for _ in range(120):
        # The job does not wait for its last digests when it ends.
        words = [sys.executable, "-m", "tb_ddp_doctor.cli", *first_hour.diagnose.split()[1:]]
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        printed = done.stdout
        if "2 of 2 ranks, 3 steps" in printed:
            break
        time.sleep(1)
    assert "2 of 2 ranks, 3 steps" in printed
    assert "Rank 1 is the straggler" in printed


def test_the_first_hour_is_what_the_readme_says() -> None:
    """What .ci/first_hour runs, for minutes and with packages of 1 GB."""
    hour = FirstHour(ROOT)
    assert hour.install == "python3 -m venv .venv && .venv/bin/pip install ."
    assert hour.activate == ". .venv/bin/activate"
    assert hour.diagnose == "ddp-doctor diagnose logs/my_job --last"
    script = (ROOT / ".ci" / "first_hour").read_text()
    assert {"install", "activate", "script", "diagnose"} == set(re.findall(r"\breadme (\w+)", script))
    assert subprocess.run(["bash", "-n", ROOT / ".ci" / "first_hour"], check=False).returncode == 0
