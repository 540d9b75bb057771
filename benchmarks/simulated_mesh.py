"""How right the doctor is on simulated jobs of several dimensions of parallelism, whose faults are known.

    python benchmarks/simulated_mesh.py [--jobs 40] [--seed 1] [--first 0] [--only KIND] [--keep DIR] [--large]

`mesh_jobs.py` plays the jobs: 4 to 32 ranks with data, tensor, pipeline, context and expert parallelism and HSDP, with
and without names of their groups; with --large 64 to 512 ranks, of whose traces only the digests are kept. Job k of a
seed is the same whatever the number of jobs. A fault's true cost is the played step minus the step of its twin, the
same job without the fault. Graded are:

- Dimensions: each process group's. A wrong one must be said to be inferred.
- Ranks: a finding of an expected rule names the faulty ranks, all of them and no others.
- Named: its sentences name the dimension ("pp 3").
- Cost: of all findings, less those of the twin, within a tenth of the step.
- False: findings above info that fit no fault and that the twin does not have, and those of the twin.

With --keep the traces of all jobs stay in DIR.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent))
from bars import print_bars
from mesh_jobs import Faults, Job, Mesh, Operation, Shape, write

from tb_ddp_doctor import engine, wording
from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.findings import Diagnosis, Finding, Severity
from tb_ddp_doctor.job.build import build
from tb_ddp_doctor.mesh.mesh import mesh
from tb_ddp_doctor.trace.reader import decode

#: Steps that are played, and the first one that is recorded.
STEPS, FIRST = 5, 1
#: Ranks of large jobs.
LARGE = (64, 128, 256, 512)
#: Share of the step that a fault has to cost to have to be found.
FAULTY = 0.08
SLOW = ("straggler", "load-imbalance", "pipeline-bubble", "moe-imbalance")
#: Above this share a pipeline's bubble is a finding of its own in a healthy job.
LARGE_BUBBLE = 0.2


@dataclass(frozen=True)
class Truth:
    """A fault of a job."""

    rules: tuple[str, ...]
    ranks: tuple[int, ...]
    #: What has to be named, as "pp 3"; "" where nothing has to be.
    place: str = ""
    #: Whether a finding may name some of the ranks alone, as of experts that are busy in turn.
    some: bool = False

    def fits(self, finding: Finding) -> bool:
        """Whether a finding may be of this fault."""
        return finding.rule in self.rules and (self.some or bool(set(finding.ranks) & set(self.ranks)))

    def names(self, finding: Finding) -> bool:
        """Whether a finding names the ranks, all of them and no others."""
        mine, named = set(self.ranks), set(finding.ranks)
        return finding.rule in self.rules and (named <= mine if self.some else named == mine)

    def names_place(self, finding: Finding) -> bool:
        """Whether its sentences name the dimension."""
        return not self.place or self.place in f"{finding.title} {finding.headline} {finding.why}"


@dataclass
class Draw:
    """A job to be played."""

    kind: str
    shape: Shape
    naming: str
    faults: list[Faults] = field(default_factory=list)
    truths: list[Truth] = field(default_factory=list)


def draw(kind: str, rng: random.Random, *, large: bool = False) -> Draw:
    """A random job of a kind."""
    needs = {"slow_stage": "pp", "pp_link": "pp", "slow_tp": "tp", "tp_link": "tp", "slow_replica": "dp"}
    needs |= {"hot_experts": "ep", "moving_experts": "ep", "slow_cp": "cp"}
    kinds = rng.sample(["slow_stage", "slow_rank", "stall", "tp_link"], 2) if kind == "two" else [kind]
    needed = {needs[one] for one in kinds if one in needs}
    shape = large_shape(rng, needed) if large else drawn_shape(rng, needed, node=kind == "slow_node")
    drawn = Draw(kind, shape, rng.choice(("megatron", "mesh", "none")))
    for one in kinds:
        if one != "healthy":
            faults, truth = FAULTS[one](shape, rng)
            while any(set(truth.ranks) & set(other.ranks) for other in drawn.truths):
                faults, truth = FAULTS[one](shape, rng)
            drawn.faults.append(faults)
            drawn.truths.append(truth)
    return drawn


def drawn_shape(rng: random.Random, needed: set[str], *, node: bool) -> Shape:
    """A random mesh with these dimensions, and what its step does."""
    sizes = [dict(zip(("dp", "tp", "pp", "cp"), one, strict=True)) for one in product((1, 2, 4), repeat=4)]
    if "ep" in needed or (rng.random() < 0.2 and "cp" not in needed):
        sizes = [one | {"ep": one["dp"]} for one in sizes if one["dp"] > 1 and one["cp"] == 1]
    elif rng.random() < 0.3:
        sizes = [one | {"replicate": 2} for one in sizes if one["dp"] == 4]
    fitting = [
        one
        for one in sizes
        if all(one.get(name, 1) > 1 for name in needed)
        and 4 <= one["dp"] * one["tp"] * one["pp"] * one["cp"] <= 32
        and sum(size > 1 for size in one.values()) > 1
        and (not node or one["dp"] * one["tp"] * one["pp"] * one["cp"] > 8)
    ]
    chosen = rng.choice(fitting)
    return shape_of(Mesh(**chosen, node=rng.choice((4, 8))), rng)


def large_shape(rng: random.Random, needed: set[str]) -> Shape:
    """A random mesh of 64 to 512 ranks with these dimensions, and what its step does: fewer calls on each rank."""
    ranks = rng.choice(LARGE)
    lengths = ((1, 2, 4, 8, 16, 32, 64), (1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 4))
    sizes = [dict(zip(("dp", "tp", "pp", "cp"), one, strict=True)) for one in product(*lengths)]
    if "ep" in needed or (rng.random() < 0.2 and "cp" not in needed):
        sizes = [one | {"ep": ep} for one in sizes for ep in (4, 8) if one["dp"] % ep == 0 and one["cp"] == 1]
    elif rng.random() < 0.3:
        sizes = [one | {"replicate": rng.choice((2, 4))} for one in sizes if one["dp"] >= 8]
    fitting = [
        one
        for one in sizes
        if all(one.get(name, 1) > 1 for name in needed)
        and one["dp"] * one["tp"] * one["pp"] * one["cp"] == ranks
        and sum(size > 1 for size in one.values()) > 1
    ]
    shape = shape_of(Mesh(**rng.choice(fitting), node=8), rng)
    stages = shape.mesh.pp
    return replace(shape, micro_batches=2 * stages if stages > 1 else 1, layers=1 if stages > 1 else 3)


def shape_of(found: Mesh, rng: random.Random) -> Shape:
    """A random model on a mesh."""
    stages = found.pp
    return Shape(
        found,
        micro_batches=stages * rng.choice((2, 4)) if stages > 1 else 1,
        layers=rng.choice((2, 3)) if stages > 1 else rng.choice((4, 8)),
        schedule=rng.choice(("1f1b", "gpipe")),
        attention_us=rng.uniform(600, 1500),
        mlp_us=rng.uniform(900, 2500),
        transfer=rng.uniform(0.01, 0.03),
        sequence_parallel=rng.random() < 0.4,
        sharding=rng.choice(("ddp",) * (found.replicate == 1) + ("zero1",) + ("fsdp",) * (stages == 1)),
    )


Fault = tuple[Faults, Truth]


def of_ranks(ranks: Sequence[int], place: str, rng: random.Random, rules: tuple[str, ...] = SLOW) -> Fault:
    """Ranks whose kernels take longer."""
    slow, factor = frozenset(ranks), rng.uniform(1.25, 2.0)
    faults = Faults(kernel=lambda rank, *_: factor if rank in slow else 1.0)
    return faults, Truth(rules, tuple(sorted(slow)), place)


def of_place(shape: Shape, dimension: str, rng: random.Random) -> Fault:
    """All ranks of one coordinate."""
    if dimension not in shape.mesh.dimensions:
        dimension = "dp_replicate"
    at = rng.randrange(shape.mesh.dimensions[dimension])
    return of_ranks(shape.mesh.where(**{dimension: at}), f"{dimension} {at}", rng)


def slow_rank(shape: Shape, rng: random.Random) -> Fault:
    """One rank."""
    rank = rng.randrange(shape.mesh.size)
    return of_ranks([rank], coordinates(shape.mesh, rank), rng)


def coordinates(of: Mesh, rank: int) -> str:
    """What names a rank's place, by its smallest dimension."""
    place = of.place(rank)
    name = next(name for name in ("tp", "cp", "pp", "dp", "dp_shard") if name in place)
    return f"{name} {place[name]}"


