"""What the tab's Hours costs in headless Chromium for a large job: opening, zooming, choosing a range.

    python benchmarks/history.py --large 4096 100032 FOLDER
    python benchmarks/history_view.py FOLDER [--frames 90]

The first line writes step times and keeps their pyramids; this adds a capture of one rank where there is none. The view
asks the code that the plugin asks: "from pyramids" has no kept answer, "kept" has the one of the state of the files.
Frames are those of the browser, which shows 60 in a second at most, while the wheel zooms in and out, and while a range
is drawn wider, once in each frame. Leaves with 1 if a limit is missed. Chromium draws without a GPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from playwright.sync_api import Page

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from test_memory_contents import TRAINS, USUAL
from traces import ranks, write

from frontend import OPENS, PATIENCE_MS, Handler, measured, misses
from tb_ddp_doctor import engine
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.discover.runs import discover
from tb_ddp_doctor.view.answer import answer as view_answer
from tb_ddp_doctor.view.history import kept_history

#: ms from a click on Hours until the frame that shows its picture.
SHOWN = """
(link, patience) => new Promise((done, fail) => {
  const start = performance.now();
  link.click();
  const look = () => {
    if (performance.now() - start > patience) return fail(new Error("no picture"));
    if (!document.querySelector("canvas.hours")) return requestAnimationFrame(look);
    requestAnimationFrame(() => setTimeout(() => done(performance.now() - start)));
  };
  look();
})
"""
#: ms between frames, one event in each: `event(i, box)` says which.
_FRAMES = """
async (canvas, count) => {
  const frame = () => new Promise(requestAnimationFrame);
  const event = %s;
  const box = canvas.getBoundingClientRect();
  const times = [];
  let before = await frame();
  for (let i = 0; i < count; i++) {
    canvas.dispatchEvent(event(i, box));
    const now = await frame();
    times.push(now - before);
    before = now;
  }
  return times;
}
"""
#: In and out again, ten steps each, around a place that moves.
ZOOM = _FRAMES % (
    "(i, box) => new WheelEvent('wheel', { deltaY: i % 20 < 10 ? -100 : 100, clientX: box.left + box.width * (0.3 + 0.4"
    " * i / 90), clientY: box.top + 60, bubbles: true, cancelable: true })"
)
BRUSH = _FRAMES % (
    "(i, box) => new PointerEvent('pointermove', { clientX: box.left + box.width * (0.25 + 0.7 * i / 90), clientY:"
    " box.top + 60, bubbles: true })"
)
#: A frame that comes in time comes 17 ms after the one before; one that is missed makes it 33.
LIMITS_MS = {"opens, kept": 1000, "frames of the zoom": 18, "frames of the range": 18}


class HoursHandler(Handler):
    """As `Handler`, but for the answer of Hours, which is asked for anew each time."""

    def __init__(self, ask: Any, answers: dict[str, bytes], *arguments: Any) -> None:
        self._ask = ask
        super().__init__(answers, *arguments)

    def do_GET(self) -> None:  # noqa: N802
        if "of=history" in self.path:
            self._answers = {"/detail/history": self._ask()}
        super().do_GET()


def measure(page: Page, base: str, frames: int) -> dict[str, list[float]]:
    """Times in ms, several of each, by what was measured."""
    found: dict[str, list[float]] = {}
    for _ in range(5):
        page.goto("about:blank")
        page.goto(base)
        report = page.wait_for_selector(".report")
        report.evaluate(OPENS, "History")
        link = page.get_by_role("link", name="Hours", exact=True)
        found.setdefault("opens, kept", []).append(link.evaluate(SHOWN, PATIENCE_MS))
    canvas = page.locator("canvas.hours")
    canvas.scroll_into_view_if_needed()
    found["frames of the zoom"] = canvas.evaluate(ZOOM, frames)
    page.keyboard.press("Escape")
    box = canvas.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.25 * box["width"], box["y"] + 60)
    page.mouse.down()
    found["frames of the range"] = canvas.evaluate(BRUSH, frames)
    page.mouse.up()
    page.locator(".hours-account", has_text="Steps ").wait_for(timeout=5000)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--frames", type=int, default=90)
    options = parser.parse_args()
    if not (options.folder / "step_1000").is_dir():
        write(options.folder / "step_1000", ranks(TRAINS + USUAL, steps=2))
    (run,) = discover(str(options.folder))
    result, cache = engine.diagnose(run), Cache(options.folder / "cache")
    for kept in options.folder.glob("cache/*/*.answer"):
        kept.unlink()
    began = time.perf_counter()
    size = len(kept_history(result, cache))
    print(f"answer from pyramids: {time.perf_counter() - began:.2f} s, {size / 1e6:.2f} MB")
    one = {"name": result.diagnosis.name, "state": "ready", "error": None, "progress": {"done": 1, "total": 1}}
    numbers = {"world_size": 1, "ranks": 1, "steps": 2, "step_ms": 59.0}
    runs = {"state": "ready", "error": None, "logdir": str(options.folder)}
    verdict = {"verdict": "healthy", "severity": "info", "lost_ms": 0.0}
    routes: dict[str, Any] = {"/runs": {**runs, "runs": [{**one, **numbers, **verdict}]}}
    routes["/run"] = {"state": "ready", **msgspec.json.decode(msgspec.json.encode(view_answer(result)))}
    answers = {route: msgspec.json.encode(body) for route, body in routes.items()}
    handler = partial(HoursHandler, partial(kept_history, result, cache), answers)
    found = measured(handler, lambda page, base: measure(page, base, options.frames))
    return int(misses(found, LIMITS_MS))


if __name__ == "__main__":
    sys.exit(main())
