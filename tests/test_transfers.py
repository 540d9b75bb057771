"""How long data moves, with all waiting taken out."""

from __future__ import annotations

import pytest
from traces import MS, job

from tb_ddp_doctor.facts.transfers import Transfers, transfers


def of(text: str, **options: object) -> Transfers:
    return transfers(job(text, **options))


ONE_LATE = """
    rank0 step |1
          gpu  [work....]
          nccl           [ar......]
    rank1 step |1
          gpu  [work........]
          nccl               [ar..]
"""


def test_waiting_is_no_transfer() -> None:
    found = of(ONE_LATE)
    assert (found.total_ns / MS).tolist() == [[6], [6]]
    assert (found.allreduce_exposed_ns / MS).tolist() == [[6], [6]]


def test_transfer_beside_compute_is_hidden() -> None:
    found = of("""
        rank0 step |1
              gpu  [work....]
              nccl    [ar.........]
        rank1 step |1
              gpu  [work....]
              nccl    [ar.........]
    """)
    assert (found.allreduce_ns / MS).tolist() == [[13], [13]]
    assert (found.allreduce_exposed_ns / MS).tolist() == [[6], [6]]


def test_other_collectives_are_no_allreduce() -> None:
    found = of("""
        rank0 step |1
              gpu  [work]
              nccl       [ag..][ar..]
        rank1 step |1
              gpu  [work]
              nccl       [ag..][ar..]
    """)
    assert (found.total_ns / MS).tolist() == [[12], [12]]
    assert (found.allreduce_ns / MS).tolist() == [[6], [6]]
    assert found.allreduces == 1


def test_the_largest_bucket_is_known_by_its_bytes() -> None:
    found = of("""
        rank0 step |1
              gpu  [work]
              nccl       [ar@9.][ar@1...............]
        rank1 step |1
              gpu  [work]
              nccl       [ar@9.][ar@1...............]
    """)
    assert (found.allreduces, found.allreduce_bytes) == (2, 40_000_000)
    assert found.largest_share == pytest.approx(0.9)
    assert found.dtypes == ("Float",)


def test_without_bytes_the_largest_bucket_is_the_longest() -> None:
    text = """
        rank0 step |1
              gpu  [work]
              nccl       [ar][ar........]
        rank1 step |1
              gpu  [work]
              nccl       [ar][ar........]
    """
    found = of(text, metadata="nowhere")
    assert found.allreduce_bytes == 0
    assert found.largest_share == pytest.approx(0.75)
    assert found.dtypes == ()


def test_transfers_count_where_they_run_and_not_where_they_are_launched() -> None:
    found = of("""
        rank0 step |1   |2
              host [a]  [ar]
              gpu  [a........][b..............]
              nccl      [ar....]
        rank1 step |1   |2
              host [a]  [ar]
              gpu  [a........][b..............]
              nccl      [ar....]
    """)
    assert (found.total_ns / MS).tolist() == [[6, 2], [6, 2]]


def test_without_communication_nothing_moves() -> None:
    found = of("""
        rank0 step |1
              gpu  [work]
        rank1 step |1
              gpu  [work]
    """)
    assert not found.total_ns.any()
    assert (found.allreduces, found.largest_share) == (0, 0)


def test_a_call_without_a_launch_does_not_hide_the_bytes_of_the_others() -> None:
    found = of("""
        rank0 step |1
              host     [ar]
              gpu  [work....]
              nccl [?ar]  [ar.]
        rank1 step |1
              host     [ar]
              gpu  [work....]
              nccl [?ar]  [ar.]
    """)
    assert found.allreduce_bytes == 4_000_000
    assert found.allreduces == 1