def slow_node(shape: Shape, rng: random.Random) -> Fault:
    """All ranks of a node."""
    size = shape.mesh.node
    node = rng.randrange(shape.mesh.size // size)
    return of_ranks(range(node * size, node * size + size), "", rng)


def stall(shape: Shape, rng: random.Random) -> Fault:
    """A rank whose host pauses between forward and backward."""
    slow, us = rng.randrange(shape.mesh.size), rng.uniform(0.4, 0.8) * 3 * work_us(shape)
    faults = Faults(pause=lambda rank, _: us if rank == slow else 0.0)
    return faults, Truth((*SLOW, "host-stall"), (slow,), coordinates(shape.mesh, slow))


def work_us(shape: Shape) -> float:
    """Compute of forward of a rank's step."""
    return shape.micro_batches * shape.layers * (shape.attention_us + shape.mlp_us)


def link(dimension: str, least: float, most: float) -> Callable[[Shape, random.Random], Fault]:
    """One group of a dimension on a link that is slower by a factor from `least` to `most`."""

    def fault(shape: Shape, rng: random.Random) -> Fault:
        group, factor = rng.choice(shape.mesh.groups(dimension)), rng.uniform(least, most)
        inside = frozenset(group)

        def transfer(ranks: tuple[int, ...], _: int, operation: Operation) -> float:
            return factor if operation.dimension == dimension and inside.issuperset(ranks) else 1.0

        rules = ("slow-link", "straggler", "communication-bound", "pipeline-bubble")
        others = {name: at for name, at in shape.mesh.place(group[0]).items() if name not in (dimension, "ep")}
        name, at = next(iter(others.items()), ("", 0))
        return Faults(transfer=transfer), Truth(rules, group, f"{name} {at}" if name else "")

    return fault


def hot_experts(shape: Shape, rng: random.Random) -> Fault:
    """The experts of one place get most tokens, in all layers and steps."""
    hot, more = rng.randrange(shape.mesh.ep), rng.uniform(0.5, 1.0)
    size = shape.mesh.ep

    def load(rank: int, *_: int) -> float:
        return 1 + more if shape.mesh.place(rank)["ep"] == hot else 1 - more / (size - 1)

    return Faults(load=load), Truth(SLOW, shape.mesh.where(ep=hot), f"ep {hot}")


def moving_experts(shape: Shape, rng: random.Random) -> Fault:
    """Other experts get most tokens from layer to layer and step to step."""
    more, size = rng.uniform(0.5, 1.0), shape.mesh.ep
    turns = {(step, layer): rng.randrange(size) for step in range(STEPS) for layer in range(shape.layers)}

    def load(rank: int, step: int, layer: int) -> float:
        return 1 + more if shape.mesh.place(rank)["ep"] == turns[step, layer] else 1 - more / (size - 1)

    return Faults(load=load), Truth(("moe-imbalance", "load-imbalance"), tuple(range(shape.mesh.size)), some=True)


FAULTS: Mapping[str, Callable[[Shape, random.Random], Fault]] = {
    "slow_stage": lambda shape, rng: of_place(shape, "pp", rng),
    "slow_tp": lambda shape, rng: of_place(shape, "tp", rng),
    "slow_cp": lambda shape, rng: of_place(shape, "cp", rng),
    "slow_replica": lambda shape, rng: of_place(shape, "dp", rng),
    "slow_rank": slow_rank,
    "slow_node": slow_node,
    "stall": stall,
    "tp_link": link("tp", 8, 20),
    "pp_link": link("pp", 100, 200),
    "hot_experts": hot_experts,
    "moving_experts": moving_experts,
}
KINDS = ("healthy", *FAULTS, "two")


def together(faults: Sequence[Faults]) -> Faults:
    """Several faults at once."""

    def kernel(rank: int, step: int, operation: Operation) -> float:
        return product_of(one.kernel(rank, step, operation) for one in faults)

    def transfer(group: tuple[int, ...], step: int, operation: Operation) -> float:
        return product_of(one.transfer(group, step, operation) for one in faults)

    return Faults(
        kernel=kernel,
        transfer=transfer,
        pause=lambda rank, step: sum(one.pause(rank, step) for one in faults),
        load=lambda rank, step, layer: product_of(one.load(rank, step, layer) for one in faults),
    )


def product_of(factors: Iterator[float]) -> float:
    """Of several factors one."""
    found = 1.0
    for factor in factors:
        found *= factor
    return found


@dataclass(frozen=True)
class Graded:
    """A job, and what is wrong with what the doctor says of it."""

    draw: Draw
    step_ms: float
    true_ms: float
    groups: int
    right_groups: int
    wrongly_sure: int
    found: bool
    named: bool
    cost_error: float
    false: tuple[str, ...]
    verdict: str
    said: tuple[str, ...]

    @property
    def is_faulty(self) -> bool:
        return self.true_ms > FAULTY * self.step_ms

    def complaints(self) -> Iterator[str]:
        if self.right_groups < self.groups:
            yield f"{self.groups - self.right_groups} of {self.groups} groups wrong"
        if self.wrongly_sure:
            yield f"{self.wrongly_sure} wrong though not inferred"
        if self.is_faulty and not self.found:
            yield "ranks not found"
        elif self.is_faulty and not self.named:
            yield "dimension not named"
        if abs(self.cost_error) > 10:
            yield f"cost {self.cost_error:+.1f} %"
        yield from (f"false {one}" for one in self.false)


def examined(
    job: Job, naming: str, clock_us: Sequence[float], keep: Path | None
) -> tuple[Diagnosis, dict[str, object]]:
    """What the doctor says of a job, and its dimensions by name."""
    of = job.shape.mesh
    if keep:
        write(keep, job.traces(FIRST, naming, clock_us), of)
    digests = {
        rank: digest(decode([job.trace(rank, FIRST, naming, clock_us[rank // of.node])], f"rank{rank}.json"))
        for rank in range(of.size)
    }
    built = build("mesh", digests, {rank: f"node{rank // of.node}" for rank in digests}, of.size)
    return engine.examine(built), {one.name: one for one in mesh(built).dimensions}


def loud(diagnosis: Diagnosis) -> list[Finding]:
    return [finding for finding in diagnosis.findings if finding.severity != Severity.INFO.label]


def grade(drawn: Draw, rng: random.Random, keep: Path | None) -> Graded:
    """Play a job and its twin, and compare what the doctor says with what is true."""
    clock = [rng.uniform(-2000, 2000) for _ in range(drawn.shape.mesh.size)]
    twin = Job(drawn.shape, Faults(), STEPS)
    of_twin, _ = examined(twin, drawn.naming, clock, keep and keep / "twin")
    job = Job(drawn.shape, together(drawn.faults), STEPS) if drawn.faults else twin
    said, dimensions = (
        examined(job, drawn.naming, clock, keep and keep / "job")
        if drawn.faults
        else examined(twin, drawn.naming, clock, None)
    )
    groups, right, sure = graded_groups(drawn, dimensions)
    step, true = job.step_us / 1e3, (job.step_us - twin.step_us) / 1e3
    cost = sum(one.cost_ms for one in said.findings) - sum(one.cost_ms for one in of_twin.findings)
    usual = {finding.rule for finding in loud(of_twin)}
    false = [
        f"{one.rule} {wording.ranks(one.ranks)}"
        for one in loud(said)
        if one.rule not in usual and not is_true(one, drawn)
    ]
    false += [
        f"twin's {one.rule} ({one.cause}) {one.cost_ms:.1f}" for one in loud(of_twin) if not is_bubble(one, drawn)
    ]
    of_each = [[one for one in loud(said) if truth.names(one)] for truth in drawn.truths]
    return Graded(
        drawn, step, true, groups, right, sure,
        found=all(of_each),
        named=drawn.naming == "none" or all(
            any(truth.names_place(one) for one in mine) for truth, mine in zip(drawn.truths, of_each, strict=True)
        ),
        cost_error=100 * (cost - true) / step,
        false=tuple(false),
        verdict=said.verdict,
        said=tuple(f"{one.rule} ({one.cause}) {wording.ranks(one.ranks)} {one.cost_ms:.1f}" for one in loud(said)),
    )  # fmt: skip


def is_true(finding: Finding, drawn: Draw) -> bool:
    return any(truth.fits(finding) for truth in drawn.truths) or is_bubble(finding, drawn)


def is_bubble(finding: Finding, drawn: Draw) -> bool:
    """Whether it is of a bubble that is large however even the stages are."""
    before = drawn.shape.mesh.pp - 1
    share = before / (drawn.shape.micro_batches + before)
    return finding.rule == "pipeline-bubble" and share > LARGE_BUBBLE


def graded_groups(drawn: Draw, found: Mapping[str, object]) -> tuple[int, int, int]:
    """How many groups there are, how many have their dimension, and how many have a wrong one that is not inferred."""
    of = drawn.shape.mesh
    true = {(name, group) for name in of.dimensions for group in of.groups(name) if len(group) > 1}
    said = {(name, group): one for name, one in found.items() for group in one.groups}  # type: ignore[attr-defined]
    right = sum(pair in said or (like(pair[0]), pair[1]) in said for pair in true)
    both = true | {(like(name), group) for name, group in true}
    sure = sum(not one.inferred for pair, one in said.items() if pair not in both)  # type: ignore[attr-defined]
    return len(true), right, sure


def like(dimension: str) -> str:
    """What a dimension may be called without a name: its part of data parallelism cannot be told."""
    return re.sub("dp_.*", "dp", dimension)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; returns 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first job")
    parser.add_argument("--only", choices=KINDS, help="jobs of this kind alone")
    parser.add_argument("--large", action="store_true", help="jobs of 64 to 512 ranks")
    parser.add_argument("--keep", type=Path, help="where traces stay")
    options = parser.parse_args(arguments)
    console = Console(width=150)
    rows: list[Graded] = []
    for number in range(options.first, options.first + options.jobs):
        rng = random.Random(f"{options.seed}:{number}")
        kind = KINDS[number % len(KINDS)]
        if options.only not in (None, kind):
            continue
        row = grade(draw(kind, rng, large=options.large), rng, options.keep and options.keep / str(number))
        rows.append(row)
        if complaints := list(row.complaints()):
            places = [f"{one.place} {wording.ranks(one.ranks)}" for one in row.draw.truths]
            console.print(
                f"{options.seed}-{number} {kind} {row.draw.naming} {row.draw.shape.mesh.dimensions} "
                f"{row.draw.shape.schedule} {row.draw.shape.sharding} m={row.draw.shape.micro_batches} "
                f"step {row.step_ms:.1f} true {row.true_ms:.1f} {places}\n    {row.verdict}: {'; '.join(row.said)}\n"
                f"    {'; '.join(complaints)}",
                highlight=False,
                soft_wrap=True,
            )
    by_kind = defaultdict(list)
    for row in rows:
        by_kind[row.draw.kind].append(row)
    table = Table("kind", "jobs", "faulty", "ranks", "named", "false", "worst cost error %", box=None)
    for kind, mine in by_kind.items():
        faulty = [row for row in mine if row.is_faulty]
        counts = [len(mine), len(faulty), sum(r.found for r in faulty), sum(r.found and r.named for r in faulty)]
        worst = max((abs(row.cost_error) for row in mine), default=0.0)
        table.add_row(kind, *map(str, counts), str(sum(bool(row.false) for row in mine)), f"{worst:.1f}")
    console.print(table)
    return print_bars(console, bars(rows))


def bars(rows: Sequence[Graded]) -> Iterator[tuple[str, str, str, bool]]:
    """What is measured, the bar, the value, and whether it is reached."""

    def of(name: str, right: int, every: int, least: float) -> tuple[str, str, str, bool]:
        share = right / every if every else 1.0
        return name, f"{least:.0%}", f"{right} of {every} ({share:.1%})", share >= least

    for names, least in ((True, 0.99), (False, 0.9)):
        mine = [row for row in rows if (row.draw.naming != "none") == names]
        right, every = sum(row.right_groups for row in mine), sum(row.groups for row in mine)
        yield of(f"dimension of groups, {'with' if names else 'without'} names", right, every, least)
    yield of("no wrong dimension but an inferred one", sum(not row.wrongly_sure for row in rows), len(rows), 1)
    faulty = [row for row in rows if row.is_faulty]
    yield of("faulty ranks and dimension named", sum(row.found and row.named for row in faulty), len(faulty), 0.95)
    yield of("cost within 10 % of the step", sum(abs(row.cost_error) <= 10 for row in faulty), len(faulty), 0.95)
    yield of("no false finding", sum(not row.false for row in rows), len(rows), 1)


if __name__ == "__main__":
    sys.exit(main())
