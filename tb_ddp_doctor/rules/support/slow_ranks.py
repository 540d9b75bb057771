"""Why a rank is slower than the median rank: where its budget and its compute exceed that rank's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor import kernel_names, wording
from tb_ddp_doctor.digest.model import CpuTime
from tb_ddp_doctor.facts.compute import Copied, KernelKind, KernelTable, Phases
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.links import Link
from tb_ddp_doctor.job.model import Budget
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support import work_compared
from tb_ddp_doctor.rules.support.slowness import Slowness, behind
from tb_ddp_doctor.step_parts import IDLE, OWNERS
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Floats

#: The owners of idle time that is its CPU's; loading is a cause of its own.
HOST_OWNERS = tuple(owner for owner in IDLE if owner != "input")
#: Further launches are the cause from this share of what a rank computes longer on.
_MOST = 0.5
#: Kernels with larger grids tell how long a block takes if they take this share of compute.
_SOME = 0.02
#: What a CPU takes longer is named if the record shows this share of it as idle time of the device.
_SHOWN = 0.5
#: Copies are slow, or more, from this many times as long or as many bytes on.
_COPIES_DIFFER = 1.25


class WorkThresholds(msgspec.Struct, frozen=True):
    """Thresholds of `Straggler` on work."""

    same_work: float
    larger_share: float


def _gains(slow_ranks: Slowness, whatif: WhatIf) -> dict[str, NDArray[np.float64]]:
    """See `Peers.gains_ns`."""
    if not whatif.plays:
        return {}
    chosen = slow_ranks.slow & slow_ranks.persistently()
    others = [kind for kind in CpuTime if kind not in (CpuTime.INPUT, CpuTime.OVERHEAD, CpuTime.RECORDING)]
    return {
        group: (whatif.busy_ns - whatif.alone_ns(whatif.at_the_median(chosen, slow_ranks.among, kinds))).mean(axis=1)
        for group, kinds in (("input", [CpuTime.INPUT]), ("host", others))
    }


class Peers(msgspec.Struct, frozen=True, eq=False):
    """The ranks of a job, slow ones and those that they are compared with. R = ranks."""

    #: Mean over steps, shape (R, owners) and (R, phases), ns; and the median of the ranks that are well.
    owner_ns: NDArray[np.float64]
    median_owner_ns: NDArray[np.float64]
    #: How much longer than the others' each host is in its DataLoader, shape (R,), ns; mean over steps.
    loads_longer_ns: NDArray[np.float64]
    #: How much less each rank needs by itself if its loading, or the rest of its host's time, were as the median
    #: rank's, shape (R,), ns; empty where steps are not played.
    gains_ns: Mapping[str, NDArray[np.float64]]
    phase_ns: NDArray[np.float64]
    median_phase_ns: NDArray[np.float64]
    phases: Phases
    has_device: bool
    kernels: KernelTable
    #: Kernels that each rank launches in a step, shape (R,); of the rank that is well with the median number of them.
    launches: Floats
    median_launches: float
    median_kernels: Mapping[tuple[str, str], KernelKind]
    copied: Copied
    #: The rank (index) that is well and copies the median number of bytes.
    median_copied: int

    @classmethod
    def by_role(
        cls,
        slow_ranks: Slowness,
        frame: Frame,
        budget: Budget,
        whatif: WhatIf,
        kernels: KernelTable,
        phases: Phases,
        copied: Copied,
    ) -> dict[str, Peers]:
        """The ranks, by role of the slow ones: those that they are compared with have it too."""
        loading = whatif.host_ns(CpuTime.INPUT).mean(axis=1)
        owner_ns, phase_ns = budget.owner_ns.mean(axis=1), phases.busy_ns.mean(axis=1)
        launches, gains_ns = kernels.launches(), _gains(slow_ranks, whatif)
        peers = {}
        for role in np.unique(slow_ranks.roles[slow_ranks.persistent]).tolist():
            well = slow_ranks.others_of(role)
            typical = int(well[np.argsort(launches[well], kind="stable")[len(well) // 2]])
            peers[role] = cls(
                owner_ns,
                np.median(owner_ns[well], axis=0),
                loading - np.median(loading[well]),
                gains_ns,
                phase_ns,
                np.median(phase_ns[well], axis=0),
                phases,
                frame.has_device,
                kernels,
                launches,
                float(launches[typical]),
                kernels.of(typical),
                copied,
                int(well[np.argsort(copied.total_bytes[well], kind="stable")[len(well) // 2]]),
            )
        return peers

    def cause(self, rank: int, limits: WorkThresholds, slow_links: Sequence[Link]) -> tuple[str, str]:
        """The cause, and the sentence that says what was seen of the rank: "it ..."."""
        more = dict(zip(OWNERS, (self.owner_ns[rank] - self.median_owner_ns).tolist(), strict=True))
        groups = {
            # While the others wait for this rank, their loading idles no device of theirs.
            "input": min(more["input"], float(self.loads_longer_ns[rank])),
            "host": sum(max(more[owner], 0) for owner in HOST_OWNERS),
            "compute": more["compute"],
            "copy": more["copy"],
            "transfer": more["transfer"],
        }
        groups |= {group: float(gain[rank]) for group, gain in self.gains_ns.items()}
        largest = max(groups, key=lambda group: groups[group])
        extra = wording.ms(groups[largest])
        phase = behind("It", self.phase_ns[rank] - self.median_phase_ns, self.phases)
        if groups[largest] <= 0:
            return "unknown", "no part of its step explains it."
        if largest == "input":
            return "input", f"it waits {extra} a step longer for its DataLoader than the median rank."
        if largest == "host":
            owner = max(HOST_OWNERS, key=lambda owner: more[owner])
            if not self.has_device:
                return "host", f"its CPU {OWNERS[owner].cpu}, {extra} a step longer than the median rank's.{phase}"
            if sum(max(more[one], 0) for one in HOST_OWNERS) < _SHOWN * groups["host"]:
                hidden = "its GPU does not idle for that as long as it waits for others."
                return "host", f"its CPU takes {extra} a step longer than the median rank's; {hidden}{phase}"
            idle = f"its GPU idles {extra} a step longer than the median rank's while its CPU {OWNERS[owner].cpu}."
            return "host", f"{idle}{phase}"
        if largest == "compute":
            cause, what = self._compute_cause(rank, limits)
            return cause, f"it computes {extra} a step longer{what}{phase}"
        slow = [link for link in slow_links if rank in link.traffic.ranks]
        if largest == "transfer" and slow:
            worst = max(slow, key=lambda link: link.slowdown)
            return "slow_link", (
                f"it spends {extra} a step more in communication than the median rank: {worst.traffic.kind} takes "
                f"{wording.decimals(worst.slowdown, 1)} times as long as in comparable groups. The cost of that is "
                "in slow-link."
            )
        more_copied = self._copies(rank) if largest == "copy" else None
        if more_copied:
            cause, what = more_copied
            return cause, f"it copies {extra} a step longer than the median rank: {what}."
        return "unknown", f"it spends {extra} a step more in {OWNERS[largest].spent.lower()} than the median rank."

    def _copies(self, rank: int) -> tuple[str, str] | None:
        """The cause of longer copies, and what differs; None where neither their bytes nor their rate do."""
        mine, peers = (float(self.copied.total_bytes[one]) for one in (rank, self.median_copied))
        if mine > _COPIES_DIFFER * peers:
            return "more_copies", f"{wording.size(mine)} instead of {wording.size(peers)}"
        rate, typical = (self.copied.bytes_per_second(one) for one in (rank, self.median_copied))
        if rate and typical > _COPIES_DIFFER * rate:
            return "slow_copies", (
                f"at {wording.gigabytes_per_second(rate)} instead of {wording.gigabytes_per_second(typical)}"
            )
        return None

    def _compute_cause(self, rank: int, limits: WorkThresholds) -> tuple[str, str]:
        """The cause of longer compute, and how the sentence on it goes on."""
        units, blocks, launches = (
            ("kernels", "blocks", "launches") if self.has_device else ("operators", "elements", "calls")
        )
        larger_units = "kernels with larger grids" if self.has_device else "operators on larger tensors"
        mine, peer = self.kernels.of(rank), self.median_kernels
        count, typical = float(self.launches[rank]), self.median_launches
        further = count > typical and work_compared.launched_share(mine, peer) >= _MOST
        if typical and (further or count > typical * (1 + limits.same_work)):
            named = _mostly(work_compared.most_launched(mine, peer), f"{launches} a step")
            return "more_work", f", in {wording.decimals(count / typical, 2)} times as many {units}{named}."
        share = work_compared.larger_share(mine, peer)
        is_large = share > limits.larger_share
        if is_large or (share > _SOME and work_compared.blocks_explain(mine, peer, limits.same_work)):
            named = _mostly(work_compared.most_enlarged(mine, peer), blocks)
            others = "" if is_large else f" Its other {units} take longer by as much: it has more to do."
            return "more_work", f": {wording.percent(share)} of its time is in {larger_units}{named}.{others}"
        ratio = work_compared.slowdown(mine, peer)
        most = work_compared.most_slowed(mine, peer)
        rest = work_compared.slowdown_without(mine, peer, names.looks_up_embeddings)
        if most and names.looks_up_embeddings(most.name) and rest < 1 + limits.same_work:
            # A slow device is slow in all kernels. How long a lookup takes depends on how many rows it reads.
            lookup = f"{kernel_names.short(most.name)} {wording.us(most.mine)} instead of {wording.us(most.peers)}"
            return "more_work", f", all of it in lookups of embedding tables, in the same kernels: {lookup}."
        if ratio < 1 + limits.same_work:
            if not mine:
                return "unknown", "; without shapes the trace does not show why."
            return "unknown", f", in other {units} than the median rank."
        named = (
            f" (the median), and {kernel_names.short(most.name)} {wording.us(most.mine)} instead of "
            f"{wording.us(most.peers)}"
            if most
            else ""
        )
        return "slow_device", f", in the same {units}: each takes {wording.decimals(ratio, 2)} times as long{named}."


def _mostly(most: work_compared.Difference | None, units: str) -> str:
    """How a sentence names the kernel of which a rank has most more than the median rank."""
    return (
        f", mostly {kernel_names.short(most.name)}: {wording.decimals(most.mine, 0)} {units} instead of "
        f"{wording.decimals(most.peers, 0)}"
        if most
        else ""
    )
