"""Predicts the steps of a job whose states are sharded in another way, and what each rank then stores and sends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.calibration.model import Calibration
from tb_ddp_doctor.facts.memory_savings import copy_rate
from tb_ddp_doctor.facts.peaks import limits
from tb_ddp_doctor.planning.costs.links import links
from tb_ddp_doctor.planning.costs.messages import Case
from tb_ddp_doctor.planning.edits.moved_collectives import launching_ns, with_pass_collectives
from tb_ddp_doctor.planning.model import SHARDINGS, Question, RankBytes, Rests
from tb_ddp_doctor.planning.record import PlanRecord
from tb_ddp_doctor.planning.refusal import CannotPlanError
from tb_ddp_doctor.planning.shards.collectives import AHEAD, OVERHEAD, Strategy, Time, launched
from tb_ddp_doctor.planning.shards.recorded import late_gathers
from tb_ddp_doctor.planning.shards.smaller import split
from tb_ddp_doctor.planning.shards.states import of_rank, offloaded, states
from tb_ddp_doctor.planning.shards.units import Units, merged, ranks_of_shards, units
from tb_ddp_doctor.planning.steps import PlayedSteps
from tb_ddp_doctor.replay.model import Family

#: How long DDP's host takes to launch an AllReduce, if the record has none, ns; 140 to 240 µs were measured.
_LAUNCH_NS = 190_000
#: The share of the copies of shards to the CPU and back that is exposed.
_EXPOSED: dict[Case, float] = {"likely": 0.5, "quickest": 0.0, "slowest": 1.0}
#: Bytes that Adam reads and writes for each float32 parameter. Below: bytes per ns that a process moves on its CPU.
_UPDATE_BYTES = 28.0
_CPU_RATE: dict[Case, float] = {"likely": 25.0, "quickest": 50.0, "slowest": 10.0}
#: All-gathers that are late in this share of the passes count as late.
_OFTEN = 0.5
#: Strategies whose gradients are sent by AllReduces.
_REDUCED = ("ddp", "zero1")
DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8": 1}


def asks_of_sharding(question: Question) -> bool:
    """Whether a question is about sharding."""
    return (
        question.sharding is not None or question.prefetch is not None or question.gathers_in_time or question.offload
    )


class Resharding:
    """A job with its states sharded in another way."""

    def __init__(self, record: PlanRecord, question: Question, calibration: Calibration | None = None) -> None:
        """`calibration` has the links that the question asks for. Raises CannotPlanError."""
        self._record, self._question, self._calibration = record, question, calibration
        self.units = units(record, question.bucket_mb if question.sharding not in _REDUCED else None)
        self.now = self._recorded()
        #: The units that the question has: the recorded ones, or larger ones of these.
        self.units_then = self.units
        if question.bucket_mb is not None and self.units.is_sharded and question.sharding not in _REDUCED:
            if question.bucket_mb <= 0:
                raise CannotPlanError("The size of a unit is some positive number of MiB.")
            larger = merged(self.units, question.bucket_mb)
            self.units_then = split(record, self.units, question.bucket_mb) if larger is None else larger
        self.then = self._asked()

    def _recorded(self) -> Strategy:
        """How the states are sharded in the record."""
        recorded, ranks = self.units, self._record.job.world_size
        if not recorded.is_sharded:
            return Strategy("ddp", ranks, 1, AHEAD, recorded.gradient_bytes)
        name = "zero3" if recorded.regathers else "zero2"
        shards = min(ranks_of_shards(self._record.job), ranks)
        return Strategy(name, ranks, shards, recorded.ahead, recorded.gradient_bytes)

    def _asked(self) -> Strategy:
        """How the question shards the states."""
        question, ranks = self._question, self._question.ranks or self.now.ranks
        name = question.sharding or self.now.name
        if name not in SHARDINGS:
            raise CannotPlanError(f"There is no sharding {name!r}; there are: {', '.join(SHARDINGS)}.")
        if question.accumulate is not None:
            raise CannotPlanError(
                "Another sharding and accumulation cannot be planned together: ask for one at a time."
            )
        gathers = question.prefetch is not None or question.gathers_in_time
        if question.gathers_in_time and not self.units.is_sharded:
            raise CannotPlanError("This job shards no parameters: no all-gather waits for the CPU.")
        if (gathers or question.offload) and name in _REDUCED:
            raise CannotPlanError("Only sharded parameters are gathered ahead or offloaded: ask with --sharding zero3.")
        if question.gathers_in_time and (question.sharding or question.bucket_mb or question.prefetch is not None):
            raise CannotPlanError(
                "Which all-gathers wait for the CPU is known as recorded: ask for them in time without another "
                "sharding, prefetch or units."
            )
        if question.prefetch is not None and not 0 <= question.prefetch < len(self.units_then.elements):
            raise CannotPlanError(f"This model has {len(self.units_then.elements)} units to gather ahead.")
        prefetch = question.prefetch
        # A record that gathers nothing in backward does not show how far ahead it would.
        recorded = (
            (self.units.ahead[0], self.units.ahead[1] if self.units.regathers else AHEAD[1])
            if self.units.is_sharded
            else AHEAD
        )
        ahead = (prefetch, prefetch) if prefetch is not None else recorded
        if question.dtype is not None and question.dtype not in DTYPE_BYTES:
            raise CannotPlanError(f"There is no dtype {question.dtype!r} for gradients.")
        element = DTYPE_BYTES.get(question.dtype or "", self.units.gradient_bytes)
        in_time = None
        if question.gathers_in_time:
            in_time = late_gathers(self._record, self.units)
            # Before forward the parameters are updated, and what opens backward gathers what forward has just freed.
            in_time[:, [0, *([len(self.units.elements)] if self.units.regathers else [])]] = False
        return Strategy(name, ranks, self._shards(name, ranks), ahead, element, in_time)

    def _shards(self, name: str, ranks: int) -> int:
        """How many of the ranks store one copy of the states."""
        if name == "ddp":
            return 1
        if self._has_copies and name not in _REDUCED:
            if ranks % self.now.shards:
                raise CannotPlanError(f"{ranks} ranks are not whole copies of {self.now.shards} shards.")
            return self.now.shards
        return self._of_a_node(ranks) if name == "hsdp" else ranks

    @property
    def _has_copies(self) -> bool:
        """Whether the record has several copies of the states (HSDP), so that another stage keeps these."""
        return self.units.is_sharded and self.now.shards < self.now.ranks

    def _of_a_node(self, ranks: int) -> int:
        of_job = links(self._record, "all_gather", "likely", self._calibration)
        shards = of_job.ranks_a_node
        if shards < 2:
            raise CannotPlanError("Each node has one rank, as far as the record tells: hsdp shards nothing there.")
        if ranks <= shards:
            raise CannotPlanError("All ranks are on one node, as far as the record tells: hsdp is zero3 there.")
        if ranks % shards:
            raise CannotPlanError(f"{ranks} ranks are not whole nodes of {shards}.")
        if of_job.within is None:
            raise CannotPlanError(
                "What links within a node take is not known: run torchrun ... -m tb_ddp_doctor.check on two nodes and "
                "put its calibration.json beside the traces."
            )
        return shards

    @property
    def changes_collectives(self) -> bool:
        """Whether the question replaces the recorded collectives, not only DDP's buckets."""
        return self.units.is_sharded or self.then.name not in _REDUCED

    def steps(self, case: Case) -> tuple[PlayedSteps, PlayedSteps]:
        """The steps as the question shards them, and those to compare with. Raises CannotPlanError."""
        before = self._record.steps
        if self.units.is_sharded:
            before = self._placed(self.now, self.units, case, None)
        return self._placed(self.then, self.units_then, case, self._calibration), before

    def _placed(self, strategy: Strategy, placed: Units, case: Case, calibration: Calibration | None) -> PlayedSteps:
        """The steps with units that are sharded in some way."""
        time, bucket_mib = self._time(case, calibration), self._question.bucket_mb
        takes, freed = (
            round((self.units.launching_ns or _LAUNCH_NS) * (1 + OVERHEAD[case] * sharded))
            for sharded in (strategy.name not in _REDUCED, self.units.is_sharded)
        )
        if self.units.is_sharded and strategy.name not in _REDUCED:
            takes = launching_ns(self._record.tracks, self.units, freed)
        each = launched(placed, strategy, time, takes, bucket_mib)
        return PlayedSteps(with_pass_collectives(self._record.tracks, placed, each, freed), self._record.steps)

    def _time(self, case: Case, calibration: Calibration | None) -> Time:
        kinds = ("all_reduce", "all_gather", "reduce_scatter")
        net = {kind: links(self._record, kind, case, calibration) for kind in kinds}

        def time_ns(kind: str, ranks: int, size: float, apart: bool) -> float:
            same = self._record.messages_of(Family(kind, ranks, of_gradients=False)) if self._has_copies else None
            if same is not None and calibration is None:
                taken = same.of(case)
                return taken.alpha_ns + taken.beta_ns * size
            return net[kind].time_ns(kind, ranks, size, apart=apart)[1]

        return time_ns

    def added_ns(self, case: Case) -> float:
        """Time that is added to each step, ns: updates of other shards, their gather, and updates on the CPU."""
        whole, update = states(self._record.job, self.units), self._update_ns()
        if self._question.offload:
            return self._offloaded_ns(case, whole.parameters + whole.gradients) - update / self.now.shards
        added = update * (1 / self.then.shards - 1 / self.now.shards)
        if self.then.name == "zero1":
            added += self._time(case, self._calibration)("all_gather", self.then.ranks, whole.parameters, False)
        return added

    def _update_ns(self) -> float:
        """How long the GPU takes to update all parameters, by the bytes that Adam moves, ns; 0 for an unknown GPU."""
        device = limits(self._record.job.device)
        return float(self.units.elements.sum()) * _UPDATE_BYTES / (1e3 * device.bandwidth) if device else 0.0

    def _offloaded_ns(self, case: Case, moved: float) -> float:
        """How long updates on the CPU add to a step, ns: copies of gradients and parameters, and the update."""
        rate, _ = copy_rate(self._record.job)
        elements = float(self.units.elements.sum()) / self.then.shards
        return _EXPOSED[case] * moved / self.then.shards / rate * 1e9 + elements * _UPDATE_BYTES / _CPU_RATE[case]

    def rank_bytes(self) -> tuple[RankBytes, RankBytes]:
        """What each rank stores and sends, in the record and as the question shards the states."""
        whole = states(self._record.job, self.units)
        now, then = (
            of_rank(whole, one.name, one.ranks, one.shards, _gathered(its, max(one.ahead) + 1 + _in_a_row(one)))
            for one, its in ((self.now, self.units), (self.then, self.units_then))
        )
        return now, offloaded(then) if self._question.offload else then

    def _other_units(self) -> Rests:
        """What larger or smaller units rest on."""
        count, then = len(self.units.elements), len(self.units_then.elements)
        if then < count:
            several = f"{then} units instead, each of neighbours"
            return Rests("assumed", "Larger units", f"{several}, gathered before the first of them is computed")
        parts = f"{then} units instead, by the gradients of each unit"
        return Rests("assumed", "Smaller units", f"{parts}; forward computes parts in the reverse order of backward")

    def _in_time(self) -> str:
        """What all-gathers in time are, for users."""
        moved = self.then.in_time
        each = float(moved.sum()) / max(len(moved), 1) if moved is not None else 0.0
        return (
            f"{wording.decimals(each, 1)} a step that wait for the CPU in the record are launched right behind the "
            "collective before them, but not the first ones of forward and of backward; "
            f"{max(self.then.ahead) + 1 + _in_a_row(self.then)} units are gathered at a time"
        )

    def rests(self) -> Iterator[Rests]:
        """The inputs of the prediction."""
        sharded, record = self.units, self._record
        count = (
            f"{len(sharded.elements)} units of {wording.size(np.median(sharded.elements) * sharded.parameter_bytes)}"
        )
        if sharded.is_sharded:
            ahead = "{} ahead in forward and {} in backward".format(*sharded.ahead)
            yield Rests("measured", "Units", f"{count}, as the record gathers them ({self.now.name}, {ahead})")
            if self._question.gathers_in_time:
                yield Rests("measured", "All-gathers in time", self._in_time())
            if self.units_then is not self.units:
                yield self._other_units()
        else:
            yield Rests("assumed", "Units", f"{count}: {_UNITS[sharded.has_root]}")
            yield Rests("assumed", "Forward of each unit", "its share of backward, in the reverse order")
        net = links(record, "all_gather", "likely", self._calibration)
        yield from net.rests(self.then.ranks)
        if sharded.is_sharded != (self.then.name not in _REDUCED):
            likely, least, most = (
                OVERHEAD[case] * (sharded.launching_ns or _LAUNCH_NS) / 1e6 for case in get_args(Case)
            )
            extra = (
                f"{wording.decimals(likely, 2)} ms ({wording.decimals(least, 2)} to {wording.decimals(most, 2)}) "
                "for each collective"
            )
            yield Rests(
                "assumed", "CPU time of fully_shard", f"{extra}, 5 (1.5 to 8) times an AllReduce's launch by DDP"
            )
        whole = states(record.job, sharded)
        yield Rests(whole.basis, "Optimizer's states", whole.rests_on)
        if self._question.offload:
            rate, is_measured = copy_rate(record.job)
            how = "as the pinned copies of this job" if is_measured else "as PCIe 4.0 x16 has"
            yield Rests(
                "assumed",
                "Offloading",
                f"half (none to all) of the copies at {wording.decimals(rate / 1e9, 1)} GB/s, {how}, is exposed; the "
                "CPU's update moves 28 bytes for each parameter at 25 GB/s (10 to 50)",
            )


def _in_a_row(strategy: Strategy) -> int:
    """The most all-gathers that are all launched with the one before them, in half of the passes or more."""
    longest = row = 0
    for is_moved in [] if strategy.in_time is None else (strategy.in_time.mean(axis=0) >= _OFTEN).tolist():
        row = row + 1 if is_moved else 0
        longest = max(longest, row)
    return longest


def _gathered(of: Units, several: int) -> float:
    """The most bytes that some units have that are gathered at a time."""
    size = np.sort(of.elements * of.parameter_bytes)[::-1]
    return float(size[:several].sum())


#: How the units of a record without FSDP were found, by whether there is a root.
_UNITS = {
    True: "layers whose gradients' sizes repeat, and the rest as the root",
    False: "no layers repeat, so gradients in the order of backward up to a size (--bucket-mb, 25 MiB)",
}
