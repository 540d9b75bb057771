"""What a recorder is: something that leaves files, known by their names and first bytes.

Every recorder is a module of `recorders/`, found by being there; docs/adding-a-recorder.md says how to add one. They
are of three kinds:

- `TraceRecorder`: its files hold the events of processes, each of which is a rank of a run. Kineto's traces, of one
  rank each, are such files too: `files` finds them, and `trace.reader` reads them.
- `Beside`: its files lie beside the traces of a run and say more of it (logs, snapshots of memory, a calibration).
- `Recorder` itself: its files are examined by themselves (Flight Recorder's dumps).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from tb_ddp_doctor.discover.trace_file import Status, TraceFile


class RecordingError(Exception):
    """A file that is no recording of this recorder, or one without processes. Its text is a sentence for users."""


class DamagedRecordingError(RecordingError):
    """A recording of which a part is missing, or that is made to harm. Its text is a sentence as well."""


class Recorder(ABC):
    """Something that leaves files. Modules of `discover/recorders` are imported whenever a directory is searched, so
    they import nothing that reads a whole file.
    """

    #: Who wrote the file, as users know it.
    name: ClassVar[str]
    #: How much of a file says whether it is the recorder's; 0 where its name does.
    head_bytes: ClassVar[int] = 0

    @abstractmethod
    def matches(self, name: str) -> bool:
        """Whether a file may be the recorder's by its name."""

    def begins(self, head: bytes) -> bool:
        """Whether a file with these first `head_bytes` is the recorder's."""
        return bool(head)


class Beside(Recorder):
    """A recorder whose files lie beside traces: in their folders, in the run's folder and in the one above."""

    #: Folders there with this in their names, in small letters, are looked into as well: so many levels deep.
    within: ClassVar[str] = ""
    depth: ClassVar[int] = 0


class TraceRecorder(Recorder):
    """A recorder of processes' events, other than Kineto."""

    #: "module:function" that makes a `trace.model.RankTrace` of a process, given its `storage.paths.ProcessPath`.
    #: It raises `trace.model.TraceError`, and no other error, whatever the file holds.
    reader: ClassVar[str]
    #: What is said of a file in a remote directory, where it cannot be read.
    elsewhere: ClassVar[str]
    #: What is said where files do not say which rank a process is: behind "The rank of 2 processes is assumed from".
    rank_order: ClassVar[str]
    #: Whether `--step-range` names what is a step in its recordings (`ProcessPath.asked`).
    takes_step_range: ClassVar[bool] = False

    @abstractmethod
    def processes(self, path: Path, status: Status | None) -> list[TraceFile]:
        """The processes of a file, each a rank, with what is known of it; their paths are `ProcessPath`s.

        It is called where directories are searched, in TensorBoard's own process too: what could take long, or much
        memory, is done by `workers.pool.call`. Raises RecordingError and OSError.
        """
