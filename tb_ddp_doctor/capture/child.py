"""The child process: digests a rank's trace at the lowest priority, and keeps or deletes it; one rank's diagnoses all.

    python -m tb_ddp_doctor.capture.child TASK

What it prints is for the job's log.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from tb_ddp_doctor.cache import Cache, write_digest
from tb_ddp_doctor.capture import retention
from tb_ddp_doctor.capture.directory import CaptureFolder, Claim, Verdict, read_json, write_json
from tb_ddp_doctor.capture.task import Task
from tb_ddp_doctor.evidence.model import Record
from tb_ddp_doctor.storage.whole_file import written_whole
from tb_ddp_doctor.trace.model import TraceError

#: Between two looks for what other ranks have written, s.
_POLL_S = 1.0
#: Records of a job that was here before, and died, are so much older than this capture, s.
_EARLIER_S = 900.0


def main(arguments: list[str]) -> int:
    """Do one task; returns the exit status."""
    _stand_back()
    path = Path(arguments[0])
    task = read_json(path, Task)
    if task is None:
        _say(f"{path} is no task.")
        return 2
    parent = os.getppid()
    try:
        run(task)
    except (OSError, TraceError) as error:
        _say(f"step {task.step}: rank {task.rank} is missing: {error}")
        return 1
    except Exception as error:
        named = f"{type(error).__name__}: {error}"
        _say(f"step {task.step}: rank {task.rank} fails, which is the doctor's fault, please report it ({named}).")
        return 1
    finally:
        Path(task.trace).unlink(missing_ok=True)
        # Nobody is left to read what was said.
        if os.getppid() != parent:
            shutil.rmtree(path.parent, ignore_errors=True)
            with contextlib.suppress(OSError):
                path.parent.parent.rmdir()
    return 0


def run(task: Task) -> None:
    """Digest, report, diagnose, keep. Raises OSError and TraceError."""
    folder, trace = CaptureFolder.of(Path(task.logdir), task.step), Path(task.trace)
    if task.is_first:
        retention.remove_older(folder, _oldest_ns(task))
    digest = Cache(None).digest(trace)
    for warning in digest.warnings:
        if warning.loses_events:
            _say(f"step {task.step}: rank {task.rank}: {warning.message}")
    write_digest(digest, folder.digest(task.rank))
    written = [folder.digest(task.rank)]
    if task.keep == "traces":
        _compress(trace, folder.trace(task.rank))
        written.append(folder.trace(task.rank))
    _record(task, folder, written)
    if task.is_first or _takes_over(task, folder):
        _diagnose(task, folder)
    if task.keep == "accused" and task.rank in _traced(task, folder):
        _compress(trace, folder.trace(task.rank))
        _record(task, folder, [*written, folder.trace(task.rank)])


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


def _record(task: Task, folder: CaptureFolder, written: list[Path]) -> None:
    record = Record(
        rank=task.rank,
        world_size=task.world_size,
        node=task.node,
        pid=task.pid,
        step=task.step,
        steps=task.steps,
        captured_ns=task.captured_ns,
        files={path.name: path.stat().st_size for path in written},
        evidence=task.evidence,
    )
    write_json(folder.record(task.rank), record)


def _diagnose(task: Task, folder: CaptureFolder) -> None:
    """Wait for the other ranks for a while, diagnose what is there, and say it; unless another rank does."""
    from tb_ddp_doctor.capture import scalars, verdict

    if not _claim(task, folder):
        return
    missing = _wait_for_others(task, folder)
    found = verdict.of_capture(folder, missing)
    if isinstance(found, str):
        _say(f"step {task.step}: {found}")
        return
    told, result = found
    write_json(folder.verdict, told)
    _say(told.line)
    try:
        scalars.write(Path(task.logdir), told, result)
    except Exception as error:
        _say(f"step {task.step}: no scalars were written ({type(error).__name__}: {error}).")
    if task.max_gb is not None:
        retention.trim(Path(task.logdir), round(task.max_gb * 1e9), but=folder)


def _takes_over(task: Task, folder: CaptureFolder) -> bool:
    """Whether the first rank has not reported for long, and this is the lowest one that has."""
    # The first rank would have had its verdict in half of that, whoever else is missing.
    until = time.monotonic() + 2 * task.patience_s
    while not _has_reported(task.first, task, folder):
        if time.monotonic() >= until:
            break
        time.sleep(_POLL_S)
    if any(_has_reported(rank, task, folder) for rank in sorted(task.expected) if rank < task.rank):
        return False
    retention.remove_older(folder, _oldest_ns(task))
    return True


def _has_reported(rank: int, task: Task, folder: CaptureFolder) -> bool:
    record = read_json(folder.record(rank), Record)
    return record is not None and record.captured_ns >= _oldest_ns(task)


def _oldest_ns(task: Task) -> int:
    """What was captured before is an earlier job's."""
    return task.captured_ns - round(_EARLIER_S * 1e9)


def _claim(task: Task, folder: CaptureFolder) -> bool:
    """Say that this rank diagnoses; False if another one does, so that no two verdicts are written."""
    claim = Claim(task.rank, task.captured_ns)
    with contextlib.suppress(FileExistsError), folder.claim.open("xb") as file:
        file.write(msgspec.json.encode(claim))
        return True
    other = read_json(folder.claim, Claim)
    if other is None:  # being written
        return task.is_first
    is_another_capture = abs(other.captured_ns - task.captured_ns) > task.patience_s * 1e9
    if other.rank != task.rank and not is_another_capture:
        return False
    write_json(folder.claim, claim)
    return True


def _wait_for_others(task: Task, folder: CaptureFolder) -> tuple[int, ...]:
    """The ranks that have not reported in time."""
    until = time.monotonic() + task.patience_s
    missing = set(task.expected)
    while True:
        missing -= {rank for rank in missing if folder.record(rank).exists()}
        if not missing or time.monotonic() >= until:
            return tuple(sorted(missing))
        time.sleep(_POLL_S)


def _traced(task: Task, folder: CaptureFolder) -> tuple[int, ...]:
    """The ranks whose traces are kept, once the verdict is there; none if it does not come."""
    # The rank that diagnoses waits as long for others as this one may have to wait for it.
    until = time.monotonic() + 2 * task.patience_s + 60
    while time.monotonic() < until:
        told = read_json(folder.verdict, Verdict)
        if told is not None:
            return told.traced
        if task.is_first:
            break
        time.sleep(_POLL_S)
    return ()


def _say(sentence: str) -> None:
    sys.stdout.write(sentence.replace("\n", " ") + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
