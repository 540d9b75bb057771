"""What `find_unused_parameters` does: DDP's walk of the graph, and its AllReduce of which parameters were used.

The walk comes at the end of each forward pass that DDP will reduce. The AllReduce is the last one of the backward pass,
with one int32 for each parameter: gradients are never integers.

R = ranks, S = steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.facts.transfers import exposed_alone
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.trace.model import Ints


@dataclass(frozen=True, slots=True, eq=False)
class UnusedSearch:
    """The search for unused parameters in every step of every rank, shape (R, S)."""

    walks: Ints
    #: Host time in the walks, ns.
    walk_ns: Ints
    #: AllReduces of what was used, and their transfer with nothing beside it, ns.
    calls: Ints
    exposed_ns: Ints
    #: Parameters of the model; 0 if unknown.
    parameters: int


def unused_search(job: Job) -> UnusedSearch:
    """Find and measure the search for unused parameters."""
    found = job.work(lambda work: work.graph_walks)
    walks, walk_ns = found.graph_walks, found.graph_walk_ns
    calls, exposed = np.zeros_like(walks), np.zeros_like(walks)
    parameters = 0
    for rank, (digest, index) in enumerate(zip(job.digests, job.step_index, strict=True)):
        chosen = _of_usage(digest) if walks[rank].any() else np.zeros(len(digest.collectives), np.bool_)
        if not chosen.any():
            continue
        table = digest.collectives
        calls[rank] = np.bincount(table.step[chosen], minlength=len(digest.steps))[index]
        alone = exposed_alone(job, rank, chosen)
        exposed[rank] = alone.measure(digest.steps.start_ns[index], digest.steps.end_ns[index])
        parameters = max(parameters, int(table.elements[chosen].max()))
    return UnusedSearch(walks, walk_ns, calls, exposed, parameters)


def _of_usage(digest: RankDigest) -> NDArray[np.bool_]:
    """Which collectives reduce what was used: AllReduces of int32 that nothing but DDP's backward pass launches."""
    table, text = digest.collectives, np.array(digest.strings)
    integers = (text[table.kind] == "all_reduce") & (text[table.dtype] == "Int") & (table.step >= 0)
    chosen: NDArray[np.bool_] = integers & ((table.backward >= 0) | (not digest.has_device))
    return chosen
