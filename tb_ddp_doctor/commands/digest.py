"""Reduce traces to digests."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tb_ddp_doctor import engine
from tb_ddp_doctor.cache import write_digest
from tb_ddp_doctor.commands.output import complain, progress
from tb_ddp_doctor.commands.runs import check_outside, discovered, reading_of
from tb_ddp_doctor.discover.names import DIGEST_SUFFIX, trace_name
from tb_ddp_doctor.report.escape import printable
from tb_ddp_doctor.storage.paths import FilePath, ProcessPath, RemotePath
from tb_ddp_doctor.workers.cluster import executor


def run(options: argparse.Namespace, errors: Console) -> int:
    """Write the digests; 2 where no trace can be read."""
    logdir, output = Path(options.logdir).resolve(), options.output.resolve()
    check_outside(options)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        said = error.strerror.lower() if error.strerror else str(error)
        raise ValueError(f"-o takes a folder, and {options.output} cannot be one: {said}.") from None
    cache, runs = discovered(options, errors)
    traces = [file for run in runs for file in run.files]
    with executor(options.scheduler) as workers, progress(errors) as counting:
        count = counting("Reading", len(traces))
        digests, warnings = engine.digest_files(traces, reading_of(options, cache, workers), count)
    base = logdir if logdir.is_dir() else logdir.parent
    for file, digest in digests:
        name = f"{trace_name(_below(base, file.path, file.rank))}{DIGEST_SUFFIX}"
        write_digest(digest, output / name, file.path)
    for warning in [*(warning for run in runs for warning in run.warnings), *warnings]:
        complain(errors, f"{warning.file}: {warning.message}")
    sentence = f"{len(digests)} of {len(traces)} traces were digested to {printable(str(options.output))}."
    errors.print(Text(sentence), soft_wrap=True)
    return 0 if digests else 2


def _below(base: Path, path: FilePath, rank: int) -> str:
    """Where a trace lies below the log directory; of a remote one, which may have any name, its folders and name."""
    if isinstance(path, RemotePath):
        return "/".join(part for part in path.path.split("/") if part not in ("", ".", ".."))
    if isinstance(path, ProcessPath):
        # A name that says the rank, as those of traces do.
        return f"{_below(base, path.file.with_suffix(''), rank)}_rank{rank}.pt.trace.json"
    return str(path.resolve().relative_to(base))
