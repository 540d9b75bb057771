"""What a collective costs before its first byte, and for each one: the alpha-beta model, fitted to the trace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.job.collectives import LATEST
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.trace.model import Ints


@dataclass(frozen=True, slots=True)
class Fit:
    """transfer = alpha + bytes * beta, least squares over the matched collectives of one kind and group."""

    kind: str
    group: str
    #: Collectives, their bytes and their transfer of a step, mean over steps; ns.
    calls: float
    bytes: float
    transfer_ns: float
    #: Largest bytes over smallest.
    spread: float
    #: ns, and ns per byte; neither is negative.
    alpha_ns: float
    beta_ns: float
    #: Share of the variance that the fit explains, 0 to 1.
    r2: float

    @property
    def latency_share(self) -> float:
        """Share of the transfer that alpha takes."""
        return min(self.alpha_ns * self.calls / self.transfer_ns, 1.0) if self.transfer_ns > 0 else 0.0


def fits(job: Job) -> tuple[Fit, ...]:
    """A fit for each kind and group whose bytes are known, those with most calls first.

    Waits are taken out without a clock: the rank that arrives last waits for nobody, so that its part is the shortest.
    """
    matched = job.matched
    part = np.where(matched.present, matched.end_ns - matched.arrival_ns, LATEST).min(axis=1, initial=LATEST)
    known = (matched.bytes > 0) & np.isin(matched.step, job.steps)
    families: dict[tuple[str, str], list[int]] = {}
    for i in np.flatnonzero(known).tolist():
        families.setdefault((matched.kind[i], matched.group[i]), []).append(i)
    found = [_fit(*key, matched.bytes[rows], part[rows], len(job.steps)) for key, rows in families.items()]
    return tuple(sorted(found, key=lambda fit: (-fit.calls, fit.kind, fit.group)))


def _fit(kind: str, group: str, size: Ints, transfer_ns: Ints, steps: int) -> Fit:
    x, y = size.astype(np.float64), transfer_ns.astype(np.float64)
    alpha, beta = _least_squares(x, y)
    spare = float(((y - y.mean()) ** 2).sum())
    missed = float(((y - alpha - beta * x) ** 2).sum())
    return Fit(
        kind=kind,
        group=group,
        calls=len(x) / steps,
        bytes=float(x.sum()) / steps,
        transfer_ns=float(y.sum()) / steps,
        spread=float(x.max() / x.min()),
        alpha_ns=alpha,
        beta_ns=beta,
        r2=max(1 - missed / spare, 0.0) if spare > 0 else 0.0,
    )


def _least_squares(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float]:
    """Intercept and slope, neither negative: one that would be is zero, and the other is fitted alone."""
    spread = x - x.mean()
    variance = float((spread**2).sum())
    beta = float((spread * (y - y.mean())).sum()) / variance if variance > 0 else 0.0
    if beta < 0:
        return float(y.mean()), 0.0
    alpha = float(y.mean() - beta * x.mean())
    if alpha < 0:
        return 0.0, float((x * y).sum() / (x**2).sum())
    return alpha, beta
