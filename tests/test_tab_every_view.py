"""What holds in every view of the tab: its width, its names, axe, the keyboard, and text from a trace."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from playwright.sync_api import (
    Browser,
    FrameLocator,
    Page,
    Route,
    expect,
)
from tab import (
    COLOUR_RULES,
    HOSTILE,
    PHONE,
    SCREENSHOTS,
    SIZE,
    TABS,
    VIEWS,
    chosen,
    drawn,
    opened,
    pictured,
    poison,
    redrawn,
    too_wide,
    unfold,
    violations_of_axe,
    wait_for,
)

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("view", VIEWS)
def test_on_a_phone_nothing_is_wider_than_the_page(shared_page: Page, server: str, view: str) -> None:
    shared_page.set_viewport_size(PHONE)
    tab = opened(shared_page, server, view)
    drawn(tab, view)
    unfold(tab)
    assert too_wide(tab, "html", "main", ".runs") == []
    outside = tab.locator("main").evaluate(
        "main => [...main.querySelectorAll('*')].filter(part => !part.closest('.scroll, pre, .heat-frame, .facts')"
        " && part.getBoundingClientRect().right > main.clientWidth + 1).map(part => part.outerHTML.slice(0, 120))"
    )
    assert outside == []
    assert violations_of_axe(shared_page) == []
    height = tab.locator("main").evaluate("element => element.scrollHeight + 160")
    shared_page.set_viewport_size({"width": 390, "height": min(height, 4000)})
    for theme in ("light", "dark"):  # which sets colours only
        opened(shared_page, server, view, dark=theme == "dark")
        expect(tab.locator("html")).to_have_class("dark" if theme == "dark" else "")
        redrawn(tab)
        pictured(shared_page, f"phone_{view}_{theme}")


@pytest.mark.parametrize("theme", ["light"], indirect=True)
@pytest.mark.parametrize("view", VIEWS)
def test_nothing_scrolls_sideways(shared_page: Page, server: str, view: str, theme: str) -> None:
    tab = opened(shared_page, server, view, dark=theme == "dark")
    for run in ("straggler_cpu", "zero_workers", "healthy"):
        chosen(tab, run)
        drawn(tab, view)
        if tab.locator("details.finding").count():
            tab.locator("details.finding > summary").first.click()
        expect(tab.locator("html")).to_have_class("dark" if theme == "dark" else "")
        for width in (720, 1000, 1320, 2560):  # the first is a laptop's at twice the size
            shared_page.set_viewport_size({"width": width, "height": 1000})
            assert too_wide(tab, "html", "main", ".runs") == [], f"{run} at {width} px"
        height = tab.locator("main").evaluate("element => element.scrollHeight + 80")
        shared_page.set_viewport_size({**SIZE, "height": height})
        redrawn(tab)
        pictured(shared_page, f"{run}_{view}_{theme}")


def test_what_belongs_together_stands_in_one_row(page: Page, server: str) -> None:
    page.set_viewport_size({"width": 1000, "height": 1000})
    tab = opened(page, server)
    chosen(tab, "straggler_cpu")
    for row in (".tabs a", ".tiles > div"):
        tops = tab.locator(row).evaluate_all("parts => parts.map(part => part.getBoundingClientRect().top)")
        assert len(tops) >= 4 and len(set(tops)) == 1, row
    for view in ("operators", "ranks", "communication", "quality"):
        tab = opened(page, server, view)
        for table in tab.locator(".grid > .scroll").all():
            expect(table.locator("tbody tr").first).to_be_visible()
            over = table.evaluate("element => element.scrollWidth - element.clientWidth")
            assert over == 0, f"{view}: {table.get_attribute('aria-label')} is {over} px too wide"
            covered = table.evaluate(
                "element => [...element.querySelectorAll('th:has(.tip)')].filter(head => head.querySelector('.tip')"
                ".getBoundingClientRect().right - 5 > head.getBoundingClientRect().right).map(head => head.textContent)"
            )
            assert covered == [], f"{view}: the next heading covers the question mark's ring"


@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_nothing(shared_page: Page, server: str, view: str, theme: str) -> None:
    """WCAG A and AA and the best practices, with all that can be opened open; in the dark its colours."""
    tab = opened(shared_page, server, view, dark=theme == "dark")
    for run in ("straggler_cpu", "healthy"):
        chosen(tab, run)
        drawn(tab, view)
        unfold(tab)
        wrong = violations_of_axe(shared_page, *(COLOUR_RULES if theme == "dark" else ()))
        assert not wrong, f"{run}\n" + "\n".join(wrong)


def test_the_dark_theme_sets_colours_only() -> None:
    for file in (ROOT / "frontend" / "src" / "style").glob("*.css"):
        for selector, body in re.findall(r"([^{}]*)\{([^{}]*)\}", file.read_text()):
            names = re.findall(r"([\w-]+)\s*:", body) if ".dark" in selector else []
            assert all(name.startswith("--") or name == "color-scheme" for name in names), (file.name, selector)


def test_axe_sees_one_faint_cell_among_many(page: Page, server: str) -> None:
    """A few texts of each look are judged (distinct_looks.js): one that looks different is, wherever it stands."""
    tab = opened(page, server, "operators")
    chosen(tab, "straggler_cpu")
    drawn(tab, "operators")
    row = tab.locator(".grid").first.locator("tbody tr").nth(5)
    row.locator("th a").evaluate("name => { name.style.color = '#ccc' }")
    (found,) = violations_of_axe(page)
    assert found.startswith("color-contrast: <a")
    row.evaluate("row => { row.style.opacity = 0.3 }")
    assert len(violations_of_axe(page)) > 3
    assert len(violations_of_axe(page, *COLOUR_RULES)) > 3


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
            finding["fix_parts"] = dict.fromkeys(("first", "advice", "ended", "code"), long)
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
            assert too_wide(tab, "main") == [], f"{view} at {width} px"
        pictured(page, f"long_names_{view}")


def pinch(page: Page, tab: FrameLocator) -> None:
    """Two fingers, as the touch screen reports them, spread to twice their distance: half of the span shows.

    The address names the span before: what it names during a gesture is any span between.
    """
    canvas = tab.locator(".timeline-frame canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box
    middle, y = box["x"] + 0.65 * box["width"], box["y"] + 60
    touch = page.context.new_cdp_session(page)

    def fingers(kind: str, *at: float) -> None:
        points = [{"x": middle + x, "y": y, "id": i} for i, x in enumerate(at)]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    def span() -> float:
        address = page.evaluate("location.hash")
        first, last = (int(re.findall(rf"ddp_doctor\.{edge}=(-?\d+)", address)[0]) for edge in ("from", "to"))
        return last - first

    def spread(least: float, most: float) -> None:
        fingers("touchStart", -least, least)
        for part in range(1, 6):
            apart = least + (most - least) * part / 5
            fingers("touchMove", -apart, apart)
        fingers("touchEnd")

    before = span()
    spread(25, 50)
    wait_for(lambda: abs(span() / before - 0.5) < 0.01, f"half of {before} us")


def test_a_phone_shows_every_place_in_its_own_width(browser: Browser, server: str) -> None:
    """With touch, a device scale and the viewport of a phone, which TensorBoard's page does not name."""
    context = browser.new_context(viewport=PHONE, device_scale_factor=3, is_mobile=True, has_touch=True)
    page = context.new_page()
    tab = opened(page, server, run="straggler_cpu")
    place = tab.get_by_label("Tab", exact=True)
    for views in TABS.values():
        place.select_option(views[0])
        drawn(tab, views[0])
        assert page.evaluate("[innerWidth, document.documentElement.scrollWidth]") == [PHONE["width"]] * 2
        assert too_wide(tab, "main", "html") == []
    tab.locator(".parts a", has_text="Hours").tap()
    expect(tab.locator(".view.history")).to_be_visible()
    opened(page, server, "timeline", run="straggler_cpu", **{"from": "0", "to": "100000"})
    drawn(tab, "timeline")
    pinch(page, tab)
    page.screenshot(path=SCREENSHOTS / "phone_emulated.png")
    context.close()


