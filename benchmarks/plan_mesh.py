"""How right `plan --mesh` is on simulated jobs: the same model and batch, played on one mesh and on another.

    python benchmarks/plan_mesh.py [--pairs 60] [--seed 1] [--first 0] [--loss]

`mesh_jobs.py` plays a model of 8 or 16 layers with TP, PP and DP on 8 to 32 ranks, with links of one speed within nodes
and of another one between them; collectives take what the quickest of ring, tree and hierarchical takes. From the
traces of the first mesh the step of the second one is predicted, and compared with its own play. Errors are in percent
of the first mesh's step. Pairs whose second mesh needs links that the first one does not show are counted, not judged:
these have to be refused. With --loss each step reduces a loss too, as most jobs do: its time shows the links' latency,
which else is assumed where all collectives have one size.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from rich.console import Console

sys.path.insert(0, str(Path(__file__).parent))
from bars import print_bars
from mesh_jobs import ADAM, LOSS, Faults, Job, Mesh, Operation, Shape
from played_answer import PlayedAnswer

from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.facts import Facts
from tb_ddp_doctor.job.build import build
from tb_ddp_doctor.planning.costs.collectives import MessageLink
from tb_ddp_doctor.planning.costs.links import Links, Scope
from tb_ddp_doctor.planning.model import Question
from tb_ddp_doctor.planning.predict import Planner
from tb_ddp_doctor.planning.record import PlanRecord
from tb_ddp_doctor.planning.refusal import CannotPlanError
from tb_ddp_doctor.trace.reader import decode

#: Steps that are played, and the first one that is recorded.
STEPS, FIRST = 4, 1
#: Bytes of an activation, and of a layer's gradients on the first mesh, as `mesh_jobs.py` writes them.
BYTES = float(2 << 20)
_KINDS = {"allreduce": "all_reduce", "_allgather_base": "all_gather", "_reduce_scatter_base": "reduce_scatter"}


@dataclass(frozen=True)
class Model:
    """A model, its batch, and the links of its machines: us and bytes."""

    layers: int
    micro_batches: int
    attention_us: float
    mlp_us: float
    schedule: str
    sequence_parallel: bool
    sharding: str
    #: Latency of a message and time of a byte, within a node and between nodes.
    within: tuple[float, float]
    between: tuple[float, float]
    #: Whether the loss is reduced in each step: a small collective, whose time is its links' latency.
    reports_loss: bool = False


@dataclass(frozen=True)
class Judged(PlayedAnswer):
    """A pair of meshes."""

    before: Mesh
    after: Mesh

    @property
    def leaves_nodes(self) -> bool:
        """Whether tp lies within nodes before and across them after."""
        return self.before.tp <= self.before.node < self.after.tp


def drawn(rng: random.Random, *, reports_loss: bool) -> tuple[Model, Mesh, Mesh]:
    """A random model and two meshes of as many ranks."""
    node, ranks = rng.choice((4, 8)), rng.choice((8, 16, 32))
    meshes = [
        Mesh(dp=dp, tp=tp, pp=pp, node=node)
        for dp, tp, pp in product((1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 4))
        if dp * tp * pp == ranks
    ]
    before = rng.choice([one for one in meshes if one.tp > 1 and one.dp > 1])
    after = rng.choice([one for one in meshes if one != before and (one.pp == 1 or before.pp > 1)])
    link = rng.uniform(10, 30)
    model = Model(
        layers=rng.choice((8, 16)),
        micro_batches=8 * rng.choice((4, 8)),
        attention_us=rng.uniform(1500, 5000),
        mlp_us=rng.uniform(2000, 9000),
        schedule=rng.choice(("1f1b", "gpipe")),
        sequence_parallel=rng.random() < 0.5,
        sharding=rng.choice(("ddp", "zero1")),
        within=(3.0, 1e-3 / link),
        between=(10.0, 1e-3 / (link / rng.uniform(2, 5))),
        reports_loss=reports_loss,
    )
    return model, before, after


def played(model: Model, mesh: Mesh, first: Mesh) -> Job:
    """A model on a mesh; on the first one all messages have `BYTES`."""
    parameters = first.tp / mesh.tp
    within, between = (
        Scope(MessageLink(1e3 * latency, 1e3 * byte), "measured", "") for latency, byte in (model.within, model.between)
    )
    links = Links(within, between, mesh.node)

    def transfer(ranks: tuple[int, ...], _: int, operation: Operation) -> float:
        nodes = {rank // mesh.node for rank in ranks}
        latency, byte = model.within if len(nodes) < 2 else model.between
        if operation.elements == LOSS:
            return links.time_ns("all_reduce", len(ranks), 2.0, apart=len(nodes) > 1)[1] / 1e3 / operation.us
        size = BYTES * (parameters if operation.dimension == "dp" else 1.0)
        if operation.kind == "message":
            return (latency + size * byte) / operation.us
        is_apart = len(nodes) > 1 and ranks[1] > ranks[0] + 1
        return links.time_ns(_KINDS[operation.kernel], len(ranks), size, apart=is_apart)[1] / 1e3 / operation.us

    optimizer = 0.3 * model.mlp_us / first.tp * parameters * first.pp / mesh.pp
    if model.sharding == "zero1":
        optimizer *= first.dp / mesh.dp

    def kernel(_rank: int, _step: int, operation: Operation) -> float:
        return optimizer / (0.3 * model.mlp_us / mesh.tp) if operation.kernel == ADAM else 1.0

    shape = Shape(
        mesh,
        micro_batches=model.micro_batches // mesh.dp,
        layers=model.layers // mesh.pp,
        schedule=model.schedule,
        attention_us=model.attention_us / mesh.tp,
        mlp_us=model.mlp_us / mesh.tp,
        transfer=0.03,
        sequence_parallel=model.sequence_parallel,
        sharding=model.sharding,
        reports_loss=model.reports_loss,
    )
    return Job(shape, Faults(transfer=transfer, kernel=kernel), STEPS)


def judge(rng: random.Random, *, reports_loss: bool) -> Judged | str:
    """The prediction of a random pair, or why there is none."""
    model, before, after = drawn(rng, reports_loss=reports_loss)
    job = played(model, before, before)
    traces = job.traces(FIRST, rng.choice(("megatron", "mesh", "none")), [0.0] * before.size)
    digests = {rank: digest(decode([trace], f"rank{rank}.json")) for rank, trace in traces.items()}
    built = build("job", digests, {rank: f"node{rank // before.node}" for rank in digests}, before.size)
    asked = Question(mesh=f"dp={after.dp},tp={after.tp},pp={after.pp}")
    try:
        found = Planner(PlanRecord(Facts(built))).predict(asked)
    except CannotPlanError as error:
        return str(error)
    assumed = [one.what for one in found.rests if one.basis == "assumed" and "GB/s that" in one.detail]
    if assumed:
        return f"assumed: {assumed[0]}"
    return Judged(job.step_us / 1e3, played(model, after, before).step_us / 1e3, found, before, after)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print each pair and the bars; returns 1 if one is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first pair")
    parser.add_argument("--loss", action="store_true", help="jobs that reduce the loss in each step")
    options = parser.parse_args(arguments)
    console = Console(width=150)
    rows: list[Judged] = []
    refused = 0
    for number in range(options.first, options.first + options.pairs):
        found = judge(random.Random(f"{options.seed}:{number}"), reports_loss=options.loss)
        if isinstance(found, str):
            refused += 1
            console.print(f"{options.seed}-{number} not judged: {found}", highlight=False, soft_wrap=True)
            continue
        rows.append(found)
        one = found.prediction
        console.print(
            f"{options.seed}-{number} {found.before.dimensions} -> {found.after.dimensions} node {found.before.node}: "
            f"{found.now_ms:.1f} -> {found.true_ms:.1f} ms, predicted {one.step_ms:.1f} ({one.low_ms:.1f} to "
            f"{one.high_ms:.1f}), error {found.error:+.1f} %",
            highlight=False,
            soft_wrap=True,
        )
    if not rows:
        return 1
    errors, changes = ([abs(getattr(row, name)) for row in rows] for name in ("error", "change"))
    known = [abs(row.error) for row in rows if not row.leaves_nodes]
    worst = max(known, default=0.0)
    assumed = [abs(row.error) for row in rows if row.leaves_nodes]
    if assumed:
        console.print(
            f"tp comes to lie across nodes in {len(assumed)}: error {statistics.median(assumed):.1f} % in the median, "
            f"{max(assumed):.1f} % at most"
        )
    inside = sum(row.prediction.low_ms <= row.true_ms <= row.prediction.high_ms for row in rows)
    console.print(f"{refused} of {options.pairs} not judged")
    return print_bars(
        console,
        [
            ("median error, % of the step", "4", f"{statistics.median(errors):.1f}", statistics.median(errors) <= 4),
            ("worst error where tp does not leave its nodes", "20", f"{worst:.1f}", worst <= 20),
            ("error of no change, median", "more", f"{statistics.median(changes):.1f}",
             statistics.median(changes) > statistics.median(errors)),
            *([("worst error where tp comes to lie across nodes", "10", f"{max(assumed):.1f}", max(assumed) <= 10)]
              if options.loss and assumed else []),
            ("within the range", "80 %", f"{inside} of {len(rows)}", inside >= 0.8 * len(rows)),
        ],
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
