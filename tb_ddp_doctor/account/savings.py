"""Measures what each fix saves, and the account of the step that follows from it.

    step = floor + tracing + no requests + findings + unexplained

in integer ns summed over all ranks and steps. The account is a chain of what-if changes, each added to those before:

1. Remove what tracing adds; then, of a server, the time in which it has no request.
2. Fix each rule's findings, rule by rule.
3. Fix everything at once (`WhatIf.faultless`).

A line is what its link of the chain saves on top of the links before it. What the last link saves is unexplained, and
what remains is the floor. So no line is negative, and all lines sum to the step:

    recorded 100 -> without tracing 97 -> loader fixed 77 -> sync fixed 72 -> everything fixed 70 ms
    tracing 3, dataloader-stall 20, host-sync 5, unexplained 2, floor 70
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property, reduce
from itertools import accumulate
from operator import or_

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_ddp_doctor import wording
from tb_ddp_doctor.account.headline import headline, opportunity, together
from tb_ddp_doctor.account.interval import interval, uncertain
from tb_ddp_doctor.account.needed import needed
from tb_ddp_doctor.account.stretches import stretches
from tb_ddp_doctor.digest.spending import SPENDING
from tb_ddp_doctor.facts.pipeline import pipeline
from tb_ddp_doctor.facts.transfers import exposed_alone, mostly_untraced
from tb_ddp_doctor.findings import (
    OWNERS,
    PHASES,
    Account,
    AccountLine,
    Finding,
    FixParts,
    LineKind,
    Measurement,
    Prospect,
    Severity,
    Together,
    Unexplained,
)
from tb_ddp_doctor.job.matching import could_match
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.mesh.mesh import Mesh
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support import certainty
from tb_ddp_doctor.rules.support.base import Fault, RuleFaults, severity
from tb_ddp_doctor.step_parts import IDLE
from tb_ddp_doctor.trace.model import Ints

#: The unexplained time lies on the ranks, and in the steps, that have at least this share of the largest part of it.
_MUCH = 0.5
#: Unexplained time of less than this share of the step is not located.
_LEAST_LOCATED = 0.01
#: An opportunity that saves less of the step than this is not worth a line.
_LEAST_SAVED = 0.002
#: Fixes that save at least this share of the cost in the headline are enough.
_AS_SAID = 0.8


class _Link(msgspec.Struct, frozen=True, eq=False):
    """A rule's findings as a link in the chain of the account."""

    rule_faults: RuleFaults
    #: What the fix saves on top of the links before it, summed over ranks and steps.
    total_ns: int
    #: The same by step, mean over ranks, shape (S,).
    by_step_ns: NDArray[np.float64]
    #: What is fixed before it: tracing, and the rules before it in the chain.
    before: Change = Change()


