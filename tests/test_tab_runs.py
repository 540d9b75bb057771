"""The tab on several runs: comparisons, reports, and TensorBoards with other directories and flags."""

from __future__ import annotations

import re
import shutil
import urllib.error
import urllib.request
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import pytest
from playwright.sync_api import (
    FrameLocator,
    Page,
    Route,
    expect,
)
from tab import (
    COLOUR_RULES,
    DEMO_LOGS,
    HOSTILE,
    PATIENCE_S,
    TABS,
    analysed,
    button,
    chosen,
    get,
    go,
    opened,
    pictured,
    poison,
    tensorboard,
    too_wide,
    unfold,
    violations_of_axe,
)

from tb_ddp_doctor import cli


def against(page: Page, base: str, before: str, after: str, dark: bool = False) -> FrameLocator:
    """The view that compares two runs, opened by its address."""
    return opened(page, base, "compare", dark, run=after, before=before)


def test_two_runs_are_compared_by_keyboard(page: Page, server: str) -> None:
    tab = opened(page, server, "compare")
    chosen(tab, "four_workers")
    expect(tab.get_by_role("heading", name="Compare four_workers with which run?")).to_be_visible()
    tab.get_by_role("button", name="zero_workers").last.focus()
    page.keyboard.press("Enter")
    told = tab.locator(".told")
    expect(told).to_contain_text("four_workers takes 51.0 ms a step, zero_workers 168.0 ms: 70 % less")
    expect(tab.get_by_role("combobox", name="Before")).to_be_focused()
    expect(tab.locator(".explanation")).to_contain_text("Copies no longer block the CPU")
    expect(tab.locator(".fates li").first).to_contain_text("Fixed")
    attainable = tab.locator(".card").filter(has_text="Kernels against their attainable speed")
    attainable.locator("summary").click()
    expect(attainable.locator("tbody tr").first).to_contain_text("native_layer_norm_backward")
    expect(attainable.locator("tbody tr").first).to_contain_text("25 %")
    modules = tab.locator(".card").filter(has_text="Modules: none changed by 5.0")
    modules.locator("summary").first.click()
    # As wide as its change; Enter zooms in, down to the kernels that changed most.
    modules.get_by_role("button", name="layer 4: 10.1").press("Enter")
    expect(modules.locator(".readout")).to_contain_text("after, \N{MINUS SIGN}4.74 ms (\N{MINUS SIGN}46.9 %).")
    within = modules.get_by_role("button")
    expect(within.nth(0)).to_have_attribute("aria-label", re.compile("^layer 4: 10.1"))
    expect(within.nth(1)).to_have_attribute("aria-label", re.compile("of layer 4: "))
    loading = tab.locator(".pair").filter(has_text="input")
    expect(loading.locator("b")).to_have_text("\N{MINUS SIGN}101.33")
    page.reload()
    expect(told).to_contain_text("70 % less")
    page.keyboard.press("Tab")
    tab.get_by_role("combobox", name="Before").select_option("healthy")
    expect(told).to_contain_text("No significant difference")
    expect(tab.locator(".fates")).to_have_count(0)
    tab.get_by_role("link", name="Swap").focus()
    page.keyboard.press("Enter")
    expect(tab.locator(".facts b")).to_have_text("healthy")
    expect(tab.get_by_role("combobox", name="Before")).to_have_value("four_workers")
    page.go_back()
    expect(tab.get_by_role("combobox", name="Before")).to_have_value("healthy")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_comparison_is_readable(page: Page, server: str, theme: str) -> None:
    """At every width nothing scrolls sideways, and axe finds nothing with all tables unfolded."""
    for before, after in (("zero_workers", "four_workers"), ("healthy", "no_overlap")):
        page.set_viewport_size({"width": 1320, "height": 1000})
        tab = against(page, server, before, after, dark=theme == "dark")
        expect(tab.locator(".told")).to_contain_text(after)
        for width in (1000, 1320, 2560):
            height = tab.locator("main").evaluate("element => element.scrollHeight + 80")
            page.set_viewport_size({"width": width, "height": height})
            assert too_wide(tab, "html", "main") == [], f"at {width} px"
        page.set_viewport_size({"width": 1320, "height": height})
        pictured(page, f"{after}_compare_{before}_{theme}")
        unfold(tab)
        assert violations_of_axe(page, *(COLOUR_RULES if theme == "dark" else ())) == []


