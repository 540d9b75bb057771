"""The rounds of reinforcement learning whose roles share no collective: by their waits for each other.

Samples and weights go by queues, files or CUDA IPC. Who waits for them does nothing, and all ranks of a role wait and
go on together:

    rollout  [generate....]pause.......[load][generate....]pause.......[load][generate....
    rollout  [generate..]pause.........[load][generate...]pause........[load][generate....
    update   pause........[train......]pause..............[train......]pause..............[train
                                      |0                              |1

A round ends when the role that updates begins to wait for samples. A role that waits, too, ends it when its own wait
begins. Ranks are compared by their clocks as they are: no collective joins them.

Pure: digests in; of each rank, where its rounds end out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import TypeAlias

import numpy as np

from tb_ddp_doctor.digest.model import RankDigest, RankOwner
from tb_ddp_doctor.digest.owners import LONG_STALL_NS
from tb_ddp_doctor.digest.rounds import RoundEnds
from tb_ddp_doctor.job.shared_calls import Calls, calls_of, latest, shared
from tb_ddp_doctor.job.together import SHORTER, Pause, together
from tb_ddp_doctor.trace.model import Flags, Ints
from tb_ddp_doctor.trace.program_names import Role

#: From one round to the next it takes between half and twice the median: of what is less regular, no mean speaks.
_MOST_UNEVEN = 2.0
#: Fewer rounds are no pattern.
_LEAST_ROUNDS = 2
#: Of more ranks of a role it is not looked which share collectives.
_MOST_COMPARED = 64
#: Other roles begin to wait some part of a round before or after the first one: either may lie within the record.
_LATER = (0.25, -0.25)
_UPDATE = Role.UPDATE.value
#: When each rank that waits for other roles begins to do so, ns.
_Wait: TypeAlias = dict[int, int]
#: A role, and which of its groups of ranks that share no collective.
_Part: TypeAlias = tuple[str, int]


def rounds_by_pauses(digests: Mapping[int, RankDigest], roles: Mapping[int, str]) -> dict[int, RoundEnds]:
    """Where the rounds end of each rank, on its host; empty where pauses do not come back regularly."""
    of_roles = _of_roles(digests, roles)
    # Where answers of some rounds are far longer, their waits are, too.
    for shorter in (SHORTER, 0):
        waits = {role: _waits(digests, ranks, shorter) for role, ranks in of_roles.items()}
        for role in of_roles:
            ends = _begins(waits[role])
            if len(ends) > _LEAST_ROUNDS and _is_regular(ends):
                every = [_recorded(digests, dict(_ends(digests, of_roles, waits, ends, by))) for by in _LATER]
                most = max(every, key=lambda of_rank: len(next(iter(of_rank.values()))))
                return most if len(next(iter(most.values()))) > 1 else {}
    return {}


def ends_apart(digests: Mapping[int, RankDigest], roles: Mapping[int, str], ends: Ints) -> dict[int, Ints]:
    """When the rounds end of ranks that share no collective with others, given when they end there: with their own
    waits; empty where they wait less often. Of the two waits that may end a round, those of which more lie within the
    records; of as many, those whose rounds hold more of the records.
    """
    of_roles = _of_roles(digests, roles)
    waits = {role: _waits(digests, ranks, SHORTER) for role, ranks in of_roles.items()}
    waits_often = len(ends) > 1 and all(2 * len(its) >= len(ends) for its in waits.values())
    every = [dict(_ends(digests, of_roles, waits, ends, by)) for by in _LATER] if waits_often else []

    def within(of_rank: Mapping[int, Ints]) -> tuple[int, int]:
        steps = {rank: digests[rank].steps for rank in of_rank}
        recorded = len(next(iter(_recorded(digests, of_rank).values())))
        return recorded, sum(
            int(min(own[-1], steps[rank].end_ns[-1]) - max(own[0], steps[rank].host_start_ns[0]))
            for rank, own in of_rank.items()
        )

    return max(every, key=within) if every and of_roles else {}


def _of_roles(digests: Mapping[int, RankDigest], roles: Mapping[int, str]) -> dict[_Part, list[int]]:
    """The ranks of each part of a role, those first whose waits tell the rounds best."""
    return {
        (role, number): ranks
        for role in sorted({*roles.values()}, key=_order)
        for number, ranks in enumerate(_parts(digests, role, [rank for rank in roles if roles[rank] == role]))
    }


def _parts(digests: Mapping[int, RankDigest], role: str, ranks: list[int]) -> list[list[int]]:
    """The ranks of a role by those that share collectives, as actor and critic share none with each other; all of them
    where some rank shares none, and of ranks that generate.
    """
    if role == Role.ROLLOUT.value or len(ranks) > _MOST_COMPARED:
        return [ranks]
    calls = {rank: calls_of(digests[rank]) for rank in ranks}
    parts: list[list[int]] = []
    for rank in ranks:
        its = [part for part in parts if any(len(shared(calls[one], calls[rank])[0]) for one in part)]
        parts = [part for part in parts if part not in its] + [[one for part in its for one in part] + [rank]]
    return parts if all(len(part) > 1 for part in parts) else [ranks]


def _order(role: str) -> tuple[bool, bool, str]:
    """Which roles' waits tell the rounds best: of those that update, then of those that generate."""
    return role != _UPDATE, role != Role.ROLLOUT.value, role


