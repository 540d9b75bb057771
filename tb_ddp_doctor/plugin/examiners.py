"""The processes in which runs are diagnosed, and in which questions about them are answered.

A few processes stay (`workers.standing`), and each keeps what it found of the runs that it was asked about. A run is
asked about where it was diagnosed, or, while that process is at another run, in a further one, which reads it from the
cache. Each task may take what a file of its runs' size may. One that takes more is a sentence; its process is ended,
and what it had found of other runs is found again when somebody asks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tb_ddp_doctor.plugin.asking import Progress, Reply, RunFiles, RunQuestion, Shown

if TYPE_CHECKING:
    from tb_ddp_doctor.plugin.examination import Examination
    from tb_ddp_doctor.workers.limits import Limits
    from tb_ddp_doctor.workers.standing import StandingProcess

#: One that diagnoses in the background, and as many as answers are computed at once (`turns.AT_ONCE`).
_MOST = 3
#: Files beside the traces, which are read meanwhile, have time limits of their own; CPU time is not theirs.
_BESIDE_S = 300.0
#: What they take, imported once for all, also by those that they read files in.
_IMPORTS = ("tb_ddp_doctor.plugin.examination", "tb_ddp_doctor.digest.build", "tb_ddp_doctor.trace.reader")


class _Member:
    """A process, and the runs that it was asked about."""

    def __init__(self, process: StandingProcess) -> None:
        self.process = process
        self.knows: set[int] = set()
        self.is_free = False
        #: Whether the last thing that it did was to diagnose a run for the list.
        self.shows = False


class Examiners:
    """An `Examiner` in processes of its own."""

    def __init__(self, scheduler: str = "") -> None:
        """With the address of a Dask scheduler, traces are read on its cluster."""
        self._scheduler = scheduler
        self._members: list[_Member] = []
        self._change = threading.Condition()
        self._here: Examination | None = None

    def show(self, source: RunFiles, progress: Progress) -> Shown:
        """What is shown of a run. Raises CrashError, and what the diagnosis raises."""
        if (here := self._of_this_process(source)) is not None:
            return here.show(source, progress)
        with self._member({source.number}, shows=True) as member:
            return member.process.call((self._scheduler, source), _limits(source), progress, gives=Shown)

    def reply(self, question: RunQuestion) -> Reply:
        """The answer to a question. Raises CrashError, and what answering raises."""
        sources = (question.source, *question.others)
        if (here := self._of_this_process(*sources)) is not None:
            return here.reply(question)
        with self._member({source.number for source in sources}, shows=False) as member:
            return member.process.call((self._scheduler, question), _limits(*sources), lambda *_: None, gives=Reply)

    def _of_this_process(self, *sources: RunFiles) -> Examination | None:
        """What examines them here: dumps and snapshots, which have no more to ask about, and files of this process."""
        from tb_ddp_doctor.plugin.runs import Dumps, Snapshots
        from tb_ddp_doctor.workers.pool import is_of_this_process

        def is_here(source: RunFiles) -> bool:
            if isinstance(source.run, Dumps | Snapshots):
                return True
            return any(is_of_this_process(file.path) for file in source.run.files)

        if not any(map(is_here, sources)):
            return None
        with self._change:
            if self._here is None:
                from tb_ddp_doctor.plugin.examination import Examination

                self._here = Examination(self._scheduler)
            return self._here

    @contextmanager
    def _member(self, numbers: set[int], *, shows: bool) -> Iterator[_Member]:
        """A process, for one task."""
        with self._change:
            while (member := self._free(numbers, shows=shows)) is None:
                self._change.wait()
            member.is_free = False
        try:
            yield member
        finally:
            with self._change:
                member.is_free, member.shows = True, shows
                member.knows |= numbers
                if member.process.ended:
                    self._members.remove(member)
                self._change.notify()

    def _free(self, numbers: set[int], *, shows: bool) -> _Member | None:
        """A process that has nothing to do, if there may be one; the lock is held."""
        free = [member for member in self._members if member.is_free]
        knowing = [member for member in free if numbers <= member.knows]
        if not knowing and len(self._members) < _MOST and not (shows and free):
            self._members.append(_Member(_started()))
            return self._members[-1]
        free.sort(key=lambda member: member.shows != shows)
        return next(iter([*knowing, *free]), None)


def _started() -> StandingProcess:
    from tb_ddp_doctor.workers.standing import StandingProcess

    return StandingProcess(_examine, imports=_IMPORTS)


def _limits(*sources: RunFiles) -> Limits:
    """What a question about runs may take, by the size of their files."""
    from msgspec.structs import replace

    from tb_ddp_doctor.plugin.runs import Dumps, Snapshots
    from tb_ddp_doctor.workers.limits import limits_for
    from tb_ddp_doctor.workers.pool import json_bytes

    files = [file for source in sources if not isinstance(source.run, Dumps | Snapshots) for file in source.run.files]
    limits = limits_for(sum(file.size for file in files), sum(json_bytes(file.path, file.size) for file in files))
    return replace(limits, seconds=limits.seconds + _BESIDE_S)


#: Of a process: what it has found, made when it is first asked.
_examination: Examination | None = None


def _examine(
    asked: tuple[str, RunFiles | RunQuestion], progress: Progress, joining: Callable[[], None]
) -> Shown | Reply:
    """Do what is asked, in the process that is to do it."""
    global _examination  # noqa: PLW0603 - it lives as long as the process
    from tb_ddp_doctor.plugin.examination import Examination

    scheduler, question = asked
    _examination = _examination or Examination(scheduler)
    if isinstance(question, RunFiles):
        return _examination.show(question, progress, joining)
    return _examination.reply(question, joining)
