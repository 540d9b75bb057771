"""Calls that block the CPU: what the rules on syncs and on allocations share."""

from __future__ import annotations

from collections.abc import Sequence

from tb_ddp_doctor.digest.model import RankOwner
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.host import HoldingCalls
from tb_ddp_doctor.findings import Evidence
from tb_ddp_doctor.rules.support import text

#: Calls that a finding names.
_NAMED = 3


def named(calls: Sequence[HoldingCalls]) -> str:
    """The calls that cost most, each with its operator: "9 cudaFree outside any op and 2 cudaMalloc in aten::mm"."""
    shown = calls[:_NAMED]
    return text.listing(
        [f"{count(call.count)} {call.call} {f'in {call.op}' if call.op else 'outside any op'}" for call in shown]
    )


def count(number: float) -> str:
    """A mean count: "12", "2.5" below ten, "0.33" below one."""
    return f"{number:.{0 if number >= 10 or number == round(number) else 1 if number >= 1 else 2}f}"


def evidence(calls: Sequence[HoldingCalls], places: Places, what: str) -> tuple[Evidence, ...]:
    """The longest of each of the calls that cost most; `what` has a place for the call and its operator."""
    windows = [
        places.between(
            call.rank,
            call.start_ns,
            call.end_ns,
            RankOwner.SYNC,
            what.format(call=call.call, op=call.op or "the training loop"),
            call.own,
        )
        for call in calls[:_NAMED]
    ]
    return tuple(window for window in windows if window)
