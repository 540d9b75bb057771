"""What hours of collectives say: bandwidth by kind, size and group, when it changed, and which rank arrives last.

Transfers between two ranks are among them, as calls of groups of two: see `history.transfers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.history.collective_calls import GroupCalls, hosts_of, joined, largest
from tb_ddp_doctor.history.levels import levels
from tb_ddp_doctor.history.logs.inspector import InspectorCalls, inspector_files, read_inspector
from tb_ddp_doctor.history.transfers import SENDER, Direction, split
from tb_ddp_doctor.workers import pool

#: Bandwidth that changes by less is noise. Bins that are compared, and the fewest calls of one.
LEAST_CHANGE = 0.05
_MOST_BINS, _FEWEST_CALLS = 512, 8
#: A rank is late if it arrives last in this share of so many calls, and the first waits for this share of each.
LEAST_LATE = 0.5
_FEWEST_COMPARED, _LEAST_WAIT = 50, 0.1
#: Bins of time, and groups, kinds and sizes, that are shown over time; hosts of one that are named.
_TIME_BINS, _MOST_OVER_TIME, _MOST_HOSTS = 96, 40, 8


class CollectiveCalls(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of a kind and size in groups of one shape."""

    #: "Send/Recv" of transfers between two ranks.
    collective: str
    size: int
    ranks: int
    #: 0 where unknown.
    nodes: int
    calls: int
    #: Bus bandwidth of the median call and of the slowest twentieth, without waiting, GB/s.
    busbw_gbs: float
    low_gbs: float
    #: Transfer time of all calls, s.
    transfer_s: float


class BandwidthChange(msgspec.Struct, frozen=True, kw_only=True):
    """Bandwidth of one group that changed."""

    collective: str
    size: int
    ranks: int
    hosts: tuple[str, ...]
    #: Of transfers: from which rank to which one, within their communicator.
    sender: int | None = None
    receiver: int | None = None
    #: When, s since 1970.
    at_s: float
    before_gbs: float
    after_gbs: float
    #: What all calls since then took longer, s; below 0 where they are faster.
    cost_s: float


