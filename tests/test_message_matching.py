"""Which sends and receives meet, who waits in them, and what a replay makes of it."""

from __future__ import annotations

import numpy as np
import pytest
from matches import rows, table
from traces import MS, digests, job, ranks

from tb_ddp_doctor.facts.traffic import communication
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.replay import native_library
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf


def meetings(text: str, **options: object) -> list[tuple[list[int], bool]]:
    """The rows of each rank's kernels that meet, by time, and whether these meet no others."""
    drawn = job(text, **options)
    return list(zip(rows(drawn.matched, drawn.calls), drawn.matched.together.tolist(), strict=True))


PIPELINE = """
    rank0 step |1
          host [fwd][p]              [bwd]
          gpu  [fwd]                 [bwd]
          nccl      [s1......][r1...]
    rank1 step |1
          host           [fwd]
          gpu            [fwd]
          nccl [r0............][s0..]
"""


def test_the_first_send_meets_the_first_receive() -> None:
    assert meetings(PIPELINE) == [([0, 0], True), ([1, 1], True)]


BUFFERED = """
    rank0 step |1
          gpu  [a][fwd...................................]
          nccl    [s1]                                    [ar]
    rank1 step |1
          gpu  [a..........................][b...........]
          nccl                              [r0]          [ar]
"""


def test_a_message_that_was_sent_before_its_receiver_arrives_is_no_error() -> None:
    """NCCL keeps it: the sender has ended, and the receiver does not wait."""
    drawn = job(BUFFERED)
    assert drawn.matched.kind == ("all_reduce",)
    assert drawn.matched.refused == 0 and not any(drawn.matched.unmatched)


def test_a_message_that_arrives_before_it_was_sent_is_an_error() -> None:
    drawn = job(BUFFERED.replace("[s1]", "[r1]").replace("[r0]", "[s0]"))
    assert drawn.matched.kind == ("all_reduce",)
    assert drawn.matched.refused == 1


@pytest.mark.parametrize("metadata", ["host", "kernel"])
def test_directions_are_apart(metadata: str) -> None:
    """Rank 0 sends twice before it receives, rank 1 sends between its receives."""
    found = meetings(
        """
        rank0 step |1
              nccl [s1.....][s1.....][r1.....]
              gpu  [a]
        rank1 step |1
              nccl [r0.....][s0.............]
              comm          [r0.....]
              gpu  [a]
        """,
        metadata=metadata,
    )
    assert sorted(found) == [([0, 0], True), ([1, 2], True), ([2, 1], True)]


def test_waiting_for_a_late_sender_is_straggler_wait() -> None:
    drawn = job("""
        rank0 step |1
              gpu  [fwd........]
              nccl              [s1..]
        rank1 step |1
              gpu  [a]
              nccl    [r0............]
    """)
    assert (drawn.budget.of("wait") / MS).tolist() == [[0], [10]]
    assert drawn.waiting.last.tolist() == [0]
    assert drawn.matched.unmatched == (0, 0)


RING = """
    rank0 step |1
          host [fwd]
          gpu  [fwd]
          nccl      [s1r2......]
    rank1 step |1
          host [fwd]
          gpu  [fwd......]
          nccl            [s2r0]
    rank2 step |1
          host [fwd]
          gpu  [fwd]
          nccl      [s0r1......]
    """
#: All ranks end the AllReduce together: that gives their clocks.
LINE = """
    rank0 step |1
          host [fwd]
          gpu  [fwd]
          nccl      [s1][ar................]
    rank1 step |1
          host [fwd]
          gpu  [fwd]
          nccl      [r0s2............][ar..]
    rank2 step |1
          host [fwd]
          gpu  [fwd..........]
          nccl                [r1....][ar..]
    """


def test_a_batch_is_one_kernel_with_all_its_messages() -> None:
    ends = digests(RING)[0].message_ends
    assert [column.tolist() for column in (ends.call, ends.sent, ends.peer)] == [[0, 0], [1, 0], [1, 2]]


def test_three_that_all_meet_each_other_are_one_match() -> None:
    assert meetings(RING) == [([0, 0, 0], True)]


def test_two_that_meet_a_third_are_matches_of_their_own() -> None:
    assert meetings(LINE) == [([0, 0, -1], False), ([-1, 0, 0], False), ([1, 1, 1], True)]


def test_a_kernel_waits_for_its_own_partners_alone() -> None:
    drawn = job(LINE)
    waits = table(drawn.matched, drawn.waiting.exposed_ns, 0) / MS
    assert drawn.waiting.last[:2].tolist() == [0, 2]
    assert waits[:2].tolist() == [[0, 0, 0], [0, 10, 0]]


#: Each sends to the next rank and receives from the one before: 0 waits for 3, 1 for 2, and both have met long before.
LATE_HALF = """
    rank0 step |1
          host [fwd]
          gpu  [fwd]
          nccl      [s1r3............][ar]
    rank1 step |1
          host [fwd]
          gpu  [fwd]
          nccl      [s2r0............][ar]
    rank2 step |1
          host [fwd]
          gpu  [fwd..........]
          nccl                [s3r1..][ar]
    rank3 step |1
          host [fwd]
          gpu  [fwd..........]
          nccl                [s0r2..][ar]
    """


