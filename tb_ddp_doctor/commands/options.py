"""What the command line takes."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tb_ddp_doctor.check import options as check
from tb_ddp_doctor.choices import Parser, flag, number, whole
from tb_ddp_doctor.commands.examples import epilog
from tb_ddp_doctor.findings import SCHEMA_VERSION, Severity
from tb_ddp_doctor.planning.questions import FIELDS
from tb_ddp_doctor.report.escape import printable
from tb_ddp_doctor.storage.cache_directory import MAX_BYTES
from tb_ddp_doctor.storage.reach import MOST_FOLDERS
from tb_ddp_doctor.version import __version__

DESCRIPTION = "Says why distributed PyTorch training is slow, from its profiler traces."
#: Letters of a line of help.
_LINE = 78
#: What somebody is told who does not know where to begin.
WHERE_TO_BEGIN = """\
where to begin:
  nothing to look at yet                 ddp-doctor demo                 (two jobs with a fault each, in TensorBoard)
  traces of torch.profiler are there     ddp-doctor diagnose LOGDIR
  the same, in TensorBoard               tensorboard --logdir LOGDIR     (the tab Diagnosis)
  no traces yet                          in the training loop, on every rank:
                                             from tb_ddp_doctor.capture import Doctor
                                             doctor = Doctor(LOGDIR, every=1000, steps=3)
                                             ... and doctor.step() at the end of each step
  a job with a Doctor trains now         ddp-doctor capture LOGDIR
  a job hangs now                        ddp-doctor dump LOGDIR
  a job ran out of memory                ddp-doctor diagnose LOGDIR      (snapshots of torch.cuda.memory, *.pickle)
  what changed in the hours of a job?    ddp-doctor history LOGDIR       (of a Doctor with history=True)
  before a job: what can the ranks and the links between them do?
                                         ddp-doctor check --ranks 8 -o LOGDIR
                                         torchrun ... -m tb_ddp_doctor.check -o LOGDIR   (of several machines)
"""


def _currency(text: str) -> str:
    """Reads `--currency`."""
    from tb_ddp_doctor.config.read import is_currency

    if not is_currency(text):
        raise argparse.ArgumentTypeError(f"takes three letters, such as EUR, or a sign, not {text!r}")
    return text


class _Version(argparse.Action):
    """Says the version, which reader there is, and the versions of digest files and of the JSON."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from tb_ddp_doctor.cache import digest_version
        from tb_ddp_doctor.trace import reader

        formats = f"digests {digest_version()}, JSON schema {SCHEMA_VERSION}"
        sys.stdout.write(f"ddp-doctor {__version__} ({reader.name()} reader, {formats})\n")
        parser.exit()


class _Parser(Parser):
    """Repeats what it was given, such as names of files that the shell found, as harmlessly as all else."""

    def error(self, message: str) -> NoReturn:
        super().error(printable(message))


def parser() -> argparse.ArgumentParser:
    """The parser of the command line; `command` of what it gives is the module in this package."""
    parser = _Parser(
        prog="ddp-doctor",
        description=DESCRIPTION,
        epilog=WHERE_TO_BEGIN,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version",
        action=_Version,
        nargs=0,
        help="say the versions of it, of digests and of the JSON, and exit",
    )
    reading = _reading_options({"logdir": "the directory that torch.profiler wrote its traces to, or one trace"})
    choosing = _choosing_options()
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    _add_diagnose(commands, choosing)
    _add_whatif(commands, [reading, choosing])
    _add_plan(commands, [reading, choosing])
    _add_compare(commands)
    _add_dump(commands)
    _add_history(commands)
    _add_explain(commands)
    _add_files(commands, [reading, choosing])
    _add_capture(commands)
    _add_cache(commands)
    _add_check(commands)
    _add_mcp(commands)
    _add_small(commands)
    return parser


