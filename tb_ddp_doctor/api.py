"""The doctor from Python: `tb_ddp_doctor.diagnose` and `tb_ddp_doctor.compare`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

from tb_ddp_doctor import engine
from tb_ddp_doctor.cache import Cache, default_directory
from tb_ddp_doctor.comparison import build
from tb_ddp_doctor.comparison.model import Comparison
from tb_ddp_doctor.discover import DiscoverError, discover
from tb_ddp_doctor.findings import Diagnosis
from tb_ddp_doctor.scheduler import executor

Logdir = str | os.PathLike[str]


class DoctorWarning(UserWarning):
    """A run that could not be diagnosed, beside others that could."""


def diagnose(
    logdir: Logdir,
    *,
    settings: Mapping[str, Mapping[str, float]] | None = None,
    cache: Logdir | bool | None = True,
    scheduler: str = "",
) -> list[Diagnosis]:
    """Diagnose every run below a log directory, in the order of their names.

    `settings` sets thresholds by rule and name, `{"straggler": {"min_excess": 0.05}}`. What was read is kept in the
    user's cache directory; `cache` names another one, and False or None keeps nothing. `scheduler` is the address of a
    Dask cluster to read on.

    Raises DiscoverError where there is no run, engine.RunError where none can be diagnosed, and ValueError for
    settings that name nothing. A run that cannot be diagnosed beside others is left out with a DoctorWarning.
    """
    return [result.diagnosis for result in _results(logdir, settings or {}, cache, scheduler)]


def compare(before: Logdir, after: Logdir, *, cache: Logdir | bool | None = True, scheduler: str = "") -> Comparison:
    """Compare two runs, each the only one below its directory. Raises as `diagnose`, and ValueError for several."""
    pair: list[engine.Result] = []
    for logdir in (before, after):
        results = _results(logdir, {}, cache, scheduler)
        if len(results) > 1:
            raise ValueError(f"{logdir} holds {len(results)} runs; name the directory of one.")
        pair += results
    return build.compare(*pair)


def _results(
    logdir: Logdir, settings: engine.Settings, cache: Logdir | bool | None, scheduler: str
) -> Sequence[engine.Result]:
    kept = Cache(default_directory() if cache is True else Path(cache) if cache else None)
    runs = discover(os.fspath(logdir), peek=kept.peek)
    if not runs:
        raise DiscoverError(f"{logdir} holds no profiler traces (*.pt.trace.json, *.pt.trace.json.gz).")
    results = []
    failed: list[engine.RunError] = []
    with executor(scheduler) as workers:
        for run in runs:
            try:
                results.append(engine.diagnose(run, reading=engine.Reading(kept, workers), settings=settings))
            except engine.RunError as error:
                failed.append(engine.RunError(f"{run.name}: {error}"))
    if not results:
        raise failed[0]
    for failure in failed:
        warnings.warn(str(failure), DoctorWarning, stacklevel=3)
    return results
