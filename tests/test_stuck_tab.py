"""The tab on jobs that are stuck: a real TensorBoard on Flight Recorder dumps, in headless Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from dumps import write
from playwright.sync_api import Page, expect
from tab import (
    COLOUR_RULES,
    SCREENSHOTS,
    analysed,
    chosen,
    opened,
    tensorboard,
    unfold,
    unnamed_figures,
    violations_of_axe,
)
from test_memory_runs import job as out_of_memory
from test_report import JOB
from test_stuck_output import HOSTILE, STUCK, _hostile
from traces import ranks
from traces import write as write_traces

from tb_ddp_doctor import cli

REAL = Path(__file__).parent / "flight_recorder"


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The two real jobs, one with traces and dumps, one of 96 ranks, and one with hostile names."""
    folder = tmp_path_factory.mktemp("logs")
    for job in ("gpu_error_1st", "lock_gil_2nd"):
        (folder / job).symlink_to(REAL / job)
    write_traces(folder / "job", ranks(JOB, JOB))
    write(folder / "job" / "comm_traces", STUCK, "rank_")
    many = "\n".join(f"rank{rank}: all_reduce@dp+ {'' if rank == 70 else 'all_reduce@dp'}" for rank in range(96))
    write(folder / "many", f"groups: dp={','.join(map(str, range(96)))}\n{many}")
    _hostile(folder / "hostile")
    out_of_memory(folder / "oom")
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, logdir: Path, kept_page: tuple[Page, list[str]]) -> Iterator[str]:
    with tensorboard(tmp_path_factory.mktemp("server"), f"--logdir={logdir}", page=kept_page[0]) as base:
        runs = {run["name"]: run for run in analysed(base)}
        assert runs["gpu_error_1st"]["verdict"] == "stuck" and runs["gpu_error_1st"]["severity"] == "critical"
        assert runs["job"].get("kind") is None and runs["job/comm_traces"]["traces"] == ["job"]
        yield base


@pytest.mark.parametrize("dark", [False, True])
def test_a_job_that_ran_out_of_memory_has_a_page(page: Page, server: str, dark: bool) -> None:
    tab = opened(page, server, dark=dark)
    chosen(tab, "oom")
    expect(tab.locator("h1")).to_contain_text("Rank 2 ran out of memory")
    expect(tab.locator(".fault")).to_contain_text("Activations take most")
    expect(tab.locator("tr", has_text="rank 2")).to_contain_text("6.0\u00a0MB")
    unfold(tab)
    expect(tab.locator(".snapshot").nth(2)).to_contain_text("train.py:7 (forward)")
    page.screenshot(path=SCREENSHOTS / f"oom-{'dark' if dark else 'light'}.png", full_page=True)
    assert violations_of_axe(page, *(COLOUR_RULES if dark else ())) == []


@pytest.mark.parametrize("dark", [False, True])
def test_the_tab_names_the_ranks_at_the_root(page: Page, server: str, dark: bool) -> None:
    tab = opened(page, server, dark=dark)
    chosen(tab, "gpu_error_1st")
    expect(tab.locator("h1")).to_contain_text("Stuck: Rank 12 launched _all_gather_base 42806")
    expect(tab.locator(".ways-out button")).to_have_text(["Copy link", "Print"])
    expect(tab.locator(".fault .affected")).to_have_text(["rank 12", "rank 14"])
    expect(tab.locator(".graph .root .name")).to_have_text(["rank 12", "rank 14"])
    expect(tab.locator(".graph .name", has_text="ranks 13, 15")).to_be_visible()
    row = tab.locator(".fronts tr", has_text="EXPERT_MODEL_PARALLEL_GROUP").first
    expect(row.locator("td.behind b")).to_have_text("\N{MINUS SIGN}2")
    expect(row.locator(".short")).to_have_text(["7", "9"])
    page.screenshot(path=SCREENSHOTS / f"stuck-{'dark' if dark else 'light'}.png", full_page=True)
    for job in ("gpu_error_1st", "many", "hostile"):
        chosen(tab, job)
        unfold(tab)
        wrong = violations_of_axe(page, *(COLOUR_RULES if dark else ()))
        assert not wrong, f"{job}\n" + "\n".join(wrong)
        assert unnamed_figures(tab) == [], job


def test_traces_and_dumps_of_a_job_lead_to_each_other(page: Page, server: str) -> None:
    tab = opened(page, server)
    chosen(tab, "job")
    tab.locator(".beside button", has_text="job/comm_traces").click()
    expect(tab.locator("h1")).to_contain_text("Stuck: Rank 1 never came to all_reduce 2 of dp.")
    tab.locator(".beside button", has_text="job").click()
    expect(tab.locator(".tabs")).to_be_visible()


def test_many_ranks(page: Page, server: str) -> None:
    tab = opened(page, server)
    chosen(tab, "many")
    expect(tab.locator(".fronts tbody td")).to_have_count(96)
    expect(tab.locator(".fronts td.behind")).to_have_attribute(
        "title", "rank 70, group 0: enqueued 1, completed 1, front 2"
    )
    expect(tab.locator(".graph .box")).to_have_count(2)
    page.screenshot(path=SCREENSHOTS / "stuck-many.png", full_page=True)


def test_text_from_a_dump_stays_text(page: Page, server: str) -> None:
    tab = opened(page, server)
    chosen(tab, "hostile")
    expect(tab.locator(".fault .title")).to_contain_text(HOSTILE.split("`")[0].strip())
    assert tab.locator("main img, main script").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_report_is_the_tab_in_a_file(page: Page, tmp_path: Path, scheme: Literal["light", "dark"]) -> None:
    report = tmp_path / "report.html"
    assert cli.main(["diagnose", str(REAL), "--html", str(report)]) == 0
    page.emulate_media(color_scheme=scheme)
    page.goto(report.as_uri())
    page.get_by_role("button", name="lock_gil_2nd").click()
    expect(page.locator("h1")).to_contain_text("Stuck: Rank 10 never came to all_to_all 20947")
    expect(page.locator(".graph .root .name")).to_have_text(["rank 10", "rank 15"])
    assert page.locator("html.dark").count() == (scheme == "dark")
