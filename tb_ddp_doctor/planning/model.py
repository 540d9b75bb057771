"""The questions that a plan is asked, and its answers: frozen data with one JSON form.

Times are ms a step. Sizes of buckets are MiB, as those of `bucket_cap_mb`; other sizes are bytes.
"""

from __future__ import annotations

from typing import Literal

import msgspec

#: Raised when a field changes its meaning or is removed.
SCHEMA_VERSION = 1
#: How states can be sharded.
SHARDINGS = ("ddp", "zero1", "zero2", "zero3", "hsdp")
Basis = Literal["measured", "fitted", "assumed"]


class Question(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What to change in a job; a field that is not set stays as recorded."""

    #: `bucket_cap_mb` of DistributedDataParallel.
    bucket_mb: float | None = None
    #: Ranks of the job, each with as much work as now.
    ranks: int | None = None
    #: Ranks along each dimension, as "dp=16,tp=4,pp=4"; those that are not named stay as recorded.
    mesh: str | None = None
    #: With `ranks` or `mesh`: all ranks together have as much work as now (strong scaling).
    strong: bool = False
    #: How many times as fast each transfer is.
    links: float | None = None
    #: Name of a calibration whose links the job has.
    links_of: str | None = None
    #: What gradients are sent as: float32, float16, bfloat16, float8.
    dtype: str | None = None
    #: How states are sharded: ddp, zero1, zero2, zero3 or hsdp.
    sharding: str | None = None
    #: How many units ahead the parameters are gathered.
    prefetch: int | None = None
    #: Whether the CPU issues each all-gather of FSDP as soon as it has issued the collective before it.
    gathers_in_time: bool = False
    #: Whether shards are stored and updated on the CPU.
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
    """An input of a prediction, and how it is known."""

    basis: Basis
    #: The input, such as "Time of all_reduce over bytes".
    what: str
    #: How it is known, such as the fit with its error.
    detail: str


class Refusal(msgspec.Struct, frozen=True):
    """A question that this run cannot answer."""

    #: The field of the question.
    question: str
    #: Why, and what to record to get an answer.
    reason: str
    #: The values of a curve that are refused; empty if all are.
    values: tuple[float | str, ...] = ()


class RankBytes(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the model's states each rank stores, and how much it sends in a step; bytes."""

    #: Parameters on the GPU, by the formulas of ZeRO.
    parameters: float
    #: Gradients on the GPU, by these formulas.
    gradients: float
    #: The optimizer's states on the GPU, by these formulas.
    optimizer_states: float
    #: The units that are gathered at a time, on the GPU.
    gathered: float
    #: All that is stored on the CPU.
    on_cpu: float
    #: What the rank sends in a step.
    sent: float


class Algorithm(msgspec.Struct, frozen=True, kw_only=True):
    """The AllReduce algorithm that is expected to be the quickest from some message size on."""

    #: ring, tree or hierarchical.
    name: str
    #: The least message size for which it is, bytes.
    from_bytes: int


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """How well a job of another number of ranks scales."""

    #: Weak scaling: the step of one rank divided by the step of all ranks. Strong scaling: the step of one rank with
    #: all the work, divided by the number of ranks times their step.
    efficiency: float
    #: By ascending message size; empty for one rank.
    algorithms: tuple[Algorithm, ...]


class Breaks(msgspec.Struct, frozen=True, kw_only=True):
    """From how many ranks on a job scales badly; only powers of two are tried."""

    #: Scaling breaks if the efficiency is below this.
    efficiency: float
    #: The least number of ranks for which it is; None if there is none.
    inefficient_from: int | None
    #: The least number of ranks for which communication takes longer than backward's compute, which could hide it.
    exposed_from: int | None
    #: The largest number of ranks that was tried.
    searched_to: int


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """The predicted step for one question."""

    question: Question
    step_ms: float
    #: The least that the step is expected to take.
    low_ms: float
    #: The most that it is expected to take.
    high_ms: float
    #: `step_ms` minus the recorded step.
    change_ms: float
    #: The inputs of the prediction.
    rests: tuple[Rests, ...]
    #: The step by owner, ms, which sum to it; empty for the points of a curve.
    owners_ms: dict[str, float] = msgspec.field(default_factory=dict)
    #: What each rank stores and sends; None if the question is not about sharding.
    rank_bytes: RankBytes | None = None
    #: None if the question is not about ranks.
    scaling: Scaling | None = None


class Bucket(msgspec.Struct, frozen=True, kw_only=True):
    """A bucket of gradients as recorded."""

    bytes: int
    gradients: int
    #: Module of the first gradient, "" if stacks are not recorded.
    first_module: str
    #: Module of the last gradient, "" likewise.
    last_module: str
    #: Whether it ends where a module ends; None if modules are not known.
    ends_with_module: bool | None
    #: The first layer of which it has gradients, counted from 1 in the order of backward; None if sizes of gradients do
    #: not repeat, or its gradients are of no layer.
    first_layer: int | None
    #: The last layer of which it has gradients, likewise.
    last_layer: int | None
    #: Whether it ends where a layer ends, likewise.
    ends_with_layer: bool | None


class Buckets(msgspec.Struct, frozen=True, kw_only=True):
    """The recorded buckets."""

    #: The least and the largest `bucket_cap_mb` that give these buckets (None: no limit); None if no value does.
    cap_mb: tuple[float, float | None] | None
    gradients: int
    bytes: int
    mean_bytes: float
    dtype: str
    #: Number of layers, found by the repeating sizes of gradients; 0 if these do not repeat.
    layers: int
    buckets: tuple[Bucket, ...]


class ShardedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How the record shards its parameters, gradients and optimizer states (FSDP)."""

    #: zero2: parameters stay gathered after forward (`reshard_after_forward=False`, SHARD_GRAD_OP); zero3: backward
    #: gathers them again (FULL_SHARD).
    stage: str
    #: Ranks that store one copy of the states, and copies that the job has (more than one with HSDP).
    shards: int
    copies: int
    #: Units that are gathered, and the parameters of the smallest, the median and the largest one, bytes.
    units: int
    least_bytes: int
    median_bytes: float
    most_bytes: int
    #: How many units ahead the parameters are gathered.
    ahead_forward: int
    ahead_backward: int
    #: All-gathers of a step and rank.
    gathers: float
    #: Those of them that start as soon as the CPU has launched them, with the device idle: they wait for the CPU.
    late_gathers: float
    #: How long these have no kernel beside them, ms a step.
    late_ms: float


class PlanCurve(msgspec.Struct, frozen=True, kw_only=True):
    """Predictions over the values of one field."""

    #: Name of the field of `Question`.
    field: str
    values: tuple[float | str, ...]
    points: tuple[Prediction, ...]
    #: The value with the shortest step.
    best: float | str
    #: The first and the last of the values around it whose steps are within 1 % of that step.
    flat: tuple[float | str, float | str]
    #: Where scaling breaks, for a curve over ranks.
    breaks: Breaks | None = None


class MeasuredStep(msgspec.Struct, frozen=True, kw_only=True):
    """A run of the same model with other buckets, as recorded."""

    run: str
    #: The place of its buckets on the axis of bucket sizes, MiB.
    bucket_mb: float
    step_ms: float


class PlanResult(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a question for one run."""

    run: str
    world_size: int
    ranks: int
    steps: tuple[int, ...]
    #: The step as recorded. Predictions are of such a step too: they include what tracing adds.
    now_ms: float
    #: The recorded step by owner, ms.
    owners_ms: dict[str, float]
    buckets: Buckets | None
    #: How the record shards its states; None where it does not, or where its collectives do not show it.
    sharded: ShardedRecord | None
    #: What each rank stores and sends in the record; None if the question is not about sharding.
    rank_bytes: RankBytes | None
    prediction: Prediction | None
    curves: tuple[PlanCurve, ...]
    #: With a curve over bucket sizes: the runs of the log directory that send the same gradients and have no fault but
    #: their buckets, this run first.
    measured: tuple[MeasuredStep, ...]
    refusals: tuple[Refusal, ...]


class PlanAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer that the tab asks for."""

    plan: PlanResult
    #: Fields of questions that the record cannot answer; empty if the tab did not ask for them.
    unanswerable: tuple[Refusal, ...] = ()


class PlanReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `ddp-doctor plan --json` prints."""

    schema_version: int = SCHEMA_VERSION
    runs: tuple[PlanResult, ...]
