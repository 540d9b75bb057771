"""What a rule is, what it may ask for, and how it ends.

A rule is a subclass of `Rule`, and by that a frozen dataclass: its fields are its thresholds, its docstring its page
in `docs/rules/`, and the types of the parameters of its `check` say which facts it asks for. It computes from them and
nothing else: no I/O, no raw events, no mutation.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import reduce
from operator import or_
from typing import Any, ClassVar, TypeAlias

import msgspec

from tb_ddp_doctor.choices import did_you_mean
from tb_ddp_doctor.facts import Facts, MissingFactError
from tb_ddp_doctor.findings import Confidence, Evidence, Measurement, RuleOutcome, Severity, Status, Threshold
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.rules.support.asked_facts import asked

#: Headings that every rule's docstring has, in this order.
SECTIONS = ("What", "Why", "Evidence", "Fix", "Limits")


#: All ranks, or all steps, of a job.
ALL: tuple[int, ...] = (-1,)


class Fault(msgspec.Struct, frozen=True):
    """A rule's finding before it is weighed against the step."""

    #: What the fix takes out of the steps: its cost is what they save by it.
    change: Change
    confidence: Confidence
    title: str
    why: str
    fix: str
    evidence: tuple[Evidence, ...]
    #: Rank numbers and step numbers, where it is not on all ranks, or not in all steps.
    ranks: tuple[int, ...] = ALL
    steps: tuple[int, ...] = ALL
    #: The kind of cause, from the rule's own list; None where the rule knows only one.
    cause: str | None = None
    #: What costs the time, where its cause is known more closely than the rule's `subject`: "Garbage collection".
    subject: str = ""
    #: Paths of the modules that `why` names.
    modules: tuple[str, ...] = ()
    #: The numbers that it rests on.
    measurements: tuple[Measurement, ...] = ()
    #: It is no more severe than this, whatever it costs.
    at_most: Severity = Severity.CRITICAL
    #: The rules whose findings had to be fixed before it showed.
    hidden_by: tuple[str, ...] = ()
    #: Of an opportunity: the fix in a few words, such as "torch.compile".
    remedy: str = ""
    #: The least and the most that the fix may take out of the steps, where that is not known as well as the cost's
    #: usual interval has it. The least may be a share of the fix, 0 to 1: it saves at least that share of what the fix
    #: saves, since steps are maxima of sums.
    between: tuple[Change | float, Change] | None = None

    @property
    def tried(self) -> tuple[Change, ...]:
        """What is tried alone: the fix, and the ends of what it saves."""
        return self.change, *(end for end in self.between or () if isinstance(end, Change))


class Clear(msgspec.Struct, frozen=True):
    """Looked at, and not there."""

    reason: str


class NotApplicable(msgspec.Struct, frozen=True):
    """The inputs are there, but do not show what the rule is about. "No data" is never "healthy"."""

    reason: str


#: Several faults where ranks have causes of their own; their costs add up to what fixing all of them gives.
Result: TypeAlias = Fault | tuple[Fault, ...] | Clear | NotApplicable


def threshold(value: float, unit: str, reason: str, *, least: float = 0.0) -> Any:
    """A field of a rule: a limit with its unit and the reason or source for its value.

    A user may set it to anything from `least` on; where the unit is "of" something, it is a share, up to 1.
    """
    most = 1.0 if unit.startswith("of ") else math.inf
    return dataclasses.field(default=value, metadata={"unit": unit, "reason": reason, "least": least, "most": most})


@dataclasses.dataclass(frozen=True)
class Rule:
    """One kind of fault."""

    #: Name of the rule and, with underscores, of its file and its tests.
    id: ClassVar[str]
    #: What costs the time, in the singular, as the subject of a sentence; "" if its faults' ranks do.
    subject: ClassVar[str] = ""
    #: The rule, or the rules, that see the same lost time and know less of its cause. Theirs cost what is left after
    #: this one's; they name nobody.
    refines: ClassVar[str | tuple[str, ...]] = ()
    #: Whether it tells of the trace and not of the job: what it takes is taken out first, and is no alarm.
    only_informs: ClassVar[bool] = False
    #: Whether what it finds is no fault but what could be faster still: it is charged after all faults, on top of their
    #: fixes, and never the verdict.
    is_opportunity: ClassVar[bool] = False
    #: Whether what it takes is what tracing takes, the account's line before all findings.
    is_of_tracing: ClassVar[bool] = False
    #: Whether it judges by the replay alone, so that it may look again once other faults are fixed there. Budgets stay
    #: as recorded, and there a straggler's victims look unoverlapped.
    looks_again: ClassVar[bool] = False
    #: Whether what it finds is equally long on all ranks, so that the account takes it for floor as long as others hide
    #: it: it looks again even where all of the step is explained.
    finds_in_floor: ClassVar[bool] = False
    #: Whether it explains what is left when all others are done looking: ranks slow now and then may be slow in every
    #: step, once what hides it is fixed.
    explains_the_rest: ClassVar[bool] = False
    #: Whether it names ranks as slow: only where they cost something, at least this share of the step.
    names_stragglers: ClassVar[bool] = False
    least_share: ClassVar[float] = 0.01
    #: Whether what it finds may end the job though it costs no time: the line of a capture says it beside the verdict.
    ends_jobs: ClassVar[bool] = False
    #: Whether it holds where the device's work cannot be seen: without it, a host that waits for its device looks idle.
    of_every_device: ClassVar[bool] = False
    #: Whether it holds for every program: a loader that is seen feeds forward passes as it does training. Others
    #: advise a training loop, which a server of requests does not have.
    of_every_program: ClassVar[bool] = False
    #: Whether it also holds for servers of requests, in their words.
    of_servers: ClassVar[bool] = False
    #: The method that looks. The type of each of its parameters is that of a fact.
    check: ClassVar[Callable[..., Result]]

    def __init_subclass__(cls) -> None:
        """Make its thresholds fields: what has no type is declared of all rules."""
        dataclasses.dataclass(frozen=True)(cls)

    @classmethod
    def refined(cls) -> tuple[str, ...]:
        """The ids of the rules that this one refines."""
        return (cls.refines,) if isinstance(cls.refines, str) else cls.refines

    def thresholds(self) -> tuple[Threshold, ...]:
        """The limits in force, for display."""
        return tuple(
            Threshold(field.name, getattr(self, field.name), field.metadata["unit"], field.metadata["reason"])
            for field in dataclasses.fields(self)
        )


