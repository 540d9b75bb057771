"""What a job's hours say: drawn step times, and a real job over gloo."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from whole_history import whole

from tb_ddp_doctor.cli import main
from tb_ddp_doctor.history import blocks
from tb_ddp_doctor.history.events import Event
from tb_ddp_doctor.history.levels import levels
from tb_ddp_doctor.history.rare import LongSteps, of_period, period, periodic
from tb_ddp_doctor.history.read import MarkedTime, RankHistory, Stretch, history_files, read_history
from tb_ddp_doctor.history.sentences import trend
from tb_ddp_doctor.history.summary import Summary, summarise
from tb_ddp_doctor.report.escape import markdown, printable_json_line
from tb_ddp_doctor.view.history import begins_with_first

START_NS = 1_790_000_000 * 10**9
#: Steps that a letter of a drawing stands for, busy time and the rest of a step, µs.
STEPS_A_LETTER, BUSY_US, REST_US = 100, 800_000, 200_000
#: What a letter adds to the busy time.
ADDED = {".": 0.0, "-": 0.05, "+": 0.1, "#": 0.2}


def drawn(text: str, *, with_busy: bool = True, seed: int = 0) -> list[RankHistory]:
    """A file for each line, "node letters": a letter is 100 steps; of 1 % noise, all ranks' steps as the slowest."""
    random = np.random.default_rng(seed)
    rows = [line.split() for line in text.strip().splitlines()]
    added = np.array([np.repeat([ADDED[letter] for letter in letters], STEPS_A_LETTER) for _, letters in rows])
    busy = BUSY_US * (1 + added + random.normal(0, 0.01, added.shape))
    steps = busy.max(axis=0) + REST_US
    return [
        history(rank, node, Stretch(0, START_NS, steps.astype(np.uint32), busy[rank].astype(np.uint32)), with_busy)
        for rank, (node, _) in enumerate(rows)
    ]


def history(rank: int, node: str, stretch: Stretch, with_busy: bool = True) -> RankHistory:
    stretch = stretch if with_busy else stretch._replace(busy_us=None)
    return RankHistory(Path(), rank, 8, node, stretch.begin_ns, [stretch], [], 0)


def summary(files: list[RankHistory]) -> Summary:
    return summarise(whole(files))


def said(event: Event) -> tuple[str, str, tuple[int, ...], int, int]:
    """Kind, level and ranks, and the letters from which on and before which it is."""
    first, end = round(event.first_step / STEPS_A_LETTER), round((event.last_step + 1) / STEPS_A_LETTER)
    return event.kind, event.level, event.ranks, first, end


QUIET = "a ........................................\n" * 3


def test_quiet_hours_have_no_events() -> None:
    found = summary(drawn(QUIET))
    assert found.events == ()
    assert found.names_ranks
    assert found.account.goodput == pytest.approx(0.99, abs=0.02)
    assert found.account.slowdown == pytest.approx(1.0, abs=0.02)


def test_noise_of_two_ranks_is_no_change_where_the_faster_one_is_the_median() -> None:
    """Beside the faster one it is 0 in most bins, whatever noise it has."""
    changes = 0
    for seed in range(20):
        noise = np.random.default_rng(seed).normal(0, 0.02, (2, 100))
        busy = BUSY_US * (1 + np.repeat(noise, 8, axis=1) + np.array([[0.0], [0.02]]))
        steps = (busy.max(axis=0) + REST_US).astype(np.uint32)
        files = [history(rank, "a", Stretch(0, START_NS, steps, busy[rank].astype(np.uint32))) for rank in range(2)]
        changes += sum(event.level == "rank" for event in summary(files).events if event.kind != "outliers")
    assert not changes


def test_a_rank_that_becomes_slower_is_named_with_its_cost() -> None:
    found = summary(drawn(QUIET + "b ....................####################"))
    (event,) = found.events
    assert said(event) == ("change", "rank", (3,), 20, 40)
    assert event.added_ms == pytest.approx(160, rel=0.03)
    # The job's step was as long as the slowest of four noisy ranks: 1 % of it above the median.
    assert event.cost_s == pytest.approx(2000 * 0.152, rel=0.05)
    assert found.account.slowest_workers == pytest.approx(0.95, abs=0.05)


