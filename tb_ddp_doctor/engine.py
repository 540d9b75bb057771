"""From a run's files to its diagnosis: the executor, the progress, and what the rules say.

Nothing that a file holds, and no rule's exception, takes a run down: a bad file costs that file and a warning, a
failing rule ends as an error outcome and hides no other rule's result.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from msgspec.structs import replace

from tb_ddp_doctor import wording
from tb_ddp_doctor.account import memory_text
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.calibration.load import CalibrationError, load
from tb_ddp_doctor.calibration.model import Calibration
from tb_ddp_doctor.compile_logs.model import CompileReason
from tb_ddp_doctor.compile_logs.read import read_logs as read_compile_logs
from tb_ddp_doctor.config.read import Config, Settings, read_config
from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.digest.nccl_choices import with_traced
from tb_ddp_doctor.digest.numbered_calls import numbered_calls
from tb_ddp_doctor.digest.rounds import RoundEnds
from tb_ddp_doctor.digest.valid import InvalidError, check
from tb_ddp_doctor.discover.files import digested_trace
from tb_ddp_doctor.discover.names import DIGEST_SUFFIX, host_in_name, names_process
from tb_ddp_doctor.discover.recorder import Beside
from tb_ddp_doctor.discover.recorders import BESIDE
from tb_ddp_doctor.discover.recorders.calibrations import Calibrations, preferred
from tb_ddp_doctor.discover.recorders.memory_snapshots import MemorySnapshots
from tb_ddp_doctor.discover.recorders.nccl_logs import NcclLogs
from tb_ddp_doctor.discover.recorders.torch_traces import TorchTraces
from tb_ddp_doctor.discover.runs import RankFile, Run
from tb_ddp_doctor.discover.walk import beside
from tb_ddp_doctor.evidence import find as beside_traces
from tb_ddp_doctor.evidence.model import RankEvidence
from tb_ddp_doctor.findings import (
    DevicePeaks,
    Diagnosis,
    FileWarning,
    Network,
    Prospect,
    WarningKind,
    Workload,
)
from tb_ddp_doctor.job.build import JobError, build
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.job.own_worlds import World, Worlds
from tb_ddp_doctor.job.rl_rounds import rounds_of
from tb_ddp_doctor.memory_snapshot.read import read as read_snapshots
from tb_ddp_doctor.nccl_logs.matching import NumberedCalls
from tb_ddp_doctor.nccl_logs.read import read_logs
from tb_ddp_doctor.storage import time_limit
from tb_ddp_doctor.storage.paths import FilePath, RemotePath
from tb_ddp_doctor.storage.time_limit import beginning, within
from tb_ddp_doctor.trace.model import NotJsonError, TraceError
from tb_ddp_doctor.workers import pool

if TYPE_CHECKING:
    from tb_ddp_doctor.account.assemble import Lacking
    from tb_ddp_doctor.account.savings import Savings
    from tb_ddp_doctor.rules.support.base import Rule

_log = logging.getLogger(__name__)

#: Called with the number of files done, of files in all, and the file that was finished last.
Progress = Callable[[int, int, str], None]


class Reading(msgspec.Struct, frozen=True):
    """How files are read."""

    #: Where what was read is kept.
    cache: Cache = msgspec.field(default_factory=Cache)
    #: Where they are read; by default in processes of this machine, as many as pays.
    executor: Executor | None = None
    #: Set to give up; `diagnose` then raises pool.CancelledError.
    cancelled: threading.Event | None = None
    #: Paths of files that are being written, which are not read, and of files that are left out if they lack their
    #: end, since it may yet come.
    changing: Collection[str] = ()
    expected: Collection[str] = ()
    #: What the ranks and links can do, in place of what lies beside the traces.
    calibration: Calibration | None = None
    #: What a step does and what a GPU costs, in place of what the traces say.
    workload: Workload = Workload()
    #: What the GPUs can do at most, in place of the calibration and the table.
    peaks: tuple[DevicePeaks, ...] = ()
    #: Of the price in `workload`; "" as the files of settings say.
    currency: str = ""
    #: The folder of the project, whose file of settings counts; None: none. And whether those beside traces do.
    project: Path | None = None
    has_config: bool = True
    #: Called when all of the run's traces and digests are read, before their ranks are joined.
    joining: Callable[[], None] | None = None
    #: Of what lies beside the traces, only files below these folders are read, all links followed; () reads all.
    confined_to: tuple[Path, ...] = ()

    def may_read(self, path: Path) -> bool:
        """Whether a file beside the traces is to be read."""
        real = Path(os.path.realpath(path))
        return not self.confined_to or any(real.is_relative_to(folder) for folder in self.confined_to)


#: No job has more; larger numbers in a file are nonsense, and each rank that is missing is listed.
_MOST_RANKS = 1 << 17
#: A rank beyond as many times the size that the job's files claim is nonsense too; as many ranks are always possible.
_BEYOND_CLAIM = 4
_SURE_RANKS = 64
#: Files beside the traces that are opened at the same time.
_OPENED_AT_ONCE = 8
_ARRIVING = "Still arriving: left out until it is whole."
_ALL_ARRIVING = "Its files are still arriving."
_OUR_FAULT = "the doctor's fault, please report it"


class RunError(Exception):
    """A run that cannot be diagnosed. Its text is a sentence for users."""

    def __init__(self, sentence: str, unfinished: tuple[str, ...] = ()) -> None:
        super().__init__(sentence)
        #: As `Result.unfinished`.
        self.unfinished = unfinished


class Result(msgspec.Struct, frozen=True):
    """A diagnosis, and the job that it was made from."""

    diagnosis: Diagnosis
    savings: Savings
    job: Job
    #: The trace of each rank of the job, or its digest where the trace is not here.
    files: tuple[FilePath, ...]
    #: Whether no rank's trace is here, so that there is nothing to show but what digests have.
    from_digests: bool
    #: Paths of the files that were read and left out, since their end is still to come.
    unfinished: tuple[str, ...] = ()

    def prospects(self, fixed: Sequence[str] | None) -> list[Prospect]:
        """The step with some findings fixed; None for each that costs something, then for all of these."""
        if fixed is not None:
            return [self.savings.without(fixed)]
        costly = [each.id for each in self.diagnosis.findings if max(each.cost_ms, each.alone_ms) > 0]
        sets = [[name] for name in costly] + ([costly] if len(costly) > 1 else [])
        return [self.savings.without(names) for names in sets]


def diagnose(
    run: Run, *, progress: Progress | None = None, reading: Reading | None = None, settings: Settings | None = None
) -> Result:
    """Diagnose one run.

    Raises RunError if no rank can be used, ValueError if `settings` name an unknown rule or threshold, and
    pool.CancelledError if the reading was cancelled.
    """
    reading, settings = reading or Reading(), settings or {}
    if settings:
        # Who mistypes a name hears of it before traces are read.
        _rules_with(settings)
    changing = [str(file.path) for file in run.files if str(file.path) in reading.changing]
    files = [file for file in run.files if str(file.path) not in reading.changing]
    digests, failed = digest_files(files, reading, progress)
    digests, failed, unfinished = _without_unfinished(digests, failed, reading.expected)
    world_size = _world_size(run, digests)
    by_rank, clashes = _by_rank(digests, world_size)
    arriving = [FileWarning(path, _ARRIVING, "arriving") for path in (*changing, *unfinished)]
    by_rank = _in_rounds(by_rank, reading)
    if reading.joining:
        reading.joining()
    try:
        job = _joined(run, by_rank, world_size, (*run.warnings, *failed, *clashes, *arriving))
    except JobError as error:
        raise RunError(_ALL_ARRIVING if arriving and not digests else str(error), unfinished) from None
    config, rules = _configured(run, reading, settings)
    there, unlisted = _files_beside(run, reading)
    job = _with_beside(run, replace(job, warnings=(*job.warnings, *unlisted)), reading, config, there)
    lacking = {"still arriving": [one.file for one in arriving], "unreadable": [one.file for one in failed]}
    with _no_traceback(run, "Examining it"):
        diagnosis, savings = _examined(job, rules, lacking)
    diagnosis = _with_config(_with_snapshots(diagnosis, there.get(MemorySnapshots, ())), config, reading.currency)
    paths = tuple(_shown(by_rank[rank][0].path) for rank in job.ranks.tolist())
    from_digests = all(path.suffix == DIGEST_SUFFIX for path in paths)
    return Result(diagnosis, savings, job, paths, from_digests, unfinished)


@contextmanager
def _no_traceback(run: Run, what: str) -> Iterator[None]:
    """Raises RunError, as a sentence for users, for what goes wrong within: `what` failed."""
    try:
        yield
    except (MemoryError, JobError):
        raise
    except Exception as error:
        _log.debug("%s failed for %s", what, run.name, exc_info=True)
        raise RunError(f"{what} failed in a way that is {_OUR_FAULT} ({_named(error)}).") from error


def _joined(
    run: Run,
    by_rank: Mapping[int, tuple[RankFile, RankDigest]],
    world_size: int | None,
    warnings: tuple[FileWarning, ...],
) -> Job:
    """The job of a run's ranks. Raises JobError where no rank can be used."""
    digests = {rank: digest for rank, (_, digest) in by_rank.items()}
    nodes = {rank: wording.encodable(_node(file, digest, rank)) for rank, (file, digest) in by_rank.items()}
    with _no_traceback(run, "Joining its ranks"):
        return build(run.name, digests, nodes, world_size, warnings)


