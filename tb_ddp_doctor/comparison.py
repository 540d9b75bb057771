"""Two runs side by side: what became of each owner, finding, collective and kernel, and whether the step time tells.

Runs may differ in length, world size and file names: all amounts are means over ranks and steps, and kernels are
matched by name. The interval of the step time is a bootstrap (Efron, 1979) over steps and over ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.engine import Result
from tb_ddp_doctor.findings import OWNERS, Severity
from tb_ddp_doctor.trace.model import Ints

#: A change of less than this share of the earlier step is not told.
_TELLING = Severity.MINOR.least_share
#: Fewer steps do not show how much steps differ by chance.
_ENOUGH_STEPS = 3
_RESAMPLES = 2000
_KERNELS = 20
#: Copies of less time in a step, and a smaller change of the share of it that is hidden, are no part of the story.
_COPIES_MS = 0.05
_OVERLAP = 0.25

Fate = Literal["fixed", "better", "same", "worse", "new"]


class Change(msgspec.Struct, frozen=True):
    """One amount in both runs, mean over ranks and steps, ms."""

    name: str
    before_ms: float
    after_ms: float

    @property
    def change_ms(self) -> float:
        return self.after_ms - self.before_ms


class FindingChange(msgspec.Struct, frozen=True):
    """What became of the findings of one rule."""

    rule: str
    fate: Fate
    before_ms: float
    after_ms: float
    #: Of the costliest of them, in the later run where it is still there.
    title: str


class KernelChange(msgspec.Struct, frozen=True):
    """Kernels of one name: time and launches of a rank's step."""

    name: str
    before_ms: float
    after_ms: float
    before_count: float
    after_count: float


class StepTime(msgspec.Struct, frozen=True):
    """The mean step time of both runs."""

    before_ms: float
    after_ms: float
    #: Share of the earlier step that the later one is longer; and where 95 % of resampled runs lie.
    change: float
    interval: tuple[float, float]
    #: Whether the change is more than chance and more than 3 %.
    tells: bool
    #: Why the interval should not be trusted; "" where it may.
    doubt: str


class Comparison(msgspec.Struct, frozen=True):
    """Everything that differs between two runs."""

    before: str
    after: str
    #: One sentence on the step time, then one for each thing that made most of the difference.
    headline: str
    story: tuple[str, ...]
    step: StepTime
    owners: tuple[Change, ...]
    #: Copies between host and device; the part of them that nothing hides; the host's time in those that block it.
    copies: Change
    exposed_copies: Change
    blocking_copies: Change
    findings: tuple[FindingChange, ...]
    #: By kind of collective: what its transfers take, hidden or not, without the waiting.
    communication: tuple[Change, ...]
    kernels: tuple[KernelChange, ...]


def compare(before: Result, after: Result) -> Comparison:
    """Compare two diagnosed runs."""
    step = _step_time(before.job.budget.window_ns, after.job.budget.window_ns)
    owners = tuple(
        Change(owner, _mean_ms(before.job.budget.of(owner)), _mean_ms(after.job.budget.of(owner))) for owner in OWNERS
    )
    copies, exposed, blocking = (
        Change(name, *(sum(_mean_ms(result.job.work(column)) for column in columns) for result in (before, after)))
        for name, columns in (
            ("copies", ("pageable_ns", "pinned_ns")),
            ("exposed copies", ("pageable_exposed_ns", "pinned_exposed_ns")),
            ("blocking copies", ("pageable_blocked_ns",)),
        )
    )
    findings = tuple(_findings(before, after))
    names = before.diagnosis.name, after.diagnosis.name
    return Comparison(
        before=names[0],
        after=names[1],
        headline=_headline(*names, step),
        story=tuple(_story(step, owners, copies, exposed, blocking, findings)),
        step=step,
        owners=owners,
        copies=copies,
        exposed_copies=exposed,
        blocking_copies=blocking,
        findings=findings,
        communication=_by_name(_transfers(before), _transfers(after)),
        kernels=_kernels(before, after),
    )


