"""Assembles the diagnosis that users get, in the types of `findings`, from the rules' findings and the account."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from msgspec.structs import replace

from tb_ddp_doctor import wording
from tb_ddp_doctor.account import memory_text
from tb_ddp_doctor.account.dimensions import summary
from tb_ddp_doctor.account.floor import Floor
from tb_ddp_doctor.account.layers import layer_table
from tb_ddp_doctor.account.mesh_advice import with_advice
from tb_ddp_doctor.account.rates import rates
from tb_ddp_doctor.account.savings import Savings
from tb_ddp_doctor.account.verdict import verdict
from tb_ddp_doctor.account.witnesses import Contradiction, Witnesses, contradictions, doubted
from tb_ddp_doctor.facts import Facts, MissingFactError, unrecognised
from tb_ddp_doctor.facts import traffic as measured
from tb_ddp_doctor.facts.arrivals import arrivals, stages, traffic
from tb_ddp_doctor.facts.compute import Utilization, utilization
from tb_ddp_doctor.facts.iterations import by_kind
from tb_ddp_doctor.facts.memory import memory
from tb_ddp_doctor.facts.modules import module_memory, module_tree
from tb_ddp_doctor.facts.pipeline import Pipeline
from tb_ddp_doctor.facts.roofline import link_excess, roofline
from tb_ddp_doctor.facts.without_faults import whatif
from tb_ddp_doctor.findings import (
    OWNERS,
    PHASES,
    AlphaBeta,
    Clock,
    Diagnosis,
    FileWarning,
    FixParts,
    FloorLine,
    Memory,
    MeshTable,
    PathPiece,
    PathStep,
    RuleOutcome,
    TrafficRow,
    Workload,
)
from tb_ddp_doctor.job import job_kind
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.job.setting import setting
from tb_ddp_doctor.mesh.mesh import Mesh
from tb_ddp_doctor.replay.critical_path import PathOfStep, critical_path
from tb_ddp_doctor.rules.support import long_tail
from tb_ddp_doctor.rules.support.layers import at_peak
from tb_ddp_doctor.trace.model import Ints

_log = logging.getLogger(__name__)
T = TypeVar("T")

#: Files that are missing from the job in whole or in part, by what is wrong with them, such as "unreadable".
Lacking = Mapping[str, Sequence[str]]
#: If ranks begin a step further apart than this share of it, a warning says so.
_SAID_APART = 0.1


def assemble(
    facts: Facts,
    outcomes: Sequence[RuleOutcome],
    savings: Savings,
    lacking: Lacking,
    of_opportunities: Sequence[RuleOutcome] = (),
) -> Diagnosis:
    """The diagnosis of a job, given how its rules ended and what their fixes save.

    `of_opportunities` is how the rules on opportunities ended, which does not count for the verdict.
    """
    job, floor = facts.job, _begun(facts, savings)
    path, mesh = _critical_path(facts), _mesh_table(facts, savings.mesh)
    outcomes = _without_costless(outcomes, savings)
    every = sorted([*outcomes, *_without_costless(of_opportunities, savings)], key=lambda one: one.rule)
    disagreeing = _contradictions(facts, savings, path)
    sentences = tuple(one.sentence for one in disagreeing)
    notes = unrecognised.notes(job, has_tail=any(finding.cause == long_tail.CAUSE for finding in savings.findings))
    said = verdict(
        job,
        savings.findings,
        savings.account,
        outcomes,
        savings.opportunities,
        unrecognised=unrecognised.reason(job),
        notes=notes,
        contradictions=sentences,
        lacking=_lacking(lacking),
    )
    phases = job.work(lambda work: work.phases)
    return Diagnosis(
        name=wording.encodable(job.name),
        world_size=job.world_size,
        ranks=tuple(job.ranks.tolist()),
        missing_ranks=job.missing_ranks,
        incomplete=tuple(wording.encodable(file) for files in lacking.values() for file in files),
        steps=tuple(job.steps.tolist()),
        step_ms=job.step_ns / 1e6,
        verdict=said.name,
        headline=said.headline,
        account=replace(savings.account, floor_lines=_floor_lines(floor)),
        budget_ms=_by_rank_and_name(job, job.budget.owner_ns, OWNERS),
        phases_ms=_by_rank_and_name(job, phases.device_ns, PHASES) if job.has_phases else {},
        host_phases_ms=_by_rank_and_name(job, phases.host_ns, PHASES) if job.has_phases else {},
        clock=_clock(job),
        communication=_communication(facts),
        mesh=mesh,
        kind=job_kind.kind(job),
        iterations=by_kind(job),
        network=job.network,
        findings=tuple(doubted(finding, disagreeing) for finding in savings.findings),
        outcomes=tuple(every),
        warnings=_warnings(job, notes, sentences),
        critical_path=path,
        memory=_memory(facts),
        setting=setting(job),
        contradictions=sentences,
        headline_parts=said.parts,
        headline_rest=said.rest,
        opportunities=savings.opportunities,
        layers=layer_table(facts, facts.get(whatif).bindings if path else None),
        rates=rates(job, (*savings.findings, *savings.opportunities), _utilization(facts)),
    )


def _lacking(files: Lacking) -> list[str]:
    """What of the job's files is not in the traces, by how: "2 files are unreadable"."""
    counts = {how: len(those) for how, those in files.items() if those}
    return [f"{count} {'file is' if count == 1 else 'files are'} {how}" for how, count in counts.items()]


