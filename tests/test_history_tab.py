"""The view Hours: the numbers behind it, and the view in a real browser, as a report holds it."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect
from tab import SCREENSHOTS, violations_of_axe
from test_history_inspector import pipelined
from test_history_inspector import written as with_inspector
from test_history_logs import EVERY, LINES, lines, megatron, old_megatron
from test_history_summary import drawn, written
from test_memory_contents import TRAINS, USUAL
from traces import ranks, write

from tb_ddp_doctor import cli
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.discover.runs import discover
from tb_ddp_doctor.engine import Result, diagnose
from tb_ddp_doctor.history.read import RankHistory
from tb_ddp_doctor.view.history import history, kept_history

#: 4,000 steps, a letter is 100 of them: rank 3 is 20 % slower in the second half.
SLOWED = "a ........................................\n" * 3 + "b ....................####################"


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    for step in (1000, 2500):
        write(folder / f"step_{step}", ranks(TRAINS + USUAL, TRAINS + USUAL, steps=2))
    return written(folder, drawn(SLOWED))


def results(folder: Path) -> list[Result]:
    return [diagnose(run) for run in discover(folder)]


def test_bins_events_captures_and_lost_time_of_a_job(logdir: Path) -> None:
    told = history(results(logdir)[0])
    assert (told["ranks"], told["nodes"], told["steps"]) == (4, 2, 4000)
    assert [(capture["step"], capture["run"]) for capture in told["captures"]] == [
        (1000, "step_1000"),
        (2500, "step_2500"),
    ]
    (event,) = told["events"]
    assert event["what"].startswith("Rank 3 is 159.5 ms (15 % of a step) slower since step 2,000 (") and event[
        "ranks"
    ] == [3]
    assert (event["before"], event["after"]) == ("step_1000", "step_2500")
    count = len(told["edges_s"]) - 1
    assert count == 4000 // told["bin_steps"]
    assert {len(values) for values in told["step_ms"].values()} == {count}
    # 20 % of 0.8 s for 2,000 steps, beside the noise of the slowest of four ranks.
    stragglers = np.array(told["lost_s"]["stragglers"])
    assert stragglers[count // 2 + 1 :].sum() == pytest.approx(2000 * 0.16, rel=0.05)
    assert stragglers[: count // 2].sum() < 2000 * 0.02
    heat = told["heat"]
    levels = np.frombuffer(base64.b64decode(heat["median"]), dtype=np.uint8).reshape(4, count)
    assert levels[3, count // 2 + 1 :].mean() * heat["level"] == pytest.approx(0.2, abs=0.01)
    assert levels[:3].max() * heat["level"] < 0.03


def test_an_answer_is_made_once_for_a_state_of_the_files(
    logdir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (result, *_) = results(logdir)
    cache = Cache(tmp_path)
    first = kept_history(result, cache)
    assert msgspec.json.decode(first) == msgspec.json.decode(msgspec.json.encode(history(result)))
    monkeypatch.setattr("tb_ddp_doctor.view.history.history", lambda *_: {"made": "again"})
    assert kept_history(result, cache) == first
    (kept,) = tmp_path.glob("*/*.answer")
    kept.write_bytes(kept.read_bytes()[:-1])
    assert kept_history(result, cache) == b'{"made":"again"}'
    file = next(logdir.glob("history/*"))
    os.utime(file, (0, 0))
    monkeypatch.undo()
    assert kept_history(result, cache) == first


def test_restarts_and_phases_are_lost_time_of_their_bins(tmp_path: Path) -> None:
    files = drawn("a ....................")
    (stretch,) = files[0].stretches
    begin_ns = stretch.begin_ns + int(stretch.steps_us.sum(dtype=np.int64)) * 1000 + 30 * 10**9
    again = stretch._replace(first_step=2000, begin_ns=begin_ns)
    files.append(files[0]._replace(started_ns=begin_ns, stretches=[again]))
    write(tmp_path / "step_1000", ranks(TRAINS + USUAL, steps=2))
    told = history(results(written_starts(tmp_path, files))[0])
    restarts = np.array(told["lost_s"]["restarts"])
    assert restarts.sum() == pytest.approx(30, abs=0.1)
    assert np.flatnonzero(restarts).tolist() == [2000 // told["bin_steps"] - 1]
    assert told["heat"] is None


def written_starts(folder: Path, files: list[RankHistory]) -> Path:
    for number, file in enumerate(files):
        written(folder / str(number), [file])
        target = folder / "history" / f"rank0_{number}.steps"
        target.parent.mkdir(exist_ok=True)
        (folder / str(number) / "history" / "rank0.steps").rename(target)
    return folder


def test_many_ranks_share_rows_of_the_heat_map(tmp_path: Path) -> None:
    write(tmp_path / "step_1000", ranks(TRAINS + USUAL, steps=2))
    text = "a ....................\n" * 600 + "b .........##########."
    files = [file._replace(world_size=601) for file in drawn(text)]
    told = history(results(written(tmp_path, files))[0])
    heat = told["heat"]
    assert (heat["of"], len(heat["ranks"]), heat["ranks"][1]) == (2, 301, 2)
    levels = np.frombuffer(base64.b64decode(heat["median"]), dtype=np.uint8).reshape(301, -1)
    assert levels[300].max() * heat["level"] == pytest.approx(0.2, abs=0.02)


def test_without_step_times_the_view_says_how_to_record_them(tmp_path: Path) -> None:
    write(tmp_path / "step_1000", ranks(TRAINS + USUAL, steps=2))
    assert history(results(tmp_path)[0]) == {
        "folder": None,
        "problems": [],
        "collectives": [],
        "collectives_over_time": None,
    }


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_view_shows_hours_explains_a_range_and_compares_captures(
    page: Page, logdir: Path, tmp_path: Path, scheme: Literal["light", "dark"]
) -> None:
    report = tmp_path / "report.html"
    assert cli.main(["diagnose", str(logdir), "--no-cache", "--html", str(report)]) == 0
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": 1440, "height": 1200})
    page.goto(report.as_uri())
    page.get_by_role("link", name="History", exact=True).click()
    page.get_by_role("link", name="Hours", exact=True).click()
    main = page.locator("main")
    expect(main).to_contain_text("Rank 3 is 159.5 ms (15 % of a step) slower since step 2,000")
    expect(main.locator(".hours-account")).to_contain_text("All steps")
    main.get_by_role("button", name="Choose its range").click()
    expect(main.locator(".hours-account")).to_contain_text("On average rank 3 on b 20 % above the median rank")
    expect(main.locator(".hours-events a")).to_have_text("Compare the captures around it")
    main.locator("canvas.hours").focus()
    page.keyboard.press("ArrowLeft")
    expect(main.locator(".readout")).to_contain_text("median")
    page.keyboard.press("Escape")
    expect(main.locator(".hours-account")).to_contain_text("All steps")
    for step in ("step 1,000", "step 2,500"):
        main.get_by_label(step).click()
    expect(main.get_by_role("link", name="Verdict of step 1,000")).to_be_visible()
    compare = main.get_by_role("link", name="Compare both")
    assert "before=step_1000" in str(compare.get_attribute("href"))
    assert violations_of_axe(page) == []
    page.screenshot(path=SCREENSHOTS / f"history-{scheme}.png", full_page=True)
    compare.click()
    expect(main).to_contain_text("step_1000")


def test_dragging_over_the_picture_chooses_a_range(page: Page, logdir: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    assert cli.main(["diagnose", str(logdir), "--no-cache", "--html", str(report)]) == 0
    page.goto(report.as_uri() + "#ddp_doctor&p.ddp_doctor.run=step_1000&p.ddp_doctor.view=history")
    canvas = page.locator("canvas.hours")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    left = 80 + (box["width"] - 80) * 0.25
    page.mouse.move(box["x"] + left, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 80 + (box["width"] - 80) * 0.5, box["y"] + 60, steps=4)
    page.mouse.up()
    account = page.locator(".hours-account")
    expect(account).to_contain_text("Steps 1,0")
    page.get_by_role("button", name="Zoom in").click()
    page.mouse.move(box["x"] + 120, box["y"] + 60)
    expect(page.locator(".readout")).to_contain_text("steps 1,")


def traced(folder: Path) -> Path:
    write(folder, ranks(TRAINS + USUAL, steps=2))
    return folder


def test_the_view_reads_a_log_where_no_doctor_recorded(tmp_path: Path) -> None:
    traced(tmp_path / "job" / "profile")
    (tmp_path / "job" / "train.log").write_text("using world size: 64\n" + lines(megatron))
    (result,) = results(tmp_path)
    told = history(result)
    assert told["source"] == (
        f"Read from {tmp_path / 'job' / 'train.log'} (Megatron-LM), means of 10 steps each: shorter events do not show."
        " Ranks: Doctor(LOGDIR, history=True)."
    )
    assert (told["ranks"], told["nodes"], told["steps"], told["heat"]) == (64, 0, LINES * EVERY, None)
    (event,) = told["events"]
    assert event["what"].startswith("All ranks are 2") and event["first_step"] == pytest.approx(2000, abs=100)
    # A column of the picture is as many steps, and as long, as the command says.
    count = len(told["edges_s"]) - 1
    assert told["bin_steps"] * count == pytest.approx(LINES * EVERY, rel=0.05)
    assert told["step_ms"]["median"][1] == pytest.approx(2000, rel=0.03)
    assert told["step_ms"]["median"][-1] == pytest.approx(2200, rel=0.03)
    assert sum(told["lost_s"].get("rare steps", [])) < 10
    assert told["collectives"] == []
    with_inspector(tmp_path / "job" / "nccl", late=2)
    assert history(result)["collectives"][1].startswith("Rank 2 of a group of 4 on node1 arrives last in 100 %")
    (group,) = history(result)["collectives_over_time"]["groups"]
    assert group["name"] == "AllReduce 134 MB, 4 ranks on node0 and node1"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_collectives_over_time_are_drawn_by_group(page: Page, tmp_path: Path, scheme: Literal["light", "dark"]) -> None:
    traced(tmp_path / "job" / "step_1000")
    written(tmp_path / "job", drawn(SLOWED))
    with_inspector(tmp_path / "job" / "dp", late=2, slow_from=600)
    pipelined(tmp_path / "job" / "pp", slow_from=500)
    report = tmp_path / "report.html"
    assert cli.main(["diagnose", str(tmp_path / "job"), "--no-cache", "--html", str(report)]) == 0
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": 1440, "height": 1500})
    page.goto(report.as_uri() + "#ddp_doctor&p.ddp_doctor.view=history")
    main = page.locator("main")
    expect(main).to_contain_text("Send/Recv of 8.4 MB from rank 1 to 2 (node0 and node1): busbw 50 % lower since")
    canvas = main.locator("canvas.collective-hours")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    # The first row is the AllReduce, the group of most time: late in the day it is slower.
    page.mouse.move(box["x"] + 0.9 * box["width"], box["y"] + 2 * 22 + 110 + 8)
    readout = main.locator(".readout").last
    expect(readout).to_contain_text("AllReduce 134 MB, 4 ranks on node0 and node1")
    expect(readout).to_contain_text("20 % below its best")
    expect(readout).to_contain_text("arrival skew 2.0 ms")
    canvas.focus()
    page.keyboard.press("ArrowDown")
    expect(readout).to_contain_text("Send/Recv 8.4 MB, rank 1 to 2 on node0 and node1")
    before = shades(canvas)
    main.get_by_label("Groups by").select_option("arrival skew")
    assert shades(canvas) != before
    assert violations_of_axe(page) == []
    page.screenshot(path=SCREENSHOTS / f"history-collectives-{scheme}.png", full_page=True)


def test_collectives_are_drawn_where_no_step_times_are(page: Page, tmp_path: Path) -> None:
    traced(tmp_path / "job" / "step_1000")
    with_inspector(tmp_path / "job" / "nccl", late=2)
    with_inspector(tmp_path / "other" / "nccl", late=1)
    (result,) = results(tmp_path / "job")
    told = history(result)
    assert told["folder"] is None
    assert told["collectives"][1].startswith("Rank 2 of a group of 4 on node1 arrives last in 100 %")
    cache = Cache(tmp_path / "cache")
    answer = kept_history(result, cache)
    assert answer == msgspec.json.encode(told) and kept_history(result, cache) == answer
    report = tmp_path / "report.html"
    assert cli.main(["diagnose", str(tmp_path / "job"), "--no-cache", "--html", str(report)]) == 0
    page.goto(report.as_uri() + "#ddp_doctor&p.ddp_doctor.view=history")
    main = page.locator("main")
    expect(main).to_contain_text("No step times lie beside this capture")
    expect(main.locator("canvas.collective-hours")).to_be_visible()
    page.screenshot(path=SCREENSHOTS / "history-collectives-alone.png", full_page=True)
    # Beside the log directory of the tab may lie anybody's.
    (of_root,) = (one for one in results(tmp_path) if one.diagnosis.name.startswith("job"))
    assert history(of_root)["collectives"] == told["collectives"]


def shades(canvas: Locator) -> str:
    """The pixels of a picture."""
    return str(canvas.evaluate("(canvas) => canvas.toDataURL()"))


def test_the_log_is_the_nearest_one_and_no_other_jobs(tmp_path: Path) -> None:
    own, other = traced(tmp_path / "a" / "profile"), traced(tmp_path / "b" / "profile")
    (other.parent / "train.log").write_text(lines(megatron))
    (own.parent / "notes.txt").write_text("nothing of steps")
    (first, second) = results(tmp_path)
    assert history(first) == {"folder": None, "problems": [], "collectives": [], "collectives_over_time": None}
    assert history(second)["folder"] == str(other.parent)
    (tmp_path / "train.log").write_text(lines(megatron))
    assert history(first)["folder"] == str(tmp_path)
    (own / "train.log").write_text(lines(megatron))
    assert history(first)["folder"] == str(own)


def test_beside_a_log_directory_only_its_neighbours_are_read(tmp_path: Path) -> None:
    own = traced(tmp_path / "traces")
    below = tmp_path / "anything"
    below.mkdir()
    (below / "train.log").write_text(lines(megatron))
    (result,) = results(own)
    assert history(result)["folder"] is None
    (tmp_path / "train.log").write_text(lines(megatron))
    assert history(result)["folder"] == str(tmp_path)


def test_an_answer_is_made_again_when_the_log_grows(tmp_path: Path) -> None:
    own = traced(tmp_path / "job")
    log = own / "train.log"
    log.write_text(lines(old_megatron))
    (result,) = results(own)
    cache = Cache(tmp_path / "cache")
    before = msgspec.json.decode(kept_history(result, cache))
    with log.open("a") as file:
        file.write(lines(old_megatron))
    after = msgspec.json.decode(kept_history(result, cache))
    assert "trained again" not in before["time_s"] and after["time_s"]["trained again"] > 0
