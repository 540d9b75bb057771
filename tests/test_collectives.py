"""Which calls on which ranks are one collective, and what each is known to be."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from matches import table
from msgspec.structs import replace
from torch_events import event
from traces import MS, digests, job, ranks, repeat

from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.digest.collectives import count_elements
from tb_ddp_doctor.job.calls import Calls
from tb_ddp_doctor.job.collectives import Matched, refuse_impossible
from tb_ddp_doctor.job.matching import match
from tb_ddp_doctor.job.realigning import can_realign
from tb_ddp_doctor.trace.reader import decode

ALIKE = """
    rank0 step |1
          gpu  [a...]     [b...]
          nccl       [ar.]      [ar.]
    rank1 step |1
          gpu  [a....]    [b....]
          nccl        [ar]       [ar]
"""


def matched(text: str, **options: object) -> Matched:
    """The collectives of drawn ranks; the calls of each rank are numbered from 0."""
    found = digests(text, **options)
    every = tuple(found.values())
    calls = Calls(every)
    matches = match(every, calls, tuple(found))
    return replace(matches, call=matches.call - calls.first[matches.rank])


def rows(found: Matched) -> list[list[int]]:
    """Which of its calls each rank has in each collective, by time; -1 where it has no part."""
    own: list[list[int]] = table(found, found.call).tolist()
    return own


def test_calls_are_matched_in_their_order() -> None:
    found = matched(ALIKE)
    assert rows(found) == [[0, 0], [1, 1]]
    assert found.kind == ("all_reduce", "all_reduce")
    assert found.unmatched == (0, 0)


def test_order_starts_anew_in_each_step() -> None:
    found = matched("""
        rank0 step |1         |2
              nccl [ar][ar]   [ag][ar]
        rank1 step |1         |2
              nccl [ar]       [ag][ar]
    """)
    assert found.step.tolist() == [1, 2, 2]
    assert rows(found)[1:] == [[2, 1], [3, 2]]


def test_kinds_are_kept_apart() -> None:
    found = matched("""
        rank0 nccl [ar.][ag.]
              gpu  [a]
        rank1 nccl [ag.][ar.]
              gpu  [a]
    """)
    assert rows(found) == [[0, 1], [1, 0]]
    assert set(found.kind) == {"all_gather", "all_reduce"}


def test_sizes_are_kept_apart() -> None:
    found = matched("""
        rank0 nccl [ar@8][ar@2]
        rank1 nccl [ar@2][ar@8]
    """)
    assert sorted(rows(found)) == [[0, 1], [1, 0]]
    assert sorted(found.bytes.tolist()) == [8_000_000, 32_000_000]


def test_groups_are_kept_apart() -> None:
    found = matched("""
        rank0 nccl [ar/left...][ar]
        rank1 nccl [ar/left...][ar]
        rank2 nccl [ar/right..][ar]
        rank3 nccl [ar/right..][ar]
    """)
    assert rows(found) == [[0, 0, -1, -1], [-1, -1, 0, 0], [1, 1, 1, 1]]
    assert found.group == ("left", "right", "0")
    assert found.group_size.tolist() == [2, 2, 4]


def test_sizes_of_all_to_alls_may_differ() -> None:
    found = matched("""
        rank0 step |1
              nccl [a2a@8][a2a@1][ar]
        rank1 step |1
              nccl [a2a@2][a2a@5][ar]
    """)
    assert rows(found) == [[0, 0], [1, 1], [2, 2]]


def test_where_counts_differ_sizes_tell_which_call_is_lost() -> None:
    found = matched("""
        rank0 step |1
              nccl [ar@8][ar@2][ar@4]
        rank1 step |1
              nccl       [ar@2][ar@4]
    """)
    assert rows(found) == [[1, 0], [2, 1]]
    assert found.unmatched == (1, 0)


def test_calls_of_a_group_match_in_order_whatever_their_sizes() -> None:
    """Where sizes are no partners for each other, as of uneven shards."""
    found = matched("""
        rank0 step |1
              nccl [ag@8][ag@3]
        rank1 step |1
              nccl [ag@7][ag@2]
    """)
    assert rows(found) == [[0, 0], [1, 1]]


def test_sends_and_receives_of_unknown_peers_are_left_alone() -> None:
    found = matched("""
        rank0 nccl [p2p.]
        rank1 nccl [p2p.]
    """)
    assert not len(found)


def test_a_group_of_one_has_nobody_to_wait_for() -> None:
    found = matched("""
        rank0 nccl [ar/mine]
        rank1 nccl [ar/yours]
    """)
    assert not len(found)


def test_launches_before_the_trace_are_not_counted() -> None:
    found = matched("""
        rank0 step        |1
              nccl [?ar.] [ar.][ar.]
        rank1 step        |1
              nccl        [ar.][ar.]
    """)
    assert rows(found) == [[1, 0], [2, 1]]
    assert found.unmatched == (0, 0)


@pytest.mark.parametrize(
    ("shorter", "partners"),
    [
        ("[ar]  [ar]      [ar]", [0, 1, -1, 2]),
        ("      [ar]  [ar][ar]", [-1, 0, 1, 2]),
        ("[ar]  [ar]  [ar]    ", [0, 1, 2, -1]),
    ],
    ids=["middle", "first", "last"],
)
def test_a_lost_call_shifts_none_of_the_others(shorter: str, partners: list[int]) -> None:
    found = matched(f"""
        rank0 nccl [ar]  [ar]  [ar][ar]
        rank1 nccl {shorter}
        rank2 nccl [ar]  [ar]  [ar][ar]
    """)
    by_call = {row[0]: row[1] for row in rows(found)}
    assert [by_call[call] for call in range(4)] == partners


def test_unequal_counts_are_slid_to_where_ends_agree() -> None:
    found = matched("""
        rank0 nccl [ar]     [ar][ar]       [ar]
        rank1 nccl          [ar][ar]       [ar]
    """)
    assert rows(found) == [[1, 0], [2, 1], [3, 2]]
    assert found.unmatched == (1, 0)


def test_sequence_numbers_match_whatever_the_order() -> None:
    text = """
        rank0 nccl [?ar]  [ar][ar]      [ar]
        rank1 nccl [ar]   [ar][?ar]     [ar]
    """
    found = matched(text, sequence=True)
    assert rows(found) == [[1, 1], [3, 3]]
    assert found.unmatched == (1, 1)


@pytest.mark.parametrize("metadata", ["host", "kernel"])
def test_metadata_is_found_on_the_host_and_on_the_kernel(metadata: str) -> None:
    rank = digests(ALIKE, metadata=metadata)[0]
    table, text = rank.collectives, rank.strings
    assert [text[kind] for kind in table.kind] == ["all_reduce"] * 2
    assert [text[group] for group in table.group] == ["0", "0"]
    assert table.group_size.tolist() == [2, 2]
    assert table.bytes.tolist() == [4_000_000, 4_000_000]


def test_without_metadata_the_kernels_name_says_the_kind() -> None:
    rank = digests(ALIKE, metadata="nowhere")[0]
    assert [rank.strings[kind] for kind in rank.collectives.kind] == ["all_reduce"] * 2
    assert rank.collectives.bytes.tolist() == [-1, -1]
    assert rows(matched(ALIKE, metadata="nowhere")) == [[0, 0], [1, 1]]


def test_nested_record_param_comms_are_both_looked_into() -> None:
    def launched(correlation: int, ts: int) -> list[dict[str, object]]:
        kernel = event("kernel", "ncclDevKernel_Generic", ts + 50, 9, 1, device=0, stream=16, correlation=correlation)
        return [event("cuda_runtime", "cudaLaunchKernelExC", ts, 1, 1, correlation=correlation), kernel]

    events = [
        event("cpu_op", "record_param_comms", 0, 40, 1, **{"Collective name": "allreduce"}),
        event("cpu_op", "record_param_comms", 5, 10, 1, **{"Collective name": "_allgather_base"}),
        *launched(1, 10),
        *launched(2, 20),
    ]
    rank = digest(decode([msgspec.json.encode({"schemaVersion": 1, "traceEvents": events})], "coalesced.json"))
    assert [rank.strings[kind] for kind in rank.collectives.kind] == ["all_gather", "all_reduce"]


def test_one_rank_alone_matches_nothing() -> None:
    found = matched("rank0 nccl [ar]", world_size=2)
    assert not len(found)
    assert found.unmatched == (1,)


def test_ranks_that_are_missing_leave_the_others_matched() -> None:
    text = """
        rank1 nccl [ar.][ar.]
        rank7 nccl [ar.][ar.]
    """
    found = matched(text, world_size=8)
    assert rows(found) == [[0, 0], [1, 1]]


def test_collectives_come_in_order_of_time() -> None:
    found = matched("""
        rank0 nccl [ag@2][ar..][ag@3][ar..]
        rank1 nccl [ag@2][ar..][ag@3][ar..]
    """)
    assert (np.diff(found.segments.min(found.arrival_ns)) > 0).all()


def impossible() -> Matched:
    return matched("""
        rank0 gpu  [a]
              nccl [ar..]
        rank1 gpu  [a]
              nccl           [ar..]
    """)


def test_a_rank_that_ends_before_another_arrives_is_no_partner() -> None:
    found = impossible()
    checked = refuse_impossible(found, np.zeros_like(found.arrival_ns), MS)
    assert (len(found), len(checked), checked.refused) == (1, 0, 1)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_the_one_rank_that_ends_apart_from_all_others_is_left_out_alone(rank: int) -> None:
    drawing = "\n".join(
        f"rank{each} gpu  [a]\n      nccl {' ' * 9 * (each == rank)}[ar..]{' ' * 9 * (each != rank)}[ar..]"
        for each in range(3)
    )
    found = matched(drawing)
    checked = refuse_impossible(found, np.zeros_like(found.arrival_ns), MS)
    assert (len(found), len(checked), checked.refused) == (2, 2, 0)
    assert checked.odd == tuple(int(each == rank) for each in range(3))
    first = int((checked.parts == 2).argmax())
    assert rows(checked)[first] == [-1 if each == rank else 0 for each in range(3)]
    assert sum(checked.unmatched) == 1


def test_clocks_are_corrected_before_a_match_is_refused() -> None:
    found = impossible()
    behind = np.array([0, 10 * MS])
    assert len(refuse_impossible(found, behind, MS)) == 1


def test_a_broadcast_may_end_early_on_its_root() -> None:
    found = matched("""
        rank0 nccl [bc..]
        rank1 nccl           [bc..]
    """)
    assert len(refuse_impossible(found, np.zeros_like(found.arrival_ns), MS)) == 1


def test_absent_ranks_are_never_refused() -> None:
    found = matched("""
        rank0 nccl [ar/pair][ar]
        rank1 nccl [ar/pair][ar]
        rank2 nccl          [ar]
    """)
    late_clocks = np.full_like(found.arrival_ns, 2 * MS)
    assert refuse_impossible(found, late_clocks, 0) is found


def test_impossible_matches_are_said() -> None:
    # No clock that was set: the next step is as far apart as those before.
    ended = job("""
        rank0 step |1                 |2                 |3                 |4
              gpu  [a................][a................][a................][a................]
              nccl  [ar..]             [ar..]             [ar..]             [ar..]
        rank1 step |1                 |2                 |3                 |4
              gpu  [a................][a................][a................][a................]
              nccl  [ar..]             [ar..]                        [ar..]  [ar..]
    """)
    assert ended.matched.refused == 1
    assert len(ended.matched) == 3


@pytest.mark.parametrize(
    ("dims", "elements"),
    [
        ("[[4, 2048]]", 8192),
        ("[[[4, 2048], [3]], []]", 8195),
        ("[]", -1),
        ("[[-4, 2]]", -1),
        ("[[9223372036854775807, 9223372036854775807]]", -1),
        ("[[true]]", 1),
        ("{}", -1),
        ("nonsense", -1),
    ],
)
def test_elements_are_counted_from_dims_that_make_sense(dims: str, elements: int) -> None:
    assert count_elements(dims) == elements


@pytest.mark.parametrize("depth", [300, 600, 900, 90_000])
def test_dims_of_any_depth_raise_nothing(depth: int) -> None:
    assert count_elements("[" * depth + "7" + "]" * depth) in (7, -1)


def test_gloo_operations_are_collectives_of_the_cpu() -> None:
    rank = digests("""
        step |1
        host [a...]
        gloo    [ar....]
    """)[0]
    assert [rank.strings[kind] for kind in rank.collectives.kind] == ["all_reduce"]
    assert rank.collectives.step.tolist() == [0]


def test_gloo_after_the_last_step_is_of_no_step() -> None:
    text = """
        step |1
        host [a...]
        gloo    [ar....]  [ar..]
    """
    rank = digests(text, last_step_ms=9)[0]
    assert rank.collectives.step.tolist() == [0, -1]


#: Two replicas of two ranks each, whose kernels name no group. Rank 0 is slow, so its pair is late at its AllReduces;
#: all four meet in those of the other stream.
UNNAMED = """
    rank0 step |1
          gpu  [a.......]    [a.......]
          nccl           [ar]          [ar]
          comm                             [ar..]
    rank1 step |1
          gpu  [a]           [a]
          nccl    [ar.......]   [ar.......]
          comm                             [ar..]
    rank2 step |1
          gpu  [a] [a]
          nccl    [ar][ar.]
          comm             [ar..................]
    rank3 step |1
          gpu  [a] [a]
          nccl    [ar][ar.]
          comm             [ar..................]
