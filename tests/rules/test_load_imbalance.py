"""A slow rank that moves from step to step."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from random_jobs import FaultyJob, Work
from traces import finding, in_row, job, lies_in_its_step, outcome, ranks

from tb_ddp_doctor import engine
from tb_ddp_doctor.engine import examine
from tb_ddp_doctor.mesh.mesh import Mesh

RULE = "load-imbalance"
LIGHT = """
    rank# step |1
          gpu  [fwd....][bwd.]
          nccl                [ar........]
"""
HEAVY = """
    rank# step |1
          gpu  [fwd........][bwd.]
          nccl                    [ar....]
"""
SLIGHTLY = """
    rank# step |1
          gpu  [fwd.....][bwd.]
          nccl                 [ar.......]
"""


def taking_turns(heavy: str = HEAVY) -> str:
    return in_row(
        ranks(heavy, LIGHT, LIGHT, steps=1),
        ranks(LIGHT, heavy, LIGHT, steps=1),
        ranks(LIGHT, LIGHT, heavy, steps=1),
    )


def test_ranks_that_take_turns_are_all_named_with_the_cost() -> None:
    found = finding(RULE, taking_turns())
    assert found.ranks == (0, 1, 2)
    assert found.steps == (1, 2, 3)
    assert found.cause == "moving"
    assert found.cost_ms == pytest.approx(4, rel=0.02)
    assert found.severity == "major"
    assert found.confidence == "high"
    assert "step 1: rank 0, by 4.0 ms, step 2: rank 1, by 4.0 ms, step 3: rank 2" in found.why


def test_a_step_that_loses_next_to_nothing_beside_another_does_not_take_turns_with_it() -> None:
    """40 ms on rank 0 in one step, and 4 on rank 1 in the next: rank 0 is slow once."""
    light = LIGHT.replace("[ar", "[ar" + "." * 36)
    heavy = HEAVY.replace("[fwd", "[fwd" + "." * 36).replace("[ar", " " * 36 + "[ar")
    usual = ranks(LIGHT, LIGHT, LIGHT, steps=1)
    text = in_row(usual, ranks(LIGHT, HEAVY, LIGHT, steps=1), ranks(heavy, light, light, steps=1), usual)
    found = finding(RULE, text)
    assert (found.ranks, found.steps, found.cause) == ((0,), (3,), "once")


def test_evidence_is_the_slowest_rank_of_each_step() -> None:
    evidence = finding(RULE, taking_turns()).evidence
    assert [(window.rank, window.step) for window in evidence[:3]] == [(0, 1), (1, 2), (2, 3)]
    assert all(lies_in_its_step(window, taking_turns()) for window in evidence)


def test_what_each_time_takes_is_told() -> None:
    assert "Each time it takes 4.0 ms." in finding(RULE, taking_turns()).why


PHASES = """
    rank# step     |1
          host     [ddp]      [sync.............]
          within   [fwd]
          autograd      [bwd]
          gpu      [fwd....][bwd....]
          nccl                       [ar........]
