"""The Plan view: its sliders, the predicted bar and the curve, in a real TensorBoard."""

from __future__ import annotations

import re
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, Route, expect
from tab import SCREENSHOTS, get, opened, unnamed_figures, violations_of_axe


@pytest.mark.parametrize("dark", [False, True])
def test_the_predicted_step_follows_its_sliders(page: Page, server: str, dark: bool) -> None:
    tab = opened(page, server, "plan", dark, run="no_overlap")
    said = tab.locator(".prospect")
    # It begins with the findings of the verdict fixed, at the step that the verdict says.
    fix = tab.get_by_label(re.compile("no-overlap"))
    expect(fix).to_be_checked()
    expect(said).to_contain_text(re.compile(r"^47\.3\sms a step instead of 57\.9\sms"))
    fix.uncheck()
    expect(said).to_contain_text("nothing changed")
    expect(tab.locator(".plan-chart .measured")).to_have_count(2)  # this run, and healthy
    # The record's buckets have no limit below 25.6 MiB, so "now" is the last stop.
    slider = tab.get_by_role("slider", name="Bucket size")
    expect(slider).to_have_attribute("aria-valuetext", "now 25.6 MiB or more")
    slider.focus()
    for _ in range(3):
        slider.press("ArrowLeft")
    expect(slider).to_have_attribute("aria-valuetext", "5 MiB")
    expect(said).to_have_text(re.compile(r"4\d\.\d\sms a step instead of 57\.9\sms: 1\d\s% less"))
    expect(tab.locator(".plan-bar.then")).to_have_text(re.compile(r"4\d\.\d\sms"))
    expect(tab.locator("pre")).to_contain_text("bucket_cap_mb=5")
    expect(tab.locator(".plan-rests dt").first).to_have_text("measured")
    expect(tab.locator(".plan-chart .chosen")).to_have_count(1)
    page.wait_for_url(re.compile(re.escape(f"plan={quote('bucket_mb=5', safe='')}")))
    assert violations_of_axe(page) == []
    assert unnamed_figures(tab) == []
    page.screenshot(path=SCREENSHOTS / f"plan-{'dark' if dark else 'light'}.png", full_page=True)
    # What the step goes to, in the Budget's owners.
    expect(
        tab.get_by_role("img", name=re.compile(r"predicted 4\d\.\d\sms: compute .*exposed communication"))
    ).to_be_visible()
    if dark:
        return
    # Runs with other buckets are measured with nothing else changed.
    tab.get_by_label("Sharding", exact=True).select_option("zero1")
    expect(tab.locator(".plan-chart .point")).to_have_count(4)
    expect(tab.locator(".plan-found")).to_contain_text("hsdp: What links within a node take is not known")
    expect(tab.locator(".plan-found")).to_contain_text("MB of states and sends")
    expect(tab.locator("pre")).to_contain_text("ZeroRedundancyOptimizer")
    tab.get_by_label("Sharding", exact=True).select_option("")
    tab.get_by_label("Step over", exact=True).select_option("ranks")
    expect(tab.locator(".plan-found")).to_contain_text(re.compile("Efficiency (is below|stays above) 80"))
    fix.check()
    expect(said).to_contain_text("less")
    page.wait_for_url(re.compile("fixed"))
    # What this loader does in its processes is not recorded; what needs another change waits for it.
    expect(tab.get_by_role("slider", name="DataLoader workers")).to_be_disabled()
    reasons = tab.locator("details.plan-reason")
    expect(reasons.filter(has_text="record with num_workers=0")).to_have_count(1)
    # This job reduces its gradients, and gathers nothing.
    expect(tab.get_by_role("checkbox", name="All-gathers never wait for the CPU")).to_be_disabled()
    expect(reasons.filter(has_text="This job shards no parameters")).to_have_count(1)
    ahead = tab.get_by_role("slider", name="Units gathered ahead")
    expect(ahead).to_be_disabled()
    tab.get_by_label("Sharding", exact=True).select_option("zero3")
    expect(ahead).to_be_enabled()


def asked_for(page: Page, held: list[Route]) -> None:
    """Return once something is held."""
    while not held:
        page.wait_for_timeout(50)