def _with_beside(
    run: Run, job: Job, reading: Reading, config: Config, there: Mapping[type[Beside], Sequence[Path]]
) -> Job:
    """The job with what lies beside its traces, and a warning for each file there that cannot be read."""
    calibration, unusable = _calibration(reading, config, there.get(Calibrations, ()))
    (network, rank_evidence, reasons), unread = _beside(run, job, there)
    return replace(
        job,
        network=with_traced(network, job.digests),
        rank_evidence=rank_evidence,
        compile_reasons=reasons,
        calibration=calibration,
        workload=_workload((reading.workload, config.workload), job),
        peaks=reading.peaks,
        warnings=(*job.warnings, *unusable, *unread, *config.warnings),
    )


def _shown(path: FilePath) -> FilePath:
    """The trace that lies beside its digest, where it does."""
    return trace if isinstance(path, Path) and (trace := digested_trace(path)) else path


def _node(file: RankFile, digest: RankDigest, rank: int) -> str:
    """The rank's node, from what says so; "" where nothing does."""
    if digest.header.host:
        return digest.header.host
    return file.node if file.node != host_in_name(file.worker) or names_process(file.worker, digest.pid, rank) else ""


def _without_unfinished(
    digests: list[tuple[RankFile, RankDigest]], failed: list[FileWarning], expected: Collection[str]
) -> tuple[list[tuple[RankFile, RankDigest]], list[FileWarning], tuple[str, ...]]:
    """What is there without the files that lack something which may yet come, and these files."""
    if not expected:
        return digests, failed, ()
    cut = [
        str(file.path)
        for file, digest in digests
        if str(file.path) in expected and any(warning.kind == "lost-end" for warning in digest.warnings)
    ]
    # Of what is no beginning of a trace, no more is waited for.
    never = [warning for warning in failed if warning.file not in expected or warning.kind == "not-json"]
    unreadable = [warning.file for warning in failed if warning not in never]
    return (
        [(file, digest) for file, digest in digests if str(file.path) not in cut],
        never,
        (*cut, *unreadable),
    )


