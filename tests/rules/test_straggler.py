"""A rank that is always slow is named, with its cause; its victims are not."""

from __future__ import annotations

import re
from typing import Any

import pytest
from job_shapes import RANKS, SLOW_RANK, drawn, staged
from test_slow_link import drawn as linked
from traces import MS, check, digests, finding, findings, in_row, job, lies_in_its_step, outcome, ranks

from tb_ddp_doctor.calibration.model import Calibration, Measure, Outlier
from tb_ddp_doctor.engine import examine
from tb_ddp_doctor.facts import Facts
from tb_ddp_doctor.facts.without_faults import whatif
from tb_ddp_doctor.findings import Finding, RuleOutcome, Severity
from tb_ddp_doctor.job.build import build
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.rules import CATALOGUE
from tb_ddp_doctor.rules.support.base import configured, run

HEALTHY = """
    rank# step |1
          gpu  [fwd....][bwd.]
          nccl                [ar........]
"""
SLOW_DEVICE = """
    rank# step |1
          gpu  [fwd........][bwd.]
          nccl                    [ar....]
"""
MORE_KERNELS = """
    rank# step |1
          gpu  [fwd....][fwd][bwd]
          nccl                    [ar....]
"""
LARGER_KERNELS = """
    rank# step |1
          gpu  [fwd@256....][bwd.]
          nccl                    [ar....]
"""
OTHER_KERNELS = """
    rank# step |1
          gpu  [one.......][other]
          nccl                    [ar....]
"""
SLOW_COPY = """
    rank# step |1
          gpu  [pinned][fwd..][bwd.]
          nccl                      [ar..]
"""
ON_TIME = """
    rank# step |1
          host [fwd]
          gpu  [fwd....][bwd.]
          nccl                [ar........]
"""
LATE = """
    rank# step |1
          host ~~~~~~~~[fwd]
          gpu          [fwd....][bwd.]
          nccl                        [ar]
"""


def found(text: str, **options: Any) -> Finding:
    return finding("straggler", text, **options)


def ended(text: str, **options: Any) -> RuleOutcome:
    return outcome("straggler", text, **options)


ONE_OF_FOUR = ranks(HEALTHY, SLOW_DEVICE, HEALTHY, HEALTHY)


def test_a_slow_rank_is_named_with_its_cost() -> None:
    result = found(ONE_OF_FOUR)
    assert result.ranks == (1,)
    assert result.cost_ms == pytest.approx(4, rel=0.02)
    assert result.steps == (1, 2, 3)
    assert result.severity == "major"
    assert result.confidence == "high"
    assert result.title == "Rank 1 is the straggler: the other ranks wait 4.0 ms of every 27.0 ms."


def test_a_device_that_becomes_slower_in_the_record_is_a_straggler_from_then_on() -> None:
    """A GPU that is throttled stays so; a rank that has more to do in some steps is load-imbalance."""
    one = (HEALTHY, SLOW_DEVICE, HEALTHY, SLOW_DEVICE, HEALTHY)
    text = in_row(*(ranks(*(one if step >= 3 else [HEALTHY] * 5), steps=1) for step in range(6)))
    result = found(text)
    assert (result.ranks, result.steps, result.cause) == ((1, 3), (4, 5, 6), "slow_device")
    assert "It is slow from step 4 on: the same kernels then take 1.27 times as long as before." in result.why
    assert outcome("load-imbalance", text).status == "clear"
    more = text.replace("[fwd........]", "[fwd@256....]")
    assert ended(more).status == "clear"
    assert finding("load-imbalance", more).ranks == (1, 3)


def test_evidence_is_the_slow_ranks_step_and_the_wait_that_it_caused() -> None:
    own, caused = found(ONE_OF_FOUR).evidence
    assert own.rank == 1
    assert caused.rank != 1 and "for rank 1" in caused.what
    assert caused.end_ns - caused.start_ns == 4 * MS
    assert all(lies_in_its_step(window, ONE_OF_FOUR) for window in (own, caused))


def test_one_of_three_ranks_is_named_beside_a_slow_first_step() -> None:
    """Its own 3 cells and the other 2 of the first step, 90 ms longer on all ranks, are most of the 9."""

    def step(more: int) -> str:
        first = "." * more
        usual = f"""
            rank# step |1
                  host [fwd][bwd]
                  gpu  [fwd....{first}][bwd...........]
                  nccl {" " * more}                       [ar........]
        """
        slow = f"""
            rank# step |1
                  host [fwd][bwd]
                  gpu  [fwd........{first}][bwd...........]
                  nccl {" " * more}                           [ar....]
        """
        return ranks(usual, usual, slow, steps=1)

    assert finding("straggler", in_row(step(90), step(0), step(0))).ranks == (2,)


