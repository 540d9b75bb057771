"""Puts rows and parts in the order in which they are played, as `order.Ordering` does, in the native library."""

from __future__ import annotations

from ctypes import byref
from typing import TYPE_CHECKING, Any

import numpy as np

from tb_ddp_doctor.facts import replay_library as library
from tb_ddp_doctor.facts.replay_library import OrderingTable, TracksTable
from tb_ddp_doctor.trace.model import Ints

if TYPE_CHECKING:
    from tb_ddp_doctor.facts.order import Ordering


def order(now: Ordering) -> tuple[Ints, Ints, Ints] | None:
    """The order of rows, that of the parts that complete, and what is played together: the first row and the one after
    the last, the same of parts, shape (rounds, 4). None where rows wait for each other in a circle.

    Raises IndexError for indices out of range.
    """
    order_all = library.loaded().replay_order
    ranks, rows, parts, collectives = len(now.first) - 1, len(now.awaits), len(now.after), len(now.missing)
    for indices, least, count in (
        (now.awaits, 0, parts),
        (now.queue_part, 0, parts),
        (now.launches, -1, parts),
        (now.after, 0, parts),
        (now.collective, 0, collectives),
    ):
        library.refuse_out_of_range(indices, least, count)
    kept: list[Any] = []
    tracks = TracksTable(
        library.address(now.first, np.int64, kept),
        ranks,
        *(library.column(values, np.int32, rows, kept) for values in (now.awaits, now.queue_part, now.launches)),
        *(
            library.address(each, np.int32, kept)
            for each in (now.collective, now.after, now.following, now.beside, now.members)
        ),
        library.address(now.members_at, np.int64, kept),
    )
    in_order, completed = np.empty(rows, np.int64), np.empty(parts, np.int64)
    plan = np.empty((rows + collectives, 4), np.int64)
    state = (now.first[:-1].copy(), now.done, now.queued, now.missing, np.zeros(collectives, np.bool_))
    lists = (np.empty(max(parts, ranks), np.int32), np.empty(collectives, np.int32), in_order, completed, plan)
    rounds = int(order_all(byref(tracks), byref(OrderingTable(*(each.ctypes.data for each in (*state, *lists))))))
    if rounds < 0:
        return None
    done = int(plan[:rounds, 3].max(initial=0))
    return in_order, completed[:done], plan[:rounds].copy()