class Savings(msgspec.Struct, frozen=True, eq=False, dict=True):
    """What rules found in a job, and what fixing it saves."""

    everything: Sequence[RuleFaults]
    whatif: WhatIf
    job: Job
    #: What is no fault and could be faster still.
    possible: Sequence[RuleFaults] = ()
    #: Where headlines say that ranks are; None where that is not known.
    mesh: Mesh | None = None

    @property
    def size(self) -> int:
        """Ranks times steps: what sums are divided by."""
        return int(np.prod(self.whatif.shape))

    @cached_property
    def step_total_ns(self) -> int:
        """Length of all steps of all ranks, ns."""
        return int(self.job.budget.window_ns.sum())

    def total_ns(self, change: Change) -> int:
        """Length of all steps of all ranks with a change, ns; never negative."""
        saved = int((self.whatif.recorded_ns - self.whatif.step_ns(change)).sum())
        return max(self.step_total_ns - saved, 0)

    @cached_property
    def _untraced_total_ns(self) -> int:
        """Length of all steps of all ranks without tracing, ns."""
        return min(self.total_ns(self.whatif.tracing), self.step_total_ns)

    @cached_property
    def _start_total_ns(self) -> int:
        """Length of all steps of all ranks without tracing and without the time in which no request is there, ns: what
        the rules' findings are charged to.
        """
        return min(self.total_ns(self.whatif.no_fault), self._untraced_total_ns)

    @cached_property
    def _chain(self) -> tuple[_Link, ...]:
        """The rules' findings in the order in which they are charged.

        1. Alarms by precedence (`_by_precedence`), first those that cost much.
        2. Then alarms that cost little.
        3. Then findings that are info at any cost. An alarm charged after them would be charged too with what it saves
           only together with them.
        """
        both = [each.split(_is_alarm) for each in _by_precedence(self._needed, self._alone)]
        alarms = [alarm for alarm, _ in both if alarm]
        infos = [info for _, info in both if info]
        links = self._links([*alarms, *infos], self.whatif.no_fault, self._start_total_ns)
        small = [link.rule_faults for link in links if link.rule_faults in alarms and not self._is_serious(link)]
        serious = [each for each in alarms if each not in small]
        if [*serious, *small] == alarms:
            return links
        return self._links([*serious, *small, *infos], self.whatif.no_fault, self._start_total_ns)

    @cached_property
    def _needed(self) -> list[RuleFaults]:
        """What was found of the job itself, without slow ranks that need no fix once the rest is fixed."""
        of_job = [each for each in self.everything if not each.rule.is_of_tracing]
        return needed(of_job, self.whatif, self.job.ranks)

    def _is_serious(self, link: _Link) -> bool:
        """Whether a link costs enough for a finding of its own that is more than info."""
        return (
            not link.rule_faults.rule.only_informs and link.total_ns >= Severity.MINOR.least_share * self.step_total_ns
        )

    def _links(self, order: Sequence[RuleFaults], together: Change, before_ns: int) -> tuple[_Link, ...]:
        """What each rule's fix saves on top of a change and of the fixes before it; `before_ns` is the job with that
        change.
        """
        fixes = (rule_faults.change for rule_faults in order)
        self.whatif.foresee_steps(accumulate(fixes, or_, initial=together))
        steps = self.whatif.step_ns(together)
        links = []
        for rule_faults in order:
            if rule_faults.change.is_nothing:
                links.append(_Link(rule_faults, 0, np.zeros(self.whatif.shape[1]), together))
                continue
            earlier, together = together, together | rule_faults.change
            after = self.whatif.step_ns(together)
            after_ns = min(max(self.step_total_ns - int((self.whatif.recorded_ns - after).sum()), 0), before_ns)
            links.append(_Link(rule_faults, before_ns - after_ns, (steps - after).mean(axis=0), earlier))
            before_ns, steps = after_ns, after
        return tuple(self._shared_by_hiding(links))

    def _shared_by_hiding(self, links: Sequence[_Link]) -> Iterator[_Link]:
        """The links, with the savings of findings that hide each other divided among them.

        Each gets a part in proportion to what it saves once the others are fixed.
        """
        hiding = [link for link in links if link.rule_faults.hides_with]
        weights = self.whatif.costs_ns([link.rule_faults.change for link in hiding]) if hiding else []
        parts = iter(_divided(sum(link.total_ns for link in hiding), weights))
        by_step_ns = np.sum([link.by_step_ns for link in hiding], axis=0)
        for link in links:
            yield replace(link, total_ns=next(parts), by_step_ns=by_step_ns) if link in hiding else link

    def _alone(self, rule_faults: RuleFaults) -> float:
        """How much shorter a rule's fix alone makes a step, mean over steps, ns."""
        return self.whatif.cost_ns(rule_faults.change)

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """The findings, the costliest first; no time is charged to two of them.

        Time that two fixes would both save is charged to the more special finding, then to the costlier one.
        """
        made = [finding for link in self._chain for finding in self._findings(link)]
        for rule_faults in self.everything:
            if rule_faults.rule.is_of_tracing:
                traced = self.step_total_ns - self._untraced_total_ns
                by_step = (self.whatif.recorded_ns - self.whatif.step_ns(self.whatif.tracing)).mean(axis=0)
                made += self._findings(_Link(rule_faults, traced, by_step))
        made.sort(key=lambda one: (one.severity == Severity.INFO.label, -one.cost_ms, -one.alone_ms))
        return tuple(_with_others(one, self._together(one, made)) for one in made)

    @cached_property
    def _fixes(self) -> Change:
        """What the fixes of all faults take out, with what is no fault."""
        return reduce(or_, [link.rule_faults.change for link in self._chain], self.whatif.no_fault)

    @cached_property
    def _faultless_job(self) -> WhatIf:
        """The job that opportunities are tried on: with all faults fixed."""
        return self.whatif.after(self._fixes)

    def foresee_opportunities(self) -> None:
        """Begins to play what `opportunities` will ask for."""
        tried = [each.change for each in self.possible]
        tried += [change for each in self.possible for fault in each.faults for change in fault.tried]
        if tried:
            self._faultless_job.foresee(tried)

    @cached_property
    def opportunities(self) -> tuple[Finding, ...]:
        """What could be faster still, the largest saving first, each on top of all faults' fixes and of those before it
        in order of precedence: together they cost what all of them save. What saves too little is left out.
        """
        if not self.possible:
            return ()
        fixes, played = self._fixes, self._faultless_job
        order = list(_by_precedence(self.possible, lambda each: played.cost_ns(each.change)))
        before_ns = min(self.total_ns(fixes), self._start_total_ns)
        made = [one for link in self._links(order, fixes, before_ns) for one in self._findings(link, played)]
        least_ms = _LEAST_SAVED * self.step_total_ns / self.size / 1e6
        return tuple(sorted((one for one in made if one.cost_ms >= least_ms), key=lambda one: -one.cost_ms))

    def _together(self, one: Finding, findings: Sequence[Finding]) -> Together | None:
        """The findings to fix together with one, so that the fixes save what they cost; None if its own fix does.

        1. Add the finding that makes the fixes save most together, until they save about what they cost.
        2. Leave out again each one without which the fixes save about as much.
        """
        if one.severity == Severity.INFO.label or one.alone_ms >= _AS_SAID * one.cost_ms:
            return None
        faults = [link.rule_faults for link in self._chain if not link.rule_faults.change.is_nothing]
        of_chain = {name for each in faults for name in each.by_id}
        others = [other for other in findings if other is not one and other.id in of_chain]
        chosen, saved_ms = [one], one.alone_ms
        while others and saved_ms < _AS_SAID * sum(each.cost_ms for each in chosen):
            best = max(others, key=lambda other: (self._saved_ms([*chosen, other]), other.cost_ms))
            others.remove(best)
            chosen.append(best)
            saved_ms = self._saved_ms(chosen)
        for other in chosen[1:]:
            rest = [each for each in chosen if each is not other]
            if len(rest) > 1 and self._saved_ms(rest) >= _AS_SAID * saved_ms:
                chosen = rest
        if len(chosen) == 1:
            return None
        saved_ms = self._saved_ms(chosen)
        names = [
            f"{other.rule} on {wording.ranks(other.ranks)}" if ":" in other.id else other.rule for other in chosen[1:]
        ]
        said = together(names, saved_ms * 1e6, one.alone_ms * 1e6)
        return Together(tuple(other.id for other in chosen[1:]), saved_ms, said)

    def _saved_ms(self, findings: Sequence[Finding]) -> float:
        """What some findings' fixes save together, ms a step."""
        return self.whatif.cost_ns(self.change_of([one.id for one in findings])) / 1e6

    def _findings(self, link: _Link, played: WhatIf | None = None) -> Iterator[Finding]:
        """A rule's findings, each with its part of what the rule costs; `played` is the job that its fix is tried on
        alone, if not the recorded one.
        """
        played = played or self.whatif
        rule, step_ns = link.rule_faults.rule, self.step_total_ns / self.size
        if not rule.is_of_tracing:
            played.foresee(change for fault in link.rule_faults.faults for change in fault.tried)
        for name, (fault, total_ns) in self._parts(link, played).items():
            cost_ns = total_ns / self.size
            share = cost_ns / step_ns if step_ns else 0.0
            alone_ns = cost_ns if rule.is_of_tracing else played.cost_ns(fault.change)
            seemed = rule.names_stragglers or alone_ns >= Severity.MINOR.least_share * step_ns
            if seemed and not rule.only_informs and share < rule.least_share:
                continue
            hidden = alone_ns < cost_ns / 2
            least, most = interval(cost_ns, self.job.clock.residual_ns or 0.0, step_ns)
            if fault.between and alone_ns:
                # Each end of `between` has as much of the charged cost as it has of what the fix saves alone.
                shares = [e if isinstance(e, float) else played.cost_ns(e) / alone_ns for e in fault.between]
                ends = [cost_ns * share for share in shares]
                least, most = min(least, *ends), max(most, *ends)
            said = None if rule.is_opportunity else headline(rule, fault, cost_ns, self.job, self.mesh)
            level = certainty.LOWER[fault.confidence] if cost_ns and uncertain(link.by_step_ns) else fault.confidence
            yield Finding(
                id=name,
                rule=rule.id,
                severity=severity(rule, fault, share).label,
                cost_ms=cost_ns / 1e6,
                alone_ms=alone_ns / 1e6,
                range_ms=(least / 1e6, most / 1e6),
                ranks=fault.ranks,
                steps=fault.steps,
                cause=fault.cause,
                confidence=level,
                title=fault.title,
                headline=said.sentence if said else opportunity(fault, least, most),
                headline_parts=said,
                why=f"{fault.why} {_behind(fault)}".rstrip() if hidden else fault.why,
                fix=fault.fix,
                fix_parts=FixParts.of(fault.fix),
                evidence=fault.evidence,
                modules=fault.modules,
                measurements=(*fault.measurements, *self._arithmetic(fault, alone_ns, cost_ns)),
                thresholds=rule.thresholds(),
            )

    def _parts(self, link: _Link, played: WhatIf) -> dict[str, tuple[Fault, int]]:
        """What each fault of a link is charged with, ns summed over ranks and steps, by the id of its finding.

        The faults of a link share what all of them save, by weight. Where only some of the faults are serious, these
        are charged with what they save without the others, and the others, which are info, with the rest:

            ranks 0 and 1 together 8 ms, by weight 6 (serious) and 2 (info); rank 0 alone 5.3    charged: 5.3 and 2.7
        """
        faults = link.rule_faults.by_id
        weights = dict(zip(faults, _weights(link.rule_faults, played), strict=True))
        parts = _divided_by_name(link.total_ns, weights)
        loud = [name for name in parts if self._is_loud(link, faults[name], parts[name])]
        while 0 < len(loud) < len(faults) and not link.rule_faults.hides_with:
            fixed = reduce(or_, [faults[name].change for name in loud], link.before)
            saved = int((self.whatif.step_ns(link.before) - self.whatif.step_ns(fixed)).sum())
            of_loud = min(max(saved, 0), link.total_ns)
            quiet = {name: weight for name, weight in weights.items() if name not in loud}
            parts |= _divided_by_name(of_loud, {name: weights[name] for name in loud})
            parts |= _divided_by_name(link.total_ns - of_loud, quiet)
            still = [name for name in loud if self._is_loud(link, faults[name], parts[name])]
            if still == loud:
                faults = faults | {name: replace(faults[name], at_most=Severity.INFO) for name in quiet}
                break
            loud = still
        else:
            parts = _divided_by_name(link.total_ns, weights)
        return {name: (fault, parts[name]) for name, fault in faults.items()}

    def _is_loud(self, link: _Link, fault: Fault, total_ns: int) -> bool:
        """Whether a fault that is charged with this much is more than info."""
        share = total_ns / self.step_total_ns if self.step_total_ns else 0.0
        return severity(link.rule_faults.rule, fault, share) is not Severity.INFO

    def _arithmetic(self, fault: Fault, alone_ns: float, cost_ns: float) -> Iterator[Measurement]:
        """The arithmetic of a finding as measurements, from what its fix removes to what that saves, ms a step."""
        change, ranks, steps = fault.change, fault.ranks, fault.steps
        counted = any(one.count is not None for one in fault.measurements)
        if not counted and (all_stretches := stretches(fault, self.job)):
            yield all_stretches
        there = np.ix_(np.isin(self.job.ranks, ranks), np.isin(self.job.steps, steps))

        def mean_ms(amount: NDArray[np.generic]) -> float:
            return float(amount[there].mean()) / 1e6 if amount[there].size else 0.0

        for kind, share in change.of_host.items():
            taken = mean_ms(share * self.whatif.host_ns(kind))
            if taken >= 0.005:
                name = f"CPU time that the fix removes: {SPENDING[kind].words}"
                yield Measurement(name, taken, "ms", ranks, steps, owner=SPENDING[kind].owner)
        work = ("GPU work", "compute", change.device_ns)
        shorter = None
        if change.of_collectives is not None and self.whatif.replay:
            shorter = self.whatif.replay.shorter_transfers_ns(change)
        exposed = ("exposed communication", "transfer", change.transfer_ns)
        for name, owner, amount in (work, exposed, ("communication", "transfer", shorter)):
            if amount is not None and (taken := mean_ms(amount)) >= 0.005:
                yield Measurement(f"{name} that the fix removes", taken, "ms", ranks, steps, owner=owner)
        if not change.is_nothing:
            step = self.step_total_ns / self.size
            yield Measurement("step now", step / 1e6, "ms", tuple(self.job.ranks.tolist()))
            yield Measurement("what tracing adds", (step - self._untraced_total_ns / self.size) / 1e6, "ms")
            yield Measurement("saved if this alone is fixed", alone_ns / 1e6, "ms")
            yield Measurement("saved on top of the findings charged before it", cost_ns / 1e6, "ms")

    @cached_property
    def faultless(self) -> Change:
        """What the job would be without at its floor: every finding, tracing, and whatever no rule named."""
        return self._fixes | self.whatif.faultless

    @cached_property
    def account(self) -> Account:
        """The account of the step."""
        links = self._chain
        before_ns = self._start_total_ns - sum(link.total_ns for link in links)
        fixes = self._fixes
        floor_ns = min(before_ns, self.total_ns(self.faultless))
        floor_ns -= min(int(self._unplayed_wait_ns.sum()) * self.whatif.shape[0], floor_ns)
        is_said = before_ns - floor_ns >= _LEAST_LOCATED * self.step_total_ns
        floor_ns -= min(self._unrecorded_arrivals_ns, floor_ns)
        lines: list[tuple[LineKind, str, int]] = [("floor", "", floor_ns)]
        lines.append(("tracing", "", self.step_total_ns - self._untraced_total_ns))
        if self._start_total_ns < self._untraced_total_ns:
            lines.append(("no-requests", "", self._untraced_total_ns - self._start_total_ns))
        charged = {finding.id: finding for finding in self.findings}
        for link in links:
            for name, (_, part) in self._parts(link, self.whatif).items():
                # A link without a finding, since it costs too little: its time is unexplained.
                if name in charged and part:
                    lines.append(("finding", name, part))
        lines.append(("unexplained", "", self.step_total_ns - sum(total for _, _, total in lines)))
        return Account(
            method="replay" if self.whatif.plays else "busy_time",
            total_ns=self.step_total_ns,
            lines=tuple(self._line(kind, name, total) for kind, name, total in lines),
            unexplained=self._unexplained(fixes)[0] if is_said else None,
            left_out=self.job.left_out,
            no_replay=self.whatif.no_replay,
        )

    def _line(self, kind: LineKind, finding: str, total_ns: int) -> AccountLine:
        share = total_ns / self.step_total_ns if self.step_total_ns else 0.0
        return AccountLine(kind, finding or None, total_ns, total_ns / self.size / 1e6, share)

    @cached_property
    def _unrecorded_arrivals_ns(self) -> int:
        """Exposed communication in calls whose last arrival is not known, ns summed over ranks and steps.

        These are calls without a match although other ranks of their group are traced, and calls in groups most of
        whose ranks have no trace. They may hide waits, so they are unexplained, not floor.
        """
        alone = could_match(self.job.calls) & (self.job.parts == 1) & (len(self.job.ranks) > 1)
        lacking = alone | mostly_untraced(self.job)
        return int(self.job.measure(exposed_alone(self.job, lacking)).sum()) if lacking.any() else 0

    @cached_property
    def _unplayed_wait_ns(self) -> Ints:
        """Straggler wait of each step that busy times do not explain, shape (S,), ns; 0 with a replay.

        That is what the rank waits that waits least, such as for ranks that are late in turn. Only stages of a pipeline
        wait for each other though none is slow.
        """
        if self.whatif.plays:
            return np.zeros(self.whatif.shape[1], np.int64)
        wait = self.whatif.at_slowest(self.job.budget.of("wait") - self.job.waiting.absent_ns)
        stages = pipeline(self.job, self.mesh) if self.mesh else None
        bubble_ns = round(stages.bubble_ns(float(self.job.budget.of("compute").mean()))) if stages else 0
        unplayed: Ints = np.maximum(wait - bubble_ns, 0)
        return unplayed

    @property
    def share_of_named_owner(self) -> float:
        """The share, 0 to 1, that the owner named in the account has of the unexplained time."""
        if not self.whatif.plays:
            return 0.0
        return self._unexplained(self._fixes)[1]

    def _unexplained(self, fixes: Change) -> tuple[Unexplained | None, float]:
        """Where the unexplained time lies after some fixes, and the share of it that the owner named there has.

        1. Make only the host faultless, only the device, or only communication: the one that saves most has the time.
        2. Its steps and ranks are those with most of it (`_MUCH`).
        3. There, name the owner of the budget and the phase with most time.
        """
        faultless, now = self.whatif.faultless, self.whatif.step_ns(fixes)
        kinds = {
            "host": Change(no_host=True),
            "device": Change(device_at_median=faultless.device_at_median),
            "communication": Change(transfers_at_median=faultless.transfers_at_median, absent=True),
        }
        gains = {kind: (now - self.whatif.step_ns(fixes | one)) for kind, one in kinds.items()}
        gains["communication"] = gains["communication"] + self._unplayed_wait_ns
        kind = max(gains, key=lambda kind: float(gains[kind].sum()))
        unexplained = now - self.whatif.step_ns(fixes | faultless) + self._unplayed_wait_ns
        share, by_step = float(gains[kind].sum()) / max(float(unexplained.sum()), 1.0), unexplained.mean(axis=0)
        steps = np.flatnonzero(by_step >= _MUCH * max(float(by_step.max(initial=0.0)), 1.0))
        if not len(steps):
            return None, share
        busy = self.whatif.busy_ns[:, steps].mean(axis=1)
        excess = busy - np.median(busy)
        above = excess >= _MUCH * float(excess.max())
        ranks = np.flatnonzero(above) if excess.max() > _MUCH * float(by_step[steps].mean()) else np.arange(len(busy))
        owner, phase = self._owner(kind, ranks, steps)
        where = Unexplained(
            owner=owner,
            phase=phase,
            ranks=tuple(self.job.ranks[ranks].tolist()),
            steps=tuple(self.job.steps[steps].tolist()),
        )
        return where, share

    def _owner(self, kind: str, ranks: NDArray[np.intp], steps: NDArray[np.intp]) -> tuple[str, str | None]:
        """The owner of the budget with most of one kind of time on some ranks and steps, and the phase.

        The phase is None if the trace does not show phases. A CPU may delay communication without leaving its GPU idle:
        then communication owns the time.
        """
        chosen = np.ix_(ranks, steps)
        time_of = {name: int(self.job.budget.of(name)[chosen].sum()) for name in OWNERS}
        likely = (_OWNERS_OF[kind], _OWNERS_OF["communication"])
        owners = next((some for some in likely if any(time_of[name] for name in some)), OWNERS)
        owner = max(owners, key=lambda name: time_of[name])
        if not self.whatif.plays and kind != "host":
            owner = "wait" if kind == "communication" else self._longer_than_median(ranks, steps)
        if not self.job.has_phases:
            return owner, None
        phases = self.job.work(lambda work: work.phases)
        time = phases.host_ns if kind == "host" else phases.device_ns
        others = np.setdiff1d(np.arange(time.shape[1]), steps)
        typical = time[np.ix_(ranks, others)].mean(axis=(0, 1)) if len(others) else np.zeros(time.shape[2])
        return owner, PHASES[int((time[chosen].mean(axis=(0, 1)) - typical).argmax())]

    def _longer_than_median(self, ranks: NDArray[np.intp], steps: NDArray[np.intp]) -> str:
        """The owner that makes the busy times of some ranks longest, relative to the median rank's."""
        spent = self.job.budget.owner_ns[:, steps].mean(axis=1)
        longer = spent[ranks].mean(axis=0) - np.median(spent, axis=0)
        return max(("compute", "copy", "transfer"), key=lambda name: longer[OWNERS.index(name)])

    def change_of(self, chosen: Collection[str]) -> Change:
        """The change that fixes the chosen findings: ids of findings, or of rules for all findings of a rule."""
        changes = (
            fault.change
            for rule_faults in [*self._needed, *self.possible]
            for name, fault in rule_faults.by_id.items()
            if rule_faults.rule.id in chosen or name in chosen
        )
        return reduce(or_, changes, Change())

    def without(self, chosen: Collection[str]) -> Prospect:
        """The step with the chosen findings fixed: ids of findings, or of rules for all findings of a rule.

        Other ids change nothing. The step keeps what tracing adds unless profiler-overhead is chosen.
        """
        fixed, change = [], []
        of_tracing = [each for each in self.everything if each.rule.is_of_tracing]
        for rule_faults in [*self._needed, *of_tracing, *self.possible]:
            for name, fault in rule_faults.by_id.items():
                if rule_faults.rule.id in chosen or name in chosen:
                    fixed.append(name)
                    if not rule_faults.rule.is_of_tracing:
                        change.append(fault.change)
        untraced = any(each.rule.is_of_tracing and each.rule.id in fixed for each in self.everything)
        together = reduce(or_, change, self.whatif.no_fault)
        known = self._of_prefixes.get(frozenset(fixed) - {"profiler-overhead"})
        after_ns = min(self.total_ns(together), self._start_total_ns) if known is None else known
        saved_ns = self._start_total_ns - after_ns + untraced * (self.step_total_ns - self._untraced_total_ns)
        step_ns = self.step_total_ns / self.size
        saved = saved_ns / self.size
        least, most = interval(saved, self.job.clock.residual_ns or 0.0, step_ns)
        return Prospect(
            fixed=tuple(fixed),
            step_ms=step_ns / 1e6,
            without_ms=max(step_ns - saved, 0.0) / 1e6,
            range_ms=(max(step_ns - most, 0.0) / 1e6, max(step_ns - least, 0.0) / 1e6),
        )

    @cached_property
    def _of_prefixes(self) -> dict[frozenset[str], int]:
        """What remains of all steps once the first few links of the chain are fixed, ns, by their findings' ids.

        Once with all findings of these links, and once with the serious ones only. The tab and the account then show
        the same numbers.
        """
        findings = {finding.id: finding for finding in self.findings}
        start = self._start_total_ns
        known = {frozenset[str](): start}
        every: tuple[set[str], int] = set(), start
        serious: tuple[set[str], int] = set(), start
        hiding, fixed = sum(bool(link.rule_faults.hides_with) for link in self._chain), 0
        for link in self._chain:
            for name, (_, part) in self._parts(link, self.whatif).items():
                if name not in findings:
                    continue
                every = every[0] | {name}, every[1] - part
                if findings[name].severity != Severity.INFO.label:
                    serious = serious[0] | {name}, serious[1] - part
            fixed += bool(link.rule_faults.hides_with)
            # Findings that hide each other save less if only some of them are fixed.
            if fixed in (0, hiding):
                known |= {frozenset(names): remaining for names, remaining in (serious, every)}
        return known


