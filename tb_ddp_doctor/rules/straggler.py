"""See `Straggler`."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.model import CpuTime, RankOwner
from tb_ddp_doctor.facts.arrivals import Arrivals
from tb_ddp_doctor.facts.change import Change
from tb_ddp_doctor.facts.compute import KernelTable, Phases
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.host import OpStalls, Stalls
from tb_ddp_doctor.facts.links import Link, excess_ns
from tb_ddp_doctor.facts.whatif import WhatIf
from tb_ddp_doctor.findings import Evidence
from tb_ddp_doctor.job.model import Budget
from tb_ddp_doctor.rules import op_stall
from tb_ddp_doctor.rules.support import activity, limits, text
from tb_ddp_doctor.rules.support.base import Clear, Fault, Result, Rule, threshold
from tb_ddp_doctor.rules.support.slow_ranks import HOST_OWNERS, Limits, Peers
from tb_ddp_doctor.rules.support.slowness import Slowness, longest_wait, slowness
from tb_ddp_doctor.step_parts import OWNERS
from tb_ddp_doctor.trace.model import Ints

#: Ranks that are late by no less than this share of each other's lateness are one finding.
_ALIKE = 0.5
#: The same of nodes most of whose ranks are slow, and of two ranks that are most of a node; of more it is no chance.
_ALIKE_NODES = 0.2
_MANY_ON_NODE = 3


@dataclass(frozen=True)
class Straggler(Rule):
    """One or several ranks are stragglers: slower than the median rank in every step, and all other ranks wait.

    What:
        Ranks with a longer busy time (replayed without straggler wait) than the median rank, step after step, and nodes
        with only such ranks. Ranks with different causes are separate findings, and so are ranks that are late by much
        less.
    Why:
        Every collective ends when its last rank arrives: one slow rank sets the step time of the whole job.
    Evidence:
        The longest straggler wait that it caused on another rank, and what it did itself meanwhile. The cause is the
        owner in which it exceeds the median rank most: `input` (its DataLoader), `host` (its Python, launches or
        syncs), `more_work` (more kernels, or larger ones), `slow_device` (the same kernels, slower), `slow_link` (its
        communication, slower than in comparable groups), otherwise `unknown`. If the traces have phases, the phase in
        which it falls behind.
    Fix:
        By cause: balance the shards; find what only this rank does on its CPU; check its GPU's clocks; measure its
        links.
    Limits:
        At least two ranks with matched collectives. If most ranks are slow, they are compared with those that are much
        faster, provided that these do as much work. An excess below five standard errors of the ranks' step times, and
        below 15 % of the step, is noise. Ranks that share a GPU slow each other. The cost of slow links is slow-link's.
        If several causes cost time together, each gets its part by what it costs once the other ones are fixed.
    """

    id: ClassVar[str] = "straggler"
    of_every_program: ClassVar[bool] = True
    looks_again: ClassVar[bool] = True
    names_stragglers: ClassVar[bool] = True

    min_excess: float = threshold(*limits.SLOW_RANK)
    min_steps: float = threshold(*limits.SLOW_RANK_STEPS)
    same_work: float = threshold(
        0.05, "relative", "Up to this many more kernels are the same work: autotuning picks other kernels on each rank."
    )
    larger_share: float = threshold(
        0.20, "of compute", "From this share of compute time in kernels with larger grids on, the work is larger."
    )
    slow_link: float = threshold(*limits.SLOW_LINK)

    def check(
        self,
        *,
        frame: Frame,
        budget: Budget,
        whatif: WhatIf,
        arrivals: Arrivals,
        kernels: KernelTable,
        phases: Phases,
        links: tuple[Link, ...],
        stalls: Stalls,
        op_stalls: OpStalls,
        places: Places,
    ) -> Result:
        found = slowness(whatif, frame, self.min_excess, self.min_steps)
        if not len(found.persistent):
            worst = float(found.excess_ns.mean(axis=1).max())
            return Clear(
                f"No rank alone needs more than {text.ms(max(worst, 0))} longer than the median rank, on average."
            )
        others = np.setdiff1d(np.arange(len(frame.ranks)), found.persistent)
        slow_links = [link for link in links if link.is_slow(self.slow_link, self.min_steps)]
        peers = Peers.of(others, found, frame, budget, whatif, kernels, phases)
        limits = Limits(self.same_work, self.larger_share)
        causes, seen = {}, {}
        for rank in found.persistent.tolist():
            causes[rank], seen[rank] = peers.cause(rank, limits, slow_links)
        # Who shows its cause goes before who has it from its node: the finding describes the first.
        assumed = sorted(_as_their_nodes(causes, frame).items(), key=lambda item: item[1] != causes[item[0]])
        groups = _alike(assumed, found.excess_ns.mean(axis=1), frame)
        change = []
        for cause, stragglers in groups:
            chosen = found.persistently(stragglers)
            if cause == "slow_link":
                charged = excess_ns(slow_links, len(frame.ranks), len(frame.steps))
                left = np.where(chosen, found.excess_ns - charged, 0)
                change.append(Change(transfer_ns=np.maximum(left, 0)))
            else:
                change.append(whatif.like_the_median(chosen, found.among))
            if cause == "host":
                seen[stragglers[0]] += _told(stragglers[0], others, stalls)
                seen[stragglers[0]] += _stalled(stragglers[0], others, whatif, op_stalls)
        return tuple(
            _fault(cause, stragglers, seen[stragglers[0]], gone, cost, found, frame, budget, arrivals, places)
            for (cause, stragglers), gone, cost in zip(groups, change, whatif.costs_ns(change), strict=True)
        )


def _alike(
    causes: Sequence[tuple[int, str]], excess_ns: NDArray[np.float64], frame: Frame
) -> list[tuple[str, list[int]]]:
    """Ranks (indices) with one cause that are one finding, those that are latest first.

    The ranks of a node with one cause are one if they are most of the node, three of them whatever the ratio of their
    lateness. Such nodes, and single ranks, are one if they are late by about as much: beside a rank that is late by far
    more, another one makes nobody wait.
    """
    units: dict[tuple[str, object], list[int]] = {}
    for cause in dict(causes[::-1]).values():
        of_cause = [rank for rank, its in causes if its == cause]
        nodes = [
            node
            for node, count in text.most_of_nodes(of_cause, frame).items()
            if count >= _MANY_ON_NODE or _within(excess_ns[[r for r in of_cause if frame.nodes[r] == node]])
        ]
        for rank, its in causes:
            if its == cause:
                unit = units.setdefault((cause, frame.nodes[rank] if frame.nodes[rank] in nodes else rank), [])
                unit += [rank] if rank not in unit else []
    groups: list[tuple[str, list[int]]] = []
    first: list[tuple[float, bool]] = []
    late = {key: float(excess_ns[unit].mean()) for key, unit in units.items()}
    for (cause, place), unit in sorted(units.items(), key=lambda item: -late[item[0]]):
        of_node = isinstance(place, str)
        for (known, ranks), (most, by_node) in zip(groups, first, strict=True):
            least = _ALIKE_NODES if of_node and by_node else _ALIKE
            if known == cause and late[cause, place] >= least * most:
                ranks += unit
                break
        else:
            groups.append((cause, [*unit]))
            first.append((late[cause, place], of_node))
    return sorted(groups, key=lambda group: -max(excess_ns[rank] for rank in group[1]))


def _within(excess_ns: NDArray[np.float64]) -> bool:
    return float(excess_ns.min()) >= _ALIKE_NODES * float(excess_ns.max())


def _as_their_nodes(causes: Mapping[int, str], frame: Frame) -> dict[int, str]:
    """The causes of ranks (indices); where most of a node is slow, ranks that show none have the one of most of it."""
    known: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for rank, cause in causes.items():
        if cause != "unknown":
            known[frame.nodes[rank]][cause] += 1
    slow = text.most_of_nodes(list(causes), frame)
    return {
        rank: known[node].most_common(1)[0][0] if cause == "unknown" and node in slow and known[node] else cause
        for rank, cause, node in ((rank, cause, frame.nodes[rank]) for rank, cause in causes.items())
    }


def _told(rank: int, others: Ints, stalls: Stalls) -> str:
    """What stacks or annotations tell of the host of a rank (index), if they tell most of its extra stalls."""
    mean = stalls.long_ns.mean(axis=1)
    extra = float(mean[rank] - np.median(mean[others])) if len(others) else 0.0
    known = activity.most(stalls.doing([rank]), max(extra / 2, 1.0)) if extra > 0 else None
    return f" It spends {known[1]}." if known else ""


def _stalled(rank: int, others: Ints, whatif: WhatIf, stalls: OpStalls) -> str:
    """What the stalls inside ops of a rank (index) are, if they are much of its CPU's excess."""
    mine = stalls.of(rank)
    spent = whatif.host_ns(CpuTime.OP_STALL).mean(axis=1)
    extra = float(spent[rank] - np.median(spent[others])) if len(others) else 0.0
    more = whatif.host_ns(CpuTime.WORK).mean(axis=1)
    if not mine or extra <= max(float(more[rank] - np.median(more[others])), 0.0):
        return ""
    cause = op_stall.cause_of(mine)
    return (
        f" Its CPU has {op_stall.described(mine, whatif.shape[1])}, {text.ms(extra)} a step more than the median "
        f"rank, in {op_stall.named(mine)}: {op_stall.MEANING[cause]}."
    )


