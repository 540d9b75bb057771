"""Applies the rules to a job, and again to the job without what they found: one fault hides another.

While a straggler keeps all ranks waiting, none waits for its loader.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from functools import reduce
from operator import or_

import msgspec
from msgspec.structs import replace

from tb_ddp_doctor.facts import unrecognised
from tb_ddp_doctor.facts.facts import Facts
from tb_ddp_doctor.facts.replayed import whatif
from tb_ddp_doctor.findings import MOST_UNEXPLAINED, RuleOutcome, Severity
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support.base import Found, Rule, run

_log = logging.getLogger(__name__)
#: So often rules look for what other faults hide.
_MOST_LOOKS = 2
#: Where less of the step than this is unexplained, no other fault hides.
_NOTHING_HIDDEN = Severity.MINOR.least_share


def look(rules: Sequence[Rule], facts: Facts) -> tuple[list[RuleOutcome], list[Found]]:
    """How each rule ends, and what was found. Rules that explain the rest look again last. No rule's exception leaves.

    Slow ranks that cost nothing by themselves may be so for a fault of all ranks, which their fix would hide: that is
    looked for before they are fixed.
    """
    outcomes, found = _apply(rules, facts)
    try:
        played = facts.get(whatif)
    except Exception:
        return outcomes, found
    if not played.plays:
        return outcomes, found
    looks = _Looks(facts, played, outcomes, found)
    common = [rule for rule in rules if not rule.explains_the_rest]
    costly = [_costly(each, played) for each in found]
    if costly != found:
        looks.again(common, costly)
    looks.until_silent(common)
    looks.until_silent(rules)
    looks.of_either_side(rules)
    looks.at_what_is_left(rules)
    return looks.within_what_is_removed()


def look_for_opportunities(
    rules: Sequence[Rule], facts: Facts, faults: Sequence[Found]
) -> tuple[list[RuleOutcome], list[Found]]:
    """How each rule on opportunities ends, and what was found, in the job with all faults fixed."""
    if not rules:
        return [], []
    try:
        played = facts.get(whatif)
    except Exception:
        return _apply(rules, facts)
    later = played.after(reduce(or_, [each.change for each in faults], Change()))
    return _apply(rules, facts.replaced(whatif, later))


class _Looks:
    """What the rules have said of a job so far."""

    def __init__(self, facts: Facts, played: WhatIf, outcomes: list[RuleOutcome], found: list[Found]) -> None:
        self._facts, self._played = facts, played
        self.outcomes, self.found = outcomes, found

    def until_silent(self, rules: Sequence[Rule]) -> None:
        for _ in range(_MOST_LOOKS):
            if not self.again(rules, self.found):
                break

    def again(self, rules: Sequence[Rule], without: Sequence[Found]) -> bool:
        """Apply those of the rules that found nothing to the job without what these rules found; whether they find.

        Rules on slow ranks look for others. What they found that costs nothing need not be what remains slow.
        """
        ids = {rule.id for rule in rules}
        serious = [
            each
            for each in without
            if each.rule.id in ids and not each.rule.only_informs and not each.change.is_nothing
        ]
        serious = [each for each in serious if not self._costs_nothing(each)] or serious
        fixes = reduce(or_, [each.change for each in serious], self._played.tracing)
        if not serious or _unexplained_share(self._played, fixes) < _NOTHING_HIDDEN:
            return False
        silent = {outcome.rule for outcome in self.outcomes if outcome.status == "clear"}
        silent |= {each.rule.id for each in self.found if each.rule.names_stragglers}
        again, new = self._find([rule for rule in rules if rule.looks_again and rule.id in silent], fixes)
        hidden_by = tuple(dict.fromkeys(each.rule.id for each in serious))
        known = {each.rule.id: each for each in self.found if each.rule.id in hidden_by}
        more = [_with_others(known.get(each.rule.id), _hidden(each, hidden_by)) for each in new]
        found = [each for each in more if each]
        self._add(again, found)
        return bool(found)

    def _costs_nothing(self, found: Found) -> bool:
        """Whether a rule found slow ranks alone that cost nothing by themselves."""
        return found.rule.names_stragglers and self._played.cost_ns(found.change) < _least_ns(self._played)

    def within_what_is_removed(self) -> tuple[list[RuleOutcome], list[Found]]:
        """What was found, without findings whose fix would save more time than it removes: these are errors."""
        beyond = {each.rule.id for each in self.found if self._played.saves_more_than_it_removes(each.change)}
        for rule in beyond:
            _log.debug("the fix of %s saves more than it removes", rule)
        error = "Its fix would save more time than it removes from all ranks, which is impossible: please report it."
        outcomes = [
            RuleOutcome(outcome.rule, "error", error) if outcome.rule in beyond else outcome
            for outcome in self.outcomes
        ]
        return outcomes, [each for each in self.found if each.rule.id not in beyond]

    def of_either_side(self, rules: Sequence[Rule]) -> None:
        """Find faults of CPUs and of GPUs that take equally long, so that to fix one alone saves nothing.

        Rules look at the CPUs as if every GPU took the median rank's time, and at the GPUs as if no CPU took any. Slow
        ranks that were found and cost nothing are no reason not to look for others.
        """
        fixes = reduce(or_, [each.change for each in self.found], self._played.tracing)
        if _unexplained_share(self._played, fixes) < MOST_UNEXPLAINED:
            return
        least = _least_ns(self._played)
        costly = {each.rule.id for each in self.found if self._played.cost_ns(each.change) >= least}
        looking = [rule for rule in rules if rule.looks_again and rule.id not in costly]
        at_median = Change(device_at_median=self._played.faultless.device_at_median)
        again: list[RuleOutcome] = []
        new: list[Found] = []
        for other_side in (at_median, Change(no_host=True)):
            outcomes, found = self._find(looking, fixes | other_side, supposed=True)
            again += outcomes
            new += [each for each in found if each.rule.id not in {one.rule.id for one in new}]
        new = self._which_hide_each_other(new, fixes)
        self._add(again, [replace(each, hides_with=tuple(o.rule.id for o in new if o is not each)) for each in new])

    def at_what_is_left(self, rules: Sequence[Rule]) -> None:
        """Have rules that found nothing look at the job with everything fixed that was found, where much of it is
        unexplained still: what holds most of that is named, though no gap of the record shows it.
        """
        fixes = reduce(or_, [each.change for each in self.found], self._played.tracing)
        if _unexplained_share(self._played, fixes) < MOST_UNEXPLAINED:
            return
        silent = {outcome.rule for outcome in self.outcomes if outcome.status == "clear"}
        looking = [rule for rule in rules if rule.looks_again and rule.id in silent]
        # Where nothing was found, this is the job as recorded: what holds it up shows in its gaps.
        fixes_nothing = all(each.change.is_nothing for each in self.found)
        again, new = self._find(looking, fixes, supposed=fixes_nothing, is_last=True)
        hidden_by = tuple(dict.fromkeys(each.rule.id for each in self.found if not each.rule.only_informs))
        self._add(again, [_hidden(each, hidden_by) for each in new])

    def _which_hide_each_other(self, new: Sequence[Found], fixes: Change) -> list[Found]:
        """Those of the findings without whose fix the others save little, if all together save much."""
        played = self._played.after(fixes)
        least = _least_ns(played)
        together = played.cost_ns(reduce(or_, [each.change for each in new], Change()))
        hiding = [
            each
            for each in new
            if together - played.cost_ns(reduce(or_, [one.change for one in new if one is not each], Change())) >= least
        ]
        return hiding if len(hiding) > 1 else []

    def _find(
        self, rules: Iterable[Rule], fixes: Change, *, supposed: bool = False, is_last: bool = False
    ) -> tuple[list[RuleOutcome], list[Found]]:
        """What rules find in the job with some fixes, of found or only of supposed faults."""
        later = self._played.after(fixes, supposed=supposed)
        if is_last:
            later.is_last_look = True
        outcomes, found = _apply(rules, self._facts.replaced(whatif, later))
        return outcomes, [each for each in found if not each.change.is_nothing]

    def _add(self, outcomes: Iterable[RuleOutcome], found: Sequence[Found]) -> None:
        new = {each.rule.id for each in found}
        self.found = [*(each for each in self.found if each.rule.id not in new), *found]
        ends = {outcome.rule: outcome for outcome in outcomes if outcome.rule in new and outcome.status == "finding"}
        self.outcomes = [ends.get(outcome.rule, outcome) for outcome in self.outcomes]


def _costly(found: Found, played: WhatIf) -> Found:
    """What was found, without slow ranks that cost nothing by themselves, where others do."""
    if not found.rule.names_stragglers:
        return found
    least = _least_ns(played)
    costly = tuple(fault for fault in found.faults if played.cost_ns(fault.change) >= least)
    if len(costly) in (0, len(found.faults)):
        return found
    return replace(found, faults=costly, change=reduce(or_, [fault.change for fault in costly]))


def _hidden(found: Found, by: tuple[str, ...]) -> Found:
    """What was found once what these rules found was fixed."""
    return replace(found, faults=tuple(replace(fault, hidden_by=by) for fault in found.faults))


def _with_others(known: Found | None, new: Found) -> Found | None:
    """What a rule knew and what it found of other ranks; None if that is nothing."""
    if known is None:
        return new
    ranks = {rank for fault in known.faults for rank in fault.ranks}
    others = tuple(fault for fault in new.faults if ranks.isdisjoint(fault.ranks))
    if not others:
        return None
    change = reduce(or_, [fault.change for fault in others], known.change)
    return replace(known, faults=(*known.faults, *others), change=change)


def _least_ns(played: WhatIf) -> float:
    """What costs less than this a step hides nothing, ns."""
    return _NOTHING_HIDDEN * float(played.recorded_ns.mean())


def _unexplained_share(played: WhatIf, fixes: Change) -> float:
    """The share of the step that a job without any fault would not need once something is fixed."""
    left, floor = played.step_ns(fixes).mean(), played.step_ns(fixes | played.faultless).mean()
    return float((left - floor) / max(played.recorded_ns.mean(), 1.0))


def _apply(rules: Iterable[Rule], facts: Facts) -> tuple[list[RuleOutcome], list[Found]]:
    outcomes: list[RuleOutcome] = []
    everything: list[Found] = []
    limits = _Limits.of(facts.job)
    for rule in rules:
        found = None
        if why := limits.why_not(rule):
            outcomes.append(RuleOutcome(rule.id, "not-applicable", why))
            continue
        try:
            outcome, found = run(rule, facts)
        except Exception as error:
            _log.debug("rule %s failed", rule.id, exc_info=True)
            outcome = RuleOutcome(rule.id, "error", f"The rule failed ({type(error).__name__}: {error}).")
        outcomes.append(outcome)
        if found:
            everything.append(found)
    return outcomes, everything


class _Limits(msgspec.Struct, frozen=True):
    """What keeps rules from holding for a job, whatever its times are."""

    hides_device: bool
    captures_graphs: bool
    trains: bool

    @classmethod
    def of(cls, job: Job) -> _Limits:
        """As the job's traces show."""
        return cls(unrecognised.hides_its_device(job), unrecognised.captures_graphs(job), unrecognised.trains(job))

    def why_not(self, rule: Rule) -> str | None:
        """Why a rule cannot hold, as a sentence; None where it can."""
        if self.hides_device and not rule.of_every_device:
            return "It needs the GPU events, which these traces do not have; the CPU alone is not enough."
        if self.captures_graphs and not rule.of_every_device:
            return "It is about steps, and these traces show the capture of a CUDA graph."
        if not self.trains and not rule.of_every_program:
            return "It is about training loops, and this program does not train."
        return None