class RuleFaults(msgspec.Struct, frozen=True, eq=False):
    """What a rule found."""

    rule: Rule
    faults: tuple[Fault, ...]
    #: What the fixes of all of them take out of the steps.
    change: Change
    #: The rules whose findings must be fixed with it: to fix one of them alone saves little, and the others the rest.
    hides_with: tuple[str, ...] = ()
    #: The numbers that its faults have among all of the rule's, where these are only some of them.
    numbers: tuple[int, ...] = ()

    @property
    def by_id(self) -> dict[str, Fault]:
        """Its faults by the ids of their findings: the rule's, numbered where there are several."""
        if len(self.faults) == 1 and not self.numbers:
            return {self.rule.id: self.faults[0]}
        numbers = self.numbers or range(1, len(self.faults) + 1)
        return {f"{self.rule.id}:{number}": fault for number, fault in zip(numbers, self.faults, strict=True)}

    def split(self, chosen: Callable[[Fault], bool]) -> tuple[RuleFaults | None, RuleFaults | None]:
        """The chosen faults and the others, each by themselves; None where there are none."""
        parts: tuple[list[int], list[int]] = ([], [])
        for number, fault in enumerate(self.faults):
            parts[not chosen(fault)].append(number)
        if not all(parts):
            return (self, None) if parts[0] else (None, self)
        some, others = (
            msgspec.structs.replace(
                self,
                faults=tuple(self.faults[i] for i in part),
                change=reduce(or_, [self.faults[i].change for i in part]),
                numbers=tuple(i + 1 for i in part),
            )
            for part in parts
        )
        return some, others


def run(rule: Rule, facts: Facts) -> tuple[RuleOutcome, RuleFaults | None]:
    """Hand the rule the facts that it asks for. A fact that the job lacks makes it not applicable."""
    given = {}
    for name, fact in asked(type(rule).check, rule.id).items():
        try:
            given[name] = facts.get(fact)
        except MissingFactError as missing:
            return RuleOutcome(rule.id, "not-applicable", str(missing)), None
    result = rule.check(**given)
    if isinstance(result, Clear):
        return RuleOutcome(rule.id, "clear", result.reason), None
    if isinstance(result, NotApplicable):
        return RuleOutcome(rule.id, "not-applicable", result.reason), None
    faults = tuple(_of_job(each, facts.job) for each in (result if isinstance(result, tuple) else (result,)))
    rule_faults = RuleFaults(rule, faults, reduce(or_, [fault.change for fault in faults]))
    status: Status = "opportunity" if rule.is_opportunity else "finding"
    return RuleOutcome(rule.id, status, " ".join(fault.title for fault in faults)), rule_faults


def _of_job(fault: Fault, job: Job) -> Fault:
    """The fault with the numbers of the ranks and steps that it has, also where these are all of the job's."""
    if fault.ranks is ALL:
        fault = msgspec.structs.replace(fault, ranks=tuple(job.ranks.tolist()))
    if fault.steps is ALL:
        fault = msgspec.structs.replace(fault, steps=tuple(job.steps.tolist()))
    return fault


def severity(rule: Rule, fault: Fault, share: float) -> Severity:
    """How bad it is that what a rule found takes a share of the step."""
    if rule.is_opportunity:
        return Severity.OPPORTUNITY
    return Severity.INFO if rule.only_informs else min(Severity.of_share(share), fault.at_most)


def configured(rule: Rule, settings: Mapping[str, float]) -> Rule:
    """The rule with some thresholds set by the user. Raises ValueError for a name or a value that it does not have."""
    known = {field.name: field.metadata for field in dataclasses.fields(rule)}
    for name, value in settings.items():
        if name not in known:
            there_are = f"it has: {', '.join(sorted(known)) or 'none'}"
            raise ValueError(f"Rule {rule.id} has no threshold {name!r}; {there_are}.{did_you_mean(name, known)}")
        least, most = known[name]["least"], known[name]["most"]
        if not least <= value <= most or math.isinf(value):
            allowed = f"{least:g} or more" if math.isinf(most) else f"from {least:g} to {most:g}"
            raise ValueError(f"{rule.id}.{name} is {allowed} ({known[name]['unit']}), not {value:g}.")
    return dataclasses.replace(rule, **settings)
