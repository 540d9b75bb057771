"""Nodes against each other: which one the others wait for, and whose transfers take longer than is usual.

R = ranks, M = matched collectives of the job's steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from tb_ddp_doctor.facts.links import SLOW_TIMES, Link
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.trace.model import Ints

#: Below this share of the step a node is not worth a look. Healthy jobs on 4 nodes reach 3.2 %.
_LEAST_SHARE = 0.05
#: In a job without a fault the last to arrive changes from node to node, and all are waited for alike.
_TIMES_OTHERS = 3.0


class NodeTraffic(msgspec.Struct, frozen=True, eq=False):
    """What the communication of one node's ranks looks like beside that of the other nodes."""

    name: str
    #: Indices of its ranks.
    ranks: Ints
    #: Collectives that its ranks take part in, and those in which others wait for one of them as the last to arrive.
    calls: int
    last: int
    #: Exposed waiting in a step, ns: of a rank elsewhere for this node, and of a rank of this node for any other rank.
    waited_for_ns: float
    waits_ns: float
    #: How many times as long as usual the transfers take in those of its groups that have peers; None without any.
    slowdown: float | None
    stands_out: bool


def nodes(job: Job, links: Sequence[Link]) -> tuple[NodeTraffic, ...]:
    """The nodes of a job, in the order of their ranks; none where they are unknown, or only one."""
    names = list(dict.fromkeys(job.nodes))
    if len(names) < 2 or "" in names:
        return ()
    node = np.array([names.index(name) for name in job.nodes])
    rows = np.flatnonzero(np.isin(job.matched.step, job.steps))
    last = node[job.waiting.last[rows]]
    segments, part = job.matched.segments.select(rows)
    waiter, exposed_ns = node[job.matched.rank[part]], job.waiting.exposed_ns[part]
    steps = max(len(job.steps), 1)
    waits = job.budget.of("wait")
    members = [np.flatnonzero(node == i) for i in range(len(names))]
    waited_for = np.empty(len(names))
    reached_last = np.empty(len(names), np.int64)
    others_wait = segments.sum(np.where(waiter == segments.each(last), 0, exposed_ns))
    for i, ranks in enumerate(members):
        waited_for[i] = others_wait[last == i].sum() / steps / (len(node) - len(ranks))
        reached_last[i] = np.count_nonzero(others_wait[last == i])
    return tuple(
        NodeTraffic(
            name=name,
            ranks=ranks,
            calls=int(segments.any(waiter == i).sum()),
            last=int(reached_last[i]),
            waited_for_ns=float(waited_for[i]),
            waits_ns=float(waits[ranks].mean()),
            slowdown=(slowdown := _slowdown(links, ranks)),
            stands_out=(slowdown or 1.0) >= SLOW_TIMES
            or (_is_waited_for(waited_for, i, job.step_ns) and _all_are_late(waits.mean(axis=1), ranks, job.step_ns)),
        )
        for i, (name, ranks) in enumerate(zip(names, members, strict=True))
    )


def _is_waited_for(waited_for_ns: np.ndarray, node: int, step_ns: float) -> bool:
    median = float(np.median(np.delete(waited_for_ns, node)))
    return bool(waited_for_ns[node] >= max(_LEAST_SHARE * step_ns, _TIMES_OTHERS * median))


def _all_are_late(waits_ns: np.ndarray, ranks: Ints, step_ns: float) -> bool:
    """Whether each of a node's ranks waits clearly less than the median rank elsewhere: one that is on time is no part
    of a slow node, and then a rank is late, and not its node.
    """
    elsewhere = float(np.median(np.delete(waits_ns, ranks)))
    return bool(waits_ns[ranks].max() <= elsewhere - _LEAST_SHARE * step_ns)


def _slowdown(links: Sequence[Link], ranks: Ints) -> float | None:
    mine = [link for link in links if np.isin(link.traffic.ranks, ranks).any()]
    peers = sum(float(link.peer_ns.sum()) for link in mine)
    return sum(float(link.transfer_ns.sum()) for link in mine) / peers if peers > 0 else None
