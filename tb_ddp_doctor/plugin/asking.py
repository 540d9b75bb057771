"""What the plugin asks the processes that diagnose runs, and what they answer (`examiners`).

TensorBoard's process has of a run its summary and the JSON that the tab opens with. All that is computed from a run's
traces is computed elsewhere: it may take for ever, or all memory, where somebody made the traces for that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from tb_ddp_doctor.plugin.runs import Run

#: Called with the number of files read, of files in all, and the file that was read last.
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class RunFiles:
    """One state of a run's files, to be diagnosed."""

    #: Of this state alone: who has diagnosed it need not do so again.
    number: int
    run: Run
    #: Paths of files that are being written, which are not read, and of those that are left out if they lack their end.
    changing: frozenset[str] = frozenset()
    expected: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Shown:
    """What the list of runs, and the tab when it opens, show of a run."""

    summary: dict[str, Any]
    #: The answer to `run?run=NAME`: JSON in gzip.
    body: bytes
    #: Paths of the files that were read and left out, since their end is still to come.
    unfinished: tuple[str, ...] = ()
    #: Why there is nothing to show, a sentence; None where there is.
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RunQuestion:
    """What a request asks about a run."""

    #: As the route is called, "detail".
    route: str
    source: RunFiles
    parameters: Mapping[str, str]
    #: Further runs that the answer is made from.
    others: tuple[RunFiles, ...] = ()
    #: What the user opened.
    logdir: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a request."""

    content: bytes
    content_type: str = "application/json"
    code: int = 200
    headers: tuple[tuple[str, str], ...] = ()


class Examiner(Protocol):
    """What diagnoses runs and answers questions about them, for any thread."""

    def show(self, source: RunFiles, progress: Progress) -> Shown:
        """What is shown of a run. May raise anything: the run then cannot be analysed."""

    def reply(self, question: RunQuestion) -> Reply:
        """The answer to a question; the run is diagnosed again where that is not at hand. May raise anything."""
