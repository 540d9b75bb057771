from __future__ import annotations

import re

import pytest
from test_plan_sharding import FSDP
from traces import MS, finding, job, lies_in_its_step, outcome, ranks

from tb_ddp_doctor.facts import Facts
from tb_ddp_doctor.facts.sharding import sharding
from tb_ddp_doctor.findings import Finding
from tb_ddp_doctor.planning.fact import Plans
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.sharding_wait import _fix

RULE = "sharding-wait"
#: Each all-gather runs alone, and compute waits for it.
LATE_FORWARD = """
    rank# step     |1
          host     [ag0][ag1][ag2][fwd0][fwd1][fwd2]                       [sync..............]
          autograd                                  [bwd0][rs0][bwd1][rs1]
          gpu                       [fwd0]     [fwd1]     [fwd2][bwd0.......][bwd1.......]
          nccl                 [ag0]      [ag1]      [ag2]                   [rs0]        [rs1]
"""
#: The same, with the next unit's parameters under way beside each unit's compute.
PREFETCHED = """
    rank# step     |1
          host     [ag0][fwd0][ag1][fwd1][ag2][fwd2]
          autograd                                  [bwd0][rs0][bwd1][rs1]
          gpu           [fwd0.......][fwd1.........][fwd2...............][bwd0.......][bwd1.......]
          nccl     [ag0]      [ag1]      [ag2]                                     [rs0]     [rs1]
"""
LATE_BACKWARD = """
    rank# step     |1
          host     [ag0][fwd0][fwd1]
          autograd                  [bwd0][ag1][rs0][bwd1][ag2][rs1][bwd2]
          gpu           [fwd0][fwd1][bwd0.]               [bwd1.]          [bwd2.]
          nccl     [ag0]                   [ag1..][rs0...]       [ag2.....]       [rs1]
"""


def test_all_gathers_alone_in_the_forward_pass_wait_for_prefetch() -> None:
    text = ranks(LATE_FORWARD, LATE_FORWARD)
    found = finding(RULE, text)
    assert (found.cause, found.severity) == ("forward", "minor")
    # Two of 5 ms run alone, beside 18 ms of compute that could hide them; the first has nothing to hide behind.
    assert found.cost_ms == pytest.approx(0.65 * 10, abs=0.1)
    assert "set_modules_to_forward_prefetch" in found.fix and "forward_prefetch=True" in found.fix
    (window,) = found.evidence
    assert lies_in_its_step(window, text)


#: Each all-gather but the first is launched once the unit before it computes.
NOT_PREFETCHED = """
    rank# step     |1
          host     [ag0][fwd0][ag1][fwd1][ag2][fwd2]                      [sync..................]
          autograd                                  [bwd0][rs0][bwd1][rs1]
          gpu           [fwd0.....]     [fwd1.....]     [fwd2.....][bwd0.......][bwd1.......]
          nccl     [ag0]           [ag1]           [ag2]                        [rs0]        [rs1]
"""


def removed_ms(found: Finding) -> float:
    (removed,) = (one.value for one in found.measurements if one.name == "exposed communication that the fix removes")
    return removed


def test_all_gathers_that_are_launched_late_hide_behind_the_unit_before_them() -> None:
    found = finding(RULE, ranks(NOT_PREFETCHED, NOT_PREFETCHED))
    assert found.cause == "forward"
    # Two of 5 ms, each with a unit of 11 ms before it; the first, and the last reduce-scatter, cannot hide.
    assert removed_ms(found) == pytest.approx(10)


def test_the_all_gather_that_opens_the_backward_pass_has_nothing_to_hide_behind() -> None:
    opens = """
        rank# step     |1
              host     [ag0][fwd0][ag1][fwd1]
              autograd                       [ag2][bwd1][ag3][rs1][bwd0][rs0]
              gpu            [fwd0.....][fwd1.....]     [bwd1............][bwd0.....]
              nccl      [ag0]      [ag1]           [ag2]     [ag3]        [rs1]      [rs0]
    """
    # In the first recorded step nothing tells whether the backward pass launches it.
    assert outcome(RULE, ranks(opens, opens, steps=6)).status == "clear"


def test_a_unit_hides_no_more_of_the_next_all_gather_than_it_computes() -> None:
    short = """
        rank# step     |1
              host     [ag0][fwd0][ag1][fwd1]
              autograd                       [bwd0][rs0]
              gpu           [a]           [fwd1..............][bwd0.......]
              nccl     [ag0]       [ag1..]                                 [rs0]
    """.replace("[fwd0]", "[a...]")
    drawn = job(ranks(short, short))
    found, replay = sharding(drawn), WhatIf.of(drawn).replay
    assert found and replay
    # The unit before computes for 3 of the 7 ms.
    assert (found.calls.late_ns(replay.schedule, forward=True) == 3 * MS).all()
    assert not found.calls.late_ns(replay.schedule, forward=False).any()


def test_prefetched_parameters_are_clear() -> None:
    ended = outcome(RULE, ranks(PREFETCHED, PREFETCHED))
    assert ended.status == "clear"
    assert "are exposed, and overlap would hide" in ended.reason


def test_shards_alone_in_the_backward_pass() -> None:
    found = finding(RULE, ranks(LATE_BACKWARD, LATE_BACKWARD))
    assert found.cause == "backward"
    assert "set_modules_to_backward_prefetch" in found.fix and "BACKWARD_PRE" in found.fix


