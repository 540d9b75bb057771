"""The recorded tracks with other buckets: rows cut where gradients become ready, other AllReduces launched there.

What the host does for each AllReduce goes with the recorded ones and comes with the new ones. Each new one follows the
one before it on its stream, as NCCL orders them, and what comes after the pass awaits the last, as DDP's finalization
does. A bucket that was recorded stays as it was, so that the recorded buckets give the recorded steps.

Parts keep their numbers, the new ones come behind them, and the one that was over long ago stays the last.
G = gradients of a pass, B = new buckets, P = passes, C = P * B new parts, pass by pass.
"""

from __future__ import annotations

from functools import cached_property

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_ddp_doctor.digest.model import CpuTime
from tb_ddp_doctor.planning.costs.messages import Messages
from tb_ddp_doctor.planning.edits.cut_rows import Cuts, RowPieces
from tb_ddp_doctor.planning.edits.recorded_rows import Natural
from tb_ddp_doctor.planning.edits.replaced_parts import NewParts, with_new
from tb_ddp_doctor.planning.edits.streams import Streams
from tb_ddp_doctor.replay.model import Parts, TrackRows
from tb_ddp_doctor.trace.model import Indices, Ints

#: An AllReduce arrives at most so long after all that it needs, ns: what is longer has another reason.
_MOST_READY_NS = 100_000


