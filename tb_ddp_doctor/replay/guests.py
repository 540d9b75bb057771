"""Adds guests to collectives: parts that take no time, and make their collective wait for something else.

The parts of a collective complete together once all have arrived, and each part comes after one other part. Two cases
need more than that:

- Ranks that pass data around in a ring, or along a pipeline, each wait for their neighbours alone. There a kernel meets
  two kernels that do not meet each other. So it is a collective of its own, with a guest for each partner. The guest
  arrives when the partner does:

      rank 0  kernel a, with guests of b and d      rank 1  kernel b, with guests of a and c

- A collective that awaits a collective on another stream also comes after the one before it on its own stream. It
  comes after the former; its guest comes after the latter.

A guest is launched by a row that takes no time, right after the row that launches the part for which it stands.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.model import CpuTime
from tb_ddp_doctor.digest.track import LONG_AGO
from tb_ddp_doctor.job.collectives import Matched
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.replay.model import GUEST, Parts
from tb_ddp_doctor.replay.tracks import Tracks
from tb_ddp_doctor.trace.model import Flags, Floats, Indices, Ints

_OF_GUESTS = {"own_step": -1, "step": -1, "like": GUEST} | dict.fromkeys(
    ("absent_ns", "transfer_ns", "exposed_ns", "first_exposed_ns"), 0
)
#: The columns in which a row that launches a guest differs from the row that launches its partner.
_OWN: dict[str, int | bool] = {
    "blocked_by": -1,
    "blocked_ns": 0,
    "waits": False,
    "queue_row": -1,
    "queue_tail_ns": 0,
    "queue_part": -1,
    "queue_ns": 0,
    "synced": False,
    "device_ns": 0,
    "lead_ns": LONG_AGO,
    "fed_ns": -1,
    "awaits": -1,
    "delay_ns": 0,
    "awaits_for_certain": False,
}


def with_guests(job: Job, tracks: Tracks, parts: Parts) -> tuple[Tracks, Parts]:
    """The tracks and parts of a job with the guests that it needs; the given ones if it needs none."""
    nothing = len(parts.rank) - 1
    host, partner = _meetings(job)
    both = np.flatnonzero((tracks.parts("follows", nothing) < nothing) & (tracks.parts("after", nothing) < nothing))
    if not len(host) and not len(both):
        return tracks, parts
    launches = tracks.parts("launches", -1)
    launching = np.full(nothing, -1, np.int64)
    launching[launches[launches >= 0]] = np.flatnonzero(launches >= 0)
    launched = launching[partner] >= 0
    host, partner = (np.concatenate((side[launched], launches[both])).astype(np.int64) for side in (host, partner))
    guests = TracksWithGuests(tracks, launching[partner], nothing)
    collective = parts.collective.copy()
    alone = np.unique(host[: int(launched.sum())])
    collective[alone] = int(collective.max()) + 1 + np.arange(len(alone))
    # From here on in the order of the rows that launch the guests.
    host, partner = host[guests.order], partner[guests.order]
    chosen = np.concatenate((np.arange(nothing), partner, [nothing]))
    columns = {name: getattr(parts, name)[chosen] for name in Parts.__struct_fields__}
    here = slice(nothing, nothing + len(host))
    columns["collective"][here] = collective[host]
    columns["collective"][:nothing] = collective[:nothing]
    for name, value in _OF_GUESTS.items():
        columns[name][here] = value
    on_stream = nothing + np.flatnonzero(host == partner)
    columns["after"][on_stream] = tracks.parts("after", nothing)[launching[host[host == partner]]]
    columns["needs"][on_stream] = -1
    columns["ready_ns"][on_stream] = 0
    columns["needs"] = guests.moved(columns["needs"])
    columns["after"][columns["after"] == nothing] = nothing + len(host)
    return guests, Parts(**columns)


def _meetings(job: Job) -> tuple[Ints, Ints]:
    """Pairs of calls that meet, each pair both ways, of those matches in which a call meets several others.

    Returns the calls that get a guest, and the partner for which each guest stands.
    """
    matched = job.matched
    chosen = np.flatnonzero(~matched.together)
    if not len(chosen):
        return chosen, chosen
    call = matched.call[matched.segments.select(chosen)[1]].reshape(-1, 2)
    return np.concatenate((call[:, 0], call[:, 1])), np.concatenate((call[:, 1], call[:, 0]))


def share_of_kernels(matched: Matched, first_call: Ints, parts: Parts, share: Floats) -> Floats:
    """The share of each collective of a schedule that goes if a share of each matched one goes, 0 to 1, shape (C,).

    A kernel that meets several others is a collective of its own here. It is over when the longest of its transfers is:

        rank 0 to 1   150 us, share 0         rank 1's kernel takes 1,000 us; of that, 850 us go
        rank 1 to 2 1,000 us, share 0.85      rank 0's takes 150 us, and rank 2's 1,000 us, of which 850 us go

    `share` has shape (C,) too, by row of `matched` and 0 behind; `first_call` is the first call of each rank.
    """
    rows = np.flatnonzero(~matched.together)
    if not (share[rows] > 0).any():
        return share
    own = np.flatnonzero((parts.row >= 0) & (parts.like != GUEST))
    call = first_call[parts.rank[own]] + parts.row[own]
    takes = np.zeros(int(first_call[-1]), np.int64)
    takes[call] = parts.absent_ns[own] + parts.transfer_ns[own]
    pairs = matched.call[matched.segments.select(rows)[1]].reshape(-1, 2)
    left_ns, longest_ns = takes[pairs].min(axis=1) * (1 - share[rows]), np.zeros(len(takes))
    changes = np.zeros(len(takes), np.bool_)
    for side in pairs.T:
        np.maximum.at(longest_ns, side, left_ns)
        changes[side[share[rows] > 0]] = True
    gone = np.where(changes, 1 - longest_ns / np.maximum(takes, 1), 0.0)
    of_each: Floats = share.copy()
    several = np.flatnonzero(changes[call])
    of_each[parts.collective[own[several]]] = np.clip(gone[call[several]], 0, 1)
    return of_each


class TracksWithGuests:
    """Tracks with one more row for each guest, right after the row of its partner."""

    def __init__(self, tracks: Tracks, after: Ints, first_guest: int) -> None:
        """`after` is the row that launches each guest's partner, `first_guest` the index of the first guest's part."""
        self._tracks = tracks
        rows = len(tracks.rank)
        source = np.concatenate((np.arange(rows), after))
        sort = np.argsort(source, kind="stable")
        #: The guests in the order of the rows that launch them.
        self.order: Ints = sort[sort >= rows] - rows
        self._source: Ints = source[sort]
        self._own: Flags = sort >= rows
        self._place = np.empty(rows, np.int32)
        self._place[self._source[~self._own]] = np.flatnonzero(~self._own)
        self._first_guest = first_guest
        self.first: Ints = tracks.first + np.searchsorted(np.sort(after), tracks.first)
        self.rank: Indices = tracks.rank[self._source]

    def moved(self, rows: Indices) -> Indices:
        """Indices of rows of the tracks without guests, as indices of rows of these tracks; negative values stay."""
        return np.where(rows >= 0, self._place[rows], rows).astype(np.int32)

    def column(self, name: str) -> NDArray[Any]:
        """A column of `Track` as it is, joined."""
        return self._with_own(self._tracks.column(name), name)

    def parts(self, name: str, missing: int) -> Indices:
        """A column of `Track` that names collectives, as indices of parts; `missing` where a row names none."""
        parts: Indices = self._tracks.parts(name, missing)[self._source]
        if name == "launches":
            parts[self._own] = self._first_guest + np.arange(len(self.order))
        elif name in _OWN:
            parts[self._own] = missing
        return parts

    def rows(self, name: str) -> Indices:
        """A column of `Track` that names rows, as indices of joined rows; negative values stay as they are."""
        return self.moved(self._with_own(self._tracks.rows(name), name))

    def job_step(self, step_index: Ints) -> Indices:
        """The index of each row's step in the job, -1 if the job leaves the step out."""
        return self._tracks.job_step(step_index)[self._source]

    def recorded(self) -> Indices:
        """Where each row of the ranks' own tracks is among these rows, rank by rank."""
        return self._place[self._tracks.recorded()]

    def host_times(self, kind: CpuTime) -> tuple[Indices, Ints]:
        """The rows whose host spends time on one kind of work, each row once, and how much time, ns."""
        row, ns = self._tracks.host_times(kind)
        return self._place[row], ns

    def _with_own(self, column: NDArray[Any], name: str) -> NDArray[Any]:
        """A column with a value for each guest's row: its own, or that of the partner's row."""
        values = column[self._source]
        if name in _OWN:
            values[self._own] = _OWN[name]
        return values