def test_ranks_that_are_alike_are_clear() -> None:
    assert ended(ranks(HEALTHY, HEALTHY, HEALTHY, HEALTHY)).status == "clear"


def test_a_rank_whose_copies_are_slow_is_told_from_one_that_copies_more() -> None:
    usual = """
        rank# step |1
              gpu  [pinned][fwd..][bwd.]
              nccl                      [ar........]
    """
    slow = """
        rank# step |1
              gpu  [pinned....][fwd..][bwd.]
              nccl                          [ar....]
    """
    result = found(ranks(usual, slow, usual, usual))
    assert (result.ranks, result.cause) == ((1,), "slow_copies")
    assert "It copies 4.0 ms a step longer than the median rank: at 1.3 GB/s instead of 2.0 GB/s." in result.why
    assert "PCIe" in result.fix


def test_an_excess_below_the_threshold_is_clear() -> None:
    share = 4 / 27
    assert ended(ONE_OF_FOUR, settings={"min_excess": share * 1.02}).status == "clear"
    assert found(ONE_OF_FOUR, settings={"min_excess": share * 0.98}).ranks == (1,)


@pytest.mark.parametrize(
    ("drawing", "cause", "seen"),
    [
        (
            SLOW_DEVICE,
            "slow_device",
            "takes 1.44 times as long (the median), and fwd_kernel 13.0 ms instead of 9.0",
        ),
        (
            MORE_KERNELS,
            "more_work",
            "in 1.50 times as many kernels, mostly fwd_kernel: 2 launches a step instead of 1.",
        ),
        (LARGER_KERNELS, "more_work", "kernels with larger grids, mostly fwd_kernel: 256 blocks instead of 128."),
        (OTHER_KERNELS, "unknown", "in other kernels"),
        (SLOW_COPY, "more_copies", "16 MB instead of 0 bytes"),
    ],
)
def test_the_cause_is_what_its_budget_has_more_of(drawing: str, cause: str, seen: str) -> None:
    result = found(ranks(HEALTHY, HEALTHY, drawing, HEALTHY))
    assert result.ranks == (2,)
    assert result.cause == cause
    assert seen in result.why


@pytest.mark.parametrize(
    ("norm", "cause"),
    [
        ("96....", "more_work"),  # 13 ms
        ("72....", "slow_device"),
        # Memory binds it, and a slow clock does not hold it up.
        ("72.", "slow_device"),
    ],
)
def test_kernels_that_fill_the_gpu_have_the_same_grid_for_more_tokens(norm: str, cause: str) -> None:
    """They take 1.5 times as long. So do blocks of the others on a slow GPU, or there are hardly more."""

    def of_rank(norm: str, gemm: str) -> str:
        kernels = f"[norm@{norm}][gemm@132{gemm}]"
        return f"""
            rank# step |1
                  host [norm][gemm][ar][sync{"." * 70}]
                  gpu                  {kernels}
                  nccl                 {" " * len(kernels)}[ar{"." * (80 - len(kernels))}]
        """

    usual = of_rank("64", "." * 30)
    result = found(ranks(usual, usual, of_rank(norm, "." * 50), usual))
    assert (result.ranks, result.cause) == ((2,), cause)


def test_a_longer_record_is_not_more_work() -> None:
    """All record three steps, and rank 1 three more."""
    recorded = ranks(HEALTHY, SLOW_DEVICE, HEALTHY, HEALTHY), SLOW_DEVICE.replace("#", "1")
    result = found(in_row(recorded[0], *[recorded[1]] * 3))
    assert (result.ranks, result.cause) == ((1,), "slow_device")


FURTHER_LAUNCH = """
    rank# step |1
          gpu  [a*40][fwd....][fwd....][bwd.]
          nccl                               [ar]
"""
LONG_LOOKUP = """
    rank# step |1
          gpu  [look..............][fwd....][bwd.]
          nccl                                    [ar....]
"""
LOOKUP = "fbgemm_gpu::split_embedding_codegen_forward_unweighted_kernel<float, float, float, long, false, 128>"


def test_one_further_launch_of_a_long_kernel_is_more_work() -> None:
    """Of 42 kernels, so that there are 2 % more of them."""
    usual = FURTHER_LAUNCH.replace("[fwd....][fwd....][bwd.]", "[fwd....][bwd.]").replace(
        "                               [ar]", "                      [ar.........]"
    )
    result = found(ranks(usual, FURTHER_LAUNCH, usual))
    assert (result.ranks, result.cause) == ((1,), "more_work")
    assert "mostly fwd_kernel: 2 launches a step instead of 1" in result.why


