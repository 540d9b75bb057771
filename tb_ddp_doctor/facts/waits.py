"""Which rank the others wait for: each straggler wait is attributed to the rank that caused it.

The last rank to arrive at a collective may be late because it waited in an earlier one. Then the wait is attributed to
the rank that it waited for there:

    rank 0  [fwd][rs: waits 10 for 1][ar: waits 10 for 3]    10 for rank 1, then 10 for rank 3
    rank 1  [fwd............][rs]    [ar: waits 10 for 2]
    rank 2  [fwd][rs: waits 20 for 3.........][ar]           all its lateness is rank 3's
    rank 3  [fwd......................][rs]   [ar]

M = matched collectives, R = ranks, S = steps, K = ranks that are asked for.
"""

from __future__ import annotations

from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.facts import Facts, fact, needs_matches
from tb_ddp_doctor.job.segments import Segments
from tb_ddp_doctor.trace.model import Indices, Ints

#: Collectives in which no rank waits for this share of the step are not followed.
_FOLLOWED = 1 / 5000


class Waits(msgspec.Struct, frozen=True, eq=False, dict=True):
    """Exposed straggler wait, by collective and by step."""

    #: Shape (M,): index of the step, -1 for none of the job's; index of the rank that arrived last; and when, ns.
    step: Ints
    last: Indices
    last_ns: Ints
    #: The parts of each collective, the rank (index) of each part and its exposed wait, shape (P,), ns.
    segments: Segments
    rank: Indices
    exposed_ns: Ints
    #: Exposed wait of each rank in each step, shape (R, S), ns, as in the budget.
    wait_ns: Ints
    step_ns: float

    def caused_ns(self, ranks: Ints, waiters: Ints) -> NDArray[np.float64]:
        """How long the waiters wait for each of some ranks, shape (K,), ns: mean over waiters and steps.

        `ranks` and `waiters` are indices, `ranks` of shape (K,). The parts of all ranks sum to no more than the whole
        wait of the waiters.
        """
        several = len(ranks)
        column = np.full(len(self.wait_ns), several)
        column[ranks] = np.arange(several)
        counted = np.zeros(len(self.wait_ns), np.bool_)
        counted[waiters] = True
        weight = np.where(counted, self._shares, 0.0)
        caused = np.zeros(several + 1)
        #: What made each rank late since it last met all others: its waits by their cause, the last column for others.
        late = np.zeros((len(self.wait_ns), several + 1))
        at_step = -1
        for one in self._followed:
            last, step = int(self.last[one]), int(self.step[one])
            part = slice(self.segments.first[one], self.segments.first[one + 1])
            if step != at_step:
                late[:], at_step = 0.0, step
            waits = self.exposed_ns[part] > 0
            who, wait = self.rank[part][waits], self.exposed_ns[part][waits]
            counts, its = weight[step, who], column[last]
            inherited = late[last].copy()
            whole = float(inherited.sum())
            of_others = np.minimum(wait, whole)
            of_last = wait - of_others
            caused += counts @ of_others / max(whole, 1.0) * inherited
            caused[its] += counts @ of_last
            if part.stop - part.start < len(late):
                late[who, its] += of_last
                if whole:
                    late[who] += np.outer(of_others / whole, inherited)
            elif late.any():
                late[:] = 0.0
        mean: NDArray[np.float64] = caused[:several] / max(len(waiters) * self.wait_ns.shape[1], 1)
        return mean

    @cached_property
    def _shares(self) -> NDArray[np.float64]:
        """What of each wait counts, shape (S, R): collectives that run at once share what the budget has of them."""
        ranks, steps = self.wait_ns.shape
        step = self.segments.each(self.step)
        inside = step >= 0
        cell = step[inside] * ranks + self.rank[inside]
        whole = np.bincount(cell, self.exposed_ns[inside], steps * ranks).reshape(steps, ranks)
        shares: NDArray[np.float64] = np.minimum(self.wait_ns.T / np.maximum(whole, 1), 1.0)
        return shares

    @cached_property
    def _followed(self) -> list[int]:
        """The collectives in which some rank waits, in order of time, step by step."""
        longest = self.segments.max(self.exposed_ns)
        chosen = np.flatnonzero((self.step >= 0) & (longest > _FOLLOWED * self.step_ns))
        followed: list[int] = chosen[np.lexsort((self.last_ns[chosen], self.step[chosen]))].tolist()
        return followed


@fact
def waits(facts: Facts) -> Waits:
    """The straggler waits of a job. Raises MissingFactError where no collective was matched."""
    job = facts.job
    needs_matches(job)
    place = np.minimum(np.searchsorted(job.steps, job.matched.step), len(job.steps) - 1)
    return Waits(
        step=np.where(job.steps[place] == job.matched.step, place, -1),
        last=job.waiting.last,
        last_ns=job.waiting.last_ns,
        segments=job.matched.segments,
        rank=job.matched.rank,
        exposed_ns=job.waiting.exposed_ns,
        wait_ns=job.budget.of("wait"),
        step_ns=job.step_ns,
    )
