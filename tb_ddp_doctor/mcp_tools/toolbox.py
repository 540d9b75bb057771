"""Answers the tools' questions from the same engine as the command and the tab: only the form differs."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tb_ddp_doctor import api, engine, memory_runs, step_parts, wording
from tb_ddp_doctor.choices import no_name
from tb_ddp_doctor.comparison.build import compare
from tb_ddp_doctor.findings import OWNERS, Evidence, Finding, MemorySnapshot
from tb_ddp_doctor.history.collective_sentences import sentences
from tb_ddp_doctor.history.collectives import (
    BandwidthChange,
    CollectiveCalls,
    LateRank,
    PeerTransfers,
    read_collectives,
)
from tb_ddp_doctor.history.logs.find import read_hours
from tb_ddp_doctor.history.sentences import read_from
from tb_ddp_doctor.history.summary import summarise
from tb_ddp_doctor.mcp_tools import answers, questions
from tb_ddp_doctor.mcp_tools.answers import like
from tb_ddp_doctor.mcp_tools.paging import page
from tb_ddp_doctor.mcp_tools.runs import RunsOfRoots
from tb_ddp_doctor.mcp_tools.wrapping import BRIEF_LETTERS, data, listed, name, numbers_of
from tb_ddp_doctor.planning.answer import OVERVIEW
from tb_ddp_doctor.planning.model import Prediction
from tb_ddp_doctor.planning.model import Question as PlanQuestion
from tb_ddp_doctor.planning.questions import FIELDS, checked, shown
from tb_ddp_doctor.report.glossary import GLOSSARY
from tb_ddp_doctor.rules import CATALOGUE, is_name
from tb_ddp_doctor.rules import page as rule_page
from tb_ddp_doctor.slices import cut, files
from tb_ddp_doctor.stuck import run as stuck

#: Lines of an account, refusals and warnings in one answer: with names of the longest kind they still fit.
_MOST_LINES, _MOST_SENTENCES, _SENTENCE = 40, 6, 300
#: Lines of source in a row on a snapshot of memory.
_MOST_HOLDERS = 3
#: Slices that are kept; the oldest goes for a new one.
_MOST_SLICES = 16


class Toolbox:
    """The tools, a method each: its docstring is what an agent reads, its types are the tool's."""

    def __init__(self, runs: RunsOfRoots, tensorboard: str) -> None:
        self._runs = runs
        self._tensorboard = tensorboard.rstrip("/")
        self._slices: list[Path] = []
        self._folder: Path | None = None

    def list_runs(self, asked: questions.OfAll) -> answers.RunRows:
        """List the runs of the log directories, the last written first. Begin here."""
        traces, left_out = self._runs.traces()
        rows = [
            (max(file.written_ns for file in run.files), answers.RunRow(
                run=name(run.name),
                kind="traces",
                ranks=len(run.files),
                world_size=run.world_size,
                bytes=sum(file.size for file in run.files),
                written=_utc(max(file.written_ns for file in run.files) / 1e9),
            ))
            for run in traces
        ]  # fmt: skip
        rows += [
            (0, answers.RunRow(run=name(run.name), kind=kind, ranks=len(run.files)))
            for kind, jobs in (("dumps", self._runs.dumps()), ("memory", self._runs.snapshots()))
            for run in jobs
        ]
        ordered = [row for _, row in sorted(rows, key=lambda one: (-one[0], one[1].run))]
        said = data(" ".join(left_out)) if left_out else ""
        return page(partial(answers.RunRows, left_out=said), ordered, asked.offset)

    def diagnose(self, asked: questions.OfRun) -> answers.Diagnosed:
        """Say why a run is slow: the verdict, where its step goes, and each finding with its cost in ms a step.

        Costs of findings sum to what fixing all of them gives. Opportunities are no faults.
        """
        diagnosis = self._runs.result(asked.run).diagnosis
        rates = diagnosis.rates
        gains = {gain.finding: gain for gain in rates.gains} if rates else {}
        rows = [
            like(
                answers.FindingRow,
                one,
                finding=one.id,
                money_per_day=gains[one.id].money_per_day if one.id in gains else None,
                energy_kwh_per_day=gains[one.id].energy_kwh_per_day if one.id in gains else None,
            )
            for one in diagnosis.all_findings
        ]
        said = [*diagnosis.contradictions, *(f"{one.file}: {one.message}" for one in diagnosis.warnings)]
        made = partial(
            like,
            answers.Diagnosed,
            diagnosis,
            run=name(diagnosis.name),
            account=tuple(like(answers.AccountRow, line) for line in diagnosis.account.lines[:_MOST_LINES]),
            not_checked=tuple(one.rule for one in diagnosis.outcomes if one.status in ("not-applicable", "error")),
            warnings=_sentences(said),
            job_money_per_day=rates.money_per_day if rates else None,
            currency=rates.currency if rates else "",
            job_energy_kwh_per_day=rates.energy_kwh_per_day if rates else None,
            tab_link=self._link(diagnosis.name),
        )
        return page(made, rows, asked.offset)

    def get_finding(self, asked: questions.OfFinding) -> answers.FindingRows:
        """Show one finding: what was seen that proves it, the numbers it rests on, and how to fix it."""
        result = self._runs.result(asked.run)
        one = _finding(result, asked.finding)
        made = partial(
            like,
            answers.FindingRows,
            one,
            run=name(result.diagnosis.name),
            finding=one.id,
            step_ms=result.diagnosis.step_ms,
            rule_summary=rule_page(CATALOGUE[one.rule]).summary,
            tab_link=self._link(result.diagnosis.name, one),
        )
        return page(made, list(_details(one)), asked.offset)

    def ranks_and_steps(self, asked: questions.OfTable) -> answers.Ranks:
        """Show where the step of each rank goes, mean over steps or step by step, with filters and an order."""
        result = self._runs.result(asked.run)
        chosen, steps = numbers_of(asked.ranks, "ranks"), numbers_of(asked.steps, "steps")
        if steps and asked.by == "rank":
            raise ValueError("steps chooses rows of by='rank-and-step'.")
        if asked.sort == "owner" and not asked.owner:
            raise ValueError("sort='owner' needs an owner.")
        rows = _by_step(result) if asked.by == "rank-and-step" else _by_rank(result)

        def amount(row: answers.RankRow) -> float:
            return row.budget_ms.get(asked.owner, 0.0) if asked.owner else row.busy_ms

        kept = [
            row
            for row in rows
            if (chosen is None or row.rank in chosen)
            and (steps is None or row.step in steps)
            and amount(row) >= asked.min_ms
        ]
        lengths = {
            "busy": lambda row: -row.busy_ms,
            "step": lambda row: -row.step_ms,
            "owner": lambda row: -amount(row),
        }
        if asked.sort in lengths:
            kept.sort(key=lengths[asked.sort])
        made = partial(
            answers.Ranks,
            run=name(result.diagnosis.name),
            owners={owner: step_parts.OWNERS[owner].when for owner in OWNERS},
            tab_link=self._link(result.diagnosis.name, view="budget"),
        )
        return page(made, kept, asked.offset)

    def what_if(self, asked: questions.OfWhatIf) -> answers.WhatIfRows:
        """Predict the step with findings fixed: all ranks' steps are replayed without them."""
        result = self._runs.result(asked.run)
        findings = result.diagnosis.all_findings
        known = {given for one in findings for given in (one.id, one.rule)}
        for given in asked.fixed:
            if given not in known:
                raise ValueError(no_name("finding", given, [one.id for one in findings]))
        rows = [like(answers.ProspectRow, one) for one in result.prospects(asked.fixed or None)]
        made = partial(answers.WhatIfRows, run=name(result.diagnosis.name), step_ms=result.diagnosis.step_ms)
        return page(made, rows, asked.offset)

    def plan(self, asked: questions.OfPlan) -> answers.Planned:
        """Predict the step with other buckets, ranks, links, dtypes, sharding, loaders or GPUs."""
        result = self._runs.result(asked.run)
        given = {field: value for field in FIELDS if (value := getattr(asked, field)) is not None}
        flags = {flag: getattr(asked, flag) for flag in ("gathers_in_time", "graphs", "strong")}
        question, _ = checked(PlanQuestion(**given, **flags, fixed=asked.fixed))
        curves = OVERVIEW if question == PlanQuestion(strong=asked.strong) else {}
        plan = api.planned(result, question, curves)
        rows = [_plan_row(plan.prediction)] if plan.prediction else []
        rows += [_plan_row(point) for curve in plan.curves for point in curve.points]
        made = partial(
            answers.Planned,
            run=name(plan.run),
            now_ms=plan.now_ms,
            refusals=_sentences([f"{one.question}: {one.reason}" for one in plan.refusals]),
        )
        return page(made, rows, asked.offset)

    def compare(self, asked: questions.OfTwo) -> answers.ComparedRuns:
        """Say what differs between two runs, and whether it is more than noise."""
        comparison = compare(self._runs.result(asked.before), self._runs.result(asked.after))
        rows = [
            like(
                answers.ChangeRow,
                change,
                name=name(getattr(change, "name", getattr(change, "rule", "")) or "all others"),
            )
            for change in getattr(comparison, asked.table)
        ]
        made = partial(
            like,
            answers.ComparedRuns,
            comparison.step,
            before=name(comparison.before),
            after=name(comparison.after),
            headline=data(comparison.headline),
            story=_sentences([*comparison.story, *comparison.unlike]),
            is_significant=comparison.step.tells,
            table=asked.table,
        )
        return page(made, rows, asked.offset)

    def history(self, asked: questions.OfHistory) -> answers.JobHours:
        """Say what changed in the hours of a job, when and on which rank, from the time of every step."""
        folder = self._runs.roots.folder(asked.directory)
        job, _ = read_hours(folder, self._runs.cache, asked.since, self._runs.roots.contains)
        if job is None:
            raise ValueError("There are no step times: Doctor(LOGDIR, history=True) records them.")
        summary = summarise(job)
        rows = [
            like(answers.EventRow, event, node=name(event.node or ""), began=_utc(event.begin_s))
            for event in summary.events
        ]
        made = partial(
            like,
            answers.JobHours,
            summary,
            directory=name(str(folder)),
            source=data(read_from(job.logged_by)) if job.logged_by else "",
            goodput=summary.account.goodput,
            time_s={name(part): value for part, value in list(summary.account.time_s.items())[:_MOST_LINES]},
        )
        return page(made, rows, asked.offset)

    def collectives(self, asked: questions.OfCollectives) -> answers.CollectivesOfHours:
        """Say how fast collectives and transfers were over hours, when that changed and who arrives last, from the
        files of NCCL's or RCCL's Inspector.
        """
        folder = self._runs.roots.folder(asked.directory)
        hours, problems = read_collectives(folder, self._runs.roots.contains)
        if hours is None:
            raise ValueError(" ".join(problems) or "There are no files of NCCL's or RCCL's Inspector (HOST-pidN.log).")
        made = partial(
            like,
            answers.CollectivesOfHours,
            hours,
            directory=name(str(folder)),
            table=asked.table,
            began=_utc(hours.begin_s),
            ended=_utc(hours.end_s),
            said=_sentences([*sentences(hours)]),
        )
        return page(made, [_collective_row(one) for one in getattr(hours, asked.table)], asked.offset)

    def stuck(self, asked: questions.OfStuck) -> answers.Stuck:
        """Say which ranks a job that hangs waits for, from its Flight Recorder dumps or Python stacks."""
        run = self._runs.dump(asked.run)
        report = stuck.examine(run)
        rows = [
            like(
                answers.StuckRow,
                one,
                finding=one.id,
                hosts=data(", ".join(dict.fromkeys(one.hosts)), BRIEF_LETTERS),
                waiting_count=len(one.waiting),
            )
            for one in report.findings
        ]
        made = partial(like, answers.Stuck, report, run=name(report.name), tab_link=self._link(report.name))
        return page(made, rows, asked.offset)

    def memory(self, asked: questions.OfMemory) -> answers.MemoryOfRanks:
        """Say which ranks ran out of memory, what the failed request lacked and what held the rest, from snapshots of
        torch.cuda.memory of a job without traces.
        """
        report = memory_runs.examine(self._runs.snapshot(asked.run))
        finding = report.findings[0] if report.findings else None
        made = partial(
            like,
            answers.MemoryOfRanks,
            report,
            run=name(report.name),
            said=_sentences(report.said),
            why=data(finding.why) if finding else "",
            fix=data(finding.fix) if finding else "",
            tab_link=self._link(report.name),
        )
        return page(made, [_memory_row(one) for one in report.snapshots], asked.offset)

    def slice(self, asked: questions.OfSlice) -> answers.Sliced:
        """Write the part of the traces that shows a piece of evidence, for Perfetto, and link to it in the tab.

        The file lies in a temporary folder of the server, never in a log directory.
        """
        result = self._runs.result(asked.run)
        one = _finding(result, asked.finding)
        if asked.evidence > len(one.evidence):
            raise ValueError(f"{one.id} has {len(one.evidence)} pieces of evidence.")
        evidence = one.evidence[asked.evidence - 1]
        window = cut.window(result.job, one, evidence)
        path = self._next_slice()
        files.save(cut.cut(result, self._runs.cache, cut.with_margin(window)), path)
        return answers.Sliced(
            run=name(result.diagnosis.name),
            finding=one.id,
            path=str(path),
            rank=evidence.rank,
            step=evidence.step,
            what=data(evidence.what),
            ranks=listed(window.ranks),
            length_ms=(window.end_ns - window.start_ns) / 1e6,
            tab_link=self._link(result.diagnosis.name, one),
        )

    def explain(self, asked: questions.OfTerm) -> answers.Explained:
        """Explain a rule or a term: what it means, how it is computed, what it cannot see."""
        wanted = asked.term.casefold().strip()
        rows = [
            answers.TermRow(name=term, text=meaning)
            for term, meaning in GLOSSARY.items()
            if not wanted or wanted in term.casefold()
        ]
        if wanted in CATALOGUE:
            text = rule_page(CATALOGUE[wanted])
            rows.append(answers.TermRow(name=wanted, text=text.summary))
            rows += [answers.TermRow(name=heading, text=body) for heading, body in text.sections.items()]
        elif not wanted:
            rows += [answers.TermRow(name=rule, text=rule_page(one).summary) for rule, one in CATALOGUE.items()]
        if not rows:
            raise ValueError(no_name("rule and no term", asked.term, [*CATALOGUE, *GLOSSARY]))
        return page(answers.Explained, rows, asked.offset)

    def close(self) -> None:
        """Remove the slices."""
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _next_slice(self) -> Path:
        self._folder = self._folder or Path(tempfile.mkdtemp(prefix="ddp-doctor-slices-"))
        while len(self._slices) >= _MOST_SLICES:
            self._slices.pop(0).unlink(missing_ok=True)
        number = int(self._slices[-1].stem) + 1 if self._slices else 1
        self._slices.append(self._folder / f"{number}.pftrace")
        return self._slices[-1]

    def _link(self, run: str, finding: Finding | None = None, view: str = "") -> str:
        """The place in the tab."""
        place = {"run": run, "view": "findings" if finding else view, "finding": finding.id if finding else ""}
        pairs = (f"p.ddp_doctor.{key}={quote(value, safe='')}" for key, value in place.items() if value)
        return f"{self._tensorboard}/#{'&'.join(['ddp_doctor', *pairs])}"


