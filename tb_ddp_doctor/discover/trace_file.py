"""A file on its way into a run."""

from __future__ import annotations

import os
from typing import Literal, TypeAlias

import msgspec

from tb_ddp_doctor.storage import paths
from tb_ddp_doctor.storage.paths import FilePath

Status: TypeAlias = os.stat_result | paths.FileStatus

#: Where a rank number came from.
RankSource: TypeAlias = Literal["distributedInfo", "file name", "folder name", "order"]
#: Folders below the log directory.
Parts: TypeAlias = tuple[str, ...]


class TraceFile(msgspec.Struct):
    """A file on its way into a run; its rank may not be known yet."""

    path: FilePath
    worker: str
    span: str
    time_ns: int | None
    size: int
    modified_ns: int
    #: Whether its head is that of a trace.
    is_readable: bool
    node: str
    world_size: int | None
    rank: int | None = None
    source: RankSource = "order"
    #: When recording ended, where the file says both: `time_ns` is then when it began.
    end_ns: int | None = None
    #: When its first event began, where that is in the beginning of the file.
    begin_ns: int | None = None
    #: The rank in its own world, where the job has several (`own_worlds`).
    own_rank: int | None = None

    @property
    def is_stray(self) -> bool:
        """Whether it was read and names no rank: beside files of a job, it is none of the job's."""
        return self.is_readable and self.rank is None