def test_longer_lookups_in_an_embedding_table_are_no_slow_device() -> None:
    usual = (
        LONG_LOOKUP.replace("[look..............]", "[look]")
        .replace("[ar....]", "[ar..................]")
        .replace("                                    [ar", "                      [ar")
    )
    result = found(ranks(usual, LONG_LOOKUP, usual), kernels={"look": LOOKUP})
    assert (result.ranks, result.cause) == ((1,), "more_work")
    assert "all of it in lookups of embedding tables" in result.why
    assert "EmbeddingShardingPlanner" in result.fix


@pytest.mark.parametrize(
    ("late", "cause", "seen"),
    [
        ("[load..]", "input", "waits 8.0 ms a step longer for its DataLoader"),
        ("[sync..]", "host", "while its CPU is in a sync call"),
        ("[slow..]", "host", "while its CPU is inside ops and launch calls"),
        ("[alloc.]", "host", "while its CPU allocates device memory"),
        ("        ", "host", "while its CPU is outside any op"),
    ],
)
def test_the_cause_of_an_idle_device_is_what_its_host_does(late: str, cause: str, seen: str) -> None:
    result = found(ranks(ON_TIME, ON_TIME, LATE.replace("~~~~~~~~", late)))
    assert (result.ranks, result.cause) == ((2,), cause)
    assert seen in result.why
    own = result.evidence[0]
    assert own.rank == 2 and "GPU idle" in own.what
    assert own.end_ns - own.start_ns == pytest.approx(8 * MS, abs=0.1 * MS)


@pytest.mark.parametrize(("total", "slow"), [(4, (0, 2)), (8, (1, 6)), (5, (3, 4))])
def test_two_stragglers_are_both_named(total: int, slow: tuple[int, int]) -> None:
    drawn = [SLOW_DEVICE if rank in slow else HEALTHY for rank in range(total)]
    result = found(ranks(*drawn))
    assert result.ranks == slow
    assert result.cost_ms == pytest.approx(4, rel=0.02)


SLOWER_STILL = """
    rank# step |1
          host ~~~~~~~~~~~~[fwd]
          gpu              [fwd....][bwd.]
          nccl                            [ar]
"""
FAST = """
    rank# step |1
          host [fwd]
          gpu  [fwd....][bwd.]
          nccl                [ar............]
"""
THROTTLED = """
    rank# step |1
          host [fwd]
          gpu  [fwd........][bwd.]
          nccl                    [ar........]
"""


def test_ranks_with_different_causes_are_findings_of_their_own() -> None:
    text = ranks(FAST, FAST, THROTTLED, FAST, SLOWER_STILL.replace("~", " "), FAST)
    result = findings("straggler", text)
    assert isinstance(result, tuple)
    assert [(found.ranks, found.cause) for found in result] == [((4,), "host"), ((2,), "slow_device")]
    assert result[0].title == "Rank 4 is the straggler: the other ranks wait 12.0 ms of every 31.0 ms."
    assert result[1].title == "Rank 2 is the next straggler, 4.0 ms a step slower than the median rank."


def slow_in(place: int | None, by: int = 11) -> str:
    """A rank with three collectives of all ranks in a step, slow before one of them or before none."""
    gpu = comm = ""
    for number, name in enumerate("abc"):
        late = by if number == place else 0
        gpu += f"[{name}..{'.' * late}]".ljust(by + 10)
        comm += " " * (5 + late) + f"[ar{'.' * (by - late)}]".ljust(by - late + 5)
    return f"""
        rank# step |1
              gpu  {gpu}
              nccl {comm}
    """


def test_what_others_wait_is_divided_among_the_ranks_that_they_wait_for() -> None:
    # The three have different causes: slower kernels, larger ones, other ones.
    larger, other = slow_in(1).replace("[b...", "[b@512..."), slow_in(2).replace("[c..", "[other..")
    result = findings("straggler", ranks(*[slow_in(None)] * 5, slow_in(0), larger, other.replace("[other", "[others")))
    assert isinstance(result, tuple) and len(result) == 3
    said = [found.title for found in result]
    waited = [float(re.search(r"the other ranks wait ([0-9.]+) ms", title)[1]) for title in said]
    assert waited == pytest.approx([11, 11, 11], abs=1.1)
    assert sum(title.count("is the straggler") for title in said) == 1


#: Its CPU works on while its GPU waits for a rank that is later still.
HIDDEN = """
    rank# step |1
          host [fwd][ar]                                          [after][sync...........]
          gpu  [fwd....]
          nccl          [ar..............................................................]
"""
WAITS = """
    rank# step |1
          host [fwd][ar][sync............................................................]
          gpu  [fwd....]
          nccl          [ar..............................................................]
"""
LATEST = """
    rank# step |1
          host [fwd]                                                      [ar][sync......]
          gpu  [fwd....]
          nccl                                                                [ar........]
"""


