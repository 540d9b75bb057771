"""What rules ask of communication and waiting. M = matched collectives. R = ranks, S = steps."""

from __future__ import annotations

import msgspec
import numpy as np

from tb_ddp_doctor.digest.intervals import Intervals
from tb_ddp_doctor.digest.model import BUFFERS, METRIC, NORM
from tb_ddp_doctor.evidence.model import RankEvidence
from tb_ddp_doctor.facts import Facts, MissingFactError, fact, needs_matches
from tb_ddp_doctor.facts.frame import frame
from tb_ddp_doctor.facts.links import Link, links
from tb_ddp_doctor.facts.needless_allreduces import RepeatedAllReduces, UnusedSearch, repeats, unused_search
from tb_ddp_doctor.facts.pipeline import Pipeline, pipeline
from tb_ddp_doctor.facts.sharding import Sharding, sharding
from tb_ddp_doctor.facts.traffic import Traffic, communication
from tb_ddp_doctor.facts.transfers import Transfers, exposed_alone, transfers
from tb_ddp_doctor.findings import Network
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.trace.model import Indices, Ints


class Arrivals(msgspec.Struct, frozen=True, eq=False):
    """Who was late at which collective."""

    #: Shape (M,): step number, index of the rank that arrived last, kind or what it is for.
    step: Ints
    last: Indices
    kind: tuple[str, ...]
    #: Exposed wait of the rank that waited longest, shape (M,), ns, and that rank's index.
    longest_wait_ns: Ints
    longest_waiter: Indices
    #: When that rank arrived and when the wait ended, on its own clock, shape (M,), ns.
    wait_start_ns: Ints
    wait_end_ns: Ints


class Absent(msgspec.Struct, frozen=True, eq=False):
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


class TinyCalls(msgspec.Struct, frozen=True, eq=False):
    """The collectives of one kind that run most often, whatever the traces tell of sizes and partners."""

    kind: str
    #: In a step, mean over ranks.
    calls: float
    #: From arrival to end, median over ranks and steps, ns.
    median_ns: float
    #: How long they run with nothing beside them, shape (R, S), ns; and of that at most the median of each call.
    exposed_ns: Ints
    latency_ns: Ints


class Purpose(msgspec.Struct, frozen=True, eq=False):
    """Small collectives outside of the backward pass that are for one thing, in every step."""

    #: What they are for, one of `digest.purposes`.
    what: str
    #: In a step, mean over ranks; and for how long data moves with nothing beside it, shape (R, S), ns.
    calls: float
    exposed_ns: Ints
    #: Straggler wait in them with nothing beside it, mean over ranks and steps, ns.
    wait_ns: float


class Sized(msgspec.Struct, frozen=True, eq=False):
    """What is measured of matched collectives."""

    transfers: Transfers
    traffic: tuple[Traffic, ...]


@fact
def _tiny_calls(facts: Facts) -> TinyCalls | None:
    """None without collectives, and where their sizes are told."""
    job = facts.job
    if facts.get(_sized):
        return None
    calls = job.calls
    launched = np.flatnonzero(calls.column("step") >= 0)
    kind, length = calls.text("kind"), calls.column("end_ns") - calls.column("arrival_ns")
    counted = launched[~calls.between_two[launched]]
    if not len(counted):
        return None
    often = int(np.bincount(kind.code[counted]).argmax())
    median = float(np.median(length[counted][kind.code[counted] == often]))
    mine = launched[kind.code[launched] == often]
    begin, end = (job.axis.place(calls.rank[mine], calls.column(of)[mine]) for of in ("arrival_ns", "end_ns"))
    alone = Intervals.union(begin, end) & job.waiting.exposed
    exposed = job.measure(alone)
    latency = job.sum_by_step(mine, np.minimum(alone.measure(begin, end), median)).astype(np.int64)
    steps = sum(len(digest.steps) for digest in job.digests)
    number = int((kind.code[counted] == often).sum())
    return TinyCalls(kind.words[often], number / max(steps, 1), median, exposed, np.minimum(latency, exposed))


@fact
def _purposes(facts: Facts) -> tuple[Purpose, ...]:
    """Those that are exposed longest first; none where collectives could not be matched."""
    job = facts.job
    if not len(job.matched):
        return ()
    purpose, of_step = job.calls.text("purpose"), job.call_step >= 0
    matched = np.array(_purposes_of_matched(job))
    purposes = []
    for what in (BUFFERS, NORM, METRIC):
        chosen = purpose.where(what.__eq__) & of_step
        calls = int(chosen.sum())
        if calls >= job.step_index.size:
            mine = (matched == what) & np.isin(job.matched.step, job.steps)
            wait = float(job.waiting.exposed_ns[job.matched.segments.each(mine)].sum()) / job.step_index.size
            exposed = job.measure(exposed_alone(job, chosen))
            purposes.append(Purpose(what, calls / job.step_index.size, exposed, wait))
    return tuple(sorted(purposes, key=lambda one: -float(one.exposed_ns.mean())))


