"""See `Straggler`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import msgspec
import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.model import CpuTime, RankOwner
from tb_ddp_doctor.evidence.model import RankEvidence
from tb_ddp_doctor.facts.arrivals import Arrivals
from tb_ddp_doctor.facts.compute import Copied, KernelTable, Phases
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.expected import Expected
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.host import HostOverheads, HostStalls, StallsInOps
from tb_ddp_doctor.facts.links import Link, at_median_rate
from tb_ddp_doctor.facts.modules import ModuleTree
from tb_ddp_doctor.facts.waits import Waits
from tb_ddp_doctor.findings import Evidence, Severity
from tb_ddp_doctor.job.model import Budget
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules import op_stall
from tb_ddp_doctor.rules.support import activity, causal_split, certainty, layers, limits, naming, part
from tb_ddp_doctor.rules.support import rank_evidence as beside
from tb_ddp_doctor.rules.support.base import Clear, Fault, Result, Rule, threshold
from tb_ddp_doctor.rules.support.causal_split import CAUSAL_SPLIT
from tb_ddp_doctor.rules.support.lateness import Lateness
from tb_ddp_doctor.rules.support.most_ranks import Most, most_ranks
from tb_ddp_doctor.rules.support.slow_engines import slow_engines
from tb_ddp_doctor.rules.support.slow_groups import SlowGroup, slow_groups
from tb_ddp_doctor.rules.support.slow_ranks import HOST_OWNERS, Peers, WorkThresholds
from tb_ddp_doctor.rules.support.slowness import Slowness, device_slower_since, longest_wait, slowness
from tb_ddp_doctor.rules.support.straggler_fixes import fix
from tb_ddp_doctor.step_parts import OWNERS
from tb_ddp_doctor.trace.model import Floats, Ints

#: Causes that a rank shows without the job too, where it is its hardware's.
_OF_HARDWARE = ("slow_device", "slow_link", "slow_copies", "host", "unknown")
#: Causes of longer compute, which lies in some of the model's modules.
_OF_COMPUTE = ("more_work", "slow_device", CAUSAL_SPLIT)
#: Stragglers whose worst steps are evidence.
_SHOWN = 4


class Straggler(Rule):
    """One or several ranks are stragglers: slower than the median rank in every step, and all other ranks wait.

    What:
        Ranks with a longer busy time (replayed without straggler wait) than the median rank, step after step, and nodes
        with only such ranks. Ranks with different causes are separate findings, and so are ranks that are late by much
        less.
    Why:
        Every collective ends when its last rank arrives: one slow rank sets the step time of the whole job.
    Evidence:
        How long the other ranks wait for this rank alone; a slow rank that waits as long as the others is no straggler
        yet, but the next one. The longest straggler wait that it caused on another rank, and what it did meanwhile. The
        cause is the owner in which it exceeds the median rank most: `input` (its DataLoader), `host` (its Python,
        launches or syncs), `more_work` (more kernels, or larger ones), `causal_split` (the same, and rising with the
        place in context parallelism: the cost is that of an even split), `slow_device` (the same kernels, slower),
        `slow_link` (its communication, slower than in comparable groups), `slow_copies` (as many bytes between CPU and
        GPU, slower), `more_copies` (more bytes), otherwise `unknown`. Where stacks or annotations show what its CPU
        does, that is the cause: `garbage_collection`, `checkpoint` or `logging`. If the traces have phases, the phase
        in which it falls behind; if they show modules or layers that repeat, in which of them it computes longer.
        Beside the traces: its GPU's clock and why it is throttled (a capture's own record, `nvidia-smi -q`, DCGM), how
        long its DataLoader's workers take, and where py-spy found its main thread.
    Fix:
        By cause: balance the shards; find what only this rank does on its CPU; check its GPU's clocks; measure its
        links; look at its PCIe link and the cores and memory that its process has.
    Limits:
        At least two ranks with matched collectives. If most ranks are slow, they are compared with those that are much
        faster, provided that these do as much work. An excess below three standard errors of the ranks' step times, or
        below five and below 15 % of the step, is noise. Where batches vary, ranks are compared as if these were even.
        Ranks that share a GPU slow each other. The cost of slow links is charged to slow-link. If several causes cost
        time together, they share the cost in proportion to what each costs once the other ones are fixed. Asynchronous
        engines of reinforcement learning are as busy as each other: one whose kernels take longer has fewer answers,
        and costs what all engines together would be faster without it, if those that train wait for samples.
    """

    id = "straggler"
    of_every_program = True
    looks_again = True
    names_stragglers = True
    refines = "communication-bound"

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
        waits: Waits,
        kernels: KernelTable,
        phases: Phases,
        copied: Copied,
        links: tuple[Link, ...],
        stalls: HostStalls,
        op_stalls: StallsInOps,
        rank_evidence: tuple[RankEvidence, ...],
        expected: Expected | None,
        modules: ModuleTree | None,
        overheads: HostOverheads,
        places: Places,
    ) -> Result:
        slow_ranks = slowness(whatif, frame, self.min_excess, self.min_steps)
        if not len(slow_ranks.persistent):
            return slow_engines(frame, whatif, kernels, places, slow_ranks.limit_ns) or Clear(
                f"No rank alone needs more than {wording.ms(max(float(slow_ranks.excess_ns.mean(axis=1).max()), 0))} "
                "longer than the median rank, on average."
            )
        slow_links = [link for link in links if link.is_slow(self.slow_link, self.min_steps)]
        causes = self._causes(
            Peers.by_role(slow_ranks, frame, budget, whatif, kernels, phases, copied),
            slow_ranks,
            most_ranks(whatif, frame, CpuTime.INPUT),
            slow_links,
        )
        if not causes:
            return Clear("Most ranks wait for their DataLoader: dataloader-stall reports that.")
        known = _known_stalls(causes, slow_ranks, stalls)
        causes, above_ns = _with_split(
            _with_stalls(causes, known), frame, whatif.device_ns if whatif.plays else budget.of("compute")
        )
        lateness = Lateness.of(slow_ranks, budget, waits, frame)
        changes = [
            (group, _change(group, slow_ranks, whatif, slow_links, above_ns))
            for group in _groups(causes, slow_ranks, lateness, frame)
        ]
        job = _Job(
            frame,
            budget,
            arrivals,
            places,
            slow_ranks,
            lateness,
            _More(frame, slow_ranks, whatif, op_stalls, rank_evidence, expected, modules, overheads.guard_ns),
            whatif.fixes_something,
        )
        return tuple(
            job.fault(group, causes[group.ranks[0]][1], change, cost_ns, known.get(group.ranks[0]))
            for (group, change), cost_ns in zip(
                changes, whatif.costs_ns([change for _, change in changes]), strict=True
            )
        )

    def _causes(
        self, peers: Mapping[str, Peers], slow_ranks: Slowness, loading: Most | None, slow_links: Sequence[Link]
    ) -> dict[int, tuple[str, str]]:
        """Why each persistently slow rank (index) is slow, and what was seen there, but for ranks that wait for their
        DataLoader as most ranks do: `loading` are these. `peers` are by role.
        """
        of_work = WorkThresholds(self.same_work, self.larger_share)
        causes = {
            rank: peers[str(slow_ranks.roles[rank])].cause(rank, of_work, slow_links)
            for rank in slow_ranks.persistent.tolist()
        }
        if loading is None:
            return causes
        return {rank: seen for rank, seen in causes.items() if seen[0] != "input" or not loading.ranks[rank]}


#: The cause of each slow rank (index), and what was seen there.
_Causes: TypeAlias = Mapping[int, tuple[str, str]]


def _with_split(causes: _Causes, frame: Frame, work_ns: Ints) -> tuple[dict[int, tuple[str, str]], Floats | None]:
    """The causes, where ranks with more work (`work_ns`, shape (R, S)) have it by how a causal sequence was split; and
    what each rank has above the mean then, shape (R, S), else None.
    """
    above_ns = causal_split.above_mean_ns(frame, work_ns)
    if above_ns is None:
        return dict(causes), None
    said = causal_split.described(frame.mesh, work_ns)
    split = {rank: (CAUSAL_SPLIT, f"{seen}{said}") for rank, (cause, seen) in causes.items() if cause == "more_work"}
    return {**causes, **split}, above_ns


class _More(msgspec.Struct, frozen=True, eq=False):
    """What else the traces, and the files beside them, say of slow ranks."""

    frame: Frame
    slow_ranks: Slowness
    whatif: WhatIf
    op_stalls: StallsInOps
    rank_evidence: tuple[RankEvidence, ...]
    expected: Expected | None
    modules: ModuleTree | None
    #: CPU time of torch.compile's guards, shape (R, S), ns.
    guard_ns: Ints

    def seen(self, group: SlowGroup) -> str:
        """What is seen on the first rank of a group beside its cause; each sentence after a space."""
        rank, cause, frame = group.ranks[0], group.cause, self.frame
        said = ""
        if cause == "host":
            said += _op_stalls(rank, self.slow_ranks.others_like(rank), self.whatif, self.op_stalls)
            said += _update(rank, self.slow_ranks, self.whatif)
            said += _guards(rank, self.slow_ranks, self.guard_ns)
        said += _since(rank, self.slow_ranks, self.whatif, frame)
        said += _beside_traces(cause, rank, self.rank_evidence)
        said += str(self.behind(group))
        if cause in _OF_HARDWARE:
            said += beside.of_check(int(frame.ranks[rank]), self.expected, len(frame.ranks) + frame.missing_ranks)
        return said

    def behind(self, group: SlowGroup) -> layers.Where:
        """The modules in which the first rank of a group computes longer, a sentence after a space."""
        if group.cause not in _OF_COMPUTE or not self.modules:
            return layers.Where()
        rank = group.ranks[0]
        excess_ns = float(self.slow_ranks.excess_ns[rank].mean())
        return layers.behind(self.modules, rank, self.slow_ranks.others_like(rank), excess_ns)


def _since(rank: int, slow_ranks: Slowness, whatif: WhatIf, frame: Frame) -> str:
    """From which step on a rank (index) is slow because its device became slower; a sentence after a space."""
    step = int(device_slower_since(slow_ranks.slow, whatif.pace)[rank])
    if step == len(frame.steps):
        return ""
    before, since = whatif.pace[rank, :step].mean(), whatif.pace[rank, step:].mean()
    return (
        f" It is slow from step {frame.steps[step]} on: the same kernels then take "
        f"{wording.decimals(float(since / before), 2)} times as long as before."
    )


def _beside_traces(cause: str, rank: int, known: Sequence[RankEvidence]) -> str:
    """What other files than traces say of the cause on a rank (index)."""
    match cause:
        case "slow_device":
            return beside.of_gpu(rank, known)
        case "input":
            return beside.of_loading(rank, known)
        case "host":
            return beside.of_stack([rank], known)
        case _:
            return ""


def _change(
    group: SlowGroup, slow_ranks: Slowness, whatif: WhatIf, slow_links: Sequence[Link], above_mean_ns: Floats | None
) -> Change:
    """What the fix takes out of the steps; what slow links cost is slow-link's.

    Work that is split in another way goes to the ranks that had less: `above_mean_ns` is what goes, shape (R, S).
    """
    chosen = slow_ranks.persistently(group.rows)
    if group.cause == CAUSAL_SPLIT and above_mean_ns is not None:
        return Change(device_ns=np.where(chosen, np.maximum(above_mean_ns, 0), 0).astype(np.int64))
    if group.cause != "slow_link":
        return whatif.at_the_median(chosen, slow_ranks.among)
    charged = whatif.gains_alone_ns(at_median_rate(slow_links, whatif))
    return Change(transfer_ns=np.maximum(np.where(chosen, slow_ranks.excess_ns - charged, 0), 0))


def _groups(causes: _Causes, slow_ranks: Slowness, lateness: Lateness, frame: Frame) -> list[SlowGroup]:
    """The findings on slow ranks (indices, with their causes): those that others wait for, then those that are hidden.

    A hidden rank of a node all of whose ranks are slow for one cause is one finding with them.
    """
    cause_of = {rank: cause for rank, (cause, _) in causes.items()}
    nodes = {
        (cause, node)
        for cause in set(cause_of.values())
        for node in naming.whole_nodes([rank for rank, its in cause_of.items() if its == cause], frame)
    }
    alone = {
        rank: cause
        for rank, cause in cause_of.items()
        if lateness.hidden[rank] and (cause, frame.nodes[rank]) not in nodes and cause != CAUSAL_SPLIT
    }
    others = {rank: cause for rank, cause in cause_of.items() if rank not in alone}
    excess_ns = slow_ranks.excess_ns.mean(axis=1)
    return [group for some in (others, alone) for group in slow_groups(some, excess_ns, frame)]


def _known_stalls(causes: _Causes, slow_ranks: Slowness, stalls: HostStalls) -> dict[int, activity.Known]:
    """What the ranks (indices) whose CPUs are slow do there while the median rank computes, if that is most of what
    they are slower by; without those of which stacks and annotations do not tell it.
    """
    mean, known = stalls.long_ns.mean(axis=1), {}
    for rank, (cause, _) in causes.items():
        others = slow_ranks.others_like(rank)
        extra = float(mean[rank] - np.median(mean[others])) if len(others) else 0.0
        if cause != "host" or extra <= 0:
            continue
        least = max(extra, float(slow_ranks.excess_ns[rank].mean())) / 2
        if doing := activity.most(stalls.doing([rank]), least, stalls.doing(others.tolist())):
            known[rank] = doing
    return known


def _with_stalls(causes: _Causes, known: Mapping[int, activity.Known]) -> _Causes:
    """The causes, with what is known of the stalls of some ranks (indices)."""
    return {
        **causes,
        **{
            rank: (doing.cause or "host", f"{causes[rank][1]} It spends {doing.said}.") for rank, doing in known.items()
        },
    }


def _op_stalls(rank: int, others: Ints, whatif: WhatIf, stalls: StallsInOps) -> str:
    """What the stalls inside ops of a rank (index) are, if they are much of its CPU's excess."""
    mine = stalls.of(rank)
    spent = whatif.host_ns(CpuTime.OP_STALL).mean(axis=1)
    extra = float(spent[rank] - np.median(spent[others])) if len(others) else 0.0
    more = whatif.host_ns(CpuTime.WORK).mean(axis=1)
    if not mine or extra <= max(float(more[rank] - np.median(more[others])), 0.0):
        return ""
    cause = op_stall.cause_of(mine)
    return (
        f" Its CPU has {op_stall.described(mine, whatif.shape[1])}, {wording.ms(extra)} a step more than the median "
        f"rank, in {op_stall.named(mine)}: {op_stall.MEANING[cause]}."
    )


