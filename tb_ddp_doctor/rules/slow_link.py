"""See `SlowLink`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.model import RankOwner
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.expected import Expected
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.links import Link, at_median_rate, excess_ns
from tb_ddp_doctor.facts.traffic import Traffic
from tb_ddp_doctor.findings import Network
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support import certainty, limits, tuner
from tb_ddp_doctor.rules.support.base import Clear, Fault, NotApplicable, Result, Rule, threshold
from tb_ddp_doctor.trace.model import Ints


class SlowLink(Rule):
    """The collectives of a process group, or the sends of one rank to another, have a lower busbw than comparable ones.

    What:
        Groups whose collectives take much longer than those of comparable groups: same kind and bytes, same number of
        ranks, same distance between ranks, same number of nodes. Pairs of ranks whose sends and receives (pipelines,
        ring attention) take much longer than as large ones between other nodes, or between the same two GPUs of other
        nodes. With a calibration, also links that are all much slower than it.
    Why:
        A cable, a switch port, a GPU without peer access or a node that fell back to sockets slows every collective
        through it, and the whole job waits for those ranks.
    Evidence:
        The busbw of the group beside that of comparable groups, and its longest exposed communication. The cost is what
        the step loses with transfers that are longer than those of comparable groups, hidden ones too: one delays the
        next.
    Fix:
        Measure the link alone with nccl-tests; look at what NCCL's log says that it uses there, and at the hardware.
    Limits:
        Needs groups to compare, or a calibration: if all ranks are in one group, as in plain DDP, all links of its
        ring look as slow as the slowest. Sizes must be recorded. Two GPUs of a node may be further apart than two
        others by design, so sends and receives within the only node are not compared.
    """

    id = "slow-link"
    subject = "Slow communication of one group"
    of_every_program = True
    refines = ("communication-bound", "pipeline-bubble")

    min_slowdown: float = threshold(*limits.SLOW_LINK)
    min_steps: float = threshold(0.75, "of the steps", "A link that is slow now and then is shared with other traffic.")

    below_calibration: float = threshold(
        2.0,
        "times as long",
        "A calibration has the links to itself; beside compute, NCCL's kernels share the GPU and its memory.",
    )

    def check(
        self,
        *,
        frame: Frame,
        whatif: WhatIf,
        links: tuple[Link, ...],
        communication: tuple[Traffic, ...],
        expected: Expected | None,
        network: Network | None,
        places: Places,
    ) -> Result:
        slow = [link for link in links if link.is_slow(self.min_slowdown, self.min_steps)]
        # On CPUs compute takes the cores that communication needs: there a calibration says little of links.
        if not slow and expected is not None and frame.has_device:
            calibrated = expected.links(communication)
            below = [link for link in calibrated if link.is_slow(self.below_calibration, self.min_steps)]
            if below:
                return self._below_calibration(below, calibrated, frame, whatif, network, places)
        if not links:
            return NotApplicable(
                "No two comparable groups have collectives of one size, so links cannot be compared; "
                "torchrun ... -m tb_ddp_doctor.check measures what they can do, and pairs of nodes."
            )
        if not slow:
            worst = max(links, key=lambda link: link.slowdown)
            return Clear(
                f"Of {len(links)} comparable {_groups(links)}, none takes more than "
                f"{wording.decimals(worst.slowdown, 2)} times as long as the median for the same size."
            )
        excess = excess_ns(slow, *whatif.shape)
        change = at_median_rate(slow, whatif)
        cost = whatif.cost_ns(change)
        worst = max(slow, key=lambda link: link.slowdown)
        affected = np.unique(np.concatenate([link.traffic.ranks for link in slow]))
        numbers = frame.rank_numbers(affected)
        level, basis = certainty.confidence(frame, cost, len(frame.steps), of_transfer=True)
        return Fault(
            change=change,
            ranks=numbers,
            subject="A slow link" if worst.is_of_messages else "",
            confidence=level,
            title=f"The link between {_place(affected, frame)} is slow: {_longer(worst)}.",
            why=f"{len(slow)} of {len(links)} comparable {_groups(links)} are slow. The slowest has a busbw of "
            f"{wording.gigabytes_per_second(worst.traffic.bus_rate)}, comparable {_groups([worst])} "
            f"{wording.gigabytes_per_second(worst.peer_bus_rate)}. {_in_all(slow, frame)}{_transport(network, numbers)}"
            f"{tuner.choice(network, worst.traffic)}{basis}",
            fix=_fix(frame, slow),
            evidence=(places.of_most(excess, "Communication over the slow link.", RankOwner.COMMUNICATION),),
        )

    def _below_calibration(
        self,
        below: Sequence[Link],
        calibrated: Sequence[Link],
        frame: Frame,
        whatif: WhatIf,
        network: Network | None,
        places: Places,
    ) -> Fault:
        """All links are slower than they were when nothing else ran: no group is the odd one."""
        excess = excess_ns(below, *whatif.shape)
        change = at_median_rate(below, whatif)
        worst = max(below, key=lambda link: link.slowdown)
        affected = np.unique(np.concatenate([link.traffic.ranks for link in below]))
        return Fault(
            change=change,
            ranks=frame.rank_numbers(affected),
            cause="below_calibration",
            confidence="medium",
            title=f"The links are slower than the calibration: {worst.traffic.kind} takes "
            f"{wording.decimals(worst.slowdown, 1)} times as long as it did when nothing else ran.",
            why=f"{len(below)} of {len(calibrated)} kinds and groups are slower. The slowest has a busbw of "
            f"{wording.gigabytes_per_second(worst.traffic.bus_rate)}; the calibration gave "
            f"{wording.gigabytes_per_second(worst.peer_bus_rate)} at these sizes. "
            f"{_transport(network, frame.rank_numbers(affected))}",
            fix=_fix(frame, below),
            evidence=(places.of_most(excess, "Communication over the slow links.", RankOwner.COMMUNICATION),),
        )


def _longer(worst: Link) -> str:
    """How much longer the slowest link takes for the same."""
    times = f"{wording.decimals(worst.slowdown, 1)} times as long as"
    if worst.is_of_messages:
        return f"a send of the same size takes {times} between other pairs of ranks"
    return f"the same {worst.traffic.kind} takes {times} in other groups"


def _groups(links: Sequence[Link]) -> str:
    """What is compared, in words."""
    kinds = {link.is_of_messages for link in links}
    return "groups and pairs of ranks" if len(kinds) > 1 else "pairs of ranks" if kinds.pop() else "groups"


def _in_all(slow: Sequence[Link], frame: Frame) -> str:
    """The rank that all slow pairs of ranks share, a sentence and a space; "" where they share none."""
    shared = reduce(np.intersect1d, [link.traffic.ranks for link in slow])
    if len({tuple(link.traffic.ranks.tolist()) for link in slow}) == 1 or len(shared) != 1:
        return ""
    return f"All of these are links of {wording.ranks(frame.rank_numbers(shared))}. "


def _place(affected: Ints, frame: Frame) -> str:
    """The affected ranks (indices) in words, with the coordinates that they alone share, or their node where they are
    all that it has.
    """
    named = wording.ranks(frame.rank_numbers(affected))
    if place := frame.mesh.shared(affected.tolist()):
        return f"{named} (all of {place})"
    inside = {frame.nodes[rank] for rank in affected.tolist()}
    if len(inside) > 1 or [frame.nodes[rank] in inside for rank in range(len(frame.ranks))].count(True) > len(affected):
        return named
    return f"{named}, all of {node}," if (node := inside.pop()) else named


def _transport(network: Network | None, affected: Sequence[int]) -> str:
    """What the affected ranks go through that no other rank does, by NCCL's logs; else what all do."""
    if network is None:
        return ""
    own = [name for name, ranks in network.transports.items() if ranks and set(ranks) <= set(affected)]
    if own and len(own) < len(network.transports):
        return f"By NCCL's log only they use {wording.listing(own)}. "
    return wording.network(network)


