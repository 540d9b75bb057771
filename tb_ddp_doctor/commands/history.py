"""What a job's step times say: what changed, when and on which rank, and where the time went."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from tb_ddp_doctor.commands.output import complain, print_json
from tb_ddp_doctor.commands.runs import cache_of
from tb_ddp_doctor.history.read import history_files
from tb_ddp_doctor.history.summary import summarise
from tb_ddp_doctor.history.windows import read_job
from tb_ddp_doctor.report.history import HistoryAnswer, Nearest, history_lines, openmetrics, webhook_line
from tb_ddp_doctor.view.history import captures_of
from tb_ddp_doctor.workers.pool import CrashError


def run(options: argparse.Namespace, errors: Console) -> int:
    """Summarise and print; 1 where an event costs as much as --fail-on says, 2 where there is nothing to read."""
    logdir = Path(options.logdir)
    if not logdir.is_dir():
        raise ValueError(f"There is no folder {logdir}: name the one that the job gave its Doctor.")
    cache = cache_of(options)
    try:
        job, problems = read_job(history_files(logdir), cache, options.since)
    except CrashError as error:
        complain(errors, f"{logdir} cannot be read: {error}")
        return 2
    cache.trim()
    for problem in problems:
        complain(errors, problem)
    if job is None:
        since = "" if options.since is None else f" from step {options.since} on"
        complain(errors, f"{logdir} has no step times{since}: Doctor(LOGDIR, history=True) records them.")
        return 2
    summary = summarise(job)
    captures = {capture.step: capture.path for capture in captures_of(logdir)}
    near = tuple(Nearest.of(event, captures) for event in summary.events)
    answer = HistoryAnswer(logdir=str(logdir), summary=summary, nearest_captures=near)
    if options.json:
        print_json(answer)
    elif options.webhook:
        sys.stdout.buffer.write(webhook_line(answer))
    elif options.openmetrics:
        sys.stdout.write(openmetrics(answer))
    else:
        sys.stdout.write("\n".join([*history_lines(answer, options.gpu_hour), ""]))
    limit = options.fail_on
    return int(limit is not None and any(event.cost_share * 100 >= limit for event in summary.events))