def _fault(
    cause: str,
    stragglers: list[int],
    seen: str,
    change: Change,
    cost: float,
    found: Slowness,
    frame: Frame,
    budget: Budget,
    arrivals: Arrivals,
    places: Places,
) -> Fault:
    """The finding on ranks (indices, slowest first) that are slow for one cause."""
    others = np.setdiff1d(np.arange(len(frame.ranks)), found.persistent)
    rows = np.array(stragglers)
    level, basis = text.confidence(
        frame, cost, int(found.slow[rows].all(axis=0).sum()), stragglers, on_host=cause in ("host", "input")
    )
    named = text.who(sorted(stragglers), frame)
    waited = float(budget.of("wait")[others].mean())
    if found.persistent[0] in stragglers:
        verb = "is the straggler" if len(stragglers) == 1 else "are stragglers"
        holds = f"{verb}: the other ranks wait {text.ms(waited)} of every {text.ms(frame.step_ns)}."
    else:
        late = float(found.excess_ns[rows].mean())
        verb = "is the next straggler" if len(stragglers) == 1 else "are the next stragglers"
        holds = f"{verb}, {text.ms(late)} a step slower than the median rank."
    subject = text.capital(seen) if len(stragglers) == 1 else f"Rank {frame.ranks[stragglers[0]]}: {seen}"
    return Fault(
        change=change,
        ranks=tuple(sorted(frame.rank_numbers(rows))),
        steps=tuple(int(step) for step in frame.steps[found.slow[rows].any(axis=0)]),
        cause=cause,
        confidence=level,
        title=f"{text.capital(named)} {holds}",
        why=f"{subject} {_lateness(rows, arrivals)} {basis}",
        fix=_fix(cause, stragglers, frame),
        evidence=_evidence(rows, cause, frame, budget, arrivals, places),
    )


