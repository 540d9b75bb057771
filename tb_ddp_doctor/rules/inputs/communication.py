"""What rules ask of communication and waiting. M = matched collectives. R = ranks, S = steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tb_ddp_doctor.findings import Network
from tb_ddp_doctor.job.budget import arrived
from tb_ddp_doctor.job.communication import Traffic, communication
from tb_ddp_doctor.job.links import Link, links
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.job.pipeline import Pipeline, pipeline
from tb_ddp_doctor.job.repeats import Repeats, repeats
from tb_ddp_doctor.job.sharding import Sharding, sharding
from tb_ddp_doctor.job.transfers import Transfers, transfers
from tb_ddp_doctor.job.unused import UnusedSearch, unused_search
from tb_ddp_doctor.rules.inputs.frame import MissingInputError, needs_matches
from tb_ddp_doctor.trace.model import Ints


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """Who was late at which collective."""

    #: Shape (M,): step number, index of the rank that arrived last, kind.
    step: Ints
    last: Ints
    kind: tuple[str, ...]
    #: Exposed wait of the rank that waited longest, shape (M,), ns, and that rank's index.
    longest_wait_ns: Ints
    longest_waiter: Ints
    #: When that rank arrived and when the wait ended, on its own clock, shape (M,), ns.
    wait_start_ns: Ints
    wait_end_ns: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Absent:
    """Waiting for ranks that have no trace."""

    #: Exposed, shape (R, S), ns.
    wait_ns: Ints
    #: The ranks without a trace.
    ranks: tuple[int, ...]
    #: The longest wait of the rank (index) that waits most, on its own clock, ns; and in what.
    waiter: int
    start_ns: int
    end_ns: int
    kind: str


def _arrivals(job: Job) -> Arrivals:
    if len(job.ranks) < 2:
        raise MissingInputError("It compares ranks, and only one rank's trace is here.")
    if not len(job.matched):
        raise MissingInputError("No collective could be matched between ranks, so nobody's waiting is known.")
    waiting, matched = job.waiting, job.matched
    waiter = waiting.exposed_ns.argmax(axis=1)
    each = np.arange(len(matched))
    start = np.where(matched.present, matched.arrival_ns, 0)[each, waiter]
    last = waiting.last_ns
    end = start + np.maximum(last - waiting.arrival_ns[each, waiter], 0)
    return Arrivals(
        step=matched.step,
        last=waiting.last,
        kind=matched.kind,
        longest_wait_ns=waiting.exposed_ns[each, waiter],
        longest_waiter=waiter,
        wait_start_ns=start,
        wait_end_ns=end,
    )


def _absent(job: Job) -> Absent:
    wait_ns = job.waiting.absent_ns
    waiter = int(wait_ns.sum(axis=1).argmax())
    if not wait_ns[waiter].any():
        return Absent(wait_ns, job.missing_ranks, waiter, 0, 0, "")
    digest = job.digests[waiter]
    start, end = arrived(digest, job.matched, waiter, job.waiting.last_ns, job.clock)
    longest = int(np.where(np.isin(digest.collectives.step, job.step_index[waiter]), end - start, -1).argmax())
    kind = digest.strings[digest.collectives.kind[longest]]
    return Absent(wait_ns, job.missing_ranks, waiter, int(start[longest]), int(end[longest]), kind)


def _transfers(job: Job) -> Transfers:
    needs_matches(job)
    return transfers(job)


def _links(job: Job) -> tuple[Link, ...]:
    """Empty where nothing can be compared: a rule that only asks for a cause is applicable all the same."""
    return links(job, communication(job))


def _repeats(job: Job) -> Repeats:
    return repeats(job)


def _communication(job: Job) -> tuple[Traffic, ...]:
    needs_matches(job)
    return communication(job)


def _unused_search(job: Job) -> UnusedSearch:
    return unused_search(job)


def _network(job: Job) -> Network | None:
    return job.network


def _sharding(job: Job) -> Sharding | None:
    needs_matches(job)
    scattering = [digest for digest in job.digests if "reduce_scatter" in digest.strings]
    if scattering and not any((digest.collectives.backward >= 0).any() for digest in scattering):
        raise MissingInputError(
            "There are reduce-scatters, but no backward pass that launches them: record the host as well "
            "(activities=[CPU, CUDA])."
        )
    return sharding(job)


def _pipeline(job: Job) -> Pipeline | None:
    found = pipeline(job)
    if not found and any({"send", "recv"} & {*digest.strings} or len(digest.messages) for digest in job.digests):
        raise MissingInputError(
            "Ranks send to each other, but the traces do not show a pipeline: torch tells who since 2.4, with "
            "activities=[CPU, CUDA] on every rank."
        )
    return found


#: The inputs made here, by the name of a rule's parameter.
PROVIDERS: dict[str, Callable[[Job], object]] = {
    "arrivals": _arrivals,
    "absent": _absent,
    "transfers": _transfers,
    "links": _links,
    "repeats": _repeats,
    "communication": _communication,
    "unused_search": _unused_search,
    "network": _network,
    "sharding": _sharding,
    "pipeline": _pipeline,
}
