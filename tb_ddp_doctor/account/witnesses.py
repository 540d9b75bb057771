"""Compares three witnesses of who is slow: who waits for whom, where the critical path lies, what the replay saves.

Each is measured in another way. So if two of them disagree, one is wrong, and findings that rest on it are not to be
trusted. For example, if all other ranks wait for rank 1, then rank 1 has to be on the critical path, and the replay
without its CPU's time has to save their wait:

    rank 0  [fwd][AllReduce: wait.............]      waits 50 of 90 ms
    rank 1  [fwd][sleep 50 ms    ][AllReduce  ]      has all lateness and the critical path

A contradiction is a sentence in Data quality, lowers the confidence of the findings that it is about, and keeps a job
from being healthy. No job of the tests and benchmarks may have one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.model import CpuTime
from tb_ddp_doctor.facts.arrivals import Arrivals
from tb_ddp_doctor.facts.pipeline import Pipeline
from tb_ddp_doctor.findings import Finding, PathStep, Severity
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support import certainty
from tb_ddp_doctor.rules.support.slowness import is_noise
from tb_ddp_doctor.step_parts import IDLE

#: A rank with at least this share of all lateness, or of the critical path, has most of it.
_MOST = 0.5
#: The path shows a slow rank only if the rank is also late this many times as often as ranks are on average. At its end
#: the path always lies on the rank that ends last, even if no rank is slow.
_LATE_ON_PATH = 2
#: A rank with less of the critical path than this is not on it.
_OFF_THE_PATH = 0.02
#: The replay has to save at least this share of what other ranks wait, or of the rank's CPU on the path.
_LEAST_SAVED = 0.5
#: Waits of less than this share of the step show no slow rank: equal ranks wait for each other too, by noise. The
#: replay saves at least `_LEAST_SAVED` of a wait; of a wait as long as this, that is enough for a minor finding.
_LEAST_WAIT = Severity.MINOR.least_share / _LEAST_SAVED
#: Kinds of calls in which a CPU may wait for another rank. The rest of its time is its own.
_MAY_WAIT = (CpuTime.ALLOC, CpuTime.COPY, CpuTime.SYNC, CpuTime.READ)
#: The rule whose ranks are slow in every step.
_NAMES_SLOW_RANKS = "straggler"


class Witnesses(msgspec.Struct, frozen=True, eq=False):
    """What the witnesses say of each of R ranks; shares are from 0 to 1, shape (R,) unless said otherwise."""

    #: The share of all ranks' straggler wait that lies in collectives to which the rank was the last to arrive.
    of_lateness: NDArray[np.float64]
    #: The share of the critical path that lies on the rank.
    of_path: NDArray[np.float64]
    #: The rank's CPU time on the critical path in each of S steps, ns; shape (R, S).
    cpu_on_path_ns: NDArray[np.float64]
    #: How long the rank waits for others with a trace, mean over steps, ns.
    wait_ns: NDArray[np.float64]
    #: The least that any other rank waits, beyond the bubble of a pipeline of equal stages, mean over steps, ns.
    others_wait_ns: NDArray[np.float64]
    #: Whether that differs so much from step to step that it may be noise.
    is_noise: NDArray[np.bool_]

    @classmethod
    def of(cls, job: Job, arrivals: Arrivals, path: Sequence[PathStep], pipeline: Pipeline | None) -> Witnesses:
        """The witnesses of a job of at least two ranks, from its arrivals, its critical path and its pipeline."""
        ranks = len(job.ranks)
        late = np.bincount(arrivals.last, np.maximum(arrivals.longest_wait_ns, 0), ranks)
        row = {int(number): i for i, number in enumerate(job.ranks)}
        column = {int(number): i for i, number in enumerate(job.steps)}
        on_path, of_cpu = np.zeros(ranks), np.zeros((ranks, len(column)))
        for step, piece in ((each.step, piece) for each in path for piece in each.pieces):
            on_path[row[piece.rank]] += piece.ms
            if piece.owner in IDLE:
                of_cpu[row[piece.rank], column[step]] += piece.ms
        # The wait for ranks without a trace is for none of these.
        wait = job.budget.of("wait") - job.waiting.absent_ns
        two = np.sort(wait, axis=0)[:2]
        # The least wait of any other rank: the second least of all, if the rank itself has the least.
        others = np.where(wait <= two[0], two[1], two[0])
        others_ns, steps = others.mean(axis=1), others.shape[1]
        error_ns = others.std(axis=1, ddof=1) / math.sqrt(steps) if steps > 1 else np.zeros(ranks)
        # Stages of a pipeline wait for each other although none is slow.
        bubble_ns = pipeline.bubble_ns(float(job.budget.of("compute").mean())) if pipeline else 0.0
        return cls(
            of_lateness=late / max(late.sum(), 1.0),
            of_path=on_path / max(on_path.sum(), 1e-9),
            cpu_on_path_ns=of_cpu * 1e6,
            wait_ns=wait.mean(axis=1),
            others_wait_ns=np.maximum(others_ns - bubble_ns, 0),
            is_noise=is_noise(others_ns, error_ns, job.step_ns),
        )


class Contradiction(msgspec.Struct, frozen=True):
    """Two witnesses that disagree."""

    sentence: str
    #: Ids of the findings that it makes doubtful.
    findings: tuple[str, ...]


def contradictions(seen: Witnesses, findings: Sequence[Finding], whatif: WhatIf, job: Job) -> tuple[Contradiction, ...]:
    """Where the witnesses of a job disagree with each other or with its findings."""
    loud = [one for one in findings if one.severity != Severity.INFO.label]
    return (
        *_unnamed(seen, findings, loud, whatif, job),
        *_neither_late_nor_on_path(seen, loud, job),
        *_unsaved(seen, loud, whatif, job),
    )


def doubted(finding: Finding, said: Sequence[Contradiction]) -> Finding:
    """A finding with less confidence where a contradiction makes it doubtful."""
    doubtful = any(finding.id in one.findings for one in said)
    return replace(finding, confidence=certainty.LOWER[finding.confidence]) if doubtful else finding


def _unnamed(
    seen: Witnesses, findings: Sequence[Finding], loud: Sequence[Finding], whatif: WhatIf, job: Job
) -> Iterator[Contradiction]:
    """Ranks with most of all lateness, or of the path, that no finding names although others wait for them.

    Waits that tracing explains do not count, since tracing slows some ranks more than others, nor do waits that may be
    noise: of few steps, one rank is late by chance in one or two. A finding of severity info counts as naming its ranks
    only if its fix saves what others wait. Of jobs with traces of under half of their ranks nothing is said.
    """
    if 2 * len(job.ranks) < job.world_size:
        return  # the last of a few traced ranks to arrive may itself wait for one without a trace
    named = {rank for one in loud for rank in one.ranks}
    wait_ms = dict(zip(job.ranks.tolist(), (seen.others_wait_ns / 1e6).tolist(), strict=True))
    small = [one for one in findings if one.rule == _NAMES_SLOW_RANKS]
    named |= {rank for one in small for rank in one.ranks if one.cost_ms >= _LEAST_SAVED * wait_ms.get(rank, math.inf)}
    waits = seen.others_wait_ns - whatif.tracing_ns >= _LEAST_WAIT * job.step_ns
    on_path = (seen.of_path >= _MOST) & (seen.of_lateness >= _LATE_ON_PATH / len(waits))
    for rank in np.flatnonzero(waits & ~seen.is_noise & ((seen.of_lateness >= _MOST) | on_path)).tolist():
        if int(job.ranks[rank]) not in named:
            yield Contradiction(
                f"Rank {job.ranks[rank]} has {wording.percent(float(seen.of_lateness[rank]))} of all lateness and "
                f"{wording.percent(float(seen.of_path[rank]))} of the critical path, and every other rank waits at "
                f"least {wording.ms(float(seen.others_wait_ns[rank]))} a step, but no finding names it.",
                tuple(one.id for one in loud),
            )


def _neither_late_nor_on_path(seen: Witnesses, loud: Sequence[Finding], job: Job) -> Iterator[Contradiction]:
    """Findings on slow ranks that wait as long as others do and are not on the path, although nothing hides them."""
    for one in loud:
        rows = np.flatnonzero(np.isin(job.ranks, one.ranks))
        if not 0 < len(rows) < len(job.ranks) or one.together or one.rule != _NAMES_SLOW_RANKS:
            continue
        waits_less = float(seen.wait_ns[rows].min()) < float(np.median(seen.wait_ns))
        if not waits_less and float(seen.of_path[rows].sum()) < _OFF_THE_PATH:
            yield Contradiction(
                f"{one.rule} names {wording.ranks(one.ranks)}, which wait{'s' if len(rows) == 1 else ''} as long as "
                "other ranks and are not on the critical path.",
                (one.id,),
            )


def _unsaved(seen: Witnesses, loud: Sequence[Finding], whatif: WhatIf, job: Job) -> Iterator[Contradiction]:
    """A rank whose CPU is on the path while all others wait, if the replay without that CPU's time saves little.

    Other ranks cannot save all of their wait: while their GPUs wait, their CPUs may work, and that work remains.
    """
    rank = int(seen.of_path.argmax())
    others = np.arange(len(seen.of_path)) != rank
    works = sum(whatif.host_ns(kind) for kind in CpuTime if kind not in _MAY_WAIT)
    spare = (job.budget.window_ns - works)[others]
    # Spare time in one long step cannot be used in others; no step gets shorter than its CPU's own work; and where
    # others wait for the rank's GPU, its CPU saves nothing.
    in_steps = np.minimum(job.budget.of("wait")[others].min(axis=0), np.maximum(spare.min(axis=0), 0))
    in_steps = np.minimum(in_steps, seen.cpu_on_path_ns[rank])
    expected = min(float(in_steps.mean()), float(spare.mean(axis=1).min())) * float(seen.of_lateness[rank])
    if not whatif.plays or seen.of_path[rank] < _MOST or expected < _LEAST_WAIT * job.step_ns:
        return
    # Where ranks are slow in turn, those of one finding hide each other, and its fix is that of all of them.
    of_few = [one for one in loud if int(job.ranks[rank]) in one.ranks and 2 * len(one.ranks) <= len(job.ranks)]
    if max((one.alone_ms * 1e6 for one in of_few), default=0.0) >= _LEAST_SAVED * expected:
        return  # the replay of its fix has saved as much
    share = np.zeros(whatif.shape)
    share[rank] = 1
    without = whatif.step_ns(Change(dict.fromkeys(CpuTime, share)))
    saved = float((whatif.recorded_ns - without).mean())
    if saved < _LEAST_SAVED * expected:
        yield Contradiction(
            f"All ranks wait at least {wording.ms(float(seen.others_wait_ns[rank]))} a step for rank "
            f"{job.ranks[rank]}, whose CPU is on the critical path for "
            f"{wording.ms(float(seen.cpu_on_path_ns[rank].mean()))}, but the replay without its CPU's time saves "
            f"{wording.ms(saved)}.",
            tuple(one.id for one in loud),
        )
