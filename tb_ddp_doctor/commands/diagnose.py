"""Diagnose every run below a log directory."""

from __future__ import annotations

import argparse
import math
import sys
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console

from tb_ddp_doctor import engine, memory_runs, wording
from tb_ddp_doctor.commands.output import Errors, complain, looking, print_json, progress, say_written
from tb_ddp_doctor.commands.runs import diagnosed, discovered
from tb_ddp_doctor.findings import SCHEMA_VERSION, Diagnosis, MemoryRun, Severity
from tb_ddp_doctor.flight.find import DumpRun, find
from tb_ddp_doctor.report.escape import printable
from tb_ddp_doctor.storage.reach import Reach
from tb_ddp_doctor.storage.whole_file import check_output, written_whole

# What one kind of answer alone needs is imported for it: a small job from the cache takes little else.
if TYPE_CHECKING:
    from tb_ddp_doctor.cache import Cache
    from tb_ddp_doctor.discover.runs import Run
    from tb_ddp_doctor.report.layers import LayersAsked
    from tb_ddp_doctor.stuck.model import StuckRun


def run(options: argparse.Namespace, errors: Console) -> int:
    """Diagnose, write and print; the status says what `--fail-on` asks for."""
    settings = _settings(options.set)
    for written in filter(None, (options.html, options.junit, options.pprof, options.collapsed)):
        check_output(written)
    with looking(errors) as looked:
        reach = Reach(everywhere=options.everywhere, looked=looked)
        dumps = [job for job in find(options.logdir, reach) if options.run in (None, job.name)]
        snapshots = memory_runs.find(options.logdir, Reach(everywhere=options.everywhere, looked=looked))
    cache, runs, snapshots = _with_snapshots(options, errors, dumps, snapshots)
    results = diagnosed(options, errors, cache, runs, settings)
    earlier = _earlier(options, errors, cache)
    stuck = _examine_all(dumps, [run.name for run in runs], errors) if dumps else []
    memory = memory_runs.examine_all(snapshots, lambda run, error: complain(errors, f"{run.name}: {error}"))
    jobs: list[StuckRun | MemoryRun] = [*stuck, *memory]
    if options.junit:
        _write_junit(
            results,
            jobs,
            [*(run.name for run in runs), *(dump.name for dump in dumps), *(one.name for one in snapshots)],
            options,
            errors,
        )
    if not results and not jobs:
        return 2
    _show(results, stuck, memory, options, errors)
    if options.against and not earlier:
        return 2
    _print_differences(earlier, results, options)
    if (options.pprof or options.collapsed) and not _write_stacks(results, options, errors):
        return 2
    diagnoses = [result.diagnosis for result in results]
    if options.fail_on is None:
        return 0
    if _worst(diagnoses, jobs) >= Severity[options.fail_on.upper()]:
        return 1
    # What was not seen has not passed, nor what cannot be told.
    if len(results) < len(runs) or len(jobs) < len(dumps) + len(snapshots):
        return 2
    verdicts = {*(diagnosis.verdict for diagnosis in diagnoses), *(job.verdict for job in jobs)}
    return 3 if "unknown" in verdicts else 0


def _with_snapshots(
    options: argparse.Namespace, errors: Console, dumps: Sequence[DumpRun], snapshots: Sequence[memory_runs.SnapshotRun]
) -> tuple[Cache, list[Run], list[memory_runs.SnapshotRun]]:
    """The cache, the runs of traces, and the snapshots that none of these reads beside its own files.

    Raises as `discovered` where there is neither a run nor a dump nor a snapshot.
    """
    # The last run is one of traces.
    snapshots = [] if options.last else snapshots
    mine = [run for run in snapshots if options.run in (None, run.name)]
    cache, runs = discovered(options, errors, needed=not dumps and not mine)
    taken = [dump.name for dump in dumps]
    if not snapshots:
        return cache, runs, []
    # Of `--run NAME`, the other runs of the directory have their snapshots too.
    remaining = memory_runs.alone(snapshots, runs, taken)
    return cache, runs, [run for run in remaining if options.run in (None, run.name)]


def _settings(assignments: Sequence[str]) -> dict[str, dict[str, float]]:
    """Raises ValueError, with a sentence, for what is no RULE.THRESHOLD=NUMBER."""
    settings: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for assignment in assignments:
        name, _, value = assignment.partition("=")
        rule, _, threshold = name.rpartition(".")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(
                f"--set takes RULE.THRESHOLD=NUMBER, such as straggler.min_excess=0.05, not {assignment!r}. "
                "ddp-doctor explain RULE lists the thresholds of a rule."
            )
        settings[rule][threshold] = number
    return dict(settings)


def _examine_all(dumps: Sequence[DumpRun], traces: Sequence[str], errors: Console) -> list[StuckRun]:
    """What the dumps of each job say; `traces` are the names of all runs of traces."""
    from tb_ddp_doctor.stuck import run as stuck

    examined = []
    with progress(errors) as counting:
        for run in stuck.beside(dumps, traces):
            count = counting(printable(run.name), len(run.files))
            try:
                examined.append(stuck.examine(run, traces, count))
            except stuck.StuckError as error:
                complain(errors, f"{run.name}: {error}")
    return examined


