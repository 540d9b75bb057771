"""The doctor from Python: `tb_ddp_doctor.diagnose`, `compare`, `hours`, `plan` and `examine_dumps`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from tb_ddp_doctor import engine
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.calibration.model import Calibration
from tb_ddp_doctor.choices import no_name
from tb_ddp_doctor.comparison import build
from tb_ddp_doctor.comparison.model import Comparison
from tb_ddp_doctor.config.read import Settings
from tb_ddp_doctor.discover.runs import DiscoverError, Run, discover, no_traces, only_run, with_step_range
from tb_ddp_doctor.facts import Facts
from tb_ddp_doctor.facts.peaks import parsed
from tb_ddp_doctor.findings import Diagnosis, Prospect, Workload
from tb_ddp_doctor.history.collectives import read_collectives
from tb_ddp_doctor.history.hours import Hours
from tb_ddp_doctor.history.logs.find import read_hours
from tb_ddp_doctor.history.summary import summarise
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.planning.answer import OVERVIEW, answer
from tb_ddp_doctor.planning.model import PlanResult, Question
from tb_ddp_doctor.planning.predict import Planner
from tb_ddp_doctor.planning.questions import checked
from tb_ddp_doctor.planning.record import PlanRecord
from tb_ddp_doctor.planning.refusal import CannotPlanError
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.rules import CATALOGUE, is_name
from tb_ddp_doctor.storage.cache_directory import default_directory
from tb_ddp_doctor.stuck import run as dumps
from tb_ddp_doctor.stuck.model import StuckRun
from tb_ddp_doctor.workers.cluster import executor

Logdir = str | os.PathLike[str]


T = TypeVar("T")


class DoctorWarning(UserWarning):
    """A run that could not be diagnosed, beside others that could."""


def diagnose(
    logdir: Logdir,
    *,
    settings: Mapping[str, Mapping[str, float]] | None = None,
    cache: Logdir | bool | None = True,
    scheduler: str = "",
    step_range: str = "",
    workload: Workload | None = None,
    peaks: Sequence[str] = (),
) -> list[Diagnosis]:
    """Diagnose every run below a log directory, in the order of their names.

    `settings` sets thresholds by rule and name, `{"straggler": {"min_excess": 0.05}}`. What was read is kept in the
    user's cache directory; `cache` names another one, and False or None keeps nothing. `scheduler` is the address of a
    Dask cluster to read on. `step_range` is the NVTX range that is a step in recordings of Nsight Systems.
    `workload` says what a step does and what a GPU costs; its rates are then in `Diagnosis.rates`. `peaks` say what
    GPUs can do at most, in place of the table, each as "H100: half=800, memory=3.0" (see `--peaks`).

    Raises DiscoverError where there is no run, engine.RunError where none can be diagnosed, and ValueError for
    settings that name nothing. A run that cannot be diagnosed beside others is left out with a DoctorWarning.
    """
    kept = _cache(cache)
    runs = [with_step_range(run, step_range) for run in _runs(logdir, kept)]
    diagnoses = []
    failed: list[engine.RunError] = []
    with executor(scheduler) as workers:
        reading = engine.Reading(
            kept,
            workers,
            workload=workload or Workload(),
            peaks=tuple(map(parsed, peaks)),
            project=Path.cwd(),
        )
        for run in runs:
            try:
                diagnoses.append(_result(run, reading, settings or {}).diagnosis)
            except engine.RunError as error:
                failed.append(error)
    return _beside(failed, diagnoses)


def compare(before: Logdir, after: Logdir, *, cache: Logdir | bool | None = True, scheduler: str = "") -> Comparison:
    """Compare two runs, each the only one at its place. Raises as `diagnose`, and ValueError for several."""
    kept = _cache(cache)
    runs = [only_run(os.fspath(location), peek=kept.peek) for location in (before, after)]
    with executor(scheduler) as workers:
        return build.compare(*(_result(run, engine.Reading(kept, workers, project=Path.cwd()), {}) for run in runs))


def hours(logdir: Logdir, *, since: int | None = None, cache: Logdir | bool | None = True) -> Hours:
    """The hours of a job, from the time of every step that `Doctor(history=True)` kept in its log directory.

    Without those, from a log of Megatron-LM, torchtitan, TensorBoard, W&B, Lightning or Hugging Face: in the folder, or
    the one named. From step `since` on; `cache` as in `diagnose`. Raises DiscoverError where there are no step times.
    A file that cannot be read is left out with a DoctorWarning.
    """
    job, problems = read_hours(Path(logdir), _cache(cache), since)
    collectives, more = read_collectives(Path(logdir))
    for problem in (*problems, *more):
        warnings.warn(problem, DoctorWarning, stacklevel=2)
    if job is None:
        raise DiscoverError(f"{logdir} has no step times: Doctor(LOGDIR, history=True) records them.")
    return Hours(summarise(job), job, collectives)


def plan(
    logdir: Logdir,
    question: Question | None = None,
    *,
    curves: Mapping[str, Sequence[object]] | None = None,
    cache: Logdir | bool | None = True,
    scheduler: str = "",
) -> list[PlanResult]:
    """Predict the step of every run below a log directory, in the order of their names.

    `question` is what is otherwise, all of it together; `curves` are values of its fields to predict each of, as
    `{"bucket_mb": (1.0, 5.0, 25.0)}`. Without both, those of `planning.answer.OVERVIEW`. What a run cannot tell is a
    refusal in its result. Raises as `diagnose`, and ValueError for values that make no sense and for a finding to fix
    that no rule has.
    """
    kept = _cache(cache)
    runs = _runs(logdir, kept)
    one, curves = checked(question or Question(), curves)
    wanted = curves if curves or one != Question() else OVERVIEW
    with executor(scheduler) as workers:
        results = [_result(run, engine.Reading(kept, workers, project=Path.cwd()), {}) for run in runs]
    return [planned(result, one, wanted or {}, others=results) for result in results]


def planned(
    result: engine.Result,
    question: Question,
    curves: Mapping[str, Sequence[object]],
    calibrations: Mapping[str, Calibration] | None = None,
    others: Sequence[engine.Result] = (),
) -> PlanResult:
    """The plan of a diagnosed run; `calibrations`, by name, are those whose links are asked for, `others` further runs.

    Raises ValueError for a finding to fix that no rule has.
    """
    for name in question.fixed:
        if not is_name(name):
            raise ValueError(no_name("rule", name, CATALOGUE))
    return answer(result.job, lambda: planner(result, calibrations), question, curves, jobs_of_sweep(result, others))


#: What other buckets may cause.
_OF_BUCKETS = {"no-overlap", "small-collectives", "communication-bound"}


def jobs_of_sweep(result: engine.Result, others: Iterable[engine.Result]) -> dict[str, Job]:
    """The jobs of other runs whose alarms, if any, are of their buckets, by name."""
    comparable = (
        other
        for other in others
        if other is not result
        and {one.rule for one in other.diagnosis.findings if one.severity != "info"} <= _OF_BUCKETS
    )
    return {other.job.name: other.job for other in comparable}


def planner(result: engine.Result, calibrations: Mapping[str, Calibration] | None = None) -> Planner:
    """What answers questions about a diagnosed run. Raises CannotPlanError where its steps cannot be played."""
    known = {name for one in result.diagnosis.all_findings for name in (one.id, one.rule)}

    def fix(names: Sequence[str]) -> tuple[Change, Prospect]:
        if unknown := [name for name in names if name not in known]:
            raise CannotPlanError(f"There is no finding {unknown[0]!r} to fix: ddp-doctor diagnose lists this run's.")
        return result.savings.change_of(names), result.savings.without(names)

    return Planner(PlanRecord(Facts(result.job)), fix, calibrations)


def examine_dumps(logdir: Logdir) -> list[StuckRun]:
    """What the Flight Recorder dumps of every job below a log directory say, in the order of their names.

    Raises DiscoverError where there is none, and stuck.run.StuckError where none can be read. Jobs that cannot be read
    beside others are left out with a DoctorWarning.
    """
    runs = dumps.find(os.fspath(logdir))
    if not runs:
        raise DiscoverError(f"{os.fspath(logdir)} holds no Flight Recorder dumps.")
    examined = []
    failed: list[dumps.StuckError] = []
    for one in runs:
        try:
            examined.append(dumps.examine(one))
        except dumps.StuckError as error:
            failed.append(dumps.StuckError(f"{one.name}: {error}"))
    return _beside(failed, examined)


def _beside(failed: Sequence[Exception], done: list[T]) -> list[T]:
    """What was done beside runs that failed, of which the caller's caller is warned; if nothing was, the first error
    is raised.
    """
    if not done:
        raise failed[0]
    for failure in failed:
        warnings.warn(str(failure), DoctorWarning, stacklevel=3)
    return done


def _runs(logdir: Logdir, kept: Cache) -> Sequence[Run]:
    """The runs below a log directory. Raises DiscoverError where there is none."""
    runs = discover(os.fspath(logdir), peek=kept.peek)
    if not runs:
        raise DiscoverError(no_traces(os.fspath(logdir)))
    return runs


def _cache(cache: Logdir | bool | None) -> Cache:
    return Cache(default_directory() if cache is True else Path(cache) if cache else None)


def _result(run: Run, reading: engine.Reading, settings: Settings) -> engine.Result:
    try:
        return engine.diagnose(run, reading=reading, settings=settings)
    except engine.RunError as error:
        raise engine.RunError(f"{run.name}: {error}") from None