def test_a_rank_that_waits_as_long_as_the_others_is_no_straggler_yet() -> None:
    result = findings("straggler", ranks(WAITS, WAITS, LATEST, HIDDEN, WAITS, steps=4))
    assert isinstance(result, tuple)
    late, hidden = result
    assert (late.ranks, late.confidence) == ((2,), "high")
    assert late.title == "Rank 2 is the straggler: the other ranks wait 54.0 ms of every 75.0 ms."
    assert (hidden.ranks, hidden.confidence) == ((3,), "medium")
    assert hidden.title == (
        "Rank 3 is no straggler yet: it waits 54.0 ms of every 75.0 ms for others. Once these are fixed, it is 37.0 ms "
        "a step slower than the median rank."
    )
    assert "Its CPU takes" in hidden.why and "does not idle for that as long as it waits for others." in hidden.why


def test_in_the_replay_a_rank_without_a_cause_for_which_nobody_waits_is_no_alarm() -> None:
    other = """
        rank# step |1
              host [one][ar][sync............................................................]
              gpu  [one....................]
              nccl                          [ar..............................................]
    """
    for text, at_most in (
        (ranks(WAITS, WAITS, LATEST, other, WAITS, steps=4), Severity.INFO),
        (ranks(HEALTHY, HEALTHY, OTHER_KERNELS, HEALTHY), Severity.CRITICAL),
    ):
        facts = Facts(job(text))
        played = facts.replaced(whatif, facts.get(whatif).after(Change()))
        for given, expected in ((facts, Severity.CRITICAL), (played, at_most)):
            faults = run(CATALOGUE["straggler"], given)[1].faults
            assert [fault.at_most for fault in faults if fault.cause == "unknown"] == [expected]


def test_a_rank_that_waits_is_one_finding_with_its_slow_node() -> None:
    nodes = {0: "a", 1: "a", 2: "b", 3: "b", 4: "c"}
    result = found(ranks(WAITS, WAITS, LATEST, HIDDEN, WAITS, steps=4), nodes=nodes)
    assert result.title == "Ranks 2 and 3 (all of b) are stragglers: the other ranks wait 54.0 ms of every 75.0 ms."
    assert "Rank 3 waits 54.0 ms of every 75.0 ms now." in result.why


def late_by_far_and_by_little(little: int = 4) -> str:
    """Eight ranks: the host of rank 2 is 24 ms late in each step, those of ranks 3 and 4 by so many."""
    usual, slightly, late = (
        f"""
        rank# step |1
              host {" " * by}[fwd]
              gpu  {" " * by}[fwd....][bwd.]
              nccl {" " * by}              [ar{"." * (24 - by)}]
        """
        for by in (0, little, 24)
    )
    return ranks(usual, usual, late, slightly, slightly, usual, usual, usual)


def test_a_rank_that_is_late_by_far_less_is_a_finding_of_its_own() -> None:
    result = findings("straggler", late_by_far_and_by_little())
    assert isinstance(result, tuple)
    assert [(found.ranks, found.cause) for found in result] == [((2,), "host"), ((3, 4), "host")]
    assert result[0].title.startswith("Rank 2 is the straggler")
    assert result[1].title.startswith("Ranks 3 and 4 are the next stragglers, 4.0 ms a step slower")
    assert result[0].cost_ms > 4 * result[1].cost_ms


def test_a_node_with_one_cause_is_one_finding_whatever_the_ratio_of_its_ranks() -> None:
    result = found(late_by_far_and_by_little(), nodes={2: "b", 3: "b", 4: "b"})
    assert (result.ranks, result.cause) == ((2, 3, 4), "host")
    assert result.title.startswith("Ranks 2-4 (all of b) are stragglers")


def test_two_ranks_of_which_one_is_late_by_far_less_are_no_slow_node() -> None:
    result = findings("straggler", late_by_far_and_by_little(8), nodes={2: "b", 3: "b"})
    assert isinstance(result, tuple)
    assert [found.ranks for found in result] == [(2,), (3, 4)]


def test_causes_share_what_fixing_all_of_them_gives() -> None:
    """Fixing the host alone saves 8 of the 12 ms, fixing the device alone nothing."""
    text = ranks(FAST, FAST, THROTTLED, FAST, SLOWER_STILL.replace("~", " "), FAST)
    result = findings("straggler", text)
    assert isinstance(result, tuple)
    host, device = (found.cost_ms for found in result)
    assert host + device == pytest.approx(12, rel=0.02)
    assert host / device == pytest.approx(12 / 4, rel=0.05)


