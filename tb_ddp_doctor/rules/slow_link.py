"""See `SlowLink`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tb_ddp_doctor.digest.model import RankOwner
from tb_ddp_doctor.facts.change import Change
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.links import Link, excess_ns
from tb_ddp_doctor.facts.whatif import WhatIf
from tb_ddp_doctor.findings import Network
from tb_ddp_doctor.rules.support import text
from tb_ddp_doctor.rules.support.base import Clear, Fault, NotApplicable, Result, Rule, threshold
from tb_ddp_doctor.trace.model import Ints


@dataclass(frozen=True)
class SlowLink(Rule):
    """The ranks of one process group move the same data slower than other groups do.

    What:
        Groups whose collectives take much longer than those of their peers: of the same kind and bytes, among as many
        ranks, as far apart, on as many nodes.
    Why:
        A cable, a switch port, a GPU without peer access or a node that fell back to sockets slows every collective
        through it, and the whole job waits for those ranks.
    Evidence:
        The bus bandwidth of the group beside the usual one, and its longest exposed transfer. The cost is the exposed
        transfer beyond what the peers take.
    Fix:
        Measure the link alone with nccl-tests; look at what NCCL says that it uses there, and at the hardware.
    Limits:
        Needs groups to compare: where all ranks are in one group, as in plain DDP, every link of its ring is as fast
        as the slowest. Sizes must be recorded. Sends and receives are not compared.
    """

    id: ClassVar[str] = "slow-link"
    of_every_program: ClassVar[bool] = True

    min_slowdown: float = threshold(
        1.5, "times as long", "Groups that compete for a network card or the device differ by less."
    )
    min_steps: float = threshold(0.75, "of the steps", "A link that is slow now and then is shared with other traffic.")

    def check(
        self, *, frame: Frame, whatif: WhatIf, links: tuple[Link, ...], network: Network | None, places: Places
    ) -> Result:
        if not links:
            return NotApplicable(
                "No two groups of like ranks send messages of one size, so no link can be compared with another; "
                "nccl-tests between pairs of nodes would."
            )
        slow = [link for link in links if link.is_slow(self.min_slowdown, self.min_steps)]
        if not slow:
            worst = max(links, key=lambda link: link.slowdown)
            return Clear(
                f"Of {len(links)} groups that have peers, none takes more than {worst.slowdown:.2f} times as long as "
                "usual for the same message."
            )
        excess = excess_ns(slow, len(frame.ranks), len(frame.steps))
        change = Change(transfer_ns=excess)
        cost = whatif.cost_ns(change)
        worst = max(slow, key=lambda link: link.slowdown)
        accused = np.unique(np.concatenate([link.traffic.ranks for link in slow]))
        numbers = frame.rank_numbers(accused)
        level, basis = text.confidence(frame, cost, len(frame.steps), of_transfer=True)
        rank, step = np.unravel_index(int(excess.argmax()), excess.shape)
        return Fault(
            change=change,
            ranks=numbers,
            steps=frame.all_steps,
            cause=None,
            confidence=level,
            title=f"The link between {_place(accused, frame)} is slow: the same {worst.traffic.kind} takes "
            f"{worst.slowdown:.1f} times as long as in other groups.",
            why=f"{len(slow)} of {len(links)} groups that have peers are slow. The slowest moves "
            f"{text.gigabytes_per_second(worst.traffic.bus_rate)} on the bus, its peers "
            f"{text.gigabytes_per_second(worst.usual_bus_rate)}. {_transport(network, numbers)}{basis}",
            fix=_fix(frame, slow),
            evidence=(places.longest(int(rank), int(step), RankOwner.COMMUNICATION, "A transfer over the slow link."),),
        )


def _place(accused: Ints, frame: Frame) -> str:
    """The accused ranks (indices) in words, with their node where they are all that it has."""
    named = text.ranks(frame.rank_numbers(accused))
    inside = {frame.nodes[rank] for rank in accused.tolist()}
    if len(inside) > 1 or [frame.nodes[rank] in inside for rank in range(len(frame.ranks))].count(True) > len(accused):
        return named
    return f"{named}, all of {node}," if (node := inside.pop()) else named


def _transport(network: Network | None, accused: Sequence[int]) -> str:
    """What the accused ranks go through that no other rank does, by NCCL's logs; else what all do."""
    if network is None:
        return ""
    own = [name for name, ranks in network.transports.items() if ranks and set(ranks) <= set(accused)]
    if own and len(own) < len(network.transports):
        return f"By NCCL's log they alone use {text.listing(own)}. "
    return text.network(network)


def _fix(frame: Frame, slow: Sequence[Link]) -> str:
    ranks = ",".join(str(rank) for rank in frame.rank_numbers(slow[0].traffic.ranks)[:8])
    return f"""\
Measure the link without the job, on those nodes and on others, and compare. Then look at what NCCL uses there \
(P2P, SHM, NET/IB or NET/Socket; GDRDMA or not), and at the hardware: link width and errors.

NCCL_DEBUG=INFO all_reduce_perf -b 8M -e 256M -f 2 -g 1   # with mpirun, where ranks {ranks} run
nvidia-smi nvlink --status; nvidia-smi topo -m            # NVLink up, and the path between the GPUs
nvidia-smi --query-gpu=index,pcie.link.gen.current,pcie.link.width.current --format=csv
ibstat; ethtool <interface>                               # rate and state of the network card"""
