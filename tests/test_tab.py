"""The tab as a user has it: a real TensorBoard on `demo_logs`, in headless Chromium.

Whatever a test does, it fails on a console error, on an exception in the page, and on any request that leaves
127.0.0.1. Screenshots in both themes go to `screenshots/`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlsplit

import axe_playwright_python
import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    FrameLocator,
    Locator,
    Page,
    Request,
    Route,
    ViewportSize,
    expect,
    sync_playwright,
)

from tb_ddp_doctor import cli
from tb_ddp_doctor.findings import OWNERS

REPOSITORY = Path(__file__).parent.parent
DEMO_LOGS = REPOSITORY / "demo_logs"
SCREENSHOTS = REPOSITORY / "screenshots"
AXE = Path(axe_playwright_python.__file__).with_name("axe.min.js")
CHROMIUM = Path("/usr/bin/chromium")
SIZE: ViewportSize = {"width": 1320, "height": 1000}
HOSTILE = '<img src=x onerror="top.hacked=1">'
#: TensorBoard's start and the reading of five small jobs, on a machine that is busy with other tests.
PATIENCE_S = 120
# A page is drawn later than the 5 s that Playwright waits, where other tests take the cores.
expect.set_options(timeout=30_000)

pytestmark = pytest.mark.skipif(
    "CI" not in os.environ and not CHROMIUM.exists(), reason=f"no Chromium at {CHROMIUM}; in CI this would fail"
)


@contextmanager
def tensorboard(tmp_path: Path, *flags: str, page: Page | None = None) -> Iterator[str]:
    """A TensorBoard of its own on a free port; its address, without a slash at the end.

    The page, if given, leaves it before it stops: what it asks for after that is no error.
    """
    log = tmp_path / "tensorboard.log"
    command = [sys.executable, "-m", "tensorboard.main", "--port=0", *flags]
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield wait_for(lambda: address(log, process), "TensorBoard to start")
        if page:
            page.goto("about:blank")
    finally:
        process.terminate()
        process.wait(30)
    assert "Traceback" not in log.read_text(), log.read_text()


def address(log: Path, process: subprocess.Popen[bytes]) -> str | None:
    text = log.read_text()
    assert process.poll() is None, text
    found = re.search(r"http://[^/\s]+:(\d+)(/\S*)? \(Press", text)
    return f"http://127.0.0.1:{found[1]}{(found[2] or '').rstrip('/')}" if found else None


def wait_for(ask: Callable[[], Any], what: str) -> Any:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        if answer := ask():
            return answer
        time.sleep(0.2)
    raise AssertionError(f"waited {PATIENCE_S} s for {what}")


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as response:
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        return json.load(response)


def analysed(base: str) -> list[dict[str, Any]]:
    """The runs once none is being read."""

    def runs() -> list[dict[str, Any]] | None:
        listing = get(f"{base}/data/plugin/ddp_doctor/runs")
        done = listing["runs"] and all(run["state"] in ("ready", "failed") for run in listing["runs"])
        return listing["runs"] if done else None

    found: list[dict[str, Any]] = wait_for(runs, "the runs to be read")
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    SCREENSHOTS.mkdir(exist_ok=True)
    with tensorboard(tmp_path_factory.mktemp("server"), f"--logdir={DEMO_LOGS}") as base:
        analysed(base)
        yield base
    overview()


def overview() -> None:
    """A page with all screenshots, for those who look at what CI keeps."""
    pictures = sorted(path.name for path in SCREENSHOTS.glob("*.png"))
    figures = "".join(
        f'<figure><figcaption>{name}</figcaption><img src="{name}" loading="lazy"></figure>' for name in pictures
    )
    style = "figure { display: inline-block; margin: 8px } img { max-width: 640px; border: 1px solid #888 }"
    page = f"<!doctype html><title>Screenshots</title><style>{style}</style>{figures}"
    (SCREENSHOTS / "index.html").write_text(page)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()


#: A tab begins with nothing kept by those before it, whatever it is told to keep from then on.
FRESH = "if (self === top && !sessionStorage.begun) { localStorage.clear(); sessionStorage.begun = true; }"


@pytest.fixture(scope="module")
def context(browser: Browser) -> Iterator[BrowserContext]:
    """What the tabs share: what Chromium has cached of TensorBoard's own scripts."""
    context = browser.new_context(viewport=SIZE)
    context.add_init_script(f"try {{ {FRESH} }} catch {{}}")
    yield context
    context.close()


@contextmanager
def watched(context: BrowserContext, wrong: list[str]) -> Iterator[Page]:
    """A page that remembers what must not happen."""
    page = context.new_page()
    page.set_default_timeout(PATIENCE_S * 1000)

    def console(message: ConsoleMessage) -> None:
        # Under --path_prefix TensorBoard asks for its own fonts at the root.
        if message.type == "error" and "/font-roboto/" not in message.location["url"]:
            wrong.append(f"console: {message.text} {message.location}")

    def request(request: Request) -> None:
        if urlsplit(request.url).hostname not in ("127.0.0.1", None):  # data: and blob: have no host
            wrong.append(f"request: {request.url}")

    page.on("console", console)
    page.on("pageerror", lambda error: wrong.append(f"exception: {error}"))
    context.on("request", request)
    yield page
    page.close()
    context.remove_listener("request", request)


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """A page of the test's own, which fails on what must not happen at the end."""
    wrong: list[str] = []
    with watched(context, wrong) as page:
        yield page
    assert wrong == []


@pytest.fixture(scope="module", params=["light", "dark"])
def theme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def themed_page(context: BrowserContext, server: str, theme: str) -> Iterator[tuple[Page, list[str]]]:
    wrong: list[str] = []
    with watched(context, wrong) as page:
        opened(page, server, dark=theme == "dark")
        yield page, wrong


@pytest.fixture
def shared_page(themed_page: tuple[Page, list[str]]) -> Iterator[Page]:
    """A page that many tests go on with, from view to view, since TensorBoard itself takes seconds to load."""
    page, wrong = themed_page
    wrong.clear()
    page.set_viewport_size(SIZE)
    yield page
    assert wrong == []


VIEWS = (
    "verdict",
    "findings",
    "budget",
    "steps",
    "timeline",
    "communication",
    "memory",
    "operators",
    "ranks",
    "quality",
    "compare",
)


def opened(page: Page, base: str, view: str = "verdict", dark: bool = False) -> FrameLocator:
    page.goto(f"{base}/?darkMode={'true' if dark else 'false'}#ddp_doctor&p.ddp_doctor.view={view}")
    return page.frame_locator("iframe").first


def button(tab: FrameLocator, run: str) -> Locator:
    return tab.locator("button.run").and_(tab.get_by_title(run, exact=True))


def chosen(tab: FrameLocator, run: str) -> None:
    button(tab, run).click()
    expect(tab.locator(".facts b")).to_have_text(run)


def test_the_tab_names_the_straggler(page: Page, server: str) -> None:
    page.goto(server)
    page.get_by_role("tab", name="Diagnosis").click()
    tab = page.frame_locator("iframe").first
    expect(tab.locator(".run")).to_have_count(len({path.parent for path in DEMO_LOGS.glob("*/*.pt.trace.json.gz")}))
    chosen(tab, "straggler_cpu")
    expect(tab.locator("h1")).to_contain_text(re.compile("rank 1", re.IGNORECASE))
    tab.get_by_role("link", name="Findings", exact=True).click()
    first = tab.locator("details.finding").first
    expect(first.locator(".severity")).to_have_text("Critical")
    expect(first.locator(".cost")).to_contain_text(re.compile(r"\d\.\d\sms"))
    first.locator("summary").click()
    for part in ("What was seen", "What to do", "Where to look"):
        expect(first.get_by_text(part)).to_be_visible()
    expect(first.locator("pre")).not_to_be_empty()
    expect(first.locator(".evidence tbody tr").first).to_contain_text("rank 1")
    expect(first.locator("canvas.large-lanes")).to_be_visible()
    first.get_by_text("About the rule straggler").click()
    expect(first.locator(".help")).to_contain_text("Limits.")
    first.get_by_role("button", name="Copy", exact=True).click()
    expect(first.get_by_role("button", name="Copied", exact=True)).to_be_visible()


def test_the_worst_run_opens_and_stays(page: Page, server: str) -> None:
    """Not the first by name, but the most severe one that loses most; the address names it once a view is chosen."""
    tab = opened(page, server)
    runs = [run for run in analysed(server) if run["severity"] == "critical"]
    worst = max(runs, key=lambda run: run["lost_ms"])["name"]
    assert worst != analysed(server)[0]["name"]
    expect(tab.locator(".facts b")).to_have_text(worst)
    expect(tab.locator(".run[aria-current]")).to_contain_text(worst)
    tab.get_by_role("link", name="Budget", exact=True).click()
    page.wait_for_url(re.compile(f"ddp_doctor.run={worst}"))


def test_the_run_that_opened_is_not_replaced_while_somebody_reads_it(page: Page, server: str) -> None:
    reading = [True]

    def listing(route: Route) -> None:
        body = route.fetch().json()
        for run in body["runs"]:
            if run["name"] == "straggler_cpu" and reading[0]:
                run["state"] = "reading"
        route.fulfill(json=body)

    page.route(re.compile(r"/ddp_doctor/runs(\?|$)"), listing)
    tab = opened(page, server)
    expect(tab.locator(".facts b")).to_have_text("zero_workers")
    tab.locator("h1").click()
    with page.expect_response(re.compile(r"/ddp_doctor/runs(\?|$)")):
        reading[0] = False
    expect(button(tab, "straggler_cpu")).to_contain_text("4\u00a0ranks")
    expect(tab.locator(".facts b")).to_have_text("zero_workers")


