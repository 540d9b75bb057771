"""What a message costs before its first byte, and for each one: the alpha-beta model, fitted by least squares."""

from __future__ import annotations

import msgspec
import numpy as np

from tb_ddp_doctor.trace.model import Floats, Ints

#: In jobs whose sizes differ by 1.4 the latency came out anywhere from nothing to 2.5 ms, with an R2 of 0 to 0.8; with
#: a spread of 16 the R2 was 0.98.
TELLING_SPREAD, TELLING_R2 = 2.0, 0.7


class Line(msgspec.Struct, frozen=True):
    """transfer = alpha + bytes * beta."""

    #: ns, and ns per byte; neither is negative.
    alpha_ns: float
    beta_ns: float
    #: Share of the variance that the line explains, 0 to 1; and the root of the mean square that it leaves, ns.
    r2: float
    residual_ns: float
    #: Largest bytes over smallest.
    spread: float

    @property
    def is_significant(self) -> bool:
        """Whether latency is told from bandwidth: sizes differ enough, and explain how long the messages take."""
        return self.spread >= TELLING_SPREAD and self.r2 >= TELLING_R2


def line(size: Ints, transfer_ns: Ints) -> Line | None:
    """The line through messages of so many bytes (positive) that took so long; None where all are of one size."""
    if not len(size) or size.min() == size.max():
        return None
    x, y = size.astype(np.float64), transfer_ns.astype(np.float64)
    alpha, beta = _least_squares(x, y)
    spare = float(((y - y.mean()) ** 2).sum())
    missed = float(((y - alpha - beta * x) ** 2).sum())
    return Line(
        alpha_ns=alpha,
        beta_ns=beta,
        r2=max(1 - missed / spare, 0.0) if spare > 0 else 0.0,
        residual_ns=(missed / len(x)) ** 0.5,
        spread=float(x.max() / x.min()),
    )


def _least_squares(x: Floats, y: Floats) -> tuple[float, float]:
    """Intercept and slope, neither negative: one that would be is zero, and the other is fitted alone."""
    spread = x - x.mean()
    beta = float((spread * (y - y.mean())).sum() / (spread**2).sum())
    if beta < 0:
        return float(y.mean()), 0.0
    alpha = float(y.mean() - beta * x.mean())
    if alpha < 0:
        return 0.0, float((x * y).sum() / (x**2).sum())
    return alpha, beta
