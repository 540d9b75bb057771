"""The time of messages by size, alpha + bytes * beta, with the range in which alpha and beta may lie.

1. If the sizes of the job's own collectives differ enough, both are fitted to them.
2. Else both come from a calibration of the same kind of collective.
3. Else alpha is assumed, and beta explains the time of the job's own size.

For the assumption: a ring of n ranks has 2(n - 1) steps one after the other (Thakur et al. 2005). In each, a message
goes from one rank to the next, in 1 to 10 us over NVLink or InfiniBand, and in 20 to 60 us over TCP, whose busbw stays
below 12.5 GB/s (100 Gbit/s). Ranks of one node use no TCP.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec
import numpy as np
from msgspec.structs import replace

from tb_ddp_doctor import wording
from tb_ddp_doctor.calibration.fit import alpha_beta
from tb_ddp_doctor.calibration.model import Calibration, bus_factor
from tb_ddp_doctor.trace.model import Floats, Ints

Basis = Literal["measured", "fitted", "assumed"]
#: Which value is used of the range of what is fitted or assumed.
Case: TypeAlias = Literal["likely", "quickest", "slowest"]

#: Sizes that differ by at least this factor separate latency from bandwidth.
_SPREAD = 2.0
#: Links with less busbw than this, in bytes per ns, are taken for TCP. Below: the latency of a step of a ring, ns,
#: likely, least and most.
_TCP_BUSBW = 12.5
_STEP_TCP_NS = (40_000.0, 10_000.0, 80_000.0)
_STEP_RDMA_NS = (5_000.0, 1_000.0, 15_000.0)


class Messages(msgspec.Struct, frozen=True):
    """Messages of one kind in one group."""

    #: Latency, ns.
    alpha_ns: float
    #: Time of a byte, ns.
    beta_ns: float
    #: The least and the most that alpha may be.
    alpha_range_ns: tuple[float, float]
    #: The least and the most that beta may be.
    beta_range_ns: tuple[float, float]
    #: "fitted" to the job's own messages, "measured" by a calibration, or "assumed" if alpha is.
    basis: Basis
    #: What was fitted or assumed, for users.
    rests_on: str
    #: Mean error of the fit as a share of the time, 0 if nothing was fitted.
    error: float = 0.0

    def time_ns(self, size: Ints | Floats) -> Floats:
        """The time of messages of `size` bytes each, ns."""
        return self.alpha_ns + self.beta_ns * np.asarray(size, np.float64)

    def of(self, case: Case) -> Messages:
        """The messages of one case."""
        return {"likely": self, "quickest": self.quickest(), "slowest": self.slowest()}[case]

    def quickest(self) -> Messages:
        """The messages with the least alpha and beta."""
        return replace(self, alpha_ns=self.alpha_range_ns[0], beta_ns=self.beta_range_ns[0])

    def slowest(self) -> Messages:
        """The messages with the largest alpha and beta."""
        return replace(self, alpha_ns=self.alpha_range_ns[1], beta_ns=self.beta_range_ns[1])


def messages(
    kind: str,
    group_size: int,
    size: Ints,
    time_ns: Ints,
    calibration: Calibration | None,
    *,
    within_node: bool = False,
) -> Messages:
    """The time of messages by size, from the sizes (bytes) and times (ns) of at least one message.

    `within_node` says that all ranks are known to be on one node, where no link is TCP.
    """
    spread = float(size.max() / size.min())
    if spread >= _SPREAD and (line := alpha_beta(size, np.asarray(time_ns) / 1e3)):
        return Messages(
            alpha_ns=line.alpha_us * 1e3,
            beta_ns=line.beta_us * 1e3,
            alpha_range_ns=_around(line.alpha_us * 1e3, line.mean_error),
            beta_range_ns=_around(line.beta_us * 1e3, line.mean_error),
            basis="fitted",
            rests_on=f"alpha {wording.decimals(line.alpha_us / 1e3, 2)} ms and {_rate(line.beta_us * 1e3)} from "
            f"{len(size)} transfers of {wording.size(size.min())} to {wording.size(size.max())}, "
            f"R2 {wording.decimals(line.r2, 2)}",
            error=line.mean_error,
        )
    if calibration and (curve := calibration.curve(kind, group_size, within_node=False)) and curve.fit:
        return _as_long(kind, group_size, size, time_ns, curve.fit.alpha_us * 1e3, calibration.source)
    return _as_long(kind, group_size, size, time_ns, within_node=within_node)


def with_latency(kind: str, group_size: int, size: Ints, time_ns: Ints, alpha_ns: float, source: str) -> Messages:
    """The time of messages of about one size by size, with a latency that is known otherwise."""
    return replace(_as_long(kind, group_size, size, time_ns, alpha_ns, source), basis="fitted")


def _as_long(
    kind: str,
    group_size: int,
    size: Ints,
    time_ns: Ints,
    alpha_ns: float | None = None,
    source: str = "",
    *,
    within_node: bool = False,
) -> Messages:
    """The time by size if all messages have about one size: beta explains their time; alpha is assumed if not given."""
    bytes_, takes = float(np.mean(size)), float(np.mean(time_ns))
    least_ns, most_ns = np.percentile(time_ns, (10, 90)).tolist()
    if alpha_ns is None:
        tcp = not within_node and bytes_ * bus_factor(kind, group_size) / takes < _TCP_BUSBW
        step, low, high = _STEP_TCP_NS if tcp else _STEP_RDMA_NS
        hops = max(2 * (group_size - 1), 1)
        likely, low, high = (min(hops * one, takes / 2) for one in (step, low, high))
        basis: Basis = "assumed"
        rests_on = (
            f"all transfers are of about {wording.size(bytes_)}, so their latency cannot be told from their bandwidth: "
            f"alpha is assumed to be {wording.decimals(likely / 1e6, 2)} ms ({wording.decimals(low / 1e6, 2)} to "
            f"{wording.decimals(high / 1e6, 2)}), {hops} steps of a ring over "
            f"{'TCP' if tcp else 'links of a node' if within_node else 'NVLink or InfiniBand'}"
        )
    else:
        likely = low = high = min(alpha_ns, takes / 2)
        basis, rests_on = (
            "measured",
            f"alpha {wording.decimals(likely / 1e6, 2)} ms of {source}, bandwidth of this job's transfers",
        )
    return Messages(
        alpha_ns=likely,
        beta_ns=(takes - likely) / bytes_,
        alpha_range_ns=(low, high),
        beta_range_ns=((least_ns - low) / bytes_, (most_ns - low) / bytes_),
        basis=basis,
        rests_on=rests_on,
    )


def _around(value: float, share: float) -> tuple[float, float]:
    return value * (1 - share), value * (1 + share)


def _rate(beta_ns: float) -> str:
    return f"{wording.decimals(1 / beta_ns, 2)} GB/s" if beta_ns > 0 else "no limit of bandwidth"