def _command(
    commands: argparse._SubParsersAction[_Parser], name: str, does: str, parents: Sequence[_Parser] = ()
) -> _Parser:
    """Adds a command. Its help says what it does, as the list of all commands does, and ends with its examples."""
    return commands.add_parser(
        name,
        help=does,
        parents=parents,
        description=textwrap.fill(f"{does[:1].upper()}{does[1:]}.", _LINE),
        epilog=epilog(name),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _add_diagnose(commands: argparse._SubParsersAction[_Parser], choosing: _Parser) -> None:
    either = _reading_options(
        {
            "logdir": "a directory with traces of torch.profiler or Nsight Systems, snapshots of torch.cuda.memory, "
            "or the Flight Recorder's dumps of a job that is stuck; or one such file"
        }
    )
    diagnose = _command(commands, "diagnose", "diagnose every run below a log directory", parents=[either, choosing])
    _add_outputs(diagnose)
    _add_tables(diagnose)
    _add_workload(diagnose)
    _add_limits(diagnose)
    _add_modules(diagnose)
    diagnose.add_argument(
        "--fail-on",
        choices=[severity.label for severity in Severity],
        metavar="SEVERITY",
        help="exit with 1 if a finding, or the unexplained share of the step, is at least this severe: info, minor, "
        "major or critical; also opportunity, what is no fault and could be faster still; with 3 if none is and a "
        "verdict is unknown",
    )
    diagnose.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="RULE.THRESHOLD=VALUE",
        help="set a rule's threshold, for example straggler.min_excess=0.05; may be given more than once",
    )


def _add_outputs(diagnose: _Parser) -> None:
    """Where to, and in what form."""
    printed = diagnose.add_mutually_exclusive_group()
    flag(printed, "--json", "print JSON, and nothing else, on standard output")
    flag(printed, "--markdown", "print Markdown, for a pull request, and nothing else, on standard output")
    flag(
        printed, "--github", "print the findings as annotations of GitHub Actions, and nothing else, on standard output"
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
        "--junit",
        type=Path,
        metavar="FILE",
        help="also write JUnit XML there, for CI servers: a test for each run and rule, which fails where --fail-on "
        "would (default: from major on)",
    )


def _add_tables(diagnose: _Parser) -> None:
    """What is shown beside the findings."""
    flag(diagnose, "--communication", "also show each kind of collective: size, wait, time, busbw and latency")
    flag(diagnose, "--phases", "also show each rank's step by phase, on the GPU and on the CPU")
    flag(
        diagnose,
        "--critical-path",
        "also show the critical path of each step across ranks: what determines its length, in order of time",
    )
    flag(diagnose, "--memory", "also show what allocated memory is made of at the peak, and what would save some of it")


def _add_workload(diagnose: _Parser) -> None:
    """What a step does, and what a GPU costs."""
    for name, what, meaning in (
        ("tokens", "TOKENS", "tokens of a step of the whole job"),
        ("samples", "SAMPLES", "samples of a step of the whole job"),
        ("model-flops", "FLOPS", "the model's FLOPs in a step of the whole job"),
    ):
        shown = "its MFU beside the one that is counted" if name == "model-flops" else f"{name}/s per GPU"
        diagnose.add_argument(
            f"--{name}-per-step", type=number("a number"), metavar=what, help=f"{meaning}: also show {shown}"
        )
    diagnose.add_argument(
        "--gpu-hour", type=number("a price"), metavar="PRICE", help="what a GPU costs an hour: also show money a day"
    )
    _add_currency(diagnose)


def _add_limits(diagnose: _Parser) -> None:
    """What the GPUs can do at most."""
    flag(
        diagnose, "--roofline", "also show the kernels with most time above what the GPU's memory and peak FLOPS allow"
    )
    diagnose.add_argument(
        "--peaks",
        action="append",
        metavar="PEAKS",
        help="what a GPU can do at most, in place of the calibration and of the table of data sheets: half=, tf32=, "
        "float32= and fp8= in TFLOPS, memory= in TB/s, link= in GB/s, as in half=800,memory=3.0; for GPUs of one name "
        "H100:half=800,... (may be repeated)",
    )


