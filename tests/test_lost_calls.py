"""Ranks whose records have a call more or less than others: who is slow is still said, or said to be unsure."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from traces import finding, in_row, job, ranks

from tb_ddp_doctor import engine
from tb_ddp_doctor.findings import Diagnosis
from tb_ddp_doctor.job.lost_calls import lost_calls_ns

#: Layers of compute, each with an AllReduce after it: with one of 12 lost, a rank's record still counts as complete.
LAYERS, COMPUTE, TRANSFER, PAUSE = 12, 40, 8, 60
ALL = -1


def block(name: str, ms: int) -> str:
    return f"[{name}".ljust(ms - 1, ".") + "]"


def step(
    slow: str = "", lost: Mapping[int, int] | None = None, more: Mapping[int, int] | None = None, size: int = 4
) -> str:
    """One step, in which rank 1's CPU ("host") or GPU ("device") is slow, or nothing is.

    `lost` and `more` are the layers, by rank, whose AllReduce the rank's record lacks, and after which it has one more
    within a group of its own; of `ALL` layers it lacks them.
    """
    lost, more = lost or {}, more or {}
    lanes = [{"step": "|1", "host": "", "within": "", "gpu": "", "nccl": ""} for _ in range(size)]
    at = [5 + PAUSE * (slow == "host" and rank == 1) for rank in range(size)]
    for rank, lane in enumerate(lanes):
        lane["host"] = " " * (at[rank] - 5) + "[fwd]"
        lane["within"] = " " * (at[rank] - 5) + "[update]"
    for layer in range(LAYERS):
        takes = [COMPUTE + 8 * (slow == "device" and rank == 1) for rank in range(size)]
        done = [begin + its for begin, its in zip(at, takes, strict=True)]
        end = max(done) + TRANSFER
        for rank, lane in enumerate(lanes):
            lane["gpu"] = lane["gpu"].ljust(at[rank]) + block("layer", takes[rank])
            if lost.get(rank) not in (layer, ALL):
                lane["nccl"] = lane["nccl"].ljust(done[rank]) + block(f"ar@{layer + 1}", end - done[rank])
            at[rank] = end
            if more.get(rank) == layer:
                lane["nccl"] += "[ar/own]"
                at[rank] += len("[ar/own]")
    for lane in lanes:
        lane["host"] += block("sync", max(at) - len(lane["host"]))
    return "\n".join(f"rank{rank} {name} {lane[name]}" for rank, lane in enumerate(lanes) for name in lane)


def examined(*steps: str) -> Diagnosis:
    return engine.examine(job(in_row(*steps)))


def sure(diagnosis: Diagnosis) -> set[tuple[str, tuple[int, ...]]]:
    """The findings above info that are more than a guess, and their ranks."""
    return {(one.rule, one.ranks) for one in diagnosis.findings if one.severity != "info" and one.confidence != "low"}


@pytest.mark.parametrize("slow", ["host", "device"])
@pytest.mark.parametrize("layer", [0, 5])
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("how", ["lost", "more"])
def test_a_call_more_or_less_in_every_step_accuses_no_other_rank_for_sure(
    slow: str, layer: int, rank: int, how: str
) -> None:
    diagnosis = examined(*[step(slow, **{how: {rank: layer}})] * 3)
    assert diagnosis.verdict == "straggler"
    assert sure(diagnosis) <= {("straggler", (1,))}
    assert 1 in diagnosis.findings[0].ranks


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("layer", [0, 5])
def test_the_slow_rank_is_named_for_sure_where_only_one_step_has_lost_a_call(rank: int, layer: int) -> None:
    assert sure(examined(step("host"), step("host", lost={rank: layer}), step("host"))) == {("straggler", (1,))}


@pytest.mark.parametrize("rank", [0, 1])
def test_a_lost_call_makes_no_rank_of_a_healthy_job_a_sure_straggler(rank: int) -> None:
    assert not sure(examined(*[step(lost={rank: 0})] * 3))


def test_two_ranks_of_which_one_has_lost_a_call() -> None:
    for rank in (0, 1):
        diagnosis = examined(*[step("host", lost={rank: 0}, size=2)] * 3)
        assert diagnosis.verdict != "healthy" and not sure(diagnosis)


@pytest.mark.parametrize("slow", ["host", "device"])
def test_where_all_calls_of_the_slow_rank_are_lost_nobody_is_sure_that_it_is_the_network(slow: str) -> None:
    diagnosis = examined(*[step(slow, lost={1: ALL})] * 3)
    assert diagnosis.missing_ranks == (1,)
    assert diagnosis.verdict != "healthy"
    assert {rule for rule, _ in sure(diagnosis)} <= {"missing-straggler"}
    if slow == "device":
        assert "Rank 1, which is left out since its record lacks collectives, computes 96.0 ms" in diagnosis.headline


def test_exposed_communication_beside_ranks_without_a_trace_may_be_straggler_wait() -> None:
    bound = """
        rank# step |1
              host [fwd]
              gpu  [fwd..]
              nccl        [ar........................]
    """
    said = finding("communication-bound", ranks(bound, bound), world_size=4).headline
    assert said.startswith("Exposed communication, or straggler wait for ranks without a usable trace, costs")


def test_lost_calls_last_as_long_as_other_ranks_are_in_them() -> None:
    # The others arrive when rank 1 pauses, and transfer with it.
    assert lost_calls_ns(job(step("host", lost={0: 0}))) == pytest.approx([(PAUSE + TRANSFER) * 1e6, 0, 0, 0])
    assert not lost_calls_ns(job(step("host", more={0: 0}))).any()
