"""The line of the user's own code that evidence names, where its file is here.

A trace names any file that it likes. So a line is shown of Python files below the working directory alone, and only
where it names the function that the trace says begins there: of another version of the file it says nothing.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from tb_ddp_doctor.findings import Source

#: Larger files are not written by hand, bytes.
_MOST_BYTES = 1 << 20
#: Longer lines are cut.
_MOST_LETTERS = 200


class SourceLine(msgspec.Struct, frozen=True):
    """A line of a file that is here."""

    #: Absolute, for an editor.
    path: str
    text: str


def source_line(source: Source, folder: Path) -> SourceLine | None:
    """The line where a function begins, in a file below a folder; None where that is not to be read."""
    try:
        root = folder.resolve()
        path = (root / source.file).resolve()
        if path.suffix != ".py" or not path.is_relative_to(root) or not path.is_file():
            return None
        if path.stat().st_size > _MOST_BYTES:
            return None
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except (OSError, ValueError, RuntimeError):
        return None
    text = lines[source.line - 1].strip() if 0 < source.line <= len(lines) else ""
    named = source.function.rpartition(".")[2]
    return SourceLine(str(path), text[:_MOST_LETTERS]) if named and named in text else None
