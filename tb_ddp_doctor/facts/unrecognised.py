"""Why the traces cannot tell whether a job is healthy: what is not known is neither healthy nor a fault.

Pure: a job in, a sentence out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median_low

import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.intervals import Intervals
from tb_ddp_doctor.digest.trace_contents import MARKED
from tb_ddp_doctor.facts.iterations import by_kind, iterations
from tb_ddp_doctor.findings import OWNERS, IterationKind, Severity
from tb_ddp_doctor.job import job_kind
from tb_ddp_doctor.job.lost_calls import lost_calls_ns
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.job.rl_roles import of_roles
from tb_ddp_doctor.replay.own_requests import own_requests
from tb_ddp_doctor.step_parts import IDLE
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Floats
from tb_ddp_doctor.trace.names import COMBINE, DISPATCH
from tb_ddp_doctor.trace.program_names import Program, ServerWork

#: Kernel launches that went into graphs, of all: one that warms up before the capture launches each kernel more often.
_CAPTURED = 0.2
#: Exposed communication, and that of experts, is said from this share of the step on.
_SAID = 0.03
#: With fewer steps, where most ranks have more, no job is healthy.
LEAST_STEPS = 3
#: With a larger share of the calls of collectives without a match, no job is healthy.
MOST_UNMATCHED = 0.05


def reason(job: Job) -> str | None:
    """Why nothing can be said of the job's health, as a sentence; None where the traces can tell."""
    return (
        _device(job)
        or _capture(job)
        or _sampled(job)
        or _ranks(job)
        or _no_training(job)
        or _one_step(job)
        or _lost_steps(job)
        or _unmatched(job)
        or _slower_left_out(job)
        or _lost_calls(job)
    )


def notes(job: Job, *, has_tail: bool = False) -> tuple[str, ...]:
    """What must be said beside every verdict: all that keeps the traces from showing the whole job, as sentences.

    `has_tail`: whether a finding tells the long tail of generation, which is not said twice.
    """
    said = [_device(job), _capture(job), _sampled(job), of_roles(job, has_tail=has_tail)]
    if not captures_graphs(job):
        said += [_no_training(job) or of_experts(job), one_rank(job)]
    said.append(_slower_left_out(job))
    return tuple(sentence for sentence in said if sentence)


def one_rank(job: Job) -> str | None:
    """What a rank alone shows of its communication."""
    if len(job.ranks) > 1 or job.world_size < 2:
        return None
    share = exposed_share(job)
    many = f"one rank of {job.world_size} cannot separate straggler wait from transfer"
    if share < _SAID:
        return None
    return f"{wording.percent(share)} of the {job_kind.unit(job)} is exposed communication; {many}."


def unmatched_share(job: Job) -> float:
    """The share of the calls of collectives that have no match on another rank; 0 where there are no calls."""
    unmatched = sum(job.matched.unmatched)
    return unmatched / max(unmatched + len(job.matched.rank), 1)


def exposed_share(job: Job) -> float:
    """The share of the step in which a rank only communicates, wait and transfer together."""
    owners = [OWNERS.index("wait"), OWNERS.index("transfer")]
    window = float(job.budget.window_ns.sum())
    return float(job.budget.owner_ns[:, :, owners].sum()) / window if window else 0.0


def steps_begin_apart_ns(job: Job) -> float:
    """How far apart the ranks begin a step on the common clock, median over steps; 0 without a common clock.

    On the device where there is one: hosts run ahead of it as they like.
    """
    if job.clock.residual_ns is None:
        return 0.0
    own = job.budget.start_ns
    begin = own - job.clock.correction(np.arange(len(own))[:, None], own)
    return float(np.median(np.ptp(begin, axis=0)))


def hides_its_device(job: Job) -> bool:
    """Whether a device works that the traces do not show, or not in a way that is known here."""
    return _device(job) is not None


def captures_graphs(job: Job) -> bool:
    """Whether the traces show the capture of CUDA graphs, and no step that ran."""
    return _capture(job) is not None


def _capture(job: Job) -> str | None:
    contents = [digest.contents for digest in job.digests if digest.contents.steps_from != MARKED]
    captured, launches = (sum(getattr(one, name) for one in contents) for name in ("captured_launches", "launches"))
    if captured < _CAPTURED * launches or not captured:
        return None
    return (
        f"The traces show the capture of a CUDA graph, and no step: {captured:,} of {launches:,} kernel launches only "
        "went into the graph, which is not launched here. Record iterations that launch it."
    )


