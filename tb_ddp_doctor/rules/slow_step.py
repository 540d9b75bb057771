"""See `SlowStep`."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.facts.compute import Phases
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.host import HostStalls, StallsInOps
from tb_ddp_doctor.findings import Measurement, Setting
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules import op_stall
from tb_ddp_doctor.rules.support import activity, certainty
from tb_ddp_doctor.rules.support.base import Clear, Fault, NotApplicable, Result, Rule, threshold
from tb_ddp_doctor.rules.support.slowness import phase_of_most, slowness, within
from tb_ddp_doctor.trace.model import Ints


class SlowStep(Rule):
    """Some steps are slow on all ranks: a checkpoint, an evaluation, slow kernels or a slow collective.

    What:
        Steps in which the median rank's busy time is longer than in comparable steps. The cause is the part that takes
        longer: the `host` (CPU), the `device` (GPU), or `communication`. Where stacks or annotations show what the CPU
        does then, that is the cause: `garbage_collection`, `checkpoint` or `logging`.
    Why:
        Work that all ranks do every few steps adds to the mean step time. Advice for steady faults does not help:
        sending fewer bytes does not fix one slow collective in five steps.
    Evidence:
        The whole of each such step, on the rank that takes longest.
    Fix:
        By cause: do it less often or in the background (checkpoints, evaluation, logging), or find what disturbed the
        GPU or the network in these steps.
    Limits:
        At least three comparable steps (with the same collectives), of which most take equally long. Work that comes in
        more than half of the steps counts as normal.
    """

    id = "slow-step"
    subject = "The excess of slow steps"
    looks_again = True
    refines = "communication-bound"

    min_excess: float = threshold(
        0.15, "of the step", "A step is slow if it is longer than comparable ones by this much."
    )
    min_cost: float = threshold(0.03, "of the step", "Mean over all steps.")
    max_steps: float = threshold(0.5, "of the steps", "If more steps are slow, they are normal steps.")

    def check(
        self,
        *,
        frame: Frame,
        whatif: WhatIf,
        phases: Phases,
        stalls: HostStalls,
        op_stalls: StallsInOps,
        places: Places,
    ) -> Result:
        if len(frame.steps) < _FEWEST_STEPS:
            return NotApplicable("Fewer than three steps cannot show which of them is slow.")
        if not whatif.plays:
            return NotApplicable("Steps cannot be replayed, so it is not known which of them are comparable.")
        excess = slowness(whatif, frame, self.min_excess, 1.0).step_excess_ns
        odd = np.flatnonzero(excess > max(self.min_excess * frame.step_ns, 2 * frame.residual_ns))
        if not len(odd) or len(odd) > self.max_steps * len(frame.steps):
            return Clear(f"On all ranks, comparable steps differ by at most {wording.ms(float(np.ptp(excess)))}.")
        chosen = np.zeros(whatif.shape, np.bool_)
        chosen[:, odd] = True
        parts = {
            "host": whatif.shared_in(chosen[0]),
            "device": Change(device_at_median=chosen),
            "communication": Change(transfers_at_median=chosen),
        }
        change = parts["host"] | parts["device"] | parts["communication"]
        cost = whatif.cost_ns(change)
        if cost < self.min_cost * frame.step_ns:
            return Clear(f"Steps that are slow on all ranks cost {wording.ms(cost)} a step.")
        cause = max(parts, key=lambda part: whatif.cost_ns(parts[part]))
        numbers = tuple(int(step) for step in frame.steps[odd])
        known = activity.most(stalls.doing(range(whatif.shape[0])), cost / 2) if cause == "host" else None
        where = _phase(odd, phases)
        if cause == "host":
            spent = f" Mean over all steps, the CPU spends {known.said}." if known else ""
            where += spent or _in_ops(odd, cost, whatif, op_stalls)
        level, basis = certainty.confidence(frame, cost, len(odd))
        seen = wording.steps_seen(len(odd), len(frame.steps))
        named = wording.capital(wording.steps(numbers))
        everywhere = " on all ranks" if len(frame.ranks) > 1 else ""
        return Fault(
            change=change,
            steps=numbers,
            cause=(known and known.cause) or cause,
            subject=known.subject if known else "",
            confidence="low" if len(odd) == 1 else level,
            title=f"{named} {'is' if len(odd) == 1 else 'are'} slow{everywhere} ({seen}): {_WHAT[cause]}.",
            why=f"The median rank needs {wording.ms(float(excess[odd].mean()))} more than in comparable steps.{where}"
            f"{wording.period(odd.tolist())} {basis}",
            fix=known.fix if known else _fix(cause, frame.setting, len(frame.ranks)),
            evidence=tuple(
                places.window(int(whatif.busy_ns[:, step].argmax()), int(step), f"A step that is slow{everywhere}.")
                for step in odd[:4].tolist()
            ),
            measurements=tuple(
                Measurement("above comparable steps", float(excess[step]) / 1e6, "ms", (), (int(frame.steps[step]),))
                for step in odd
            ),
        )


#: Of two steps none is odd.
_FEWEST_STEPS = 3
_WHAT = {
    "host": "the CPU does other work in such a step",
    "device": "the same kernels take longer in such a step, or it has more of them",
    "communication": "a collective takes much longer than comparable ones",
}


def _phase(odd: Ints, phases: Phases) -> str:
    """The phase that most of those steps' (indices) additional time is in, a sentence after a space; "" for none."""
    normal = np.setdiff1d(np.arange(phases.busy_ns.shape[1]), odd)
    more = (phases.busy_ns[:, odd].mean(axis=(0, 1)) - phases.busy_ns[:, normal].mean(axis=(0, 1))).astype(float)
    phase = phase_of_most(more, phases)
    return f" Most of it is {within(phase)}." if phase is not None else ""


