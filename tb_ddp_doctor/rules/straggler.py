"""See `Straggler`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tb_ddp_doctor.digest.model import RankOwner
from tb_ddp_doctor.findings import OWNERS, Evidence
from tb_ddp_doctor.job.model import Budget
from tb_ddp_doctor.job.whatif import WhatIf
from tb_ddp_doctor.rules import activity, words, work_compared
from tb_ddp_doctor.rules.base import Clear, Fault, Result, Rule, threshold
from tb_ddp_doctor.rules.inputs import Arrivals, Frame, KernelTable, Places, Stalls
from tb_ddp_doctor.rules.slowness import Slowness, longest_wait, slowness
from tb_ddp_doctor.trace.model import Ints

_HOST_OWNERS = ("sync", "alloc", "dispatch", "host")


@dataclass(frozen=True)
class Straggler(Rule):
    """One rank, or a few, are slower than the others in every step, and the others wait for them.

    What:
        Ranks whose own time (the step without waiting) exceeds the usual rank's, step after step.
    Why:
        Every collective ends when its last rank arrives: one slow rank sets the pace of the whole job.
    Evidence:
        The longest wait that it caused on another rank, and what it did itself meanwhile. The cause is the owner that
        its budget has more of than the others': `input` (its DataLoader), `host` (its Python, its launches or its
        synchronisation), `more_work` (more kernels, or larger ones), `slow_device` (the same kernels, slower), else
        `unknown`.
    Fix:
        By cause: balance the shards; find what only this rank does on its host; check its GPU's clocks.
    Limits:
        At least two ranks with matched collectives. Half of the ranks must be well: if most are slow, the others are
        the odd ones. Ranks that share a device slow each other.
    """

    id: ClassVar[str] = "straggler"

    min_excess: float = threshold(
        0.03, "of the step", "Healthy jobs of 4 and 8 ranks stay under 2 %; less is not worth a warning."
    )
    min_steps: float = threshold(0.75, "of the steps", "A rank that is slow now and then is load-imbalance.")
    same_work: float = threshold(
        0.05, "relative", "Fewer kernels than this more are the same work: autotuning picks other kernels by rank."
    )
    larger_share: float = threshold(
        0.20, "of compute", "Share of compute time in kernels with larger grids from which on the work is larger."
    )

    def check(
        self,
        *,
        frame: Frame,
        budget: Budget,
        whatif: WhatIf,
        arrivals: Arrivals,
        kernels: KernelTable,
        stalls: Stalls,
        places: Places,
    ) -> Result:
        found = slowness(whatif.own_ns, frame, self.min_excess, self.min_steps)
        if not len(found.persistent):
            worst = float(found.excess_ns.mean(axis=1).max())
            return Clear(f"No rank's own time exceeds the usual by more than {words.ms(max(worst, 0))} on average.")
        cost = whatif.cost_ns(found.persistent_excess_ns())
        accused = found.persistent
        others = np.setdiff1d(np.arange(len(frame.ranks)), accused)
        numbers = frame.rank_numbers(accused)
        cause, seen = self._cause(int(accused[0]), others, frame, budget, kernels)
        told = _told(int(accused[0]), others, stalls) if cause == "host" else ""
        level, basis = words.confidence(
            frame,
            cost,
            int(found.slow[accused].all(axis=0).sum()),
            accused.tolist(),
            on_host=cause in ("host", "input"),
        )
        waited = float(budget.of("wait")[others].mean())
        verb = "holds" if len(numbers) == 1 else "hold"
        return Fault(
            cost_ns=cost,
            ranks=tuple(sorted(numbers)),
            steps=_slow_steps(found, frame),
            cause=cause,
            confidence=level,
            title=f"{words.capital(words.ranks(sorted(numbers)))} {verb} up the job: the others wait "
            f"{words.ms(waited)} of every {words.ms(frame.step_ns)}.",
            why=f"{seen}{told} {_lateness(accused, arrivals)} {basis}",
            fix=_fix(cause, sorted(numbers), int(accused[0]), frame),
            evidence=_evidence(accused, cause, frame, budget, arrivals, places),
        )

    def _cause(self, rank: int, others: Ints, frame: Frame, budget: Budget, kernels: KernelTable) -> tuple[str, str]:
        """The cause, and the sentence that says what was seen."""
        mean = budget.owner_ns.mean(axis=1)
        usual = np.median(mean[others], axis=0)
        more = {owner: float(mean[rank, i] - usual[i]) for i, owner in enumerate(OWNERS) if owner != "wait"}
        groups = {
            "input": more["input"],
            "host": sum(more[owner] for owner in _HOST_OWNERS),
            "compute": more["compute"],
            "copy": more["copy"],
            "transfer": more["transfer"],
        }
        largest = max(groups, key=lambda group: groups[group])
        extra = words.ms(groups[largest])
        if groups[largest] <= 0:
            return "unknown", "No owner of its step explains it."
        if largest == "input":
            return "input", f"It waits {extra} a step longer for its DataLoader than the others."
        if largest == "host":
            owner = max(_HOST_OWNERS, key=lambda owner: more[owner])
            if not frame.has_device:
                return "host", f"Its host {_DOING[owner]}, {extra} a step longer than the others'."
            return "host", f"Its device idles {extra} a step longer than the others' while its host {_DOING[owner]}."
        if largest == "compute":
            return self._compute_cause(rank, others, frame, kernels, extra)
        return "unknown", f"It spends {extra} a step more in {largest} than the others."

    def _compute_cause(
        self, rank: int, others: Ints, frame: Frame, kernels: KernelTable, extra: str
    ) -> tuple[str, str]:
        units, larger_units = ("kernels", "kernels with larger grids")
        if not frame.has_device:
            units, larger_units = ("operators", "operators on larger tensors")
        launches = kernels.launches()
        usual_rank = int(others[np.argsort(launches[others], kind="stable")[len(others) // 2]])
        mine, peer = kernels.of(rank), kernels.of(usual_rank)
        count, usual = int(launches[rank]), int(launches[usual_rank])
        if usual and count > usual * (1 + self.same_work):
            return "more_work", f"It computes {extra} a step longer, in {count / usual:.2f} times as many {units}."
        larger = work_compared.larger_share(mine, peer)
        if larger > self.larger_share:
            share = words.percent(larger)
            return (
                "more_work",
                f"It computes {extra} a step longer: {share} of its time is in {larger_units}.",
            )
        ratio = work_compared.slowdown(mine, peer)
        if ratio < 1 + self.same_work:
            if not mine:
                return "unknown", f"It computes {extra} a step longer; without shapes the trace does not say why."
            return "unknown", f"It computes {extra} a step longer, in other {units} than the others."
        return (
            "slow_device",
            f"It computes {extra} a step longer, in the same {units}: each takes {ratio:.2f} times as long.",
        )


def _told(rank: int, others: Ints, stalls: Stalls) -> str:
    """What stacks or annotations tell of the host of a rank (index), if they tell most of its extra stalls."""
    mean = stalls.long_ns.mean(axis=1)
    extra = float(mean[rank] - np.median(mean[others])) if len(others) else 0.0
    known = activity.most(stalls.doing([rank]), max(extra / 2, 1.0)) if extra > 0 else None
    return f" It spends {known[1]}." if known else ""


_DOING = {
    "sync": "waits in a synchronising call",
    "alloc": "allocates device memory",
    "dispatch": "is busy inside operations and launches",
    "host": "is in no operation: Python, logging, garbage collection or I/O",
}

_FIXES = {
    "input": """\
