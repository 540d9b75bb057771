"""What made steps longer or shorter: changes, drift, periods and other long steps, of the job, a node or a rank.

The job is modelled as synchronous: a step is as long as the busy time of its slowest rank and what follows. The cost of
an event is what all steps would be shorter by without it, all else unchanged: sum of (max of busy, max without it).
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.history.levels import LEAST_SHARE, LEAST_T, Levels, fitted, largest_t, levels, noise
from tb_ddp_doctor.history.over_ranks import lower_median
from tb_ddp_doctor.history.pyramid import Pyramid, compared_bins
from tb_ddp_doctor.history.rare import LongSteps, of_bins, periodic
from tb_ddp_doctor.history.together import ChangedQuantity, Samples, collected, with_change, with_drift

#: Shifts up and down again of sizes within this share of each other are one event with an end.
_SAME_SIZE = 0.3
#: So many standard errors on each side have 80 % of a normal distribution.
_Z_80 = 1.2816
#: Costs are off by this share where events overlap, and where the median rank moves since some of the ranks changed:
#: 0.8 % of simulated days with one event, 2.3 % of those with five (8 of 10).
_MODEL_SHARE = 0.02
#: Garbage collection explains long steps if it is in this share of them.
_LEAST_GARBAGE = 0.6

Kind = Literal["change", "drift", "period", "outliers"]
Level = Literal["job", "node", "rank"]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that made steps longer or shorter."""

    kind: Kind
    level: Level
    ranks: tuple[int, ...]
    #: The node of the ranks, where they are one node's.
    node: str | None
    first_step: int
    #: The last step that has it.
    last_step: int
    #: When it began and ended, s since 1970.
    begin_s: float
    end_s: float
    #: Busy time that it adds to a step of its ranks, ms; of drift, from the first step to the last.
    added_ms: float
    #: Of a median step before.
    added_share: float
    #: Steps from one to the next, of periods.
    every: int | None
    #: How often it came, of periods and outliers.
    times: int | None
    #: What the job's steps are longer by in all, s; below 0 where they became shorter.
    cost_s: float
    #: 80 % interval of `cost_s`.
    range_s: tuple[float, float]
    #: Of the time of all steps.
    cost_share: float
    #: What was recorded on request and changed with it.
    together: tuple[ChangedQuantity, ...] = ()
    #: In which share of the long steps Python collected garbage; None where that was not recorded, or in few of them.
    garbage_share: float | None = None


def events(pyramid: Pyramid, median_us: float, of_column: int = 1, samples: Samples | None = None) -> tuple[Event, ...]:
    """All events, most costly first, with what of the `samples` changed together with them.

    `median_us` is the job's median column, each of `of_column` steps.
    """
    job_events = _Events(pyramid, median_us, of_column, samples or {})
    medians = job_events.medians
    if medians.shape[1] and not np.isnan(medians).all():
        job_events.add_levels()
        job_events.add_rare()
    return tuple(sorted(job_events.events, key=lambda event: -abs(event.cost_s)))


class _Cost(NamedTuple):
    """What an event costs, and how far from it noise lets the true cost be in 8 of 10 jobs, s."""

    cost_s: float
    away_s: float