def _clock(job: Job) -> Clock:
    """How the ranks' clocks were aligned, as users get it."""
    residual_ns, offsets_ns = job.clock.residual_ns, job.clock.offset_ns.tolist()
    return Clock(
        residual_us=None if residual_ns is None else residual_ns / 1e3,
        offset_us={str(rank): offset / 1e3 for rank, offset in zip(job.ranks.tolist(), offsets_ns, strict=True)},
    )


def _warnings(job: Job, notes: Sequence[str], contradictions: Sequence[str]) -> tuple[FileWarning, ...]:
    """What was left out or cannot be seen, and where witnesses disagree, in text that can be encoded."""
    said = (*job.warnings, *_unseen(job, notes), *(FileWarning(job.name, one) for one in contradictions))
    return tuple(FileWarning(wording.encodable(one.file), wording.encodable(one.message), one.kind) for one in said)


def _made(what: str, make: Callable[[], T], otherwise: T) -> T:
    """What `make` returns; `otherwise` if it needs a fact that the traces do not show, or if it fails, which is logged.

    A part of the diagnosis that cannot be made takes nothing of the rest with it.
    """
    try:
        return make()
    except MissingFactError:
        return otherwise
    except Exception:
        _log.debug("%s failed", what, exc_info=True)
        return otherwise


def _begun(facts: Facts, savings: Savings) -> Floor | None:
    """The floor, to be opened; None where that fails. What it and opportunities need is played from here on, in threads
    beside what needs no play.
    """
    savings.foresee_opportunities()
    return _made("opening the floor", lambda: Floor(savings, facts.get(roofline), link_excess(facts)), None)


def _floor_lines(floor: Floor | None) -> tuple[FloorLine, ...]:
    """The floor, opened; none where that fails."""
    return _made("opening the floor", lambda: floor.lines, ()) if floor else ()


def _by_rank_and_name(job: Job, times_ns: Ints, names: Sequence[str]) -> dict[str, dict[str, float]]:
    """For each rank and name, the mean over steps in ms, of times of shape (R, S, names), ns."""
    mean_ms = times_ns.mean(axis=1) / 1e6
    return {
        str(rank): dict(zip(names, row, strict=True))
        for rank, row in zip(job.ranks.tolist(), mean_ms.tolist(), strict=True)
    }


def _communication(facts: Facts) -> tuple[TrafficRow, ...]:
    """The table of communication; empty if the traces have none, or if measuring it fails, as its rules then do."""
    table: tuple[measured.Traffic, ...] = _made("measuring communication", lambda: facts.get(traffic), ())
    return tuple(_traffic(one, facts.job.ranks) for one in table)


def _utilization(facts: Facts) -> Utilization | None:
    """What of the device's peak the model uses; None where the traces do not show it, and where it fails."""
    if facts.job.workload == Workload():
        return None
    return _made("counting the model's operations", lambda: facts.get(utilization), None)


def _mesh_table(facts: Facts, mesh: Mesh | None) -> MeshTable | None:
    """What each dimension of the job communicates; None where nothing shows dimensions, and where that fails."""

    def table() -> MeshTable | None:
        calls = facts.get(traffic) if len(facts.job.matched) else ()
        communicated = summary(facts.job, mesh, calls) if mesh else None
        return with_advice(facts, mesh, communicated, calls) if mesh and communicated else communicated

    return _made("summing up the dimensions of the job", table, None)


def _critical_path(facts: Facts) -> tuple[PathStep, ...]:
    """The critical path; empty without a replay, or if following it fails."""

    def path() -> tuple[PathStep, ...]:
        bindings = facts.get(whatif).bindings
        return tuple(_path_step(part, facts.job) for part in critical_path(facts.job, bindings)) if bindings else ()

    return _made("following the critical path", path, ())


def _contradictions(facts: Facts, savings: Savings, path: Sequence[PathStep]) -> tuple[Contradiction, ...]:
    """Where the witnesses of slow ranks disagree; none if one of them is missing, or if comparing them fails."""
    if len(facts.job.ranks) < 2 or not path:
        return ()

    def disagreements() -> tuple[Contradiction, ...]:
        seen = Witnesses.of(facts.job, facts.get(arrivals), path, _pipeline(facts))
        return contradictions(seen, savings.findings, savings.whatif, facts.job)

    return _made("comparing the witnesses of slow ranks", disagreements, ())


def _pipeline(facts: Facts) -> Pipeline | None:
    """The job's pipeline; None if it has none, or if its traces do not show it."""
    try:
        return facts.get(stages)
    except MissingFactError:
        return None


