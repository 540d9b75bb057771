"""How DistributedDataParallel puts gradients into buckets, and which limit explains the buckets of a record.

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
    """Limits of buckets, bytes."""

    each: int
    first: int

    @classmethod
    def of_cap(cls, cap_mib: float) -> BucketLimits:
        """Those of `bucket_cap_mb=cap_mib`."""
        size = int(cap_mib * MIB)
        return cls(size, size)

    @classmethod
    def default(cls) -> BucketLimits:
        """Those of `bucket_cap_mb` not set."""
        return cls(int(DEFAULT_MIB * MIB), int(DEFAULT_FIRST_MIB * MIB))


def last_of_buckets(gradient_bytes: Ints, limits: BucketLimits) -> Ints:
    """Index of the last gradient of each bucket, shape (B,), from bytes in the order of readiness, shape (G,)."""
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
    """Least and largest `bucket_cap_mb` that gives the buckets which end with `lasts`, MiB; None where none does.

    Of one bucket alone the largest is infinite.
    """
    ends = np.cumsum(gradient_bytes)
    sizes = np.diff(ends[lasts], prepend=0)
    # A bucket had not reached its limit before its last gradient; all but the last one had with it.
    least = int((sizes - gradient_bytes[lasts]).max()) + 1
    most = float(sizes[:-1].min()) if len(sizes) > 1 else np.inf
    return (least / MIB, most / MIB) if least <= most else None


def bucket_mb_of(gradient_bytes: Ints, lasts: Ints) -> float:
    """Where buckets that end with `lasts` stand on an axis of `bucket_cap_mb`, MiB: the largest that gives them.

    Of one bucket alone, all its bytes; of buckets that no limit gives, their mean.
    """
    total = float(gradient_bytes.sum()) / MIB
    caps = explaining_caps(gradient_bytes, lasts)
    return min(caps[1], total) if caps else total / len(lasts)
