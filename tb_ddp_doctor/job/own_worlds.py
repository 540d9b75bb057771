"""Digests of processes that do not count their ranks together, as those of one job (`discover.own_worlds`).

An engine's tensor-parallel group has the ranks 0 and 1, as has a group of the ranks that train, and each calls it "0".
Ranks in groups and messages within a world become those of the job. What goes from one world to another, as the
broadcast of the weights, has more ranks than some world that takes part in it: its ranks are as the group counts them.

Pure: digests in, digests out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
import numpy as np
from msgspec.structs import replace

from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.trace.model import Indices, Ints

_NUMBER = re.compile(r"\d+")


class World(msgspec.Struct, frozen=True):
    """A world within a job: the job's rank of its first one, and how many ranks it has."""

    first: int
    size: int

    def of_job(self, ranks: str) -> str:
        """Ranks as a trace spells them, "[0, 1]", as those of the job."""
        numbers = [int(number) for number in _NUMBER.findall(ranks)]
        if not numbers or max(numbers) >= self.size:
            return ranks
        return _NUMBER.sub(lambda number: str(int(number[0]) + self.first), ranks)


class Worlds:
    """The worlds of a job, by rank of the job."""

    def __init__(self, digests: Mapping[int, RankDigest], worlds: Mapping[int, World]) -> None:
        self._worlds = worlds
        #: Names of groups that have ranks of several worlds.
        self._between = {
            digests[rank].strings[group]
            for rank, world in worlds.items()
            if rank in digests
            for group in np.unique(
                digests[rank].collectives.group[digests[rank].collectives.group_size > world.size]
            ).tolist()
        }

    def in_job(self, rank: int, digest: RankDigest) -> RankDigest:
        """A rank's digest with ranks of the job."""
        world = self._worlds.get(rank)
        if world is None or not world.first:
            return digest
        strings = list(digest.strings)
        calls = digest.collectives
        ranks: Indices = calls.group_ranks.copy()
        for group, its in sorted({*zip(calls.group.tolist(), calls.group_ranks.tolist(), strict=True)}):
            if strings[group] not in self._between and (of_job := world.of_job(strings[its])) != strings[its]:
                ranks[(calls.group == group) & (calls.group_ranks == its)] = len(strings)
                strings.append(of_job)

        def peers(own: Ints) -> Ints:
            return np.where((own >= 0) & (own < world.size), own + world.first, own)

        return replace(
            digest,
            strings=tuple(strings),
            collectives=replace(calls, group_ranks=ranks),
            messages=replace(digest.messages, peer=peers(digest.messages.peer)),
            message_ends=replace(digest.message_ends, peer=peers(digest.message_ends.peer)),
        )
