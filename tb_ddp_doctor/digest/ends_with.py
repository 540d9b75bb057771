"""Which device work a stretch that blocks the CPU ends with: the CPU waits for that work, and does not work itself.

A call that synchronises, copies blockingly, or allocates or frees device memory returns when device work is over, on
whatever stream; so does a stretch outside any op, or inside one, in which the CPU waits in a call that the recorder
does not show (cudaEventSynchronize in older ones). What ends a stretch is seen by its time alone:

    stream 20  [all-to-all.............]
    CPU           [cudaStreamSynchronize..]      returns 56 to 92 us later on V100s, under 20 us later on H100s

What no recorded call explains may end there by chance: it counts only where that is improbable. So it is of one stretch
in fifty, and a job has hundreds: a wait of the program ends so in most steps, chance in one.
"""

from __future__ import annotations

from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.columns import searchsorted
from tb_ddp_doctor.digest.model import CpuTime
from tb_ddp_doctor.trace.model import Indices, Ints

#: A blocking call returns at most this long after the work that it waits for, ns.
_RETURN_NS = 100_000
#: A stretch that no recorded call explains goes on at most this long after, ns.
_RESUME_NS = 200_000
#: Such a stretch ends with device work by chance if this share of it lies as close after an end of such work.
_BY_CHANCE = 0.02
#: Work may seem to end after the call that waits for it, by so much and by this share of the call: the recorder's
#: clocks of CPU and GPU were up to 27 us apart in jobs on V100s.
_EARLY_NS = 50_000
_EARLY_SHARE = 0.1
_LONG_AGO = -(2**62)
#: What sums of logarithms may be off by.
_ROUNDING = 1e-9


class Blocked(msgspec.Struct, frozen=True, eq=False, dict=True):
    """Stretches that block the CPU; shape (N,), ns."""

    start_ns: Ints
    end_ns: Ints
    #: A `CpuTime`, -1 where nothing blocks.
    kind: Indices | Ints

    @cached_property
    def in_a_call(self) -> NDArray[np.bool_]:
        """Whether a recorded call that waits for the device, or may, blocks the CPU."""
        return (self.kind >= 0) & (self.kind < CpuTime.INPUT)

    @cached_property
    def latest_ns(self) -> Ints:
        """When the work that each waits for ends at the latest, by the device's clock."""
        early = np.minimum(((self.end_ns - self.start_ns) * _EARLY_SHARE).astype(np.int64), _EARLY_NS)
        return self.end_ns + early


def events(
    blocked: Blocked, launched_ns: Ints, end_ns: Ints, communicates: NDArray[np.bool_], polled: NDArray[np.bool_]
) -> Ints:
    """The device event that each stretch ends with, -1 for none; shape (N,).

    `launched_ns` and `end_ns` are when the device's events were launched, -1 where unknown, and end; `communicates`
    says which of them are collectives, `polled` for which the CPU that launches them waits; all of shape (events,). A
    stretch outside any op can wait for a collective alone: only those are so rare that chance is improbable.
    """
    outside = blocked.kind == CpuTime.STALL
    collective = np.flatnonzero(communicates)
    awaited = _last_launched_before(blocked, launched_ns, end_ns)
    of_collectives = _last_launched_before(blocked, launched_ns[collective], end_ns[collective])
    some = of_collectives >= 0
    of_collectives[some] = collective[of_collectives[some]]
    awaited = np.where(outside, of_collectives, awaited)
    late = blocked.end_ns - end_ns[awaited] if len(end_ns) else awaited
    candidates = np.where(outside, _ends_within(blocked, end_ns[collective]), _ends_within(blocked, end_ns))
    improbable = candidates * np.abs(late) <= _BY_CHANCE * (blocked.end_ns - blocked.start_ns)
    unexplained = outside | (blocked.kind == CpuTime.OP_STALL)
    resumes = unexplained & (late < _RESUME_NS) & improbable & (awaited >= 0)
    resumes &= ~_by_noise(blocked, unexplained, resumes)
    poll = _polled(blocked, launched_ns, end_ns, polled)
    polls = unexplained & (poll >= 0)
    awaited, resumes = np.where(polls, poll, awaited), resumes | polls
    returns = blocked.in_a_call & (late < _RETURN_NS)
    return np.where((awaited >= 0) & (returns | resumes), awaited, -1)


