"""The runs and dumps below the roots, found again at each question and diagnosed once as long as their files stay."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeAlias, TypeVar

from msgspec.structs import replace

from tb_ddp_doctor import engine, memory_runs
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.choices import did_you_mean
from tb_ddp_doctor.discover.runs import DiscoverError, Run, discover
from tb_ddp_doctor.findings import Workload
from tb_ddp_doctor.mcp_tools import wrapping
from tb_ddp_doctor.mcp_tools.roots import Roots
from tb_ddp_doctor.memory_runs import SnapshotRun
from tb_ddp_doctor.storage.paths import FilePath
from tb_ddp_doctor.stuck import run as stuck

#: Diagnoses that are kept in memory: a job of thousands of ranks takes hundreds of MB.
_KEPT = 4
#: What a run's files are: path, size and time of each.
_State: TypeAlias = tuple[tuple[str, int, int], ...]
AnyRun = TypeVar("AnyRun", Run, stuck.DumpRun, SnapshotRun)


class RunsOfRoots:
    """The runs of some roots."""

    def __init__(self, roots: Roots, cache: Cache, workload: Workload, currency: str = "") -> None:
        self.roots = roots
        self.cache = cache
        self._workload = workload
        self._currency = currency
        self._results: OrderedDict[tuple[str, _State], engine.Result] = OrderedDict()

    def traces(self) -> tuple[list[Run], list[str]]:
        """Runs of traces, and a sentence for each that is left out."""
        traced: list[Run] = []
        left_out: list[str] = []
        for prefix, path in self._prefixed():
            try:
                traced += [replace(run, name=prefix + run.name) for run in discover(path, peek=self.cache.peek)]
            except DiscoverError as error:
                left_out.append(str(error))
        return self._inside(traced, left_out), left_out

    def dumps(self) -> list[stuck.DumpRun]:
        """Jobs with Flight Recorder dumps or Python stacks."""
        dumped = [replace(run, name=prefix + run.name) for prefix, path in self._prefixed() for run in stuck.find(path)]
        return stuck.beside(self._inside(dumped, []), [run.name for run in self.traces()[0]])

    def snapshots(self) -> list[SnapshotRun]:
        """Jobs with snapshots of memory and no traces."""
        jobs = [
            replace(run, name=prefix + run.name) for prefix, path in self._prefixed() for run in memory_runs.find(path)
        ]
        traced, _ = self.traces()
        return memory_runs.alone(self._inside(jobs, []), traced, {run.name for run in self.dumps()} if jobs else ())

    def _prefixed(self) -> list[tuple[str, os.PathLike[str]]]:
        """What names of runs begin with, and the directory of these runs."""
        several = len(self.roots.by_name) > 1
        return [(f"{name}/" if several else "", path) for name, path in self.roots.by_name.items()]

    def _inside(self, runs: Iterable[AnyRun], left_out: list[str]) -> list[AnyRun]:
        """Those whose files all lie below the roots: links may lead elsewhere."""
        inside = []
        for run in runs:
            if self.roots.contain(file.path for file in run.files):
                inside.append(run)
            else:
                left_out.append(f"{run.name}: a link leads out of the log directories.")
        return inside

    def result(self, given: str) -> engine.Result:
        """The diagnosis of a run. Raises ValueError where there is none of that name, and engine.RunError."""
        run = _named(given, self.traces()[0], "run of traces")
        key = (run.name, tuple(_state(file.path) for file in run.files))
        if key not in self._results:
            reading = engine.Reading(
                self.cache,
                workload=self._workload,
                currency=self._currency,
                project=Path.cwd(),
                confined_to=self.roots.paths,
            )
            self._results[key] = engine.diagnose(run, reading=reading)
        self._results.move_to_end(key)
        while len(self._results) > _KEPT:
            self._results.popitem(last=False)
        return self._results[key]

    def dump(self, given: str) -> stuck.DumpRun:
        """The dumps of a job. Raises ValueError where there are none, or several and no name."""
        dumped = self.dumps()
        if not given and len(dumped) == 1:
            return dumped[0]
        return _named(given, dumped, "job with dumps")

    def snapshot(self, given: str) -> SnapshotRun:
        """The snapshots of a job. Raises ValueError where there are none, or several and no name."""
        jobs = self.snapshots()
        if not given and len(jobs) == 1:
            return jobs[0]
        return _named(given, jobs, "job with snapshots of memory alone")


def _state(path: FilePath) -> tuple[str, int, int]:
    try:
        status = path.stat()
    except OSError:
        return str(path), -1, -1
    return str(path), status.st_size, status.st_mtime_ns


def _named(given: str, runs: Sequence[AnyRun], kind: str) -> AnyRun:
    """The run of a name, as it is or as an answer shows it, with or without marks."""
    by_name = {name: run for run in runs for name in (wrapping.name(run.name), run.name)}
    for name in (given, f"<data>{given}</data>", given.removeprefix("<data>").removesuffix("</data>")):
        if name in by_name:
            return by_name[name]
    if not given:
        raise ValueError(f"Which {kind}? There are {len(runs)}: the tool list_runs lists all.")
    near = did_you_mean(given, [run.name for run in runs])
    raise ValueError(f"There is no {kind} {given!r}.{near} The tool list_runs lists all.")
