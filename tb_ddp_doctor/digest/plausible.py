"""Drops events whose times cannot be, before anything is computed from a trace: one wrong digit moves a whole step.

A step that cannot last so long stays: it is ended with the record of its thread.

What a host cannot do: make its calls in another order than that of their numbers. What a device cannot do: run a kernel
before its launch, or two at once on one stream; run one long after all else has ended; need no time for most kernels.
Few events at a time are dropped: where many are odd, the trace is of another kind than we know, or damaged as a whole,
which only a comparison with other ranks can tell (job/complete.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_ddp_doctor.digest.intervals import long_gaps
from tb_ddp_doctor.digest.launches import DeviceRows, is_on_device
from tb_ddp_doctor.findings import FileWarning
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.losses import Loss, Losses
from tb_ddp_doctor.trace.model import Category, CommArgs, Events, Ints, RankTrace

Mask = NDArray[np.bool_]

#: Nothing runs for so long between an event and all others: steps, operators and kernels cover a trace, ns.
_FAR_NS = 1_000_000_000
#: As many events may stand alone so far off; a damaged time moves one.
_ALONE = 3
#: Host and device clocks are aligned to microseconds; a kernel this long before its launch is no matter of clocks, ns.
_EARLY_NS = 10_000_000
#: ROCm's durations overrun the next event of their stream by far less, ns. Of a few kernels they overrun it by less
#: than the second, such as of those that are launched programmatically.
_OVERLAP_NS = 1_000_000_000
_FEW_OVERLAP_NS = 5_000_000
#: A collective may hang for longer than all the rest of a trace, but not beyond NCCL's watchdog for nobody, ns.
_LONGEST_NS = 60_000_000_000
_LONGEST_SPANS = 10
#: Calls of one thread are ordered to the microsecond, ns.
_OUT_OF_TURN_NS = 1_000_000
#: Beyond this share of the device's events it is no damage of single events.
_FEW = 0.01
#: Integer microseconds of 2021 round 7 % of the kernels to zero.
_MOST_ZERO = 0.5
_MOST_LETTERS = 64
#: What makes an event the one that it is.
_IDENTITY = ("start_ns", "duration_ns", "category", "name", "thread", "device", "stream", "correlation")
#: Columns are mixed to one number for each event as MurmurHash mixes words.
_SHIFT, _ODD = np.uint64(33), np.uint64(0xFF51AFD7ED558CCD)


def plausible(trace: RankTrace, device: DeviceRows) -> RankTrace:
    """The trace without the events that cannot be, and a warning for each kind of them."""
    if not len(trace.events):
        return trace
    trace = _with_ends_of_steps(trace)
    events = trace.events
    impossible = np.zeros(len(events), np.bool_)
    warnings: list[FileWarning] = []
    for odd, why in _checks(trace, device):
        if odd.any() and (new := np.flatnonzero(odd & ~impossible).tolist()):
            impossible[new] = True
            losses = Losses()
            losses.add(Loss.IMPOSSIBLE, 0, f"{trace.strings[events.name[new[0]]][:_MOST_LETTERS]} {why}", len(new))
            warnings += losses.warnings(trace.file)
    return without(trace, impossible, warnings) if warnings else trace


def without_copies(trace: RankTrace) -> RankTrace:
    """The trace with every event once, and a note if the file holds some of them twice."""
    copies = _copies(trace.events)
    if not len(copies):
        return trace
    copied = np.zeros(len(trace.events), np.bool_)
    copied[copies] = True
    losses = Losses()
    losses.add(Loss.DOUBLED, 0, trace.strings[trace.events.name[copies[0]]][:_MOST_LETTERS], len(copies))
    return without(trace, copied, losses.warnings(trace.file))


def _copies(events: Events) -> Ints:
    """Rows that say the same as an earlier row, ascending. In files with whole µs, short events may: they stay."""
    rows = _starting_together(events.start_ns)
    if not len(rows):
        return rows
    columns = [getattr(events, name)[rows].astype(np.uint64) for name in _IDENTITY]
    mixed = columns[0]
    for column in columns[1:]:
        mixed = (mixed ^ (mixed >> _SHIFT)) * _ODD + column
    mixed = (mixed ^ (mixed >> _SHIFT)) * _ODD
    _, first, which = np.unique(mixed, return_index=True, return_inverse=True)
    same = first[which.reshape(-1)]
    equal = np.logical_and.reduce([column[same] == column for column in columns])
    copies: Ints = rows[equal & (same != np.arange(len(rows))) & (events.duration_ns[rows] > 0)]
    return copies


def _starting_together(start_ns: Ints) -> Ints:
    """Rows of the events that start when another event starts, ascending."""
    order = np.argsort(start_ns, kind="stable")
    in_order = start_ns[order]
    together = np.zeros(len(order), np.bool_)
    np.equal(in_order[1:], in_order[:-1], out=together[1:])
    together[:-1] |= together[1:]
    return np.sort(order[together])


def without(trace: RankTrace, lost: Mask, warnings: Iterable[FileWarning]) -> RankTrace:
    """The trace without some of its events (a mask of shape (events,)), and with these warnings."""
    events, kept = trace.events, ~lost
    return replace(
        trace,
        events=Events(*(getattr(events, column)[kept] for column in Events.__struct_fields__)),
        comms=_comms(trace.comms, kept),
        warnings=(*trace.warnings, *warnings),
    )


def _comms(comms: CommArgs, kept: Mask) -> CommArgs:
    """The rows of the events that are kept, which have new places."""
    rows = kept[comms.event]
    columns = {column: getattr(comms, column)[rows] for column in CommArgs.__struct_fields__}
    return CommArgs(**{**columns, "event": (np.cumsum(kept) - 1)[columns["event"]]})


def _checks(trace: RankTrace, device: DeviceRows) -> Iterator[tuple[Mask, str]]:
    """Which events cannot be, shape (E,), and what is said of the first."""
    events = trace.events
    yield _timeless(device), "and others take no time"
    yield _alone(trace, device), "lies seconds away from all others"
    if len(device.row):
        yield _endless(events), "lasts longer than the whole trace"
        yield _overlapping(device), "runs on beside the next one of its stream"
        yield _few(_out_of_turn(events, device), 2 * len(device.row), least=2), "is out of turn by its number"
        yield _few(_before_launch(events, device), len(device.row)), "starts before it was launched"
        yield _few(_out_of_order(events, device), len(device.row)), "starts after what was launched behind it"


def _few(odd: Mask, of: int, least: int = 1) -> Mask:
    """None, where they are too many to be single damaged events."""
    return odd if odd.sum() <= max(least, _FEW * of) else np.zeros_like(odd)


def _timeless(device: DeviceRows) -> Mask:
    """Kernels without duration, where most are."""
    odd, kernels = np.zeros(len(device.events), np.bool_), device.kernels
    zero = kernels[device.events.duration_ns[kernels] == 0]
    odd[zero] = len(zero) > _MOST_ZERO * len(kernels)
    return odd


def _alone(trace: RankTrace, device: DeviceRows) -> Mask:
    """Steps, launches and device events that stand apart from all else, their launch or device event included."""
    events = trace.events
    odd = np.zeros(len(events), np.bool_)
    if not len(long_gaps(events.start_ns, _FAR_NS)):
        return odd
    order = np.argsort(events.start_ns, kind="stable")
    start = events.start_ns[order]
    reach = np.maximum.accumulate(start + events.duration_ns[order])
    apart = np.flatnonzero(start[1:] - reach[:-1] > _FAR_NS)
    if not len(apart):
        return odd
    group = np.empty(len(events), np.int64)
    group[order] = np.searchsorted(apart, np.arange(len(events)))
    size = np.bincount(group)
    joined = device.launch >= 0
    partner = np.full(len(events), -1, np.int64)
    partner[device.row[joined]] = group[device.launch[joined]]
    partner[device.launch[joined]] = group[device.row[joined]]
    is_step = np.array([names.step_number(text) is not None for text in trace.strings], np.bool_)[events.name]
    movable = is_step & (events.category == Category.ANNOTATION)
    movable[device.row] = True
    movable[device.launch[joined]] = True
    odd = movable & (size[group] <= _ALONE) & (partner != group)
    return odd if odd.sum() <= _ALONE and size.max() > len(events) // 2 else np.zeros_like(odd)


def _endless(events: Events) -> Mask:
    """Events that last far longer than all that starts in the trace, of which the other side shows nothing.

    Where a collective hangs, the host waits for it.
    """
    limit = max(_LONGEST_NS, _LONGEST_SPANS * int(np.ptp(events.start_ns)))
    if int(events.duration_ns.max()) <= limit:
        return np.zeros(len(events), np.bool_)
    end = events.start_ns + events.duration_ns
    on_device = is_on_device(events)
    other_side = np.where(on_device, end[~on_device].max(initial=0), end[on_device].max(initial=0))
    odd: Mask = (events.duration_ns > limit) & (end > other_side + _LONGEST_NS)
    return odd


def _with_ends_of_steps(trace: RankTrace) -> RankTrace:
    """The trace with steps that last longer than all of it ended with the last event of their thread.

    Where a step begins is what counts; of the last one, the record shows how far it goes.
    """
    events, endless = trace.events, _endless(trace.events)
    if not endless.any():
        return trace
    duration, warnings = events.duration_ns.copy(), []
    for row in np.flatnonzero(endless & (events.category == Category.ANNOTATION)).tolist():
        name = trace.strings[events.name[row]]
        if names.step_number(name) is None:
            continue
        beside = ~endless & (events.thread == events.thread[row]) & ~is_on_device(events)
        end = int((events.start_ns + events.duration_ns)[beside].max(initial=0))
        duration[row] = max(end - int(events.start_ns[row]), 0)
        message = f"{name} lasts longer than the whole trace: it is taken to end with the last event of its thread."
        warnings.append(FileWarning(trace.file, message))
    if not warnings:
        return trace
    return replace(trace, events=replace(events, duration_ns=duration), warnings=(*trace.warnings, *warnings))


def _overlapping(device: DeviceRows) -> Mask:
    """Device events that run on for long beside the next one of their stream."""
    (this, _), over = device.neighbours, device.overlap_ns
    odd = np.zeros(len(device.events), np.bool_)
    odd[this[over > _FEW_OVERLAP_NS]] = True
    odd = _few(odd, len(device.row))
    odd[this[over > _OVERLAP_NS]] = True
    return odd


def _out_of_turn(events: Events, device: DeviceRows) -> Mask:
    """Launches, with what they launched, that lie elsewhere on their thread than those numbered before and after them.

    A driver numbers its calls (`correlation`) as they come, so on one thread numbers rise with time.

        thread  [launch 7]  [launch 9]      [launch 8]     8 is out of turn: 7 and 9 are in order without it
    """
    odd = np.zeros(len(events), np.bool_)
    joined = device.launch >= 0
    row, launch = device.row[joined], device.launch[joined]
    order = np.lexsort((events.correlation[launch], events.thread[launch]))
    row, launch = row[order], launch[order]
    before, this, following = launch[:-2], launch[1:-1], launch[2:]
    start, number = events.start_ns, events.correlation
    same = (events.thread[before] == events.thread[following]) & (number[before] < number[this])
    same &= (number[this] < number[following]) & (start[before] <= start[following])
    apart = np.maximum(start[before] - start[this], start[this] - start[following])
    away = np.flatnonzero(same & (apart > _OUT_OF_TURN_NS)) + 1
    odd[launch[away]] = odd[row[away]] = True
    return odd


def _before_launch(events: Events, device: DeviceRows) -> Mask:
    """Device events that start before their launch, by more than the clocks of host and device are apart."""
    odd = np.zeros(len(events), np.bool_)
    joined = device.launch >= 0
    if joined.any():
        after = events.start_ns[device.row[joined]] - events.start_ns[device.launch[joined]]
        # Where no more than so few start early, the clocks are not apart.
        few = np.count_nonzero(after < 0) <= int(_FEW * (len(after) - 1))
        apart = 0.0 if few else min(0.0, float(np.quantile(after, _FEW)))
        odd[device.row[joined][after < apart - _EARLY_NS]] = True
    return odd


def _out_of_order(events: Events, device: DeviceRows) -> Mask:
    """Device events that start after what was launched later on their stream, while all around them is in order."""
    odd = np.zeros(len(events), np.bool_)
    joined = (device.launch >= 0) & (events.stream[device.row] >= 0)
    row, launch = device.row[joined], device.launch[joined]
    order = np.lexsort((events.start_ns[row], events.start_ns[launch], events.stream[row], events.device[row]))
    row, launch = row[order], launch[order]
    before, this, following = row[:-2], row[1:-1], row[2:]
    same = (events.stream[before] == events.stream[following]) & (events.device[before] == events.device[following])
    returned = events.start_ns[launch] + events.duration_ns[launch]
    certain = returned[1:-1] <= events.start_ns[launch[2:]]
    late = events.start_ns[this] > events.start_ns[following] + _EARLY_NS
    in_order = events.start_ns[before] <= events.start_ns[following]
    odd[this[same & certain & late & in_order]] = True
    return odd