Look at the storage and the CPU load of that host, and at the samples dealt to {ranks}: give every rank as many, and \
enough loader workers.

loader = DataLoader(
    dataset,
    batch_size=batch_size,
    sampler=DistributedSampler(dataset, drop_last=True),
    num_workers=4,
    persistent_workers=True,
    pin_memory=True,
)""",
    "host": """\
Look for what is done on {ranks} alone, between operations: logging, metrics, checkpoints, a lock, or another process \
on the same cores. Move it off the training loop, or do it less often. While it trains, on that host:

py-spy dump --pid {pid}   # {at}
top -H -p {pid}""",
    "more_work": """\
Give every rank the same work: shard by size and not by count, bucket sequences by length, drop the ragged last batch, \
and let no rank alone compute extra (validation, metrics, a larger shard).

sampler = DistributedSampler(dataset, shuffle=True, drop_last=True)
for epoch in range(epochs):
    sampler.set_epoch(epoch)""",
    "slow_device": """\
The device of {ranks} is slower: look for thermal or power throttling, another process on it, or a smaller share of \
it (MIG, MPS). On that host:

nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE,POWER
nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv""",
    "unknown": """\
Compare {ranks} with another rank in the evidence windows; capture again with stacks and shapes to see more.

with torch.profiler.profile(record_shapes=True, with_stack=True, ...) as prof:
    ...""",
}


#: For ranks that compute on CPUs, where it is not the same.
_FIXES_OF_CPUS = {
    "input": """\