class _Asked(msgspec.Struct, frozen=True):
    """What logs and other texts beside the traces are asked."""

    logs: Sequence[Path]
    compile_logs: Sequence[Path]
    folders: Sequence[Path]
    pids: Collection[str]
    world_size: int
    traced: Sequence[NumberedCalls]
    ranks: Sequence[beside_traces.Rank]


#: What NCCL's logs say, what files beside the traces do of each rank, and what torch.compile's logs do.
_BesideTraces: TypeAlias = tuple[Network | None, dict[int, RankEvidence], tuple[CompileReason, ...]]


def _files_beside(run: Run, reading: Reading) -> tuple[Mapping[type[Beside], Sequence[Path]], list[FileWarning]]:
    """The files of each recorder that lie beside the traces; of remote traces, none."""
    directory = run.directory
    if not isinstance(directory, Path):
        return {}, []
    try:
        return beside(BESIDE, _folders(run), directory, reading.may_read), []
    except OSError as error:
        return {}, [FileWarning(str(directory), f"What lies beside the traces is left out: {error}")]


def _folders(run: Run) -> list[Path]:
    """The folders of a run's traces."""
    return [file.path.parent for file in run.files if not isinstance(file.path, RemotePath)]


def _beside(
    run: Run, job: Job, there: Mapping[type[Beside], Sequence[Path]]
) -> tuple[_BesideTraces, list[FileWarning]]:
    """What texts beside the traces say of the job's processes and ranks, and what cannot be read; of remote traces,
    nothing. They are read in a process of their own.
    """
    directory = run.directory
    if not isinstance(directory, Path):
        return (None, {}, ()), []
    logs, hung = _answering(there.get(NcclLogs, ()))
    compile_logs, hung_too = _answering(there.get(TorchTraces, ()))
    hung += hung_too
    named = zip(job.ranks.tolist(), job.nodes, job.digests, strict=True)
    asked = _Asked(
        logs,
        compile_logs,
        _folders(run),
        {digest.pid for digest in job.digests},
        job.world_size,
        [one for digest in job.digests for one in numbered_calls(digest)] if logs else [],
        [beside_traces.Rank(rank, node, digest.pid) for rank, node, digest in named],
    )
    try:
        # The doctor's own records alone, small and of known types, are worth no process.
        paths = [*logs, *compile_logs]
        size = sum(path.stat().st_size for path in paths)
        return pool.call(_read_beside, asked, size, gives=_BesideTraces) if paths else _read_beside(asked), hung
    except Exception as error:
        _log.debug("reading what lies beside the traces of %s failed", run.name, exc_info=True)
        said = str(error) if isinstance(error, pool.CrashError) else f"reading them failed ({_named(error)})."
        return (None, {}, ()), [*hung, FileWarning(str(directory), f"The logs beside the traces are left out: {said}")]


