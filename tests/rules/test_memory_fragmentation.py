from __future__ import annotations

import pytest
from traces import finding, in_row, lies_in_its_step, outcome

RULE = "memory-fragmentation"


def steps(*memory: str) -> str:
    """Steps in which the allocator does so."""
    return in_row(
        *(f"""
            rank0 step   |1
                  host   [fwd]
                  gpu    [fwd.............................]
                  memory   {drawing}
        """ for drawing in memory)
    )  # fmt: skip


STEADY = steps(*["[20of40] [38of40] [20of40]"] * 3)
GROWING = steps("[20of40] [30of41]", "[20of41] [30of42]", "[20of42] [30of43]")


def test_what_is_nearly_all_in_use_at_most_is_clear() -> None:
    ended = outcome(RULE, STEADY)
    assert ended.status == "clear"
    assert "Rank 0 reserves 40.0 GB of GPU memory, 2.0 GB more than is allocated at the peak" in ended.reason


def test_memory_that_grows_although_enough_is_free_is_fragmented() -> None:
    found = finding(RULE, GROWING)
    assert (found.cause, found.severity, found.cost_ms, found.confidence) == ("growing", "info", 0.0, "high")
    assert "reserves 43.0 GB of GPU memory and 1.0 GB more in each step" in found.title
    assert "while up to 22.0 GB were reserved but unallocated, in pieces too small to use." in found.why
    assert "Allocated memory grows too" not in found.why
    assert "expandable_segments:True" in found.fix
    (window,) = found.evidence
    assert lies_in_its_step(window, GROWING)


def test_memory_that_grows_because_more_is_used_is_not() -> None:
    more = steps("[20of40] [40of40] [41of41]", "[20of41] [41of41] [42of42]", "[20of42] [42of42] [43of43]")
    assert outcome(RULE, more).status == "clear"


def test_memory_that_is_given_back_each_step_is_left_to_allocator_churn() -> None:
    emptied = steps(*["[20of22] [21of23] [22of23] [20of22]"] * 3)
    assert outcome(RULE, emptied).status == "clear"


def test_one_step_that_takes_more_is_chance() -> None:
    assert outcome(RULE, steps("[20of40] [38of41]", "[20of41] [39of41]", "[20of41] [39of41]")).status == "clear"


def test_memory_that_even_the_peak_leaves_unused() -> None:
    found = finding(RULE, steps(*["[20of60] [40of60] [20of60]"] * 3))
    assert (found.cause, found.confidence) == ("unused", "medium")
    assert "of which 20.0 GB are unallocated even at the peak" in found.title


def test_jobs_that_hold_little_may_leave_much_of_it() -> None:
    assert outcome(RULE, steps(*["[0of2] [1of2]"] * 3)).status == "clear"


@pytest.mark.parametrize(("device_gb", "is_full"), [(41, True), (80, False), (None, False)])
def test_a_device_that_is_nearly_full(device_gb: int | None, is_full: bool) -> None:
    if not is_full:
        assert outcome(RULE, STEADY, device_gb=device_gb).status == "clear"
        return
    found = finding(RULE, STEADY, device_gb=device_gb)
    assert found.cause == "near_limit"
    assert "40.0 GB of GPU memory, which is more than 90 % of all" in found.title
    assert "Allocated at the peak: 38.0 GB (other 20.0 GB and temporary 18.0 GB)." in found.why
    assert "What saves most: Expandable segments (2.0 GB, no cost)." in found.why
    assert "num_alloc_retries" in found.fix


def test_the_worst_rank_is_named_and_the_others_listed() -> None:
    two = GROWING + "\n" + GROWING.replace("rank0", "rank1").replace("of4", "of5")
    found = finding(RULE, two)
    assert found.ranks == (0, 1)
    assert found.title.startswith("Rank 1 reserves 53.0 GB")


def test_traces_without_memory_say_how_to_record_it() -> None:
    silent = "\n".join(line for line in STEADY.splitlines() if "memory" not in line)
    ended = outcome(RULE, silent)
    assert ended.status == "not-applicable"
    assert "profile_memory=True" in ended.reason
