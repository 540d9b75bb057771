"""Joins the tracks and collectives of all ranks into tables, rank by rank, before `order.py` puts them in an order.

The digests number rows and collectives rank by rank; the joined tables number them through all ranks. R = ranks, S =
steps of the job, N = calls of collectives of the job. A part is one rank's share of a collective:

    own rows, rank 0   0 1 2        joined rows   0 1 2
    own rows, rank 1   0 1                              3 4      `first` is [0, 3, 5]
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.intervals import Intervals
from tb_ddp_doctor.digest.model import CpuTime, RankDigest
from tb_ddp_doctor.digest.numbering import numbered, ordinals
from tb_ddp_doctor.digest.track import LONG_AGO
from tb_ddp_doctor.job.calls import Calls, job_steps
from tb_ddp_doctor.job.collectives import UNEVEN
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.replay.model import GUEST, Family, PartIndex, Parts, RankIndex, RowIndex, StepIndex
from tb_ddp_doctor.storage.constant import is_constant, joined
from tb_ddp_doctor.trace.model import Flags, Indices, Ints

#: Messages of which one rank waits for the other.
_ONE_WAY = ("send", "recv")


class Tracks(Protocol):
    """The tracks of all ranks, joined rank by rank. One value for each of the joined rows, unless said otherwise."""

    @property
    def first(self) -> Ints:
        """The first row of each rank, and at the end the number of all rows, shape (R + 1,)."""

    @property
    def rank(self) -> Indices:
        """The index of each row's rank."""

    def column(self, name: str) -> NDArray[Any]:
        """A column of `Track` as it is, joined."""

    def parts(self, name: str, missing: int) -> Indices:
        """A column of `Track` that names collectives, as indices of parts; `missing` where a row names none."""

    def rows(self, name: str) -> Indices:
        """A column of `Track` that names rows, as indices of joined rows; negative values stay as they are."""

    def job_step(self, step_index: Ints) -> Indices:
        """The index of each row's step in the job, -1 if the job leaves the step out.

        `step_index` is the index of each of the job's steps in each rank's digest, shape (R, S).
        """

    def recorded(self) -> Indices:
        """Where each row of the ranks' own tracks is among these rows, rank by rank."""

    def host_times(self, kind: CpuTime) -> tuple[Indices, Ints]:
        """The rows whose host spends time on one kind of work, each row once, and how much time, ns."""


class RecordedTracks:
    """The tracks as they were recorded: the digests' own, joined."""

    def __init__(self, digests: Sequence[RankDigest]) -> None:
        self._tracks = [digest.track for digest in digests]
        self._steps = np.array([len(digest.steps) for digest in digests])
        #: The first row of each rank, and at the end the number of all rows, shape (R + 1,).
        self.first = _base([len(track) for track in self._tracks])
        #: The same of the parts that are rows of `Collectives`, shape (R + 1,).
        self.first_part = _base([len(digest.collectives) for digest in digests])
        #: The same of the parts that are rows of `HostMeetings`, shape (R + 1,). They come after all `Collectives`.
        self.first_meeting = self.first_part[-1] + _base([len(digest.host_meetings) for digest in digests])
        self.rank = np.repeat(np.arange(len(digests), dtype=np.int32), np.diff(self.first))

    def column(self, name: str) -> NDArray[Any]:
        """A column of `Track` as it is, joined."""
        return joined([getattr(track, name) for track in self._tracks])

    def parts(self, name: str, missing: int) -> Indices:
        """A column of `Track` that names collectives, as indices of parts; `missing` where a row names none."""
        own = self.column(name)
        if is_constant(own) and own[0] < 0:
            return np.broadcast_to(np.int32(missing), own.shape)
        base = self._base_of_each(self.first_part)
        parts: Indices = np.where(own >= 0, own + base, np.int32(missing))
        if self.first_meeting[-1] > self.first_meeting[0]:
            collectives = self._base_of_each(np.append(np.diff(self.first_part), 0))
            meets = own >= collectives
            parts[meets] = (own - collectives + self._base_of_each(self.first_meeting))[meets]
        return parts

    def rows(self, name: str) -> Indices:
        """A column of `Track` that names rows, as indices of joined rows; negative values stay as they are."""
        own = self.column(name)
        if is_constant(own) and own[0] < 0:
            return own
        return np.where(own >= 0, own + self._base_of_each(self.first), own)

    def _base_of_each(self, first: Ints) -> Indices:
        """For each row, the value that its rank has in `first`."""
        return np.repeat(first[:-1].astype(np.int32), np.diff(self.first))

    def job_step(self, step_index: Ints) -> Indices:
        """The index of each row's step in the job, -1 if the job leaves the step out."""
        return job_steps(step_index, self.rank, self.column("step"), self._steps)

    def recorded(self) -> Indices:
        """Where each row of the ranks' own tracks is among these rows, rank by rank."""
        return np.arange(len(self.rank), dtype=np.int32)

    def host_times(self, kind: CpuTime) -> tuple[Indices, Ints]:
        """The rows whose host spends time on one kind of work, each row once, and how much time, ns."""
        return self._host_times[kind]

    @cached_property
    def _host_times(self) -> dict[CpuTime, tuple[Indices, Ints]]:
        """For each kind of work, the rows whose host spends time on it, and how much time, ns."""
        times = [track.host for track in self._tracks]
        base = np.repeat(self.first[:-1].astype(np.int32), [len(one.row) for one in times])
        kind = joined([one.kind for one in times])
        row, ns = np.concatenate([one.row for one in times]) + base, np.concatenate([one.ns for one in times])
        by_kind = {}
        for each in CpuTime:
            mine = np.flatnonzero(kind == each)
            by_kind[each] = row[mine], ns[mine]
        return by_kind


