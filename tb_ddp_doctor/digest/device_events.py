"""What a rank's device does, joined once: its kernels and copies, with the host's calls that launched them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.columns import searchsorted
from tb_ddp_doctor.digest.host_calls import HostCalls, one_of
from tb_ddp_doctor.digest.launches import DeviceRows
from tb_ddp_doctor.digest.vocabulary import Mask, Names
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Bytes8, Category, Indices, Ints, RankTrace
from tb_ddp_doctor.trace.names import HostMemory


class DeviceEvents(msgspec.Struct, frozen=True, eq=False, dict=True):
    """Kernels, copies and memsets of one device, in the order of the file; shape (events,)."""

    trace: RankTrace
    names: Names
    #: Row in `trace.events`.
    row: Ints
    start_ns: Ints
    end_ns: Ints
    #: A `Category`.
    category: Bytes8
    #: Index into `trace.strings`; searched for often, and so an int64, as numpy takes by.
    name: Ints
    #: The call that launched it, an index of `HostCalls`; -1 if it is not recorded.
    launch: Ints
    #: When that starts, and how long it takes; undefined where it is not recorded.
    launch_ns: Ints
    launch_length_ns: Ints
    #: Index of the step that launched it; -1 if that is not known, or not whole.
    step: Ints

    @classmethod
    def of(cls, host: HostCalls, device: int, of_device: DeviceRows) -> DeviceEvents:
        """The events of a device, and those that name none. All are of no step yet."""
        trace, events = host.trace, host.trace.events
        on_device = (events.device[of_device.row] == device) | (events.device[of_device.row] < 0)
        rows, by = of_device.row[on_device], of_device.launch[on_device]
        launch = np.where(by >= 0, host.index[by], -1)
        start, name = events.start_ns[rows], events.name[rows].astype(np.int64)
        return cls(
            trace=trace,
            names=Names(trace.strings, name),
            row=rows,
            start_ns=start,
            end_ns=start + events.duration_ns[rows],
            category=events.category[rows],
            name=name,
            launch=launch,
            launch_ns=host.start_ns[launch] if len(host) else np.zeros_like(start),
            launch_length_ns=host.length_ns[launch] if len(host) else np.zeros_like(start),
            step=np.full(len(rows), -1, np.int64),
        )

    def __len__(self) -> int:
        return len(self.row)

    @cached_property
    def length_ns(self) -> Ints:
        """How long each runs."""
        return self.end_ns - self.start_ns

    @cached_property
    def stream(self) -> Ints:
        """The stream that each runs on; -1 where that is not told."""
        return self.trace.events.stream[self.row].astype(np.int64)

    @cached_property
    def bytes(self) -> Ints:
        """What copies and memsets move; 0 where that is not told."""
        return np.maximum(self.trace.events.bytes[self.row], 0)

    @cached_property
    def occupancy(self) -> Indices:
        """Estimated occupancy of kernels, percent; 0 where there is no estimate."""
        return self.trace.events.occupancy[self.row]

    @cached_property
    def is_launched(self) -> Mask:
        """Which have a launch in the record."""
        return self.launch >= 0

    @cached_property
    def communicates(self) -> Mask:
        """Which are kernels that move data between ranks."""
        return one_of(self.category, (Category.KERNEL,)) & self.named(names.is_communication_kernel)

    @cached_property
    def computes(self) -> Mask:
        """Which are all other kernels."""
        return one_of(self.category, (Category.KERNEL,)) & ~self.communicates

    @cached_property
    def is_copy(self) -> Mask:
        """Which are copies."""
        return one_of(self.category, (Category.MEMCPY,))

    @cached_property
    def is_pageable(self) -> Mask:
        """Which are copies from or to pageable memory of the host."""
        pageable: Mask = self.is_copy & (self.kinds(names.host_memory) == HostMemory.PAGEABLE)
        return pageable

    @cached_property
    def to_device(self) -> Mask:
        """Which are copies from the host to the device."""
        return self.is_copy & self.named(names.is_to_device)

    @cached_property
    def by_start(self) -> Ints:
        """Their order by start."""
        return np.argsort(self.start_ns, kind="stable")

    @cached_property
    def median_launch_ns(self) -> float:
        """How long the median launch takes, a graph's as one; 0 where none is recorded."""
        launched = np.flatnonzero(self.is_launched)
        _, first = np.unique(self.launch[launched], return_index=True)
        lengths = self.launch_length_ns[launched[first]]
        return float(np.median(lengths)) if len(lengths) else 0.0

    def launched_next(self, instant: Ints) -> Ints:
        """The kernel or copy (index) with the first launch at or after each instant; -1 for none."""
        launched = self._by_launch
        at = searchsorted(self.launch_ns[launched], instant)
        return np.append(launched, -1)[at]

    @cached_property
    def _by_launch(self) -> Ints:
        launched = np.flatnonzero(self.is_launched)
        return launched[np.argsort(self.launch_ns[launched], kind="stable")]

    def texts(self, events: Ints) -> list[str]:
        """Names of some events, "" for -1."""
        return [self.trace.strings[self.name[event]] if event >= 0 else "" for event in events.tolist()]

    def named(self, test: Callable[[str], bool]) -> Mask:
        """Which have a name that passes."""
        return self.names.among(self.name, test)

    def kinds(self, classify: Callable[[str], int]) -> NDArray[np.int8]:
        """What their names are."""
        return self.names.kinds(classify).take(self.name)