def _device(job: Job) -> str | None:
    if job.has_device:
        return None
    unknown: dict[str, tuple[int, int]] = {}
    for digest in job.digests:
        for category, (count, busy_ns) in digest.contents.unknown_work.items():
            before = unknown.get(category, (0, 0))
            unknown[category] = (before[0] + count, max(before[1], busy_ns))
    hidden = next((digest.contents.hidden_work for digest in job.digests if digest.contents.hidden_work), "")
    if any(busy_ns >= 0 for _, busy_ns in unknown.values()) or (unknown and hidden):
        listed = ", ".join(_category(name, count, busy_ns) for name, (count, busy_ns) in unknown.items())
        called = next(filter(None, map(names.accelerator, unknown)), "")
        ran = f"This job ran on {called}, whose" if called else "This job's accelerator has"
        return (
            f"{ran} events {'are ' if called else ''}of an unknown kind: {listed}, in {_span(job)} of trace. Without "
            "the device's events nothing can be judged."
        )
    if hidden and all(job_kind.is_cut(digest) for digest in job.digests):
        return (
            f"The GPU events are missing, since the file{'s are' if len(job.digests) > 1 else ' is'} cut off: what is "
            f"left shows {hidden} and no kernel. Without them nothing can be judged: take the whole files, or record "
            "again."
        )
    if hidden:
        return (
            f"The GPU events are missing: the traces show {hidden} and no kernel. Without them nothing can be "
            "judged; record the GPU as well (activities=[CPU, CUDA])."
        )
    return None


def _category(name: str, count: int, busy_ns: int) -> str:
    busy = f" ({wording.decimals(busy_ns / 1e9, 1)} s busy)" if busy_ns >= 0 else ""
    return f"{count:,} events of {name}{busy}"


def _span(job: Job) -> str:
    return f"{wording.decimals(float(np.max(job.budget.window_ns.sum(axis=1))) / 1e9, 1)} s"


def _sampled(job: Job) -> str | None:
    left_out = max(digest.contents.calls_left_out for digest in job.digests)
    if not left_out:
        return None
    return (
        f"The traces are sampled or filtered: about {wording.percent(left_out)} of the runtime's calls are missing, so "
        "what the CPU does between the recorded ones is not known."
    )


def _ranks(job: Job) -> str | None:
    alone = one_rank(job)
    if alone:
        return alone
    missing = len(job.missing_ranks)
    if 2 * len(job.ranks) >= job.world_size:
        return None
    return f"{missing} of {job.world_size} ranks have no trace here: straggler wait for them is not known."


def _one_step(job: Job) -> str | None:
    """What one marked step of several ranks cannot show: what delayed a rank before it is in no trace."""
    if len(job.ranks) < 2 or len(job.steps) > 1 or not all(digest.has_steps for digest in job.digests):
        return None
    return (
        f"No fault shows in the one {job_kind.unit(job)} that these traces have of all ranks, but what delays a rank "
        "at its beginning lies before it: record at least 3."
    )


def _lost_steps(job: Job) -> str | None:
    """What few steps cannot show where most ranks have more: a fault may lie in those that some rank lacks.

    Ranks that meet in collectives take equally long, so a fault in such a step makes it longer on all of them. Where
    these steps are no longer than the compared ones, nothing is hidden in them.
    """
    numbers = [number for digest in job.digests for number in digest.steps.number.tolist()]
    most = {number for number, ranks in Counter(numbers).items() if 2 * ranks > len(job.ranks)}
    lost = most - {*job.steps.tolist()} - {one.step for one in job.left_out}
    if not lost or len(job.steps) >= LEAST_STEPS:
        return None
    count = len(job.steps) + len(lost)
    if sum(_excess(job, number) for number in lost) < Severity.MINOR.least_share * count:
        return None
    return (
        f"No fault shows in {len(job.steps)} of the {count} {job_kind.unit(job)}s that most ranks have. "
        "The others are not compared, since some rank's record lacks them or is damaged in them."
    )


def _excess(job: Job, number: int) -> float:
    """By which share of a compared step a step is longer than these, lower median over the ranks that have it: where
    half of them have it as long as others, the clock of the other half was set.
    """
    shares = []
    for digest, index in zip(job.digests, job.step_index, strict=True):
        length = digest.steps.end_ns - digest.steps.start_ns
        own = length[digest.steps.number == number]
        if len(own):
            shares.append(float(own[0] / max(float(np.median(length[index])), 1.0)) - 1)
    return max(median_low(shares), 0.0)


