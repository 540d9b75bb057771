"""What the rules on redundant GPU work share: from the time of some kernels to an opportunity, or to clear."""

from __future__ import annotations

import msgspec
import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.findings import Confidence, Evidence
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support import certainty
from tb_ddp_doctor.rules.support.affected import most_affected
from tb_ddp_doctor.rules.support.base import Fault
from tb_ddp_doctor.trace.model import Ints


class NeedlessKernels(msgspec.Struct, frozen=True, eq=False):
    """The kernels that a rule is about, shape (R, S): time and number, and the longest one."""

    total_ns: Ints
    count: Ints
    start_ns: Ints
    end_ns: Ints


class Removable(msgspec.Struct, frozen=True, eq=False):
    """What fixing them saves, and where they are."""

    change: Change
    cost_ns: float
    ranks: tuple[int, ...]
    confidence: Confidence
    #: "Seen in 3 of 3 steps."
    basis: str
    #: As in "12.3 of 50.0 ms", and per rank and step.
    of_step: str
    count: float
    evidence: tuple[Evidence, ...]

    def fault(
        self, *, title: str, why: str, fix: str, remedy: str, between: tuple[Change | float, Change] | None = None
    ) -> Fault:
        """The opportunity, with the rule's texts; `between` are the least and the most that its fix removes."""
        return Fault(
            change=self.change,
            ranks=self.ranks,
            confidence=self.confidence,
            title=title,
            why=f"{why} {self.basis}",
            fix=fix,
            evidence=self.evidence,
            remedy=remedy,
            between=between,
        )


def removable(
    kernels: NeedlessKernels, share: float, frame: Frame, whatif: WhatIf, places: Places, what: str
) -> Removable | None:
    """The saving if a share of the kernels' time goes, 0 to 1; None where there are none. `what` is the evidence's
    sentence.
    """
    if not kernels.total_ns.any():
        return None
    change = share_of(kernels, share)
    cost = whatif.cost_ns(change)
    affected = most_affected(kernels.total_ns)
    seen = int((kernels.total_ns[affected] > 0).any(axis=0).sum())
    level, basis = certainty.confidence(frame, cost, seen)
    return Removable(
        change=change,
        cost_ns=cost,
        ranks=frame.rank_numbers(affected),
        confidence=level,
        basis=basis,
        of_step=of_step(float(kernels.total_ns[affected].mean()), float(frame.window_ns[affected].mean())),
        count=float(kernels.count[affected].mean()),
        evidence=places.longest_spans(affected[:2], kernels.start_ns, kernels.end_ns, what),
    )


def share_of(kernels: NeedlessKernels, share: float) -> Change:
    """What a fix takes out that leaves the rest of the kernels' time, 0 to 1."""
    return Change(device_ns=np.rint(kernels.total_ns * share).astype(np.int64))


def of_step(ns: float, step_ns: float) -> str:
    """As in "12.3 of 50.0 ms": a time of the step, never more than it."""
    part, whole = wording.ms(min(ns, step_ns)), wording.ms(step_ns)
    unit = whole.rpartition(" ")[2]
    return f"{part.removesuffix(f' {unit}')} of {whole}"
