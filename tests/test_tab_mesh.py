"""The view of a job's mesh."""

from __future__ import annotations

import re

from playwright.sync_api import Page, Route, expect
from tab import chosen, drawn, opened, pictured, unnamed_figures


def test_ranks_stand_where_the_mesh_has_them(page: Page, server: str) -> None:
    """Of 16 ranks as pp 2 x dp 4 x tp 2, stage 1 is slow: a panel each, and the keyboard goes from one to the other."""

    def answer(route: Route) -> None:
        body = route.fetch().json()
        diagnosis, views = body["diagnosis"], body["views"]
        ranks = list(range(16))
        for grid in ("busy_ms", "step_ms", "start_ns", "clock_ms"):
            views[grid] = [views[grid][rank // 8] for rank in ranks]
        views["budget_ms"] = {owner: [grid[rank // 8] for rank in ranks] for owner, grid in views["budget_ms"].items()}
        views["nodes"] = [f"node{rank // 8}" for rank in ranks]
        diagnosis["budget_ms"] = {rank: diagnosis["budget_ms"][str(rank // 8)] for rank in ranks}
        diagnosis["findings"][0]["ranks"] = ranks[8:]
        diagnosis["ranks"] = views["ranks"] = ranks
        numbers = ("calls", "megabytes", "bus_gb_s", "wait_ms", "transfer_ms", "exposed_ms")
        shares = ("wait_share", "transfer_share", "share")
        diagnosis["mesh"] = {
            "dimensions": [
                {
                    "name": name,
                    "size": size,
                    "stride": stride,
                    "inferred": why,
                    "is_axis": True,
                    "within_node": name != "pp",
                    **dict.fromkeys(numbers, None if why else 1.5),
                    **dict.fromkeys(shares, None if why else 0.1),
                    "advice": ["tp goes across nodes."] if name == "tp" else [],
                }
                for name, size, stride, why in (("dp", 4, 2, ""), ("pp", 2, 8, "neighbours send"), ("tp", 2, 1, ""))
            ],
            "coordinates": {rank: {"pp": rank // 8, "dp": rank // 2 % 4, "tp": rank % 2} for rank in ranks},
        }
        route.fulfill(json=body)

    page.route("**/ddp_doctor/run?*", answer)
    tab = opened(page, server, "mesh")
    chosen(tab, "straggler_cpu")
    drawn(tab, "mesh")
    picture = tab.locator(".view.mesh canvas")
    expect(picture).to_have_attribute("aria-label", re.compile(r"^16\sranks: tp down, dp across, a panel for each pp$"))
    picture.focus()
    readout = tab.locator(".view.mesh .readout")
    page.keyboard.press("ArrowDown")
    expect(readout).to_have_text(re.compile(r"^rank 1 \(dp 0, pp 0, tp 1\) on node0: [\d.]+\sms$"))
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    expect(readout).to_have_text(re.compile(r"^rank 9 \(dp 0, pp 1, tp 1\) on node1: [\d.]+\sms \(affected rank\)$"))
    expect(tab.get_by_text("tp goes across nodes.")).to_be_visible()
    assert unnamed_figures(tab) == []
    pictured(page, "mesh")
    page.keyboard.press("Enter")
    expect(tab.locator(".chip")).to_have_text(re.compile("rank 9"))
    expect(tab.locator(".view.mesh .note").last).to_contain_text("pp (inferred: neighbours send)")
    # Another pair of dimensions, which the address keeps; to choose the other's own swaps the two.
    tab.get_by_label("Columns").select_option("tp")
    expect(picture).to_have_attribute("aria-label", re.compile("dp down, tp across, a panel for each pp"))
    tab.get_by_label("Coloured by").select_option("wait")
    place = page.evaluate("location.hash")
    assert "mesh-columns=tp" in place and "mesh-rows=dp" in place and "colour=wait" in place
