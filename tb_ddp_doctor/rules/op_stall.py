"""See `OpStall`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from tb_ddp_doctor import kernel_names, record_again, wording
from tb_ddp_doctor.digest.model import CpuTime, RankOwner
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.host import StallInOp, StallsInOps
from tb_ddp_doctor.facts.modules import ModuleTree
from tb_ddp_doctor.findings import Evidence, Measurement
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support import certainty, limits
from tb_ddp_doctor.rules.support.base import Clear, Fault, NotApplicable, Result, Rule, threshold
from tb_ddp_doctor.rules.support.host_overheads import GUARDS
from tb_ddp_doctor.rules.support.launches import followed
from tb_ddp_doctor.rules.support.layers import Where, where
from tb_ddp_doctor.rules.support.slowness import shared
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Ints

#: A rank is named if its stalls take at least so much of the median rank's.
_LEAST_OF_MEDIAN = 0.25


class OpStall(Rule):
    """The CPU is stalled for milliseconds inside single ops or launch calls, and the GPU idles.

    What:
        Stretches of a millisecond or more, and of ten times the median op, in which the training threads are in one op
        or launch call and neither begin nor end another. Their distribution separates them from launch overhead,
        which is many short delays. Causes: `preempted` (few stalls in many different ops that otherwise take
        microseconds: the CPU thread does not run), `first_use` (in the first launch of a kernel or the first call of an
        op, of which later ones are quick: lazy loading, autotuning, creation of cuBLAS handles, compilation),
        `graph_launch` (in launches of CUDA graphs), `guards` (in looking up what torch.compile compiled), `op` (mostly
        in another op).
    Why:
        While the thread is stalled it launches nothing. Fewer or larger kernels, such as CUDA graphs give, do not help.
    Evidence:
        The stalls with the longest GPU idle, and the kernel whose launch follows each, where most precede one. The cost
        is what the step saves if none of the stalls that the ranks share were there.
    Fix:
        By cause: give each rank enough cores of its own; record steps after warmup; look at the op.
    Limits:
        Stalls that one rank has on top of the median rank are a straggler's, with cause host. The trace does not show
        what the thread waits for. First use is seen only where the trace has later uses too. Waiting for the GPU,
        allocations, the full launch queue and the profiler's own stalls have rules of their own.
    """

    id = "op-stall"
    subject = "Waiting for CPUs that are stalled inside ops"
    of_every_program = True
    looks_again = True
    refines = ("host-stall", "launch-bound")

    min_cost: float = threshold(*limits.LAUNCHES)
    many_ops: float = threshold(4.0, "ops", "Stalls in this many different ops are not caused by the ops.")
    one_op: float = threshold(0.5, "of the stalls", "An op that has more of their time is the cause.")

    def check(
        self, *, frame: Frame, whatif: WhatIf, op_stalls: StallsInOps, modules: ModuleTree | None, places: Places
    ) -> Result:
        if not frame.has_device:
            return NotApplicable("It is about the GPU, and these traces have none (CPU only).")
        if frame.is_sampled:
            return NotApplicable("The traces are sampled: a stretch without events need not be a stall.")
        stalls = op_stalls.every
        if not stalls:
            return Clear("The CPU is never in one op or launch call for long.")
        cause = cause_of(stalls, self.many_ops, self.one_op)
        change = shared(whatif, frame, CpuTime.OP_STALL)
        cost = whatif.cost_ns(change)
        in_ops, outside = (float(whatif.host_ns(what).sum()) for what in (CpuTime.OP_STALL, CpuTime.STALL))
        if cause == "preempted" and in_ops > outside and cost >= self.min_cost * frame.step_ns:
            # A thread that does not run stalls outside ops too, but there only for as long as it is outside.
            change |= shared(whatif, frame, CpuTime.STALL)
            cost = whatif.cost_ns(change)
        if cost < self.min_cost * frame.step_ns:
            longest = max(one.length_ns for one in stalls)
            return Clear(f"Stalls inside ops, of up to {wording.ms(longest)}, cost {wording.ms(cost)} a step.")
        idle = np.zeros(whatif.shape)
        for one in stalls:
            idle[one.rank, one.step] += one.idle_ns
        affected = self._affected(stalls, frame)
        stalls = tuple(one for one in stalls if one.rank in affected)
        seen = np.flatnonzero(idle.max(axis=0) > 0)
        level, basis = certainty.confidence(frame, cost, len(seen), affected.tolist(), on_host=True)
        rare = 2 * len(seen) <= len(frame.steps)
        worst = sorted(stalls, key=lambda one: -one.idle_ns)[:3]
        return Fault(
            change=change,
            modules=_in_model(modules, stalls).modules,
            ranks=frame.rank_numbers(affected),
            steps=tuple(int(step) for step in frame.steps[seen]),
            cause=cause,
            confidence="low" if rare or cause == "first_use" else level,
            title=_TITLES[cause].format(stalls=described(stalls, len(affected) * len(frame.steps)), **_named(worst)),
            why=f"{_WHY[cause]} The longest are in {named(stalls)}. {_in_model(modules, stalls)}"
            f"{followed([_launched(one) for one in stalls])}{basis}",
            fix=_fix(cause, frame),
            evidence=tuple(window for one in worst if (window := _window(one, places))),
            measurements=(
                Measurement("stalls", len(stalls), "1", frame.rank_numbers(affected), frame.all_steps),
                Measurement("longest stall", max(one.length_ns for one in stalls) / 1e6, "ms"),
                Measurement("median stall", float(np.median([one.length_ns for one in stalls])) / 1e6, "ms"),
            ),
        )

    def _affected(self, stalls: Sequence[StallInOp], frame: Frame) -> Ints:
        """The ranks (indices) that stall for long enough to matter; all that stall, if none does.

        Beside ranks that stall for much longer, the few ms that any CPU loses now and then do not matter.
        """
        stalled = np.zeros(len(frame.ranks), np.int64)
        for one in stalls:
            stalled[one.rank] += one.length_ns
        least = self.min_cost * frame.step_ns * len(frame.steps)
        long = stalled >= max(least, _LEAST_OF_MEDIAN * np.median(stalled))
        return np.flatnonzero(long if long.any() else stalled > 0)


def cause_of(stalls: Sequence[StallInOp], many_ops: float = 4.0, one_op: float = 0.5) -> str:
    """Why they are there, by their distribution over ops."""
    total = sum(one.length_ns for one in stalls)
    if sum(one.length_ns for one in stalls if one.is_first_use) > one_op * total:
        return "first_use"
    by_op: Counter[str] = Counter()
    for one in stalls:
        by_op[one.call if names.launches_graph(one.call) else one.op or one.call] += one.length_ns
    most, takes = by_op.most_common(1)[0]
    if len(by_op) >= many_ops and takes <= one_op * total:
        return "preempted"
    return "graph_launch" if names.launches_graph(most) else "guards" if names.looks_up_compiled(most) else "op"


def described(stalls: Sequence[StallInOp], rank_steps: int) -> str:
    """How many stalls there are in a step and how long they are: "17 stalls a step of 2.0 to 30.1 ms"."""
    lengths = sorted(one.length_ns for one in stalls)
    each = len(stalls) / max(rank_steps, 1)
    often = (
        f"{wording.decimals(each, 0)} stalls a step"
        if each >= 1.5
        else "1 stall a step"
        if each >= 0.75
        else f"{len(lengths)} stall"
    )
    often += "s" if each < 0.75 and len(lengths) > 1 else ""
    least, most = wording.ms(lengths[0]), wording.ms(lengths[-1])
    return f"{often} of {most}" if least == most else f"{often} of {least.removesuffix(' ms')} to {most}"


def named(stalls: Sequence[StallInOp]) -> str:
    """The ops with most of the stalls' time: "aten::mm (cudaLaunchKernel), aten::empty and 12 more"."""
    total: Counter[str] = Counter()
    for one in stalls:
        total[_place(one)] += one.length_ns
    most = [place for place, _ in total.most_common()]
    return wording.listing([*most[:3], f"{len(most) - 3} more"] if len(most) > 4 else most)