@pytest.mark.parametrize("view", VIEWS)
def test_every_control_takes_the_focus_in_its_place(shared_page: Page, server: str, view: str) -> None:
    """And shows a ring, as the Tab key would."""
    tab = opened(shared_page, server, view)
    chosen(tab, "straggler_cpu")
    drawn(tab, view)
    unfold(tab)
    drawn(tab, view)
    shared_page.keyboard.press("Tab")  # what has the focus from now on shows it
    found, wrong = tab.locator("body").evaluate(
        """body => {
          const controls = body.querySelectorAll("a[href], button, input, select, textarea, summary, canvas[tabindex]");
          const shown = [...controls].filter(control => control.checkVisibility() && !control.disabled);
          const wrong = [];
          for (const control of shown) {
            control.focus();
            const says = control.outerHTML.slice(0, 120);
            if (control.tabIndex !== 0 || document.activeElement !== control) wrong.push(`out of order: ${says}`);
            else if (getComputedStyle(control).outlineStyle === "none") wrong.push(`bare: ${says}`);
          }
          return [shown.length, wrong];
        }"""
    )
    assert found > 10
    assert wrong == []


def test_a_view_is_three_presses_of_the_tab_key_away(page: Page, server: str) -> None:
    """Past the list of runs and past the heading, each with a key; all of them would be two dozen."""
    for view in VIEWS:
        tab = opened(page, server, view, run="straggler_cpu")
        drawn(tab, view)
        tab.locator(".skip").first.focus()
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        expect(tab.locator(".skip").nth(1)).to_be_focused()
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        if view == "mesh":  # this job has one dimension, and no mesh to show
            continue
        inside = tab.locator("html").evaluate("() => document.activeElement.closest('.view') !== null")
        assert inside, view


#: The views of which every control is walked to: `EVERY_KEY=1 python -m pytest tests/test_tab_every_view.py -k
#: every_control` walks all of them, which takes minutes.
WALKED = VIEWS if "EVERY_KEY" in os.environ else ("verdict", "timeline")


