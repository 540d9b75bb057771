"""What hours of collectives say, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from tb_ddp_doctor.history.collectives import (
    BandwidthChange,
    CollectiveCalls,
    CollectiveHours,
    GroupOverTime,
    LateRank,
)
from tb_ddp_doctor.history.sentences import clock
from tb_ddp_doctor.wording import duration, gigabytes_per_second, listing, percent, size

#: Kinds, changes and late ranks that are said.
_KINDS, _CHANGES, _LATE = 3, 3, 3


def sentences(hours: CollectiveHours) -> Iterator[str]:
    """Bandwidth of the kinds that take most, its changes, and the ranks that arrive last."""
    kinds = "; ".join(map(_kind, hours.kinds[:_KINDS]))
    made = []
    if hours.calls:
        made.append(f"{hours.calls:,} calls in {hours.groups:,} group{'s' if hours.groups != 1 else ''}")
    if hours.transfers:
        made.append(f"{hours.transfers:,} transfers between two ranks")
    yield f"Collectives, by the Inspector: {', '.join(made)}. {kinds}."
    yield from map(_change, hours.changes[:_CHANGES])
    yield from map(_late, hours.late_ranks[:_LATE])
    if hours.lost_lines:
        yield f"Not read: {hours.lost_lines:,} lines of the Inspector's."


def group_name(one: GroupOverTime) -> str:
    """The calls of a group in a few words: "AllReduce 134 MB, 4 ranks on node0 and node1"."""
    hosts = [host for host in one.hosts if host]
    more = max(one.nodes - len(hosts), 0) if len(hosts) > 1 else 0
    on = f" on {listing(hosts)}{f' and {more} more' if more else ''}" if hosts else ""
    ranks = f"{one.ranks} ranks" if one.sender is None else f"rank {one.sender} to {one.receiver}"
    return f"{one.collective} {size(one.size)}, {ranks}{on}"


def _kind(one: CollectiveCalls) -> str:
    on = f" on {one.nodes} nodes" if one.nodes > 1 else ""
    low = f"1 in 20 below {_rate(one.low_gbs)}"
    return f"{one.collective} of {size(one.size)} in {one.ranks} ranks{on}: {_rate(one.busbw_gbs)} busbw ({low})"


def _change(one: BandwidthChange) -> str:
    change, direction = 1 - one.after_gbs / one.before_gbs, "lower" if one.after_gbs < one.before_gbs else "higher"
    named = [host for host in one.hosts if host]
    where = f" ({listing(named)})" if named else ""
    cost = f", {duration(one.cost_s * 1000)} in all" if one.cost_s > 0 else ""
    ranks = f"in {one.ranks} ranks" if one.sender is None else f"from rank {one.sender} to {one.receiver}"
    return (
        f"{one.collective} of {size(one.size)} {ranks}{where}: busbw {percent(abs(change))} {direction} "
        f"since {clock(one.at_s)}, {_rate(one.before_gbs)} before, {_rate(one.after_gbs)} since{cost}."
    )


def _late(one: LateRank) -> str:
    host = f" on {one.host}" if one.host else ""
    return (
        f"Rank {one.rank} of a group of {one.ranks}{host} arrives last in {percent(one.late_share)} of "
        f"{one.compared:,} collectives; the first then waits {duration(one.wait_ms)}."
    )


def _rate(gbs: float) -> str:
    return gigabytes_per_second(gbs * 1e9)
