"""Two runs side by side."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rules.test_slow_kernels import SLOW as SLOW_KERNELS
from traces import in_row, ranks, write

from tb_ddp_doctor import engine, kernel_names
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.cli import main
from tb_ddp_doctor.comparison import named
from tb_ddp_doctor.comparison.build import compare
from tb_ddp_doctor.comparison.model import Comparison
from tb_ddp_doctor.comparison.modules import modules
from tb_ddp_doctor.comparison.significance import differs, step_time
from tb_ddp_doctor.discover.runs import discover
from tb_ddp_doctor.findings import LayerRow, LayerTable
from tb_ddp_doctor.report.compared import parts

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
#: The longer kernel is launched by an operator of its own, and the loader has workers in place of none.
LOADS = """
    rank# step |1
          host [load..][mul][other]
          gpu        [mul.....][other.]
          nccl                        [ar........]
"""
FETCHES = """
    rank# step |1
          host [fetch][mul][other]
          gpu        [mul.][other.]
          nccl                    [ar........]
"""
NOISY = """
    rank# step |1                      |2                          |3
          gpu  [fwd....][bwd.]         [fwd....][bwd.]             [fwd....][bwd.]
          nccl                [ar....]                [ar........]                [ar.......]
"""
NOISIER = """
    rank# step |1                      |2                                      |3
          gpu  [fwd....][bwd.]         [fwd....][bwd.]                         [fwd....][bwd.]
          nccl                [ar....]                [ar....................]                [ar........]
"""
GELU = """
    rank# step |1
          host [gelu][fwd]
          gpu  [gelu....][fwd...........]
          nccl            [ar]
"""
OTHER_KERNEL = USUAL.replace("[fwd....]", "[new....]")


def read(folder: Path) -> engine.Result:
    (run,) = discover(folder)
    return engine.diagnose(run, reading=engine.Reading(Cache(None)))


def result(folder: Path, text: str, name: str = "run") -> engine.Result:
    return read(write(folder / name, text))


def compared(tmp_path: Path, before: str, after: str) -> Comparison:
    return compare(result(tmp_path / "a", before, "one"), result(tmp_path / "b", after, "two"))


def demo(name: str) -> engine.Result:
    return read(DEMO_LOGS / name)


def test_loader_workers_tell_their_story_by_themselves() -> None:
    found = compare(demo("zero_workers"), demo("four_workers"))
    assert found.headline.startswith("four_workers takes 51.0 ms a step, zero_workers 168.0 ms: 70 % less")
    story = " ".join(found.story)
    assert "Waiting for the DataLoader fell from 101.3 to 0.0 ms a step, 87 % of the difference." in story
    assert "Batches are now loaded in worker processes; before, in the training process" in story
    assert "Copies no longer block the CPU" in story
    assert "dataloader-stall is fixed" in story
    (loader,) = [change for change in found.findings if change.rule == "dataloader-stall"]
    assert (loader.fate, loader.after_ms) == ("fixed", 0)


#: A server's exchange of experts' tokens alone, and beside the GEMMs of the other half of the batch, of other tiles.
ALONE = """
    rank# step |1
          gpu  [gemm....]            [gemm....]
          nccl           [a2a......]           [a2a......]
"""
BESIDE = """
    rank# step |1
          gpu  [gemm....][other....][gemm....][other....]
          nccl           [a2a......]          [a2a......]
