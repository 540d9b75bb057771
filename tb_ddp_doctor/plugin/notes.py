"""What people write about findings: one file beside the logs, and nothing else that the plugin ever writes there.

    ddp_doctor_notes.json: {"version": 1, "notes": {"straggler host 1": {"comment": "GC, see #12", "pinned": true,
                            "fixed_in": "run_7"}}}

A note belongs to what a finding says (rule, cause, ranks), so that it is found again in later runs of the directory.
Whoever may write in the directory may have written the file: what is in it is text, bounded in number and length.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

NAME = "ddp_doctor_notes.json"
#: A request, and a file that is read; bytes.
MOST_ASKED, MOST_READ = 8_192, 1 << 20
#: Letters of a finding's key, of a comment and of a run's name; notes in a file.
_MOST_KEY, _MOST_COMMENT, _MOST_RUN, _MOST_NOTES = 300, 1_000, 300, 500

Note = dict[str, Any]


class NoteError(ValueError):
    """A note that is not kept. Its text is a sentence for users, `code` the status of the answer."""

    def __init__(self, sentence: str, code: int) -> None:
        super().__init__(sentence)
        self.code = code


def is_from_here(origin: str | None, host: str) -> bool:
    """Whether a request was sent by a page of this server. Browsers set `Origin`, and no page can change it."""
    return origin is not None and urlsplit(origin).netloc == host


class Notes:
    """The notes of a log directory."""

    def __init__(self, directory: Path | None) -> None:
        """`directory` is None where there is no single local one: then nothing is kept."""
        self._path = None if directory is None else directory / NAME
        self._lock = threading.Lock()

    @property
    def is_writable(self) -> bool:
        """Whether notes can be kept beside the logs."""
        return self._path is not None and os.access(self._path.parent, os.W_OK)

    def all(self) -> dict[str, Note]:
        """The notes that can be read, by what their findings say; those that are none are left out."""
        from tb_ddp_doctor.storage.plain_file import open_plain

        if self._path is None:
            return {}
        try:
            with open_plain(self._path) as file:
                written = json.loads(file.read(MOST_READ))["notes"]
            return dict(list(filter(None, (_valid(*each) for each in written.items())))[:_MOST_NOTES])
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return {}

    def keep(self, content: bytes) -> dict[str, Note]:
        """Keep one note, {"key", "comment", "pinned", "fixed_in"}; an empty one is removed. Returns all.

        Raises NoteError where it is none, or the directory cannot be written.
        """
        from tb_ddp_doctor.storage.whole_file import written_whole

        if self._path is None or not self.is_writable:
            raise NoteError("The log directory cannot be written: notes stay in this browser.", 409)
        try:
            asked = json.loads(content)
            note = _valid(asked["key"], asked)
        except (ValueError, LookupError, TypeError, RecursionError):
            note = None
        if note is None:
            raise NoteError("This is no note: a key, a comment, and whether it is pinned or fixed.", 400)
        key, kept = note
        with self._lock:
            every = self.all()
            every.pop(key, None)
            if any(kept.values()):
                every[key] = kept
            if len(every) > _MOST_NOTES:
                raise NoteError(f"There are {_MOST_NOTES} notes already: remove one first.", 409)
            try:
                with written_whole(self._path) as file:
                    file.write(json.dumps({"version": 1, "notes": every}, indent=1).encode())
            except OSError:
                raise NoteError("The log directory cannot be written: notes stay in this browser.", 409) from None
        return every


def _valid(key: object, note: Mapping[str, object]) -> tuple[str, Note] | None:
    """A key and its note with nothing else in it; None where it is none or too long."""
    comment, run = note.get("comment", ""), note.get("fixed_in", "")
    if not isinstance(key, str) or not isinstance(comment, str) or not isinstance(run, str):
        return None
    if not 0 < len(key) <= _MOST_KEY or len(comment) > _MOST_COMMENT or len(run) > _MOST_RUN:
        return None
    return key, {"comment": comment, "pinned": note.get("pinned") is True, "fixed_in": run}
