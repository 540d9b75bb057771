"""What is said of a job's memory: by rank and step, and what would save some of it. Sizes are GB."""

from __future__ import annotations

from pathlib import Path

import pytest
from traces import GB, job, ranks, write

from tb_ddp_doctor.cli import main
from tb_ddp_doctor.facts import Facts
from tb_ddp_doctor.facts.memory import memory
from tb_ddp_doctor.findings import Memory, MemorySaving

#: A step of 64 ms; what it allocates is drawn behind it.
TRAINS = """
    rank# step     |1
          host     [fwd................]                    [update..........]
          autograd                     [bwd...............]
          gpu      [fwd................][bwd...............][update..........]
          nccl                             [ar@1000.......]
          memory   """
#: 50 GB from before, among them parameters and buckets of 10, Adam's states of 20; 30 of activations, 10 of gradients.
USUAL = "[80of99a]             [90of99g][60of99a]         [50of99g]"
BEFORE_GB = 50


def told(*drawn: str, steps: int = 2, **options: int) -> Memory:
    """What is told of ranks that allocate so in each step."""
    found = memory(Facts(job(ranks(*(TRAINS + one for one in drawn), steps=steps), allocated_gb=BEFORE_GB, **options)))
    assert found is not None
    return found


def saving(found: Memory, name: str) -> MemorySaving:
    return next(one for one in found.savings if one.name == name)


def test_the_peak_is_that_of_the_rank_with_most() -> None:
    found = told(USUAL, USUAL.replace("80of", "95of"))
    assert (found.peak.rank, found.peak.phase) == (1, "forward")
    assert found.peak.allocated == 95 * GB == sum(found.peak.categories.values())
    assert found.reserved_but_unallocated == 4 * GB


def test_a_rank_with_more_than_its_peers_is_told_with_what_it_has_more() -> None:
    found = told(USUAL, USUAL, USUAL.replace("80of", "89of").replace("90of", "99of"))
    assert [one.excess // GB for one in found.ranks] == [0, 0, 9]
    assert [one.excess_category for one in found.ranks] == [None, None, "activations"]


def test_equal_ranks_have_no_excess() -> None:
    assert not any(one.excess for one in told(USUAL, USUAL).ranks)


def test_memory_that_grows_is_told_with_its_op() -> None:
    found = memory(Facts(job(_growing(5), allocated_gb=9)))
    assert found is not None and found.growth is not None
    assert (found.growth.bytes, found.growth.steps) == (GB, 4)
    assert [(place.op, place.bytes) for place in found.growth.places] == [("aten::fwd", GB)]


def _growing(steps: int) -> str:
    """A rank whose forward pass leaves a GB more in each step."""
    host = "".join(f"|{i + 1}".ljust(40) for i in range(steps))
    work = "".join("[fwd........]           [update...]".ljust(40) for _ in range(steps))
    backward = "".join("             [bwd.....]".ljust(40) for _ in range(steps))
    allocated = "".join(f" [{10 + i}of90]".ljust(40) for i in range(steps))
    return f"""
        rank0 step     {host}
              host     {work}
              autograd {backward}
              gpu      {work}
              memory   {allocated}
    """


def test_steady_memory_does_not_grow() -> None:
    assert told(USUAL, steps=4).growth is None


def test_as_much_larger_a_batch_fits_as_activations_leave_room() -> None:
    found = told(USUAL, device_gb=150)
    scaling = found.peak.categories["activations"] + found.peak.categories["temporary"]
    assert found.capacity == 150 * GB
    assert found.largest_batch == pytest.approx((135 * GB - 99 * GB) / scaling + 1)


def test_without_a_known_capacity_no_batch_is_told() -> None:
    assert told(USUAL).largest_batch is None


def test_zero_shares_the_states_among_the_ranks() -> None:
    found = told(USUAL, USUAL)
    categories = found.peak.categories
    state, gradients, parameters = (categories[name] for name in ("optimizer_states", "gradients", "parameters"))
    assert parameters and state
    assert saving(found, "zero_1").bytes == state // 2
    assert saving(found, "zero_2").bytes == (state + gradients) // 2
    assert saving(found, "zero_3").bytes == (state + gradients + parameters) // 2
    assert saving(found, "zero_3").cost_ms == saving(found, "zero_1").cost_ms


def test_a_rank_alone_has_nobody_to_share_with() -> None:
    assert not [one for one in told(USUAL).savings if one.name.startswith("zero")]


def test_expandable_segments_save_what_is_unallocated_at_the_peak() -> None:
    assert saving(told(USUAL), "expandable_segments").bytes == 9 * GB


def test_what_saves_next_to_nothing_is_not_listed() -> None:
    assert all(one.bytes >= 0.01 * 90 * GB for one in told(USUAL, USUAL).savings)


def test_a_trace_without_memory_events_says_what_to_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "job", ranks(TRAINS, steps=2))
    assert main(["diagnose", str(tmp_path), "--no-cache", "--memory"]) == 0
    assert "capture with profile(..., profile_memory=True)" in " ".join(capsys.readouterr().out.split())


def test_the_terminal_shows_what_is_allocated_and_what_would_save_some(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "job", ranks(TRAINS + USUAL, TRAINS + USUAL, steps=2), allocated_gb=BEFORE_GB)
    assert main(["diagnose", str(tmp_path), "--no-cache", "--memory"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "90.0 GB allocated at the peak, on rank 0 in step 1, in backward." in shown
    assert "activations 30,000.0 33 %" in shown
    assert "ZeRO stage 1" in shown
