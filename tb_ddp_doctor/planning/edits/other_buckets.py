"""Replaces the AllReduces of recorded buckets of gradients by those of other buckets.

1. Cut rows where the last gradient of each new bucket becomes ready: there its AllReduce is launched.
2. Move the host's time for launches from the recorded AllReduces to the new ones.
3. Let the work after the pass wait for the last new AllReduce, as DDP's finalization does.
4. Put the new parts in place of the recorded ones (`replaced_parts`). Each follows the one before on its stream, as
   NCCL orders them.

A new bucket that equals a recorded one keeps its recorded values, so that the recorded buckets give the recorded steps.
G = gradients of a pass, B = new buckets, P = passes, C = P * B new parts, pass by pass.
"""

from __future__ import annotations

from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.model import CpuTime
from tb_ddp_doctor.planning.costs.messages import Messages
from tb_ddp_doctor.planning.edits.cut_rows import Cuts, RowPieces
from tb_ddp_doctor.planning.edits.recorded_rows import RecordedRows
from tb_ddp_doctor.planning.edits.replaced_parts import Gates, NewParts, replaced
from tb_ddp_doctor.trace.model import Flags, Indices, Ints

#: The longest time from when an AllReduce has all that it needs to its arrival, ns: longer times have another reason.
_MOST_READY_NS = 100_000


