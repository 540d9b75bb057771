"""SQLite files of Nsight Systems: one file is as many ranks as it has processes with kernels."""

from __future__ import annotations

import logging
from functools import lru_cache
from pathlib import Path

from tb_ddp_doctor.discover.names import rank_in_name
from tb_ddp_doctor.discover.recorder import DamagedRecordingError, RecordingError, TraceRecorder
from tb_ddp_doctor.discover.trace_file import Status, TraceFile
from tb_ddp_doctor.nsys import processes
from tb_ddp_doctor.nsys.database import DamagedError, NsysError
from tb_ddp_doctor.storage.paths import ProcessPath, identity
from tb_ddp_doctor.workers import pool

_log = logging.getLogger(__name__)

_SUFFIXES = (".sqlite", ".sqlite3", ".db")


class NsightSystems(TraceRecorder):
    """`nsys export --type sqlite`."""

    name = "Nsight Systems"
    reader = "tb_ddp_doctor.trace.nsys.read:read"
    elsewhere = (
        "An SQLite file cannot be read where it lies: if this is an export of Nsight Systems, copy it to a local "
        "folder and diagnose that."
    )
    rank_order = (
        "the order of GPUs: Nsight Systems records ranks only in NCCL's payloads (nsys export --include-json true)."
    )
    takes_step_range = True

    def matches(self, name: str) -> bool:
        return name.endswith(_SUFFIXES)

    def processes(self, path: Path, status: Status | None) -> list[TraceFile]:
        recording = _recording(path, identity(path), status.st_size if status else 0)
        if isinstance(recording, NsysError):
            kind = DamagedRecordingError if isinstance(recording, DamagedError) else RecordingError
            raise kind(str(recording))
        if not recording.processes:
            raise RecordingError("It holds no kernels: record with nsys profile --trace=cuda,nvtx.")
        several = len(recording.processes) > 1
        named = None if several else rank_in_name(path.stem)
        processes = []
        for process in recording.processes:
            rank = named if process.rank is None else process.rank
            processes.append(
                TraceFile(
                    path=ProcessPath(path, process.number, f"pid {process.pid}"),
                    # In the order of devices, and then of processes.
                    worker=f"{path.stem} GPU {process.device} pid {process.pid}",
                    span="",
                    time_ns=recording.start_ns,
                    end_ns=recording.end_ns,
                    size=(status.st_size if status else 0) // len(recording.processes),
                    modified_ns=status.st_mtime_ns if status else 0,
                    is_readable=True,
                    node=path.stem if several else "",
                    world_size=process.world_size,
                    rank=rank,
                    source="order" if rank is None else "file name" if process.rank is None else "distributedInfo",
                )
            )
        return processes


@lru_cache(256)
def _recording(path: Path, _state: str, size: int) -> processes.Recording | NsysError:
    """What an export holds, or why that cannot be told: either way it is read once, in a process of its own."""
    try:
        return pool.call(processes.read, path, size, gives=processes.Recording, raises=(DamagedError, NsysError))
    except NsysError as error:
        return error
    except pool.CrashError as error:
        return DamagedError(str(error))
    except OSError:
        raise
    except Exception as error:
        _log.debug("reading %s failed", path, exc_info=True)
        return DamagedError(f"Reading it failed ({type(error).__name__}).")
