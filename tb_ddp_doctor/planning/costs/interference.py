"""Measures how much longer kernels take beside communication: it takes multiprocessors and bandwidth from them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.planning.costs.messages import Basis

#: The mean and the largest slowdown of four models on H100, A100, MI250 and MI210 (arXiv 2507.03114, "Characterizing
#: Compute-Communication Overlap in GPU-Accelerated Distributed Deep Learning").
_MEAN, _MOST = 0.189, 0.4
#: It is measured if at least this many kinds of kernels run beside communication, for at least this long in all, ns.
_KINDS, _LEAST_NS = 3, 1_000_000
#: A kernel that seems to take this many times as long is another kernel with the same name and grid.
_MOST_TIMES = 3.0


class Slowdown(msgspec.Struct, frozen=True):
    """Kernels beside communication take 1 + `share` times as long as alone."""

    share: float
    #: The least that `share` may be.
    least: float
    #: The most that `share` may be.
    most: float
    basis: Basis
    #: How it is known, for users.
    rests_on: str


def slowdown(digests: Sequence[RankDigest]) -> Slowdown:
    """The slowdown of kernels, from those of the same name and grid that run both beside communication and alone."""
    beside: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for digest in digests:
        table, text = digest.kernels, digest.strings
        columns = (table.name, table.shape, table.beside, table.beside_ns, table.alone, table.alone_ns)
        for name, grid, *amounts in zip(*(column.tolist() for column in columns), strict=True):
            totals = beside[text[name], text[grid]]
            for i, amount in enumerate(amounts):
                totals[i] += amount
    usable = [
        (took, count * alone_ns / alone)
        for count, took, alone, alone_ns in beside.values()
        if count and alone and alone_ns and took * alone < _MOST_TIMES * count * alone_ns
    ]
    took, takes_alone = sum(one for one, _ in usable), sum(one for _, one in usable)
    if len(usable) < _KINDS or took < _LEAST_NS * len(digests):
        return Slowdown(
            _MEAN,
            0.0,
            _MOST,
            "assumed",
            "hardly any kernel of this record runs both with and without communication beside it: kernels beside it "
            "are assumed to take 19 % longer (0 to 40 %, as measured in arXiv 2507.03114)",
        )
    share = max(took / takes_alone - 1, 0.0)
    return Slowdown(
        share,
        share / 2,
        share * 1.5,
        "measured",
        f"the same kernels take {wording.decimals(100 * share, 0)} % longer beside communication, over "
        f"{wording.decimals(took / 1e6 / len(digests), 0)} ms of them a rank",
    )
