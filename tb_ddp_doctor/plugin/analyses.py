"""What is known of each run while it is analysed in the background.

One daemon thread scans the log directory and then reads the runs one after the other: a run already uses every core
through the engine's own pool. The thread starts with the first question that the tab asks and ends when nothing is
left to do. The lock guards the table of runs only; nothing is scanned, read or encoded while it is held.

The directory may change all the time. What a run was found to be stays until it is found to be something else; files
that are still arriving (`arrivals`) are left out unless asked for; where files are deleted, the last result stays, and
says so.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal

from tb_ddp_doctor.plugin.arrivals import Arrivals, Stamps
from tb_ddp_doctor.view.summary import summary

if TYPE_CHECKING:
    from tb_ddp_doctor.plugin.runs import Result, Run

State = Literal["queued", "reading", "ready", "failed"]
Progress = Callable[[int, int, str], None]
#: Gives the result of a run without the files of the third, and without those of the fourth that lack their end.
Diagnose = Callable[["Run", Progress, Collection[str], Collection[str]], "Result"]

#: A directory that is asked about again after this long is searched again: traces arrive while a job trains.
RESCAN_S = 10.0
#: The same while files are arriving, and after TensorBoard's reload button was pressed.
ARRIVING_RESCAN_S = 1.0
#: A search that takes long, on a slow disk, may take this share of the time.
RESCAN_SHARE = 0.05
#: Results of deleted runs that are kept.
_MOST_DELETED = 20

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Entry:
    """One run and how far it is."""

    run: Run
    #: Its files when it was last taken up.
    files: Stamps
    state: State = "queued"
    #: Whether it is to be read, for the first time or again: `state` tells what there is to show, not what is to do.
    due: bool = True
    #: Files that changed too recently to be read, and those that were read and lack their end.
    changing: frozenset[str] = frozenset()
    unfinished: frozenset[str] = frozenset()
    #: Whether somebody asked for what is there of files that are still arriving.
    all_asked: bool = False
    #: Files that are gone since.
    deleted: int = 0
    done: int = 0
    total: int = 0
    #: The file read last, and when reading began on the monotonic clock, s.
    file: str = ""
    began: float = 0.0
    error: str | None = None
    summary: dict[str, Any] | None = None
    #: The answer to `run?run=NAME`, encoded once.
    body: bytes = b""
    result: Result | None = None

    @property
    def is_due(self) -> bool:
        """Whether it is to be read, and there is something to read."""
        return self.due and (self.all_asked or not self.files or len(self.changing) < len(self.files))

    @property
    def arriving(self) -> int:
        return len(self.changing | self.unfinished)

    def progress(self) -> dict[str, Any]:
        # Of what is read no more this is left out: the page draws an entry anew when it changes.
        elapsed = round(time.monotonic() - self.began, 1) if self.state == "reading" else None
        return {"done": self.done, "total": self.total, "file": self.file, "elapsed_s": elapsed}

    def listed(self) -> dict[str, Any]:
        return {
            "name": self.run.name,
            "state": self.state,
            "progress": self.progress(),
            "error": self.error,
            "arriving": self.arriving,
            "deleted": self.deleted,
            **(self.summary or _UNREAD),
        }


_UNREAD: dict[str, Any] = {
    "world_size": None,
    "ranks": None,
    "incomplete": None,
    "steps": None,
    "step_ms": None,
    "verdict": None,
    "severity": None,
    "lost_ms": None,
}


class Analyses:
    """The runs of one log directory, with their diagnoses as they become ready."""

    def __init__(
        self,
        *,
        scan: Callable[[], Sequence[Run]],
        diagnose: Diagnose,
        views: Callable[[Result], dict[str, Any] | None],
        stamps: Callable[[Run], Stamps],
    ) -> None:
        self._scan = scan
        self._diagnose = diagnose
        self._views = views
        self._stamps = stamps
        self._arrivals = Arrivals()
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._opened: str | None = None
        #: When the directory may be searched again, on the monotonic clock; None before the first search has ended.
        self._rescan_at: float | None = None
        self._scanned_at = 0.0
        self._scan_error: str | None = None
        self._working = False
        self._reading: _Entry | None = None

    def found(self) -> bool:
        """Whether the directory has a run, at once. True until the first scan has ended: see `DiagnosisPlugin`."""
        with self._lock:
            self._wake()
            return self._rescan_at is None or bool(self._entries)

    def listing(self, *, reload: bool = False) -> dict[str, Any]:
        """The answer to `runs`: the runs of the last search, "scanning" while it or what was shown is being renewed.

        With `reload`, the directory is searched again without waiting for its time.
        """
        with self._lock:
            if reload and self._rescan_at is not None:
                self._rescan_at = min(self._rescan_at, self._scanned_at + ARRIVING_RESCAN_S)
            self._wake()
            renewed = self._scan_due() or any(
                entry.body and (entry.is_due or entry is self._reading) for entry in self._entries.values()
            )
            return {
                "state": "scanning" if renewed else "ready",
                "error": self._scan_error,
                "runs": [entry.listed() for entry in self._entries.values()],
            }

    def open(self, name: str, *, arriving: bool = False) -> dict[str, Any] | bytes | None:
        """The diagnosis of a run, encoded; how far it is where it is not ready; None where no run has that name.

        A run that waits its turn is read next. With `arriving`, so is what there is of files that lack their end.
        """
        with self._lock:
            entry = self._entries.get(name)
            if entry is not None and arriving and entry.arriving and not entry.all_asked:
                entry.all_asked = entry.due = True
                entry.state, entry.body = "queued", b""
            self._wake()
            if entry is None:
                if self._rescan_at is not None:
                    return None
                return {"state": "queued", "progress": {"done": 0, "total": 0, "file": "", "elapsed_s": None}}
            if entry.state == "ready":
                return entry.body
            if entry.state == "failed":
                return {"state": "failed", "error": entry.error}
            self._opened = name
            return {"state": entry.state, "progress": entry.progress()}

    def result(self, name: str) -> Result | None:
        """What a run was found to be; None where no run of that name is ready."""
        with self._lock:
            entry = self._entries.get(name)
            return entry.result if entry else None

    def _wake(self) -> None:
        """Start the thread if there is something to do; the lock is held."""
        if self._working or (self._next() is None and not self._scan_due()):
            return
        self._working = True
        threading.Thread(target=self._work, name="ddp-doctor", daemon=True).start()

    def _scan_due(self) -> bool:
        return self._rescan_at is None or time.monotonic() >= self._rescan_at

    def _next(self) -> _Entry | None:
        opened = self._entries.get(self._opened or "")
        if opened is not None and opened.is_due:
            return opened
        return next((entry for entry in self._entries.values() if entry.is_due), None)

    def _work(self) -> None:
        while True:
            with self._lock:
                scan = self._scan_due()
                entry = None if scan else self._next()
                self._reading = entry
                if entry is not None:
                    entry.due = False
                    entry.state = entry.state if entry.body else "reading"
                    entry.began = time.monotonic()
                elif not scan:
                    self._working = False
                    return
            if entry is None:
                self._rescan()
            else:
                self._analyse(entry)

    def _rescan(self) -> None:
        from tb_ddp_doctor.discover.runs import DiscoverError

        began = time.monotonic()
        found: list[tuple[Run, Stamps]] | None = None
        error = None
        try:
            found = [(run, self._stamps(run)) for run in self._scan()]
            self._arrivals.see({path: stamp for _, stamps in found for path, stamp in stamps.items()})
        except DiscoverError as problem:
            error = str(problem)
        except Exception as problem:  # the page says it, and TensorBoard goes on
            error = f"The log directory could not be searched for traces: {_first_line(problem)}"
            if error != self._scan_error:
                _log.exception("The log directory could not be searched for traces")
        ended = time.monotonic()
        with self._lock:
            if found is not None:
                self._take_up(found)
            self._scan_error = error
            arriving = any(entry.arriving for entry in self._entries.values())
            pause = ARRIVING_RESCAN_S if arriving else RESCAN_S
            self._scanned_at = ended
            self._rescan_at = ended + max(pause, (ended - began) / RESCAN_SHARE)

    def _take_up(self, found: Sequence[tuple[Run, Stamps]]) -> None:
        """Compare the runs of a search with those that are known; the lock is held."""
        entries: dict[str, _Entry] = {}
        for run, files in found:
            entry = self._entries.get(run.name)
            if entry is None:
                entry = _Entry(run, files)
            elif entry.body and len(files) < len(entry.files) and files.items() <= entry.files.items():
                entry.deleted = len(entry.files) - len(files)
                entries[run.name] = entry
                continue
            elif entry.files != files or self._has_arrived(entry):
                entry.run, entry.files, entry.due = run, files, True
                if not entry.body:
                    entry.state, entry.error = "queued", None
            entry.deleted = 0
            entry.changing = self._arrivals.changing(files)
            entries[run.name] = entry
        # A run may also have been renamed, or become two, by what was added.
        there = {path for _, files in found for path in files}
        gone = [entry for name, entry in self._entries.items() if name not in entries]
        gone = [entry for entry in gone if entry.body and not there & entry.files.keys()]
        for entry in gone[-_MOST_DELETED:]:
            entry.deleted, entry.due = max(len(entry.files), 1), False
            entry.changing = entry.unfinished = frozenset()
            entries[entry.run.name] = entry
        self._entries = entries

    def _has_arrived(self, entry: _Entry) -> bool:
        """Whether files that were left out can be read now, or are not going to become whole."""
        still = self._arrivals.changing(entry.changing) | self._arrivals.expected(entry.unfinished)
        return not entry.all_asked and still != entry.changing | entry.unfinished

    def _analyse(self, entry: _Entry) -> None:
        from tb_ddp_doctor.engine import RunError

        def progress(done: int, total: int, file: str) -> None:
            with self._lock:
                if not entry.body:  # else nothing shows it
                    entry.done, entry.total, entry.file = done, total, PurePath(file).name

        with self._lock:
            run, files, changing = entry.run, entry.files, entry.changing
            expected = self._arrivals.expected(files)
            if entry.all_asked:
                changing = expected = frozenset()
        try:
            result = self._diagnose(run, progress, changing, expected)
            summarised = summary(result.diagnosis)
            body = self._encode(result)
            if not entry.all_asked and self._changed(run, files, changing):
                self._put_off(entry)
                return
        except RunError as problem:
            self._fail(entry, str(problem), problem.unfinished)
        except Exception as problem:  # one run never hides another
            _log.exception("Run %r could not be analysed", entry.run.name)
            self._fail(
                entry, f"This run could not be analysed: {_first_line(problem)} TensorBoard's log has the details."
            )
        else:
            with self._lock:
                entry.state, entry.summary, entry.body, entry.error = "ready", summarised, body, None
                entry.unfinished = frozenset(result.unfinished)
                entry.result = result

    def _changed(self, run: Run, files: Stamps, changing: Collection[str]) -> bool:
        """Whether a file that was read is no longer what the search saw: then the result is of no state of the run."""
        now = self._stamps(run)
        return any(now.get(path) != stamp for path, stamp in files.items() if path not in changing)

    def _put_off(self, entry: _Entry) -> None:
        """Read it again after another search."""
        with self._lock:
            entry.due = True
            entry.state = entry.state if entry.body else "queued"
            self._rescan_at = time.monotonic()

    def _fail(self, entry: _Entry, error: str, unfinished: Collection[str] = ()) -> None:
        """Say why there is no result; while the rest of files may come, that is no failure."""
        with self._lock:
            entry.unfinished = frozenset(unfinished)
            if unfinished and not entry.body:
                entry.state = "queued"
            else:
                entry.state, entry.error = "failed", error
                entry.body, entry.summary, entry.result = b"", None, None

    def _encode(self, result: Result) -> bytes:
        import msgspec

        try:
            views = self._views(result)
        except Exception:  # without its pictures the page still says what is wrong
            _log.exception("The pictures of run %r could not be made", result.diagnosis.name)
            views = None
        return msgspec.json.encode({"state": "ready", "diagnosis": result.diagnosis, "views": views})


def _first_line(problem: Exception) -> str:
    """An exception as the end of a sentence: its own words, or its kind where it has none."""
    words = str(problem).strip().splitlines()
    return f"{words[0].rstrip('.') if words else type(problem).__name__}."
