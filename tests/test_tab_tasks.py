"""What people come to the tab for: how many clicks it takes, by keyboard alone, and on paper."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import BrowserContext, FrameLocator, Locator, Page, expect
from tab import DEMO_LOGS, SCREENSHOTS, copies, emptied, go, opened

from tb_ddp_doctor import cli

#: From the opened tab to what somebody came for.
MOST_CLICKS = 2
#: Presses of the Tab key from one thing to the next that is meant.
MOST_TABS = 120


class Task:
    """One task in the tab that opens on the worst run."""

    def __init__(self, page: Page, server: str) -> None:
        self.clicks = 0
        self.tab: FrameLocator = opened(page, server)
        expect(self.tab.locator(".facts b")).to_have_text("straggler_cpu")

    def click(self, target: Locator) -> None:
        self.clicks += 1
        assert self.clicks <= MOST_CLICKS
        target.click()

    def raise_by_one(self, slider: Locator) -> None:
        self.clicks += 1
        assert self.clicks <= MOST_CLICKS
        slider.press("ArrowRight")


def test_nine_tasks_take_two_clicks_at_most(context: BrowserContext, new_page: Page, server: str) -> None:
    """A Playwright trace of them is left beside the screenshots. Memory's peak is one click away (test_memory_tab)."""
    page = new_page
    page.add_init_script("if (navigator.clipboard) navigator.clipboard.writeText = async (text) => (top.copied = text)")
    context.tracing.start(snapshots=True)

    @contextmanager
    def task(name: str) -> Iterator[Task]:
        emptied(page)
        with context.tracing.group(name):
            yield Task(page, server)

    with task("find the slow rank") as one:
        expect(one.tab.locator("h1")).to_contain_text("Rank 1 (node0) costs 125")
    with task("see why") as one:
        one.click(one.tab.locator(".costliest .title a").first)
        expect(one.tab.locator(".opened").first).to_contain_text("while its CPU is outside any op")
        expect(one.tab.locator(".cells th.affected")).to_have_text("rank 1")
    with task("see where in the code") as one:
        one.click(one.tab.locator(".costliest .title a").first)
        expect(one.tab.locator(".evidence .source")).to_have_text(
            "last op before: aten::cross_entropy_loss; first op after: aten::ones_like"
        )
        one.click(one.tab.get_by_role("link", name="Timeline of rank 1, step 4"))
        expect(one.tab.locator("canvas.timeline-canvas")).to_be_visible()
    with task("see which layer") as one:
        one.click(one.tab.get_by_role("link", name="Compute", exact=True))
        one.click(one.tab.locator(".parts").get_by_role("link", name="Layers"))
        expect(one.tab.locator(".layers")).to_contain_text("layer 7 119.5 ms")
    with task("see what bandwidth is reached, and how to know what is possible") as one:
        one.click(one.tab.get_by_role("link", name="Communication", exact=True))
        expect(one.tab.locator(".view")).to_contain_text("busbw, GB/s")
        expect(one.tab.locator(".view")).to_contain_text("torchrun … -m tb_ddp_doctor.check")
    with task("predict twice the ranks") as one:
        one.click(one.tab.get_by_role("link", name="Plan", exact=True))
        ranks = one.tab.get_by_role("slider", name="Ranks", exact=True)
        expect(ranks).to_have_attribute("aria-valuetext", "now 4")
        one.raise_by_one(ranks)
        expect(ranks).to_have_attribute("aria-valuetext", "8")
        expect(one.tab.locator(".prospect")).to_have_text(re.compile("ms a step instead of 182.9"))
    with task("open the evidence in Perfetto, and come back") as one:
        one.click(one.tab.locator(".costliest .title a").first)
        one.click(one.tab.get_by_role("button", name=re.compile("^Open rank 1, step")).first)
        expect(one.tab.locator("dialog.trace").locator("iframe, [role=status]").first).to_be_visible()
        page.keyboard.press("Escape")
        expect(one.tab.locator("dialog.trace")).to_have_count(0)
    with task("compare with another run") as one:
        one.click(one.tab.get_by_role("link", name="History", exact=True))
        one.click(one.tab.get_by_role("main").get_by_role("button", name="healthy"))
        expect(one.tab.locator(".told")).to_contain_text("straggler_cpu takes 182.9 ms a step, healthy")
    with task("send it to a colleague") as one:
        one.click(one.tab.locator(".costliest .title a").first)
        with copies(one.tab.get_by_role("button", name="Copy link", exact=True)) as button:
            one.click(button)
        link = page.evaluate("copied")
        page.goto("about:blank")
        page.goto(link)
        expect(one.tab.locator("details.finding[open] .title")).to_contain_text("Rank 1")
    context.tracing.stop(path=SCREENSHOTS / "tasks.zip")


