"""Applies the rules to a job, and again to the job with their findings fixed, since one fault hides another.

For example, no rank waits for its loader while all wait for a straggler: the loader's stall shows once the straggler is
fixed in the replay.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from functools import reduce
from operator import or_

import msgspec
from msgspec.structs import replace

from tb_ddp_doctor.facts import Facts, unrecognised
from tb_ddp_doctor.facts.without_faults import Charged, charged, whatif
from tb_ddp_doctor.findings import MOST_UNEXPLAINED, RuleOutcome, Severity
from tb_ddp_doctor.job import job_kind
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support.base import Rule, RuleFaults, run
from tb_ddp_doctor.trace.program_names import Program

_log = logging.getLogger(__name__)
#: Rules are applied again at most this many times to find what other faults hide.
_MOST_LOOKS = 2
#: If less than this share of the step is unexplained, no fault is hidden.
_NOTHING_HIDDEN = Severity.MINOR.least_share


def look(rules: Sequence[Rule], facts: Facts) -> tuple[list[RuleOutcome], list[RuleFaults]]:
    """Apply the rules: how each rule ends, and what was found. An exception of a rule becomes its outcome.

    1. Apply all rules to the job as recorded. Where one found a special cause, apply the general ones that it refines
       to the job with that fixed: a rank with the busiest experts is no straggler, a capture no gap between iterations.
    2. If some slow ranks cost nothing by themselves, apply the rules without their fix: a fault of all ranks may make
       them slow, which their fix would hide.
    3. Apply the rules again with the findings fixed, until they find no more; rules that explain the rest come last.
    4. Look for faults of CPUs and GPUs that take equally long, and at what still is unexplained.
    5. Drop findings whose fix saves more than it removes: these are errors.
    """
    outcomes, all_faults = _apply(rules, facts)
    try:
        played = facts.get(whatif)
    except Exception:
        return outcomes, all_faults
    if not played.plays:
        return outcomes, all_faults
    outcomes, all_faults = _beside_special_causes(facts, played, outcomes, all_faults)
    looks = _Looks(facts, played, outcomes, all_faults)
    common = [rule for rule in rules if not rule.explains_the_rest]
    costly = [_costly(each, played) for each in all_faults]
    if costly != all_faults:
        looks.again(common, costly)
    looks.until_silent(common)
    looks.until_silent(rules)
    looks.of_either_side(rules)
    looks.at_the_unexplained(rules)
    return looks.within_what_is_removed()


def _beside_special_causes(
    facts: Facts, played: WhatIf, outcomes: list[RuleOutcome], all_faults: list[RuleFaults]
) -> tuple[list[RuleOutcome], list[RuleFaults]]:
    """The outcomes and findings, those of general rules with what rules that refine them found fixed."""
    refined = {rule for each in all_faults for rule in each.rule.refined()}
    general = [each for each in all_faults if each.rule.id in refined]
    if not general:
        return outcomes, all_faults
    ids = {each.rule.id for each in general}
    special = [each for each in all_faults if each not in general and ids & set(each.rule.refined())]
    fixes = reduce(or_, [each.change for each in special], Change())
    again, new = _apply([each.rule for each in general], facts.replaced(whatif, played.after(fixes)))
    ends = {outcome.rule: outcome for outcome in again}
    return [ends.get(one.rule, one) for one in outcomes], [*(each for each in all_faults if each not in general), *new]


def look_for_opportunities(
    rules: Sequence[Rule], facts: Facts, faults: Sequence[RuleFaults]
) -> tuple[list[RuleOutcome], list[RuleFaults]]:
    """How each rule on opportunities ends, and what was found, in the job with all faults fixed."""
    if not rules:
        return [], []
    facts = facts.replaced(charged, Charged(frozenset(each.rule.id for each in faults)))
    try:
        played = facts.get(whatif)
    except Exception:
        return _apply(rules, facts)
    later = played.after(reduce(or_, [each.change for each in faults], Change()))
    return _apply(rules, facts.replaced(whatif, later))


class _Looks:
    """The outcomes and findings of the rules so far, and the ways to look for more."""

    def __init__(self, facts: Facts, played: WhatIf, outcomes: list[RuleOutcome], all_faults: list[RuleFaults]) -> None:
        self._facts, self._played = facts, played
        self.outcomes, self.all_faults = outcomes, all_faults

    def until_silent(self, rules: Sequence[Rule]) -> None:
        """Apply the rules again with the findings fixed, until they find no more, or `_MOST_LOOKS` times."""
        for _ in range(_MOST_LOOKS):
            if not self.again(rules, self.all_faults):
                break

    def again(self, rules: Sequence[Rule], fixed: Sequence[RuleFaults]) -> bool:
        """Run the rules that found nothing once more, on the job with the given findings fixed.

        Returns whether any of them found something. Rules on slow ranks run again even if they found a rank, to find
        further ones. Slow ranks that cost nothing are not fixed, unless nothing else was found.
        """
        ids = {rule.id for rule in rules}
        serious = [
            each for each in fixed if each.rule.id in ids and not each.rule.only_informs and not each.change.is_nothing
        ]
        serious = [each for each in serious if not self._costs_nothing(each)] or serious
        fixes = reduce(or_, [each.change for each in serious], self._played.no_fault)
        silent = {outcome.rule for outcome in self.outcomes if outcome.status == "clear"}
        silent |= {each.rule.id for each in self.all_faults if each.rule.names_stragglers}
        looking = [rule for rule in rules if rule.looks_again and rule.id in silent]
        if serious and _unexplained_share(self._played, fixes) < _NOTHING_HIDDEN:
            looking = [rule for rule in looking if rule.finds_in_floor]
        if not serious or not looking:
            return False
        again, new = self._find(looking, fixes)
        hidden_by = tuple(dict.fromkeys(each.rule.id for each in serious))
        known = {each.rule.id: each for each in self.all_faults if each.rule.id in hidden_by}
        more = [_with_others(known.get(each.rule.id), _hidden(each, hidden_by)) for each in new]
        further = [each for each in more if each]
        self._add(again, further)
        return bool(further)

    def _costs_nothing(self, rule_faults: RuleFaults) -> bool:
        """Whether these are slow ranks that cost nothing by themselves."""
        return rule_faults.rule.names_stragglers and self._played.cost_ns(rule_faults.change) < _least_ns(self._played)

    def within_what_is_removed(self) -> tuple[list[RuleOutcome], list[RuleFaults]]:
        """The outcomes, and what was found without findings whose fix saves more time than it removes: an error."""
        impossible = {each.rule.id for each in self.all_faults if self._played.saves_more_than_it_removes(each.change)}
        for rule in impossible:
            _log.debug("the fix of %s saves more than it removes", rule)
        error = "Its fix would save more time than it removes from all ranks, which is impossible: please report it."
        outcomes = [
            RuleOutcome(outcome.rule, "error", error) if outcome.rule in impossible else outcome
            for outcome in self.outcomes
        ]
        return outcomes, [each for each in self.all_faults if each.rule.id not in impossible]

    def of_either_side(self, rules: Sequence[Rule]) -> None:
        """Find a fault of CPUs and one of GPUs that take equally long, so that fixing only one of them saves nothing.

        The rules are applied twice: with every GPU as fast as the median rank's, to find faults of CPUs, and with CPUs
        that need no time, to find faults of GPUs. Rules that already found something costly are left out.
        """
        fixes = reduce(or_, [each.change for each in self.all_faults], self._played.no_fault)
        if _unexplained_share(self._played, fixes) < MOST_UNEXPLAINED:
            return
        least = _least_ns(self._played)
        costly = {each.rule.id for each in self.all_faults if self._played.cost_ns(each.change) >= least}
        looking = [rule for rule in rules if rule.looks_again and rule.id not in costly]
        at_median = Change(device_at_median=self._played.faultless.device_at_median)
        again: list[RuleOutcome] = []
        new: list[RuleFaults] = []
        for other_side in (at_median, Change(no_host=True)):
            outcomes, all_faults = self._find(looking, fixes | other_side, supposed=True)
            again += outcomes
            new += [each for each in all_faults if each.rule.id not in {one.rule.id for one in new}]
        new = self._which_hide_each_other(new, fixes)
        self._add(again, [replace(each, hides_with=tuple(o.rule.id for o in new if o is not each)) for each in new])

    def at_the_unexplained(self, rules: Sequence[Rule]) -> None:
        """Apply the rules that found nothing to the job with all findings fixed, if much of it is still unexplained.

        Rules may then name what takes most of that time, although no gap of the record shows it.
        """
        fixes = reduce(or_, [each.change for each in self.all_faults], self._played.no_fault)
        if _unexplained_share(self._played, fixes) < MOST_UNEXPLAINED:
            return
        silent = {outcome.rule for outcome in self.outcomes if outcome.status == "clear"}
        looking = [rule for rule in rules if rule.looks_again and rule.id in silent]
        # If nothing was found, this is the job as recorded, whose faults show in its gaps.
        fixes_nothing = all(each.change.is_nothing for each in self.all_faults)
        again, new = self._find(looking, fixes, supposed=fixes_nothing, is_last=True)
        hidden_by = tuple(dict.fromkeys(each.rule.id for each in self.all_faults if not each.rule.only_informs))
        self._add(again, [_hidden(each, hidden_by) for each in new])

    def _which_hide_each_other(self, new: Sequence[RuleFaults], fixes: Change) -> list[RuleFaults]:
        """The findings that save much only together: without the fix of any of them, the others save little."""
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
    ) -> tuple[list[RuleOutcome], list[RuleFaults]]:
        """What rules find in the job with some fixes; `supposed` if these are only assumed, not fixes of findings."""
        later = self._played.after(fixes, supposed=supposed)
        if is_last:
            later.is_last_look = True
        outcomes, all_faults = _apply(rules, self._facts.replaced(whatif, later))
        return outcomes, [each for each in all_faults if not each.change.is_nothing]

    def _add(self, outcomes: Iterable[RuleOutcome], all_faults: Sequence[RuleFaults]) -> None:
        """Add what was found, in place of earlier findings of the same rules."""
        new = {each.rule.id for each in all_faults}
        self.all_faults = [*(each for each in self.all_faults if each.rule.id not in new), *all_faults]
        ends = {outcome.rule: outcome for outcome in outcomes if outcome.rule in new and outcome.status == "finding"}
        self.outcomes = [ends.get(outcome.rule, outcome) for outcome in self.outcomes]


def _costly(rule_faults: RuleFaults, played: WhatIf) -> RuleFaults:
    """What was found, without slow ranks that cost nothing by themselves; all of them if none costs anything."""
    if not rule_faults.rule.names_stragglers:
        return rule_faults
    least = _least_ns(played)
    costly = tuple(fault for fault in rule_faults.faults if played.cost_ns(fault.change) >= least)
    if len(costly) in (0, len(rule_faults.faults)):
        return rule_faults
    return replace(rule_faults, faults=costly, change=reduce(or_, [fault.change for fault in costly]))


def _hidden(rule_faults: RuleFaults, by: tuple[str, ...]) -> RuleFaults:
    """What was found, marked as hidden by the findings of some rules."""
    return replace(rule_faults, faults=tuple(replace(fault, hidden_by=by) for fault in rule_faults.faults))


def _with_others(known: RuleFaults | None, new: RuleFaults) -> RuleFaults | None:
    """What a rule found before and now of further ranks; None if it found no further ranks."""
    if known is None:
        return new
    ranks = {rank for fault in known.faults for rank in fault.ranks}
    others = tuple(fault for fault in new.faults if ranks.isdisjoint(fault.ranks))
    if not others:
        return None
    change = reduce(or_, [fault.change for fault in others], known.change)
    return replace(known, faults=(*known.faults, *others), change=change)


def _least_ns(played: WhatIf) -> float:
    """The least cost of a fault that can hide another one, ns a step."""
    return _NOTHING_HIDDEN * float(played.recorded_ns.mean())


def _unexplained_share(played: WhatIf, fixes: Change) -> float:
    """The share of the step that is neither fixed nor floor, with some fixes."""
    remaining, floor = played.step_ns(fixes).mean(), played.step_ns(fixes | played.faultless).mean()
    return float((remaining - floor) / max(played.recorded_ns.mean(), 1.0))


def _apply(rules: Iterable[Rule], facts: Facts) -> tuple[list[RuleOutcome], list[RuleFaults]]:
    """How each rule ends on a job, and what was found."""
    outcomes: list[RuleOutcome] = []
    everything: list[RuleFaults] = []
    limits = _Limits.of(facts.job)
    for rule in rules:
        rule_faults = None
        if why := limits.why_not(rule):
            outcomes.append(RuleOutcome(rule.id, "not-applicable", why))
            continue
        try:
            outcome, rule_faults = run(rule, facts)
        except Exception as error:
            _log.debug("rule %s failed", rule.id, exc_info=True)
            outcome = RuleOutcome(rule.id, "error", f"The rule failed ({type(error).__name__}: {error}).")
        outcomes.append(outcome)
        if rule_faults:
            everything.append(rule_faults)
    return outcomes, everything


class _Limits(msgspec.Struct, frozen=True):
    """Properties of a job for which some rules cannot be checked, whatever its times are."""

    #: Whether a device worked whose events the traces lack.
    hides_device: bool
    #: Whether the traces show the capture of a CUDA graph.
    captures_graphs: bool
    #: Whether the program trains, and whether it serves requests.
    trains: bool
    serves: bool = False

    @classmethod
    def of(cls, job: Job) -> _Limits:
        """As the job's traces show."""
        serves = job_kind.program(job) is Program.SERVING
        return cls(unrecognised.hides_its_device(job), unrecognised.captures_graphs(job), job_kind.trains(job), serves)

    def why_not(self, rule: Rule) -> str | None:
        """Why a rule cannot be checked, as a sentence; None if it can."""
        if self.hides_device and not rule.of_every_device:
            return "It needs the GPU events, which these traces do not have; the CPU alone is not enough."
        if self.captures_graphs and not rule.of_every_device:
            return "It is about steps, and these traces show the capture of a CUDA graph."
        if not (self.trains or rule.of_every_program or (self.serves and rule.of_servers)):
            return "It is about training loops, and this program does not train."
        return None
