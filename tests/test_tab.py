"""The tab on one run: the list beside it, its verdict and its findings, in headless Chromium."""

from __future__ import annotations

import re
from urllib.parse import quote

import pytest
from playwright.sync_api import (
    Page,
    Route,
    expect,
)
from tab import (
    DEMO_LOGS,
    PHONE,
    TABS,
    analysed,
    button,
    chosen,
    copies,
    get,
    go,
    number,
    opened,
    pictured,
    violations_of_axe,
)

from tb_ddp_doctor.findings import OWNERS
from tb_ddp_doctor.rules import CATALOGUE


def test_the_tab_names_the_straggler(page: Page, server: str) -> None:
    page.goto(server)
    page.get_by_role("tab", name="Diagnosis").click()
    tab = page.frame_locator("iframe").first
    expect(tab.locator(".run")).to_have_count(len({path.parent for path in DEMO_LOGS.glob("*/*.pt.trace.json.gz")}))
    chosen(tab, "straggler_cpu")
    expect(tab.locator("h1")).to_contain_text(re.compile("rank 1", re.IGNORECASE))
    go(tab, "Verdict", "Findings")
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
    with copies(first.get_by_role("button", name="Copy", exact=True)) as button:
        button.click()


def test_the_worst_run_opens_and_stays(page: Page, server: str) -> None:
    """Not the first by name, but the most severe one that loses most; the address names it once a view is chosen."""
    tab = opened(page, server)
    runs = [run for run in analysed(server) if run["severity"] == "critical"]
    worst = max(runs, key=lambda run: run["lost_ms"])["name"]
    assert worst != analysed(server)[0]["name"]
    expect(tab.locator(".facts b")).to_have_text(worst)
    expect(tab.locator(".run[aria-current]")).to_contain_text(worst)
    go(tab, "Ranks & steps")
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
    tab.get_by_label("Sort runs").select_option("newest")
    expect(tab.locator(".run .size")).to_have_text([re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d$")] * len(worst))
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
    """Only the rows that are seen are in the page, and a frame of a scroll draws no others."""

    def listing(route: Route) -> None:
        body = route.fetch().json()
        first = body["runs"]
        for i in range(500):
            run = first[i % len(first)]
            body["runs"] = [*body["runs"], run | {"name": f"sweep_{i % 4}/lr_{i}_{run['name']}"}]
        route.fulfill(json=body)

    page.route(re.compile(r"/ddp_doctor/runs(\?|$)"), listing)
    tab = opened(page, server)
    expect(tab.locator(".triage li")).to_have_count(100)
    tab.locator(".triage .open").first.click()
    expect(tab.locator(".facts b")).to_have_text(re.compile("straggler_cpu"))
    expect(tab.get_by_label("Filter runs by name or verdict")).to_have_attribute("placeholder", "Filter 505\u00a0runs")
    expect(tab.locator("button.folder").first).to_contain_text("sweep_")
    assert tab.locator(".rows > li").count() < 40
    scroller = tab.locator(".scroller")
    drawn = scroller.evaluate(
        """async (list) => {
          const frame = () => new Promise(requestAnimationFrame);
          const drawn = [];
          const count = ({ addedNodes }) => [...addedNodes].filter(({ nodeName }) => nodeName === "LI").length;
          const watch = new MutationObserver((seen) => seen.forEach((one) => (drawn[drawn.length - 1] += count(one))));
          watch.observe(list, { childList: true, subtree: true });
          for (let i = 0; i < 60; i++) {
            drawn.push(0);
            list.scrollTop += 400;
            await frame();
            await frame();
          }
          return drawn;
        }"""
    )
    assert scroller.evaluate("list => list.scrollTop") > 20_000
    assert 0 < max(drawn) < 40
    assert tab.locator(".rows > li").count() < 40
    seen = scroller.bounding_box()
    last = tab.locator(".rows > li").last.bounding_box()
    assert seen and last and last["y"] + last["height"] >= seen["y"] + seen["height"] - 20, "rows up to the edge"
    scroller.evaluate("list => (list.scrollTop = 0)")
    # Until the next frame the last rows are drawn.
    expect(tab.locator(".rows > li").first).to_have_attribute("aria-posinset", "1")
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
    pictured(page, "five_hundred_runs")


def test_many_runs_begin_with_which_to_open_first(page: Page, server: str) -> None:
    """Stuck jobs on top, then by what is lost, whatever folder they are in; back from a run to all."""

    def listing(route: Route) -> None:
        body = route.fetch().json()
        (healthy,) = (run for run in body["runs"] if run["name"] == "healthy")
        (worst,) = (run for run in body["runs"] if run["name"] == "straggler_cpu")
        stuck = {
            "kind": "dumps",
            "verdict": "stuck",
            "headline": "Rank 3 did not come.",
            "step_ms": None,
            "lost_ms": None,
        }
        body["runs"] += [healthy | {"name": f"a/healthy_{i}"} for i in range(8)]
        body["runs"] += [healthy | {"name": "z/stuck"} | stuck, worst | {"name": "z/slow", "lost_ms": 180.0}]
        route.fulfill(json=body)

    page.route(re.compile(r"/ddp_doctor/runs(\?|$)"), listing)
    tab = opened(page, server)
    expect(tab.locator(".triage h1")).to_have_text(re.compile(r"^15\sruns, 1 stuck, 4 with a fault$"))
    names = tab.locator(".triage .open")
    assert names.all_text_contents()[:3] == ["z/stuck", "z/slow", "straggler_cpu"]
    expect(tab.locator(".triage li").nth(2)).to_contain_text(re.compile("costs 125.2\\sms"))
    names.nth(2).click()
    expect(tab.locator(".facts b")).to_have_text("straggler_cpu")
    expect(tab.locator(".run[aria-current]")).to_be_in_viewport()
    tab.get_by_role("button", name="All", exact=True).click()
    expect(tab.locator(".triage")).to_be_visible()
    pictured(page, "triage")
    assert violations_of_axe(page) == []
    page.go_back()
    expect(tab.locator(".facts b")).to_have_text("straggler_cpu")


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
    tab.get_by_label("Tab", exact=True).select_option("Ranks & steps")
    tab.locator(".parts").get_by_role("link", name="Steps").click()
    expect(tab.locator(".view.steps")).to_be_visible()
    page.wait_for_url(re.compile("ddp_doctor.view=steps"))
    page.go_back()
    expect(tab.locator(".view.budget")).to_be_visible()
    page.go_back()
    expect(tab.get_by_label("Tab", exact=True)).to_have_value("verdict")


def test_observations_stand_apart_and_name_no_culprit(page: Page, server: str) -> None:
    tab = opened(page, server, "findings")
    chosen(tab, "straggler_cpu")
    expect(tab.locator(".card.findings > h3")).to_have_count(3)
    assert [" ".join(text.split()) for text in tab.locator(".card.findings > h3").all_text_contents()] == [
        "Other costs, not in the verdict",
        "Observations, no cost",
        "Opportunities: nothing is wrong, but the step could be shorter still",
    ]
    last = tab.locator(".finding-row.info").last
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


@pytest.mark.parametrize(("severity", "value"), [("info", "unknown"), ("major", r"[\d.]+")])
def test_what_one_step_shows_is_not_lost_all_day(page: Page, server: str, severity: str, value: str) -> None:
    """A run whose worst fault is made one of a single step; the next finding, of all steps, counts if it is a fault."""

    def answer(route: Route) -> None:
        body = route.fetch().json()
        findings = body["diagnosis"]["findings"]
        findings[0]["steps"] = [3]
        findings[1]["severity"] = severity
        route.fulfill(json=body)

    page.route("**/ddp_doctor/run?run=straggler_cpu", answer)
    tab = opened(page, server)
    chosen(tab, "straggler_cpu")
    lost = tab.locator(".tiles > div").filter(has_text="hours lost a day")
    expect(lost.locator("b")).to_have_text(re.compile(f"^{value}$"))
    expect(lost).to_contain_text(re.compile(r"seen once in 3\ssteps: how often is not known"))


def test_a_day_is_not_told_from_one_step(page: Page, server: str) -> None:
    def answer(route: Route) -> None:
        body = route.fetch().json()
        body["diagnosis"]["steps"] = [3]
        route.fulfill(json=body)

    page.route("**/ddp_doctor/run?run=straggler_cpu", answer)
    tab = opened(page, server)
    chosen(tab, "straggler_cpu")
    lost = tab.locator(".tiles > div").filter(has_text="hours lost a day")
    expect(lost.locator("b")).to_have_text("unknown")
    expect(lost).to_contain_text("one step recorded")


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
    expect(said).to_contain_text(re.compile(r"64\.9\sms a step instead of 168\.\d\sms: 61\s% less \(80\s% interval 6"))
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
        lines = tab.locator(".account:not(.of-floor) .cost").all_text_contents()
        parts = [float(re.sub(r"[\s\xa0]ms.*", "", line)) for line in lines]
        step = tab.locator(".tiles b").first.text_content()
        assert sum(parts) == pytest.approx(float(str(step).split("\xa0")[0]), abs=0.3)
        fixed = tab.locator(".tiles b").nth(1).text_content()
        go(tab, "Verdict", "Findings")
        expect(tab.locator(".prospect")).to_contain_text(f"{fixed} a step instead of {step}")
        go(tab, "Verdict")


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


def test_the_account_is_written_out_as_a_sum(page: Page, server: str) -> None:
    tab = opened(page, server)
    chosen(tab, "straggler_cpu")
    text = str(tab.locator(".account-card .sum").first.text_content())
    step, *parts = map(float, re.findall(r"\d+\.\d", text))
    assert sum(parts) == pytest.approx(step, abs=0.2) and "unexplained (ms)" in text


def test_a_term_is_defined_by_keyboard_and_touch(page: Page, server: str) -> None:
    tab = opened(page, server)
    chosen(tab, "straggler_cpu")
    help_ = tab.get_by_role("button", name=re.compile("^Unexplained: how much shorter a faultless step is"))
    help_.focus()
    text = tab.locator(".tip-text")
    expect(text).to_contain_text("how much shorter a faultless step is")
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
    passed = rf"{len(CATALOGUE) - 3} of {len(CATALOGUE)}\schecks passed"
    expect(tab.locator(".checks h2")).to_have_text(re.compile(passed))
    possible = get(f"{server}/data/plugin/ddp_doctor/run?run=healthy")["diagnosis"]["opportunities"]
    found = len({opportunity["rule"] for opportunity in possible})
    expect(tab.locator(".checks .passed li")).to_have_count(len(CATALOGUE) - 3 - found)
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
        account["no_replay"] = "The steps cannot be replayed: the traces have no records of kernel launches."
        account["left_out"] = [{"step": 1, "ms": 80.0, "reason": "the profiler was starting."}]
        route.fulfill(json=body)

    page.route("**/ddp_doctor/run?run=healthy", answer)
    tab = opened(page, server, dark=theme == "dark")
    chosen(tab, "healthy")
    expect(tab.locator("h1.major")).to_contain_text("No rule explains")
    expect(tab.locator(".side .tiles")).to_contain_text(re.compile(r"Unexplained\s7\.0\sms14\s% of the step"))
    expect(tab.locator(".account-card")).to_contain_text("mostly CPU outside any op in forward, rank 2, all 3 steps")
    card = tab.locator(".card").filter(has=tab.locator(".account"))
    expect(card).to_contain_text("Costs come from busy times. The steps cannot be replayed")
    expect(card).to_contain_text(re.compile(r"Not counted: step 1 \(80\.0\sms\): the profiler was starting\."))
    expect(tab.locator(".row.affected .rank")).to_contain_text("rank 2")
    pictured(page, f"unexplained_{theme}")


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
        re.compile(r"Fixing it saves 125\.2\sms a step, 80\s% interval 122 to 128\sms")
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


def test_a_note_stays_and_a_finding_that_is_back_says_so(page: Page, server: str) -> None:
    # Nothing is written into the log directory of these tests.
    notes = {"dataloader-stall single_process 0,1,2,3": {"comment": "", "pinned": False, "fixed_in": "monday"}}
    page.route("**/ddp_doctor/notes", lambda route: route.fulfill(json={"writable": False, "notes": notes}))
    tab = opened(page, server, "findings", run="straggler_cpu", finding="straggler")
    box = tab.get_by_label("Note on this finding")
    box.fill("GC <b>on</b> rank 1")
    tab.get_by_role("button", name="Save note").click()
    expect(tab.locator(".note-editor [role=status]")).to_contain_text("Kept in this browser")
    tab.get_by_role("button", name="Mark as fixed").click()
    tags = tab.locator(".finding-row.critical .note-tag")
    expect(tags).to_have_text(["marked as fixed", "GC <b>on</b> rank 1"])
    go(tab, "Verdict", "Summary")
    expect(tab.locator(".costliest .note-tag")).to_have_text(["marked as fixed", "GC <b>on</b> rank 1"])
    chosen(tab, "zero_workers")
    expect(tab.locator(".costliest .note-tag.back")).to_have_text("back: was marked as fixed in monday")


def test_the_budget_reads_out_by_keyboard(page: Page, server: str) -> None:
    tab = opened(page, server, "budget")
    chosen(tab, "straggler_cpu")
    tab.locator(".part").first.focus()
    readout = tab.locator(".readout").first
    expect(readout).to_have_text(re.compile(r"rank 0 on node0: compute [\d.]+\sms, [\d.]+\s% of [\d.]+\sms"))
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    expect(readout).to_have_text(re.compile(r"rank 1 on node0: (?!compute).+ms"))


def test_the_theme_follows_tensorboard_live(new_page: Page, server: str) -> None:
    tab = opened(new_page, server, dark=True)
    chosen(tab, "straggler_cpu")
    body = tab.locator("body")
    expect(tab.locator("html")).to_have_class("dark")
    dark = body.evaluate("element => getComputedStyle(element).backgroundColor")
    new_page.evaluate("document.body.classList.remove('dark-mode')")
    expect(tab.locator("html")).not_to_have_class("dark")
    assert body.evaluate("element => getComputedStyle(element).backgroundColor") != dark


def test_a_name_does_not_turn_what_stands_behind_it(page: Page, server: str) -> None:
    def answer(route: Route) -> None:
        body = route.fetch().json()
        body["views"]["device"] = "H200\u202e\u2067"
        body["diagnosis"]["headline_parts"]["subject"] = "Rank 1\u202e"
        route.fulfill(json=body)

    page.route("**/ddp_doctor/run?*", answer)
    tab = opened(page, server)
    chosen(tab, "straggler_cpu")
    expect(tab.locator(".facts")).to_contain_text("H200\ufffd\ufffd")
    expect(tab.locator("h1")).to_contain_text("Rank 1\ufffd costs 125.2")


def test_a_job_with_an_incomplete_file_is_not_called_healthy(page: Page, server: str) -> None:
    def answer(route: Route) -> None:
        body = route.fetch().json()
        body["diagnosis"].update(headline="No fault found in what is here, but ...", incomplete=["a"], level="info")
        route.fulfill(json=body)

    page.route("**/ddp_doctor/run?run=healthy", answer)
    tab = opened(page, server)
    chosen(tab, "healthy")
    expect(tab.locator("h1.info")).to_contain_text("No fault found in what is here")


def test_a_heading_is_one_sentence_and_lost_ranks_are_a_badge(page: Page, server: str) -> None:
    rest = "1 file is incomplete. This program runs forward passes only and does not train."

    def answer(route: Route) -> None:
        body = route.fetch().json()
        diagnosis = body["diagnosis"]
        diagnosis.update(headline=f"{diagnosis['headline']} {rest}", headline_rest=f" {rest}", world_size=4096)
        route.fulfill(json=body)

    def listed(route: Route) -> None:
        body = route.fetch().json()
        for run in body["runs"]:
            run["world_size"] = 4096
        route.fulfill(json=body)

    page.route("**/ddp_doctor/run?run=straggler_cpu", answer)
    page.route(re.compile(r"/ddp_doctor/runs(\?|$)"), listed)
    tab = opened(page, server, run="straggler_cpu")
    expect(tab.locator("h1")).to_have_text(
        re.compile(r"^Rank 1 \(node0\) costs 125\.\d\sms of 182\.9\sms a step \(68\s%\)\.$")
    )
    expect(tab.locator(".verdict .rest")).to_have_text(rest)
    expect(tab.locator(".facts .few")).to_have_text("4 of 4,096\u00a0ranks")
    expect(button(tab, "straggler_cpu")).to_contain_text("4 of 4,096\u00a0ranks, 3\u00a0steps")


def test_nothing_moves_for_those_who_asked_for_that(new_page: Page, server: str) -> None:
    new_page.emulate_media(reduced_motion="reduce")
    tab = opened(new_page, server, "findings")
    chosen(tab, "straggler_cpu")
    moving = tab.locator("body").evaluate(
        "body => [...body.querySelectorAll('*')].filter(element => "
        "parseFloat(getComputedStyle(element).transitionDuration) > 0).map(element => element.outerHTML)"
    )
    assert moving == []


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
    page.keyboard.press("Enter")
    expect(tab.locator(".tabs [aria-current]")).to_have_text("Ranks & steps")
    expect(tab.locator(".tabs [aria-current]")).to_be_focused()
    expect(tab.locator(".bars")).to_be_visible()
    page.keyboard.press("]")
    expect(tab.locator(".parts [aria-current]")).to_have_text("Steps")
    page.keyboard.press("?")
    expect(tab.get_by_role("dialog")).to_contain_text("move over the ranks and steps")
    expect(tab.get_by_role("dialog")).to_contain_text("Which rank and which step lose the time?")
    page.keyboard.press("Escape")
    expect(tab.get_by_role("dialog")).to_have_count(0)
    for i, title in enumerate(TABS):
        page.keyboard.press(str(i + 1))
        expect(tab.locator(".tabs [aria-current]")).to_have_text(title)
    page.keyboard.press("[")  # the first view of the last tab has none before it
    expect(tab.locator(".tabs [aria-current]")).to_have_text("History")


def test_the_first_verdict_introduces_the_tabs_until_one_is_opened(page: Page, server: str) -> None:
    tab = opened(page, server)
    introduction = tab.locator(".introduction")
    expect(introduction.locator("li")).to_have_count(8)
    expect(introduction).to_contain_text("Are the kernels as fast as the GPU allows, and where in the model are they?")
    go(tab, "Communication")
    expect(tab.locator(".question")).to_have_text("Which collectives are exposed, and is a link slow?")
    expect(introduction).to_have_count(0)
    go(tab, "Verdict")
    expect(introduction).to_have_count(0)
    page.reload()
    expect(tab.locator(".tiles").first).to_be_visible()
    expect(introduction).to_have_count(0)


def test_a_badge_counts_the_findings_with_evidence_there(page: Page, server: str) -> None:
    tab = opened(page, server)
    chosen(tab, "straggler_cpu")
    found = {title: tab.locator(".tabs > span").nth(i).locator(".badge") for i, title in enumerate(TABS)}
    for title in ("Verdict", "Ranks & steps", "Timeline"):
        expect(found[title]).to_have_text("1")
    expect(found["Verdict"]).to_have_attribute("title", re.compile(r"^1\sfinding with evidence here: straggler$"))
    expect(found["Communication"]).to_have_count(0)
    chosen(tab, "no_overlap")
    expect(found["Communication"]).to_have_text("1")


def test_what_the_job_cannot_fill_is_grey_and_says_why(page: Page, server: str) -> None:
    tab = opened(page, server)
    chosen(tab, "straggler_cpu")
    memory = tab.locator(".tabs a", has_text="Memory")
    expect(memory).to_have_class("lacks")
    expect(memory).to_have_attribute("title", "Not checked: the traces have no memory events.")
    memory.click()
    expect(tab.locator(".view.memory")).to_contain_text("Record with:")
    expect(tab.locator(".tabs .lacks")).to_have_count(1)


def test_a_link_to_a_view_or_run_that_is_none_says_so(page: Page, server: str) -> None:
    tab = opened(page, server, "veridct", run="straggler_cpu")
    expect(tab.locator(".panel > [role=status]")).to_contain_text("This link names no view: “veridct”.")
    expect(tab.locator(".view.verdict")).to_be_visible()
    tab = opened(page, server, run="deleted_since")
    expect(tab.locator("main h1")).to_have_text("There is no run deleted_since here.")
    button(tab, "healthy").click()
    expect(tab.locator(".facts b")).to_have_text("healthy")


def test_the_list_of_runs_is_skipped_with_one_key(page: Page, server: str) -> None:
    tab = opened(page, server)
    chosen(tab, "straggler_cpu")
    skip = tab.get_by_role("button", name="Skip the list of runs")
    skip.focus()
    expect(skip).to_be_in_viewport()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    # Then what stands above the view, with one more.
    assert tab.locator(":focus").evaluate("element => element.closest('main') !== null")
    expect(tab.locator(":focus")).to_have_text("Skip to the view")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert tab.locator(":focus").evaluate("element => element.closest('#panel') !== null")


def test_a_prediction_that_fails_says_so(page: Page, server: str) -> None:
    page.route("**/ddp_doctor/whatif?*", lambda route: route.fulfill(json={"nothing": "like it"}))
    tab = opened(page, server, "findings")
    chosen(tab, "straggler_cpu")
    expect(tab.locator(".prospect")).to_contain_text("No prediction")


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
