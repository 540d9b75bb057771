"""Runs of all kinds for the background analysis, which reads them in turn: traces, Flight Recorder dumps, snapshots of
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from tb_ddp_doctor import engine, memory_runs
from tb_ddp_doctor.discover import runs
from tb_ddp_doctor.findings import MemoryRun
from tb_ddp_doctor.storage.reach import Reach
from tb_ddp_doctor.stuck import run as stuck
from tb_ddp_doctor.stuck.model import StuckRun


@dataclass(frozen=True, slots=True)
class ResultWithoutTraces:
    """What the dumps or snapshots of a job say, as `engine.Result` has it for traces."""

    diagnosis: StuckRun | MemoryRun
    #: They are written at once: no end of one is waited for.
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

    def examine(self, progress: stuck.Progress) -> StuckRun:
        """What they say. Raises engine.RunError where none can be read."""
        try:
            return stuck.examine(self.run, self.traces, progress)
        except stuck.StuckError as error:
            raise engine.RunError(str(error)) from None

    def refusal(self) -> str:
        """What is answered to questions about steps."""
        return f"{self.name} has dumps of a stuck job and no steps."


@dataclass(frozen=True, slots=True)
class Snapshots:
    """A job with snapshots of memory, and without traces."""

    run: memory_runs.SnapshotRun

    @property
    def name(self) -> str:
        return self.run.name

    @property
    def files(self) -> tuple[memory_runs.SnapshotFile, ...]:
        return self.run.files

    def examine(self, _: stuck.Progress) -> MemoryRun:
        """What they say. Raises engine.RunError where none can be read."""
        try:
            return memory_runs.examine(self.run)
        except memory_runs.NoSnapshotError as error:
            raise engine.RunError(str(error)) from None

    def refusal(self) -> str:
        """What is answered to questions about steps."""
        return f"{self.name} has snapshots of memory and no steps."


Run: TypeAlias = runs.Run | Dumps | Snapshots
Result: TypeAlias = engine.Result | ResultWithoutTraces


def with_dumps(
    location: str | Mapping[str, str], traces_of: Callable[[], Collection[runs.Run]], reach: Callable[[], Reach] = Reach
) -> list[Run]:
    """The runs of traces, then those of dumps and of snapshots. Without any, raises as `traces_of` does.

    `reach` says, for each directory, how far below it dumps and snapshots are looked for.
    """
    logdirs = list(location.values()) if isinstance(location, Mapping) else [location]
    dumps = [run for logdir in logdirs for run in stuck.find(logdir, reach())]
    snapshots = [run for logdir in logdirs for run in memory_runs.find(logdir, reach())]
    try:
        traces = list(traces_of())
    except runs.DiscoverError:
        if not dumps and not snapshots:
            raise
        traces = []
    names = tuple(run.name for run in traces)
    taken = set(names)
    named: list[Run] = []
    for run in dumps:
        (own,) = stuck.beside([run], taken)
        taken.add(own.name)
        named.append(Dumps(own, names))
    return [*traces, *named, *map(Snapshots, memory_runs.alone(snapshots, traces, taken))]
