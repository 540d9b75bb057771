"""Which collective follows which on its stream, once others are launched."""

from __future__ import annotations

import msgspec
import numpy as np

from tb_ddp_doctor.replay.model import TrackRows
from tb_ddp_doctor.trace.model import Flags, Indices, Ints


class Streams(msgspec.Struct, frozen=True, eq=False):
    """The streams of a record's parts; each is named by its first part."""

    #: Of each part, the last of which was over long ago.
    of_part: Indices
    #: What was before the first part that a row launches on each stream.
    before: Ints

    @classmethod
    def of(cls, after: Indices, launched: Flags) -> Streams:
        """From the part before each one on its stream, and which of them, but for the last, rows launch."""
        nothing = len(after) - 1
        chain = np.where(after < nothing, after, np.arange(nothing + 1))
        while not np.array_equal(further := chain[chain], chain):
            chain = further
        before = np.full(nothing + 1, nothing)
        candidates = np.flatnonzero(launched & (after[:-1] < nothing))
        outside = candidates[~launched[after[candidates]]]
        before[chain[outside]] = after[outside]
        return cls(chain, before)

    def chained(self, after: Indices, of_new: Indices, rows: TrackRows, changed: Ints) -> Indices:
        """The part before each one, old ones but the last, new ones, and the last, in the order of their launches.

        `after` is what it is without the change, `of_new` the streams of the new parts, and `changed` are old parts on
        whose streams something has changed.
        """
        old, nothing = len(self.of_part) - 1, len(after) - 1
        of = np.concatenate((self.of_part[:-1], of_new, [-1]))
        launching = np.flatnonzero(rows.launches >= 0)
        launching = launching[np.isin(of[rows.launches[launching]], np.unique(self.of_part[changed]))]
        launching = launching[np.lexsort((launching, of[rows.launches[launching]]))]
        part = rows.launches[launching]
        opens = np.diff(of[part], prepend=-2) != 0
        before = np.where(self.before < old, self.before, nothing)
        chained: Indices = after.copy()
        chained[part] = np.where(opens, before[of[part]], np.append(-1, part[:-1]))
        return chained
