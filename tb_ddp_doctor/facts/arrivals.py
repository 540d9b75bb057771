"""What rules ask of communication and waiting. M = matched collectives. R = ranks, S = steps."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np

from tb_ddp_doctor.digest.intervals import Intervals
from tb_ddp_doctor.digest.model import BUFFERS, METRIC, NORM
from tb_ddp_doctor.evidence.model import RankEvidence
from tb_ddp_doctor.facts.facts import Fact, Facts, MissingFactError, needs_matches
from tb_ddp_doctor.facts.links import Link, links
from tb_ddp_doctor.facts.pipeline import Pipeline, pipeline
from tb_ddp_doctor.facts.repeats import Repeats, repeats
from tb_ddp_doctor.facts.sharding import Sharding, sharding
from tb_ddp_doctor.facts.traffic import Traffic, communication
from tb_ddp_doctor.facts.transfers import Transfers, exposed_alone, transfers
from tb_ddp_doctor.facts.unused import UnusedSearch, unused_search
from tb_ddp_doctor.findings import Network
from tb_ddp_doctor.job.collectives import between_two
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.trace.model import Ints


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """Who was late at which collective."""

    #: Shape (M,): step number, index of the rank that arrived last, kind or what it is for.
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


@dataclass(frozen=True, slots=True, eq=False)
class TinyCalls:
    """The collectives of one kind that run most often, whatever the traces tell of sizes and partners."""

    kind: str
    #: In a step, mean over ranks.
    calls: float
    #: From arrival to end, median over ranks and steps, ns.
    median_ns: float
    #: How long they run with nothing beside them, shape (R, S), ns; and of that at most the median of each call.
    exposed_ns: Ints
    latency_ns: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Purpose:
    """Small collectives outside of the backward pass that are for one thing, in every step."""

    #: What they are for, one of `digest.purposes`.
    what: str
    #: In a step, mean over ranks; and for how long data moves with nothing beside it, shape (R, S), ns.
    calls: float
    exposed_ns: Ints
    #: Straggler wait in them with nothing beside it, mean over ranks and steps, ns.
    wait_ns: float


@dataclass(frozen=True, slots=True, eq=False)
class Sized:
    """What is measured of matched collectives."""

    transfers: Transfers
    traffic: tuple[Traffic, ...]


def _tiny_calls(facts: Facts) -> TinyCalls | None:
    """None without collectives, and where their sizes are told."""
    job = facts.job
    if facts.get(_sized):
        return None
    number: Counter[str] = Counter()
    length: defaultdict[str, list[Ints]] = defaultdict(list)
    for digest in job.digests:
        table = digest.collectives
        chosen = (table.step >= 0) & ~between_two(digest)
        for kind in np.unique(table.kind[chosen]).tolist():
            mine = chosen & (table.kind == kind)
            number[digest.strings[kind]] += int(mine.sum())
            length[digest.strings[kind]].append((table.end_ns - table.arrival_ns)[mine])
    if not number:
        return None
    kind = number.most_common(1)[0][0]
    median = float(np.median(np.concatenate(length[kind])))
    exposed, latency = (np.zeros(job.step_index.shape, np.int64) for _ in range(2))
    for rank, (digest, index) in enumerate(zip(job.digests, job.step_index, strict=True)):
        table = digest.collectives
        mine = np.array([text == kind for text in digest.strings], np.bool_)[table.kind] & (table.step >= 0)
        alone = Intervals.union(table.arrival_ns[mine], table.end_ns[mine]) & job.waiting.exposed[rank]
        exposed[rank] = alone.measure(digest.steps.start_ns[index], digest.steps.end_ns[index])
        each = np.minimum(alone.measure(table.arrival_ns[mine], table.end_ns[mine]), median)
        latency[rank] = np.bincount(table.step[mine], weights=each, minlength=len(digest.steps))[index].astype(np.int64)
    steps = sum(len(digest.steps) for digest in job.digests)
    return TinyCalls(kind, number[kind] / max(steps, 1), median, exposed, np.minimum(latency, exposed))


def _purposes(facts: Facts) -> tuple[Purpose, ...]:
    """Those that are exposed longest first; none where collectives could not be matched."""
    job = facts.job
    if not len(job.matched):
        return ()
    shape = job.step_index.shape
    found = []
    for what in (BUFFERS, NORM, METRIC):
        exposed, calls = np.zeros(shape, np.int64), 0
        for rank, (digest, index) in enumerate(zip(job.digests, job.step_index, strict=True)):
            chosen = np.array([text == what for text in digest.strings], np.bool_)[digest.collectives.purpose]
            chosen &= np.isin(digest.collectives.step, index)
            if chosen.any():
                calls += int(chosen.sum())
                alone = exposed_alone(job, rank, chosen)
                exposed[rank] = alone.measure(digest.steps.start_ns[index], digest.steps.end_ns[index])
        if calls >= exposed.size:
            mine = np.array([purpose == what for purpose in _purposes_of_matched(job)], np.bool_)
            mine &= np.isin(job.matched.step, job.steps)
            wait = float(job.waiting.exposed_ns[mine].sum()) / exposed.size
            found.append(Purpose(what, calls / exposed.size, exposed, wait))
    return tuple(sorted(found, key=lambda one: -float(one.exposed_ns.mean())))


def _purposes_of_matched(job: Job) -> list[str]:
    """What each matched collective is for, as the rank tells that arrives last."""
    rows = job.matched.row[np.arange(len(job.matched)), job.waiting.last]
    return [
        job.digests[rank].strings[job.digests[rank].collectives.purpose[row]]
        for rank, row in zip(job.waiting.last.tolist(), rows.tolist(), strict=True)
    ]


def _sized(facts: Facts) -> Sized | None:
    """None where collectives could not be matched, or the traces do not tell their sizes."""
    if not len(facts.job.matched):
        return None
    traffic = facts.get(_traffic)
    return Sized(facts.get(_all_transfers), traffic) if any(one.has_bytes for one in traffic) else None


def _arrivals(facts: Facts) -> Arrivals:
    job = facts.job
    if len(job.ranks) < 2:
        raise MissingFactError("It compares ranks, and only one rank's trace is here.")
    if not len(job.matched):
        raise MissingFactError("No collective could be matched between ranks, so straggler wait is not known.")
    waiting, matched = job.waiting, job.matched
    waiter = waiting.exposed_ns.argmax(axis=1)
    each = np.arange(len(matched))
    start = np.where(matched.present, matched.arrival_ns, 0)[each, waiter]
    last = waiting.last_ns
    end = start + np.maximum(last - waiting.arrival_ns[each, waiter], 0)
    return Arrivals(
        step=matched.step,
        last=waiting.last,
        kind=tuple(
            f"the {purpose}" if purpose else kind
            for kind, purpose in zip(matched.kind, _purposes_of_matched(job), strict=True)
        ),
        longest_wait_ns=waiting.exposed_ns[each, waiter],
        longest_waiter=waiter,
        wait_start_ns=start,
        wait_end_ns=end,
    )


def _absent(facts: Facts) -> Absent:
    job = facts.job
    wait_ns = job.waiting.absent_ns
    waiter = int(wait_ns.sum(axis=1).argmax())
    if not wait_ns[waiter].any():
        return Absent(wait_ns, job.missing_ranks, waiter, 0, 0, "")
    digest = job.digests[waiter]
    start, end = job.waiting.all_traced_arrived_ns[waiter], job.waiting.all_arrived_ns[waiter]
    longest = int(np.where(np.isin(digest.collectives.step, job.step_index[waiter]), end - start, -1).argmax())
    kind = digest.strings[digest.collectives.kind[longest]]
    return Absent(wait_ns, job.missing_ranks, waiter, int(start[longest]), int(end[longest]), kind)


def _all_transfers(facts: Facts) -> Transfers:
    return transfers(facts.job)


def _transfers(facts: Facts) -> Transfers:
    needs_matches(facts.job)
    return facts.get(_all_transfers)


def _traffic(facts: Facts) -> tuple[Traffic, ...]:
    return communication(facts.job)


def traffic(facts: Facts) -> tuple[Traffic, ...]:
    """The collectives by kind and group. Raises MissingFactError where none was matched."""
    needs_matches(facts.job)
    return facts.get(_traffic)


def _links(facts: Facts) -> tuple[Link, ...]:
    """Empty where nothing can be compared: a rule that only asks for a cause is applicable all the same."""
    return links(facts.job, facts.get(_traffic))


def _repeats(facts: Facts) -> Repeats:
    return repeats(facts.job)


def _unused_search(facts: Facts) -> UnusedSearch:
    job = facts.job
    return unused_search(job)


def _network(facts: Facts) -> Network | None:
    job = facts.job
    return job.network


def _rank_evidence(facts: Facts) -> tuple[RankEvidence, ...]:
    """By rank (index), empty where nothing is known."""
    known = facts.job.rank_evidence
    return tuple(known.get(rank, RankEvidence()) for rank in facts.job.ranks.tolist())


def _sharding(facts: Facts) -> Sharding | None:
    job = facts.job
    needs_matches(job)
    scattering = [digest for digest in job.digests if "reduce_scatter" in digest.strings]
    if scattering and not any((digest.collectives.backward >= 0).any() for digest in scattering):
        raise MissingFactError(
            "There are reduce-scatters, but no backward pass that launches them: record the CPU as well "
            "(activities=[CPU, CUDA])."
        )
    return sharding(job)


def _pipeline(facts: Facts) -> Pipeline | None:
    job = facts.job
    found = pipeline(job)
    if not found and any({"send", "recv"} & {*digest.strings} or len(digest.messages) for digest in job.digests):
        raise MissingFactError(
            "Ranks send to each other, but the traces do not show a pipeline: torch records the peer since 2.4, with "
            "activities=[CPU, CUDA] on every rank."
        )
    return found


#: The facts made here, by the name of a rule's parameter.
BY_NAME: dict[str, Fact] = {
    "arrivals": _arrivals,
    "absent": _absent,
    "transfers": _transfers,
    "links": _links,
    "repeats": _repeats,
    "communication": traffic,
    "sized": _sized,
    "tiny_calls": _tiny_calls,
    "purposes": _purposes,
    "unused_search": _unused_search,
    "network": _network,
    "rank_evidence": _rank_evidence,
    "sharding": _sharding,
    "pipeline": _pipeline,
}