def _finding(result: engine.Result, given: str) -> Finding:
    """The finding of an id, or of a rule that has one. Raises ValueError."""
    findings = result.diagnosis.all_findings
    exact = [one for one in findings if one.id == given] or [one for one in findings if one.rule == given]
    if len(exact) == 1:
        return exact[0]
    if exact:
        raise ValueError(f"{given} has several findings: {', '.join(one.id for one in exact)}.")
    if is_name(given):
        raise ValueError(f"{given} found nothing in this run.")
    raise ValueError(no_name("finding", given, [one.id for one in findings]))


def _details(one: Finding) -> Iterator[answers.DetailRow]:
    for number in one.measurements:
        yield like(answers.DetailRow, number, kind="measurement")
    for limit in one.thresholds:
        yield like(answers.DetailRow, limit, kind="threshold", text=data(limit.reason, BRIEF_LETTERS))
    for place, evidence in enumerate(one.evidence, 1):
        yield like(
            answers.DetailRow,
            evidence,
            kind="evidence",
            evidence=place,
            text=data(_seen(evidence), BRIEF_LETTERS),
            source=name(f"{source.file}:{source.line} {source.function}") if (source := evidence.source) else "",
        )


def _seen(evidence: Evidence) -> str:
    before = f" The last op before it is {evidence.op_before}." if evidence.op_before else ""
    after = f" The first op after it is {evidence.op_after}." if evidence.op_after else ""
    return f"{evidence.what.rstrip('.')}.{before}{after}"