def _base(counts: Sequence[int]) -> Ints:
    """The index of each rank's first item once all ranks' items are joined; at the end the number of all, (R + 1,)."""
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int64)


def recorded_parts(job: Job, tracks: RecordedTracks, family: Ints) -> Parts:
    """One part for each call of a collective, rank by rank and by time, and at the end the part that stands for "none".

    `family` is the index of each call's family, shape (N,).
    """
    calls, matched, waiting = job.calls, job.matched, job.waiting
    rank, nothing = calls.rank, len(calls)
    own_step, end = calls.column("step"), calls.column("end_ns")
    arrived, traced = waiting.all_arrived_ns, waiting.all_traced_arrived_ns

    collective = np.full(nothing + 1, -1, np.int32)
    collective[matched.call] = matched.segments.index
    alone = collective < 0
    collective[alone] = len(matched) + np.arange(int(alone.sum()))

    launches = tracks.parts("launches", -1)
    launching = np.flatnonzero((launches >= 0) & (launches < nothing))

    def of_launch(values: NDArray[Any], missing: int) -> NDArray[Any]:
        """For each part, the value of the row that launches it; `missing` if no row does."""
        of_part = np.full(nothing + 1, missing, values.dtype)
        of_part[launches[launching]] = values[launching]
        return of_part

    follows = tracks.parts("follows", nothing)
    after = of_launch(np.where(follows < nothing, follows, tracks.parts("after", nothing)), nothing)
    ready = of_launch(tracks.column("ready_ns"), 0)
    like = numbered(calls.text("kind").code, calls.column("elements"), calls.column("group_size"))
    exposed = Exposed.of(waiting.exposed, job.axis.place(rank, arrived), job.axis.place(rank, end))
    needs = of_launch(tracks.rows("needs"), -1)
    # A part that began `ready_ns` after the end of the one that it came after did not begin when device work was done.
    free = np.append(calls.column("arrival_ns"), 0) - ready == np.append(end, 0)[after]
    launched = _Launched(launching, launches[launching], tracks.rank[launching])
    needs = _as_other_ranks_need(needs, free & (after < nothing), launched, collective, like)
    return Parts(
        rank=RankIndex(_and(rank, 0)),
        row=_and(np.arange(nothing) - calls.first[rank], -1),
        own_step=StepIndex(_and(own_step, -1)),
        step=StepIndex(_and(job.call_step, -1)),
        collective=collective,
        absent_ns=np.append(arrived - traced, 0),
        transfer_ns=np.append(end - arrived, 0),
        exposed_ns=np.append(exposed.whole_ns, 0),
        first_exposed_ns=np.append(exposed.first_ns, 0),
        end_ns=np.append(end - job.clock.correction(rank, end), LONG_AGO),
        after=PartIndex(after),
        needs=RowIndex(needs),
        ready_ns=ready,
        like=_and(like, 0),
        ordinal=_and(ordinals(numbered(rank, own_step, like)), 0),
        bytes=np.append(calls.column("bytes"), 0),
        family=_and(family, 0),
    )


