"""A device's clock that is off is set right by what cannot be: work before its launch, or after it was awaited."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from traces import MS, ranks, read

from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.digest.device_clock import corrected
from tb_ddp_doctor.digest.launches import DeviceRows, is_on_device
from tb_ddp_doctor.trace.model import RankTrace

RANK = """
    rank# step |1
          host [fwd][bwd]     [sync..........]
          gpu   [fwd*4......][bwd*4.]
          nccl                       [ar.....]
"""
#: The host is never more than half a step ahead, and awaits nothing.
FREE = """
    rank# step |1
          host [fwd][bwd]
          gpu   [fwd*4......][bwd*4.]
          nccl                       [ar.....]
"""


def drawn(text: str = RANK, call: str = "cudaDeviceSynchronize") -> RankTrace:
    trace = read(ranks(text, steps=4))[0]
    names = tuple(call if name == "cudaStreamSynchronize" else name for name in trace.strings)
    return replace(trace, strings=names)


def off(trace: RankTrace, by_ns: int) -> RankTrace:
    """The device's clock is late by so much."""
    start = np.where(is_on_device(trace.events), trace.events.start_ns + by_ns, trace.events.start_ns)
    return replace(trace, events=replace(trace.events, start_ns=start))


def set_right(trace: RankTrace) -> RankTrace:
    return corrected(trace, DeviceRows.of(trace.events))


def test_clocks_that_agree_stay() -> None:
    for text in (RANK, FREE):
        trace = drawn(text)
        assert set_right(trace) is trace


@pytest.mark.parametrize("by_ms", [20, 200, -20, -200])
def test_a_clock_that_is_off_is_set_right(by_ms: int) -> None:
    trace = drawn()
    found = set_right(off(trace, by_ms * MS))
    assert np.abs(found.events.start_ns - trace.events.start_ns).max() <= MS
    (warning,) = found.warnings[len(trace.warnings) :]
    how = "late" if by_ms > 0 else "early"
    assert (
        warning.message == f"The GPU's clock is {abs(by_ms)}.0 ms {how} beside the CPU's: its events are moved by that."
    )
    assert warning.kind == "note"


def test_without_a_synchronisation_an_early_clock_is_moved_until_all_starts_behind_its_launch() -> None:
    trace = drawn(FREE)
    found = set_right(off(trace, -50 * MS))
    rows = DeviceRows.of(found.events)
    ahead = found.events.start_ns[rows.row] - found.events.start_ns[rows.launch]
    assert ahead[rows.launch >= 0].min() == 5_000


def test_a_synchronisation_that_began_when_all_was_done_tells_nothing() -> None:
    text = RANK.replace("[sync..........]", "               [sync.]")
    trace = drawn(text)
    found = set_right(off(trace, -50 * MS))
    assert np.abs(found.events.start_ns - trace.events.start_ns).max() <= 2 * MS


def test_a_synchronisation_of_one_stream_says_nothing_of_others() -> None:
    trace = off(drawn(call="cudaStreamSynchronize"), 20 * MS)
    assert set_right(trace) is trace


def test_memory_that_is_given_back_awaits_the_device() -> None:
    trace = drawn(call="cudaFree")
    found = set_right(off(trace, 20 * MS))
    assert np.abs(found.events.start_ns - trace.events.start_ns).max() <= MS
    # A call that does not block may have had nothing to wait for.
    quick = replace(trace.events, duration_ns=np.minimum(trace.events.duration_ns, 100_000))
    fast = off(replace(trace, events=quick), 20 * MS)
    assert set_right(fast) is fast


@pytest.mark.parametrize("by_ns", [300 * MS, -300 * MS])
def test_one_event_that_is_off_is_no_clock(by_ns: int) -> None:
    trace = drawn()
    start = trace.events.start_ns.copy()
    start[np.flatnonzero(is_on_device(trace.events))[-1]] += by_ns
    moved = replace(trace, events=replace(trace.events, start_ns=start))
    assert set_right(moved) is moved


def test_owners_are_those_of_the_clock_that_is_right() -> None:
    whole, late = digest(drawn()), digest(off(drawn(), 20 * MS))
    assert np.abs(late.work.owner_ns - whole.work.owner_ns).max() <= MS
