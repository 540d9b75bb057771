"""Two diagnosed runs -> Comparison."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import msgspec

from tb_ddp_doctor import wording
from tb_ddp_doctor.comparison import explain, named
from tb_ddp_doctor.comparison.model import Compared, ComparedAmount, Comparison, Fate, FindingChange
from tb_ddp_doctor.comparison.modules import module_kernels, modules
from tb_ddp_doctor.comparison.roofs import roofs
from tb_ddp_doctor.comparison.significance import TELLING, differs, step_time
from tb_ddp_doctor.engine import Result
from tb_ddp_doctor.findings import OWNERS
from tb_ddp_doctor.rules import CATALOGUE
from tb_ddp_doctor.trace.model import Ints


def compare(before: Result, after: Result) -> Comparison:
    """Compare two diagnosed runs."""
    step = step_time(before.job.budget.window_ns, after.job.budget.window_ns)
    owners = tuple(
        ComparedAmount(owner, _mean_ms(before.job.budget.of(owner)), _mean_ms(after.job.budget.of(owner)))
        for owner in OWNERS
    )
    copied = [result.job.work(lambda work: work.copies) for result in (before, after)]
    copies = ComparedAmount("copies", *(_mean_ms(of.pageable_ns) + _mean_ms(of.pinned_ns) for of in copied))
    exposed = ComparedAmount(
        "exposed copies", *(_mean_ms(of.pageable_exposed_ns) + _mean_ms(of.pinned_exposed_ns) for of in copied)
    )
    blocking = ComparedAmount("blocking copies", *(_mean_ms(of.pageable_blocked_ns) for of in copied))
    runs = _compared(before), _compared(after)
    comparison = Comparison(
        before=runs[0].name,
        after=runs[1].name,
        runs=runs,
        unlike=tuple(explain.unlike(before, after)),
        headline=explain.headline(runs[0].name, runs[1].name, step),
        story=(),
        step=step,
        owners=owners,
        copies=copies,
        exposed_copies=exposed,
        blocking_copies=blocking,
        findings=tuple(_findings(before, after)),
        communication=_by_name(_transfers(before), _transfers(after)),
        kernels=named.kernels(before.job, after.job),
        operators=named.operators(before.job, after.job),
        roofs=roofs(before.job, after.job),
        modules=modules(before.diagnosis.layers, after.diagnosis.layers),
        module_kernels=module_kernels(before, after),
    )
    certain = {*_certain_owners(before, after), *_certain_rules(before, after)}
    return msgspec.structs.replace(comparison, story=tuple(explain.story(comparison, certain, _loaders(before, after))))


def _compared(result: Result) -> Compared:
    diagnosis = result.diagnosis
    return Compared(
        name=diagnosis.name,
        ranks=len(diagnosis.ranks),
        world_size=diagnosis.world_size,
        steps=len(diagnosis.steps),
        device=wording.encodable(result.job.device),
    )


def _mean_ms(values: Ints) -> float:
    return float(values.mean()) / 1e6


def _loaders(before: Result, after: Result) -> tuple[str, str]:
    """How each run's DataLoaders work, where they all work alike; "" elsewhere."""
    kinds = ({digest.loader for digest in result.job.digests} for result in (before, after))
    was, now = (kind.pop() if len(kind) == 1 else "" for kind in kinds)
    return was, now


def _certain_owners(before: Result, after: Result) -> Iterator[str]:
    for owner in OWNERS:
        if differs(before.job.budget.of(owner), after.job.budget.of(owner)):
            yield owner


def _certain_rules(before: Result, after: Result) -> Iterator[str]:
    """Rules the 80 % intervals of whose costs do not meet."""
    was, now = _ranges(before), _ranges(after)
    for rule in {*was, *now}:
        (least_before, most_before), (least_after, most_after) = was.get(rule, (0.0, 0.0)), now.get(rule, (0.0, 0.0))
        if least_after > most_before or least_before > most_after:
            yield rule


def _ranges(result: Result) -> dict[str, tuple[float, float]]:
    """The 80 % intervals of each rule's costs, ms."""
    ranges: dict[str, tuple[float, float]] = {}
    for finding in result.diagnosis.findings:
        least, most = ranges.get(finding.rule, (0.0, 0.0))
        ranges[finding.rule] = least + finding.range_ms[0], most + finding.range_ms[1]
    return ranges


def _findings(before: Result, after: Result) -> Iterator[FindingChange]:
    """Rules whose findings cost 3 % of the step or more in one of the runs, those that changed most first."""
    costs: list[dict[str, float]] = []
    titles: dict[str, str] = {}
    for result in (before, after):
        by_rule: defaultdict[str, float] = defaultdict(float)
        for finding in reversed(result.diagnosis.findings):
            # Tracing is no part of the job.
            if CATALOGUE[finding.rule].is_of_tracing:
                continue
            by_rule[finding.rule] += finding.cost_ms
            titles[finding.rule] = finding.title
        costs.append(by_rule)
    least = [TELLING * result.diagnosis.step_ms for result in (before, after)]
    rules = {rule for cost, limit in zip(costs, least, strict=True) for rule, ms in cost.items() if ms >= limit}
    for rule in sorted(rules, key=lambda rule: (-abs(costs[0].get(rule, 0) - costs[1].get(rule, 0)), rule)):
        was, now = costs[0].get(rule, 0.0), costs[1].get(rule, 0.0)
        yield FindingChange(rule, _fate(was, now, *least), was, now, titles[rule])


def _fate(was: float, now: float, least_before: float, least_after: float) -> Fate:
    # What is little of a long step may be much of a short one: the run in which it costs more tells.
    if abs(now - was) < (least_after if now > was else least_before):
        return "same"
    if was < least_before:
        return "new"
    if now < least_after:
        return "fixed"
    return "better" if now < was else "worse"


def _transfers(result: Result) -> dict[str, float]:
    taken: defaultdict[str, float] = defaultdict(float)
    for traffic in result.diagnosis.communication:
        taken[traffic.kind or "unknown"] += traffic.transfer_ms
    return taken


def _by_name(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[ComparedAmount, ...]:
    changes = [ComparedAmount(name, before.get(name, 0.0), after.get(name, 0.0)) for name in {*before, *after}]
    return tuple(sorted(changes, key=lambda change: (-abs(change.change_ms), change.name)))
