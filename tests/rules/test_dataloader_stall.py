"""The devices wait for the DataLoader."""

from __future__ import annotations

import pytest
from traces import MS, finding, in_row, job, lies_in_its_step, outcome, ranks, step_ms

from tb_ddp_doctor import engine

RULE = "dataloader-stall"
STALLED = """
    rank# step |1
          host [load....][fwd]
          gpu            [fwd......]
          nccl                      [ar..]
"""
HIDDEN = """
    rank# step |1
          host [fwd][load....]
          gpu  [fwd..............]
          nccl                    [ar....]
"""
HALF_HIDDEN = """
    rank# step |1
          host [load....][fwd]
          gpu  [?old]    [fwd......]
          nccl                      [ar..]
"""
LOADED = """
    rank# step |1
          host [fwd]
          gpu  [fwd......]
          nccl            [ar............]
"""


def test_waiting_for_the_loader_is_found_with_its_cost() -> None:
    found = finding(RULE, ranks(STALLED, STALLED))
    assert found.ranks == (0, 1)
    assert found.steps == (1, 2, 3)
    assert found.cost_ms == pytest.approx(10, rel=0.02)
    assert found.severity == "critical"
    assert found.confidence == "high"


def test_a_loader_in_the_training_process_is_named() -> None:
    found = finding(RULE, ranks(STALLED, STALLED))
    assert found.cause == "single_process"
    assert "num_workers=0" in found.why
    assert "num_workers=4" in found.fix and "pin_memory=True" in found.fix


FETCHING = STALLED.replace("[load....]", "[fetch...]")
FETCHED = """
    rank# step |1
          host [fetch][fwd]
          gpu         [fwd......]
          nccl                   [ar..]
"""
READY = """
    rank# step |1
          host          [fwd]
          gpu           [fwd......]
          nccl                     [ar..]
"""


def test_workers_that_every_step_waits_for_are_too_few() -> None:
    found = finding(RULE, ranks(FETCHING, FETCHING))
    assert found.cause == "too_few_workers"
    assert "worker processes, but too few: every step waits" in found.why
    assert "twice today's" in found.fix


def drawn(*steps: str) -> str:
    return in_row(*(ranks(step, step, steps=1) for step in steps))


def test_steps_that_wait_differently_long_are_no_late_batches() -> None:
    assert finding(RULE, drawn(FETCHING, FETCHED, FETCHING, FETCHED)).cause == "too_few_workers"


def test_workers_at_one_pace_deliver_together_and_are_too_few() -> None:
    """Four workers that are all busy: the batches of one round come together, and the first of them is waited for."""
    found = finding(RULE, drawn(*(FETCHING, READY, READY, READY) * 3))
    assert found.cause == "too_few_workers"
    assert "3 of 12 steps wait up to 10.0 ms for the batch, the other steps 0 ms" in found.why
    assert "looks the same" not in found.why


def test_one_late_batch_in_a_few_steps_is_told_with_a_doubt() -> None:
    found = finding(RULE, drawn(READY, FETCHING, READY))
    assert found.cause == "too_few_workers"
    assert "1 of 3 steps waits up to 10.0 ms" in found.why and "a single late batch looks the same" in found.why


@pytest.mark.parametrize(
    "late",
    [(9,), (1, 3, 5, 7, 9, 18)],
    ids=["seldom", "unevenly"],
)
def test_batches_that_are_late_seldom_or_unevenly_are_of_slow_workers(late: tuple[int, ...]) -> None:
    text = drawn(*(FETCHING if step in late else READY for step in range(20)))
    found = finding(RULE, text)
    assert found.cause == "slow_workers"
    assert f"single batches are late: {len(late)} of 20 steps wait" in found.why
    assert "prefetch_factor=8" in found.fix and "persistent_workers" in found.fix


def test_how_regular_waiting_must_be_can_be_set() -> None:
    """Of 10, 7, 10 and 7 ms, 7 come in every step."""
    text = drawn(FETCHING, FETCHED, FETCHING, FETCHED)
    regular = 4 * 7 / 34
    assert "every step waits" in finding(RULE, text, settings={"min_regular": regular * 0.98}).why
    assert "2 of 4 steps wait" in finding(RULE, text, settings={"min_regular": regular * 1.02}).why


def test_how_far_apart_late_batches_may_be_can_be_set() -> None:
    text = drawn(*(FETCHING, READY, READY, READY) * 3)
    assert finding(RULE, text, settings={"max_apart": 4}).cause == "too_few_workers"
    assert finding(RULE, text, settings={"max_apart": 3}).cause == "slow_workers"


def test_handing_over_batches_is_no_waiting_for_workers() -> None:
    handed = """
        rank# step |1
              host [fetch...][fwd]
              gpu  [?old...] [fwd......]
              nccl                      [ar..]
    """
    assert finding(RULE, ranks(handed, handed, steps=1), settings={"handing_over": 0.9}).cost_ms == pytest.approx(
        1, rel=0.01
    )
    result = outcome(RULE, ranks(handed, handed, steps=1))
    assert (result.status, result.reason) == (
        "clear",
        "No step waits for its batch: handing over batches takes 1.0 ms a step.",
    )