def _place(one: StallInOp) -> str:
    return f"{one.op} ({one.call})" if one.op and one.call else one.op or one.call or "an op"


def _window(one: StallInOp, places: Places) -> Evidence | None:
    said = f"CPU stalled for {wording.ms(one.length_ns)} in {_place(one)}{_within(one)}{_before(one)}; "
    idle = f"GPU idle for {wording.ms(one.idle_ns)} of it."
    return places.between(one.rank, one.start_ns, one.end_ns, RankOwner.DISPATCH, f"{said}{idle}")


def _within(one: StallInOp) -> str:
    return f" of {one.module}" if one.module else ""


def _in_model(tree: ModuleTree | None, stalls: Sequence[StallInOp]) -> Where:
    """In which modules most of the stalls' time is, a sentence and a space; nothing where it is in none."""
    if tree is None or not any(one.module for one in stalls):
        return Where()
    places = {path: place for place, path in enumerate(tree.path)}
    own_ns = np.zeros(len(tree.path))
    for one in stalls:
        own_ns[places.get(one.module, 0)] += one.length_ns
    return where(tree, own_ns).within("Of their time ", ". ")


def _before(one: StallInOp) -> str:
    launched = _launched(one)
    return f", before the launch of {kernel_names.short(launched)}" if launched else ""


