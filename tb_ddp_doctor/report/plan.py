"""A plan in a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from tb_ddp_doctor.planning.model import Buckets, Curve, PlanResult, Prediction, Rests
from tb_ddp_doctor.planning.words import FIELDS, shown
from tb_ddp_doctor.report.escape import printable
from tb_ddp_doctor.report.wrapping import print_code, print_wrapped, without_trailing_spaces


def print_plan(console: Console, found: PlanResult) -> None:
    """Print what the step of a run would be."""
    with without_trailing_spaces(console):
        print_code(console, f"{printable(found.run)}: {found.now_ms:.1f} ms a step now", "bold")
        if found.buckets:
            print_wrapped(console, _recorded(found.buckets))
        if found.prediction:
            print_wrapped(console, _said(found.prediction, found.now_ms), "bold")
        for curve in found.curves:
            console.print()
            console.print(_table(curve, found.now_ms))
            if curve.field == "bucket_mb":
                print_wrapped(console, _best(curve, found.now_ms))
        _print_rests(console, found)
        for refusal in found.refusals:
            name = FIELDS[refusal.question].option if refusal.question in FIELDS else refusal.question
            print_wrapped(console, f"Not predicted ({name}): {printable(refusal.reason)}")
        console.print()


def _recorded(buckets: Buckets) -> str:
    count, caps = len(buckets.buckets), buckets.cap_mb
    sizes = [bucket.bytes / 2**20 for bucket in buckets.buckets]
    explained = ""
    if caps:
        explained = f", as bucket_cap_mb of {caps[0]:.2f} " + ("or more" if caps[1] is None else f"to {caps[1]:.2f}")
    aligned = [one.ends_with_module for one in buckets.buckets if one.ends_with_module is not None]
    layers = f" {sum(aligned)} of {len(aligned)} end where a module ends." if aligned else ""
    each = f"{count} buckets of {min(sizes):.1f} to {max(sizes):.1f} MiB (mean {buckets.mean_bytes / 2**20:.1f})"
    return (
        f"{each if count > 1 else '1 bucket'} for {buckets.gradients} gradients of {buckets.bytes / 2**20:.1f} MiB"
        f"{explained}.{layers}"
    )


def _said(prediction: Prediction, now_ms: float) -> str:
    share = 100 * prediction.change_ms / now_ms if now_ms else 0.0
    less = "less" if share <= 0 else "more"
    return (
        f"{prediction.step_ms:.1f} ms a step instead of {now_ms:.1f} ({abs(share):.0f} % {less}, "
        f"{prediction.low_ms:.1f} to {prediction.high_ms:.1f}): {printable(shown(prediction.question))}."
    )


def _table(curve: Curve, now_ms: float) -> Table:
    table = Table(box=None)
    table.add_column("")
    for heading in ("step, ms", "range", "change, ms", "share"):
        table.add_column(heading, justify="right")
    for value, point in zip(curve.values, curve.points, strict=True):
        text = FIELDS[curve.field].shown.format(f"{value:g}" if isinstance(value, float) else value)
        table.add_row(
            printable(text),
            f"{point.step_ms:.1f}",
            f"{point.low_ms:.1f} to {point.high_ms:.1f}",
            _signed(point.change_ms, 1),
            _signed(100 * point.change_ms / now_ms, 0) + " %" if now_ms else "",
        )
    return table


def _signed(value: float, digits: int) -> str:
    """With its sign, but 0 without one."""
    rounded = round(value, digits)
    return f"{rounded:+.{digits}f}" if rounded else f"{0:.{digits}f}"


def _best(curve: Curve, now_ms: float) -> str:
    best = curve.points[curve.values.index(curve.best)]
    low, high = (f"{one:g}" if isinstance(one, float) else one for one in curve.flat)
    between = f" From {low} to {high} it hardly matters (1 %)." if low != high else ""
    return f"bucket_cap_mb={curve.best:g}: {best.step_ms:.1f} ms a step, now {now_ms:.1f}.{between}"


def _print_rests(console: Console, found: PlanResult) -> None:
    """What all predictions rest on, each once."""
    points = [point for curve in found.curves for point in curve.points]
    rests: dict[Rests, None] = {}
    for point in [*([found.prediction] if found.prediction else []), *points]:
        rests |= dict.fromkeys(point.rests)
    if not rests:
        return
    console.print()
    print_wrapped(console, "What it rests on", "bold")
    for one in rests:
        print_wrapped(console, f"{one.basis}: {one.what}: {printable(one.detail)}")
