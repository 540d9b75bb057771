"""Kernels that come closer to their attainable speed in one of two runs, or fall behind it (docs/roofline.md)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tb_ddp_doctor import wording
from tb_ddp_doctor.comparison.model import RoofChange
from tb_ddp_doctor.digest.model import GpuTime
from tb_ddp_doctor.facts import Facts
from tb_ddp_doctor.facts.roofline import roofline
from tb_ddp_doctor.job.model import Job

#: A smaller change of the share, as a part of the earlier one, is not listed, nor one that makes less of the step.
_CHANGED, _LEAST_OF_STEP = 0.1, 0.002
#: Calls that are listed.
_MOST = 32


def roofs(before: Job, after: Job) -> tuple[RoofChange, ...]:
    """The calls of both runs whose share of their attainable speed changed, those that lost most time first."""
    least_ms = _LEAST_OF_STEP * min(before.step_ns, after.step_ns) / 1e6
    changed = [
        one
        for one in _joined(before, after)
        if abs(one.after_share - one.before_share) >= _CHANGED * one.before_share and abs(one.lost_ms) >= least_ms
    ]
    return tuple(sorted(changed, key=lambda one: (-one.lost_ms, one.operator, one.inputs))[:_MOST])


def _joined(before: Job, after: Job) -> Iterator[RoofChange]:
    was, now = _calls(before), _calls(after)
    for key in was.keys() & now.keys():
        (taken_before, least_before), (taken_after, least_after) = was[key], now[key]
        yield RoofChange(
            operator=wording.encodable(key[0]),
            inputs=wording.encodable(key[1]),
            dtype=wording.encodable(key[2]),
            before_share=least_before / taken_before,
            after_share=least_after / taken_after,
            before_ms=taken_before / 1e6,
            after_ms=taken_after / 1e6,
        )


def _calls(job: Job) -> dict[tuple[str, str, str], tuple[float, float]]:
    """Time of a step in calls, and the least that they could take, ns, by operator, inputs and type."""
    times_of: defaultdict[tuple[str, str, str], tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for one in Facts(job).get(roofline).kernels:
        if one.kind is not GpuTime.NOT_MODELLED and one.limit in ("compute", "memory") and one.operator:
            key = one.operator, one.inputs, one.dtype
            taken, least = times_of[key]
            times_of[key] = taken + one.step_ns, least + one.attainable_ns
    return {key: times for key, times in times_of.items() if min(times) > 0}
