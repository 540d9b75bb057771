"""What keeps the device waiting for launches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from random_traces import OF_JOBS, TRACES
from traces import MS, digests, ranks

from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.digest.device_events import DeviceEvents
from tb_ddp_doctor.digest.late_launches import recording_ns
from tb_ddp_doctor.digest.model import LaunchDelay, RankDigest, RankOwner
from tb_ddp_doctor.trace.model import RankTrace

SYNCED = """
    rank# step |1
          host [a][b][item....][c][d]
          gpu  [a...][b......] [c...][d...]
"""


def drawn(text: str, steps: int = 3) -> RankDigest:
    return digests(ranks(text, steps=steps))[0]


def starved_ms(text: str, cause: LaunchDelay) -> list[float]:
    """By step."""
    return [round(ns / MS, 1) for ns in drawn(text).work.late_launch_ns[:, cause].tolist()]


def test_a_gap_before_a_late_launch_is_starved() -> None:
    text = """
        rank# step |1
              host [a....][b....]
              gpu  [a]    [b]
    """
    assert starved_ms(text, LaunchDelay.LAUNCHES)[1:] == [8, 8]


def test_a_gap_before_an_early_launch_is_the_devices_own() -> None:
    text = """
        rank# step |1
              host [a][b]
              gpu  [a]      [b..]
    """
    assert starved_ms(text, LaunchDelay.LAUNCHES)[1:] == [0, 0]


def test_what_follows_a_call_that_holds_the_host_is_its_fault() -> None:
    assert starved_ms(SYNCED, LaunchDelay.SYNC)[1:] == [1, 1]
    assert starved_ms(SYNCED, LaunchDelay.LAUNCHES)[1:] == [0, 0]


def test_a_call_costs_no_more_than_it_held_the_host() -> None:
    text = """
        rank# step |1
              host [a.......][sync][b.......][c......]
              gpu  [a]             [b]       [c]
    """
    # 26 ms of gaps in a step, of which the call's 6 ms would not be missed.
    assert starved_ms(text, LaunchDelay.SYNC) == [6, 6, 6]
    assert starved_ms(text, LaunchDelay.LAUNCHES)[1:] == [20, 20]


def test_each_kind_is_charged_with_what_those_before_it_leave() -> None:
    text = """
        rank# step |1
              host [a][alloc..][sync..][b...][c]
              gpu  [a]                 [b]   [c]
    """
    alloc, sync, rest = (
        starved_ms(text, kind)[1] for kind in (LaunchDelay.ALLOC, LaunchDelay.SYNC, LaunchDelay.LAUNCHES)
    )
    assert (alloc, sync) == (9, 8)
    assert alloc + sync + rest == 17 + 3


def test_a_call_with_work_queued_behind_it_costs_nothing() -> None:
    text = """
        rank# step |1
              host [a][b][sync][c]
              gpu  [a][b..........][c........]
    """
    assert starved_ms(text, LaunchDelay.SYNC)[1:] == [0, 0]


def test_loading_and_stalls_are_charged_to_no_kind() -> None:
    loading = """
        rank# step |1
              host [load......][a]
              gpu              [a]
    """
    stall = """
        rank# step |1
              host [a]         [b]
              gpu  [a]         [b]
    """
    for text in (loading, stall):
        assert not drawn(text).work.late_launch_ns[1:].sum()


def test_a_blocking_copy_to_the_device_is_no_synchronisation() -> None:
    text = """
        rank# step |1
              host [a]          [b]
              gpu  [a][pageable][b]
    """
    table = drawn(text).blocking
    assert table.kind.tolist() == [LaunchDelay.COPY]
    assert table.count.tolist() == [3]


def test_calls_are_told_by_name_and_operator() -> None:
    found = drawn(SYNCED)
    (row,) = range(len(found.blocking))
    assert found.strings[found.blocking.call[row]] == "cudaStreamSynchronize"
    assert found.strings[found.blocking.op[row]] == "aten::_local_scalar_dense"
    assert found.blocking.count[row] == 3
    assert found.blocking.blocked_ns[row] == pytest.approx(3 * 10 * MS, rel=0.01)
    assert found.blocking.lost_ns[row] == pytest.approx(found.work.late_launch_ns[:, LaunchDelay.SYNC].sum(), rel=0.01)


def test_the_synchronisation_that_ends_the_profile_is_no_call_of_the_steps() -> None:
    text = """
        rank# step |1
              host [a][sync]
              gpu  [a]
    """
    assert drawn(text, steps=3).blocking.count.tolist() == [2]


def test_the_profilers_stalls_are_told_apart() -> None:
    text = """
        rank# step |1
              host [a][flush..][b]
              gpu  [a]         [b]
    """
    assert starved_ms(text, LaunchDelay.OVERHEAD)[1] == 9


def test_recording_is_estimated_by_the_events_recorded() -> None:
    found = drawn(
        """
        rank# step |1
              host [a....][b....][c....]
              gpu  [a]    [b]    [c]
        """
    )
    # An operator and a launch each: six events and the step's own.
    assert found.work.late_launch_ns[1, LaunchDelay.RECORDING] == pytest.approx(7 * 400, abs=1000)


@pytest.mark.parametrize(("launch_us", "event_ns"), [(5, 400), (7, 2_200), (8.5, 4_000), (14, 1_500)])
def test_launches_longer_than_recording_makes_any_are_a_slow_cpus(launch_us: float, event_ns: int) -> None:
    device = cast(DeviceEvents, SimpleNamespace(median_launch_ns=launch_us * 1000))
    assert recording_ns(device) == event_ns


@OF_JOBS
@given(TRACES)
def test_late_launches_is_idle_time(trace: RankTrace) -> None:
    found = digest(trace)
    idle = found.work.owner_ns[:, RankOwner.INPUT :].sum(axis=1)
    assert (found.work.late_launch_ns >= 0).all()
    assert (found.work.late_launch_ns.sum(axis=1) <= idle).all()
    assert (found.blocking.lost_ns <= found.work.late_launch_ns.sum()).all()
    assert (np.asarray(found.blocking.worst_end_ns) >= found.blocking.worst_start_ns).all()
