"""Runs of both kinds, traces and Flight Recorder dumps, for the background analysis: it reads them in turn."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from tb_ddp_doctor import engine
from tb_ddp_doctor.discover import runs
from tb_ddp_doctor.storage.reach import Reach
from tb_ddp_doctor.stuck import run as stuck
from tb_ddp_doctor.stuck.model import StuckRun


@dataclass(frozen=True, slots=True)
class DumpResult:
    """What the dumps of a job say, as `engine.Result` has it for traces."""

    diagnosis: StuckRun
    #: Dumps are written at once: no end of one is waited for.
    unfinished: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Dumps:
    """A job with dumps, and the names of all runs of traces beside it."""

    run: stuck.DumpRun
    traces: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.run.name

    @property
    def files(self) -> tuple[stuck.DumpFile, ...]:
        return (*self.run.files, *(stuck.DumpFile(path, None, "", "stacks") for path in self.run.stacks))


Run: TypeAlias = runs.Run | Dumps
Result: TypeAlias = engine.Result | DumpResult


def with_dumps(
    location: str | Mapping[str, str], found: Callable[[], Collection[runs.Run]], reach: Callable[[], Reach] = Reach
) -> list[Run]:
    """The runs of traces, and after them those of dumps. Raises as `found` does where there are no dumps.

    `reach` says, for each directory, how far below it dumps are looked for.
    """
    logdirs = list(location.values()) if isinstance(location, Mapping) else [location]
    dumps = [run for logdir in logdirs for run in stuck.find(logdir, reach())]
    try:
        traces = list(found())
    except runs.DiscoverError:
        if not dumps:
            raise
        traces = []
    names = tuple(run.name for run in traces)
    taken = set(names)
    named: list[Run] = []
    for run in dumps:
        (own,) = stuck.beside([run], taken)
        taken.add(own.name)
        named.append(Dumps(own, names))
    return [*traces, *named]


def examine(run: Dumps, progress: stuck.Progress) -> DumpResult:
    """What its dumps say. Raises engine.RunError where none can be read."""
    try:
        return DumpResult(stuck.examine(run.run, run.traces, progress))
    except stuck.StuckError as error:
        raise engine.RunError(str(error)) from None
