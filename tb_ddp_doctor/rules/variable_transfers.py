"""See `VariableTransfers`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.model import RankOwner
from tb_ddp_doctor.facts.change import Change
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.traffic import Traffic
from tb_ddp_doctor.facts.whatif import WhatIf
from tb_ddp_doctor.findings import Network
from tb_ddp_doctor.rules.support import text
from tb_ddp_doctor.rules.support.base import Clear, Fault, NotApplicable, Result, Rule, threshold
from tb_ddp_doctor.trace.model import Ints

#: Fewer collectives have no usual time.
_LEAST_ALIKE = 3


@dataclass(frozen=True)
class VariableTransfers(Rule):
    """The same collective takes far longer at some times than at others.

    What:
        Collectives of one kind, process group and size some of which transfer several times as long as their median,
        straggler waits taken out.
    Why:
        The network between the ranks is busy with something else at that time: another job, storage, congestion in a
        switch, lost packets that are sent again. All ranks of the group wait for it.
    Evidence:
        The median (p50) and the 99th percentile (p99) of the transfers, the groups and the steps in which they are
        slow, and the longest such transfer. The cost is the exposed transfer beyond the median.
    Fix:
        Find what shares the network at that time; keep jobs apart, or let congested paths be avoided.
    Limits:
        Compares each collective with others of its size in its own group, so it is neither the rank nor the size that
        differs. What is slow in every step is slow-link's or communication-bound's. Where sizes are not recorded, the
        n-th collective of each step is compared. A few steps show bursts that last less than a step.
    """

    id: ClassVar[str] = "variable-transfers"
    of_every_program: ClassVar[bool] = True

    min_share: float = threshold(0.01, "of the step", "Below it the variation is not worth a line.")
    min_times: float = threshold(
        2.5, "times as long", "As their median; in 24 healthy and faulty jobs none took 1.8 times as long.", least=1.0
    )

    def check(
        self,
        *,
        frame: Frame,
        whatif: WhatIf,
        communication: tuple[Traffic, ...],
        network: Network | None,
        places: Places,
    ) -> Result:
        usual = [_usual_ns(traffic) for traffic in communication]
        if not any((each > 0).any() for each in usual):
            return NotApplicable(f"No collective comes {_LEAST_ALIKE} times in one size, so none has a usual time.")
        slow = [
            (traffic, median, traffic.transfer_ns > np.where(median > 0, self.min_times * median, np.inf))
            for traffic, median in zip(communication, usual, strict=True)
        ]
        excess = np.zeros(whatif.shape)
        for traffic, median, late in slow:
            lost = np.where(late, np.minimum(traffic.transfer_ns - median, traffic.exposed_ns), 0)
            excess[traffic.ranks] += np.bincount(traffic.step, weights=lost, minlength=traffic.steps)
        change = Change(transfer_ns=np.rint(excess).astype(np.int64))
        cost = whatif.cost_ns(change)
        traffic, median, late = max(slow, key=lambda one: float((one[0].exposed_ns * one[2]).sum()))
        steps = np.flatnonzero(excess.max(axis=0) > 0)
        if not len(steps) or not late.any() or cost < self.min_share * frame.step_ns:
            longest = max(float((one.transfer_ns / np.maximum(m, 1))[m > 0].max(initial=0)) for one, m, _ in slow)
            return Clear(
                f"No collective takes more than {longest:.1f} times the median of its like."
                if longest < self.min_times
                else f"Collectives that take {self.min_times:g} times their median cost {text.ms(cost)} a step."
            )
        rank = int(traffic.ranks[0])
        times = float((traffic.transfer_ns / np.maximum(median, 1))[late].max())
        step = int(excess[rank].argmax())
        level, basis = text.confidence(frame, cost, len(steps), traffic.ranks.tolist(), of_transfer=True)
        alike = traffic.transfer_ns[np.isin(median, median[late])]
        groups = sorted({one.group for one, _, slow_here in slow if slow_here.any() and one.group})
        named = f" of group{'s' if len(groups) > 1 else ''} {text.listing(groups)}" if groups else ""
        return Fault(
            change=change,
            ranks=frame.rank_numbers(np.flatnonzero(excess.any(axis=1))),
            steps=tuple(frame.steps[steps].tolist()),
            cause=None,
            confidence=level,
            title=f"The same {traffic.kind}{named} takes up to {times:.0f} "
            f"times as long at some times: {text.ms(cost)} of every {text.ms(frame.step_ns)}.",
            why=f"{int(late.sum())} of {len(late)} are slow, in {_listed(frame.steps[steps])}; of those of their size "
            f"the transfer takes {text.ms(float(np.median(alike)))} (p50) and "
            f"{text.ms(float(np.percentile(alike, 99)))} (p99). It is no one rank's and no larger message: "
            f"the network is shared. {text.network(network)}{basis}",
            fix=_FIX,
            evidence=(places.longest(rank, step, RankOwner.COMMUNICATION, "A transfer that is usually far shorter."),),
        )


def _usual_ns(traffic: Traffic) -> NDArray[np.float64]:
    """The median transfer of each collective's like, ns; 0 where there are too few."""
    like: Ints = traffic.bytes if traffic.has_bytes else _place_in_step(traffic.step)
    _, which, count = np.unique(like, return_inverse=True, return_counts=True)
    median = np.array([np.median(traffic.transfer_ns[which == kind]) for kind in range(len(count))])
    usual: NDArray[np.float64] = np.where(count >= _LEAST_ALIKE, median, 0.0)[which]
    return usual


def _place_in_step(step: Ints) -> Ints:
    """The number of each collective in its step, given the steps of collectives in the order of time."""
    order = np.argsort(step, kind="stable")
    first = np.searchsorted(step[order], step[order])
    place = np.empty(len(step), np.int64)
    place[order] = np.arange(len(step)) - first
    return place


def _listed(steps: Ints) -> str:
    return f"step{'s' if len(steps) > 1 else ''} {text.listing(steps.tolist())}"


_FIX = """\
Find what shares the network at that time: other jobs on the same switch, checkpoints and data on the same links. \
Place the ranks of a job closer together, give storage a network of its own, and let NCCL use all cards and adaptive \
routing.

NCCL_DEBUG=INFO all_reduce_perf -b 8M -e 8M -n 1000 -g 1   # does the time vary without the job too?
ibdiagnet; perfquery -x                                     # congestion and errors of InfiniBand ports
ethtool -S <interface> | grep -iE "pause|discard|retrans"   # of Ethernet (RoCE: pause frames)
export NCCL_IB_SPLIT_DATA_ON_QPS=1 NCCL_IB_QPS_PER_CONNECTION=4   # more paths through the fabric"""
