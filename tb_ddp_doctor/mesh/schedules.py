"""In which schedule the stages of a pipeline take its micro-batches, told by the messages between them.

The last stage receives activations and sends gradients:

    GPipe   recv recv recv recv send send send send    4 micro-batches in flight
    1F1B    recv send recv send recv send recv send    1 micro-batch in flight

With interleaved stages the last stage sends activations to the first one as well. Zero-bubble schedules have the
messages of 1F1B, but split backward: gradients of activations are sent before gradients of weights are computed, so
that the last stage still computes backward after its last message:

    1F1B    F B> F B> F B>              B: backward, > a message to the stage before
    ZB-H1   F b> F b> w F b> w w        b, w: the halves of backward

ZB-H2 has up to 2p - 1 micro-batches in flight on the first stage, where the others have p.

In V-shaped schedules (ZB-V, DualPipeV) each rank has two chunks of layers, and the model runs down the ranks and back:

    rank 0   first and last chunk: the input and the loss
    rank 1   second and last but one
    rank 2   both chunks in the middle

Each micro-batch then has two messages each way on every link, which looks like 1F1B of twice the micro-batches. What
tells is where the loss is: on the first rank, and not on the last. DualPipeV computes the forward pass of one
micro-batch beside the backward pass of another one, and then sends the results of both at once; ZB-V never does.
"""

from __future__ import annotations

import msgspec
import numpy as np

from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Flags, Ints
from tb_ddp_doctor.trace.names import Phase

GPIPE, ONE_F_ONE_B, INTERLEAVED = "GPipe", "1F1B", "interleaved 1F1B"
ZERO_BUBBLE, ZERO_BUBBLE_2 = "zero-bubble", "zero-bubble H2"
ZERO_BUBBLE_V, DUAL_PIPE_V = "zero-bubble V", "DualPipeV"
#: A V-shaped schedule, of which the trace does not tell which; and where it does not tell whether it is one.
SOME_V, V_OR_2 = "V-shaped", "V-shaped with half the micro-batches, or zero-bubble H2"
#: Those in which each micro-batch has two messages each way on a link.
V_SHAPED = (ZERO_BUBBLE_V, DUAL_PIPE_V, SOME_V)
#: The bubble over (p - 1) / m of what a stage computes, where forward and both halves of backward take as long. ZB-H1:
#: (F + b - w) / (F + b + w), ZB-H2: F + b - 2 w (Qi et al. 2023, arXiv 2401.10241, table 1). The two V-shaped ones by
#: playing the orders of torch.distributed.pipelining, m at least 2 p: p - 1 and 2 (p - 1) times the sixth of what a
#: rank computes for a micro-batch. What may be DualPipeV has its bubble.
OF_BUBBLE = {
    ZERO_BUBBLE: 1 / 3,
    ZERO_BUBBLE_2: 0.0,
    ZERO_BUBBLE_V: 1 / 6,
    DUAL_PIPE_V: 1 / 3,
    SOME_V: 1 / 3,
    # Of as many micro-batches as there are messages: twice those of a V.
    V_OR_2: 2 / 3,
}
FORMULAS = {
    ZERO_BUBBLE: "(p - 1) / 3m",
    ZERO_BUBBLE_2: "0",
    ZERO_BUBBLE_V: "(p - 1) / 6m",
    DUAL_PIPE_V: "(p - 1) / 3m",
    SOME_V: "at most (p - 1) / 3m",
    V_OR_2: "at most 2 (p - 1) / 3m",
}
#: With more stages than these, interleaved ones have messages from the last stage to the first.
_LEAST_STAGES = 2
#: After its last message the last stage computes this share of a micro-batch's backward, or more, if backward is split;
#: the gradients of weights are about half of it.
_SPLIT = 0.25


class StageMessages(msgspec.Struct, frozen=True, eq=False):
    """The messages between stages, in order of rank and arrival; shape (E,)."""

    #: Index of the rank, row of the job's calls, index of the step.
    rank: Ints
    call: Ints
    step: Ints
    #: Whether it is sent; and whether the other end is the next stage, counted around.
    sent: Flags
    to_next: Flags
    #: Whether it goes between the last and the first stage.
    around: Flags


def schedule_of(job: Job, messages: StageMessages, stage: Ints, stages: int, micro_batches: float) -> str:
    """The schedule of stages that are not interleaved; "" where the messages do not tell.

    `stage` is each rank's, shape (R,); `micro_batches` are messages one way on a link in a step.
    """
    schedule = _by_last_stage(messages, stage, stages)
    if schedule == GPIPE:
        return schedule
    first, last = (_computes_loss(job, stage == at) for at in (0, stages - 1))
    ahead = _in_flight(messages, stage == 0) > stages
    if first and last is False:
        return _which_v(job, messages, stage)
    # Interleaved stages on two ranks have as many in flight, and no messages around.
    if ahead and stages > _LEAST_STAGES and not first and not last:
        return V_OR_2
    if schedule == ONE_F_ONE_B and _splits_backward(job, messages, stage, stages, micro_batches):
        return ZERO_BUBBLE_2 if ahead else ZERO_BUBBLE
    return schedule