class Exposed(msgspec.Struct, frozen=True, eq=False):
    """How long each transfer is exposed, and how long none that began before it is as well; shape (transfers,), ns."""

    whole_ns: Ints
    first_ns: Ints

    @classmethod
    def of(cls, exposed: Intervals, start: Ints, end: Ints) -> Exposed:
        """Of transfers between places of the job's axis, given where communication is exposed.

        Two side by side, "=" exposed, have 5 and 6 whole, and 5 and 3 first: what is exposed takes 8.

            transfer 0  ..=====
            transfer 1    ======
        """
        order = np.argsort(start, kind="stable")
        taken = np.maximum.accumulate(end[order])
        since = start.copy()
        since[order[1:]] = np.maximum(since[order[1:]], taken[:-1])
        return cls(exposed.measure(start, end), exposed.measure(np.minimum(since, end), end))


class _Launched(msgspec.Struct, frozen=True, eq=False):
    """The rows that launch a part, in order; shape (launches,)."""

    row: Ints
    part: Indices
    rank: Indices


def _as_other_ranks_need(needs: Indices, free: Flags, launched: _Launched, collective: Indices, like: Ints) -> Indices:
    """The row whose device work each part awaits (-1 for none), as the ranks tell that wait for nothing else.

    A part that had to come after another collective seems to await all device work that its rank launched before, if
    that was done by then. On a rank where it comes before some of that work is done, it shows what it does await: the
    work up to the launch of an earlier collective. Then it awaits no more on the other ranks.

        rank 0  [gemm 1][gemm 2....][gemm 3]      an all-gather launched after gemm 3
        stream 20       [all-gather]              begins after gemm 1: that is what it awaits
        rank 1  [gemm 1][gemm 2][gemm 3]
        stream 20  [all-gather before..][all-g.]  comes after the one before it: no more is known

    `needs` and `free` (whether the end of another collective, and no device work, let the part begin) have shape
    (parts + 1,), as `collective`; `like`, the kind and size of each part, has shape (parts,).
    """
    part = launched.part
    place = np.arange(len(part))
    needed = needs[part]
    some = np.flatnonzero((needed >= 0) & (needed < launched.row))
    # The first launch after the awaited work, as so many launches before the part's own.
    back = place[some] - np.searchsorted(launched.row, needed[some])
    least = np.full(int(collective.max(initial=0)) + 1, len(part))
    np.minimum.at(least, collective[part[some]], back)
    shows = np.flatnonzero(back == least[collective[part[some]]])
    kind = np.full(len(least), -1)
    kind[collective[part[some[shows]]]] = like[part[some[shows] - back[shows]]]

    mine = np.flatnonzero((needed == launched.row) & free[part])
    of = collective[part[mine]]
    earlier = mine - least[of]
    known = (least[of] > 0) & (earlier >= 0)
    mine, of, earlier = mine[known], of[known], earlier[known]
    same = (launched.rank[earlier] == launched.rank[mine]) & (like[part[earlier]] == kind[of])
    fewer: Indices = needs.copy()
    fewer[part[mine[same]]] = launched.row[earlier[same]]
    return fewer


def families(calls: Calls) -> tuple[Ints, tuple[Family, ...]]:
    """The index of each call's family, shape (N,), and the families: one at least, even for a job without calls."""
    kind, size, sends, two = calls.text("kind"), calls.column("group_size"), calls.of_gradients, calls.between_two
    family = numbered(kind.code, size, sends, two)
    if not len(family):
        return family, (Family("", -1, of_gradients=False),)
    first = np.unique(family, return_index=True)[1]
    return family, tuple(
        Family(kind.words[kind.code[i]], int(size[i]), of_gradients=bool(sends[i]), between_two=bool(two[i]))
        for i in first.tolist()
    )


