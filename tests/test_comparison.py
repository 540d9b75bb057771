"""Two runs side by side."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from traces import ranks, write

from tb_ddp_doctor import engine
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.cli import main
from tb_ddp_doctor.comparison import Comparison, _step_time, compare
from tb_ddp_doctor.discover import discover

DEMO_LOGS = Path(__file__).parent.parent / "demo_logs"
USUAL = """
    rank# step |1
          gpu  [fwd....][bwd.]
          nccl                [ar........]
"""
SLOW = """
    rank# step |1
          gpu  [fwd........][bwd.]
          nccl                    [ar....]
"""
LONGER = """
    rank# step |1
          gpu  [fwd........][bwd.]
          nccl                    [ar........]
"""
OTHER_KERNEL = USUAL.replace("[fwd....]", "[new....]")


def result(folder: Path, text: str, name: str = "run") -> engine.Result:
    write(folder / name, text)
    (run,) = discover(folder / name)
    return engine.diagnose(run, reading=engine.Reading(Cache(None)))


def compared(tmp_path: Path, before: str, after: str) -> Comparison:
    return compare(result(tmp_path / "a", before, "one"), result(tmp_path / "b", after, "two"))


def demo(name: str) -> engine.Result:
    (run,) = discover(DEMO_LOGS / name)
    return engine.diagnose(run, reading=engine.Reading(Cache(None)))


def test_loader_workers_tell_their_story_by_themselves() -> None:
    found = compare(demo("zero_workers"), demo("four_workers"))
    assert found.headline.startswith("four_workers takes 51.0 ms a step, zero_workers 168.0 ms: 70 % less")
    story = " ".join(found.story)
    assert "Waiting for the DataLoader fell from 101.3 to 0.0 ms a step." in story
    assert "Copies now overlap with the host" in story
    assert "dataloader-stall is fixed" in story
    (loader,) = [change for change in found.findings if change.rule == "dataloader-stall"]
    assert (loader.fate, loader.after_ms) == ("fixed", 0)


def test_the_other_way_round_the_fault_is_new() -> None:
    found = compare(demo("four_workers"), demo("zero_workers"))
    assert found.step.change > 2 and found.step.tells
    assert [change.fate for change in found.findings if change.rule == "dataloader-stall"] == ["new"]


def test_a_run_and_itself_do_not_differ(tmp_path: Path) -> None:
    found = compared(tmp_path, ranks(USUAL, SLOW), ranks(USUAL, SLOW))
    assert not found.step.tells and found.story == ()
    assert found.headline.startswith("No difference that these steps can tell")
    assert all(change.change_ms == 0 for change in found.owners)
    assert {change.fate for change in found.findings} <= {"same"}


def test_jobs_that_differ_by_chance_do_not_differ() -> None:
    found = compare(demo("healthy"), demo("four_workers"))
    assert not found.step.tells and found.findings == ()


def test_owners_and_kernels_are_means_over_ranks_and_steps(tmp_path: Path) -> None:
    found = compared(tmp_path, ranks(USUAL, USUAL), ranks(LONGER, LONGER, LONGER, steps=5))
    compute = next(change for change in found.owners if change.name == "compute")
    assert (compute.before_ms, compute.after_ms) == (15, 19)
    (kernel, *_) = found.kernels
    assert (kernel.name, kernel.before_ms, kernel.after_ms) == ("fwd_kernel", 9, 13)
    assert (kernel.before_count, kernel.after_count) == (1, 1)
    assert found.step.change == pytest.approx(4 / 27)
    assert "Compute rose from 15.0 to 19.0 ms a step." in found.story


def test_kernels_of_one_run_alone_are_told(tmp_path: Path) -> None:
    found = compared(tmp_path, ranks(USUAL), ranks(OTHER_KERNEL))
    counts = {kernel.name: (kernel.before_count, kernel.after_count) for kernel in found.kernels}
    assert counts["fwd_kernel"] == (1, 0) and counts["new_kernel"] == (0, 1)


def test_collectives_are_compared_by_kind_without_waiting(tmp_path: Path) -> None:
    found = compared(tmp_path, ranks(USUAL, USUAL), ranks(USUAL, SLOW))
    (change,) = found.communication
    assert (change.name, change.before_ms, change.after_ms) == ("all_reduce", 12, 8)


def test_few_steps_are_doubted(tmp_path: Path) -> None:
    found = compared(tmp_path, ranks(USUAL, USUAL, steps=2), ranks(LONGER, LONGER, steps=2))
    assert "2 steps cannot tell" in found.step.doubt
    assert found.story[0].startswith("2 steps cannot tell")


def windows(*steps: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    return np.array([steps, steps]) * 1_000_000


def test_noise_is_no_change() -> None:
    noisy = _step_time(windows(50, 90, 70, 40), windows(90, 60, 40, 80))
    assert not noisy.tells and noisy.interval[0] < 0 < noisy.interval[1]
    assert _step_time(windows(50, 51, 50, 49), windows(60, 61, 60, 59)).tells
    assert not _step_time(windows(50, 50, 50), windows(51, 51, 51)).tells


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=6), st.lists(st.integers(1, 10**6), min_size=1, max_size=6))
def test_the_interval_lies_within_the_extremes(before: list[int], after: list[int]) -> None:
    step = _step_time(windows(*before), windows(*after))
    low, high = step.interval
    assert min(after) / max(before) - 1 - 1e-9 <= low <= high <= max(after) / min(before) - 1 + 1e-9


def test_the_command_fails_on_a_regression(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "a" / "one", ranks(USUAL, USUAL))
    write(tmp_path / "b" / "two", ranks(LONGER, LONGER))
    arguments = ["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--no-cache"]
    assert main(arguments) == 0
    assert "15 % more" in capsys.readouterr().out
    assert main([*arguments, "--fail-on-regression", "10"]) == 1
    assert main([*arguments, "--fail-on-regression", "20"]) == 0
    assert main(["compare", *reversed(arguments[1:3]), "--fail-on-regression", "10"]) == 0


def test_the_command_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "a", ranks(USUAL, USUAL))
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "a"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["step"]["change"] == 0 and not found["step"]["tells"]


def test_the_command_takes_one_run_of_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two"):
        write(tmp_path / name, ranks(USUAL))
    assert main(["compare", str(tmp_path), str(tmp_path / "one")]) == 2
    assert "holds 2 runs; name the directory of one: one, two." in capsys.readouterr().err
