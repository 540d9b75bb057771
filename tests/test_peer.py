"""torch-tb-profiler beside us: where it keeps a trace, and both in one real TensorBoard and a real Chromium."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from playwright.sync_api import Browser, FrameLocator, Page, Route, expect
from tensorboard.plugins import base_plugin
from test_tab import (
    DEMO_LOGS,
    PATIENCE_S,
    analysed,
    browser,  # noqa: F401
    chosen,
    get,
    opened,
    pytestmark,  # noqa: F401 - pytest reads it
    tensorboard,
    wait_for,
)
from werkzeug.test import Client

from tb_ddp_doctor.plugin.plugin import DiagnosisPlugin
from tb_ddp_doctor.plugin.tb_profiler import Place, place
from tb_ddp_doctor.storage.paths import RemotePath

RELEASE = "torch-tb-profiler==0.4.3"
#: A later cycle of the straggler's job, whose names have another time.
CYCLES = "cycles"
LATER_NS = 60 * 10**9
#: Stand-ins for what its page loads from the internet; anything can be done with `google`.
SCRIPTS = {
    "https://www.gstatic.com/charts/loader.js": """
        const anything = new Proxy(function () {}, {
          get: (target, name) => name === "then" || name === Symbol.toPrimitive ? undefined : anything,
          apply: () => anything,
          construct: () => anything,
        });
        window.google = anything;""",
    # With it comes the viewer, whose clock begins with the first event; this one only remembers.
    "https://cdnjs.cloudflare.com/**": """
        window.WebComponents = {};
        document.addEventListener("DOMContentLoaded", () => {
          const viewer = document.createElement("div");
          viewer.id = "trace-viewer";
          viewer.model = {timestampShiftToZeroAmount_: -1_000, bounds: {isEmpty: false}};
          viewer.trackView = window.trackView = {viewport: {interestRange: {}}};
          document.body.append(viewer);
        });""",
}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("runs/job/node0_426.20.pt.trace.json.gz", Place("runs/job", "node0_426", "2", 3, "7")),
        ("runs/job/node0_426.9.pt.trace.json", Place("runs/job", "node0_426", "3", 3, "7")),
        ("runs/job/node1.426.pt.trace.json", Place("runs/job", "node1", "2", 3, "7")),
        ("runs/job/plain.pt.trace.json", Place("runs/job", "plain", "default", 1, "7")),
        ("node0_426.20.pt.trace.json.gz", Place("logs", "node0_426", "1", 1, "7")),
        ("runs/job/rank0_trace.json", None),
        ("../elsewhere/node0_426.20.pt.trace.json.gz", None),
    ],
)
def test_what_its_menus_call_a_trace(tmp_path: Path, name: str, expected: Place | None) -> None:
    logs = tmp_path / "logs"
    (logs / "runs" / "job").mkdir(parents=True)
    # It sorts time stamps as text.
    for span in ("100", "20", "9"):
        (logs / "runs" / "job" / f"node0_426.{span}.pt.trace.json.gz").touch()
    for file in ("node1.425.pt.trace.json", "node1.426.pt.trace.json", "node1.pt.trace.json", "plain.pt.trace.json"):
        (logs / "runs" / "job" / file).touch()
    (logs / "node0_426.20.pt.trace.json.gz").touch()
    assert place(str(logs), Path(os.path.normpath(logs / name)), 7) == expected


def test_traces_that_it_cannot_see() -> None:
    assert place("", Path("job/a.1.pt.trace.json"), 0) is None
    remote = RemotePath.__new__(RemotePath)
    object.__setattr__(remote, "path", "bucket/job/a.1.pt.trace.json")
    assert place("s3://bucket/job", remote, 0) is None


def test_without_it_there_is_nothing_to_offer(tmp_path: Path) -> None:
    shutil.copytree(DEMO_LOGS / "healthy", tmp_path / "healthy")
    plugin = DiagnosisPlugin(base_plugin.TBContext(logdir=str(tmp_path)))
    ask = Client(plugin.get_plugin_apps()["/peer"])
    run = Client(plugin.get_plugin_apps()["/run"])
    wait_for(lambda: run.get("/run?run=healthy").status_code == 200, "the run to be read")
    assert ask.get("/peer?run=healthy&rank=0").get_json(force=True) is None
    assert ask.get("/peer?run=healthy&rank=7").status_code == 404
    assert ask.get("/peer?run=%3Cb%3E&rank=0").status_code == 404


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with torch-tb-profiler alone: in the environment of the tests it would take part in all of them."""
    folder = tmp_path_factory.mktemp("peer")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), RELEASE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        pytest.skip(f"{RELEASE} cannot be installed: {done.stderr[-500:]}")
    return folder


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two jobs of the demo, and one of two profiler cycles."""
    folder = tmp_path_factory.mktemp("logs")
    for run in ("healthy", "straggler_cpu"):
        shutil.copytree(DEMO_LOGS / run, folder / run)
    (folder / CYCLES).mkdir()
    for file in (DEMO_LOGS / "straggler_cpu").iterdir():
        worker, span, ending = file.name.split(".", 2)
        shutil.copy(file, folder / CYCLES)
        shutil.copy(file, folder / CYCLES / f"{worker}.{int(span) + LATER_NS}.{ending}")
    return folder


@pytest.fixture(scope="module")
def server(installed: Path, logs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        path = [str(installed), *filter(None, [os.environ.get("PYTHONPATH")])]
        patch.setenv("PYTHONPATH", os.pathsep.join(path))
        with tensorboard(tmp_path_factory.mktemp("server"), f"--logdir={logs}") as base:
            analysed(base)
            wait_for(lambda: len(theirs(base, "runs")["runs"]) == 3, "its runs to be read")
            yield base


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:  # noqa: F811
    """A page that the internet is closed to."""
    context = browser.new_context(viewport={"width": 1320, "height": 1000})
    context.set_default_timeout(PATIENCE_S * 1000)
    context.route(lambda url: urlsplit(url).hostname != "127.0.0.1", lambda route: route.abort())
    yield context.new_page()
    context.close()


def theirs(base: str, route: str, **query: str) -> Any:
    return get(f"{base}/data/plugin/pytorch_profiler/{route}?{urlencode(query)}")


def ours(base: str, route: str, **query: str) -> Any:
    return get(f"{base}/data/plugin/ddp_doctor/{route}?{urlencode(query)}")


def test_both_are_listed_and_answer(server: str) -> None:
    listing = json.load(urllib.request.urlopen(f"{server}/data/plugins_listing", timeout=30))
    assert listing["ddp_doctor"]["enabled"] and listing["pytorch_profiler"]["enabled"]
    # Ours read the same as alone.
    states = {run["name"]: (run["state"], run["verdict"]) for run in ours(server, "runs")["runs"]}
    assert states == {
        "healthy": ("ready", "healthy"),
        "straggler_cpu": ("ready", "straggler"),
        "cycles/span_1": ("ready", "straggler"),
        "cycles/span_2": ("ready", "straggler"),
    }
    window = ours(server, "run", run="straggler_cpu")["views"]["windows"][0][0]
    asked = {"run": "straggler_cpu", "ranks": "0,1", "start": window["start"], "end": window["end"]}
    assert len(ours(server, "slice", **asked, format="columns")["ranks"]) == 2
    with pytest.raises(urllib.error.HTTPError, match="404"):
        ours(server, "run", run="none")
    # So do theirs.
    assert theirs(server, "runs") == {"runs": ["cycles", "healthy", "straggler_cpu"], "loading": False}
    assert "Trace" in theirs(server, "views", run="straggler_cpu")
    assert len(theirs(server, "workers", run="straggler_cpu", view="Trace")) == 4
    shown = theirs(server, "overview", run="straggler_cpu", worker="node0_427", span="1")
    assert shown["steps"]["rows"]


@pytest.mark.parametrize("run", ["healthy", "straggler_cpu", "cycles/span_1", "cycles/span_2"])
def test_where_we_lead_is_where_it_keeps_the_trace(server: str, logs: Path, run: str) -> None:
    for rank in range(4):
        told = ours(server, "peer", run=run, rank=str(rank))
        query = urlencode({name: told[name] for name in ("run", "worker", "span")})
        with urllib.request.urlopen(f"{server}/data/plugin/pytorch_profiler/trace?{query}", timeout=30) as response:
            kept = response.read()
        files = sorted((logs / told["run"]).glob(f"{told['worker']}.*"))
        # It adds counters at the end.
        mine = files[int(told["span"]) - 1].read_bytes()
        assert gzip.decompress(kept)[:100_000] == gzip.decompress(mine)[:100_000]


def offered(page: Page, server: str, run: str) -> FrameLocator:
    """Our tab, asked to show its first finding in torch-tb-profiler."""
    tab = opened(page, server, "findings")
    chosen(tab, run)
    finding = tab.locator("details.finding").first
    finding.locator("summary").first.click()
    finding.get_by_text("Other tools").click()
    finding.get_by_role("button", name="Show in torch-tb-profiler").click()
    return tab


def menus(page: Page) -> list[str]:
    """What its menus show: run, view, worker, span."""
    return page.frame_locator("iframe[src*=pytorch_profiler]").locator(".MuiSelect-root").all_inner_texts()


def test_a_finding_switches_to_its_trace_view(page: Page, server: str) -> None:
    for address, script in SCRIPTS.items():
        page.route(address, partial(Route.fulfill, body=script, content_type="text/javascript"))
    # The second time its menus show another run, worker and span.
    for run in ("straggler_cpu", "cycles/span_2"):
        tab = offered(page, server, run)
        told = ours(server, "peer", run=run, rank="1")
        words = f"run {told['run']}, view Trace, worker {told['worker']}" + ", span 2" * (told["spans"] == 2)
        expect(tab.locator(".tools [role=status]")).to_have_text(
            f"torch-tb-profiler shows {words}, with the evidence marked.", timeout=PATIENCE_S * 1000
        )
        assert urlsplit(page.url).fragment == "pytorch_profiler"
        assert menus(page) == [told["run"], "Trace", told["worker"], told["span"]]
        evidence = ours(server, "run", run=run)["diagnosis"]["findings"][0]["evidence"]
        seen = next(item for item in evidence if item["rank"] == 1)
        start, end = ((seen[edge] - int(told["base_ns"])) / 1e6 - 1_000 for edge in ("start_ns", "end_ns"))
        (drawing,) = (frame for frame in page.frames if "trace_embedding" in frame.url)
        marked = drawing.evaluate("trackView.viewport.interestRange")
        assert marked == pytest.approx({"min": start, "max": end}, abs=1e-3)


def test_where_its_scripts_do_not_come_it_is_said_what_to_choose(page: Page, server: str) -> None:
    tab = offered(page, server, "straggler_cpu")
    status = tab.locator(".tools [role=status]")
    expect(status).to_contain_text("draws nothing here", timeout=PATIENCE_S * 1000)
    expect(status).to_contain_text("choose run straggler_cpu, view Trace, worker node0_427.")
    # Back in our tab, with the finding as it was; there, all is chosen.
    expect(status).to_be_visible()
    assert urlsplit(page.url).fragment.startswith("ddp_doctor&")
    assert menus(page) == ["straggler_cpu", "Trace", "node0_427", "1"]


def test_where_it_has_not_read_the_run_it_is_said_what_to_choose(page: Page, server: str) -> None:
    page.route("**/pytorch_profiler/runs", lambda route: route.fulfill(json={"runs": ["healthy"], "loading": True}))
    tab = offered(page, server, "straggler_cpu")
    status = tab.locator(".tools [role=status]")
    expect(status).to_contain_text("may still be reading the run", timeout=PATIENCE_S * 1000)
    expect(status).to_contain_text("In the tab PYTORCH_PROFILER choose run straggler_cpu, view Trace")
    expect(status).to_be_visible()
