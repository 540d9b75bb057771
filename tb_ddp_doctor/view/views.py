"""A job as the arrays that the tab draws; times in ms, one row per rank."""

from __future__ import annotations

from typing import Any

import numpy as np

from tb_ddp_doctor.digest.intervals import Intervals
from tb_ddp_doctor.digest.model import RankOwner
from tb_ddp_doctor.engine import Result
from tb_ddp_doctor.findings import OWNERS, Diagnosis, Evidence, Finding
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.rules.support import stacks
from tb_ddp_doctor.slices.cut import on_common_clock, window, with_margin
from tb_ddp_doctor.slices.words import label
from tb_ddp_doctor.trace.model import Ints
from tb_ddp_doctor.view.commands import commands

#: The small pictures show no more ranks than this.
_LANES = 16


def views(result: Result) -> dict[str, Any]:
    """What the page needs beside the diagnosis, ready for JSON.

    `step_ms`, `own_ms` and each of `budget_ms` are lists of shape (R, S). `lanes` is the step that the costliest
    finding shows: for each of a few ranks, the slowest ones, the owners of its device's time on the common clock.
    """
    job = result.job
    step = _shown_step(job, result.diagnosis)
    return {
        "from_digests": result.from_digests,
        "ranks": job.ranks.tolist(),
        "nodes": [label(node) for node in job.nodes],
        "device": job.device,
        "steps": job.steps.tolist(),
        "owners": list(OWNERS),
        "step_ms": _ms(job.budget.window_ns),
        "busy_ms": _ms(job.budget.busy_ns),
        "start_ns": job.budget.start_ns.tolist(),
        "budget_ms": {owner: _ms(job.budget.of(owner)) for owner in OWNERS},
        "lanes": _lanes(job, step),
        **_clock(job),
        "windows": [
            [_window(job, finding, evidence) for evidence in finding.evidence] for finding in result.diagnosis.findings
        ],
        "commands": [commands(job, finding) for finding in result.diagnosis.findings],
        "stacks": stacks.advice(job),
    }


def _window(job: Job, finding: Finding, evidence: Evidence) -> dict[str, Any]:
    """Where a piece of evidence is seen, and a slice with something around it, as the route `slice` takes it."""
    seen = window(job, finding, evidence)
    shown = with_margin(seen)
    return {
        "ranks": seen.ranks,
        "start": str(shown.start_ns),
        "end": str(shown.end_ns),
        "seen": [str(seen.start_ns), str(seen.end_ns)],
    }


def _clock(job: Job) -> dict[str, Any]:
    """When each step starts on the common clock, ms after an origin, shape (R, S).

    The origin is text, ns: JavaScript's numbers do not hold it.
    """
    ranks = zip(job.ranks.tolist(), job.budget.start_ns, strict=True)
    start = np.stack([on_common_clock(job, rank, own) for rank, own in ranks])
    origin = int(start.min())
    return {"origin_ns": str(origin), "clock_ms": _ms(start - origin)}


def _ms(values: Ints) -> list[list[float]]:
    rounded: list[list[float]] = np.round(values / 1e6, 4).tolist()
    return rounded


def _shown_step(job: Job, diagnosis: Diagnosis) -> int:
    """Index of the step of the first evidence; of the step with the largest own time where there is none."""
    shown = [evidence.step for finding in diagnosis.findings for evidence in finding.evidence]
    return job.steps.tolist().index(shown[0]) if shown else int(job.budget.busy_ns.max(axis=0).argmax())


def _lanes(job: Job, step: int) -> dict[str, Any]:
    ranks = sorted(np.argsort(-job.budget.busy_ns[:, step], kind="stable")[:_LANES].tolist())
    start, end = job.budget.start_ns[:, step], job.budget.start_ns[:, step] + job.budget.window_ns[:, step]
    shift = np.array([int(job.clock.correction(rank, start[rank : rank + 1])[0]) for rank in range(len(job.ranks))])
    origin = int((start - shift)[ranks].min())
    return {
        "step": int(job.steps[step]),
        "start_ms": 0.0,
        "end_ms": float(((end - shift)[ranks].max() - origin) / 1e6),
        "ranks": [
            {
                "rank": int(job.ranks[rank]),
                "start_ms": round(int(start[rank] - shift[rank] - origin) / 1e6, 3),
                "pieces": _pieces(job, rank, step, origin + int(shift[rank])),
            }
            for rank in ranks
        ],
    }


def _pieces(job: Job, rank: int, step: int, origin_ns: int) -> list[tuple[int, float, float]]:
    """(index in OWNERS, start, end) of the longer stretches of one step, ms from the origin."""
    digest = job.digests[rank]
    own = digest.pieces.step == job.step_index[rank, step]
    found: list[tuple[int, Intervals]] = []
    for owner in RankOwner:
        chosen = own & (digest.pieces.owner == owner)
        spans = Intervals.union(digest.pieces.start_ns[chosen], digest.pieces.end_ns[chosen])
        if owner is RankOwner.COMMUNICATION:
            data_moves = job.moving(rank)
            found += [(OWNERS.index("transfer"), spans & data_moves), (OWNERS.index("wait"), spans - data_moves)]
        else:
            found.append((OWNERS.index(owner.name.lower()), spans))
    return [
        (index, round((start - origin_ns) / 1e6, 3), round((end - origin_ns) / 1e6, 3))
        for index, spans in found
        for start, end in zip(spans.start.tolist(), spans.end.tolist(), strict=True)
    ]
