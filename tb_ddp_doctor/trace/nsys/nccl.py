"""What NCCL's NVTX ranges say of the kernels that they launched.

A call outside of a group launches its kernel before it returns; the calls between `ncclGroupStart` and `ncclGroupEnd`
launch theirs in the latter. One kernel may carry all calls of a group: sizes are summed if they are of one kind, and
nothing is said of others but that they are sends and receives.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.nsys.payloads import Payload
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Category

_GROUP_START, _GROUP_END = "ncclGroupStart", "ncclGroupEnd"
#: By how much input and output differ from the message that NCCL names, as multiples of ranks.
_GATHERS, _SCATTERS = ("all_gather",), ("reduce_scatter",)


class NcclRange(NamedTuple):
    """A range of NCCL's NVTX domain."""

    #: Index of the host's thread.
    thread: int
    start_ns: int
    end_ns: int
    name: str
    payload: Payload | None


class NcclCall(NamedTuple):
    """What is known of a kernel's collective; -1 where it is not."""

    kind: str
    communicator: int
    ranks: int
    bytes_in: int
    bytes_out: int


class _Launcher(NamedTuple):
    """A range in which kernels are launched, and the calls that they are of."""

    start_ns: int
    end_ns: int
    calls: tuple[NcclRange, ...]


def calls_of_kernels(
    events: Mapping[str, NDArray[Any]], communicates: NDArray[np.bool_], calls: Sequence[NcclRange]
) -> dict[int, NcclCall]:
    """What is known of each communication kernel, by its row; `communicates` tells names, shape (strings,)."""
    if not any(call.payload for call in calls):
        return {}
    kernels = np.flatnonzero((events["category"] == Category.KERNEL) & communicates[events["name"]])
    wanted = set(events["correlation"][kernels].tolist()) - {-1}
    runtime = np.flatnonzero(events["category"] == Category.RUNTIME)
    runtime = runtime[np.isin(events["correlation"][runtime], list(wanted))]
    launches = {
        int(events["correlation"][row]): (int(events["thread"][row]), int(events["start_ns"][row])) for row in runtime
    }
    ranks = {call.payload.communicator: call.payload.ranks for call in calls if call.payload and call.payload.ranks > 0}
    launchers = _launchers(calls)
    starts = {thread: [one.start_ns for one in own] for thread, own in launchers.items()}
    by_kernel = {}
    for row in kernels.tolist():
        thread, instant = launches.get(int(events["correlation"][row]), (-1, -1))
        at = bisect_right(starts.get(thread, []), instant) - 1
        if at >= 0 and instant < launchers[thread][at].end_ns:
            named = _nccl_call(launchers[thread][at].calls, ranks)
            if named is not None:
                by_kernel[row] = named
    return by_kernel


def _launchers(calls: Sequence[NcclRange]) -> dict[int, list[_Launcher]]:
    """By thread, in order of time, the ranges that launch: calls outside of groups, and ends of groups."""
    launchers: defaultdict[int, list[_Launcher]] = defaultdict(list)
    open_calls: defaultdict[int, list[NcclRange]] = defaultdict(list)
    depth: defaultdict[int, int] = defaultdict(int)
    for call in sorted(calls, key=lambda call: call.start_ns):
        thread = call.thread
        if call.name == _GROUP_START:
            depth[thread] += 1
        elif call.name == _GROUP_END:
            depth[thread] = max(depth[thread] - 1, 0)
            if not depth[thread]:
                launchers[thread].append(_Launcher(call.start_ns, call.end_ns, tuple(open_calls.pop(thread, ()))))
        elif call.payload is not None and names.collective(call.name):
            if depth[thread]:
                open_calls[thread].append(call)
            else:
                launchers[thread].append(_Launcher(call.start_ns, call.end_ns, (call,)))
    return launchers


def _nccl_call(calls: Sequence[NcclRange], ranks: Mapping[int, int]) -> NcclCall | None:
    kinds = {names.collective(call.name) for call in calls}
    communicators = {call.payload.communicator for call in calls if call.payload}
    if len(kinds) != 1 or len(communicators) != 1 or kinds & {"send", "recv"}:
        return None
    (kind,), (communicator,) = kinds, communicators
    sizes = [call.payload.bytes for call in calls if call.payload]
    size = sum(sizes) if all(each >= 0 for each in sizes) else -1
    members = ranks.get(communicator, -1)
    many = max(members, 1)
    return NcclCall(
        kind,
        communicator,
        members,
        size * many if kind in _SCATTERS and size >= 0 else size,
        size * many if kind in _GATHERS and size >= 0 else size,
    )