"""


@pytest.mark.parametrize(
    ("heavy", "phase"),
    [
        (PHASES.replace("[fwd....][bwd....]", "[fwd........][bwd....]"), "the forward pass"),
        (PHASES.replace("[fwd....][bwd....]", "[fwd....][bwd........]"), "the backward pass"),
    ],
)
def test_the_phase_that_differs_is_named(heavy: str, phase: str) -> None:
    heavy = heavy.replace("nccl                       [ar........]", "nccl                           [ar....]")
    text = in_row(*(ranks(*(heavy if rank == step else PHASES for rank in range(3)), steps=1) for step in range(3)))
    assert f"The slowest falls 4.0 ms behind in {phase}." in finding(RULE, text).why


def test_ranks_that_differ_in_loading_get_the_loader_as_fix() -> None:
    light = """
        rank# step     |1
              host     [fetch][ddp]      [sync.....]
              autograd             [bwd]
              gpu                  [bwd]
              nccl                      [ar........]
    """
    heavy = """
        rank# step     |1
              host     [fetch....][ddp]      [sync.]
              autograd                 [bwd]
              gpu                      [bwd]
              nccl                          [ar....]
    """
    text = in_row(*(ranks(*(heavy if rank == step else light for rank in range(3)), steps=1) for step in range(3)))
    found = finding(RULE, text)
    assert "The slowest falls 4.0 ms behind in data loading." in found.why
    assert "prefetch_factor" in found.fix


def test_skewed_clocks_do_not_change_the_verdict() -> None:
    skewed = finding(RULE, taking_turns(), clock_ms={1: -731.25, 2: 60_000.0})
    assert (skewed.ranks, skewed.steps) == ((0, 1, 2), (1, 2, 3))


def test_ranks_that_are_alike_are_clear() -> None:
    assert outcome(RULE, ranks(LIGHT, LIGHT, LIGHT)).status == "clear"


def test_differences_below_the_threshold_are_clear() -> None:
    assert outcome(RULE, taking_turns(SLIGHTLY)).status == "clear"
    assert finding(RULE, taking_turns(SLIGHTLY), settings={"min_cost": 0.03}).cost_ms == pytest.approx(1, rel=0.05)


def test_one_slow_rank_is_a_straggler_and_no_imbalance() -> None:
    assert outcome(RULE, ranks(LIGHT, HEAVY, LIGHT)).status == "clear"


def test_one_rank_that_is_slow_now_and_then_is_named() -> None:
    text = in_row(*(ranks(LIGHT, HEAVY if step in (1, 4) else LIGHT, LIGHT, steps=1) for step in range(6)))
    found = finding(RULE, text, settings={"min_cost": 0.04})
    assert (found.ranks, found.steps, found.cause) == ((1,), (2, 5), "recurring")
    assert found.cost_ms == pytest.approx(4 * 2 / 6, rel=0.02)
    assert found.title.startswith("Rank 1 is slow in 2 of 6 steps, and the other ranks wait for it.")
    assert "every few steps" in found.fix
    assert outcome("straggler", text).status == "clear"


def test_ranks_that_are_slow_in_the_same_steps_are_all_named() -> None:
    """Once one of them is as fast as the others, all wait for the next."""
    uneven = (HEAVY, LIGHT, HEAVY, LIGHT, LIGHT)
    text = in_row(*(ranks(*(uneven if step in (1, 4) else [LIGHT] * 5), steps=1) for step in range(6)))
    found = finding(RULE, text, settings={"min_cost": 0.04})
    assert (found.ranks, found.steps, found.cause) == ((0, 2), (2, 5), "recurring")
    assert found.title.startswith("Ranks 0 and 2 are slow in 2 of 6 steps, and the other ranks wait for them.")
    assert "Look for what ranks 0 and 2 alone do every few steps" in found.fix


def test_a_rank_that_is_slow_now_and_then_has_its_place_in_the_mesh(monkeypatch: pytest.MonkeyPatch) -> None:
    text = in_row(*(ranks(LIGHT, HEAVY if step in (1, 4) else LIGHT, LIGHT, steps=1) for step in range(6)))
    monkeypatch.setattr(Mesh, "place", lambda *_: "dp 0, tp 3")
    found = finding(RULE, text, settings={"min_cost": 0.04})
    assert found.title.startswith("Rank 1 (dp 0, tp 3) is slow in 2 of 6 steps")


def test_one_slow_step_is_chance() -> None:
    text = in_row(*(ranks(LIGHT, HEAVY if step == 1 else LIGHT, LIGHT, steps=1) for step in range(3)))
    assert outcome(RULE, text, settings={"min_cost": 0.01}).status == "clear"


def test_one_step_cannot_show_it() -> None:
    result = outcome(RULE, ranks(LIGHT, HEAVY, LIGHT, steps=1))
    assert (result.status, result.reason) == (
        "not-applicable",
        "One step cannot show whether the slow rank changes from step to step.",
    )


def test_one_rank_alone_cannot_be_compared() -> None:
    result = outcome(RULE, ranks(LIGHT), world_size=2)
    assert result.status == "not-applicable"
    assert "only one rank's trace" in result.reason


def noisy(spread: float, seed: int, *, slow: float = 0.0) -> str:
    """Four ranks and five steps of which each takes 200 ms, but for noise; rank 1 is slower by a share."""
    rng = random.Random(seed)
    work = [
        [Work(backward=round(200 * (rng.gauss(1, spread) + slow * (rank == 1)))) for _ in range(5)] for rank in range(4)
    ]
    return FaultyJob(tuple(map(tuple, work)), (4,) * 5).drawing


@pytest.mark.parametrize("seed", range(4))
def test_noise_is_no_imbalance_and_no_straggler(seed: int) -> None:
    for rule in (RULE, "straggler"):
        assert outcome(rule, noisy(0.06, seed)).status == "clear"


def test_sequences_of_any_length_are_seldom_a_straggler_or_a_slow_step() -> None:
    """By chance some rank has longer ones than the others in these five steps, and some step than the others."""
    found = Counter[str]()
    for seed in range(10):
        rng = random.Random(seed)
        work = tuple(tuple(Work(backward=rng.choice([80, 120, 200, 300, 420])) for _ in range(5)) for _ in range(8))
        examined = examine(job(FaultyJob(work, (4,) * 5).drawing))
        found.update({one.rule for one in examined.findings if one.severity != "info"})
    assert found[RULE] >= 9
    assert found["straggler"] <= 3  # in the drawing, longer sequences are the same kernels that take longer
    assert found["slow-step"] <= 2


@pytest.mark.parametrize("seed", range(4))
def test_a_straggler_stands_out_of_noise(seed: int) -> None:
    assert finding("straggler", noisy(0.03, seed, slow=0.16)).ranks == (1,)


#: Three steps of 32 ms on three ranks; in one step one rank computes 7 ms longer, and the others wait.
USUAL = """
    rank# step |1
          host [fwd][bwd][ar][sync............]
          gpu      [fwd....][bwd.]
          nccl                    [ar........]
