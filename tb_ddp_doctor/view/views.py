"""A job as the arrays that the tab draws; times in ms, one row per rank."""

from __future__ import annotations

from typing import TypeAlias

import msgspec
import numpy as np

from tb_ddp_doctor.engine import Result
from tb_ddp_doctor.findings import OWNERS, Diagnosis, FixParts
from tb_ddp_doctor.job import rl_roles
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.slices.cut import on_common_clock, whole
from tb_ddp_doctor.slices.event_text import label
from tb_ddp_doctor.slices.lanes import pieces
from tb_ddp_doctor.trace.model import Ints
from tb_ddp_doctor.view import stacks
from tb_ddp_doctor.view.gaps import GapLengths, Gaps

#: The small pictures show no more ranks than this.
_LANES = 16

#: A row for each rank, a column for each step.
Grid: TypeAlias = list[list[float]]


class Lane(msgspec.Struct, frozen=True):
    """One rank's part of the picture of a step."""

    rank: int
    #: Where its step starts.
    start_ms: float
    #: (Index in `findings.OWNERS`, start, end), ms.
    pieces: list[tuple[int, float, float]]


class Lanes(msgspec.Struct, frozen=True):
    """The step that the costliest finding shows: the owners of a few ranks' time, the slowest ones, on one clock."""

    step: int
    start_ms: float
    end_ms: float
    ranks: list[Lane]


class Views(msgspec.Struct, frozen=True):
    """What the page needs beside the diagnosis; R ranks, S steps."""

    #: Whether the traces themselves are elsewhere.
    from_digests: bool
    ranks: list[int]
    nodes: list[str]
    #: What each rank does in reinforcement learning; "" where all do the same, and in every other job.
    roles: list[str]
    device: str
    steps: list[int]
    owners: list[str]
    #: Shape (R, S), as all of these.
    step_ms: Grid
    busy_ms: Grid
    #: When each step's window starts, on the rank's own clock.
    start_ns: list[list[int]]
    budget_ms: dict[str, Grid]
    #: How long the gaps of each owner are, of all ranks and steps.
    gaps: dict[str, GapLengths]
    lanes: Lanes
    #: On the common clock, as text: JavaScript's numbers do not hold it.
    origin_ns: str
    #: When each step starts on the common clock, after the origin.
    clock_ms: Grid
    #: From when to when there are steps, those of the host too, after the origin.
    record_ms: tuple[float, float]
    #: How to get Python stacks; empty where some trace has them.
    stacks: FixParts


def views(result: Result, gaps: Gaps) -> Views:
    """What the page needs beside the diagnosis, ready for JSON."""
    job = result.job
    origin_ns, clock_ms = _clock(job)
    record = whole(job)
    return Views(
        from_digests=result.from_digests,
        ranks=job.ranks.tolist(),
        nodes=[label(node) for node in job.nodes],
        roles=rl_roles.unlike(job),
        device=job.device,
        steps=job.steps.tolist(),
        owners=list(OWNERS),
        step_ms=_ms(job.budget.window_ns),
        busy_ms=_ms(job.budget.busy_ns),
        start_ns=job.budget.start_ns.tolist(),
        budget_ms={owner: _ms(job.budget.of(owner)) for owner in OWNERS},
        gaps=gaps.lengths(job.ranks.tolist(), job.steps.tolist()),
        lanes=_lanes(job, _shown_step(job, result.diagnosis)),
        origin_ns=origin_ns,
        clock_ms=clock_ms,
        record_ms=((record.start_ns - int(origin_ns)) / 1e6, (record.end_ns - int(origin_ns)) / 1e6),
        stacks=FixParts.of(stacks.advice(job)),
    )


def _clock(job: Job) -> tuple[str, Grid]:
    """An origin on the common clock, and when each step starts after it."""
    ranks = zip(job.ranks.tolist(), job.budget.start_ns, strict=True)
    start = np.stack([on_common_clock(job, rank, own) for rank, own in ranks])
    origin = int(start.min())
    return str(origin), _ms(start - origin)


def _ms(values: Ints) -> Grid:
    rounded: Grid = np.round(values / 1e6, 4).tolist()
    return rounded


def _shown_step(job: Job, diagnosis: Diagnosis) -> int:
    """Index of the step of the first evidence; of the step with the largest own time where there is none."""
    shown = [evidence.step for finding in diagnosis.findings for evidence in finding.evidence]
    return job.steps.tolist().index(shown[0]) if shown else int(job.budget.busy_ns.max(axis=0).argmax())


def _lanes(job: Job, step: int) -> Lanes:
    ranks = sorted(np.argsort(-job.budget.busy_ns[:, step], kind="stable")[:_LANES].tolist())
    start, end = job.budget.start_ns[:, step], job.budget.start_ns[:, step] + job.budget.window_ns[:, step]
    shift = np.array([int(job.clock.correction(rank, start[rank : rank + 1])[0]) for rank in range(len(job.ranks))])
    origin = int((start - shift)[ranks].min())
    return Lanes(
        step=int(job.steps[step]),
        start_ms=0.0,
        end_ms=float(((end - shift)[ranks].max() - origin) / 1e6),
        ranks=[
            Lane(
                rank=int(job.ranks[rank]),
                start_ms=round(int(start[rank] - shift[rank] - origin) / 1e6, 3),
                pieces=_pieces(job, rank, step, origin + int(shift[rank])),
            )
            for rank in ranks
        ],
    )


def _pieces(job: Job, rank: int, step: int, origin_ns: int) -> list[tuple[int, float, float]]:
    """(index in OWNERS, start, end) of the longer stretches of one step, ms from the origin."""
    owner, start, end = pieces(job, rank, job.step_index[rank, [step]])
    edges = (np.round((edge - origin_ns) / 1e6, 3).tolist() for edge in (start, end))
    return list(zip(owner.tolist(), *edges, strict=True))
