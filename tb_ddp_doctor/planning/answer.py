"""Answers a user's question about one run: a prediction with all changes together, and curves over some fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.planning.buckets import explaining_caps
from tb_ddp_doctor.planning.gradients import SentGradients
from tb_ddp_doctor.planning.layers import repeated_layers
from tb_ddp_doctor.planning.model import (
    SHARDINGS,
    Bucket,
    Buckets,
    PlanCurve,
    PlanResult,
    Prediction,
    Question,
    RankBytes,
    Refusal,
    ShardedRecord,
)
from tb_ddp_doctor.planning.owners import recorded_ms
from tb_ddp_doctor.planning.predict import Planner
from tb_ddp_doctor.planning.refusal import CannotPlanError
from tb_ddp_doctor.planning.sweep import measured
from tb_ddp_doctor.trace.model import Ints

#: The values of a curve if the user names none: bucket sizes in MiB here, other fields below.
BUCKET_MB = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0)
LINKS = (0.5, 2.0, 4.0, 8.0)
#: Values of the curves that can be drawn over a field.
CURVES: Mapping[str, tuple[object, ...]] = {
    "bucket_mb": BUCKET_MB,
    "links": (0.5, 1.0, 2.0, 4.0, 8.0),
    "ranks": tuple(1 << power for power in range(11)),
    "sharding": SHARDINGS,
    "prefetch": (0, 1, 2, 3),
    "accumulate": (1, 2, 4, 8),
    "workers": (1, 2, 4, 8, 16),
}
#: For each field, a value to try: whether it is refused shows whether the record can answer questions on the field.
_TRIED: Mapping[str, object] = {
    "bucket_mb": 10.0,
    "dtype": "bfloat16",
    "ranks": 2,
    "sharding": "zero3",
    "gathers_in_time": True,
    "accumulate": 2,
    "workers": 4,
    "device": "H100",
}
#: The curves that are shown if the user asks nothing.
OVERVIEW: Mapping[str, tuple[object, ...]] = {
    "bucket_mb": BUCKET_MB,
    "links": LINKS,
    "dtype": ("bfloat16",),
    "sharding": ("ddp", "zero1", "zero2", "zero3"),
    "accumulate": (2, 4, 8),
}
#: Steps that are longer than the best by at most this share are as good.
_AS_GOOD = 0.01


def answer(
    job: Job,
    made: Callable[[], Planner],
    question: Question,
    curves: Mapping[str, Sequence[object]],
    others: Mapping[str, Job] | None = None,
) -> PlanResult:
    """The answer to a question, with curves over some of its fields; what cannot be answered becomes a refusal.

    `made` creates the job's planner, or raises CannotPlanError. `others` are further jobs, by name, which may be the
    same one with other buckets.
    """
    refusals: dict[str, Refusal] = {}
    drawn: list[PlanCurve] = []
    prediction: Prediction | None = None
    buckets: Buckets | None = None
    sharded: ShardedRecord | None = None
    now_bytes: RankBytes | None = None
    try:
        planner = made()
    except CannotPlanError as error:
        refusals["all"] = Refusal("all", str(error))
    else:
        if question != Question(strong=question.strong):
            try:
                prediction = planner.predict(question)
                split = planner.owners_ms(question, prediction.step_ms)
                prediction = msgspec.structs.replace(prediction, owners_ms=split)
            except CannotPlanError as error:
                refusals["prediction"] = Refusal(_asked(question), str(error))
        for name, values in curves.items():
            points, refused = _points(planner, question, name, values)
            for reason, those in refused.items():
                refusals[f"{name}: {reason}"] = Refusal(name, reason, tuple(those) if points else ())
            if points:
                drawn.append(_curve(planner, question, name, points))
        try:
            buckets = recorded_buckets(planner.record.gradients)
        except CannotPlanError as error:
            if not any(one.question == "bucket_mb" for one in refusals.values()):
                refusals["bucket_mb"] = Refusal("bucket_mb", str(error))
        sharded = planner.sharded
        predictions = [*([prediction] if prediction else []), *(point for curve in drawn for point in curve.points)]
        resharding = next((one.question for one in predictions if one.rank_bytes), None)
        now_bytes = planner.resharding(resharding).rank_bytes()[0] if resharding else None
    return PlanResult(
        run=job.name,
        world_size=job.world_size,
        ranks=len(job.ranks),
        steps=tuple(job.steps.tolist()),
        now_ms=job.step_ns / 1e6,
        owners_ms=recorded_ms(job),
        buckets=buckets,
        sharded=sharded,
        rank_bytes=now_bytes,
        prediction=prediction,
        curves=tuple(drawn),
        measured=measured(job, others or {}) if any(curve.field == "bucket_mb" for curve in drawn) else (),
        refusals=tuple(refusals.values()),
    )


def unanswerable(made: Callable[[], Planner]) -> tuple[Refusal, ...]:
    """The fields of questions that a record cannot answer; `made` is the same as for `answer`."""
    refusals: list[Refusal] = []
    for name, value in _TRIED.items():
        try:
            made().likely_ns(msgspec.structs.replace(Question(), **{name: value}))
        except CannotPlanError as error:
            refusals.append(Refusal(name, str(error)))
    return tuple(refusals)


def recorded_buckets(gradients: SentGradients) -> Buckets | None:
    """The recorded buckets of a pass; None if they are in another order than the gradients."""
    if gradients.recorded is None:
        return None
    lasts, size = gradients.recorded, gradients.bytes
    caps = explaining_caps(size, lasts)
    firsts = np.append(0, lasts[:-1] + 1)
    total, layers = int(size.sum()), repeated_layers(gradients.elements)
    return Buckets(
        cap_mb=(caps[0], caps[1] if np.isfinite(caps[1]) else None) if caps else None,
        gradients=len(size),
        bytes=total,
        mean_bytes=total / len(lasts),
        dtype=gradients.dtype,
        layers=max(len(layers) - 1, 0),
        buckets=tuple(
            Bucket(
                bytes=int(size[first : last + 1].sum()),
                gradients=last + 1 - first,
                first_module=gradients.modules[first],
                last_module=gradients.modules[last],
                ends_with_module=_ends_with_module(gradients.modules, last),
                **_layers_in(layers, first, last, len(size)),
            )
            for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True)
        ),
    )


def _layers_in(layers: Ints, first: int, last: int, gradients: int) -> dict[str, Any]:
    """The fields of `Bucket` on layers, for a bucket of the gradients `first` to `last`.

    `layers` is the result of `repeated_layers`.
    """
    ends_with = bool(np.isin(last, layers)) or last == gradients - 1 if len(layers) else None
    inside = [i for i in range(1, len(layers)) if layers[i - 1] < last and first <= layers[i]]
    return {
        "first_layer": inside[0] if inside else None,
        "last_layer": inside[-1] if inside else None,
        "ends_with_layer": ends_with,
    }


def _ends_with_module(modules: Sequence[str], last: int) -> bool | None:
    if not modules[last]:
        return None
    return last + 1 >= len(modules) or modules[last + 1] != modules[last]


def _points(
    planner: Planner, question: Question, name: str, values: Sequence[object]
) -> tuple[dict[float | str, Prediction], dict[str, list[float | str]]]:
    """The predictions of a curve by value, and the refused values by reason."""
    points: dict[float | str, Prediction] = {}
    refused: dict[str, list[float | str]] = {}
    for value in values:
        shown = value if isinstance(value, (int, float)) else str(value)
        try:
            points[shown] = planner.predict(msgspec.structs.replace(question, **{name: value}))
        except CannotPlanError as error:
            refused.setdefault(str(error), []).append(shown)
    return points, refused


def _curve(planner: Planner, question: Question, name: str, points: Mapping[float | str, Prediction]) -> PlanCurve:
    values, steps = tuple(points), [point.step_ms for point in points.values()]
    best = int(np.argmin(steps))
    low = high = best
    while low > 0 and steps[low - 1] <= (1 + _AS_GOOD) * steps[best]:
        low -= 1
    while high + 1 < len(steps) and steps[high + 1] <= (1 + _AS_GOOD) * steps[best]:
        high += 1
    return PlanCurve(
        field=name,
        values=values,
        points=tuple(points.values()),
        best=values[best],
        flat=(values[low], values[high]),
        breaks=planner.breaks(question) if name == "ranks" else None,
    )


def _asked(question: Question) -> str:
    """The names of the fields that a question sets, with commas."""
    return ", ".join(msgspec.to_builtins(question))