def test_two_that_wait_for_a_third_each_do_not_transfer_as_long() -> None:
    drawn = job(LATE_HALF)
    rings = [one for one in communication(drawn) if one.kind == "send_recv"]
    assert sorted(len(one.row) for one in rings) == [4]
    assert (rings[0].transfer_ns / MS).tolist() == [8, 8, 8, 8]
    # What is exposed is where it transfers, not where both wait.
    assert (rings[0].exposed_ns / MS).tolist() == [8, 8, 8, 8]


def test_a_kernel_waits_no_longer_because_its_partner_has_a_slow_link() -> None:
    """0 sends to 1 for 20 ms. 2 and 3 are early: they wait for these, and then transfer for 8 ms."""
    drawn = job("""
        rank0 step |1
              host [fwd]
              gpu  [fwd...........]
              nccl                 [s1r3..............][ar]
        rank1 step |1
              host [fwd]
              gpu  [fwd...........]
              nccl                 [s2r0..............][ar]
        rank2 step |1
              host [fwd]
              gpu  [fwd]
              nccl      [s3r1.............]            [ar]
        rank3 step |1
              host [fwd]
              gpu  [fwd]
              nccl      [s0r2.............]            [ar]
    """)
    rings = next(one for one in communication(drawn) if one.kind == "send_recv")
    assert sorted((rings.transfer_ns / MS).tolist()) == [8, 8, 8, 20]


def test_where_counts_differ_ends_say_which_one_is_lost() -> None:
    found = meetings("""
        rank0 step |1
              gpu  [a]
              nccl [s1..][s1...][s1..]
        rank1 step |1
              gpu  [a]
              nccl       [r0...][r0..]
    """)
    assert found == [([1, 0], True), ([2, 1], True)]


def test_messages_to_ranks_without_a_trace_are_unmatched() -> None:
    drawn = job(
        """
        rank0 step |1
              gpu  [a]
              nccl [s3..][ar]
        rank1 step |1
              gpu  [a]
              nccl [r3..][ar]
    """,
        world_size=4,
    )
    assert drawn.matched.unmatched == (1, 1)
    assert len(drawn.matched) == 1


@pytest.fixture(params=["native", "numpy"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the native library and without."""
    if request.param == "numpy":
        monkeypatch.setattr(native_library, "is_available", lambda: False)
    elif not native_library.is_available():
        pytest.skip("the native library was not built")
    return str(request.param)


def played(drawn: Job) -> WhatIf:
    whatif = WhatIf.of(drawn)
    assert whatif.plays
    return whatif


def test_a_replay_gives_the_record_back(library: str) -> None:
    for text in (RING, LINE, PIPELINE):
        drawn = job(text)
        assert (played(drawn).recorded_ns == drawn.budget.window_ns).all(), text


def test_without_a_slow_rank_its_partner_waits_no_longer(library: str) -> None:
    """Rank 2 sends 10 ms sooner, so that rank 1 is as early at the AllReduce of all."""
    drawn = job(LINE)
    whatif = played(drawn)
    for slow in range(3):
        gone = np.zeros((3, 1), np.int64)
        gone[slow] = 10 * MS
        left = whatif.step_ns(Change(device_ns=gone))
        saved = 10 if slow == 2 else 0
        assert ((drawn.budget.window_ns - left) / MS).round(1).tolist() == [[saved]] * 3, slow


#: Of two groups each, as hybrid sharding has them: the AllReduces have streams of their own, and wait for the
#: reduce-scatters. The first AllReduce is over when the second one begins.
SHARDED = """
    rank0 step |1
          host [b][b][b]
          gpu  [b.....][b.....]
          nccl         [rs....][rs......]
          comm                 [ar....]  [ar.....]
    rank1 step |1
          host [b][b][b]
          gpu  [b.....][b......]
          nccl         [rs....] [rs.....]
          comm                 [ar....]  [ar.....]
"""


def test_an_all_reduce_follows_the_reduce_scatter_that_ended_right_before_it(library: str) -> None:
    drawn = job(SHARDED)
    table, track = drawn.digests[1].collectives, drawn.digests[1].track
    kinds = [drawn.digests[1].strings[kind] for kind in table.kind.tolist()]
    assert kinds == ["reduce_scatter", "all_reduce", "reduce_scatter", "all_reduce"]
    follows = {int(track.launches[row]): int(track.follows[row]) for row in np.flatnonzero(track.follows >= 0)}
    assert follows == {1: 0, 3: 2}
    whatif = played(drawn)
    assert (whatif.recorded_ns == drawn.budget.window_ns).all()
    # Without a millisecond of what rank 1 computes before its second reduce-scatter, that and its AllReduce are sooner.
    left = whatif.step_ns(Change(device_ns=np.array([[0], [MS]])))
    assert ((drawn.budget.window_ns - left) / MS).round(1).tolist() == [[1], [1]]


def test_an_all_reduce_does_not_follow_an_all_gather_that_was_launched_later() -> None:
    """The all-gather that prefetches the next layer's parameters ends with the reduce-scatter."""
    drawing = """
        rank# step |1
              host  [b][rs][ar][b][ag]
              gpu   [b..................][b........]
              nccl                       [rs]
              comm2                      [ag]
              comm                           [ar]
    """
    drawn = job(ranks(drawing, drawing, steps=1))
    table, track = drawn.digests[0].collectives, drawn.digests[0].track
    kind = {row: drawn.digests[0].strings[table.kind[row]] for row in range(len(table))}
    followed = np.flatnonzero(track.follows >= 0)
    pairs = [(kind[track.launches[row]], kind[track.follows[row]]) for row in followed]
    assert pairs == [("all_reduce", "reduce_scatter")]
