"""What is asked of a plan, and what it answers: frozen data with one JSON form.

Times are ms a step, sizes of buckets MiB as `bucket_cap_mb` has them, other bytes bytes.
"""

from __future__ import annotations

from typing import Literal

import msgspec

#: Raised when a field changes its meaning or goes.
SCHEMA_VERSION = 1
#: How states can be sharded.
SHARDINGS = ("ddp", "zero1", "zero2", "zero3", "hsdp")
Basis = Literal["measured", "fitted", "assumed"]


class Question(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is otherwise; a field that is not set stays as recorded."""

    #: `bucket_cap_mb` of DistributedDataParallel.
    bucket_mb: float | None = None
    #: Ranks of the job, each with as much work as now; with `strong`, all together with as much.
    ranks: int | None = None
    strong: bool = False
    #: How many times as fast each transfer is.
    links: float | None = None
    #: Name of a calibration whose links the job has.
    links_of: str | None = None
    #: What gradients are sent as: float32, float16, bfloat16, float8.
    dtype: str | None = None
    #: How states are sharded: ddp, zero1, zero2, zero3 or hsdp; how many units are gathered ahead; and whether shards
    #: are kept and updated on the CPU.
    sharding: str | None = None
    prefetch: int | None = None
    offload: bool = False
    #: Backward passes for each AllReduce of the gradients; the step is then that of one of them.
    accumulate: int | None = None
    #: Workers of the DataLoader.
    workers: int | None = None
    #: Whether batches are copied from pinned memory.
    pin_memory: bool | None = None
    #: Another device by its name.
    device: str | None = None
    #: Whether the GPU never waits for launches, as with CUDA graphs.
    graphs: bool = False
    #: Findings that are fixed, by id.
    fixed: tuple[str, ...] = ()


class Rests(msgspec.Struct, frozen=True):
    """Something that a prediction rests on."""

    basis: Basis
    #: What it is, and how it is known.
    what: str
    detail: str


class Refusal(msgspec.Struct, frozen=True):
    """A question that this run cannot answer."""

    #: The field of the question.
    question: str
    #: Why, and what to record.
    reason: str
    #: Values of a curve that are refused; none where all are.
    values: tuple[float | str, ...] = ()


class RankBytes(msgspec.Struct, frozen=True, kw_only=True):
    """What each rank holds of the model's states, and sends in a step; bytes."""

    #: On the GPU: by the formulas of ZeRO; and the units that are gathered at a time.
    parameters: float
    gradients: float
    optimizer_states: float
    gathered: float
    #: On the CPU.
    on_cpu: float
    sent: float


class Algorithm(msgspec.Struct, frozen=True, kw_only=True):
    """What is expected to be the quickest AllReduce of messages of some size."""

    #: ring, tree or hierarchical.
    name: str
    #: Of messages of so many bytes and more.
    from_bytes: int


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """How well a job of another number of ranks scales."""

    #: Weak: the step of one rank over that of all. Strong: that of one with all the work, over as many times the step.
    efficiency: float
    #: By ascending size; none of one rank.
    algorithms: tuple[Algorithm, ...]


class Breaks(msgspec.Struct, frozen=True, kw_only=True):
    """Where scaling breaks, in ranks, among powers of two."""

    #: Ranks from which on the efficiency is below this.
    efficiency: float
    inefficient_from: int | None
    #: Ranks from which on communication takes longer than backward's compute, which could hide it.
    exposed_from: int | None
    #: Most ranks that were looked at.
    searched_to: int


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """The step under one question."""

    question: Question
    step_ms: float
    #: From where to where the step is expected to lie.
    low_ms: float
    high_ms: float
    #: `step_ms` less what is now.
    change_ms: float
    rests: tuple[Rests, ...]
    #: What the step goes to by owner, ms, summing to it; empty for the points of a curve.
    owners_ms: dict[str, float] = msgspec.field(default_factory=dict)
    #: What each rank holds and sends; None where nothing is asked of sharding.
    rank_bytes: RankBytes | None = None
    #: None where no number of ranks is asked for.
    scaling: Scaling | None = None


class Bucket(msgspec.Struct, frozen=True, kw_only=True):
    """A bucket of gradients as recorded."""

    bytes: int
    gradients: int
    #: Modules of the first and the last gradient, "" where stacks are not recorded.
    first_module: str
    last_module: str
    #: Whether it ends where a module ends; None where modules are not known.
    ends_with_module: bool | None
    #: The first and the last layer of which it has gradients, from 1 in the order of backward, and whether it ends
    #: where one ends; null where no sizes of gradients repeat, and of gradients that are of no layer.
    first_layer: int | None
    last_layer: int | None
    ends_with_layer: bool | None


class Buckets(msgspec.Struct, frozen=True, kw_only=True):
    """The recorded buckets."""

    #: Values of `bucket_cap_mb` that give them: least and most (None: no limit); None where none does.
    cap_mb: tuple[float, float | None] | None
    gradients: int
    bytes: int
    mean_bytes: float
    dtype: str
    #: Layers, by sizes of gradients that repeat; 0 where none do.
    layers: int
    buckets: tuple[Bucket, ...]


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """Predictions over the values of one field."""

    #: Name of the field of `Question`.
    field: str
    values: tuple[float | str, ...]
    points: tuple[Prediction, ...]
    #: The value with the shortest step, and the range of neighbouring values whose steps are within 1 % of it.
    best: float | str
    flat: tuple[float | str, float | str]
    #: Of a curve over ranks.
    breaks: Breaks | None = None


class MeasuredStep(msgspec.Struct, frozen=True, kw_only=True):
    """A run of the same model with other buckets, as recorded."""

    run: str
    #: Where on the axis of bucket sizes its buckets stand, MiB.
    bucket_mb: float
    step_ms: float


class PlanResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the step of one run would be."""

    run: str
    world_size: int
    ranks: int
    steps: tuple[int, ...]
    #: The step as recorded; all predictions are of a step as recorded, tracing included. And what it goes to by owner.
    now_ms: float
    owners_ms: dict[str, float]
    buckets: Buckets | None
    #: What each rank holds and sends in the record; None where nothing is asked of sharding.
    rank_bytes: RankBytes | None
    prediction: Prediction | None
    curves: tuple[Curve, ...]
    #: With a curve over sizes of buckets: runs of the log directory that send the same gradients without another fault
    #: than their buckets, this one first.
    measured: tuple[MeasuredStep, ...]
    refusals: tuple[Refusal, ...]


class PlanAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What the tab asks for."""

    plan: PlanResult
    #: Fields of the question that the record does not answer; empty where that is not asked.
    unanswerable: tuple[Refusal, ...] = ()


class PlanReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `ddp-doctor plan --json` prints."""

    schema_version: int = SCHEMA_VERSION
    runs: tuple[PlanResult, ...]
