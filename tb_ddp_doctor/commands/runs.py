"""The runs that the options name, found and diagnosed."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import Path

from rich.console import Console

from tb_ddp_doctor import engine
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.calibration.load import load
from tb_ddp_doctor.commands.output import complain, looking, progress
from tb_ddp_doctor.config.read import Settings
from tb_ddp_doctor.discover import choice
from tb_ddp_doctor.discover.runs import DiscoverError, Run, discover, has_step_range, no_traces, with_step_range
from tb_ddp_doctor.facts.peaks import parsed
from tb_ddp_doctor.findings import Workload
from tb_ddp_doctor.report.escape import printable
from tb_ddp_doctor.storage.cache_directory import default_directory
from tb_ddp_doctor.storage.reach import Reach
from tb_ddp_doctor.storage.whole_file import check_output
from tb_ddp_doctor.workers.cluster import executor


def reading_of(options: argparse.Namespace, cache: Cache, workers: Executor | None) -> engine.Reading:
    """How files are read. Raises CalibrationError for a calibration that is none, and ValueError for peaks that are."""
    calibration = load(options.calibration) if options.calibration else None
    workload = {name: getattr(options, name, None) for name in Workload.__struct_fields__}
    peaks = tuple(map(parsed, getattr(options, "peaks", None) or ()))
    return engine.Reading(
        cache,
        workers,
        calibration=calibration,
        workload=Workload(**workload),
        peaks=peaks,
        currency=getattr(options, "currency", None) or "",
        project=None if options.no_config else Path.cwd(),
        has_config=not options.no_config,
    )


def cache_of(options: argparse.Namespace) -> Cache:
    """The cache that the options ask for."""
    directory = None if options.no_cache else options.cache or default_directory()
    return Cache(directory, round(options.cache_size * 2**30))


def discovered(options: argparse.Namespace, errors: Console, *, needed: bool = True) -> tuple[Cache, list[Run]]:
    """The cache and the runs that the options ask for.

    Where some are needed: raises DiscoverError if there are none, ValueError if none has the name that is asked for.
    """
    cache = cache_of(options)
    try:
        with looking(errors) as looked:
            reach = partial(Reach, everywhere=options.everywhere, looked=looked)
            chosen = _chosen(discover(options.logdir, peek=cache.peek, reach=reach), options, needed=needed)
        runs = [with_step_range(run, options.step_range) for run in chosen]
        if options.step_range and not any(has_step_range(file) for run in runs for file in run.files):
            complain(
                errors,
                f"--step-range {options.step_range} changes nothing: it is for recordings of Nsight Systems, and "
                "there is none here.",
            )
    except DiscoverError:
        if needed:
            raise
        runs = []
    if not runs and needed:
        raise DiscoverError(no_traces(options.logdir))
    return cache, runs


def _chosen(runs: Sequence[Run], options: argparse.Namespace, *, needed: bool) -> Sequence[Run]:
    """The run of `--run` or `--last`, without these all; ValueError for a name that no run has, where one is needed."""
    if options.last:
        return choice.last(runs)
    if options.run is None or not runs:
        return runs
    return choice.named(runs, options.run) if needed else [run for run in runs if run.name == options.run]


def diagnosed(
    options: argparse.Namespace, errors: Console, cache: Cache, runs: Sequence[Run], settings: Settings | None = None
) -> list[engine.Result]:
    """Diagnose runs as the options say, one after the other; of one that cannot be, say why."""
    with executor(options.scheduler) as workers:
        return diagnose_all(runs, reading_of(options, cache, workers), settings or {}, errors)


def diagnose_all(
    runs: Sequence[Run], reading: engine.Reading, settings: Settings, errors: Console
) -> list[engine.Result]:
    """Diagnose runs one after the other; of one that cannot be, say why."""
    results = []
    with progress(errors) as counting:
        for run in runs:
            count = counting(printable(run.name), len(run.files))
            try:
                results.append(engine.diagnose(run, progress=count, reading=reading, settings=settings))
            except engine.RunError as error:
                complain(errors, f"{run.name}: {error}")
    return results


def check_findings(option: str, names: Sequence[str], results: Sequence[engine.Result]) -> None:
    """Raise ValueError where findings are named, by id or by rule, that no run has."""
    ids_of = {result.diagnosis.name: [one.id for one in result.diagnosis.all_findings] for result in results}
    known = {name for ids in ids_of.values() for one in ids for name in (one, one.partition(":")[0])}
    if missing := [name for name in names if name not in known]:
        there_are = "; ".join(f"{run}: {', '.join(ids) or 'none'}" for run, ids in ids_of.items())
        raise ValueError(f"{option}: there is no finding {missing[0]!r}. The findings are: {there_are}.")


def check_outside(options: argparse.Namespace) -> None:
    """Raise ValueError where `--output` is in the log directory."""
    if options.output.resolve().is_relative_to(Path(options.logdir).resolve()):
        raise ValueError(
            f"-o {options.output} is inside of the log directory, where nothing is written: name a place outside of it."
        )


def one_result(options: argparse.Namespace, errors: Console) -> tuple[Cache, engine.Result]:
    """The run to write a part of; ValueError where it is not clear which, or where to."""
    from tb_ddp_doctor.slices import files

    files.check_name(options.output)
    check_output(options.output)
    check_outside(options)
    cache, runs = discovered(options, errors)
    if len(runs) > 1:
        names = ", ".join(run.name for run in runs)
        raise ValueError(
            f"{options.logdir} has {len(runs)} runs. Take the last one with --last, or name one of these with --run: "
            f"{names}."
        )
    results = diagnosed(options, errors, cache, runs)
    if not results:
        raise ValueError(f"{options.output} is not written: the run could not be diagnosed, as said above.")
    return cache, results[0]