"""
ONCE_HEAVY = """
    rank# step |1
          host [fwd][bwd][ar][sync...................]
          gpu      [fwd...........][bwd.]
          nccl                           [ar........]
"""
ONCE_LIGHT = """
    rank# step |1
          host [fwd][bwd][ar][sync...................]
          gpu      [fwd....][bwd.]
          nccl                    [ar...............]
"""


def test_one_slow_step_is_named_where_it_is_most_of_what_nothing_explains() -> None:
    """7 ms in one of three steps are 7 %: too little to tell from noise, but `unexplained` would be the verdict."""
    usual = ranks(USUAL, USUAL, USUAL, steps=1)
    text = in_row(usual, ranks(ONCE_HEAVY, ONCE_LIGHT, ONCE_LIGHT, steps=1), usual)
    assert outcome(RULE, text).status == "clear"
    diagnosis = engine.examine(job(text))
    assert diagnosis.verdict == RULE
    (found,) = (one for one in diagnosis.findings if one.rule == RULE)
    assert (found.ranks, found.steps, found.cause, found.confidence) == ((0,), (2,), "once", "low")
    assert found.cost_ms == pytest.approx(7 / 3, rel=0.05)


def test_one_slow_step_is_named_beside_what_a_rank_is_slower_in_each() -> None:
    """Nothing explains 7 %: rank 0 has 5 of them in its last step, and rank 2 has 2 in all, too little for a rule."""
    usual, slower, heavy = Work(backward=170), Work(backward=174), Work(backward=204)
    text = FaultyJob(((usual, usual, heavy), (usual,) * 3, (slower,) * 3), (4,) * 3).drawing
    assert outcome(RULE, text).status == "clear"
    assert engine.examine(job(text)).verdict == RULE


ALWAYS = """
    rank# step |1
          host [fwd][bwd][ar][sync....................................................]
          gpu      [fwd............................................][bwd.]
          nccl                                                            [ar........]
"""
WAITS = """
    rank# step |1
          host [fwd][bwd][ar][sync....................................................]
          gpu      [fwd....][bwd.]
          nccl                    [ar................................................]
