"""What a recorder is: something whose files hold the events of processes, each of which is a rank.

Kineto's traces, of one rank each, are found by `files` and read by `trace.reader`. Every other recorder is a module of
`recorders/`, found by being there; docs/adding-a-recorder.md says how to add one.
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
    """A recorder other than Kineto. Modules of `discover/recorders` are imported whenever a directory is searched, so
    what reads events is named, and imported when a file is read.
    """

    #: Who wrote the file, as users know it.
    name: ClassVar[str]
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
    def matches(self, name: str) -> bool:
        """Whether a file may be a recording by its name."""

    @abstractmethod
    def processes(self, path: Path, status: Status | None) -> list[TraceFile]:
        """The processes of a file, each a rank, with what is known of it; their paths are `ProcessPath`s.

        It is called where directories are searched, in TensorBoard's own process too: what could take long, or much
        memory, is done by `workers.pool.call`. Raises RecordingError and OSError.
        """
