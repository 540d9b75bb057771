"""The latency of a job's transfers and their time per byte: the alpha-beta model, by ordinary least squares.

A job has transfers of few sizes, which take about equally long. So errors count in ns here, where those of a
calibration (`fit.alpha_beta`), over six orders of magnitude of sizes, count as shares of the time.
"""

from __future__ import annotations

import msgspec
import numpy as np

from tb_ddp_doctor.calibration.fit import Ints, weighted

#: In jobs whose sizes differ by 1.4 the latency came out anywhere from nothing to 2.5 ms, with an R2 of 0 to 0.8; with
#: a spread of 16 the R2 was 0.98.
SIGNIFICANT_SPREAD, SIGNIFICANT_R2 = 2.0, 0.7


class TransferFit(msgspec.Struct, frozen=True):
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
        """Whether latency and bandwidth can be separated: sizes differ enough, and the line explains the times."""
        return self.spread >= SIGNIFICANT_SPREAD and self.r2 >= SIGNIFICANT_R2


def transfer_fit(size: Ints, transfer_ns: Ints) -> TransferFit | None:
    """The line through transfers of `size` bytes (positive) that took `transfer_ns`, shape (N,) each.

    None if all are of one size.
    """
    if not len(size) or size.min() == size.max():
        return None
    x, y = size.astype(np.float64), transfer_ns.astype(np.float64)
    alpha, beta = weighted(x, y, np.ones(len(x)))
    spare = float(((y - y.mean()) ** 2).sum())
    missed = float(((y - alpha - beta * x) ** 2).sum())
    return TransferFit(
        alpha_ns=alpha,
        beta_ns=beta,
        r2=max(1 - missed / spare, 0.0) if spare > 0 else 0.0,
        residual_ns=(missed / len(x)) ** 0.5,
        spread=float(x.max() / x.min()),
    )
