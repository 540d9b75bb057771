"""The recorded tracks with other buckets: rows cut where gradients become ready, other AllReduces launched there.

What the host does for each AllReduce goes with the recorded ones and comes with the new ones. Each new one follows the
one before it on its stream, as NCCL orders them, and what comes after the pass awaits the last, as DDP's finalization
does. A bucket that was recorded stays as it was, so that the recorded buckets give the recorded steps.

Parts keep their numbers, the new ones come behind them, and the one that was over long ago stays the last.
G = gradients of a pass, B = new buckets, P = passes, C = P * B new parts, pass by pass.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.model import CpuTime
from tb_ddp_doctor.digest.track import LONG_AGO
from tb_ddp_doctor.facts.schedule_model import Parts, Rows
from tb_ddp_doctor.planning.messages import Messages
from tb_ddp_doctor.planning.natural import Natural
from tb_ddp_doctor.trace.model import Indices, Ints

Flags = NDArray[np.bool_]
#: An AllReduce arrives at most so long after all that it needs, ns: what is longer has another reason.
_MOST_READY_NS = 100_000
#: Behind every time of a rank, so that ranks lie one after the other on one axis, ns.
_APART_NS = 1 << 46


@dataclass(frozen=True, slots=True, eq=False)
class Sent:
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


def rebucketed(tracks: Natural, sent: Sent, lasts: Ints, messages: Messages) -> Natural:
    """The tracks with buckets that end with the gradients `lasts`, shape (B,), in each pass."""
    return _Rebucketing(tracks, sent, lasts, messages).tracks


class _Rebucketing:
    """One set of new buckets."""

    def __init__(self, tracks: Natural, sent: Sent, lasts: Ints, messages: Messages) -> None:
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
    def _pieces(self) -> _Pieces:
        """Where the rows are cut; of the new parts, those of new buckets cut the row in which they become ready."""
        old, sent, lasts = self._old, self._sent, self._lasts
        cut = np.broadcast_to(~self._same, (self._passes, self._buckets)).ravel()
        part = self._first + np.flatnonzero(cut)
        ready, done, launching = (
            column[:, lasts].ravel()[cut] for column in (sent.ready_ns, sent.done_ns, sent.launching_ns)
        )
        rank = np.repeat(sent.rank, self._buckets)[cut]
        key = old.table.rank.astype(np.int64) * _APART_NS + old.begin_ns - int(old.begin_ns.min(initial=0))
        row = np.searchsorted(key, rank * _APART_NS + ready - int(old.begin_ns.min(initial=0)), side="right") - 1
        row = np.clip(row, old.first[:-1][rank], old.first[1:][rank] - 1)
        length = old.issued_ns[row] - old.begin_ns[row]
        share = np.clip((ready - old.begin_ns[row]) / np.maximum(length, 1), 0.0, 1.0)
        table = old.table
        needed = np.clip(done - (old.done_ns[row] - table.device_ns[row]), 0, table.device_ns[row])
        spare = np.maximum(old.done_ns[row] - old.issued_ns[row] - table.lead_ns[row], 0)
        lead = np.where(table.lead_ns[row] > LONG_AGO // 2, done - ready - spare, LONG_AGO)
        rows = len(table.rank)
        return _Pieces.of(
            row=np.concatenate((row, np.arange(rows))),
            share=np.concatenate((share, np.ones(rows))),
            needed_ns=np.concatenate((needed, table.device_ns)),
            lead_ns=np.concatenate((lead, table.lead_ns)),
            done_ns=np.concatenate((np.minimum(done, old.done_ns[row]), old.done_ns)),
            launching_ns=np.concatenate((launching, np.zeros(rows, np.int64))),
            part=np.concatenate((part, np.full(rows, -1))),
        )

    def _rows(self) -> tuple[Rows, dict[CpuTime, Ints]]:
        """The pieces as rows."""
        old, pieces, table = self._old, self._pieces, self._old.table
        of, last, first = pieces.row, pieces.is_last, pieces.is_first
        spent = {
            kind: pieces.of_each(self._without_launching() if kind is CpuTime.WORK else work)
            for kind, work in old.spent.items()
        }
        spent[CpuTime.WORK] = spent[CpuTime.WORK] + pieces.launching_ns
        work: Ints = np.asarray(np.sum(list(spent.values()), axis=0, dtype=np.int64))
        launches = np.where(last, self._kept_launches()[of], pieces.part)
        queue_part, awaits = table.queue_part[of], np.where(first, table.awaits[of], self._first)
        no = np.full(len(of), -1)
        moved = Rows(
            rank=table.rank[of],
            own_step=table.own_step[of],
            step=table.step[of],
            work_ns=work,
            blocked_by=np.where(last, table.blocked_by[of], no).astype(np.int32),
            blocked_ns=np.where(last, table.blocked_ns[of], 0),
            waits=table.waits[of] & last,
            queue_row=np.where(last & (table.queue_row[of] >= 0), pieces.last_of[table.queue_row[of]], no).astype(
                np.int32
            ),
            queue_before=table.queue_before[of] & last,
            queue_tail_ns=np.where(last, table.queue_tail_ns[of], 0),
            queue_part=np.where(last, queue_part, self._first).astype(np.int32),
            queue_ns=np.where(last, table.queue_ns[of], 0),
            synced=table.synced[of] & last,
            device_ns=pieces.device_ns,
            lead_ns=pieces.lead_ns,
            fed_ns=np.where(last, table.fed_ns[of], -1),
            awaits=awaits.astype(np.int32),
            delay_ns=np.where(first, table.delay_ns[of], 0),
            launches=launches.astype(np.int32),
            between=np.zeros(len(of), np.int32),
        )
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

    def _awaiting(self, rows: Rows) -> Rows:
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

    def _parts(self, rows: Rows) -> Parts:
        """The parts, in the order of their numbers."""
        old, sent, shape = self._old.part_table, self._sent, (self._passes, self._buckets)
        size = np.diff(np.cumsum(sent.bytes)[self._lasts], prepend=0)
        takes = np.rint(self._messages.time_ns(size)[None, :] * self._pace()[:, None]).astype(np.int64)
        was, last = sent.parts[:, self._was], sent.parts[:, -1]
        takes = np.where(self._same, old.transfer_ns[was], takes)
        # A pass is the same one on all ranks whose last AllReduces belong together.
        collective = int(old.collective.max()) + 1 + old.collective[last][:, None].astype(np.int64) * self._buckets
        _, collective = np.unique(collective + np.arange(self._buckets), return_inverse=True)
        needs, ready = self._readiness()
        survives = np.append(~self._gone[:-1], True)

        def grown(column: NDArray[Any], new: NDArray[Any] | int) -> NDArray[Any]:
            new = np.broadcast_to(new, shape).ravel()
            return np.concatenate((column[:-1], new, column[-1:])).astype(column.dtype)

        own_step, step = (np.where(survives, column, -1) for column in (old.own_step, old.step))
        parts = Parts(
            rank=grown(old.rank, sent.rank[:, None]),
            row=grown(old.row, np.where(self._same, old.row[was], -1)),
            own_step=grown(own_step.astype(np.int32), old.own_step[last][:, None]),
            step=grown(step.astype(np.int32), old.step[last][:, None]),
            collective=grown(old.collective, int(old.collective.max()) + 1 + collective.reshape(shape)),
            absent_ns=grown(old.absent_ns, self._absent()),
            transfer_ns=grown(old.transfer_ns, takes),
            exposed_ns=grown(old.exposed_ns, np.where(self._same, old.exposed_ns[was], takes)),
            end_ns=grown(np.where(survives, old.end_ns, LONG_AGO), LONG_AGO),
            after=grown(np.where(old.after == self._first, self._nothing, old.after), self._nothing),
            needs=grown(np.where(old.needs >= 0, self._pieces.last_of[old.needs], -1).astype(np.int32), needs),
            ready_ns=grown(old.ready_ns, ready),
            like=grown(old.like, int(old.like.max()) + 1 + np.arange(self._buckets)),
            ordinal=grown(old.ordinal, 0),
            bytes=grown(old.bytes, size),
            family=grown(old.family, old.family[last][:, None]),
        )
        return replace(parts, after=self._chained(parts.after, rows))

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

    def _chained(self, after: Indices, rows: Rows) -> Indices:
        """The part before each on its stream, in the order of launches."""
        old = self._old.part_table
        chain = np.where(old.after < self._first, old.after, np.arange(self._first + 1))
        while not np.array_equal(further := chain[chain], chain):
            chain = further
        streams = np.unique(chain[self._sent.parts])
        of = np.concatenate((chain[:-1], np.repeat(chain[self._sent.parts[:, -1]], self._buckets), [-1]))
        launching = np.flatnonzero(rows.launches >= 0)
        launching = launching[np.isin(of[rows.launches[launching]], streams)]
        launching = launching[np.lexsort((launching, of[rows.launches[launching]]))]
        part = rows.launches[launching]
        opens = np.diff(of[part], prepend=-2) != 0
        # What was before the first of a stream was launched before the record, or stays what it is.
        begun = np.full(len(of), self._nothing)
        first_old = self._launching_row[: self._first] >= 0
        candidates = np.flatnonzero(first_old & (old.after[:-1] < self._first))
        outside = candidates[self._launching_row[old.after[candidates]] < 0]
        begun[chain[outside]] = old.after[outside]
        chained: Indices = after.copy()
        chained[part] = np.where(opens, begun[of[part]], np.append(-1, part[:-1]))
        return chained


@dataclass(frozen=True, slots=True, eq=False)
class _Pieces:
    """What rows are cut into, in order; shape (pieces,)."""

    row: Ints
    #: Of the row's work of the host, how much is done with the piece and with the one before; 1 for the last.
    share: NDArray[np.float64]
    before: NDArray[np.float64]
    #: As columns of `Rows`; and when the device is done with it in the record.
    device_ns: Ints
    lead_ns: Ints
    done_ns: Ints
    #: What the host does to launch the part that it launches, -1 for none but what the row launches at its end.
    launching_ns: Ints
    part: Ints
    is_first: Flags
    is_last: Flags
    #: The last piece of each row, shape (rows,).
    last_of: Ints

    @classmethod
    def of(
        cls,
        row: Ints,
        share: NDArray[np.float64],
        needed_ns: Ints,
        lead_ns: Ints,
        done_ns: Ints,
        launching_ns: Ints,
        part: Ints,
    ) -> _Pieces:
        """From what is done of the row when each ends; the last of each row, all of it, are behind the others."""
        order = np.lexsort((part, share, part < 0, row))
        row, share, needed = row[order], share[order], needed_ns[order]
        is_first = np.diff(row, prepend=-1) != 0
        is_last = np.append(is_first[1:], True)
        # What is ready later is done later.
        lengths = np.diff(np.flatnonzero(np.append(is_first, True)))
        base = np.repeat(np.arange(len(lengths)), lengths) * (int(needed.max(initial=0)) + 1)
        needed = np.maximum.accumulate(needed + base) - base
        previous = np.where(is_first, 0, np.append(0, needed[:-1]))
        return cls(
            row=row,
            share=share,
            before=np.where(is_first, 0.0, np.append(0.0, share[:-1])),
            device_ns=needed - previous,
            lead_ns=lead_ns[order],
            done_ns=done_ns[order],
            launching_ns=launching_ns[order],
            part=part[order],
            is_first=is_first,
            is_last=is_last,
            last_of=np.flatnonzero(is_last),
        )

    def of_each(self, values: Ints) -> Ints:
        """Values of rows, shared among their pieces."""
        done: Ints = np.rint(values[self.row] * self.share).astype(np.int64)
        return done - np.rint(values[self.row] * self.before).astype(np.int64)