def _and(indices: NDArray[Any], of_nothing: int) -> Indices:
    """The indices of all calls, and `of_nothing` for the part that stands for "none"."""
    return np.append(indices, of_nothing).astype(np.int32)


def awaited(tracks: Tracks, parts: Parts, calls: Calls) -> Indices:
    """The part that each row's first kernel has to wait for; the last part where it waits for none.

    A kernel that starts right after a collective may have waited for it, or may have been launched only then. A row of
    the second kind (`awaits_for_certain` is false) is decided by the other ranks' parts of the same collective, for a
    message by those that do the same: whether anything waits for a send says nothing of its receive.

    1. If on some ranks a kernel certainly waits, it waits here too, unless even more ranks go on without waiting.
    2. If on no rank a kernel certainly waits, it waits here unless some rank goes on without waiting.
    3. If on no rank a kernel certainly waits, it does not wait for an AllReduce of gradients that the same backward
       pass launched before its last one: DDP awaits all of these at the end of the pass.

    A call that blocks the host until then, and launches nothing, does wait, whatever others do: a sync before a CUDA
    graph is captured, or after weights are gathered, where the rank that sends them on awaits the broadcast only.
    """
    nothing = len(parts.rank) - 1
    awaits: Indices = tracks.parts("awaits", nothing).copy()
    gated = np.flatnonzero(awaits < nothing)
    certain = tracks.column("awaits_for_certain")[gated]
    # For each part: 0 if no row awaits it, 1 if a row may await it, 2 if a row certainly awaits it.
    certainty = np.zeros(nothing, np.int8)
    np.maximum.at(certainty, awaits[gated], 1 + certain.astype(np.int8))
    kinds = calls.text("kind")
    one_way = np.array([kind in _ONE_WAY for kind in kinds.words], np.bool_)[kinds.code]
    way = np.full(nothing, -1, np.int64)
    way[: len(calls)] = np.where(one_way, kinds.code, -1)
    side = numbered(parts.collective[:-1], way)
    counts = parts.like[:-1] >= 0
    free, waiting = (
        np.bincount(side[counts & (certainty == how)], minlength=int(side.max(initial=-1)) + 1) for how in (0, 2)
    )
    of = side[awaits[gated]]
    goes_on = free[of] > waiting[of]
    goes_on |= (waiting[of] == 0) & _before_last_gradients(tracks, awaits, gated, calls)
    blocks = tracks.column("waits")[gated] & (tracks.column("device_ns")[gated] == 0)
    awaits[gated[~certain & ~blocks & goes_on]] = nothing
    return awaits


def _before_last_gradients(tracks: Tracks, awaits: Indices, rows: Ints, calls: Calls) -> Flags:
    """Whether each of some rows awaits an AllReduce of gradients before its backward pass has launched the last one.

    `rows` are the indices of these rows, `awaits` is the part that each of all rows awaits; shape of `rows`.
    """
    count = len(calls)
    launches = tracks.parts("launches", -1)
    launching = np.flatnonzero((launches >= 0) & (launches < count))
    launched_by = np.full(count, -1, np.int64)
    launched_by[launches[launching]] = launching
    sends = calls.of_gradients & (calls.column("backward") >= 0) & (launched_by >= 0)
    of_pass = numbered(calls.rank, calls.column("backward"))
    last = np.full(int(of_pass.max(initial=-1)) + 1, -1, np.int64)
    np.maximum.at(last, of_pass[sends], launched_by[sends])
    until = np.append(np.where(sends, last[of_pass], -1), -1)
    return rows <= until[np.minimum(awaits[rows], count)]


