"""Puts gradients into buckets as DistributedDataParallel does, and finds the limit that explains recorded buckets.

After the first backward pass DDP builds its buckets again, in the order in which gradients became ready. A bucket takes
gradients until it holds its limit or more, and its AllReduce starts with the last of them. The limit is
`bucket_cap_mb` MiB; where that is not set, 25 MiB, and 1 MiB for the first bucket alone.

Sources: `compute_bucket_assignment_by_size` and `Reducer::rebuild_buckets` in torch/csrc/distributed/c10d/reducer.cpp;
`_BucketCapacityConfig` in torch/nn/parallel/distributed.py. Sparse gradients, which get buckets of their own, and
parameters of several dtypes, which are never together in one, are not known from a trace.

G = gradients, B = buckets.
"""

from __future__ import annotations

import msgspec
import numpy as np

from tb_ddp_doctor.trace.model import Ints

MIB = 1 << 20
#: What torch takes where `bucket_cap_mb` is not set.
DEFAULT_MIB, DEFAULT_FIRST_MIB = 25.0, 1.0


class BucketLimits(msgspec.Struct, frozen=True):
    """The sizes at which buckets are closed, bytes."""

    #: Of all buckets but the first.
    each: int
    first: int

    @classmethod
    def of_cap(cls, cap_mib: float) -> BucketLimits:
        """The limits that `bucket_cap_mb=cap_mib` gives."""
        size = int(cap_mib * MIB)
        return cls(size, size)

    @classmethod
    def default(cls) -> BucketLimits:
        """The limits if `bucket_cap_mb` is not set."""
        return cls(int(DEFAULT_MIB * MIB), int(DEFAULT_FIRST_MIB * MIB))


def last_of_buckets(gradient_bytes: Ints, limits: BucketLimits) -> Ints:
    """Index of the last gradient of each bucket, shape (B,).

    `gradient_bytes` are the sizes of the gradients in the order in which they become ready, shape (G,). Sizes of 3, 3,
    3 and 1 with limits of 5 give the buckets (3, 3) and (3, 1): the indices 1 and 3.
    """
    ends, total = np.cumsum(gradient_bytes), len(gradient_bytes)
    lasts: list[int] = []
    begun, limit = 0, limits.first
    while (last := int(np.searchsorted(ends, begun + max(limit, 1)))) < total:
        lasts.append(last)
        begun, limit = int(ends[last]), limits.each
    if total and (not lasts or lasts[-1] < total - 1):
        lasts.append(total - 1)
    return np.array(lasts, np.int64)


def explaining_caps(gradient_bytes: Ints, lasts: Ints) -> tuple[float, float] | None:
    """The least and the largest `bucket_cap_mb` that give some buckets, MiB; None if no value gives them.

    `lasts` is the last gradient of each bucket, shape (B,). For a single bucket the largest value is infinite.
    """
    ends = np.cumsum(gradient_bytes)
    sizes = np.diff(ends[lasts], prepend=0)
    # Each bucket was below its limit before its last gradient, and, except the last bucket, reached it with that one.
    least = int((sizes - gradient_bytes[lasts]).max()) + 1
    most = float(sizes[:-1].min()) if len(sizes) > 1 else np.inf
    return (least / MIB, most / MIB) if least <= most else None


def bucket_mb_of(gradient_bytes: Ints, lasts: Ints) -> float:
    """The place of some buckets on an axis of `bucket_cap_mb`, MiB: the largest value that gives them.

    `lasts` is the last gradient of each bucket. For a single bucket it is that bucket's size; for buckets that no limit
    gives, their mean size.
    """
    total = float(gradient_bytes.sum()) / MIB
    caps = explaining_caps(gradient_bytes, lasts)
    return min(caps[1], total) if caps else total / len(lasts)
