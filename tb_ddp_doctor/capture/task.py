"""What a rank hands to the child process that digests its trace: one JSON file in the scratch directory."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from tb_ddp_doctor.evidence.model import CaptureRecord

#: What stays of a capture: digests alone, all traces too, or those of the ranks that findings name and a typical one.
Keep: TypeAlias = Literal["digests", "traces", "accused"]


class Task(CaptureRecord, frozen=True, kw_only=True):
    """The record of a capture, which has no files yet, and what to do with its trace."""

    trace: str
    logdir: str
    keep: Keep
    #: No more of the captures in the log directory is kept, GB; None for all.
    max_gb: float | None
    #: How long the other ranks' digests, or the verdict, are waited for.
    patience_s: float
    #: The ranks that capture; None for all of the job.
    ranks: tuple[int, ...] | None
    #: The log directory of all starts; `logdir` is the folder of this one.
    whole_logdir: str
    #: Whether the job is told the verdict, by a file beside the trace.
    leaves_verdict: bool = False
    files: dict[str, int] = msgspec.field(default_factory=dict)

    def record(self, files: dict[str, int]) -> CaptureRecord:
        """The record with the files that were written, by name, with their sizes."""
        known = {field: getattr(self, field) for field in CaptureRecord.__struct_fields__}
        return CaptureRecord(**{**known, "files": files})

    @property
    def expected(self) -> tuple[int, ...]:
        """The ranks whose digests will come, if all goes well."""
        return tuple(range(self.world_size)) if self.ranks is None else self.ranks

    @property
    def is_first(self) -> bool:
        """Whether this is the lowest rank that captures: its child makes the verdict."""
        return self.rank == self.first

    @property
    def first(self) -> int:
        """The lowest rank that captures."""
        return min(self.expected, default=0)
