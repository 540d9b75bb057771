"""Every nanosecond of a step has one owner, and waits are blamed on the last rank to arrive."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from random_traces import OF_JOBS, TRACES, joined
from traces import MS, job, repeat

from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.digest.model import RankDigest, RankOwner
from tb_ddp_doctor.findings import OWNERS
from tb_ddp_doctor.trace.model import RankTrace


def owners(text: str, rank: int = 0, step: int = 0, **options: object) -> dict[str, float]:
    """What owns how much of one rank's step, ms, without what owns nothing; calls of a microsecond are left out."""
    row = job(text, **options).budget.owner_ns[rank, step] / MS
    return {owner: round(ms, 1) for owner, ms in zip(OWNERS, row.tolist(), strict=True) if ms >= 0.05}


def test_kernels_are_compute() -> None:
    assert owners("""
        step |1
        gpu  [a....]
    """) == {"compute": 7}


def test_a_copy_alone_is_copy() -> None:
    assert owners("""
        step |1
        gpu  [a....][pinned..]
    """) == {"compute": 7, "copy": 10}


def test_compute_owns_before_communication() -> None:
    assert owners("""
        step |1
        gpu  [a........]
        nccl     [ar.......]
    """) == {"compute": 11, "transfer": 4}


def test_a_copy_owns_before_communication() -> None:
    assert owners("""
        step |1
        gpu  [pinned...]
        nccl     [ar.......]
    """) == {"copy": 11, "transfer": 4}


def test_idle_in_the_loader_is_input() -> None:
    assert owners("""
        step |1
        host [load....][fwd...]
        gpu            [fwd...]
    """) == {"input": 10, "compute": 8}


def test_loading_beside_compute_owns_nothing() -> None:
    assert owners("""
        step |1
        host [fwd][load......]
        gpu  [fwd............]
    """) == {"compute": 17}


def test_idle_in_a_synchronising_call_is_sync() -> None:
    assert owners("""
        step |1
        host [sync....][fwd...]
        gpu            [fwd...]
    """) == {"sync": 10, "compute": 8}


def test_idle_in_an_allocation_is_alloc() -> None:
    assert owners("""
        step |1
        host [alloc...][fwd...]
        gpu            [fwd...]
    """) == {"alloc": 10, "compute": 8}


def test_idle_in_an_operation_is_dispatch() -> None:
    assert owners("""
        step |1
        host [slow....][fwd...]
        gpu            [fwd...]
    """) == {"dispatch": 10, "compute": 8}


def test_idle_in_an_autograd_operation_is_dispatch() -> None:
    assert owners("""
        step     |1
        autograd [grad....]
        host               [fwd...]
        gpu                [fwd...]
    """) == {"dispatch": 10, "compute": 8}


def test_idle_in_no_operation_is_host() -> None:
    assert owners("""
        step |1
        host           [fwd...]
        gpu            [fwd...]
    """) == {"host": 10, "compute": 8}


def test_a_blocking_copy_is_sync_where_the_device_idles() -> None:
    assert owners("""
        step |1
        host [pageable]          [fwd]
        gpu         [pageable]   [fwd]
    """) == {"sync": 7, "copy": 10, "host": 3, "compute": 5}


def test_the_loader_owns_before_what_it_calls() -> None:
    assert owners("""
        step |1
        host [load....][fwd...]
        autograd [slow]
        gpu            [fwd...]
    """) == {"input": 10, "compute": 8}


ONE_LATE = """
    rank0 step |1
          gpu  [work....]
          nccl           [ar......]
    rank1 step |1
          gpu  [work........]
          nccl               [ar..]
    rank2 step |1
          gpu  [work..]
          nccl         [ar........]
"""


def test_communication_is_wait_until_the_last_rank_arrives() -> None:
    assert owners(ONE_LATE, rank=0) == {"compute": 10, "wait": 4, "transfer": 6}
    assert owners(ONE_LATE, rank=1) == {"compute": 14, "transfer": 6}
    assert owners(ONE_LATE, rank=2) == {"compute": 8, "wait": 6, "transfer": 6}


def test_waits_are_blamed_on_the_last_to_arrive() -> None:
    waiting = job(ONE_LATE).waiting
    assert waiting.last.tolist() == [1]
    assert (waiting.exposed_ns / MS).tolist() == [4, 0, 6]


def test_waiting_beside_compute_is_no_wait() -> None:
    text = """
        rank0 step |1
              gpu  [work........]
              nccl     [ar......]
        rank1 step |1
              gpu  [work....]
              nccl           [ar]
    """
    assert owners(text) == {"compute": 14}


