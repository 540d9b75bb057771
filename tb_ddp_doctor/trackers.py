"""Logs a diagnosis to an experiment tracker: Weights & Biases, or MLflow.

Each logs the same: the headline, the account of the step in ms by part, the cost of each rule, and the report as one
HTML file. `run` names the run below a log directory; without it the last one is taken.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from tb_ddp_doctor import engine
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.discover import choice
from tb_ddp_doctor.discover.runs import DiscoverError, discover, no_traces
from tb_ddp_doctor.findings import Diagnosis
from tb_ddp_doctor.report import html
from tb_ddp_doctor.storage.cache_directory import default_directory

Logdir = str | os.PathLike[str]
_PREFIX = "ddp_doctor/"
_REPORT = "ddp_doctor.html"


def log_to_wandb(logdir: Logdir, run: str | None = None, *, step: int | None = None) -> Diagnosis:
    """Log to the run of `wandb.init`, at a step. Raises as `tb_ddp_doctor.diagnose`, RuntimeError without a run."""
    import wandb

    if wandb.run is None:
        raise RuntimeError("wandb.init first: there is no run to log to.")
    result = _diagnosed(logdir, run)
    page = wandb.Html(html.page([result], os.fspath(logdir)), inject=False)
    values: dict[str, Any] = {**numbers(result.diagnosis), f"{_PREFIX}report": page}
    wandb.run.log(values, step=step)
    wandb.run.summary[f"{_PREFIX}headline"] = result.diagnosis.headline
    wandb.run.summary[f"{_PREFIX}verdict"] = result.diagnosis.verdict
    return result.diagnosis


def log_to_mlflow(logdir: Logdir, run: str | None = None, *, step: int | None = None) -> Diagnosis:
    """Log to MLflow's active run, or a new one. Raises as `tb_ddp_doctor.diagnose`."""
    import mlflow

    result = _diagnosed(logdir, run)
    mlflow.log_metrics(numbers(result.diagnosis), step=step)
    mlflow.set_tags({f"{_PREFIX}headline": result.diagnosis.headline, f"{_PREFIX}verdict": result.diagnosis.verdict})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / _REPORT
        html.write([result], os.fspath(logdir), path)
        mlflow.log_artifact(str(path))
    return result.diagnosis


def numbers(diagnosis: Diagnosis) -> dict[str, float]:
    """What trackers draw over time, ms a step: the step, the parts of its account, and the cost of each rule."""
    drawn = {f"{_PREFIX}step_ms": diagnosis.step_ms}
    for kind in ("floor", "tracing", "unexplained"):
        drawn[f"{_PREFIX}{kind}_ms"] = diagnosis.account.line(kind).ms
    for one in diagnosis.findings:
        name = f"{_PREFIX}finding/{one.rule}_ms"
        drawn[name] = drawn.get(name, 0.0) + one.cost_ms
    return drawn


def _diagnosed(logdir: Logdir, run: str | None) -> engine.Result:
    cache = Cache(default_directory())
    runs = discover(logdir, peek=cache.peek)
    if not runs:
        raise DiscoverError(no_traces(os.fspath(logdir)))
    (chosen,) = choice.named(runs, run) if run is not None else choice.last(runs)
    return engine.diagnose(chosen, reading=engine.Reading(cache, project=Path.cwd()))
