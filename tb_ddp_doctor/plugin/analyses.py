"""What is known of each run while it is analysed in the background.

One daemon thread scans the log directory and then reads the runs one after the other: a run already uses every core
through the engine's own pool. The thread starts with the first question that the tab asks and ends when nothing is
left to do. The lock guards the table of runs only; nothing is scanned or read while it is held.

The directory may change all the time. What a run was found to be stays until it is found to be something else; files
that are still arriving (`arrivals`) are left out unless asked for; where files are deleted, the last result stays, and
says so.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from tb_ddp_doctor.plugin.arrivals import FileArrivals, Stamps
from tb_ddp_doctor.plugin.asking import Progress, RunFiles, Shown
from tb_ddp_doctor.plugin.entry import Entry, Files, Ready

if TYPE_CHECKING:
    from tb_ddp_doctor.plugin.runs import Run

#: A directory that is asked about again after this long is searched again: traces arrive while a job trains.
RESCAN_S = 10.0
#: The same while files are arriving, and after TensorBoard's reload button was pressed.
ARRIVING_RESCAN_S = 1.0
#: A search that takes long, on a slow disk, may take this share of the time.
RESCAN_SHARE = 0.05
#: Results of deleted runs that are kept.
_MOST_DELETED = 20

_log = logging.getLogger(__name__)


class Analyses:
    """The runs of one log directory, with their diagnoses as they become ready."""

    def __init__(
        self,
        *,
        scan: Callable[[], Sequence[Run]],
        show: Callable[[RunFiles, Progress], Shown],
        stamps: Callable[[Run], Stamps],
    ) -> None:
        self._scan = scan
        self._show = show
        self._stamps = stamps
        self._arrivals = FileArrivals()
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._entries: dict[str, Entry] = {}
        self._opened: str | None = None
        #: When the directory may be searched again, on the monotonic clock; None before the first search has ended.
        self._rescan_at: float | None = None
        self._scanned_at = 0.0
        self._scan_error: str | None = None
        self._working = False
        self._reading: Entry | None = None

    def has_runs(self) -> bool:
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
                entry.shown and (entry.is_due or entry is self._reading) for entry in self._entries.values()
            )
            return {
                "state": "scanning" if renewed else "ready",
                "error": self._scan_error,
                "runs": [entry.listed() for entry in self._entries.values()],
            }

    def open(self, name: str, *, arriving: bool = False) -> dict[str, Any] | bytes | None:
        """The diagnosis of a run, as it is sent; how far it is where it is not ready; None where no run has that name.

        A run that waits its turn is read next. With `arriving`, so is what there is of files that lack their end.
        """
        with self._lock:
            entry = self._entries.get(name)
            if entry is not None and arriving and entry.files.arriving and not entry.all_asked:
                entry.ask_for_all()
            self._wake()
            if entry is None:
                if self._rescan_at is not None:
                    return None
                return {"state": "queued", "progress": {"done": 0, "total": 0, "file": "", "elapsed_s": None}}
            if entry.shown:
                return entry.shown.shown.body
            if entry.error is not None:
                return {"state": "failed", "error": entry.error}
            self._opened = name
            return {"state": entry.state, "progress": entry.progress.shown()}

    def source(self, name: str) -> RunFiles | None:
        """What a run was found from; None where no run of that name is ready."""
        with self._lock:
            entry = self._entries.get(name)
            return entry.ready.source if entry and entry.ready else None

    def sources(self) -> list[RunFiles]:
        """The same of all runs that are ready."""
        with self._lock:
            return [entry.ready.source for entry in self._entries.values() if entry.ready]

    def _wake(self) -> None:
        """Start the thread if there is something to do; the lock is held."""
        if self._working or (self._next() is None and not self._scan_due()):
            return
        self._working = True
        threading.Thread(target=self._work, name="ddp-doctor", daemon=True).start()

    def _scan_due(self) -> bool:
        return self._rescan_at is None or time.monotonic() >= self._rescan_at

    def _next(self) -> Entry | None:
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
                    entry.begin()
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
        stamped: list[tuple[Run, Stamps]] | None = None
        error = None
        try:
            stamped = [(run, self._stamps(run)) for run in self._scan()]
            self._arrivals.see({path: stamp for _, stamps in stamped for path, stamp in stamps.items()})
        except DiscoverError as problem:
            error = str(problem)
        except Exception as problem:  # the page says it, and TensorBoard goes on
            error = f"The log directory could not be searched for traces: {_first_line(problem)}"
            if error != self._scan_error:
                _log.exception("The log directory could not be searched for traces")
        ended = time.monotonic()
        with self._lock:
            if stamped is not None:
                self._take_up(stamped)
            self._scan_error = error
            arriving = any(entry.files.arriving for entry in self._entries.values())
            pause = ARRIVING_RESCAN_S if arriving else RESCAN_S
            self._scanned_at = ended
            self._rescan_at = ended + max(pause, (ended - began) / RESCAN_SHARE)

    def _take_up(self, stamped: Sequence[tuple[Run, Stamps]]) -> None:
        """Compare the runs of a search with those that are known; the lock is held."""
        entries: dict[str, Entry] = {}
        for run, stamps in stamped:
            files = Files(stamps, changing=self._arrivals.changing(stamps))
            entries[run.name] = self._seen(self._entries.get(run.name), run, files)
        # A run may also have been renamed, or become two, by what was added.
        there = {path for _, stamps in stamped for path in stamps}
        gone = [entry for name, entry in self._entries.items() if name not in entries]
        gone = [entry for entry in gone if entry.shown and not there & entry.files.stamps.keys()]
        for entry in gone[-_MOST_DELETED:]:
            entry.delete()
            entries[entry.run.name] = entry
        self._entries = entries

    def _seen(self, entry: Entry | None, run: Run, files: Files) -> Entry:
        """The entry of a run that a search found, new or as it was known."""
        if entry is None:
            return Entry(run, files)
        before = entry.files
        if entry.shown and files.lack_some_of(before.stamps):
            before.deleted = len(before.stamps) - len(files.stamps)
            return entry
        files.unfinished = before.unfinished
        if before.stamps != files.stamps or self._has_arrived(entry):
            entry.changed(run, files)
        else:
            entry.files = files
        return entry

    def _has_arrived(self, entry: Entry) -> bool:
        """Whether files that were left out can be read now, or are not going to become whole."""
        files = entry.files
        still = self._arrivals.changing(files.changing) | self._arrivals.expected(files.unfinished)
        return not entry.all_asked and still != files.arriving

    def _analyse(self, entry: Entry) -> None:
        from tb_ddp_doctor.workers.answers import CrashError

        def progress(done: int, total: int, file: str) -> None:
            with self._lock:
                entry.read(done, total, PurePath(file).name)

        with self._lock:
            run, stamps, changing = entry.run, entry.files.stamps, entry.files.changing
            expected = frozenset(self._arrivals.expected(stamps))
            if entry.all_asked:
                changing = expected = frozenset()
        source = RunFiles(next(self._numbers), run, changing, expected)
        try:
            shown = self._show(source, progress)
            if shown.error is None and not entry.all_asked and self._changed(run, stamps, changing):
                with self._lock:
                    entry.put_off()
                    self._rescan_at = time.monotonic()
                return
        except CrashError as problem:  # it took more than it may, or TensorBoard ends
            shown = Shown({}, b"", error=str(problem))
        except Exception as problem:  # one run never hides another
            _log.exception("Run %r could not be analysed", entry.run.name)
            error = f"This run could not be analysed: {_first_line(problem)} TensorBoard's log has the details."
            shown = Shown({}, b"", error=error)
        with self._lock:
            if shown.error is None:
                entry.succeed(Ready(shown, source))
            else:
                entry.fail(shown.error, shown.unfinished)

    def _changed(self, run: Run, stamps: Stamps, changing: Collection[str]) -> bool:
        """Whether a file that was read is no longer what the search saw: then the result is of no state of the run."""
        now = self._stamps(run)
        return any(now.get(path) != stamp for path, stamp in stamps.items() if path not in changing)


def _first_line(problem: Exception) -> str:
    """An exception as the end of a sentence: its own words, or its kind where it has none."""
    words = str(problem).strip().splitlines()
    return f"{words[0].rstrip('.') if words else type(problem).__name__}."