def test_the_run_list_sorts_filters_and_keeps_its_order(page: Page, server: str) -> None:
    tab = opened(page, server)
    names = tab.locator(".run .name")
    worst = ["straggler_cpu", "zero_workers", "no_overlap", "four_workers", "healthy"]
    expect(names).to_have_text(worst)
    tab.get_by_label("Sort runs").select_option("name")
    expect(names).to_have_text(sorted(worst))
    page.reload()
    expect(names).to_have_text(sorted(worst))
    tab.get_by_label("Filter runs by name or verdict").fill("workers")
    expect(names).to_have_text(["four_workers", "zero_workers"])
    tab.get_by_label("Filter runs by name or verdict").fill("no such run")
    expect(tab.get_by_text("No run matches the filter.")).to_be_visible()
    expect(tab.locator(".facts b")).to_have_text("straggler_cpu")


def test_a_verdict_in_the_run_list_has_a_shape_and_a_name(page: Page, server: str) -> None:
    tab = opened(page, server)
    for run, said in (("straggler_cpu", "critical"), ("no_overlap", "major"), ("healthy", "healthy")):
        expect(button(tab, run).get_by_role("img", name=said)).to_be_visible()
    shapes = tab.locator(".dot").evaluate_all(
        "dots => dots.map(dot => [getComputedStyle(dot).clipPath, getComputedStyle(dot).borderRadius].join())"
    )
    assert len(set(shapes)) == 3