class LateRank(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that mostly arrives last."""

    #: Within its group, and on which host.
    rank: int
    host: str
    ranks: int
    #: The share of the calls in which it arrives last, how many were compared, and what the first rank then waits, ms.
    late_share: float
    compared: int
    wait_ms: float


class PeerTransfers(msgspec.Struct, frozen=True, kw_only=True):
    """Transfers from one rank to another one."""

    #: Within their communicator, which has so many ranks, and on which hosts; "" where a host is not known.
    sender: int
    receiver: int
    ranks: int
    sender_host: str
    receiver_host: str
    transfers: int
    #: Size and bus bandwidth of the median transfer, bytes and GB/s, and transfer time of all, s.
    size: int
    busbw_gbs: float
    transfer_s: float
    #: Share of the transfers in which the sender arrives last, and what the first of both waits in the median, ms; None
    #: where only one of them recorded.
    sender_last_share: float | None
    wait_ms: float | None


class GroupOverTime(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of one kind and size in one group, by bins of time."""

    collective: str
    size: int
    ranks: int
    nodes: int
    #: Up to eight.
    hosts: tuple[str, ...]
    sender: int | None = None
    receiver: int | None = None
    calls: int
    transfer_s: float
    #: Of each bin: bus bandwidth of the median call and of the slowest twentieth, GB/s, and what the first rank waits
    #: for the last one in the median call, ms; None in bins without such calls.
    busbw_gbs: tuple[float | None, ...]
    low_gbs: tuple[float | None, ...]
    wait_ms: tuple[float | None, ...]


class CollectiveHours(msgspec.Struct, frozen=True, kw_only=True):
    """The collectives, and the transfers between two ranks, of hours."""

    calls: int
    groups: int
    #: Transfers between two ranks.
    transfers: int = 0
    begin_s: float
    end_s: float
    #: Most transfer time first.
    kinds: tuple[CollectiveCalls, ...]
    #: Most costly first.
    changes: tuple[BandwidthChange, ...]
    late_ranks: tuple[LateRank, ...]
    #: Most transfer time first.
    peers: tuple[PeerTransfers, ...] = ()
    #: Groups over time, most transfer time first; the edges of the bins, s since 1970.
    over_time: tuple[GroupOverTime, ...] = ()
    edges_s: tuple[float, ...] = ()
    lost_lines: int


class _Part(msgspec.Struct, frozen=True):
    """Collectives, or transfers with the direction of each group."""

    lines: InspectorCalls
    calls: GroupCalls
    directions: tuple[Direction, ...] = ()

    def ends(self, communicator: int) -> tuple[int | None, int | None]:
        """Sender and receiver of a group."""
        if not self.directions:
            return None, None
        return self.directions[communicator].sender, self.directions[communicator].receiver


def read_collectives(
    folder: Path, may_read: Callable[[Path], bool] = lambda _: True
) -> tuple[CollectiveHours | None, list[str]]:
    """What the Inspector's files in a folder and below it say, and a sentence for each problem; None where there is
    none. They are read in a process of their own, with the limits of files of their size.

    Files that `may_read` refuses are passed over.
    """
    try:
        files = tuple(path for path in inspector_files(folder) if may_read(path))
        size = sum(path.stat().st_size for path in files)
        return (pool.call(_of_files, files, size, gives=CollectiveHours | None) if size else None), []
    except OSError as error:
        return None, [f"The Inspector's files in {folder} cannot be read ({error.strerror or error})."]
    except pool.CrashError as error:
        return None, [f"The Inspector's files in {folder} are left out: {error}"]


def _of_files(files: tuple[Path, ...]) -> CollectiveHours | None:
    lines = read_inspector(files)
    return None if lines is None else collective_hours(lines)


def collective_hours(lines: InspectorCalls) -> CollectiveHours:
    """What the Inspector's lines say."""
    of_groups, of_two, directions = split(lines)
    collectives, transfers = _Part(of_groups, joined(of_groups)), _Part(of_two, joined(of_two), directions)
    parts = (collectives, transfers)
    at_us = np.concatenate([part.calls.at_us for part in parts])
    begin_s, end_s = float(at_us.min()) / 1e6, float(at_us.max()) / 1e6
    edges_s = np.linspace(begin_s, max(end_s, begin_s + 1e-3), _TIME_BINS + 1)
    over_time = [group for part in parts for group in _over_time(part, edges_s)]
    over_time.sort(key=lambda one: -one.transfer_s)
    return CollectiveHours(
        calls=len(collectives.calls.kind),
        groups=len(np.unique(of_groups.communicator)),
        transfers=len(transfers.calls.kind),
        begin_s=begin_s,
        end_s=end_s,
        kinds=tuple(sorted((one for part in parts for one in _kinds(part)), key=lambda one: -one.transfer_s)),
        changes=tuple(sorted((one for part in parts for one in _changes(part)), key=lambda one: -abs(one.cost_s))),
        late_ranks=tuple(_late_ranks(collectives)),
        peers=tuple(_peers(transfers)),
        over_time=tuple(over_time[:_MOST_OVER_TIME]),
        edges_s=tuple(np.round(edges_s, 3).tolist()),
        lost_lines=lines.lost_lines,
    )


def _kinds(part: _Part) -> Iterator[CollectiveCalls]:
    lines, calls = part.lines, part.calls
    shapes = np.array(lines.communicators, dtype=np.int64).reshape(-1, 2)[calls.communicator]
    for rows in largest((calls.kind, calls.size, shapes[:, 0], shapes[:, 1]), calls.transfer_us):
        ranks, nodes = lines.communicators[int(calls.communicator[rows[0]])]
        yield CollectiveCalls(
            collective=lines.kinds[int(calls.kind[rows[0]])],
            size=int(calls.size[rows[0]]),
            ranks=ranks,
            nodes=nodes,
            calls=len(rows),
            busbw_gbs=float(np.median(calls.busbw_gbs[rows])),
            low_gbs=float(np.percentile(calls.busbw_gbs[rows], 5)),
            transfer_s=_seconds(calls.transfer_us[rows]),
        )


def _changes(part: _Part) -> Iterator[BandwidthChange]:
    """Changes of the bandwidth of each group, kind and size."""
    lines, calls = part.lines, part.calls
    for rows in largest((calls.communicator, calls.kind, calls.size), calls.transfer_us):
        rows = rows[np.argsort(calls.at_us[rows], kind="stable")]
        width = max(_FEWEST_CALLS, -(-len(rows) // _MOST_BINS))
        count = len(rows) // width
        medians = np.median(calls.busbw_gbs[rows[: count * width]].reshape(count, width), axis=1)
        shifts = levels(medians, LEAST_CHANGE * float(np.median(medians)) if count else 0.0).shifts
        edges = [0, *(shift.at for shift in shifts), count]
        communicator = int(calls.communicator[rows[0]])
        sender, receiver = part.ends(communicator)
        for shift, first, end in zip(shifts, edges, edges[2:], strict=False):
            before, after = float(np.median(medians[first : shift.at])), float(np.median(medians[shift.at : end]))
            took_us = calls.transfer_us[rows[shift.at * width : end * width]]
            if abs(after - before) < LEAST_CHANGE * before or before <= 0:
                continue
            yield BandwidthChange(
                collective=lines.kinds[int(calls.kind[rows[0]])],
                size=int(calls.size[rows[0]]),
                ranks=lines.communicators[communicator][0],
                hosts=hosts_of(lines, communicator),
                sender=sender,
                receiver=receiver,
                at_s=float(calls.at_us[rows[shift.at * width]]) / 1e6,
                before_gbs=before,
                after_gbs=after,
                cost_s=_seconds(took_us) * (1 - after / before),
            )


def _late_ranks(part: _Part) -> Iterator[LateRank]:
    """The ranks that arrive last in most of the calls of their group in which somebody waits."""
    lines, calls = part.lines, part.calls
    is_waiting = calls.wait_us >= np.maximum(_LEAST_WAIT * calls.transfer_us, 1)
    compared = np.bincount(calls.communicator[calls.last_rank >= 0], minlength=len(lines.communicators))
    rows = np.flatnonzero(is_waiting & (calls.last_rank >= 0))
    for at in largest((calls.communicator[rows], calls.last_rank[rows]), calls.wait_us[rows]):
        communicator, rank = int(calls.communicator[rows[at[0]]]), int(calls.last_rank[rows[at[0]]])
        ranks = lines.communicators[communicator][0]
        share = len(at) / int(compared[communicator])
        # Of two ranks one is last in half of the calls.
        if compared[communicator] >= _FEWEST_COMPARED and share >= max(LEAST_LATE, 1.5 / ranks):
            yield LateRank(
                rank=rank,
                host=lines.hosts.get((communicator, rank), ""),
                ranks=ranks,
                late_share=share,
                compared=int(compared[communicator]),
                wait_ms=float(np.median(calls.wait_us[rows[at]])) / 1000,
            )


def _peers(part: _Part) -> Iterator[PeerTransfers]:
    """The transfers of each direction."""
    lines, calls = part.lines, part.calls
    for rows in largest((calls.communicator,), calls.transfer_us):
        number = int(calls.communicator[rows[0]])
        one = part.directions[number]
        is_last, waits_us = calls.last_rank[rows], calls.wait_us[rows]
        is_paired = bool((is_last >= 0).all())
        yield PeerTransfers(
            sender=one.sender,
            receiver=one.receiver,
            ranks=one.ranks,
            sender_host=lines.hosts[number, SENDER],
            receiver_host=lines.hosts[number, 1],
            transfers=len(rows),
            size=int(np.median(calls.size[rows])),
            busbw_gbs=float(np.median(calls.busbw_gbs[rows])),
            transfer_s=_seconds(calls.transfer_us[rows]),
            sender_last_share=float(np.mean(is_last == SENDER)) if is_paired else None,
            wait_ms=float(np.median(waits_us)) / 1000 if is_paired else None,
        )


def _over_time(part: _Part, edges_s: NDArray[np.float64]) -> Iterator[GroupOverTime]:
    """The calls of each group, kind and size by bins of time."""
    lines, calls = part.lines, part.calls
    for rows in largest((calls.communicator, calls.kind, calls.size), calls.transfer_us)[:_MOST_OVER_TIME]:
        communicator = int(calls.communicator[rows[0]])
        ranks, nodes = lines.communicators[communicator]
        sender, receiver = part.ends(communicator)
        bins = np.clip(np.searchsorted(edges_s, calls.at_us[rows] / 1e6, side="right") - 1, 0, _TIME_BINS - 1)
        waits_ms = np.where(calls.wait_us[rows] >= 0, calls.wait_us[rows] / 1000, np.nan)
        busbw_gbs = calls.busbw_gbs[rows]
        of_bins = [np.flatnonzero(bins == number) for number in range(_TIME_BINS)]
        yield GroupOverTime(
            collective=lines.kinds[int(calls.kind[rows[0]])],
            size=int(calls.size[rows[0]]),
            ranks=ranks,
            nodes=nodes,
            hosts=hosts_of(lines, communicator)[:_MOST_HOSTS],
            sender=sender,
            receiver=receiver,
            calls=len(rows),
            transfer_s=_seconds(calls.transfer_us[rows]),
            busbw_gbs=_quantiles((busbw_gbs[at] for at in of_bins), 50),
            low_gbs=_quantiles((busbw_gbs[at] for at in of_bins), 5),
            wait_ms=_quantiles((waits_ms[at][~np.isnan(waits_ms[at])] for at in of_bins), 50),
        )


def _quantiles(of_bins: Iterable[NDArray[np.float64]], percent: float) -> tuple[float | None, ...]:
    """A percentile of the values of each bin; None of a bin without values."""
    return tuple(round(float(np.percentile(values, percent)), 4) if len(values) else None for values in of_bins)


def _seconds(values_us: NDArray[np.int64]) -> float:
    return float(values_us.sum(dtype=np.float64)) / 1e6