def _write_junit(
    results: Sequence[engine.Result],
    jobs: Sequence[StuckRun | MemoryRun],
    names: Sequence[str],
    options: argparse.Namespace,
    errors: Console,
) -> None:
    """Write JUnit XML of all runs, `names`: those that could not be diagnosed are in it, with what was said of them."""
    from tb_ddp_doctor.report import ci

    done = {*(result.diagnosis.name for result in results), *(job.name for job in jobs)}
    said = errors.complaints if isinstance(errors, Errors) else []
    undone = {
        name: next((one for one in said if one.startswith(f"{name}: ")), f"{name} could not be diagnosed.")
        for name in names
        if name not in done
    }
    fails_from = Severity[options.fail_on.upper()] if options.fail_on else ci.FAILS_FROM
    text = ci.junit([result.diagnosis for result in results], jobs, undone, fails_from)
    with written_whole(options.junit) as file:
        file.write(text)
    say_written(errors, options.junit, f"{len(names)} run{'s' if len(names) > 1 else ''}, JUnit XML")


def _write_stacks(results: Sequence[engine.Result], options: argparse.Namespace, errors: Console) -> bool:
    """Write the times of modules for other viewers; whether there are any."""
    from tb_ddp_doctor.facts import MissingFactError
    from tb_ddp_doctor.report import flame

    try:
        stacks = flame.stacks(results, options.rank)
        made = [(options.pprof, flame.pprof(stacks))] if options.pprof else []
        if options.collapsed:
            made.append((options.collapsed, flame.collapsed(stacks, options.collapsed_amount)))
    except MissingFactError as error:
        complain(errors, str(error))
        return False
    for path, data in made:
        with written_whole(path) as file:
            file.write(data)
        say_written(errors, path, f"{len(stacks)} stacks")
    return True


def _show(
    results: Sequence[engine.Result],
    stuck: Sequence[StuckRun],
    memory: Sequence[MemoryRun],
    options: argparse.Namespace,
    errors: Console,
) -> None:
    """Write and print what the options ask for."""
    jobs: list[StuckRun | MemoryRun] = [*stuck, *memory]
    if options.html:
        from tb_ddp_doctor.report import html

        size = html.write(results, options.logdir, options.html, jobs)
        count = len(results) + len(jobs)
        say_written(errors, options.html, f"{count} run{'s' if count > 1 else ''}, {wording.size(size)}")
    if options.markdown:
        from tb_ddp_doctor.report import markdown, memory_run
        from tb_ddp_doctor.report import stuck as report_of_stuck

        sections = [
            markdown.document(results) if results else "",
            report_of_stuck.markdown(stuck),
            memory_run.markdown(memory),
        ]
        sys.stdout.buffer.write("\n".join(filter(None, sections)).encode("utf-8", errors="replace"))
    elif options.github:
        from tb_ddp_doctor.report import ci

        text = ci.github([result.diagnosis for result in results], jobs)
        sys.stdout.buffer.write(text.encode("utf-8", errors="replace"))
    elif options.json:
        from tb_ddp_doctor.stuck.model import Report

        print_json(Report(SCHEMA_VERSION, tuple(result.diagnosis for result in results), tuple(stuck), tuple(memory)))
    else:
        from tb_ddp_doctor.report import terminal

        console = Console(highlight=False)
        for result in results:
            terminal.diagnosed(
                console,
                result,
                verbose=options.verbose,
                communication=options.communication,
                phases=options.phases,
                critical_path=options.critical_path,
                memory=options.memory,
                roofline=options.roofline,
                layers=_layers(options),
            )
        if jobs:
            from tb_ddp_doctor.report import memory_run
            from tb_ddp_doctor.report import stuck as report_of_stuck

            for job in stuck:
                report_of_stuck.print_run(console, job)
            for run in memory:
                memory_run.print_run(console, run)


def _earlier(options: argparse.Namespace, errors: Console, cache: Cache) -> list[engine.Result]:
    """The run of `--against`; none where none is asked for, or where it cannot be diagnosed, which is said.

    Raises DiscoverError where there is no run, or several.
    """
    if not options.against:
        return []
    if not options.layers:
        raise ValueError("--against compares the modules of two runs: it goes with --layers.")
    from tb_ddp_doctor.discover.runs import only_run, with_step_range

    reach = partial(Reach, everywhere=options.everywhere)
    run = with_step_range(only_run(options.against, peek=cache.peek, reach=reach), options.step_range)
    return diagnosed(options, errors, cache, [run])


def _print_differences(
    earlier: Sequence[engine.Result], results: Sequence[engine.Result], options: argparse.Namespace
) -> None:
    """Print by how much the modules of each run differ from those of the earlier one, if there is one."""
    asked = None if options.json or options.markdown or options.github else _layers(options)
    if asked is None or not earlier:
        return
    from tb_ddp_doctor.report.layers import print_compared

    for result in results:
        print_compared(Console(highlight=False), earlier[0], result, asked)


def _layers(options: argparse.Namespace) -> LayersAsked | None:
    """What is to be printed of the model's modules; None for nothing."""
    if not options.layers:
        return None
    from tb_ddp_doctor.report.layers import LayersAsked

    return LayersAsked(
        options.depth, options.rank, options.against_rank, options.kernels, options.bottom_up, options.slowest_step
    )


def _worst(diagnoses: Sequence[Diagnosis], jobs: Sequence[StuckRun | MemoryRun]) -> Severity | float:
    """The worst severity of all findings, and of what nothing explains where that is the verdict."""
    severities = [Severity[finding.severity.upper()] for diagnosis in diagnoses for finding in diagnosis.all_findings]
    severities += [Severity[finding.severity.upper()] for job in jobs for finding in job.findings]
    severities += [
        Severity.of_share(diagnosis.account.line("unexplained").share)
        for diagnosis in diagnoses
        if diagnosis.verdict == "unexplained"
    ]
    return max(severities, default=float("-inf"))