"""
ONCE_SLOWER = """
    rank# step |1
          host [fwd][bwd][ar][sync....................................................]
          gpu      [fwd......................................][bwd.]
          nccl                                                      [ar..............]
"""


def test_nobody_is_said_to_wait_for_a_rank_behind_a_straggler() -> None:
    """Rank 0 is slow in step 2, and all of its lateness lies within what all ranks wait for rank 1."""
    usual = ranks(WAITS, ALWAYS, *[WAITS] * 3, steps=1)
    diagnosis = engine.examine(job(in_row(usual, ranks(ONCE_SLOWER, ALWAYS, *[WAITS] * 3, steps=1), usual)))
    assert diagnosis.verdict == "straggler"
    (found,) = (one for one in diagnosis.findings if one.rule == RULE)
    assert (found.ranks, found.steps) == ((0,), (2,))
    assert found.title == "Rank 0 is slow in 1 of 3 steps."


def test_others_are_said_to_wait_for_a_rank_at_which_they_do() -> None:
    usual = ranks(USUAL, USUAL, USUAL, steps=1)
    diagnosis = engine.examine(job(in_row(usual, ranks(ONCE_HEAVY, ONCE_LIGHT, ONCE_LIGHT, steps=1), usual)))
    (found,) = (one for one in diagnosis.findings if one.rule == RULE)
    assert found.title == "Rank 0 is slow in 1 of 3 steps, and the other ranks wait for it."


#: A step of a rank whose batch is a long sequence, and of one whose batch is a short one.
LONG = """
    rank# step |1
          host [addmm]
          gpu  [addmm....]
          nccl            [ar......]
"""
SHORT = """
    rank# step |1
          host [mm]
          gpu  [mm.....]
          nccl          [ar........]
"""


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        # 10 and 8 ms: a third of the ranks at 10 ms. The median rank would need 8.67 for an even share.
        (1250, True),
        # As many FLOP on all ranks: the kernels are slow.
        (1000, False),
        # More FLOP, and yet too few for so much longer kernels.
        (1020, False),
    ],
)
def test_batches_of_other_lengths_are_told_by_their_shapes(rows: int, said: bool) -> None:
    dims = {"mm": [[1000, 512], [512, 512]], "addmm": [[512], [rows, 512], [512, 512]]}
    text = in_row(*(ranks(*(LONG if rank == step else SHORT for rank in range(3)), steps=1) for step in range(3)))
    found = finding(RULE, text, dims=dims)
    assert found.cost_ms == pytest.approx(4 / 3 if said else 2, rel=0.07)
    assert (
        "Their sequences differ: the slowest rank of a step has 15 % more FLOP than the mean rank; "
        "batches of equal FLOP would save 1.3 ms a step." in found.why
    ) == said
    assert ("parts[rank].append" in found.fix) == said


def test_a_slow_device_is_told_from_batches_that_vary() -> None:
    """In each step some rank has a larger batch; rank 1 takes 1.5 times as long for all of its own."""
    sizes = [(1, 2, 3, 2, 1), (2, 1, 1, 3, 3), (3, 3, 2, 1, 1), (1, 1, 3, 2, 3), (2, 3, 1, 1, 2)]

    def step(n: int) -> str:
        takes = [round(8 * row[n] * (1.5 if rank == 1 else 1)) for rank, row in enumerate(sizes)]
        kernels = [f"[fwd@{64 * row[n]}".ljust(took - 1, ".") + "]" for row, took in zip(sizes, takes, strict=True)]
        ends = max(takes) + 4
        return ranks(
            *(
                f"""
            rank# step |1
                  host [fwd]
                  gpu  {kernel}
                  nccl {" " * took}{"[ar".ljust(ends - took - 1, ".")}]
                """
                for kernel, took in zip(kernels, takes, strict=True)
            ),
            steps=1,
        )

    findings = examine(job(in_row(*map(step, range(5))))).findings
    assert {(one.rule, one.ranks if one.rule == "straggler" else ()) for one in findings if one.severity != "info"} == {
        ("straggler", (1,)),
        (RULE, ()),
    }
