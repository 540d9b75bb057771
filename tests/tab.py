"""A real TensorBoard in headless Chromium, as all tests of the tab have it.

Whatever a test does, it fails on a console error, on an exception in the page, and on any request that leaves
127.0.0.1. Screenshots in both themes go to `screenshots/`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

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
    ViewportSize,
    expect,
    sync_playwright,
)

REPOSITORY = Path(__file__).parent.parent
DEMO_LOGS = REPOSITORY / "demo_logs"
SCREENSHOTS = REPOSITORY / "screenshots"
AXE = Path(axe_playwright_python.__file__).with_name("axe.min.js")
DISTINCT_LOOKS = Path(__file__).with_name("distinct_looks.js")
QUANTITIES = Path(__file__).with_name("tab_quantities.js")
#: The shell without windows loads a page in two thirds of the time that the whole browser takes.
SHELL = Path("/usr/bin/chromium-headless-shell")
CHROMIUM = SHELL if SHELL.exists() else Path("/usr/bin/chromium")
SIZE: ViewportSize = {"width": 1320, "height": 1000}
HOSTILE = '<img src=x onerror="top.hacked=1">'
#: TensorBoard's start and the reading of five small jobs, on a machine that is busy with other tests.
PATIENCE_S = 120
# A page is drawn later than the 5 s that Playwright waits, where other tests take the cores.
expect.set_options(timeout=30_000)


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


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a TensorBoard on `demo_logs`, once its runs are read."""
    with tensorboard(tmp_path_factory.mktemp("server"), f"--logdir={DEMO_LOGS}") as base:
        analysed(base)
        yield base


def overview() -> None:
    """A page with all screenshots, for those who look at what CI keeps."""
    pictures = sorted(path.name for path in SCREENSHOTS.glob("*.png"))
    figures = "".join(
        f'<figure><figcaption>{name}</figcaption><img src="{name}" loading="lazy"></figure>' for name in pictures
    )
    style = "figure { display: inline-block; margin: 8px } img { max-width: 640px; border: 1px solid #888 }"
    page = f"<!doctype html><title>Screenshots</title><style>{style}</style>{figures}"
    (SCREENSHOTS / "index.html").write_text(page)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if "CI" not in os.environ and not CHROMIUM.exists():
        pytest.skip(f"no Chromium at {CHROMIUM}; in CI this would fail")
    SCREENSHOTS.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        # Chromium gives less of a busy core to pages that are not in front, and several are open here.
        flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-renderer-backgrounding"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()
    overview()


#: A tab begins with nothing kept by those before it, whatever it is told to keep from then on.
FRESH = "if (self === top && !sessionStorage.begun) { localStorage.clear(); sessionStorage.begun = true; }"

#: The browser is asked to save data, so that Perfetto begins only when it is asked for: it takes seconds of both cores.
SAVES_DATA = "Object.defineProperty(navigator.connection, 'saveData', { value: true, configurable: true })"

#: If set, each answer of the plugin comes this much later, which finds the test that acts before the tab is ready:
#: `SLOW_TAB_MS=3000 python -m pytest tests/test_tab_selection.py`.
SLOW_MS = int(os.environ.get("SLOW_TAB_MS", "0"))
LATER = f"""
    const ask = fetch, late = (answer) => new Promise((done) => setTimeout(() => done(answer), {SLOW_MS}));
    window.fetch = (url, ...rest) => ask(url, ...rest).then(String(url).includes("/ddp_doctor/") ? late : undefined);
"""


@pytest.fixture(scope="session")
def context(browser: Browser) -> Iterator[BrowserContext]:
    """What the tabs share: what Chromium has cached of TensorBoard's own scripts."""
    context = browser.new_context(viewport=SIZE)
    context.add_init_script(f"try {{ {FRESH} }} catch {{}}")
    context.add_init_script(f"try {{ {SAVES_DATA} }} catch {{}}")
    if SLOW_MS:
        context.add_init_script(LATER)
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
def new_page(context: BrowserContext) -> Iterator[Page]:
    """A page that no other test has, which fails on what must not happen at the end."""
    wrong: list[str] = []
    with watched(context, wrong) as page:
        yield page
    assert wrong == []


