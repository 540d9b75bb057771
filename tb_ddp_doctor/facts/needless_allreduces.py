"""AllReduces that a job could do without: of gradients that are reduced again, and of which parameters were used.

Repeated: without `no_sync`, each backward pass of an accumulated step reduces gradients that a later one reduces again.

Used: with `find_unused_parameters`, DDP walks the graph at the end of each forward pass whose gradients it will reduce.
The last AllReduce of the backward pass then says which parameters were used, with one int32 for each: gradients are
never integers.

R = ranks, S = steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.numbering import numbered
from tb_ddp_doctor.facts.transfers import exposed_alone
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.trace.model import Ints


class RepeatedAllReduces(msgspec.Struct, frozen=True, eq=False):
    """AllReduces of backward passes whose gradients a later pass reduces again, of R ranks in S steps."""

    #: AllReduces that are repeated, and backward passes that have some, shape (R, S).
    calls: Ints
    passes: Ints
    #: Transfer of them with nothing beside it, shape (R, S), ns.
    exposed_ns: Ints
    #: Longest exposed one: index of its rank, and ns on that rank's own clock; None if none is exposed.
    longest: tuple[int, int, int] | None
    #: What the traces would need for repeats to be seen, a sentence; "" where they have it.
    lack: str = ""


def repeats(job: Job) -> RepeatedAllReduces:
    """Find and measure the repeated AllReduces of every rank and step."""
    calls, passes, exposed = (np.zeros(job.step_index.shape, np.int64) for _ in range(3))
    if lack := _lack(job):
        return RepeatedAllReduces(calls, passes, exposed, None, lack)
    repeated, each_pass = _of_all_ranks(job, _repeated(job))
    if not repeated.any():
        return RepeatedAllReduces(calls, passes, exposed, None)
    rows = np.flatnonzero(repeated)
    of_pass = numbered(job.calls.rank[rows], job.calls.column("step")[rows], each_pass[rows])
    alone = exposed_alone(job, repeated)
    longest: tuple[int, int, int] | None = None
    if len(alone):
        at = int((alone.end - alone.start).argmax())
        start, end = int(alone.start[at]), int(alone.end[at])
        first = job.axis.instant_at(start)
        longest = (job.axis.rank_at(start), first, first + end - start)
    return RepeatedAllReduces(
        calls=job.sum_by_step(rows),
        passes=job.sum_by_step(rows[np.unique(of_pass, return_index=True)[1]]),
        exposed_ns=job.measure(alone),
        longest=longest,
    )


def _lack(job: Job) -> str:
    if not job.has_device:
        return "It is about the device, and these traces hold none (CPU only)."
    if not (job.calls.column("backward") >= 0).any():
        return "No communication is launched by a backward pass."
    if not (job.calls.column("update") >= 0).any():
        return "No step of an optimizer is annotated, so what belongs to one update is not known."
    if not (job.calls.column("elements") > 0).any():
        return "The traces do not tell the sizes of collectives (torch does since 2.2)."
    return ""


def _repeated(job: Job) -> NDArray[np.bool_]:
    """Which AllReduces a later backward pass repeats, size by size, before the optimizer's next step."""
    calls = job.calls
    step, backward, update, elements = (calls.column(name) for name in ("step", "backward", "update", "elements"))
    repeated = np.zeros(len(calls), np.bool_)
    inside = calls.of_gradients & (step >= 0) & (backward >= 0) & (update >= 0) & (elements > 0)
    rows = np.flatnonzero(inside)
    of_update = numbered(calls.rank[rows], calls.text("group").code[rows], step[rows], update[rows])
    for mine in _of_several_passes(rows, of_update, backward[rows]):
        *earlier, last = _by_pass(backward, mine)
        sizes = Counter(elements[last].tolist())
        for one in earlier:
            repeated[one] = Counter(elements[one].tolist()) == sizes
    return repeated


def _of_all_ranks(job: Job, repeated: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], Ints]:
    """The same with the parts of all ranks where most ranks repeat a matched AllReduce, and the pass of each call.

    A rank whose operators have names that nobody knows shows no passes of its own.
    """
    matched, backward = job.matched, job.calls.column("backward").copy()
    by_most = np.flatnonzero(2 * matched.segments.count(repeated[matched.call]) > matched.parts)
    segments, part = matched.segments.select(by_most)
    call = matched.call[part]
    repeated = repeated.copy()
    repeated[call] = True
    backward[call] = np.where(backward[call] < 0, segments.each(segments.max(backward[call])), backward[call])
    return repeated, backward


def _of_several_passes(rows: Ints, update: Ints, backward: Ints) -> Iterator[Ints]:
    """The rows of each update that several backward passes share."""
    updates = int(update.max(initial=-1)) + 1
    one, has_others = np.empty(updates, np.int64), np.zeros(updates, np.bool_)
    one[update] = backward
    has_others[update[backward != one[update]]] = True
    several = np.flatnonzero(has_others[update])
    order = several[np.argsort(update[several], kind="stable")]
    edges = np.flatnonzero(np.diff(update[order])) + 1
    yield from (mine for mine in np.split(rows[order], edges) if len(mine))


def _by_pass(backward: Ints, rows: Ints) -> list[Ints]:
    """Rows of each backward pass, in order."""
    passes = backward[rows]
    return [rows[passes == one] for one in np.unique(passes)]


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