def _add_modules(diagnose: _Parser) -> None:
    """Which of the model's modules take the time."""
    flag(diagnose, "--layers", "also show which of the model's modules a step is spent in, where traces name them")
    _add_depth(diagnose)
    diagnose.add_argument(
        "--rank",
        type=int,
        metavar="R",
        help="with --layers: a rank's times, and the median rank's beside them; with --pprof and --collapsed: only it",
    )
    diagnose.add_argument(
        "--against-rank", type=int, metavar="R", help="with --layers --rank: that rank's times beside them instead"
    )
    diagnose.add_argument(
        "--against",
        metavar="RUN",
        help="with --layers: also what they take more than those of an earlier run, by its log directory",
    )
    diagnose.add_argument(
        "--slowest-step", action="store_true", help="with --layers: the slowest step beside the median one"
    )
    _add_kernels(diagnose)
    for name, what in (
        ("pprof", "a profile for pprof"),
        ("collapsed", "collapsed stacks for speedscope or flamegraph"),
    ):
        diagnose.add_argument(
            f"--{name}", type=Path, metavar="FILE", help=f"also write the times of the model's modules there, as {what}"
        )
    diagnose.add_argument(
        "--collapsed-amount",
        choices=("time", "launches", "above", "flops", "bytes", "critical"),
        default="time",
        help="with --collapsed: what the stacks are of: ns, launches, ns above attainable, FLOPs, bytes or ns of the "
        "critical path of a step (default: %(default)s); --pprof has all",
    )


def _add_whatif(commands: argparse._SubParsersAction[_Parser], parents: list[_Parser]) -> None:
    whatif = _command(
        commands, "whatif", "predict the step time of every run with some of its findings fixed", parents=parents
    )
    whatif.add_argument(
        "--without",
        metavar="FINDING[,FINDING]",
        help="fix these findings, by rule or id, for example straggler:1,no-overlap (default: each alone, and all)",
    )
    flag(whatif, "--json", "print JSON, and nothing else, on standard output")


def _add_kernels(parser: argparse.ArgumentParser) -> None:
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--kernels", action="store_true", help="with --layers: also the kernels below their modules")
    shown.add_argument(
        "--bottom-up", action="store_true", help="with --layers: kernels, with the modules that launch them below"
    )


def _add_depth(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--depth", type=int, metavar="N", default=2, help="with --layers: levels of modules to show (default: 2)"
    )


def _add_plan(commands: argparse._SubParsersAction[_Parser], parents: list[_Parser]) -> None:
    plan = _command(
        commands,
        "plan",
        "predict the step with other buckets, ranks, meshes, links, dtypes, loaders or devices",
        parents=parents,
    )
    for name, field in FIELDS.items():
        plan.add_argument(field.option, dest=name, metavar=f"VALUE[{field.between}VALUE]", help=field.help)
    flag(
        plan,
        "--strong",
        "with --ranks or --mesh: all ranks together have as much work as now (strong scaling), not each of them",
    )
    flag(plan, "--gathers-in-time", "predict with no all-gather of FSDP that waits for the CPU to launch it")
    flag(plan, "--offload", "keep the shards of optimizer states on the CPU, and update them there")
    flag(plan, "--graphs", "predict with CUDA graphs: the GPU never waits for the CPU to launch")
    flag(plan, "--no-pin-memory", "predict with pin_memory=False: batches are copied from pageable memory")
    plan.add_argument(
        "--fixed",
        metavar="FINDING[,FINDING]",
        default="",
        help="predict with these findings fixed, by rule or id, for example straggler:1",
    )
    flag(plan, "--json", "print JSON, and nothing else, on standard output")


def _add_compare(commands: argparse._SubParsersAction[_Parser]) -> None:
    both = _reading_options(
        {
            "before": "the directory of the earlier run; of several profiler cycles, one: DIRECTORY/span_1",
            "after": "the same of the later run",
        }
    )
    comparing = _command(
        commands, "compare", "show what differs between two runs, and whether it is significant", parents=[both]
    )
    form = comparing.add_mutually_exclusive_group()
    flag(form, "--json", "print JSON, and nothing else, on standard output")
    flag(form, "--markdown", "print Markdown, for a pull request, and nothing else, on standard output")
    comparing.add_argument(
        "--fail-on-regression",
        type=number("percent", unit="%"),
        metavar="PCT",
        help="exit with 1 if a step takes more than this many percent longer; what may be noise, and less than 3 "
        "percent, never fails",
    )
    flag(comparing, "--layers", "also show by how much longer a step is in each of the model's modules")
    _add_depth(comparing)
    _add_kernels(comparing)