Look at the storage and the CPU load of that host, and at the samples dealt to {ranks}: give every rank as many, and \
enough loader workers.

loader = DataLoader(
    dataset,
    batch_size=batch_size,
    sampler=DistributedSampler(dataset, drop_last=True),
    num_workers=4,  # the ranks of a host share its cores
    persistent_workers=True,
)""",
    "slow_device": """\
The CPU of {ranks} is slower: look for another process on its cores, more threads than cores, a CPU quota (cgroups), \
or a lower clock. Give each rank cores of its own. On that host:

top -H -p {pid}           # {at}
taskset -cp {pid}         # its cores; other ranks should have others
lscpu -e=CPU,CORE,MHZ
OMP_NUM_THREADS=<cores per rank> torchrun ...""",
}


def _fix(cause: str, numbers: list[int], worst: int, frame: Frame) -> str:
    """The fix for the slowest rank (index); what a trace says goes into a command only where it is harmless."""
    pid, node = frame.pids[worst], frame.nodes[worst]
    at = f"rank {frame.ranks[worst]}" + (f", on {node}" if re.fullmatch(r"[\w.-]+", node) else "")
    pid = pid if re.fullmatch(r"\d+", pid, re.ASCII) else "<pid of the rank>"
    fixes = _FIXES if frame.has_device else _FIXES | _FIXES_OF_CPUS
    return fixes[cause].format(ranks=words.ranks(numbers), pid=pid, at=at)


def _slow_steps(found: Slowness, frame: Frame) -> tuple[int, ...]:
    return tuple(int(step) for step in frame.steps[found.slow[found.persistent].any(axis=0)])


def _lateness(accused: Ints, arrivals: Arrivals) -> str:
    waited = arrivals.longest_wait_ns > 0.1 * arrivals.longest_wait_ns.max(initial=0)
    late = int(np.isin(arrivals.last[waited], accused).sum())
    subject = "It arrives" if len(accused) == 1 else "One of them arrives"
    return f"{subject} last at {late} of the {int(waited.sum())} collectives that others wait in."


def _evidence(
    accused: Ints, cause: str, frame: Frame, budget: Budget, arrivals: Arrivals, places: Places
) -> tuple[Evidence, ...]:
    """What each accused rank does in its worst step, and the longest wait that follows from it."""
    windows = []
    for rank in accused[:4].tolist():
        step = int(budget.own_ns[rank].argmax())
        if cause == "host":
            owner = max(_HOST_OWNERS, key=lambda owner: int(budget.of(owner)[rank, step]))
            windows.append(places.longest(rank, step, RankOwner[owner.upper()], words.idle(frame, _DOING[owner])))
        elif cause == "input":
            what = words.idle(frame, "is in the DataLoader's __next__")
            windows.append(places.longest(rank, step, RankOwner.INPUT, what))
        else:
            windows.append(places.window(rank, step, "The whole step: it computes while the others wait."))
    windows += longest_wait(accused, frame, arrivals, places)
    return tuple(windows)
