"""What NCCL chose for the traced collectives, where its profiler plugin in torch wrote that into the trace."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

import numpy as np
from msgspec.structs import replace

from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.findings import Network
from tb_ddp_doctor.nccl_logs.calls import Choice, algorithm, most_often, protocol


def with_traced(network: Network | None, digests: Iterable[RankDigest]) -> Network | None:
    """What NCCL's log says, with the choices that the traces show in place of its own; None where neither says any.

    Channels that no log tells are the most of a group's traced collectives, of the group with fewest.
    """
    times_of: Counter[Choice] = Counter()
    for digest in digests:
        times_of.update(_choices(digest))
    if not times_of:
        return network
    most_of: defaultdict[str, int] = defaultdict(int)
    for _, _, _, _, channels, group in times_of:
        most_of[group] = max(most_of[group], channels)
    known = network or Network("", {}, 0, (), (), (), {}, ())
    return replace(known, channels=known.channels or min(most_of.values()), choices=tuple(most_often(times_of)))


def _choices(digest: RankDigest) -> Counter[Choice]:
    """What NCCL chose for the collectives of a rank, and how often."""
    table, text = digest.collectives, digest.strings
    if table.channels.max(initial=0) <= 0:
        return Counter()
    rows = np.flatnonzero((table.channels > 0) & (table.bytes >= 0))
    columns = (table.kind, table.bytes, table.algorithm, table.protocol, table.channels, table.group)
    spelled = Counter(zip(*(column[rows].tolist() for column in columns), strict=True))
    times_of: Counter[Choice] = Counter()
    for (kind, size, chosen, how, channels, group), times in spelled.items():
        if text[chosen] and text[how]:
            named, by = algorithm(text[chosen].encode()), protocol(text[how].encode())
            times_of[text[kind], size, named, by, channels, text[group]] += times
    return times_of
