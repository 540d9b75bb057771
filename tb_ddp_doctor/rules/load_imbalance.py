"""See `LoadImbalance`."""

from __future__ import annotations

import msgspec
import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.model import KernelWork
from tb_ddp_doctor.facts.arrivals import Arrivals
from tb_ddp_doctor.facts.compute import BatchWork, Phases
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.host import HostStalls
from tb_ddp_doctor.facts.modules import ModuleTree
from tb_ddp_doctor.findings import Measurement, Severity
from tb_ddp_doctor.job.model import Budget
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support import activity, certainty, layers, limits, long_tail, naming
from tb_ddp_doctor.rules.support.base import Clear, Fault, NotApplicable, Result, Rule, threshold
from tb_ddp_doctor.rules.support.batches import UnevenBatches, uneven_batches
from tb_ddp_doctor.rules.support.slowness import (
    Slowness,
    behind,
    longest_wait,
    median_rank,
    phase_of_most,
    slowness,
)
from tb_ddp_doctor.trace.model import Flags, Floats, Ints
from tb_ddp_doctor.trace.names import Phase
from tb_ddp_doctor.trace.program_names import Role


class LoadImbalance(Rule):
    """Different ranks are slow in different steps, and the other ranks wait for them.

    What:
        Ranks with a longer busy time in a step (replayed without straggler wait) than the median of comparable ranks
        and steps. The cause says which: a different rank from step to step (`moving`), the same rank in several steps
        (`recurring`), or a rank in one step alone (`once`). Where stacks or annotations show what the CPUs do then,
        that is the cause: `garbage_collection`, `checkpoint` or `logging`.
    Why:
        A step takes as long as its slowest rank. Uneven work costs the difference to the median rank, although no rank
        is slow on average.
    Evidence:
        The whole of each such step on its slowest rank; by how much it is slower; and, where the traces have phases,
        the phase in which it takes longer. Where it is one rank, and modules or layers are known, those in which it
        computes longer. Where shapes are recorded and the slowest ranks have more FLOP: how many more, and what batches
        of equal FLOP would save.
    Fix:
        Balance the work of a step: sequences of similar length in one step, shards by size, no extra work on one rank.
        Where the ranks differ in loading: more workers and prefetching, so that no step waits for a slow batch. Where
        it is one rank: look at what it does every few steps.
    Limits:
        At least two ranks with matched collectives and two steps. Ranks that are slow in most steps are stragglers.
        What was seen in one step may be rare or not: a longer capture shows how often it comes. Slow ranks within four
        standard deviations of the spread over all ranks and steps are noise: they are reported only if they cost a lot,
        and then with low confidence. Shapes do not show the lengths of sequences that are packed for variable-length
        attention, nor what is padding.
    """

    id = "load-imbalance"
    subject = "Load imbalance"
    looks_again = True
    explains_the_rest = True
    names_stragglers = True
    refines = "communication-bound"

    min_cost: float = threshold(
        0.05, "of the step", "Healthy jobs of 4 and 8 ranks lose up to 4 % to their slowest rank by noise."
    )
    once: float = threshold(0.08, "of the step", "In one step alone; less may be noise.")
    min_noise: float = threshold(
        0.12,
        "of the step",
        "If the slow ranks are within noise: noise of 6 % costs 4 ranks up to 11 % in 99 of 100 jobs.",
    )
    straggler_excess: float = threshold(*limits.SLOW_RANK)
    straggler_steps: float = threshold(*limits.SLOW_RANK_STEPS)

    def check(
        self,
        *,
        frame: Frame,
        budget: Budget,
        whatif: WhatIf,
        arrivals: Arrivals,
        phases: Phases,
        computed: KernelWork,
        batches: BatchWork | None,
        stalls: HostStalls,
        modules: ModuleTree | None,
        places: Places,
    ) -> Result:
        if len(frame.steps) < 2:
            return NotApplicable("One step cannot show whether the slow rank changes from step to step.")
        slow_ranks = slowness(whatif, frame, self.straggler_excess, self.straggler_steps)
        uneven = _UnevenSteps.of(slow_ranks, self.min_cost * frame.step_ns)
        change = whatif.at_the_median(uneven.excess_ns > self.min_cost * frame.step_ns / 2)
        cost = whatif.cost_ns(change)
        if not len(uneven) or cost < self._least_cost(uneven, cost, whatif, frame) * frame.step_ns:
            return Clear(f"Ranks that are slow in some steps cost {wording.ms(cost)} a step.")
        differs = f"Ranks and steps differ by {wording.ms(slow_ranks.noise_ns)} (one standard deviation) from noise"
        sizes = uneven_batches(uneven.slowest, uneven.steps, uneven.lost_ns, batches, whatif, budget.of("compute"))
        is_noise = float(uneven.lost_ns.mean()) < _BEYOND_NOISE * slow_ranks.noise_ns and not sizes
        if is_noise and cost < self.min_noise * frame.step_ns:
            return Clear(f"Ranks that are slow in some steps cost {wording.ms(cost)} a step. {differs}: this is noise.")
        more = uneven.more_ns(phases)
        phase = phase_of_most(more, phases)
        generates = long_tail.is_of_rollouts(frame, phase, uneven.times_as_many(computed.kernels))
        late = " The slowest generates longer answers, or more." if generates else behind("The slowest", more, phases)
        known = _known_stalls(uneven, self.min_cost * frame.step_ns / 2, stalls)
        level, basis = certainty.confidence(frame, cost, len(uneven))
        if is_noise:
            level, basis = "low", f"{basis} {differs}: it may be noise."
        return Fault(
            change=change,
            modules=_modules_behind(uneven, modules).modules,
            ranks=frame.rank_numbers(uneven.movers),
            steps=tuple(int(step) for step in frame.steps[uneven.steps]),
            cause=(known and known.cause) or uneven.kind,
            subject=known.subject if known else "",
            confidence=level if len(uneven) > 1 else "low",
            # What a damaged record shows in one step alone may be the damage.
            at_most=Severity.INFO if len(uneven) == 1 and frame.is_damaged[uneven.movers].all() else Severity.CRITICAL,
            title=_title(uneven, frame, arrivals),
            why=f"Slower than the median rank in {_turns(uneven, frame)}.{late}"
            f"{_modules_behind(uneven, modules)}{sizes or ''}{_doing(known)} {_occurrence(uneven)}{basis}",
            fix=known.fix if known else long_tail.FIX if generates else _fix(uneven, phase, sizes, frame),
            evidence=(
                *(places.window(rank, step, "The slowest rank of this step.") for rank, step, _ in uneven.first),
                *longest_wait(uneven.movers, frame, arrivals, places),
            ),
            measurements=tuple(_measurement(frame, *each) for each in uneven.each),
        )

    def _least_cost(self, uneven: _UnevenSteps, cost_ns: float, whatif: WhatIf, frame: Frame) -> float:
        """From which cost on it is a finding, as a share of the step."""
        are_rollouts = {frame.roles[rank] for rank in uneven.movers.tolist()} == {Role.ROLLOUT.value}
        if whatif.is_last_look and not are_rollouts and 2 * cost_ns >= whatif.cost_ns(whatif.faultless):
            # Most of what is left: `unexplained` would be the verdict, and name the same ranks and step.
            return 0.0
        # Answers differ in length by chance.
        return self.once if len(uneven) == 1 else self.min_cost


