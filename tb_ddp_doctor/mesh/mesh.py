"""The mesh of a job: its dimensions, and each rank's coordinates in them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.mesh import messages
from tb_ddp_doctor.mesh.dimensions import by_description, by_pattern, carrying
from tb_ddp_doctor.mesh.groups import Group, groups, name_their_groups, stride
from tb_ddp_doctor.trace.model import Ints
from tb_ddp_doctor.trace.names import Phase

#: Dimensions in the order in which people name them; others come after these.
_ORDER = ("dp_replicate", "dp_shard", "dp", "pp", "cp", "sp", "tp", "ep")


class Dimension(msgspec.Struct, frozen=True):
    """Groups of ranks that divide the job in one way, as tensor parallelism does."""

    #: "dp", "dp_replicate", "dp_shard", "tp", "pp", "ep", "cp", "sp", or several joined ("dp+cp").
    name: str
    #: Ranks of one group.
    size: int
    #: From one rank of a group to the next; 0 where that differs.
    stride: int
    #: Why it is taken for that dimension, where no description names it; "" where one does.
    inferred: str
    #: Whether its ranks are others than those of the axes before it: experts are spread over ranks that other
    #: dimensions divide already.
    is_axis: bool
    #: Its groups, each as the rank numbers in the order of their coordinates.
    groups: tuple[tuple[int, ...], ...]


class Mesh(msgspec.Struct, frozen=True, eq=False):
    """The dimensions of a job, in the order in which people name them, and the coordinates of its R traced ranks.

    Eight ranks with the dimensions dp (2 ranks, stride 4), pp (2, stride 2) and tp (2, stride 1):

        rank   dp  pp  tp
        0       0   0   0
        1       0   0   1
        2       0   1   0
        5       1   0   1
    """

    dimensions: tuple[Dimension, ...]
    #: Place of each traced rank in its group of each dimension, shape (R, D); -1 where it is in none.
    coordinates: Ints

    @property
    def axes(self) -> tuple[int, ...]:
        """The dimensions (indices) that divide the ranks, each in another way."""
        return tuple(i for i, dimension in enumerate(self.dimensions) if dimension.is_axis)

    def place(self, rank: int) -> str:
        """Where a rank (index) is, "dp 2, pp 1, tp 5"; "" in a job of fewer than two dimensions."""
        known = [i for i in self.axes if self.coordinates[rank, i] >= 0]
        if len(self.dimensions) < 2 or len(known) < len(self.axes):
            return ""
        return ", ".join(f"{self.dimensions[i].name} {self.coordinates[rank, i]}" for i in known)

    def shared(self, ranks: Collection[int]) -> str:
        """What some ranks (indices) alone share, "pp 3" or "dp 1, pp 3"; "" where they are not all ranks of a place.

        They are all ranks with the same coordinates along some of the axes, the fewest that tell them.
        """
        some = np.zeros(len(self.coordinates), np.bool_)
        some[list(ranks)] = True
        if len(self.axes) < 2 or not 1 < some.sum() < len(some):
            return ""
        first = int(some.argmax())
        same = [i for i in self.axes if (self.coordinates[some, i] == self.coordinates[first, i]).all()]
        there = (self.coordinates[:, same] == self.coordinates[first, same]).all(axis=1)
        if not same or (there != some).any() or (self.coordinates[first, same] < 0).any():
            return ""
        return ", ".join(f"{self.dimensions[i].name} {self.coordinates[first, i]}" for i in same)


def mesh(job: Job) -> Mesh:
    """The dimensions that the process groups and messages of a job show; none where they show none.

    Where all collectives name their process group, dimensions that none of them is of are left out.
    """
    every, trains = groups(job), _has_backward(job)
    by_name: defaultdict[str, list[tuple[int, ...]]] = defaultdict(list)
    why: dict[str, str] = {}
    described = by_description(every)
    if name_their_groups(job):
        described = carrying(described, every, messages.sends(job, {}).pairs)
    for ranks, names in described.items():
        for name in names:
            by_name[name].append(ranks)
    sends = messages.sends(job, described)
    if "pp" not in by_name and (stages := messages.stages(sends)):
        by_name["pp"] = stages
        why["pp"] = "neighbours send to each other, both ways"
    if trains and "cp" not in by_name and (rings := messages.rings(sends)):
        by_name["cp"] = rings
        why["cp"] = "its ranks send around a ring, one way"
    known = {*described, *(tuple(sorted(ranks)) for name in why for ranks in by_name[name])}
    for name, its, reason in _by_pattern([group for group in every if group.ranks not in known], trains=trains):
        if name not in by_name:
            by_name[name] = its
            why[name] = reason
    dimensions = _with_axes([_dimension(name, its, why.get(name, "")) for name, its in by_name.items()], job.world_size)
    dimensions.sort(key=lambda one: (_order(one.name), one.name))
    return Mesh(tuple(dimensions), _coordinates(dimensions, job.ranks))


def _by_pattern(groups: Sequence[Group], *, trains: bool) -> Iterator[tuple[str, list[tuple[int, ...]], str]]:
    """Dimensions by what runs in some groups: their name, ranks and why.

    Where parameters are sharded within one kind of groups and gradients reduced across another kind (HSDP), data
    parallelism has these two parts; else it is one dimension.
    """
    groups_of: defaultdict[str, set[tuple[int, ...]]] = defaultdict(set)
    why: dict[str, str] = {}
    for group in groups:
        for uses in group.uses:
            name, reason = by_pattern(uses, trains=trains)
            groups_of[name].add(group.ranks)
            why[name] = reason
    if groups_of["dp"] and all(
        len({*one} & {*other}) < 2 for one in groups_of["dp"] for other in groups_of["dp_shard"]
    ):
        if groups_of["dp_shard"]:
            groups_of["dp_replicate"], why["dp_replicate"] = groups_of.pop("dp"), why["dp"]
    elif groups_of["dp_shard"]:
        groups_of["dp"] |= groups_of.pop("dp_shard")
        why.setdefault("dp", why["dp_shard"])
    for name, its in groups_of.items():
        if name and its:
            yield name, sorted(its), why[name]


def _has_backward(job: Job) -> bool:
    return any(bool(digest.work.phases.host_ns[:, Phase.BACKWARD].any()) for digest in job.digests)


def _order(name: str) -> int:
    first, *_ = name.split("+")
    return _ORDER.index(first) if first in _ORDER else len(_ORDER)


def _dimension(name: str, groups: Sequence[tuple[int, ...]], why: str) -> Dimension:
    """The dimension of some groups: those of the size that most of them have, no rank in two of them."""
    size = Counter(map(len, groups)).most_common(1)[0][0]
    chosen: list[tuple[int, ...]] = []
    taken: set[int] = set()
    for ranks in sorted(groups):
        if len(ranks) == size and not taken & set(ranks):
            chosen.append(ranks)
            taken |= set(ranks)
    strides = {stride(ranks) for ranks in chosen}
    return Dimension(name, size, strides.pop() if len(strides) == 1 else 0, why, False, tuple(chosen))


def _with_axes(dimensions: Sequence[Dimension], world_size: int) -> list[Dimension]:
    """The dimensions, with `is_axis` set: named ones first, a dimension is an axis if none of its groups has two ranks
    of one group of an axis before it, and if all axes together have no more places than the job has ranks.
    """
    order = sorted(dimensions, key=lambda one: ("ep" in one.name, "+" in one.name, bool(one.inferred), one.name))
    checked: list[Dimension] = []
    places = 1
    for dimension in order:
        crosses = all(_cross(dimension, axis) for axis in checked if axis.is_axis)
        is_axis = crosses and places * dimension.size <= max(world_size, 1)
        places *= dimension.size if is_axis else 1
        checked.append(msgspec.structs.replace(dimension, is_axis=is_axis))
    return checked


def _cross(one: Dimension, other: Dimension) -> bool:
    """Whether no two ranks are together in a group of both."""
    group_of = _index(other.groups)
    for ranks in one.groups:
        theirs = [group_of[rank][0] for rank in ranks if rank in group_of]
        if len(set(theirs)) < len(theirs):
            return False
    return True


def _index(groups: Sequence[tuple[int, ...]]) -> Mapping[int, tuple[int, int]]:
    """Of each rank number its group and its place in it."""
    return {rank: (i, place) for i, ranks in enumerate(groups) for place, rank in enumerate(ranks)}


def _coordinates(dimensions: Sequence[Dimension], ranks: Ints) -> Ints:
    coordinates = np.full((len(ranks), len(dimensions)), -1, np.int64)
    for i, dimension in enumerate(dimensions):
        places = _index(dimension.groups)
        coordinates[:, i] = [places[rank][1] if rank in places else -1 for rank in ranks.tolist()]
    return coordinates
