"""The Memory view in a real browser, as a report holds it."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Page, expect
from tab import SCREENSHOTS, go, unnamed_figures, violations_of_axe
from test_memory_contents import BEFORE_GB, TRAINS, USUAL
from test_memory_snapshot import snapshot
from traces import ranks, write

from tb_ddp_doctor import cli


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_memory_view_shows_what_is_allocated_and_what_would_save_some(
    page: Page,
    tmp_path: Path,
    scheme: Literal["light", "dark"],
) -> None:
    write(tmp_path / "job", ranks(TRAINS + USUAL, TRAINS + USUAL, steps=2), allocated_gb=BEFORE_GB)
    (tmp_path / "job" / "rank0.pickle").write_bytes(pickle.dumps(snapshot("aa..x.")))
    report = tmp_path / "report.html"
    assert cli.main(["diagnose", str(tmp_path / "job"), "--no-cache", "--html", str(report)]) == 0
    page.emulate_media(color_scheme=scheme)
    page.goto(report.as_uri())
    go(page, "Memory")
    expect(page.locator("main")).to_contain_text("90.0 GB allocated at the peak, on rank 0 in step 1, in backward.")
    bar = page.locator(".memory-bar").first
    expect(bar).to_have_attribute(
        "aria-label",
        "parameters 10.00\u00a0GB, gradients 10.00\u00a0GB, optimizer states 20.00\u00a0GB, "
        "activations 30.00\u00a0GB, communication buffers 10.00\u00a0GB, other 10.00\u00a0GB",
    )
    saving = page.locator(".memory-savings li", has_text="ZeRO stage 1")
    saving.locator("summary").click()
    expect(saving).to_contain_text("ZeroRedundancyOptimizer")
    expect(page.locator("canvas.memory-canvas")).to_have_count(2)
    expect(page.locator("main")).to_contain_text("Rank 0 has 3.0 MB allocated of 6.0 MB reserved")
    assert violations_of_axe(page) == []
    assert unnamed_figures(page) == []
    page.screenshot(path=SCREENSHOTS / f"memory-{scheme}.png", full_page=True)