class _Events:
    """The events of a job that were found so far."""

    def __init__(self, pyramid: Pyramid, median_us: float, of_column: int, samples: Samples) -> None:
        self._job = pyramid
        self._count = len(pyramid.steps.length_us)
        self._median_us, self._of_column = median_us, of_column
        #: Of the bins that are compared, shape (R, B), and the steps of a bin.
        self.medians, self._width = compared_bins(pyramid)
        self._samples = samples
        self.events: list[Event] = []
        #: Columns at whose bin the level of any rank changes.
        self._edges: list[int] = []

    def add_levels(self) -> None:
        """Changes and drift of the job, then of nodes beside the job, then of ranks beside their node."""
        job, medians = self._job, self.medians
        least = LEAST_SHARE * self._median_us
        median = _filled(lower_median(medians))
        everyone = np.arange(len(job.ranks))
        self._add_levels("job", everyone, levels(median, least))
        beside = np.stack([_filled(row) for row in medians - median])
        if not job.is_busy or len(job.ranks) < 2:
            return
        by_node: dict[str, list[int]] = {}
        for row, node in enumerate(job.nodes):
            by_node.setdefault(node, []).append(row)
        if len(by_node) > 1:
            for rows in by_node.values():
                if len(rows) > 1:
                    node_levels = levels(lower_median(beside[rows]), least)
                    self._add_levels("node", np.array(rows), node_levels)
                    beside[rows] -= fitted(node_levels, beside.shape[1])
        # Of two ranks the faster one is the median, and beside itself has no noise: beside their mean both have.
        sigma = np.maximum(np.maximum(noise(beside), noise(_beside_mean(medians))), least / 20)
        t, _ = largest_t(beside, sigma)
        for row in np.flatnonzero(t >= LEAST_T).tolist():
            self._add_levels("rank", np.array([row]), levels(beside[row], least, float(sigma[row])))

    def _add_levels(self, level: Level, rows: NDArray[Any], of_level: Levels) -> None:
        width = self._width
        if of_level.slope:
            total = of_level.slope * self._count / width
            error = of_level.slope_error * self._count / width
            ramp = np.arange(self._count) / self._count
            self._add("drift", level, rows, 0, self._count, total, self._cost(level, rows, ramp, total, error))
        shifts = list(of_level.shifts)
        self._edges += [shift.at * width for shift in shifts]
        while shifts:
            shift = shifts.pop(0)
            # Back again: a window that has an end. Where it began before the record, it is seen as the one change.
            back = next(
                (other for other in shifts if abs(other.height + shift.height) < _SAME_SIZE * abs(shift.height)), None
            )
            if back is not None:
                shifts.remove(back)
            first, end = shift.at * width, self._count if back is None else back.at * width
            added = np.zeros(self._count)
            added[first:end] = 1
            # It began somewhere in a bin, as likely at any step of it.
            edges = (1 if back is None else 2) * width**2 / 12
            error = math.hypot(shift.error, shift.height * math.sqrt(edges) / max(end - first, 1))
            costs = self._cost(level, rows, added, shift.height, error)
            self._add("change", level, rows, first, end, shift.height, costs)

    def _cost(self, level: Level, rows: NDArray[Any], shape: NDArray[Any], added_us: float, error_us: float) -> _Cost:
        """What an event costs that adds `added_us` times `shape`, (N,), to steps of ranks, with its standard error."""
        cost, low, high = (
            self._summed_s(self._without(level, rows, shape * (added_us + away * error_us)))
            for away in (0, -_Z_80, _Z_80)
        )
        return _Cost(cost, abs(high - low) / 2)

    def _without(self, level: Level, rows: NDArray[Any], added_us: NDArray[Any]) -> NDArray[Any]:
        """How much longer each step is for what was added to all ranks, a node or a rank, µs, shape (N,)."""
        if len(rows) == len(self._job.ranks):
            return added_us
        steps = self._job.steps
        others_us = steps.other_node_us if level == "node" else steps.second_us
        largest_us = steps.largest_us.astype(np.float64)
        is_slowest = np.isin(steps.largest_row, rows)
        # Where another rank is the slowest, it hides what these lost. What they gained would have made the step longer
        # where they would have been the slowest without: by their usual busy time, of single steps it is not kept.
        median_us = of_bins(np.fmax.reduce(self.medians[rows], axis=0), self._width, self._count)
        own_us = np.where(is_slowest, largest_us, np.where(added_us < 0, median_us, -np.inf)) - added_us
        fixed_us = np.where(is_slowest, np.fmax(others_us, own_us), np.fmax(largest_us, own_us))
        result: NDArray[Any] = np.nan_to_num(largest_us - fixed_us)
        return result

    def add_rare(self) -> None:
        """Periods of the job and of ranks, then what the other long steps have in common."""
        long_steps = self._job.long_steps
        # The first steps after a change are long beside the median of their bin, most of which lies before it.
        for edge in self._edges:
            long_steps = long_steps.where(np.abs(long_steps.columns - edge) > self._width)
        if not len(long_steps.rows):
            return
        long_steps = self._periods_of_ranks(long_steps) if self._job.is_busy else long_steps
        while (of_job := periodic(long_steps)) is not None:
            every, chosen = of_job
            self._add_outliers("period", long_steps.where(chosen), every)
            long_steps = long_steps.where(~chosen)
        if len(long_steps.rows):
            self._other_outliers(long_steps)

    def _periods_of_ranks(self, long_steps: LongSteps) -> LongSteps:
        """Add the periods that each rank has for itself, equal ones in one event; returns the other long steps."""
        masks: dict[tuple[int, float], NDArray[Any]] = {}
        for row in np.unique(long_steps.rows):
            of_row = np.flatnonzero(long_steps.rows == row)
            of_rank = periodic(long_steps.where(of_row))
            if of_rank is None:
                continue
            every, is_periodic = of_rank
            of_row = of_row[is_periodic]
            size_us = float(np.median(long_steps.excess_us[of_row]))
            # What delays a rank by half a second every 50 steps is not what delays others by a millisecond after it.
            size = next((size for other, size in masks if other == every and 0.25 < size_us / size < 4), size_us)
            masks.setdefault((every, size), np.zeros(len(long_steps.rows), dtype=bool))[of_row] = True
        remaining = np.ones(len(long_steps.rows), dtype=bool)
        for (every, _), chosen in masks.items():
            self._add_outliers("period", long_steps.where(chosen), every)
            remaining &= ~chosen
        return long_steps.where(remaining)

    def _other_outliers(self, long_steps: LongSteps) -> None:
        """One event for each rank or node that most have in common, and one for the rest."""
        nodes = np.array(self._job.nodes)
        columns = len(np.unique(long_steps.columns))
        rows, counts = np.unique(long_steps.rows, return_counts=True)
        shared = len(long_steps.rows) > 2 * columns or not self._job.is_busy

        def fewest(share: float) -> float:
            """Long steps that this share of the ranks has in common: of two nodes each has half of any."""
            return max(max(0.5, min(1.5 * share, 1.0)) * columns, 5)

        common = [] if shared else [long_steps.rows == row for row in rows[counts >= fewest(1 / len(nodes))]]
        if not shared and not common:
            common = [
                mask
                for node in np.unique(nodes)
                if len(np.unique(nodes)) > 1
                and np.count_nonzero(mask := nodes[long_steps.rows] == node) >= fewest(np.mean(nodes == node))
            ]
        remaining = np.ones(len(long_steps.rows), dtype=bool)
        for mask in common:
            self._add_outliers("outliers", long_steps.where(mask), None)
            remaining &= ~mask
        if len(np.unique(long_steps.columns[remaining])) >= 3:
            self._add_outliers("outliers", long_steps.where(remaining), None)

    def _add_outliers(self, kind: Kind, long_steps: LongSteps, every: int | None) -> None:
        rows = np.unique(long_steps.rows)
        columns = np.unique(long_steps.columns)
        cost = np.zeros(self._count)
        cost[columns] = self._excess_of(long_steps, columns)
        nodes = {self._job.nodes[row] for row in rows}
        # Of a job whose ranks all have them in the same steps.
        level: Level = "rank" if self._job.is_busy and len(long_steps.rows) < 2 * len(columns) else "job"
        if level == "rank" and len(rows) > 1 and len(nodes) == 1 and len(set(self._job.nodes)) > 1:
            level = "node"
        first, end = int(columns[0]), int(columns[-1]) + 1
        size = float(np.median(long_steps.excess_us))
        garbage = self._garbage_share(long_steps)
        # As if as many such steps came again, each as long as one of these.
        away_s = _Z_80 * math.sqrt(len(columns)) * float(cost[columns].std()) / 1e6
        costs = _Cost(self._summed_s(cost), away_s)
        self._add(kind, level, rows, first, end, size, costs, every=every, times=len(columns), garbage=garbage)

    def _garbage_share(self, long_steps: LongSteps) -> float | None:
        """In which share of these steps Python collected garbage; None where that says nothing."""
        steps = self._job.steps
        seen = often = 0
        in_all, timed = 0, 0
        for row in np.unique(long_steps.rows).tolist():
            samples = self._samples.get(int(self._job.ranks[row]))
            if samples is None or not len(samples):
                continue
            is_collected = collected(samples, steps.begins_ns, steps.length_us)
            of_row = is_collected[long_steps.columns[long_steps.rows == row]]
            seen, often = seen + len(of_row), often + int(np.count_nonzero(of_row))
            in_all, timed = in_all + int(np.count_nonzero(is_collected)), timed + len(is_collected)
        # Where most steps have a collection, it explains none that is long.
        if not seen or often / seen < max(_LEAST_GARBAGE, 2 * in_all / timed):
            return None
        return often / seen

    def _excess_of(self, long_steps: LongSteps, columns: NDArray[Any]) -> NDArray[Any]:
        """How much longer these steps of the job are since those of ranks are long, µs."""
        steps, every = self._job.steps, self._job.long_steps
        numbers = every.rows * self._count + every.columns
        others = every.where(
            np.isin(every.columns, columns) & ~np.isin(numbers, long_steps.rows * self._count + long_steps.columns)
        )
        fixed_us = steps.regular_us[columns].astype(np.float64)
        np.fmax.at(fixed_us, np.searchsorted(columns, others.columns), others.busy_us)
        result: NDArray[Any] = np.nan_to_num(steps.largest_us[columns] - fixed_us)
        return result

    def _add(
        self,
        kind: Kind,
        level: Level,
        rows: NDArray[Any],
        first: int,
        end: int,
        added_us: float,
        cost: _Cost,
        *,
        every: int | None = None,
        times: int | None = None,
        garbage: float | None = None,
    ) -> None:
        job = self._job
        away_s = math.hypot(cost.away_s, _MODEL_SHARE * cost.cost_s)
        steps_s = float(np.nansum(job.steps.length_us, dtype=np.float64)) / 1e6
        nodes = {job.nodes[row] for row in rows}
        begin_s, end_s = self._when(first), self._when(end - 1)
        samples = {rank: self._samples[rank] for rank in job.ranks[rows].tolist() if rank in self._samples}
        together = with_drift if kind == "drift" else with_change
        self.events.append(
            Event(
                kind=kind,
                level=level,
                ranks=tuple(job.ranks[rows].tolist()),
                node=nodes.pop() if len(nodes) == 1 and level != "job" else None,
                first_step=job.first_step + first * self._of_column,
                last_step=job.first_step + end * self._of_column - 1,
                begin_s=begin_s,
                end_s=end_s,
                added_ms=added_us / self._of_column / 1000,
                added_share=added_us / self._median_us,
                every=every and every * self._of_column,
                times=times,
                cost_s=cost.cost_s,
                range_s=(cost.cost_s - away_s, cost.cost_s + away_s),
                cost_share=cost.cost_s / steps_s,
                together=together(samples, begin_s, end_s) if kind in ("drift", "change") else (),
                garbage_share=garbage,
            )
        )

    def _summed_s(self, cost_us: NDArray[Any]) -> float:
        """What timed steps are longer by in all, s; `cost_us` by step, shape (N,)."""
        return float(cost_us[~np.isnan(self._job.steps.length_us)].sum(dtype=np.float64)) / 1e6

    def _when(self, column: int) -> float:
        """When a step began, s since 1970; of one that was not timed, when the next one did."""
        known = np.flatnonzero(self._job.steps.begins_ns)
        at = known[min(int(np.searchsorted(known, column)), len(known) - 1)]
        return float(self._job.steps.begins_ns[at]) / 1e9


def _beside_mean(medians: NDArray[Any]) -> NDArray[Any]:
    """How much longer than the mean of the ranks each one takes, shape (R, B)."""
    filled = np.stack([_filled(row) for row in medians])
    result: NDArray[Any] = filled - filled.mean(axis=0)
    return result


def _filled(series: NDArray[Any]) -> NDArray[Any]:
    """A series of shape (B,) whose NaN are as the values around them."""
    known = np.flatnonzero(~np.isnan(series))
    return np.interp(np.arange(len(series)), known, series[known]) if len(known) else np.zeros(len(series))