def test_what_takes_longer_than_compute_is_left_to_communication_bound() -> None:
    long = """
        rank# step     |1
              host     [ag0][ag1][fwd0][fwd1]            [sync.....................]
              autograd                       [bwd0][rs0]
              gpu                 [fwd0]                           [fwd1][bwd0]
              nccl           [ag0]       [ag1....................]             [rs0]
    """
    found = finding(RULE, ranks(long, long))
    # Six and six ms of compute in the forward pass, and no more, can hide 24.
    assert found.cost_ms == pytest.approx(0.65 * 12, abs=0.1)


def test_waiting_for_a_late_rank_is_not_transfer() -> None:
    early = """
        rank# step     |1
              host     [ag0][ag1][fwd0][fwd1]
              autograd                                 [bwd0][rs0]
              gpu           [fwd0]             [fwd1]  [bwd0.....]
              nccl     [ag0]      [ag1..............]             [rs0]
    """
    late = """
        rank# step     |1
              host     [ag0][ag1][fwd0][fwd1]
              autograd                                 [bwd0][rs0]
              gpu           [fwd0............] [fwd1]  [bwd0.....]
              nccl     [ag0]                   [ag1.]             [rs0]
    """
    assert outcome(RULE, ranks(early, late)).status == "clear"


def test_groups_that_scatter_in_the_forward_pass_move_activations() -> None:
    tensor_parallel = """
        rank# step     |1
              host     [ag0/tp][rs0/tp][ag1/tp][rs1/tp][fwd0]
              autograd                                       [bwd0][rs2/tp]
              gpu                                      [fwd0........]        [bwd0.....]
              nccl     [ag0/tp][rs0/tp][ag1/tp][rs1/tp]              [rs2/tp]
    """
    ended = outcome(RULE, ranks(tensor_parallel, tensor_parallel))
    assert (ended.status, "nothing is sharded" in ended.reason) == ("clear", True)


def test_a_job_that_reduces_gradients_is_not_sharded() -> None:
    plain = """
        rank# step     |1
              host     [fwd]
              autograd      [bwd][ar]
              gpu      [fwd][bwd.....]
              nccl                    [ar]
    """
    assert "nothing is sharded" in outcome(RULE, ranks(plain, plain)).reason


def test_without_a_backward_pass_it_does_not_apply() -> None:
    text = ranks(LATE_FORWARD, LATE_FORWARD)
    silent = "\n".join(line for line in text.splitlines() if "autograd" not in line)
    ended = outcome(RULE, silent)
    assert ended.status == "not-applicable"
    assert "activities=[CPU, CUDA]" in ended.reason


@pytest.mark.parametrize(("nodes", "said"), [({0: "a", 1: "a"}, False), ({0: "a", 1: "b"}, True)])
def test_shards_within_a_node_are_advised_where_there_are_nodes(nodes: dict[int, str], said: bool) -> None:
    found = finding(RULE, ranks(LATE_FORWARD, LATE_FORWARD), nodes=nodes)
    assert ("HYBRID_SHARD" in found.fix) == said


def test_the_fix_says_what_prefetch_is_predicted_to_give() -> None:
    found = finding(RULE, ranks(FSDP, FSDP))
    said = r"all-gathers issued in time: 2\d\d\.\d ms a step \(.*\); prefetch=1: 1\d\d\.\d ms a step \(.*\)"
    assert re.search(rf"Predicted: {said}; now 24\d\.\d\.", found.fix)


def test_it_says_how_the_job_shards_and_what_its_gathers_wait_for() -> None:
    why = finding(RULE, ranks(FSDP, FSDP)).why
    assert (
        "The job shards as ZeRO stage 3 (FULL_SHARD: the backward pass gathers parameters again) among 2 ranks, in 3 "
        "units of 4.0 MB to 12 MB; forward gathers 0 units ahead, backward 0." in why
    )
    assert "4 of 5 all-gathers a step start only when the CPU launches them, with the GPU idle (76.0 ms exposed)" in why
    # Collectives of n million elements take 10 + 4 n ms: 50 of 94 ms.
    assert "Units are small: latency takes 53 % of the all-gathers." in why


def test_the_fix_says_what_each_way_to_gather_is_predicted_to_give() -> None:
    fix = finding(RULE, ranks(FSDP, FSDP)).fix
    for asked in ("all-gathers issued in time", "prefetch=1", "prefetch=2", "zero2", "units of 14.5 MiB, zero3"):
        assert re.search(rf"{re.escape(asked)}: (1[89]|2[12])\d\.\d ms a step \(", fix), asked


#: The optimizer of each rank updates its part, and sends it to the other ranks before the next step.
UPDATED_PARTS = """
    rank# step     |1
          host     [fwd0][fwd1]                      [update][ag0][ag1]     [sync.............]
          autograd             [bwd0][rs0][bwd1][rs1]
          gpu      [fwd0......][fwd1......][bwd0.......][bwd1.......]    [opt]
          nccl                                          [rs0]        [rs1]    [ag0....][ag1....]
"""


def test_parameters_that_are_gathered_after_the_update_get_no_units_to_prefetch() -> None:
    parts, units = (sharding(job(ranks(text, text))) for text in (UPDATED_PARTS, LATE_FORWARD))
    assert parts and units
    assert (parts.calls.follow_the_update, units.calls.follow_the_update) == (True, False)
    fix = _fix("forward", parts, Plans(Facts(job(ranks(UPDATED_PARTS, UPDATED_PARTS)))), False)
    assert "--overlap-param-gather" in fix and "set_modules_to_forward_prefetch" not in fix
