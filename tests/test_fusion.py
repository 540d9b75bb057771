"""What calls read that a call before them wrote, and which of it need not be written either."""

from __future__ import annotations

import numpy as np
import pytest

from tb_ddp_doctor.digest.fusion import Loop, LoopCalls, avoidable
from tb_ddp_doctor.digest.least_work import Work
from tb_ddp_doctor.digest.model import Avoidable, GpuTime

MB = 1_000_000
#: A million values of 4 bytes; as 2 bytes each.
WIDE, NARROW = (MB, 4 * MB), (MB, 2 * MB)


def loop(kind: GpuTime, wrote: tuple[int, int], *reads: tuple[int, int], saved: bool = False) -> Loop:
    elements, written = wrote
    return Loop(Work(kind, 0, sum(size for _, size in reads), written, elements), reads, saved)


ADD = loop(GpuTime.ELEMENTWISE, WIDE, WIDE)
NORM = loop(GpuTime.NORM, WIDE, WIDE)
SOFTMAX = loop(GpuTime.NORM, WIDE, WIDE, saved=True)
CAST = loop(GpuTime.COPY, NARROW, WIDE)
WEIGHT = loop(GpuTime.COPY, (3 * MB, 6 * MB), (3 * MB, 12 * MB))
GEMM = Loop(Work(GpuTime.GEMM, 1, 1, 1), (), False)


def calls(*loops: Loop, streams: tuple[int, ...] = (), late: tuple[int, ...] = ()) -> Avoidable:
    """What 100 us long calls avoid, each launched by a row of its own."""
    every = np.arange(len(loops))
    return avoidable(
        LoopCalls(
            loop=every,
            stream=np.array(streams or [7] * len(loops)),
            step=np.zeros(len(loops), np.int64),
            start_ns=every * 100_000,
            total_ns=np.full(len(loops), 100_000),
            row=every,
            is_late=np.isin(every, late),
            computes=np.ones(len(loops), np.bool_),
        ),
        loops,
    )


def us(found: Avoidable, column: str) -> dict[int, float]:
    """A column by row, where it is not 0."""
    values = getattr(found, column).tolist()
    return {row: value / 1000 for row, value in zip(found.row.tolist(), values, strict=True) if value}


def test_a_loop_reads_what_the_loop_before_wrote() -> None:
    found = calls(ADD, ADD)
    assert us(found, "read_ns") == {1: 50} and us(found, "written_ns") == {0: 50}
    assert not us(found, "temporary_ns")
    assert found.read_bytes.sum() == 4 * MB and found.calls.sum() == 1


def test_loops_over_other_tensors_lie_between_the_two() -> None:
    found = calls(NORM, WEIGHT, CAST)
    assert us(found, "read_ns") == pytest.approx({2: 100 * 4 / 6}, abs=0.01)


def test_nothing_is_handed_over_across_what_nothing_is_fused_with() -> None:
    assert not len(calls(ADD, GEMM, ADD))


def test_nothing_is_handed_over_between_streams() -> None:
    assert not len(calls(ADD, ADD, streams=(7, 9)))


def test_one_reduction_does_not_follow_another() -> None:
    assert not len(calls(NORM, NORM))
    assert us(calls(NORM, ADD, NORM), "read_ns") == {1: 50, 2: 50}


def test_what_is_cast_at_once_is_not_written_where_no_backward_needs_it() -> None:
    assert us(calls(NORM, CAST), "temporary_ns") == {0: 50}
    assert not us(calls(SOFTMAX, CAST), "temporary_ns")


def test_what_backward_writes_for_the_next_loop_is_not_written() -> None:
    assert us(calls(SOFTMAX, ADD, late=(0, 1)), "temporary_ns") == {0: 50}


def test_what_two_loops_read_is_written_once() -> None:
    found = calls(ADD, CAST, CAST)
    assert us(found, "read_ns") == pytest.approx({1: 100 * 4 / 6, 2: 100 * 4 / 6}, abs=0.01)
    assert us(found, "written_ns") == {0: 50}


def test_passes_of_an_optimizer_over_all_parameters_follow_each_other() -> None:
    passes = loop(GpuTime.OPTIMIZER, WIDE, WIDE)
    assert us(calls(passes, passes, late=(0, 1)), "temporary_ns") == {0: 50}
    fused = Loop(Work(GpuTime.OPTIMIZER, 0, 16 * MB, 12 * MB, MB), (), is_saved=False)
    assert not len(calls(fused, fused))
