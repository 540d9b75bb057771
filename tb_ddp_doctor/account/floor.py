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

import msgspec

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


class _Play(msgspec.Struct, frozen=True, eq=False):
    """The job without faults, without a line of the floor, and without those before it."""

    kind: FloorKind
    without: Change
    #: The same without what the line may have more; None where that is nothing.
    possible: Change | None


def _plays(faultless: Change, cuts: Mapping[FloorKind, Change | None], possible: Change | None) -> Iterator[_Play]:
    """What is played, given what each line takes away, and what traffic may be avoidable besides."""
    without = faultless
    for kind, cut in cuts.items():
        if cut is not None and not cut.is_nothing:
            without |= cut
            more = possible if kind == "avoidable-traffic" else None
            yield _Play(kind, without, None if more is None else without | more)


class Floor:
    """A job's floor. Its lines are played beside what the caller does until it asks for them."""

    def __init__(self, savings: Savings, roofline: JobRoofline, link_excess_ns: Ints | None) -> None:
        """`link_excess_ns` is as `facts.roofline.link_excess` has it."""
        self._savings, self._roofline, self._knows_links = savings, roofline, link_excess_ns is not None
        self._plays: tuple[_Play, ...] = ()
        if not savings.whatif.plays:
            return
        times = roofline.times_without(savings.faultless.of_calls)
        cuts: dict[FloorKind, Change | None] = {
            "below-attainable": _rows(times.above),
            "avoidable-traffic": _rows(times.avoidable),
            "below-link-speed": None if link_excess_ns is None else Change(transfer_ns=link_excess_ns),
            "not-modelled": _rows(times.not_modelled),
        }
        self._plays = tuple(_plays(savings.faultless, cuts, _rows(times.possible)))
        changes = (change for play in self._plays for change in (play.without, play.possible) if change is not None)
        savings.whatif.foresee_steps([savings.faultless, *changes])

    @property
    def lines(self) -> tuple[FloorLine, ...]:
        """The lines of the floor, which sum to it."""
        savings = self._savings
        floor_ns = savings.account.line("floor").total_ns
        lines = _Lines(savings, floor_ns)
        if not savings.whatif.plays:
            why = f"{savings.whatif.no_replay} So the floor is not opened."
            return lines.of({"not-modelled": floor_ns}, {}, {"not-modelled": why})
        remaining_ns, before_ns, possible_ns = floor_ns, savings.total_ns(savings.faultless), 0
        parts: dict[FloorKind, int] = dict.fromkeys(_KINDS, 0)
        for play in self._plays:
            after_ns = min(savings.total_ns(play.without), before_ns)
            if play.possible is not None:
                possible_ns = max(before_ns - savings.total_ns(play.possible), 0)
            # The floor may be shorter than its play, by communication whose last arrival is not recorded.
            parts[play.kind] = min(before_ns - after_ns, remaining_ns)
            before_ns = after_ns
            remaining_ns -= parts[play.kind]
        outside = min(remaining_ns, _outside_ns(savings))
        parts["not-modelled"] += outside
        parts["limit"] = remaining_ns - outside
        of_calls = savings.faultless.of_calls
        weights = self._roofline.above_by_class(of_calls) if parts["below-attainable"] else {}
        sentences = [*self._roofline.notes, *([_OUTSIDE] if outside else [])]
        notes: dict[FloorKind, str] = {"not-modelled": " ".join(sentences)}
        if not self._knows_links:
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