#: Goes before the fix where whole nodes are slow.
_NODE = """\
All ranks of a node are slow: look first at what they share, its power and cooling, its cores and their governor, its \
storage and its network card. """

_FIXES = {
    "input": """\
Look at the storage and the CPU load of that host, and at the samples of {ranks}: give every rank the same number \
(drop_last), and enough DataLoader workers.

loader = DataLoader(
    dataset,
    batch_size=batch_size,
    sampler=DistributedSampler(dataset, drop_last=True),
    num_workers=4,
    persistent_workers=True,
    pin_memory=True,
)""",
    "host": """\
Look for CPU work outside any op on {ranks} alone: logging, evaluating or saving on one rank, a lock, or \
another process on the same cores. Move it out of the training loop, or do it less often. While it trains, on that host:

py-spy dump --pid {pid}   # {at}
top -H -p {pid}""",
    "more_work": """\
Give every rank the same work: shard by size and not by count, bucket sequences by length, drop the incomplete last \
batch, and do no extra work on one rank (validation, metrics, a larger shard).

sampler = DistributedSampler(dataset, shuffle=True, drop_last=True)
for epoch in range(epochs):
    sampler.set_epoch(epoch)""",
    "slow_device": """\
The GPU of {ranks} is slower: look for thermal or power throttling, another process on it, or a smaller share of it \
(MIG, MPS). On that host:

nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE,POWER
nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv""",
    "slow_link": """\
Measure the links of {ranks} and of other ranks without the job (nccl-tests) and compare; then look at what NCCL uses \
there, at cables, switch ports and link widths.

NCCL_DEBUG=INFO all_reduce_perf -b 8M -e 256M -f 2 -g 1
nvidia-smi topo -m; nvidia-smi nvlink --status; ibstat""",
    "unknown": """\
Compare {ranks} with another rank in the evidence windows; capture again with stacks and shapes to see more.

with torch.profiler.profile(record_shapes=True, with_stack=True, ...) as prof:
    ...""",
}


