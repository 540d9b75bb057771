"""The tables of a replay: rows of host and device, parts of collectives, and the rounds in which they are played.

`README.md` shows them for two ranks with one AllReduce. Times are ns on the common clock. R = ranks, S = steps of the
job; rows and parts are those of all ranks, joined; a part is one rank's share of a collective.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NewType, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.model import CpuTime
from tb_ddp_doctor.job.beginnings import Beginnings
from tb_ddp_doctor.job.row_calls import RowCalls
from tb_ddp_doctor.trace.model import Flags, Floats, Indices, Ints

#: Indices into the tables below; -1, or the last part, is none, as the column says.
RankIndex = NewType("RankIndex", Indices)
StepIndex = NewType("StepIndex", Indices)
RowIndex = NewType("RowIndex", Indices)
PartIndex = NewType("PartIndex", Indices)
#: Indices, as a slice where they follow each other: it is copied from and to several times as fast.
Some: TypeAlias = slice | NDArray[np.integer[Any]]
#: `Parts.like` of a guest (see `guests.py`), which is no call.
GUEST = -1


class TrackRows(msgspec.Struct, frozen=True, eq=False):
    """The rows of all ranks' tracks, in the order in which they are played; one value a row in each column.

    A row is a stretch of one rank between two points at which it may have to wait: what its host does, then what its
    device does with the kernels that the host launched in it.

        host    |work............|blocked....|
        device         |device............|
                       ^ not before the host has issued them
    """

    rank: RankIndex
    #: The step in the rank's own digest.
    own_step: StepIndex
    #: The step in the job; -1 if the job leaves it out.
    step: StepIndex
    #: How long the host works, without what blocks it at the row's end.
    work_ns: Ints
    #: A `CpuTime`: what blocks the host at the row's end; -1 if nothing does.
    blocked_by: Indices
    #: For how long. In a row that `waits`, from when the device is done.
    blocked_ns: Ints
    #: Whether the blocking call waits until the device is done with the row.
    waits: Flags
    #: The earlier row whose device work has to leave the launch queue before this row can be issued; -1 if none.
    queue_row: RowIndex
    #: Whether work that was launched before the record has to leave the queue instead.
    queue_before: Flags
    #: How long before the end of that device work the place in the queue gets free.
    queue_tail_ns: Ints
    #: The part that has to leave the launch queue before; the last part, which was over long ago, if none.
    queue_part: PartIndex
    #: How long after the place in the queue gets free the row is issued at the earliest.
    queue_ns: Ints
    #: Whether the row's end, and not its issue, waits for `queue_row` or `queue_part`: a synchronisation with an event.
    synced: Flags
    #: How long the device needs for what the row launched.
    device_ns: Ints
    #: How long it takes at least from the issue of the row until the device is done; `LONG_AGO` if nothing is launched.
    lead_ns: Ints
    #: For how long, until it was done, the device had its launches in time; -1 if always.
    fed_ns: Ints
    #: The part that the row's first kernel waits for; the last part, which was over long ago, if none.
    awaits: PartIndex
    #: How long after the end of that part the kernel starts.
    delay_ns: Ints
    #: The part that the host launches at the row's end; -1 if none.
    launches: PartIndex
    #: How many collectives, without sends and receives, the rank has launched earlier in the step.
    between: Indices


class Spent(msgspec.Struct, frozen=True, eq=False):
    """The host's time that goes to one kind of thing, such as loading."""

    #: The rows whose `work_ns` has some of it.
    working: RowIndex
    #: How much of each of these rows' `work_ns` it is.
    work_ns: Ints
    #: The rows whose host it blocks at their end.
    blocking: RowIndex

    @property
    def is_some(self) -> bool:
        return bool(len(self.working) or len(self.blocking))


