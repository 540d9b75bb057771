"""The tab's timeline, its tables and pictures, and what is selected in all of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import (
    FloatRect,
    Locator,
    Page,
    Request,
    Route,
    expect,
)
from tab import HOSTILE, chosen, get, go, number, opened, pictured, timeline, unnamed_figures, wait_for


def _settled(page: Page, canvas: Locator) -> FloatRect:
    """The place of a canvas once that has stayed the same for half a second: lanes come with their events."""
    last, same = canvas.bounding_box(), 0
    while same < 5:
        page.wait_for_timeout(100)
        now = canvas.bounding_box()
        last, same = now, same + 1 if now == last else 0
    assert last
    return last


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


def test_many_ranks(page: Page, server: str) -> None:
    """300 ranks made of four: pictures that read out by keyboard."""

    def answer(route: Route) -> None:
        body = route.fetch().json()
        diagnosis, views = body["diagnosis"], body["views"]
        ranks = list(range(300))
        diagnosis["budget_ms"] = {rank: diagnosis["budget_ms"][str(rank % 4)] for rank in ranks}
        for grid in ("nodes", "roles", "busy_ms", "step_ms", "start_ns"):
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
    pictured(page, "many_ranks_budget")
    # A row is a pixel high, and the wait of 225 ranks does not outshine the stalls that they wait for.
    colours = tab.locator("canvas.budget-map").evaluate(
        """canvas => {
          const {width, height} = canvas;
          const {data} = canvas.getContext("2d").getImageData(width / 2, 40, 1, height - 60);
          return new Set(new Uint32Array(data.buffer)).size;
        }"""
    )
    assert colours > 3, "the wait is drawn without its hatch"
    go(tab, "Ranks & steps", "Steps")
    picture = tab.locator("canvas.heat-map")
    picture.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    expect(tab.locator(".readout").last).to_have_text(
        re.compile(r"rank 1 on node0, step 3: [\d.]+\sms \(affected rank\)")
    )
    pictured(page, "many_ranks_steps")
    # By node, with the straggler apart from those that are comparable; a rank is selected for all views.
    go(tab, "Ranks & steps", "Ranks")
    groups = [re.compile("1: rank 1"), re.compile("74 ranks, 5 to 297.+above the median"), "225 comparable ranks"]
    expect(tab.locator(".groups tbody th")).to_have_text(groups)
    expect(tab.locator(".bands tbody th").first).to_have_text("compute")
    tab.locator("canvas.rank-grid").focus()
    page.keyboard.press("ArrowDown")
    expect(tab.locator(".readout").first).to_have_text(re.compile(r"rank \d+ on node0: [\d.]+\sms"))
    page.keyboard.press("Enter")
    expect(tab.locator(".chip")).to_have_text(re.compile(r"rank \d+"))
    pictured(page, "many_ranks")


def test_a_finding_of_4096_ranks_opens_at_once(page: Page, server: str) -> None:
    def answer(route: Route) -> None:
        body = route.fetch().json()
        diagnosis, views = body["diagnosis"], body["views"]
        ranks, steps = list(range(4096)), list(range(2, 15))
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
    expect(first.locator(".occurs .readout")).to_contain_text("A row is the longest of 25 ranks.")
    first.locator(".occurs canvas").focus()
    page.keyboard.press("ArrowDown")
    expect(first.locator(".occurs .readout")).to_have_text(
        re.compile(r"rank 1 on node0, step 2: [\d.]+\sms \(affected rank\)")
    )
    page.keyboard.press("Enter")
    expect(tab.locator(".chip")).to_have_text(["finding 1", "rank 1", "step 2"])
    expect(first.locator(".occurs .histogram tbody tr")).not_to_have_count(0)
    go(tab, "Verdict")
    expect(tab.locator("canvas.rank-step")).to_be_visible()


def test_the_open_run_survives_a_reload(page: Page, server: str) -> None:
    tab = opened(page, server)
    chosen(tab, "zero_workers")
    go(tab, "Ranks & steps")
    tab.get_by_label("Sorted by").select_option("busy")
    page.reload()
    expect(tab.locator(".facts b")).to_have_text("zero_workers")
    expect(tab.get_by_label("Sorted by")).to_have_value("busy")
    page.go_back()
    expect(tab.locator(".tabs [aria-current]")).to_have_text("Verdict")


def test_a_run_that_is_read_again_keeps_place_selection_and_scroll(page: Page, server: str) -> None:
    ranks = {"now": 4}

    def more(route: Route) -> None:
        body = route.fetch().json()
        for run in body["runs"]:
            run["ranks"] = ranks["now"]
            run["arriving"] = 1  # so that the list is asked for each second
        route.fulfill(json=body)

    page.route("**/ddp_doctor/runs*", more)
    tab = opened(page, server, "findings")
    chosen(tab, "straggler_cpu")
    finding = tab.locator("details.finding").first
    finding.locator("summary").first.click()
    finding.get_by_role("button", name=re.compile(r"^Rank 1, step 4: ")).click()
    main = tab.locator("main")
    main.evaluate("main => { main.scrollTop = 600; main.querySelector('.report').dataset.before = ''; }")
    ranks["now"] = 3
    expect(tab.locator(".run[aria-current]")).to_contain_text("3 of 4\u00a0ranks")
    expect(tab.locator(".report[data-before]")).to_have_count(0)
    expect(main).to_have_js_property("scrollTop", 600)
    expect(tab.locator(".chip")).to_have_text(["finding 1", "rank 1", "step 4"])
    expect(finding).to_have_attribute("open", "")


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
    pictured(page, "memory")
    go(tab, "Communication")
    tab.locator("canvas.scatter").focus()
    page.keyboard.press("ArrowRight")
    readout = tab.locator(".readout")
    expect(readout).to_have_text(
        re.compile(r"all_reduce in group 0, 4\sranks on 2\snodes, step 2: 5\.8\sMB in 3\.2\sms, .+")
    )
    longest = readout.text_content()
    page.keyboard.press("ArrowRight")
    expect(readout).not_to_have_text(longest or "")


def test_a_link_opens_the_same_finding(page: Page, server: str) -> None:
    tab = opened(page, server, "findings")
    chosen(tab, "straggler_cpu")
    tab.locator("details.finding > summary").first.click()
    expect(tab.locator(".opened")).to_be_visible()
    page.wait_for_function("location.hash.includes('p.ddp_doctor.finding=straggler')")
    address = page.evaluate("location.href")
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


def test_the_timeline_is_driven_by_keys(page: Page, server: str) -> None:
    tab = opened(page, server, "timeline")
    chosen(tab, "straggler_cpu")
    readout = tab.locator(".readout")
    canvas = timeline(tab)
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
    expect(tab.locator(".hits")).to_have_text(re.compile(r"\d+ of \d+\shits"))
    expect(readout).to_have_text(re.compile(r"rank \d, .+allreduce", re.IGNORECASE))
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
    # A link has the range, and Perfetto gets it.
    assert re.search(r"ddp_doctor\.range=-?\d+%2C-?\d+", page.evaluate("location.hash"))
    with page.expect_request("**/ddp_doctor/slice?*format=native*") as asked:
        tab.get_by_role("button", name="Open in Perfetto").click()
    assert "ranks=1%2C3&" in asked.value.url
    tab.get_by_role("dialog").get_by_role("button", name="Close").click()
    tab.get_by_role("button", name="Clear the range").click()
    expect(tab.locator(".range h3")).to_have_count(0)
    before = span()
    touch = page.context.new_cdp_session(page)
    for kind, apart in (("touchStart", 60), ("touchMove", 90), ("touchMove", 120), ("touchEnd", None)):
        points = (
            []
            if apart is None
            else [{"x": box["x"] + 400 + by, "y": box["y"] + 60, "id": i} for i, by in enumerate((-apart, apart))]
        )
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    touch.detach()
    wait_for(lambda: abs(span() / before - 0.5) < 0.02, f"half of {before} us")
    tab.get_by_role("button", name="Zoom out").click()
    wait_for(lambda: span() > before * 0.6, "more again")
    tab.get_by_text("longest events of this window").click()
    expect(tab.locator(".numbers tbody tr").first).to_contain_text("rank")
    pictured(page, "timeline_keys")


def test_the_timeline_opens_ranks_reaches_gaps_and_says_what_an_event_is(page: Page, server: str) -> None:
    def with_memory(route: Route) -> None:
        told = route.fetch().json()
        for rank in told["ranks"]:
            rank["memory"] = {"time_us": [-1e6], "allocated": [3_000_000_000], "reserved": [4_000_000_000]}
        route.fulfill(json=told)

    page.route("**/ddp_doctor/slice?*", with_memory)
    tab = opened(page, server, "timeline")
    chosen(tab, "straggler_cpu")
    canvas, dock = timeline(tab), tab.locator(".dock")
    # The straggler is opened beside a typical rank.
    ranks = tab.get_by_label("Ranks", exact=True)
    expect(ranks).to_have_value("1, 3")
    page.keyboard.press("n")
    expect(dock.locator("h3")).to_contain_text("GPU idle, CPU outside any op")
    expect(dock.locator(".duration")).to_have_text(re.compile(r"1[34]\d\.\d\sms"))
    expect(dock).to_contain_text("last op before; first op after")
    expect(dock.locator("dl")).to_contain_text("3.00\N{NO-BREAK SPACE}GB allocated, 4.00\N{NO-BREAK SPACE}GB reserved")
    page.keyboard.press("n")
    expect(dock.locator("h3")).to_contain_text("GPU idle")
    page.keyboard.press("p")
    expect(dock.locator(".duration")).to_have_text(re.compile(r"1[34]\d\.\d\sms"))
    assert unnamed_figures(tab) == []
    # What is written on the boxes is found, from hit to hit, and stays found with other ranks.
    tab.get_by_label("Search").fill("all_reduce")
    tab.get_by_role("button", name="Next hit").click()
    hits = tab.locator(".hits")
    expect(hits).to_have_text(re.compile(r"\d+ of \d+\shits"))
    expect(dock.locator("h3")).to_have_text("all_reduce")
    expect(dock).to_contain_text("busbw")
    expect(dock.locator(".calls code").last).to_contain_text("LaunchKernel")
    tab.get_by_role("button", name="Next hit").click()
    expect(hits).to_have_text(re.compile(r"\d+ of \d+\shits"))
    # So are the model's layers: a hit is all that follows each other of one in a row.
    expect(tab.locator("#timeline-modules option").first).to_have_attribute("value", "layer 1")
    tab.get_by_label("Search").fill("layer 3")
    tab.get_by_label("Search").press("Enter")
    expect(tab.locator(".readout")).to_have_text(re.compile(r"rank \d, .+: layer 3, \d+\sevents, .+ from .+"))
    expect(dock.locator("dl")).to_contain_text("layer 3")
    tab.get_by_label("Search").fill("all_reduce")
    tab.get_by_role("button", name="Next hit").click()
    # A folded rank opens where it is clicked, and a node's ranks by its name.
    box = _settled(page, canvas)
    canvas.click(position={"x": 20, "y": box["height"] - 10})
    expect(ranks).to_have_value("1, 3, 2")
    expect(tab.get_by_label("Search")).to_have_value("all_reduce")
    expect(hits).to_have_text(re.compile(r"(\d+ of )?\d+\shits"))
    ranks.fill("node0")
    ranks.press("Enter")
    expect(ranks).to_have_value("0, 1")
    page.wait_for_url(re.compile(r"ddp_doctor\.ranks=0%2C1"))
    # What is under the pointer stands beside it.
    box = _settled(page, canvas)
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
    go(tab, "Ranks & steps")
    tab.get_by_role("img", name=re.compile("rank 1 on .+: CPU outside any op")).click()
    expect(dock.locator("h3")).to_have_text("GPU idle, CPU outside any op")
    expect(dock.locator(".duration")).to_have_text(re.compile(r"1[34]\d\.\d\sms"))
    expect(chips).to_have_text(["rank 1", "CPU outside any op"])
    # The owner is selected in all views.
    go(tab, "Ranks & steps", "Steps")
    expect(tab.locator(".switch [aria-pressed=true]")).to_have_text("CPU outside any op")
    go(tab, "Verdict", "Findings")
    expect(tab.locator("details.finding")).to_have_count(1)
    expect(tab.locator(".hidden-findings")).to_contain_text(re.compile(r"2 of 3\sfindings not shown"))
    go(tab, "Ranks & steps")
    legend = tab.locator(".legend").get_by_role("button", name="compute")
    legend.click()
    expect(legend).to_be_focused()
    expect(chips).to_have_text(["rank 1", "compute"])
    expect(tab.locator(".bars .part.faded").first).to_be_visible()
    legend.click()
    expect(tab.locator(".bars .part.faded")).to_have_count(0)
    # A kernel: its instances, its op and the call that launched it.
    go(tab, "Compute")
    kernel = tab.get_by_role("region", name="kernels", exact=True).locator("tbody th a").nth(1)
    name = kernel.text_content() or ""
    kernel.click()
    expect(tab.locator(".hits")).to_contain_text("hit")
    assert tab.get_by_label("Search").input_value() in name or name in tab.get_by_label("Search").input_value()
    # A dot: the arrivals of its ranks.
    go(tab, "Communication")
    tab.locator("canvas.scatter").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(ranks).to_have_value("0-3")
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
    timeline(tab)
    page.keyboard.press("ArrowDown")
    expect(tab.locator(".readout")).to_contain_text("step by owner")
    expect(tab.get_by_label("Ranks", exact=True)).to_have_count(0)


def test_another_run_leaves_no_listener_behind(new_page: Page, server: str) -> None:
    """The timeline listens to the whole page, as the tabs do: not for longer than its run shows."""
    new_page.add_init_script("""
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
    tab = opened(new_page, server, "timeline")
    for run in ("straggler_cpu", "zero_workers", "healthy"):
        chosen(tab, run)
        expect(tab.locator(".readout")).to_contain_text("W S zoom")
        assert tab.locator("body").evaluate("() => listening.length") == 2


