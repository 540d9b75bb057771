"""The GitHub Action and the recipes of docs/ci.md: their scripts run in bash, with stand-ins for what servers have."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from traces import ranks, write

ROOT = Path(__file__).parents[1]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
RECIPES = (ROOT / "docs" / "ci.md").read_text()
SLOW = """
    rank# step |1
          gpu  [fwd........][bwd.]
          nccl                    [ar....]
"""
OTHER = """
    rank# step |1
          gpu  [fwd....][bwd.]
          nccl                [ar........]
"""
FASTER = """
    rank# step |1
          gpu  [fwd.][bwd.]
          nccl             [ar....]
"""


class Runner:
    """What a runner has: files for outputs, summary and path, and programs that note how they were called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.files = {name: folder / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY", "GITHUB_PATH")}
        for path in self.files.values():
            path.touch()
        self.program("gh", 'printf "%s\\n" "$@" >> "$CALLS"; [[ $* == *--paginate* ]] && cat "$OLD"; exit 0')
        self.program(
            "python3", 'printf "%s\\n" "$@" >> "$CALLS"; [[ $1 != -m ]] || { mkdir -p "$3/bin"; cp "$0" "$3/bin/pip"; }'
        )
        self.calls = folder / "calls"
        self.old = folder / "old"
        self.old.touch()

    def program(self, name: str, script: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/usr/bin/env bash\n{script}\n")
        path.chmod(0o755)

    def environment(self) -> dict[str, str]:
        programs = f"{self.bin}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        files = {name: str(path) for name, path in self.files.items()}
        more = {"CALLS": str(self.calls), "OLD": str(self.old), "RUNNER_TEMP": str(self.folder)}
        return {**os.environ, **files, **more, "PATH": programs, "GITHUB_REPOSITORY": "o/r"}

    def bash(self, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
        # As a runner starts `shell: bash`.
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
        environment = self.environment() | variables
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)

    def outputs(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self.files["GITHUB_OUTPUT"].read_text().splitlines())

    def step(self, name: str, **given: str) -> subprocess.CompletedProcess[str]:
        """Run a step of the action with inputs, by their names with "_" for "-"."""
        (step,) = [one for one in ACTION["runs"]["steps"] if one["name"] == name]
        known: dict[str, Any] = {key: one.get("default", "") for key, one in ACTION["inputs"].items()}
        known |= {key.replace("_", "-"): value for key, value in given.items()}
        context = {f"inputs.{key}": value for key, value in known.items()}
        context |= {f"steps.run.outputs.{key}": value for key, value in self.outputs().items()}
        context |= {"github.action_path": str(ROOT), "github.event.pull_request.number": "7"}
        context |= {"github.workflow": "tests `x`", "github.job": "performance", "github.token": "t"}

        def expanded(text: str) -> str:
            return re.sub(r"\$\{\{ (.*?) \}\}", lambda found: context[found[1]], text)

        assert "${{" not in step["run"], "a script takes inputs by the environment"
        return self.bash(step["run"], **{key: expanded(value) for key, value in step["env"].items()})


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    return write(tmp_path / "logs" / "-slow", ranks(OTHER, SLOW, OTHER))


def test_a_diagnosis_is_the_summary_with_annotations_and_fails_where_asked(runner: Runner, slow: Path) -> None:
    done = runner.step("Diagnose", logdir=str(slow), fail_on="minor")
    assert done.returncode == 0, done.stderr
    assert runner.files["GITHUB_STEP_SUMMARY"].read_text().startswith("## ddp-doctor: ")
    assert re.search(r"^::error title=", done.stdout, re.MULTILINE)
    assert runner.outputs()["status"] == "1"
    assert runner.step("Fail where asked to").returncode == 1


def test_a_comparison_fails_for_a_regression(runner: Runner, tmp_path: Path) -> None:
    before = write(tmp_path / "before", ranks(FASTER, FASTER, steps=5))
    after = write(tmp_path / "after", ranks(OTHER, OTHER, steps=5))
    done = runner.step("Diagnose", logdir=str(after), baseline=str(before), fail_on_regression="5")
    assert done.returncode == 0, done.stderr
    assert "before against after" in runner.files["GITHUB_STEP_SUMMARY"].read_text()
    assert runner.outputs()["status"] == "1"
    runner.files["GITHUB_OUTPUT"].write_text("")
    runner.step("Diagnose", logdir=str(before), baseline=str(after), fail_on_regression="5")
    assert runner.outputs()["status"] == "0"


def test_traces_that_are_not_there_are_said_and_fail(runner: Runner, tmp_path: Path) -> None:
    done = runner.step("Diagnose", logdir="$(touch hacked); --html=x")
    assert done.returncode == 0 and not Path("hacked").exists()
    assert "could not read the traces" in runner.files["GITHUB_STEP_SUMMARY"].read_text()
    assert runner.step("Fail where asked to").returncode == 2


def test_a_comment_is_made_once_and_then_replaced(runner: Runner, slow: Path) -> None:
    runner.step("Diagnose", logdir=str(slow))
    assert runner.step("Comment").returncode == 0
    calls = runner.calls.read_text()
    assert "POST\nrepos/o/r/issues/7/comments\n" in calls and "PATCH" not in calls
    comment = (runner.folder / "ddp-doctor-comment.md").read_text()
    assert comment.startswith("<!-- ddp-doctor tests _x_/performance -->\n## ddp-doctor: ")
    runner.calls.unlink()
    runner.old.write_text("41\n42\n")
    runner.step("Comment")
    assert "PATCH\nrepos/o/r/issues/comments/41\n" in runner.calls.read_text()


def test_a_comment_that_is_not_allowed_costs_a_warning(runner: Runner, slow: Path) -> None:
    runner.step("Diagnose", logdir=str(slow))
    runner.program("gh", "[[ $* == *--paginate* ]] || exit 1")
    done = runner.step("Comment")
    assert done.returncode == 0 and "::warning::" in done.stdout and "pull-requests: write" in done.stdout


@pytest.mark.parametrize(("install", "named"), [("", str(ROOT)), ("tb-ddp-doctor==0.1.0", "tb-ddp-doctor==0.1.0")])
def test_the_action_installs_its_own_version_or_the_one_that_is_asked_for(
    runner: Runner, install: str, named: str
) -> None:
    done = runner.step("Install", install=install)
    assert done.returncode == 0, done.stderr
    assert f"install\n--quiet\n{named}\n" in runner.calls.read_text()
    assert runner.files["GITHUB_PATH"].read_text() == f"{runner.folder}/ddp-doctor/bin\n"


def test_the_action_can_use_what_is_there(runner: Runner) -> None:
    assert runner.step("Install", install="none").returncode == 0
    assert not runner.calls.exists()


def test_the_page_names_all_inputs_and_no_other() -> None:
    listed = re.findall(r"^\| `([\w-]+)` \|", RECIPES, re.MULTILINE)
    assert listed == list(ACTION["inputs"])
    example = yaml.safe_load(blocks("yaml")[0])
    assert set(example["jobs"]["performance"]["steps"][-1]["with"]) <= set(ACTION["inputs"])


def test_the_recipe_for_gitlab_runs(runner: Runner, slow: Path) -> None:
    job = yaml.safe_load(blocks("yaml")[1])["performance"]
    script = "\n".join(job["script"]).replace("/shared/traces/main", str(slow)).replace(" traces ", f" '{slow}' ")
    runner.program("torchrun", "exit 0")
    done = runner.bash(f"cd {runner.folder}; {script}")
    assert done.returncode == 1, done.stderr
    assert (runner.folder / job["artifacts"]["reports"]["junit"]).exists()
    assert not (runner.folder / "ddp-doctor.md").exists()  # `--fail-on` ends the script
    runner.bash(f"cd {runner.folder}; {script.replace('--fail-on major', '')}")
    assert (runner.folder / job["artifacts"]["paths"][0]).read_text().startswith("## ddp-doctor: ")


def test_the_epilogue_for_slurm_leaves_the_verdict(runner: Runner, slow: Path) -> None:
    (script,) = blocks("bash")
    reports = runner.folder / "reports"
    reports.mkdir()
    # Waited for here, which Slurm must not.
    script = script.replace("/var/reports", str(reports)).replace("exit 0\n", "wait\n")
    script = script.replace("|| wait", "|| exit 0")
    runner.program("squeue", f"echo 'ddp-doctor:{slow}'")
    runner.program("scontrol", 'printf "%s\\n" "$@" >> "$CALLS"')
    done = runner.bash(script, SLURM_JOB_ID="12")
    assert done.returncode == 0, done.stderr
    assert (reports / "12.html").exists()
    assert "JobId=12\nComment=Rank 1 is the straggler" in runner.calls.read_text()
    runner.program("squeue", "echo '(null)'")
    runner.calls.unlink()
    assert runner.bash(script, SLURM_JOB_ID="13").returncode == 0
    assert not runner.calls.exists()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", RECIPES, re.MULTILINE | re.DOTALL)


def test_scripts_have_no_mistake_that_bash_sees() -> None:
    for script in [*(step["run"] for step in ACTION["runs"]["steps"]), *blocks("bash")]:
        assert subprocess.run(["bash", "-n", "-c", script], check=False).returncode == 0
    assert json.dumps(ACTION)