def test_five_hundred_runs_scroll_and_are_moved_along_by_keyboard(page: Page, server: str) -> None:
    """Only the rows that are seen are in the page, and each frame of a scroll is drawn in time."""

    def listing(route: Route) -> None:
        body = route.fetch().json()
        first = body["runs"]
        for i in range(500):
            run = first[i % len(first)]
            body["runs"] = [*body["runs"], run | {"name": f"sweep_{i % 4}/lr_{i}_{run['name']}"}]
        route.fulfill(json=body)

    page.route(re.compile(r"/ddp_doctor/runs(\?|$)"), listing)
    tab = opened(page, server)
    expect(tab.get_by_label("Filter runs by name or verdict")).to_have_attribute("placeholder", "Filter 505\u00a0runs")
    expect(tab.locator("button.folder").first).to_contain_text("sweep_")
    assert tab.locator(".rows > li").count() < 40
    scroller = tab.locator(".scroller")
    frames = scroller.evaluate(
        """async (list) => {
          const frame = () => new Promise(requestAnimationFrame);
          const took = [];
          for (let i = 0; i < 60; i++) {
            const before = performance.now();
            list.scrollTop += 400;
            list.dispatchEvent(new Event("scroll"));
            took.push(performance.now() - before);
            await frame();
          }
          return took.sort((a, b) => a - b);
        }"""
    )
    assert scroller.evaluate("list => list.scrollTop") > 20_000
    assert frames[len(frames) // 2] < 8, "a row list takes half of a frame"
    seen = scroller.bounding_box()
    last = tab.locator(".rows > li").last.bounding_box()
    assert seen and last and last["y"] + last["height"] >= seen["y"] + seen["height"] - 20, "rows up to the edge"
    scroller.evaluate("list => (list.scrollTop = 0)")
    tab.locator(".run").first.focus()
    for _ in range(60):
        page.keyboard.press("ArrowDown")
    focused = tab.locator(".rows button:focus")
    expect(focused).to_be_visible()
    expect(tab.locator(".rows > li:focus-within")).to_have_attribute("aria-posinset", re.compile("6[0-9]"))
    page.keyboard.press("End")
    expect(tab.locator(".rows > li:focus-within")).to_have_attribute("aria-posinset", re.compile(r"5\d\d"))
    page.keyboard.press("Home")
    folder = tab.locator("button.folder").first
    group = folder.get_attribute("title")
    folder.click()
    expect(folder).to_have_attribute("aria-expanded", "false")
    expect(tab.locator(f".run[title^='{group}/']")).to_have_count(0)
    page.screenshot(path=SCREENSHOTS / "five_hundred_runs.png")


PHONE: ViewportSize = {"width": 390, "height": 844}


def test_on_a_phone_runs_are_a_menu_and_views_a_select(page: Page, server: str) -> None:
    page.set_viewport_size(PHONE)
    tab = opened(page, server)
    expect(tab.locator(".facts b")).to_have_text("straggler_cpu")
    expect(tab.locator(".tabs")).to_be_hidden()
    expect(tab.locator(".run").first).to_be_hidden()
    menu = tab.locator("button.menu")
    expect(menu).to_contain_text("straggler_cpu")
    menu.click()
    button(tab, "zero_workers").click()
    expect(tab.locator(".facts b")).to_have_text("zero_workers")
    expect(tab.locator(".run").first).to_be_hidden()
    tab.get_by_label("View", exact=True).select_option("Findings")
    expect(tab.locator("details.finding").first).to_be_visible()
    page.wait_for_url(re.compile("ddp_doctor.view=findings"))
    page.go_back()
    expect(tab.get_by_label("View", exact=True)).to_have_value("verdict")


@pytest.mark.parametrize("theme", ["light", "dark"], indirect=True)
@pytest.mark.parametrize("view", VIEWS)
def test_on_a_phone_nothing_is_wider_than_the_page(shared_page: Page, server: str, view: str, theme: str) -> None:
    shared_page.set_viewport_size(PHONE)
    tab = opened(shared_page, server, view, dark=theme == "dark")
    expect(tab.locator(".facts b")).to_be_visible()
    shared_page.wait_for_timeout(300)
    for summary in tab.locator("details:not([open]) > summary").all()[::-1]:
        summary.click()
    for part in ("html", "main", ".runs"):
        over = tab.locator(part).evaluate("element => element.scrollWidth - element.clientWidth")
        assert over == 0, f"{part} is {over} px too wide"
    outside = tab.locator("main").evaluate(
        "main => [...main.querySelectorAll('*')].filter(part => !part.closest('.scroll, pre, .heat-frame, .facts')"
        " && part.getBoundingClientRect().right > main.clientWidth + 1).map(part => part.outerHTML.slice(0, 120))"
    )
    assert outside == []
    assert violations_of_axe(shared_page) == []
    height = tab.locator("main").evaluate("element => element.scrollHeight + 160")
    shared_page.set_viewport_size({"width": 390, "height": min(height, 4000)})
    shared_page.wait_for_timeout(100)
    shared_page.screenshot(path=SCREENSHOTS / f"phone_{view}_{theme}.png")


def test_observations_stand_apart_and_name_no_culprit(page: Page, server: str) -> None:
    tab = opened(page, server, "findings")
    chosen(tab, "straggler_cpu")
    expect(tab.locator(".card.findings > h3")).to_have_count(2)
    assert [" ".join(text.split()) for text in tab.locator(".card.findings > h3").all_text_contents()] == [
        "Other costs, not in the verdict",
        "Observations, no cost",
    ]
    last = tab.locator(".finding-row").last
    expect(last).to_contain_text("MFU")
    expect(last.locator(".where .affected")).to_have_count(0)
    expect(last.locator(".fix input")).to_have_count(0)


def test_few_recorded_ranks_give_no_loss_of_the_whole_job(page: Page, server: str) -> None:
    def answer(route: Route) -> None:
        body = route.fetch().json()
        diagnosis = body["diagnosis"]
        diagnosis |= {"ranks": [0], "world_size": 64, "missing_ranks": list(range(1, 64))}
        route.fulfill(json=body)

    page.route("**/ddp_doctor/run?run=healthy", answer)
    tab = opened(page, server)
    chosen(tab, "healthy")
    lost = tab.locator(".tiles > div").filter(has_text="hours lost a day")
    expect(lost.locator("b")).to_have_text("unknown")
    expect(lost).to_contain_text("1 of 64")
    for name in ("Exposed communication", "Straggler wait"):
        left = tab.locator(".main .tiles > div").filter(has_text=name)
        expect(left.locator("b")).to_have_text("unknown")
        expect(left).to_contain_text("1 of 64")


def test_evidence_begins_with_its_sum(page: Page, server: str) -> None:
    def answer(route: Route) -> None:
        body = route.fetch().json()
        first = body["diagnosis"]["findings"][0]
        gaps = {"name": "gaps", "value": 108.9, "unit": "ms", "ranks": [1], "steps": [], "count": 212}
        first["measurements"].insert(0, gaps)
        route.fulfill(json=body)

    page.route("**/ddp_doctor/run?run=straggler_cpu", answer)
    tab = opened(page, server, "findings")
    chosen(tab, "straggler_cpu")
    tab.locator("details.finding > summary").first.click()
    expect(tab.locator(".opened .sum")).to_have_text(re.compile(r"^212 gaps, 108\.9\sms; the \d longest below\.$"))


def test_what_fixes_would_bring_follows_the_choice(page: Page, server: str) -> None:
    tab = opened(page, server, "findings")
    chosen(tab, "zero_workers")
    said = tab.locator(".prospect")
    expect(said).to_contain_text(re.compile(r"64\.7\sms a step instead of 168\.\d\sms: 62\s% less \(80\s% interval 62"))
    boxes = tab.locator(".fix input")
    for box in boxes.all():
        box.set_checked(box.get_attribute("value") == "pageable-memcpy")
    expect(said).to_contain_text(re.compile(r"167\.1\sms a step"))
    page.wait_for_url(re.compile("ddp_doctor.fixed=pageable-memcpy(&|$)"))
    page.reload()
    expect(said).to_contain_text(re.compile(r"167\.1\sms a step"))
    tab.locator(".fix input[value=pageable-memcpy]").first.press("Space")
    expect(said).to_contain_text("nothing ticked")
    page.reload()
    expect(said).to_contain_text("nothing ticked")


def test_two_findings_of_one_rule_are_ticked_each_by_itself(page: Page, server: str) -> None:
    asked: list[str] = []

    def answer(route: Route) -> None:
        body = route.fetch().json()
        findings = body["diagnosis"]["findings"]
        first = findings[0] | {"id": "straggler:1"}
        findings[:1] = [first, first | {"id": "straggler:2", "ranks": [2]}]
        route.fulfill(json=body)

    def predict(route: Route) -> None:
        asked.append(route.request.url.partition("without=")[2])
        route.continue_()

    page.route("**/ddp_doctor/run?*", answer)
    page.route("**/ddp_doctor/whatif?*", predict)
    tab = opened(page, server, "findings")
    chosen(tab, "straggler_cpu")
    expect(tab.locator(".prospect")).to_contain_text("a step")
    tab.locator(".fix input").nth(1).uncheck()
    expect(tab.locator(".fix input").first).to_be_checked()
    page.wait_for_url(re.compile("ddp_doctor.fixed=straggler%3A1(&|$)"))
    assert asked[0] == quote("straggler:1,straggler:2", safe="") and asked[-1] == quote("straggler:1", safe="")


def test_the_verdict_shows_the_account_and_the_same_saving_as_what_if(page: Page, server: str) -> None:
    tab = opened(page, server)
    for run in ("straggler_cpu", "zero_workers"):
        chosen(tab, run)
        lines = tab.locator(".account .cost").all_text_contents()
        parts = [float(re.sub(r"[\s\xa0]ms.*", "", line)) for line in lines]
        step = tab.locator(".tiles b").first.text_content()
        assert sum(parts) == pytest.approx(float(str(step).split("\xa0")[0]), abs=0.3)
        fixed = tab.locator(".tiles b").nth(1).text_content()
        tab.get_by_role("link", name="Findings", exact=True).click()
        expect(tab.locator(".prospect")).to_contain_text(f"{fixed} a step instead of {step}")
        tab.get_by_role("link", name="Verdict", exact=True).click()


def test_a_finding_has_one_number_and_one_cost_on_the_verdict(page: Page, server: str) -> None:
    """In the bar, the list below it, the costliest findings and the fold that computes it."""
    tab = opened(page, server)
    for run in ("straggler_cpu", "zero_workers", "no_overlap"):
        chosen(tab, run)
        finding = get(f"{server}/data/plugin/ddp_doctor/run?run={run}")["diagnosis"]["findings"][0]
        cost = f"{finding['cost_ms']:.1f}\u00a0ms"
        first = tab.locator(".costliest > li").first
        for place in (tab.locator(".account-bar .part"), tab.locator(".account li")):
            expect(place.filter(has=tab.locator(".badge", has_text=re.compile("^1$")))).to_contain_text(cost)
        expect(first.locator(".badge")).to_have_text("1")
        expect(first.locator(".cost")).to_contain_text(cost)
        first.get_by_text(f"How {cost} is computed").click()
        expect(first.locator(".arithmetic .result").last).to_contain_text(cost)
        rows = [number(text) for text in first.locator(".arithmetic li:not(.result) b").all_text_contents()]
        assert sum(rows) == pytest.approx(finding["cost_ms"], abs=0.2)


def number(text: str) -> float:
    """What a cell shows, ms."""
    return float(re.sub(r"\s(ms|s)$", "", text.replace("\N{MINUS SIGN}", "-")))


def test_the_account_is_written_out_as_a_sum(page: Page, server: str) -> None:
    tab = opened(page, server)
    chosen(tab, "straggler_cpu")
    text = str(tab.locator(".account-card .sum").first.text_content())
    step, *parts = map(float, re.findall(r"\d+\.\d", text))
    assert sum(parts) == pytest.approx(step, abs=0.2) and "unexplained (ms)" in text


def test_the_critical_path_reads_out_and_leads_to_the_timeline(page: Page, server: str) -> None:
    tab = opened(page, server)
    chosen(tab, "straggler_cpu")
    path = tab.locator(".critical-path")
    expect(path.locator(".sum")).to_contain_text("all on rank 1")
    step = number(str(path.locator("h3").text_content()).split("step 4")[-1].strip())
    parts = [number(re.sub(r"^\D+", "", text)) for text in path.locator(".legend li").all_text_contents()]
    assert sum(parts) == pytest.approx(step, abs=0.2)
    path.locator(".strip").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(path.locator(".readout")).to_have_text(re.compile(r"rank 1: CPU outside any op, 150\.\d\sms from "))
    path.get_by_label("Step of the critical path").select_option("2")
    page.wait_for_url(re.compile("ddp_doctor.step=2"))
    page.reload()
    expect(path.get_by_label("Step of the critical path")).to_have_value("2")
    views = get(f"{server}/data/plugin/ddp_doctor/run?run=straggler_cpu")
    (start_ns,) = (each["start_ns"] for each in views["diagnosis"]["critical_path"] if each["step"] == 2)
    with page.expect_request("**/ddp_doctor/slice?*") as asked:
        path.get_by_role("link", name="Open in timeline").click()
    assert "ranks=1&" in asked.value.url
    assert int(re.findall(r"start=(\d+)", asked.value.url)[0]) < start_ns


def test_a_term_is_defined_by_keyboard_and_touch(page: Page, server: str) -> None:
    tab = opened(page, server)
    chosen(tab, "straggler_cpu")
    help_ = tab.get_by_role("button", name=re.compile("^unexplained: what a step without any fault"))
    help_.focus()
    text = tab.locator(".tip-text")
    expect(text).to_contain_text("what a step without any fault")
    page.keyboard.press("Escape")
    expect(text).to_have_count(0)
    help_.dispatch_event("click")
    expect(text).to_be_visible()
    box, size = text.bounding_box(), page.viewport_size
    assert box and size and box["x"] >= 0 and box["x"] + box["width"] <= size["width"]
    tab.locator("h1").click()
    expect(text).to_have_count(0)


def test_a_healthy_run_shows_the_headroom_and_its_checks(page: Page, server: str) -> None:
    tab = opened(page, server)
    chosen(tab, "healthy")
    budgets = get(f"{server}/data/plugin/ddp_doctor/run?run=healthy")["diagnosis"]["budget_ms"].values()
    for owner, name in (("transfer", "Exposed communication"), ("wait", "Straggler wait")):
        mean = sum(budget[owner] for budget in budgets) / len(budgets)
        value = tab.locator(".main .tiles > div").filter(has_text=name).locator("b")
        assert number(str(value.text_content())) == pytest.approx(mean, rel=0.02)
    expect(tab.locator(".checks h2")).to_have_text(re.compile(r"26 of 28\schecks passed"))
    expect(tab.locator(".checks .passed li")).to_have_count(26)
    expect(tab.locator(".unchecked")).to_contain_text("memory-fragmentation The traces have no allocator events")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_what_nothing_explains_is_no_health(page: Page, server: str, theme: str) -> None:
    """The healthy job, made one of whose step rules explain too little."""

    def answer(route: Route) -> None:
        body = route.fetch().json()
        diagnosis = body["diagnosis"]
        diagnosis |= {"verdict": "unexplained", "level": "major"}
        diagnosis["headline"] = "No rule explains 7.0 ms of every 50.0 ms, on rank 2."
        account = diagnosis["account"]
        for line in account["lines"]:
            line["ms"] = {"floor": 43.0, "unexplained": 7.0}.get(line["kind"], 0.0)
            line["share"] = line["ms"] / 50
        account["unexplained"] = {"owner": "host", "phase": "forward", "ranks": [2], "steps": diagnosis["steps"]}
        account["method"] = "busy_time"
        account["left_out"] = [{"step": 1, "ms": 80.0, "reason": "the profiler was starting."}]
        route.fulfill(json=body)

    page.route("**/ddp_doctor/run?run=healthy", answer)
    tab = opened(page, server, dark=theme == "dark")
    chosen(tab, "healthy")
    expect(tab.locator("h1.major")).to_contain_text("No rule explains")
    expect(tab.locator(".side .tiles")).to_contain_text(re.compile(r"Unexplained\s7\.0\sms14\s% of the step"))
    expect(tab.locator(".account-card")).to_contain_text("mostly CPU outside any op in forward, rank 2, all 3 steps")
    card = tab.locator(".card").filter(has=tab.locator(".account"))
    expect(card).to_contain_text("differences of busy time")
    expect(card).to_contain_text(re.compile(r"Not counted: step 1 \(80\.0\sms\): the profiler was starting\."))
    expect(tab.locator(".row.affected .rank")).to_contain_text("rank 2")
    page.screenshot(path=SCREENSHOTS / f"unexplained_{theme}.png")


def test_what_cannot_be_told_is_neutral(page: Page, server: str) -> None:
    def answer(route: Route) -> None:
        body = route.fetch().json()
        body["diagnosis"] |= {"verdict": "unknown", "level": "info", "headline": "The traces cannot tell."}
        route.fulfill(json=body)

    def listing(route: Route) -> None:
        body = route.fetch().json()
        for run in body["runs"]:
            run |= (
                {"verdict": "unknown"}
                if run["name"] == "healthy"
                else {"verdict": "unexplained", "unexplained_ms": 9.0}
            )
        route.fulfill(json=body)

    page.route("**/ddp_doctor/run?run=healthy", answer)
    page.route(re.compile(r"/ddp_doctor/runs(\?|$)"), listing)
    tab = opened(page, server)
    chosen(tab, "healthy")
    expect(tab.locator("h1.info")).to_contain_text("The traces cannot tell.")
    expect(tab.locator(".tiles > div")).to_have_count(2)
    expect(button(tab, "healthy")).to_contain_text("unknown")
    expect(button(tab, "healthy").locator(".dot.info")).to_be_visible()
    expect(button(tab, "straggler_cpu").locator(".dot.critical")).to_be_visible()
    expect(button(tab, "straggler_cpu")).to_contain_text(re.compile(r"4\.9\s% \?"))


def test_a_finding_shows_how_it_was_computed(page: Page, server: str) -> None:
    tab = opened(page, server, "findings")
    chosen(tab, "straggler_cpu")
    first = tab.locator("details.finding").first
    first.locator("summary").click()
    expect(first.locator(".sure")).to_contain_text(
        re.compile(r"Fixing it saves 125\.2\sms a step, 80\s% interval 122\.5")
    )
    first.get_by_text("How this was computed").click()
    rows = first.locator(".folded[open] tbody tr")
    expect(rows.nth(0)).to_have_text(
        re.compile(r"stretches of GPU idle, CPU outside any op \(each over 0\.05\s% of its step\)412\.\d\sms61all")
    )
    expect(rows.nth(1)).to_have_text(re.compile(r"CPU time that the fix removes: outside any op150\.\d\sms1all"))


def test_a_healthy_job_is_called_healthy(page: Page, server: str) -> None:
    tab = opened(page, server, "quality")
    chosen(tab, "healthy")
    expect(tab.locator("h1.healthy")).to_contain_text("Healthy")
    tab.get_by_text(re.compile(r"\d+ of \d+\schecks passed")).click()
    expect(tab.locator("details.folded[open] li").first).to_be_visible()


def test_the_budget_of_a_rank_sums_to_its_step(page: Page, server: str) -> None:
    tab = opened(page, server, "budget")
    chosen(tab, "straggler_cpu")
    tab.get_by_text("The same numbers as a table").first.click()
    rows = tab.locator(".folded[open] tbody tr")
    expect(rows).to_have_count(4)
    for row in rows.all():
        _node, *parts, step, busy = row.locator("td").all_text_contents()
        assert sum(map(float, parts)) == pytest.approx(float(step), abs=0.5)
        assert float(busy) == pytest.approx(float(step) - float(parts[OWNERS.index("wait")]), abs=0.5)


def test_a_finding_opens_by_keyboard(page: Page, server: str) -> None:
    tab = opened(page, server, "findings")
    chosen(tab, "straggler_cpu")
    finding = tab.locator("details.finding").first
    for _ in range(40):
        page.keyboard.press("Tab")
        if finding.evaluate("element => element.querySelector('summary') === document.activeElement"):
            break
    else:
        pytest.fail("the finding cannot be reached with the Tab key")
    outline = finding.locator("summary").evaluate("element => getComputedStyle(element).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Enter")
    expect(finding).to_have_attribute("open", "")


def test_the_budget_reads_out_by_keyboard(page: Page, server: str) -> None:
    tab = opened(page, server, "budget")
    chosen(tab, "straggler_cpu")
    tab.locator(".part").first.focus()
    readout = tab.locator(".readout").first
    expect(readout).to_have_text(re.compile(r"rank 0 on node0: compute [\d.]+\sms, [\d.]+\s% of [\d.]+\sms"))
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    expect(readout).to_have_text(re.compile(r"rank 1 on node0: (?!compute).+ms"))


@pytest.mark.parametrize("view", VIEWS)
def test_nothing_scrolls_sideways(shared_page: Page, server: str, view: str, theme: str) -> None:
    tab = opened(shared_page, server, view, dark=theme == "dark")
    for run in ("straggler_cpu", "zero_workers", "healthy"):
        chosen(tab, run)
        if tab.locator("details.finding").count():
            tab.locator("details.finding > summary").first.click()
        expect(tab.locator("html")).to_have_class("dark" if theme == "dark" else "")
        for width in (1000, 1320, 2560):
            shared_page.set_viewport_size({"width": width, "height": 1000})
            for part in ("html", "main", ".runs"):
                over = tab.locator(part).evaluate("element => element.scrollWidth - element.clientWidth")
                assert over == 0, f"{run}: {part} is {over} px too wide at {width} px"
        height = tab.locator("main").evaluate("element => element.scrollHeight + 80")
        shared_page.set_viewport_size({**SIZE, "height": height})
        shared_page.wait_for_timeout(100)  # pictures redraw
        shared_page.screenshot(path=SCREENSHOTS / f"{run}_{view}_{theme}.png")


def test_what_belongs_together_stands_in_one_row(page: Page, server: str) -> None:
    page.set_viewport_size({"width": 1000, "height": 1000})
    tab = opened(page, server)
    chosen(tab, "straggler_cpu")
    for row in (".tabs > a", ".tiles > div"):
        tops = tab.locator(row).evaluate_all("parts => parts.map(part => part.getBoundingClientRect().top)")
        assert len(tops) >= 4 and len(set(tops)) == 1, row
    for view in ("operators", "ranks", "communication", "quality"):
        tab = opened(page, server, view)
        for table in tab.locator(".grid > .scroll").all():
            expect(table.locator("tbody tr").first).to_be_visible()
            over = table.evaluate("element => element.scrollWidth - element.clientWidth")
            assert over == 0, f"{view}: {table.get_attribute('aria-label')} is {over} px too wide"


def test_many_ranks(page: Page, server: str) -> None:
    """300 ranks made of four: pictures that read out by keyboard."""

    def answer(route: Route) -> None:
        body = route.fetch().json()
        diagnosis, views = body["diagnosis"], body["views"]
        ranks = list(range(300))
        diagnosis["budget_ms"] = {rank: diagnosis["budget_ms"][str(rank % 4)] for rank in ranks}
        for grid in ("nodes", "busy_ms", "step_ms", "start_ns"):
            views[grid] = [views[grid][rank % 4] for rank in ranks]
        views["budget_ms"] = {owner: [grid[rank % 4] for rank in ranks] for owner, grid in views["budget_ms"].items()}
        diagnosis["ranks"] = views["ranks"] = ranks
        diagnosis["world_size"] = len(ranks)
        route.fulfill(json=body)

    page.route("**/ddp_doctor/run?*", answer)
    tab = opened(page, server, "budget")
    chosen(tab, "straggler_cpu")
    tab.locator("canvas.budget-map").focus()
    page.keyboard.press("ArrowDown")
    expect(tab.locator(".readout")).to_have_text(
        re.compile(r"rank 1 on node0: compute [\d.]+\sms, .+ \(affected rank\)")
    )
    page.screenshot(path=SCREENSHOTS / "many_ranks_budget.png")
    tab.get_by_role("link", name="Steps").click()
    picture = tab.locator("canvas.heat-map")
    picture.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    expect(tab.locator(".readout").last).to_have_text(
        re.compile(r"rank 1 on node0, step 3: [\d.]+\sms \(affected rank\)")
    )
    page.screenshot(path=SCREENSHOTS / "many_ranks_steps.png")
    # By node, with the straggler apart from those that are comparable; a rank is selected for all views.
    tab.get_by_role("link", name="Ranks").click()
    groups = [re.compile("1: rank 1"), re.compile("74 ranks, 5 to 297.+above the median"), "225 comparable ranks"]
    expect(tab.locator(".groups tbody th")).to_have_text(groups)
    expect(tab.locator(".bands tbody th").first).to_have_text("compute")
    tab.locator("canvas.rank-grid").focus()
    page.keyboard.press("ArrowDown")
    expect(tab.locator(".readout").first).to_have_text(re.compile(r"rank \d+ on node0: [\d.]+\sms"))
    page.keyboard.press("Enter")
    expect(tab.locator(".chip")).to_have_text(re.compile(r"rank \d+"))
    page.screenshot(path=SCREENSHOTS / "many_ranks.png")


def test_a_finding_of_4096_ranks_opens_at_once(page: Page, server: str) -> None:
    def answer(route: Route) -> None:
        body = route.fetch().json()
        diagnosis, views = body["diagnosis"], body["views"]
        ranks, steps = list(range(4096)), list(range(2, 52))
        diagnosis["budget_ms"] = {rank: diagnosis["budget_ms"][str(rank % 4)] for rank in ranks}
        for grid in ("busy_ms", "step_ms", "start_ns", "clock_ms"):
            views[grid] = [[views[grid][rank % 4][0]] * len(steps) for rank in ranks]
        views["budget_ms"] = {
            owner: [[grid[rank % 4][0]] * len(steps) for rank in ranks] for owner, grid in views["budget_ms"].items()
        }
        views["nodes"] = [f"node{rank // 8}" for rank in ranks]
        diagnosis |= {"ranks": ranks, "steps": steps, "world_size": len(ranks)}
        views |= {"ranks": ranks, "steps": steps}
        route.fulfill(json=body)

    page.route("**/ddp_doctor/run?*", answer)
    tab = opened(page, server, "findings")
    chosen(tab, "straggler_cpu")
    first = tab.locator("details.finding").first
    first.locator("summary").first.click()
    expect(first.locator(".cells tbody tr")).to_have_count(12)
    expect(first.locator(".cells tbody th.affected")).to_have_text("rank 1")
    shown = re.compile(r"Shown: the 12 ranks with most of it, of 4,096\sranks, 12 of 50\ssteps\.")
    expect(first.locator(".occurs .note")).to_have_text(shown)
    tab.get_by_role("link", name="Verdict", exact=True).click()
    expect(tab.locator("canvas.rank-step")).to_be_visible()


@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_nothing(shared_page: Page, server: str, view: str, theme: str) -> None:
    """WCAG A and AA and the best practices, contrast among them, with all that can be opened open."""
    tab = opened(shared_page, server, view, dark=theme == "dark")
    for run in ("straggler_cpu", "healthy"):
        chosen(tab, run)
        for summary in tab.locator("details:not([open]) > summary").all()[::-1]:
            summary.click()
        wrong = violations_of_axe(shared_page)
        assert not wrong, f"{run}\n" + "\n".join(wrong)


def violations_of_axe(page: Page) -> list[str]:
    page.wait_for_timeout(300)  # colours fade in
    frame = next((frame for frame in page.frames if frame.parent_frame), page.main_frame)
    frame.evaluate(AXE.read_text())
    # Without the elements that pass, thousands in a large table.
    passes, violations = frame.evaluate(
        "() => axe.run(document, {iframes: false, resultTypes: ['violations']})"
        ".then(({passes, violations}) => [passes.length, violations])"
    )
    assert passes > 15
    return [
        f"{violation['id']}: {node['html'][:200]} {node['failureSummary']}"
        for violation in violations
        for node in violation["nodes"]
    ]


def test_the_theme_follows_tensorboard_live(page: Page, server: str) -> None:
    tab = opened(page, server)
    chosen(tab, "straggler_cpu")
    body = tab.locator("body")
    light = body.evaluate("element => getComputedStyle(element).backgroundColor")
    page.evaluate("document.body.classList.add('dark-mode')")
    expect(tab.locator("html")).to_have_class("dark")
    assert body.evaluate("element => getComputedStyle(element).backgroundColor") != light


def test_the_open_run_survives_a_reload(page: Page, server: str) -> None:
    tab = opened(page, server)
    chosen(tab, "zero_workers")
    tab.get_by_role("link", name="Budget").click()
    tab.get_by_label("Sorted by").select_option("busy")
    page.reload()
    expect(tab.locator(".facts b")).to_have_text("zero_workers")
    expect(tab.get_by_label("Sorted by")).to_have_value("busy")
    page.go_back()
    expect(tab.locator(".tabs [aria-current]")).to_have_text("Verdict")


def test_a_name_does_not_turn_what_stands_behind_it(page: Page, server: str) -> None:
    def answer(route: Route) -> None:
        body = route.fetch().json()
        body["views"]["device"] = "H200\u202e\u2067"
        body["diagnosis"]["headline"] = "Rank 1\u202e is the straggler."
        route.fulfill(json=body)

    page.route("**/ddp_doctor/run?*", answer)
    tab = opened(page, server)
    chosen(tab, "straggler_cpu")
    expect(tab.locator(".facts")).to_contain_text("H200\ufffd\ufffd")
    expect(tab.locator("h1")).to_have_text("Rank 1\ufffd is the straggler.")


def test_a_job_with_an_incomplete_file_is_not_called_healthy(page: Page, server: str) -> None:
    def answer(route: Route) -> None:
        body = route.fetch().json()
        body["diagnosis"].update(headline="No fault found in what is here, but ...", incomplete=["a"], level="info")
        route.fulfill(json=body)

    page.route("**/ddp_doctor/run?run=healthy", answer)
    tab = opened(page, server)
    chosen(tab, "healthy")
    expect(tab.locator("h1.info")).to_contain_text("No fault found in what is here")


def test_long_names_stay_within_the_page(page: Page, server: str) -> None:
    """Labels as long as German ones, and paths as a name: nothing is pushed out of the page."""
    long = "Donaudampfschifffahrtsgesellschaftskapitaensmuetze/" * 4

    def answer(route: Route) -> None:
        body = route.fetch().json()
        diagnosis, views = body["diagnosis"], body["views"]
        diagnosis["headline"] = f"Rank 1 is the straggler: {long}"
        views["nodes"] = [long + node for node in views["nodes"]]
        views["device"] = long
        for finding in diagnosis["findings"]:
            finding.update(title=long + finding["title"], why=long, fix=f"{long}\n\n{long}", cause=long)
        route.fulfill(json=body)

    page.route("**/ddp_doctor/run?*", answer)
    for view in VIEWS:
        tab = opened(page, server, view)
        chosen(tab, "straggler_cpu")
        if view == "findings":
            tab.locator("details.finding > summary").first.click()
        if view == "budget":
            tab.get_by_label("One bar per").select_option("node")
        for width in (390, 2560, 1000):
            page.set_viewport_size({"width": width, "height": 1000})
            over = tab.locator("main").evaluate("element => element.scrollWidth - element.clientWidth")
            assert over == 0, f"{view} is {over} px too wide at {width} px"
        page.screenshot(path=SCREENSHOTS / f"long_names_{view}.png")


def test_nothing_moves_for_those_who_asked_for_that(page: Page, server: str) -> None:
    page.emulate_media(reduced_motion="reduce")
    tab = opened(page, server, "findings")
    chosen(tab, "straggler_cpu")
    moving = tab.locator("body").evaluate(
        "body => [...body.querySelectorAll('*')].filter(element => "
        "parseFloat(getComputedStyle(element).transitionDuration) > 0).map(element => element.outerHTML)"
    )
    assert moving == []


@pytest.mark.parametrize("theme", ["light"], indirect=True)
@pytest.mark.parametrize("view", VIEWS)
def test_every_control_is_reached_by_keyboard(shared_page: Page, server: str, view: str) -> None:
    """With the Tab key alone, from the first to the last; with a ring around the one that has it."""
    tab = opened(shared_page, server, view)
    chosen(tab, "straggler_cpu")
    shared_page.wait_for_timeout(500)
    for summary in tab.locator("details:not([open]) > summary").all()[::-1]:
        summary.click()
    shared_page.wait_for_timeout(300)
    found = tab.locator("body").evaluate(
        """body => {
          const controls = body.querySelectorAll("a[href], button, input, select, textarea, summary, canvas[tabindex]");
          const shown = [...controls].filter(control => control.checkVisibility() && !control.disabled);
          shown.forEach((control, i) => (control.dataset.control = i));
          shown[0].focus();
          window.bare = [];
          window.reached = new Set(["0"]);
          body.addEventListener("focusin", ({target}) => {
            if (target.dataset.control) reached.add(target.dataset.control);
            if (getComputedStyle(target).outlineStyle === "none") bare.push(target.outerHTML.slice(0, 120));
          });
          return shown.length;
        }"""
    )
    assert found > 10
    for _ in range(found + 30):  # regions that scroll take the focus too
        shared_page.keyboard.press("Tab")
    missed = tab.locator("body").evaluate(
        "() => [...document.querySelectorAll('[data-control]')]"
        ".filter(control => !reached.has(control.dataset.control)).map(control => control.outerHTML.slice(0, 120))"
    )
    assert missed == []
    assert tab.locator("body").evaluate("() => bare") == []


def test_pictures_read_out_by_keyboard(page: Page, server: str) -> None:
    def told(route: Route) -> None:
        curve = {"rank": 0, "node": "node0", "device_bytes": 80e9, "time_ms": [0, 10, 20]}
        parts = [[1e9, 1e9, 1e9], *[[0, 0, 0]] * 2, [0, 2e9, 1e9], *[[0, 0, 0]] * 3]
        curves = [{**curve, "allocated": [1e9, 3e9, 2e9], "reserved": [4e9, 4e9, 4e9], "categories": parts}]
        route.fulfill(json={"ranks_told": 1, "curves": curves})

    page.route("**/ddp_doctor/detail?*of=memory", told)
    tab = opened(page, server, "memory")
    chosen(tab, "straggler_cpu")
    tab.locator("canvas.memory-canvas").focus()
    readout = tab.locator("figcaption [role=status]")
    expect(readout).to_have_text(re.compile(r"3\.00\sGB allocated, 4\.00\sGB reserved at its peak"))
    page.keyboard.press("ArrowRight")
    expect(readout).to_have_text(re.compile(r"2\.00\sGB allocated, 4\.00\sGB reserved at 20\.0\sms"))
    page.screenshot(path=SCREENSHOTS / "memory.png")
    tab.get_by_role("link", name="Communication").click()
    tab.locator("canvas.scatter").focus()
    page.keyboard.press("ArrowRight")
    readout = tab.locator(".readout")
    expect(readout).to_have_text(
        re.compile(r"all_reduce in group 0, 4\sranks on 2\snodes, step 2: 5\.8\sMB in 3\.2\sms, .+")
    )
    longest = readout.text_content()
    page.keyboard.press("ArrowRight")
    expect(readout).not_to_have_text(longest or "")


def test_a_tensorboard_that_is_silent_is_told(page: Page, server: str) -> None:
    silent = True

    def answer(route: Route) -> None:
        route.fulfill(body="no JSON") if silent else route.continue_()

    page.route(re.compile(r"/ddp_doctor/runs(\?.*)?$"), answer)
    tab = opened(page, server)
    expect(tab.locator("main h1")).to_have_text("The runs could not be listed.")
    silent = False
    expect(tab.locator(".verdict h1")).to_be_visible()


def test_the_tabs_are_moved_along_by_keyboard(page: Page, server: str) -> None:
    tab = opened(page, server)
    chosen(tab, "straggler_cpu")
    tab.locator(".tabs [aria-current]").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(tab.locator(".tabs [aria-current]")).to_have_text("Budget")
    expect(tab.locator(".tabs [aria-current]")).to_be_focused()
    expect(tab.locator(".bars")).to_be_visible()
    page.keyboard.press("4")
    expect(tab.locator(".tabs [aria-current]")).to_have_text("Steps")
    page.keyboard.press("?")
    expect(tab.get_by_role("dialog")).to_contain_text("move over the ranks and steps")
    page.keyboard.press("Escape")
    expect(tab.get_by_role("dialog")).to_have_count(0)


def test_a_prediction_that_fails_says_so(page: Page, server: str) -> None:
    page.route("**/ddp_doctor/whatif?*", lambda route: route.fulfill(json={"nothing": "like it"}))
    tab = opened(page, server, "findings")
    chosen(tab, "straggler_cpu")
    expect(tab.locator(".prospect")).to_contain_text("No prediction")


def test_a_link_opens_the_same_finding(page: Page, server: str) -> None:
    tab = opened(page, server, "findings")
    chosen(tab, "straggler_cpu")
    tab.locator("details.finding > summary").first.click()
    expect(tab.locator(".opened")).to_be_visible()
    page.wait_for_function("location.hash.includes('p.ddp_doctor.finding=straggler')")
    address = page.url
    page.goto("about:blank")
    page.goto(address)
    expect(tab.locator("details.finding[open] .title")).to_contain_text("Rank 1")
    expect(tab.locator(".facts b")).to_have_text("straggler_cpu")


def test_a_finding_leads_to_its_evidence_in_the_timeline(page: Page, server: str) -> None:
    tab = opened(page, server, "findings")
    chosen(tab, "straggler_cpu")
    tab.locator("details.finding > summary").first.click()
    row = tab.locator(".evidence tbody tr").nth(1)
    rank, step = (row.locator("th, td").nth(i).text_content() for i in (0, 1))
    diagnosis = get(f"{server}/data/plugin/ddp_doctor/run?run=straggler_cpu")["diagnosis"]
    start, end = map(int, diagnosis["findings"][0]["evidence"][1]["window"]["seen"])

    def asked(request: Request) -> bool:
        window = [int(found) for found in re.findall(r"(?:start|end)=(\d+)", request.url)]
        # The evidence with some room, and as much again at each side.
        return "/slice?" in request.url and window[0] < start < end < window[1] < end + 2 * (end - start)

    with page.expect_request(asked):
        row.get_by_role("link", name=f"Timeline of {rank}, {step}").click()
    expect(tab.locator(".tabs [aria-current]")).to_have_text("Timeline")
    chosen_spot = tab.get_by_label("Evidence").locator("option:checked")
    expect(chosen_spot).to_have_text(f"straggler: {rank}, {step}")
    with page.expect_request(asked):
        page.reload()
    expect(chosen_spot).to_have_text(f"straggler: {rank}, {step}")
    page.go_back()
    expect(tab.locator("details.finding[open] .title")).to_contain_text("Rank 1")


def poison(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        # The kind of a line of the account chooses how it is shown, that of a collective is shown.
        kept = {"kind": value["kind"]} if "total_ns" in value and "kind" in value else {}
        return {name: poison(item, name) for name, item in value.items()} | kept
    if isinstance(value, list):
        return [poison(item, key) for item in value]
    # What is shown, rather than shown itself, and whole ns, which are text for their length.
    choosing = key in ("state", "severity", "level", "status", "owners", "role", "fate")
    choosing |= key.endswith("_ns") or key in ("start", "end", "seen")
    return HOSTILE + value if isinstance(value, str) and not choosing else value


def against(page: Page, base: str, before: str, after: str, dark: bool = False) -> FrameLocator:
    """The view that compares two runs, opened by its address."""
    place = f"&p.ddp_doctor.run={after}&p.ddp_doctor.before={before}"
    page.goto(f"{base}/?darkMode={'true' if dark else 'false'}#ddp_doctor&p.ddp_doctor.view=compare{place}")
    return page.frame_locator("iframe").first


def test_two_runs_are_compared_by_keyboard(page: Page, server: str) -> None:
    tab = opened(page, server, "compare")
    chosen(tab, "four_workers")
    expect(tab.get_by_role("heading", name="Compare four_workers with which run?")).to_be_visible()
    tab.get_by_role("button", name="zero_workers").last.focus()
    page.keyboard.press("Enter")
    told = tab.locator(".told")
    expect(told).to_contain_text("four_workers takes 51.0 ms a step, zero_workers 168.0 ms: 70 % less")
    expect(tab.get_by_label("Before")).to_be_focused()
    expect(tab.locator(".explanation")).to_contain_text("Copies no longer block the CPU")
    expect(tab.locator(".fates li").first).to_contain_text("Fixed")
    loading = tab.locator(".pair").filter(has_text="input")
    expect(loading.locator("b")).to_have_text("\N{MINUS SIGN}101.33")
    page.reload()
    expect(told).to_contain_text("70 % less")
    page.keyboard.press("Tab")
    tab.get_by_label("Before").select_option("healthy")
    expect(told).to_contain_text("No significant difference")
    expect(tab.locator(".fates")).to_have_count(0)
    tab.get_by_role("link", name="Swap").focus()
    page.keyboard.press("Enter")
    expect(tab.locator(".facts b")).to_have_text("healthy")
    expect(tab.get_by_label("Before")).to_have_value("four_workers")
    page.go_back()
    expect(tab.get_by_label("Before")).to_have_value("healthy")


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
            for part in ("html", "main"):
                over = tab.locator(part).evaluate("element => element.scrollWidth - element.clientWidth")
                assert over == 0, f"{part} is {over} px too wide at {width} px"
            page.screenshot(path=SCREENSHOTS / f"{after}_compare_{before}_{theme}_{width}.png")
        for summary in tab.locator("details:not([open]) > summary").all()[::-1]:
            summary.click()
        assert violations_of_axe(page) == []


@pytest.mark.parametrize("width", [1000, 1141, 1240, 1341, 1400])
def test_the_views_tabs_take_one_line(page: Page, server: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    tab = opened(page, server)
    expect(tab.locator(".tabs a").last).to_be_visible()
    tops = tab.locator(".tabs a").evaluate_all("tabs => tabs.map((tab) => tab.getBoundingClientRect().top)")
    assert len(set(tops)) == 1


def test_a_single_run_says_how_to_get_another(page: Page, tmp_path: Path) -> None:
    shutil.copytree(DEMO_LOGS / "healthy", tmp_path / "logs" / "healthy")
    with tensorboard(tmp_path, f"--logdir={tmp_path / 'logs'}", page=page) as base:
        analysed(base)
        tab = opened(page, base, "compare")
        expect(tab.get_by_role("heading", name="No other run to compare with")).to_be_visible()
        expect(tab.locator(".view.compare")).to_contain_text("ddp-doctor compare BEFORE AFTER")
        expect(tab.locator(".view.compare select")).to_have_count(0)


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
    tab.get_by_label("Before").select_option("zero_workers")
    expect(tab.locator(".told")).to_contain_text("four_workers takes 51.0 ms a step")


def test_names_from_a_trace_stay_text_in_a_comparison(page: Page, server: str) -> None:
    page.route("**/ddp_doctor/compare?*", lambda route: route.fulfill(json=poison(route.fetch().json())))
    tab = against(page, server, "zero_workers", "four_workers")
    expect(tab.locator(".told")).to_contain_text(HOSTILE)
    for summary in tab.locator("details:not([open]) > summary").all()[::-1]:
        summary.click()
    expect(tab.locator("details .grid tbody th").last).to_contain_text(HOSTILE)
    assert tab.locator("img").count() == 0
    assert page.evaluate("window.hacked") is None


def test_the_reload_button_shows_what_has_come(page: Page, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    shutil.copytree(DEMO_LOGS / "healthy", logs / "first")
    with tensorboard(tmp_path, f"--logdir={logs}", page=page) as base:
        analysed(base)
        tab = opened(page, base)
        expect(button(tab, "first")).to_be_visible()
        # The first list is then on the page, and the next one half a minute away.
        page.wait_for_timeout(2_000)
        shutil.copytree(DEMO_LOGS / "straggler_cpu", logs / "second")
        page.locator("button.reload-button").click(timeout=15_000)
        expect(button(tab, "second")).to_contain_text("rank", timeout=15_000)


def test_text_from_a_trace_stays_text(page: Page, server: str) -> None:
    """Every string that the server sends is made hostile: none becomes an element."""

    def answer(route: Route) -> None:
        route.fulfill(json=poison(route.fetch().json()))

    def predict(route: Route) -> None:
        route.fulfill(json={"fixed": [HOSTILE], "step_ms": 100.0, "without_ms": 50.0, "range_ms": [50.0, 50.0]})

    page.route("**/ddp_doctor/run?*", answer)

    def explain(route: Route) -> None:
        route.fulfill(json={"summary": HOSTILE, "sections": {HOSTILE: HOSTILE}})

    def further(route: Route) -> None:
        """The page asks for what it was told of, the run with the hostile name."""
        route.fulfill(json=poison(route.fetch(url=route.request.url.replace(quote(HOSTILE, safe=""), "")).json()))

    page.route("**/ddp_doctor/whatif?*", predict)
    page.route("**/ddp_doctor/rule?*", explain)
    page.route("**/ddp_doctor/detail?*", further)
    page.route("**/ddp_doctor/slice?*", further)
    page.route("**/ddp_doctor/lanes?*", further)
    for view in VIEWS:
        tab = opened(page, server, view)
        button(tab, "straggler_cpu").click()
        expect(tab.locator(".run[aria-current]")).to_contain_text("straggler_cpu")
        expect(tab.locator("h1")).to_contain_text(HOSTILE)
        for _ in range(20):  # an opened part may hold others
            if not (closed := tab.locator("details:not([open]) > summary")).count():
                break
            closed.first.click()
        if view == "findings":
            expect(tab.locator(".evidence td").last).to_contain_text(HOSTILE)
        assert tab.locator("img").count() == 0
        assert page.evaluate("window.hacked") is None


def test_the_timeline_is_driven_by_keys(page: Page, server: str) -> None:
    tab = opened(page, server, "timeline")
    chosen(tab, "straggler_cpu")
    readout = tab.locator(".readout")
    expect(readout).to_contain_text("W S zoom")
    canvas = tab.locator("canvas.timeline-canvas")
    canvas.focus()
    page.keyboard.press("ArrowRight")
    # The straggler is on top.
    expect(readout).to_have_text(re.compile(r"rank 1, .+: .+, [\d.]+\s[mµ]?s from \u2212?[\d.]+\s[mµ]?s"))

    def span() -> float:
        address = page.evaluate("location.hash")
        first, last = (float(re.findall(rf"ddp_doctor\.{edge}=(-?\d+)", address)[0]) for edge in ("from", "to"))
        return last - first

    for _ in range(3):  # out of the window, whose events are then asked for: where one is stays known
        page.keyboard.press("ArrowDown")
    with page.expect_response("**/ddp_doctor/slice?*"):
        for _ in range(60):
            page.keyboard.press("ArrowRight")
        page.keyboard.press("s")
        page.keyboard.press("s")
        page.keyboard.press("s")
    page.wait_for_timeout(300)
    before = readout.text_content()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowRight")
    expect(readout).to_have_text(before or "")
    page.keyboard.press("f")
    page.wait_for_url(re.compile("ddp_doctor.from="))
    whole = span()
    page.keyboard.press("w")
    page.keyboard.press("w")
    wait_for(lambda: span() < whole * 0.6, f"less than {whole} us")
    page.keyboard.press("m")
    expect(readout).to_contain_text("Set another one")
    page.keyboard.press("d")
    page.keyboard.press("/")
    expect(tab.get_by_label("Search")).to_be_focused()
    page.keyboard.type("allreduce")
    expect(readout).to_contain_text("events found")
    page.keyboard.press("Enter")
    expect(readout).to_have_text(re.compile(r"1 of \d+: rank \d, .+allreduce", re.IGNORECASE))
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(tab.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(tab.get_by_role("dialog")).to_be_hidden()
    box = canvas.bounding_box()
    assert box
    page.keyboard.down("Shift")
    page.mouse.move(box["x"] + 300, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 500, box["y"] + 60)
    page.mouse.up()
    page.keyboard.up("Shift")
    expect(readout).to_have_text(re.compile(r"[\d.]+\s[mµ]?s measured"))
    expect(tab.locator(".range h3")).to_have_text(re.compile(r"Selected range, [\d.]+\s[mµ]?s"))
    expect(tab.locator(".range .rank")).to_have_text(["rank 1", "rank 3", "median of 2"])
    expect(tab.get_by_role("region", name="Kernels in the selected range").locator("tbody tr").first).to_be_visible()
    tab.get_by_text("longest events of this window").click()
    expect(tab.locator(".numbers tbody tr").first).to_contain_text("rank")
    page.screenshot(path=SCREENSHOTS / "timeline_keys.png")


def test_the_timeline_opens_ranks_reaches_gaps_and_says_what_an_event_is(page: Page, server: str) -> None:
    tab = opened(page, server, "timeline")
    chosen(tab, "straggler_cpu")
    canvas, dock = tab.locator("canvas.timeline-canvas"), tab.locator(".dock")
    readout = tab.locator(".readout")
    expect(readout).to_contain_text("W S zoom")
    # The straggler is opened beside a typical rank.
    ranks = tab.get_by_label("Ranks", exact=True)
    expect(ranks).to_have_value("1, 3")
    canvas.focus()
    page.keyboard.press("n")
    expect(dock.locator("h3")).to_contain_text("GPU idle, CPU outside any op")
    expect(dock.locator(".duration")).to_have_text(re.compile(r"1[34]\d\.\d\sms"))
    expect(dock).to_contain_text("last op before; first op after")
    page.keyboard.press("n")
    expect(dock.locator("h3")).to_contain_text("GPU idle")
    page.keyboard.press("p")
    expect(dock.locator(".duration")).to_have_text(re.compile(r"1[34]\d\.\d\sms"))
    # What is written on the boxes is found, from hit to hit, and stays found with other ranks.
    tab.get_by_label("Search").fill("all_reduce")
    tab.get_by_role("button", name="Next hit").click()
    hits = tab.locator(".hits")
    expect(hits).to_have_text(re.compile(r"1 of \d+\shits"))
    expect(dock.locator("h3")).to_have_text("all_reduce")
    expect(dock).to_contain_text("busbw")
    expect(dock.locator(".calls code").last).to_contain_text("LaunchKernel")
    tab.get_by_role("button", name="Next hit").click()
    expect(hits).to_have_text(re.compile(r"\d+ of \d+\shits"))
    # A folded rank opens where it is clicked, and a node's ranks by its name.
    box = canvas.bounding_box()
    assert box
    canvas.click(position={"x": 20, "y": box["height"] - 10})
    expect(ranks).to_have_value("1, 3, 2")
    expect(tab.get_by_label("Search")).to_have_value("all_reduce")
    expect(hits).to_have_text(re.compile(r"(\d+ of )?\d+\shits"))
    ranks.fill("node0")
    ranks.press("Enter")
    expect(ranks).to_have_value("0, 1")
    page.wait_for_url(re.compile(r"ddp_doctor\.ranks=0%2C1"))
    # What is under the pointer stands beside it.
    canvas.hover(position={"x": box["width"] * 0.6, "y": 40 + 8})
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 66)
    expect(tab.locator(".timeline-tip")).to_contain_text(re.compile(r"rank \d"))
    # Zooming out stops at the record.
    canvas.focus()
    for _ in range(40):
        page.keyboard.press("s")
    views = get(f"{server}/data/plugin/ddp_doctor/run?run=straggler_cpu")["views"]
    first, last = views["record_ms"]
    room = 0.02 * (last - first)
    page.wait_for_url(re.compile(rf"ddp_doctor\.from={round((first - room) * 1000)}&"))


def test_what_is_clicked_opens_in_the_timeline(page: Page, server: str) -> None:
    tab = opened(page, server, "steps")
    chosen(tab, "straggler_cpu")
    here, dock = tab.locator(".tabs [aria-current]"), tab.locator(".dock")
    ranks, chips = tab.get_by_label("Ranks", exact=True), tab.locator(".chip")
    # A cell of Steps: its step and rank, both selected.
    tab.get_by_role("link", name="rank 2, step 3").click()
    expect(here).to_have_text("Timeline")
    expect(ranks).to_have_value(re.compile("^2"))
    expect(chips).to_have_text(["rank 2", "step 3"])
    for chip in ("step 3", "rank 2"):
        chips.filter(has_text=chip).click()
    # A segment of a bar: the longest such stretch of that rank.
    tab.get_by_role("link", name="Budget", exact=True).click()
    tab.get_by_role("img", name=re.compile("rank 1 on .+: CPU outside any op")).click()
    expect(dock.locator("h3")).to_have_text("GPU idle, CPU outside any op")
    expect(dock.locator(".duration")).to_have_text(re.compile(r"1[34]\d\.\d\sms"))
    expect(chips).to_have_text(["rank 1", "CPU outside any op"])
    # A kernel: its instances, its op and the call that launched it.
    tab.get_by_role("link", name="Operators", exact=True).click()
    kernel = tab.locator(".grid").first.locator("tbody th a").nth(1)
    name = kernel.text_content() or ""
    kernel.click()
    expect(tab.locator(".hits")).to_contain_text("hit")
    assert tab.get_by_label("Search").input_value() in name or name in tab.get_by_label("Search").input_value()
    # A dot: the arrivals of its ranks.
    tab.get_by_role("link", name="Communication", exact=True).click()
    tab.locator("canvas.scatter").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(ranks).to_have_value("0\u20133")
    expect(tab.locator(".hits")).to_contain_text("hit")


def test_without_traces_the_timeline_shows_a_lane_for_each_rank(page: Page, server: str) -> None:
    def digests(route: Route) -> None:
        body = route.fetch().json()
        body["views"]["from_digests"] = True
        route.fulfill(json=body)

    page.route("**/ddp_doctor/run?run=straggler_cpu", digests)
    tab = opened(page, server, "timeline")
    chosen(tab, "straggler_cpu")
    expect(tab.locator(".timeline .note").first).to_contain_text("Only digests are here")
    tab.locator("canvas.timeline-canvas").focus()
    page.keyboard.press("ArrowDown")
    expect(tab.locator(".readout")).to_contain_text("step by owner")
    expect(tab.get_by_label("Ranks", exact=True)).to_have_count(0)


def test_another_run_leaves_no_listener_behind(page: Page, server: str) -> None:
    """The timeline listens to the whole page, as the tabs do: not for longer than its run shows."""
    page.add_init_script("""
        window.listening = [];
        const {addEventListener, removeEventListener} = Document.prototype;
        Document.prototype.addEventListener = function (type, heard, ...rest) {
          if (type === "keydown") listening.push(heard);
          addEventListener.call(this, type, heard, ...rest);
        };
        Document.prototype.removeEventListener = function (type, heard, ...rest) {
          if (listening.includes(heard)) listening.splice(listening.indexOf(heard), 1);
          removeEventListener.call(this, type, heard, ...rest);
        };
    """)
    tab = opened(page, server, "timeline")
    for run in ("straggler_cpu", "zero_workers", "healthy"):
        chosen(tab, run)
        expect(tab.locator(".readout")).to_contain_text("W S zoom")
        assert tab.locator("body").evaluate("() => listening.length") == 2


def test_a_run_that_fails_late_hides_no_other(page: Page, server: str) -> None:
    held: list[Route] = []

    def blocked_by(route: Route) -> None:
        held.append(route)

    page.route("**/ddp_doctor/run?run=healthy", blocked_by)
    tab = opened(page, server)
    chosen(tab, "straggler_cpu")
    with page.expect_request("**/ddp_doctor/run?run=healthy"):
        button(tab, "healthy").click()
    chosen(tab, "zero_workers")
    held[0].fulfill(body="no JSON")
    page.wait_for_timeout(300)
    expect(tab.locator(".facts b")).to_have_text("zero_workers")


def test_a_link_opens_the_same_window(page: Page, server: str) -> None:
    place = {"run": "straggler_cpu", "view": "timeline", "from": 1000, "to": 9000, "ranks": "1-2"}
    with page.expect_request("**/ddp_doctor/slice?*") as asked:
        page.goto(f"{server}/#ddp_doctor" + "".join(f"&p.ddp_doctor.{key}={value}" for key, value in place.items()))
    assert "ranks=1,2&" in asked.value.url
    start, end = (int(re.findall(rf"{edge}=(\d+)", asked.value.url)[0]) for edge in ("start", "end"))
    assert end - start == 16_000_000  # as much again at each side


def test_names_from_a_trace_stay_text_in_tables_and_timeline(page: Page, server: str) -> None:
    def names(route: Route) -> None:
        body = route.fetch().json()
        body["names"] = [HOSTILE for _ in body["names"]]
        route.fulfill(json=body)

    def events(route: Route) -> None:
        body = route.fetch().json()
        for rank in body["ranks"]:
            rank["names"] = [HOSTILE for _ in rank["names"]]
            rank["node"] = HOSTILE
        route.fulfill(json=body)

    page.route("**/ddp_doctor/detail?*of=operators", names)
    page.route("**/ddp_doctor/slice?*", events)
    tab = opened(page, server, "operators")
    chosen(tab, "straggler_cpu")
    expect(tab.locator(".grid tbody th").first).to_have_text(HOSTILE)
    tab.get_by_role("link", name="Timeline").click()
    tab.locator("canvas.timeline-canvas").focus()
    page.keyboard.press("ArrowRight")
    tab.get_by_text("longest events of this window").click()
    expect(tab.locator(".numbers td").filter(has_text=HOSTILE).first).to_be_visible()
    assert tab.locator("img").count() == 0
    assert page.evaluate("window.hacked") is None


def test_a_table_sorts_filters_and_is_saved(page: Page, server: str) -> None:
    tab = opened(page, server, "operators")
    chosen(tab, "straggler_cpu")
    kernels = tab.locator(".grid").first
    first = kernels.locator("tbody th").first
    expect(first).to_contain_text("ncclDevKernel_AllReduce")
    kernels.get_by_role("button", name="calls").click()
    expect(kernels.locator("th[aria-sort]")).to_have_text("calls")
    expect(first).not_to_contain_text("nccl")
    kernels.get_by_label("Filter").fill("NCCL")
    expect(kernels.locator("tbody tr")).to_have_count(1)
    with page.expect_download() as saved:
        kernels.get_by_role("button", name="Download as CSV").click()
    head, row, *rest = Path(saved.value.path()).read_text().splitlines()
    assert head.startswith("kernel,") and row.startswith("ncclDevKernel") and not rest


def test_a_link_opens_the_same_table(page: Page, server: str) -> None:
    tab = opened(page, server, "operators")
    chosen(tab, "straggler_cpu")
    kernels, operators = tab.locator(".grid").first, tab.locator(".grid").last
    operators.get_by_role("button", name="operator", exact=True).click()
    operators.get_by_role("button", name="operator", exact=True).click()
    kernels.get_by_role("button", name="mean, µs").click()
    kernels.get_by_label("Filter").fill("gemm")
    page.wait_for_url(re.compile("kernels-filter=gemm"))
    shown = [table.locator("tbody th").all_text_contents() for table in (kernels, operators)]
    page.reload()
    expect(kernels.locator("th[aria-sort=descending]")).to_have_text("mean, µs")
    expect(kernels.get_by_label("Filter")).to_have_value("gemm")
    expect(operators.locator("th[aria-sort=descending]")).to_have_text("operator")
    assert [table.locator("tbody th").all_text_contents() for table in (kernels, operators)] == shown
    # What is typed last belongs to the view that it was typed in.
    kernels.get_by_label("Filter").fill("elementwise")
    tab.get_by_role("link", name="Ranks", exact=True).click()
    tab.get_by_role("button", name="compute", exact=True).click()
    page.wait_for_url(re.compile("ranks-sort=-compute"))
    page.wait_for_timeout(500)
    assert "kernels" not in page.url


def test_a_cell_of_a_finding_selects_its_rank_and_step_in_all_views(page: Page, server: str) -> None:
    tab = opened(page, server, "findings")
    chosen(tab, "straggler_cpu")
    finding = tab.locator("details.finding").first
    finding.locator("summary").first.click()
    budget = get(f"{server}/data/plugin/ddp_doctor/run?run=straggler_cpu")["views"]["budget_ms"]["host"]
    mean = sum(budget[1]) / len(budget[1])
    expect(finding.locator(".occurs .amount")).to_have_text(
        re.compile(rf"^{mean:.1f}\sms a step of CPU outside any op on rank 1; at most 0\.\d+\sms on any other rank\.$")
    )
    cell = finding.get_by_role("button", name=re.compile(r"^Rank 1, step 4: "))
    expect(cell).to_have_text(f"{budget[1][2]:.1f}")
    cell.focus()
    page.keyboard.press("Enter")
    expect(cell).to_be_focused()
    expect(cell).to_have_attribute("aria-pressed", "true")
    expect(finding.locator(".evidence tbody tr")).to_have_count(1)
    expect(finding.locator(".evidence")).to_contain_text("1 of 2 windows: those of the selected rank and step.")
    expect(tab.locator(".chip")).to_have_text(["finding 1", "rank 1", "step 4"])
    tab.get_by_role("link", name="Verdict", exact=True).click()
    expect(tab.locator(".chip")).to_have_text(["finding 1", "rank 1", "step 4"])
    expect(tab.get_by_label("Step of the critical path")).to_have_value("4")
    page.reload()
    expect(tab.locator(".chip")).to_have_text(["finding 1", "rank 1", "step 4"])
    tab.get_by_role("button", name="step 4: remove from the selection").click()
    expect(tab.locator(".chip")).to_have_text(["finding 1", "rank 1"])
    tab.get_by_role("button", name="Clear").click()
    expect(tab.locator(".chip")).to_have_count(0)
    page.wait_for_url(lambda address: "finding=" not in address and "rank=" not in address)


def test_the_selected_rank_and_step_open_in_the_timeline(page: Page, server: str) -> None:
    place = {"run": "straggler_cpu", "view": "budget", "rank": "1", "step": "4"}
    page.goto(f"{server}/#ddp_doctor" + "".join(f"&p.ddp_doctor.{key}={value}" for key, value in place.items()))
    tab = page.frame_locator("iframe").first
    with page.expect_request("**/ddp_doctor/slice?*") as asked:
        tab.locator(".chips").get_by_role("link", name="Open in timeline").click()
    # And beside it, a typical one.
    assert re.search("[?&]ranks=1,", asked.value.url)


def test_a_finding_that_is_closed_leaves_the_address(page: Page, server: str) -> None:
    tab = opened(page, server, "findings")
    chosen(tab, "straggler_cpu")
    for _ in range(2):
        tab.locator("details.finding > summary").first.click()
        page.wait_for_url(re.compile("ddp_doctor.finding="))
        tab.locator("details.finding > summary").first.click()
        page.wait_for_url(lambda address: "ddp_doctor.finding=" not in address)


def test_nodes_and_groups_are_compared(page: Page, server: str) -> None:
    def answer(route: Route) -> None:
        body = route.fetch().json()
        (family,) = body["families"]
        slow = {**family, "group": "7", "peers": 1, "slowdown": 2.5, "is_slow": True}
        body["families"] = [{**family, "peers": 1, "slowdown": 1.0}, slow]
        route.fulfill(json=body)

    tab = opened(page, server, "communication")
    chosen(tab, "straggler_cpu")
    nodes = tab.get_by_role("region", name="nodes")
    expect(nodes.locator("tr.affected th")).to_have_text("node0")
    expect(nodes.locator("tbody tr")).to_have_count(2)
    expect(tab.get_by_text("node0 stands out")).to_be_visible()
    chosen(tab, "healthy")
    expect(tab.get_by_text("No node stands out")).to_be_visible()
    page.route("**/ddp_doctor/detail?*of=communication", answer)
    chosen(tab, "straggler_cpu")
    expect(tab.locator(".legend")).to_contain_text("all_reduce in 2 groups of 4\u00a0ranks, 1 of them slow")
    expect(tab.get_by_role("region", name="communication").locator("tr.affected th")).to_have_text(
        "all_reduce in group 7"
    )


def test_the_affected_is_marked_among_the_ranks(page: Page, server: str) -> None:
    tab = opened(page, server, "ranks")
    chosen(tab, "straggler_cpu")
    expect(tab.locator("tr.affected")).to_have_count(1)
    expect(tab.locator("tr.affected th")).to_have_text("rank 1 ◀")
    chosen(tab, "healthy")
    expect(tab.locator("tbody tr")).to_have_count(4)
    expect(tab.locator("tr.affected")).to_have_count(0)


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
        tab.get_by_role("link", name="Data quality").click()
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
    page.get_by_role("link", name="Compare").click()
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
    page.get_by_role("link", name="Findings", exact=True).click()
    first = page.locator("details.finding").first
    first.locator("summary").first.click()
    expect(first.locator("canvas.large-lanes")).to_be_visible()
    said = page.locator(".prospect")
    expect(said).to_contain_text(re.compile(r"64\.\d\sms a step instead of 168\.\d\sms"))
    for box in page.locator(".fix input").all():
        box.set_checked(box.get_attribute("value") == "profiler-overhead")
    expect(said).to_contain_text(re.compile(r"157\.\d\sms a step"))
    page.screenshot(path=SCREENSHOTS / f"report-{scheme}.png")
    for view in page.locator(".tabs a").all():
        view.click()
        expect(page.locator(".tabs [aria-current]")).to_have_text(view.inner_text())
        expect(page.locator("main")).not_to_contain_text("This is not in the report")
        expect(page.locator("main [role=status]", has_text="Loading")).to_have_count(0)


def test_a_report_of_one_run_promises_no_other(page: Page, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    assert cli.main(["diagnose", str(DEMO_LOGS / "healthy"), "--html", str(report)]) == 0
    page.goto(report.as_uri())
    page.get_by_role("link", name="Compare", exact=True).click()
    expect(page.locator("main")).to_contain_text("makes a report that compares them")
    expect(page.locator("main")).not_to_contain_text("appears in the list")


def test_an_empty_directory_says_how_to_record_traces(page: Page, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    with tensorboard(tmp_path, f"--logdir={logs}", page=page) as base:
        tab = opened(page, base)
        expect(tab.locator("h1")).to_contain_text("No profiler traces")
        expect(tab.locator("pre")).to_contain_text(f'tensorboard_trace_handler("{logs}/my_run"')


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