def _fix(frame: Frame, slow: Sequence[Link]) -> str:
    if not frame.setting.uses_nccl:
        return _OF_CPUS + (_OF_CPUS_NETWORK if frame.setting.may_use_network else "")
    network = _NETWORK if frame.setting.may_use_network else ""
    where = "on those nodes and on others" if network else "between those GPUs and others"
    ranks = ",".join(str(rank) for rank in frame.rank_numbers(slow[0].traffic.ranks)[:8])
    return f"""\
Measure the link without the job, {where}, and compare. Then look at what NCCL uses there \
(P2P, SHM, NET/IB or NET/Socket; GDRDMA or not), and at the hardware: link width and errors.

NCCL_DEBUG=INFO all_reduce_perf -b 8M -e 256M -f 2 -g 1   # with mpirun, where ranks {ranks} run
nvidia-smi nvlink --status; nvidia-smi topo -m            # NVLink up, and the path between the GPUs
nvidia-smi --query-gpu=index,pcie.link.gen.current,pcie.link.width.current --format=csv{network}"""


_NETWORK = """
ibstat; ethtool <interface>                               # rate and state of the network card"""

_OF_CPUS = """\
Measure the same collectives without the job, and look at the cores that these ranks have: the CPU's backends move \
data in threads of the ranks.

torchrun ... -m tb_ddp_doctor.check -o calibration.json     # what each rank and pair of ranks reaches
pidstat -wt -p <pid of the rank> 1                          # nvcswch/s: preempted that often"""

_OF_CPUS_NETWORK = """
iperf3 -c <the other host>                                  # what the network gives
ethtool <interface>; ethtool -S <interface>                 # rate and errors of the network card"""
