"""Lists the collectives that a pass launches for each way to shard parameters, gradients and optimizer states.

- ddp: AllReduces of buckets of gradients (DistributedDataParallel, NO_SHARD).
- zero1: those, and each rank updates its part of the parameters, which are gathered after that
  (ZeroRedundancyOptimizer).
- zero2: an AllGather of each unit before its forward, a ReduceScatter of its gradients (SHARD_GRAD_OP,
  `reshard_after_forward=False`).
- zero3: also an AllGather of each unit but the root before its backward (FULL_SHARD).
- hsdp: as zero3 among the ranks of a node, and AllReduces of the shards between nodes (HYBRID_SHARD). These follow each
  other on a stream of their own, each as soon as its ReduceScatter is over.

Sources: Rajbhandari et al., "ZeRO", 2020; Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data
Parallel", VLDB 2023, for units, prefetch and hybrid sharding; torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py
for what is launched when: the AllGather of a unit at the begin of its forward, that of the next one at the begin of a
unit's backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from tb_ddp_doctor.planning.buckets import DEFAULT_FIRST_MIB, DEFAULT_MIB, MIB, BucketLimits, last_of_buckets
from tb_ddp_doctor.planning.costs.messages import Case
from tb_ddp_doctor.planning.edits.moved_collectives import PassCollective
from tb_ddp_doctor.planning.shards.units import Units
from tb_ddp_doctor.trace.model import Flags

#: For each collective, the host of fully_shard runs hooks, copies into and out of buffers, and records events. The
#: values are how many times as long this takes as a launch of an AllReduce by DDP; the likely one is that of one model
#: in the project's traces, recorded with both.
OVERHEAD: dict[Case, float] = {"likely": 5.0, "quickest": 1.5, "slowest": 8.0}
#: How many units ahead fully_shard gathers by default, in forward and in backward.
AHEAD = (0, 1)

#: Gives the time of a collective, ns, from its kind, number of ranks, bytes, and whether each rank is on another node.
Time = Callable[[str, int, float, bool], float]


class Strategy(msgspec.Struct, frozen=True, eq=False):
    """How states are sharded, and how far ahead units are gathered."""

    name: str
    #: Number of ranks of the job.
    ranks: int
    #: Number of ranks that together store one copy of the states.
    shards: int
    #: Units that are gathered ahead in forward and in backward.
    ahead: tuple[int, int]
    #: Bytes of an element of the gradients.
    gradient_bytes: float
    #: Flags the all-gathers that are launched right behind the collective before them, shape (P, G), those of forward
    #: first; None if all are launched as recorded.
    in_time: Flags | None = None


def launched(
    units: Units, strategy: Strategy, time: Time, host_ns: int, bucket_mib: float | None
) -> list[PassCollective]:
    """The collectives of a pass, in the order of their launches; launching one takes the host `host_ns`.

    `time` gives each one's duration; `bucket_mib` is the size of DDP's buckets, None for DDP's default.
    """
    if strategy.name in ("ddp", "zero1"):
        return list(_buckets(units, strategy, time, host_ns, bucket_mib))
    forward, backward = (list(_of(units, strategy, time, host_ns)) for _of in (_forward, _backward))
    each = [*forward, *backward]
    return list(_in_order(each if strategy.in_time is None else _in_time(each, strategy.in_time)))


def _in_order(launches: Iterable[PassCollective]) -> Iterator[PassCollective]:
    """The collectives, none launched before an earlier one: all ranks keep one order, wherever their hosts were."""
    before_ns = None
    for one in launches:
        at_ns = one.at_ns if before_ns is None else np.maximum(one.at_ns, before_ns)
        gate_ns = None if one.gate_ns is None else np.maximum(one.gate_ns, at_ns)
        before_ns = at_ns
        yield replace(one, at_ns=at_ns, gate_ns=gate_ns)


def _in_time(launches: Sequence[PassCollective], in_time: Flags) -> Iterator[PassCollective]:
    """The collectives, with some all-gathers launched right behind the collective before them.

    `in_time` flags these all-gathers, shape (P, G). None passes a collective that is launched before it: all ranks keep
    one order of collectives.

        recorded  ag 0, unit 0, ag 1, unit 1, ag 2, unit 2      ag 1 is flagged, ag 2 is not
        in time   ag 0, ag 1, unit 0, unit 1, ag 2, unit 2
    """
    before_ns, gathers = launches[0].at_ns, 0
    for one in launches:
        at_ns = one.at_ns
        if one.is_gather:
            at_ns = np.where(in_time[:, gathers], np.minimum(before_ns, at_ns), at_ns)
            gathers += 1
        before_ns = at_ns
        yield replace(one, at_ns=at_ns)


def _buckets(
    units: Units, strategy: Strategy, time: Time, host_ns: int, bucket_mib: float | None
) -> Iterator[PassCollective]:
    """AllReduces of whole units, closed as DDP closes its buckets."""
    size = np.rint(units.elements * strategy.gradient_bytes).astype(np.int64)
    limits = (
        BucketLimits.of_cap(bucket_mib)
        if bucket_mib
        else BucketLimits(int(DEFAULT_MIB * MIB), int(DEFAULT_FIRST_MIB * MIB))
    )
    lasts = last_of_buckets(size, limits)
    for bucket, last in zip(np.diff(np.cumsum(size)[lasts], prepend=0).tolist(), lasts.tolist(), strict=True):
        yield PassCollective(
            at_ns=units.ready_ns[:, last],
            host_ns=host_ns,
            done_ns=units.done_ns[:, last],
            gate_ns=units.after_ns if last == lasts[-1] else None,
            bytes=bucket,
            takes_ns=time("all_reduce", strategy.ranks, bucket, False),
        )


def _forward(units: Units, strategy: Strategy, time: Time, host_ns: int) -> Iterator[PassCollective]:
    """The AllGathers of forward, one for each unit."""
    ahead, _ = strategy.ahead
    order = np.arange(len(units.elements))[::-1]
    for number, unit in enumerate(order.tolist()):
        size = float(units.elements[unit] * units.parameter_bytes)
        yield PassCollective(
            at_ns=units.before_forward_ns[:, order[max(number - ahead, 0)]],
            host_ns=host_ns,
            done_ns=None,
            gate_ns=units.forward_ns[:, unit],
            bytes=size,
            takes_ns=time("all_gather", strategy.shards, size, False),
            is_gather=True,
        )


def _backward(units: Units, strategy: Strategy, time: Time, host_ns: int) -> Iterator[PassCollective]:
    """The collectives of each unit's backward: AllGathers of the units ahead, then those that send its gradients."""
    _, ahead = strategy.ahead
    count = len(units.elements)
    again = 0 if strategy.name == "zero2" else count - units.has_root
    gathered = 0
    for unit in range(count):
        while gathered < min(unit + ahead + 1, again):
            size = float(units.elements[gathered] * units.parameter_bytes)
            yield PassCollective(
                at_ns=units.before_backward_ns[:, unit],
                host_ns=host_ns,
                done_ns=None,
                gate_ns=units.backward_ns[:, gathered],
                bytes=size,
                takes_ns=time("all_gather", strategy.shards, size, False),
                is_gather=True,
            )
            gathered += 1
        yield from _sending(units, strategy, time, host_ns, unit)


def _sending(units: Units, strategy: Strategy, time: Time, host_ns: int, unit: int) -> Iterator[PassCollective]:
    """The collectives that send a unit's gradients: a ReduceScatter, and with copies an AllReduce among these."""
    size, copies = float(units.elements[unit] * strategy.gradient_bytes), strategy.ranks // strategy.shards
    kinds = [("reduce_scatter", strategy.shards, size)]
    if copies > 1:
        kinds.append(("all_reduce", copies, size / strategy.shards))
    is_last = unit == len(units.elements) - 1
    for number, (kind, ranks, sent) in enumerate(kinds):
        yield PassCollective(
            at_ns=units.ready_ns[:, unit],
            host_ns=host_ns,
            done_ns=units.done_ns[:, unit] if number == 0 else None,
            gate_ns=units.after_ns if is_last and number == len(kinds) - 1 else None,
            bytes=sent,
            takes_ns=time(kind, ranks, sent, number > 0),
            continues=number > 0,
        )
