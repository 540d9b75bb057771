"""Finds which collective follows which on its stream, once other collectives are launched."""

from __future__ import annotations

import msgspec
import numpy as np

from tb_ddp_doctor.replay.model import TrackRows
from tb_ddp_doctor.trace.model import Flags, Indices, Ints


class Streams(msgspec.Struct, frozen=True, eq=False):
    """The streams of a record's parts. A stream is named by the number of its first part."""

    #: The stream of each part, shape (parts,).
    of_part: Indices
    #: For each stream, by its name: the part before the first one that a row launches there, shape (parts,).
    before: Ints

    @classmethod
    def of(cls, after: Indices, launched: Flags) -> Streams:
        """The streams, given the part before each part, and flags of the parts (but the last) that rows launch."""
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
        """The part before each part on its stream, once old parts are removed and new ones are launched.

        Parts are the old ones without the last, then the new ones, then the part for "none". `after` is the part before
        each one without this change, `of_new` is the stream of each new part, and `changed` are old parts on whose
        streams parts were removed or added.
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