def _verb(ranks: Sequence[int]) -> str:
    return "waits" if len(ranks) == 1 else "wait"


def _update(rank: int, slow_ranks: Slowness, whatif: WhatIf) -> str:
    """By how much longer a rank's (index) optimizer works on the CPU, if that is most of what the rank is slower by."""
    spent = whatif.host_ns(CpuTime.UPDATE).mean(axis=1)
    others = slow_ranks.others_like(rank)
    extra = float(spent[rank] - np.median(spent[others])) if len(others) else 0.0
    if extra <= float(slow_ranks.excess_ns[rank].mean()) / 2:
        return ""
    return f" Its optimizer works {wording.ms(extra)} a step longer on the CPU than the median rank's."


def _guards(rank: int, slow_ranks: Slowness, guard_ns: Ints) -> str:
    """By how much longer a rank (index) evaluates guards, if that is most of what the rank is slower by."""
    spent, others = guard_ns.mean(axis=1), slow_ranks.others_like(rank)
    extra = float(spent[rank] - np.median(spent[others])) if len(others) else 0.0
    if extra <= float(slow_ranks.excess_ns[rank].mean()) / 2:
        return ""
    return (
        f" The guards of torch.compile take {wording.ms(extra)} a step longer on its CPU than on the median rank's: "
        "its inputs or its model differ from theirs."
    )