def _answering(paths: Sequence[Path]) -> tuple[list[Path], list[FileWarning]]:
    """The files that can be opened and read, and a warning for each that does not answer."""
    warnings: list[FileWarning] = []

    def answers(path: Path) -> bool:
        try:
            return bool(beginning(path, 1))
        except TimeoutError as error:
            warnings.append(FileWarning(str(path), f"Left out: {error}"))
        except OSError:
            pass
        return False

    with ThreadPoolExecutor(_OPENED_AT_ONCE) as threads:
        answering = [path for path, answer in zip(paths, threads.map(answers, paths), strict=True) if answer]
    return answering, warnings


def _read_beside(asked: _Asked) -> _BesideTraces:
    network = read_logs(asked.logs, asked.pids, asked.world_size, asked.traced) if asked.logs else None
    ranks_of_pids = {rank.pid: rank.number for rank in asked.ranks if rank.pid}
    reasons = read_compile_logs(asked.compile_logs, ranks_of_pids) if asked.compile_logs else ()
    return network, beside_traces.find(asked.folders, asked.ranks, asked.logs), reasons


def _configured(run: Run, reading: Reading, settings: Settings) -> tuple[Config, list[Rule]]:
    """What files of settings say, and the rules with these thresholds, before which `settings` go.

    Raises ValueError where `settings` name an unknown rule or threshold; a file that does costs a warning.
    """
    rules = _rules_with(settings)
    directory = run.directory
    if not reading.has_config or not isinstance(directory, Path):
        return Config(), rules
    places = [folder for folder in (directory, directory.parent) if reading.may_read(folder)]
    try:
        config = within(time_limit.PATIENCE_S, lambda: read_config(places, reading.project), directory)
    except OSError as error:
        return Config(warnings=(FileWarning(str(directory), f"Its settings are left out: {error}"),)), rules
    both = {
        name: {**config.thresholds.get(name, {}), **settings.get(name, {})} for name in {*config.thresholds, *settings}
    }
    try:
        return config, _rules_with(both)
    except ValueError as error:
        files = ", ".join(one.file for one in config.used)
        message = f"The thresholds of {files} are ignored: {error}"
        return replace(config, warnings=(*config.warnings, FileWarning(str(directory), message))), rules


def _with_config(diagnosis: Diagnosis, config: Config, currency: str) -> Diagnosis:
    """The diagnosis with the files of settings that it was made with, and the currency of its money."""
    used = tuple(replace(one, file=wording.encodable(one.file)) for one in config.used)
    rates = diagnosis.rates and replace(diagnosis.rates, currency=currency or config.currency)
    return replace(diagnosis, config=used, rates=rates)


def _calibration(
    reading: Reading, config: Config, there: Sequence[Path]
) -> tuple[Calibration | None, list[FileWarning]]:
    """What the ranks and links can do, named or beside the traces; and a warning for a file there that is none."""
    path = config.calibration or preferred(there)
    if reading.calibration or path is None or not reading.may_read(path):
        return reading.calibration, []
    try:
        beginning(path, 1)
        return pool.call(load, path, path.stat().st_size, gives=Calibration, raises=(CalibrationError,)), []
    except CalibrationError as error:
        return None, [FileWarning(str(path), f"It{str(error).removeprefix(str(path))}")]
    except (OSError, pool.CrashError) as error:
        return None, [FileWarning(str(path), f"Left out: {error}")]
    except Exception as error:
        _log.debug("reading %s failed", path, exc_info=True)
        return None, [FileWarning(str(path), f"Left out: reading it failed ({type(error).__name__}).")]