def _measurement(frame: Frame, rank: int, step: int, lost_ns: float) -> Measurement:
    ranks, steps = frame.rank_numbers(np.array([rank])), (int(frame.steps[step]),)
    return Measurement("above the median rank", lost_ns / 1e6, "ms", ranks, steps)


class _UnevenSteps(msgspec.Struct, frozen=True, eq=False):
    """The steps whose slowest rank is slow by so much that it would matter in every step; shape (U,) of U steps."""

    #: By how much each rank that is not always slow needs more than the median rank where it is slow, shape (R, S), ns;
    #: 0 elsewhere.
    excess_ns: Ints
    #: Indices of the steps.
    steps: Ints

    @classmethod
    def of(cls, slow_ranks: Slowness, least_ns: float) -> _UnevenSteps:
        """Those in which a rank needs at least so much more, and not next to nothing beside the slowest of all."""
        excess = np.where(slow_ranks.now_and_then, slow_ranks.excess_ns, 0)
        lost = excess.max(axis=0)
        return cls(excess, np.flatnonzero(lost > max(least_ns, _BESIDE_LARGEST * lost.max(initial=0))))

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def slowest(self) -> Ints:
        """The slowest rank (index) of each step."""
        slowest: Ints = self.excess_ns[:, self.steps].argmax(axis=0)
        return slowest

    @property
    def lost_ns(self) -> Ints:
        """By how much that is slower than the median rank."""
        lost: Ints = self.excess_ns[:, self.steps].max(axis=0)
        return lost

    @property
    def _slow(self) -> Flags:
        """Ranks that are slow in each step, shape (R, U): without the slowest, the other ranks wait for the next."""
        return self.excess_ns[:, self.steps] >= _NEXT * self.lost_ns

    @property
    def movers(self) -> Ints:
        """The ranks (indices) that are slow in some of the steps."""
        return np.flatnonzero(self._slow.any(axis=1))

    @property
    def each(self) -> list[tuple[int, int, float]]:
        """Slowest rank (index), step (index) and what it loses, ns, of each."""
        return list(zip(self.slowest.tolist(), self.steps.tolist(), map(float, self.lost_ns), strict=True))

    @property
    def first(self) -> list[tuple[int, int, float]]:
        """The same of those that are shown."""
        return self.each[:_SHOWN]

    @property
    def kind(self) -> str:
        """Whether the slow ranks change; else whether they are slow again."""
        moves = (self._slow != self._slow[:, :1]).any()
        return "moving" if moves else "recurring" if len(self) > 1 else "once"

    def times_as_many(self, kernels: Ints) -> float:
        """How many times as many kernels the slowest ranks run as the median rank, median; `kernels` is (R, S)."""
        typical = np.maximum(np.median(kernels[:, self.steps], axis=0), 1)
        return float(np.median(kernels[self.slowest, self.steps] / typical))

    def more_ns(self, phases: Phases) -> Floats:
        """How much longer the slowest ranks work in each phase than the median rank, mean, ns."""
        theirs, typical = phases.busy_ns[self.slowest, self.steps], np.median(phases.busy_ns[:, self.steps], axis=0)
        more: Floats = (theirs - typical).mean(axis=0)
        return more


