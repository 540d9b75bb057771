"""Point-to-point transfers as calls of groups of two: of each direction between two ranks, the sends and receives.

NCCL delivers transfers of one direction in the order in which they are sent. So the first send from rank 2 to rank 3 is
received by the first receive of rank 3 from rank 2, if the Inspector wrote both down:

    rank 2: Send to 3, number 4, 0.4 ms      rank 3: Recv from 2, number 9, 3.1 ms      rank 2 is last, by 2.7 ms
    rank 2: Send to 3, number 6, 0.4 ms      rank 3: Recv from 2, number 11, 2.9 ms
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.history.collective_calls import begins
from tb_ddp_doctor.history.logs.inspector import InspectorCalls

#: What a transfer is called among collectives.
KIND = "Send/Recv"
#: The sender's rank in its group of two; the receiver's is 1.
SENDER = 0


class Direction(NamedTuple):
    """From which rank to which one, of which communicator and how many ranks it has."""

    communicator: int
    sender: int
    receiver: int
    ranks: int


def split(lines: InspectorCalls) -> tuple[InspectorCalls, InspectorCalls, tuple[Direction, ...]]:
    """The collectives; the transfers as calls of groups of two, sender and receiver; and what these groups are.

    Where a direction has as many receives as sends, of the same sizes in the same order, both ends are one call. Else
    only its sends are calls, or its receives where no sender has a file.
    """
    rows = np.flatnonzero(lines.peer >= 0)
    is_send = lines.kind[rows] == (lines.kinds.index("Send") if "Send" in lines.kinds else -1)
    sender = np.where(is_send, lines.rank[rows], lines.peer[rows])
    receiver = np.where(is_send, lines.peer[rows], lines.rank[rows])
    # By direction, first all sends, then all receives, each in the order of its rank.
    order = np.lexsort((lines.number[rows], ~is_send, receiver, sender, lines.communicator[rows]))
    rows, is_send, sender, receiver = rows[order], is_send[order], sender[order], receiver[order]
    communicator = lines.communicator[rows]
    first = begins((communicator, sender, receiver)).tolist()
    directions = tuple(
        Direction(int(communicator[at]), int(sender[at]), int(receiver[at]), lines.communicators[communicator[at]][0])
        for at in first
    )
    of_two = _groups_of_two(lines, rows, is_send, [*first, len(rows)], directions)
    return _rows(lines, np.flatnonzero(lines.peer < 0)), of_two, directions


def _groups_of_two(
    lines: InspectorCalls,
    rows: NDArray[np.int64],
    is_send: NDArray[np.bool_],
    edges: list[int],
    directions: tuple[Direction, ...],
) -> InspectorCalls:
    """The transfers as calls; the lines of direction i are `rows[edges[i]:edges[i + 1]]`, first all sends."""
    ends = [_ends(lines, rows[begin:end], is_send[begin:end]) for begin, end in pairwise(edges)]
    none = [np.zeros(0, dtype=np.int64)]
    chosen = np.concatenate([*(of_direction for of_direction, _ in ends), *none])
    hosts = {
        (number, place): lines.hosts.get((one.communicator, rank), "")
        for number, one in enumerate(directions)
        for place, rank in ((SENDER, one.sender), (1, one.receiver))
    }
    is_sender = np.isin(chosen, rows[is_send], assume_unique=True)
    return msgspec.structs.replace(
        _rows(lines, chosen),
        communicator=np.repeat(np.arange(len(ends)), [len(numbers) for _, numbers in ends]).astype(np.int64),
        kind=np.zeros(len(chosen), dtype=np.int64),
        number=np.concatenate([*(numbers for _, numbers in ends), *none]),
        rank=np.where(is_sender, SENDER, 1),
        communicators=tuple((2, _nodes(hosts[number, SENDER], hosts[number, 1])) for number in range(len(directions))),
        kinds=(KIND,),
        hosts=hosts,
    )


def _ends(
    lines: InspectorCalls, rows: NDArray[np.int64], is_send: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which lines of a direction are used, and the number of the transfer that each of them is an end of."""
    sends, receives = rows[is_send], rows[~is_send]
    if np.array_equal(lines.size[sends], lines.size[receives]):
        return rows, np.tile(np.arange(len(sends)), 2)
    one_end = sends if len(sends) else receives
    return one_end, np.arange(len(one_end))


def _rows(lines: InspectorCalls, rows: NDArray[np.int64]) -> InspectorCalls:
    """Some of the lines."""
    columns = ("communicator", "kind", "number", "rank", "peer", "size", "at_us", "took_us", "busbw_gbs")
    return msgspec.structs.replace(lines, **{name: getattr(lines, name)[rows] for name in columns})


def _nodes(sender: str, receiver: str) -> int:
    """How many nodes two ranks are on; 0 where the host of one is not known."""
    return len({sender, receiver}) if sender and receiver else 0
