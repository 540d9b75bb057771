"""The tab on a job without a GPU, and on one that Nsight Systems recorded: no word of what the job does not have."""

from __future__ import annotations

from collections.abc import Iterator

import nsys_files
import pytest
import traces
from playwright.sync_api import FrameLocator, Page, expect
from tab import VIEWS, analysed, chosen, drawn, opened, tensorboard, timeline, unfold, unnamed_figures
from traces import ranks

#: Rank 1 is outside any op while rank 0 waits for it in a collective.
USUAL = """
    rank# step |1
          host [load][fwd....]            [opt]
          gloo                [ar........]
"""
LATE = """
    rank# step |1
          host [load]         [fwd....]   [opt]
          gloo                         [ar]
"""
STALLED = """
    rank# step |1
          host [fwd]                    [bwd][ar][opt]
          gpu  [fwd........]            [bwd.........]
          nccl                                        [ar....]
"""
#: All that a view says: its text, and what shows when something is pointed at or read aloud.
SAID = """main => [main.innerText, ...[...main.querySelectorAll('[title], [aria-label]')].flatMap(
    part => [part.getAttribute('title') ?? '', part.getAttribute('aria-label') ?? ''])].join('\\n')"""
#: What a job on CPUs has none of. What rules look for, and the terms' meanings, speak of jobs with a GPU too.
OF_GPUS = ("GPU idle", "on the GPU", "GPU work", "Activity.CUDA", "nvidia-smi", "cuda*Sync", "cudaMalloc", "cudaFree")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("cpus")
    logs = folder / "logs"
    traces.write(logs / "on_cpus", ranks(USUAL, LATE, USUAL))
    recorded = traces.read(ranks(STALLED, STALLED), metadata="nowhere")
    nsys_files.write(logs / "by_nsys" / "job.sqlite", recorded)
    with tensorboard(folder, "--logdir", str(logs)) as address:
        analysed(address)
        yield address


def said(tab: FrameLocator, view: str) -> str:
    """All that a view says, unfolded."""
    drawn(tab, view)
    unfold(tab)
    return str(tab.locator("main").evaluate(SAID))


@pytest.mark.parametrize("view", [view for view in VIEWS if view != "compare"])  # the other run has a GPU
def test_no_view_of_a_job_on_cpus_speaks_of_gpus(shared_page: Page, base: str, view: str) -> None:
    tab = opened(shared_page, base, view)
    chosen(tab, "on_cpus")
    words = said(tab, view)
    assert "rank 1" in words.lower()
    assert not [word for word in OF_GPUS if word in words], words


def test_a_chosen_gap_and_a_range_of_a_job_on_cpus_do_not_speak_of_gpus(page: Page, base: str) -> None:
    tab = opened(page, base, "timeline")
    chosen(tab, "on_cpus")
    canvas, dock = timeline(tab), tab.locator(".dock")
    page.keyboard.press("n")
    expect(dock.locator("h3")).to_have_text("CPU outside any op")
    box = canvas.bounding_box()
    assert box
    page.keyboard.down("Shift")
    page.mouse.move(box["x"] + 300, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 600, box["y"] + 60)
    page.mouse.up()
    page.keyboard.up("Shift")
    heads = tab.get_by_role("region", name="Time per owner and rank in the selected range").locator("th")
    expect(heads.filter(has_text="idle")).to_have_text(["idle"])


@pytest.mark.parametrize("view", ["verdict", "findings", "memory"])
def test_a_job_of_nsight_systems_is_told_what_nsight_systems_can_record(
    shared_page: Page, base: str, view: str
) -> None:
    tab = opened(shared_page, base, view)
    chosen(tab, "by_nsys")
    words = said(tab, view)
    assert not [word for word in ("with_stack", "record_shapes=True, with_stack", "on_trace_ready") if word in words]
    assert unnamed_figures(tab) == []
    if view == "findings":
        assert "nsys profile" in words
        assert "ddp-doctor capture LOGDIR" not in words