def _by_last_stage(messages: StageMessages, stage: Ints, stages: int) -> str:
    """The schedule by how many micro-batches the last traced stage has in flight."""
    last = int(stage[messages.rank].max())
    # The last stage counts what comes from the stage before it, others what they exchange with the next one.
    sends = last < stages - 1
    mine = np.flatnonzero((stage[messages.rank] == last) & (messages.to_next == sends))
    many, most = 0, 0
    for one in _by_step(messages, mine):
        forward = messages.sent[one] == sends
        many = max(many, int(forward.sum()))
        most = max(most, int(np.cumsum(np.where(forward, 1, -1)).max(initial=0)))
    warm = stages - last
    if most == many > warm:
        return GPIPE
    # One may be received in advance.
    return ONE_F_ONE_B if warm <= most <= warm + 1 and most < many else ""


def _in_flight(messages: StageMessages, first: Flags) -> int:
    """The most messages that a rank of the first stage has sent in a step beyond those that it received."""
    mine = np.flatnonzero(first[messages.rank])
    ahead = (np.cumsum(np.where(messages.sent[one], 1, -1)).max(initial=0) for one in _by_step(messages, mine))
    return int(max(ahead, default=0))


def _by_step(messages: StageMessages, chosen: Ints) -> list[Ints]:
    """Some messages by rank and step."""
    ends = np.diff(messages.step[chosen]) | np.diff(messages.rank[chosen])
    return np.split(chosen, np.flatnonzero(ends) + 1)


def _computes_loss(job: Job, ranks: Flags) -> bool | None:
    """Whether a rank among some computes a loss; None where none of them is traced."""
    digests = [job.digests[rank] for rank in np.flatnonzero(ranks).tolist()]
    return any(map(_has_loss, digests)) if digests else None


def _has_loss(digest: RankDigest) -> bool:
    used = np.concatenate((digest.kernels.name, digest.operators.name, digest.roofline.calls.operator))
    return any(names.computes_loss(digest.strings[name]) for name in np.unique(used[used >= 0]).tolist())


def _which_v(job: Job, messages: StageMessages, stage: Ints) -> str:
    """Which V-shaped schedule it is, by whether the first stage computes before each message that it sends."""
    together, steps = 0, 0
    for rank in np.flatnonzero(stage == 0).tolist():
        track = job.digests[rank].track
        mine = np.flatnonzero((messages.rank == rank) & messages.sent)
        computed = np.append(0, np.cumsum(np.maximum(track.device_ns, 0)))
        for one in _by_step(messages, mine):
            row = _launching_rows(job, rank, messages.call[one])
            if not len(row) or (row < 0).any():
                return SOME_V
            together += bool((np.diff(computed[np.sort(row) + 1]) == 0).any())
            steps += 1
    if not steps:
        return SOME_V
    return DUAL_PIPE_V if 2 * together > steps else ZERO_BUBBLE_V


def _launching_rows(job: Job, rank: int, call: Ints) -> Ints:
    """The rows of a rank's track that launch some of its calls; -1 where none does."""
    launches = job.digests[rank].track.launches
    row = np.full(int(job.calls.first[rank + 1] - job.calls.first[rank]), -1)
    launching = np.flatnonzero((launches >= 0) & (launches < len(row)))
    row[launches[launching]] = launching
    rows: Ints = row[call - job.calls.first[rank]]
    return rows


def _splits_backward(job: Job, messages: StageMessages, stage: Ints, stages: int, micro_batches: float) -> bool:
    """Whether the last stage computes backward after its last message of most steps."""
    shares = []
    for rank in np.flatnonzero(stage == stages - 1).tolist():
        track = job.digests[rank].track
        launched = _launching_rows(job, rank, messages.call[messages.rank == rank])
        launched = launched[launched >= 0]
        own_step = track.step[launched]
        backward = np.where(track.phase == Phase.BACKWARD, np.maximum(track.device_ns, 0), 0)
        for step in np.unique(own_step).tolist():
            here = track.step == step
            total, last = int(backward[here].sum()), int(launched[own_step == step].max())
            after = int(backward[here & (np.arange(len(here)) > last)].sum())
            shares.append(after / total if total else 0.0)
    return bool(shares) and float(np.median(shares)) >= _SPLIT / max(micro_batches, 1)