#: A step that loses less than this share of what the worst one loses is not named with it: hardly anything of the cost
#: is its rank's.
_BESIDE_LARGEST = 0.15
#: Steps that are shown.
_SHOWN = 4
#: A rank that needs this share of what the slowest rank of a step needs more than the median rank is slow there, too.
_NEXT = 0.5
#: So many standard deviations from the others a rank's step is no noise: of noise, 1 in 100 means is further out.
_BEYOND_NOISE = 4


def _known_stalls(uneven: _UnevenSteps, least_ns: float, stalls: HostStalls) -> activity.Known | None:
    """What the slow ranks do on their CPUs where they need at least so much more, if that is most of it.

    None where stacks and annotations do not tell.
    """
    movers, excess = uneven.movers, np.where(uneven.excess_ns > least_ns, uneven.excess_ns, 0)
    extra = np.where(excess > 0, stalls.long_ns - median_rank(stalls.long_ns), 0)[movers].mean()
    slower, stalled = excess[movers].mean(), stalls.long_ns[movers].mean()
    return activity.most(stalls.doing(movers.tolist()), float(stalled) / 2) if 2 * extra >= slower else None


def _doing(known: activity.Known | None) -> str:
    return f" The CPUs of these ranks spend {known.said}, mean over all steps." if known else ""


def _modules_behind(uneven: _UnevenSteps, modules: ModuleTree | None) -> layers.Where:
    """The modules that make one rank slow, a sentence after a space; nothing for several ranks."""
    movers, (ranks, _) = uneven.movers, uneven.excess_ns.shape
    if len(movers) > 1 or not modules:
        return layers.Where()
    others = np.delete(np.arange(ranks), movers)
    return layers.behind(modules, int(movers[0]), others, float(uneven.excess_ns.max(axis=0).mean()))