def test_a_comparison_waits_for_runs_that_are_read(page: Page, server: str) -> None:
    waiting = [True]

    def answer(route: Route) -> None:
        progress = {"done": 1, "total": 4, "file": "", "elapsed_s": 2.0}
        if waiting[0]:
            route.fulfill(status=202, json={"state": "reading", "run": "zero_workers", "progress": progress})
        else:
            route.continue_()

    page.route("**/ddp_doctor/compare?*", answer)
    tab = against(page, server, "zero_workers", "four_workers")
    note = tab.locator(".view.compare [role=status]")
    expect(note).to_contain_text("Reading zero_workers. 1 of 4 rank files read in 2")
    waiting[0] = False
    expect(tab.locator(".told")).to_contain_text("four_workers takes 51.0 ms a step")


def test_a_comparison_that_fails_says_so_and_leaves_the_choice(page: Page, server: str) -> None:
    # An answer with an error's status would be an error in the console too.
    page.route("**/ddp_doctor/compare?before=healthy&*", lambda route: route.fulfill(json=None))
    tab = against(page, server, "healthy", "four_workers")
    expect(tab.locator(".view.compare [role=status]")).to_contain_text("TensorBoard answered 200. Its log says why.")
    tab.get_by_role("combobox", name="Before").select_option("zero_workers")
    expect(tab.locator(".told")).to_contain_text("four_workers takes 51.0 ms a step")


def test_names_from_a_trace_stay_text_in_a_comparison(page: Page, server: str) -> None:
    page.route("**/ddp_doctor/compare?*", lambda route: route.fulfill(json=poison(route.fetch().json())))
    tab = against(page, server, "zero_workers", "four_workers")
    expect(tab.locator(".told")).to_contain_text(HOSTILE)
    unfold(tab)
    expect(tab.locator(".kept-folded").filter(has_text="Operators").locator("tbody th").first).to_contain_text(HOSTILE)
    assert tab.locator("img").count() == 0
    assert page.evaluate("window.hacked") is None


def test_a_directory_that_fills_says_what_is_next_and_shows_it_on_reload(page: Page, tmp_path: Path) -> None:
    """How to record the first run where none is, how to get another to compare with, and each once it has come."""
    logs = tmp_path / "logs"
    logs.mkdir()
    with tensorboard(tmp_path, f"--logdir={logs}", page=page) as base:
        tab = opened(page, base)
        expect(tab.locator("h1")).to_contain_text("No profiler traces")
        expect(tab.locator("pre", has_text="ddp-doctor demo")).to_be_visible()
        ways = tab.locator("details.folded > summary")
        expect(ways).to_have_text(["Doctor", "torch.profiler", "Nsight Systems", "Flight Recorder"])
        recorded = tab.locator("pre", has_text="tensorboard_trace_handler")
        expect(recorded).to_contain_text(f'tensorboard_trace_handler("{logs}/my_run"')

        def comes(run: str, name: str) -> None:
            shutil.copytree(DEMO_LOGS / run, logs / name)
            with page.expect_request(re.compile(r"/ddp_doctor/runs\?reload")):
                page.locator("button.reload-button").click()
            expect(button(tab, name)).to_contain_text("rank", timeout=PATIENCE_S * 1000)

        comes("healthy", "first")
        analysed(base)
        tab = opened(page, base, "compare")
        expect(tab.get_by_role("heading", name="No other run to compare with")).to_be_visible()
        expect(tab.locator(".view.compare")).to_contain_text("ddp-doctor compare BEFORE AFTER")
        expect(tab.locator(".view.compare select")).to_have_count(0)
        comes("straggler_cpu", "second")


