"""Sends and receives: counted on the host, by step and by the other rank."""

from __future__ import annotations

import json

from torch_events import event
from traces import MS, digests, job

from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.digest.model import PointToPoint
from tb_ddp_doctor.trace.reader import decode
from tb_ddp_doctor.view.messages import sent

MB = 1_000_000


def rows(messages: PointToPoint) -> list[tuple[int, ...]]:
    """(step, 1 for sends, other rank, count, MB) of each row."""
    columns = (messages.step, messages.sent, messages.peer, messages.count, messages.bytes // 1_000_000)
    return list(zip(*(column.tolist() for column in columns), strict=True))


TWO_STEPS = """
    rank0 step |1                       |2
          gpu  [fwd][fwd]     [bwd]      [fwd..]     [bwd]
          nccl [s1] [s1] [r3]            [s1]   [r3]
"""


def test_messages_are_counted_by_step_and_rank() -> None:
    assert rows(digests(TWO_STEPS, world_size=4)[0].messages) == [
        (0, 0, 3, 1, 4),
        (0, 1, 1, 2, 8),
        (1, 0, 3, 1, 4),
        (1, 1, 1, 1, 4),
    ]


def test_without_metadata_on_the_host_there_are_none() -> None:
    assert not len(digests(TWO_STEPS, world_size=4, metadata="nowhere")[0].messages)


def test_what_two_ranks_send_has_the_time_in_which_both_have_it_running() -> None:
    """Two transfers of 4 MB, of 12 ms and 8 ms from when the later rank has begun."""
    found = sent(
        job("""
            rank0 step |1                                        |2
                  gpu  [fwd]                                     [fwd]
                  nccl      [s1........]      [s1..........]
            rank1 step |1                                        |2
                  gpu  [fwd]                                     [fwd]
                  nccl      [r0........]            [r0....]
        """)
    )
    (one,) = found
    assert (one.sender, one.receiver, one.count, one.bytes) == (0, 1, 2, 8 * MB)
    assert one.running_ns is not None and round(one.running_ns / MS) == 12 + 8


def test_gloo_does_not_name_the_other_rank() -> None:
    called = [("send", 10, 5), ("send", 20, 5), ("recv", 30, 50), ("all_reduce", 90, 5), ("send", 200, 5)]
    events = [event("user_annotation", f"gloo:{name}", start, length, 1) for name, start, length in called]
    events.insert(0, event("user_annotation", "ProfilerStep#1", 0, 100, 1))
    trace = decode([json.dumps({"traceEvents": events}).encode()], "rank0")
    assert rows(digest(trace).messages) == [(0, 0, -1, 1, -1), (0, 1, -1, 2, -1)]