class Parts(msgspec.Struct, frozen=True, eq=False):
    """The parts of all ranks: first those that some row launches, in the order in which they complete, then the others.

    One more at the end stands for "none": it was over long ago.

        rank 0  arrives |wait.......|transfer..|
        rank 1             arrives  |transfer..|  both end together
    """

    rank: RankIndex
    #: The row in the rank's `Collectives`.
    row: Indices
    #: The step in the rank's own digest.
    own_step: StepIndex
    #: The step in the job; -1 if the job leaves it out.
    step: StepIndex
    #: The collective that it is a part of.
    collective: Indices
    #: How long it waits for ranks that have no trace, after the last rank that has one.
    absent_ns: Ints
    #: How long data moves, from the last arrival to the end.
    transfer_ns: Ints
    #: How much of `transfer_ns` has no kernel beside it.
    exposed_ns: Ints
    #: How much of `exposed_ns` no part with an earlier arrival on the rank exposes too. These sum to the time in which
    #: transfers are exposed, also where two run side by side.
    first_exposed_ns: Ints
    #: When it ended in the record; in the replay too, for parts that no row launches, if their rank begins as recorded.
    end_ns: Ints
    #: The part that has to end before: the one before it on its stream, or one on another; the last part if none.
    after: PartIndex
    #: The row whose device work has to be done before; -1 if none.
    needs: RowIndex
    #: How long after its launch, and after what it needs, it arrives.
    ready_ns: Ints
    #: Its kind and size, as a number; `GUEST` for guests.
    like: Indices
    #: How many parts of that kind and size the rank has launched earlier in the step.
    ordinal: Indices
    #: Bytes of the message; -1 if unknown.
    bytes: Ints
    #: Index into `StepFrame.families`.
    family: Indices


class Round(msgspec.Struct, frozen=True, eq=False):
    """What can be played together: rows, at most one of each rank; then parts of the collectives that complete."""

    rows: slice
    #: The rank of each row.
    ranks: Some
    #: Whether some row awaits a part.
    gated: bool
    #: Whether some row waits for a place in the launch queue, or for an event.
    queued: bool
    #: Whether something blocks the host at some row's end.
    blocked: bool
    #: Which of the rows launch a part.
    launching: Some
    #: The parts that they launch.
    launched: Some
    #: Whether some of these parts need device work.
    needing: bool
    #: The parts that complete, collective by collective.
    completed: slice
    #: The part before each of these on its stream.
    after: Some
    #: Where the parts of each collective begin, among those that complete.
    starts: Ints
    #: How many parts each collective has.
    sizes: Ints


class Family(msgspec.Struct, frozen=True):
    """Collectives of one kind among as many ranks."""

    kind: str
    #: -1 if unknown.
    group_size: int
    #: Whether they are AllReduces that send gradients (`Calls.of_gradients`).
    of_gradients: bool
    #: Whether they are sends and receives (`Calls.between_two`).
    between_two: bool = False


class OwnRequests(msgspec.Struct, frozen=True, eq=False):
    """The requests of a server whose ranks have requests of their own (see `own_requests`)."""

    #: 1 for each call of all ranks' `RooflineCalls` that is attention, else 0.
    attends: Floats
    #: Whether some rank reads prompts in each step, shape (S,).
    reads: Flags
    #: How many requests each rank works on in each step, shape (R, S); zeros where no mark tells.
    number: Ints


class StepFrame(msgspec.Struct, frozen=True, eq=False):
    """The steps of R ranks, and when their records begin."""

    families: tuple[Family, ...]
    #: When each rank's host begins the first step of its record, shape (R,).
    host_start_ns: Ints
    #: When each rank's device begins it, shape (R,).
    device_start_ns: Ints
    beginnings: Beginnings
    #: Whether steps like the recorded ones came before. False for a record without marks of steps: nothing shows it.
    repeats: bool
    #: How many steps the rank has that recorded most.
    most_steps: int
    #: Index of each of the job's steps in the rank's digest, shape (R, S).
    step_index: Ints
    #: Whether ranks meet in the steps that the job leaves out. In damaged records that is not known, so a change leaves
    #: these steps as recorded: else ranks would run ahead of each other there.
    left_out_meet: bool
    #: Ranks and steps with the same collectives have the same number here, shape (R, S).
    sequence: Ints
    #: Equal numbers as in `sequence`, but only if ranks also send and receive at the same places between the
    #: collectives, shape (R, S).
    order: Ints
    #: Equal numbers as in `sequence`, also for steps that differ only in the length of their sequences, shape (R, S).
    but_for_length: Ints
    #: The length of each step's sequences, relative to the median step's, shape (S,).
    length: Floats
    #: What each rank has to do in each step, relative to the others (see `comparable.Comparable`), shape (R, S).
    work: Floats
    #: None unless ranks have requests of their own.
    requests: OwnRequests | None
    #: Which calls of operators the rows of all ranks' own tracks have.
    calls: RowCalls
    #: How long each rank alone sends weights to ranks of another role without a collective, shape (R, S).
    sending_ns: Ints
    #: Which ranks generate all the time for those who train, and which of them ahead, so that nobody waits for them,
    #: shape (R,).
    asynchronous: Flags
    ahead: Flags

    @property
    def batches_vary(self) -> bool:
        """Whether each rank has now more and now less to do than the others."""
        return bool((self.work != 1).any())


