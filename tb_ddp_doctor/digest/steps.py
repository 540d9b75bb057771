"""Cuts a rank's time into steps: on the host by annotations, on the device by launches.

The host runs ahead of the device, so a device event belongs to the step whose host window holds its launch, and a
step's device window ends with the last event that it launched.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import numpy as np

from tb_ddp_doctor.digest.columns import distinct, searchsorted
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.intervals import Intervals
from tb_ddp_doctor.digest.launches import DeviceRows
from tb_ddp_doctor.digest.model import Steps
from tb_ddp_doctor.trace import names, program_names
from tb_ddp_doctor.trace.model import MODULE, Category, Indices, Ints, RankTrace
from tb_ddp_doctor.trace.program_names import Iteration

#: In place of a step's number: between two steps, where the record of several is lost.
NO_STEP = -1
#: In place of a round's number: what the record holds of the round before its first. Nothing is compared there, but
#: others wait for what is done in it.
FIRST_PART = -2
#: What serves as a mark of a training loop's steps where nothing marks them.
UPDATE = "Optimizer.step"


def host_steps(host: HostCalls) -> tuple[Ints, Ints, Ints]:
    """Numbers, starts and ends (ns) of the ProfilerSteps, by time; each ends where the next one starts.

    Empty arrays for a trace without ProfilerSteps. A recorded end may reach into the next step: only the last counts,
    and those before a number that is lacking. From there to the next start is the one that is lacking, or NO_STEP where
    several are.
    """
    calls = np.flatnonzero(host.is_annotation & host.named(names.is_step))
    calls = calls[np.lexsort((host.row[calls], host.start_ns[calls]))]
    number = np.array([names.step_number(text) for text in host.texts(calls)], np.int64)
    if len(set(host.thread[calls].tolist())) == 1:
        mine = _of_first_profiler(number, host.start_ns[calls], host.end_ns[calls])
        calls, number = calls[mine], number[mine]
    start, end = host.start_ns[calls], host.end_ns[calls]
    lacking = np.flatnonzero((np.diff(number) > 1) & (end[:-1] < start[1:])) + 1
    between = np.where(number[lacking] - number[lacking - 1] == 2, number[lacking] - 1, NO_STEP)
    number, start = np.insert(number, lacking, between), np.insert(start, lacking, end[lacking - 1])
    return number, start, np.append(start[1:], end[-1:])


#: Steps of one profiler overlap by less: times of old traces are whole microseconds.
_OVERLAP_NS = 2_000


def _of_first_profiler(number: Ints, start: Ints, end: Ints) -> Ints:
    """The steps that the profiler marked which marked the first one, as indices. All are of one thread, by time.

    A second profiler whose `step` is called marks steps, too, long after it has stopped to record:

        its own      |20      |21      |22
        the second    |100     |101     |102

    The next step of a profiler is the one with the next number that begins nearest to the end of the last.
    """
    every = np.arange(len(number))
    if not (end[:-1] - start[1:] > _OVERLAP_NS).any():
        return every
    by_number: dict[int, list[int]] = {}
    for index, one in enumerate(number.tolist()):
        by_number.setdefault(one, []).append(index)
    mine, last = [0], 0
    while True:
        least = end[last] - _OVERLAP_NS
        following = [index for index in by_number.get(int(number[last]) + 1, ()) if start[index] >= least]
        if following:
            last = min(following, key=lambda index: int(start[index] - end[last]))
        else:
            later = np.flatnonzero((number > number[last] + 1) & (start >= least))
            if not len(later):
                break
            last = int(later[0])
        mine.append(last)
    rest = np.setdiff1d(every, mine)
    # All others run beside these, where numbers do not begin anew; and do not go on within one whose end is damaged.
    beside = (start[mine] < end[rest, None] - _OVERLAP_NS) & (start[rest, None] < end[mine] - _OVERLAP_NS)
    goes_on = number[rest[0]] == number[last] + 1 and end[rest[0]] < end[last]
    return np.array(mine) if beside.any(axis=1).all() and not goes_on else every


def step_of(instant: Ints, host_start_ns: Ints) -> Ints:
    """Index of the step in whose host window each instant lies; -1 before the first."""
    return searchsorted(host_start_ns, instant, side="right") - 1


def within(instant: Ints, steps: Steps) -> Ints:
    """Index of the step in whose host window each instant lies; -1 in none, as behind the last."""
    step = step_of(instant, steps.host_start_ns)
    some = step >= 0
    step[some] = np.where(instant[some] < steps.host_end_ns[step[some]], step[some], -1)
    return step


def device_windows(
    number: Ints,
    host_start_ns: Ints,
    host_end_ns: Ints,
    end_ns: Ints,
    step: Ints,
    stream: Ints,
    from_ns: int = 0,
) -> tuple[Steps, Ints]:
    """Device windows of the steps, from the ends of device events, the step that launched each (-1: unknown), and the
    stream that each runs on.

    The first window begins when what was launched before the record has ended, whatever copies on a stream of their
    own do meanwhile. It begins at `from_ns` or later: what the device did before is not in the record.

    Returns the steps whose window is not empty, but for NO_STEP, and for each step given its index among them, or -1.
    """
    last = np.full(len(number), np.iinfo(np.int64).min, np.int64)
    known = step >= 0
    np.maximum.at(last, step[known], end_ns[known])
    origin = max(_done_before_ns(end_ns, step, stream), int(host_start_ns[0]), from_ns)
    edges = np.maximum.accumulate(np.concatenate(([origin], last)))
    keep = (edges[1:] > edges[:-1]) & (number != NO_STEP)
    steps = Steps(number[keep], edges[:-1][keep], edges[1:][keep], host_start_ns[keep], host_end_ns[keep])
    index = np.where(keep, np.cumsum(keep) - 1, -1)
    return steps, index


def _done_before_ns(end_ns: Ints, step: Ints, stream: Ints) -> int:
    """When all that was launched before the record has ended; long ago if nothing was.

    On a stream, what was launched before the record ends before all that was launched in it. A stream on which nothing
    was is held against the first end on any stream.
    """
    known = step >= 0
    never = np.iinfo(np.int64)
    least = int(stream.min(initial=0))
    which, place = distinct(stream - least, int(stream.max(initial=0)) - least + 1)
    first = np.full(len(which), never.max)
    np.minimum.at(first, place[known], end_ns[known])
    first = np.where(first == never.max, end_ns[known].min(initial=never.max), first)
    return int(end_ns[~known & (end_ns <= first[place])].max(initial=never.min))


def updates(host: HostCalls) -> tuple[Ints, Ints, Ints] | None:
    """The steps of a training loop that nothing marks, as `host_steps` has them; None where no step is whole.

    A step lasts from the end of one update of the parameters to the end of the next. Before the first update and after
    the last one the record has parts of steps. Optimizers with no backward pass between them make one update.
    """
    calls = np.flatnonzero(host.is_annotation & host.named(names.is_optimizer_step))
    end = np.sort(host.end_ns[calls])
    backward = np.sort(host.start_ns[host.is_operator & host.named(names.is_backward)])
    passed = searchsorted(backward, end)
    end = end[np.append(np.diff(passed) > 0, True)] if len(end) else end
    return (np.arange(len(end) - 1), end[:-1], end[1:]) if len(end) > 1 else None


#: Fewer repetitions are no pattern.
_LEAST_REPEATS = 3
#: From one repetition to the next it takes between half and twice the median: of what is less regular, no mean speaks.
_MOST_UNEVEN = 2.0
#: The number within a name differs from one iteration to the next ("execute_32_context_0").
_NUMBERS = re.compile(r"\d+")
#: The number of an instance at the end of a module's name.
_INSTANCE = re.compile(r"_\d+$")
GRAPH_LAUNCH = "graph launch"
#: A server's own mark of an iteration.
ITERATION = "mark of an iteration"


def repeated_steps(trace: RankTrace, once: Intervals) -> tuple[str, tuple[Ints, Ints, Ints]] | None:
    """What serves as steps where none is marked, and the steps as `host_steps` has them; None where nothing repeats.

    Time that the host needs `once` for many steps, to compile or to capture, makes none of them irregular.

    A server's own mark of an iteration is one, however often it comes: prompts make iterations unequal. Otherwise an
    outermost annotation that comes back regularly is a server's or a pipeline's iteration. So is a graph's launch
    where each iteration is one graph: then every launch has a copy before it, of the tokens or the noise that goes in.
    Launches without copies between them are parts of one iteration.
    """
    return _marked_iterations(trace) or _repeated_annotation(trace, once) or _repeated_launches(trace, once)


def iterations(trace: RankTrace) -> tuple[Ints, Ints, list[Iteration]]:
    """Starts and ends (ns) of a server's iterations by their marks, by time, and what each works on.

    Of marks within each other, which two layers of a server may set, the outer one counts. A Python function marks the
    iterations of a rank without requests where no annotation does.
    """
    events, frames = trace.events, trace.frames
    rows = np.flatnonzero(events.category == int(Category.ANNOTATION))
    marks = _marks(trace, events.name[rows], program_names.iteration)
    rows = rows[np.isin(events.name[rows], [*marks])]
    idle = _marks(trace, frames.name, _without_requests)
    calls = np.flatnonzero(np.isin(frames.name, [*idle]))
    name = np.concatenate((events.name[rows], frames.name[calls]))
    start = np.concatenate((events.start_ns[rows], frames.start_ns[calls]))
    which, start, end = _outer(start, np.concatenate((events.duration_ns[rows], frames.duration_ns[calls])))
    marks |= idle
    return start, end, [marks[one] for one in name[which].tolist()]


def _marks(trace: RankTrace, name: Indices, of: Callable[[str], Iteration | None]) -> dict[int, Iteration]:
    """What the iterations that some names mark work on, by index of the name."""
    named = ((one, of(trace.strings[one])) for one in set(name.tolist()))
    return {one: mark for one, mark in named if mark}


def _without_requests(function: str) -> Iteration | None:
    return Iteration(0, 0) if program_names.runs_without_requests(function) else None


def _marked_iterations(trace: RankTrace) -> tuple[str, tuple[Ints, Ints, Ints]] | None:
    start, end, _ = iterations(trace)
    return (ITERATION, (np.arange(len(start)), start, np.append(start[1:], end[-1:]))) if len(start) else None


def _repeated_annotation(trace: RankTrace, once: Intervals) -> tuple[str, tuple[Ints, Ints, Ints]] | None:
    events = trace.events
    rows, start, end = outermost(trace, np.flatnonzero(events.category == Category.ANNOTATION))
    kinds = [_NUMBERS.sub("#", trace.strings[name]) for name in events.name[rows]]
    for kind, count in Counter(kinds).most_common():
        mine = np.array([one == kind for one in kinds], np.bool_)
        if count >= _LEAST_REPEATS and _is_regular(start[mine], once):
            first, last = start[mine], end[mine]
            return kind, (np.arange(count), first, np.append(first[1:], last[-1]))
    return None


def called_modules(trace: RankTrace, once: Intervals) -> tuple[str, tuple[Ints, Ints, Ints]] | None:
    """The same from Python stacks: the model that is called again and again, within no other module.

    A diffusion pipeline calls its denoiser for each iteration, between text encoders and what decodes latent images; a
    loop that generates calls its model for each token. Of several the one whose calls span longest. Layers, which
    are outermost where the record begins within a model, are modules of many names, each called once or twice.

        [T5EncoderModel_0][FluxTransformer2DModel_0][FluxTransformer2DModel_0][FluxTransformer2DModel_0]...[Decoder_0]
    """
    frames = trace.frames
    rows = np.flatnonzero(np.isin(frames.name, [i for i, text in enumerate(trace.strings) if text.startswith(MODULE)]))
    which, start, end = _outer(frames.start_ns[rows], frames.duration_ns[rows])
    kinds = np.array([_INSTANCE.sub("", trace.strings[one]) for one in frames.name[rows[which]].tolist()])
    spans: dict[int, tuple[str, tuple[Ints, Ints, Ints]]] = {}
    for kind in dict.fromkeys(kinds.tolist()):
        mine = kinds == kind
        instances = len(np.unique(frames.name[rows[which[mine]]]))
        if mine.sum() >= _LEAST_REPEATS * instances and _is_regular(start[mine], once):
            first, last = start[mine], end[mine]
            steps = np.arange(len(first)), first, np.append(first[1:], last[-1:])
            spans[int(last[-1] - first[0])] = f"call of {kind.removeprefix(MODULE)}", steps
    return spans[max(spans)] if spans else None


def outermost(trace: RankTrace, rows: Ints) -> tuple[Ints, Ints, Ints]:
    """Those of some events that lie within no other of them, by time, with their starts and ends (ns).

    One that ends when the next one starts may end later by what times are rounded to.
    """
    which, start, end = _outer(trace.events.start_ns[rows], trace.events.duration_ns[rows])
    return rows[which], start, end


def _outer(start: Ints, duration: Ints) -> tuple[Ints, Ints, Ints]:
    """The same of spans: their indices, starts and ends (ns)."""
    order = np.lexsort((-duration, start))
    start = start[order]
    end = start + duration[order]
    before = np.maximum.accumulate(end)[:-1]
    outer = np.append(True, (start[1:] > before - _OVERLAP_NS) & (end[1:] > before))[: len(order)]
    return order[outer], start[outer], end[outer]


def replayed_training(trace: RankTrace) -> tuple[str, tuple[Ints, Ints, Ints]] | None:
    """The steps of training that replays each as one graph, as `repeated_steps` has them.

    All launches then replay as many kernels, and with them a backward pass: where forward or the optimizer has a graph
    of its own, graphs differ. The host may be far ahead, so that launches need not be regular.
    """
    rows, launches = DeviceRows.of(trace.events), _graph_launches(trace)
    replayed = np.isin(rows.launch, launches)
    trains = np.array([program_names.is_training_kernel(text) for text in trace.strings], np.bool_)
    training = replayed & trains[trace.events.name[rows.row]]
    kernels = np.unique(rows.launch[replayed], return_counts=True)[1]
    is_same = len(kernels) == len(launches) and len(np.unique(kernels)) == 1
    if not is_same or not np.isin(launches, rows.launch[training]).all():
        return None
    return _from_launch_to_launch(np.sort(trace.events.start_ns[launches]))


def _graph_launches(trace: RankTrace) -> Ints:
    """The rows of the calls that launch graphs."""
    test = np.array([names.launches_graph(text) for text in trace.strings], np.bool_)
    return np.flatnonzero((trace.events.category == Category.RUNTIME) & test[trace.events.name])


def _repeated_launches(trace: RankTrace, once: Intervals) -> tuple[str, tuple[Ints, Ints, Ints]] | None:
    events = trace.events
    copies = np.array([names.copies(text) for text in trace.strings], np.bool_)[events.name]
    launches = np.sort(events.start_ns[_graph_launches(trace)])
    copied = np.sort(events.start_ns[(events.category == Category.RUNTIME) & copies])
    fed = np.diff(searchsorted(copied, launches)) > 0
    is_iteration = len(launches) > 1 and fed.all() and _is_regular(launches, once)
    return _from_launch_to_launch(launches) if is_iteration else None


def _from_launch_to_launch(launch_ns: Ints) -> tuple[str, tuple[Ints, Ints, Ints]] | None:
    """The last launch only ends the iteration before it."""
    if len(launch_ns) <= _LEAST_REPEATS:
        return None
    return GRAPH_LAUNCH, (np.arange(len(launch_ns) - 1), launch_ns[:-1], launch_ns[1:])


def _is_regular(start: Ints, once: Intervals) -> bool:
    apart = np.diff(start) - once.measure(start[:-1], start[1:])
    median = float(np.median(apart))
    return bool((apart >= median / _MOST_UNEVEN).all() and (apart <= median * _MOST_UNEVEN).all())
