"""See `MemoryGrowth`."""

from __future__ import annotations

from tb_ddp_doctor import findings, record_again, wording
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.findings import Memory
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.rules.support.base import Clear, Fault, NotApplicable, Result, Rule, threshold


class MemoryGrowth(Rule):
    """Allocated memory grows from step to step: a leak, if it goes on.

    What:
        A rank that has more memory allocated at the end of most steps than at the end of the step before.
    Why:
        Memory that grows in every step fills the device: allocations take longer then, and hours later the job ends
        with "out of memory".
    Evidence:
        The last step of the rank that grows most; the ops that allocate in most steps what nobody releases, with the
        line of the code where stacks were recorded; and in how many steps memory would be full at this rate.
    Fix:
        Keep numbers and not tensors that hold a graph; limit caches and lists; look at a snapshot.
    Limits:
        Growth costs no time, so it is info. At least three steps with the allocator's events. What fills a cache once
        (CUDA graphs, the first steps of an optimizer) looks the same in a short record.
    """

    id = "memory-growth"
    subject = "Growth of allocated memory"
    of_every_device = True
    of_every_program = True
    ends_jobs = True

    min_steps: float = threshold(3.0, "steps", "Growth over fewer steps has medium confidence: a cache may fill.")

    def check(self, *, frame: Frame, memory_contents: Memory | None, places: Places) -> Result:
        if memory_contents is None:
            return NotApplicable(record_again.no_memory(frame.setting))
        growth = memory_contents.growth
        if growth is None:
            return Clear("Allocated memory does not grow from step to step.")
        rank = frame.all_ranks.index(growth.rank)
        what = "GPU memory" if frame.has_device else "memory"
        return Fault(
            change=Change(),
            ranks=(growth.rank,),
            confidence="high" if growth.steps >= self.min_steps else "medium",
            title=f"Rank {growth.rank} has {wording.size(growth.bytes)} more {what} allocated after each step: a "
            "leak, if "
            "it goes on.",
            why=f"Seen in {growth.steps} steps, each against the one before.{_allocated_by(growth)}"
            f"{_full_in(growth, memory_contents)}",
            fix=_fix(frame),
            evidence=(places.window(rank, len(frame.steps) - 1, "More is allocated after this step than before it."),),
        )


def _allocated_by(growth: findings.GrowingMemory) -> str:
    """What is allocated in most steps and not released, a space and a sentence; "" where it is not known."""
    named = [
        f"{place.op or 'an unknown op'}{f' in {place.source.file}:{place.source.line}' if place.source else ''} "
        f"({wording.size(place.bytes)})"
        for place in growth.places
    ]
    return f" Allocated in most steps and not released: {wording.listing(named)}." if named else ""


def _full_in(growth: findings.GrowingMemory, memory: Memory) -> str:
    """In how many steps the device is full at this rate, a space and a sentence; "" where it is not known."""
    if not memory.capacity:
        return ""
    remaining = memory.capacity - memory.peak.reserved
    steps = max(remaining, 0) // growth.bytes
    return f" At this rate the GPU's {wording.size(memory.capacity)} are full in about {steps:,} steps."


def _fix(frame: Frame) -> str:
    advice = _ADVICE if frame.trains else _OF_REQUESTS
    return advice + (_SNAPSHOT if frame.setting.has_gpu else _OF_CPUS)


_ADVICE = """\
Keep numbers, not tensors: a loss that is summed or listed holds its whole graph. Limit caches and lists that live \
longer than a step.

total += loss.item()                               # not: total += loss
losses.append(loss.detach())                       # not: losses.append(loss)
"""

_OF_REQUESTS = """\
Bound what outlives an iteration: caches, lists of answers, what is kept of each request. Run without gradients \
(torch.inference_mode()).
"""

_SNAPSHOT = """
torch.cuda.memory._record_memory_history()         # who allocates what:
...
torch.cuda.memory._dump_snapshot("memory.pickle")  # beside the traces, or look at it at pytorch.org/memory_viz"""

_OF_CPUS = """
import tracemalloc
tracemalloc.start(25)                              # who allocates what, in Python:
...
print(*tracemalloc.take_snapshot().statistics("lineno")[:10], sep="\\n")"""
