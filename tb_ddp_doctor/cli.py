"""`ddp-doctor`: the doctor without TensorBoard."""

from __future__ import annotations

import argparse
import dataclasses
import io
import math
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

from rich.console import Console
from rich.text import Text

from tb_ddp_doctor import __version__, engine
from tb_ddp_doctor.cache import MAX_BYTES, Cache, default_directory, write_digest
from tb_ddp_doctor.calibration.load import load
from tb_ddp_doctor.discover.names import DIGEST_SUFFIX, trace_name
from tb_ddp_doctor.discover.runs import DiscoverError, Run, discover, no_traces, only_run, with_step_range
from tb_ddp_doctor.findings import SCHEMA_VERSION, Diagnosis, Prospect, Severity
from tb_ddp_doctor.report.escape import printable, printable_json, printable_lines
from tb_ddp_doctor.rules import CATALOGUE, is_name
from tb_ddp_doctor.storage.paths import FilePath, ProcessPath, RemotePath
from tb_ddp_doctor.stuck import run as stuck
from tb_ddp_doctor.stuck.model import Report, StuckRun
from tb_ddp_doctor.workers.cluster import SchedulerError, executor

# What one command alone needs is imported when it is asked for: a small job from the cache takes little else.
if TYPE_CHECKING:
    from tb_ddp_doctor.comparison.model import Comparison