@pytest.fixture(scope="session")
def kept_page(context: BrowserContext) -> Iterator[tuple[Page, list[str]]]:
    """A page in which TensorBoard stays open from test to test: it takes four times as long to load as its tab does."""
    wrong: list[str] = []
    with watched(context, wrong) as page:
        yield page, wrong


@pytest.fixture
def shared_page(kept_page: tuple[Page, list[str]]) -> Iterator[Page]:
    """The kept page, with the tab as the test before left it: for tests that only go from view to view."""
    page, wrong = kept_page
    wrong.clear()
    page.set_viewport_size(SIZE)
    yield page
    assert wrong == []


@pytest.fixture
def page(request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page with nothing of another test: for a test of a server the kept page, whose tab is loaded anew."""
    if "server" not in request.fixturenames:
        yield request.getfixturevalue("new_page")
        return
    page: Page = request.getfixturevalue("shared_page")
    emptied(page)
    yield page
    # What the tab still asks for is answered by the test's routes, or by nobody.
    emptied(page)
    page.unroute_all(behavior="ignoreErrors")


#: What is only navigated elsewhere goes on listening to TensorBoard's address.
TAKE_OUT = "frame => { window.takenOut = [frame.parentNode, frame]; frame.remove(); }"
PUT_BACK = "() => { if (window.takenOut) takenOut[0].append(takenOut[1]); delete window.takenOut; }"


def emptied(page: Page) -> None:
    """Leave TensorBoard without its tab, and with nothing that is kept for the next time."""
    if page.url == "about:blank":
        return
    for frame in page.locator("iframe").all():
        frame.evaluate(TAKE_OUT)
    page.evaluate("localStorage.clear(); sessionStorage.clear(); sessionStorage.begun = true;")
    page.mouse.move(0, 0)


@pytest.fixture(params=["light", "dark"])
def theme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


_VIEWS_JS = (Path(__file__).parents[1] / "frontend" / "src" / "views.js").read_text()
#: The views of each tab, as `frontend/src/views.js` lists them.
TABS = {
    title: tuple(views.split(", "))
    for title, views in re.findall(r'{ title: "([^"]+)", .*views: \[(.*)\] },', _VIEWS_JS.partition("TABS = [")[2])
}
#: All views, in the order of their tabs.
VIEWS = tuple(view for views in TABS.values() for view in views)


def opened(page: Page, base: str, view: str = "verdict", dark: bool = False, **place: str) -> FrameLocator:
    """The tab at a place, in the TensorBoard that the page shows already if it is this one."""
    address = "#ddp_doctor" + "".join(f"&p.ddp_doctor.{key}={value}" for key, value in {"view": view, **place}.items())
    if page.url.startswith(f"{base}/"):
        page.evaluate("address => { location.hash = address }", address)
        page.evaluate("dark => { document.body.classList.toggle('dark-mode', dark) }", dark)
        page.evaluate(PUT_BACK)
    else:
        page.goto(f"{base}/?darkMode={'true' if dark else 'false'}{address}")
    return page.frame_locator("iframe").first


def go(tab: FrameLocator | Page, title: str, view: str = "") -> None:
    """Click a tab, and then the button of one of its views."""
    tab.locator(".tabs").get_by_role("link", name=title, exact=True).click()
    if view:
        tab.locator(".parts").get_by_role("link", name=view, exact=True).click()


def unnamed_figures(tab: FrameLocator | Page) -> list[str]:
    """The figures of what shows that neither a quantity, a heading nor a sentence names."""
    found: list[str] = tab.locator("html").evaluate(QUANTITIES.read_text(encoding="utf-8"), "shown")
    return found


def drawn(tab: FrameLocator, view: str) -> None:
    """Wait until a view shows, with all that it asks the server for."""
    expect(tab.locator(f".view.{view}")).to_be_visible()
    expect(tab.locator(".view [role=status]", has_text="Loading")).to_have_count(0)


def timeline(tab: FrameLocator) -> Locator:
    """The timeline's picture, once its events are there, focused."""
    expect(tab.locator(".timeline .readout")).not_to_have_text("Reading the traces\N{HORIZONTAL ELLIPSIS}")
    canvas = tab.locator("canvas.timeline-canvas")
    canvas.focus()
    return canvas


def button(tab: FrameLocator, run: str) -> Locator:
    return tab.locator("button.run").and_(tab.get_by_title(run, exact=True))


def chosen(tab: FrameLocator, run: str) -> None:
    button(tab, run).click()
    expect(tab.locator(".facts b")).to_have_text(run)


#: The text that a button changes to, 30 s at most.
SAYS_NEXT = """button => { button.saysNext = new Promise((done) => {
    new MutationObserver(() => done(button.textContent)).observe(button, { childList: true });
    setTimeout(done, 30_000, "nothing else");
}); }"""


@contextmanager
def copies(button: Locator) -> Iterator[Locator]:
    """A button that is to be clicked, and then says that it has copied: for 4 s, which a busy machine may miss."""
    # By its name it is not found again, since that is what it says.
    element = button.element_handle()
    element.evaluate(SAYS_NEXT)
    yield button
    assert element.evaluate("button => button.saysNext") == "Copied"


def unfold(tab: FrameLocator) -> None:
    """Open all that can be opened, what opens within it first."""
    tab.locator("html").evaluate(
        "html => [...html.querySelectorAll('details:not([open]) > summary')].reverse().forEach(part => part.click())"
    )


def too_wide(tab: FrameLocator, *parts: str) -> list[str]:
    """Which of the elements scroll sideways, and by how much."""
    found: list[str] = tab.locator("html").evaluate(
        "(html, parts) => parts.map(part => [part, html.ownerDocument.querySelector(part)])"
        ".map(([part, {scrollWidth, clientWidth}]) => [part, scrollWidth - clientWidth])"
        ".filter(([, over]) => over).map(([part, over]) => `${part} is ${over} px too wide`)",
        parts,
    )
    return found


PHONE: ViewportSize = {"width": 390, "height": 844}


def redrawn(tab: FrameLocator) -> None:
    """Wait until pictures have their new size: they are drawn in the frame after the one that tells it."""
    tab.locator("html").evaluate(
        "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))"
    )


def pictured(page: Page, name: str) -> None:
    """A screenshot of what shows, packed as fast as the browser can: Playwright's takes twice the CPU time."""
    session = page.context.new_cdp_session(page)
    taken = session.send("Page.captureScreenshot", {"format": "png", "optimizeForSpeed": True})
    session.detach()
    (SCREENSHOTS / f"{name}.png").write_bytes(b64decode(taken["data"]))


def number(text: str) -> float:
    """What a cell shows, ms."""
    return float(re.sub(r"\s(ms|s)$", "", text.replace("\N{MINUS SIGN}", "-")))


#: What the dark theme can change of what axe sees: it sets colours only (test_tab_every_view).
COLOUR_RULES = ("color-contrast", "link-in-text-block")


def violations_of_axe(page: Page, *rules: str) -> list[str]:
    """What axe finds wrong, by these or all of its rules, once the colours of the theme are there."""
    frame = next((frame for frame in page.frames if frame.parent_frame), page.main_frame)
    if frame.parent_frame:
        is_dark = page.evaluate("document.body.classList.contains('dark-mode')")
        expect(frame.locator("html")).to_have_class("dark" if is_dark else "")
    frame.evaluate("() => Promise.allSettled(document.getAnimations().map((animation) => animation.finished))")
    if not frame.evaluate("() => 'axe' in window"):
        frame.evaluate(AXE.read_text())
    frame.evaluate(DISTINCT_LOOKS.read_text())
    # Without the elements that pass, thousands in a large table.
    options = {"iframes": False, "resultTypes": ["violations"]}
    passes, violations = frame.evaluate(
        "options => axe.run(document, options).then(({passes, violations}) => [passes.length, violations])",
        options | ({"runOnly": {"type": "rule", "values": rules}} if rules else {}),
    )
    assert passes > (0 if rules else 15)
    return [
        f"{violation['id']}: {node['html'][:200]} {node['failureSummary']}"
        for violation in violations
        for node in violation["nodes"]
    ]


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
