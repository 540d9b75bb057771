"""Files for other programs: packages, containers, the documentation's site.

What needs Docker, conda or a registry cannot be tried here: these are read, and held to what the code says.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tb_ddp_doctor import __version__
from tb_ddp_doctor.commands.options import parser

ROOT = Path(__file__).parents[1]
PYPROJECT = (ROOT / "pyproject.toml").read_text()
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
COMMANDS = next(action.choices for action in parser()._actions if action.dest == "command")
_LINK = re.compile(r"\[[^]]*\]\(([^()\s]+)\)")
_CODE = re.compile(r"^( *)```.*?^\1```|`[^`\n]*`", re.DOTALL | re.MULTILINE)


def needed() -> set[str]:
    """The packages that a wheel needs."""
    listed = PYPROJECT.split("\ndependencies = [")[1].split("\n]")[0]
    return set(re.findall(r'^    "([\w-]+)', listed, re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_link_within_the_repository_is_broken(page: Path) -> None:
    broken = [
        link
        for link in _LINK.findall(_CODE.sub("", page.read_text()))
        if "://" not in link and not link.startswith("mailto:") and not is_there(page, link)
    ]
    assert not broken


def is_there(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (page.parent / path) if path else page
    if not target.exists():
        return False
    heads = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE) if anchor else []
    return not anchor or anchor in {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_command_that_a_page_shows_is_one_with_these_options(page: Path) -> None:
    wrong = []
    for words in re.findall(r"\bddp-doctor ((?:\w+)[^`\n|>#&;)]*)", page.read_text()):
        name, *options = words.split()
        if name in COMMANDS:
            known = COMMANDS[name]._option_string_actions
            given = [one.partition("=")[0].rstrip(".,:") for one in options if one.startswith("--") and one != "--"]
            wrong += [f"{name} {option}" for option in given if option not in known]
    assert not wrong


def test_the_image_installs_this_package_and_runs_as_nobody() -> None:
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    assert {name for name, _ in lines} <= {"FROM", "RUN", "COPY", "USER", "ENV", "WORKDIR", "EXPOSE", "CMD"}
    last = [rest for name, rest in lines if name == "CMD"]
    assert json.loads(last[0])[:3] == ["tensorboard", "--logdir", "/logs"]
    assert [rest for name, rest in lines if name == "USER"] == ["1000"]  # by number, as a pod's runAsNonRoot needs it
    assert {"/source"} == {rest.split()[1] for name, rest in lines if name == "COPY" and rest.startswith(". ")}
    assert ".venv" in (ROOT / ".dockerignore").read_text().split()


def test_the_devcontainer_starts_the_tab_on_a_directory_that_one_mounts(tmp_path: Path) -> None:
    made = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert made["forwardPorts"] == [6006]
    (mount,) = made["mounts"]
    named = dict(part.split("=", 1) for part in mount.split(",") if "=" in part)
    assert named == {"type": "bind", "source": "${localEnv:DDP_DOCTOR_LOGS:/tmp}", "target": "/logs"}
    assert made["remoteEnv"] == {"DDP_DOCTOR_LOGS": "${localEnv:DDP_DOCTOR_LOGS}"}
    assert subprocess.run(["bash", "-n", "-c", made["postCreateCommand"]], check=False).returncode == 0
    program = tmp_path / ".venv" / "bin" / "tensorboard"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    for logs, shown in (("/my/logs", "/logs"), ("", "demo_logs")):
        started = subprocess.run(
            ["sh", "-c", made["postAttachCommand"]],
            cwd=tmp_path, env={"DDP_DOCTOR_LOGS": logs}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert started.stdout == f"--logdir {shown}\n"


def test_the_pod_reads_logs_only_and_may_nothing_else() -> None:
    page = (ROOT / "docs" / "containers.md").read_text()
    (text,) = re.findall(r"^```yaml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    spec = yaml.safe_load(text)["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    mounts = {one["name"]: one for one in container["volumeMounts"]}
    assert mounts["logs"] == {"name": "logs", "mountPath": "/logs", "readOnly": True}
    assert set(mounts) == {one["name"] for one in spec["volumes"]}
    assert container["securityContext"]["readOnlyRootFilesystem"] and spec["securityContext"]["runAsNonRoot"]


def test_the_conda_recipe_needs_what_the_wheel_needs() -> None:
    recipe = yaml.safe_load((ROOT / "packaging" / "conda" / "recipe.yaml").read_text())
    assert recipe["context"]["version"] == __version__
    names = {"python-isal": "isal"}
    listed = [one["then"] if isinstance(one, dict) else one for one in recipe["requirements"]["run"]]
    run = {names.get(one.split()[0], one.split()[0]) for one in listed}
    assert run - {"python"} == needed()
    assert recipe["build"]["python"]["entry_points"] == ["ddp-doctor = tb_ddp_doctor.cli:main"]
    assert recipe["about"]["license"] in PYPROJECT
    for command in recipe["tests"][1]["script"]:
        words = command.split()[1:]
        assert words == ["--version"] or parser().parse_args(words)


def test_the_citation_names_this_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert str(cited["version"]) == __version__
    assert {"cff-version", "message", "title", "authors"} <= set(cited)
    assert cited["license"] == "Apache-2.0"


def test_every_python_is_tried_with_lowest_and_newest_versions() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "pythons.yml").read_text())["jobs"]
    matrix = jobs["install"]["strategy"]["matrix"]
    named = re.findall(r"Programming Language :: Python :: (3\.\d+)", PYPROJECT)
    assert matrix == {"python": named, "versions": ["lowest", "newest"]}
    script = (ROOT / ".ci" / "pythons").read_text()
    assert f"for version in {' '.join(named)};" in script
    # The rules' tests too, on the newest: NumPy 2.5 took away what the demo does not need.
    assert any("&& 'tests' ||" in step.get("run", "") for step in jobs["install"]["steps"])
    for path in [*(ROOT / ".ci").iterdir(), ROOT / "packaging" / "sbom", ROOT / "packaging" / "conda" / "lint"]:
        assert os.access(path, os.X_OK)
        assert subprocess.run(["bash", "-n", path], check=False).returncode == 0


def test_wheels_of_all_platforms_are_built_with_a_bill_of_materials() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]
    assert set(jobs["wheels"]["strategy"]["matrix"]["os"]) == {
        "ubuntu-latest",
        "ubuntu-24.04-arm",
        "macos-latest",
        "windows-latest",
    }
    (built,) = (step["env"] for step in jobs["wheels"]["steps"] if "cibuildwheel" in step.get("run", ""))
    assert built["CIBW_ARCHS_MACOS"] == "x86_64 arm64" and "diagnose" in built["CIBW_TEST_COMMAND"]
    assert any(step.get("run", "").startswith("CC=/no/compiler ") for step in jobs["sdist"]["steps"])
    assert any("packaging/sbom" in step.get("run", "") for step in jobs["sbom"]["steps"])


def test_the_site_is_built_strictly_with_search_and_versions() -> None:
    made = yaml.safe_load((ROOT / ".readthedocs.yaml").read_text())
    assert made["mkdocs"] == {"configuration": "mkdocs.yml", "fail_on_warning": True}
    (install,) = made["python"]["install"]
    assert "mkdocs" in (ROOT / install["requirements"]).read_text()
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert site["strict"] is True and any("search" in one for one in site["plugins"])
