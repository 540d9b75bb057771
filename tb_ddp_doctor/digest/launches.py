"""The device's events in a trace, joined to the runtime calls that launched them, by correlation."""

from __future__ import annotations

from functools import cached_property

import msgspec
import numpy as np

from tb_ddp_doctor.digest.columns import distinct, searchsorted
from tb_ddp_doctor.digest.host_calls import one_of
from tb_ddp_doctor.digest.sums import total
from tb_ddp_doctor.digest.vocabulary import Mask
from tb_ddp_doctor.trace.model import Category, Events, Ints


class DeviceRows(msgspec.Struct, frozen=True, eq=False, dict=True):
    """Kernels, copies and memsets of all devices, in the order of the file; shape (events,)."""

    events: Events
    #: Row in `events`.
    row: Ints
    #: Row of the call that launched it; -1 where the trace does not hold that.
    launch: Ints

    @classmethod
    def of(cls, events: Events) -> DeviceRows:
        """Those of a trace."""
        row = np.flatnonzero(is_on_device(events))
        return cls(events, row, launch_rows(events, row))

    @classmethod
    def none(cls, events: Events) -> DeviceRows:
        """No events."""
        nothing = np.empty(0, np.int64)
        return cls(events, nothing, nothing)

    @cached_property
    def kernels(self) -> Ints:
        """Rows of the kernels in `events`."""
        kernels: Ints = self.row[self.events.category[self.row] == Category.KERNEL]
        return kernels

    @cached_property
    def busy_ns(self) -> dict[int, int]:
        """How long the kernels of each device run in all; -1 stands for kernels that name no device."""
        device, length = self.events.device[self.kernels].astype(np.int64), self.events.duration_ns[self.kernels]
        least = int(device.min(initial=0))
        devices, which = distinct(device - least, int(device.max(initial=0)) - least + 1)
        busy = total(which, np.ones(len(which), np.bool_), length, len(devices))
        return dict(zip((devices + least).tolist(), busy.tolist(), strict=True))

    @property
    def busiest(self) -> int:
        """The device whose kernels run longest, of several the first."""
        return max(max(self.busy_ns, key=self.busy_ns.__getitem__), 0)

    @cached_property
    def neighbours(self) -> tuple[Ints, Ints]:
        """Rows in `events` of what starts one behind the other on a stream, of all that name their stream."""
        rows = self.row[self.events.stream[self.row] >= 0]
        device, stream = self.events.device[rows], self.events.stream[rows]
        order = np.lexsort((self.events.start_ns[rows], stream, device))
        this, following = order[:-1], order[1:]
        same = (stream[this] == stream[following]) & (device[this] == device[following])
        return rows[this[same]], rows[following[same]]

    @cached_property
    def overlap_ns(self) -> Ints:
        """By how much the first of two neighbours runs on beside the second, below 0 where it ends before."""
        this, following = self.neighbours
        start = self.events.start_ns
        return start[this] + self.events.duration_ns[this] - start[following]


def is_on_device(events: Events) -> Mask:
    """Which events are the device's."""
    return one_of(events.category, (Category.KERNEL, Category.MEMCPY, Category.MEMSET))


def launch_rows(events: Events, device_rows: Ints) -> Ints:
    """For each device event the row of the call that launched it; -1 where the trace does not hold the call.

    Kernels that were enqueued before the profiler started have no launch record.
    """
    calls = np.flatnonzero(one_of(events.category, (Category.RUNTIME,)))
    numbers = events.correlation[calls]
    calls, numbers = calls[numbers >= 0], numbers[numbers >= 0]
    if not len(calls):
        return np.full(len(device_rows), -1, np.int64)
    order = np.argsort(numbers, kind="stable")
    calls, numbers = calls[order], numbers[order]
    wanted = events.correlation[device_rows]
    at = np.minimum(searchsorted(numbers, wanted), len(calls) - 1)
    return np.where(numbers[at] == wanted, calls[at], -1)
