"""Puts collectives back whose kernel a record has lost.

Recorders drop an event here and there, and events with impossible times are left out (`plausible`). The launch of such
a collective is still there, with what it is. When it ran shows in what it waited for, and in what waited for it:

    host     [ar][update]                          launches
    compute  [backward.....]            [update]   starts long after its launch, while nothing seems to run
    nccl                    [lost......]

NCCL's kernel begins when the work that was launched before it is done. Its end is the first of these that comes after:
the begin of an event that was launched later and that waited although the record shows an idle device; the end of a
call that blocked the CPU until then. If nothing waited for it, it lasts as long as its like, and no longer than up to
the next event of its stream. Where the record does not show that it ended, it stays lost.

The ends are held against those of other ranks, as all ends of collectives are (`job/odd_clocks`).
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
from msgspec.structs import replace

from tb_ddp_doctor.digest.collectives import enqueues
from tb_ddp_doctor.digest.columns import searchsorted
from tb_ddp_doctor.digest.compiled import captured
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.launches import DeviceRows
from tb_ddp_doctor.digest.vocabulary import Mask, Names
from tb_ddp_doctor.findings import FileWarning
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Category, Events, Ints, RankTrace

#: If more than this share of a rank's launches of communication has no kernel, its record is damaged as a whole; a
#: single one may be missing of however few. More than `_MOST` are not searched for.
_MOST_SHARE, _MOST = 0.1, 100
#: A GPU begins a kernel within some µs; one that begins later than this waited for something, ns.
_WAITED_NS = 20_000
#: NCCL's kernels begin at most so long after all that was launched before them is done, ns.
_LATE_NS = 1_000_000
#: After all times.
_NEVER = int(np.iinfo(np.int64).max)


class _Lost(msgspec.Struct, frozen=True):
    """A launch of communication whose kernel is lost."""

    #: Row of the call in `trace.events`.
    launch: int
    #: Rows in `trace.events` of kernels of its process group and kind, those of its size if there are any, and of the
    #: calls that launched them.
    like: Ints
    by: Ints


class _Device(msgspec.Struct, frozen=True):
    """What a device does beside a stream of communication, by start; shape (events,)."""

    start_ns: Ints
    end_ns: Ints
    #: When the call that launched each starts and returns; 0 for what was launched before the record.
    launch_ns: Ints
    launched_ns: Ints
    #: Which are on the stream.
    on_stream: Mask
    #: When all before each is done; 0 for the first.
    busy_until_ns: Ints
    #: When kernels and what is on the stream were launched, ascending.
    in_turn_ns: Ints
    #: When all of these is done that was launched before each, and at the end all; shape (launches + 1,).
    done_ns: Ints

    @classmethod
    def of(cls, rows: DeviceRows, number: int, stream: int) -> _Device:
        """The device of that number, which the stream is of."""
        events = rows.events
        mine = events.device[rows.row] == number
        row, launch = rows.row[mine], rows.launch[mine]
        order = np.argsort(events.start_ns[row], kind="stable")
        row, launch = row[order], launch[order]
        start, end = events.start_ns[row], events.start_ns[row] + events.duration_ns[row]
        begun = np.where(launch >= 0, events.start_ns[launch], 0)
        on_stream = events.stream[row] == stream
        awaited = np.flatnonzero((events.category[row] == int(Category.KERNEL)) | on_stream)
        awaited = awaited[np.argsort(begun[awaited], kind="stable")]
        return cls(
            start_ns=start,
            end_ns=end,
            launch_ns=begun,
            launched_ns=np.where(launch >= 0, begun + events.duration_ns[launch], 0),
            on_stream=on_stream,
            busy_until_ns=np.concatenate(([0], np.maximum.accumulate(end)[:-1])),
            in_turn_ns=begun[awaited],
            done_ns=np.concatenate(([0], np.maximum.accumulate(end[awaited]))),
        )

    def may_begin_ns(self, events: Events, calls: Ints) -> Ints:
        """When communication may begin that these calls (rows of `events`) launch: after what was launched before."""
        start = events.start_ns[calls]
        done = self.done_ns[searchsorted(self.in_turn_ns, start)]
        begin: Ints = np.maximum(done, start + events.duration_ns[calls])
        return begin


def with_lost_collectives(trace: RankTrace, host: HostCalls, rows: DeviceRows) -> RankTrace:
    """The trace with the kernels of single collectives that it lacks; the same trace where it lacks none."""
    events, restored = trace.events, []
    devices: dict[tuple[int, int], _Device] = {}
    for lost in _lost(host, rows):
        where = int(events.device[lost.like[0]]), int(events.stream[lost.like[0]])
        device = devices[where] = devices.get(where) or _Device.of(rows, *where)
        if ran := _ran(host, device, lost):
            restored.append((lost, *ran))
    if not restored:
        return trace
    like = [int(lost.like[0]) for lost, _, _ in restored]
    added = {name: getattr(events, name)[like] for name in Events.__struct_fields__}
    added["correlation"] = events.correlation[[lost.launch for lost, _, _ in restored]]
    added["start_ns"] = np.array([start for _, start, _ in restored])
    added["duration_ns"] = np.array([end - start for _, start, end in restored])
    grown = Events(*(np.concatenate((getattr(events, name), added[name])) for name in Events.__struct_fields__))
    return replace(trace, events=grown, warnings=(*trace.warnings, FileWarning(trace.file, _said(len(restored)))))


def _said(count: int) -> str:
    what, launch, them = ("kernel is", "its launch", "it") if count == 1 else ("kernels are", "their launches", "them")
    ran = "it ran" if count == 1 else "they ran"
    return f"{count} communication {what} missing: when {ran} is taken from {launch} and from what waited for {them}."


def _lost(host: HostCalls, rows: DeviceRows) -> Iterator[_Lost]:
    """The launches of communication without a kernel, if they are few."""
    events = host.trace.events
    calls = np.flatnonzero(host.is_runtime & host.named(names.launches_kernel))
    calls = calls[events.correlation[host.row[calls]] >= 0]
    ran = np.zeros(len(events), np.bool_)
    ran[rows.launch[rows.launch >= 0]] = True
    if ran[host.row[calls]].all():
        return
    around = host.around(calls, enqueues(host))
    calls, around = calls[around >= 0], around[around >= 0]
    lost = ~ran[host.row[calls]] & ~captured(host).covers(host.start_ns[calls])
    if not 0 < np.count_nonzero(lost) <= max(1, min(_MOST_SHARE * len(calls), _MOST)):
        return
    of_event = np.full(len(events), -1, np.int64)
    of_event[host.trace.comms.event] = np.arange(len(host.trace.comms))
    about, comms = of_event[host.row[around]], host.trace.comms
    kernel_of = np.full(len(events), -1, np.int64)
    kernel_of[rows.launch[rows.launch >= 0]] = rows.row[rows.launch >= 0]
    kernel = kernel_of[host.row[calls]]
    communicates = ~lost & Names(host.trace.strings, events.name[kernel]).among(
        events.name[kernel], names.is_communication_kernel
    )
    # A call that prepares a message beside the one that moves it may be the lost one.
    lost &= ~np.isin(around, around[communicates])
    for each in np.flatnonzero(lost).tolist():
        same = communicates & (comms.group[about] == comms.group[about[each]])
        same &= comms.collective[about] == comms.collective[about[each]]
        sized = same & (comms.elements_in[about] == comms.elements_in[about[each]])
        chosen = np.flatnonzero(sized if sized.any() else same)
        like = kernel[chosen]
        # What a kernel alone tells of its collective is lost with it.
        if len(like) and (comms.collective[about[each]] >= 0 or (of_event[like] < 0).all()):
            yield _Lost(int(host.row[calls[each]]), like, host.row[calls[chosen]])


def _ran(host: HostCalls, device: _Device, lost: _Lost) -> tuple[int, int] | None:
    """When a lost kernel began and ended, ns; None where the record does not show that it ended."""
    events = host.trace.events
    late = events.start_ns[lost.like] - device.may_begin_ns(events, lost.by)
    if not ((late > -_WAITED_NS) & (late < _LATE_NS)).all():
        # Where its like begins otherwise, so may it.
        return None
    launch, begin = int(events.start_ns[lost.launch]), int(device.may_begin_ns(events, np.array([lost.launch]))[0])
    after = device.launch_ns > launch
    following = int(device.start_ns[after & device.on_stream].min(initial=_NEVER))
    waited = after & (device.start_ns - np.maximum(device.launched_ns, device.busy_until_ns) > _WAITED_NS)
    shown = int(device.start_ns[waited & (device.start_ns > begin)].min(initial=_NEVER))
    shown = min(shown, _blocked_until(host, device, launch, begin))
    if min(shown, following) == _NEVER:
        return None
    if shown > following:
        shown = begin + int(np.median(events.duration_ns[lost.like]))
    end = min(shown, following)
    return (begin, end) if end > begin else None


def _blocked_until(host: HostCalls, device: _Device, launch_ns: int, begin_ns: int) -> int:
    """When the first call returns that blocked the CPU longer than the device seems to run; ns."""
    syncs = host.is_runtime & host.named(names.is_sync) & (host.start_ns > launch_ns) & (host.end_ns > begin_ns)
    end = np.sort(host.end_ns[syncs])
    done = np.concatenate(([0], np.maximum.accumulate(device.end_ns)))
    busy_until = done[searchsorted(device.start_ns, end)]
    return int(end[end - np.maximum(busy_until, begin_ns) > _WAITED_NS].min(initial=_NEVER))
