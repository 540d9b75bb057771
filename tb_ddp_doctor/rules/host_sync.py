"""See `HostSync`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.model import CpuTime, LaunchDelay
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.host import BlockingCallsOfOp, LateLaunches
from tb_ddp_doctor.findings import Severity
from tb_ddp_doctor.job.model import Budget
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support import blocking_calls, certainty, naming, part
from tb_ddp_doctor.rules.support.affected import most_affected
from tb_ddp_doctor.rules.support.base import Clear, Fault, NotApplicable, Result, Rule, threshold
from tb_ddp_doctor.rules.support.slowness import median_rank, median_rank_index
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.program_names import Program

#: Where the median rank is held for less than this share of what a rank is, that rank waits alone.
_ALONE = 0.1


class HostSync(Rule):
    """The CPU syncs with the GPU within the step, and the GPU is then idle, waiting for launches.

    What:
        Calls that block until the GPU has finished its queue: `.item()`, `.cpu()`, `nonzero`, blocking copies to the
        host, `cuda*Synchronize`.
    Why:
        A program is fast while the CPU launches ahead of the GPU. A sync ends this lead: when it returns, the launch
        queue is empty, and the GPU is idle until the next launches come.
    Evidence:
        The calls that cost most, by the operator around them: for each the one with the longest GPU idle after it. The
        window reaches from the call to the end of that idle time. The cost is the GPU idle time after these calls that
        would go away if the CPU had been earlier by the time that the calls block it. A sync on a CPU that is late
        anyway costs almost nothing, and neither does one at the end of a step with a full launch queue after it.
    Fix:
        Read values rarely, and one step late; keep metrics on the GPU.
    Limits:
        Servers read tokens in every iteration, and are not judged.
        Blocking copies from pageable memory to the GPU are pageable-memcpy's, and syncs on one rank alone are
        straggler's; so is what the CPU of one rank stalls beside them, and host-stall's what all do. Syncs that await
        what an optimizer on the CPU works on do not count, and neither do reads of tokens on ranks that generate for
        reinforcement learning.
        Where stacks were recorded (with_stack=True), the function of each call is named, with the line where the
        function begins, not that of the call. Calls that the job cannot do without count as well: the trace does not
        show which these are.
    """

    id = "host-sync"
    subject = "Waiting in syncs of the CPU with the GPU"
    looks_again = True
    of_every_program = True
    refines = "launch-bound"

    min_cost: float = threshold(
        0.005, "of the step", "Less is typical of one sync a step, for a printed loss, and is not worth reporting."
    )

    max_idle: float = threshold(
        0.10,
        "of the step",
        "A GPU that is idle this long while its CPU is blocked is not clear, whatever it costs.",
    )

    def check(
        self, *, frame: Frame, budget: Budget, whatif: WhatIf, late_launches: LateLaunches, places: Places
    ) -> Result:
        if frame.program == Program.SERVING.value:
            return NotApplicable("A server reads its tokens once an iteration: iteration-gap judges what that costs.")
        calls = late_launches.calls(LaunchDelay.SYNC)
        synced = budget.of("sync")
        typical = median_rank_index(synced)
        idle = part.mean(synced[typical], frame.window_ns[typical])
        if not calls:
            return self._costless(calls, idle) or Clear("No call in the steps syncs with the GPU.")
        counted = late_launches.share(LaunchDelay.SYNC)
        idle_ns = np.rint(late_launches.of(LaunchDelay.SYNC) * counted).astype(np.int64)
        blocked_ns = whatif.host_ns(CpuTime.SYNC)
        # A rank that waits alone is a straggler.
        share = blocking_calls.removable(whatif, CpuTime.SYNC, idle_ns) * counted
        change = Change({CpuTime.SYNC: np.where(median_rank(blocked_ns) > _ALONE * blocked_ns, share, 0.0)})
        cost = blocking_calls.cost_ns(whatif, change, CpuTime.SYNC)
        number = sum(call.count for call in calls)
        blocked = sum(call.blocked_ns for call in calls)
        many = f"{blocking_calls.count(number)} call{'s' if number != 1 else ''} a step"
        if cost < self.min_cost * frame.step_ns or not idle_ns.any():
            return self._costless(calls, idle) or Clear(
                f"{many} block{'s' if number == 1 else ''} the CPU for {wording.ms(blocked)} in total, and the GPU has "
                "enough queued work meanwhile."
            )
        if cost < min(whatif.cost_ns(change), Severity.MINOR.least_share * frame.step_ns):
            # The calls would be charged with all that they save.
            return Clear(
                f"Without {many}, queued work would hide what CPUs do outside any op, or that one is slower: most of "
                "what that saves is not the calls'."
            )
        ranks = most_affected(idle_ns)
        seen = int((whatif.at_slowest(idle_ns) > 0).sum())
        level, basis = certainty.confidence(frame, cost, seen, ranks.tolist(), on_host=True)
        return Fault(
            change=change,
            ranks=frame.rank_numbers(ranks),
            cause=_cause(calls[0]),
            confidence=level,
            title=f"The CPU syncs with the GPU in {many}, most costly in {calls[0].op or calls[0].call}"
            f"{_place(calls[0])}; the GPU then idles.",
            why=f"Per step and rank: {blocking_calls.named(calls)}. They block the CPU for {wording.ms(blocked)}, "
            "and the "
            f"GPU then idles {wording.ms(float(idle_ns.mean()))}, waiting for launches. {basis}",
            fix=_fix(calls, trains=frame.trains),
            evidence=blocking_calls.evidence(
                calls, places, "The CPU waits in {call} in {op}; the GPU is idle, waiting for launches."
            ),
        )

    def _costless(self, calls: Sequence[BlockingCallsOfOp], idle: part.PartOfStep) -> NotApplicable | None:
        """Why calls that cost nothing are not clear all the same: the device idles through them."""
        if idle.share < self.max_idle:
            return None
        longest = max(calls, key=lambda call: call.blocked_ns, default=None)
        named = f", longest in {longest.call}{f' in {longest.op}' if longest.op else ''}" if longest else ""
        return NotApplicable(
            f"The GPU idles {idle} while its CPU is blocked{named}, "
            "and earlier launches would not shorten that: look at what the call copies or waits for."
        )


def _place(call: BlockingCallsOfOp) -> str:
    return f", called by {naming.function(call.own)}" if call.own else ""


def _cause(call: BlockingCallsOfOp) -> str:
    if not call.op:
        return "explicit"
    return "read_back" if call.op in _VALUES else "copy" if names.moves_tensor(call.op) else "operator"


_VALUES = ("aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::equal")

_ADVICE = {
    "read_back": """\
