"""The floor, opened: how much of it the device's physics does not need.

    floor = limit + below attainable + avoidable traffic + below link speed + not modelled

in integer ns summed over ranks and steps, by the same replay as the account. On top of the job without any fault, the
steps are played without each part in turn: device time above attainable first, of what the fixes leave of each call,
then the reads that fusion avoids, then exposed communication below the link's speed, then the kernels whose work is not
known. Each line is what its play takes away beyond those before it, so that overlap and the critical path count; the
limit is what the last play leaves, without the kernels that no row of the replay has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from operator import or_

from tb_ddp_doctor.account.savings import Savings
from tb_ddp_doctor.digest.model import GpuTime
from tb_ddp_doctor.facts.roofline import JobRoofline
from tb_ddp_doctor.findings import FloorKind, FloorLine
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.step_parts import KERNEL_CLASSES
from tb_ddp_doctor.trace.model import Ints

_OUTSIDE = (
    "Kernels without a launch of their own, as of one large CUDA graph, are not played: they count as not modelled."
)
#: A smaller share of what a step computes is the record's edge.
_LEAST_OUTSIDE = 0.05
_NO_REPLAY = "Without a replay (CPUs, or traces without launch records) the floor is not opened."


def floor_lines(savings: Savings, roofline: JobRoofline, link_excess_ns: Ints | None) -> tuple[FloorLine, ...]:
    """The lines of a job's floor, which sum to it; `link_excess_ns` is as `facts.roofline.link_excess` has it."""
    floor_ns = savings.account.line("floor").total_ns
    lines = _Lines(savings, floor_ns)
    if not savings.whatif.plays:
        return lines.of({"not-modelled": floor_ns}, {}, {"not-modelled": _NO_REPLAY})
    without = savings.faultless
    times = roofline.times_without(without.of_calls)
    remaining = {"floor": floor_ns}
    cuts: dict[FloorKind, Change | None] = {
        "below-attainable": _rows(times.above),
        "avoidable-traffic": _rows(times.avoidable),
        "below-link-speed": None if link_excess_ns is None else Change(transfer_ns=link_excess_ns),
        "not-modelled": _rows(times.not_modelled),
    }
    there = (cut for cut in cuts.values() if cut is not None and not cut.is_nothing)
    savings.whatif.foresee_steps(accumulate(there, or_, initial=without))
    parts: dict[FloorKind, int] = {}
    before_ns = savings.total_ns(without)
    possible_ns = 0
    for kind, cut in cuts.items():
        taken = 0
        if cut is not None and not cut.is_nothing:
            if kind == "avoidable-traffic" and (more := _rows(times.possible)) is not None:
                possible_ns = max(before_ns - savings.total_ns(without | cut | more), 0)
            without |= cut
            after_ns = min(savings.total_ns(without), before_ns)
            # The floor may be shorter than its play, by communication whose last arrival is not recorded.
            taken = min(before_ns - after_ns, remaining["floor"])
            before_ns = after_ns
        remaining["floor"] -= taken
        parts[kind] = taken
    outside = min(remaining["floor"], _outside_ns(savings))
    parts["not-modelled"] += outside
    parts["limit"] = remaining["floor"] - outside
    weights = times.above_by_class if parts["below-attainable"] else {}
    sentences = [*roofline.notes, *([_OUTSIDE] if outside else [])]
    notes: dict[FloorKind, str] = {"not-modelled": " ".join(sentences)}
    if link_excess_ns is None:
        notes["below-link-speed"] = "Not judged: neither a calibration nor the table says how fast the links are."
    return lines.of(parts, weights, notes, possible_ns)


def _outside_ns(savings: Savings) -> int:
    """Time in kernels that no row of the replay has, as those of one large graph, ns summed over ranks and steps."""
    compute = savings.job.budget.of("compute")
    outside = compute - savings.whatif.device_ns
    return int(outside[outside > _LEAST_OUTSIDE * compute].sum())


class _Lines:
    """Lines of one floor."""

    def __init__(self, savings: Savings, floor_ns: int) -> None:
        self._step_ns, self._cells = savings.step_total_ns, max(savings.size, 1)
        self._floor_ns = floor_ns

    def of(
        self,
        parts: Mapping[FloorKind, int],
        weights: Mapping[GpuTime, float],
        notes: Mapping[FloorKind, str],
        possible_ns: int = 0,
    ) -> tuple[FloorLine, ...]:
        """All five, from their totals; `weights` divide the time above attainable among the classes."""
        return tuple(self._line(kind, parts.get(kind, 0), weights, notes, possible_ns) for kind in _KINDS)

    def _line(
        self,
        kind: FloorKind,
        total_ns: int,
        weights: Mapping[GpuTime, float],
        notes: Mapping[FloorKind, str],
        possible_ns: int,
    ) -> FloorLine:
        ms = total_ns / self._cells / 1e6
        most = max(total_ns, possible_ns) if kind == "avoidable-traffic" else total_ns
        return FloorLine(
            kind=kind,
            total_ns=total_ns,
            ms=ms,
            share=total_ns / self._step_ns if self._step_ns else 0.0,
            range_ms=(ms, most / self._cells / 1e6),
            by_class=dict(_by_class(ms, weights)) if kind == "below-attainable" else {},
            note=notes.get(kind, ""),
        )


_KINDS: tuple[FloorKind, ...] = (
    "limit",
    "below-attainable",
    "avoidable-traffic",
    "below-link-speed",
    "not-modelled",
)


def _by_class(ms: float, weights: Mapping[GpuTime, float]) -> Iterator[tuple[str, float]]:
    """A line by class, most first."""
    whole = sum(weights.values())
    for kind, weight in sorted(weights.items(), key=lambda one: -one[1]):
        if weight:
            yield KERNEL_CLASSES[kind.name.lower()], ms * weight / whole


def _rows(amounts: Ints) -> Change | None:
    """The change that removes these amounts of device time of each row; None if they are all zero."""
    return Change(row_ns=amounts) if amounts.any() else None
