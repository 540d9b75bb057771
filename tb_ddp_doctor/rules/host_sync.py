"""See `HostSync`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tb_ddp_doctor.digest.model import CpuTime, Starved
from tb_ddp_doctor.facts.change import Change
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.host import HoldingCalls, Starvation
from tb_ddp_doctor.facts.whatif import WhatIf
from tb_ddp_doctor.job.model import Budget
from tb_ddp_doctor.rules.support import blocking_calls, text
from tb_ddp_doctor.rules.support.base import Clear, Fault, NotApplicable, Result, Rule, threshold
from tb_ddp_doctor.rules.support.slowness import median_rank

#: Where the median rank is held for less than this share of what a rank is, that rank waits alone.
_ALONE = 0.1


@dataclass(frozen=True)
class HostSync(Rule):
    """The host waits for the device within the step, and the device then waits for the host.

    What:
        Calls that block until the device has caught up: `.item()`, `.cpu()`, `nonzero`, blocking copies to the host,
        explicit synchronisation.
    Why:
        Training is fast while the host is ahead of the device. A call that waits for the device takes this lead away:
        when it returns the device is empty, and it starves until launches are ahead again.
    Evidence:
        For each of the costliest calls, by the operator around it, the one that starves the device longest: from the
        call to the end of that. The cost is what the device starves after these calls and would not if the host had
        come earlier by as long as they held it; a call in a host that is late anyway costs next to nothing, and so
        does one at a step's end with a full queue behind it.
    Fix:
        Read values rarely, and one step late; keep metrics on the device.
    Limits:
        Blocking copies from pageable memory to the device are left to pageable-memcpy, and calls that one rank makes
        alone to straggler. Where stacks were recorded (with_stack=True), each call's function is named, with the line
        where it begins, not that of the call. Calls that later steps would have to make anyway still count.
    """

    id: ClassVar[str] = "host-sync"
    looks_again: ClassVar[bool] = True

    min_cost: float = threshold(
        0.005, "of the step", "Below it a step's one synchronisation, for a printed loss, is not worth a line."
    )

    max_idle: float = threshold(
        0.10,
        "of the step",
        "A device that idles so long while its host is blocked is no clear case, whatever it costs.",
    )

    def check(self, *, frame: Frame, budget: Budget, whatif: WhatIf, starvation: Starvation, places: Places) -> Result:
        calls = starvation.calls(Starved.SYNC)
        idle = float(median_rank(budget.of("sync").mean(axis=1)))
        if not calls:
            return self._costless(calls, idle, frame) or Clear("No call of the steps waits for the device.")
        starved = starvation.of(Starved.SYNC)
        held = whatif.host_ns(CpuTime.SYNC)
        # A rank that waits alone is a straggler.
        change = Change({CpuTime.SYNC: np.where(median_rank(held) > _ALONE * held, 1.0, 0.0)})
        cost = whatif.cost_ns(change)
        number = sum(call.count for call in calls)
        blocked = sum(call.blocked_ns for call in calls)
        many = f"{blocking_calls.count(number)} call{'s' if number != 1 else ''} a step"
        if cost < self.min_cost * frame.step_ns:
            return self._costless(calls, idle, frame) or Clear(
                f"{many} hold the host for {text.ms(blocked)} in all, and the device has enough to do meanwhile."
            )
        ranks = blocking_calls.affected(starved)
        seen = int((whatif.at_slowest(starved) > 0).sum())
        level, basis = text.confidence(frame, cost, seen, ranks.tolist(), on_host=True)
        return Fault(
            change=change,
            ranks=frame.rank_numbers(ranks),
            steps=frame.all_steps,
            cause=_cause(calls[0]),
            confidence=level,
            title=f"The host waits for the device in {many}, most costly in {calls[0].op or calls[0].call}"
            f"{_place(calls[0])}, and the device then idles.",
            why=f"A step and rank: {blocking_calls.named(calls)}. They block the CPU for {text.ms(blocked)}, and the "
            f"GPU then idles {text.ms(float(starved.mean()))}, waiting for launches. {basis}",
            fix=_fix(calls),
            evidence=blocking_calls.evidence(
                calls, places, "The CPU waits in {call} in {op}; the GPU is idle, waiting for launches."
            ),
        )

    def _costless(self, calls: Sequence[HoldingCalls], idle_ns: float, frame: Frame) -> NotApplicable | None:
        """Why calls that cost nothing are not clear all the same: the device idles through them."""
        if idle_ns < self.max_idle * frame.step_ns:
            return None
        longest = max(calls, key=lambda call: call.blocked_ns, default=None)
        named = f", longest in {longest.call}{f' in {longest.op}' if longest.op else ''}" if longest else ""
        return NotApplicable(
            f"The device idles {text.ms(idle_ns)} of every {text.ms(frame.step_ns)} while its host is blocked{named},"
            " and no earlier launch would shorten that: look at what the call copies or waits for."
        )


def _place(call: HoldingCalls) -> str:
    return f", called by {text.function(call.own)}" if call.own else ""


def _cause(call: HoldingCalls) -> str:
    if not call.op:
        return "explicit"
    return "read_back" if call.op in _VALUES else "copy" if call.op in _COPIES else "operator"


_VALUES = ("aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::equal")
_COPIES = ("aten::copy_", "aten::_to_copy", "aten::to")

_ADVICE = {
    "read_back": """\
A tensor's value is read on the host (.item(), float(), int(), print, if, while). Keep sums on the device and read \
them every n-th step, after the next step has been launched; replace branches on values by torch.where.

total += loss.detach()                    # no synchronisation
if step % 100 == 0:
    print((total / 100).item())           # one for a hundred steps
    total.zero_()""",
    "copy": """\
A tensor is copied to the host and waited for (.cpu(), .to("cpu"), .numpy()). Copy into pinned memory without \
blocking, and look at it a step later.

host = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)  # once
host.copy_(value.detach(), non_blocking=True)
copied = torch.cuda.Event(); copied.record()
...                                        # launch the next step, then:
copied.synchronize(); log(host)""",
    "explicit": """\
The training loop synchronises by itself, in no operator: torch.cuda.synchronize(), a timer, a barrier, or a library \
that measures. Time with events instead, and take the rest out.

start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
start.record(); ...; end.record()          # in the step, no synchronisation
elapsed_ms = start.elapsed_time(end)       # many steps later""",
    "operator": """\
An operator whose result's size depends on values has to wait for them: nonzero, boolean masks as indices, \
unique, masked_select. Use forms of fixed size.

loss = torch.where(mask, loss_of_each, 0).sum() / mask.sum()   # instead of loss_of_each[mask].mean()""",
}


def _fix(calls: Sequence[HoldingCalls]) -> str:
    advice = _ADVICE[_cause(calls[0])]
    return f'{advice}\n\ntorch.cuda.set_sync_debug_mode("warn")  # names the line of each synchronisation'