NODES = {0: "a", 1: "a", 2: "b", 3: "b", 4: "c", 5: "c"}


def test_a_whole_slow_node_is_named() -> None:
    text = ranks(HEALTHY, HEALTHY, SLOW_DEVICE, SLOW_DEVICE, HEALTHY, HEALTHY)
    result = found(text, nodes=NODES)
    assert result.ranks == (2, 3)
    assert result.title.startswith("Ranks 2 and 3 (all of b) are stragglers")
    assert "look first at what they share" in result.fix


def test_a_slow_node_and_a_slow_rank_beside_it_are_named_together() -> None:
    text = ranks(HEALTHY, HEALTHY, SLOW_DEVICE, SLOW_DEVICE, HEALTHY, HEALTHY, HEALTHY, HEALTHY, SLOW_DEVICE)
    result = found(text, nodes=NODES | {6: "d", 7: "d", 8: "d"})
    assert result.title.startswith("Ranks 2 and 3 (all of b) and rank 8 are stragglers")


def test_several_slow_nodes_of_a_rack_are_one_finding_named_for_the_rack() -> None:
    nodes = {0: "rack1-n0", 1: "rack1-n0", 2: "rack2-n0", 3: "rack2-n0", 4: "rack2-n1", 5: "rack2-n1"}
    nodes |= {6: "rack1-n1", 7: "rack1-n1", 8: "rack1-n2", 9: "rack1-n2"}
    slow, well = [SLOW_DEVICE] * 4, [HEALTHY] * 2
    result = found(ranks(*well, *slow, *well, *well), nodes=nodes)
    assert result.ranks == (2, 3, 4, 5)
    assert result.title.startswith("Ranks 2-5 (all 2 nodes of rack2) are stragglers")


def test_a_node_with_a_rank_that_is_well_is_not_named() -> None:
    nodes = {rank: "a" if rank < 3 else "b" if rank < 6 else "c" for rank in range(9)}
    result = found(ranks(*[HEALTHY] * 3, SLOW_DEVICE, SLOW_DEVICE, HEALTHY, *[HEALTHY] * 3), nodes=nodes)
    assert result.title.startswith("Ranks 3 and 4 are stragglers")
    assert "what they share" not in result.fix


def test_a_rank_that_shows_no_cause_has_none_where_a_rank_of_its_node_is_well() -> None:
    nodes = {rank: "a" if rank < 3 else "b" if rank < 6 else "c" for rank in range(9)}
    text = ranks(*[HEALTHY] * 3, SLOW_DEVICE, OTHER_KERNELS, HEALTHY, *[HEALTHY] * 3)
    result = findings("straggler", text, nodes=nodes)
    assert isinstance(result, tuple)
    assert {found.cause: found.ranks for found in result} == {"slow_device": (3,), "unknown": (4,)}


