"""The child process: digests a rank's trace at the lowest priority, and keeps or deletes it; one rank's diagnoses all.

    python -m tb_ddp_doctor.capture.child TASK [TASK ...]

What it prints is for the job's log: on standard output each time, on standard error, where things went wrong, once.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from tb_ddp_doctor.cache import Cache, write_digest
from tb_ddp_doctor.capture import directory, retention, scalars, scratch
from tb_ddp_doctor.capture.task import Task
from tb_ddp_doctor.evidence.model import CaptureRecord
from tb_ddp_doctor.storage.whole_file import written_whole
from tb_ddp_doctor.trace.model import TraceError

#: Between two looks for what other ranks have written, s.
_POLL_S = 1.0


def main(arguments: list[str]) -> int:
    """Do the tasks one after the other; returns the exit status, which is not 0 where one failed."""
    _stand_back()
    with scratch.use(Path(arguments[0]).parents[1]):
        return max(_do(Path(path)) for path in arguments)


def _do(path: Path) -> int:
    task = directory.read_json(path, Task)
    if task is None:
        _complain(f"{path} is no task.")
        return 2
    parent = os.getppid()
    try:
        run(task)
    except _SaidError:
        return 1
    except (OSError, TraceError) as error:
        _complain(f"step {task.step}: rank {task.rank} is missing: {_reason(error, task)}.")
        return 1
    except Exception as error:
        named = f"{type(error).__name__}: {error}"
        _complain(f"step {task.step}: rank {task.rank} fails, which is the doctor's fault, please report it ({named}).")
        return 1
    finally:
        Path(task.trace).unlink(missing_ok=True)
        # Nobody is left to read what was said.
        if os.getppid() != parent:
            shutil.rmtree(path.parent, ignore_errors=True)
            scratch.leave(path.parent.parent)
    return 0


def run(task: Task) -> None:
    """Digest, report, diagnose, keep. Raises OSError and TraceError where there is no digest."""
    folder = directory.CaptureFolder.of(Path(task.logdir), task.step)
    if task.logdir != task.whole_logdir:
        directory.refuse_link(Path(task.logdir))
    directory.refuse_link(folder.path)
    diagnoses = task.is_first
    try:
        with scalars.pending(folder) if task.is_first else contextlib.nullcontext():
            _digest(task, folder)
            with _said(task, "its digest is there, and the capture's other files cannot be written"):
                written = [folder.digest(task.rank)]
                if task.keep == "traces":
                    _compress(Path(task.trace), folder.trace(task.rank))
                    written.append(folder.trace(task.rank))
                _record(task, folder, written)
                diagnoses = diagnoses or _takes_over(task, folder)
                if diagnoses:
                    _diagnose(task, folder)
    finally:
        if diagnoses:
            _publish(task)
    with _said(task, "its trace cannot be kept, or older captures not deleted"):
        if diagnoses and task.max_gb is not None:
            retention.trim(Path(task.whole_logdir), task.job, round(task.max_gb * 1e9), but=folder)
        if task.keep == "accused" and task.rank in _traced(task, folder):
            _compress(Path(task.trace), folder.trace(task.rank))
            _record(task, folder, [*written, folder.trace(task.rank)])


def _digest(task: Task, folder: directory.CaptureFolder) -> None:
    digest = Cache(None).digest(Path(task.trace))
    for warning in digest.warnings:
        if warning.loses_events:
            _complain(f"step {task.step}: rank {task.rank}: {warning.message}")
    write_digest(digest, folder.digest(task.rank), Path(task.trace))


@contextlib.contextmanager
def _said(task: Task, what: str) -> Iterator[None]:
    """What cannot be written is said, and ends the work."""
    try:
        yield
    except OSError as error:
        _complain(f"step {task.step}: rank {task.rank}: {what}: {_reason(error, task)}.")
        raise _SaidError from error


class _SaidError(Exception):
    """The work ends, and why was said."""


def _reason(error: Exception, task: Task) -> str:
    """What an error says, without its number; of a full disk, which names no file, with the log directory."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror} ({error.filename or task.logdir})"
    return str(error).rstrip(".")


def _stand_back() -> None:
    """Let the training go first, on the CPU and on the disk."""
    import psutil

    with contextlib.suppress(OSError, psutil.Error, AttributeError):
        os.nice(19)
    with contextlib.suppress(OSError, psutil.Error, AttributeError, ValueError):
        psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)