def test_by_keyboard_from_the_verdict_to_perfetto_and_back(page: Page, server: str) -> None:
    tab = Task(page, server).tab

    def reach(target: Locator) -> None:
        for _ in range(MOST_TABS):
            page.keyboard.press("Tab")
            if target.evaluate("element => element === document.activeElement"):
                return
        raise AssertionError(f"the Tab key does not lead to {target}")

    tab.locator(".tabs [aria-current]").focus()
    reach(tab.locator(".costliest .title a").first)
    page.keyboard.press("Enter")
    finding = tab.locator("details.finding[open]")
    expect(finding).to_be_visible()
    tab.locator(".tabs [aria-current]").focus()
    trace = finding.locator(".open-trace").first
    reach(trace)
    page.keyboard.press("Enter")
    dialog = tab.locator("dialog.trace")
    expect(dialog.locator("iframe, [role=status]").first).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(trace).to_be_focused()
    page.keyboard.press("1")
    expect(tab.locator(".tabs [aria-current]")).to_have_text("Verdict")


def test_a_report_prints_as_a_document_whatever_view_is_open(page: Page, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    assert cli.main(["diagnose", str(DEMO_LOGS / "straggler_cpu"), "--html", str(report)]) == 0
    page.emulate_media(color_scheme="dark")
    page.goto(report.as_uri())
    go(page, "Compute")
    page.set_viewport_size({"width": 720, "height": 1000})
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    paper = page.locator(".printed")
    for part in (
        "Account of the step",
        "Costliest findings",
        "What was seen",
        "Where each rank's step goes",
        "Time by size",
    ):
        expect(paper.get_by_text(part, exact=True).first).to_be_visible()
    expect(paper.locator(".finding-row:not(.opportunity) details.finding[open]")).to_have_count(3)
    expect(paper.locator(".finding-row.opportunity details.finding[open]").first).to_be_visible()
    expect(
        paper.locator("th").filter(has_text="straggler wait").first
    ).to_be_visible()  # heads are buttons on the screen
    drawn = paper.locator("canvas.large-lanes").first.evaluate("canvas => canvas.width > 300 && canvas.height > 50")
    assert drawn and page.locator("html.dark").count() == 0
    expect(page.locator("main")).to_be_hidden()
    assert paper.evaluate("element => element.scrollWidth <= element.clientWidth")
    page.screenshot(path=SCREENSHOTS / "print.png", full_page=True)
    page.emulate_media(media="screen")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    expect(paper).to_have_count(0)
    expect(page.locator(".tabs [aria-current]")).to_have_text(re.compile("Compute"))
    assert page.locator("html.dark").count() == 1


def test_within_tensorboard_a_print_has_the_communication_too(page: Page, server: str) -> None:
    tab = opened(page, server, "operators")
    expect(tab.locator(".facts b")).to_have_text("straggler_cpu")
    tab.locator("html").evaluate("() => { window.print = () => dispatchEvent(new Event('beforeprint')); }")
    tab.get_by_role("button", name="Print").click()
    paper = tab.locator(".printed")
    for part in ("Time by size", "Files and clocks"):
        expect(paper.get_by_text(part, exact=True)).to_have_count(1)
    tab.locator("html").evaluate("() => dispatchEvent(new Event('afterprint'))")
    expect(paper).to_have_count(0)
