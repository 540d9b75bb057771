"""The tab's Layers: boxes down to kernels, one rank against others, kernels first, and what is chosen on all ranks."""

from __future__ import annotations

import re

from playwright.sync_api import FrameLocator, Page, expect
from tab import chosen, opened, unnamed_figures


def box(tab: FrameLocator, name: str) -> str:
    """The time in the name of a box."""
    label = tab.get_by_role("button", name=re.compile(rf"^{re.escape(name)}: ")).first.get_attribute("aria-label")
    assert label
    return label.rpartition(": ")[2]


def test_a_module_opens_down_to_its_kernels(page: Page, server: str) -> None:
    tab = opened(page, server, "layers")
    chosen(tab, "straggler_cpu")
    panel = tab.locator(".module-panel")
    expect(panel.locator("h2")).to_have_text("Whole step")
    tab.locator(".explorer").get_by_role("button", name=re.compile("^layer 7: ")).click()
    expect(panel.locator("h2")).to_have_text("layer 7")
    expect(panel.locator(".large")).to_have_text("119.5 ms".replace(" ", "\N{NO-BREAK SPACE}"))
    # The straggler waits for nobody there.
    expect(panel.locator(".rank-bars .number")).to_have_text(["119.73", "4.96", "119.35", "120.42"])
    expect(panel.locator(".kernel-list tbody tr").first).to_contain_text("ncclDevKernel_AllReduce")
    expect(tab.locator(".modules .module").first).to_have_attribute("aria-label", re.compile("^layer 7: "))
    assert box(tab, "layer 7") == panel.locator(".large").inner_text()
    # The keyboard moves over the boxes; the address keeps what is chosen.
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(panel.locator("h2")).to_have_text(re.compile(r"^(forward|exposed communication and wait) of layer 7$"))
    page.wait_for_url(re.compile(r"ddp_doctor\.node="))
    title = panel.locator("h2").inner_text()
    page.reload()
    expect(page.frame_locator("iframe").first.locator(".module-panel h2")).to_have_text(title)
    assert unnamed_figures(tab) == []


def test_a_rank_is_shown_less_others(page: Page, server: str) -> None:
    tab = opened(page, server, "layers")
    chosen(tab, "straggler_cpu")
    panel = tab.locator(".module-panel")
    panel.get_by_role("button", name="rank 1", exact=True).click()
    expect(panel.locator(".note").first).to_contain_text("a step of rank 1")
    tab.locator(".explorer select").nth(1).select_option(label="the other ranks\N{RIGHT SINGLE QUOTATION MARK} median")
    expect(panel.locator(".note").first).to_contain_text("rank 1 less the other ranks")
    assert box(tab, "layer 7").startswith("\N{MINUS SIGN}114.")
    assert box(tab, "GPU idle outside of all modules").startswith("+13")
    tab.locator(".explorer select").nth(1).select_option(label="rank 3")
    expect(panel.locator(".note").first).to_contain_text("rank 1 less rank 3")
    assert box(tab, "layer 7").startswith("\N{MINUS SIGN}115.")
    assert unnamed_figures(tab) == []


def test_a_module_has_its_place_in_a_step(page: Page, server: str) -> None:
    tab = opened(page, server, "layers")
    chosen(tab, "straggler_cpu")
    tab.locator(".explorer").get_by_role("button", name=re.compile("^layer 7: ")).click()
    panel = tab.locator(".module-panel")
    picture = panel.get_by_role("img", name=re.compile("^Rank 0, step 3: forward from "))
    expect(picture.locator(".step-track")).to_have_count(2)
    expect(picture).to_have_attribute("aria-label", re.compile(r"; backward from .*; communication from "))
    panel.get_by_role("button", name="rank 1", exact=True).click()
    expect(panel.get_by_role("img", name=re.compile("^Rank 1, step 3: forward from "))).to_be_visible()
    assert unnamed_figures(tab) == []


