"""Drops findings of slow ranks that are not needed: those ranks are no longer slow once everything else is fixed.

- A fault of all ranks makes some of them look like stragglers. For example, with a loader that takes half the step on
  all ranks, the ranks whose CPUs have more other work end later.
- Of two findings whose fixes save the same time, one is enough.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import reduce
from operator import or_

import msgspec
import numpy as np
from msgspec.structs import replace

from tb_ddp_doctor.digest.model import CpuTime
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support.base import Fault, RuleFaults
from tb_ddp_doctor.trace.model import Ints

#: The least share of the step that a slow rank costs once everything else is fixed. A fix lowers all of a rank's times
#: to the median, so even a rank without a fault saves its noise: 1.2 % in a job with slow loading on all ranks.
_LEAST = 0.02
#: A fault of all ranks is fixed before slow ranks if, with all slow ranks fixed, it still costs at least this share of
#: what it costs alone. Other such faults, such as launch overhead where one host stalls, are costly on the slow ranks
#: only.
_STILL = 0.2


def needed(everything: Sequence[RuleFaults], whatif: WhatIf, ranks: Ints) -> list[RuleFaults]:
    """What was found, without slow ranks that are not needed; `ranks` are the numbers of the job's ranks."""
    stragglers = [(each, fault) for each in everything if each.rule.names_stragglers for fault in each.faults]
    shared = [each.change for each in everything if not (each.rule.names_stragglers or each.rule.only_informs)]
    if not stragglers or len(stragglers) + len(shared) < 2:
        return list(everything)
    # Of two that fix the same time, drop that of a rule that explains the rest, then that of a rule that the other one
    # refines, then the one that costs less alone.
    refined = {rule for each, _ in stragglers for rule in each.rule.refined()}
    stragglers.sort(
        key=lambda one: (
            not one[0].rule.explains_the_rest,
            one[0].rule.id not in refined,
            whatif.cost_ns(one[1].change),
        )
    )
    kept = _Selection.of([fault for _, fault in stragglers], shared, whatif, ranks).kept()
    return [needed_part for each in everything if (needed_part := _with_faults(each, kept))]


def _with_faults(rule_faults: RuleFaults, kept: Collection[Fault]) -> RuleFaults | None:
    """What was found with only those slow ranks that are kept; None if none is."""
    faults = tuple(fault for fault in rule_faults.faults if any(fault is one for one in kept))
    if not rule_faults.rule.names_stragglers or faults == rule_faults.faults:
        return rule_faults
    return replace(rule_faults, faults=faults, change=reduce(or_, [one.change for one in faults])) if faults else None


class _Selection(msgspec.Struct, frozen=True, eq=False):
    """Decides which slow ranks are needed, besides the faults that all ranks share."""

    #: The slow ranks, those to be dropped first at the begin.
    stragglers: Sequence[Fault]
    #: The fixes of faults that all ranks share.
    shared: Sequence[Change]
    #: Those of them that are costly even with all slow ranks fixed.
    others: Sequence[Change]
    whatif: WhatIf
    ranks: Ints
    #: Length of all steps of all ranks with everything fixed.
    fixed_ns: float
    #: A fix is needed if it makes all steps together this much shorter.
    least_ns: float

    @classmethod
    def of(cls, stragglers: Sequence[Fault], shared: Sequence[Change], whatif: WhatIf, ranks: Ints) -> _Selection:
        fixed = [fault.change for fault in stragglers]
        least_ns = _LEAST * float(whatif.recorded_ns.sum())
        fixed_ns, untraced_ns = _total_ns(whatif, fixed), _total_ns(whatif, [])
        others = [
            change
            for change in shared
            if fixed_ns - _total_ns(whatif, [*fixed, change])
            >= max(least_ns, _STILL * (untraced_ns - _total_ns(whatif, [change])))
        ]
        return cls(stragglers, shared, others, whatif, ranks, _total_ns(whatif, [*fixed, *others]), least_ns)

    def kept(self) -> list[Fault]:
        """The slow ranks that are needed.

        One after the other is dropped if the other fixes suffice without it, or if they do so with one more fix of a
        fault that all ranks share.
        """
        kept, others = list(self.stragglers), list(self.others)
        for fault in self.stragglers:
            rest = [one for one in kept if one is not fault]
            if self._saves_before_smaller(fault, rest):
                continue
            fixes = [*(one.change for one in rest), *others]
            if self._suffice(fixes):
                kept = rest
            elif larger := self._larger(fault, fixes):
                kept, others = rest, [*others, larger]
        return kept

    def _saves_before_smaller(self, fault: Fault, rest: Sequence[Fault]) -> bool:
        """Whether a slow rank still costs something once all faults are fixed whose fixes alone save at least as much.

        The excess of one rank over the median rank is its own: a smaller fault of all ranks does not explain it, nor
        does a fault of devices by what it takes longer on that rank: slow kernels are slower still on a slow device.
        """
        alone_ns = _total_ns(self.whatif, []) - _total_ns(self.whatif, [fault.change])
        larger = []
        for one in self.shared:
            before = [] if one.of_host else [fault.change]
            if _total_ns(self.whatif, before) - _total_ns(self.whatif, [*before, one]) >= alone_ns:
                larger.append(one)
        fixes = [*(one.change for one in rest), *larger]
        saved_ns = _total_ns(self.whatif, fixes) - _total_ns(self.whatif, [*fixes, fault.change])
        return alone_ns >= self.least_ns and saved_ns >= self.least_ns

    def _larger(self, fault: Fault, fixes: Sequence[Change]) -> Change | None:
        """A fix for all ranks that suffices in place of a slow rank's, and removes more host time; None if none does.

        Fixes of launch overhead do not count: on a slow host, all launches take long.
        """
        taken = self._host_taken_ns(fault.change, fault.ranks)
        return next(
            (
                change
                for change in self.shared
                if CpuTime.WORK not in change.of_host
                and self._host_taken_ns(change, self.ranks.tolist()) > taken
                and self._suffice([*fixes, change])
            ),
            None,
        )

    def _suffice(self, fixes: Iterable[Change]) -> bool:
        """Whether the steps with some fixes are about as short as with everything fixed."""
        return _total_ns(self.whatif, fixes) - self.fixed_ns < self.least_ns

    def _host_taken_ns(self, change: Change, ranks: Collection[int]) -> float:
        """How much host time a fix removes from some ranks, mean over these ranks and all steps, ns."""
        rows = np.isin(self.ranks, list(ranks))
        return sum(float((share * self.whatif.host_ns(kind))[rows].mean()) for kind, share in change.of_host.items())


def _total_ns(whatif: WhatIf, fixes: Iterable[Change]) -> float:
    """Length of the steps of all ranks with some fixes, without what is no fault, ns."""
    return float(whatif.step_ns(reduce(or_, fixes, whatif.no_fault)).sum())
