"""What a server's iterations work on: prompts (prefill), answers (decode), or both."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec
import numpy as np

from tb_ddp_doctor.digest.round_trips import ROUND_TRIP
from tb_ddp_doctor.facts import Facts, MissingFactError, fact
from tb_ddp_doctor.findings import IterationKind
from tb_ddp_doctor.job import job_kind
from tb_ddp_doctor.job.model import Job, of_steps
from tb_ddp_doctor.trace.model import Flags, Ints
from tb_ddp_doctor.trace.program_names import Program

#: What takes so many times as long as the median iteration may have waited for requests.
_MOST_TIMES = 2.0
Kind = Literal["prefill", "decode", "mixed"]


class Iterations(msgspec.Struct, frozen=True, eq=False):
    """What each of S steps works on, as the ranks' marks tell; S is 0 for a job that serves no requests."""

    #: Shape (S,).
    kind: tuple[Kind, ...]
    #: Requests whose prompt is read, and requests of which each gets a token; the median rank's, shape (S,).
    prefills: Ints
    decodes: Ints

    def are(self, *kinds: Kind) -> Flags:
        """Which steps are of one of some kinds, shape (S,)."""
        return np.array([one in kinds for one in self.kind], np.bool_)


class Pending(msgspec.Struct, frozen=True, eq=False):
    """After which of S steps the program has work for the next one, so that its GPU need not idle between them."""

    #: Shape (S,).
    flags: Flags


@fact
def _pending(facts: Facts) -> Pending:
    """Requests in decode before and after tell it of a server. Where no mark tells of them, iterations that come at
    regular intervals do, which a server that waits for requests does not have.
    """
    job = facts.job
    served = iterations(job) if job_kind.program(job) is Program.SERVING else None
    if served is None:
        marks = {digest.contents.steps_from for digest in job.digests}
        return Pending(_come_regularly(job) if ROUND_TRIP in marks else np.ones(len(job.steps), np.bool_))
    decodes: Flags = served.decodes > 0
    return Pending(np.logical_and(decodes, np.append(decodes[1:], True)))


def _come_regularly(job: Job) -> Flags:
    """Which steps take the CPUs at most twice as long as the median one, shape (S,)."""
    lengths = of_steps([one.steps.host_end_ns - one.steps.host_start_ns for one in job.digests], job.step_index)
    length = np.median(lengths, axis=0)
    return np.asarray(length <= _MOST_TIMES * np.median(length))


@fact
def _iterations(facts: Facts) -> Iterations:
    if job_kind.program(facts.job) is not Program.SERVING:
        return Iterations((), np.zeros(0, np.int64), np.zeros(0, np.int64))
    of_job = iterations(facts.job)
    if of_job is None:
        raise MissingFactError("No mark tells which requests the iterations work on, as those of vLLM and SGLang do.")
    return of_job


def iterations(job: Job) -> Iterations | None:
    """What the steps of a server work on; None where a step is no single iteration that some mark tells."""
    work = job.work(lambda one: one.serving)
    if not (np.median(work.iterations, axis=0) == 1).all():
        return None
    prefills, decodes = (np.median(column, axis=0).astype(np.int64) for column in (work.prefills, work.decodes))
    kinds: list[Kind] = [
        "mixed" if reads and writes else "prefill" if reads else "decode"
        for reads, writes in zip(prefills.tolist(), decodes.tolist(), strict=True)
    ]
    return Iterations(tuple(kinds), prefills, decodes)


def by_kind(job: Job) -> tuple[IterationKind, ...]:
    """How many iterations there are of each kind, and how long they take; empty where no mark tells."""
    served = iterations(job)
    if served is None:
        return ()
    rows, length = [], job.budget.window_ns.mean(axis=0)
    for kind in get_args(Kind):
        mine = served.are(kind)
        if mine.any():
            row = IterationKind(
                kind=kind,
                count=int(mine.sum()),
                mean_ms=float(length[mine].mean()) / 1e6,
                prefills=float(served.prefills[mine].mean()),
                decodes=float(served.decodes[mine].mean()),
            )
            rows.append(row)
    return tuple(rows)