def sequences(
    parts: Parts, families: Sequence[Family], step_index: Ints, between_roles: Flags, generates: Flags
) -> Ints:
    """Numbers the ranks and steps by their collectives, shape (R, S): equal numbers have the same collectives.

    Five things are ignored: sends and receives, since stages of a pipeline differ in their number and have as much to
    do; the sizes of collectives whose sizes may differ from rank to rank (`UNEVEN`); calls `between_roles`, flags
    of the first parts: the rank that sends the weights trains as its peers do; and of ranks that only generate
    (`generates`, shape (R,)) how many collectives they have, and of which size: as their answers are long. So are the
    sizes of collectives that differ from step to step (`_of_batches`).
    """
    ranks, steps = step_index.shape
    two = np.array([family.between_two for family in families], np.bool_)
    counts = (parts.step >= 0) & ~two[parts.family]
    counts[: len(between_roles)] &= ~between_roles
    known = np.flatnonzero(counts)
    cell = parts.rank[known] * steps + parts.step[known]
    # A sum of hashes, one hash for each kind and count: it ignores the order, which differs between streams.
    uneven = np.array([family.kind in UNEVEN for family in families], np.bool_)[parts.family[known]]
    uneven |= _of_batches(parts.family[known], parts.bytes[known], cell, steps)
    like = numbered(parts.family[known], np.where(uneven | generates[parts.rank[known]], -1, parts.like[known]))
    place = ordinals(numbered(cell, like))
    once = (place == 0) | ~generates[parts.rank[known]]
    cell, like, place = cell[once], like[once], place[once]
    hashed = (like.astype(np.uint64) + 1) * np.uint64(0x9E3779B97F4A7C15) ^ (
        (place.astype(np.uint64) + 1) * np.uint64(0xC2B2AE3D27D4EB4F)
    )
    total = np.zeros(ranks * steps, np.uint64)
    np.add.at(total, cell, hashed * (hashed >> np.uint64(29)))
    return numbered(total.view(np.int64)).reshape(ranks, steps)


def _of_batches(family: Indices, size: Ints, cell: Ints, steps: int) -> Flags:
    """Which calls are of families as many of which come in each step, but of other bytes in total: on most ranks that
    have the family. They carry activations, as those of tensor parallelism do, and batches of whole sequences differ
    in tokens.

    Each call's family, its bytes, and its rank and step as one number, all of the shape (calls,).
    """
    of_step = numbered(family, cell)
    first = np.unique(of_step, return_index=True)[1]
    of_rank = numbered(family[first], cell[first] // steps)
    ranks = np.unique(of_rank, return_index=True)[1]

    def varies(values: NDArray[Any]) -> Flags:
        least, most = values[ranks].copy(), values[ranks].copy()
        np.minimum.at(least, of_rank, values)
        np.maximum.at(most, of_rank, values)
        vary: Flags = least < most
        return vary

    batches = varies(np.bincount(of_step, size)) & ~varies(np.bincount(of_step))
    of_family = family[first][ranks]
    most = 2 * np.bincount(of_family, batches) > np.bincount(of_family)
    flags: Flags = most[family]
    return flags


def orders(tracks: Tracks, parts: Parts, families: Sequence[Family], step_index: Ints) -> Ints:
    """Numbers the ranks and steps by where they send and receive between their collectives, shape (R, S).

    Stages of a pipeline with tensor parallelism have the same collectives, but not the same work between two of them:
    their sends and receives lie at other places.
    """
    ranks, steps = step_index.shape
    two = np.array([family.between_two for family in families], np.bool_)
    if not two.any():
        return np.zeros((ranks, steps), np.int64)
    launches = tracks.parts("launches", -1)
    sends = (launches >= 0) & two[parts.family[launches]] & (parts.like[launches] >= 0)
    step = tracks.job_step(step_index)
    total = np.zeros(ranks * steps, np.uint64)
    messages = np.flatnonzero(sends & (step >= 0))
    # Without guests, of which ranks have other numbers.
    before = np.cumsum((launches >= 0) & ~two[parts.family[launches]] & (parts.like[launches] != GUEST))[messages]
    cell = tracks.rank[messages].astype(np.int64) * steps + step[messages]
    # How many collectives come before each message, counted from the rank's first message of the step.
    begins = np.flatnonzero(np.diff(cell, prepend=-1))
    since: Ints = before - np.repeat(before[begins], np.diff(begins, append=len(cell)))
    hashed = (since.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    np.add.at(total, cell, hashed * (hashed >> np.uint64(29)))
    return numbered(total.view(np.int64)).reshape(ranks, steps)
