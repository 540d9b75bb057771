"""`ddp-doctor.toml`: what a project's own file and one beside traces may set, and where that is said."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from rules.test_layout_copies import FAULTY
from traces import ranks, write

from tb_ddp_doctor.cli import main
from tb_ddp_doctor.commands import answers
from tb_ddp_doctor.commands.options import parser
from tb_ddp_doctor.config.read import NAME, Config, read_config
from tb_ddp_doctor.findings import Workload

WHOLE = """
calibration = "calibration.json"
[thresholds.straggler]
min_excess = 0.05
[workload]
tokens_per_step = 2080
[price]
gpu_hour = 2.5
currency = "EUR"
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return write(tmp_path / "logs" / "job", ranks(FAULTY, FAULTY))


def diagnosed(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert main(["diagnose", "--json", "--no-cache", *map(str, arguments)]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    return dict(run)


def test_a_file_sets_thresholds_prices_tokens_and_a_calibration(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(WHOLE)
    found = read_config([], tmp_path)
    assert found.thresholds == {"straggler": {"min_excess": 0.05}}
    assert found.workload == Workload(tokens_per_step=2080, gpu_hour=2.5)
    assert (found.currency, found.calibration) == ("EUR", tmp_path / "calibration.json")
    (used,) = found.used
    assert used.values == {
        "straggler.min_excess": 0.05,
        "tokens_per_step": 2080,
        "gpu_hour": 2.5,
        "currency": "EUR",
        "calibration": "calibration.json",
    }


def test_a_file_of_windows_sets_the_same(tmp_path: Path) -> None:
    """With carriage returns, and U+FEFF at its beginning."""
    (tmp_path / NAME).write_text(WHOLE)
    expected = read_config([], tmp_path)
    (tmp_path / NAME).write_bytes(b"\xef\xbb\xbf" + WHOLE.replace("\n", "\r\n").encode())
    assert read_config([], tmp_path) == expected and not expected.warnings


def test_the_projects_values_go_first_and_the_rest_is_added(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / NAME).write_text("[price]\ngpu_hour = 2\n[thresholds.straggler]\nmin_excess = 0.1")
    (tmp_path / "logs" / NAME).write_text(WHOLE.replace("calibration =", "#"))
    found = read_config([tmp_path / "logs"], tmp_path)
    assert found.thresholds == {"straggler": {"min_excess": 0.1}}
    assert found.workload == Workload(tokens_per_step=2080, gpu_hour=2)
    assert (found.currency, len(found.used)) == ("EUR", 2)


def test_nearest_file_beside_the_traces_counts_and_one_file_counts_once(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / NAME).write_text("[price]\ngpu_hour = 1")
    assert read_config([tmp_path / "run", tmp_path], None).workload.gpu_hour == 1
    assert len(read_config([tmp_path], tmp_path).used) == 1
    (tmp_path / "run" / NAME).write_text("[price]\ngpu_hour = 3")
    assert read_config([tmp_path / "run", tmp_path], None).workload.gpu_hour == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("price = 1", "Expected `object`"),
        ("[price]\ngpu_hour = -1", "gpu_hour is a number from 0 on"),
        ("[price]\ngpu_hour = nan", "gpu_hour is a number from 0 on"),
        ('[price]\ncurrency = "<b>"', "three letters"),
        ("[prices]\ngpu_hour = 1", "unknown field `prices`"),
        ("no toml", ""),
        ("\0", ""),
        ("a = 1\n" * 20_000, "larger than"),
        ('calibration = "../calibration.json"', "outside of its folder"),
        ('calibration = "/etc/passwd"', "outside of its folder"),
    ],
)
def test_a_file_that_is_not_right_costs_a_warning(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / NAME).write_text(text)
    found = read_config([tmp_path], None)
    assert (found.used, found.thresholds, found.workload) == ((), {}, Workload())
    (warning,) = found.warnings
    assert warning.file == str(tmp_path / NAME) and said in warning.message


def test_what_is_no_plain_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / NAME)
    assert read_config([tmp_path], tmp_path) == Config()


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_a_file_of_another_user_beside_traces_is_ignored(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("[price]\ngpu_hour = 1")
    os.chown(tmp_path / NAME, 12345, 12345)
    assert "belongs to another user" in read_config([tmp_path], None).warnings[0].message
    os.chown(tmp_path, 12345, 12345)
    assert read_config([tmp_path], None).workload.gpu_hour == 1


def test_settings_act_and_are_said_wherever_the_diagnosis_is(
    project: Path, job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (job / NAME).write_text("[price]\ngpu_hour = 2.5\ncurrency = 'EUR'\n[thresholds.layout-copies]\nmin_cost = 0.9")
    (project / NAME).write_text("[workload]\ntokens_per_step = 2080")
    run = diagnosed(capsys, job)
    assert run["rates"]["money_per_day"] == 120 and run["rates"]["currency"] == "EUR"
    assert run["rates"]["tokens_per_second"] > 0
    assert [one["file"] for one in run["config"]] == [str(project / NAME), str(job / NAME)]
    assert not [one for one in run["opportunities"] if one["rule"] == "layout-copies"]
    main(["diagnose", "--no-cache", str(job)])
    printed = " ".join(capsys.readouterr().out.split())
    assert "120.00 EUR a day" in printed
    assert "layout-copies.min_cost=0.9" in printed and "tokens_per_step=2080" in printed
    main(["diagnose", "--no-cache", "--markdown", str(job)])
    assert "tokens\\_per\\_step=2080" in capsys.readouterr().out


def test_the_command_line_goes_before_files_which_it_can_ignore(
    project: Path, job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (job / NAME).write_text("[price]\ngpu_hour = 2.5\ncurrency = 'EUR'")
    run = diagnosed(capsys, job, "--gpu-hour", "5", "--currency", "USD")
    assert (run["rates"]["money_per_day"], run["rates"]["currency"]) == (240, "USD")
    assert diagnosed(capsys, job, "--no-config")["rates"] is None
    with pytest.raises(SystemExit):
        main(["diagnose", str(job), "--gpu-hour", "5", "--currency", "dollars"])


def test_a_threshold_that_no_rule_has_costs_a_warning_and_nothing_else(
    project: Path, job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (job / NAME).write_text("[thresholds.layout-copies]\nleast = 0.9")
    run = diagnosed(capsys, job)
    assert any("has no threshold 'least'" in one["message"] for one in run["warnings"])
    assert [one for one in run["opportunities"] if one["rule"] == "layout-copies"]


def test_answers_that_are_printed_again_depend_on_the_projects_file(
    project: Path, job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What has just been written may still change: its state counts all the same here.
    monkeypatch.setattr(answers, "fingerprint", lambda path: path.stat().st_mtime_ns)
    assert answers.CONFIG_NAME == NAME
    options = parser().parse_args(["diagnose", str(job), "--cache", str(tmp_path / "cache")])
    before = answers._entry(options)
    (project / NAME).write_text("[price]\ngpu_hour = 1")
    assert before and answers._entry(options) != before
