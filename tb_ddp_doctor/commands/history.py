"""What a job's step times say: what changed, when and on which rank, and where the time went."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from tb_ddp_doctor import engine
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.commands.output import complain, print_json
from tb_ddp_doctor.commands.runs import cache_of, diagnose_all
from tb_ddp_doctor.comparison import of_ranks
from tb_ddp_doctor.comparison.build import compare
from tb_ddp_doctor.config.read import read_config
from tb_ddp_doctor.discover.runs import DiscoverError, only_run
from tb_ddp_doctor.history.collectives import read_collectives
from tb_ddp_doctor.history.events import Event
from tb_ddp_doctor.history.logs.find import read_hours
from tb_ddp_doctor.history.sentences import Price
from tb_ddp_doctor.history.summary import summarise
from tb_ddp_doctor.report.history import (
    HistoryAnswer,
    Nearest,
    history_lines,
    history_markdown,
    openmetrics,
    webhook_line,
)
from tb_ddp_doctor.view.history import captures_of
from tb_ddp_doctor.workers.pool import CrashError

#: Changes whose captures are compared.
_COMPARED = 2


def run(options: argparse.Namespace, errors: Console) -> int:
    """Summarise and print; 1 where an event costs as much as --fail-on says, 2 where there is nothing to read."""
    logdir = Path(options.logdir)
    if not logdir.exists():
        raise ValueError(f"There is no {logdir}: name the folder that the job gave its Doctor, or a log.")
    cache = cache_of(options)
    try:
        job, problems = read_hours(logdir, cache, options.since)
    except CrashError as error:
        complain(errors, f"{logdir} cannot be read: {error}")
        return 2
    cache.trim()
    collectives, more = read_collectives(logdir)
    for problem in (*problems, *more):
        complain(errors, problem)
    if job is None and collectives is None:
        since = "" if options.since is None else f" from step {options.since} on"
        complain(errors, f"{logdir} has no step times{since}: Doctor(LOGDIR, history=True) records them.")
        return 2
    summary = summarise(job) if job else None
    events = summary.events if summary else ()
    captures = {capture.step: capture.path for capture in captures_of(logdir)} if logdir.is_dir() else {}
    near = tuple(Nearest.of(event, captures) for event in events)
    answer = HistoryAnswer(
        logdir=str(logdir),
        summary=summary,
        nearest_captures=near,
        collectives=collectives,
        compared=_compared(events, near, cache, errors) if options.compare else {},
    )
    if options.json:
        print_json(answer)
    elif options.markdown:
        text = history_markdown(answer, _price(options, logdir, errors))
        sys.stdout.buffer.write(text.encode("utf-8", errors="replace"))
    elif options.webhook:
        sys.stdout.buffer.write(webhook_line(answer))
    elif options.openmetrics:
        sys.stdout.write(openmetrics(answer))
    else:
        sys.stdout.write("\n".join([*history_lines(answer, _price(options, logdir, errors)), ""]))
    limit = options.fail_on
    return int(limit is not None and any(event.cost_share * 100 >= limit for event in events))


def _price(options: argparse.Namespace, logdir: Path, errors: Console) -> Price | None:
    """What a GPU costs, as the options say, else as files of settings do; None where neither does."""
    config = read_config([logdir, logdir.parent], Path.cwd())
    for warning in config.warnings:
        complain(errors, f"{warning.file}: {warning.message}")
    gpu_hour = config.workload.gpu_hour if options.gpu_hour is None else options.gpu_hour
    return None if gpu_hour is None else Price(gpu_hour, options.currency or config.currency)


def _compared(events: Sequence[Event], near: Sequence[Nearest], cache: Cache, errors: Console) -> dict[int, str]:
    """What the captures on either side of the costliest changes differ in, by the number of the event."""
    differences: dict[int, str] = {}
    for number, (event, captures) in enumerate(zip(events, near, strict=True)):
        if event.kind != "change" or captures.before is None or captures.after is None or len(differences) == _COMPARED:
            continue
        try:
            runs = [only_run(path, peek=cache.peek) for path in (captures.before, captures.after)]
        except (DiscoverError, ValueError) as error:
            complain(errors, str(error))
            continue
        results = diagnose_all(runs, engine.Reading(cache), {}, errors)
        if len(results) == 2:
            before, after = results
            change = compare(before, after)
            parts = [change.headline, of_ranks.sentence(before, after, event.ranks), *change.story[:1]]
            differences[number] = "; ".join(part.rstrip(".") for part in parts if part)
    return differences
