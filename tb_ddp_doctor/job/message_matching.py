"""Finds which send and receive kernels of which ranks meet.

In each step the n-th send from rank a to rank b, in one group, meets the n-th receive of b from a. A kernel that
carries out a batch meets several others:

    rank 0  [send to 1, receive from 3]   meets the kernels of ranks 1 and 3, which do not meet each other
    rank 0  [send to 1, receive from 1]   meets the kernel of rank 1 that does the same

Kernels that all meet each other begin to move data when the last of them has arrived, and end together, like a
collective. Of others each two that meet are a match of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.digest.numbering import in_order, numbered
from tb_ddp_doctor.job.calls import Calls
from tb_ddp_doctor.job.realigning import places
from tb_ddp_doctor.storage.constant import joined
from tb_ddp_doctor.trace.model import Flags, Ints

_ODD = np.uint64(0x9E3779B97F4A7C15)


class _Ends(msgspec.Struct, frozen=True, eq=False):
    """Sends and receives whose other rank is traced, rank by rank, in the order of their launches; shape (E,)."""

    #: Index of `Calls`.
    call: Ints
    #: Number of those from one rank to another in a group and a step; and whether it is the sender's side.
    channel: Ints
    sent: Ints


def matched_messages(digests: Sequence[RankDigest], calls: Calls, ranks: Sequence[int]) -> tuple[Ints, Ints, Flags]:
    """Match the kernels that meet: number of the match and row of the job's table of each part, shape (P,), and whether
    the parts of a match meet no others, by number.

    `ranks` are the ranks' numbers.
    """
    one, other = _meetings(_ends(digests, calls, ranks), calls)
    if not len(one):
        return one, other, np.zeros(0, np.bool_)
    circle = _circles(one, other, len(calls))
    whole = circle[one] == circle[other]
    match = numbered(np.where(whole, circle[one].view(np.int64), np.arange(len(one))), whole)
    together = np.zeros(int(match.max()) + 1, np.bool_)
    together[match[whole]] = True
    # Of a match of several pairs a call is in more than one.
    part = np.unique(np.concatenate((match * len(calls) + one, match * len(calls) + other)))
    return part // len(calls), part % len(calls), together


def only_send(digests: Sequence[RankDigest], calls: Calls) -> Flags:
    """Which calls are kernels that send and do not receive; shape (calls,)."""
    sent, received = np.zeros((2, len(calls)), np.bool_)
    for rank, digest in enumerate(digests):
        ends = digest.message_ends
        sent[calls.first[rank] + ends.call[ends.sent == 1]] = True
        received[calls.first[rank] + ends.call[ends.sent == 0]] = True
    return sent & ~received


def _ends(digests: Sequence[RankDigest], calls: Calls, ranks: Sequence[int]) -> _Ends:
    tables = [digest.message_ends for digest in digests]
    rank = np.repeat(np.arange(len(digests)), [len(table) for table in tables])
    call = joined([table.call for table in tables]) + calls.first[rank]
    peer, sent = (joined([getattr(table, name) for table in tables]).astype(np.int64) for name in ("peer", "sent"))
    place = np.full(max([*ranks, 0]) + 2, -1)
    place[list(ranks)] = np.arange(len(digests))
    peer = place[np.clip(peer, -1, len(place) - 1)]
    step = calls.of_own_steps([digest.steps.number for digest in digests])[call] if len(call) else call
    words: dict[str, int] = {}
    group = [
        np.array([words.setdefault(text, len(words)) for text in digest.strings], np.int64)[table.group]
        for digest, table in zip(digests, tables, strict=True)
        if len(table)
    ]
    chosen = np.flatnonzero((peer >= 0) & (peer != rank) & (calls.column("step")[call] >= 0)) if len(call) else call
    rank, peer, sent = rank[chosen], peer[chosen], sent[chosen]
    sender, receiver = np.where(sent == 1, rank, peer), np.where(sent == 1, peer, rank)
    of = np.concatenate(group)[chosen] if group else chosen
    return _Ends(call[chosen], numbered(sender, receiver, of, step[chosen]), sent)


def _meetings(ends: _Ends, calls: Calls) -> tuple[Ints, Ints]:
    """The pairs of calls that meet, each pair once."""
    if not len(ends.call):
        return ends.call, ends.call
    order = in_order(2 * ends.channel + ends.sent)
    call, channel, sent = ends.call[order], ends.channel[order], ends.sent[order]
    size = int(channel.max()) + 1
    count = np.bincount(2 * channel + sent, minlength=2 * size).reshape(size, 2)
    same_count = (count[:, 0] == count[:, 1])[channel]
    # Of a channel the receives come first, then as many sends.
    pairs = [(call[same_count & (sent == 0)], call[same_count & (sent == 1)])]
    first = np.cumsum(count.sum(axis=1)) - count.sum(axis=1)
    end_ns = calls.column("end_ns")
    for one in np.flatnonzero((count[:, 0] != count[:, 1]) & (count > 0).all(axis=1)).tolist():
        received = call[first[one] : first[one] + count[one, 0]]
        sends = call[first[one] + count[one, 0] : first[one] + count[one].sum()]
        if len(received) <= len(sends):
            pairs.append((received, sends[places(end_ns[received], end_ns[sends])]))
        else:
            pairs.append((received[places(end_ns[sends], end_ns[received])], sends))
    one, other = (np.concatenate(side) for side in zip(*pairs, strict=True))
    pair = np.unique(np.stack((np.minimum(one, other), np.maximum(one, other)), axis=1), axis=0)
    return pair[:, 0], pair[:, 1]


def _circles(one: Ints, other: Ints, calls: int) -> NDArray[np.uint64]:
    """Of each call a number that it shares with those that it meets if these meet the same calls; shape (calls,).

    It is a sum of hashes of the call and of all that it meets.
    """
    own = (np.arange(calls, dtype=np.uint64) + np.uint64(1)) * _ODD
    own ^= own >> np.uint64(31)
    own *= _ODD
    total: NDArray[np.uint64] = own.copy()
    np.add.at(total, one, own[other])
    np.add.at(total, other, own[one])
    return total