_OWNERS_OF = {
    "host": IDLE,
    "device": ("compute", "copy"),
    "communication": ("transfer", "wait"),
}


def _with_others(finding: Finding, together: Together | None) -> Finding:
    """A finding that says what else to fix together with it."""
    return replace(finding, together=together, why=f"{finding.why} {together.sentence}") if together else finding


def _behind(fault: Fault) -> str:
    """A sentence on the findings that hid a fault until they were fixed; "" if none did."""
    are = "are" if len(fault.hidden_by) > 1 else "is"
    return f"Visible once {wording.listing(fault.hidden_by)} {are} fixed." if fault.hidden_by else ""


def _weights(rule_faults: RuleFaults, played: WhatIf) -> list[float]:
    """Weights that divide the cost of a link among its faults: what each fix saves in a job once the others are made.

    So each of two slow ranks has a part, although the step stays as long as the other's if only one is fixed.
    """
    if len(rule_faults.faults) == 1:
        return [1.0]
    return played.costs_ns([fault.change for fault in rule_faults.faults])


def _divided_by_name(total: int, weights: Mapping[str, float]) -> dict[str, int]:
    return dict(zip(weights, _divided(total, list(weights.values())), strict=True))


def _divided(total: int, weights: Sequence[float]) -> list[int]:
    """A total divided into integer parts in proportion to weights; the parts sum to it."""
    whole = sum(weights)
    shares = [weight / whole if whole else 1 / len(weights) for weight in weights]
    edges = [round(total * sum(shares[: i + 1])) for i in range(len(shares) - 1)] + [total]
    return [end - start for start, end in zip([0, *edges], edges, strict=False)]


def _is_alarm(fault: Fault) -> bool:
    """Whether a fault is more than info where it costs enough."""
    return fault.at_most is not Severity.INFO


def _by_precedence(everything: Sequence[RuleFaults], alone: Callable[[RuleFaults], float]) -> Iterator[RuleFaults]:
    """What was found, in the order in which it is charged.

    1. Findings that only inform.
    2. Excess of single ranks over the median rank.
    3. What all ranks share, the costliest first; but a rule that others refine comes after those.
    """
    remaining = sorted(
        everything, key=lambda each: (not each.rule.only_informs, not each.rule.names_stragglers, -alone(each))
    )
    while remaining:
        refined = {rule for each in remaining for rule in each.rule.refined()}
        following = next((each for each in remaining if each.rule.id not in refined), remaining[0])
        remaining.remove(following)
        yield following
