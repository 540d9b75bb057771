"""See `LoadImbalance`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tb_ddp_doctor.job.whatif import WhatIf
from tb_ddp_doctor.rules import words
from tb_ddp_doctor.rules.base import Clear, Fault, NotApplicable, Result, Rule, threshold
from tb_ddp_doctor.rules.inputs.communication import Arrivals
from tb_ddp_doctor.rules.inputs.compute import Phases
from tb_ddp_doctor.rules.inputs.frame import Frame
from tb_ddp_doctor.rules.inputs.places import Places
from tb_ddp_doctor.rules.slowness import behind, longest_wait, phase_of_most, slowness
from tb_ddp_doctor.trace.model import Ints
from tb_ddp_doctor.trace.names import Phase


@dataclass(frozen=True)
class LoadImbalance(Rule):
    """The slow rank moves: in each step another rank has more to do, and the others wait for it.

    What:
        Own times (the step without waiting) that differ between ranks, with another rank slowest from step to step
        (`moving`), or one rank slow in some steps only (`recurring`).
    Why:
        The step takes as long as its slowest rank; work that is uneven costs the difference to the median rank, in
        every step, although no rank is slow on average.
    Evidence:
        The slowest rank of each step, whole step; how far own times spread in a step, and the phase in which the
        slowest rank takes longer, where the traces tell phases.
    Fix:
        Even out the work of a step: sequences of like length in one step, shards by size, no rank-local extras. Where
        the ranks differ in loading, more workers and prefetching, so that a slow batch is not waited for. Where it is
        one rank, what it does every few steps.
    Limits:
        At least two ranks with matched collectives and two steps; one rank has to be slow in two of them. Ranks that
        are slow in most steps are taken out first: they are stragglers. Small differences are noise: the more ranks,
        the larger their largest own time.
    """

    id: ClassVar[str] = "load-imbalance"

    min_cost: float = threshold(
        0.05, "of the step", "Healthy jobs of 4 and 8 ranks lose up to 4 % to their slowest rank by chance."
    )
    straggler_excess: float = threshold(0.03, "of the step", "As for straggler: those ranks are taken out first.")
    straggler_steps: float = threshold(0.75, "of the steps", "As for straggler.")

    def check(self, *, frame: Frame, whatif: WhatIf, arrivals: Arrivals, phases: Phases, places: Places) -> Result:
        if len(frame.steps) < 2:
            return NotApplicable("One step cannot show whether the slow rank moves.")
        found = slowness(whatif.own_ns, frame, self.straggler_excess, self.straggler_steps)
        own = whatif.own_ns - np.where(found.persistently(), found.excess_ns, 0)
        lost = own.max(axis=0) - np.median(own, axis=0).astype(np.int64)
        slowest = own.argmax(axis=0)
        uneven = np.flatnonzero(lost > self.min_cost * frame.step_ns)
        movers = np.unique(slowest[uneven])
        removed = whatif.like_the_median((own > np.median(own, axis=0)) & ~found.persistently())
        cost = whatif.cost_ns(removed)
        if cost < self.min_cost * frame.step_ns or len(uneven) < 2:
            return Clear(f"Own times differ by {words.ms(cost)} a step between the slowest rank and the median.")
        numbers = frame.rank_numbers(movers)
        spread = np.ptp(own, axis=0)[uneven]
        more = (phases.own_ns[slowest[uneven], uneven] - np.median(phases.own_ns[:, uneven], axis=0)).mean(axis=0)
        where = behind("The slowest", more, phases)
        level, basis = words.confidence(frame, cost, len(uneven))
        turns = ", ".join(f"step {frame.steps[step]}: rank {frame.ranks[slowest[step]]}" for step in uneven[:4])
        return Fault(
            removed=removed,
            ranks=numbers,
            steps=tuple(int(step) for step in frame.steps[uneven]),
            cause="moving" if len(movers) > 1 else "recurring",
            confidence=level,
            title=f"{_who(movers, uneven, frame)}: {words.ms(cost)} of every {words.ms(frame.step_ns)} is lost to "
            "uneven work.",
            why=f"Slowest is {turns}{' and so on' if len(uneven) > 4 else ''}. In these steps own times spread over "
            f"{words.ms(float(spread.mean()))}, at most {words.ms(int(spread.max()))}.{where} {basis}",
            fix=_fix(movers, phase_of_most(more, phases), frame),
            evidence=(
                *(
                    places.window(int(slowest[step]), int(step), "The slowest rank of this step.")
                    for step in uneven[:4]
                ),
                *longest_wait(movers, frame, arrivals, places),
            ),
        )


def _who(movers: Ints, uneven: Ints, frame: Frame) -> str:
    if len(movers) > 1:
        return "The slow rank moves from step to step"
    return f"Rank {frame.ranks[movers[0]]} is slow in {len(uneven)} of {len(frame.steps)} steps"


def _fix(movers: Ints, phase: Phase | None, frame: Frame) -> str:
    if phase is Phase.LOADING:
        return _FIX_OF_LOADING
    return _FIX if len(movers) > 1 else _FIX_OF_ONE.format(rank=frame.ranks[movers[0]])


_FIX_OF_ONE = """\
Look for what rank {rank} does every few steps and the others do not: logging, saving, evaluating, a longer batch. Let \
it write from another thread or process, or deal its samples as the others'.

import torch.distributed.checkpoint as dcp
saving = dcp.async_save(state, checkpoint_id=path)  # returns when the state is copied"""


_FIX = """\
Give the ranks the same work in every step: batch samples of like length or size together over all ranks, not only \
within one, and drop the ragged last batch.

sampler = DistributedSampler(dataset, shuffle=True, drop_last=True)
# variable lengths: sort by length in windows of world_size * batch_size before dealing them out"""


_FIX_OF_LOADING = """\
It is batches that differ: let workers load ahead far enough that a slow one is not waited for, and make samples \
alike: decode and resize ahead of training, read larger files from faster storage.

loader = DataLoader(
    dataset,
    batch_size=batch_size,
    sampler=DistributedSampler(dataset, drop_last=True),
    num_workers=8,
    persistent_workers=True,
    prefetch_factor=4,
)"""