def _workload(given: Sequence[Workload], job: Job) -> Workload:
    """What the user says of a step: now, in files of settings, else when it was captured."""
    workloads = [digest.header.workload for digest in job.digests]
    return Workload(
        **{
            name: next((value for one in (*given, *workloads) if (value := getattr(one, name)) is not None), None)
            for name in Workload.__struct_fields__
        }
    )


def _with_snapshots(diagnosis: Diagnosis, there: Sequence[Path]) -> Diagnosis:
    """The diagnosis with what snapshots of memory beside the traces hold."""
    if not there:
        return diagnosis
    try:
        of_memory, warnings = read_snapshots(there)
        snapshots = tuple(
            replace(one, file=wording.encodable(one.file), said=tuple(memory_text.snapshot_sentences(one)))
            for one in of_memory
        )
    except Exception as error:
        _log.debug("reading the snapshots of memory of %s failed", diagnosis.name, exc_info=True)
        snapshots = ()
        message = f"The snapshots of memory are left out: reading them failed ({type(error).__name__})."
        warnings = [FileWarning(str(there[0].parent), message)]
    shown = (FileWarning(wording.encodable(one.file), wording.encodable(one.message), one.kind) for one in warnings)
    return replace(diagnosis, memory_snapshots=snapshots, warnings=(*diagnosis.warnings, *shown))


def examine(job: Job, settings: Settings | None = None) -> Diagnosis:
    """Apply the rules to a job. Raises ValueError if `settings` name an unknown rule or threshold."""
    return _examined(job, _rules_with(settings or {}), {})[0]


# What examines jobs is half of all modules: they are imported while other processes read.


def _import_examination() -> None:
    from tb_ddp_doctor import examination  # noqa: F401


def _rules_with(settings: Settings) -> list[Rule]:
    from tb_ddp_doctor.examination import rules_with

    return rules_with(settings)


def _examined(job: Job, rules: Iterable[Rule], lacking: Lacking) -> tuple[Diagnosis, Savings]:
    from tb_ddp_doctor.examination import examine

    return examine(job, rules, lacking)


def _in_rounds(
    by_rank: dict[int, tuple[RankFile, RankDigest]], reading: Reading
) -> dict[int, tuple[RankFile, RankDigest]]:
    """The ranks with their steps, of reinforcement learning the rounds that all traces show together."""
    worlds = Worlds(
        {rank: digest for rank, (_, digest) in by_rank.items()},
        {
            rank: World(file.rank - file.own_rank, max(file.world_size or 0, file.own_rank + 1))
            for rank, (file, _) in by_rank.items()
            if file.own_rank is not None
        },
    )
    by_rank = {rank: (file, worlds.in_job(rank, digest)) for rank, (file, digest) in by_rank.items()}

    def again(ends: Mapping[int, RoundEnds]) -> dict[int, RankDigest]:
        read, _ = digest_files(
            [by_rank[rank][0] for rank in ends],
            reading,
            ends={by_rank[rank][0].path: each for rank, each in ends.items()},
        )
        of_path = {file.path: worlds.in_job(file.rank, digest) for file, digest in read}
        return {rank: of_path.get(by_rank[rank][0].path, by_rank[rank][1]) for rank in ends}

    ends = rounds_of({rank: digest for rank, (_, digest) in by_rank.items()}, again)
    return by_rank | {rank: (by_rank[rank][0], digest) for rank, digest in again(ends).items()} if ends else by_rank


def digest_files(
    files: Sequence[RankFile],
    reading: Reading,
    progress: Progress | None = None,
    ends: Mapping[FilePath, RoundEnds] | None = None,
) -> tuple[list[tuple[RankFile, RankDigest]], list[FileWarning]]:
    """The digest of each file that can be read, in the order of ranks, and a warning for each that cannot.

    Steps are what the traces mark, or rounds with these `ends`.
    """
    ends = ends or {}
    kept = [(file, reading.cache.kept(file.path, ends.get(file.path))) for file in files]
    digests = [(file, digest) for file, digest in kept if digest]
    unread = {file.path: file for file, digest in kept if digest is None}
    warnings: list[FileWarning] = []
    if unread:
        read, warnings = _digest_unread(unread, reading, ends, len(files), progress)
        digests += read
    digests.sort(key=lambda pair: pair[0].rank)
    reading.cache.warn_unless_kept([file.path for file, _ in digests if file.path in unread])
    reading.cache.trim(grew=bool(unread))
    return digests, sorted(warnings, key=lambda warning: warning.file)


