"""Which findings a job needs: without slow ranks that would be well once everything else is fixed.

A fault of all ranks makes the slowest of them look like stragglers: a loader that takes half the step ends first where
the CPU has least else to do. And of two findings that give back the same time, one is enough.
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
from tb_ddp_doctor.rules.support.base import Fault, Found
from tb_ddp_doctor.trace.model import Ints

#: Of the step: what a slow rank costs at least once everything else is fixed. A fix makes a rank like the median one in
#: all that it does, so that one that is well gives back its noise too: 1.2 % where loading is slow on all ranks.
_LEAST = 0.02
#: What all ranks share is fixed first if it costs this share of what it costs alone once all slow ranks are fixed.
#: What does not, such as launch overhead where one host stalls, is costly on those ranks alone.
_STILL = 0.2


def needed(everything: Sequence[Found], whatif: WhatIf, ranks: Ints) -> list[Found]:
    """What was found, without slow ranks that are not needed; `ranks` are the job's."""
    stragglers = [(each, fault) for each in everything if each.rule.names_stragglers for fault in each.faults]
    shared = [each.change for each in everything if not (each.rule.names_stragglers or each.rule.only_informs)]
    if not stragglers or len(stragglers) + len(shared) < 2:
        return list(everything)
    # Of two that fix the same, the one that explains the rest is not needed, then the one that costs less alone.
    stragglers.sort(key=lambda one: (not one[0].rule.explains_the_rest, whatif.cost_ns(one[1].change)))
    kept = _Selection.of([fault for _, fault in stragglers], shared, whatif, ranks).kept()
    return [left for each in everything if (left := _without(each, kept))]


def _without(found: Found, kept: Collection[Fault]) -> Found | None:
    """What is left of a rule's faults; None for none."""
    faults = tuple(fault for fault in found.faults if any(fault is one for one in kept))
    if not found.rule.names_stragglers or faults == found.faults:
        return found
    return replace(found, faults=faults, change=reduce(or_, [one.change for one in faults])) if faults else None


class _Selection(msgspec.Struct, frozen=True, eq=False):
    """Slow ranks beside what all ranks share."""

    #: Those that are needed least first.
    stragglers: Sequence[Fault]
    shared: Sequence[Change]
    #: Of what is shared, what is costly whether the slow ranks are fixed or not.
    others: Sequence[Change]
    whatif: WhatIf
    ranks: Ints
    #: Of all ranks and steps: their length with everything fixed, and by how much more a job still needs a fix, ns.
    fixed_ns: float
    least_ns: float

    @classmethod
    def of(cls, stragglers: Sequence[Fault], shared: Sequence[Change], whatif: WhatIf, ranks: Ints) -> _Selection:
        fixed = [fault.change for fault in stragglers]
        least_ns = _LEAST * float(whatif.recorded_ns.sum())
        mended_ns, untraced_ns = _total_ns(whatif, fixed), _total_ns(whatif, [])
        others = [
            change
            for change in shared
            if mended_ns - _total_ns(whatif, [*fixed, change])
            >= max(least_ns, _STILL * (untraced_ns - _total_ns(whatif, [change])))
        ]
        return cls(stragglers, shared, others, whatif, ranks, _total_ns(whatif, [*fixed, *others]), least_ns)

    def kept(self) -> list[Fault]:
        """The slow ranks that are needed."""
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
        """Whether a slow rank still costs something once all that is fixed which saves as much alone as its fix.

        What one rank has beyond the median rank is its own: a fix for all ranks that saves less takes none of it.
        """
        untraced_ns = _total_ns(self.whatif, [])
        alone_ns = untraced_ns - _total_ns(self.whatif, [fault.change])
        larger = [one for one in self.shared if untraced_ns - _total_ns(self.whatif, [one]) >= alone_ns]
        fixes = [*(one.change for one in rest), *larger]
        saved_ns = _total_ns(self.whatif, fixes) - _total_ns(self.whatif, [*fixes, fault.change])
        return alone_ns >= self.least_ns and saved_ns >= self.least_ns

    def _larger(self, fault: Fault, fixes: Sequence[Change]) -> Change | None:
        """What all ranks share that would do in place of a slow rank, and takes more of the host.

        Not launches: where one host is slow, they take long on all of it.
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
        return _total_ns(self.whatif, fixes) - self.fixed_ns < self.least_ns

    def _host_taken_ns(self, change: Change, ranks: Collection[int]) -> float:
        """The host's time that a fix takes away from some ranks, mean over these and steps, ns."""
        rows = np.isin(self.ranks, list(ranks))
        return sum(float((share * self.whatif.host_ns(kind))[rows].mean()) for kind, share in change.of_host.items())


def _total_ns(whatif: WhatIf, fixes: Iterable[Change]) -> float:
    """Length of the untraced steps of all ranks with some fixes, ns."""
    return float(whatif.step_ns(reduce(or_, fixes, whatif.tracing)).sum())