class SentPasses(msgspec.Struct, frozen=True, eq=False):
    """The passes of the chosen ranks whose gradients are sent, rank by rank, in order; times on the common clock.

    Two ranks with a pass each, three gradients in two buckets; times in ms:

        rank  ready_ns        parts     recorded [1, 2]: the second gradient ends bucket 0, the third bucket 1
           0  [12, 15, 21]    [0, 1]
           1  [13, 16, 22]    [2, 3]
    """

    #: Index of the rank among the chosen ones, shape (P,).
    rank: Ints
    #: When each gradient could be sent, shape (P, G), ns.
    ready_ns: Ints
    #: When the device is done with all that was launched before that, shape (P, G), ns.
    done_ns: Ints
    #: How long the host takes to launch an AllReduce with the gradient, shape (P, G), ns.
    launching_ns: Ints
    #: The recorded parts that sent the pass's gradients, shape (P, recorded buckets).
    parts: Ints
    #: The last gradient of each recorded bucket; None if the buckets are in another order than the gradients.
    recorded: Ints | None
    #: Bytes of each gradient, shape (G,).
    bytes: Ints

    @property
    def boundaries(self) -> Ints:
        """The last gradient of each recorded bucket; if they are in another order, of as many equal buckets."""
        if self.recorded is not None:
            return self.recorded
        buckets, gradients = self.parts.shape[1], len(self.bytes)
        even: Ints = np.maximum(np.arange(1, buckets + 1) * gradients // buckets - 1, 0)
        return even


def rebucketed(tracks: RecordedRows, sent: SentPasses, lasts: Ints, messages: Messages) -> RecordedRows:
    """The tracks with other buckets in each pass; `lasts` is the last gradient of each bucket, shape (B,)."""
    return _Rebucketing(tracks, sent, lasts, messages).tracks


class _Rebucketing:
    """Puts one set of new buckets into the tracks."""

    def __init__(self, tracks: RecordedRows, sent: SentPasses, lasts: Ints, messages: Messages) -> None:
        self._old, self._sent, self._lasts, self._messages = tracks, sent, lasts, messages
        self._passes, self._buckets = len(sent.rank), len(lasts)
        #: Number of the first new part. Before, it was that of the part for "none".
        self._first = len(tracks.part_table.rank) - 1
        #: Flags the new buckets that equal a recorded one, shape (B,); and the numbers of these recorded ones.
        self._same, self._was = np.zeros(len(lasts), np.bool_), np.zeros(len(lasts), np.int64)
        if sent.recorded is not None:
            begins, had = np.append(-1, lasts[:-1]), np.append(-1, sent.recorded[:-1])
            at = np.minimum(np.searchsorted(sent.recorded, lasts), len(had) - 1)
            self._same, self._was = (sent.recorded[at] == lasts) & (had[at] == begins), at
        self._launching_row = np.full(self._first + 1, -1, np.int64)
        launching = np.flatnonzero(tracks.table.launches >= 0)
        self._launching_row[tracks.table.launches[launching]] = launching

    @property
    def tracks(self) -> RecordedRows:
        """The tracks with the new buckets."""
        work_ns = self._without_launching()
        return replaced(
            self._old, self._pieces, work_ns, self._sent.parts, np.arange(self._passes), self._parts(), self._gates()
        )

    @cached_property
    def _is_cut(self) -> Flags:
        """Which new parts are launched at a cut, shape (P, B)."""
        return np.broadcast_to(~self._same, (self._passes, self._buckets))

    @cached_property
    def _pieces(self) -> RowPieces:
        """The pieces of the old rows: cut where the buckets become ready that equal no recorded one."""
        old, sent, lasts = self._old, self._sent, self._lasts
        cut = self._is_cut.ravel()
        part = self._first + np.flatnonzero(cut)
        ready, done, launching = (
            column[:, lasts].ravel()[cut] for column in (sent.ready_ns, sent.done_ns, sent.launching_ns)
        )
        rank = np.repeat(sent.rank, self._buckets)[cut]
        return RowPieces.of(old, Cuts(rank, ready, done, launching, part))

    def _without_launching(self) -> Ints:
        """The host's work in each old row without the launches of removed AllReduces, ns."""
        sent, work = self._sent, self._old.spent[CpuTime.WORK].copy()
        kept = np.isin(np.arange(sent.parts.shape[1]), self._was[self._same])
        rows = self._launching_row[sent.parts[:, ~kept]]
        launching = sent.launching_ns[:, sent.boundaries[~kept]]
        known = rows >= 0
        work[rows[known]] = np.maximum(work[rows[known]] - launching[known], 0)
        remaining: Ints = work
        return remaining

    @cached_property
    def _launched_by(self) -> Ints:
        """The piece that launches each new part, shape (P, B)."""
        pieces, by = self._pieces, np.full((self._passes, self._buckets), -1)
        by[self._is_cut] = pieces.cut_at
        rows = self._launching_row[self._sent.parts[:, self._was[self._same]]]
        by[:, self._same] = np.where(rows >= 0, pieces.last_of[rows], -1)
        return by

    def _gates(self) -> Gates:
        """Where the work after each pass waits for its last new AllReduce, as DDP's finalization does.

        1. The piece that waits is the first one, after the last new launch, that waited for an AllReduce of the pass.
        2. If none did, it is the piece after the last launch. It starts as long after the AllReduce as pieces that did
           wait for one, in the median.
        3. A piece that waits for something else goes on to do so.
        """
        pieces, table, last = self._pieces, self._old.table, self._launched_by[:, -1]
        awaits = np.where(pieces.is_first, table.awaits[pieces.row], self._first)
        of_pass = np.full(self._first + 1, -1)
        of_pass[self._sent.parts] = np.arange(self._passes)[:, None]
        awaiting = np.flatnonzero(of_pass[awaits] >= 0)
        awaiting = awaiting[awaiting > last[of_pass[awaits[awaiting]]]]
        delay = table.delay_ns[pieces.row]
        median = int(np.median(delay[awaiting])) if len(awaiting) else 0
        recorded = np.full(self._passes, len(awaits))
        np.minimum.at(recorded, of_pass[awaits[awaiting]], awaiting)
        has_recorded = recorded < len(awaits)
        piece = np.where(has_recorded, recorded, np.minimum(last + 1, len(awaits) - 1))
        is_ours = (table.rank[pieces.row[piece]] == self._sent.rank) & (piece > last)
        chosen = np.flatnonzero(is_ours & ((awaits[piece] == self._first) | (of_pass[awaits[piece]] >= 0)))
        part = chosen * self._buckets + self._buckets - 1
        return Gates(piece[chosen], part, np.where(has_recorded, delay[piece], median)[chosen])

    def _parts(self) -> NewParts:
        """The new parts, pass by pass."""
        old, sent, shape = self._old.part_table, self._sent, (self._passes, self._buckets)
        size = np.diff(np.cumsum(sent.bytes)[self._lasts], prepend=0)
        takes = np.rint(self._messages.time_ns(size)[None, :] * self._pace()[:, None]).astype(np.int64)
        was, last = sent.parts[:, self._was], sent.parts[:, -1]
        takes = np.where(self._same, old.transfer_ns[was], takes)
        # Ranks are in the same pass if their last AllReduces are parts of one collective.
        collective = old.collective[last][:, None].astype(np.int64) * self._buckets
        _, collective = np.unique(collective + np.arange(self._buckets), return_inverse=True)
        needs, ready = self._readiness()

        def each(values: Ints | Indices) -> Ints:
            return np.broadcast_to(values, shape).ravel().astype(np.int64)

        return NewParts(
            launched_by=each(self._launched_by),
            same_as=each(np.where(self._same, was, -1)),
            queue=each(np.arange(self._passes)[:, None]),
            rank=each(sent.rank[:, None]),
            row=each(np.where(self._same, old.row[was], -1)),
            own_step=each(old.own_step[last][:, None]),
            step=each(old.step[last][:, None]),
            collective=collective.ravel(),
            absent_ns=self._absent().ravel(),
            transfer_ns=each(takes),
            exposed_ns=each(np.where(self._same, old.exposed_ns[was], takes)),
            needs=each(needs),
            ready_ns=each(ready),
            like=each(np.arange(self._buckets)),
            bytes=each(size),
            family=each(old.family[last][:, None]),
            stream_of=each(last[:, None]),
        )

    def _pace(self) -> NDArray[np.float64]:
        """The factor by which each pass's transfers took longer than their sizes let expect, shape (P,)."""
        sent = self._sent
        size = np.diff(np.cumsum(sent.bytes)[sent.boundaries], prepend=0)
        expected = float(self._messages.time_ns(size).sum())
        took = self._old.part_table.transfer_ns[sent.parts].sum(axis=1)
        return took / expected if expected > 0 else np.ones(len(took))

    def _absent(self) -> Ints:
        """How long the new parts wait for ranks without a trace, shape (P, B), ns.

        As long as the recorded buckets do whose last gradients they have.
        """
        absent = self._old.part_table.absent_ns[self._sent.parts]
        at = np.minimum(np.searchsorted(self._lasts, self._sent.boundaries), self._buckets - 1)
        waits = np.zeros((self._passes, self._buckets), np.int64)
        for i, bucket in enumerate(at.tolist()):
            waits[:, bucket] += absent[:, i]
        return waits

    def _readiness(self) -> tuple[Ints, Ints]:
        """The piece whose device work each new part needs, and how long after that it arrives, ns; both (P, B)."""
        old, sent = self._old.part_table, self._sent
        ready = np.clip(old.ready_ns[sent.parts], 0, _MOST_READY_NS)
        median = np.broadcast_to(np.median(ready, axis=1).astype(np.int64)[:, None], (self._passes, self._buckets))
        was = sent.parts[:, self._was]
        needed = np.where(old.needs[was] >= 0, self._pieces.last_of[old.needs[was]], -1)
        return np.where(self._same, needed, self._launched_by), np.where(self._same, old.ready_ns[was], median)