def _purposes_of_matched(job: Job) -> list[str]:
    """What each matched collective is for, as the rank tells that arrives last."""
    purpose = job.calls.text("purpose")
    calls = job.matched.call[job.waiting.last_part]
    return [purpose.words[code] for code in purpose.code[calls].tolist()]


@fact
def _sized(facts: Facts) -> Sized | None:
    """None where collectives could not be matched, or the traces do not tell their sizes."""
    if not len(facts.job.matched):
        return None
    traffic = facts.get(matched_traffic)
    return Sized(facts.get(_all_transfers), traffic) if any(one.has_bytes for one in traffic) else None


@fact
def arrivals(facts: Facts) -> Arrivals:
    """Who arrived last at each matched collective, and how long others waited. Raises MissingFactError."""
    job = facts.job
    if len(job.ranks) < 2:
        raise MissingFactError("It compares ranks, and only one rank's trace is here.")
    if not len(job.matched):
        raise MissingFactError("No collective could be matched between ranks, so straggler wait is not known.")
    waiting, matched = job.waiting, job.matched
    longest = matched.segments.argmax(waiting.exposed_ns)
    start = matched.arrival_ns[longest]
    return Arrivals(
        step=matched.step,
        last=waiting.last,
        kind=tuple(
            f"the {purpose}" if purpose else kind
            for kind, purpose in zip(matched.kind, _purposes_of_matched(job), strict=True)
        ),
        longest_wait_ns=waiting.exposed_ns[longest],
        longest_waiter=matched.rank[longest],
        wait_start_ns=start,
        wait_end_ns=start + waiting.last_ns - waiting.arrival_ns[longest],
    )


@fact
def _absent(facts: Facts) -> Absent:
    job = facts.job
    wait_ns = job.waiting.absent_ns
    waiter = int(wait_ns.sum(axis=1).argmax())
    if not wait_ns[waiter].any():
        return Absent(wait_ns, job.missing_ranks, waiter, 0, 0, "")
    own = job.calls.of(waiter)
    start, end = job.waiting.all_traced_arrived_ns[own], job.waiting.all_arrived_ns[own]
    longest = int(np.where(job.call_step[own] >= 0, end - start, -1).argmax())
    kind = job.calls.text("kind")
    return Absent(
        wait_ns,
        job.missing_ranks,
        waiter,
        int(start[longest]),
        int(end[longest]),
        kind.words[kind.code[own][longest]],
    )


def _all_transfers(facts: Facts) -> Transfers:
    return transfers(facts.job, has_stages=facts.get(_shown_stages) is not None)


@fact
def _transfers(facts: Facts) -> Transfers:
    needs_matches(facts.job)
    return facts.get(_all_transfers)


def matched_traffic(facts: Facts) -> tuple[Traffic, ...]:
    """The collectives by kind and group; empty where none was matched."""
    return communication(facts.job)


@fact
def traffic(facts: Facts) -> tuple[Traffic, ...]:
    """The collectives by kind and group. Raises MissingFactError where none was matched."""
    needs_matches(facts.job)
    return facts.get(matched_traffic)


@fact
def _links(facts: Facts) -> tuple[Link, ...]:
    """Empty where nothing can be compared: a rule that only asks for a cause is applicable all the same."""
    return links(facts.job, facts.get(matched_traffic))


@fact
def _repeats(facts: Facts) -> RepeatedAllReduces:
    return repeats(facts.job)


@fact
def _unused_search(facts: Facts) -> UnusedSearch:
    return unused_search(facts.job)


@fact
def _network(facts: Facts) -> Network | None:
    return facts.job.network


@fact
def _rank_evidence(facts: Facts) -> tuple[RankEvidence, ...]:
    """By rank (index), empty where nothing is known."""
    known = facts.job.rank_evidence
    return tuple(known.get(rank, RankEvidence()) for rank in facts.job.ranks.tolist())


@fact
def _sharding(facts: Facts) -> Sharding | None:
    job = facts.job
    needs_matches(job)
    scatters = job.calls.text("kind").where("reduce_scatter".__eq__)
    of_scattering = np.isin(job.calls.rank, job.calls.rank[scatters])
    if scatters.any() and not (job.calls.column("backward")[of_scattering] >= 0).any():
        raise MissingFactError(
            "There are reduce-scatters, but no backward pass that launches them: record the CPU as well "
            "(activities=[CPU, CUDA])."
        )
    return sharding(job)


def _shown_stages(facts: Facts) -> Pipeline | None:
    return pipeline(facts.job, facts.get(frame).mesh)


@fact
def stages(facts: Facts) -> Pipeline | None:
    """The pipeline that the messages of a job show; None without one. `MissingFactError` if messages lack peers."""
    job = facts.job
    shown = facts.get(_shown_stages)
    named = any((digest.message_ends.peer >= 0).any() for digest in job.digests)
    sent = any({"send", "recv"} & {*digest.strings} or len(digest.messages) for digest in job.digests)
    if not shown and sent and not named:
        raise MissingFactError(
            "Ranks send to each other, but the traces do not show a pipeline: torch records the peer since 2.4, with "
            "activities=[CPU, CUDA] on every rank."
        )
    return shown