def _ends(
    digests: Mapping[int, RankDigest],
    of_roles: Mapping[_Part, list[int]],
    waits: Mapping[_Part, list[_Wait]],
    ends: Ints,
    by: float,
) -> Iterator[tuple[int, Ints]]:
    """When the rounds end on each rank, given when they end on one role."""
    for role, ranks in of_roles.items():
        if 2 * len(waits[role]) >= len(ends):
            yield from ((rank, _ends_on(rank, ends, waits[role], by)) for rank in ranks)
        else:
            yield from zip(ranks, _ends_at_work([calls_of(digests[rank]) for rank in ranks], ends), strict=True)


def _ends_at_work(calls: Sequence[Calls], ends: Ints) -> Iterator[Ints]:
    """When the rounds end on the ranks of a role that does not wait for others: with a collective that all of them
    share, so that they have the same ones until then; without any, when they end for the other role.
    """
    pairs = [shared(calls[0], its) for its in calls]
    of_all = reduce(np.intersect1d, (mine for mine, _ in pairs))
    for mine, its in pairs:
        met = np.isin(mine, of_all)
        yield latest(mine[met], its[met], ends) if len(of_all) else ends


def _recorded(digests: Mapping[int, RankDigest], of_rank: Mapping[int, Ints]) -> dict[int, RoundEnds]:
    """Those ends of rounds that lie within the records of all ranks."""

    def within(rank: int, own: Ints) -> Flags:
        begin, end = digests[rank].steps.host_start_ns[0], digests[rank].steps.host_end_ns[-1]
        inside: Flags = (own >= begin) & (own <= end) & (np.diff(own, prepend=-1) > 0)
        return inside

    of_all = np.all([within(rank, own) for rank, own in of_rank.items()], axis=0)
    return {rank: tuple(own[of_all].tolist()) for rank, own in of_rank.items()}


def _waits(digests: Mapping[int, RankDigest], ranks: list[int], shorter: float) -> list[_Wait]:
    """The waits of a role's ranks, by time, without those shorter than this share of the longest."""
    pauses = []
    for rank in ranks:
        pieces = digests[rank].pieces
        long = (pieces.owner == RankOwner.HOST) & (pieces.end_ns - pieces.start_ns >= LONG_STALL_NS)
        begin, end = pieces.start_ns[long].tolist(), pieces.end_ns[long].tolist()
        pauses += [Pause(*each, rank) for each in zip(begin, end, strict=True)]
    return [{one.rank: one.begin_ns for one in group} for group in together(pauses, len(ranks), shorter)]


def _begins(waits: list[_Wait]) -> Ints:
    """When the last rank of each wait begins it, ns."""
    return np.array([max(wait.values()) for wait in waits], np.int64)


def _is_regular(ends: Ints) -> bool:
    apart = np.diff(ends)
    median = float(np.median(apart))
    return bool((apart >= median / _MOST_UNEVEN).all() and (apart <= median * _MOST_UNEVEN).all())


def _ends_on(rank: int, ends: Ints, waits: list[_Wait], by: float) -> Ints:
    """When the rounds end on a rank, given when they end for another role: with its own wait that comes as long after
    that as waits of its role do in most rounds, and where it does not wait itself, as long after that.

    Of the waits half a round before and half a round after, those are taken that are nearer to so many rounds later.
    """
    own = _begins(waits)
    apart = float(np.median(np.diff(ends)))
    turns = np.exp(2j * np.pi * np.interp(own, ends, np.arange(len(ends))))
    later = float(np.angle(turns.mean() * np.exp(-2j * np.pi * by))) / (2 * np.pi) + by
    expected = ends + round(later * apart)
    nearest = np.abs(own[:, None] - expected).argmin(axis=0)
    its = np.array([wait.get(rank, -1) for wait in waits], np.int64)[nearest]
    return np.where((its >= 0) & (np.abs(own[nearest] - expected) < apart / 2), its, expected)
