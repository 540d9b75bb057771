"""What the hardware gives without a training job: `calibration.json`, and what is read of nccl-tests' output.

Bandwidths are nccl-tests': algbw is bytes over time, busbw that times `bus_factor`. A size is the larger of what a rank
puts in and what it gets out, as nccl-tests counts. 1 GB/s is 1e9 bytes a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import msgspec
import numpy as np

from tb_ddp_doctor.calibration.fit import AlphaBetaFit, Floats, alpha_beta

#: Raised when a field changes its meaning or goes.
SCHEMA_VERSION = 1


def bus_factor(kind: str, size: int) -> float:
    """Bytes that each link carries for a byte of the message among so many ranks, as in nccl-tests' PERFORMANCE.md."""
    share = (size - 1) / size if size > 0 else 1.0
    if kind == "all_reduce":
        return 2 * share
    return share if kind in ("all_gather", "reduce_scatter", "all_to_all") else 1.0


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of one size."""

    #: Bytes of the message.
    bytes: int
    #: Repeats that were timed.
    count: int
    #: Median time, and the 10th and 90th percentile, µs; of each repeat the slowest rank's.
    time_us: float
    low_us: float
    high_us: float


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """time = alpha + bytes / algbw, fitted to a curve's points."""

    #: Latency, µs, and algbw and busbw that large messages come near to, GB/s; 0 where size does not matter.
    alpha_us: float
    algbw_gbs: float
    busbw_gbs: float
    #: Share of the variance of log(time) that the fit explains; mean and largest error of predicted against measured
    #: time, as a share of the measured one.
    r2: float
    mean_error: float
    max_error: float


class Curve(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One kind of collective in one group of ranks, by size."""

    #: all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce or send_recv.
    kind: str
    #: "world"; "node", the ranks of one node.
    scope: str
    #: Ranks of the group; empty where they are not told (nccl-tests).
    ranks: tuple[int, ...]
    #: How many they are.
    size: int
    #: By ascending bytes.
    points: tuple[Point, ...]
    fit: Fit | None = None

    @cached_property
    def _measured(self) -> tuple[Floats, Floats]:
        return (
            np.array([point.bytes for point in self.points], np.float64),
            np.array([point.time_us for point in self.points], np.float64),
        )

    def time_us(self, size: Sequence[int] | Floats) -> Floats:
        """Expected time of messages of so many bytes, shape of `size`.

        Between two measured sizes, on the line between their logarithms; beyond the largest at its algbw, below the
        smallest at its time: protocols change with the size, so the points are nearer the truth than one line.
        """
        asked = np.asarray(size, np.float64)
        x, y = self._measured
        inside = np.exp(np.interp(np.log(np.maximum(asked, 1)), np.log(x), np.log(y)))
        return np.asarray(np.where(asked > x[-1], y[-1] * asked / x[-1], inside), np.float64)


def curve(kind: str, scope: str, ranks: Sequence[int], size: int, points: Sequence[Point]) -> Curve:
    """A curve of measured points, which need not be in order, with its fit."""
    points = sorted(points, key=lambda point: point.bytes)
    line = alpha_beta([point.bytes for point in points], [point.time_us for point in points])
    return Curve(
        kind=kind,
        scope=scope,
        ranks=tuple(ranks),
        size=size,
        points=tuple(points),
        fit=None if line is None else _fit(line, bus_factor(kind, size)),
    )


def _fit(line: AlphaBetaFit, factor: float) -> Fit:
    algbw = 1e-3 / line.beta_us if line.beta_us > 0 else 0.0
    return Fit(
        alpha_us=line.alpha_us,
        algbw_gbs=algbw,
        busbw_gbs=algbw * factor,
        r2=line.r2,
        mean_error=line.mean_error,
        max_error=line.max_error,
    )


class MeasureKind(msgspec.Struct, frozen=True):
    """What can be measured on each rank by itself."""

    #: For example "GEMM float32", "memory bandwidth".
    name: str
    #: TFLOPS, GB/s, µs, cores, MHz or %.
    unit: str
    #: Whether more is better; None where it is only told.
    more_is_better: bool | None


class Measure(MeasureKind, frozen=True, kw_only=True):
    """Something measured on each rank by itself."""

    #: By rank: median of the repeats, and half the distance of the 10th to the 90th percentile as a share of it; None
    #: where the rank did not measure it.
    values: tuple[float | None, ...]
    spreads: tuple[float | None, ...]


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """Two ranks that send to each other, while the other pairs of the round do."""

    ranks: tuple[int, int]
    #: Whether both are on one node.
    within_node: bool
    #: One way: time of a message of 1 KB, µs, and bandwidth with large ones, GB/s.
    latency_us: float
    gbs: float


class Outlier(msgspec.Struct, frozen=True, kw_only=True):
    """A rank, or a pair of ranks, that is worse than comparable ones."""

    #: One rank, or the two of a pair.
    ranks: tuple[int, ...]
    node: str
    #: Name of the measure, or "pair bandwidth" or "pair latency".
    measure: str
    value: float
    median: float
    unit: str
    #: How much worse than the median, as a share of it.
    worse: float
    sentence: str


class NoAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that was not heard of in time."""

    rank: int
    #: What it was to do: "start", a measure, a collective.
    phase: str


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """What the ranks, and the links between them, can do."""

    schema_version: int = SCHEMA_VERSION
    #: "check", or "nccl-tests".
    source: str
    #: When it was written, ISO 8601 in UTC; "" where not told.
    written: str = ""
    #: gloo, nccl, mpi; "" where not told.
    backend: str = ""
    #: Name of the GPUs, or of the CPU.
    device: str = ""
    world_size: int
    #: By rank; empty where not told.
    nodes: tuple[str, ...] = ()
    measures: tuple[Measure, ...] = ()
    curves: tuple[Curve, ...] = ()
    pairs: tuple[Pair, ...] = ()
    outliers: tuple[Outlier, ...] = ()
    no_answer: tuple[NoAnswer, ...] = ()
    #: What could not be measured, and why.
    notes: tuple[str, ...] = ()

    def curve(self, kind: str, size: int, *, within_node: bool) -> Curve | None:
        """The curve that a group of so many ranks is to be compared with, None where none was measured alike."""
        comparable = [one for one in self.curves if one.kind == kind and one.size == size]
        scope = "node" if within_node else "world"
        slowest = sorted(comparable, key=lambda one: (one.scope != scope, -one.points[-1].time_us))
        return slowest[0] if slowest else None