def _digest_unread(
    unread: Mapping[FilePath, RankFile],
    reading: Reading,
    ends: Mapping[FilePath, RoundEnds],
    of: int,
    progress: Progress | None,
) -> tuple[list[tuple[RankFile, RankDigest]], list[FileWarning]]:
    """The digests of files that are not kept, the last ones of so many, and a warning for each that cannot be read."""
    digests: list[tuple[RankFile, RankDigest]] = []
    warnings: list[FileWarning] = []
    sizes = [(path, file.size) for path, file in unread.items()]
    attempts = pool.run(
        partial(_digest_in_rounds, reading.cache, ends) if ends else reading.cache.digest,
        sizes,
        gives=RankDigest,
        raises=(TraceError, NotJsonError),
        executor=reading.executor,
        cancelled=reading.cancelled,
        meanwhile=_import_examination,
    )
    for done, (path, attempt) in enumerate(attempts, of - len(unread) + 1):
        file = unread[path]
        try:
            digested = attempt.result()
            check(digested)
            digests.append((file, digested))
        except (TraceError, pool.CrashError) as error:
            kind: WarningKind = "not-json" if isinstance(error, NotJsonError) else "note"
            warnings.append(FileWarning(str(path), f"Rank {file.rank} is left out: {error}", kind))
        except InvalidError as error:
            _log.debug("what was made of %s is no digest", path, exc_info=True)
            warnings.append(
                FileWarning(
                    str(path), f"Rank {file.rank} is left out: the tables made of it do not fit each other: {error}."
                )
            )
        except Exception as error:
            _log.debug("reading %s failed", path, exc_info=True)
            warnings.append(
                FileWarning(
                    str(path),
                    f"Rank {file.rank} is left out: reading it failed in a way that is {_OUR_FAULT} ({_named(error)}).",
                )
            )
        if progress:
            progress(done, of, str(path))
    return digests, warnings


def _digest_in_rounds(cache: Cache, ends: Mapping[FilePath, RoundEnds], path: FilePath) -> RankDigest:
    return cache.digest(path, ends.get(path))


def _by_rank(
    digests: Collection[tuple[RankFile, RankDigest]], world_size: int | None
) -> tuple[dict[int, tuple[RankFile, RankDigest]], list[FileWarning]]:
    """Files by rank number: what the whole file says of its rank beats what its name or its head said."""
    most = min(_MOST_RANKS, _BEYOND_CLAIM * max(world_size or _MOST_RANKS, len(digests), _SURE_RANKS))
    chosen: dict[int, tuple[RankFile, RankDigest]] = {}
    warnings = []
    for file, rank_digest in digests:
        said = rank_digest.header.rank
        is_known = file.own_rank is not None or file.rank_source == "distributedInfo"
        rank = file.rank if said is None or is_known else said
        size = rank_digest.header.world_size or 0
        if size > _MOST_RANKS:
            message = f"Its world size of {size:,} is ignored, which no job has."
            warnings.append(FileWarning(str(file.path), message))
        if rank >= most:
            job = f"a job of {world_size:,}" if world_size and most < _MOST_RANKS else "no job"
            warnings.append(FileWarning(str(file.path), f"Left out: it claims rank {rank:,}, which {job} has."))
            continue
        if rank in chosen:
            warnings.append(
                FileWarning(str(file.path), f"Left out: it claims rank {rank}, as does {chosen[rank][0].path}.")
            )
            continue
        chosen[rank] = (file, rank_digest)
    return chosen, warnings


def _world_size(run: Run, digests: Sequence[tuple[RankFile, RankDigest]]) -> int | None:
    if run.world_size and run.world_size <= _MOST_RANKS:
        return run.world_size
    claims = [digest.header.world_size for _, digest in digests]
    possible = [size for size in claims if size and size <= _MOST_RANKS]
    return max(set(possible), key=possible.count) if possible else None


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
