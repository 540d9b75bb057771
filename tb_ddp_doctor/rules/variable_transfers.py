"""See `VariableTransfers`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.model import RankOwner
from tb_ddp_doctor.digest.numbering import numbered
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.iterations import Workloads
from tb_ddp_doctor.facts.traffic import Traffic
from tb_ddp_doctor.findings import Network, Setting
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support import certainty, part
from tb_ddp_doctor.rules.support.base import Clear, Fault, NotApplicable, Result, Rule, threshold
from tb_ddp_doctor.trace.model import Ints

#: Of fewer collectives the median says nothing.
_LEAST_COMPARABLE = 3


class VariableTransfers(Rule):
    """The same collective sometimes takes much longer.

    What:
        Collectives of one kind, process group and size of which some take several times as long as their median,
        without straggler wait.
    Why:
        The network between the ranks has other traffic at that time: another job, storage, congestion in a switch, lost
        packets that are sent again. All ranks of the group wait for it.
    Evidence:
        The median (p50) and the 99th percentile (p99) of the time without straggler wait, the groups and the steps in
        which they are slow, and the longest such collective. The cost is the exposed communication in excess of the
        median.
    Fix:
        Find what shares the network at that time; separate jobs, or use adaptive routing.
    Limits:
        Compares each collective with those of the same size in the same group, so neither the rank nor the size
        differs. Collectives that are slow in every step are slow-link's or communication-bound's. Where sizes are not
        recorded, the n-th collective among the same ranks in each step is compared; of a server, in iterations that
        decode about as many requests, since those that read prompts send more. A record of a few steps shows only
        congestion that is shorter than a step.
    """

    id = "variable-transfers"
    subject = "The variation of transfers"
    of_every_program = True
    refines = "communication-bound"

    min_share: float = threshold(0.01, "of the step", "Less variation is not worth a finding.")
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
        workloads: Workloads,
        places: Places,
    ) -> Result:
        medians = [_median_ns(traffic, workloads.number) for traffic in communication]
        if not any((each > 0).any() for each in medians):
            return NotApplicable(
                f"No collective comes {_LEAST_COMPARABLE} times in one size, so there is no median to compare with."
            )
        slow = [
            (traffic, median, traffic.transfer_ns > np.where(median > 0, self.min_times * median, np.inf))
            for traffic, median in zip(communication, medians, strict=True)
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
                f"No collective takes more than {wording.decimals(longest, 1)} times the median of comparable ones."
                if longest < self.min_times
                else f"Collectives that take {self.min_times:g} times their median cost {wording.ms(cost)} a step."
            )
        rank = int(traffic.ranks[0])
        times = float((traffic.transfer_ns / np.maximum(median, 1))[late].max())
        step = int(excess[rank].argmax())
        level, basis = certainty.confidence(frame, cost, len(steps), traffic.ranks.tolist(), of_transfer=True)
        comparable = traffic.transfer_ns[np.isin(median, median[late])]
        named = _of_groups(sorted({one.group for one, _, slow_here in slow if slow_here.any() and one.group}))
        return Fault(
            change=change,
            ranks=frame.rank_numbers(np.flatnonzero(excess.any(axis=1))),
            steps=tuple(frame.steps[steps].tolist()),
            confidence=level,
            title=f"The same {traffic.kind}{named} takes up to {wording.decimals(times, 0)} "
            f"times as long in some calls: {part.of_cost(cost, frame.window_ns)}.",
            why=f"{int(late.sum())} of {len(late)} are slow, in {_listed(frame.steps[steps])}; "
            f"{'those of the same size' if traffic.has_bytes else 'comparable ones'} "
            f"take {wording.ms(float(np.median(comparable)))} (p50) and "
            f"{wording.ms(float(np.percentile(comparable, 99)))} (p99) without straggler wait. "
            f"{'Neither one rank nor the size explains' if traffic.has_bytes else 'No one rank explains'} "
            f"this: {_shared(frame.setting)}. {wording.network(network)}{basis}",
            fix=_fix(frame.setting),
            evidence=(
                places.longest(rank, step, RankOwner.COMMUNICATION, "This collective usually takes much less time."),
            ),
        )


def _median_ns(traffic: Traffic, workload: Ints) -> NDArray[np.float64]:
    """The median transfer of each collective's like, ns; 0 where there are too few.

    Without sizes these are of steps with the same `workload`, shape (S,), and of none where that is -1.
    """
    like: Ints = traffic.bytes
    known = np.ones(len(traffic.step), np.bool_)
    if not traffic.has_bytes:
        of_step = workload[traffic.step]
        like, known = numbered(_place_in_step(traffic.step, traffic.among), of_step), of_step >= 0
    _, which, count = np.unique(like, return_inverse=True, return_counts=True)
    median = np.array([np.median(traffic.transfer_ns[which == kind]) for kind in range(len(count))])
    return np.where(known, np.where(count >= _LEAST_COMPARABLE, median, 0.0)[which], 0.0)


def _place_in_step(step: Ints, among: Ints) -> Ints:
    """A number for the n-th collective among the same ranks in each step, given collectives in the order of time.

    In which order those of different ranks come is no two steps' the same.
    """
    cell = numbered(step, among)
    order = np.argsort(cell, kind="stable")
    first = np.searchsorted(cell[order], cell[order])
    place = np.empty(len(step), np.int64)
    place[order] = np.arange(len(step)) - first
    return numbered(among, place)


def _of_groups(groups: Sequence[str]) -> str:
    """Of which groups collectives are: " of groups 0 and 1"; nothing where that is not known."""
    return f" of group{'s' if len(groups) > 1 else ''} {wording.listing(groups)}" if groups else ""


def _listed(steps: Ints) -> str:
    return f"step{'s' if len(steps) > 1 else ''} {wording.listing(steps.tolist())}"


def _shared(setting: Setting) -> str:
    """What makes transfers vary."""
    if setting.may_use_network:
        return "the network is shared"
    if setting.uses_nccl:
        return "other work uses the links between the GPUs, or the GPUs themselves"
    return "the threads that move the data wait for a core"


def _fix(setting: Setting) -> str:
    if not setting.uses_nccl:
        return _OF_CPUS.format(backend=setting.backend) + (_OF_CPUS_NETWORK if setting.may_use_network else "")
    return _FIX if setting.may_use_network else _OF_ONE_HOST


_OF_CPUS = """\
{backend} moves data in threads of the ranks: give them cores of their own, with fewer threads in each rank \
(OMP_NUM_THREADS, DataLoader workers) and nothing else on the host.