class _Job(msgspec.Struct, frozen=True, eq=False):
    """What the findings on its slow ranks rest on."""

    frame: Frame
    budget: Budget
    arrivals: Arrivals
    places: Places
    slow_ranks: Slowness
    lateness: Lateness
    more: _More
    #: Whether other faults are fixed in the job that is looked at, so that another rank may be slower still.
    is_played: bool

    def fault(self, group: SlowGroup, seen: str, change: Change, cost_ns: float, known: activity.Known | None) -> Fault:
        """The finding on a group, given what the cause of its first rank rests on ("it ...") and what its CPU does."""
        frame, slow = self.frame, self.slow_ranks.slow[group.rows]
        seen += self.more.seen(group)
        on_host = known is not None or group.cause in ("host", "input")
        level, basis = certainty.confidence(
            frame,
            cost_ns,
            int(slow.all(axis=0).sum()),
            group.ranks,
            on_host=on_host,
            is_counted=group.cause in ("more_work", CAUSAL_SPLIT),
        )
        waiting = [rank for rank in group.ranks if self.lateness.hidden[rank]]
        if 0 < len(waiting) < len(group.ranks):
            own = part.mean(self.budget.of("wait")[waiting], frame.window_ns[waiting])
            seen += (
                f" {wording.capital(wording.ranks(frame.rank_numbers(np.sort(waiting))))} {_verb(waiting)} {own} now."
            )
        elif waiting:
            level, basis = (
                certainty.LOWER[level],
                f"{basis} The replay alone shows it: in the record, nobody waits for it.",
            )
        subject = wording.capital(seen) if len(group.ranks) == 1 else f"Rank {frame.ranks[group.ranks[0]]}: {seen}"
        return Fault(
            change=change,
            ranks=tuple(sorted(frame.rank_numbers(group.rows))),
            steps=tuple(int(step) for step in frame.steps[slow.any(axis=0)]),
            cause=group.cause,
            confidence=level,
            title=f"{wording.capital(naming.who(sorted(group.ranks), frame))} {self._harm(group)}",
            why=f"{subject} {self._lateness(group)} {basis}",
            modules=self.more.behind(group).modules,
            subject=known.subject if known else "",
            fix=known.fix if known else fix(group.cause, group.ranks, frame),
            evidence=tuple(self._evidence(group)),
            at_most=Severity.INFO if self._is_in_replay_alone(group) else Severity.CRITICAL,
        )

    def _is_in_replay_alone(self, group: SlowGroup) -> bool:
        """Whether only the job with other faults fixed shows a group, and nothing says why: no cause, and no rank that
        waits for it.
        """
        caused_ns = float(self.lateness.caused_ns[group.rows].sum())
        return self.is_played and group.cause == "unknown" and caused_ns < self.slow_ranks.limit_ns

    def _harm(self, group: SlowGroup) -> str:
        """What the other ranks wait for a group, where they do; else how much slower than the median rank it is."""
        alone, rows = len(group.ranks) == 1, group.rows
        slower = f"{wording.ms(float(self.slow_ranks.excess_ns[rows].mean()))} a step slower than the median rank"
        if self.lateness.hidden[rows].all():
            own = part.mean(self.budget.of("wait")[rows], self.frame.window_ns[rows])
            it, them = ("it waits", "it") if alone else ("they wait", "they")
            verb = f"is no straggler yet: {it}" if alone else f"are no stragglers yet: {it}"
            are = "is" if alone else "are"
            return f"{verb} {own} for others. Once these are fixed, {them} {are} {slower}."
        is_first = (
            self.slow_ranks.persistent[self.lateness.late[self.slow_ranks.persistent]][0] in rows and not self.is_played
        )
        order = "" if is_first else "next "
        verb = f"is the {order}straggler" if alone else f"are {order and 'the next '}stragglers"
        caused = self.lateness.caused(rows, self.frame)
        waited = f"the other ranks wait {caused}" if caused.ns >= self.slow_ranks.limit_ns else ""
        if is_first and waited:
            return f"{verb}: {waited}."
        return f"{verb}, {slower}{waited and f': {waited}'}."

    def _lateness(self, group: SlowGroup) -> str:
        arrivals = self.arrivals
        waited = arrivals.longest_wait_ns > 0.1 * arrivals.longest_wait_ns.max(initial=0)
        late = int(np.isin(arrivals.last[waited], group.rows).sum())
        subject = "It arrives" if len(group.ranks) == 1 else "One of them arrives"
        return f"{subject} last at {late} of the {int(waited.sum())} collectives in which other ranks wait."

    def _evidence(self, group: SlowGroup) -> Iterator[Evidence]:
        """What each straggler does in its worst step, and the longest wait that follows from it."""
        for rank in group.ranks[:_SHOWN]:
            yield self._worst_step(rank, group.cause)
        yield from longest_wait(group.rows, self.frame, self.arrivals, self.places)

    def _worst_step(self, rank: int, cause: str) -> Evidence:
        step = int(self.budget.busy_ns[rank].argmax())
        if cause not in ("host", "input"):
            return self.places.window(rank, step, "The whole step: it computes while the other ranks wait.")
        owner = "input"
        if cause == "host":
            owner = max(HOST_OWNERS, key=lambda owner: int(self.budget.of(owner)[rank, step]))
        what = activity.idle(self.frame, OWNERS[owner].cpu)
        return self.places.longest(rank, step, RankOwner[owner.upper()], what)
