"""What ranks tell each other beside their collectives: results, and that they are still there.

All of it goes through torch's key-value store, which needs no process group: a rank that hangs in a collective keeps no
other from being heard. Waiting always ends, and says who was not heard of.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Sequence

import msgspec
from torch import distributed

_POLL_S = 0.02


class NotAllAnsweredError(Exception):
    """Some ranks were not heard of in time."""

    def __init__(self, phase: str, ranks: Sequence[int]) -> None:
        super().__init__(f"{len(ranks)} ranks did not answer in {phase!r}.")
        self.phase = phase
        self.ranks = tuple(ranks)


class Board:
    """The store, seen from one rank."""

    def __init__(self, store: distributed.Store, rank: int, world_size: int) -> None:
        self.store = store
        self.rank = rank
        self.world_size = world_size

    def post(self, phase: str, value: object = None) -> None:
        """Say that this rank is done with a phase, and what it found."""
        self.store.set(f"{phase}/{self.rank}", msgspec.json.encode(value))

    def missing(self, phase: str) -> list[int]:
        """The ranks that have not posted."""
        return [rank for rank in range(self.world_size) if not self.store.check([f"{phase}/{rank}"])]

    def arrive(self, phase: str, patience_s: float, value: object = None) -> None:
        """Post, and wait until all ranks have; raises NotAllAnsweredError, which says who has not."""
        self.post(phase, value)
        if self.store.add(f"{phase}/count", 1) == self.world_size:
            self.store.set(f"{phase}/all", b"")
        try:
            self.store.wait([f"{phase}/all"], dt.timedelta(seconds=patience_s))
        except (RuntimeError, distributed.DistError):
            if missing := self.missing(phase):
                raise NotAllAnsweredError(phase, missing) from None

    def read(self, phase: str, rank: int) -> bytes:
        """What a rank has posted, JSON. It must have."""
        return bytes(self.store.get(f"{phase}/{rank}"))

    def wait_for(self, phase: str, patience_s: float, ranks: Sequence[int] | None = None) -> list[int]:
        """Wait for these ranks (by default all) to post; returns those that have not after the time."""
        until = time.monotonic() + patience_s
        while missing := [rank for rank in self.missing(phase) if ranks is None or rank in ranks]:
            if time.monotonic() > until:
                return missing
            time.sleep(_POLL_S)
        return []
