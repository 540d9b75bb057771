"""What the tab costs in headless Chromium: medians, against their limits.

    python benchmarks/frontend.py [--ranks 1024] [--steps 100] [--events 300000] [--times 15]

The job is a demo's, repeated to as many ranks and steps, and where the timeline is drawn to as many events, of 16
ranks. Where it is opened, it gets as many events as the plugin sends at most. A paint counts until the frame after it
is shown, a drawing until its pixels can be read; "frames" are those of the browser, which shows 60 in a second at
most, while something moves in each. Leaves with 1 if a limit is missed.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import statistics
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import msgspec
from playwright.sync_api import Page, sync_playwright

from tb_ddp_doctor import engine
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.discover.runs import discover
from tb_ddp_doctor.slices import columns
from tb_ddp_doctor.slices import lanes as job_lanes
from tb_ddp_doctor.slices.cut import MOST_EVENTS, SliceWindow, cut, on_common_clock, whole
from tb_ddp_doctor.storage.cache_directory import default_directory
from tb_ddp_doctor.view.answer import answer as view_answer
from tb_ddp_doctor.view.assets import assets
from tb_ddp_doctor.view.details import DETAILS

DEMO = Path(__file__).parent.parent / "demo_logs"
Times = dict[str, list[float]]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium"))), None)
#: The page shows no more ranks in the timeline.
MOST_RANKS = 16
PAGE = b"<!doctype html><html lang=en><body><script type=module>import('./index.js').then(m => m.render())</script>"

#: In the page: ms from the arrival of the run's JSON until the sentence of the verdict is shown.
FIRST_PAINT = """
new Promise((done) => {
  const look = () => {
    if (!document.querySelector(".report h1")) return requestAnimationFrame(look);
    requestAnimationFrame(() => setTimeout(() => {
      const [run] = performance.getEntriesByType("resource").filter(({ name }) => name.includes("/run?"));
      done(performance.now() - run.responseEnd);
    }));
  };
  look();
})
"""
#: ms from a click until the frame that shows what it opened.
CLICK = """
(element) => new Promise((done) => {
  const start = performance.now();
  element.click();
  const look = () =>
    element.parentElement.querySelector(".opened")
      ? requestAnimationFrame(() => setTimeout(() => done(performance.now() - start)))
      : requestAnimationFrame(look);
  look();
})
"""
#: ms from a click on what opens a view, its tab or its button, until the frame that shows it.
OPENS = """
(report, title) => new Promise((done) => {
  const of = (nav) => [...report.querySelectorAll(`${nav} a`)].find(({ textContent }) => textContent === title);
  const start = performance.now();
  (of(".parts") ?? of(".tabs")).click();
  requestAnimationFrame(() => setTimeout(() => done(performance.now() - start)));
})
"""
#: In the page, right after the run is shown: ms from the arrival of a view's own data, the last of some routes, until
#: the frame that shows it: nothing of the view is "Loading" then, and it has what a selector finds.
SHOWS = """
([routes, selector, patience]) => new Promise((done, fail) => {
  const statuses = () => [...document.querySelectorAll(".view [role=status]")];
  const loads = () => statuses().some(({ textContent }) => textContent.startsWith("Loading"));
  const until = performance.now() + patience;
  const look = () => {
    if (performance.now() > until) return fail(new Error(`nothing in the view is ${selector}`));
    if (!document.querySelector(selector) || loads()) return requestAnimationFrame(look);
    requestAnimationFrame(() => setTimeout(() => {
      const isData = ({ name }) => routes.some((route) => name.includes(route));
      const told = performance.getEntriesByType("resource").filter(isData).map(({ responseEnd }) => responseEnd);
      done(performance.now() - Math.max(...told));
    }));
  };
  look();
})
"""
#: How long the page is given to show what it was told, ms: a view that never does ends the benchmark with an error.
PATIENCE_MS = 60_000
#: The views that ask for data of their own.
DETAILED = {
    "Communication": "communication",
    "Kernels": "operators",
    "Ranks": "ranks",
    "Data quality": "quality",
}
#: The views that are opened, each after the one before it: with what the run's answer has.
VIEWS = (
    *("Verdict", "Findings", "Ranks & steps", "Steps", "Ranks", "Mesh", "Timeline"),
    *("Compute", "Layers", "Communication", "Memory", "History"),
)
#: Ranks of the stages of a pipeline and of the groups of tensor parallelism within a stage.
STAGES, TENSOR = 8, 8
#: Pictures of all ranks, by view.
DRAWN = {"steps": "canvas.heat-map", "budget": "canvas.budget-map", "mesh": ".view.mesh canvas"}
#: In the timeline: ms that each frame of a way through the job takes, from its key to its pixels.
TRAVEL = """
async (canvas) => {
  const times = [];
  const again = (key) => key.repeat(8);
  // All of it, along it, and closer and closer.
  for (const key of again("s") + "aadd" + again("s") + again("d") + again("a") + again("w") + again("d") + again("w")) {
    const time = new Promise((done) => {
      let start = 0;
      requestAnimationFrame(() => (start = performance.now()));
      canvas.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
      requestAnimationFrame(() => {
        canvas.getContext("2d").getImageData(0, 0, 1, 1);
        done(performance.now() - start);
      });
    });
    times.push(await time);
  }
  return times;
}
"""
#: ms between frames while the pointer moves over a canvas and what is around it scrolls.
HOVER = """
async (canvas) => {
  const frame = () => new Promise(requestAnimationFrame);
  const box = canvas.getBoundingClientRect();
  const times = [];
  let before = await frame();
  for (let i = 0; i < 90; i++) {
    const at = { clientX: box.left + 100 + 7 * i, clientY: canvas.getBoundingClientRect().top + 30 + 9 * i };
    canvas.dispatchEvent(new PointerEvent("pointermove", { ...at, bubbles: true }));
    canvas.parentElement.scrollTop = 4 * i;
    const now = await frame();
    times.push(now - before);
    before = now;
  }
  return times;
}
"""
#: ms for a canvas to be drawn anew, its pixels read.
DRAW = """
async (canvas) => {
  const { paint } = await import("/canvas.js");
  const start = performance.now();
  paint(canvas);
  canvas.getContext("2d").getImageData(0, 0, 1, 1);
  return performance.now() - start;
}
"""


def report(result: engine.Result, ranks: int, steps: int) -> dict[str, Any]:
    """The answer to `run` for a job of so many ranks and steps."""
    told = json.loads(msgspec.json.encode(view_answer(result)))
    diagnosis: dict[str, Any] = told["diagnosis"]
    pictures = told["views"]
    few_ranks, few_steps = len(diagnosis["ranks"]), len(diagnosis["steps"])

    def grid(rows: list[list[float]]) -> list[list[float]]:
        return [[rows[i % few_ranks][j % few_steps] for j in range(steps)] for i in range(ranks)]

    diagnosis.update(world_size=ranks, ranks=list(range(ranks)), steps=list(range(steps)))
    for table in ("budget_ms", "phases_ms", "host_phases_ms"):
        few = diagnosis[table]
        diagnosis[table] = {str(rank): few[str(rank % few_ranks)] for rank in range(ranks)} if few else {}
    diagnosis["mesh"] = mesh(diagnosis["mesh"], ranks)
    nodes = [f"node{rank // 8}" for rank in range(ranks)]
    pictures.update(ranks=diagnosis["ranks"], steps=diagnosis["steps"], nodes=nodes)
    pictures.update({name: grid(pictures[name]) for name in ("step_ms", "busy_ms", "start_ns")})
    pictures["budget_ms"] = {owner: grid(rows) for owner, rows in pictures["budget_ms"].items()}
    return {"state": "ready", "diagnosis": diagnosis, "views": pictures}


def mesh(of_demo: dict[str, Any], ranks: int) -> dict[str, Any]:
    """The mesh of so many ranks: pp the slowest, tp the fastest; its dimensions communicate as the demo's does."""
    (one,) = of_demo["dimensions"]
    per_stage = max(ranks // STAGES, TENSOR)
    sizes = {"dp": (per_stage // TENSOR, TENSOR), "pp": (STAGES, per_stage), "tp": (TENSOR, 1)}
    places = {
        str(rank): {"pp": rank // per_stage, "dp": rank % per_stage // TENSOR, "tp": rank % TENSOR}
        for rank in range(ranks)
    }
    dimensions = [{**one, "name": name, "size": size, "stride": stride} for name, (size, stride) in sizes.items()]
    return {"dimensions": dimensions, "coordinates": places}


def events(result: engine.Result, count: int) -> dict[str, Any]:
    """The answer to `slice` with so many events that show: the last step of the demo on 16 ranks, over and over."""
    job = result.job
    start = int(on_common_clock(job, 0, job.budget.start_ns[0])[-1])
    length = int(job.budget.window_ns[0, -1])
    file = io.BytesIO()
    columns.write(cut(result, Cache(default_directory()), SliceWindow((0, 1, 2, 3), start, start + length)), file)
    found: dict[str, Any] = json.loads(file.getvalue())
    # So many ranks show the outermost events only.
    outer = [lane["depth"].count(0) for rank in found["ranks"] for lane in rank["lanes"] if lane["role"] != "thread"]
    times = max(round(count / (sum(outer) * MOST_RANKS / 4)), 1)
    for rank in found["ranks"]:
        for lane in rank["lanes"]:
            lane["start_us"] = [at + i * length / 1e3 for i in range(times) for at in lane["start_us"]]
            for column in set(lane) - {"title", "role", "start_us"}:
                lane[column] *= times
    found["end_ns"] = str(start + times * length)
    found["ranks"] = [{**found["ranks"][rank % 4], "rank": rank} for rank in range(MOST_RANKS)]
    return found


def lanes(result: engine.Result, part: dict[str, Any], ranks: int) -> dict[str, Any]:
    """The answer to `lanes` for the window of a slice: the demo's steps, drawn out to its length, on so many ranks."""
    job = result.job
    of_job = job_lanes.lanes(job, whole(job))
    longer = (int(part["end_ns"]) - int(part["start_ns"])) / (int(of_job["end_ns"]) - int(of_job["start_ns"]))
    for lane in of_job["ranks"]:
        for column in ("start_us", "length_us"):
            lane[column] = [us * longer for us in lane[column]]
    few = of_job["ranks"]
    told = [{**few[rank % len(few)], "rank": rank, "node": f"node{rank // 8}"} for rank in range(ranks)]
    return {**of_job, "start_ns": part["start_ns"], "end_ns": part["end_ns"], "ranks": told}


def details(result: engine.Result, ranks: int) -> dict[str, Any]:
    """The answers to `detail` for so many ranks: groups of 8, groups across these, and sends to the next."""
    found = {of: DETAILS[of](result) for of in (*DETAILED.values(), "compute")}
    files = found["quality"]["files"]
    found["quality"]["files"] = [{**files[rank % len(files)], "rank": rank} for rank in range(ranks)]
    columns = found["ranks"]
    found["ranks"] = {name: [values[rank % len(values)] for rank in range(ranks)] for name, values in columns.items()}
    found["ranks"].update(ranks=list(range(ranks)), nodes=[f"node{rank // 8}" for rank in range(ranks)])
    told = found["communication"]
    (family, *_) = told["families"]
    groups = [list(range(first, min(first + 8, ranks))) for first in range(0, ranks, 8)]
    groups += [list(range(first, ranks, 8)) for first in range(8)]
    told["families"] = [
        {**family, "group": str(i), "ranks": group, "size": len(group)} for i, group in enumerate(groups)
    ]
    told["sent"] = [[rank, (rank + 8) % ranks, 8.0, 8e6, 500.0] for rank in range(ranks)]
    return found


class Handler(BaseHTTPRequestHandler):
    """The frontend's files, and the answers of the plugin's routes by name."""

    def __init__(self, answers: dict[str, bytes], *arguments: Any) -> None:
        self._answers = answers
        super().__init__(*arguments)

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        asked = parse_qs(query)
        if of := asked.get("of"):
            path += f"/{of[0]}"
        elif path == "/slice" and len(asked["ranks"][0].split(",")) < MOST_RANKS:
            path += "/sent"
        files = assets()
        if path in files:
            content, kind = files[path][0].read_bytes(), files[path][1]
        elif path == "/":
            content, kind = PAGE, "text/html"
        else:
            content, kind = self._answers.get(path, b"{}"), "application/json"
        self.send_response(200)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with suppress(ConnectionError):  # the page was left before it had all
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


def measure(page: Page, base: str, times: int) -> dict[str, list[float]]:
    """Times in ms, several of each, by what was measured."""
    found: dict[str, list[float]] = {"first useful paint": [], "a finding opens": []}
    for _ in range(times):
        page.goto("about:blank")
        page.goto(base)
        found["first useful paint"].append(page.evaluate(FIRST_PAINT))
        page.goto("about:blank")
        page.goto(f"{base}#ddp_doctor&p.ddp_doctor.view=findings")
        summary = page.wait_for_selector("details.finding > summary")
        found["a finding opens"].append(summary.evaluate(CLICK))
    page.goto("about:blank")
    page.goto(base)
    page.wait_for_selector(".tabs a")
    report = page.wait_for_selector(".report")
    for _ in range(times):
        for title in (*VIEWS[1:], VIEWS[0]):
            found.setdefault(f"{title} opens", []).append(report.evaluate(OPENS, title))
    for title, of in DETAILED.items():
        for _ in range(max(times // 3, 3)):
            page.goto("about:blank")
            page.goto(f"{base}#ddp_doctor&p.ddp_doctor.view={of}")
            found.setdefault(f"{title} shows", []).append(
                page.evaluate(SHOWS, [["/detail?"], ".view .card .scroll", PATIENCE_MS])
            )
    for _ in range(max(times // 3, 3)):
        page.goto("about:blank")
        page.goto(f"{base}#ddp_doctor&p.ddp_doctor.view=timeline")
        found.setdefault("Timeline shows", []).append(
            page.evaluate(SHOWS, [["/slice?", "/lanes?"], ".view > .card details", PATIENCE_MS])
        )
    for view, selector in DRAWN.items():
        page.goto("about:blank")
        page.goto(f"{base}#ddp_doctor&p.ddp_doctor.view={view}")
        canvas = page.wait_for_selector(selector)
        found[f"{view} are drawn" if view == "steps" else f"{view} is drawn"] = [
            canvas.evaluate(DRAW) for _ in range(times)
        ]
        if view == "budget":
            found["frames of the budget"] = canvas.evaluate(HOVER)
    page.goto("about:blank")
    page.goto(f"{base}#ddp_doctor&p.ddp_doctor.view=timeline&p.ddp_doctor.ranks=0-{MOST_RANKS - 1}")
    page.get_by_text("longest events of this window").wait_for()
    found["timeline is drawn"] = page.query_selector("canvas.timeline-canvas").evaluate(TRAVEL)
    return found


#: A frame that comes in time comes 17 ms after the one before; one that is missed makes it 33.
LIMITS_MS = {
    "first useful paint": 500,
    "a finding opens": 100,
    **{f"{title} opens": 100 for title in VIEWS},
    **{f"{title} shows": 200 for title in (*DETAILED, "Timeline")},
    "steps are drawn": 50,
    "budget is drawn": 1000 / 60,
    "mesh is drawn": 50,
    "frames of the budget": 18,
    "timeline is drawn": 1000 / 60,
}


def measured(handler: Callable[..., BaseHTTPRequestHandler], measure: Callable[[Page, str], Times]) -> Times:
    """What is measured on a page of headless Chromium, given its address, while a server answers it."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        page = browser.new_page(viewport={"width": 1320, "height": 1000})
        times = measure(page, f"http://127.0.0.1:{server.server_port}/")
        browser.close()
    return times


def misses(times: Times, limits_ms: Mapping[str, float]) -> bool:
    """Print medians and largest values, ms; whether a median is over its limit."""
    missed = False
    for what, values in times.items():
        median = statistics.median(values)
        missed |= median > limits_ms[what]
        print(f"  {what:<20} {median:7.1f}   worst {max(values):7.1f}   limit {limits_ms[what]:5.0f}")
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--events", type=int, default=300_000)
    parser.add_argument("--times", type=int, default=15)
    options = parser.parse_args()
    (demo,) = (run for run in discover(str(DEMO)) if run.name == "straggler_cpu")
    result = engine.diagnose(demo)
    answer, part = report(result, options.ranks, options.steps), events(result, options.events)
    # The steps lie where the events do.
    length_ms = (int(part["end_ns"]) - int(part["start_ns"])) / 1e6
    starts = [step * length_ms / options.steps for step in range(options.steps)]
    answer["views"].update(origin_ns=part["start_ns"], clock_ms=[starts] * options.ranks, record_ms=[0, length_ms])
    answer["diagnosis"]["critical_path"] = []
    run = {"name": answer["diagnosis"]["name"], "state": "ready", "error": None, "progress": {"done": 1, "total": 1}}
    numbers = {"world_size": options.ranks, "ranks": options.ranks, "steps": options.steps, "step_ms": 100.0}
    runs = {"state": "ready", "error": None, "logdir": "logs"}
    runs["runs"] = [{**run, **numbers, "verdict": "straggler", "severity": "critical", "lost_ms": 1.0}]
    prospect = {"fixed": ["straggler"], "step_ms": 100.0, "without_ms": 50.0, "range_ms": [50.0, 50.0]}
    routes = {"/runs": runs, "/run": answer, "/whatif": prospect, "/lanes": lanes(result, part, 40)}
    routes |= {"/slice": part, "/slice/sent": events(result, MOST_EVENTS)}
    routes |= {f"/detail/{of}": told for of, told in details(result, options.ranks).items()}
    handler = partial(Handler, {route: msgspec.json.encode(body) for route, body in routes.items()})
    found = measured(handler, lambda page, base: measure(page, base, options.times))
    print(f"{options.ranks} ranks x {options.steps} steps, {options.events} events; medians, ms")
    return int(misses(found, LIMITS_MS))


if __name__ == "__main__":
    sys.exit(main())