def _add_dump(commands: argparse._SubParsersAction[_Parser]) -> None:
    dump = _command(
        commands, "dump", "ask a job that hangs now where its ranks are: Python stacks and Flight Recorder of each"
    )
    dump.add_argument("logdir", help="the log directory that the job gave its Doctor")
    dump.add_argument(
        "--wait",
        type=number("seconds"),
        default=20.0,
        metavar="SECONDS",
        help="wait so long for all ranks (default: %(default)g)",
    )


def _add_history(commands: argparse._SubParsersAction[_Parser]) -> None:
    history = _command(
        commands,
        "history",
        "say what changed in the hours of a job, when and on which rank, from the time of every step",
    )
    history.add_argument(
        "logdir",
        help="the log directory that the job gave its Doctor(history=True); or a log of Megatron-LM, torchtitan, "
        "TensorBoard, W&B, Lightning or Hugging Face, or a folder with those, or with the files of NCCL's Inspector",
    )
    shape = history.add_mutually_exclusive_group()
    flag(shape, "--json", "print JSON, and nothing else, on standard output")
    flag(shape, "--markdown", "print Markdown, for a report or a chat, on standard output")
    flag(shape, "--webhook", "print one line of JSON for a chat or a pager: text, and all events")
    flag(shape, "--openmetrics", "print OpenMetrics text, for Prometheus")
    history.add_argument(
        "--since", type=whole("a step"), metavar="STEP", help="take the steps from this one on (default: all)"
    )
    history.add_argument(
        "--fail-on",
        type=number("percent", unit="%"),
        metavar="PCT",
        help="exit with 1 if a change, a period, drift or rare steps cost this many percent of the time of all steps",
    )
    history.add_argument(
        "--gpu-hour", type=number("a price"), metavar="PRICE", help="what a GPU costs an hour: also show money"
    )
    _add_currency(history)
    flag(history, "--compare", "say what the captures on either side of the costliest changes differ in")
    _add_cache_options(history)


def _add_explain(commands: argparse._SubParsersAction[_Parser]) -> None:
    explain = _command(commands, "explain", "explain a rule or a term of the diagnosis")
    explain.add_argument(
        "term", nargs="?", help="a rule, such as host-sync, or a term, such as busbw (default: list all)"
    )


def _add_files(commands: argparse._SubParsersAction[_Parser], parents: list[_Parser]) -> None:
    """The commands that write traces and digests."""
    slice_ = _command(
        commands, "slice", "write the part of the traces that shows a finding, all ranks on one clock", parents=parents
    )
    slice_.add_argument(
        "--finding",
        type=whole("the number of a finding"),
        default=1,
        metavar="N",
        help="the finding with this number in diagnose (default: 1)",
    )
    slice_.add_argument(
        "--evidence",
        type=whole("the number of a piece of evidence"),
        default=1,
        metavar="N",
        help='the N-th "See ..." of the finding in diagnose -v (default: 1)',
    )
    merge = _command(
        commands,
        "merge",
        "write the traces of all ranks as one, on one clock, with the findings in it",
        parents=parents,
    )
    for command in (slice_, merge):
        command.add_argument(
            "-o",
            "--output",
            type=Path,
            required=True,
            metavar="FILE",
            help="where to: .pftrace for Perfetto's own format, .json for Chrome's",
        )
    digest = _command(
        commands,
        "digest",
        "reduce traces to digests of kilobytes, which are diagnosed like the traces themselves",
        parents=parents,
    )
    digest.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="where to write the digests")


def _add_capture(commands: argparse._SubParsersAction[_Parser]) -> None:
    capture = _command(
        commands,
        "capture",
        "ask a job that trains with tb_ddp_doctor.capture.Doctor for a capture, and print its verdict",
    )
    capture.add_argument("logdir", type=Path, help="the log directory that the job gave its Doctor")
    capture.add_argument(
        "--steps",
        type=whole("a number of steps"),
        metavar="N",
        help="capture so many steps, 1,000 at most (default: as the job says)",
    )
    capture.add_argument("--ranks", metavar="RANKS", help="capture these ranks alone, for example 0,5-7")
    flag(capture, "--stacks", "record Python stacks (with_stack)")
    flag(capture, "--memory", "record the memory (profile_memory)")
    capture.add_argument(
        "--wait",
        type=number("seconds"),
        default=600.0,
        metavar="SECONDS",
        help="wait so long for the verdict; 0 only until the steps are known (default: %(default)g)",
    )
    flag(capture, "--cancel", "withdraw the requests that are not captured yet, and ask for nothing")
    flag(capture, "--dynolog", "print the commands that capture a job without a Doctor by Dynolog, and ask no job")