def _polled(blocked: Blocked, launched_ns: Ints, end_ns: Ints, polled: NDArray[np.bool_]) -> Ints:
    """The polled event that was launched last before each stretch and ends near its end, -1 for none; shape (N,)."""
    nothing = np.full(len(blocked.end_ns), -1)
    known = np.flatnonzero(launched_ns >= 0)
    if not polled.any() or not len(known):
        return nothing
    known = known[np.argsort(launched_ns[known], kind="stable")]
    before = searchsorted(launched_ns[known], blocked.start_ns, side="right") - 1
    last = known[np.maximum(before, 0)]
    late = blocked.end_ns - end_ns[last]
    waits = (before >= 0) & polled[last] & (late < _RESUME_NS) & (end_ns[last] <= blocked.latest_ns)
    return np.where(waits, last, nothing)


def _by_noise(blocked: Blocked, unexplained: NDArray[np.bool_], resumes: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which stretches are alike of which so few end with device work that chance may be why; shape (N,).

    Alike are those of one kind and a length from one power of two to the next. If n of them were to end so by chance,
    each with probability p, k or more would with at most exp(-n KL(k / n, p)) (Chernoff's bound, KL the divergence).
    """
    length = np.maximum(blocked.end_ns - blocked.start_ns, 1)
    group = np.log2(length).astype(np.int64) * len(CpuTime) + blocked.kind
    _, group = np.unique(group, return_inverse=True)
    of = np.bincount(group[unexplained], minlength=len(group))
    share = np.bincount(group[resumes], minlength=len(group)) / np.maximum(of, 1)
    others = np.maximum(1 - share, np.finfo(float).tiny)
    divergence = share * np.log(np.maximum(share, _BY_CHANCE) / _BY_CHANCE) + others * np.log(others / (1 - _BY_CHANCE))
    may_be: NDArray[np.bool_] = (share <= _BY_CHANCE) | (of * divergence < -np.log(_BY_CHANCE) - _ROUNDING)
    return may_be[group]


def collectives(blocked: Blocked, launched_ns: Ints, end_ns: Ints) -> tuple[Ints, Ints]:
    """Blocking calls that wait for a collective launched before them, and the collective: the last to end there.

    Collectives are of shape (C,), `launched_ns` -1 where unknown. A call for memory waits for all that was launched
    before it, and then takes time of its own: the collective may end anywhere within it, but none that was launched
    before may go on after it.
    """
    nothing = np.empty(0, np.int64)
    known = np.flatnonzero(launched_ns >= 0)
    if not len(known) or not len(blocked.start_ns):
        return nothing, nothing
    last = _last_launched_before(blocked, launched_ns[known], end_ns[known])
    collective = known[last]
    within = last >= 0
    ends_here = end_ns[collective] > blocked.end_ns - _RETURN_NS
    by_launch = known[np.argsort(launched_ns[known], kind="stable")]
    before = searchsorted(launched_ns[by_launch], blocked.start_ns, side="right")
    all_done = np.append(_LONG_AGO, np.maximum.accumulate(end_ns[by_launch]))[before] <= blocked.latest_ns
    waits = within & blocked.in_a_call & (ends_here | ((blocked.kind == CpuTime.ALLOC) & all_done))
    return np.flatnonzero(waits), collective[waits]


def _last_launched_before(blocked: Blocked, launched_ns: Ints, end_ns: Ints) -> Ints:
    """The last event to end in each stretch, -1 where none does; shape (N,).

    A CPU does not wait for what it launches afterwards: a short collective that is launched right after the stretch
    would seem to end with it, within the tolerance of the clocks.
    """
    last = last_to_end(end_ns, blocked.start_ns, blocked.latest_ns)
    if not len(end_ns):
        return last
    later = (last >= 0) & (launched_ns[last] > blocked.start_ns)
    if not later.any():
        return last
    within = last_to_end(end_ns, blocked.start_ns, blocked.end_ns)
    last = np.where(later, within, last)
    return np.where((last >= 0) & (launched_ns[last] > blocked.start_ns), -1, last)


def last_to_end(end_ns: Ints, after_ns: Ints, until_ns: Ints) -> Ints:
    """Which of some things ends last after one instant and no later than another; -1 where none does."""
    if not len(end_ns):
        return np.full(len(until_ns), -1)
    order = np.argsort(end_ns, kind="stable")
    last = searchsorted(end_ns[order], until_ns, side="right") - 1
    which = order[np.maximum(last, 0)]
    return np.where((last >= 0) & (end_ns[which] > after_ns), which, -1)


def _ends_within(blocked: Blocked, end_ns: Ints) -> Ints:
    """How many things end in each stretch; shape (N,)."""
    ends = np.sort(end_ns, kind="stable")
    return searchsorted(ends, blocked.end_ns, side="right") - searchsorted(ends, blocked.start_ns, side="right")
