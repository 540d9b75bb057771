"""The parts of a schedule with others in place of some of them."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.track import LONG_AGO
from tb_ddp_doctor.replay.model import PartIndex, Parts, RankIndex, RowIndex, StepIndex
from tb_ddp_doctor.trace.model import Flags, Ints


class NewParts(msgspec.Struct, frozen=True, eq=False):
    """Other parts, shape (parts,), as columns of `Parts`; collectives and what is alike are numbered from 0."""

    rank: Ints
    row: Ints
    own_step: Ints
    step: Ints
    collective: Ints
    absent_ns: Ints
    transfer_ns: Ints
    exposed_ns: Ints
    needs: Ints
    ready_ns: Ints
    like: Ints
    bytes: Ints
    family: Ints


def with_new(old: Parts, gone: Flags, last_of: Ints, new: NewParts) -> Parts:
    """The old parts, those that are gone in no step, then the new ones, then the one over long ago.

    `last_of` is where each old row is now. On their streams the new ones follow nothing yet.
    """
    survives = np.append(~gone[:-1], True)
    nothing, added = len(old.rank) - 1, len(new.rank)

    def joined(column: NDArray[Any], more: NDArray[Any] | int) -> NDArray[Any]:
        each = np.broadcast_to(np.asarray(more, np.int64), (added,))
        return np.concatenate((column[:-1], each, column[-1:])).astype(column.dtype)

    own_step, step = (np.where(survives, column, -1).astype(np.int32) for column in (old.own_step, old.step))
    return Parts(
        rank=RankIndex(joined(old.rank, new.rank)),
        row=joined(old.row, new.row),
        own_step=StepIndex(joined(own_step, new.own_step)),
        step=StepIndex(joined(step, new.step)),
        collective=joined(old.collective, int(old.collective.max()) + 1 + new.collective),
        absent_ns=joined(old.absent_ns, new.absent_ns),
        transfer_ns=joined(old.transfer_ns, new.transfer_ns),
        exposed_ns=joined(old.exposed_ns, new.exposed_ns),
        end_ns=joined(np.where(survives, old.end_ns, LONG_AGO), LONG_AGO),
        after=PartIndex(joined(np.where(old.after == nothing, nothing + added, old.after), nothing + added)),
        needs=RowIndex(joined(np.where(old.needs >= 0, last_of[old.needs], -1).astype(np.int32), new.needs)),
        ready_ns=joined(old.ready_ns, new.ready_ns),
        like=joined(old.like, int(old.like.max()) + 1 + new.like),
        ordinal=joined(old.ordinal, 0),
        bytes=joined(old.bytes, new.bytes),
        family=joined(old.family, new.family),
    )
