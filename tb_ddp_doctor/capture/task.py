"""What a rank hands to the child process that digests its trace: one JSON file in the scratch directory."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from tb_ddp_doctor.evidence.model import RankEvidence

#: What stays of a capture: digests alone, all traces too, or those of the ranks that findings name and a typical one.
Keep: TypeAlias = Literal["digests", "traces", "accused"]


class Task(msgspec.Struct, frozen=True):
    """A trace to digest, and what to do with it."""

    trace: str
    logdir: str
    keep: Keep
    #: No more of the captures in the log directory is kept, GB; None for all.
    max_gb: float | None
    #: How long the other ranks' digests, or the verdict, are waited for.
    patience_s: float
    rank: int
    world_size: int
    node: str
    #: The process that trained.
    pid: int
    step: int
    steps: int
    #: The ranks that capture; None for all of the job.
    ranks: tuple[int, ...] | None
    captured_ns: int
    evidence: RankEvidence
    #: The log directory of all starts; `logdir` is the folder of this one.
    whole_logdir: str
    #: As in `Record`.
    job: str
    start: str
    #: Whether the job is told the verdict, by a file beside the trace.
    leaves_verdict: bool = False

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
