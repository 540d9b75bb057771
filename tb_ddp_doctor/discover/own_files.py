"""Files that ddp-doctor itself wrote (`slices`, of one rank or several): what their first bytes say of their ranks.

In Chrome's JSON it is the first member, in Perfetto's format it stands in the first packet, in the same words:

    "ddp_doctor_slice":{"world_size":4,"ranks":[0,1],"nodes":[["node0",2]]}

What `slice` and `merge` wrote before they said this cannot be diagnosed.
"""

from __future__ import annotations

import json
import re

import msgspec

from tb_ddp_doctor.storage.message import json_of

KEY = "ddp_doctor_slice"
_MARK = re.compile(rb'"' + KEY.encode() + rb'"\s{0,8}:\s{0,8}')
#: The mark stands so near to the beginning.
_BEGINNING = 256
_LABEL = "rank {}"
#: Bytes of a rank without events: its name and its header are some hundred, which are alike on all ranks.
_LEAST, _LEAST_PACKED = 256, 8


class OwnFile(msgspec.Struct, frozen=True):
    """The ranks of a file, in its order."""

    ranks: tuple[int, ...]
    #: Names of nodes with the number of consecutive ranks on each; "" where the node is unknown.
    nodes: tuple[tuple[str, int], ...] = ()
    world_size: int | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """What each rank's part of the file is called."""
        return tuple(map(label, self.ranks))

    @property
    def node_of_rank(self) -> tuple[str, ...]:
        """The node of each rank."""
        return tuple(node for node, count in self.nodes for _ in range(count))

    def spelled(self) -> bytes:
        """The member that says it."""
        return f'"{KEY}":'.encode() + json_of(self)


def is_large_enough(size: int, own: OwnFile, is_gzip: bool) -> bool:
    """Whether a file of so many bytes may hold what it says of its ranks alone."""
    return size >= len(own.ranks) * (_LEAST_PACKED if is_gzip else _LEAST)


def of_ranks(ranks: tuple[int, ...], nodes: tuple[str, ...], world_size: int | None) -> OwnFile:
    """What a file with these ranks says; `nodes` has the node of each."""
    runs: list[tuple[str, int]] = []
    for node in nodes:
        same = bool(runs) and runs[-1][0] == node
        runs[len(runs) - same :] = [(node, runs[-1][1] + 1 if same else 1)]
    return OwnFile(ranks, tuple(runs), world_size)


def label(rank: int) -> str:
    """What a rank's part of a file is called."""
    return _LABEL.format(rank)


def declared(text: bytes) -> OwnFile | None:
    """What a file says that begins with this text; None for all others, and where that is damaged."""
    mark = _MARK.search(text, 0, _BEGINNING)
    if mark is None:
        return None
    try:
        value, _ = json.JSONDecoder().raw_decode(text[mark.end() :].decode("utf-8", "replace"))
        own = msgspec.convert(value, OwnFile)
    except (ValueError, RecursionError):
        return None
    is_ascending = all(before < rank for before, rank in zip((-1, *own.ranks), own.ranks, strict=False))
    counts = [count for _, count in own.nodes]
    is_possible = (own.world_size is None or own.world_size > 0) and all(count > 0 for count in counts)
    if not own.ranks or not is_ascending or not is_possible or sum(counts) not in (0, len(own.ranks)):
        return None
    return own