def _launched(one: StallInOp) -> str:
    """The kernel whose launch follows; "" for a graph of many kernels."""
    return "" if names.launches_graph(one.call) else one.kernel


def _named(worst: Sequence[StallInOp]) -> dict[str, str]:
    return {"place": _place(worst[0]), "length": wording.ms(worst[0].length_ns)}


#: What each cause means, in a clause.
MEANING = {
    "preempted": "the thread is preempted (more threads than cores, a CPU quota) or waits for a lock",
    "first_use": "a first use, and later ones take much less time (a kernel or library is loaded, a handle made, an "
    "algorithm tuned, or code compiled)",
    "graph_launch": "the graph has very many nodes, is launched for the first time, or the driver waits for a lock",
    "guards": "torch.compile evaluates the guards of compiled code before each call",
    "op": "that op does something slow on the CPU, or waits",
}
_TITLES = {
    "preempted": "The GPU idles while CPU threads are stalled: {stalls}, in ops that otherwise take microseconds.",
    "first_use": "The GPU idles during a first use: {place} takes the CPU {length} once.",
    **dict.fromkeys(("graph_launch", "guards", "op"), "The GPU idles while the CPU is stalled in {place}: {stalls}."),
}
_WHY = {
    "preempted": f"The stalls are in many different ops: {MEANING['preempted']}. This is no launch overhead: CUDA "
    "graphs would not help.",
    "first_use": f"It is {MEANING['first_use']}. Steps after it do not lose this.",
    "graph_launch": f"A graph is launched in microseconds, unless {MEANING['graph_launch']}.",
    "guards": f"There {MEANING['guards']}, and models of many modules and inputs have many.",
    "op": f"Other ops take microseconds: {MEANING['op']}. This is no launch overhead: CUDA graphs would not help.",
}
_FIXES = {
    "preempted": """\
Give each rank enough cores of its own: fewer threads (OMP_NUM_THREADS, worker processes), pinned cores, a larger \
CPU quota of the container, nothing else on the node.

cat /sys/fs/cgroup/cpu.stat                # nr_throttled, throttled_usec: the CPU quota is used up
pidstat -wt -p <pid of the rank> 1         # nvcswch/s: preempted that often
taskset -cp <pid of the rank>              # its cores; other ranks should have different ones
export OMP_NUM_THREADS=<cores per rank>""",
    "first_use": """\
Record steps after warmup; where the job itself does this now and then (new shapes, new kernels), do it before.

{schedule}export CUDA_MODULE_LOADING=EAGER           # loads all kernels at the start""",
    "graph_launch": """\
Launch each graph once before the steps, so that it is on the GPU, and capture fewer nodes (fused kernels). From CUDA \
12.6 on, a graph without branches is launched in constant time. What the driver waits for:

nvidia-smi --query-gpu=driver_version --format=csv
perf trace -s -p <pid of the rank>         # system calls and how long they take""",
    "guards": f"""\
{GUARDS}Compile fewer, larger regions, and keep Python numbers and lists that change out of the model.

TORCH_LOGS=guards python ...               # which they are""",
    "op": """\
Look at what that op does on the CPU: a lock, page faults, work on CPU tensors, a custom op that waits. While it runs:

py-spy dump --native --pid <pid of the rank>
perf trace -s -p <pid of the rank>         # system calls and how long they take""",
}
#: Where the training script sets up the profiler; a `Doctor` captures steps long after the first.
_OF_NSYS = f"""\
{record_again.NSYS} --capture-range=cudaProfilerApi {record_again.NSYS_OUTPUT}
torch.cuda.profiler.start()                # in the training loop, after some steps
"""
_SCHEDULE = "schedule=torch.profiler.schedule(wait=5, warmup=3, active=3, repeat=1)\n"


def _fix(cause: str, frame: Frame) -> str:
    own = frame.setting.has_doctor or not frame.trains  # no loop of the user's has a profiler
    schedule = "" if own else _OF_NSYS if frame.setting.recorder == "nsys" else _SCHEDULE
    return _FIXES[cause].replace("{schedule}", schedule)
