"""What the doctor says of a job that is stuck, as frozen data with one JSON form. `docs/stuck.md` reads an example."""

from __future__ import annotations

from html import escape
from typing import Literal

import msgspec

from tb_ddp_doctor import findings
from tb_ddp_doctor.findings import Confidence, FileWarning, FixParts, MemoryRun
from tb_ddp_doctor.stuck.roots import Cause
from tb_ddp_doctor.stuck.waits import Why

#: "late": a rank has not come yet, and the wait is short; "unknown": the dumps do not tell.
Verdict = Literal["stuck", "late", "healthy", "unknown"]


class CallSite(msgspec.Struct, frozen=True):
    """A place in Python code."""

    file: str
    line: int
    function: str


class StuckCall(msgspec.Struct, frozen=True):
    """A collective, a send or a receive."""

    #: "all_to_all", "send 0->3" ... as torch names it, and its backend, such as "nccl".
    kind: str
    backend: str
    #: The group's name in torch, and what the job calls it.
    group: str
    description: str
    #: Global ranks of the group.
    ranks: tuple[int, ...]
    #: Counts the group's collectives, or a rank's sends and receives in it.
    sequence: int
    #: Sizes and element types as the first of its ranks came with them.
    input_sizes: tuple[tuple[int, ...], ...]
    output_sizes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    #: The function of the user's own that called it first of all; None where stacks were not recorded.
    site: CallSite | None
    #: The job's time limit for it, s; None where it was not recorded.
    timeout_s: float | None


class RankState(msgspec.Struct, frozen=True):
    """How far a rank is with the call of a finding, and its last sign of life."""

    rank: int
    #: "" where no name of a file says it.
    host: str
    #: "completed", "enqueued", "absent", "unknown" or "no dump".
    came: str
    #: When it enqueued the call, ns since 1970 on its own clock; None where it did not.
    enqueued_ns: int | None
    #: The newest time in its dump; None without one.
    last_sign_ns: int | None


class StuckFinding(msgspec.Struct, frozen=True):
    """One fault: the ranks at the root of waiting, and what to do about them."""

    id: str
    cause: Cause
    severity: str
    confidence: Confidence
    #: The ranks at the root, and their hosts as far as names of files tell them.
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    title: str
    why: str
    #: Advice in words; then, after an empty line, the code or command to copy; and its parts.
    fix: str
    fix_parts: FixParts
    #: Where it shows: the oldest call that waits for these ranks.
    call: StuckCall
    states: tuple[RankState, ...]
    #: Ranks that wait for these, directly or through others.
    waiting: tuple[int, ...]
    #: Since when, ns since 1970 on the clock of the rank that waits longest.
    since_ns: int | None
    #: What that rank had waited at most when its dump was written, by the time of the file; a copy has a later time.
    waited_at_most_s: float | None


class RankWait(msgspec.Struct, frozen=True):
    """What keeps a rank waiting: the next step on the shortest way to a rank at the root, by how others are with it."""

    rank: int
    #: The ranks that it waits for.
    targets: tuple[int, ...]
    why: Why
    #: What it waits in: "all_to_all 20947 of EXPERT_MODEL_PARALLEL_GROUP"; without the group: "all_to_all 20947"; and
    #: the kind alone: "all_to_all".
    what: str
    call: str
    kind: str
    #: The findings at the end of the way, by id.
    findings: tuple[str, ...]


class GroupProgress(msgspec.Struct, frozen=True):
    """The newest collectives of a process group on its ranks; of sends and receives, ranks have other numbers."""

    name: str
    description: str
    ranks: tuple[int, ...]
    #: By rank of the group: the newest that it enqueued and completed; -1: none known.
    enqueued: tuple[int, ...]
    completed: tuple[int, ...]
    #: The newest that any rank enqueued: the front.
    front: int


class StuckRun(msgspec.Struct, frozen=True):
    """All that the doctor says of one job by its Flight Recorder dumps or, where there are none, by Python stacks."""

    name: str
    world_size: int
    #: Those with a dump (or a stack), and those without.
    ranks: tuple[int, ...]
    missing_ranks: tuple[int, ...]
    #: By rank with a dump; "" where it is not known.
    hosts: tuple[str, ...]
    verdict: Verdict
    headline: str
    findings: tuple[StuckFinding, ...]
    #: Of each rank that waits.
    waits: tuple[RankWait, ...]
    groups: tuple[GroupProgress, ...]
    #: The library's version: "NCCL 2.27.3"; "" where it is not recorded.
    library: str
    warnings: tuple[FileWarning, ...]
    #: Runs of profiler traces of the same job, by name.
    traces: tuple[str, ...] = ()
    #: What shows where the ranks are.
    recorder: Literal["flight_recorder", "stacks"] = "flight_recorder"

    @property
    def level(self) -> str:
        """How the verdict is shown: "critical", "info" or "healthy"."""
        return {"stuck": "critical", "healthy": "info" if self.missing_ranks else "healthy"}.get(self.verdict, "info")

    def _repr_html_(self) -> str:
        """What a notebook shows. Names come from dumps: all is escaped."""
        rows = "".join(f"<li>{escape(each.title)} {escape(each.why)}</li>" for each in self.findings)
        return f"<p><b>{escape(self.name)}</b>: {escape(self.headline)}</p><ul>{rows}</ul>"


class Report(findings.Report, frozen=True, omit_defaults=True):
    """What `ddp-doctor diagnose --json` prints; without dumps and snapshots, the same as before there were any."""

    #: Jobs with Flight Recorder dumps.
    stuck: tuple[StuckRun, ...] = ()
    #: Jobs with snapshots of memory and without traces.
    memory_runs: tuple[MemoryRun, ...] = ()
