"""See `HostStall`."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor import record_again, wording
from tb_ddp_doctor.digest.model import CpuTime, RankOwner
from tb_ddp_doctor.evidence.model import RankEvidence
from tb_ddp_doctor.facts.compute import Phases
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.host import HostOverheads, HostStalls
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support import activity, certainty, host_overheads, part
from tb_ddp_doctor.rules.support.base import Clear, Fault, NotApplicable, Result, Rule, threshold
from tb_ddp_doctor.rules.support.launches import followed
from tb_ddp_doctor.rules.support.rank_evidence import of_stack
from tb_ddp_doctor.rules.support.slowness import median_rank, median_rank_index, phase_of_most, shared, within
from tb_ddp_doctor.trace.model import Ints
from tb_ddp_doctor.trace.program_names import Role

#: Where the median rank stalls for less than this share of what it costs, others stall longer, and it waits for them.
_PART = 0.5


class HostStall(Rule):
    """The GPU idles while the CPU is outside any op, on all ranks.

    What:
        Stretches of a millisecond or more in which the GPU idles and the CPU is outside any op: not in a launch, a
        sync or the DataLoader either.
    Why:
        The training loop itself does something slow on the CPU: Python, garbage collection, logging, file I/O.
    Evidence:
        The longest such stretch of each of the ranks that stall most, and the phase that most of it is in.
    Fix:
        Move it out of the loop, or do it less often. For garbage collection: collect by hand between steps.
        Causes, where stacks or annotations show them: garbage_collection, sleep, checkpoint, logging, io, python.
    Limits:
        The trace does not show what the CPU does there unless Python stacks were recorded (with_stack=True) or the
        loop is annotated (record_function). Python may collect garbage inside any function. If one rank alone stalls,
        it is a straggler with cause host.
    """

    id = "host-stall"
    subject = "Waiting for CPUs that are outside any op"
    looks_again = True
    refines = ("slow-step", "launch-bound")

    min_known: float = threshold(0.5, "of the stall", "An activity that takes less of it is not the cause.")
    min_share: float = threshold(0.03, "of the step", "On the median rank; healthy jobs stay under 1 %.")
    min_of_engines: float = threshold(
        0.1, "of the step", "Engines that generate schedule and load weights; those that do it ahead idle for less."
    )

    def check(
        self,
        *,
        frame: Frame,
        whatif: WhatIf,
        stalls: HostStalls,
        phases: Phases,
        rank_evidence: tuple[RankEvidence, ...],
        overheads: HostOverheads,
        places: Places,
    ) -> Result:
        if frame.is_sampled:
            return NotApplicable("The traces are sampled: a stretch without events need not be a stall.")
        least = self.min_share * frame.step_ns
        # What one rank stalls longer than the median rank is a straggler's.
        change = shared(whatif, frame, CpuTime.STALL)
        cost = whatif.cost_ns(change)
        if cost < self.min_of_engines * frame.step_ns and whatif.cost_ns(_but_of_engines(change, frame)) < least:
            return Clear(f"The CPU is outside any op {wording.ms(cost)} a step, mostly in engines that generate.")
        # The ranks stall in turn, so that each GPU waits in a collective while another rank's CPU stalls.
        waits = whatif.plays and float(median_rank(stalls.long_ns.mean(axis=1))) < max(least, _PART * cost)
        stalled = whatif.host_ns(CpuTime.STALL) if waits else stalls.long_ns
        if len(frame.of_each_role) > 1:
            # What a role waits for another one is no stall.
            stalled = np.minimum(stalled, whatif.host_ns(CpuTime.STALL))
        mean = stalled.mean(axis=1)
        judged = max(frame.of_each_role, key=lambda ranks: float(median_rank(mean[ranks])))
        median = float(median_rank(mean[judged]))
        if min(median, cost) < least:
            return Clear(
                f"The median rank's CPU is outside any op {wording.ms(median)} a step"
                f"{', with the GPU idle' if frame.has_device else ''}."
            )
        affected = _affected(stalled, judged, least)
        seen = np.flatnonzero(median_rank(stalled[judged]) > least)
        rare = 0 < 2 * len(seen) <= len(frame.steps)
        level, basis = certainty.confidence(frame, cost, len(seen), affected.tolist(), on_host=True)
        known = activity.most(stalls.doing(affected.tolist()), self.min_known * median)
        often = f"{wording.period(seen.tolist()).lstrip()} ".lstrip() if rare else ""
        worst = affected[np.argsort(-mean[affected], kind="stable")][:3].tolist()
        idle = "GPU idle, CPU outside any op." if frame.has_device and not waits else "CPU outside any op."
        return Fault(
            change=change,
            ranks=frame.rank_numbers(affected),
            steps=tuple(int(step) for step in frame.steps[seen]) if rare else frame.all_steps,
            cause=known.kind.value if known else None,
            confidence="low" if rare and len(seen) == 1 else level,
            title=_title(frame, waits, stalled[judged], frame.window_ns[judged], cost, seen if rare else None),
            why=f"The CPU is outside any op there{_activity(known)}.{of_stack(worst, rank_evidence)} "
            f"{host_overheads.said(overheads, affected, frame.step_ns)}"
            f"{_place(stalls, phases, affected)}{often}{basis}",
            subject=known.subject if known else "",
            fix=known.fix if known and known.cause else f"{_FIX}{record_again.with_stacks(frame.setting)}",
            evidence=tuple(places.longest(rank, int(stalled[rank].argmax()), RankOwner.HOST, idle) for rank in worst),
        )


def _but_of_engines(change: Change, frame: Frame) -> Change:
    """The change of the ranks that do not serve requests for reinforcement learning, to generate or to score; of all
    where these train as well.
    """
    takes_turns = len(set(frame.roles)) == 1
    serves = (Role.ROLLOUT.value, Role.REWARD.value)
    others = np.array([takes_turns or role not in serves for role in frame.roles])[:, None]
    return Change(shared={kind: np.where(others, share, 0) for kind, share in change.shared.items()})


def _affected(stalled: Ints, judged: Ints, least_ns: float) -> Ints:
    """The ranks (indices) that stall for so long a step in the mean, shape (R, S); of other roles than the one that is
    judged in the median, too: what they await before or after the record is no stall.
    """
    often = np.isin(np.arange(len(stalled)), judged) | (np.median(stalled, axis=1) >= least_ns)
    return np.flatnonzero(often & (stalled.mean(axis=1) >= least_ns))


def _part(stalled: Ints, window_ns: Ints, cost_ns: float) -> part.PartOfStep:
    """What the median rank stalls; up to the cost, what the rank that stalls longest in each step does."""
    rank, longest, steps = median_rank_index(stalled), stalled.argmax(axis=0), np.arange(stalled.shape[1])
    typical = part.mean(stalled[rank], window_ns[rank])
    in_turn = part.mean(stalled[longest, steps], window_ns[longest, steps]).at_most(cost_ns)
    return max(typical, in_turn, key=lambda each: each.ns)


def _title(frame: Frame, waits: bool, stalled: Ints, window_ns: Ints, cost_ns: float, rare: Ints | None) -> str:
    """Of what the ranks of the role that stalls most stall in steps of so many ns: `waits` if GPUs wait for other ranks
    meanwhile; `rare` are the steps (indices) that alone have stalls.
    """
    if waits:
        what, why = "The CPU is outside any op", "GPUs idle, or wait for the CPUs of other ranks"
    elif frame.has_device:
        what, why = "GPU and CPU both idle", "the CPU is outside any op"
    else:
        what, why = "The ranks compute nothing for", "the CPU is outside any op"
    if rare is None:
        return f"{what} {_part(stalled, window_ns, cost_ns if waits else 0.0)}: {why}."
    each = wording.ms(float(median_rank(stalled)[rare].mean()))
    named = wording.steps([int(step) for step in frame.steps[rare]])
    return f"{what} {each} in {named} ({wording.steps_seen(len(rare), len(frame.steps))}), on all ranks."


def _place(stalls: HostStalls, phases: Phases, affected: Ints) -> str:
    """The phase that most of the stalls of these ranks are in, and what is launched after them: a sentence each, and a
    space; "" where that is not known.
    """
    phase = phase_of_most(stalls.phase_ns[affected].mean(axis=(0, 1)), phases)
    most = "" if phase is None else f"Most of it is {within(phase)}. "
    return f"{most}{followed(stalls.launched_after(affected.tolist()))}"


def _activity(known: activity.Known | None) -> str:
    return f": {known.said}" if known else ": Python, garbage collection, logging or I/O"


_FIX = """\
Find what the loop does there. Remove it, or do it every n-th step: logging, metrics, checkpoints, file I/O. If \
it is Python's garbage collector, stop it and collect by hand. Record stacks to see the line.

import gc
gc.collect(); gc.freeze(); gc.disable()  # once, before training
gc.collect()                             # every few hundred steps

"""
