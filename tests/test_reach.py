"""A log directory that is far more than one: what is looked into is limited, shown, and said."""

from __future__ import annotations

import argparse
import io
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from tensorboard.plugins.base_plugin import TBContext
from traces import ranks, write
from werkzeug.test import Client

from tb_ddp_doctor.cli import main
from tb_ddp_doctor.commands import output
from tb_ddp_doctor.discover import walk
from tb_ddp_doctor.discover.runs import DiscoverError, discover
from tb_ddp_doctor.flight.find import find
from tb_ddp_doctor.plugin.plugin import DiagnosisLoader, DiagnosisPlugin
from tb_ddp_doctor.storage import reach
from tb_ddp_doctor.storage.reach import Reach

JOB = """
    rank# step |1
          gpu  [fwd]
          nccl      [ar]
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Twelve folders, the last of which has a job."""
    for number in range(10):
        (tmp_path / f"a{number}").mkdir()
    write(tmp_path / "z", ranks(JOB, JOB))
    return tmp_path


def test_all_folders_of_a_usual_log_directory_are_looked_into(tree: Path) -> None:
    seen: list[int] = []
    (run,) = discover(tree, reach=lambda: Reach(looked=seen.append))
    assert (run.name, seen) == ("z", list(range(1, 13)))
    assert not any("--everywhere" in warning.message for warning in run.warnings)


def test_so_many_folders_and_no_more(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "MOST_FOLDERS", 3)
    (run,) = discover(tree)  # the last by name comes first
    assert any("Only the first 3 folders below were looked into" in warning.message for warning in run.warnings)
    (tree / "zz").mkdir()
    for number in range(3):
        (tree / f"zz{number}").mkdir()
    with pytest.raises(DiscoverError, match="Only the first 3 folders"):
        discover(tree)
    (run,) = discover(tree, reach=lambda: Reach(everywhere=True))
    assert run.name == "z"


def test_dumps_are_looked_for_in_as_many(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(reach, "MOST_FOLDERS", 3)
    find(tree, Reach(looked=seen.append))
    assert seen == [1, 2, 3]


def on_two_devices(monkeypatch: pytest.MonkeyPatch, elsewhere: str) -> None:
    """Let a folder of this name be on another file system."""
    listed = walk._list

    def of_devices(folder: Path, wanted: Callable[[str, str], bool]) -> object:
        status, entries = listed(folder, wanted)
        if folder.name == elsewhere:
            fields = list(status)
            fields[2] = status.st_dev + 1
            status = type(status)(fields)
        return status, entries

    monkeypatch.setattr(walk, "_list", of_devices)


def test_other_file_systems_are_left_out_and_named(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_two_devices(monkeypatch, "a3")
    (run,) = discover(tree)
    (said,) = (warning.message for warning in run.warnings if "--everywhere" in warning.message)
    assert said.startswith(f"A folder on another file system is left out ({tree / 'a3'})")
    on_two_devices(monkeypatch, "z")
    with pytest.raises(DiscoverError, match="other file systems are left out"):
        discover(tree)
    assert discover(tree, reach=lambda: Reach(everywhere=True))


def test_a_link_leads_to_another_file_system(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "z").rename(tree.parent / f"{tree.name}_z")
    (tree / "z").symlink_to(tree.parent / f"{tree.name}_z")
    on_two_devices(monkeypatch, "z")
    (run,) = discover(tree)
    assert run.name == "z"


def test_the_command_looks_everywhere_when_told(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_two_devices(monkeypatch, "z")
    assert main(["diagnose", str(tree), "--no-cache"]) == 2
    assert "--everywhere" in capsys.readouterr().err
    assert main(["diagnose", str(tree), "--no-cache", "--everywhere"]) == 0


def listed(logdir: Path, *, everywhere: bool) -> dict[str, Any]:
    """What the tab is told of a log directory."""
    flags = SimpleNamespace(logdir_spec="", ddp_doctor_scheduler="", ddp_doctor_everywhere=everywhere)
    plugin = DiagnosisPlugin(TBContext(logdir=str(logdir), flags=flags))
    client = Client(plugin.get_plugin_apps()["/runs"])
    until = time.monotonic() + 120
    while (told := client.get("/").json)["state"] == "scanning":
        assert time.monotonic() < until
        time.sleep(0.05)
    return told


def test_the_tab_says_what_it_does_not_look_into_and_how_it_would(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_two_devices(monkeypatch, "a3")
    told = listed(tree, everywhere=False)
    assert [run["name"] for run in told["runs"]] == ["z"]
    (said,) = told["left_out"]
    assert str(tree / "a3") in said and said.endswith("look into all with --ddp_doctor_everywhere.")
    on_two_devices(monkeypatch, "z")
    told = listed(tree, everywhere=False)
    assert told["runs"] == [] and "--ddp_doctor_everywhere" in told["error"]
    told = listed(tree, everywhere=True)
    assert ([run["name"] for run in told["runs"]], told["left_out"], told["error"]) == (["z"], [], None)


def test_tensorboard_takes_the_option() -> None:
    parser = argparse.ArgumentParser()
    DiagnosisLoader().define_flags(parser)
    assert parser.parse_args([]).ddp_doctor_everywhere is False
    assert parser.parse_args(["--ddp_doctor_everywhere"]).ddp_doctor_everywhere is True


@pytest.mark.parametrize(("is_terminal", "is_long"), [(True, True), (True, False), (False, True)])
def test_a_long_search_shows_how_far_it_is(is_terminal: bool, is_long: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(range(100)) if is_long else iter([0.0] * 100)
    monkeypatch.setattr(output.time, "monotonic", lambda: next(times))
    console = Console(file=io.StringIO(), force_terminal=is_terminal)
    with output.looking(console) as looked:
        for folders in (1, 2, 1234):
            looked(folders)
    shown = console.file.getvalue()
    assert ("Looking for traces: 1,234 folders" in shown) == (is_terminal and is_long)
    assert not shown or shown.endswith("\r\x1b[K")
