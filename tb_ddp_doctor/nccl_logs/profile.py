"""What NCCL's example profiler plugin (ext-profiler/example) writes of each call, in a file for each rank of each
communicator.

    {"name": "AllReduce", "cat": "COLL", "ph": "b", "id": 0, "pid": 426, "tid": 1, "ts": 1.5, "args": {"SeqNum": 7,
     "CommHash": 123, "Rank": 0, "Count": 1024, "Datatype": "ncclFloat32", "Algorithm": "RING", "Protocol": "LL",
     "nChannels": 2}},

An event is a line. In some releases channels are "nMaxChannels".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_COLLECTIVE = b'"cat": "COLL", "ph": "b"'
_BEGINS = re.compile(rb'"cat": "(?:COLL|GROUP|P2P)", "ph": "b"[^\n]{0,200}"(?:groupId|SeqNum)": ')
_CALL = re.compile(
    rb'\{"name": "(\w{1,40})", "cat": "COLL", "ph": "b"[^\n]{0,80}"pid": (\d{1,10}),[^\n]{0,80}"args": '
    rb'\{"SeqNum": (\d{1,18}), "CommHash": (\d{1,20}), "Rank": (\d{1,7}), "Count": (\d{1,18}), '
    rb'"Datatype": "(\w{1,30})", "Algorithm": "(\w{0,20})", "Protocol": "(\w{0,20})", "n(?:Max)?Channels": (\d{1,4})\}'
)
#: ncclDataType_t, by its numbers.
_TYPES = (
    *(b"ncclInt8", b"ncclUint8", b"ncclInt32", b"ncclUint32", b"ncclInt64", b"ncclUint64"),
    *(b"ncclFloat16", b"ncclFloat32", b"ncclFloat64", b"ncclBfloat16", b"ncclFloat8e4m3", b"ncclFloat8e5m2"),
)


class ProfiledCall(NamedTuple):
    """A call of one rank of a communicator."""

    name: bytes
    pid: bytes
    number: int
    communicator: int
    rank: int
    #: Elements, and the number of their type.
    elements: int
    type: int
    algorithm: bytes
    protocol: bytes
    channels: int


def begins_profile(text: bytes) -> bool:
    """Whether a file that begins so is a profile."""
    return _BEGINS.search(text) is not None


def profiled(block: bytes) -> Iterator[ProfiledCall | None]:
    """The calls of whole lines; None for each that is damaged."""
    at = block.find(_COLLECTIVE)
    while at >= 0:
        start = block.rfind(b"\n", 0, at) + 1
        call = _CALL.match(block, start)
        if call is None or call[7] not in _TYPES:
            yield None
        else:
            name, pid, number, communicator, rank, count, kind, algorithm, protocol, channels = call.groups()
            yield ProfiledCall(
                name,
                pid,
                int(number),
                int(communicator),
                int(rank),
                int(count),
                _TYPES.index(kind),
                algorithm,
                protocol,
                int(channels),
            )
        at = block.find(_COLLECTIVE, at + 1)
