"""Which files of a log directory are still being written, by what is seen of them from one search to the next.

A file that changes is not read. One that has been still for a moment is read, and where its end is missing it is
still arriving: it is left out of its job until it is whole. Only when nothing has come for longer than any cache of
file attributes lasts is it taken for what it is, a file that was cut off.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import NamedTuple

#: A file that changed less than this ago is about to change again. Writers flush several times a second.
SETTLED_S = 1.0
#: NFS may show attributes that are a minute old (acregmax); rsync and torch pause less.
ABANDONED_S = 60.0


class Stamp(NamedTuple):
    """What differs between two states of a file."""

    size: int
    #: ns since the epoch; -1 where the file cannot be asked.
    modified_ns: int


Stamps = Mapping[str, Stamp]


class FileArrivals:
    """When each file was last seen to change, on the monotonic clock, s."""

    def __init__(self) -> None:
        self._stamps: dict[str, Stamp] = {}
        self._changed_at: dict[str, float] = {}

    def see(self, stamps: Stamps) -> None:
        """Take the files of a search, which replace those of the one before."""
        now, wall_ns = time.monotonic(), time.time_ns()
        changed_at = {}
        for path, stamp in stamps.items():
            before = self._stamps.get(path)
            if before is None:
                # Its own time may come from another node's clock; what lies ahead of ours is now.
                changed_at[path] = now - max(0, wall_ns - stamp.modified_ns) / 1e9
            else:
                changed_at[path] = self._changed_at[path] if before == stamp else now
        self._stamps, self._changed_at = dict(stamps), changed_at

    def changing(self, paths: Collection[str]) -> frozenset[str]:
        """Those that are being written at this moment."""
        return self._within(SETTLED_S, paths)

    def expected(self, paths: Collection[str]) -> frozenset[str]:
        """Those of which more may come, if their end is missing."""
        return self._within(ABANDONED_S, paths)

    def _within(self, seconds: float, paths: Collection[str]) -> frozenset[str]:
        since = time.monotonic() - seconds
        return frozenset(path for path in paths if self._changed_at.get(path, since) > since)
