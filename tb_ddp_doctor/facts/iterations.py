"""What a server's iterations work on: prompts (prefill), answers (decode), or both; and when it has no work."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec
import numpy as np

from tb_ddp_doctor.digest.model import CpuTime
from tb_ddp_doctor.digest.round_trips import ROUND_TRIP
from tb_ddp_doctor.facts import Facts, MissingFactError, fact
from tb_ddp_doctor.findings import IterationKind
from tb_ddp_doctor.job import job_kind
from tb_ddp_doctor.job.model import Job, of_steps
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.trace.model import Flags, Floats, Ints
from tb_ddp_doctor.trace.program_names import Program, ServerWork

#: From as many iterations with work after them on, it is known what the server's CPU does between two of them.
_FEWEST = 3
#: An iteration that takes so many times as long as the median one may have waited for requests.
_MAY_WAIT = 2.0
#: One that takes less than this did not: its CPU goes on to the next one at once.
_GOES_ON = 1.5
Kind = Literal["prefill", "decode", "mixed"]


class Iterations(msgspec.Struct, frozen=True, eq=False):
    """What each of S steps works on, as the ranks' marks or kernels tell; S is 0 for a job that serves no requests.

    For example, of a server that marks its iterations, and to which new requests come after the others have ended:

        kind      prefills  decodes  pending  delays
        decode           0        8     True   False
        prefill          2        0     True    True    8 of the next 10 requests wait for it
        decode           0       10    False   False    all of them end: none is left
        prefill          4        0     True   False
        decode           0        4     True   False
    """

    #: Shape (S,).
    kind: tuple[Kind, ...]
    #: Requests whose prompt is read, and requests of which each gets a token; the median rank's, shape (S,). Zeros
    #: where kernels tell the kinds: they do not tell numbers.
    prefills: Ints
    decodes: Ints
    #: Whether marks tell these numbers.
    counted: bool
    #: How long each takes the CPUs, relative to the median one, shape (S,).
    length: Floats
    #: Whether some request that has begun still needs tokens after the step, shape (S,).
    pending: Flags
    #: Whether the step reads prompts while requests in decode wait for it, shape (S,).
    delays: Flags

    @classmethod
    def of(cls, kind: tuple[Kind, ...], prefills: Ints, decodes: Ints, length: Floats) -> Iterations:
        """Those of some kinds. Where no numbers are known, answers that follow tell of work, and regular intervals."""
        counted = bool((prefills + decodes).any())
        reads = np.array([one != "decode" for one in kind], np.bool_)
        answers = decodes > 0 if counted else ~reads
        step, size = np.arange(len(kind)), len(kind)
        last = np.maximum.accumulate(np.append(-1, np.where(answers, step, -1)[:-1]))
        following = np.minimum.accumulate(np.append(np.where(answers, step, size)[1:], size)[::-1])[::-1]
        goes_on = following < size
        if counted:
            read = np.append(0, np.cumsum(prefills))
            # The prompts that are read before requests get tokens again: the rest of these requests had begun before.
            new = read[np.minimum(following, size)] - read[np.minimum(step + 1, size)]
            pending = goes_on & ((decodes[np.minimum(following, size - 1)] > new) | (prefills > 0))
            pending[-1:] |= answers[-1:]
        else:
            # Answers without prompts before them are of requests that had begun.
            pending = reads | ~np.append(reads[1:], False) | (length <= _MAY_WAIT)
        before = pending if counted else pending & (length <= _GOES_ON)
        behind = (last >= 0) & goes_on & before[last] if size else reads
        return cls(kind, prefills, decodes, counted, length, pending, reads & (behind | (answers & counted)))

    def are(self, *kinds: Kind) -> Flags:
        """Which steps are of one of some kinds, shape (S,)."""
        return np.array([one in kinds for one in self.kind], np.bool_)

    @property
    def may_have_waited(self) -> Flags:
        """After which steps the server may have waited for requests, shape (S,): it takes long until prompts are read,
        and no number of requests tells whether any had begun.
        """
        prompts_follow = np.append(~self.are("decode")[1:], False)
        return np.asarray(~self.pending & ~self.without_requests & prompts_follow & (self.length > _MAY_WAIT))

    @property
    def without_requests(self) -> Flags:
        """Which steps end with no request in decode, before the prompts of new ones are read; shape (S,).

        Only numbers of requests tell it.
        """
        prompts_follow = np.append(self.are("prefill")[1:], False)
        return np.asarray(~self.pending & (self.decodes > 0) & prompts_follow)


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
    if served is not None:
        return Pending(served.pending)
    marks = {digest.contents.steps_from for digest in job.digests}
    return Pending(_lengths(job) <= _MAY_WAIT if ROUND_TRIP in marks else np.ones(len(job.steps), np.bool_))


class Workloads(msgspec.Struct, frozen=True, eq=False):
    """Which of S steps send as much as each other, where sizes are not recorded: not all iterations of a server do."""

    #: Steps of one number do; -1 of those that read prompts, whose lengths no mark tells; shape (S,).
    number: Ints


@fact
def workloads(facts: Facts) -> Workloads:
    """Numbers of requests count by their power of two."""
    job = facts.job
    served = iterations(job) if job_kind.program(job) is Program.SERVING else None
    if served is None:
        return Workloads(np.zeros(len(job.steps), np.int64))
    power = np.log2(np.maximum(served.decodes, 1)).astype(np.int64)
    return Workloads(np.where(served.are("decode"), power, -1))


def _lengths(job: Job) -> Floats:
    """How long each step takes the CPUs, relative to the median one, shape (S,)."""
    every = of_steps([one.steps.host_end_ns - one.steps.host_start_ns for one in job.digests], job.step_index)
    length = np.median(every, axis=0)
    return np.asarray(length / max(float(np.median(length)), 1.0)) if len(length) else length


@fact
def _iterations(facts: Facts) -> Iterations:
    if job_kind.program(facts.job) is not Program.SERVING:
        none = np.zeros(0, np.int64)
        return Iterations.of((), none, none, none.astype(np.float64))
    of_job = iterations(facts.job)
    if of_job is None:
        raise MissingFactError(
            "Neither marks, as those of vLLM, SGLang and TensorRT-LLM, nor kernels tell which iterations read prompts."
        )
    return of_job


def iterations(job: Job) -> Iterations | None:
    """What the steps of a server work on; None where a step is no single iteration that marks or kernels tell."""
    work = job.work(lambda one: one.serving)
    marked = (np.median(work.iterations, axis=0) == 1).all()
    reads, writes = (np.median(column, axis=0) > 0 for column in (work.reads, work.writes))
    if not marked and (work.iterations.any() or not (reads | writes).all()):
        return None
    prefills, decodes = (np.median(column, axis=0).astype(np.int64) for column in (work.prefills, work.decodes))
    kinds: list[Kind] = [
        "mixed" if both else "prefill" if alone else "decode"
        for both, alone in zip((reads & writes).tolist(), reads.tolist(), strict=True)
    ]
    return Iterations.of(tuple(kinds), prefills, decodes, _lengths(job))


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


def waits_for_requests(job: Job, whatif: WhatIf) -> Change:
    """The change that removes the time in which a server has no request.

    Two things tell that time:

    1. Python stacks: the server is blocked where it takes requests, or checks itself as it does without any. If one
       rank shows it, the others, which take their requests from that one, wait as well.
    2. Marks that count requests: all requests in decode have ended, and the next iteration reads prompts of new ones.
       Between the two the CPU works as long as between iterations with requests in decode, and waits for the rest.
    """
    if job_kind.program(job) is not Program.SERVING or not len(job.steps):
        return Change()
    spent = whatif.host_ns(CpuTime.STALL)
    shown = job.work(lambda work: work.serving).idle_ns[:, :, ServerWork.WAITING].max(axis=0)
    waited = np.minimum(np.broadcast_to(shown, spent.shape), spent)
    served = iterations(job)
    if served is not None:
        waited = np.maximum(waited, _between_requests(served, spent))
    return Change(shared={CpuTime.STALL: waited / np.maximum(spent, 1)}) if waited.any() else Change()


def _between_requests(served: Iterations, spent: Ints) -> Ints:
    """How long each rank's CPU waits for requests after each step by the numbers of requests, shape (R, S), ns.

    `spent` is its time outside any op.
    """
    if not served.counted or served.pending.sum() < _FEWEST:
        return np.zeros_like(spent)
    typical = np.median(spent[:, served.pending], axis=1, keepdims=True).astype(np.int64)
    return np.where(served.without_requests, np.maximum(spent - typical, 0), 0)