def test_the_range_of_a_cost_holds_the_true_cost() -> None:
    """Of steps with the same noise, played without the slow rank."""
    text = QUIET + "b ....................####################"
    healthy = QUIET + "b ........................................"
    within, widths = 0, []
    for seed in range(20):
        (event,) = summary(drawn(text, seed=seed)).events
        with_it, without = (
            float(drawn(each, seed=seed)[0].stretches[0].steps_us.sum(dtype=np.float64)) / 1e6
            for each in (text, healthy)
        )
        least, most = event.range_s
        within += least <= with_it - without <= most
        widths.append((most - least) / event.cost_s)
    assert within >= 16
    assert max(widths) < 0.1


def test_the_error_of_a_change_is_that_of_its_noise() -> None:
    """Within 1.28 standard errors of the true height in 8 of 10 series, of little noise and of much."""
    random, within = np.random.default_rng(0), []
    for number in range(300):
        sigma = 1.0 + number % 3
        (shift,) = levels(random.normal(0, sigma, 200) + 12 * (np.arange(200) >= 80), 2.0).shifts
        within.append(abs(shift.height - 12) <= 1.28 * shift.error)
    assert 0.7 < np.mean(within) < 0.95


def test_what_the_last_stage_of_a_pipeline_costs_is_told_from_its_slowest_ranks() -> None:
    """Ranks 2 and 3 are the last stage, 10 % slower; rank 0 is 5 % slower and hidden behind them."""
    slow = "+" * 40
    files = drawn(f"a {'-' * 40}\na {'.' * 40}\nb {slow}\nb {slow}\n" + f"a {'.' * 40}\n" * 3)
    assert summary(files).account.last_stage is None  # of stages that are not known
    staged = [file._replace(stage=int(file.rank in (2, 3))) for file in files]
    found = summary(staged).account
    # Without them the job waits for rank 0, so that half of what they cost is gained.
    assert found.last_stage == pytest.approx(0.5, abs=0.1)
    assert found.slowest_workers is not None and found.slowest_workers < 0.1
    assert summary([file._replace(stage=0) for file in files]).account.last_stage is None


def test_a_node_that_becomes_slower_is_one_event() -> None:
    text = QUIET + "b ....................++++++++++++++++++++\n" * 3
    (event,) = summary(drawn(text)).events
    assert said(event) == ("change", "node", (3, 4, 5), 20, 40)
    assert event.node == "b"


def test_a_window_on_all_ranks_has_an_end() -> None:
    text = "a ............++++++++....................\n" * 4
    (event,) = summary(drawn(text)).events
    assert said(event) == ("change", "job", (0, 1, 2, 3), 12, 20)
    assert event.cost_s == pytest.approx(800 * 0.08, rel=0.1)


def test_drift_is_no_change() -> None:
    files = drawn(QUIET)
    ramp = np.linspace(0, 100_000, 4000)
    for file in files:
        (stretch,) = file.stretches
        assert stretch.busy_us is not None
        slower = stretch._replace(
            steps_us=(stretch.steps_us + ramp).astype(np.uint32), busy_us=(stretch.busy_us + ramp).astype(np.uint32)
        )
        file.stretches[:] = [slower]
    (event,) = summary(files).events
    assert (event.kind, event.level) == ("drift", "job")
    assert event.added_ms == pytest.approx(100, rel=0.1)


def test_ranks_that_do_not_say_when_they_wait_are_not_named() -> None:
    found = summary(drawn(QUIET + "b ....................####################", with_busy=False))
    (event,) = found.events
    assert (event.level, found.names_ranks, found.account.slowdown) == ("job", False, None)
    assert event.first_step == pytest.approx(2000, abs=20)