def _in_ops(odd: Ints, cost_ns: float, whatif: WhatIf, op_stalls: StallsInOps) -> str:
    """The ops that stall the hosts in those steps (indices), a sentence after a space; "" if they are little of it."""
    inside = [one for one in op_stalls.every if one.step in odd]
    if not inside or sum(one.length_ns for one in inside) < cost_ns / 2 * whatif.shape[0] * whatif.shape[1]:
        return ""
    cause = op_stall.cause_of(inside)
    return f" The CPU is stalled in {op_stall.named(inside)}: {op_stall.MEANING[cause]}."


def _fix(cause: str, setting: Setting, ranks: int) -> str:
    if cause == "communication" and ranks == 1:
        return _FIXES["one_rank"]
    if cause == "communication" and not (setting.uses_nccl and setting.may_use_network):
        return _COMMUNICATION_OF_ONE_HOST if not setting.may_use_network else _COMMUNICATION_OF_CPUS
    if cause == "device" and setting.device == "rocm":
        return _FIXES[cause].replace(_OF_NVIDIA, _OF_AMD)
    return _FIXES[cause]


_OF_NVIDIA = "nvidia-smi dmon -s pucvmet   # power, utilisation, clocks, memory, errors while it trains"
_OF_AMD = "rocm-smi --showpower --showuse --showclocks --showtemp   # while it trains"
_COMMUNICATION_OF_ONE_HOST = """\
Look at what else runs on this host in these steps: other processes on its GPUs or cores, a copy, a checkpoint. \
Capture more steps to see how often it comes.

top -H -d 1                  # while it trains"""
_COMMUNICATION_OF_CPUS = """\
Look at the network in these steps: another job on the same links, congestion, retransmissions. Capture more steps to \
see how often it comes.

ethtool -S <interface> | grep -iE 'pause|discard|retrans'"""
_FIXES = {
    "host": """\
Look for what all ranks do every few steps: a checkpoint, an evaluation, logging, garbage collection. Do it less \
often, or in the background.

import torch.distributed.checkpoint as dcp
saving = dcp.async_save(state, checkpoint_id=path)  # returns when the state is copied""",
    "device": """\
Look for what the GPUs do in that step alone: an evaluation, new shapes that are autotuned or compiled, clocks that \
drop (power, temperature), another process on the GPU.

nvidia-smi dmon -s pucvmet   # power, utilisation, clocks, memory, errors while it trains""",
    "one_rank": """\
Trace all ranks in these steps: one rank alone cannot show whether another rank was late or the network slow.""",
    "communication": """\
Look at the network in these steps: another job on the same links, congestion, retransmissions. Capture more steps to \
see how often it comes, and measure the links without the job (nccl-tests).

NCCL_DEBUG=INFO all_reduce_perf -b 8M -e 256M -f 2 -g 1""",
}
