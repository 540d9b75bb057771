"""Kernels and operators of two runs, matched by name: what each takes of a rank's step, mean over ranks and steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor import wording
from tb_ddp_doctor.comparison.model import KernelChange, OperatorChange
from tb_ddp_doctor.digest.operators import MOST
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.job.operator_times import operators as operators_of
from tb_ddp_doctor.trace import names

#: By name, its amounts, of which the last is a count.
Amounts = dict[str, NDArray[np.float64]]


def kernels(before: Job, after: Job) -> tuple[KernelChange, ...]:
    """Compute kernels, whatever their grid."""
    rows = _matched(_kernels(before), _kernels(after))
    return tuple(
        KernelChange(name, before_ms=was[0], after_ms=now[0], before_count=was[1], after_count=now[1])
        for name, was, now in rows
    )


def operators(before: Job, after: Job) -> tuple[OperatorChange, ...]:
    """Operators, annotations and runtime calls of the host."""
    rows = _matched(_operators(before), _operators(after))
    return tuple(
        OperatorChange(
            name,
            before_host_ms=was[0],
            after_host_ms=now[0],
            before_device_ms=was[1],
            after_device_ms=now[1],
            before_count=was[2],
            after_count=now[2],
        )
        for name, was, now in rows
    )


def _matched(before: Amounts, after: Amounts) -> Iterator[tuple[str, Sequence[float], Sequence[float]]]:
    """As many names as a rank's digest keeps, those whose times changed most first; then "", the sum of all others."""
    width = len(next(iter({**before, **after}.values()), ()))
    nothing = np.zeros(width)
    both = {name: (before.get(name, nothing), after.get(name, nothing)) for name in {*before, *after}}
    rest = [both.pop("", (nothing, nothing))]
    # Counts change by thousands where times change by microseconds.
    ranked = sorted(both, key=lambda name: (-float(np.abs(both[name][1] - both[name][0])[:-1].max()), name))
    for name in ranked[:MOST]:
        yield name, both[name][0].tolist(), both[name][1].tolist()
    rest += [both[name] for name in ranked[MOST:]]
    was, now = sum((each[0] for each in rest), nothing), sum((each[1] for each in rest), nothing)
    if was.any() or now.any():
        yield "", was.tolist(), now.tolist()


def _kernels(job: Job) -> Amounts:
    """Time in ms, and launches."""
    total: Amounts = defaultdict(lambda: np.zeros(2))
    for digest in job.digests:
        table, share = digest.kernels, 1 / (len(job.digests) * max(len(digest.steps), 1))
        for name, count, ns in zip(table.name.tolist(), table.count.tolist(), table.total_ns.tolist(), strict=True):
            total[wording.encodable(digest.strings[name])] += (ns / 1e6 * share, count * share)
    return total


def _operators(job: Job) -> Amounts:
    """Time on the host and on the device in ms, and calls. Digests keep the longest: "" has what they sum up."""
    spent = operators_of(job)
    steps = max(sum(len(digest.steps) for digest in job.digests), 1)
    total: Amounts = defaultdict(lambda: np.zeros(3))
    columns = np.stack([spent.host_ns / 1e6, spent.device_ns / 1e6, spent.count], axis=1) / steps
    for row in np.flatnonzero(~spent.on_device).tolist():
        total[_aligned(spent.names[row])] += columns[row]
    return total


def _aligned(name: str) -> str:
    """A DataLoader is called after how it works, which is what people change."""
    return "DataLoader.__next__" if names.loader(name) is not None else wording.encodable(name)