def _mean_ms(values: Ints) -> float:
    return float(values.mean()) / 1e6


def _step_time(before_ns: Ints, after_ns: Ints) -> StepTime:
    """Of windows of shape (R, S)."""
    before, after = float(before_ns.mean()), float(after_ns.mean())
    ratios = _resampled(after_ns, 1) / np.maximum(_resampled(before_ns, 0), 1)
    low, high = (float(bound) - 1 for bound in np.percentile(ratios, [2.5, 97.5]))
    change = after / before - 1 if before else 0.0
    steps = min(before_ns.shape[1], after_ns.shape[1])
    few = steps < _ENOUGH_STEPS
    return StepTime(
        before_ms=before / 1e6,
        after_ms=after / 1e6,
        change=change,
        interval=(low, high),
        tells=abs(change) >= _TELLING and (few or low > 0 or high < 0),
        doubt=f"{steps} step{'s' if steps > 1 else ''} cannot tell chance from change; record {_ENOUGH_STEPS} or more."
        if few
        else "",
    )


def _resampled(windows_ns: Ints, seed: int) -> NDArray[np.float64]:
    """Means of the windows, shape (R, S), of runs whose steps and ranks are drawn from this one, with replacement."""
    rng = np.random.default_rng(seed)
    ranks, steps = windows_ns.shape
    # Resampling ranks and steps apart, the mean is a product of how often each is drawn.
    of_ranks = rng.multinomial(ranks, np.full(ranks, 1 / ranks), _RESAMPLES) / ranks
    of_steps = rng.multinomial(steps, np.full(steps, 1 / steps), _RESAMPLES) / steps
    means: NDArray[np.float64] = np.einsum("nr,rs,ns->n", of_ranks, windows_ns.astype(np.float64), of_steps)
    return means


def _findings(before: Result, after: Result) -> Iterator[FindingChange]:
    """Rules whose findings cost 3 % of the step or more in one of the runs, those that changed most first."""
    costs: list[dict[str, float]] = []
    titles: dict[str, str] = {}
    for result in (before, after):
        by_rule: defaultdict[str, float] = defaultdict(float)
        for finding in reversed(result.diagnosis.findings):
            by_rule[finding.rule] += finding.cost_ms
            titles[finding.rule] = finding.title
        costs.append(by_rule)
    least = [_TELLING * result.diagnosis.step_ms for result in (before, after)]
    rules = {rule for cost, limit in zip(costs, least, strict=True) for rule, ms in cost.items() if ms >= limit}
    for rule in sorted(rules, key=lambda rule: (-abs(costs[0].get(rule, 0) - costs[1].get(rule, 0)), rule)):
        was, now = costs[0].get(rule, 0.0), costs[1].get(rule, 0.0)
        yield FindingChange(rule, _fate(was, now, *least), was, now, titles[rule])


def _fate(was: float, now: float, least_before: float, least_after: float) -> Fate:
    if was < least_before:
        return "new"
    if now < least_after:
        return "fixed"
    if abs(now - was) < max(least_before, least_after):
        return "same"
    return "better" if now < was else "worse"


def _transfers(result: Result) -> dict[str, float]:
    taken: defaultdict[str, float] = defaultdict(float)
    for traffic in result.diagnosis.communication:
        taken[traffic.kind or "unknown"] += traffic.transfer_ms
    return taken


