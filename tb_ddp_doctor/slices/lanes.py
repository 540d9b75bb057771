"""What each rank's time belongs to in a window, from the digests alone: a lane for each rank, whatever their number.

    {
      "start_ns": "1700000000000000000", "end_ns": "...",   the window on the common clock, as text: JavaScript's
                                                            numbers do not hold it
      "owners": ["compute", ...],                           what `owner` indexes: `findings.OWNERS`
      "ranks": [{"rank": 3, "node": "node1", "owner": [...], "start_us": [...], "length_us": [...]}]
    }

Times are us from the start of the window. Pieces of a lane follow each other. Those shorter than a screen shows are
joined to one of the owner that has most of them, and last until the next one where that is as near: a digest has no
short stretches but those of communication.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tb_ddp_doctor.digest.intervals import Intervals
from tb_ddp_doctor.digest.model import RankOwner
from tb_ddp_doctor.digest.spending import step_owner
from tb_ddp_doctor.findings import OWNERS
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.slices.cut import SliceWindow, on_common_clock, rank_index
from tb_ddp_doctor.slices.event_text import label
from tb_ddp_doctor.slices.model import SliceError
from tb_ddp_doctor.trace.model import Ints

#: Ranks of one answer.
MOST_RANKS = 64
#: Pieces of a lane are no shorter than this share of the window, unless they stand alone.
_SHOWN = 2_000


def lanes(job: Job, chosen: SliceWindow) -> dict[str, Any]:
    """The answer for the chosen ranks; SliceError for ranks that there are not, or too many."""
    if not 0 < len(chosen.ranks) <= MOST_RANKS:
        raise SliceError(f"Lanes are of at least one rank and at most {MOST_RANKS}.")
    if chosen.start_ns >= chosen.end_ns:
        raise SliceError("The window ends before it starts.")
    return {
        "start_ns": str(chosen.start_ns),
        "end_ns": str(chosen.end_ns),
        "owners": list(OWNERS),
        "ranks": [_lane(job, rank, chosen) for rank in chosen.ranks],
    }


def _lane(job: Job, rank: int, chosen: SliceWindow) -> dict[str, Any]:
    index = rank_index(job, rank)
    owner, start, end = pieces(job, index, job.step_index[index])
    start, end = (on_common_clock(job, rank, edge) for edge in (start, end))
    shows = (start < chosen.end_ns) & (end > chosen.start_ns)
    least = max((chosen.end_ns - chosen.start_ns) // _SHOWN, 1)
    owner, start, end = joined(owner[shows], start[shows], end[shows], least)
    return {
        "rank": rank,
        "node": label(job.nodes[index]),
        "owner": owner.tolist(),
        "start_us": ((start - chosen.start_ns) / 1e3).tolist(),
        "length_us": ((end - start) / 1e3).tolist(),
    }


def pieces(job: Job, index: int, steps: Ints) -> tuple[Ints, Ints, Ints]:
    """Index in `OWNERS`, start and end of a rank's stretches of some of its steps, in order of time, on its own clock.

    `steps` are indices into the rank's own steps, as `job.step_index` has them.
    """
    digest = job.digests[index]
    in_steps = np.isin(digest.pieces.step, steps)
    owner = digest.pieces.owner
    to_owner = np.array([OWNERS.index(step_owner(one)) for one in RankOwner])
    plain = np.flatnonzero(in_steps & (owner != RankOwner.COMMUNICATION))
    parts = [(to_owner[owner[plain]], digest.pieces.start_ns[plain], digest.pieces.end_ns[plain])]
    communicates = in_steps & (owner == RankOwner.COMMUNICATION)
    spans = Intervals.union(digest.pieces.start_ns[communicates], digest.pieces.end_ns[communicates])
    moving = job.moving(index)
    for name, split in (("transfer", spans & moving), ("wait", spans - moving)):
        parts.append((np.full(len(split), OWNERS.index(name)), split.start, split.end))
    which, start, end = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(start, kind="stable")
    return which[order], start[order], end[order]


def joined(owner: Ints, start: Ints, end: Ints, least: int) -> tuple[Ints, Ints, Ints]:
    """The same pieces with those shorter than `least` ns joined, within each `least`, to the owner of most of them.

    Each lasts until the next one where that is less than `least` further.
    """
    if not len(start):
        return owner, start, end
    short = end - start < least
    # A group is a row of short pieces within one pixel, or one long piece.
    pixel = start // least
    breaks = np.ones(len(start), np.bool_)
    breaks[1:] = ~(short[1:] & short[:-1] & (pixel[1:] == pixel[:-1]))
    group = np.cumsum(breaks) - 1
    first = np.flatnonzero(breaks)
    spent = np.zeros((len(first), len(OWNERS)), np.int64)
    np.add.at(spent, (group, owner), end - start)
    last = np.append(first[1:], len(start)) - 1
    until = end[last]
    near = start[first[1:]] - until[:-1] < least
    until[:-1] = np.where(near, start[first[1:]], until[:-1])
    return spent.argmax(axis=1), start[first], until
