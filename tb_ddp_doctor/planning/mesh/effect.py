"""The effect of another mesh: how long collectives and messages take, and the bubble of the pipeline.

With the same number of ranks, each rank computes as long as now: if it has half as much of the model, it has twice as
much of the batch. Two things change:

1. What a rank sends, and to how many others (`transfers.py`).
2. The bubble. A pipeline of p stages and m micro-batches idles for (p - 1) / m of what a stage takes. The difference to
   the recorded bubble is added to the played steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import log2

import numpy as np

from tb_ddp_doctor.calibration.model import Calibration
from tb_ddp_doctor.facts import MissingFactError
from tb_ddp_doctor.facts.arrivals import stages
from tb_ddp_doctor.facts.frame import frame
from tb_ddp_doctor.facts.pipeline import Pipeline
from tb_ddp_doctor.mesh.mesh import Mesh
from tb_ddp_doctor.mesh.schedules import V_SHAPED
from tb_ddp_doctor.planning.costs import collectives
from tb_ddp_doctor.planning.costs.messages import Case
from tb_ddp_doctor.planning.effect import Effect, Factor
from tb_ddp_doctor.planning.mesh.calls import dimension_of_calls
from tb_ddp_doctor.planning.mesh.sizes import CHANGED, MeshSizes, changed, parsed, recorded
from tb_ddp_doctor.planning.mesh.transfers import MeshTransfers
from tb_ddp_doctor.planning.model import Question, Rests
from tb_ddp_doctor.planning.ranks import spread_ns
from tb_ddp_doctor.planning.record import PlanRecord
from tb_ddp_doctor.planning.refusal import CannotPlanError
from tb_ddp_doctor.replay.model import Parts
from tb_ddp_doctor.trace.model import Floats, Ints
from tb_ddp_doctor.trace.names import Phase

#: GEMMs of another shape need about the same time for an operation. For each factor of two by which tensor parallelism
#: splits them further or less, the time may be this share more or less.
_OTHER_SHAPE = 0.1
#: Fields of a question that change the same collectives, or how many ranks there are.
_NOT_WITH = ("ranks", "sharding", "prefetch", "bucket_mb", "accumulate")


def effect(record: PlanRecord, question: Question, case: Case, calibration: Calibration | None) -> Effect:
    """The effect of a question's mesh. Raises CannotPlanError."""
    sizes, mesh, pipeline = _asked(record, question)
    of = MeshTransfers(record, mesh, sizes, case, calibration)
    factor = _factor(record, mesh, of)
    ranks, then = sizes.ranks
    optimizer = _optimizer(record)
    grows = collectives.expected_largest(then) - collectives.expected_largest(ranks)
    added = max(grows, 0.0) * spread_ns(record)
    computes = sizes.work * _other_shapes(sizes, case)
    device = computes * (1 - optimizer) + _of_optimizer(sizes, of) * optimizer
    return Effect(
        factors=(factor,),
        device=device[record.ranks] if sizes.then != sizes.now else None,
        added_ns=added + _bubble_ns(record, pipeline, of, computes),
    )


def refuse_others(question: Question) -> None:
    """Raise CannotPlanError if a question asks for a mesh, and for what cannot be predicted together with one."""
    both = [name for name in _NOT_WITH if getattr(question, name) is not None]
    both += [name for name in ("gathers_in_time", "offload") if getattr(question, name)]
    if question.mesh is not None and both:
        raise CannotPlanError(f"A mesh is predicted without {both[0]}: ask for one of the two.")


def _asked(record: PlanRecord, question: Question) -> tuple[MeshSizes, Mesh, Pipeline | None]:
    """The sizes of both meshes, and the recorded mesh and pipeline. Raises CannotPlanError."""
    mesh = record.facts.get(frame).mesh
    now = recorded(mesh, record.job.world_size)
    try:
        pipeline = record.facts.get(stages) if now["pp"] > 1 else None
    except MissingFactError as error:
        raise CannotPlanError(str(error)) from error
    if now["pp"] > 1 and pipeline is None:
        raise CannotPlanError("The messages of this record do not show how many micro-batches its pipeline has.")
    if pipeline is not None and pipeline.schedule in V_SHAPED:
        raise CannotPlanError(
            f"This pipeline's schedule is {pipeline.schedule}: each rank has a chunk from both ends of the model. "
            "Other meshes of such pipelines are not predicted."
        )
    micro_batches = pipeline.micro_batches if pipeline else 1
    sizes = changed(now, parsed(question.mesh or ""), strong=question.strong, micro_batches=micro_batches)
    return sizes, mesh, pipeline