def test_restarts_phases_and_steps_trained_again_are_accounted() -> None:
    column = np.full(1000, 1_000_000, dtype=np.uint32)
    ended_ns = START_NS + 1000 * 10**9
    first = history(0, "a", Stretch(0, START_NS, column, None))
    first.phases.append(MarkedTime(START_NS + 10 * 10**9, START_NS + 10 * 10**9 + 10**8, "checkpoint"))
    again = history(0, "b", Stretch(900, ended_ns + 60 * 10**9, column, None))
    found = summary([again, first])
    assert (found.restarts, found.trained_again, found.nodes) == (1, 100, 1)
    assert found.account.time_s["restarts"] == pytest.approx(60)
    assert found.account.time_s["trained again"] == pytest.approx(100)
    assert found.account.time_s["checkpoint"] == pytest.approx(0.1)
    assert found.account.goodput == pytest.approx(1900 / 2060, abs=0.001)
    assert (found.first_step, found.last_step, found.steps) == (0, 1899, 1900)


def test_a_period_is_found_among_other_outliers() -> None:
    columns = np.array([260, 520, 780, 801, 1040, 1300])
    assert period(columns) == 260
    assert of_period(columns, 260).tolist() == [260, 520, 780, 1040, 1300]
    assert period(np.array([3, 50, 61, 190, 207, 400])) is None
    random = np.random.default_rng(0)
    others = random.choice(20_000, 80, replace=False)
    assert period(np.sort(np.concatenate([others, np.arange(7, 20_000, 250)]))) == 250
    assert [period(np.sort(random.choice(20_000, 80, replace=False))) for _ in range(50)] == [None] * 50


@pytest.mark.parametrize("between", ["random", "regular"])
def test_the_period_of_the_longest_steps_is_found_among_many_shorter_ones(between: str) -> None:
    """On a busy machine every fifth step of 1 ms is delayed; more than six of them lie between two of the period."""
    random = np.random.default_rng(1)
    every = np.arange(2000)
    delayed = every[random.random(2000) < 0.2] if between == "random" else every[3::5]
    regular = np.arange(7, 2000, 50)
    columns = np.union1d(delayed, regular)
    excess = np.float32(200) + 1800 * random.random(len(columns), dtype=np.float32)
    excess[np.isin(columns, regular)] = 400e3
    long_steps = LongSteps(np.zeros(len(columns), dtype=np.int64), columns, excess, excess + 1000)
    assert period(columns) != 50
    of_longest = periodic(long_steps)
    assert of_longest is not None and of_longest[0] == 50
    assert columns[of_longest[1]].tolist() == regular.tolist()
    of_others = periodic(long_steps.where(~of_longest[1]))
    assert of_others is None if between == "random" else of_others is not None and of_others[0] == 5


def test_what_follows_a_ranks_long_step_on_its_peers_is_an_event_of_their_own() -> None:
    """A peer that waited for 0.7 s has its caches to fill; the period is the same, the cause is the other rank's."""
    files = drawn(QUIET)
    is_long = np.arange(4000) % 50 == 7
    for file in files:
        added_us = np.where(is_long, 700_000, 0) if file.rank == 1 else np.where(np.roll(is_long, 1), 150_000, 0)
        (stretch,) = file.stretches
        assert stretch.busy_us is not None
        steps_us = stretch.steps_us + np.where(is_long, 700_000, 0) + np.where(np.roll(is_long, 1), 150_000, 0)
        busy_us = (stretch.busy_us + added_us).astype(np.uint32)
        file.stretches[:] = [stretch._replace(steps_us=steps_us.astype(np.uint32), busy_us=busy_us)]
    events = [event for event in summary(files).events if event.kind == "period"]
    assert [(event.ranks, event.every) for event in events] == [((1,), 50), ((0, 2), 50)]