def test_a_run_with_a_hostile_name(page: Page, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    name = HOSTILE.replace("/", "")
    (logs / name).symlink_to(DEMO_LOGS / "healthy")
    cut = logs / "cut_off"
    cut.mkdir()
    for file in (DEMO_LOGS / "straggler_cpu").iterdir():
        content = file.read_bytes()
        (cut / file.name).write_bytes(content[: len(content) // 2] if "node1" in file.name else content)
    (logs / "no_trace").mkdir()
    (logs / "no_trace" / "rank0.pt.trace.json").write_text("this is no trace")
    with tensorboard(tmp_path, f"--logdir={logs}", page=page) as base:
        runs = {run["name"]: run for run in analysed(base)}
        assert runs[name]["state"] == "ready"
        tab = opened(page, base)
        chosen(tab, name)
        expect(tab.locator("h1")).to_contain_text("Healthy")
        assert tab.locator("img").count() == 0
        chosen(tab, "cut_off")
        go(tab, "Verdict", "Data quality")
        expect(tab.locator(".warning").first).to_contain_text("node1_")
        button(tab, "no_trace").click()
        expect(tab.locator("h1")).to_contain_text("no_trace")
        expect(tab.locator("main")).not_to_contain_text("Traceback")


def test_a_report_of_two_runs_compares_them(page: Page, tmp_path: Path) -> None:
    for name in ("zero_workers", "four_workers"):
        shutil.copytree(DEMO_LOGS / name, tmp_path / "logs" / name)
    report = tmp_path / "report.html"
    assert cli.main(["diagnose", str(tmp_path / "logs"), "--html", str(report)]) == 0
    page.goto(report.as_uri())
    go(page, "History")
    expect(page.locator(".told")).to_contain_text("zero_workers takes 168.0 ms a step, four_workers 51.0 ms")
    page.get_by_role("link", name="Swap").click()
    expect(page.locator(".told")).to_contain_text("four_workers takes 51.0 ms a step, zero_workers 168.0 ms")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_report_is_the_tab_in_a_file(page: Page, tmp_path: Path, scheme: Literal["light", "dark"]) -> None:
    report = tmp_path / "report of a job.html"
    assert cli.main(["diagnose", str(DEMO_LOGS), "--html", str(report)]) == 0
    page.emulate_media(color_scheme=scheme)
    page.goto(report.as_uri())
    page.get_by_role("button", name="zero_workers").click()
    expect(page.locator("h1")).to_contain_text("DataLoader")
    assert page.locator("html.dark").count() == (scheme == "dark")
    go(page, "Verdict", "Findings")
    first = page.locator("details.finding").first
    first.locator("summary").first.click()
    expect(first.locator("canvas.large-lanes")).to_be_visible()
    said = page.locator(".prospect")
    expect(said).to_contain_text(re.compile(r"64\.\d\sms a step instead of 168\.\d\sms"))
    for box in page.locator(".fix input").all():
        box.set_checked(box.get_attribute("value") == "profiler-overhead")
    expect(said).to_contain_text(re.compile(r"157\.\d\sms a step"))
    pictured(page, f"report-{scheme}")
    for title, views in TABS.items():
        go(page, title)
        expect(page.locator(".tabs [aria-current]")).to_have_text(title)
        for i in range(len(views)):
            if len(views) > 1:
                page.locator(".parts a").nth(i).click()
            expect(page.locator("main")).not_to_contain_text("This is not in the report")
            expect(page.locator("main [role=status]", has_text="Loading")).to_have_count(0)


def test_a_report_of_one_run_promises_no_other(page: Page, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    assert cli.main(["diagnose", str(DEMO_LOGS / "healthy"), "--html", str(report)]) == 0
    page.goto(report.as_uri())
    go(page, "History")
    expect(page.locator("main")).to_contain_text("makes a report that compares them")
    expect(page.locator("main")).not_to_contain_text("appears in the list")


@pytest.mark.parametrize(
    "flags",
    [
        ("--load_fast=false", "--path_prefix=/tb", f"--logdir={DEMO_LOGS}"),
        ("--load_fast=true", "--bind_all", f"--logdir={DEMO_LOGS}"),
        (f"--logdir_spec=one:{DEMO_LOGS / 'healthy'},two:{DEMO_LOGS / 'straggler_cpu'}",),
    ],
    ids=["path_prefix", "bind_all", "logdir_spec"],
)
def test_under_the_flags_of_tensorboard(page: Page, tmp_path: Path, flags: tuple[str, ...]) -> None:
    with tensorboard(tmp_path, *flags, page=page) as base:
        assert get(f"{base}/data/plugins_listing")["ddp_doctor"]["enabled"]
        tab = opened(page, base)
        expect(tab.locator(".run").first).to_be_visible()
        expect(tab.locator(".verdict h1")).to_be_visible()
        for path in ("../../../setup.py", "../assets.py", "%2e%2e/plugin.py", "run?run=" + quote("../../etc/passwd")):
            with pytest.raises(urllib.error.HTTPError) as refused:
                get(f"{base}/data/plugin/ddp_doctor/{path}")
            refused.value.close()
            assert refused.value.code == 404


def test_what_was_not_looked_into_is_said(page: Page, server: str) -> None:
    said = (
        "A folder on another file system is left out (/logs/nfs): name one, or look into all with "
        "--ddp_doctor_everywhere."
    )
    runs: list[bool] = [True]

    def answer(route: Route) -> None:
        told = {**route.fetch().json(), "left_out": [said]}
        if not runs[0]:
            told |= {"runs": [], "error": f"No trace was found. /logs: {said}"}
        route.fulfill(json=told)

    page.route("**/ddp_doctor/runs*", answer)
    tab = opened(page, server)
    chosen(tab, "straggler_cpu")
    expect(tab.locator(".limits")).to_have_text(said)
    assert violations_of_axe(page) == []
    runs[0] = False
    page.reload()
    state = page.frame_locator("iframe").first.locator(".state")
    expect(state.get_by_role("heading")).to_have_text("No profiler traces in the folders that were looked into.")
    expect(state).to_contain_text("--ddp_doctor_everywhere")
    expect(page.frame_locator("iframe").first.locator(".limits")).to_be_hidden()