def _add_cache(commands: argparse._SubParsersAction[_Parser]) -> None:
    cache = _command(commands, "cache", "say how much is kept of traces that were read, and where")
    cache.add_argument("--cache", type=Path, metavar="DIR", help="the directory (default: the user's cache directory)")
    flag(cache, "--clear", "remove all of it: traces are then read again")


def _add_mcp(commands: argparse._SubParsersAction[_Parser]) -> None:
    mcp = _command(
        commands, "mcp", "serve agents: read-only tools over the Model Context Protocol, on stdio or on loopback"
    )
    mcp.add_argument("logdirs", nargs="+", metavar="LOGDIR", help="a log directory: nothing outside of it is read")
    mcp.add_argument(
        "--http",
        type=whole("a port", least=0, most=65535),
        metavar="PORT",
        help="serve http://127.0.0.1:PORT/mcp, 0 for any free port (default: standard input and output)",
    )
    mcp.add_argument(
        "--tensorboard",
        default="http://localhost:6006",
        metavar="URL",
        help="the TensorBoard that links lead to (default: %(default)s)",
    )
    mcp.add_argument(
        "--gpu-hour", type=number("a price"), metavar="PRICE", help="what a GPU costs an hour: also answer money a day"
    )
    _add_currency(mcp)
    _add_cache_options(mcp)


def _add_check(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = _command(
        commands,
        "check",
        "measure what the ranks of this machine, and the links between them, can do "
        "(of several machines: torchrun ... -m tb_ddp_doctor.check)",
    )
    parser.add_argument(
        "--ranks",
        type=whole("a number of ranks", most=1024),
        default=1,
        metavar="N",
        help="ranks of this machine, one for each GPU (default: %(default)s)",
    )
    check.add_options(parser)


def _add_small(commands: argparse._SubParsersAction[_Parser]) -> None:
    demo = _command(commands, "demo", "open TensorBoard on two small jobs that come with the package")
    demo.add_argument("--port", type=whole("a port", least=0, most=65535), metavar="PORT", help="serve there")
    flag(demo, "--where", "print their log directory, and serve nothing")
    completion = _command(commands, "completion", "print what completes the command in a shell")
    completion.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="the shell that the script is for")


def _add_currency(options: argparse.ArgumentParser) -> None:
    options.add_argument("--currency", type=_currency, metavar="EUR", help="of --gpu-hour: three letters, or a sign")


def _add_cache_options(options: argparse.ArgumentParser) -> None:
    """Where what was read is kept."""
    options.add_argument(
        "--cache", type=Path, metavar="DIR", help="keep what was read there (default: the user's cache directory)"
    )
    flag(options, "--no-cache", "keep nothing, and use nothing that was kept")
    options.add_argument(
        "--cache-size",
        type=number("a size in GiB"),
        default=MAX_BYTES / 2**30,
        metavar="GIB",
        help="remove what was used longest ago beyond this size (default: %(default)g)",
    )


def _choosing_options() -> _Parser:
    """Which of the runs below a log directory a command is about."""
    options = _Parser(add_help=False)
    one = options.add_mutually_exclusive_group()
    one.add_argument("--run", metavar="NAME", help="the run of this name alone, where the log directory has several")
    flag(one, "--last", "the last run alone: of a job with many captures, the newest of them")
    return options


def _reading_options(logdirs: Mapping[str, str]) -> _Parser:
    """What all commands that read traces take, after directories by name with their meaning."""
    options = _Parser(add_help=False)
    options.set_defaults(reads=tuple(logdirs))
    for name, meaning in logdirs.items():
        options.add_argument(name, help=meaning)
    options.add_argument(
        "--scheduler", metavar="ADDRESS", help="read on the Dask cluster whose scheduler is there (tcp://host:8786)"
    )
    flag(
        options,
        "--everywhere",
        f"look into all folders below, also on other file systems and beyond the first {MOST_FOLDERS:,}",
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
    flag(
        options,
        "--no-config",
        "ignore ddp-doctor.toml, of this folder and beside the traces: thresholds, prices, calibration",
    )
    _add_cache_options(options)
    return options
