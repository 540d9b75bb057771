"""Which dimension of the job a process group is of: by its description, else by what runs in it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from tb_ddp_doctor.mesh.groups import Group, Uses
from tb_ddp_doctor.trace import names

#: Of a group's calls of one kind this share comes from the backward pass where they carry gradients.
_GRADIENTS = 0.7
#: How torch describes the group of all ranks that it makes itself.
_OF_ALL = "default_pg"
#: Kinds of calls that exchange tokens between experts, as `trace.names` has them.
EXCHANGES = ("all_to_all", "dispatch", "combine")


def by_description(groups: Iterable[Group]) -> dict[tuple[int, ...], tuple[str, ...]]:
    """The dimension of each group (its ranks) whose descriptions name it, as "tp", or several joined ("dp+cp").

    Experts may be spread over just the ranks of another dimension: ("dp", "ep").

    A group may span several dimensions of which all but one have one rank: its dimension is that one. Of Megatron-LM's
    16 ranks with TP 2, CP 1, DP 2 and PP 4:

        TENSOR_MODEL_PARALLEL_GROUP          [0, 1]    tp has 2 ranks
        TENSOR_AND_CONTEXT_PARALLEL_GROUP    [0, 1]    tp x cp has 2, so cp has 1
        DATA_PARALLEL_GROUP_WITH_CP          [0, 2]    dp x cp has 2, so this is dp

    A group that spans several dimensions with groups of their own is left out if nothing runs in it.
    """
    every = tuple(groups)
    spans = {
        group.ranks: [named for said in group.descriptions if (named := names.dimensions(said))] for group in every
    }
    size = _sizes(spans)
    chosen: dict[tuple[int, ...], tuple[str, ...]] = {}
    for ranks, several in spans.items():
        left = sorted({"+".join(sorted(each for each in named if size.get(each, 2) > 1)) for named in several} - {""})
        if left:
            best = min(left, key=lambda name: (name.count("+"), "ep" in name, name))
            chosen[ranks] = (best, "ep") if "ep" in left and "+" not in best and best != "ep" else (best,)
    alone = {name for names in chosen.values() for name in names}
    used = {group.ranks for group in every if group.uses}
    return {ranks: names for ranks, names in chosen.items() if ranks in used or not _is_union(names[0], alone)}


def _is_union(name: str, alone: Collection[str]) -> bool:
    """Whether a name joins several dimensions ("ep+pp+tp") each of which has groups of its own."""
    parts = name.split("+")
    return len(parts) > 1 and all(part in alone for part in parts)


def _sizes(spans: Mapping[tuple[int, ...], Iterable[frozenset[str]]]) -> dict[str, int]:
    """Ranks along each dimension, as far as the groups tell: of a group of one, and of one that has one unknown."""
    known: dict[str, int] = {}
    todo = [(len(ranks), named) for ranks, several in spans.items() for named in several]
    for _ in range(len(todo) + 1):
        before = len(known)
        for ranks, named in todo:
            unknown = [each for each in named if each not in known]
            product = 1
            for each in named:
                product *= known.get(each, 1)
            # Experts are spread over ranks of other dimensions: their groups' sizes are no products.
            if len(unknown) == 1 and ranks % product == 0 and ("ep" not in named or len(named) == 1):
                known[unknown[0]] = ranks // product
        if len(known) == before:
            break
    return known


def carrying(
    described: Mapping[tuple[int, ...], tuple[str, ...]], groups: Iterable[Group], pairs: Collection[tuple[int, int]]
) -> dict[tuple[int, ...], tuple[str, ...]]:
    """What `by_description` found, without dimensions none of whose groups carries anything in the record.

    A framework may make groups for dimensions that a job does not use. `pairs` are the ranks of each message, sender
    and receiver.
    """
    used = {name for group in groups for name in _carried(group, described.get(group.ranks, ()))}
    for name in {name for its in described.values() for name in its} - used:
        group_of = {rank: ranks for ranks, its in described.items() if name in its for rank in ranks}
        if any(one in group_of and other in group_of[one] for one, other in pairs):
            used.add(name)
    left = {ranks: tuple(name for name in its if name in used) for ranks, its in described.items()}
    return {ranks: its for ranks, its in left.items() if its}


def _carried(group: Group, its: Sequence[str]) -> set[str]:
    """Which of a group's dimensions the collectives among its ranks are of; all of them if nothing says which.

    What runs in torch's group of all ranks is of no other group, though this may have all ranks too.
    """
    if not group.uses or set(group.used) == {_OF_ALL}:
        return set()
    said = {dimension for description in group.used for dimension in names.dimensions(description)}
    carried = {name for name in its if said & set(name.split("+"))}
    if "" in group.used:
        kinds = {kind in EXCHANGES for uses in group.uses for kind in uses}
        carried |= {name for name in its if (name == "ep") in kinds}
    return carried or set(its)


def by_pattern(uses: Mapping[str, Uses], *, trains: bool) -> tuple[str, str]:
    """The dimension that the collectives of a process group show, and why; ("", "") where they show none.

    `trains` says that the job has backward passes. Activations are reduced in both directions, gradients by the
    backward pass, or after it by the optimizer. Of data parallelism, "dp_shard" are the groups that gather parameters.
    """
    if any(kind in uses for kind in EXCHANGES):
        return "ep", "its ranks exchange tokens (AllToAll)"
    gathers = uses.get("all_gather")
    reduces = uses.get("reduce_scatter") if gathers else uses.get("all_reduce")
    if not reduces:
        return "", ""
    if not trains:
        return "tp", "its ranks reduce activations, and there is no backward pass"
    of_gradients = reduces.from_backward == 0 or reduces.from_backward >= _GRADIENTS * reduces.calls
    if of_gradients and gathers:
        return "dp_shard", "its ranks gather parameters and scatter gradients"
    if of_gradients:
        return "dp", "its ranks reduce gradients"
    return "tp", "its ranks reduce activations, in forward and in backward"
