"""Packets to columns by the native library (native/perfetto.h)."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from ctypes import CDLL, POINTER, byref, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.storage import native_library
from tb_ddp_doctor.trace import native
from tb_ddp_doctor.trace.losses import Losses
from tb_ddp_doctor.trace.model import Ints
from tb_ddp_doctor.trace.pftrace.packets import BEGIN, Ending, Lost, Marks
from tb_ddp_doctor.trace.pftrace.tracks import Place

_PROTOTYPES: native_library.Prototypes = {
    "perfetto_new": (c_void_p, [c_size_t, c_uint32]),
    "perfetto_free": (None, [c_void_p]),
    "perfetto_survey": (c_int, [c_void_p, c_void_p, c_size_t]),
    "perfetto_rewind": (c_int, [c_void_p, c_void_p, c_char_p, c_void_p, c_size_t, c_void_p, c_size_t]),
    "perfetto_scan": (c_int, [c_void_p, c_void_p, c_size_t]),
    "perfetto_marks": (c_size_t, [c_void_p, POINTER(c_void_p), POINTER(c_void_p), POINTER(c_void_p)]),
    "perfetto_tracks": (c_size_t, [c_void_p, POINTER(c_void_p)]),
    "perfetto_descriptors": (c_void_p, [c_void_p, POINTER(c_size_t)]),
    "perfetto_position": (c_uint64, [c_void_p]),
    "perfetto_end": (c_int, [c_void_p]),
    "perfetto_lost": (c_uint64, [c_void_p, c_int, POINTER(c_uint64)]),
    "perfetto_pair": (None, [c_size_t, *[c_void_p] * 5, c_size_t, *[c_void_p] * 3]),
}
_SIZE_BYTES = 4


@cache
def _library() -> CDLL:
    return native_library.required(_PROTOTYPES)


class NativePackets:
    """What `packets.PythonPackets` is without the library, but for JSON, in place of which it gives columns.

    Must not be made unless `trace.native.is_available`.
    """

    def __init__(self, max_packet_bytes: int, max_strings: int) -> None:
        self._library = _library()
        # All four are looked at until the end.
        self._places, self._ends, self._durations = b"", np.empty(0, np.uint64), np.empty(0, np.int64)
        self._scanner = native.Scanner(0)
        self._handle = self._library.perfetto_new(max_packet_bytes, max_strings)
        if not self._handle:
            raise MemoryError
        weakref.finalize(self, self._library.perfetto_free, self._handle)

    def survey(self, block: memoryview | bytes) -> None:
        """Read a block for the first time."""
        self._feed(self._library.perfetto_survey, block)

    def rewind(self, places: Sequence[Place], durations: Ints) -> None:
        """Begin to read for the second time."""
        threads = [b"%b,%b" % place for place in places]
        self._places = b"".join(threads)
        self._ends = np.cumsum([len(thread) for thread in threads], dtype=np.uint64)
        self._durations = np.ascontiguousarray(durations, np.int64)
        if not self._library.perfetto_rewind(
            self._handle,
            self._scanner.handle,
            self._places,
            self._ends.ctypes.data,
            len(self._ends),
            self._durations.ctypes.data,
            len(self._durations),
        ):
            raise MemoryError

    def scan(self, block: memoryview | bytes) -> None:
        """Read a block for the second time."""
        self._feed(self._library.perfetto_scan, block)

    def columns(self, losses: Losses) -> native.NativeColumns:
        """The events of all blocks that were read for the second time. Must be called once only."""
        return native.NativeColumns(self._scanner, losses)

    def marks(self) -> Marks:
        """The beginnings and ends that were surveyed."""
        tracks, times, kinds = c_void_p(), c_void_p(), c_void_p()
        count = self._library.perfetto_marks(self._handle, byref(tracks), byref(times), byref(kinds))
        return Marks(_copy(tracks, count, np.int32), _copy(times, count, np.int64), _copy(kinds, count, np.uint8))

    def tracks(self) -> list[int]:
        """The uuid of each track."""
        uuids = c_void_p()
        count = self._library.perfetto_tracks(self._handle, byref(uuids))
        tracks: list[int] = _copy(uuids, count, np.uint64).tolist()
        return tracks

    def descriptors(self) -> list[bytes]:
        """The descriptors of tracks that were surveyed."""
        size = c_size_t()
        address = self._library.perfetto_descriptors(self._handle, byref(size))
        data, at, descriptors = ctypes.string_at(address, size.value) if size.value else b"", 0, []
        while at < len(data):
            length = int(np.frombuffer(data, np.uint32, 1, at)[0])
            descriptors.append(data[at + _SIZE_BYTES : at + _SIZE_BYTES + length])
            at += _SIZE_BYTES + length
        return descriptors

    def ending(self) -> tuple[Ending, int]:
        """How the bytes end that were read, and where the packet begins that is not done with."""
        return Ending(self._library.perfetto_end(self._handle)), int(self._library.perfetto_position(self._handle))

    def lost(self) -> dict[Lost, tuple[int, int]]:
        """How much was lost for each reason that there was, and where the first packet of it begins."""
        position = c_uint64()
        counts = {
            why: (self._library.perfetto_lost(self._handle, why, byref(position)), position.value) for why in Lost
        }
        return {why: lost for why, lost in counts.items() if lost[0]}

    def pair(self, marks: Marks, order: Ints | None) -> Ints:
        """The duration of each beginning, by its number; -1 without an end."""
        begins = marks.kind == BEGIN
        numbers = None if order is None else np.cumsum(begins) - 1
        tracks = int(marks.track.max(initial=-1)) + 1
        durations = np.empty(int(np.count_nonzero(begins)), np.int64)
        below, top = np.empty_like(durations), np.empty(tracks, np.int64)
        columns = (marks.track, marks.time_ns, marks.kind, order, numbers)
        addresses = [None if column is None else column.ctypes.data for column in columns]
        scratch = (top.ctypes.data, below.ctypes.data, durations.ctypes.data)
        self._library.perfetto_pair(len(marks.kind), *addresses, tracks, *scratch)
        return durations

    def _feed(self, take: Any, block: memoryview | bytes) -> None:
        data = np.frombuffer(block, np.uint8)
        if not take(self._handle, data.ctypes.data, len(data)):
            raise MemoryError


def _copy(address: c_void_p, count: int, dtype: type[np.generic]) -> NDArray[Any]:
    """An array of what stands at an address."""
    size = count * np.dtype(dtype).itemsize
    return np.frombuffer(ctypes.string_at(address.value or 0, size) if size else b"", dtype)