pidstat -wt -p <pid of a rank> 1           # nvcswch/s: preempted that often
OMP_NUM_THREADS=<cores per rank> torchrun ..."""

_OF_CPUS_NETWORK = """
ethtool -S <interface> | grep -iE "pause|discard|retrans"   # errors and pauses of the network
GLOO_SOCKET_IFNAME=<the fast interface> torchrun ..."""

_OF_ONE_HOST = """\
Find what else runs on this host at that time: other processes on the GPUs, copies over PCIe (loading, checkpoints, \
offload), CPUs that NCCL's threads wait for.

nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv
nvidia-smi dmon -s pucvmet                                  # PCIe traffic and utilisation while it runs
NCCL_DEBUG=INFO all_reduce_perf -b 8M -e 8M -n 1000 -g 1    # does the time vary without the job too?"""

_FIX = """\
Find what shares the network at that time: other jobs on the same switch, checkpoints and data on the same links. \
Place the ranks of a job closer together, give storage its own network, and let NCCL use all network cards and \
adaptive routing.

NCCL_DEBUG=INFO all_reduce_perf -b 8M -e 8M -n 1000 -g 1   # does the time vary without the job too?
ibdiagnet; perfquery -x                                     # congestion and errors of InfiniBand ports
ethtool -S <interface> | grep -iE "pause|discard|retrans"   # of Ethernet (RoCE: pause frames)
export NCCL_IB_SPLIT_DATA_ON_QPS=1 NCCL_IB_QPS_PER_CONNECTION=4   # more paths through the fabric"""
