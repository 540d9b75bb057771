"""A plan in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
from rich.console import Console
from rich.table import Table

from tb_ddp_doctor import wording
from tb_ddp_doctor.planning import model
from tb_ddp_doctor.planning.questions import FIELDS, shown
from tb_ddp_doctor.report.escape import printable
from tb_ddp_doctor.report.wrapping import print_code, print_wrapped, without_trailing_spaces

#: Layers are told bucket by bucket up to so many.
_FEW_BUCKETS = 16


def print_plan(console: Console, plan: model.PlanResult) -> None:
    """Print what the step of a run would be."""
    with without_trailing_spaces(console):
        print_code(console, f"{printable(plan.run)}: {wording.duration(plan.now_ms)} a step now", "bold")
        if plan.buckets:
            print_wrapped(console, _recorded(plan.buckets))
        if plan.sharded:
            print_wrapped(console, _sharded(plan.sharded))
        if plan.prediction:
            print_wrapped(console, _said(plan.prediction, plan.now_ms), "bold")
            for sentence in _details(plan.prediction, plan.rank_bytes):
                print_wrapped(console, sentence)
        for curve in plan.curves:
            console.print()
            console.print(_table(curve, plan.now_ms))
            if curve.field == "bucket_mb":
                print_wrapped(console, _best(curve, plan.now_ms))
                if len(plan.measured) > 1:
                    print_wrapped(console, f"Measured: {printable(_sweep(plan))}.")
            if curve.breaks:
                print_wrapped(console, _breaking(curve.breaks))
                print_wrapped(console, f"Quickest AllReduce by size: {_algorithms_of(curve)}.")
        _print_rests(console, plan)
        for refusal in plan.refusals:
            name = FIELDS[refusal.question].option if refusal.question in FIELDS else refusal.question
            values = " " + ", ".join(map(_value, refusal.values)) if refusal.values else ""
            print_wrapped(console, f"Not predicted ({name}{printable(values)}): {printable(refusal.reason)}")
        console.print()


def _recorded(buckets: model.Buckets) -> str:
    count, caps = len(buckets.buckets), buckets.cap_mb
    sizes = [bucket.bytes / 2**20 for bucket in buckets.buckets]
    explained = ""
    if caps:
        between = (
            f"{wording.decimals(caps[0], 2)} or more"
            if caps[1] is None
            else f"{wording.decimals(caps[0], 2)} to {wording.decimals(caps[1], 2)}"
        )
        explained = f", which a bucket_cap_mb of {between} makes"
    aligned = [one.ends_with_module for one in buckets.buckets if one.ends_with_module is not None]
    modules = f" Buckets that end with a module: {sum(aligned)} of {len(aligned)}." if aligned else ""
    each = (
        f"{count} buckets of {wording.decimals(min(sizes), 1)} to {wording.decimals(max(sizes), 1)} MiB (mean "
        f"{wording.decimals(buckets.mean_bytes / 2**20, 1)})"
    )
    return (
        f"DDP sends {buckets.gradients} gradients, {wording.decimals(buckets.bytes / 2**20, 1)} MiB, in "
        f"{each if count > 1 else '1 bucket'}{explained}.{modules}{_layers(buckets)}"
    )


def _sharded(record: model.ShardedRecord) -> str:
    """How the record shards its states."""
    copies = f", {record.copies} copies" if record.copies > 1 else ""
    again = f" and {record.ahead_backward} in backward" if record.stage == "zero3" else ""
    return (
        f"FSDP gathers {record.units} units of {wording.size(record.least_bytes)} to {wording.size(record.most_bytes)} "
        f"({record.stage}, {record.shards} ranks{copies}), {record.ahead_forward} ahead in forward{again}. "
        f"Of {wording.decimals(record.gathers, 0)} all-gathers a "
        f"step {wording.decimals(record.late_gathers, 0)} wait for the CPU to launch them, with the GPU idle "
        f"({wording.duration(record.late_ms)})."
    )


def _layers(buckets: model.Buckets) -> str:
    """The layers in the buckets, where sizes of gradients repeat."""
    if not buckets.layers:
        return ""
    ending = sum(one.ends_with_layer is True for one in buckets.buckets)
    said = (
        f" The sizes of gradients repeat as those of {buckets.layers} layers. Buckets that end with a layer: "
        f"{ending} of {len(buckets.buckets)}."
    )
    if len(buckets.buckets) > _FEW_BUCKETS:
        return said
    inside = (
        "none" if one.first_layer is None
        else str(one.first_layer) if one.first_layer == one.last_layer
        else f"{one.first_layer}-{one.last_layer}"
        for one in buckets.buckets
    )  # fmt: skip
    return f"{said} Layers in each bucket, in the order of backward: {', '.join(inside)}."


def _said(prediction: model.Prediction, now_ms: float) -> str:
    share = prediction.change_ms / now_ms if now_ms else 0.0
    less = "less" if share <= 0 else "more"
    return (
        f"{wording.duration(prediction.step_ms)} a step instead of {wording.duration(now_ms)} "
        f"({wording.percent(abs(share))} {less}, "
        f"{wording.interval(prediction.low_ms, prediction.high_ms)}): {printable(shown(prediction.question))}."
    )


def _details(prediction: model.Prediction, now: model.RankBytes | None) -> Iterator[str]:
    """What is predicted besides the step."""
    if prediction.rank_bytes and now:
        yield f"Each rank: {_stored(prediction.rank_bytes)}; now {_stored(now)}."
    if prediction.scaling:
        yield f"Efficiency {wording.percent(prediction.scaling.efficiency)}."
        if prediction.scaling.algorithms:
            yield f"Quickest AllReduce: {_algorithms(prediction.scaling)}."


def _stored(each: model.RankBytes) -> str:
    cpu = f", {wording.size(each.on_cpu)} on the CPU" if each.on_cpu else ""
    gathered = f" and {wording.size(each.gathered)} gathered" if each.gathered else ""
    return (
        f"{wording.size(each.parameters)} of parameters{gathered}, {wording.size(each.gradients)} of gradients, "
        f"{wording.size(each.optimizer_states)} of optimizer's states{cpu}; sends {wording.size(each.sent)} a step"
    )


def _algorithms(scaling: model.Scaling) -> str:
    return ", ".join(
        f"{one.name} from {wording.size(one.from_bytes)}" if one.from_bytes else one.name for one in scaling.algorithms
    )


def _algorithms_of(curve: model.PlanCurve) -> str:
    pairs = zip(curve.values, curve.points, strict=True)
    measured = [(value, point.scaling) for value, point in pairs if point.scaling and point.scaling.algorithms]
    return "; ".join(f"{_value(value)} ranks: {_algorithms(scaling)}" for value, scaling in measured) or "not known"


def _breaking(breaks: model.Breaks) -> str:
    share, most = wording.percent(breaks.efficiency), f"up to {breaks.searched_to}"
    efficiency = (
        f"Efficiency is below {share} from {breaks.inefficient_from} ranks on"
        if breaks.inefficient_from
        else f"Efficiency stays above {share} ({most} ranks)"
    )
    hidden = (
        f"communication takes longer than the backward pass, which could hide it, from {breaks.exposed_from} ranks on"
        if breaks.exposed_from
        else f"the backward pass is longer than communication ({most} ranks)"
    )
    return f"{efficiency}; {hidden}."


def _table(curve: model.PlanCurve, now_ms: float) -> Table:
    table = Table(box=None)
    table.add_column("")
    more = [column for column in _COLUMNS if any(column.of(point) for point in curve.points)]
    for heading in ("step, ms", "range", "change, ms", "share", *(column.heading for column in more)):
        table.add_column(heading, justify="right")
    for value, point in zip(curve.values, curve.points, strict=True):
        table.add_row(
            printable(FIELDS[curve.field].shown.format(_value(value))),
            wording.decimals(point.step_ms, 1),
            wording.interval(point.low_ms, point.high_ms),
            _signed(point.change_ms, 1),
            _signed(100 * point.change_ms / now_ms, 0) + " %" if now_ms else "",
            *(column.of(point) for column in more),
        )
    return table


def _value(value: float | str) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


class _Column(msgspec.Struct, frozen=True):
    """A column that tables have where some point has it."""

    heading: str
    of: Callable[[model.Prediction], str]


_COLUMNS = (
    _Column("on a rank", lambda one: wording.size(_on_gpu(one.rank_bytes)) if one.rank_bytes else ""),
    _Column("sent", lambda one: wording.size(one.rank_bytes.sent) if one.rank_bytes else ""),
    _Column("efficiency", lambda one: wording.percent(one.scaling.efficiency) if one.scaling else ""),
)


def _on_gpu(each: model.RankBytes) -> float:
    return each.parameters + each.gathered + each.gradients + each.optimizer_states


def _signed(value: float, digits: int) -> str:
    """With its sign, but 0 without one."""
    rounded = round(value, digits)
    return wording.decimals(rounded, digits, "+") if rounded else wording.decimals(0, digits)


def _best(curve: model.PlanCurve, now_ms: float) -> str:
    best = curve.points[curve.values.index(curve.best)]
    low, high = (f"{one:g}" if isinstance(one, float) else one for one in curve.flat)
    between = f" From {low} to {high} it hardly matters (1 %)." if low != high else ""
    step, now = wording.duration(best.step_ms), wording.duration(now_ms)
    return f"bucket_cap_mb={curve.best:g}: {step} a step, now {now}.{between}"


def _sweep(plan: model.PlanResult) -> str:
    return "; ".join(f"{one.run} {wording.duration(one.step_ms)} at {one.bucket_mb:.2g} MiB" for one in plan.measured)


def _print_rests(console: Console, plan: model.PlanResult) -> None:
    """What all predictions rest on, each once."""
    points = [point for curve in plan.curves for point in curve.points]
    rests: dict[model.Rests, None] = {}
    for point in [*([plan.prediction] if plan.prediction else []), *points]:
        rests |= dict.fromkeys(point.rests)
    if not rests:
        return
    console.print()
    print_wrapped(console, "What it rests on", "bold")
    for one in rests:
        print_wrapped(console, f"{one.basis}: {one.what}: {printable(one.detail)}")