A tensor's value is read on the CPU (.item(), float(), int(), print, if, while). Keep sums on the GPU and read them \
every n-th step, after the next step has been launched; replace branches on values by torch.where.

total += loss.detach()                    # no sync
if step % 100 == 0:
    print((total / 100).item())           # one sync in a hundred steps
    total.zero_()""",
    "copy": """\
A blocking copy of a tensor to the host (.cpu(), .to("cpu"), .numpy()). Copy into pinned memory without blocking, and \
read it a step later.

host = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)  # once
host.copy_(value.detach(), non_blocking=True)
copied = torch.cuda.Event(); copied.record()
...                                        # launch the next step, then:
copied.synchronize(); log(host)""",
    "explicit": """\
The loop itself syncs, outside any op: torch.cuda.synchronize(), a timer, a barrier, or a library that \
measures. Measure time with CUDA events instead, and remove the other syncs.

start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
start.record(); ...; end.record()          # in the step, no sync
elapsed_ms = start.elapsed_time(end)       # many steps later""",
    "operator": """\
The size of an operator's result depends on values on the GPU, so the CPU waits for them: nonzero, boolean masks as \
indices, unique, masked_select. Use operators whose results have a fixed size.

loss = torch.where(mask, loss_of_each, 0).sum() / mask.sum()   # instead of loss_of_each[mask].mean()""",
}


#: The same of programs that do not train, where it differs.
_OF_A_MODEL = {
    "read_back": """\
A tensor's value is read on the CPU (.item(), float(), int(), print, if, while). Keep results on the GPU, and read \
those of one batch after the next one is launched; replace branches on values by torch.where.

host.copy_(model(batch), non_blocking=True); copied.record()  # pinned memory and an event, made once
...                                        # launch the next batch, then:
copied.synchronize(); handle(host)""",
    "operator": """\
The size of an operator's result depends on values on the GPU, so the CPU waits for them: nonzero, boolean masks as \
indices, unique, masked_select. Use operators whose results have a fixed size.

scores = torch.where(mask, scores, -torch.inf)   # instead of scores[mask]""",
}


def _fix(calls: Sequence[BlockingCallsOfOp], *, trains: bool) -> str:
    cause = _cause(calls[0])
    advice = _ADVICE[cause] if trains else _OF_A_MODEL.get(cause, _ADVICE[cause])
    return f'{advice}\n\ntorch.cuda.set_sync_debug_mode("warn")  # names the line of each sync'