def _memory(facts: Facts) -> Memory | None:
    """The job's memory with its sentences; None if the traces do not show it, or if that fails."""

    def described() -> Memory | None:
        of_job = facts.get(memory)
        if of_job is None:
            return None
        savings = tuple(replace(one, fix_parts=FixParts.of(one.fix)) for one in of_job.savings)
        rank = facts.job.ranks.tolist().index(of_job.peak.rank)
        of_modules = at_peak(facts.get(module_tree), facts.get(module_memory), rank).strip()
        said = (*memory_text.sentences(of_job), *([f"At the peak: {of_modules}"] if of_modules else []))
        return replace(of_job, savings=savings, said=said)

    return _made("saying what memory is made of", described, None)


def _path_step(part: PathOfStep, job: Job) -> PathStep:
    """A step of the critical path as users get it: ranks and steps by number, times in ms."""
    return PathStep(
        step=int(job.steps[part.step]),
        start_ns=part.start_ns,
        end_ns=part.end_ns,
        pieces=tuple(
            PathPiece(
                rank=int(job.ranks[piece.rank]),
                owner=piece.owner,
                phase=piece.phase,
                what=wording.encodable(piece.what),
                start_ms=(piece.start_ns - part.start_ns) / 1e6,
                ms=(piece.end_ns - piece.start_ns) / 1e6,
            )
            for piece in part.pieces
        ),
    )


def _traffic(traffic: measured.Traffic, ranks: Ints) -> TrafficRow:
    """A row of the table of communication as users get it: ranks by number, times in ms, rates in GB/s."""
    line = traffic.line
    return TrafficRow(
        kind=traffic.kind,
        group=wording.encodable(traffic.group),
        parallelism=traffic.parallelism,
        ranks=tuple(ranks[traffic.ranks].tolist()),
        size=traffic.size,
        dtypes=tuple(map(wording.encodable, traffic.dtypes)),
        calls=traffic.calls,
        megabytes=traffic.bytes_per_step / 1e6 if traffic.has_bytes else None,
        wait_ms=traffic.wait_per_step_ns / 1e6,
        transfer_ms=traffic.transfer_per_step_ns / 1e6,
        hidden_share=traffic.hidden_share,
        algorithm_gb_s=traffic.algorithm_rate / 1e9 if traffic.has_bytes else None,
        bus_gb_s=traffic.bus_rate / 1e9 if traffic.has_bytes else None,
        fit=AlphaBeta(
            alpha_us=line.alpha_ns / 1e3,
            bandwidth_gb_s=1 / line.beta_ns if line.beta_ns > 0 else None,
            r2=line.r2,
            residual_us=line.residual_ns / 1e3,
            spread=line.spread,
            significant=line.is_significant,
        )
        if line
        else None,
    )


def _without_costless(outcomes: Sequence[RuleOutcome], savings: Savings) -> list[RuleOutcome]:
    """The outcomes, with "clear" in place of "finding" for rules whose findings turned out to cost nothing."""
    said = {finding.rule for finding in (*savings.findings, *savings.opportunities)}
    return [
        RuleOutcome(outcome.rule, "clear", "What it found costs nothing once the other findings are fixed.")
        if outcome.status in ("finding", "opportunity") and outcome.rule not in said
        else outcome
        for outcome in outcomes
    ]


def _unseen(job: Job, notes: Sequence[str]) -> Iterator[FileWarning]:
    """Warnings on what the traces do not show of the job as a whole: `unrecognised.notes` first."""
    yield from (FileWarning(job.name, sentence) for sentence in notes)
    if job.missing_ranks:
        shown = ", ".join(map(str, job.missing_ranks[:8])) + (" ..." if len(job.missing_ranks) > 8 else "")
        lack = "has" if len(job.missing_ranks) == 1 else "have"
        yield FileWarning(
            job.name,
            f"{len(job.missing_ranks)} of {job.world_size} ranks {lack} no usable trace here ({shown}): straggler wait "
            "for them is only estimated from transfers.",
        )
    if not all(rank.has_steps for rank in job.digests):
        advice = " Call prof.step() after each step." if job_kind.trains(job) else ""
        yield FileWarning(job.name, f"No ProfilerStep in the traces: the whole trace counts as one step.{advice}")
    if len(job.ranks) == 1:
        return
    if (apart_ns := unrecognised.steps_begin_apart_ns(job)) >= _SAID_APART * job.step_ns:
        yield FileWarning(job.name, f"Ranks begin the same step {wording.ms(apart_ns)} apart (median over steps).")
    if not len(job.matched):
        yield FileWarning(
            job.name, "No collective could be matched between ranks: straggler wait counts as exposed communication."
        )
        return
    unmatched = sum(job.matched.unmatched)
    if unmatched:
        yield FileWarning(job.name, f"{unmatched} calls of collectives have no match on another rank.")
    for digest, odd in zip(job.digests, job.matched.odd, strict=False):
        if odd:
            what = "One of its collectives ends" if odd == 1 else f"{odd} of its collectives end"
            yield FileWarning(digest.file, f"{what} apart from those of all other ranks, and is left out.")
    if job.matched.refused:
        yield FileWarning(
            job.name,
            f"{job.matched.refused} matches of collectives were rejected, since one rank ended before another arrived: "
            "clocks or the order of calls are wrong there.",
        )
