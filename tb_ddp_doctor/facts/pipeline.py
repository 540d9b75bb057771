"""The pipelines of a job: which ranks are stages of one, how many micro-batches run through it, in which schedule
(`mesh.schedules`), and what it waits.

The stages are those of the mesh's dimension `pp`. Where messages do not name their other end (gloo), they are told by
their number.
"""

from __future__ import annotations

import msgspec
import numpy as np

from tb_ddp_doctor.facts import transfers
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.mesh.mesh import Mesh
from tb_ddp_doctor.mesh.schedules import FORMULAS, INTERLEAVED, OF_BUBBLE, V_SHAPED, StageMessages, schedule_of
from tb_ddp_doctor.storage.constant import joined
from tb_ddp_doctor.trace.model import Floats, Ints


class Pipeline(msgspec.Struct, frozen=True, eq=False):
    """A job whose ranks are stages."""

    stages: int
    #: Micro-batches of a step; of interleaved stages once for each chunk of layers that a rank has.
    micro_batches: int
    #: One of the names of `mesh.schedules`; "" where the messages do not tell.
    schedule: str
    #: Stage of each rank, shape (R,); -1 where it is not known.
    stage: Ints
    #: Sends and receives between stages with nothing beside them, waiting and transfer alike, shape (R, S), ns.
    exposed_ns: Ints
    #: The part of it in which data moves, shape (R, S), ns.
    moving_ns: Ints

    @property
    def shape(self) -> str:
        """Stages, micro-batches and the schedule in words."""
        chunks = " of all chunks" if self.schedule == INTERLEAVED else ""
        named = f" ({self.schedule})" if self.schedule else ""
        batches = f"{self.micro_batches} micro-batch{'' if self.micro_batches == 1 else 'es'}"
        return f"{self.stages} stages and {batches}{chunks}{named}"

    def of_stages(self, values: Ints) -> tuple[Floats, list[Ints]]:
        """The mean over steps and each stage's ranks of values of shape (R, S), and these ranks (indices); where
        stages are not known each rank is one.
        """
        stage = np.where(self.stage >= 0, self.stage, np.arange(len(self.stage)) + self.stages)
        ranks = [np.flatnonzero(stage == each) for each in np.unique(stage)]
        return np.array([values[its].mean() for its in ranks]), ranks

    @property
    def least_wait(self) -> float:
        """What a stage waits for other stages in each step though all are equal, over what it computes: of m
        micro-batches on p stages (p - 1) / m, with a schedule that splits backward less.
        """
        return OF_BUBBLE.get(self.schedule, 1.0) * (self.stages - 1) / self.micro_batches

    @property
    def formula(self) -> str:
        """The same as a formula, for sentences."""
        return FORMULAS.get(self.schedule, "(p - 1) / m")

    def bubble_ns(self, compute_ns: float) -> float:
        """How long a stage waits for other stages in each step though all are equal, ns, if it computes for
        `compute_ns`.
        """
        return self.least_wait * compute_ns


def pipeline(job: Job, mesh: Mesh) -> Pipeline | None:
    """The pipeline that the messages of a job show; None where they show none."""
    if not any(len(digest.messages) for digest in job.digests):
        return None
    column = next((i for i, one in enumerate(mesh.dimensions) if one.name == "pp"), None)
    if column is None:
        counted = _from_counts(job)
        nobody = np.full(len(job.ranks), -1, np.int64)
        alone = transfers.exposed_alone(job, job.calls.between_two)
        return counted and Pipeline(*counted, "", nobody, transfers.messages_alone(job), job.measure(alone))
    stages, stage = mesh.dimensions[column].size, mesh.coordinates[:, column]
    messages = _between_stages(job, mesh.dimensions[column].groups, stage)
    links = _per_link(job, messages)
    if not links:
        return None
    inner, around = links
    schedule = INTERLEAVED if around else schedule_of(job, messages, stage, stages, inner)
    calls = np.zeros(len(job.calls), np.bool_)
    calls[messages.call] = True
    return Pipeline(
        stages=stages,
        micro_batches=max(round(inner / 2 if schedule in V_SHAPED else inner), 1),
        schedule=schedule,
        stage=stage,
        exposed_ns=transfers.messages_alone(job, calls),
        moving_ns=job.measure(transfers.exposed_alone(job, calls)),
    )


def _between_stages(job: Job, groups: tuple[tuple[int, ...], ...], stage: Ints) -> StageMessages:
    highest = max(*map(max, groups), int(job.ranks.max()))
    group_of, stage_of = np.full((2, highest + 2), -1, np.int64)
    for group, ranks in enumerate(groups):
        group_of[list(ranks)], stage_of[list(ranks)] = group, range(len(ranks))
    calls = [digest.message_ends.call for digest in job.digests]
    rank = np.repeat(np.arange(len(calls)), [len(each) for each in calls])
    call = joined(calls).astype(np.int64) + job.calls.first[rank]
    peer, sent = (joined([getattr(one.message_ends, name) for one in job.digests]) for name in ("peer", "sent"))
    peer = np.clip(peer, -1, highest + 1)
    ahead, last = stage_of[peer] - stage[rank], max(map(len, groups)) - 1
    around = (np.abs(ahead) == last) & (last > 1)
    step, arrival = (job.calls.column(name)[call] for name in ("step", "arrival_ns"))
    between = (group_of[peer] == group_of[job.ranks[rank]]) & (stage_of[peer] >= 0) & (step >= 0)
    chosen = np.flatnonzero(between & np.isin(np.abs(ahead), (1, last)))
    chosen = chosen[np.lexsort((arrival[chosen], rank[chosen]))]
    to_next = np.where(around, ahead < 0, ahead > 0)
    return StageMessages(rank[chosen], call[chosen], step[chosen], sent[chosen] == 1, to_next[chosen], around[chosen])


def _per_link(job: Job, messages: StageMessages) -> tuple[float, float] | None:
    """StageMessages of a step in one direction of a link between neighbours, and of the link from the last stage to the
    first one; None where there are none.
    """
    ends = np.stack([messages.around, messages.rank, messages.sent, messages.to_next], axis=1)
    different, counts = np.unique(ends, axis=0, return_counts=True)
    steps = np.array([max(len(digest.steps), 1) for digest in job.digests])
    each = counts / steps[different[:, 1]]
    around = different[:, 0] == 1
    if around.all():
        return None
    return float(np.median(each[~around])), float(np.median(each[around])) if around.any() else 0.0


def _from_counts(job: Job) -> tuple[int, int] | None:
    """Stages and micro-batches where nothing names the other end: the ends send half as much as those between."""
    sends = np.array(
        [_per_step(digest.messages.count[digest.messages.sent == 1], len(digest.steps)) for digest in job.digests]
    )
    receives = np.array(
        [_per_step(digest.messages.count[digest.messages.sent == 0], len(digest.steps)) for digest in job.digests]
    )
    least = round(float(sends.min()))
    ends, between = np.round(sends) == least, np.round(sends) == 2 * least
    both_ways = np.array_equal(np.round(sends), np.round(receives))
    known = any((digest.messages.peer >= 0).any() for digest in job.digests)
    if known or least < 1 or not both_ways or ends.sum() != 2 or not (ends | between).all() or len(job.missing_ranks):
        return None
    return len(job.ranks), least


def _per_step(counts: Ints, steps: int) -> float:
    return float(counts.sum()) / max(steps, 1)