"""


def test_streams_and_ends_tell_groups_that_kernels_do_not_name() -> None:
    late = job(repeat(UNNAMED, 3), metadata="nowhere")
    members = {tuple(np.flatnonzero(row >= 0).tolist()) for row in table(late.matched, late.matched.rank)}
    assert members == {(0, 1), (2, 3), (0, 1, 2, 3)}
    assert (late.matched.unmatched, late.matched.refused) == ((0, 0, 0, 0), 0)
    wait = late.budget.of("wait").mean(axis=1) / MS
    assert wait[0] == 0
    assert wait[1:].min() > 10


def test_ranks_that_may_be_one_group_are_one() -> None:
    """Where ends do not tell: the two replicas are as fast as each other."""
    text = """
        rank# step |1
              gpu  [a..]     [a..]
              nccl      [ar]      [ar]
    """
    found = job(ranks(text, text, text, text), metadata="nowhere").matched
    assert (found.parts == 4).all()


def test_jobs_without_communication_have_no_matches() -> None:
    assert not len(
        matched("""
        rank0 step |1
              gpu  [a]
        rank1 step |1
              gpu  [a]
        """)
    )


def test_calls_that_are_far_too_many_to_realign_are_not_looked_for() -> None:
    assert can_realign(1000, 1000 + (1 << 14)) and can_realign(500_000, 500_031)
    assert not can_realign(1, 1 << 20) and not can_realign(10_000, 20_000)


def test_an_all_gather_that_opens_a_backward_pass_belongs_to_it() -> None:
    drawing = """
        rank0 step     |1                      |2
              host     [fwd]                   [fwd]
              autograd      [ag][bwd][rs]           [ag][bwd][rs]
              gpu      [fwd]    [bwd...]       [fwd]    [bwd...]
              nccl          [ag]        [rs]        [ag]        [rs]
    """
    assert digests(drawing)[0].collectives.backward.tolist() == [0, 0, 1, 1]