def _factor(record: PlanRecord, mesh: Mesh, of: MeshTransfers) -> Factor:
    """The factor of each part's transfer. Raises CannotPlanError where one is not known."""
    if of.sizes.then == of.sizes.now:
        return lambda parts: np.ones(len(parts.rank))
    dimension = dimension_of_calls(record, mesh)
    families = record.families
    names = [one.name for one in mesh.dimensions]
    collective = {family.kind for family in families if not family.between_two}
    calls = {(name, kind): of.longer(name, kind) for name in names for kind in of.kinds(name) if kind in collective}
    of_messages: dict[str, float] = {name: of.messages(name) for name in ("pp", "cp") if name in names}

    def factor(parts: Parts) -> Floats:
        longer = np.ones(len(parts.rank))
        place = _dimension_of_parts(parts, dimension)
        for number, name in enumerate(names):
            for index, family in enumerate(families):
                mine = np.flatnonzero((place == number) & (parts.family == index))
                if not len(mine):
                    continue
                if family.between_two:
                    longer[mine] = of_messages.get(name, 1.0)
                elif (name, family.kind) in calls:
                    longer[mine] = calls[name, family.kind](parts.bytes[mine])
        return longer

    return factor


def _optimizer(record: PlanRecord) -> Floats:
    """The optimizer's share of each rank's device work, shape (all ranks, S)."""
    phases = record.job.work(lambda work: work.phases)
    updates = (phases.device_ns - phases.exposed_ns)[:, :, Phase.OPTIMIZER]
    return np.clip(updates / np.maximum(record.job.budget.of("compute"), 1), 0.0, 1.0)


def _of_optimizer(sizes: MeshSizes, of: MeshTransfers) -> float:
    """The factor of the optimizer's work: by the parameters of a rank, or of its shard of them."""
    is_sharded = "all_gather" in of.kinds("dp")
    return sizes.parameters * (sizes.now["dp"] / sizes.then["dp"] if is_sharded else 1.0)


def _dimension_of_parts(parts: Parts, dimension: list[Ints]) -> Ints:
    """The dimension of each part; -1 for none."""
    of_parts = np.full(len(parts.rank), -1, np.int64)
    for rank, of_rows in enumerate(dimension):
        mine = np.flatnonzero((parts.rank == rank) & (parts.row >= 0) & (parts.row < len(of_rows)))
        of_parts[mine] = of_rows[parts.row[mine]]
    return of_parts


def _other_shapes(sizes: MeshSizes, case: Case) -> float:
    """The factor of a rank's compute by what may be better or worse about GEMMs of other shapes."""
    share = _OTHER_SHAPE * abs(log2(sizes.then["tp"] / sizes.now["tp"]))
    return {"likely": 1.0, "quickest": 1 / (1 + share), "slowest": 1 + share}[case]


def _bubble_ns(record: PlanRecord, pipeline: Pipeline | None, of: MeshTransfers, computes: float) -> float:
    """How much longer the bubble gets by other numbers of stages and micro-batches, ns.

    The effect of the other mesh's transfers on the bubble is not in it: the replay plays these.
    """
    sizes = of.sizes
    if pipeline is None:
        return 0.0
    compute = computes * float(record.job.budget.of("compute").mean())
    stage = compute + sum(of.exposed_ns(name) for name in ("tp", "ep"))
    return stage * (sizes.then["pp"] - 1) / sizes.micro_batches - pipeline.bubble_ns(stage)


def rests(record: PlanRecord, question: Question, calibration: Calibration | None) -> Iterator[Rests]:
    """What the answer to a question's mesh rests on. Raises CannotPlanError."""
    sizes, mesh, pipeline = _asked(record, question)
    of = MeshTransfers(record, mesh, sizes, "likely", calibration)
    _factor(record, mesh, of)
    yield Rests("measured", "The recorded mesh", ", ".join(_mesh_words(mesh, sizes)))
    for name, scope in sorted(of.taken.items()):
        yield Rests(scope.basis, f"Links of {name}", scope.rests_on)
    if sizes.then["tp"] != sizes.now["tp"]:
        yield Rests(
            "assumed",
            "Compute",
            "kernels split by tp take as long for an operation, 10 % less to 10 % more for each factor of two; what tp "
            "does not split (norms without sequence parallelism) is taken as split",
        )
    if pipeline is not None:
        yield Rests(
            "assumed",
            "Pipeline",
            f"{sizes.micro_batches} micro-batches instead of {sizes.recorded_micro_batches}, a bubble of (p - 1) / m = "
            f"{sizes.then['pp'] - 1} / {sizes.micro_batches} of what a stage takes; stages as uneven as now",
        )
    yield Rests(
        "assumed",
        "The model and its batch",
        f"{sizes.batch:.3g} times as much of the batch and {sizes.parameters:.3g} "
        "times as many parameters on each rank; whether that fits into memory, and whether heads, layers and samples "
        "divide so, is not known",
    )


def _mesh_words(mesh: Mesh, sizes: MeshSizes) -> Iterator[str]:
    """The recorded dimensions, and which of them are inferred."""
    why = {one.name: one.inferred for one in mesh.dimensions}
    for name, size in sizes.now.items():
        if size > 1 or name in CHANGED:
            yield f"{name}={size}{' (inferred)' if why.get(name) else ''}"