def test_a_change_that_is_made_before_the_first_curve_has_its_curve(page: Page, server: str) -> None:
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route(re.compile(r"/plan\?.*fields=1"), hold)
    tab = opened(page, server, "plan", run="no_overlap")
    fix = tab.get_by_label(re.compile("no-overlap"))
    expect(fix).to_be_checked()
    expect(tab.locator(".prospect")).to_contain_text("instead of")
    asked_for(page, held)
    with page.expect_response(re.compile(r"/plan\?(?!.*fields)")):
        fix.uncheck()
    expect(tab.locator(".prospect")).to_contain_text("nothing changed")
    for route in held:
        route.continue_()
    expect(tab.locator(".plan-chart .measured")).to_have_count(2)


def test_a_change_that_takes_long_says_so(page: Page, server: str) -> None:
    held: list[Route] = []
    is_slow = True

    def hold(route: Route) -> None:
        if is_slow:
            held.append(route)
        else:
            route.continue_()

    tab = opened(page, server, "plan", run="no_overlap")
    said, chart = tab.locator(".prospect"), tab.locator(".plan-chart")
    fix = tab.get_by_label(re.compile("no-overlap"))
    expect(fix).to_be_checked()
    expect(chart).to_have_count(1)
    page.route(re.compile(r"/plan\?"), hold)
    fix.uncheck()
    expect(said).to_have_text("Predicting…")
    expect(tab.locator(".plan-found .note", has_text="Predicting…")).to_have_count(1)
    expect(tab.locator(".plan-picture.stale")).to_have_count(1)
    is_slow = False
    for route in held:
        route.continue_()
    expect(said).to_contain_text("nothing changed")
    expect(chart.locator(".measured")).to_have_count(2)
    expect(tab.locator(".plan-found", has_text="Predicting…")).to_have_count(0)
    expect(tab.locator(".stale")).to_have_count(0)


def test_another_mesh_is_chosen_among_those_of_as_many_ranks(page: Page, server: str) -> None:
    def meshed(route: Route) -> None:
        body = route.fetch().json()
        numbers = dict.fromkeys(("calls", "megabytes", "bus_gb_s", "wait_ms", "transfer_ms", "exposed_ms"))
        more = {"inferred": "", "is_axis": True, "within_node": True, "advice": [], **numbers}
        more |= dict.fromkeys(("wait_share", "transfer_share", "share"))
        body["diagnosis"]["mesh"] = {
            "dimensions": [{"name": name, "size": 2, "stride": by, **more} for name, by in (("dp", 2), ("tp", 1))],
            "coordinates": {str(rank): {"dp": rank // 2, "tp": rank % 2} for rank in range(4)},
        }
        route.fulfill(json=body)

    page.route("**/ddp_doctor/run?*", meshed)
    tab = opened(page, server, "plan", run="healthy")
    meshes = tab.get_by_label("Mesh, as many ranks", exact=True)
    expect(meshes.locator("option")).to_have_text(["as now", "dp=1,tp=4", "dp=4,tp=1"])
    with page.expect_request(re.compile(r"/plan\?.*mesh=dp%3D4%2Ctp%3D1")):
        meshes.select_option("dp=4,tp=1")
    expect(tab.locator("pre")).to_contain_text("--tensor-model-parallel-size 1")
    # The record itself is of data parallelism alone, so that dp=4 is as recorded.
    expect(tab.locator(".prospect")).to_contain_text(re.compile(r"ms a step instead of"))
    tab.get_by_label("Mesh, as many ranks", exact=True).select_option("dp=1,tp=4")
    expect(tab.locator(".plan-found")).to_contain_text("This job has tp=1: how large the activations are")


def test_the_route_refuses_what_makes_no_question(server: str) -> None:
    import urllib.error
    import urllib.request

    base = f"{server}/data/plugin/ddp_doctor/plan?run=healthy"
    assert get(f"{base}&bucket_mb=5&dtype=bf16")["plan"]["prediction"]["step_ms"] > 0
    for query, code in (("&bucket_mb=none", 400), ("&links=1,2", 400), ("&fixed=nothing", 400)):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(base + query, timeout=30)
        with refused.value as answered:
            assert answered.code == code
