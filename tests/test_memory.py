"""A device's memory, step by step: what is in use, what is held, and what is taken although enough is free."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace
from traces import GB, MS, digests, read

from tb_ddp_doctor.digest.allocator import Allocations
from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.digest.collectives import host_collectives
from tb_ddp_doctor.digest.device_events import DeviceEvents
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.launches import DeviceRows
from tb_ddp_doctor.digest.memory import POINTS, memory
from tb_ddp_doctor.digest.model import AllocatorMemory, Steps
from tb_ddp_doctor.digest.phases import host_phases
from tb_ddp_doctor.digest.vocabulary import Vocabulary
from tb_ddp_doctor.trace.columns import MEMORY_TYPES
from tb_ddp_doctor.trace.model import MemoryEvents, RankTrace


def of(text: str) -> AllocatorMemory:
    return digests(text)[0].memory


def gigabytes(column: np.ndarray) -> list[float]:
    return (column / GB).tolist()


def test_a_steps_peak_is_the_most_in_use_and_what_is_held_then() -> None:
    got = of("""
        rank0 step   |1                                |2
              host   [fwd]                              [fwd]
              gpu    [fwd.......................]       [fwd.....................]
              memory   [4of6] [5of6] [3of8] [1of8]      [2of8] [6of9] [1of7]
    """)
    assert gigabytes(got.peak_allocated) == [5, 6]
    assert gigabytes(got.reserved_at_peak) == [6, 9]
    assert gigabytes(got.peak_reserved) == [8, 9]


def test_what_is_taken_while_as_much_is_free_is_scattered() -> None:
    got = of("""
        rank0 step   |1                                |2
              host   [fwd]                              [fwd]
              gpu    [fwd.......................]       [fwd.....................]
              memory   [4of6] [6of6] [7of8] [1of8]      [2of8] [5of9] [8of9]
    """)
    assert gigabytes(got.scattered) == [0, 1]
    assert gigabytes(got.released) == [0, 0]


def test_what_is_given_back_is_released() -> None:
    got = of("""
        rank0 step   |1                       |2
              host   [fwd]                     [fwd]
              gpu    [fwd..............]       [fwd............]
              memory   [4of6] [1of6] [1of2]      [4of6] [1of1]
    """)
    assert gigabytes(got.released) == [4, 5]


def test_small_requests_have_a_pool_of_their_own() -> None:
    steps = Steps(*(np.array([value], np.int64) for value in (1, 0, 100, 0, 100)))
    (trace,) = read("host [a]").values()
    for asked, scattered in ((1 << 19, 0), (1 << 20, 2 << 20)):
        events = table([10, 20], bytes=[0, asked], allocated=[0, asked], reserved=[8 << 20, 10 << 20])
        assert of_events(trace, events, steps).scattered.tolist() == [scattered]


def test_other_devices_and_the_cpu_are_left_out() -> None:
    steps = Steps(*(np.array([value], np.int64) for value in (1, 0, 100, 0, 100)))
    (trace,) = read("host [a]").values()
    events = table([10, 20, 30], allocated=[1, 20, 30], reserved=[2, 40, 60], device=[0, 1, 0], device_type=[1, 1, 0])
    assert of_events(trace, events, steps).peak_allocated.tolist() == [1]


def test_a_step_in_which_nothing_happens_shows_no_memory() -> None:
    got = of("""
        rank0 step   |1         |2
              host   [fwd]       [fwd]
              gpu    [fwd.....]  [fwd....]
              memory   [4of6]
    """)
    assert got.peak_allocated.tolist() == [4 * GB, -1]


def test_a_trace_that_does_not_tell_shows_no_memory() -> None:
    got = of("""
        rank0 step   |1
              host   [fwd]
              gpu    [fwd.....]
    """)
    assert got.peak_allocated.tolist() == got.peak_reserved.tolist() == [-1]
    assert not len(got.time_ns)


def test_the_series_keeps_the_peak_of_each_stretch() -> None:
    rng = np.random.default_rng(7)
    count = 50_000
    used, times = rng.integers(0, 1000, count), np.sort(rng.integers(0, 1000 * MS, count))
    used[33_333] = 5000
    order = rng.permutation(count)
    events = table(times[order].tolist(), allocated=used[order].tolist(), reserved=(used[order] + 7).tolist())
    steps = Steps(*(np.array([value], np.int64) for value in (1, 0, 1000 * MS, 0, 1000 * MS)))
    (trace,) = read("host [a]").values()
    got = of_events(trace, events, steps)
    assert POINTS / 2 < len(got.time_ns) <= POINTS
    assert (np.diff(got.time_ns) > 0).all()
    assert got.allocated.max() == 5000 and got.time_ns[got.allocated.argmax()] == times[33_333]
    assert (got.reserved - got.allocated == 7).all()
    assert got.allocated.min() > 900


def test_numbers_that_no_allocator_has_break_nothing() -> None:
    huge = 2**63 - 1
    (trace,) = read("""
        rank0 step   |1         |2
              host   [fwd]       [fwd]
              gpu    [fwd.....]  [fwd....]
    """).values()
    start = int(trace.events.start_ns.min())
    events = table(
        [start, start + MS, start + 2 * MS], bytes=[-huge, huge, 0], allocated=[0, huge, -1], reserved=[huge, 0, 5]
    )
    assert digest(replace(trace, memory=events)).memory.peak_allocated[0] == huge


def of_events(trace: RankTrace, events: MemoryEvents, steps: Steps) -> AllocatorMemory:
    """The memory of device 0 of a trace with these events instead of its own."""
    host = HostCalls.of(replace(trace, memory=events))
    device = DeviceEvents.of(host, 0, DeviceRows.of(trace.events))
    nothing = host_collectives(host, steps, 0, words := Vocabulary())
    allocations = Allocations.of(host.trace, 0, steps)
    return memory(host, 0, allocations, steps, host_phases(host, device), nothing, words)


def table(time_ns: list[int], **given: list[int]) -> MemoryEvents:
    """What an allocator did on device 0, from the columns that matter."""
    count = len(time_ns)
    default = {name: [0] * count for name in MEMORY_TYPES} | {"device_type": [1] * count}
    columns = default | {"time_ns": time_ns} | given
    return MemoryEvents(**{name: np.array(columns[name], kind) for name, kind in MEMORY_TYPES.items()})