def _by_name(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[Change, ...]:
    changes = [Change(name, before.get(name, 0.0), after.get(name, 0.0)) for name in {*before, *after}]
    return tuple(sorted(changes, key=lambda change: (-abs(change.change_ms), change.name)))


def _kernels(before: Result, after: Result) -> tuple[KernelChange, ...]:
    """The kernels whose time changed most."""
    tables = _kernel_times(before), _kernel_times(after)
    nothing = (0.0, 0.0)
    changes = [
        KernelChange(
            name, *(table.get(name, nothing)[0] for table in tables), *(table.get(name, nothing)[1] for table in tables)
        )
        for name in {*tables[0], *tables[1]}
    ]
    return tuple(sorted(changes, key=lambda kind: (-abs(kind.after_ms - kind.before_ms), kind.name))[:_KERNELS])


def _kernel_times(result: Result) -> dict[str, tuple[float, float]]:
    """Time in ms and launches of a step by kernel name, mean over ranks."""
    total: defaultdict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    ranks = len(result.job.digests)
    for digest in result.job.digests:
        table, share = digest.kernels, 1 / (ranks * max(len(digest.steps), 1))
        for name, count, ns in zip(table.name.tolist(), table.count.tolist(), table.total_ns.tolist(), strict=True):
            ms, launches = total[digest.strings[name]]
            total[digest.strings[name]] = ms + ns / 1e6 * share, launches + count * share
    return total


def _headline(before: str, after: str, step: StepTime) -> str:
    times = f"{step.after_ms:.1f} ms a step, {before} {step.before_ms:.1f} ms"
    if not step.tells:
        return f"No difference that these steps can tell: {after} takes {times}."
    low, high = sorted(abs(bound) * 100 for bound in step.interval)
    way = "less" if step.change < 0 else "more"
    return f"{after} takes {times}: {abs(step.change) * 100:.0f} % {way} ({low:.0f} to {high:.0f} % with 95 %)."


#: Owners in words, as what a step spends.
_SPENT = {
    "compute": "Compute",
    "copy": "Copies that nothing hides",
    "wait": "Waiting for other ranks",
    "transfer": "Transfers that nothing hides",
    "input": "Waiting for the DataLoader",
    "sync": "Idling behind synchronisation",
    "alloc": "Idling behind allocations",
    "dispatch": "Idling for launches",
    "host": "Idling while the host is in no operation",
}


def _story(
    step: StepTime,
    owners: tuple[Change, ...],
    copies: Change,
    exposed: Change,
    blocking: Change,
    findings: tuple[FindingChange, ...],
) -> Iterator[str]:
    """What made the difference, in sentences."""
    if step.doubt:
        yield step.doubt[0].upper() + step.doubt[1:]
    if not step.tells:
        return
    limit = _TELLING * step.before_ms
    for owner in sorted(owners, key=lambda owner: -abs(owner.change_ms)):
        if abs(owner.change_ms) >= limit:
            went = "fell" if owner.change_ms < 0 else "rose"
            yield f"{_SPENT[owner.name]} {went} from {owner.before_ms:.1f} to {owner.after_ms:.1f} ms a step."
    if min(copies.before_ms, copies.after_ms) >= _COPIES_MS:
        was, now = exposed.before_ms / copies.before_ms, exposed.after_ms / copies.after_ms
    else:
        was = now = 0.0
    if abs(was - now) >= _OVERLAP:
        yield (
            f"Copies {'now overlap' if now < was else 'no longer overlap'}: {exposed.after_ms:.2f} of "
            f"{copies.after_ms:.2f} ms are exposed, before {exposed.before_ms:.2f} of {copies.before_ms:.2f} ms."
        )
    if max(blocking.before_ms, blocking.after_ms) >= _COPIES_MS and min(blocking.before_ms, blocking.after_ms) == 0:
        yield (
            f"Copies {'now overlap with the host' if blocking.before_ms else 'now block the host'}: they held it for "
            f"{blocking.before_ms:.2f} ms a step, and now for {blocking.after_ms:.2f} ms, and take the device "
            f"{copies.after_ms:.2f} instead of {copies.before_ms:.2f} ms."
        )
    for finding in findings:
        if finding.fate != "same":
            yield (
                f"{finding.rule} is {finding.fate}: it cost {finding.before_ms:.1f} ms a step, "
                f"and now {finding.after_ms:.1f} ms."
            )
