"""What the steps would take if what the rules found were fixed, all of it or any part."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

import msgspec

from tb_ddp_doctor.findings import Finding, Prospect, Severity
from tb_ddp_doctor.job.replay import Removed
from tb_ddp_doctor.job.whatif import WhatIf
from tb_ddp_doctor.rules.base import Found, severity


@dataclass(frozen=True, slots=True, eq=False)
class Prospects:
    """What rules found in a job, and the job's steps to try the fixes on."""

    everything: Sequence[Found]
    whatif: WhatIf
    #: Mean over ranks and steps, ms.
    step_ms: float

    def without(self, rules: Collection[str]) -> Prospect:
        """The step if all that these rules found were fixed; a rule that found nothing changes nothing."""
        fixed = [found for found in self.everything if found.rule.id in rules]
        saving = self.whatif.saving(reduce(or_, [found.removed for found in fixed], Removed()))
        least, most = saving.range_ns
        return Prospect(
            fixed=tuple(found.rule.id for found in fixed),
            step_ms=self.step_ms,
            without_ms=max(self.step_ms - saving.mean_ns / 1e6, 0.0),
            range_ms=(max(self.step_ms - most / 1e6, 0.0), max(self.step_ms - least / 1e6, 0.0)),
        )

    def findings(self) -> list[Finding]:
        """Costliest first, none charged with what another one would give back already.

        What two of them would both give back is charged to the more special one, then to the costlier. So all costs
        together are no more than what fixing everything saves.
        """
        together: Removed | None = None
        before_ns, kept = 0.0, []
        for found in _by_precedence(self.everything):
            together = together | found.removed if together else found.removed
            after_ns = self.whatif.cost_ns(together)
            left = min(max(after_ns - before_ns, 0.0) / 1e6 / (_alone_ms(found) or 1.0), 1.0)
            before_ns = max(before_ns, after_ns)
            for finding in found.findings:
                cost_ms = finding.alone_ms * left
                level = severity(found.rule, cost_ms / self.step_ms if self.step_ms else 0.0)
                kept.append(msgspec.structs.replace(finding, cost_ms=cost_ms, severity=level.label))
        return sorted(kept, key=lambda one: (one.severity == Severity.INFO.label, -one.cost_ms, -one.alone_ms))


def _alone_ms(found: Found) -> float:
    return sum(finding.alone_ms for finding in found.findings)


def _by_precedence(everything: Sequence[Found]) -> Iterator[Found]:
    """What only informs first; then the costliest, but after those that tell the same more specially."""
    left = sorted(everything, key=lambda found: (not found.rule.only_informs, -_alone_ms(found)))
    while left:
        rules = {found.rule.id for found in left}
        following = next((found for found in left if not rules.intersection(found.rule.yields_to)), left[0])
        left.remove(following)
        yield following
