"""What `find_unused_parameters` does: DDP's walk of the graph, and its AllReduce of which parameters were used.

The walk comes at the end of each forward pass that DDP will reduce. The AllReduce is the last one of the backward pass,
with one int32 for each parameter: gradients are never integers.

R = ranks, S = steps.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.facts.transfers import exposed_alone
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.trace.model import Ints


class UnusedSearch(msgspec.Struct, frozen=True, eq=False):
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
    graph = job.work(lambda work: work.graph_walks)
    walks, walk_ns = graph.graph_walks, graph.graph_walk_ns
    calls, exposed = np.zeros_like(walks), np.zeros_like(walks)
    searches = np.asarray(walks.any(axis=1))
    chosen = _of_usage(job) & searches[job.calls.rank]
    if not chosen.any():
        return UnusedSearch(walks, walk_ns, calls, exposed, 0)
    parameters = int(job.calls.column("elements")[chosen].max(initial=0))
    exposed = job.measure(exposed_alone(job, chosen))
    return UnusedSearch(walks, walk_ns, job.sum_by_step(np.flatnonzero(chosen)), exposed, parameters)


def _of_usage(job: Job) -> NDArray[np.bool_]:
    """Which calls reduce what was used: AllReduces of int32 that nothing but DDP's backward pass launches."""
    calls = job.calls
    integers = calls.text("kind").where("all_reduce".__eq__) & calls.text("dtype").where("Int".__eq__)
    has_device = np.array([digest.has_device for digest in job.digests], np.bool_)[calls.rank]
    chosen: NDArray[np.bool_] = integers & (calls.column("step") >= 0)
    return chosen & ((calls.column("backward") >= 0) | ~has_device)
