"""Between which ops the CPU is outside any op while the GPU idles: without stacks, all that says where in the code."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest.columns import searchsorted
from tb_ddp_doctor.digest.device_events import DeviceEvents
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.model import GapOps, Pieces, RankOwner
from tb_ddp_doctor.digest.vocabulary import Vocabulary
from tb_ddp_doctor.trace.model import Ints

#: Gaps of each step that are kept, the longest: evidence shows no more of them.
_OF_STEP = 4


def gap_ops(host: HostCalls, device: DeviceEvents, pieces: Pieces, words: Vocabulary) -> GapOps:
    """The last op that ended before each of the longest such gaps, and the first op and launch after it."""
    gaps = _longest(pieces)
    start, end = pieces.start_ns[gaps], pieces.end_ns[gaps]
    # No op runs in a gap: of an op and those within it, the outer one ends last before it or begins first after it.
    ops = host.outermost(host.is_operator & host.trains) if len(gaps) else np.empty(0, np.int64)
    # Of ops that begin or end together, the outermost comes first.
    ended = ops[np.argsort(host.end_ns[ops], kind="stable")]
    began = ops[np.argsort(host.start_ns[ops], kind="stable")]
    ends = host.end_ns[ended]
    last = ends[np.maximum(searchsorted(ends, start, side="right") - 1, 0)] if len(ops) else start
    before = np.where(last <= start, searchsorted(ends, last), len(ops))
    after = searchsorted(host.start_ns[began], end)
    return GapOps(
        step=pieces.step[gaps],
        start_ns=start,
        before=words.indices(host.texts(np.append(ended, -1)[before])),
        after=words.indices(host.texts(np.append(began, -1)[after])),
        kernel=words.indices(device.texts(device.launched_next(end))),
    )


def _longest(pieces: Pieces) -> Ints:
    """Rows of the longest gaps of each step, by step and length."""
    rows = np.flatnonzero(pieces.owner == RankOwner.HOST)
    rows = rows[np.lexsort((pieces.start_ns[rows] - pieces.end_ns[rows], pieces.step[rows]))]
    _, first, count = np.unique(pieces.step[rows], return_index=True, return_counts=True)
    place = np.arange(len(rows)) - np.repeat(first, count)
    return rows[place < _OF_STEP]