def _unmatched(job: Job) -> str | None:
    """Whether so many calls of collectives have no match that nobody knows who waits for whom."""
    share = unmatched_share(job)
    if len(job.ranks) < 2 or share <= MOST_UNMATCHED:
        return None
    return (
        f"No fault shows in these traces, but {wording.percent(share)} of the calls of collectives have no match "
        "on another rank: who waits for whom in them is not known."
    )


def _slower_left_out(job: Job) -> str | None:
    """Which rank that is left out for its lost collectives computes longer than those that are compared."""
    rank, excess_ns = max(job.left_out_excess_ns.items(), key=lambda one: one[1], default=(0, 0.0))
    if excess_ns < Severity.MINOR.least_share * job.step_ns:
        return None
    return (
        f"Rank {rank}, which is left out since its record lacks collectives, computes {wording.ms(excess_ns)} a "
        f"{job_kind.unit(job)} longer than the median rank: the others may wait for it."
    )


def _lost_calls(job: Job) -> str | None:
    """Whether a rank's record lacks collectives in which others are for so long that its waits there would matter."""
    lost_ns = lost_calls_ns(job)
    rank = int(lost_ns.argmax())
    if lost_ns[rank] < Severity.MINOR.least_share * job.step_ns:
        return None
    return (
        f"No fault shows in these traces, but rank {job.ranks[rank]}'s record lacks collectives in which other ranks "
        f"are for {wording.ms(lost_ns[rank])} a {job_kind.unit(job)}: who waits for whom in them is not known."
    )


def _no_training(job: Job) -> str | None:
    words = job_kind.words(job)
    if words is None:
        return None
    step = words.unit
    marks = {digest.contents.steps_from for digest in job.digests}
    length = wording.ms(job.step_ns)
    if "" in marks:
        step, where = "trace", f"{length} of trace without marks of an {step},"
    elif len(job.steps) == 1:
        where = f"one {step} of {length}{_works_on(job)}"
    else:
        kinds = by_kind(job)
        repeated = "" if marks == {"ProfilerStep"} or kinds else f", each a {min(marks)},"
        where = f"{len(job.steps)} {step}s of {length} on average{repeated}{_kinds(kinds, job)}"
    pace = _pace(job, step)
    said = [
        f"This program {words.does} and does not train.",
        f"In {where} {pace}.",
        may_have_waited(job) or "",
        of_experts(job) or "",
        "Checks of a training loop do not apply.",
    ]
    return " ".join(filter(None, said))


def may_have_waited(job: Job) -> str | None:
    """Where a server that marks nothing may have waited for requests, as a sentence."""
    served = iterations(job) if job_kind.program(job) is Program.SERVING else None
    if served is None or not served.may_have_waited.any() or _shows_waits(job):
        return None
    seen = np.flatnonzero(served.may_have_waited)
    many = "iteration comes" if len(seen) == 1 else "iterations come"
    return (
        f"{len(seen)} {many} late and {'reads' if len(seen) == 1 else 'read'} prompts (after "
        f"{wording.steps(job.steps[seen].tolist())}): the server may have waited for requests. Only marks of its "
        "iterations or Python stacks show that."
    )


def _shows_waits(job: Job) -> bool:
    """Whether Python functions show that the server waits for requests."""
    return bool(job.work(lambda work: work.serving).idle_ns[:, :, ServerWork.WAITING].any())


def _works_on(job: Job) -> str:
    """What a server's only iteration works on: " (mixed: 9 prompts, 37 answers; 236 tokens/s)", or ""."""
    kinds = by_kind(job)
    if not kinds:
        return ""
    (one,) = kinds
    counted = ((one.prefills, "prompt"), (one.decodes, "answer"))
    requests = ", ".join(
        f"{wording.whole(number)} {what}{'s' * (round(number) != 1)}" for number, what in counted if number
    )
    return f" ({one.kind}{f': {requests}' if requests else ''}{_tokens(kinds, job)})"


def _kinds(kinds: Sequence[IterationKind], job: Job) -> str:
    """Iterations by what they work on: " (10 decode of 5.1 ms, 2 prefill of 60.2 ms; 1,230 tokens/s)", or ""."""
    if not kinds:
        return ""
    listed = ", ".join(f"{one.count} {one.kind} of {wording.duration(one.mean_ms)}" for one in kinds)
    return f" ({listed}{_tokens(kinds, job)})"