"""
TILES = "void deep_gemm::fp8_gemm_kernel<4096u, 7168u, {}u, (deep_gemm::GemmType)2>(float*)"


def test_exchanges_that_run_beside_gemms_are_said_with_the_tiles_that_differ(tmp_path: Path) -> None:
    before = write(tmp_path / "a" / "one", ranks(ALONE, ALONE), kernels={"gemm": TILES.format(128)})
    of_halves = {"gemm": TILES.format(64), "other": TILES.format(64)}
    after = write(tmp_path / "b" / "two", ranks(BESIDE, BESIDE), kernels=of_halves)
    found = compare(read(before), read(after))
    assert "Exposed communication fell from 22.0 to 0.0 ms a step" in " ".join(found.story)
    shown = {part.title: [row[0] for row in part.rows] for part in parts(found)}
    tiles = [f"deep_gemm::fp8_gemm_kernel<.., {tile}, ..>" for tile in (64, 128)]
    assert set(tiles) <= set(shown["Kernels that changed most, ms"])


def test_the_other_way_round_the_fault_is_new() -> None:
    found = compare(demo("four_workers"), demo("zero_workers"))
    assert found.step.change > 2 and found.step.tells
    assert [change.fate for change in found.findings if change.rule == "dataloader-stall"] == ["new"]


def test_a_run_and_itself_do_not_differ(tmp_path: Path) -> None:
    found = compared(tmp_path, ranks(USUAL, SLOW), ranks(USUAL, SLOW))
    assert not found.step.tells and found.story == ()
    assert found.headline.startswith("No significant difference")
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
    assert "Compute rose from 15.0 to 19.0 ms a step, 100 % of the difference." in found.story


def test_kernels_that_fall_behind_their_attainable_speed_are_named(tmp_path: Path) -> None:
    slower = [
        read(write(tmp_path / name, ranks(drawing, drawing), **SLOW_KERNELS))
        for name, drawing in (("one", GELU), ("two", GELU.replace("[gelu....]", "[gelu..........]")))
    ]
    found = compare(*slower)
    (change,) = found.roofs
    # 409.6 million values of 4 bytes, read and written at 3.35 TB/s, in 10 and in 16 ms.
    least_ms = 2 * 4 * 409.6e6 / 3.35e12 * 1e3
    assert (change.operator, change.inputs, change.dtype) == ("aten::gelu", "4000x102400", "float32")
    assert (change.before_share, change.after_share) == pytest.approx((least_ms / 10, least_ms / 16), rel=0.01)
    assert change.lost_ms == pytest.approx(6, rel=0.01)
    assert (
        "Slower against their attainable speed, which takes 6.0 ms a step: gelu of 4000x102400 (6.1 % of it, "
        "9.8 % before)." in found.story
    )
    (table,) = [part for part in parts(found) if "attainable" in part.title]
    assert table.rows == (("gelu of 4000x102400 float32", "9.8 %", "6.1 %", "10.00", "16.00"),)
    assert compare(slower[1], slower[0]).roofs[0].lost_ms < 0
    assert compare(slower[0], slower[0]).roofs == ()


def layers(*rows: tuple[str, float], named_by: str = "stacks") -> LayerTable:
    """Modules by path and time of a step."""
    return LayerTable(
        named_by=named_by,
        layer_events=0,
        rows=tuple(LayerRow(path, path.count(".") + bool(path), ms, 0, 0, 0, 0, 0, 0, ms, 0) for path, ms in rows),
    )


def test_modules_of_both_runs_are_one_tree() -> None:
    before = layers(("", 9), ("a", 5), ("a.x", 2), ("a.y", 3), ("c", 1))
    after = layers(("", 8), ("b", 4), ("a", 3), ("a.x", 3))
    found = [(one.path, one.level, one.before_ms, one.after_ms) for one in modules(before, after)]
    assert found == [("", 0, 9, 8), ("b", 1, 0, 4), ("a", 1, 5, 3), ("a.x", 2, 2, 3), ("a.y", 2, 3, 0), ("c", 1, 1, 0)]
    assert modules(None, after) == modules(before, None) == ()
    assert modules(before, layers(("", 8), named_by="Doctor.watch")) == (), "names that mean something else"


def test_modules_that_changed_most_are_a_table() -> None:
    (table,) = [part for part in parts(compare(demo("zero_workers"), demo("four_workers"))) if "Modules" in part.title]
    changes = [abs(float(row[3].replace("\u2212", "-"))) for row in table.rows]
    assert changes == sorted(changes, reverse=True) and len(changes) == 8
    assert {row[0] for row in table.rows} == {f"layer {n}" for n in range(1, 9)}


def test_kernels_of_one_run_alone_are_told(tmp_path: Path) -> None:
    found = compared(tmp_path, ranks(USUAL), ranks(OTHER_KERNEL))
    counts = {kernel.name: (kernel.before_count, kernel.after_count) for kernel in found.kernels}
    assert counts["fwd_kernel"] == (1, 0) and counts["new_kernel"] == (0, 1)


def test_operators_are_compared_by_name_on_host_and_device(tmp_path: Path) -> None:
    found = compared(tmp_path, ranks(LOADS, LOADS), ranks(FETCHES, FETCHES, FETCHES, steps=5))
    told = {operation.name: operation for operation in found.operators}
    mul = told["aten::mul"]
    assert (mul.before_device_ms, mul.after_device_ms) == (10, 6)
    assert (mul.before_count, mul.after_count) == (1, 1)
    # Both kinds of loader are one operator.
    loader = told["DataLoader.__next__"]
    assert (loader.before_host_ms, loader.after_host_ms) == (8, 7)
    assert found.operators[0].name == "aten::mul"
    assert "On the device less goes to aten::mul (-4.0 ms)." in found.story
    # Collectives launch no compute.
    assert "nccl" not in " ".join(found.story)


def test_what_is_not_listed_is_summed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = compared(tmp_path / "whole", ranks(LOADS), ranks(FETCHES))
    monkeypatch.setattr(named, "MOST", 1)
    cut = compared(tmp_path / "cut", ranks(LOADS), ranks(FETCHES))
    assert [kernel.name for kernel in cut.kernels] == ["mul_kernel", ""]
    assert len(cut.operators) == 2 and cut.operators[1].name == ""
    for rows, others in ((cut.kernels, whole.kernels), (cut.operators, whole.operators)):
        for column in rows[0].__struct_fields__[1:]:
            summed = [sum(getattr(row, column) for row in each) for each in (rows, others)]
            assert summed[0] == pytest.approx(summed[1])


def test_names_that_are_no_text_are_told(tmp_path: Path) -> None:
    run = result(tmp_path, ranks(USUAL))
    (digest,) = run.job.digests
    half = replace(digest, strings=tuple(f"{text}\ud800" for text in digest.strings))
    hostile = replace(run, job=replace(run.job, digests=(half,)))
    assert "\N{REPLACEMENT CHARACTER}" in msgspec.json.encode(compare(hostile, run)).decode()


def test_collectives_are_compared_by_kind_without_waiting(tmp_path: Path) -> None:
    found = compared(tmp_path, ranks(USUAL, USUAL), ranks(USUAL, SLOW))
    (change,) = found.communication
    assert (change.name, change.before_ms, change.after_ms) == ("all_reduce", 12, 8)


def test_few_steps_are_doubted(tmp_path: Path) -> None:
    found = compared(tmp_path, ranks(USUAL, USUAL, steps=2), ranks(LONGER, LONGER, steps=2))
    assert found.step.tells and found.step.doubt.startswith("2 steps are few")
    assert found.story[-1] == found.step.doubt


def test_one_step_tells_nothing(tmp_path: Path) -> None:
    found = compared(tmp_path, ranks(USUAL, USUAL, steps=1), ranks(LONGER, LONGER))
    assert not found.step.tells
    assert found.headline.endswith("15 % more, but one step cannot show whether this is noise.")
    assert "1 step cannot separate noise from change" in found.story[-1]
    # What is a tenth of the step is told all the same.
    assert "Compute rose from 15.0 to 19.0 ms a step." in found.story


def test_what_makes_runs_unlike_is_said(tmp_path: Path) -> None:
    before = write(tmp_path / "a" / "one", ranks(USUAL, USUAL, USUAL), world_size=3)
    next(before.glob("*")).unlink()
    write(tmp_path / "b" / "two", ranks(USUAL, USUAL))
    found = compare(*(read(folder) for folder in (before, tmp_path / "b" / "two")))
    assert [(run.name, run.ranks, run.world_size, run.steps) for run in found.runs] == [
        ("one", 2, 3, 3),
        ("two", 2, 2, 3),
    ]
    assert found.unlike == (
        "one: 1 of 3 ranks is missing here; straggler wait for them is not seen.",
        "two ran on 2 ranks, one on 3 ranks: all times are per rank and step, and do not account for the batch size.",
    )


def test_files_that_are_cut_off_are_said(tmp_path: Path) -> None:
    folder = write(tmp_path / "cut", ranks(USUAL, USUAL, USUAL))
    (first, *_) = sorted(folder.iterdir())
    first.write_bytes(first.read_bytes()[:-400])
    found = compare(read(folder), result(tmp_path, ranks(USUAL, USUAL, USUAL), "whole"))
    assert found.unlike == ("cut: 1 file is missing or incomplete here.",)


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    (before, after) = (result(tmp_path / part, ranks(text), "job") for part, text in (("a", USUAL), ("b", LONGER)))
    assert compare(before, after).headline.startswith(
        "The later run takes 31.0 ms a step, the earlier run 27.0 ms: 15 %"
    )


def test_what_takes_much_longer_is_told_in_times() -> None:
    assert "3.3 times as long (2." in compare(demo("four_workers"), demo("zero_workers")).headline


def test_a_run_that_does_not_train_is_said() -> None:
    inference = demo("healthy")
    phases = {rank: {**of, "backward": 0.0} for rank, of in inference.diagnosis.host_phases_ms.items()}
    diagnosis = msgspec.structs.replace(inference.diagnosis, name="inference", host_phases_ms=phases)
    found = compare(demo("healthy"), replace(inference, diagnosis=diagnosis))
    assert found.unlike == ("inference shows no backward pass, which healthy does: their steps may do different work.",)


def test_a_change_of_less_than_three_percent_is_no_change_of_a_finding() -> None:
    before = demo("zero_workers")
    first = before.diagnosis.findings[0]

    def fate(was: float, now: float) -> list[str]:
        runs = []
        for cost in (was * before.diagnosis.step_ms, now * before.diagnosis.step_ms):
            findings = (msgspec.structs.replace(first, cost_ms=cost),)
            runs.append(replace(before, diagnosis=msgspec.structs.replace(before.diagnosis, findings=findings)))
        return [change.fate for change in compare(*runs).findings]

    assert fate(0.029, 0.031) == ["same"]
    assert fate(0.0, 0.031) == ["new"]
    assert fate(0.031, 0.0) == ["fixed"]
    assert (fate(0.2, 0.1), fate(0.1, 0.2), fate(0.1, 0.12)) == (["better"], ["worse"], ["same"])


def windows(*steps: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    return np.array([steps, steps]) * 1_000_000


def test_noise_is_no_change() -> None:
    noisy = step_time(windows(50, 90, 70, 40), windows(90, 60, 40, 80))
    assert not noisy.tells and noisy.interval and noisy.interval[0] < 0 < noisy.interval[1]
    assert step_time(windows(50, 51, 50, 49), windows(60, 61, 60, 59)).tells
    assert not step_time(windows(50, 50, 50), windows(51, 51, 51)).tells


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=6), st.lists(st.integers(1, 10**6), min_size=1, max_size=6))
def test_the_change_lies_in_its_interval(before: list[int], after: list[int]) -> None:
    step = step_time(windows(*before), windows(*after))
    if min(len(before), len(after)) == 1:
        assert step.interval is None and not step.tells and step.doubt
        return
    assert step.interval
    low, high = step.interval
    slack = 1e-9 * (2 + abs(step.change))
    assert low - slack <= step.change <= high + slack < math.inf


def test_fewer_steps_widen_the_interval() -> None:
    def width(steps: int) -> float:
        interval = step_time(windows(*[50, 54] * (steps // 2)), windows(*[50, 54] * 20)).interval
        assert interval
        return interval[1] - interval[0]

    assert width(2) > 2 * width(4) > 2 * width(20)


@pytest.mark.parametrize("steps", [2, 3, 10])
def test_runs_that_differ_by_chance_seldom_tell(steps: int) -> None:
    rng = np.random.default_rng(3)
    runs = rng.normal(100e6, 7e6, (200, 2, 1, steps)).astype(np.int64).repeat(4, axis=2)
    told = sum(step_time(before, after).tells for before, after in runs)
    # 95 % of confidence: 10 of 200, and three times their deviation more would be chance once in a thousand.
    assert told <= 10 + 9


def test_a_part_of_the_step_differs_or_may_by_chance() -> None:
    assert differs(windows(10, 11, 10), windows(20, 21, 20))
    assert not differs(windows(10, 20, 15), windows(20, 10, 18))
    assert not differs(windows(10, 10, 10), windows(10, 10, 10))
    # Where ranks differ from each other, step for step alike, nothing is left to chance.
    apart = np.array([[0, 0, 0], [100, 101, 100]]) * 1_000_000
    assert differs(apart, apart + 10_000_000)
    assert differs(windows(10), windows(11))


def test_where_steps_may_differ_by_chance_so_do_their_parts(tmp_path: Path) -> None:
    found = compared(tmp_path, in_row(ranks(NOISY, NOISY, steps=1)), in_row(ranks(NOISIER, NOISIER, steps=1)))
    transfer = next(change for change in found.owners if change.name == "transfer")
    assert transfer.change_ms > 0.1 * found.step.before_ms and not found.step.tells
    assert found.story == ()


def test_the_command_fails_on_a_regression(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "a" / "one", ranks(USUAL, USUAL))
    write(tmp_path / "b" / "two", ranks(LONGER, LONGER))
    arguments = ["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--no-cache"]
    assert main(arguments) == 0
    assert "15 % more" in capsys.readouterr().out
    assert main([*arguments, "--fail-on-regression", "10"]) == 1
    assert main([*arguments, "--fail-on-regression", "20"]) == 0
    assert main(["compare", *reversed(arguments[1:3]), "--fail-on-regression", "10"]) == 0


def test_the_command_does_not_fail_on_what_may_be_chance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "a", in_row(ranks(NOISY, NOISY, steps=1)))
    write(tmp_path / "b", in_row(ranks(NOISIER, NOISIER, steps=1)))
    arguments = ["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--no-cache", "--fail-on-regression", "5"]
    assert main(arguments) == 0
    told = capsys.readouterr()
    assert "which may be noise (-" in told.out
    assert "--fail-on-regression: steps take" in told.err and "may be noise: no failure" in told.err


@pytest.mark.parametrize("percent", ["-1", "nan", "inf", "ten"])
def test_the_command_takes_a_percentage(percent: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["compare", "a", "b", f"--fail-on-regression={percent}"])
    assert stopped.value.code == 2 and f"'{percent}'" in capsys.readouterr().err


def test_the_command_prints_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(DEMO_LOGS / "zero_workers"), str(DEMO_LOGS / "four_workers"), "--markdown"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("## ddp-doctor: zero\\_workers against four\\_workers\n\n**four\\_workers takes 51.0 ms")
    assert "- Waiting for the DataLoader fell from 101.3 to 0.0 ms a step" in told
    assert re.search(r"dataloader-stall \(fixed\) \| 10\d\.\d\d \| 0\.00 \|", told)
    assert "| DataLoader.\\_\\_next\\_\\_ | 121.04 | 0.43 | \\-120.60 | 1 |" in told
    assert len(told) < 20_000


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


def test_the_command_takes_a_run_that_shares_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = write(tmp_path / "job", ranks(USUAL))
    (first,) = job.iterdir()
    (later,) = write(tmp_path / "later", ranks(LONGER)).iterdir()
    later.rename(job / first.name.replace("1700000000", "1700009999"))
    assert main(["compare", str(job), str(job)]) == 2
    assert "name the directory of one: job/span_1, job/span_2." in capsys.readouterr().err
    assert main(["compare", str(job / "span_1"), str(job / "span_2")]) == 0
    assert "job/span_2 takes 31.0 ms a step, job/span_1 27.0 ms" in capsys.readouterr().out
    assert main(["compare", str(job / "span_1"), str(job / "span_3")]) == 2
    assert f"{job / 'span_3'} holds no profiler traces" in capsys.readouterr().err


def test_kernels_of_one_name_are_told_apart_by_the_template_arguments_that_differ() -> None:
    gemm = "void deep_gemm::fp8_gemm_kernel<{}u, 7168u, 128u, (deep_gemm::GemmType){}>(float*)"
    assert kernel_names.distinguished(
        [gemm.format(64, 0), gemm.format(128, 2), "add<int>(int)", "copy(vec<int>)", "copy(vec<long>)"]
    ) == [
        "deep_gemm::fp8_gemm_kernel<64, .., (GemmType)0>",
        "deep_gemm::fp8_gemm_kernel<128, .., (GemmType)2>",
        "add",
        "copy",
        "copy",
    ]
    assert kernel_names.distinguished(["f<a<1, 2>, b>", "f<a<1, 3>, b>", "f<a<1, 2>"]) == [
        "f<a<1, 2>, b>",
        "f<a<1, 3>, b>",
        "f<a<1, 2>>",
    ]


def test_long_names_are_told_apart_by_their_ends() -> None:
    fused = "triton_red_fused__to_copy__unsafe_view_add_embedding_mean_mul_native_layer_norm_pow_rsqrt_{}"
    assert kernel_names.distinguished([fused.format(3), fused.format(12)]) == [
        "triton_red_fused__to_copy__unsafe_view_add_e...norm_pow_rsqrt_3",
        "triton_red_fused__to_copy__unsafe_view_add_e...orm_pow_rsqrt_12",
    ]


def test_kernels_that_did_not_change_are_not_among_those_that_changed_most(tmp_path: Path) -> None:
    shown = {part.title: part.rows for part in parts(compared(tmp_path, ranks(USUAL, USUAL), ranks(LONGER, LONGER)))}
    rows = shown["Kernels that changed most, ms"]
    assert rows[0][0] == "fwd_kernel"
    assert not [row for row in rows if row[0] != "(all others)" and row[3] in ("+0.00", "-0.00")]
    alike = {part.title for part in parts(compared(tmp_path / "alike", ranks(USUAL), ranks(USUAL)))}
    assert not [title for title in alike if "changed most" in title]