def _by_rank(result: engine.Result) -> Iterator[answers.RankRow]:
    nodes = dict(zip(result.job.ranks.tolist(), result.job.nodes, strict=True))
    for rank, budget in result.diagnosis.budget_ms.items():
        step_ms = sum(budget.values())
        yield answers.RankRow(
            rank=int(rank),
            node=name(nodes[int(rank)]),
            step_ms=step_ms,
            busy_ms=step_ms - budget["wait"],
            budget_ms={owner: value for owner, value in budget.items() if value},
        )


def _by_step(result: engine.Result) -> Iterator[answers.RankRow]:
    budget, job = result.job.budget, result.job
    for row, rank in enumerate(job.ranks.tolist()):
        for column, step in enumerate(job.steps.tolist()):
            yield answers.RankRow(
                rank=rank,
                node=name(job.nodes[row]),
                step=step,
                step_ms=int(budget.window_ns[row, column]) / 1e6,
                busy_ms=int(budget.busy_ns[row, column]) / 1e6,
                budget_ms={owner: int(spent) / 1e6 for owner in OWNERS if (spent := budget.of(owner)[row, column])},
            )


def _plan_row(predicted: Prediction) -> answers.PlanRow:
    return like(answers.PlanRow, predicted, question=data(shown(predicted.question), _SENTENCE))


