"""How much of a step lies in calls of collectives that a rank's record has lost.

A rank takes part in every collective of its groups. If its record lacks a call that all other ranks have, the rank was
in that call all the same, and what it waited there looks like time of its own:

    rank 0  [fwd][AllReduce: wait......][bwd]
    rank 1  [fwd]                       [bwd]      its GPU seems to idle while its CPU syncs
    rank 2  [fwd][sleep     ][AllReduce][bwd]      all wait for this one

So where the lost calls last as long as a rank is slow, nobody knows whether it is slow or waited.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.numbering import numbered
from tb_ddp_doctor.findings import OWNERS
from tb_ddp_doctor.job.collectives import UNEVEN
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.step_parts import IDLE
from tb_ddp_doctor.trace.model import Floats


def lost_calls_ns(job: Job) -> Floats:
    """How long other ranks are in collectives of its groups that each rank's record lacks, mean over steps, ns, (R,).

    A rank is of a group if it has most of the group's matched collectives. If only one other rank has the call, that
    rank may be the one that all waited for. So a rank counts as being in such calls for as long as its GPU idles in the
    same steps, if that is longer.
    """
    calls, matched, lost = job.calls, job.matched, np.zeros(len(job.ranks))
    lacking = matched.group_size > matched.parts
    if not (sum(matched.unmatched) or matched.refused or lacking.any()):
        return lost
    here = (job.call_step >= 0) & (calls.column("group_size") > 1) & ~calls.between_two
    here &= ~calls.text("kind").where(UNEVEN.__contains__)
    collective = np.full(len(calls), -1)
    collective[matched.call] = matched.segments.index
    alone = here & (collective < 0)
    group = numbered(calls.text("group").code, calls.column("group_size"))
    takes_ns = np.where(here, calls.column("end_ns") - calls.column("arrival_ns"), 0)
    of_group, longest_ns = np.full(len(matched), -1), np.zeros(len(matched))
    mine = here & (collective >= 0)
    of_group[collective[mine]] = group[mine]
    np.maximum.at(longest_ns, collective[mine], takes_ns[mine])
    idle_ns = job.budget.owner_ns[:, :, [OWNERS.index(owner) for owner in IDLE]].sum(axis=2)
    lone = np.flatnonzero(alone)
    for each in np.unique(np.concatenate((group[lone], of_group[lacking]))).tolist():
        its = np.flatnonzero(of_group == each)
        segments, part = matched.segments.select(its)
        has = np.bincount(matched.rank[part], minlength=len(lost))
        has_ns = np.bincount(matched.rank[part], segments.each(longest_ns[its]), len(lost))
        is_member = 2 * has > len(its)
        lost += is_member * (longest_ns[its].sum() - has_ns)
        mine = lone[group[lone] == each]
        others = _most_of_others(np.bincount(calls.rank[mine], takes_ns[mine], len(lost)))
        idles = idle_ns[:, np.unique(job.call_step[mine])].sum(axis=1)
        lost += is_member * np.where(others > 0, np.maximum(others, idles), 0.0)
    return lost / max(len(job.steps), 1)


def _most_of_others(values: NDArray[Any]) -> Floats:
    """The largest value of any other rank, shape (R,); 0 for one rank alone."""
    two = np.sort(values)[-2:]
    return np.where(values == two[-1], two[0] if len(two) > 1 else 0.0, two[-1])