def test_a_series_has_the_shifts_that_it_was_made_of() -> None:
    random = np.random.default_rng(1)
    series = random.normal(0, 1, 500) + 20 * (np.arange(500) >= 200) - 10 * (np.arange(500) >= 400)
    found = levels(series, 2.0)
    assert [shift.at for shift in found.shifts] == [200, 400]
    assert [shift.height for shift in found.shifts] == pytest.approx([20, -10], abs=0.5)


def test_the_first_steps_after_a_change_are_no_outliers() -> None:
    """They are long beside the median of their bin, most of which lies before the change."""
    files = drawn("a ....................\n" * 4)
    for file in files:
        (stretch,) = file.stretches
        assert stretch.busy_us is not None
        added = 160_000 * (np.arange(2000) >= 1005)
        slower = stretch._replace(
            steps_us=(stretch.steps_us + added).astype(np.uint32), busy_us=(stretch.busy_us + added).astype(np.uint32)
        )
        file.stretches[:] = [slower]
    assert [event.kind for event in summary(files).events] == ["change"]


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_a_change_within_a_bin_is_one_change(share: float) -> None:
    """The bin's median is between both levels, which looked like a second change three bins later or earlier."""
    random = np.random.default_rng(3)
    series = random.normal(0, 0.1, 500) + 20 * (np.arange(500) >= 200) - 20 * (np.arange(500) >= 300)
    series[199] += 20 * share
    series[300] += 20 * share
    found = levels(series, 2.0)
    assert [shift.height for shift in found.shifts] == pytest.approx([20, -20], abs=0.5)


def test_false_changes_are_rarer_than_one_in_a_hundred_quiet_days() -> None:
    random = np.random.default_rng(2)
    days = random.normal(1000, 5, (300, 512))
    assert sum(bool(found.shifts) or bool(found.slope) for found in (levels(day, 5.0) for day in days)) == 0


# ------------------------------------------------------------------------------------------------- the command


def written(folder: Path, files: list[RankHistory]) -> Path:
    (folder / blocks.FOLDER).mkdir(parents=True)
    for file in files:
        (stretch,) = file.stretches
        data = blocks.file_head(file.rank, file.world_size, file.started_ns, file.node)
        data += blocks.steps_block(stretch.first_step, stretch.begin_ns, stretch.steps_us, stretch.busy_us)
        (folder / blocks.FOLDER / f"rank{file.rank}{blocks.SUFFIX}").write_bytes(data)
    return folder


@pytest.fixture(scope="module")
def slowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = written(tmp_path_factory.mktemp("slowed"), drawn(QUIET + "b ....................####################"))
    for step in (1000, 1900, 2100):
        (folder / f"step_{step}").mkdir()
    return folder


