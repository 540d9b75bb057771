"""Takes the pictures of the tab that the README and the docs show, of `demo_logs` in a real TensorBoard.

    python tests/pictures.py

Run it when what they show changes, and look at them.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

from playwright.sync_api import FrameLocator, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
#: By the file: the run, the view and what else the address says, and the window's size.
PICTURES = {
    "screenshot": ("straggler_cpu", "verdict", "", (1440, 960)),
    "findings": ("straggler_cpu", "findings", "", (1440, 1320)),
    "timeline": ("straggler_cpu", "timeline", "", (1440, 1130)),
    "compare": ("four_workers", "compare", "&p.ddp_doctor.before=zero_workers", (1240, 960)),
}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def wait_for(port: int) -> None:
    """Wait until the server answers. Raises TimeoutError."""
    for _ in range(240):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.5)
    raise TimeoutError(f"no TensorBoard on port {port}")


def ready(tab: FrameLocator, view: str) -> None:
    """Wait until the view is drawn; of findings, open the first."""
    tab.locator(".report h1").wait_for(timeout=120_000)
    if view == "findings":
        tab.locator("details.finding > summary").first.click()


def main() -> None:
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "tensorboard.main", f"--logdir={ROOT / 'demo_logs'}", f"--port={port}"],
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(port)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            for name, (run, view, more, (width, height)) in PICTURES.items():
                page = browser.new_page(viewport={"width": width, "height": height})
                address = f"http://127.0.0.1:{port}/#ddp_doctor&p.ddp_doctor.run={run}&p.ddp_doctor.view={view}{more}"
                page.goto(address)
                ready(page.frame_locator("iframe"), view)
                # TensorBoard's list of runs and all pictures of the view.
                page.wait_for_timeout(6_000)
                page.screenshot(path=ROOT / "docs" / f"{name}.png")
                page.close()
    finally:
        server.terminate()


if __name__ == "__main__":
    main()
