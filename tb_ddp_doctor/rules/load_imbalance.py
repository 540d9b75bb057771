"""See `LoadImbalance`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.facts.arrivals import Arrivals
from tb_ddp_doctor.facts.compute import BatchWork, Phases
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.host import HostStalls
from tb_ddp_doctor.facts.modules import ModuleTree
from tb_ddp_doctor.findings import Measurement
from tb_ddp_doctor.job.model import Budget
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support import activity, certainty, layers, limits
from tb_ddp_doctor.rules.support.base import Clear, Fault, NotApplicable, Result, Rule, threshold
from tb_ddp_doctor.rules.support.batches import UnevenBatches, uneven_batches
from tb_ddp_doctor.rules.support.slowness import (
    behind,
    longest_wait,
    median_rank,
    phase_of_most,
    slowness,
)
from tb_ddp_doctor.trace.model import Ints
from tb_ddp_doctor.trace.names import Phase


@dataclass(frozen=True)
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

    id: ClassVar[str] = "load-imbalance"
    subject: ClassVar[str] = "Load imbalance"
    looks_again: ClassVar[bool] = True
    explains_the_rest: ClassVar[bool] = True
    names_stragglers: ClassVar[bool] = True
    refines: ClassVar[str] = "communication-bound"

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
        batches: BatchWork | None,
        stalls: HostStalls,
        modules: ModuleTree | None,
        places: Places,
    ) -> Result:
        if len(frame.steps) < 2:
            return NotApplicable("One step cannot show whether the slow rank changes from step to step.")
        found = slowness(whatif, frame, self.straggler_excess, self.straggler_steps)
        excess = np.where(found.now_and_then, found.excess_ns, 0)
        # A step is uneven if its slowest rank is slow by so much that it would matter in every step.
        lost = excess.max(axis=0)
        uneven = np.flatnonzero(lost > self.min_cost * frame.step_ns)
        slowest = excess.argmax(axis=0)
        movers = np.unique(slowest[uneven])
        chosen = found.now_and_then & (excess > self.min_cost * frame.step_ns / 2)
        change = whatif.at_the_median(chosen)
        cost = whatif.cost_ns(change)
        limit = self.once if len(uneven) == 1 else self.min_cost
        if whatif.is_last_look and 2 * cost >= whatif.cost_ns(whatif.faultless):
            # Most of what is left: `unexplained` would be the verdict, and name the same ranks and step.
            limit = 0.0
        if cost < limit * frame.step_ns or not len(uneven):
            return Clear(f"Ranks that are slow in some steps cost {wording.ms(cost)} a step.")
        differs = f"Ranks and steps differ by {wording.ms(found.noise_ns)} (one standard deviation) from noise"
        is_noise = float(lost[uneven].mean()) < _BEYOND_NOISE * found.noise_ns
        if is_noise and cost < self.min_noise * frame.step_ns:
            return Clear(f"Ranks that are slow in some steps cost {wording.ms(cost)} a step. {differs}: this is noise.")
        more = (phases.busy_ns[slowest[uneven], uneven] - np.median(phases.busy_ns[:, uneven], axis=0)).mean(axis=0)
        where = behind("The slowest", more, phases)
        if len(movers) == 1 and modules:
            where += layers.behind(modules, int(movers[0]), np.delete(np.arange(len(frame.ranks)), movers), lost.mean())
        sizes = uneven_batches(slowest[uneven], uneven, lost[uneven], batches, whatif, budget.of("compute"))
        where += str(sizes or "")
        known = _known_stalls(movers, np.where(chosen, excess, 0), stalls)
        doing = f" The CPUs of these ranks spend {known.said}, mean over all steps." if known else ""
        level, basis = certainty.confidence(frame, cost, len(uneven))
        if is_noise:
            level, basis = "low", f"{basis} {differs}: it may be noise."
        turns = ", ".join(
            f"step {frame.steps[step]}: rank {frame.ranks[slowest[step]]}, by {wording.ms(float(lost[step]))}"
            for step in uneven[:4]
        )
        return Fault(
            change=change,
            ranks=frame.rank_numbers(movers),
            steps=tuple(int(step) for step in frame.steps[uneven]),
            cause=(known and known.cause)
            or ("moving" if len(movers) > 1 else "recurring" if len(uneven) > 1 else "once"),
            subject=known.subject if known else "",
            confidence=level if len(uneven) > 1 else "low",
            title=_title(movers, uneven, frame, _wait_for(movers, frame.steps[uneven], lost[uneven], arrivals)),
            why=f"Slower than the median rank in {turns}{' and so on' if len(uneven) > 4 else ''}.{where}{doing} "
            f"{_occurrence(lost[uneven], uneven)}{basis}",
            fix=known.fix if known else _fix(movers, phase_of_most(more, phases), sizes, frame),
            evidence=(
                *(
                    places.window(int(slowest[step]), int(step), "The slowest rank of this step.")
                    for step in uneven[:4]
                ),
                *longest_wait(movers, frame, arrivals, places),
            ),
            measurements=tuple(
                Measurement(
                    "above the median rank",
                    float(lost[step]) / 1e6,
                    "ms",
                    frame.rank_numbers(slowest[[step]]),
                    (int(frame.steps[step]),),
                )
                for step in uneven
            ),
        )


#: So many standard deviations from the others a rank's step is no noise: of noise, 1 in 100 means is further out.
_BEYOND_NOISE = 4


def _known_stalls(movers: Ints, excess_ns: Ints, stalls: HostStalls) -> activity.Known | None:
    """What these ranks (indices) do on their CPUs where they are slow, if that is most of it.

    `excess_ns` is by how much they are slower than the median rank there, shape (R, S), 0 elsewhere. None where stacks
    and annotations do not tell.
    """
    extra = np.where(excess_ns > 0, stalls.long_ns - median_rank(stalls.long_ns), 0)[movers].mean()
    slower, stalled = excess_ns[movers].mean(), stalls.long_ns[movers].mean()
    return activity.most(stalls.doing(movers.tolist()), float(stalled) / 2) if 2 * extra >= slower else None


def _turns(movers: Ints, uneven: Ints) -> str:
    return "moving" if len(movers) > 1 else "recurring" if len(uneven) > 1 else "once"


def _wait_for(movers: Ints, steps: Ints, lost_ns: Ints, arrivals: Arrivals) -> bool:
    """Whether other ranks wait for these (indices) most of what these steps lose, in collectives they arrive at last.

    In steps where a slower rank or something else comes last, they are slow and nobody waits for them yet.
    """
    theirs = np.isin(arrivals.last, movers) & np.isin(arrivals.step, steps)
    return 2 * int(arrivals.longest_wait_ns[theirs].sum()) >= int(lost_ns.sum())


def _title(movers: Ints, uneven: Ints, frame: Frame, others_wait: bool) -> str:
    if len(movers) > 1:
        return f"A different rank is slow from step to step: {wording.ranks(frame.rank_numbers(movers))} in turn."
    seen = wording.steps_seen(len(uneven), len(frame.steps))
    waiting = ", and the other ranks wait for it" if others_wait else ""
    return f"Rank {frame.ranks[movers[0]]} is slow in {seen}{waiting}."


def _occurrence(lost_ns: Ints, uneven: Ints) -> str:
    """How much each occurrence costs, how often it comes if the record shows it; a sentence and a space."""
    each = f"Each time it takes {wording.ms(float(lost_ns.mean()))}"
    apart = np.diff(uneven)
    if len(apart) > 1 and len(set(apart.tolist())) == 1 and apart[0] > 1:
        return f"{each}, every {apart[0]} steps. "
    if len(uneven) == 1:
        return f"{each}; a longer capture would show how often it comes. "
    return f"{each}. "


def _fix(movers: Ints, phase: Phase | None, sizes: UnevenBatches | None, frame: Frame) -> str:
    if sizes:
        return _FIX_OF_BATCHES
    if phase is Phase.LOADING:
        return _FIX_OF_LOADING
    return _FIX if len(movers) > 1 else _FIX_OF_ONE.format(rank=frame.ranks[movers[0]])


_FIX_OF_ONE = """\
Look for what rank {rank} alone does every few steps: logging, saving, evaluating, a longer batch. Let it write \
from another thread or process, or shard its samples like those of the other ranks.

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