class Schedule(msgspec.Struct, frozen=True, eq=False, weakref=True, dict=True):
    """The steps of R ranks, ready to be played."""

    rows: TrackRows
    parts: Parts
    rounds: tuple[Round, ...]
    spent: Mapping[CpuTime, Spent]
    frame: StepFrame
    #: Where each row of the ranks' own tracks is, rank by rank; empty where rows are not the recorded ones.
    recorded: Indices

    @cached_property
    def lengths(self) -> Lengths:
        """How long each row and part took, without a change."""
        rows, parts = self.rows, self.parts
        return Lengths(
            work_ns=rows.work_ns,
            blocked_ns=rows.blocked_ns,
            device_ns=rows.device_ns,
            lead_ns=rows.lead_ns,
            queue_tail_ns=rows.queue_tail_ns,
            queue_ns=rows.queue_ns,
            transfer_ns=parts.absent_ns + parts.transfer_ns,
            no_host=False,
        )


class Ordering(msgspec.Struct, frozen=True, eq=False):
    """What is to be put in order, and how far that has come."""

    #: Where each rank's rows begin, and where the last rank's end, shape (R + 1,).
    first: Ints
    #: Of each row: the part that it awaits; the last part if none.
    awaits: PartIndex
    #: Of each row: the part that leaves the launch queue before it; the last part if none.
    queue_part: PartIndex
    #: Of each row: the part that it launches; -1 if none.
    launches: PartIndex
    #: Of each part: its collective.
    collective: Indices
    #: Of each part: the part that it comes after.
    after: PartIndex
    #: Of each part: the first of those that come after it; -1 if none.
    following: PartIndex
    #: Of each part: the next of those that come after the same part as it does; -1 if none.
    beside: PartIndex
    #: The launched parts, collective by collective.
    members: PartIndex
    #: Where the launched parts of each collective begin, and where the last one's end.
    members_at: Ints
    #: How many parts each collective still lacks.
    missing: Ints
    #: Whether each part is over.
    done: Flags
    #: Whether each part is launched.
    queued: Flags


class Cut(msgspec.Struct, frozen=True, eq=False):
    """What a fix removes of rows, by rank and step; shape (R, S + 1), as `Cells.padded` gives it."""

    #: For each kind of host time, the share of it that is removed.
    host: Mapping[CpuTime, Floats]
    #: How long the device needs for each row with the fix, shape (rows,); None if as long as recorded.
    device_ns: Ints | None = None
    #: Flags the ranks and steps in which `device_ns` counts; None if it counts in all.
    chosen: Flags | None = None
    #: What is removed of that, shape (rows,), ns (see `shortened`); None if nothing.
    gone_ns: Ints | None = None


class Lengths(msgspec.Struct, frozen=True, eq=False):
    """How long each row and part takes; as columns of `TrackRows` and `Parts`, without what a fix removes."""

    work_ns: Ints
    blocked_ns: Ints
    device_ns: Ints
    lead_ns: Ints
    queue_tail_ns: Ints
    queue_ns: Ints
    transfer_ns: Ints
    #: Whether hosts need no time at all, and wait for nothing.
    no_host: bool
    #: Whether nobody waits for other ranks.
    alone: bool = False
    #: What is to be removed from the rows while they are played, which only the native library does. The columns of
    #: rows above are as recorded then. None if the columns are already without it.
    cut: Cut | None = None


class Played(msgspec.Struct, frozen=True, eq=False):
    """When things happened in a play."""

    #: When the device was done with each row, shape (rows,).
    done_ns: Ints
    #: When each part ended, shape (parts,).
    end_ns: Ints
    #: When each rank's device begins, shape (R,).
    begin_ns: Ints
    #: When each rank's host is through with its last row, shape (R,).
    host_end_ns: Ints
    #: When the host had issued each row, shape (rows,); empty unless all is kept.
    issued_ns: Ints
    #: When the host went on after each row, shape (rows,); empty unless all is kept.
    ended_ns: Ints
    #: When each part's own rank arrived, shape (parts,); empty unless all is kept.
    arrival_ns: Ints