class SentPasses(msgspec.Struct, frozen=True, eq=False):
    """The passes of the chosen ranks whose gradients are sent, rank by rank, in order."""

    #: Index of the rank among the chosen ones, shape (P,).
    rank: Ints
    #: When each gradient could be sent, and the device is done with what was launched before, on the common clock; for
    #: how long the host then launches an AllReduce (where it launched none, the usual time); all of shape (P, G), ns.
    ready_ns: Ints
    done_ns: Ints
    launching_ns: Ints
    #: Parts that sent the pass's gradients, shape (P, recorded buckets), and the last gradient of each; None where the
    #: buckets are in another order than the gradients.
    parts: Ints
    recorded: Ints | None
    #: Bytes of each gradient, shape (G,).
    bytes: Ints

    @property
    def boundaries(self) -> Ints:
        """The last gradient of each recorded bucket; where they are in another order, of buckets of the same shares."""
        if self.recorded is not None:
            return self.recorded
        buckets, gradients = self.parts.shape[1], len(self.bytes)
        even: Ints = np.maximum(np.arange(1, buckets + 1) * gradients // buckets - 1, 0)
        return even


def rebucketed(tracks: Natural, sent: SentPasses, lasts: Ints, messages: Messages) -> Natural:
    """The tracks with buckets that end with the gradients `lasts`, shape (B,), in each pass."""
    return _Rebucketing(tracks, sent, lasts, messages).tracks


class _Rebucketing:
    """One set of new buckets."""

    def __init__(self, tracks: Natural, sent: SentPasses, lasts: Ints, messages: Messages) -> None:
        self._old, self._sent, self._lasts, self._messages = tracks, sent, lasts, messages
        self._passes, self._buckets = len(sent.rank), len(lasts)
        #: Of old parts, the one over long ago; the first new part; and the new one over long ago.
        self._first = len(tracks.part_table.rank) - 1
        self._nothing = self._first + self._passes * self._buckets
        self._gone = np.zeros(self._first + 1, np.bool_)
        self._gone[sent.parts] = True
        #: Which new buckets were recorded as they are, shape (B,), and as which.
        self._same, self._was = np.zeros(len(lasts), np.bool_), np.zeros(len(lasts), np.int64)
        if sent.recorded is not None:
            begins, had = np.append(-1, lasts[:-1]), np.append(-1, sent.recorded[:-1])
            at = np.minimum(np.searchsorted(sent.recorded, lasts), len(had) - 1)
            self._same, self._was = (sent.recorded[at] == lasts) & (had[at] == begins), at
        self._launching_row = np.full(self._first + 1, -1, np.int64)
        launching = np.flatnonzero(tracks.table.launches >= 0)
        self._launching_row[tracks.table.launches[launching]] = launching

    @property
    def tracks(self) -> Natural:
        old, pieces = self._old, self._pieces
        table, spent = self._rows()
        parts = self._parts(table)
        return replace(
            old,
            table=table,
            spent=spent,
            part_table=parts,
            begin_ns=np.zeros_like(table.work_ns),
            issued_ns=np.zeros_like(table.work_ns),
            done_ns=pieces.done_ns,
        )

    @cached_property
    def _pieces(self) -> RowPieces:
        """Where the rows are cut; of the new parts, those of new buckets cut the row in which they become ready."""
        old, sent, lasts = self._old, self._sent, self._lasts
        cut = np.broadcast_to(~self._same, (self._passes, self._buckets)).ravel()
        part = self._first + np.flatnonzero(cut)
        ready, done, launching = (
            column[:, lasts].ravel()[cut] for column in (sent.ready_ns, sent.done_ns, sent.launching_ns)
        )
        rank = np.repeat(sent.rank, self._buckets)[cut]
        return RowPieces.of(old, Cuts(rank, ready, done, launching, part))

    def _rows(self) -> tuple[TrackRows, dict[CpuTime, Ints]]:
        """The pieces as rows."""
        pieces = self._pieces
        spent = pieces.spent({**self._old.spent, CpuTime.WORK: self._without_launching()})
        moved = pieces.rows(self._old.table, spent, self._kept_launches(), self._first)
        return self._awaiting(moved), spent

    def _without_launching(self) -> Ints:
        """The host's work in each old row without the launches of AllReduces that are gone."""
        sent, work = self._sent, self._old.spent[CpuTime.WORK].copy()
        kept = np.isin(np.arange(sent.parts.shape[1]), self._was[self._same])
        rows = self._launching_row[sent.parts[:, ~kept]]
        launching = sent.launching_ns[:, sent.boundaries[~kept]]
        known = rows >= 0
        work[rows[known]] = np.maximum(work[rows[known]] - launching[known], 0)
        left: Ints = work
        return left

    def _kept_launches(self) -> Indices:
        """What each old row launches still, or again."""
        launches = self._old.table.launches
        again = np.append(np.where(self._gone, -1, np.arange(self._first + 1)), -1)
        again[self._sent.parts[:, self._was[self._same]]] = self._new_parts[:, self._same]
        kept: Indices = again[launches]
        return kept

    @cached_property
    def _new_parts(self) -> Ints:
        """Numbers of the new parts, shape (P, B)."""
        numbers: Ints = (self._first + np.arange(self._passes * self._buckets)).reshape(self._passes, self._buckets)
        return numbers

    @cached_property
    def _launched_by(self) -> Ints:
        """The piece that launches each new part, shape (P, B)."""
        pieces, new = self._pieces, np.full(self._passes * self._buckets, -1)
        cutting = np.flatnonzero(pieces.part >= 0)
        new[pieces.part[cutting] - self._first] = cutting
        by: Ints = new.reshape(self._passes, self._buckets)
        rows = self._launching_row[self._sent.parts[:, self._was[self._same]]]
        by[:, self._same] = np.where(rows >= 0, pieces.last_of[rows], -1)
        return by

    def _awaiting(self, rows: TrackRows) -> TrackRows:
        """The rows that await, or are held by, new parts in place of those that are gone."""
        old_pass = np.full(self._first + 1, -1)
        old_pass[self._sent.parts] = np.arange(self._passes)[:, None]
        renamed = np.append(np.arange(self._first), self._nothing)
        renamed[self._sent.parts] = self._nothing
        renamed[self._sent.parts[:, self._was[self._same]]] = self._new_parts[:, self._same]
        index, launched = np.arange(len(rows.rank)), self._launched_by

        # What was held until an AllReduce was over is held until the last one that is launched before.
        held = np.flatnonzero(self._gone[rows.queue_part] & (renamed[rows.queue_part] == self._nothing))
        of = old_pass[rows.queue_part[held]]
        before = (launched[of] < held[:, None]).sum(axis=1)
        queue_part = renamed[rows.queue_part]
        queue_part[held] = np.where(before > 0, self._new_parts[of, np.maximum(before - 1, 0)], self._nothing)

        awaits, delay = renamed[rows.awaits], rows.delay_ns.copy()
        awaiting = np.flatnonzero(self._gone[rows.awaits])
        of = old_pass[rows.awaits[awaiting]]
        behind = awaiting > launched[of, -1]
        usual = int(np.median(delay[awaiting[behind]])) if behind.any() else 0
        gate = np.minimum(launched[:, -1] + 1, len(index) - 1)
        # Of each pass the first row behind it that had to await one of its AllReduces.
        found = np.full(self._passes, len(index))
        np.minimum.at(found, of[behind], awaiting[behind])
        delay[gate[found == len(index)]] = usual
        gate = np.where(found < len(index), found, gate)
        ours = (rows.rank[gate] == self._sent.rank) & (gate > launched[:, -1])
        # One that has to await something else goes on to do so.
        free = ours & ((awaits[gate] == self._nothing) | self._gone[rows.awaits[gate]])
        awaits[gate[free]] = self._new_parts[free, -1]
        return replace(rows, queue_part=queue_part.astype(np.int32), awaits=awaits.astype(np.int32), delay_ns=delay)

    def _parts(self, rows: TrackRows) -> Parts:
        """The parts, in the order of their numbers."""
        old, sent, shape = self._old.part_table, self._sent, (self._passes, self._buckets)
        size = np.diff(np.cumsum(sent.bytes)[self._lasts], prepend=0)
        takes = np.rint(self._messages.time_ns(size)[None, :] * self._pace()[:, None]).astype(np.int64)
        was, last = sent.parts[:, self._was], sent.parts[:, -1]
        takes = np.where(self._same, old.transfer_ns[was], takes)
        # A pass is the same one on all ranks whose last AllReduces belong together.
        collective = old.collective[last][:, None].astype(np.int64) * self._buckets
        _, collective = np.unique(collective + np.arange(self._buckets), return_inverse=True)
        needs, ready = self._readiness()

        def each(values: Ints | Indices) -> Ints:
            return np.broadcast_to(values, shape).ravel().astype(np.int64)

        new = NewParts(
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
        )
        parts = with_new(old, self._gone, self._pieces.last_of, new)
        streams = Streams.of(old.after, self._launching_row[: self._first] >= 0)
        of_new = np.repeat(streams.of_part[sent.parts[:, -1]], self._buckets)
        return replace(parts, after=streams.chained(parts.after, of_new, rows, sent.parts))

    def _pace(self) -> NDArray[np.float64]:
        """How many times as long each pass's transfers take as their sizes say, shape (P,)."""
        sent = self._sent
        size = np.diff(np.cumsum(sent.bytes)[sent.boundaries], prepend=0)
        expected = float(self._messages.time_ns(size).sum())
        took = self._old.part_table.transfer_ns[sent.parts].sum(axis=1)
        return took / expected if expected > 0 else np.ones(len(took))

    def _absent(self) -> Ints:
        """How long the new parts wait for ranks without a trace: as those that had their last gradients, (P, B)."""
        absent = self._old.part_table.absent_ns[self._sent.parts]
        at = np.minimum(np.searchsorted(self._lasts, self._sent.boundaries), self._buckets - 1)
        waits = np.zeros((self._passes, self._buckets), np.int64)
        for i, bucket in enumerate(at.tolist()):
            waits[:, bucket] += absent[:, i]
        return waits

    def _readiness(self) -> tuple[Ints, Ints]:
        """The piece whose device work each new part awaits, and how long after that it arrives; of shape (P, B)."""
        old, sent = self._old.part_table, self._sent
        ready = np.clip(old.ready_ns[sent.parts], 0, _MOST_READY_NS)
        usual = np.broadcast_to(np.median(ready, axis=1).astype(np.int64)[:, None], (self._passes, self._buckets))
        was = sent.parts[:, self._was]
        needed = np.where(old.needs[was] >= 0, self._pieces.last_of[old.needs[was]], -1)
        return np.where(self._same, needed, self._launched_by), np.where(self._same, old.ready_ns[was], usual)