def _tokens(kinds: Sequence[IterationKind], job: Job) -> str:
    """Tokens a second: "; 1,230 tokens/s", or "" where no mark counts requests."""
    lasted_ms = sum(one.count * one.mean_ms for one in kinds)
    several = own_requests(job) is not None
    count = _tokens_of_all(job) if several else sum(one.count * one.decodes for one in kinds)
    if not count or not lasted_ms:
        return ""
    return f"; {wording.whole(count / lasted_ms * 1e3)} tokens/s{' of all ranks' if several else ''}"


def _tokens_of_all(job: Job) -> int:
    """Tokens that ranks with requests of their own get in all steps. Where each has as many peers with the same numbers
    in every step, these are of tensor parallelism and share their requests.
    """
    decodes = job.work(lambda work: work.serving).decodes
    distinct, peers = np.unique(decodes, axis=0, return_counts=True)
    share = len(distinct) > 1 and peers.min() == peers.max()
    return int((distinct if share else decodes).sum())


def _pace(job: Job, step: str) -> str:
    """How busy the device is, and how its work comes: what can be said of any program."""
    window = max(float(job.budget.window_ns.mean()), 1.0)
    shares = {owner: float(job.budget.of(owner).mean()) / window for owner in OWNERS}
    communication = shares["wait"] + shares["transfer"]
    does = [f"computes {wording.percent(shares['compute'])} of the time"]
    if communication >= _SAID:
        does.append(f"only communicates {wording.percent(communication)}")
    kernels, pace = float(job.work(lambda work: work.kernels.kernels).mean()), ""
    if job.has_device and kernels:
        does.append(f"idles {wording.percent(sum(shares[owner] for owner in IDLE))}")
        apart = wording.decimals(window / kernels / 1e3, 0)
        what = "compute kernels" if communication >= _SAID else "kernels"
        pace = f": {wording.whole(kernels)} {what} per {step}, one every {apart} µs"
    return f"the {'GPU' if job.has_device else 'CPU'} {wording.listing(does)}{pace}"


def of_experts(job: Job) -> str | None:
    """What dispatch and combine take of a step, mean over ranks, as a sentence; None where they take next to nothing.

    The kernels of DeepEP and its kin name no process group and no size, so their bandwidth is not known. How long they
    run is, and how long ranks wait in them for the last one to arrive. Such as "DeepEP dispatch and combine (expert
    parallelism) take 57.0 ms of 107.0 ms, 12.9 ms of it waiting for the last rank to arrive (11 to 14 ms by rank)."
    """
    library = min({digest.contents.expert_library for digest in job.digests} - {""}, default="")
    if not library:
        return None
    takes = _runs(job, (DISPATCH, COMBINE))
    if takes < max(_SAID * job.step_ns, 1.0):
        return None
    said = f"{library} dispatch and combine (expert parallelism) take {wording.ms(takes)} of {wording.ms(job.step_ns)}"
    wait = _exposed_wait(job, (DISPATCH, COMBINE))
    if not wait.any() or wait.mean() < _SAID * job.step_ns:
        return f"{said}."
    kinds = [f"{kind} {_wait_and_transfer(job, kind)}" for kind in (DISPATCH, COMBINE) if _runs(job, (kind,)) > 0]
    return (
        f"{said}, {wording.ms(wait.mean())} of it waiting for the last rank to arrive "
        f"({wording.interval(wait.min() / 1e6, wait.max() / 1e6)} ms by rank): {'; '.join(kinds)}."
    )


def _wait_and_transfer(job: Job, kind: str) -> str:
    """What one kind of exchange takes of a step, mean over ranks: "waits 2.6 ms and transfers 11.4 ms"."""
    wait = float(_exposed_wait(job, (kind,)).mean())
    return f"waits {wording.ms(wait)} and transfers {wording.ms(max(_runs(job, (kind,)) - wait, 0.0))}"


def _runs(job: Job, kinds: Sequence[str]) -> float:
    """How long exchanges of tokens run in a step, mean over ranks, ns."""
    chosen = job.calls.text("kind").where(kinds.__contains__)
    begin, end = (
        job.axis.place(job.calls.rank[chosen], job.calls.column(edge)[chosen]) for edge in ("arrival_ns", "end_ns")
    )
    return float(job.measure(Intervals.union(begin, end)).mean())


def _exposed_wait(job: Job, kinds: Sequence[str]) -> Floats:
    """How long each rank waits in exchanges for the last rank to arrive, exposed, in a step, shape (R,), ns."""
    mine = job.matched.segments.each(job.matched.is_of(kinds) & np.isin(job.matched.step, job.steps))
    return job.matched.of_rank(np.where(mine, job.waiting.exposed_ns, 0)) / len(job.steps)