def test_a_collective_without_a_partner_is_transfer() -> None:
    assert owners("""
        rank0 step |1
              gpu  [work]
              nccl       [ar..][ag..]
        rank1 step |1
              gpu  [work]
              nccl       [ar..]
    """) == {"compute": 6, "transfer": 12}


def test_waiting_beside_a_transfer_is_transfer() -> None:
    late = """
        rank0 step |1
              gpu  [a]
              nccl    [ar/x........]
        rank1 step |1
              gpu  [a]
              nccl        [ar/x....]
    """
    moving = late.replace("gpu  [a]", "gpu  [a]\n              comm [ag/y.......]")
    assert owners(late)["wait"] == 4
    assert owners(moving) == {"compute": 3, "transfer": 14}


def test_a_rank_alone_waits_for_nobody_that_is_known() -> None:
    text = """
        rank0 step |1
              gpu  [work]
              nccl       [ar......]
    """
    assert owners(text, world_size=4) == {"compute": 6, "transfer": 10}


def test_cpus_compute_in_operations_and_communicate_in_gloo() -> None:
    text = """
        rank0 step |1
              host [work....][load..]
              gloo           [ar......]
        rank1 step |1
              host [work........]
              gloo               [ar..]
    """
    assert owners(text, rank=0) == {"compute": 10, "wait": 4, "transfer": 6}
    assert owners(text, rank=1) == {"compute": 14, "transfer": 6}


def test_idle_cpus_are_in_their_loader_or_in_nothing() -> None:
    assert owners("""
        step |1
        host [work][load....]  [more]
    """) == {"compute": 12, "input": 10, "host": 2}


@pytest.mark.parametrize("metadata", ["host", "kernel", "nowhere"])
def test_the_budget_needs_no_metadata(metadata: str) -> None:
    assert owners(ONE_LATE, metadata=metadata) == {"compute": 10, "wait": 4, "transfer": 6}


@OF_JOBS
@given(TRACES)
def test_the_owners_of_any_ranks_steps_sum_to_their_windows(random: RankTrace) -> None:
    found = digest(random)
    steps, work = found.steps, found.work
    assert (work.owner_ns >= 0).all()
    assert work.owner_ns.sum(axis=1).tolist() == (steps.end_ns - steps.start_ns).tolist()


@OF_JOBS
@given(TRACES)
def test_the_windows_of_any_ranks_steps_tile(random: RankTrace) -> None:
    steps = digest(random).steps
    assert (steps.end_ns > steps.start_ns).all()
    assert (steps.start_ns[1:] == steps.end_ns[:-1]).all()


@OF_JOBS
@given(TRACES)
def test_the_kept_pieces_lie_in_their_steps(random: RankTrace) -> None:
    found = digest(random)
    steps, pieces = found.steps, found.pieces
    assert (pieces.start_ns >= steps.start_ns[pieces.step]).all()
    assert (pieces.end_ns <= steps.end_ns[pieces.step]).all()
    chosen = pieces.owner == RankOwner.COMMUNICATION
    kept = np.zeros(len(steps), np.int64)
    np.add.at(kept, pieces.step[chosen], (pieces.end_ns - pieces.start_ns)[chosen])
    assert kept.tolist() == found.work.owner_ns[:, RankOwner.COMMUNICATION].tolist()


@OF_JOBS
@given(st.lists(TRACES.map(digest), min_size=1, max_size=4))
def test_the_budget_of_any_job_sums_to_the_nanosecond(ranks: list[RankDigest]) -> None:
    found = joined(ranks)
    if found:
        assert (found.budget.owner_ns >= 0).all()
        assert (found.budget.owner_ns.sum(axis=2) == found.budget.window_ns).all()


@OF_JOBS
@given(st.lists(TRACES.map(digest), min_size=2, max_size=3))
def test_wait_and_transfer_are_the_exposed_communication(ranks: list[RankDigest]) -> None:
    found = joined(ranks)
    if found:
        split = found.budget.of("wait") + found.budget.of("transfer")
        exposed = found.work(lambda work: work.owner_ns)[:, :, RankOwner.COMMUNICATION]
        assert (split == exposed).all()


@OF_JOBS
@given(TRACES, st.integers(1, 10**18))
def test_the_budget_does_not_depend_on_when_it_was(random: RankTrace, epoch: int) -> None:
    events = random.events
    later = replace(random, events=replace(events, start_ns=events.start_ns + epoch))
    assert digest(later).work.owner_ns.tolist() == digest(random).work.owner_ns.tolist()


def test_a_real_epoch_and_four_ranks_sum_too() -> None:
    found = job(repeat(ONE_LATE, 5), clock_ms={1: 3.7, 2: -12.345678})
    assert (found.budget.owner_ns.sum(axis=2) == found.budget.window_ns).all()