def test_the_same_place_on_every_node_is_named() -> None:
    nodes = {rank: "abc"[rank // 3] for rank in range(9)}
    text = ranks(*[HEALTHY, SLOW_DEVICE, HEALTHY] * 3)
    assert found(text, nodes=nodes).title.startswith("Ranks 1, 4 and 7 (local rank 1 of all 3 nodes) are stragglers")


def test_a_rank_that_shows_no_cause_has_its_slow_nodes() -> None:
    result = found(ranks(HEALTHY, HEALTHY, SLOW_DEVICE, OTHER_KERNELS, HEALTHY, HEALTHY), nodes=NODES)
    assert (result.ranks, result.cause) == ((2, 3), "slow_device")
    assert "Rank 2: it computes" in result.why


def test_a_rank_that_shows_no_cause_has_none_beside_a_rank_of_another_node() -> None:
    result = findings("straggler", ranks(HEALTHY, HEALTHY, SLOW_DEVICE, HEALTHY, OTHER_KERNELS, HEALTHY), nodes=NODES)
    assert isinstance(result, tuple)
    assert {found.cause: found.ranks for found in result} == {"slow_device": (2,), "unknown": (4,)}


def test_part_of_a_node_is_no_slow_node() -> None:
    result = found(ranks(HEALTHY, HEALTHY, SLOW_DEVICE, HEALTHY, HEALTHY, HEALTHY), nodes=NODES)
    assert result.title.startswith("Rank 2 is the straggler")
    assert "what they share" not in result.fix


def test_of_several_the_slowest_is_described() -> None:
    slower = """
        rank# step |1
              gpu  [fwd.........][bwd.]
              nccl                     [ar...]
    """
    why = found(ranks(HEALTHY, HEALTHY, HEALTHY, SLOW_DEVICE, slower)).why
    assert "Rank 4: it computes 5.0 ms a step longer" in why


def test_the_phase_in_which_it_falls_behind_is_named() -> None:
    fast = """
        rank# step     |1
              host     [ddp]
              within   [fwd]
              autograd      [bwd]
              gpu      [fwd....][bwd....]
              nccl                       [ar........]
    """
    slow = """
        rank# step     |1
              host     [ddp]
              within   [fwd]
              autograd      [bwd]
              gpu      [fwd....][bwd........]
              nccl                           [ar....]
    """
    assert "It falls 4.0 ms behind in the backward pass." in found(ranks(fast, fast, slow)).why


def test_ranks_behind_a_slow_link_are_slow_links_and_no_stragglers() -> None:
    assert finding("slow-link", linked(10, 10, 25)).cost_ms == pytest.approx(15, rel=0.05)
    assert findings("straggler", linked(10, 10, 25)) == ()


def test_of_two_ranks_the_slower_is_the_straggler() -> None:
    result = found(ranks(HEALTHY, SLOW_DEVICE))
    assert (result.ranks, result.cause) == ((1,), "slow_device")


def test_waiting_for_a_rank_without_a_trace_makes_no_straggler() -> None:
    """Rank 2 receives from rank 0: without the trace of that one, nobody knows how long it waits for it."""

    def accused(missing: int, *, has_straggler: bool) -> list[tuple[int, ...]]:
        each = digests(drawn(staged, has_straggler=has_straggler))
        del each[missing]
        diagnosis = examine(build("drawn", each, {rank: f"host{rank}" for rank in each}, RANKS))
        return [finding.ranks for finding in diagnosis.findings if finding.rule == "straggler"]

    assert not accused(0, has_straggler=False)
    assert accused(3, has_straggler=True) == [(SLOW_RANK,)]


@pytest.mark.parametrize(
    "rule", ["no-overlap", "communication-bound", "launch-bound", "host-stall", "dataloader-stall"]
)
def test_victims_are_never_accused(rule: str) -> None:
    victim = """
        rank# step     |1
              host     [fwd]
              autograd      [bwd][ar]
              gpu      [fwd..][bwd..]
              nccl                   [ar....................]
    """
    slow = """
        rank# step     |1
              host     [fwd]
              autograd                      [bwd][ar]
              gpu      [fwd..................][bwd..........]
              nccl                                   [ar....]
    """
    text = ranks(victim, victim, slow, victim)
    assert found(text).ranks == (2,)
    assert not isinstance(check(rule, text), Finding)


def test_a_slow_rank_that_moves_is_no_straggler() -> None:
    text = in_row(
        ranks(SLOW_DEVICE, HEALTHY, HEALTHY, steps=1),
        ranks(HEALTHY, SLOW_DEVICE, HEALTHY, steps=1),
        ranks(HEALTHY, HEALTHY, SLOW_DEVICE, steps=1),
    )
    assert ended(text).status == "clear"


def test_the_stretches_that_the_evidence_is_a_part_of_are_counted() -> None:
    late = LATE.replace("~", " ")
    result = found(ranks(ON_TIME, ON_TIME, late))
    counted = next(one for one in result.measurements if one.count is not None)
    assert counted.name == "stretches of GPU idle, CPU outside any op (each over 0.05 % of its step)"
    assert (counted.ranks, counted.steps, counted.count) == ((2,), (1, 2, 3), 3)
    assert counted.value == pytest.approx(3 * 8, abs=1)


FAST_KERNELS = """
    rank# step |1
          host [fwd][bwd][ar][sync..................]
          gpu  [fwd@256..][bwd@64]
          nccl                    [ar...............]
"""
SLOW_KERNELS = """
    rank# step |1
          host [fwd][bwd][ar][sync..................]
          gpu  [fwd@256..............][bwd@64......]
          nccl                                      [ar]
"""


def test_most_devices_may_be_slow_at_the_same_kernels() -> None:
    result = found(ranks(FAST_KERNELS, SLOW_KERNELS, SLOW_KERNELS, FAST_KERNELS, SLOW_KERNELS))
    assert (result.ranks, result.cause) == ((1, 2, 4), "slow_device")
    assert result.cost_ms == pytest.approx(15, abs=1)


def test_a_minority_with_smaller_kernels_has_less_to_do() -> None:
    smaller = FAST_KERNELS.replace("@256", "@128")
    result = check("straggler", ranks(smaller, SLOW_KERNELS, SLOW_KERNELS, smaller, SLOW_KERNELS))
    assert not isinstance(result, Finding)


def _own(*cells: int) -> str:
    """A step in which each rank computes for so many cells, and waits for the slowest one in an AllReduce."""
    drawn = (
        f"""
        rank# step |1
              host [fwd][ar]
              gpu  [fwd{"." * (own - 5)}]
              nccl {" " * own}[ar{"." * (40 - own)}]
        """
        for own in cells
    )
    return ranks(*drawn, steps=1)


def test_one_fast_step_of_one_rank_makes_no_stragglers_of_most_others() -> None:
    """Two steps in which all ranks differ by as much as that one does; its kernels are the others'."""
    assert ended(in_row(_own(30, 31, 32, 33), _own(33, 23, 31, 30))).status == "clear"
    steady = found(in_row(_own(30, 24, 30, 31), _own(30, 24, 31, 30)))
    assert steady.ranks == (0, 2, 3)


def test_steps_in_which_most_ranks_are_slow_together_are_no_noise() -> None:
    """Two of three ranks compute for longer in two of three steps, by the same; the third one does not vary."""
    together = found(in_row(_own(32, 32, 24), _own(32, 32, 24), _own(24, 24, 24)))
    assert together.ranks == (0, 1)


def test_a_rank_that_is_slow_in_half_of_the_steps_is_no_straggler() -> None:
    text = in_row(
        *(ranks(HEALTHY, SLOW_DEVICE if step % 2 else HEALTHY, HEALTHY, steps=1) for step in range(4)),
    )
    assert ended(text).status == "clear"


def test_what_held_the_host_before_the_first_step_is_not_recorded() -> None:
    text = in_row(ranks(HEALTHY, HEALTHY, HEALTHY, steps=1), ranks(HEALTHY, SLOW_DEVICE, HEALTHY, steps=2))
    assert found(text).ranks == (1,)


def test_a_rank_that_is_slow_in_most_steps_is_a_straggler_in_those() -> None:
    text = in_row(ranks(HEALTHY, HEALTHY, HEALTHY, steps=1), ranks(HEALTHY, SLOW_DEVICE, HEALTHY, steps=3))
    result = found(text)
    assert result.steps == (2, 3, 4)
    assert result.cost_ms == pytest.approx(3, rel=0.02)


#: Rank 0 does something after each step; of the first step's lateness its record knows nothing.
LOGS = """
    rank0 step          |1                     |2                     |3                     |4
          host          [fwd][ar][sync]        [fwd][ar][sync]        [fwd][ar][sync]        [fwd][ar][sync]
          gpu           [fwd....]              [fwd....]              [fwd....]              [fwd....]
          nccl                   [ar..]                 [ar..]                 [ar..]                 [ar..]
"""
AWAITS = """
    rank# step  |1                     |2                     |3                     |4
          host  [fwd][ar][sync........][fwd][ar][sync........][fwd][ar][sync........][fwd][ar][sync........]
          gpu   [fwd....]              [fwd....]              [fwd....]              [fwd....]
          nccl           [ar..........]         [ar..........]         [ar..........]         [ar..........]
"""


def test_what_a_rank_does_between_steps_is_seen_although_the_first_step_lacks_it() -> None:
    text = ranks(LOGS, AWAITS, AWAITS, steps=1)
    assert job(text).steps.tolist() == [2, 3, 4]
    result = found(text)
    assert (result.ranks, result.cause) == ((0,), "host")
    assert result.cost_ms == pytest.approx(8, rel=0.03)


def test_skewed_clocks_do_not_change_the_verdict() -> None:
    straight, skewed = found(ONE_OF_FOUR), found(ONE_OF_FOUR, clock_ms={0: 5.0, 1: -731.25, 3: 60_000.0})
    assert (skewed.ranks, skewed.cause, skewed.steps) == (straight.ranks, straight.cause, straight.steps)
    assert skewed.cost_ms == pytest.approx(straight.cost_ms, rel=0.001)


def test_one_step_is_enough_but_lowers_the_confidence() -> None:
    result = found(ranks(HEALTHY, SLOW_DEVICE, HEALTHY, steps=1))
    assert (result.ranks, result.steps) == ((1,), (1,))
    assert result.confidence == "medium"
    assert "few steps were traced" in result.why


def test_without_steps_the_confidence_is_lower() -> None:
    text = "\n".join(line for line in ranks(HEALTHY, SLOW_DEVICE, HEALTHY).splitlines() if "|" not in line)
    result = found(text)
    assert result.confidence == "medium"
    assert "no ProfilerSteps" in result.why


def test_one_rank_alone_cannot_be_compared() -> None:
    result = ended(ranks(HEALTHY), world_size=4)
    assert result.status == "not-applicable"
    assert "only one rank's trace" in result.reason


def test_without_matched_collectives_nobodys_waiting_is_known() -> None:
    alone = """
        rank# step |1
              gpu  [fwd......]
    """
    result = ended(ranks(alone, alone))
    assert result.status == "not-applicable"
    assert "No collective could be matched" in result.reason


def test_cpus_may_straggle_too() -> None:
    fast = """
        rank# step |1
              host [fwd......]
              gloo            [ar........]
    """
    slow = """
        rank# step |1
              host [fwd..........]
              gloo                [ar....]
    """
    result = found(ranks(fast, slow, fast))
    assert result.ranks == (1,)
    assert result.cost_ms == pytest.approx(4, rel=0.02)


def test_the_fix_names_the_process_of_the_slow_rank() -> None:
    fix = found(ranks(ON_TIME, ON_TIME, LATE.replace("~", " "))).fix
    assert "py-spy dump --pid 102   # rank 2, on host2" in fix


#: Each of two ranks is late in one step.
TAKING_TURNS = """
    rank0 step |1                       |2
          gpu  [fwd........][bwd.]       [fwd....][bwd.]
          nccl                    [ar...]               [ar.......]
    rank1 step |1                       |2
          gpu  [fwd....][bwd.]           [fwd........][bwd.]
          nccl                [ar.......]                   [ar...]
"""


@pytest.mark.parametrize("min_steps", [0.0, 0.5, 0.75])
def test_ranks_that_take_turns_are_no_stragglers(min_steps: float) -> None:
    """Whatever the user calls persistent."""
    rule = configured(CATALOGUE["straggler"], {"min_excess": 0.0, "min_steps": min_steps})
    assert run(rule, Facts(job(TAKING_TURNS)))[0].status == "clear"


@pytest.mark.parametrize("pid", ["1; rm -rf ~", "$(reboot)", "12\nreboot", "\u0661\u0662", "-1", ""])
def test_a_hostile_process_name_never_reaches_the_command(pid: str) -> None:
    fix = found(ranks(ON_TIME, ON_TIME, LATE.replace("~", " ")), pids={2: pid}).fix
    assert "--pid <pid of the rank> " in fix
    assert not pid or pid not in fix


@pytest.mark.parametrize("node", ["$(reboot)", "a\nreboot", "a; reboot", "`reboot`"])
def test_a_hostile_node_never_reaches_the_command(node: str) -> None:
    text = ranks(ON_TIME, ON_TIME, LATE.replace("~", " "))
    result = found(text, nodes={2: node})
    assert "reboot" not in result.fix
    assert "py-spy dump --pid 102   # rank 2\n" in result.fix


@pytest.mark.parametrize("grid", ["[\u00b2, 1, 1]", "[" + "9" * 5000 + "]", "nonsense", "[-1]", "[1e3]", '"128"'])
def test_a_grid_that_is_no_grid_is_no_reason_to_fail(grid: str) -> None:
    assert found(ONE_OF_FOUR, grid=grid).ranks == (1,)


def test_stacks_tell_what_the_slow_ranks_host_does() -> None:
    usual = """
        rank# step |1
              host [fwd]
              gpu  [fwd....]
              nccl          [ar........]
    """
    stalled = """
        rank# step |1
              host        [fwd]
              gpu         [fwd....]
              nccl                 [ar.]
              python [report]
              inner   [save]
    """
    found = finding("straggler", ranks(usual, stalled, usual))
    assert (found.ranks, found.cause) == ((1,), "checkpoint")
    assert "in saving a checkpoint, for example in save (torch/serialization.py:944), called by report" in found.why
    silent = "\n".join(stalled.splitlines()[:-3])
    assert "It spends" not in finding("straggler", ranks(usual, silent, usual)).why


def checked(*outliers: Outlier, world_size: int = 4) -> Calibration:
    gemm = Measure(
        name="GEMM float32",
        unit="TFLOPS",
        more_is_better=True,
        values=(10.0,) * world_size,
        spreads=(0.0,) * world_size,
    )
    return Calibration(source="check", world_size=world_size, measures=(gemm,), outliers=outliers)


def test_what_the_check_measured_of_the_rank_is_cited() -> None:
    text = ranks(HEALTHY, HEALTHY, SLOW_DEVICE, HEALTHY)
    slow = Outlier(
        ranks=(2,),
        node="host2",
        measure="GEMM float32",
        value=5.0,
        median=10.0,
        unit="TFLOPS",
        worse=0.5,
        sentence="Rank 2 (host2): GEMM float32 5.0 TFLOPS, 50 % below the median of 10.0.",
    )
    assert f"without the job: {slow.sentence}" in found(text, calibration=checked(slow)).why
    assert "nothing slow of it without the job (GEMM float32)" in found(text, calibration=checked()).why
    for other in (None, checked(slow, world_size=8)):
        assert "without the job" not in found(text, calibration=other).why
