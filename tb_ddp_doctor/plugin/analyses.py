"""What is known of each run while it is analysed in the background.

One daemon thread scans the log directory and then reads the runs one after the other: a run already uses every core
through the engine's own pool. The thread starts with the first question that the tab asks and ends when nothing is
left to do. The lock guards the table of runs only; nothing is scanned, read or encoded while it is held.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from tb_ddp_doctor.discover import Run
    from tb_ddp_doctor.engine import Result
    from tb_ddp_doctor.findings import Diagnosis

State = Literal["queued", "reading", "ready", "failed"]
Progress = Callable[[int, int, str], None]

#: A directory that is asked about again after this long is searched again: traces arrive while a job trains.
RESCAN_S = 10.0
#: A search that takes long, on a slow disk, may take this share of the time.
RESCAN_SHARE = 0.05

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Entry:
    """One run and how far it is."""

    run: Run
    #: Changes when the run's files do.
    stamp: Hashable
    state: State = "queued"
    done: int = 0
    total: int = 0
    error: str | None = None
    summary: dict[str, Any] | None = None
    #: The answer to `run?run=NAME`, encoded once.
    body: bytes = b""
    result: Result | None = None

    def listed(self) -> dict[str, Any]:
        return {
            "name": self.run.name,
            "state": self.state,
            "progress": {"done": self.done, "total": self.total},
            "error": self.error,
            **(self.summary or _UNREAD),
        }


_UNREAD: dict[str, Any] = {
    "world_size": None,
    "ranks": None,
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
        diagnose: Callable[[Run, Progress], Result],
        views: Callable[[Result], dict[str, Any]],
        stamp: Callable[[Run], Hashable],
    ) -> None:
        self._scan = scan
        self._diagnose = diagnose
        self._views = views
        self._stamp = stamp
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._opened: str | None = None
        #: When the directory may be searched again, on the monotonic clock; None before the first search has ended.
        self._rescan_at: float | None = None
        self._scan_error: str | None = None
        self._working = False

    def found(self) -> bool:
        """Whether the directory has a run, at once. True until the first scan has ended: see `DiagnosisPlugin`."""
        with self._lock:
            self._wake()
            return self._rescan_at is None or bool(self._entries)

    def listing(self) -> dict[str, Any]:
        """The answer to `runs`; the runs are those of the last search while the next one is due or under way."""
        with self._lock:
            self._wake()
            return {
                "state": "scanning" if self._scan_due() else "ready",
                "error": self._scan_error,
                "runs": [entry.listed() for entry in self._entries.values()],
            }

    def open(self, name: str) -> dict[str, Any] | bytes | None:
        """The diagnosis of a run, encoded; how far it is where it is not ready; None where no run has that name.

        A run that waits its turn is read next.
        """
        with self._lock:
            self._wake()
            entry = self._entries.get(name)
            if entry is None:
                return None if self._rescan_at is not None else {"state": "queued", "progress": {"done": 0, "total": 0}}
            if entry.state == "ready":
                return entry.body
            if entry.state == "failed":
                return {"state": "failed", "error": entry.error}
            self._opened = name
            return {"state": entry.state, "progress": {"done": entry.done, "total": entry.total}}

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
        if opened is not None and opened.state == "queued":
            return opened
        return next((entry for entry in self._entries.values() if entry.state == "queued"), None)

    def _work(self) -> None:
        while True:
            with self._lock:
                scan = self._scan_due()
                entry = None if scan else self._next()
                if entry is not None:
                    entry.state = "reading"
                elif not scan:
                    self._working = False
                    return
            if entry is None:
                self._rescan()
            else:
                self._analyse(entry)

    def _rescan(self) -> None:
        from tb_ddp_doctor.discover import DiscoverError

        began = time.monotonic()
        found: dict[str, _Entry] | None = None
        error = None
        try:
            found = {run.name: _Entry(run, self._stamp(run)) for run in self._scan()}
        except DiscoverError as problem:
            error = str(problem)
        except Exception as problem:  # the page says it, and TensorBoard goes on
            error = f"The log directory could not be searched for traces: {_first_line(problem)}"
            if error != self._scan_error:
                _log.exception("The log directory could not be searched for traces")
        ended = time.monotonic()
        with self._lock:
            if found is not None:
                self._entries = {
                    name: old if (old := self._entries.get(name)) is not None and old.stamp == new.stamp else new
                    for name, new in found.items()
                }
            self._scan_error = error
            self._rescan_at = ended + max(RESCAN_S, (ended - began) / RESCAN_SHARE)

    def _analyse(self, entry: _Entry) -> None:
        from tb_ddp_doctor.engine import RunError

        def progress(done: int, total: int, _file: str) -> None:
            with self._lock:
                entry.done, entry.total = done, total

        try:
            result = self._diagnose(entry.run, progress)
            summary = _summary(result.diagnosis)
            body = self._encode(result)
        except RunError as problem:
            self._fail(entry, str(problem))
        except Exception as problem:  # one run never hides another
            _log.exception("Run %r could not be analysed", entry.run.name)
            self._fail(
                entry, f"This run could not be analysed: {_first_line(problem)} TensorBoard's log has the details."
            )
        else:
            with self._lock:
                entry.state, entry.summary, entry.body = "ready", summary, body
                entry.result = result

    def _fail(self, entry: _Entry, error: str) -> None:
        with self._lock:
            entry.state, entry.error = "failed", error

    def _encode(self, result: Result) -> bytes:
        import msgspec

        try:
            views = self._views(result)
        except Exception:  # without its pictures the page still says what is wrong
            _log.exception("The pictures of run %r could not be made", result.diagnosis.name)
            views = None
        return msgspec.json.encode({"state": "ready", "diagnosis": result.diagnosis, "views": views})


def _summary(diagnosis: Diagnosis) -> dict[str, Any]:
    """What the list of runs shows of a diagnosis. Info findings cost nothing worth a fix, so they lose nothing."""
    from tb_ddp_doctor.findings import Severity

    severities = [Severity[finding.severity.upper()] for finding in diagnosis.findings]
    lost = sum(f.cost_ms for f, s in zip(diagnosis.findings, severities, strict=True) if s > Severity.INFO)
    return {
        "world_size": diagnosis.world_size,
        "ranks": len(diagnosis.ranks),
        "steps": len(diagnosis.steps),
        "step_ms": diagnosis.step_ms,
        "verdict": diagnosis.verdict,
        "severity": max(severities).label if severities else None,
        "lost_ms": min(lost, diagnosis.step_ms),
    }


def _first_line(problem: Exception) -> str:
    """An exception as the end of a sentence: its own words, or its kind where it has none."""
    words = str(problem).strip().splitlines()
    return f"{words[0].rstrip('.') if words else type(problem).__name__}."
