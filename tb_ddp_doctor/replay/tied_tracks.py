"""Adds hand-overs between ranks to a replay: pauses that end with what others do (see `hand_overs`).

A hand-over is a collective of guests (`guests.py`), one of each rank that was awaited, and the pauses end a latency
after it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.replay.guests import TracksWithGuests
from tb_ddp_doctor.replay.hand_overs import HandOvers
from tb_ddp_doctor.replay.model import GUEST, Parts
from tb_ddp_doctor.replay.tracks import Tracks
from tb_ddp_doctor.trace.model import Indices, Ints

#: `Parts.row` of a hand-over's guests.
HAND_OVER = -2
#: What a pause is once it waits for others, by column of `Track`.
_TIED: dict[str, int | bool] = {
    "blocked_by": -1,
    "blocked_ns": 0,
    "waits": False,
    "queue_row": -1,
    "queue_tail_ns": 0,
    "queue_ns": 0,
    "synced": True,
}


def with_hand_overs(tracks: Tracks, parts: Parts, ties: HandOvers) -> tuple[Tracks, Parts]:
    """The tracks and parts of a job with its hand-overs; `parts` are put before the last part ("none")."""
    nothing, place = len(parts.rank) - 1, tracks.recorded().astype(np.int64)
    tied = TiedTracks(tracks, nothing, ties)
    order = tied.order
    many = len(order)
    chosen = np.concatenate((np.arange(nothing), np.full(many, nothing), [nothing]))
    columns = {name: getattr(parts, name)[chosen] for name in Parts.__struct_fields__}
    here = slice(nothing, nothing + many)
    columns["rank"][here] = tracks.rank[place[ties.after]][order]
    columns["row"][here] = HAND_OVER
    columns["collective"][here] = int(parts.collective.max()) + 1 + ties.of[order]
    columns["transfer_ns"][here] = 0
    columns["like"][here] = GUEST
    columns["needs"] = tied.moved(columns["needs"])
    needs = np.where(ties.needs >= 0, place[ties.needs], -1).astype(np.int32)
    columns["needs"][here] = tied.moved(needs[order])
    columns["after"][columns["after"] == nothing] = nothing + many
    return tied, Parts(**columns)


class TiedTracks(TracksWithGuests):
    """Tracks whose pauses end with the parts of their hand-overs."""

    def __init__(self, tracks: Tracks, first_guest: int, ties: HandOvers) -> None:
        """As for `TracksWithGuests`."""
        place = tracks.recorded().astype(np.int64)
        super().__init__(tracks, place[ties.after], first_guest)
        self.pause: Indices = self._place[place[ties.pause]]
        of_guest = np.empty(len(self.order), np.int64)
        of_guest[self.order] = np.arange(len(self.order))
        #: The part that each pause waits for, any of its hand-over: they end together.
        self.part: Ints = first_guest + of_guest[np.searchsorted(ties.of, ties.awaits)]
        self._latency_ns = ties.latency_ns
        #: The rows whose first kernels wait for a hand-over that no pause shows, and for which part.
        self._works: Indices = self._place[place[ties.works]]
        self._works_await: Ints = first_guest + of_guest[np.searchsorted(ties.of, ties.works_await)]

    def column(self, name: str) -> NDArray[Any]:
        return self._tied(super().column(name), name)

    def rows(self, name: str) -> Indices:
        rows: Indices = self._tied(super().rows(name), name)
        return rows

    def parts(self, name: str, missing: int) -> Indices:
        parts = super().parts(name, missing)
        if name == "queue_part":
            parts[self.pause] = self.part
        return parts

    def after_pauses(self, awaits: Indices, nothing: int) -> Indices:
        """The part that each row's first kernel has to wait for; of the first row with device work after a pause that
        of the hand-over, where nothing else is known since the pause: what a role computes next needs the samples or
        weights, however soon it is launched. `nothing` is the part that stands for none.
        """
        launches = self.parts("launches", -1)
        launching = np.flatnonzero(launches >= 0)
        launched_by = np.full(nothing + 1, -1)
        launched_by[launches[launching]] = launching
        works = np.flatnonzero((self.column("device_ns") > 0) | (launches >= 0))
        # Of several pauses before one row, the last gates it.
        by_time = np.argsort(self.pause)
        pause, part = self.pause[by_time], self.part[by_time]
        place = np.searchsorted(works, pause, side="right")
        after = np.append(works, -1)[place]
        # What was launched before a pause is over with it.
        free = (place < len(works)) & (launched_by[awaits[after]] <= pause) & (self.rank[after] == self.rank[pause])
        gated: Indices = awaits.copy()
        gated[after[free]] = part[free]
        free = gated[self._works] == nothing
        gated[self._works[free]] = self._works_await[free]
        return gated

    def _tied(self, column: NDArray[Any], name: str) -> NDArray[Any]:
        if name not in _TIED:
            return column
        column = column.copy()
        column[self.pause] = self._latency_ns if name == "queue_ns" else _TIED[name]
        return column