def _compress(trace: Path, to: Path) -> None:
    from isal import igzip

    with trace.open("rb") as plain, written_whole(to) as file:
        packed: Any = igzip.IGzipFile(fileobj=file, mode="wb")  # type: ignore[no-untyped-call]
        with packed:
            shutil.copyfileobj(plain, packed, 1 << 20)


def _record(task: Task, folder: directory.CaptureFolder, written: list[Path]) -> None:
    files = {path.name: path.stat().st_size for path in written}
    directory.write_json(folder.record(task.rank), task.record(files))


def _diagnose(task: Task, folder: directory.CaptureFolder) -> None:
    """Wait for the other ranks for a while, diagnose what is there, and say it; unless another rank does."""
    from tb_ddp_doctor.capture import verdict

    if not _claim(task, folder):
        return
    missing = _wait_for_others(task, folder)
    made = verdict.of_capture(folder, missing)
    if isinstance(made, str):
        _complain(f"step {task.step}: {made}")
        return
    # First to the log, which needs no room on a disk.
    _say(made.line)
    if task.leaves_verdict:
        with contextlib.suppress(OSError):
            directory.write_json(Path(task.trace).with_name(directory.TOLD_NAME), made)
    directory.write_json(folder.verdict, made)


def _publish(task: Task) -> None:
    """Show the verdicts that are there in TensorBoard."""
    try:
        scalars.publish(Path(task.logdir))
    except OSError as error:
        _complain(f"step {task.step}: TensorBoard's time series cannot be written: {_reason(error, task)}.")
    except Exception as error:
        _complain(f"step {task.step}: TensorBoard's time series cannot be written ({type(error).__name__}: {error}).")


def _takes_over(task: Task, folder: directory.CaptureFolder) -> bool:
    """Whether the first rank has not reported for long, and this is the lowest one that has."""
    # The first rank would have had its verdict in half of that, whoever else is missing.
    until = time.monotonic() + 2 * task.patience_s
    while not _has_reported(task.first, task, folder):
        if time.monotonic() >= until:
            break
        time.sleep(_POLL_S)
    return not any(_has_reported(rank, task, folder) for rank in sorted(task.expected) if rank < task.rank)


def _has_reported(rank: int, task: Task, folder: directory.CaptureFolder) -> bool:
    record = directory.read_json(folder.record(rank), CaptureRecord)
    return record is not None and record.start == task.start


def _claim(task: Task, folder: directory.CaptureFolder) -> bool:
    """Say that this rank diagnoses; False if another one does, so that no two verdicts are written."""
    claim = directory.Claim(task.rank)
    with contextlib.suppress(FileExistsError), folder.claim.open("xb") as file:
        file.write(msgspec.json.encode(claim))
        return True
    other = directory.read_json(folder.claim, directory.Claim)
    # None while it is being written.
    return task.is_first if other is None else other.rank == task.rank


def _wait_for_others(task: Task, folder: directory.CaptureFolder) -> tuple[int, ...]:
    """The ranks that have not reported in time."""
    until = time.monotonic() + task.patience_s
    missing = set(task.expected)
    while True:
        missing -= {rank for rank in missing if _has_reported(rank, task, folder)}
        if not missing or time.monotonic() >= until:
            return tuple(sorted(missing))
        time.sleep(_POLL_S)


def _traced(task: Task, folder: directory.CaptureFolder) -> tuple[int, ...]:
    """The ranks whose traces are kept, once the verdict is there; none if it does not come."""
    # The rank that diagnoses waits as long for others as this one may have to wait for it.
    until = time.monotonic() + 2 * task.patience_s + 60
    while time.monotonic() < until:
        verdict = directory.read_json(folder.verdict, directory.CaptureVerdict)
        if verdict is not None:
            return verdict.traced
        if task.is_first:
            break
        time.sleep(_POLL_S)
    return ()


def _say(sentence: str) -> None:
    sys.stdout.write(sentence.replace("\n", " ") + "\n")
    sys.stdout.flush()


def _complain(sentence: str) -> None:
    """Say what went wrong; the log has it once, whichever step it was first."""
    sys.stderr.write(sentence.replace("\n", " ") + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
