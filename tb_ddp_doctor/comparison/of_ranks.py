"""What became of some ranks' steps between two runs of one job: which owners of their time changed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tb_ddp_doctor.comparison.model import ComparedAmount
from tb_ddp_doctor.engine import Result
from tb_ddp_doctor.findings import OWNERS
from tb_ddp_doctor.step_parts import OWNERS as PARTS
from tb_ddp_doctor.wording import duration, percent, ranks

#: Changes of less of a step are not worth a word.
_LEAST_SHARE = 0.01
#: Owners that a sentence names.
_MOST = 3


def changes_of(before: Result, after: Result, numbers: Sequence[int]) -> tuple[ComparedAmount, ...]:
    """The owners of some ranks' steps, mean over those that both runs have; largest change first."""
    both = np.intersect1d(np.intersect1d(before.job.ranks, after.job.ranks), np.array(numbers, dtype=np.int64))
    if not len(both):
        return ()
    changes = []
    for owner in OWNERS:
        means = [
            float(result.job.budget.of(owner)[np.isin(result.job.ranks, both)].mean()) / 1e6
            for result in (before, after)
        ]
        changes.append(ComparedAmount(owner, *means))
    return tuple(sorted(changes, key=lambda change: -abs(change.change_ms)))


def sentence(before: Result, after: Result, numbers: Sequence[int]) -> str:
    """The owners that changed most, without waiting: "of rank 3, compute 30.0 ms -> 38.0 ms"; "" for none."""
    least = _LEAST_SHARE * before.diagnosis.step_ms
    clauses = []
    for change in changes_of(before, after, numbers):
        if change.name == "wait" or abs(change.change_ms) < least:
            continue
        more = "more" if change.change_ms > 0 else "less"
        share = f" ({percent(abs(change.change_ms) / change.before_ms)} {more})" if change.before_ms >= least else ""
        clauses.append(f"{PARTS[change.name].title} {duration(change.before_ms)} -> {duration(change.after_ms)}{share}")
    return f"of {ranks(numbers)}, {', '.join(clauses[:_MOST])}" if clauses else ""