def test_evidence_is_the_wait() -> None:
    text = ranks(STALLED, STALLED)
    for window in finding(RULE, text).evidence:
        assert window.end_ns - window.start_ns == 10 * MS
        assert lies_in_its_step(window, text)


def in_turn(rank: int, begin: int) -> str:
    """Steps of 46 ms from `begin` on. All load for 40 ms; who is first waits in its AllReduce while it loads.

    host  [load......................][fwd]       [load......................][fwd]
    gpu   ...]                         [fwd][ar........................]       [fwd][ar...
    """
    lanes = dict.fromkeys(("step", "host", "gpu", "nccl"), "")

    def draw(lane: str, at: int, text: str) -> None:
        lanes[lane] = f"{lanes[lane]:<{at}}{text}"

    for step in range(4):
        at = begin + 46 * step
        draw("step", at, f"|{step + 1}")
        draw("host", at, f"[load{'.' * 34}][fwd]")
        draw("gpu", at + 41, "[fwd.....]")
        draw("nccl", at + 51, f"[ar{'.' * (30 - begin)}..]")
    return "\n".join(f"rank{rank} {lane} {drawing}" for lane, drawing in lanes.items())


def test_gpus_that_wait_for_other_ranks_loaders_wait_for_the_loader() -> None:
    """Two of three ranks wait 1 ms for their own batches, and for the third one's, which come 30 ms later."""
    text = "\n".join((in_turn(0, 0), in_turn(1, 0), in_turn(2, 30)))
    found = finding(RULE, text)
    assert found.ranks == (0, 1, 2)
    assert found.title.startswith("The GPUs wait for the DataLoader 40.0 ms of every ")
    assert "loading takes 40.0 ms a step. " in found.why
    assert found.cost_ms > 20


def test_loading_that_hides_is_clear() -> None:
    result = outcome(RULE, ranks(HIDDEN, HIDDEN))
    assert result.status == "clear"
    assert "is hidden behind GPU work" in result.reason


def test_only_what_is_exposed_costs() -> None:
    assert finding(RULE, ranks(HALF_HIDDEN, HALF_HIDDEN, steps=1)).cost_ms == pytest.approx(4, rel=0.02)


def test_a_wait_below_the_threshold_is_clear() -> None:
    share = 10 / step_ms(ranks(STALLED, STALLED))
    assert outcome(RULE, ranks(STALLED, STALLED), settings={"min_share": share * 1.02}).status == "clear"
    assert finding(RULE, ranks(STALLED, STALLED), settings={"min_share": share * 0.98}).ranks == (0, 1)


@pytest.mark.parametrize("fast", [1, 2, 3])
def test_one_rank_that_waits_is_a_straggler(fast: int) -> None:
    text = ranks(*[LOADED] * fast, STALLED)
    straggler = finding("straggler", text)
    assert (straggler.ranks, straggler.cause) == ((fast,), "input")
    result = outcome(RULE, text)
    assert result.status == "clear"
    assert "Only some ranks wait" in result.reason


def test_where_most_ranks_wait_they_are_named_and_no_stragglers() -> None:
    text = ranks(STALLED, LOADED, STALLED, STALLED, steps=4)
    found = finding(RULE, text)
    assert found.ranks == (0, 2, 3)
    assert found.title.startswith("Ranks 0, 2 and 3 wait for the DataLoader")
    assert found.cost_ms == pytest.approx(10, rel=0.02)
    assert outcome("straggler", text).status == "clear"


def test_without_a_loader_it_is_not_applicable() -> None:
    result = outcome(RULE, ranks(LOADED, LOADED))
    assert result.status == "not-applicable"
    assert "No DataLoader appears" in result.reason


def test_one_rank_alone_is_enough() -> None:
    assert finding(RULE, ranks(STALLED), world_size=2).ranks == (0,)


def test_cpus_wait_for_it_too() -> None:
    text = """
        rank# step |1
              host [load....][fwd......]
    """
    assert finding(RULE, ranks(text)).cost_ms == pytest.approx(10, rel=0.02)


def test_a_wait_is_charged_before_launches_that_take_longer() -> None:
    """Without any launching the step would be 20 ms shorter, whether it waits for its loader or not."""
    text = ranks(
        *[
            """
        rank# step |1
              host [load....][a.......][b.......][c.......]
              gpu            [a]       [b]       [c.......]
              nccl                                         [ar]
    """
        ]
        * 2
    )
    costs = {one.rule: one.cost_ms for one in engine.examine(job(text)).findings}
    assert costs["launch-bound"] < finding("launch-bound", text).alone_ms
    assert costs[RULE] == pytest.approx(finding(RULE, text).alone_ms) == pytest.approx(10, rel=0.02)
