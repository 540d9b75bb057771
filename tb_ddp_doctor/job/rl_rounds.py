"""The rounds of reinforcement learning where neither a ProfilerStep nor a role's annotation marks them on all ranks.

A process that generates looks like a server, and one that updates like any training loop: each trace alone has steps
of another kind, which have nothing to do with each other. What ranks of different roles do together is the weight
sync, and between two syncs the update has at least one step:

    rollout  [graphs....][bc][bc]  [graphs....][bc][bc]  [graphs....][bc][bc]
    update   ........[up][bc][bc]  ........[up][bc][bc]  ........[up][bc][bc]
                               |0                    |1                    |

A rank that takes no part in the sync, as those that update beside the one that sends, ends a round after the last
collective that it shares with that one.

Pure: digests in; of each rank, where its rounds end out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

import numpy as np

from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.digest.round_trips import ROUND_TRIP
from tb_ddp_doctor.digest.rounds import ROUND, RoundEnds
from tb_ddp_doctor.digest.trace_contents import MARKED
from tb_ddp_doctor.job import job_kind
from tb_ddp_doctor.job.rl_pauses import ends_apart, rounds_by_pauses
from tb_ddp_doctor.job.shared_calls import Calls, calls_of, latest, shared
from tb_ddp_doctor.trace.model import Ints
from tb_ddp_doctor.trace.program_names import Program, Role

_UPDATE = Role.UPDATE.value
#: So many ranks of each side are tried: others take part in the same syncs, or in none.
_TRIED = 8
#: The last collective that ranks share before the sync is before it by less than this share of a round.
_NEAR = 0.5


def rounds_of(
    digests: Mapping[int, RankDigest], again: Callable[[Mapping[int, RoundEnds]], Mapping[int, RankDigest]]
) -> dict[int, RoundEnds]:
    """Where the rounds end of each rank that is to be digested again; empty where the steps of all fit each other.

    Where no sync is seen, there are no ends: the whole trace of each rank is one step then. `again` digests ranks with
    such ends: a digest has no pauses of what is outside of its steps.
    """
    usable = {rank: digest for rank, digest in digests.items() if len(digest.steps)}
    marks = {digest.contents.steps_from for digest in usable.values()}
    if len(marks) > 1 and ROUND_TRIP in marks and job_kind.program_of(usable.values()) is Program.SERVING:
        # Not all ranks of a server read tokens back, so that only some of them have iterations.
        return dict.fromkeys(usable, ())
    if marks in ({MARKED}, {ROUND}, {""}) or job_kind.program_of(usable.values()) is not Program.RL:
        return {}
    roles = {rank: job_kind.role(digest) for rank, digest in usable.items()}
    if len({*roles.values()} - {""}) < 2:
        return {}
    if by_sync := next(_shared_rounds(usable, roles), None):
        return by_sync
    in_part = {rank: () for rank, digest in usable.items() if digest.contents.steps_from}
    return rounds_by_pauses({**usable, **again(in_part)}, roles) or dict.fromkeys(usable, ())


def _shared_rounds(digests: Mapping[int, RankDigest], roles: Mapping[int, str]) -> Iterator[dict[int, RoundEnds]]:
    """The rounds by ranks that update and take part in the sync, where all ranks can tell them."""
    calls = {rank: calls_of(digest) for rank, digest in digests.items()}
    updates = [rank for rank in digests if roles[rank] == _UPDATE and digests[rank].contents.steps_from]
    others = [rank for rank in digests if roles[rank] != _UPDATE][:_TRIED]
    takes_part = (rank for rank in updates if any(len(shared(calls[rank], calls[one])[0]) for one in others))
    for rank in islice(takes_part, _TRIED):
        pairs = {other: shared(calls[rank], calls[other]) for other in digests}
        ends = _last_of_syncs(digests[rank], [pairs[other][0] for other in digests if roles[other] != _UPDATE])
        of_rank = {other: latest(*each, ends) for other, each in pairs.items()}
        peers = [one for one in digests if roles[one] == _UPDATE]
        of_rank |= dict(_through_peers(calls, peers, of_rank, rank))
        of_rank |= dict(_through_other_senders(calls, peers, of_rank, [one for one in pairs if not len(pairs[one][0])]))
        apart = {one: digests[one] for one in digests if not (of_rank[one] >= 0).any()}
        of_rank |= ends_apart(apart, {one: roles[one] for one in apart}, ends)
        # A record that begins after a sync, or ends before one, does not have it.
        ordered = np.all([np.diff(begins, prepend=-1) > 0 for begins in of_rank.values()], axis=0)
        if ordered.sum() > 1:
            yield {other: tuple(begins[ordered].tolist()) for other, begins in of_rank.items()}


def _through_peers(
    calls: Mapping[int, Calls], updates: Sequence[int], of_rank: Mapping[int, Ints], sender: int
) -> Iterator[tuple[int, Ints]]:
    """Where the rounds end of ranks that update and share a barrier a round with the one that sends, or nothing, as
    with tensor and data parallelism: after the last collective that they share with a peer which shares more.
    """

    def is_near(mine: Ints, ends: Ints) -> bool:
        before = ends - latest(mine, mine, ends)
        return len(ends) > 1 and bool(np.median(before) < _NEAR * np.median(np.diff(ends)))

    near = [rank for rank in updates if is_near(shared(calls[sender], calls[rank])[0], of_rank[sender])]
    for rank in updates:
        pairs = ((peer, shared(calls[peer], calls[rank])) for peer in near[:_TRIED] if rank not in near)
        for peer, (mine, its) in pairs:
            if is_near(mine, of_rank[peer]):
                yield rank, latest(mine, its, of_rank[peer])
                break


def _through_other_senders(
    calls: Mapping[int, Calls], updates: Sequence[int], of_rank: Mapping[int, Ints], apart: Sequence[int]
) -> Iterator[tuple[int, Ints]]:
    """Where the rounds end of ranks that share nothing with the rank that sends, since another one sends them the
    weights, from one to the other: after the last that they got from it.
    """
    for rank in apart:
        for peer in updates:
            mine, its = shared(calls[peer], calls[rank])
            if len(mine):
                yield rank, latest(mine, its, of_rank[peer])
                break


def _last_of_syncs(digest: RankDigest, shared: Sequence[Ints]) -> Ints:
    """When the last collective of each weight sync begins on a rank that updates, ns: of those that it shares with
    ranks of other roles, each that is followed by one of another step, and the last one.
    """
    arrivals = np.unique(np.concatenate(shared))
    step = digest.collectives.step[np.searchsorted(digest.collectives.arrival_ns, arrivals)]
    ends: Ints = arrivals[np.append(np.diff(step) != 0, True)[: len(arrivals)]]
    return ends
