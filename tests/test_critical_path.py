"""The critical path across ranks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from random_traces import OF_JOBS, TRACES, joined
from traces import MS, job, ranks

from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.replay.critical_path import PathOfStep, Piece, _joined, critical_path
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.trace.model import RankTrace


def path(text: str) -> tuple[PathOfStep, ...]:
    found = job(text)
    bindings = WhatIf.of(found).bindings
    assert bindings
    return critical_path(found, bindings)


def told(part: PathOfStep) -> list[tuple[int, str, float]]:
    return [(piece.rank, piece.owner, round((piece.end_ns - piece.start_ns) / MS, 1)) for piece in part.pieces]


@OF_JOBS
@given(st.lists(TRACES, min_size=1, max_size=3))
def test_the_pieces_of_a_step_sum_to_it_in_any_job(traces: list[RankTrace]) -> None:
    found = joined([digest(trace) for trace in traces])
    if not found or not (bindings := WhatIf.of(found).bindings):
        return
    parts = critical_path(found, bindings)
    assert [part.step for part in parts] == list(range(len(found.steps)))
    for i, part in enumerate(parts):
        assert (part.start_ns, part.end_ns) == (bindings.start_ns[i], bindings.end_ns[i])
        edges = [part.start_ns, *(piece.end_ns for piece in part.pieces)]
        assert edges == [*(piece.start_ns for piece in part.pieces), part.end_ns]
        assert all(piece.start_ns < piece.end_ns for piece in part.pieces)


def test_the_path_goes_through_the_rank_that_arrives_last() -> None:
    slow = """
        rank# step |1
              host [load......][fwd]       [sync....]
              gpu              [fwd.......]
              nccl                         [ar......]
    """
    fast = """
        rank# step |1
              host [fwd]       [sync................]
              gpu  [fwd.......]
              nccl             [ar..................]
    """
    parts = path(ranks(fast, slow))
    assert [[piece[1:] for piece in told(part)] for part in parts] == [
        [("input", 12), ("compute", 12), ("transfer", 10)]
    ] * 3
    # Both end together; before the collective the fast rank is never on the path.
    assert {piece.rank for part in parts for piece in part.pieces if piece.owner != "transfer"} == {1}
    assert [piece.what for piece in parts[0].pieces] == ["DataLoader.__next__", "", "all_reduce"]


def test_a_long_kernel_is_on_the_path_while_the_host_is_ahead() -> None:
    ahead = """
        rank# step |1
              host [a][b][c][sync..............]
              gpu  [a......][b........][c......]
    """
    assert told(path(ranks(ahead))[1]) == [(0, "compute", 29)]


def test_while_launches_are_late_the_host_is_on_the_path() -> None:
    late = """
        rank# step |1
              host [a........][b........][c......]
              gpu  [a]        [b]        [c]
    """
    middle = told(path(ranks(late))[1])
    assert sum(ms for _, owner, ms in middle if owner == "dispatch") > 20


def test_what_holds_the_host_is_named() -> None:
    syncs = """
        rank# step |1
              host [a][alloc......][b]       [sync...]
              gpu  [a]             [b.............]
    """
    owners = {(piece.owner, piece.what) for piece in path(ranks(syncs))[1].pieces}
    assert ("alloc", "cudaMalloc") in owners


def test_short_pieces_are_joined_and_no_time_is_lost() -> None:
    short = [Piece(0, "dispatch" if i % 3 else "sync", None, "", i, i + 1) for i in range(100)]
    joined_up = _joined([*short, Piece(0, "compute", None, "", 100, 200)], 30)
    assert [(piece.owner, piece.start_ns, piece.end_ns) for piece in joined_up] == [
        ("dispatch", 0, 90),
        ("compute", 90, 200),
    ]
    assert [piece.end_ns for piece in _joined(short[:5], 30)] == [5]
