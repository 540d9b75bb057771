"""Time against size by the alpha-beta model: time = alpha + bytes * beta.

Sizes of a calibration span six orders of magnitude. Errors are therefore relative to the time, so that a microsecond
counts among small messages and none of the large ones drowns the latency: weighted least squares, with weights of one
over the square of the time that the line gives (iteratively reweighted, as for a gamma error with an identity link;
McCullagh and Nelder, Generalized Linear Models, ch. 8).

P = points.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Weights that follow from times within 0.1 % of the last are settled; from medians they are within three rounds.
_ROUNDS = 20
_SETTLED = 1e-9


class AlphaBetaFit(msgspec.Struct, frozen=True):
    """A line through sizes and times, and how well it predicts them."""

    #: µs, and µs per byte; neither is negative.
    alpha_us: float
    beta_us: float
    #: Share of the variance of the logarithm of the time that the line explains, 0 to 1.
    r2: float
    #: Of predicted against measured, as shares of the measured time: mean and largest.
    mean_error: float
    max_error: float

    def time_us(self, size: ArrayLike) -> Floats:
        """Predicted time of messages of so many bytes."""
        return self.alpha_us + self.beta_us * np.asarray(size, np.float64)


def alpha_beta(size: ArrayLike, time_us: ArrayLike) -> AlphaBetaFit | None:
    """The line through messages of so many bytes that took so long, both of shape (P,).

    What is not positive and finite is left out. None where fewer than two different sizes are left.
    """
    x, y = np.asarray(size, np.float64), np.asarray(time_us, np.float64)
    usable = np.isfinite(x) & np.isfinite(y) & (x > 0) & (y > 0)
    x, y = x[usable], y[usable]
    if len(x) < 2 or x.min() == x.max():
        return None
    alpha, beta = _reweighted(x, y)
    predicted = alpha + beta * x
    error = np.abs(predicted / y - 1)
    spare = float(((np.log(y) - np.log(y).mean()) ** 2).sum())
    missed = float(((np.log(y) - np.log(predicted)) ** 2).sum())
    return AlphaBetaFit(
        alpha_us=alpha,
        beta_us=beta,
        r2=max(1 - missed / spare, 0.0) if spare > 0 else 0.0,
        mean_error=float(error.mean()),
        max_error=float(error.max()),
    )


def _reweighted(x: Floats, y: Floats) -> tuple[float, float]:
    """Intercept and slope whose own predictions weigh the errors."""
    weight = 1 / y**2
    alpha, beta = weighted(x, y, weight)
    for _ in range(_ROUNDS):
        before = alpha, beta
        weight = 1 / (alpha + beta * x) ** 2
        alpha, beta = weighted(x, y, weight)
        if np.allclose(before, (alpha, beta), rtol=_SETTLED, atol=0):
            break
    return alpha, beta


def weighted(x: Floats, y: Floats, weight: Floats) -> tuple[float, float]:
    """Intercept and slope by weighted least squares, neither negative: one that would be is zero."""
    weight = weight / weight.sum()
    mean_x, mean_y = float(weight @ x), float(weight @ y)
    spread = x - mean_x
    beta = float((weight * spread) @ (y - mean_y)) / float((weight * spread) @ spread)
    if beta < 0:
        return mean_y, 0.0
    alpha = mean_y - beta * mean_x
    if alpha < 0:
        return 0.0, float((weight * x) @ y) / float((weight * x) @ x)
    return alpha, beta
