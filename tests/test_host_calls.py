"""The host's calls are a tree, and what is asked of it is what each call alone would say."""

from __future__ import annotations

import numpy as np
import traces
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.intervals import Intervals
from tb_ddp_doctor.trace.model import Category, RankTrace

TRACE = traces.read("rank0 step |1\n      host  [fwd]")[0]
#: Start, length, thread, and whether it is chosen.
CALLS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(0, 2), st.booleans()), min_size=1, max_size=14
)


def made(calls: list[tuple[int, int, int, bool]], origin: int = 0) -> tuple[HostCalls, np.ndarray]:
    """The calls of a trace that has no others, and which are chosen."""
    start, length, thread, chosen = np.array(calls, np.int64).T
    events = traces.columns(
        category=[Category.OP] * len(calls),
        start_ns=start + origin * np.arange(len(calls)),
        duration_ns=length,
        thread=thread,
        name=[0] * len(calls),
    )
    trace: RankTrace = replace(TRACE, events=events, threads=(("1", "1"), ("1", "2"), ("1", "3")))
    host = HostCalls.of(trace)
    return host, chosen[host.row].astype(bool)


def innermost(host: HostCalls, instant: int, thread: int, chosen: np.ndarray) -> int:
    runs = chosen & (host.thread == thread) & (host.start_ns <= instant) & (host.end_ns > instant)
    return int(np.flatnonzero(runs)[-1]) if runs.any() else -1


@given(CALLS)
def test_calls_stand_by_thread_start_and_length(calls: list[tuple[int, int, int, bool]]) -> None:
    for origin in (0, 1 << 57):
        host, _ = made(calls, origin)
        order = list(zip(host.thread.tolist(), host.start_ns.tolist(), (-host.length_ns).tolist(), strict=True))
        assert order == sorted(order)
        assert sorted(host.row.tolist()) == list(range(len(calls)))
        assert host.index[host.row].tolist() == list(range(len(calls)))


@given(CALLS)
def test_around_a_call_is_the_latest_of_those_before_it_that_run(calls: list[tuple[int, int, int, bool]]) -> None:
    host, chosen = made(calls)
    every = np.arange(len(host))
    found = host.around(every, chosen).tolist()
    for call, around in zip(every.tolist(), found, strict=True):
        before = chosen & (every < call)
        assert around == innermost(host, int(host.start_ns[call]), int(host.thread[call]), before)


@given(CALLS)
def test_the_innermost_call_at_an_instant(calls: list[tuple[int, int, int, bool]]) -> None:
    host, chosen = made(calls)
    instants = np.arange(-1, 45)
    for thread in range(4):
        found = host.innermost(instants, thread, chosen).tolist()
        assert found == [innermost(host, instant, thread, chosen) for instant in instants.tolist()]


@given(CALLS)
def test_what_calls_cover_is_what_each_covers(calls: list[tuple[int, int, int, bool]]) -> None:
    host, chosen = made(calls)
    covered, union = host.over(chosen), Intervals.union(host.start_ns[chosen], host.end_ns[chosen])
    assert (covered.start.tolist(), covered.end.tolist()) == (union.start.tolist(), union.end.tolist())