def test_a_link_opens_the_same_window(page: Page, server: str) -> None:
    place = {"run": "straggler_cpu", "from": "1000", "to": "9000", "ranks": "1-2"}
    with page.expect_request("**/ddp_doctor/slice?*") as asked:
        opened(page, server, "timeline", **place)
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
    # After the table of the roofline.
    expect(tab.locator(".grid").nth(1).locator("tbody th").first).to_contain_text(HOSTILE)
    go(tab, "Timeline")
    timeline(tab)
    page.keyboard.press("ArrowRight")
    tab.get_by_text("longest events of this window").click()
    expect(tab.locator(".numbers td").filter(has_text=HOSTILE).first).to_be_visible()
    assert tab.locator("img").count() == 0
    assert page.evaluate("window.hacked") is None


def test_a_table_sorts_filters_and_is_saved(page: Page, server: str) -> None:
    tab = opened(page, server, "operators")
    chosen(tab, "straggler_cpu")
    kernels = tab.locator(".grid").nth(1)
    first = kernels.locator("tbody th").first
    expect(first).to_contain_text("ncclDevKernel_AllReduce")
    kernels.get_by_role("button", name="calls", exact=True).click()
    expect(kernels.locator("th[aria-sort]")).to_have_text("calls")
    expect(first).not_to_contain_text("nccl")
    kernels.get_by_label("Filter").fill("NCCL")
    expect(kernels.locator("tbody tr")).to_have_count(2)
    with page.expect_download() as saved:
        kernels.get_by_role("button", name="Download as CSV").click()
    head, row, wait, *rest = Path(saved.value.path()).read_text().splitlines()
    assert head.startswith("kernel,") and row.startswith("ncclDevKernel") and not rest
    # Of 128 ms in the collective's kernel, the mean of all ranks, most is the wait for rank 1; the view Ranks has 15.0
    # ms without wait, from the last arrival on each rank's clock.
    assert wait.startswith("straggler wait in ncclDevKernel")
    moved, waited = (float(line.rpartition(">)")[2].split(",")[1]) for line in (row, wait))
    assert moved == pytest.approx(14.7, abs=0.5) and moved + waited == pytest.approx(127.95, abs=0.1)
    # Annotations are around operators and are none.
    assert tab.locator(".grid").nth(2).locator("tbody th", has_text="ProfilerStep").count() == 0
    expect(tab.locator(".grid").nth(3).locator("tbody th").first).to_have_text("ProfilerStep")


