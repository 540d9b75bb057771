"""Which slow ranks are one finding: those with one cause, and nodes and racks of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np

from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.rules.support import naming
from tb_ddp_doctor.rules.support.causal_split import CAUSAL_SPLIT
from tb_ddp_doctor.trace.model import Floats, Ints

#: Ranks that are late by no less than this share of each other's lateness are one finding.
_COMPARABLE = 0.5
#: The same of nodes most of whose ranks are slow; three ranks of one node are slow by no accident.
_COMPARABLE_NODES = 0.2
_MANY_ON_NODE = 3


class SlowGroup(msgspec.Struct, frozen=True):
    """Slow ranks that are one finding."""

    cause: str
    #: Indices; the first shows the cause itself, if any does.
    ranks: tuple[int, ...]

    @property
    def rows(self) -> Ints:
        return np.array(self.ranks)


class _Unit(msgspec.Struct):
    """Ranks with one cause that stand or fall together: most of a node, or one rank."""

    cause: str
    of_node: bool
    ranks: list[int]

    def late_ns(self, excess_ns: Floats) -> float:
        return float(excess_ns[self.ranks].mean())


def slow_groups(causes: Mapping[int, str], excess_ns: Floats, frame: Frame) -> list[SlowGroup]:
    """The findings on slow ranks, given the causes by rank (index), and what each rank needs longer; latest first.

    The ranks of a node with one cause are one finding if they are most of the node: two that are late by about as much,
    three of them whatever the ratio of their lateness. Such nodes, and single ranks, are one if they are late by about
    as much: beside a rank that is late by far more, another one makes nobody wait. Ranks that are all of a place in the
    mesh (a stage) are a finding without those that are elsewhere.
    """
    # Who shows its cause goes before who has it from its node: the finding describes the first.
    assumed = sorted(_as_their_nodes(causes, frame).items(), key=lambda item: item[1] != causes[item[0]])
    units = sorted(_units(dict(assumed), excess_ns, frame), key=lambda unit: -unit.late_ns(excess_ns))
    groups: list[list[_Unit]] = []
    for unit in units:
        for group in groups:
            first = group[0]
            least = _COMPARABLE_NODES if unit.of_node and first.of_node else _COMPARABLE
            # One split of the sequence makes ranks late by different amounts.
            least *= unit.cause != CAUSAL_SPLIT
            if first.cause == unit.cause and unit.late_ns(excess_ns) >= least * first.late_ns(excess_ns):
                group.append(unit)
                break
        else:
            groups.append([unit])
    made = [
        SlowGroup(group[0].cause, ranks)
        for group in groups
        for ranks in _by_place([rank for unit in group for rank in unit.ranks], frame)
    ]
    return sorted(made, key=lambda group: -float(excess_ns[group.rows].max()))


def _units(causes: Mapping[int, str], excess_ns: Floats, frame: Frame) -> Iterator[_Unit]:
    for cause in dict.fromkeys(reversed(list(causes.values()))):
        ranks = [rank for rank, its in causes.items() if its == cause]
        nodes = {
            node
            for node, count in naming.most_of_nodes(ranks, frame).items()
            if count >= _MANY_ON_NODE or _comparable(excess_ns[[rank for rank in ranks if frame.nodes[rank] == node]])
        }
        units: dict[object, _Unit] = {}
        for rank in ranks:
            of_node = frame.nodes[rank] in nodes
            place = frame.nodes[rank] if of_node else rank
            units.setdefault(place, _Unit(cause, of_node, [])).ranks.append(rank)
        yield from units.values()


def _by_place(ranks: Sequence[int], frame: Frame) -> Iterator[tuple[int, ...]]:
    """Ranks (indices) of one group: those that are all of some places along one axis of the mesh, and then the others.

    All in one part where there are no such places, or no others.
    """
    mesh, some = frame.mesh, np.isin(np.arange(len(frame.ranks)), ranks)
    best = np.zeros_like(some)
    for axis in mesh.axes if len(mesh.axes) > 1 and not mesh.shared(ranks) else ():
        place = mesh.coordinates[:, axis]
        whole = some & (place >= 0) & ~np.isin(place, place[~some])
        if whole.sum() > best.sum():
            best = whole
    if not _MANY_ON_NODE <= best.sum() < len(ranks):
        yield tuple(ranks)
        return
    for side in (True, False):
        yield tuple(rank for rank in ranks if best[rank] == side)


def _comparable(excess_ns: Floats) -> bool:
    return float(excess_ns.min()) >= _COMPARABLE * float(excess_ns.max())


def _as_their_nodes(causes: Mapping[int, str], frame: Frame) -> dict[int, str]:
    """The causes of ranks (indices); where a whole node is slow, ranks that show none have the one of most of it."""
    known: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for rank, cause in causes.items():
        if cause != "unknown":
            known[frame.nodes[rank]][cause] += 1
    slow = naming.whole_nodes(list(causes), frame)
    return {
        rank: known[node].most_common(1)[0][0] if cause == "unknown" and node in slow and known[node] else cause
        for rank, cause, node in ((rank, cause, frame.nodes[rank]) for rank, cause in causes.items())
    }
