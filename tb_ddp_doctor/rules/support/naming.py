"""How rules name ranks, by the nodes, racks and rails that they are; and functions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.wording import listing, ranks

_ADDRESS = re.compile(r" object at 0x[0-9a-f]+")
#: Of so many nodes the same place on each is no chance.
_FEWEST_NODES = 3
#: A node's name whose last number is the node's own and whose earlier ones are its rack's.
_RACK = re.compile(r"(.*[0-9])[^0-9.]+[0-9]+(?:\..*)?")


def who(affected: Sequence[int], frame: Frame) -> str:
    """Ranks (indices), and the nodes, the rack or the rail that they are: "rank 1", "ranks 616-623 (all of node77)",
    "ranks 0-31 (all 4 nodes of rack2)", "ranks 3, 11 and 19 (local rank 3 of all 3 nodes)". In a job of several
    dimensions, the coordinates that they share: "rank 37 (dp 2, pp 1, tp 5)", "ranks 6, 7, 14 and 15 (all of pp 3)".

    A node or a coordinate is named only if all its traced ranks are affected: one that is well rules out what they
    share.
    """
    numbers = frame.rank_numbers(np.sort(np.asarray(affected, np.int64)))
    if len(affected) == 1 and (place := frame.mesh.place(affected[0])):
        return f"{ranks(numbers)} ({place})"
    if place := frame.mesh.shared(affected):
        return f"{ranks(numbers)} (all of {place})"
    if (rail := _rail(affected, frame)) is not None:
        return f"{ranks(numbers)} (local rank {rail} of all {len(set(frame.nodes))} nodes)"
    whole = list(whole_nodes(affected, frame))
    inside = [int(frame.ranks[rank]) for rank in affected if frame.nodes[rank] in whole]
    remaining = [int(frame.ranks[rank]) for rank in affected if frame.nodes[rank] not in whole]
    parts = [f"{ranks(inside)} ({_of_nodes(whole, frame)})"] if inside else []
    if remaining:
        parts.append(ranks(remaining))
    return listing(parts)


def _of_nodes(whole: Sequence[str], frame: Frame) -> str:
    """Whole nodes by their names, or by the rack that they are."""
    racks = {node: rack(node) for node in frame.nodes}
    named = {racks[node] for node in whole}
    name = named.pop() if len(whole) > 1 and len(named) == 1 and len(set(racks.values())) > 1 else ""
    if name and len(whole) == sum(each == name for each in racks.values()):
        return f"all {len(whole)} nodes of {name}"
    return f"all of {listing(whole)}"


def rack(node: str) -> str:
    """The rack that a node's name tells, "rack2" of "rack2-node07" and "r12" of "r12n03"; "" if it tells none."""
    rack_name = _RACK.fullmatch(node)
    return rack_name[1] if rack_name else ""


def _rail(affected: Sequence[int], frame: Frame) -> int | None:
    """The place on its node that each of these ranks (indices) has, if they are those of all nodes, at least three."""
    nodes = set(frame.nodes)
    if len(nodes) < _FEWEST_NODES or "" in nodes or len(affected) != len(nodes) or len(nodes) == len(frame.nodes):
        return None
    on_node: dict[str, list[int]] = {}
    for rank in np.argsort(frame.ranks, kind="stable").tolist():
        on_node.setdefault(frame.nodes[rank], []).append(rank)
    places = {on_node[frame.nodes[rank]].index(rank) for rank in affected}
    hit = {frame.nodes[rank] for rank in affected}
    return places.pop() if len(places) == 1 and hit == nodes else None


def whole_nodes(affected: Sequence[int], frame: Frame) -> dict[str, int]:
    """Nodes of several ranks all of which are affected (indices), with their number of ranks; none without another."""
    size = Counter(frame.nodes)
    return {node: count for node, count in most_of_nodes(affected, frame).items() if count == size[node]}


def most_of_nodes(affected: Sequence[int], frame: Frame) -> dict[str, int]:
    """Nodes of several ranks most of which are affected (indices), and how many are; none if there is no other node."""
    size = Counter(frame.nodes)
    hit = Counter(frame.nodes[rank] for rank in affected)
    return {
        node: count
        for node, count in hit.items()
        if node and count > 1 and size[node] < min(2 * count, len(frame.ranks))
    }


def function(name: str) -> str:
    """A Python function as torch spells it, "src/train.py(41): step": "step (src/train.py:41)"."""
    source = names.source(name)
    return f"{source[2]} ({source[0]}:{source[1]})" if source else _ADDRESS.sub("", name)
