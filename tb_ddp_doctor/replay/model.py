"""The tables of a schedule: rows of host and device, parts of collectives, and the rounds in which they are played.

Times are ns on the common clock. R = ranks, S = steps of the job; rows and parts are those of all ranks, joined; a part
is one rank's share of a collective.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.model import CpuTime
from tb_ddp_doctor.job.beginnings import Beginnings
from tb_ddp_doctor.trace.model import Flags, Floats, Indices, Ints

#: Indices, as a slice where they follow each other: it is copied from and to several times as fast.
Some: TypeAlias = slice | NDArray[np.integer[Any]]


class Rows(msgspec.Struct, frozen=True, eq=False):
    """The rows of all tracks, round by round; the columns of `Track` with indices into all rows and parts."""

    rank: Indices
    #: Index of the step in the rank's digest, and in the job; -1 if the job leaves it out.
    own_step: Indices
    step: Indices
    #: The host's time in the row but for what holds it at the end.
    work_ns: Ints
    blocked_by: Indices
    blocked_ns: Ints
    #: Whether what holds it waits for its device work.
    waits: Flags
    #: What leaves the launch queue first: an earlier row, or -1; whether what was launched before the record; a part,
    #: the last where it is none.
    queue_row: Indices
    queue_before: Flags
    queue_tail_ns: Ints
    queue_part: Indices
    queue_ns: Ints
    #: Whether that holds the row's end.
    synced: Flags
    device_ns: Ints
    lead_ns: Ints
    fed_ns: Ints
    #: Index of a part; the last, which was over long ago, where the row awaits none.
    awaits: Indices
    delay_ns: Ints
    launches: Indices
    #: How many collectives, without sends and receives, the rank has launched in the step before.
    between: Indices


class Spent(msgspec.Struct, frozen=True, eq=False):
    """The host's time that goes to one kind of thing."""

    #: Rows, and how much of each row's `work_ns` it is.
    working: Indices
    work_ns: Ints
    #: Rows that it holds at their end.
    holding: Indices

    @property
    def is_some(self) -> bool:
        return bool(len(self.working) or len(self.holding))


class Parts(msgspec.Struct, frozen=True, eq=False):
    """The parts of all ranks, round by round as they complete, those that nothing launches, and one more that was over
    long ago.
    """

    rank: Indices
    #: Which of the rank's `Collectives` it is.
    row: Indices
    own_step: Indices
    step: Indices
    #: The collective that it is a part of.
    collective: Indices
    #: For how long it waits for ranks that have no trace, after those that have one; and then transfers.
    absent_ns: Ints
    transfer_ns: Ints
    #: The part of `transfer_ns` with nothing beside it.
    exposed_ns: Ints
    #: As recorded: what no row launches ends so.
    end_ns: Ints
    #: The part that it comes after: the one before it on its stream, or one on another; the last of all for none.
    after: Indices
    #: Index of the row whose device work it awaits, -1 for none.
    needs: Indices
    ready_ns: Ints
    #: Which kind and size it is of (-1 for guests, see `guests`), and how many of these the rank has launched in the
    #: step before.
    like: Indices
    ordinal: Indices
    #: Bytes of the message, -1 if unknown; index into `Frame.families`.
    bytes: Ints
    family: Indices


class Round(msgspec.Struct, frozen=True, eq=False):
    """What can be played together: rows, one per rank at most; then parts of collectives that complete."""

    rows: slice
    #: The rows' ranks; and whether some row awaits a collective, leaves the launch queue only after something else, or
    #: is held at its end.
    ranks: Some
    gated: bool
    queued: bool
    held: bool
    #: Which of the rows launch a part, and the part; whether some of these need device work.
    launching: Some
    launched: Some
    needing: bool
    #: By collective; what is before each on its stream; where each collective's begin, and how many it has.
    completed: slice
    after: Some
    starts: Ints
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


class Frame(msgspec.Struct, frozen=True, eq=False):
    """The steps of R ranks, and when their records begin."""

    families: tuple[Family, ...]

    #: When each rank's host and device begin the first step of its record, shape (R,).
    host_start_ns: Ints
    device_start_ns: Ints
    beginnings: Beginnings
    #: Whether like steps came before the record; nothing says so of a record without marks of steps.
    repeats: bool
    #: Of the rank that recorded most.
    most_steps: int
    #: Index of each of the job's steps in the rank's digest, shape (R, S).
    step_index: Ints
    #: Whether ranks meet in the steps that the job leaves out. Where records are damaged nobody knows: played without
    #: what a fix removes, ranks would run ahead of each other there.
    left_out_meet: bool
    #: Which ranks and steps have the same collectives, and which of them send and receive at the same places between
    #: these; indices of shape (R, S).
    sequence: Ints
    order: Ints
    #: The same as `sequence` where steps may have sequences of other lengths, and these lengths, relative to the median
    #: step's; of shapes (R, S) and (S,).
    but_for_length: Ints
    length: NDArray[np.float64]


class Schedule(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """The steps of R ranks, ready to be played."""

    rows: Rows
    parts: Parts
    rounds: tuple[Round, ...]
    spent: Mapping[CpuTime, Spent]
    frame: Frame


class Ordering(msgspec.Struct, frozen=True, eq=False):
    """What is to be put in order, and how far that has come."""

    #: Where each rank's rows begin, and where the last one's end, shape (R + 1,).
    first: Ints
    #: Of rows: the part that each awaits, that leaves the queue before it, and that it launches, -1 for none.
    awaits: Indices
    queue_part: Indices
    launches: Indices
    #: Of parts: the collective; the part that each comes after; the first one that comes after it, and the next one
    #: that comes after the same part, -1 for none.
    collective: Indices
    after: Indices
    following: Indices
    beside: Indices
    #: The parts of each collective that are launched, together, and where its begin.
    members: Indices
    members_at: Ints
    #: How many parts each collective still lacks; whether each part is over, and whether it is launched.
    missing: Ints
    done: Flags
    queued: Flags


class Cut(msgspec.Struct, frozen=True, eq=False):
    """What a fix removes of rows, by rank and step; shape (R, S + 1), as `Cells.padded`."""

    #: The share of the host's time that goes, by what it is spent on.
    host: Mapping[CpuTime, Floats]
    #: What the device needs for each row instead, and where: everywhere if None.
    device_ns: Ints | None = None
    chosen: Flags | None = None


class Lengths(msgspec.Struct, frozen=True, eq=False):
    """How long each row and part takes; as columns of `Rows` and `Parts`, without what a fix removes."""

    work_ns: Ints
    blocked_ns: Ints
    device_ns: Ints
    lead_ns: Ints
    queue_tail_ns: Ints
    queue_ns: Ints
    transfer_ns: Ints
    no_host: bool
    #: Whether nobody waits for other ranks.
    alone: bool = False
    #: What goes of the rows' columns, which are as recorded then: the native library alone can play it.
    cut: Cut | None = None


class Played(msgspec.Struct, frozen=True, eq=False):
    """When things happened: the first by row, the next by part, the next two by rank."""

    done_ns: Ints
    end_ns: Ints
    #: When the device begins, and the host is through with its last row.
    begin_ns: Ints
    host_end_ns: Ints
    #: When the host has issued each row and goes on; and when each part's own rank arrives. Empty unless they are kept.
    issued_ns: Ints
    ended_ns: Ints
    arrival_ns: Ints
