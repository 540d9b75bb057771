"""What a trace records beyond events that have an owner: it says how far they can be trusted to be all there is.

- Work of accelerators that are not known here, by category.
- Signs that a device worked although none of its events is there.
- What the program does: a server of requests has no training loop that could be at fault.
- Whether events were left out of the file: of the correlation numbers that the runtime counts up, so few are there.
- Whether a graph is captured in it and none is launched: what is launched meanwhile does not run.
- The library that exchanges tokens between experts: its kernels say what they are, and not whose.
"""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest.columns import searchsorted
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.intervals import Intervals, different
from tb_ddp_doctor.digest.launches import is_on_device
from tb_ddp_doctor.digest.model import TraceContents
from tb_ddp_doctor.digest.programs import UsedNames, program, role_times
from tb_ddp_doctor.digest.vocabulary import Names
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Category, RankTrace

#: What marks the steps of a training loop.
MARKED = "ProfilerStep"
#: Kineto keeps one call of the runtime in 1 to 16 numbers (25 jobs, 10 public traces); a sampled trace one in 215.
_SAMPLED = 64
#: Of these numbers, as many go with each call that Kineto keeps in an ordinary trace.
_USUAL = 10
#: Fewer calls tell nothing.
_LEAST_CALLS = 100


def trace_contents(host: HostCalls, steps_from: str) -> TraceContents:
    """The contents of one trace; `steps_from` is what marks its steps."""
    captured, launches = _captured(host)
    roles = role_times(host)
    used = UsedNames.of(host)
    return TraceContents(
        unknown_work=_unknown_work(host.trace),
        hidden_work=_hidden_work(host),
        program=program(used, roles).value,
        roles=roles,
        steps_from=steps_from,
        calls_left_out=_calls_left_out(host),
        captured_launches=captured,
        launches=launches,
        graph_launches=int((host.is_runtime & host.named(names.launches_graph)).sum()),
        expert_library=_expert_library(used),
        recorded_ns=int(host.end_ns.max() - host.start_ns.min()) if len(host.start_ns) else 0,
    )


def _unknown_work(trace: RankTrace) -> dict[str, tuple[int, int]]:
    """Events and busy time, ns, of categories that are no work that is known here; -1 where times were not read."""
    unknown = {}
    for category in names.UNKNOWN_DEVICES:
        chosen = trace.events.category == int(names.CATEGORIES[category])
        if chosen.any():
            start = trace.events.start_ns[chosen]
            time = Intervals.union(start, start + trace.events.duration_ns[chosen])
            unknown[category] = (int(chosen.sum()), time.total)
    # Phases stand among the categories, one letter each.
    others = {name: count for name, count in trace.dropped.items() if len(name) > 1 and name not in names.NO_WORK}
    return unknown | {name: (count, -1) for name, count in others.items()}


def _hidden_work(host: HostCalls) -> str:
    """What shows that a device worked, in a trace without any kernel; "" where nothing does."""
    events = host.trace.events
    on_device = is_on_device(events)
    if on_device.any():
        return "" if (events.category[on_device] == Category.KERNEL).any() else f"{on_device.sum():,} copies of a GPU"
    launches = int((host.is_runtime & host.named(names.launches_work)).sum())
    if launches:
        return f"{launches:,} launch calls"
    others = events.name[events.category != Category.RUNTIME]
    many = int(Names(host.trace.strings, others).among(others, names.runs_on_device).sum())
    return f"{many:,} operators that only a device runs" if many else ""


def _captured(host: HostCalls) -> tuple[int, int]:
    """How many kernel launches only went into graphs that are not launched in the record, and how many there are.

    Those without a kernel, before the last capture ends.
    """
    calls = np.flatnonzero(host.is_runtime & host.named(names.launches_kernel))
    captures = host.is_runtime & host.named(names.captures_graph)
    if not captures.any() or (host.is_runtime & host.named(names.launches_graph)).any():
        return 0, len(calls)
    events = host.trace.events
    ran = different(events.correlation[is_on_device(events)])
    numbers = events.correlation[host.row[calls]]
    at = np.minimum(searchsorted(ran, numbers), max(len(ran) - 1, 0))
    runs = ran[at] == numbers if len(ran) else np.zeros(len(calls), np.bool_)
    captured = ~runs & (numbers >= 0) & (host.start_ns[calls] < host.end_ns[captures].max())
    return int(captured.sum()), len(calls)


def _expert_library(used: UsedNames) -> str:
    """The library of expert parallelism whose kernels run; "" for none, the first by name for several."""
    return min({names.exchanges_tokens(kernel) for kernel in used.kernels} - {""}, default="")


def _calls_left_out(host: HostCalls) -> float:
    """The share of the runtime's calls that is not in the file, where that is far more than Kineto leaves out; else 0.

    The runtime numbers its calls in a row, and Kineto keeps those that launch, copy, synchronise or allocate. All are
    left out of a file of device events alone.
    """
    if not len(host):
        return float(len(host.trace.events) > 0)
    numbers = host.trace.events.correlation[host.row[host.is_runtime]]
    numbers = different(numbers[numbers >= 0])
    if len(numbers) < _LEAST_CALLS:
        return 0.0
    between = float(np.median(np.diff(numbers)))
    counted = int(numbers[-1] - numbers[0]) + 1
    # Both, so that one long break in the numbers, as where another thread works, is no sample.
    is_sampled = counted > _SAMPLED * len(numbers) and between > _SAMPLED / 4
    return 1 - len(numbers) * _USUAL / counted if is_sampled else 0.0


def loader_kind(trace: RankTrace) -> str:
    """How the DataLoader was seen to work: single_process, workers, or "" if it was not seen."""
    kinds = {kind for text in trace.strings if (kind := names.loader(text)) is not None}
    return min(kinds).name.lower() if kinds else ""
