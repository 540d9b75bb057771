"""Adds the collectives that CPUs carry out (gloo) to the parts of a job: there the CPUs wait for each other.

H = collectives of all ranks' CPUs, each rank's share counted once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.digest.numbering import numbered, ordinals
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.replay.model import Parts
from tb_ddp_doctor.storage.constant import joined
from tb_ddp_doctor.trace.model import Ints

#: `Parts.like` of a collective of the CPUs: its transfer is compared with no other.
OF_CPUS = -2
#: A rank that leaves a collective more than this before another rank enters it took part in another one, ns.
_TOLERANCE_NS = 500_000


def with_host_meetings(job: Job, parts: Parts) -> Parts:
    """The parts of a job with those of its CPUs' collectives, which are put before the last part ("none")."""
    tables = [digest.host_meetings for digest in job.digests]
    many = sum(len(table) for table in tables)
    if not many:
        return parts
    rank = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    start, end = (joined([getattr(table, of) for table in tables]) for of in ("start_ns", "end_ns"))
    start, end = (at - job.clock.correction(rank, at) for at in (start, end))
    meeting = _meetings(job.digests, rank, start, end)
    last = np.full(many, start.min())
    np.maximum.at(last, meeting, start)
    nothing = len(parts.rank) - 1
    chosen = np.concatenate((np.arange(nothing), np.full(many, nothing), [nothing]))
    columns = {name: getattr(parts, name)[chosen] for name in Parts.__struct_fields__}
    here = slice(nothing, nothing + many)
    columns["rank"][here] = rank
    columns["row"][here] = -1
    columns["collective"][here] = int(parts.collective.max()) + 1 + meeting
    columns["transfer_ns"][here] = np.maximum(end - last[meeting], 0)
    columns["end_ns"][here] = end
    columns["like"][here] = OF_CPUS
    columns["after"][columns["after"] == nothing] = nothing + many
    return Parts(**columns)


def _meetings(digests: Sequence[RankDigest], rank: Ints, start_ns: Ints, end_ns: Ints) -> Ints:
    """Numbers the collectives: the n-th of a kind in a step is the same one on all ranks; shape (H,).

    `rank`, `start_ns` and `end_ns` are each share's rank and times on the common clock, shape (H,). Where some rank has
    no n-th one, or its times do not fit, each rank's share is a collective of its own.
    """
    words: dict[str, int] = {}
    kinds, steps = [], []
    for digest in digests:
        code = np.array([words.setdefault(text, len(words)) for text in digest.strings], np.int64)
        kinds.append(code[digest.host_meetings.kind])
        steps.append(digest.steps.number[digest.host_meetings.step])
    of = numbered(np.concatenate(kinds), np.concatenate(steps))
    # Count within each rank, kind and step; the shares are in the order of ranks, and of time within a rank.
    meeting = numbered(of, ordinals(numbered(rank, of)))
    size = int(meeting.max()) + 1
    arrived, ended = np.full(size, start_ns.min()), np.full(size, end_ns.max())
    np.maximum.at(arrived, meeting, start_ns)
    np.minimum.at(ended, meeting, end_ns)
    meet = (np.bincount(meeting) == len(digests)) & (ended >= arrived - _TOLERANCE_NS)
    return numbered(~meet[meeting], np.where(meet[meeting], meeting, np.arange(len(meeting))))