T = TypeVar("T")
#: Called with a name and how many files it has; what it gives is called with how many are done.
_Counting: TypeAlias = Callable[[str, int], Callable[[int], None]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status.

    0; 1 for `--fail-on...`; 2 for input that cannot be diagnosed; 3 for `--fail-on` where the traces cannot tell.
    """
    options = _parser().parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that knows fewer letters shows question marks.
            stream.reconfigure(errors="replace")
    errors = Console(stderr=True, highlight=False)
    if sys.stdout is None:
        _complain(errors, "standard output is closed: there is nowhere to print to.")
        return 2
    try:
        status: int = options.command(options, errors)
        sys.stdout.flush()
    except KeyboardInterrupt:
        _complain(errors, "stopped.")
        return 130
    except BrokenPipeError:
        return _end_quietly()
    except SystemExit as exit_:
        # rich's own answer to a broken pipe, while it handles that: since 15 it exits with 1.
        if isinstance(exit_.__context__, BrokenPipeError):
            return _end_quietly()
        raise
    except (DiscoverError, SchedulerError, OSError, ValueError) as error:
        _complain(errors, str(error))
        return 2
    return status


def _end_quietly() -> int:
    """Whoever reads the output has seen enough; what is left must not be flushed to them at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _complain(errors: Console, sentence: str) -> None:
    errors.print(Text(f"ddp-doctor: {printable(sentence)}"), soft_wrap=True)


def _print_json(value: Any) -> None:
    # JSON is UTF-8, whatever the terminal is.
    sys.stdout.buffer.write(printable_json(value))


class _Version(argparse.Action):
    """Says the version, and which reader there is."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from tb_ddp_doctor.trace import reader

        sys.stdout.write(f"ddp-doctor {__version__} ({reader.name()} reader)\n")
        parser.exit()


class _Parser(argparse.ArgumentParser):
    """Repeats what it was given, such as names of files that the shell found, as harmlessly as all else."""

    def error(self, message: str) -> NoReturn:
        super().error(printable(message))


def _parser() -> _Parser:
    parser = _Parser(
        prog="ddp-doctor", description="Says why distributed PyTorch training is slow, from its profiler traces."
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="say the version, and exit")
    reading = _reading_options({"logdir": "the directory that torch.profiler wrote its traces to"})
    dumps = "or, of a job that is stuck, the Flight Recorder its dumps"
    either = _reading_options({"logdir": f"the directory that torch.profiler wrote its traces to, {dumps}"})
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    diagnose = commands.add_parser("diagnose", parents=[either], help="diagnose every run below a log directory")
    diagnose.set_defaults(command=_diagnose)
    printed = diagnose.add_mutually_exclusive_group()
    printed.add_argument("--json", action="store_true", help="print JSON, and nothing else, on standard output")
    printed.add_argument(
        "--markdown",
        action="store_true",
        help="print Markdown, for a pull request, and nothing else, on standard output",
    )
    diagnose.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="print all of the diagnosis: each finding's evidence and fix, the account, each rank's budget",
    )
    diagnose.add_argument(
        "--html", type=Path, metavar="FILE", help="also write the report there, as one file that works without a server"
    )
    diagnose.add_argument(
        "--communication",
        action="store_true",
        help="also show each kind of collective: size, wait, time, busbw and latency",
    )
    diagnose.add_argument(
        "--phases", action="store_true", help="also show each rank's step by phase, on the GPU and on the CPU"
    )
    diagnose.add_argument(
        "--critical-path",
        action="store_true",
        help="also show the critical path of each step across ranks: what determines its length, in order of time",
    )
    diagnose.add_argument(
        "--memory",
        action="store_true",
        help="also show what allocated memory is made of at the peak, and what would save some of it",
    )
    diagnose.add_argument(
        "--fail-on",
        choices=[severity.label for severity in Severity],
        metavar="SEVERITY",
        help="exit with 1 if a finding, or the unexplained share of the step, is at least this severe: info, minor, "
        "major or critical; with 3 if none is and a verdict is unknown",
    )
    diagnose.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="RULE.THRESHOLD=VALUE",
        help="set a rule's threshold, for example straggler.min_excess=0.05; may be given more than once",
    )
    whatif = commands.add_parser(
        "whatif", parents=[reading], help="predict the step time of every run with some of its findings fixed"
    )
    whatif.set_defaults(command=_whatif)
    whatif.add_argument(
        "--without",
        metavar="FINDING[,FINDING]",
        help="fix these findings, by rule or id, for example straggler:1,no-overlap (default: each alone, and all)",
    )
    whatif.add_argument("--json", action="store_true", help="print JSON, and nothing else, on standard output")
    both = _reading_options(
        {
            "before": "the directory of the earlier run; of several profiler cycles, one: DIRECTORY/span_1",
            "after": "the same of the later run",
        }
    )
    comparing = commands.add_parser(
        "compare", parents=[both], help="show what differs between two runs, and whether it is significant"
    )
    comparing.set_defaults(command=_compare)
    form = comparing.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON, and nothing else, on standard output")
    form.add_argument(
        "--markdown",
        action="store_true",
        help="print Markdown, for a pull request, and nothing else, on standard output",
    )
    comparing.add_argument(
        "--fail-on-regression",
        type=_percent,
        metavar="PCT",
        help="exit with 1 if a step takes more than this many percent longer; what may be noise, and less than 3 "
        "percent, never fails",
    )
    slice_ = commands.add_parser(
        "slice", parents=[reading], help="write the part of the traces that shows a finding, all ranks on one clock"
    )
    slice_.set_defaults(command=_slice)
    slice_.add_argument(
        "--finding", type=_count, default=1, metavar="N", help="the finding with this number in diagnose (default: 1)"
    )
    slice_.add_argument(
        "--evidence",
        type=_count,
        default=1,
        metavar="N",
        help='the N-th "See ..." of the finding in diagnose -v (default: 1)',
    )
    merge = commands.add_parser(
        "merge", parents=[reading], help="write the traces of all ranks as one, on one clock, with the findings in it"
    )
    merge.set_defaults(command=_merge)
    for command in (slice_, merge):
        command.add_argument("--run", metavar="NAME", help="the run, where the log directory has several")
        command.add_argument(
            "-o",
            "--output",
            type=Path,
            required=True,
            metavar="FILE",
            help="where to: .pftrace for Perfetto's own format, .json for Chrome's",
        )
    digest = commands.add_parser(
        "digest",
        parents=[reading],
        help="reduce traces to digests of kilobytes, which are diagnosed like the traces themselves",
    )
    digest.set_defaults(command=_digest)
    digest.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="where to write the digests")
    _add_capture(commands)
    return parser


def _add_capture(commands: argparse._SubParsersAction[_Parser]) -> None:
    capture = commands.add_parser(
        "capture", help="ask a job that trains with tb_ddp_doctor.capture.Doctor for a capture, and print its verdict"
    )
    capture.set_defaults(command=_capture)
    capture.add_argument("logdir", type=Path, help="the log directory that the job gave its Doctor")
    capture.add_argument("--steps", type=_count, metavar="N", help="capture so many steps (default: as the job says)")
    capture.add_argument("--ranks", metavar="RANKS", help="capture these ranks alone, for example 0,5-7")
    capture.add_argument("--stacks", action="store_true", help="record Python stacks (with_stack)")
    capture.add_argument("--memory", action="store_true", help="record the memory (profile_memory)")
    capture.add_argument(
        "--wait",
        type=_percent,
        default=600.0,
        metavar="SECONDS",
        help="wait so long for the verdict; 0 only until the steps are known (default: %(default)g)",
    )
    capture.add_argument(
        "--dynolog",
        action="store_true",
        help="ask nobody, but print how Dynolog captures a job that trains without a Doctor",
    )


def _reading_options(logdirs: Mapping[str, str]) -> _Parser:
    """What all commands that read traces take, after directories by name with their meaning."""
    options = _Parser(add_help=False)
    for name, meaning in logdirs.items():
        options.add_argument(name, help=meaning)
    options.add_argument(
        "--scheduler", metavar="ADDRESS", help="read on the Dask cluster whose scheduler is there (tcp://host:8786)"
    )
    options.add_argument(
        "--step-range",
        default="",
        metavar="NAME",
        help="of recordings of Nsight Systems: the NVTX range that is a step, as named there or with # for numbers "
        "(default: one that repeats)",
    )
    options.add_argument(
        "--calibration",
        type=Path,
        metavar="FILE",
        help="what the ranks and links can do: calibration.json of tb_ddp_doctor.check, or what nccl-tests printed "
        "(default: where it lies beside the traces)",
    )
    options.add_argument(
        "--cache", type=Path, metavar="DIR", help="keep what was read there (default: the user's cache directory)"
    )
    options.add_argument("--no-cache", action="store_true", help="keep nothing, and use nothing that was kept")
    options.add_argument(
        "--cache-size",
        type=_gibibytes,
        default=MAX_BYTES / 2**30,
        metavar="GIB",
        help="remove what was used longest ago beyond this size (default: %(default)g)",
    )
    return options


def _diagnose(options: argparse.Namespace, errors: Console) -> int:
    settings = _settings(options.set)
    dumps = stuck.find(options.logdir)
    cache, runs = _discover(options, needed=not dumps)
    dumps = stuck.beside(dumps, {run.name for run in runs})
    with executor(options.scheduler) as workers:
        results = _diagnose_all(runs, _reading(options, cache, workers), settings, errors)
    jobs = _examine_all(dumps, [run.name for run in runs], errors)
    if not results and not jobs:
        return 2
    _show(results, jobs, options, errors)
    diagnoses = [result.diagnosis for result in results]
    if options.fail_on is None:
        return 0
    if _worst(diagnoses, jobs) >= Severity[options.fail_on.upper()]:
        return 1
    # What was not seen has not passed, nor what cannot be told.
    if len(results) < len(runs) or len(jobs) < len(dumps):
        return 2
    verdicts = {*(diagnosis.verdict for diagnosis in diagnoses), *(job.verdict for job in jobs)}
    return 3 if "unknown" in verdicts else 0


def _show(
    results: Sequence[engine.Result], jobs: Sequence[StuckRun], options: argparse.Namespace, errors: Console
) -> None:
    """Write and print what the options ask for."""
    if options.html:
        from tb_ddp_doctor.report import html

        size = html.write(results, options.logdir, options.html, jobs)
        count = len(results) + len(jobs)
        _say_written(errors, options.html, f"{count} run{'s' if count > 1 else ''}, {size / 1e3:.0f} kB")
    if options.markdown:
        from tb_ddp_doctor.report import markdown
        from tb_ddp_doctor.report import stuck as report_of_stuck

        sections = [markdown.document(results) if results else "", report_of_stuck.markdown(jobs)]
        sys.stdout.buffer.write("\n".join(filter(None, sections)).encode("utf-8", errors="replace"))
    elif options.json:
        _print_json(Report(SCHEMA_VERSION, tuple(result.diagnosis for result in results), tuple(jobs)))
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
            )
        if jobs:
            from tb_ddp_doctor.report import stuck as report_of_stuck

            for job in jobs:
                report_of_stuck.print_run(console, job)


def _whatif(options: argparse.Namespace, errors: Console) -> int:
    chosen = None if options.without is None else _finding_names(options.without)
    cache, runs = _discover(options)
    with executor(options.scheduler) as workers:
        results = _diagnose_all(runs, _reading(options, cache, workers), {}, errors)
    predicted = {result.diagnosis.name: _predict(result, chosen) for result in results}
    if options.json:
        _print_json(predicted)
        return 0 if results else 2
    from tb_ddp_doctor.report import terminal

    console = Console(highlight=False)
    for result in results:
        terminal.predicted(console, result.diagnosis, predicted[result.diagnosis.name])
    return 0 if results else 2


def _finding_names(text: str) -> list[str]:
    """Ids of findings, or rules. Raises ValueError for what is neither."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if not is_name(name):
            raise ValueError(f"There is no rule {name!r}; there are: {', '.join(CATALOGUE)}.")
    return names


def _predict(result: engine.Result, chosen: Sequence[str] | None) -> list[Prospect]:
    """The step without what was chosen; by default without each finding, then without all."""
    if chosen is not None:
        return [result.savings.without(chosen)]
    found = [each.id for each in result.diagnosis.findings if max(each.cost_ms, each.alone_ms) > 0]
    sets = [[name] for name in found] + ([found] if len(found) > 1 else [])
    return [result.savings.without(names) for names in sets]


def _compare(options: argparse.Namespace, errors: Console) -> int:
    from tb_ddp_doctor.comparison.build import compare
    from tb_ddp_doctor.report import markdown, terminal

    cache = _cache(options)
    named = [only_run(location, peek=cache.peek) for location in (options.before, options.after)]
    runs = [with_step_range(run, options.step_range) for run in named]
    with executor(options.scheduler) as workers:
        results = _diagnose_all(runs, _reading(options, cache, workers), {}, errors)
    if len(results) < 2:
        return 2
    found = compare(*results)
    if options.json:
        _print_json(found)
    elif options.markdown:
        sys.stdout.buffer.write(markdown.comparison(found).encode("utf-8", errors="replace"))
    else:
        terminal.compared(Console(highlight=False), found)
    return 1 if _regressed(found, options.fail_on_regression, errors) else 0


def _regressed(found: Comparison, limit: float | None, errors: Console) -> bool:
    """Whether the later run is slower than allowed; where it may be by chance it is not, and that is said."""
    if limit is None or found.step.change * 100 <= limit:
        return False
    if not found.step.tells:
        _complain(errors, f"no failure for {found.step.change * 100:.1f} % more: it may be noise.")
        return False
    _complain(errors, f"failed: {found.step.change * 100:.1f} % more than before, {limit:g} % are allowed.")
    return True


def _slice(options: argparse.Namespace, errors: Console) -> int:
    from tb_ddp_doctor.report.shown import where
    from tb_ddp_doctor.slices import cut, files

    cache, result = _one_result(options, errors)
    findings = result.diagnosis.findings
    if options.finding > len(findings):
        raise ValueError(f"{result.diagnosis.name} has {len(findings)} findings: there is no {options.finding}.")
    finding = findings[options.finding - 1]
    if options.evidence > len(finding.evidence):
        raise ValueError(f"{finding.rule} has {len(finding.evidence)} places to see: there is no {options.evidence}.")
    evidence = finding.evidence[options.evidence - 1]
    seen = cut.window(result.job, finding, evidence)
    files.save(cut.cut(result, cache, cut.with_margin(seen)), options.output)
    length = (seen.end_ns - seen.start_ns) / 1e6
    _say_written(errors, options.output, f"{finding.rule}: {where(evidence, result.job)} ({length:.1f} ms)")
    return 0


def _merge(options: argparse.Namespace, errors: Console) -> int:
    from tb_ddp_doctor.slices import cut, files

    cache, result = _one_result(options, errors)
    ranks = result.job.ranks
    part = cut.cut(result, cache, cut.whole(result.job), most_events=None)
    with _progress(errors) as counting:
        parts = _counted(part.ranks, counting("Writing", len(ranks)))
        files.save(dataclasses.replace(part, ranks=parts), options.output)
    _say_written(errors, options.output, f"{len(ranks)} ranks of {result.diagnosis.name}")
    return 0


def _one_result(options: argparse.Namespace, errors: Console) -> tuple[Cache, engine.Result]:
    """The run to write a part of; ValueError where it is not clear which, or where to."""
    from tb_ddp_doctor.slices import files

    files.check_name(options.output)
    if options.output.resolve().is_relative_to(Path(options.logdir).resolve()):
        raise ValueError(f"Nothing is written into the log directory; {options.output} is inside of it.")
    cache, runs = _discover(options)
    chosen = [run for run in runs if options.run in (None, run.name)]
    if len(chosen) != 1:
        names = ", ".join(run.name for run in runs)
        raise ValueError(f"Which run? Name one of these with --run: {names}.")
    with executor(options.scheduler) as workers:
        results = _diagnose_all(chosen, _reading(options, cache, workers), {}, errors)
    if not results:
        raise ValueError("There is nothing to write of a run that cannot be diagnosed.")
    return cache, results[0]


def _say_written(errors: Console, path: Path, what: str) -> None:
    errors.print(Text(printable(f"{path}: {what}")), soft_wrap=True)


def _count(text: str) -> int:
    """A number from 1 on, as an option gives it."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def _gibibytes(text: str) -> float:
    """A size from 0 on, as an option gives it: 0 keeps nothing for longer than it is used."""
    try:
        size = float(text)
    except ValueError:
        size = math.nan
    if not 0 <= size < math.inf:
        raise argparse.ArgumentTypeError(f"a size in GiB, 0 or more, and not {text!r}")
    return size


def _percent(text: str) -> float:
    """A finite number from 0 on, as an option gives it."""
    number = float(text)
    if not 0 <= number < math.inf:
        raise ValueError
    return number


def _digest(options: argparse.Namespace, errors: Console) -> int:
    logdir, output = Path(options.logdir).resolve(), options.output.resolve()
    if output.is_relative_to(logdir):
        raise ValueError(f"Nothing is written into the log directory; {options.output} is inside of it.")
    cache, runs = _discover(options)
    traces = [file for run in runs for file in run.files]
    with executor(options.scheduler) as workers, _progress(errors) as counting:
        count = counting("Reading", len(traces))
        digests, warnings = engine.digest_files(
            traces, _reading(options, cache, workers), lambda done, _total, _file: count(done)
        )
    base = logdir if logdir.is_dir() else logdir.parent
    for file, digest in digests:
        write_digest(digest, output / f"{trace_name(_below(base, file.path, file.rank))}{DIGEST_SUFFIX}")
    for warning in [*(warning for run in runs for warning in run.warnings), *warnings]:
        _complain(errors, f"{warning.file}: {warning.message}")
    told = f"{len(digests)} of {len(traces)} traces were digested to {printable(str(options.output))}."
    errors.print(Text(told), soft_wrap=True)
    return 0 if digests else 2


def _below(base: Path, path: FilePath, rank: int) -> str:
    """Where a trace lies below the log directory; of a remote one, which may have any name, its folders and name."""
    if isinstance(path, RemotePath):
        return "/".join(part for part in path.path.split("/") if part not in ("", ".", ".."))
    if isinstance(path, ProcessPath):
        # A name that says the rank, as those of traces do.
        return f"{_below(base, path.file.with_suffix(''), rank)}_rank{rank}.pt.trace.json"
    return str(path.resolve().relative_to(base))


#: Iterations that are enough.
_DYNOLOG_STEPS = 3


def _capture(options: argparse.Namespace, errors: Console) -> int:
    from tb_ddp_doctor.capture.command import CaptureError, capture
    from tb_ddp_doctor.capture.requests import Request, asked_by
    from tb_ddp_doctor.capture.windows import parse_ranks

    ranks = None if options.ranks is None else parse_ranks(options.ranks)
    if options.dynolog:
        from tb_ddp_doctor.capture.dynolog import instructions

        if ranks is not None:
            raise ValueError("Dynolog captures all ranks of a node; --ranks needs a Doctor in the job.")
        steps = options.steps or _DYNOLOG_STEPS
        told = instructions(options.logdir, steps, stacks=options.stacks, memory=options.memory)
        sys.stdout.write(f"{printable_lines(told)}\n")
        return 0
    request = Request(time.time(), asked_by(), options.steps, ranks, options.stacks, options.memory)
    console = Console(highlight=False)
    try:
        capture(
            options.logdir, request, options.wait, lambda told: console.print(Text(printable(told)), soft_wrap=True)
        )
    except CaptureError as error:
        _complain(errors, str(error))
        return 2
    return 0


def _reading(options: argparse.Namespace, cache: Cache, workers: Executor | None) -> engine.Reading:
    """How files are read. Raises CalibrationError for a calibration that is none."""
    return engine.Reading(cache, workers, calibration=load(options.calibration) if options.calibration else None)


def _cache(options: argparse.Namespace) -> Cache:
    """The cache that the options ask for."""
    directory = None if options.no_cache else options.cache or default_directory()
    return Cache(directory, round(options.cache_size * 2**30))


def _discover(options: argparse.Namespace, *, needed: bool = True) -> tuple[Cache, list[Run]]:
    """The cache that the options ask for, and the runs; DiscoverError if there are none and some are needed."""
    cache = _cache(options)
    try:
        runs = [with_step_range(run, options.step_range) for run in discover(options.logdir, peek=cache.peek)]
    except DiscoverError:
        if needed:
            raise
        runs = []
    if not runs and needed:
        raise DiscoverError(no_traces(options.logdir))
    return cache, runs


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
            raise ValueError(f"--set takes RULE.THRESHOLD=NUMBER, not {assignment!r}.")
        settings[rule][threshold] = number
    return dict(settings)


@contextmanager
def _progress(errors: Console) -> Iterator[_Counting]:
    """A bar of files on a terminal, for each name and number of files that it is called with; nothing elsewhere."""
    if not errors.is_terminal:
        yield lambda _name, _total: lambda _done: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("files"),
        console=errors,
        transient=True,
    )

    def counting(name: str, total: int) -> Callable[[int], None]:
        task = bar.add_task(name, total=total)
        return lambda done: bar.update(task, completed=done)

    with bar:
        yield counting


def _counted(values: Iterable[T], done: Callable[[int], None]) -> Iterator[T]:
    """The values, each counted when the next one is asked for."""
    for count, value in enumerate(values, 1):
        yield value
        done(count)


def _diagnose_all(
    runs: Sequence[Run], reading: engine.Reading, settings: engine.Settings, errors: Console
) -> list[engine.Result]:
    results = []
    with _progress(errors) as counting:
        for run in runs:
            count = counting(printable(run.name), len(run.files))

            def advance(done: int, _total: int, _file: str, count: Callable[[int], None] = count) -> None:
                count(done)

            try:
                results.append(engine.diagnose(run, progress=advance, reading=reading, settings=settings))
            except engine.RunError as error:
                _complain(errors, f"{run.name}: {error}")
    return results


def _examine_all(dumps: Sequence[stuck.DumpRun], traces: Sequence[str], errors: Console) -> list[StuckRun]:
    """What the dumps of each job say; `traces` are the names of all runs of traces."""
    found = []
    with _progress(errors) as counting:
        for run in dumps:
            count = counting(printable(run.name), len(run.files))

            def advance(done: int, _total: int, _file: str, count: Callable[[int], None] = count) -> None:
                count(done)

            try:
                found.append(stuck.examine(run, traces, advance))
            except stuck.StuckError as error:
                _complain(errors, f"{run.name}: {error}")
    return found


def _worst(diagnoses: Sequence[Diagnosis], jobs: Sequence[StuckRun]) -> Severity | float:
    """The worst severity of all findings, and of what nothing explains where that is the verdict."""
    severities = [Severity[finding.severity.upper()] for diagnosis in diagnoses for finding in diagnosis.findings]
    severities += [Severity[finding.severity.upper()] for job in jobs for finding in job.findings]
    severities += [
        Severity.of_share(diagnosis.account.line("unexplained").share)
        for diagnosis in diagnoses
        if diagnosis.verdict == "unexplained"
    ]
    return max(severities, default=float("-inf"))


if __name__ == "__main__":
    sys.exit(main())