def _collective_row(one: CollectiveCalls | BandwidthChange | LateRank | PeerTransfers) -> answers.CollectiveRow:
    values: dict[str, Any] = {}
    if isinstance(one, (CollectiveCalls, BandwidthChange)):
        values["collective"] = name(one.collective)
    if isinstance(one, BandwidthChange):
        values |= {"began": _utc(one.at_s), "hosts": data(", ".join(one.hosts), BRIEF_LETTERS)}
    if isinstance(one, LateRank):
        values |= {"hosts": name(one.host), "calls": one.compared}
    if isinstance(one, PeerTransfers):
        hosts = data(f"{one.sender_host}, {one.receiver_host}", BRIEF_LETTERS)
        values |= {"hosts": hosts, "calls": one.transfers, "late_share": one.sender_last_share}
    return like(answers.CollectiveRow, one, **values)


def _memory_row(one: MemorySnapshot) -> answers.MemoryRow:
    largest = (
        f"{holder.category} {wording.megabytes(holder.bytes)} MB"
        + (f" at {at.file}:{at.line} ({at.function})" if (at := holder.source) else "")
        for holder in one.holders[:_MOST_HOLDERS]
    )
    return like(
        answers.MemoryRow,
        one,
        file=name(one.file),
        categories={category: size for category, size in one.categories.items() if size},
        failed=one.failure.bytes if one.failure else None,
        to_release=one.failure.to_release if one.failure else None,
        largest=data("; ".join(largest), BRIEF_LETTERS) if one.holders else "",
    )


def _sentences(said: Sequence[str]) -> tuple[str, ...]:
    """The first few sentences as data, and how many more there are."""
    shown_ = [data(one, _SENTENCE) for one in said[:_MOST_SENTENCES]]
    return (*shown_, f"and {len(said) - _MOST_SENTENCES} more") if len(said) > _MOST_SENTENCES else tuple(shown_)


def _utc(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, OSError, ValueError):
        return ""
