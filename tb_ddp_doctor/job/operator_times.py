"""What operators and kernels take, over all ranks: the ranks' tables (`digest.operators`) joined by name.

N = names, one row for each on the host and each on the device. All sums are over ranks and over each rank's own steps.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.storage.column_table import ColumnTable
from tb_ddp_doctor.trace.model import Ints

_SUMS = ("count", "host_ns", "device_ns", "estimated_ns", "occupied_ns", "tensor_ns", "annotated")


class OperatorTimes(ColumnTable, frozen=True, eq=False):
    """Shape (N,) each; the largest sums come first."""

    #: "" is the sum of what a rank has beyond the names that its digest keeps.
    names: tuple[str, ...]
    on_device: NDArray[np.bool_]
    #: How many ranks name it.
    ranks: Ints
    count: Ints
    host_ns: Ints
    device_ns: Ints
    estimated_ns: Ints
    occupied_ns: Ints
    tensor_ns: Ints
    #: How many of the events are annotations.
    annotated: Ints
    #: The longest sum of a rank for a step, of the host's time for the host's and of the device's for the device's, ns;
    #: and that rank.
    most_ns: Ints
    most_rank: Ints


def operators(job: Job) -> OperatorTimes:
    """The sums of all ranks that are in the job."""
    numbers: dict[tuple[str, int], int] = {}
    keys = [_keys(digest, numbers) for digest in job.digests]
    size = len(numbers)
    sums = {column: np.zeros(size, np.int64) for column in _SUMS}
    ranks, most, most_rank = np.zeros(size, np.int64), np.full(size, -1, np.int64), np.full(size, -1, np.int64)
    for rank, digest, key in zip(job.ranks.tolist(), job.digests, keys, strict=True):
        table = digest.operators
        # A digest names each operation once, so no index comes twice.
        ranks[key] += 1
        for column, summed in sums.items():
            summed[key] += getattr(table, column)
        own = np.where(table.on_device == 1, table.device_ns, table.host_ns) // max(len(digest.steps), 1)
        more = own > most[key]
        most[key[more]] = own[more]
        most_rank[key[more]] = rank
    order = np.argsort(-np.maximum(sums["host_ns"], sums["device_ns"]), kind="stable")
    named = list(numbers)
    return OperatorTimes(
        names=tuple(named[i][0] for i in order),
        on_device=np.array([named[i][1] == 1 for i in order], np.bool_),
        ranks=ranks[order],
        **{column: summed[order] for column, summed in sums.items()},
        most_ns=most[order],
        most_rank=most_rank[order],
    )


def _keys(digest: RankDigest, numbers: dict[tuple[str, int], int]) -> Ints:
    """The number of each of a rank's names, new ones added."""
    table = digest.operators
    places = zip(table.name.tolist(), table.on_device.tolist(), strict=True)
    return np.array(
        [numbers.setdefault((digest.strings[name], place), len(numbers)) for name, place in places], np.int64
    )