def test_the_slowest_step_is_shown_less_the_median_one(page: Page, server: str) -> None:
    tab = opened(page, server, "layers")
    chosen(tab, "straggler_cpu")
    card = tab.locator(".card").filter(has_text="Step 4, the slowest, less step 3, the median one")
    expect(card.locator(".note")).to_contain_text("the median over 4 ranks that have these steps")
    expect(card.get_by_role("button").first).to_have_attribute("aria-label", re.compile(r"^Whole step: .* \+2\.27 ms"))
    # The wait for the straggler is longer in it.
    card.get_by_role("button", name=re.compile("^layer 7: ")).click()
    expect(card.locator(".readout")).to_contain_text("ms in step 4, +9.82 ms")
    kernel = card.get_by_role("button").nth(1)
    expect(kernel).to_contain_text("ncclDevKernel_AllReduce")
    assert unnamed_figures(tab) == []


def test_kernels_come_first_bottom_up_and_layers_are_merged(page: Page, server: str) -> None:
    tab = opened(page, server, "layers")
    chosen(tab, "healthy")
    tab.get_by_role("button", name="8 layers merged").click()
    layer = float(box(tab, "layer *").split()[0])
    assert 40 < layer < 50
    tab.get_by_role("button", name="Bottom-up").click()
    attention = tab.get_by_role("button", name=re.compile("^aten::_cudnn_attention_backward: .+ in layer \\*: "))
    expect(attention.first).to_be_visible()
    tab.get_by_label("Find", exact=False).last.fill("attention")
    expect(tab.locator(".explorer .readout")).to_contain_text(
        re.compile(r"\d+\shits of “attention”: \d+\.\d+\sms in all")
    )
    assert tab.locator(".module.hit").count() >= 2


def test_a_layer_of_the_strip_is_chosen_in_the_picture(page: Page, server: str) -> None:
    tab = opened(page, server, "layers")
    chosen(tab, "healthy")
    tab.locator(".layers-strip").get_by_role("button", name="layer 5").click()
    expect(tab.locator(".module-panel h2")).to_have_text("layer 5")
    tab.get_by_role("link", name="Show in the timeline").click()
    expect(tab.get_by_label("Search")).to_have_value("layer 5")


def test_an_address_names_a_module_and_its_panel_says_what_the_table_says(page: Page, server: str) -> None:
    tab = opened(page, server, "layers", run="straggler_cpu", module="layer%207")
    panel = tab.locator(".module-panel")
    expect(panel.locator("h2")).to_have_text("layer 7")
    expect(panel.get_by_text("p99 over steps")).to_be_visible()
    expect(panel.get_by_text("above attainable")).to_be_visible()
    expect(panel.locator("li", has_text="work")).to_contain_text("GFLOP")
    assert unnamed_figures(tab) == []


def test_kernels_have_their_part_of_the_critical_path(page: Page, server: str) -> None:
    """The straggler's CPU is what the others wait for, and the device idles before its next kernel."""
    tab = opened(page, server, "layers")
    chosen(tab, "straggler_cpu")
    panel = tab.locator(".module-panel")
    critical = panel.locator("li", has_text="on the critical path").locator("b")
    expect(critical).to_have_text("182.9\N{NO-BREAK SPACE}ms")
    tab.locator(".explorer").get_by_role("button", name=re.compile("^layer 6: ")).click()
    expect(critical).to_have_text(re.compile(r"^4\.\d+\sms, 2\.\d\s%\sof it$"))
    of_layer = float(critical.inner_text().split("\N{NO-BREAK SPACE}")[0])
    of_table = tab.get_by_role("row", name=re.compile("^layer 6 ")).get_by_role("cell").all_inner_texts()
    assert any(abs(float(cell) - of_layer) < 0.06 for cell in of_table if re.fullmatch(r"4\.\d\d", cell))
    of_kernels = [float(one) for one in panel.locator(".kernel-list tbody td:last-child").all_inner_texts()]
    assert 0 < sum(of_kernels) < of_layer
    tab.locator(".explorer").get_by_role("button", name=re.compile("^backward of layer 6: ")).click()
    assert 0 < float(critical.inner_text().split("\N{NO-BREAK SPACE}")[0]) < of_layer
    assert unnamed_figures(tab) == []


def test_a_finding_leads_to_the_modules_that_it_names(page: Page, server: str) -> None:
    tab = opened(page, server, "findings", run="healthy", finding="unfused-elementwise")
    link = tab.locator(".opened .ways", has_text="Layers:").get_by_role("link").first
    named = link.inner_text()
    link.click()
    expect(tab.locator(".module-panel h2")).to_have_text(named)
