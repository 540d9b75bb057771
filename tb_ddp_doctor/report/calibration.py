"""A calibration in the terminal, and as a page of its own.

The page holds no script and loads nothing. Its pictures are SVG: time against size, both logarithmic, a point a
measured size and a dashed line the fit; and the matrix of pairs, rank against rank, bandwidth by shade.
"""

from __future__ import annotations

import html
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import cycle

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tb_ddp_doctor import wording
from tb_ddp_doctor.calibration.model import Calibration, Curve, Measure, Pair, bus_factor
from tb_ddp_doctor.report.escape import printable

_NONE = "-"
#: Of more ranks, only outliers have a row of their own.
_MOST_ROWS = 32
#: Of more ranks, the matrix has a row for each node.
_MOST_CELLS = 64
_COLOURS = ("#2a78d6", "#eb6834", "#1baf7a", "#eda100", "#4a3aa7", "#e34948")
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 760, 380, 76, 46, 14


def printed(console: Console, calibration: Calibration) -> None:
    """Print the outliers first, then all measures."""
    for sentence in sentences(calibration):
        console.print(Text(printable(sentence)), soft_wrap=True)
    if calibration.measures:
        console.print(_table(["", *(f"{one.name} ({one.unit})" for one in calibration.measures)], _rows(calibration)))
    if calibration.curves:
        head = ["collective", "ranks", "alpha", "busbw (fit)", "R²", "error: mean, max", "busbw at"]
        console.print(_table(head, (_fitted(one) for one in calibration.curves)))
    if calibration.pairs:
        console.print(_table(["pairs", "", "µs", "GB/s"], _pair_rows(calibration)))


def sentences(calibration: Calibration) -> Iterator[str]:
    """What is to be known first: how many ranks answered, who did not, and the outliers."""
    nodes = len(set(calibration.nodes) - {""})
    where = f" on {nodes} node{'s' if nodes > 1 else ''}" if nodes else ""
    silent = len(calibration.no_answer)
    ranks = f"{calibration.world_size} rank{'s' if calibration.world_size > 1 else ''}"
    what = f"{ranks}{where}, {calibration.device or 'unknown device'}"
    yield f"{what}{f', {calibration.backend}' if calibration.backend else ''}."
    if silent:
        names = ", ".join(_named(calibration, one.rank) for one in calibration.no_answer[:16])
        more = f" and {silent - 16} more" if silent > 16 else ""
        yield f"No answer in {calibration.no_answer[0].phase!r} from {names}{more}. What follows was measured before."
    for outlier in calibration.outliers:
        yield f"Outlier: {outlier.sentence}"
    if calibration.world_size == 1:
        yield "One rank has nobody to be compared with: start the check as the job, by torchrun, srun or mpirun."
    elif not calibration.outliers and not silent:
        yield "No outliers: no rank and no pair is worse than the others by more than they differ anyway."
    yield from calibration.notes


def _named(calibration: Calibration, rank: int) -> str:
    return f"rank {rank} on {calibration.nodes[rank]}" if any(calibration.nodes[rank : rank + 1]) else f"rank {rank}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for i, name in enumerate(head):
        table.add_column(Text(printable(name)), justify="left" if i == 0 else "right", no_wrap=i == 0)
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table


def _rows(calibration: Calibration) -> Iterator[list[str]]:
    odd = {rank for outlier in calibration.outliers for rank in outlier.ranks}
    if calibration.world_size > _MOST_ROWS:
        yield ["median", *(_number(_middle(one)) for one in calibration.measures)]
    for rank in range(calibration.world_size):
        if calibration.world_size <= _MOST_ROWS or rank in odd:
            yield [_named(calibration, rank), *(_measured(one, rank) for one in calibration.measures)]


