"""What each rank found, and all of it as one calibration. Nothing here needs torch."""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.calibration.model import (
    Calibration,
    Curve,
    Measure,
    NoAnswer,
    Outlier,
    Pair,
    Point,
    curve,
)
from tb_ddp_doctor.check import outliers

Floats = NDArray[np.float64]


class Host(msgspec.Struct, frozen=True):
    """Where a rank runs."""

    name: str
    #: What tells nodes of one host name apart, such as torchrun's GROUP_RANK.
    place: str
    device: str
    is_gpu: bool
    #: The CPUs that it may run on, as "0-3,8"; "" where the system does not tell.
    cpus: str = ""
    #: Cores' worth of time that its control groups allow; None without a limit.
    quota: float | None = None
    #: Threads that an operator on the CPU takes.
    threads: int = 1


class RankCurve(msgspec.Struct):
    """One kind of collective in one group, as one rank saw it: seconds of each repeat by bytes."""

    kind: str
    scope: str
    ranks: list[int]
    times_s: dict[int, list[float]]


class RankResults(msgspec.Struct):
    """What one rank found until now."""

    host: Host
    #: Repeats of each measure, by name; with its unit, and whether more is better.
    repeats: dict[str, list[float | None]] = {}
    about: dict[str, tuple[str, bool | None]] = {}
    throttled: list[str] = []
    curves: list[RankCurve] = []
    #: Pairs whose lower rank this is.
    pairs: list[Pair] = []
    notes: list[str] = []


def node_names(hosts: Sequence[Host]) -> list[str]:
    """Of each rank, its node: the host's name, with its place where several nodes share that name."""
    places: defaultdict[str, set[str]] = defaultdict(set)
    for host in hosts:
        places[host.name].add(host.place)
    return [host.name if len(places[host.name]) == 1 else f"{host.name}/{host.place}" for host in hosts]


def assemble(
    hosts: Sequence[Host | None], of_rank: Mapping[int, RankResults], backend: str, no_answer: Sequence[NoAnswer]
) -> Calibration:
    """The calibration of the ranks that answered. `hosts` has None for ranks that never did."""
    nodes = node_names([host or Host("", "", "", False) for host in hosts])
    devices = Counter(host.device for host in hosts if host)
    notes = [note for results in of_rank.values() for note in results.notes]
    notes += [
        f"rank {rank}: the GPU's clock is held down ({', '.join(one.throttled)})."
        for rank, one in of_rank.items()
        if one.throttled
    ]
    if len(devices) > 1:
        counts = ", ".join(f"{count} of {device}" for device, count in devices.most_common())
        notes.append(f"The ranks' devices differ: {counts}.")
    is_gpu = any(host.is_gpu for host in hosts if host)
    measures: list[Measure] = []
    odd: list[Outlier] = []
    for name, (unit, more_is_better) in _all_measures(of_rank).items():
        repeats = _matrix(name, of_rank, len(hosts))
        measure = _measure(name, unit, more_is_better, repeats)
        measures.append(measure)
        odd += outliers.of_measure(measure, repeats, nodes, outliers.least(name, is_gpu=is_gpu))
    pairs = [pair for results in of_rank.values() for pair in results.pairs]
    odd += outliers.of_pairs(pairs, nodes, of_cpus=not is_gpu)
    return Calibration(
        source="check",
        written=dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        backend=backend,
        device=devices.most_common(1)[0][0] if devices else "",
        world_size=len(hosts),
        nodes=tuple(nodes),
        measures=tuple(measures),
        curves=tuple(_curves(of_rank)),
        pairs=tuple(sorted(pairs, key=lambda pair: pair.ranks)),
        outliers=tuple(odd),
        no_answer=tuple(no_answer),
        notes=tuple(dict.fromkeys(notes)),
    )


def _all_measures(of_rank: Mapping[int, RankResults]) -> dict[str, tuple[str, bool | None]]:
    return {name: about for results in of_rank.values() for name, about in results.about.items()}


def _matrix(name: str, of_rank: Mapping[int, RankResults], world_size: int) -> Floats:
    """The repeats by rank, shape (R, W), NaN where there is none."""
    longest = max(len(results.repeats.get(name, ())) for results in of_rank.values())
    matrix = np.full((world_size, max(longest, 1)), np.nan)
    for rank, results in of_rank.items():
        repeats = results.repeats.get(name, [])
        matrix[rank, : len(repeats)] = [math.nan if value is None else value for value in repeats]
    return matrix


def _measure(name: str, unit: str, more_is_better: bool | None, repeats: Floats) -> Measure:
    values: list[float | None] = []
    spreads: list[float | None] = []
    for row in repeats:
        known = row[np.isfinite(row)]
        value = float(np.median(known)) if len(known) else None
        values.append(value)
        low, high = np.percentile(known, [10, 90]) if len(known) else (0.0, 0.0)
        spreads.append(float((high - low) / 2 / value) if value and len(known) > 1 else None)
    return Measure(name=name, unit=unit, more_is_better=more_is_better, values=tuple(values), spreads=tuple(spreads))


def _curves(of_rank: Mapping[int, RankResults]) -> list[Curve]:
    """Each group's curve; of each repeat, the mean over its ranks, as nccl-tests takes it."""
    seen: defaultdict[tuple[str, str, tuple[int, ...]], list[dict[int, list[float]]]] = defaultdict(list)
    for results in of_rank.values():
        for one in results.curves:
            seen[one.kind, one.scope, tuple(one.ranks)].append(one.times_s)
    curves = []
    for (kind, scope, ranks), columns in seen.items():
        if len(columns) < len(ranks):
            continue
        sizes = sorted(set.intersection(*(set(times) for times in columns)))
        points = [_point(size, [times[size] for times in columns]) for size in sizes]
        if points:
            curves.append(curve(kind, scope, ranks, len(ranks), points))
    return curves


def _point(size: int, times_s: Sequence[Sequence[float]]) -> Point:
    count = min(map(len, times_s))
    repeats = np.array([times[:count] for times in times_s]).mean(axis=0) * 1e6
    low, middle, high = np.percentile(repeats, [10, 50, 90]).tolist()
    return Point(bytes=size, count=count, time_us=middle, low_us=low, high_us=high)
