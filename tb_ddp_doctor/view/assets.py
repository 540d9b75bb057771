"""The frontend's files, found by listing their folder: a request never names a path.

A wheel carries them as the package `tb_ddp_doctor.frontend`; a checkout or an editable install has them in
`frontend/src` beside the package.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent

#: Spelled out, since `mimetypes` follows the registry on Windows and can call JavaScript plain text.
_CONTENT_TYPES = {".js": "text/javascript", ".css": "text/css"}


def assets() -> dict[str, tuple[Path, str]]:
    """Route ("/index.js") to file and content type, for every file of the frontend and its folders."""
    for folder in (_PACKAGE / "frontend", _PACKAGE.parent / "frontend" / "src"):
        if (folder / "index.js").is_file():
            return {
                f"/{file.relative_to(folder).as_posix()}": (file, _CONTENT_TYPES[file.suffix])
                for file in sorted(folder.rglob("*"))
                if file.suffix in _CONTENT_TYPES and file.is_file()
            }
    raise FileNotFoundError(f"The files of the Diagnosis tab are missing: no index.js under {_PACKAGE}.")


def folder(contents: dict[str, bytes]) -> str:
    """A route ("/frontend-0123456789ab") that names the files' content: what a browser has kept of it is never old."""
    digest = hashlib.sha256()
    for route, content in sorted(contents.items()):
        digest.update(f"{route} {len(content)} ".encode() + content)
    return f"/frontend-{digest.hexdigest()[:12]}"