@pytest.mark.parametrize("view", WALKED)
def test_every_control_is_reached_by_keyboard(shared_page: Page, server: str, view: str) -> None:
    """With the Tab key alone, from the first to the last; with a ring around the one that has it."""
    tab = opened(shared_page, server, view)
    chosen(tab, "straggler_cpu")
    drawn(tab, view)
    unfold(tab)
    drawn(tab, view)
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
    has_left = "() => !document.hasFocus() || document.activeElement === document.body"
    for pressed in range(found + 100):  # regions that scroll take the focus too, and draw more rows
        shared_page.keyboard.press("Tab")
        if pressed % 10 == 9 and tab.locator("html").evaluate(has_left):
            break
    missed = tab.locator("body").evaluate(
        "() => [...document.querySelectorAll('[data-control]')]"
        ".filter(control => !control.disabled && !reached.has(control.dataset.control))"
        ".map(control => control.outerHTML.slice(0, 120))"
    )
    assert missed == []
    assert tab.locator("body").evaluate("() => bare") == []


def test_the_views_tabs_take_one_line(page: Page, server: str) -> None:
    tab = opened(page, server)
    expect(tab.locator(".tabs a").last).to_be_visible()
    for width in (1000, 1141, 1240, 1341, 1400):
        page.set_viewport_size({"width": width, "height": 900})
        tops = tab.locator(".tabs a").evaluate_all("tabs => tabs.map((tab) => tab.getBoundingClientRect().top)")
        assert len(set(tops)) == 1, width


def test_a_further_view_fits(page: Page, server: str) -> None:
    """docs/adding-a-view.md: its view, by its two files, is a tab like the others."""
    text = (ROOT / "docs" / "adding-a-view.md").read_text()
    (module,) = re.findall(r"```js\n(.*?)```", text, re.DOTALL)
    ((name, pieces),) = re.findall(r"```diff\n--- (\S+)\n(.*?)```", text, re.DOTALL)
    listed = (ROOT / name).read_text()
    for piece in pieces.split("@@\n"):
        lines = piece.splitlines(keepends=True)
        before, after = ("".join(line[1:] for line in lines if line[0] in f" {sign}") for sign in "-+")
        assert listed.count(before) == 1
        listed = listed.replace(before, after)
    javascript = "text/javascript"
    page.route("**/views.js", lambda route: route.fulfill(body=listed, content_type=javascript))
    page.route("**/views/waits.js", lambda route: route.fulfill(body=module, content_type=javascript))
    tab = opened(page, server, "waits")
    chosen(tab, "straggler_cpu")
    for width in (1000, 1341, 390):
        page.set_viewport_size({"width": width, "height": 900})
        drawn(tab, "waits")
        assert tab.locator(".waits tbody tr").count() == 4
        tops = tab.locator(".tabs a").evaluate_all("tabs => tabs.map((tab) => tab.getBoundingClientRect().top)")
        assert len(tops) in (0, len(TABS)) and len(set(tops)) <= 1, width
        unfold(tab)
        assert too_wide(tab, "html", "main", ".runs") == [], width
    assert violations_of_axe(page) == []


def test_the_page_on_views_says_all_of_a_view() -> None:
    said = re.findall(r"^\| `(\w+)", (ROOT / "docs" / "adding-a-view.md").read_text(), re.MULTILINE)
    typed = (ROOT / "frontend" / "src" / "views.js").read_text().partition("@typedef {object} View\n")[2]
    assert said == re.findall(r"@property {.*} \[?(\w+)", typed.partition("*/")[0])


def test_text_from_a_trace_stays_text(page: Page, server: str) -> None:
    """Every string that the server sends is made hostile: none becomes an element."""

    def answer(route: Route) -> None:
        """The page asks for the run by the name that it was told, the hostile one."""
        true = route.request.url.replace(quote(HOSTILE, safe=""), "").replace(quote_plus(HOSTILE), "")
        told = route.fetch(url=true)
        assert told.ok, true
        route.fulfill(json=poison(told.json()))

    def predict(route: Route) -> None:
        route.fulfill(json={"fixed": [HOSTILE], "step_ms": 100.0, "without_ms": 50.0, "range_ms": [50.0, 50.0]})

    def explain(route: Route) -> None:
        route.fulfill(json={"summary": HOSTILE, "sections": {HOSTILE: HOSTILE}})

    page.route(re.compile(r"/ddp_doctor/(runs|run|detail|slice|lanes|plan)\b"), answer)
    page.route("**/ddp_doctor/whatif?*", predict)
    page.route("**/ddp_doctor/rule?*", explain)
    for view in VIEWS:
        tab = opened(page, server, view)
        chosen(tab, HOSTILE + "straggler_cpu")
        expect(tab.locator("h1")).to_contain_text(HOSTILE)
        for _ in range(20):  # an opened part may hold others
            unfold(tab)
            if not tab.locator("details:not([open]) > summary").count():
                break
        if view == "findings":
            expect(tab.locator(".evidence td").last).to_contain_text(HOSTILE)
        assert tab.locator("img").count() == 0
        assert page.evaluate("window.hacked") is None
