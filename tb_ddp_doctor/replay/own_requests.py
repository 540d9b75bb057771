"""Ranks of a server that have requests of their own (data-parallel attention), and how unevenly these are spread.

Each rank attends to its own requests; experts are shared, so that all ranks meet before and after them. A rank without
requests runs a dummy batch, since others need its experts:

    rank 0  [GEMMs][attention of 64 requests..][exchange][experts][exchange]
    rank 1  [GEMMs][attention of 16][wait.....][exchange][experts][exchange]
    rank 2  [wait.............................][exchange][experts][exchange]

Attention takes as long as the requests' keys and values are many. So with an even share of the requests it takes what
it takes on average. GEMMs of answers read their weights, however few requests there are: they stay as they are. Of
prompts all work scales with the tokens.

R = ranks, S = steps of the job; rows are those of the schedule, times ns.
"""

from __future__ import annotations

import msgspec
import numpy as np

from tb_ddp_doctor.digest.numbering import numbered
from tb_ddp_doctor.job import job_kind
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.replay.cells import of_equal
from tb_ddp_doctor.replay.model import OwnRequests, Schedule
from tb_ddp_doctor.trace import program_names
from tb_ddp_doctor.trace.model import Flags, Floats, Ints
from tb_ddp_doctor.trace.names import COMBINE, DISPATCH
from tb_ddp_doctor.trace.program_names import Program

#: Collectives around experts that ranks with requests of their own share.
_AROUND_EXPERTS = ("all_gather", "reduce_scatter", "all_to_all", DISPATCH, COMBINE)
#: The rank with most attends this much longer than the mean rank, and exceeds it in all other work by less than this
#: share of that: a slow GPU is slow in both.
_LONGER = 0.2
_IN_THE_REST = 0.3
#: Of less of other work that cannot be told, relative to attention.
_LEAST_REST = 0.05


def own_requests(job: Job) -> OwnRequests | None:
    """The requests of a server whose ranks have requests of their own; None for every other job.

    Two things tell it: marks that count other numbers of requests on the ranks of a step; and attention that takes one
    rank longer than the others while all else does not, between exchanges with all ranks.
    """
    ranks, steps = job.step_index.shape
    if job_kind.program(job) is not Program.SERVING or ranks < 2 or not steps or _sends(job):
        return None
    serving = job.work(lambda work: work.serving)
    number = serving.prefills + serving.decodes
    attends = _attends(job)
    counted = 2 * np.count_nonzero(np.ptp(number, axis=0)) > steps
    if not counted and not _attends_longer(job, attends):
        return None
    return OwnRequests(attends, np.asarray((serving.reads > 0).any(axis=0)), number)


def _sends(job: Job) -> bool:
    """Whether stages of a pipeline send to each other: these have other requests at the same time."""
    return any(len(digest.messages) for digest in job.digests)


def _attends(job: Job) -> Floats:
    """1 for each call of all ranks' `RooflineCalls` that is attention, else 0."""
    every = []
    for digest in job.digests:
        name, of_each = np.unique(digest.roofline.calls.name, return_inverse=True)
        flags = np.array([program_names.attends(digest.strings[one]) for one in name.tolist()], np.float64)
        every.append(flags[of_each] if len(name) else flags)
    return np.concatenate(every)


def _attends_longer(job: Job, attends: Floats) -> bool:
    """Whether some rank attends longer than the others, and does nothing else longer."""
    exchanged = job.calls.text("kind").where(_AROUND_EXPERTS.__contains__)
    if not np.any(exchanged):
        return False
    rank = np.repeat(np.arange(len(job.digests)), [len(digest.roofline.calls) for digest in job.digests])
    took = np.concatenate([digest.roofline.calls.total_ns for digest in job.digests])
    attention, rest = (np.bincount(rank, took * share, len(job.digests)) for share in (attends, 1 - attends))
    if (rest < _LEAST_REST * attention).any():
        return False
    longer, longer_rest = (each / max(float(each.mean()), 1.0) - 1 for each in (attention, rest))
    most = int(longer.argmax())
    return bool(longer[most] > _LONGER and longer_rest[most] < _IN_THE_REST * longer[most])


class Spread(msgspec.Struct, frozen=True, eq=False):
    """What each rank's device works between two collectives beyond its share of the requests; P places in a step."""

    #: As recorded less an even share, shape (R * S, P); negative for ranks with few requests.
    above_ns: Floats
    #: How much shorter each row would be with an even share, shape (rows,); 0 where the rank has fewer requests.
    gone_ns: Ints


def spread(schedule: Schedule, attention_ns: Ints) -> Spread | None:
    """How unevenly requests are spread; None where ranks have none of their own. `attention_ns` has each row's."""
    requests = schedule.frame.requests
    if requests is None:
        return None
    rows, (ranks, steps) = schedule.rows, schedule.frame.step_index.shape
    mine = np.flatnonzero(rows.step >= 0)
    places = int(rows.between.max(initial=0)) + 1
    cell = rows.rank[mine] * np.int64(steps) + rows.step[mine]
    place = cell * places + rows.between[mine]
    work = np.maximum(rows.device_ns[mine], 0)
    of_experts = _of_experts(schedule)[mine]
    scales = np.where(requests.reads[rows.step[mine]] & ~of_experts, work, np.minimum(attention_ns[mine], work))
    total, scaling = (
        np.bincount(place, each, ranks * steps * places).astype(np.float64).reshape(ranks * steps, places)
        for each in (work, scales)
    )
    above = np.zeros(total.shape)
    step = np.broadcast_to(np.arange(steps), (ranks, steps)).ravel()
    for same in of_equal(numbered(schedule.frame.sequence.ravel(), step)):
        above[same] = _above(total[same], scaling[same])
    gone = np.zeros(len(rows.rank), np.int64)
    share = np.clip(above / np.maximum(scaling, 1), 0, 1)
    gone[mine] = np.rint(scales * share.ravel()[place])
    return Spread(above, gone)


def _above(total: Floats, scaling: Floats) -> Floats:
    """What ranks of a step have above an even share, given what each works at each place, and what of that scales with
    its requests; shape (ranks, places). What does not scale, a rank without requests has as those with some.
    """
    has = np.asarray(scaling.any(axis=1))
    if not has.any():
        return np.zeros(total.shape)
    fixed = total - scaling
    even = np.where(has[:, None], fixed, np.maximum(fixed, fixed[has].mean(axis=0)))
    above: Floats = total - even - scaling.mean(axis=0)
    return above


def _of_experts(schedule: Schedule) -> Flags:
    """Which rows are followed by a combine kernel: experts work there, which all ranks' tokens share."""
    rows, parts, families = schedule.rows, schedule.parts, schedule.frame.families
    combines = np.array([family.kind == COMBINE for family in families], np.bool_)
    place = numbered(rows.rank, rows.own_step, rows.between)
    ends = np.flatnonzero(rows.launches >= 0)
    ends = ends[combines[parts.family[rows.launches[ends]]]] if len(families) else ends
    return np.asarray(np.isin(place, place[ends]))
