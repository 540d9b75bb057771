"""How much of the critical path across ranks lies in each of the model's modules.

The path is a chain of stretches, each on one rank and of one row of its track. Of a stretch of

- device work, each module has its share of the kernels' and copies' time in that segment of a step on that rank,
- a collective's transfer, the share of communication,
- the host, the share of idle time, or where there is none, of kernels' time.

Where a rank's digest does not have a segment, shares are those of all its steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.model import ModuleTime, RankDigest
from tb_ddp_doctor.digest.module_segments import row_segments
from tb_ddp_doctor.facts.modules import ModuleTree, places, with_children
from tb_ddp_doctor.replay.bindings import Bindings, EventKind
from tb_ddp_doctor.replay.critical_path import stretches
from tb_ddp_doctor.trace.model import Floats, Ints

#: Which times of a segment say whose a stretch is: the first of these of which there is any.
_DEVICE = ((ModuleTime.COMPUTE, ModuleTime.COPY),)
_HOST = ((ModuleTime.IDLE,), *_DEVICE)
_TRANSFER = ((ModuleTime.COMMUNICATION,),)


def path_ns(tree: ModuleTree, digests: Sequence[RankDigest], bindings: Bindings) -> Floats:
    """The critical path's time in each module with all modules within it, mean over steps, ns, shape (M,)."""
    begin, end = int(bindings.start_ns[0]), int(bindings.end_ns[-1])
    spent: defaultdict[tuple[int, int, tuple[tuple[ModuleTime, ...], ...]], int] = defaultdict(int)
    segments: dict[int, Ints] = {}
    launching: dict[int, Ints] = {}
    own = np.zeros(len(tree.path))
    for rank, event, row, start, until, _ in stretches(bindings):
        length = min(until, end) - max(start, begin)
        if length <= 0:
            continue
        if rank not in segments:
            segments[rank], launching[rank] = row_segments(digests[rank].track), _launching(digests[rank])
        of_collective = event in (EventKind.ARRIVED, EventKind.COMPLETED)
        at = row if not of_collective else int(launching[rank][row]) if row >= 0 else -1
        if event is None or at < 0:
            own[0] += length
            continue
        of = _DEVICE if event in (EventKind.DONE, EventKind.ARRIVED) else _TRANSFER if of_collective else _HOST
        spent[rank, int(segments[rank][at]), of] += length
    place = places(digests)
    for (rank, segment, kinds), length in spent.items():
        np.add.at(own, *_shares(digests[rank], place[rank], segment, kinds, length))
    return with_children(tree, own) / len(bindings.end_ns)


def _launching(digest: RankDigest) -> Ints:
    """The row of the track that launches each collective, -1 if none does."""
    launches = digest.track.launches
    rows = np.flatnonzero((launches >= 0) & (launches < len(digest.collectives)))
    launching = np.full(len(digest.collectives), -1)
    launching[launches[rows]] = rows
    return launching


def _shares(
    digest: RankDigest, place: Ints, segment: int, kinds: tuple[tuple[ModuleTime, ...], ...], length: int
) -> tuple[Ints, Floats]:
    """How a length of the path is shared among modules of the job's tree: which, and how much of it each has."""
    times, table = digest.modules.times, digest.modules.segments
    here = table.segment == segment
    for wanted in kinds:
        rows, ns = table.of[here], table.total_ns[here]
        for of, time in ((rows, ns), (np.arange(len(times)), times.total_ns)):
            chosen: NDArray[np.bool_] = np.isin(times.kind[of], wanted) & (time > 0)
            if chosen.any():
                return place[times.module[of[chosen]]], length * time[chosen] / time[chosen].sum()
    return np.zeros(1, np.int64), np.array([float(length)])