def test_a_link_opens_the_same_table(page: Page, server: str) -> None:
    tab = opened(page, server, "operators")
    chosen(tab, "straggler_cpu")
    kernels, operators = tab.locator(".grid").nth(1), tab.locator(".grid").nth(2)
    operators.get_by_role("button", name="operator", exact=True).click()
    operators.get_by_role("button", name="operator", exact=True).click()
    kernels.get_by_role("button", name="mean, µs", exact=True).click()
    kernels.get_by_label("Filter").fill("gemm")
    page.wait_for_url(re.compile("kernels-filter=gemm"))
    expect(kernels.locator("tbody th").filter(has_not_text="gemm")).to_have_count(0)
    shown = [table.locator("tbody th").all_text_contents() for table in (kernels, operators)]
    page.reload()
    expect(kernels.locator("th[aria-sort=descending]")).to_have_text("mean, µs")
    expect(kernels.get_by_label("Filter")).to_have_value("gemm")
    expect(operators.locator("th[aria-sort=descending]")).to_have_text("operator")
    assert [table.locator("tbody th").all_text_contents() for table in (kernels, operators)] == shown
    # What is typed last belongs to the view that it was typed in.
    kernels.get_by_label("Filter").fill("elementwise")
    go(tab, "Ranks & steps", "Ranks")
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
    go(tab, "Verdict")
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
    tab = opened(page, server, "budget", run="straggler_cpu", rank="1", step="4")
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
        two = {**family, "group": "9", "parallelism": "TP", "ranks": [0, 1], "size": 2}
        body["families"] = [{**family, "peers": 1, "slowdown": 1.0}, slow, two]
        body["sent"] = [[2, 3, 4.0, 8e6, 1000.0]]
        body["nodes"][0]["stands_out"] = True
        route.fulfill(json=body)

    def meshed(route: Route) -> None:
        body = route.fetch().json()
        numbers = dict.fromkeys(("calls", "megabytes", "bus_gb_s", "wait_ms", "transfer_ms", "exposed_ms"))
        shares = dict.fromkeys(("wait_share", "transfer_share", "share"))
        more = {"inferred": "", "is_axis": True, "within_node": True, "advice": [], **numbers, **shares}
        body["diagnosis"]["mesh"] = {
            "dimensions": [{"name": name, "size": 2, "stride": by, **more} for name, by in (("dp", 2), ("tp", 1))],
            "coordinates": {str(rank): {"dp": rank // 2, "tp": rank % 2} for rank in range(4)},
        }
        route.fulfill(json=body)

    page.route("**/ddp_doctor/run?*", meshed)
    tab = opened(page, server, "communication")
    chosen(tab, "straggler_cpu")
    nodes = tab.get_by_role("region", name="nodes")
    expect(nodes.locator("tbody tr")).to_have_count(2)
    # The other rank of the straggler's node is on time.
    expect(tab.get_by_text("No node stands out")).to_be_visible()
    chosen(tab, "healthy")
    page.route("**/ddp_doctor/detail?*of=communication", answer)
    chosen(tab, "straggler_cpu")
    expect(nodes.locator("tr.affected th")).to_have_text("node0")
    expect(tab.get_by_text("node0 stands out")).to_be_visible()
    expect(tab.locator(".legend")).to_contain_text("all_reduce in 2 groups of 4\u00a0ranks, 1 of them slow")
    expect(tab.get_by_role("region", name="communication").locator("tr.affected th")).to_have_text(
        "all_reduce in group 7"
    )
    # Ranks against ranks: those of a sub-group, and those that send.
    pairs = tab.locator(".card").filter(has=tab.locator("canvas.pairs-map"))
    pairs.locator("canvas").focus()
    page.keyboard.press("ArrowDown")
    expect(pairs.locator(".readout")).to_have_text("within rank 1: nothing recorded")
    page.keyboard.press("ArrowLeft")
    expect(pairs.locator(".readout")).to_have_text(
        re.compile(r"rank 1 and rank 0: [\d.]+\sGB/s, all_reduce in TP group 9")
    )
    pairs.get_by_label("Shown").select_option("rate")
    pairs.get_by_label("A row per").select_option("node")
    pairs.locator("canvas").focus()
    page.keyboard.press("ArrowDown")
    expect(pairs.locator(".readout")).to_have_text(
        re.compile(r"within node1: 8\sGB/s, bytes sent over the time in which")
    )
    pairs.get_by_label("A row per").select_option("rank")
    pairs.get_by_label("Shown").select_option("sent")
    pairs.locator("canvas").focus()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowDown")
    expect(pairs.locator(".readout")).to_have_text("rank 2 to rank 3: 4\xa0a step, sent")
    # By dimension: ranks that differ in dp alone stand together, and a row may have all ranks of a place.
    pairs.get_by_label("A row per").select_option("rank of dp")
    pairs.locator("canvas").focus()
    page.keyboard.press("ArrowLeft")
    expect(pairs.locator(".readout")).to_have_text(re.compile(r"rank \d \(dp \d, tp \d\) to rank \d \(dp \d, tp \d\)"))
    pairs.get_by_label("A row per").select_option("dp")
    pairs.locator("canvas").focus()
    page.keyboard.press("ArrowDown")
    expect(pairs.locator(".readout")).to_have_text("within dp 1: 4\u00a0a step, sent")


def test_the_affected_is_marked_among_the_ranks(page: Page, server: str) -> None:
    tab = opened(page, server, "ranks")
    chosen(tab, "straggler_cpu")
    expect(tab.locator("tr.affected")).to_have_count(1)
    expect(tab.locator("tr.affected th")).to_have_text("rank 1 ◀")
    chosen(tab, "healthy")
    expect(tab.locator("tbody tr")).to_have_count(4)
    expect(tab.locator("tr.affected")).to_have_count(0)