def _turns(uneven: _UnevenSteps, frame: Frame) -> str:
    """Which rank is slow in which step: "step 3: rank 1, by 4.1 ms, step 5: rank 2, by 3.9 ms"."""
    shown = ", ".join(
        f"step {frame.steps[step]}: rank {frame.ranks[rank]}, by {wording.ms(lost_ns)}"
        for rank, step, lost_ns in uneven.first
    )
    return f"{shown}{' and so on' if len(uneven) > _SHOWN else ''}"


def _others_wait(uneven: _UnevenSteps, frame: Frame, arrivals: Arrivals) -> bool:
    """Whether other ranks wait for these most of what these steps lose, in collectives they arrive at last.

    In steps where a slower rank or something else comes last, they are slow and nobody waits for them yet.
    """
    theirs = np.isin(arrivals.last, uneven.movers) & np.isin(arrivals.step, frame.steps[uneven.steps])
    return 2 * int(arrivals.longest_wait_ns[theirs].sum()) >= int(uneven.lost_ns.sum())


def _title(uneven: _UnevenSteps, frame: Frame, arrivals: Arrivals) -> str:
    if uneven.kind == "moving":
        ranks = wording.ranks(frame.rank_numbers(uneven.movers))
        return f"A different rank is slow from step to step: {ranks} in turn."
    seen = wording.steps_seen(len(uneven), len(frame.steps))
    are, them = ("is", "it") if len(uneven.movers) == 1 else ("are", "them")
    waiting = f", and the other ranks wait for {them}" if _others_wait(uneven, frame, arrivals) else ""
    return f"{wording.capital(naming.who(uneven.movers.tolist(), frame))} {are} slow in {seen}{waiting}."


def _occurrence(uneven: _UnevenSteps) -> str:
    """How much each occurrence costs, how often it comes if the record shows it; a sentence and a space."""
    each = f"Each time it takes {wording.ms(float(uneven.lost_ns.mean()))}"
    apart = np.diff(uneven.steps)
    if len(apart) > 1 and len(set(apart.tolist())) == 1 and apart[0] > 1:
        return f"{each}, every {apart[0]} steps. "
    if len(uneven) == 1:
        return f"{each}; a longer capture would show how often it comes. "
    return f"{each}. "


def _fix(uneven: _UnevenSteps, phase: Phase | None, sizes: UnevenBatches | None, frame: Frame) -> str:
    if sizes:
        return _FIX_OF_BATCHES
    if phase is Phase.LOADING:
        return _FIX_OF_LOADING
    if uneven.kind == "moving":
        return _FIX
    does = "does" if len(uneven.movers) == 1 else "do"
    return _FIX_OF_SOME.format(ranks=wording.ranks(frame.rank_numbers(uneven.movers)), does=does)


_FIX_OF_SOME = """\
Look for what {ranks} alone {does} every few steps: logging, saving, evaluating, a longer batch. Write from another \
thread or process, or shard the samples like those of the other ranks.

import torch.distributed.checkpoint as dcp
saving = dcp.async_save(state, checkpoint_id=path)  # returns when the state is copied"""


_FIX = """\
Give the ranks the same work in every step: group samples of similar length or size over all ranks, not only within \
one rank, and drop the incomplete last batch.

sampler = DistributedSampler(dataset, shuffle=True, drop_last=True)
# variable lengths: sort by length in windows of world_size * batch_size before dealing them out"""


_FIX_OF_BATCHES = """\
Deal the samples of a global batch to the ranks so that each gets the same FLOP, not the same number of samples or \
tokens: a sequence of L tokens takes about a L + b L^2, b L^2 for attention.

flops = [length * (12 * hidden + length) for length in lengths]  # of a layer with causal attention, up to a factor
load, parts = [0] * world_size, [[] for _ in range(world_size)]
for sample in sorted(range(len(lengths)), key=lambda sample: -flops[sample]):
    rank = load.index(min(load))
    load[rank] += flops[sample]
    parts[rank].append(sample)  # the samples that this rank packs"""


_FIX_OF_LOADING = """\
The batches differ. Let workers prefetch enough batches that no step waits for a slow one, and make samples equally \
expensive: decode and resize before training, read larger files from faster storage.

loader = DataLoader(
    dataset,
    batch_size=batch_size,
    sampler=DistributedSampler(dataset, drop_last=True),
    num_workers=8,
    persistent_workers=True,
    prefetch_factor=4,
)"""
