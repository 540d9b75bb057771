"""What CUDA graphs and torch.compile do in each step: launches and captures of graphs, compilations, graph breaks.

A graph break ends a compiled region, runs what cannot be compiled, and begins the region of the code behind it:

    host  [Torch-Compiled Region: 0/0][item][Torch-Compiled Region: 1/0]
                                      ^ gap ^

Regions of other modules follow each other as well, so only a gap in which the host waits for the device is one, or one
of many in a row: code behind a break is compiled when it is first reached, and so has a higher number than that before
it. A break is within one call of a function: a gap with a backward pass, an update, loading or the end of a step is
none.
"""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest.columns import searchsorted
from tb_ddp_doctor.digest.device_events import DeviceEvents
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.intervals import EMPTY, Intervals
from tb_ddp_doctor.digest.model import CompiledWork, Steps
from tb_ddp_doctor.digest.named_calls import over_named
from tb_ddp_doctor.digest.phases import HostPhases
from tb_ddp_doctor.digest.steps import within
from tb_ddp_doctor.digest.sums import count
from tb_ddp_doctor.digest.vocabulary import Mask
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Flags, Ints
from tb_ddp_doctor.trace.names import Phase

#: A model that is compiled in parts on purpose has fewer kinds of them, or runs the same code again for each layer.
_MANY = 8


def compiled_work(host: HostCalls, steps: Steps, phases: HostPhases, tune_device_ns: Ints) -> CompiledWork:
    """Of each step, by its host window; `tune_device_ns` is the column of that name."""
    compiles, tunes = over_named(host, names.compiles), over_named(host, names.autotunes)
    captures = captured(host) - compiles
    waits = host.over(host.is_runtime & host.trains & host.named(names.is_sync))
    looks_up = over_named(host, names.looks_up_compiled) - compiles
    gaps = _breaks(host, waits, steps, phases)
    # The code behind a break has its guards evaluated, and is compiled, without the break as well.
    broken = gaps - looks_up - compiles
    launches = np.flatnonzero(host.is_runtime & host.named(names.launches_graph))
    at, size = within(host.start_ns[launches], steps), len(steps)
    begins, ends = steps.host_start_ns, steps.host_end_ns

    def number(intervals: Intervals) -> Ints:
        step = within(intervals.start, steps)
        return count(step, np.ones(len(step), np.bool_), size)

    return CompiledWork(
        graph_launches=count(at, np.ones(len(at), np.bool_), size),
        captures=number(captures),
        capture_ns=captures.measure(begins, ends),
        compilations=number(compiles),
        compile_ns=((compiles | tunes) - waits).measure(begins, ends),
        tune_ns=(tunes - waits).measure(begins, ends),
        tune_sync_ns=(tunes & waits).measure(begins, ends),
        tune_device_ns=tune_device_ns,
        breaks=number(gaps),
        break_ns=broken.measure(begins, ends),
        break_sync_ns=(broken & waits).measure(begins, ends),
        sync_ns=waits.measure(begins, ends),
        guard_ns=looks_up.measure(begins, ends),
    )


def tuned(host: HostCalls, device: DeviceEvents) -> Mask:
    """Which device events autotuning launches to time them, shape (events,)."""
    return device.is_launched & over_named(host, names.autotunes).covers(device.launch_ns)


def prepares(host: HostCalls) -> Intervals:
    """When the host compiles, tunes or captures, which it does once for many steps."""
    return over_named(host, names.compiles) | over_named(host, names.autotunes) | captured(host)


def captured(host: HostCalls) -> Intervals:
    """When graphs are captured and made ready to be launched: what is launched meanwhile does not run."""
    begins = np.flatnonzero(host.is_runtime & host.named(names.begins_capture))
    ends = np.flatnonzero(host.is_runtime & host.named(names.ends_capture))
    if not len(ends):
        return EMPTY
    begun = np.sort(host.start_ns[begins])
    end = np.sort(host.end_ns[ends])
    before = searchsorted(begun, end) - 1
    start = np.where(before >= 0, _prepared_from(host, begun)[np.maximum(before, 0)] if len(begun) else 0, end)
    ready = host.is_runtime & host.named(names.captures_graph)
    return Intervals.union(np.concatenate((start, host.start_ns[ready])), np.concatenate((end, host.end_ns[ready])))


def _prepared_from(host: HostCalls, begun_ns: Ints) -> Ints:
    """Since when captures are prepared that begin at some times: `torch.cuda.graph` waits for the device, collects
    garbage and frees memory, and launches nothing until the capture begins.
    """
    waits = host.is_runtime & host.named(names.awaits_device)
    calls = np.flatnonzero(waits | (host.is_runtime & host.named(names.launches_work)))
    calls = calls[np.argsort(host.start_ns[calls], kind="stable")]
    if not len(calls):
        return begun_ns
    last = calls[np.maximum(searchsorted(host.start_ns[calls], begun_ns) - 1, 0)]
    follows = waits[last] & (host.end_ns[last] <= begun_ns)
    return np.where(follows, host.end_ns[last], begun_ns)


def _breaks(host: HostCalls, waits: Intervals, steps: Steps, phases: HostPhases) -> Intervals:
    """The gaps of graph breaks, given when the host waits for the device."""
    regions = np.flatnonzero(host.trains & host.named(_is_region))
    regions = regions[np.lexsort((host.start_ns[regions], host.thread[regions]))]
    if len(regions) < 2:
        return EMPTY
    code = np.array([int(names.compiled_region(text)) for text in host.texts(regions)])
    before, after = regions[:-1], regions[1:]
    follows = (host.thread[before] == host.thread[after]) & (code[:-1] != code[1:])
    start, end = host.end_ns[before], host.start_ns[after]
    end = np.maximum(start, end)
    follows &= within(start, steps) == within(end, steps)
    for phase in (Phase.LOADING, Phase.BACKWARD, Phase.OPTIMIZER):
        follows &= phases.of(phase).measure(start, end) == 0
    follows &= (waits.measure(start, end) > 0) | _in_long_rows(follows & (code[:-1] < code[1:]))
    return Intervals.union(start[follows], end[follows])


def _in_long_rows(follows: Flags) -> Flags:
    """Which of these gaps follow each other in a row of so many that they are breaks of one function."""
    starts = np.flatnonzero(np.diff(follows, prepend=~follows[:1]))
    lengths = np.diff(starts, append=len(follows))
    return follows & np.repeat(lengths >= _MANY, lengths)


def _is_region(name: str) -> bool:
    return names.compiled_region(name) != ""
