"""How long collectives wait for ranks that have no trace, as far as their like tell.

When the last rank arrives is not known where some have no trace. But a transfer takes no longer than those of larger
messages in the same group, and in proportion to its size no longer than those of smaller ones (time is alpha plus bytes
over bandwidth). What a collective takes beyond its fastest like, each size by its median, is waiting. Where most of a
group's collectives are late, their like are late too, and nothing is told.
"""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest.model import Collectives
from tb_ddp_doctor.digest.numbering import numbered
from tb_ddp_doctor.trace.model import Ints

#: Sizes of messages of one group that are compared; of more, the most frequent.
_MOST_SIZES = 256


def wait_ns(table: Collectives, since_ns: Ints, lacking: Ints) -> Ints:
    """Of each collective, for how long it waits for absent ranks; shape (C,), ns.

    `since_ns`, shape (C,), is when the last rank known has arrived; `lacking` are the rows of which some ranks are
    absent.
    """
    wait = np.zeros(len(table), np.int64)
    if not len(lacking):
        return wait
    took = table.end_ns - since_ns
    like = numbered(table.group, table.group_ranks, table.kind)
    some = np.zeros(len(table), np.bool_)
    some[lacking] = True
    for each in np.unique(like[lacking]).tolist():
        mine = np.flatnonzero(like == each)
        waits = np.maximum(took[mine] - _transfer_ns(table.bytes[mine], took[mine]), 0)
        wait[mine] = np.where(some[mine], waits, 0)
    return wait


def _transfer_ns(size: Ints, took_ns: Ints) -> Ints:
    """The longest that collectives of one kind and group can transfer: by bytes (-1: unknown) and what each took."""
    sizes, which, count = np.unique(size, return_inverse=True, return_counts=True)
    order = np.lexsort((took_ns, which))
    middle = order[np.cumsum(count) - count + (count - 1) // 2]
    median = took_ns[middle].astype(np.float64)
    largest = np.argsort(-count, kind="stable")[:_MOST_SIZES]
    times = np.maximum(sizes[:, None] / np.maximum(sizes[largest], 1)[None, :], 1.0)
    # Sizes that are not known are like each other only.
    times[(sizes[:, None] < 0) != (sizes[largest] < 0)[None, :]] = np.inf
    most = np.minimum((median[largest][None, :] * times).min(axis=1), median)
    longest: Ints = np.ceil(most).astype(np.int64)[which.reshape(-1)]
    return longest
