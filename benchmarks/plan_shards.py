"""How right plans of FSDP and HSDP are on simulated jobs: the same model played as recorded, and as asked.

    python benchmarks/plan_shards.py [--jobs 30] [--seed 1] [--first 0]

`mesh_jobs.py` plays models of 4 to 12 layers on 4 to 16 ranks that shard with `fully_shard`, half of them with copies
between nodes (HSDP), with some units gathered ahead. CPUs launch quickly or slowly, and half of them sync with the GPU
after each layer's forward, so that all-gathers wait for them. Units have one or two layers, all of one size but the
embedding, which is larger; all-gathers, reduce-scatters and AllReduces take a latency and a time of each byte. Of each
job all questions are asked that sharding has, and each prediction is compared with a play of the job as asked. Errors
are in percent of the recorded step.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rich.console import Console

sys.path.insert(0, str(Path(__file__).parent))
from bars import print_bars
from mesh_jobs import ADAM, LAUNCH_US, Faults, Job, Mesh, Operation, Program, Shape
from played_answer import PlayedAnswer

from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.facts import Facts
from tb_ddp_doctor.job.build import build
from tb_ddp_doctor.planning.model import Question
from tb_ddp_doctor.planning.predict import Planner
from tb_ddp_doctor.planning.record import PlanRecord
from tb_ddp_doctor.planning.refusal import CannotPlanError
from tb_ddp_doctor.planning.shards.units import units
from tb_ddp_doctor.trace.reader import decode

#: Steps that are played, and the first one that is recorded.
STEPS, FIRST = 4, 1
#: Bytes of an element of parameters and gradients, as `mesh_jobs.py` writes them.
ELEMENT = 2
#: By kind, what a collective's bytes are multiplied by among n ranks.
_SENT = {
    "_allgather_base": lambda ranks: (ranks - 1) / ranks,
    "_reduce_scatter_base": lambda ranks: (ranks - 1) / ranks,
    "allreduce": lambda ranks: 2 * (ranks - 1) / ranks,
}


@dataclass(frozen=True)
class Sharded:
    """How a model is sharded, and how its units are gathered."""

    #: Elements of each layer, in the order of forward.
    elements: tuple[int, ...]
    #: Latency and time of a byte, within a node and between nodes, us.
    within: tuple[float, float]
    between: tuple[float, float]
    #: Units that forward and backward gather ahead.
    ahead: tuple[int, int] = (0, 1)
    #: Whether forward frees a unit, so that backward gathers it again.
    reshards: bool = True
    #: Layers of a unit.
    layers: int = 1
    #: Whether the CPU syncs with the GPU after each layer's forward.
    syncs: bool = False
    #: Whether each all-gather is launched with the collective before it.
    in_time: bool = False


class ShardedProgram(Program):
    """A step of `fully_shard`: units are gathered, computed, and their gradients scattered."""

    def __init__(self, shape: Shape, faults: Faults, rank: int, step: int, how: Sharded) -> None:
        self.how = how
        super().__init__(shape, faults, rank, step)

    def _write(self) -> None:
        how, each = self.how, self.how.layers
        self._units = [range(first, first + each) for first in range(0, len(how.elements), each)]
        self._begun: set[tuple[int, str]] = set()
        for unit in range(len(self._units)):
            self._unit(unit, "forward", 1, how.ahead[0])
        for unit in reversed(range(len(self._units))):
            self._unit(unit, "backward", -1, how.ahead[1])
            self._send(unit)
        for unit in range(len(self._units)):
            self._add("wait", 0.0, "optimizer", key=f"scattered{unit}")
            self._add("wait", 0.0, "optimizer", key=f"reduced{unit}")
        self._kernel(ADAM, 0.3 * self.shape.mlp_us, "optimizer")
        if how.in_time:
            self.operations = list(_in_time(self.operations))

    def _unit(self, unit: int, phase: str, way: int, ahead: int) -> None:
        """Gather a unit, and those ahead of it; wait for it; compute its layers."""
        self._gather_unit(unit, phase)
        self._add("wait", 0.0, phase, key=f"gather{unit}{phase}")
        for following in range(1, ahead + 1):
            self._gather_unit(unit + way * following, phase)
        for layer in self._units[unit][::way]:
            times = 1.0 if phase == "forward" else 2.0
            for part in (0.3, 0.2, 0.5):
                self._kernel("nvjet_tst_gemm", part * self.shape.mlp_us * times, phase)
            if self.how.syncs and phase == "forward":
                self._add("sync", 0.0, phase)
            if phase == "backward":
                self._add("gradient", 0.0, phase, elements=(self.how.elements[layer],) * 2)

    def _size(self, unit: int) -> int:
        return sum(self.how.elements[layer] for layer in self._units[unit])

    def _us(self, kind: str, dimension: str, size: float) -> float:
        ranks = len(self.mesh.group(self.rank, dimension))
        latency, byte = self.how.between if dimension == "dp_replicate" else self.how.within
        return latency + _SENT[kind](ranks) * size * ELEMENT * byte

    def _gather_unit(self, unit: int, phase: str) -> None:
        if not 0 <= unit < len(self._units) or (unit, phase) in self._begun:
            return
        self._begun.add((unit, phase))
        if phase == "backward" and not self.how.reshards:
            return
        of, kind, size = self._shards(), "_allgather_base", self._size(unit)
        shard = size // len(self.mesh.group(self.rank, of))
        more = {"blocks": False, "needs_kernels": False, "elements": (shard, size), "key": f"gather{unit}{phase}"}
        self._collective(kind, of, self._us(kind, of, size), phase, **more)

    def _send(self, unit: int) -> None:
        of, kind, size = self._shards(), "_reduce_scatter_base", self._size(unit)
        shard = size // len(self.mesh.group(self.rank, of))
        key = f"scattered{unit}"
        us = self._us(kind, of, size)
        self._collective(kind, of, us, "backward", blocks=False, elements=(size, shard), key=key)
        if self.mesh.replicate > 1:
            us = self._us("allreduce", "dp_replicate", shard)
            more = {"blocks": False, "needs_kernels": False, "elements": (shard, shard), "behind": key}
            self._collective("allreduce", "dp_replicate", us, "backward", key=f"reduced{unit}", **more)


def _in_time(operations: Sequence[Operation]) -> Iterator[Operation]:
    """The operations with each all-gather, but the first of a phase, behind the last collective of its stream."""
    moved: list[Operation] = []
    before, phases = -1, set()
    for one in operations:
        is_gather = one.kernel == "_allgather_base"
        if is_gather and one.phase in phases:
            before += 1
            moved.insert(before, one)
            continue
        moved.append(one)
        if is_gather or one.kernel == "_reduce_scatter_base":
            before = len(moved) - 1
        if is_gather:
            phases.add(one.phase)
    yield from moved


def played(shape: Shape, how: Sharded) -> Job:
    """A job whose units are sharded in some way."""
    return Job(shape, Faults(), STEPS, partial(ShardedProgram, how=how))


def drawn(rng: random.Random) -> tuple[Shape, Sharded]:
    """A random job."""
    node = rng.choice((2, 4, 8))
    copies = rng.choice((1, 2))
    ranks = node * copies
    layer = rng.choice((4, 8, 16)) << 20
    compute = rng.uniform(1500, 4000)
    # All-gathers take 0.2 to 1.2 times as long as the compute of a unit's forward.
    within = 1e-6 * compute * rng.uniform(0.2, 1.2) * 1e6 / (layer * ELEMENT)
    shape = Shape(
        Mesh(dp=ranks, replicate=copies, node=node),
        mlp_us=compute,
        launch_us=rng.choice((LAUNCH_US, 0.15 * compute, 0.35 * compute)),
        sharding="fsdp",
    )
    how = Sharded(
        elements=(2 * layer, *(layer for _ in range(2 * rng.randint(2, 6) - 1))),
        within=(rng.uniform(10, 60), within),
        between=(rng.uniform(20, 100), within * rng.uniform(1.0, 2.0 * node)),
        ahead=rng.choice(((0, 1), (0, 0), (1, 1))),
        reshards=rng.random() < 0.7,
        syncs=rng.random() < 0.5,
        layers=rng.choice((1, 2)),
    )
    return shape, how


def asked(how: Sharded) -> Iterator[tuple[str, Question, Sharded]]:
    """The questions of a job, each with how it is then sharded."""
    yield "all-gathers in time", Question(gathers_in_time=True), replace(how, in_time=True)
    for depth in (0, 1, 2):
        yield "prefetch", Question(prefetch=depth), replace(how, ahead=(depth, depth))
    stage = "zero2" if how.reshards else "zero3"
    # A record that gathers nothing in backward does not show how far ahead it would.
    ahead = how.ahead if how.reshards else (how.ahead[0], 1)
    yield "reshard after forward", Question(sharding=stage), replace(how, reshards=not how.reshards, ahead=ahead)
    mib = how.elements[1] * ELEMENT / 2**20
    recorded = "zero3" if how.reshards else "zero2"
    if how.layers == 1:
        yield "larger units", Question(sharding=recorded, bucket_mb=round(1.9 * mib, 1)), replace(how, layers=2)
    else:
        yield "smaller units", Question(sharding=recorded, bucket_mb=round(0.95 * mib, 1)), replace(how, layers=1)


@dataclass(frozen=True)
class Judged(PlayedAnswer):
    """A question of a job."""

    what: str


def judge(shape: Shape, how: Sharded) -> Iterator[Judged | str]:
    """The predictions of a job, or why there are none."""
    job, mesh = played(shape, how), shape.mesh
    traces = job.traces(FIRST, "mesh", [0.0] * mesh.size)
    digests = {rank: digest(decode([trace], f"rank{rank}.json")) for rank, trace in traces.items()}
    built = build("job", digests, {rank: f"node{rank // mesh.node}" for rank in digests}, mesh.size)
    try:
        planner = Planner(PlanRecord(Facts(built)))
        units(planner.record)
    except CannotPlanError as error:
        yield str(error)
        return
    for what, question, then in asked(how):
        try:
            found = planner.predict(question)
        except CannotPlanError as error:
            yield f"{what}: {error}"
            continue
        yield Judged(job.step_us / 1e3, played(shape, then).step_us / 1e3, found, what)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print each prediction and the bars; returns 1 if one is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first job")
    options = parser.parse_args(arguments)
    console = Console(width=150)
    rows: defaultdict[str, list[Judged]] = defaultdict(list)
    for number in range(options.first, options.first + options.jobs):
        shape, how = drawn(random.Random(f"{options.seed}:{number}"))
        name = "HSDP" if shape.mesh.replicate > 1 else "FSDP"
        for found in judge(shape, how):
            if isinstance(found, str):
                console.print(f"{options.seed}-{number} not judged: {found}", highlight=False, soft_wrap=True)
                continue
            rows[f"{name}, {found.what}"].append(found)
            one = found.prediction
            console.print(
                f"{options.seed}-{number} {name} {how.ahead} {'zero3' if how.reshards else 'zero2'} launch "
                f"{shape.launch_us:.0f}{', syncs' if how.syncs else ''}: {found.what} {one.question.prefetch}: "
                f"{found.now_ms:.2f} -> {found.true_ms:.2f} ms, predicted {one.step_ms:.2f} "
                f"({one.low_ms:.2f} to {one.high_ms:.2f}), error {found.error:+.1f} %",
                highlight=False,
                soft_wrap=True,
            )
    every = [one for some in rows.values() for one in some]
    inside = sum(one.prediction.low_ms <= one.true_ms <= one.prediction.high_ms for one in every)
    changes = statistics.median(abs(one.change) for one in every)
    return print_bars(
        console,
        [
            *(
                (f"{name}: median and worst error, % of the step, of {len(some)}", "3, 15",
                 f"{statistics.median(errors):.1f}, {max(errors):.1f}",
                 statistics.median(errors) <= 3 and max(errors) <= 15)
                for name, some in sorted(rows.items())
                if (errors := [abs(one.error) for one in some])
            ),
            ("error of no change, median", "more", f"{changes:.1f}",
             changes > statistics.median(abs(one.error) for one in every)),
            ("within the range", "80 %", f"{inside} of {len(every)}", inside >= 0.8 * len(every)),
        ],
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