def test_the_command_says_it_in_ten_lines(slowed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history", str(slowed), "--gpu-hour", "2", "--currency", "EUR"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 10
    assert lines[0].startswith("4,000 steps (0 to 3,999) of 4 ranks on 2 nodes, 1.2 h, ")
    assert lines[1].startswith("Rank 3 is ") and " slower since step 2,0" in lines[1]
    assert f"Compare: ddp-doctor compare {slowed}/step_1900 {slowed}/step_2100" in lines[2]
    hours, paid = map(float, re.search(r"([\d.]+) GPU-hours, ([\d.]+) EUR", lines[2]).groups())
    assert paid == pytest.approx(2 * hours, abs=0.1)
    assert any(line.startswith("Time: training ") and "stragglers " in line for line in lines)


def test_markdown_has_each_event_with_cost_and_captures(slowed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history", str(slowed), "--markdown", "--gpu-hour", "2", "--currency", "EUR"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"## ddp-doctor history: {markdown(str(slowed))}\n\n**Rank 3 is ")
    (row,) = [line for line in text.splitlines() if line.startswith("| 1 |")]
    assert row.count(" | ") == 3 and " EUR |" in row
    assert row.endswith(markdown(f"{slowed}/step_1900 / {slowed}/step_2100") + " |")
    assert "\n- Time: training " in text


def test_goodput_of_each_eighth_adds_up_and_falls_where_a_rank_slows_down() -> None:
    found = summary(drawn(QUIET + "b ....................####################"))
    assert len(found.goodput_trend) == 8
    assert float(np.mean(found.goodput_trend)) == pytest.approx(found.account.goodput, abs=1e-6)
    # 0.8 of 1 s is busy time: 20 % more of it is a step of 1.16 s.
    assert found.goodput_trend[0] == pytest.approx(0.99, abs=0.01)
    assert found.goodput_trend[-1] == pytest.approx(0.99 / 1.16, abs=0.01)
    assert re.fullmatch(r"9\d % in the first eighth of the time, 8\d % in the last", trend(found))
    assert trend(summary(drawn(QUIET))) == ""


def test_goodput_is_nothing_while_a_job_stands_still() -> None:
    files = drawn("a ....................")
    (stretch,) = files[0].stretches
    standing_s = int(stretch.steps_us.sum(dtype=np.int64)) / 1e6
    later = stretch._replace(first_step=2000, begin_ns=stretch.begin_ns + int(3 * standing_s * 1e9))
    files.append(files[0]._replace(started_ns=later.begin_ns, stretches=[later]))
    found = summary(files)
    assert found.goodput_trend[:2] == pytest.approx((1, 1), abs=0.02)
    assert found.goodput_trend[3:5] == pytest.approx((0, 0), abs=0.01)
    assert ", 0 % in the worst, " in trend(found)


def test_a_step_of_many_steps_length_is_a_pause_that_nobody_marked() -> None:
    files = drawn("a ....................\n" * 2)
    for file in files:
        (stretch,) = file.stretches
        steps_us = stretch.steps_us.copy()
        steps_us[[500, 1500]] += 60_000_000
        steps_us[1000] += 2_000_000
        file.stretches[:] = [stretch._replace(steps_us=steps_us)]
    time_s = summary(files).account.time_s
    assert time_s["unmarked pauses"] == pytest.approx(120, abs=0.2)
    assert time_s["rare steps"] == pytest.approx(2, abs=0.1)


def test_the_long_steps_of_a_node_are_named_and_those_of_many_are_the_jobs() -> None:
    long = np.sort(np.random.default_rng(1).choice(np.arange(100, 3900), 24, replace=False))

    def found(ranks_of: list[list[int]]) -> list[Event]:
        files = drawn(
            "a ........................................\n" * 4 + "b ........................................\n" * 4
        )
        for step, ranks in zip(long.tolist(), ranks_of * len(long), strict=False):
            for file in files:
                (stretch,) = file.stretches
                added = np.arange(len(stretch.steps_us)) == step
                busy_us = stretch.busy_us + (700_000 * added if file.rank in ranks else 0)
                steps_us = (stretch.steps_us + 700_000 * added).astype(np.uint32)
                file.stretches[:] = [stretch._replace(steps_us=steps_us, busy_us=busy_us.astype(np.uint32))]
        return [event for event in summary(files).events if event.kind == "outliers"]

    (of_rank,) = found([[5]])
    assert (of_rank.level, of_rank.ranks, of_rank.times) == ("rank", (5,), 24)
    (of_node,) = found([[4], [5], [6], [7]])
    assert (of_node.level, of_node.node, of_node.times) == ("node", "b", 24)
    (of_all,) = found([[rank] for rank in range(8)])
    assert (of_all.ranks, of_all.times) == (tuple(range(8)), 24)
    assert of_all.cost_s == pytest.approx(24 * 0.7, rel=0.05)


def test_the_price_of_the_settings_counts_where_none_is_given(
    slowed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ddp-doctor.toml").write_text("[price]\ngpu_hour = 2\ncurrency = '$'")
    monkeypatch.chdir(tmp_path)
    assert main(["history", str(slowed)]) == 0
    assert re.search(r" GPU-hours, [\d.]+ \$\.", capsys.readouterr().out)
    assert main(["history", str(slowed), "--gpu-hour", "0"]) == 0
    assert " GPU-hours, 0.00 $." in capsys.readouterr().out


def test_the_command_fails_where_it_is_asked_to(slowed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history", str(slowed), "--fail-on", "5%"]) == 1
    assert main(["history", str(slowed), "--fail-on", "50"]) == 0
    assert main(["history", str(slowed), "--fail-on", "1", "--since", "2500"]) == 0
    assert main(["history", str(slowed), "--since", "9999"]) == 2
    assert "no step times from step 9999 on" in capsys.readouterr().err


def test_other_programs_read_the_answer(slowed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history", str(slowed), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["summary"]["events"][0]["ranks"] == [3]
    assert answer["nearest_captures"] == [{"before": f"{slowed}/step_1900", "after": f"{slowed}/step_2100"}]
    assert main(["history", str(slowed), "--webhook"]) == 0
    line = capsys.readouterr().out
    assert line.count("\n") == 1
    assert "Rank 3 is " in json.loads(line)["text"]
    assert main(["history", str(slowed), "--openmetrics"]) == 0
    metrics = capsys.readouterr().out
    assert metrics.endswith("# EOF\n")
    assert 'ddp_doctor_event_cost_seconds{kind="change",level="rank"} 3' in metrics


def test_a_change_that_begins_with_the_first_capture_is_explained() -> None:
    """CUPTI stays attached: four ranks on an H100 took 27.0 ms a step before their first capture and 33.0 after it."""
    captures = {200: Path("step_200"), 400: Path("step_400")}
    change = Event(
        kind="change",
        level="job",
        ranks=(0, 1),
        node=None,
        first_step=201,
        last_step=898,
        begin_s=0,
        end_s=20,
        added_ms=6.0,
        added_share=0.2,
        every=None,
        times=None,
        cost_s=4.0,
        range_s=(3.9, 4.1),
        cost_share=0.2,
    )
    assert begins_with_first(change, captures)
    assert not begins_with_first(replace(change, first_step=401), captures)
    assert not begins_with_first(replace(change, added_ms=-6.0), captures)
    assert not begins_with_first(replace(change, level="rank"), captures)
    assert not begins_with_first(change, {})


def test_damaged_files_are_named_and_the_others_read(
    slowed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, drawn(QUIET))
    (tmp_path / blocks.FOLDER / "rank1.steps").write_bytes(b"nothing")
    file = tmp_path / blocks.FOLDER / "rank2.steps"
    file.write_bytes(file.read_bytes() + b"torn")
    assert main(["history", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert "rank1.steps holds no step times" in printed.err
    assert "Not read: 4 damaged bytes" in printed.out


def test_a_folder_without_step_times_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history", str(tmp_path)]) == 2
    assert main(["history", str(tmp_path / "none")]) == 2
    printed = capsys.readouterr().err
    assert "Doctor(LOGDIR, history=True)" in printed
    assert f"There is no {tmp_path / 'none'}" in printed


# -------------------------------------------------------------------------------------------------- a real job


def test_a_real_job_that_is_killed_and_restarted_has_one_history(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = str(Path(__file__).with_name("history_job.py"))
    subprocess.run([sys.executable, script, str(tmp_path)], check=True)
    reads = [read_history(file) for file in history_files(tmp_path)]
    found = summary([read for read in reads if read])
    assert (found.ranks, found.restarts, found.trained_again, found.lost_bytes) == (4, 1, 49, 0)
    changes = [event for event in found.events if event.kind == "change" and event.level == "rank"]
    assert any(event.ranks == (2,) and abs(event.first_step - 1200) <= 40 for event in changes)
    periods = [event for event in found.events if event.kind == "period"]
    assert any(event.ranks == (1,) and event.every == 50 for event in periods), found.events


def test_a_line_of_json_has_nothing_that_a_terminal_obeys() -> None:
    """A node's name is any bytes."""
    assert printable_json_line({"node": "a\x1b[31m\x9b31m\u202e"}) == b'{"node":"a\\u001b[31m\\u009b31m\\u202e"}\n'
