"""What a trace records, and where its steps begin and end on the host, whatever marks them."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from tb_ddp_doctor.digest.compiled import prepares
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.model import TraceContents
from tb_ddp_doctor.digest.round_trips import ROUND_TRIP, round_trips
from tb_ddp_doctor.digest.rounds import ROUND, SHARED_ROUND, rounds
from tb_ddp_doctor.digest.steps import UPDATE, called_modules, host_steps, repeated_steps, replayed_training, updates
from tb_ddp_doctor.digest.trace_contents import MARKED, trace_contents
from tb_ddp_doctor.trace.model import Events, Ints

#: Programs whose iterations are looked for where no step is marked: what repeats in them. Training repeats updates.
_ITERATES = ("serving", "diffusion", "inference", "benchmark")
_CALLS = ("diffusion", "inference")


def contents_and_steps(host: HostCalls) -> tuple[TraceContents, tuple[Ints, Ints, Ints]]:
    """What the trace records, and the numbers, starts and ends (ns) of its steps on the host, by time."""
    marked = host_steps(host)
    if len(marked[0]):
        return trace_contents(host, MARKED), marked
    contents, events = trace_contents(host, ""), host.trace.events
    if len(contents.roles) > 1 and (turns := rounds(host.trace)):
        return replace(contents, steps_from=ROUND), turns
    once = prepares(host)
    if contents.program in _ITERATES and (repeated := repeated_steps(host.trace, once)):
        return replace(contents, steps_from=repeated[0]), repeated[1]
    if contents.program == "serving" and (trips := round_trips(host.trace)):
        return replace(contents, steps_from=ROUND_TRIP), trips
    # Decode of servers is replayed as graphs, which call no module: their prompts alone would be iterations.
    if contents.program in _CALLS and (called := called_modules(host.trace, once)):
        return replace(contents, steps_from=called[0]), called[1]
    if updated := updates(host):
        return replace(contents, steps_from=UPDATE), updated
    if contents.program == "training" and (replayed := replayed_training(host.trace)):
        return replace(contents, steps_from=replayed[0]), replayed[1]
    return contents, _whole_trace(events) if len(events) else marked


def contents_and_rounds(
    host: HostCalls, rounds: tuple[Ints, Ints, Ints] | None
) -> tuple[TraceContents, tuple[Ints, Ints, Ints]]:
    """The same where the job tells the rounds, as numbers, starts and ends; None: the whole trace is one step."""
    contents = trace_contents(host, SHARED_ROUND if rounds else "")
    return contents, rounds or _whole_trace(host.trace.events)


def _whole_trace(events: Events) -> tuple[Ints, Ints, Ints]:
    """A trace without ProfilerSteps is one step, number 0."""
    end = events.start_ns + events.duration_ns
    return np.zeros(1, np.int64), events.start_ns.min(keepdims=True), end.max(keepdims=True) + 1