#: For ranks that compute on CPUs, where it is not the same.
_FIXES_OF_CPUS = {
    "input": """\
Look at the storage and the CPU load of that host, and at the samples of {ranks}: give every rank the same number \
(drop_last), and enough DataLoader workers.

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
taskset -cp {pid}         # its cores; other ranks should have different ones
lscpu -e=CPU,CORE,MHZ
OMP_NUM_THREADS=<cores per rank> torchrun ...""",
}

#: For programs that do not train.
_FIXES_OF_INFERENCE = {
    "host": """\
Look for CPU work outside any op on {ranks} alone: scheduling, tokenizing, logging or answering on one rank, a lock, \
or another process on the same cores. Move it out of the iteration loop. While it runs, on that host:

py-spy dump --pid {pid}   # {at}
top -H -p {pid}""",
    "more_work": """\
Give every rank the same work: balance requests or samples by their length and not by their number, and experts by how \
often they are chosen; do no extra work on one rank.""",
}


def _fix(cause: str, stragglers: Sequence[int], frame: Frame) -> str:
    """The fix for ranks (indices, slowest first); what a trace says goes into a command only where it is harmless."""
    pid, node = frame.pids[stragglers[0]], frame.nodes[stragglers[0]]
    at = f"rank {frame.ranks[stragglers[0]]}" + (f", on {node}" if re.fullmatch(r"[\w.-]+", node) else "")
    pid = pid if re.fullmatch(r"\d+", pid, re.ASCII) else "<pid of the rank>"
    fixes = _FIXES | ({} if frame.has_device else _FIXES_OF_CPUS) | ({} if frame.trains else _FIXES_OF_INFERENCE)
    shared = _NODE if text.most_of_nodes(stragglers, frame) else ""
    numbers = sorted(frame.rank_numbers(np.array(stragglers)))
    return shared + fixes[cause].format(ranks=text.ranks(numbers), pid=pid, at=at)


def _lateness(stragglers: Ints, arrivals: Arrivals) -> str:
    waited = arrivals.longest_wait_ns > 0.1 * arrivals.longest_wait_ns.max(initial=0)
    late = int(np.isin(arrivals.last[waited], stragglers).sum())
    subject = "It arrives" if len(stragglers) == 1 else "One of them arrives"
    return f"{subject} last at {late} of the {int(waited.sum())} collectives in which other ranks wait."


def _evidence(
    stragglers: Ints, cause: str, frame: Frame, budget: Budget, arrivals: Arrivals, places: Places
) -> tuple[Evidence, ...]:
    """What each straggler does in its worst step, and the longest wait that follows from it."""
    windows = []
    for rank in stragglers[:4].tolist():
        step = int(budget.busy_ns[rank].argmax())
        if cause == "host":
            owner = max(HOST_OWNERS, key=lambda owner: int(budget.of(owner)[rank, step]))
            windows.append(places.longest(rank, step, RankOwner[owner.upper()], text.idle(frame, OWNERS[owner].cpu)))
        elif cause == "input":
            what = text.idle(frame, OWNERS["input"].cpu)
            windows.append(places.longest(rank, step, RankOwner.INPUT, what))
        else:
            windows.append(places.window(rank, step, "The whole step: it computes while the other ranks wait."))
    windows += longest_wait(stragglers, frame, arrivals, places)
    return tuple(windows)