def _middle(measure: Measure) -> float | None:
    known = sorted(value for value in measure.values if value is not None)
    return known[len(known) // 2] if known else None


def _measured(measure: Measure, rank: int) -> str:
    value, spread = measure.values[rank], measure.spreads[rank]
    return _number(value) + (f" ±{wording.decimals(100 * spread, 0)} %" if spread is not None else "")


def _number(value: float | None) -> str:
    return _NONE if value is None else f"{value:.3g}" if abs(value) < 1000 else wording.whole(value)


def _time(us: float) -> str:
    return f"{us / 1e6:.3g} s" if us >= 1e6 else f"{us / 1e3:.3g} ms" if us >= 1e3 else f"{us:.3g} µs"


def _fitted(one: Curve) -> list[str]:
    last = one.points[-1]
    busbw = last.bytes / last.time_us / 1e3 * bus_factor(one.kind, one.size)
    measured = f"{wording.binary_size(last.bytes)}: {busbw:.3g} GB/s"
    name = f"{one.kind} ({one.scope})"
    if one.fit is None:
        return [name, str(one.size), _NONE, _NONE, _NONE, _NONE, measured]
    fit = one.fit
    errors = f"{wording.decimals(100 * fit.mean_error, 0)} %, {wording.decimals(100 * fit.max_error, 0)} %"
    busbw_fit = f"{fit.busbw_gbs:.3g} GB/s" if fit.busbw_gbs else _NONE
    return [name, str(one.size), _time(fit.alpha_us), busbw_fit, wording.decimals(fit.r2, 2), errors, measured]


def _pair_rows(calibration: Calibration) -> Iterator[list[str]]:
    for within in (True, False):
        chosen = [pair for pair in calibration.pairs if pair.within_node is within]
        if chosen:
            for name, pick in (("slowest", min), ("fastest", max)):
                pair: Pair = pick(chosen, key=lambda one: one.gbs)
                place = "within a node" if within else "between nodes"
                who = f"{pair.ranks[0]} and {pair.ranks[1]}"
                yield [f"{name} of {len(chosen)} {place}", who, _number(pair.latency_us), _number(pair.gbs)]


# ------------------------------------------------------------------------------------------------ the page


def page(calibration: Calibration) -> str:
    """The whole page, as one file."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width">\n<title>Calibration</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<h1>Calibration</h1>{section(calibration)}\n</body>\n</html>\n"
    )


def section(calibration: Calibration) -> str:
    """What the page shows below its heading, without a style of its own."""
    lines, *said = [*sentences(calibration)]
    odd = {(rank, outlier.measure) for outlier in calibration.outliers for rank in outlier.ranks}
    parts = [f"<p>{_escaped(lines)}</p>", *(f"<p>{_escaped(one)}</p>" for one in said)]
    if calibration.curves:
        parts += [
            "<h2>Time against size</h2>",
            _log_log(calibration.curves),
            _html_table(
                [
                    "collective",
                    "ranks",
                    "alpha",
                    "busbw (fit)",
                    "R²",
                    "error of the fit: mean, max",
                    "largest measured",
                ],
                ([*row] for row in map(_fitted, calibration.curves)),
            ),
        ]
    if calibration.pairs:
        parts += ["<h2>Pairs: bandwidth one way, GB/s</h2>", _matrix(calibration)]
    if calibration.measures:
        head = ["rank", *(f"{one.name} ({one.unit})" for one in calibration.measures)]
        rows = (
            [_named(calibration, rank), *(_measured(one, rank) for one in calibration.measures)]
            for rank in range(calibration.world_size)
        )
        names = ["", *(one.name for one in calibration.measures)]
        parts += ["<h2>Ranks</h2>", _html_table(head, rows, lambda row, column: (row, names[column]) in odd)]
    return "\n".join(parts)


_STYLE = """
:root { color-scheme: light dark; --ink: #1d2126; --soft: #67707a; --line: #d8dce1; --paper: #fff; --bad: #b3261e }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --soft: #9aa3ad; --line: #3a4048; --paper: #16191d; --bad: #ff8a80 }
}
body { font: 14px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper) }
body { margin: 24px; max-width: 1200px }
h1 { font-size: 22px } h2 { font-size: 16px; margin-top: 32px } p { margin: 4px 0 }
svg { max-width: 100%; height: auto } svg text { fill: var(--soft); font-size: 12px } svg .axis { stroke: var(--line) }
svg .on-dark { fill: #fff } svg .on-light { fill: var(--ink) }
.scroll { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { text-align: right; padding: 3px 12px; border-bottom: 1px solid var(--line); white-space: nowrap }
th:first-child, td:first-child { text-align: left } td.odd { color: var(--bad); font-weight: 600 }
"""


def _escaped(text: str) -> str:
    return html.escape(printable(text))


def _html_table(
    head: Sequence[str], rows: Iterable[Sequence[str]], is_odd: Callable[[int, int], bool] = lambda _row, _column: False
) -> str:
    top = "".join(f"<th>{_escaped(name)}</th>" for name in head)
    body = "".join(
        "<tr>"
        + "".join(f"<td{' class=odd' if is_odd(i, j) else ''}>{_escaped(cell)}</td>" for j, cell in enumerate(row))
        + "</tr>"
        for i, row in enumerate(rows)
    )
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _log_log(curves: Sequence[Curve]) -> str:
    """Time against size of each curve, with its fit."""
    sizes = [point.bytes for one in curves for point in one.points]
    times = [time for one in curves for point in one.points for time in (point.low_us, point.high_us)]
    low_x, high_x = math.log(min(sizes)), math.log(max(*sizes, min(sizes) * 2))
    low_y = math.log(10) * math.floor(math.log10(max(min(times), 1e-3)))
    high_y = math.log(10) * math.ceil(math.log10(max(*times, math.exp(low_y) * 2)))

    def x(size: float) -> float:
        return _LEFT + (math.log(size) - low_x) / (high_x - low_x) * (_WIDTH - _LEFT - 170)

    def y(us: float) -> float:
        share = (math.log(max(us, 1e-3)) - low_y) / (high_y - low_y)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _BOTTOM - _TOP)

    exponents = range(round(low_y / math.log(10)), round(high_y / math.log(10)) + 1)
    shown_sizes = sorted(set(sizes))[:: max(len(set(sizes)) // 8, 1)]
    drawn = [*_axes({y(10**one): 10**one for one in exponents}, {x(size): size for size in shown_sizes})]
    for i, (one, colour) in enumerate(zip(curves, cycle(_COLOURS), strict=False)):
        points = [(x(point.bytes), y(point.time_us), point) for point in one.points]
        if one.fit:
            beta = 1e-3 / one.fit.algbw_gbs if one.fit.algbw_gbs else 0.0
            steps = [math.exp(low_x + (high_x - low_x) * k / 60) for k in range(61)]
            steps = [size for size in steps if size <= one.points[-1].bytes * 1.01]
            path = " ".join(f"{x(size):.1f},{y(one.fit.alpha_us + beta * size):.1f}" for size in steps)
            drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-dasharray="4 4"/>')
        for at_x, at_y, point in points:
            low, high = y(point.low_us), y(point.high_us)
            drawn.append(f'<line x1="{at_x:.1f}" x2="{at_x:.1f}" y1="{low:.1f}" y2="{high:.1f}" stroke="{colour}"/>')
            title = _escaped(f"{one.kind} ({one.scope}), {wording.binary_size(point.bytes)}: {_time(point.time_us)}")
            drawn.append(
                f'<circle cx="{at_x:.1f}" cy="{at_y:.1f}" r="3.5" fill="{colour}"><title>{title}</title></circle>'
            )
        name = _escaped(f"{one.kind} ({one.scope})")
        drawn.append(f'<circle cx="{_WIDTH - 152}" cy="{_TOP + 8 + 20 * i}" r="4" fill="{colour}"/>')
        drawn.append(f'<text x="{_WIDTH - 142}" y="{_TOP + 12 + 20 * i}">{name}</text>')
    label = "Time of a collective against its size"
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" role="img" aria-label="{label}">{"".join(drawn)}</svg>'
    )


def _axes(times: Mapping[float, float], sizes: Mapping[float, int]) -> Iterator[str]:
    """Lines of the axes at some times (µs) and sizes (bytes), by their places in the drawing."""
    for at, time in times.items():
        yield f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - 170}" y1="{at:.1f}" y2="{at:.1f}"/>'
        yield f'<text x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{_time(time)}</text>'
    for at, size in sizes.items():
        yield f'<line class="axis" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>'
        yield f'<text x="{at:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{wording.binary_size(size)}</text>'


def _matrix(calibration: Calibration) -> str:
    """Rank against rank; of many ranks node against node, each the slowest of its pairs."""
    by_node = calibration.world_size > _MOST_CELLS
    names = [*dict.fromkeys(calibration.nodes)] if by_node else [str(rank) for rank in range(calibration.world_size)]
    cells: defaultdict[tuple[int, int], float] = defaultdict(lambda: math.inf)
    for pair in calibration.pairs:
        a, b = (names.index(calibration.nodes[rank]) if by_node else rank for rank in pair.ranks)
        cells[a, b] = cells[b, a] = min(cells[a, b], pair.gbs)
    most = max(cells.values())
    side = max(min(720 // max(len(names), 1), 44), 9)
    left, top = (160, 20) if by_node else (36, 20)
    drawn = []
    for i, name in enumerate(names):
        if side >= 14 or i % 8 == 0:
            at = top + side * i + side / 2 + 4
            drawn.append(f'<text x="{left - 6}" y="{at:.0f}" text-anchor="end">{_escaped(name[:24])}</text>')
            if not by_node:
                drawn.append(f'<text x="{left + side * i + side / 2:.0f}" y="14" text-anchor="middle">{name}</text>')
    for (a, b), gbs in cells.items():
        if math.isfinite(gbs):
            title = _escaped(f"{names[a]} and {names[b]}: {gbs:.3g} GB/s")
            share = gbs / most if most > 0 else 0.0
            drawn.append(
                f'<rect x="{left + side * b}" y="{top + side * a}" width="{side - 1}" height="{side - 1}" '
                f'fill="#2a78d6" fill-opacity="{0.12 + 0.88 * share:.2f}"><title>{title}</title></rect>'
            )
            if side >= 36:
                ink = "on-dark" if share > 0.5 else "on-light"
                drawn.append(
                    f'<text x="{left + side * b + side / 2:.0f}" y="{top + side * a + side / 2 + 4:.0f}" '
                    f'text-anchor="middle" class="{ink}">{gbs:.2g}</text>'
                )
    width, height = left + side * len(names) + 4, top + side * len(names) + 4
    label = "Bandwidth of pairs"
    return f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img" aria-label="{label}">{"".join(drawn)}</svg>'
