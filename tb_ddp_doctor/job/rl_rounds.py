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

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.digest.round_trips import ROUND_TRIP
from tb_ddp_doctor.digest.rounds import ROUND, RoundEnds
from tb_ddp_doctor.digest.trace_contents import MARKED
from tb_ddp_doctor.job import job_kind
from tb_ddp_doctor.trace.model import Ints
from tb_ddp_doctor.trace.program_names import Program, Role

#: A group of ranks as its traces name it (group, ranks, size), and what they do in it.
_Kind: TypeAlias = tuple[str, str, int, str]


def rounds_of(digests: Mapping[int, RankDigest]) -> dict[int, RoundEnds]:
    """Where the rounds end of each rank that is to be digested again; empty where the steps of all fit each other.

    Where no sync is seen, there are no ends: the whole trace of each rank is one step then.
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
    return next(_shared_rounds(usable, roles), dict.fromkeys(usable, ()))


def _shared_rounds(digests: Mapping[int, RankDigest], roles: Mapping[int, str]) -> Iterator[dict[int, RoundEnds]]:
    """The rounds by each rank that updates and takes part in the sync, where all ranks can tell them."""
    calls = {rank: _arrivals(digest) for rank, digest in digests.items()}
    for rank, digest in digests.items():
        others = [calls[other] for other in digests if roles[other] != roles[rank]]
        if roles[rank] != Role.UPDATE.value or not digest.contents.steps_from:
            continue
        ends = _last_of_syncs(digest, calls[rank], others)
        of_rank = {other: _ends_on(calls[rank], calls[other], ends) for other in digests}
        if len(ends) > 1 and all(len(each) == len(ends) for each in of_rank.values()):
            yield of_rank


def _arrivals(digest: RankDigest) -> dict[_Kind, Ints]:
    """When each collective of more than one rank begins on the device, ns, by its group and kind."""
    table, texts = digest.collectives, digest.strings
    rows: defaultdict[_Kind, list[int]] = defaultdict(list)
    columns = (table.group, table.group_ranks, table.group_size, table.kind, table.arrival_ns)
    for group, ranks, size, kind, arrival in zip(*(column.tolist() for column in columns), strict=True):
        if size != 1:
            rows[texts[group], texts[ranks], size, texts[kind]].append(arrival)
    return {kind: np.array(arrivals, np.int64) for kind, arrivals in rows.items()}


def _last_of_syncs(digest: RankDigest, mine: Mapping[_Kind, Ints], others: Sequence[Mapping[_Kind, Ints]]) -> Ints:
    """When the last collective of each weight sync begins on a rank that updates, ns: of those that it shares with
    ranks of other roles, each that is followed by one of another step, and the last one.
    """
    shared = [mine[kind] for kind in mine if any(_is_as_often(kind, mine, other) for other in others)]
    arrivals = np.sort(np.concatenate(shared)) if shared else np.empty(0, np.int64)
    step = digest.collectives.step[np.searchsorted(digest.collectives.arrival_ns, arrivals)]
    ends: Ints = arrivals[np.append(np.diff(step) != 0, True)[: len(arrivals)]]
    return ends


def _ends_on(mine: Mapping[_Kind, Ints], its: Mapping[_Kind, Ints], ends: Ints) -> RoundEnds:
    """When another rank begins the last collective that it shares with this one up to each of these, ns; empty where it
    shares none up to some.
    """
    latest = np.full(len(ends), -1, np.int64)
    for kind in mine:
        if _is_as_often(kind, mine, its):
            place = np.searchsorted(mine[kind], ends, side="right") - 1
            latest = np.maximum(latest, np.where(place >= 0, its[kind][place], -1))
    return tuple(latest.tolist()) if (np.diff(latest, prepend=-1) > 0).all() else ()


def _is_as_often(kind: _Kind, mine: Mapping[_Kind, Ints], its: Mapping[_Kind, Ints]) -> bool:
    """Whether both ranks have as many of these collectives: the n-th of one is the n-th of the other then."""
    return len(mine[kind]) == len(its.get(kind, ()))
