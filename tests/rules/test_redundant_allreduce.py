"""Gradients that are accumulated are reduced in every micro-step."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from traces import digests, finding, in_row, lies_in_its_step, outcome, ranks

from tb_ddp_doctor.facts.needless_allreduces import repeats
from tb_ddp_doctor.job.build import build

RULE = "redundant-allreduce"
SYNCED = """
    rank# step     |1
          host     [fwd]          [fwd]        [update][sync]
          autograd      [bwd][ar]      [bwd][ar]
          gpu      [fwd..][bwd....]     [fwd..][bwd....]
          nccl                     [ar.]                [ar.]
"""
NO_SYNC = """
    rank# step     |1
          host     [fwd]          [fwd]          [update]
          autograd      [bwd]          [bwd][ar]
          gpu      [fwd..][bwd....]     [fwd..][bwd....]
          nccl                                   [ar.]
"""
PLAIN = """
    rank# step     |1
          host     [fwd]               [update]
          autograd      [bwd][ar][ar]
          gpu      [fwd..][bwd.........]
          nccl                 [ar][ar..]
"""


def test_a_repeated_allreduce_is_found_with_its_cost() -> None:
    found = finding(RULE, ranks(SYNCED, SYNCED))
    assert found.cost_ms == pytest.approx(5, rel=0.02)
    assert found.ranks == (0, 1)
    assert "each of 2 backward passes" in found.title
    assert "1 AllReduces a step, of 1 passes" in found.why
    assert "no_sync()" in found.fix


def test_what_most_ranks_repeat_is_repeated_by_all() -> None:
    """A rank whose operators nobody knows shows no backward passes, and takes part in the same AllReduces."""
    made = digests(ranks(SYNCED, SYNCED, SYNCED))
    whole = repeats(build("job", made, {}, None, ()))
    unknown = made[1].collectives
    made[1] = replace(made[1], collectives=replace(unknown, backward=np.full_like(unknown.backward, -1)))
    found = repeats(build("job", made, {}, None, ()))
    assert found.calls.tolist() == whole.calls.tolist() and found.calls.min() == 1
    assert found.passes.tolist() == whole.passes.tolist()
    assert found.exposed_ns.tolist() == whole.exposed_ns.tolist()


def test_evidence_is_the_repeated_one() -> None:
    text = ranks(SYNCED, SYNCED)
    (window,) = finding(RULE, text).evidence
    assert window.end_ns - window.start_ns == 5_000_000
    assert lies_in_its_step(window, text)


def test_accumulation_without_synchronising_is_clear() -> None:
    assert outcome(RULE, ranks(NO_SYNC, NO_SYNC)).status == "clear"


def test_buckets_of_like_size_in_one_pass_are_clear() -> None:
    assert outcome(RULE, ranks(PLAIN, PLAIN)).status == "clear"


def test_other_sizes_are_other_gradients() -> None:
    other = SYNCED.replace("[ar.]                [ar.]", "[ar@2]               [ar.]")
    assert outcome(RULE, ranks(other, other)).status == "clear"


def test_passes_that_an_optimizer_parts_are_clear() -> None:
    parted = SYNCED.replace("[fwd]          [fwd]        [update]", "[fwd]          [update][fwd][update]")
    assert outcome(RULE, ranks(parted, parted)).status == "clear"


def test_a_repeat_now_and_then_is_clear() -> None:
    text = in_row(ranks(PLAIN, PLAIN, steps=2), ranks(SYNCED, SYNCED, steps=1))
    assert outcome(RULE, text).status == "clear"
    assert finding(RULE, text, settings={"min_share": 0.3})


def test_a_hidden_repeat_costs_nothing() -> None:
    hidden = """
        rank# step     |1
              host     [fwd]          [fwd]          [update]
              autograd      [bwd][ar]      [bwd][ar]
              gpu      [fwd..][bwd....][fwd..][bwd....]
              nccl                     [ar.]           [ar.]
    """
    found = finding(RULE, ranks(hidden, hidden))
    assert (found.cost_ms, found.severity) == (0, "info")


def test_activations_are_left_alone() -> None:
    activations = """
        rank# step     |1
              host     [fwd][ar]          [fwd][ar]          [update]
              autograd          [bwd][ar]          [bwd][ar]
              gpu      [fwd.]    [bwd..]     [fwd..]   [bwd..]
              nccl           [ar]       [ar]       [ar]       [ar]
    """
    assert outcome(RULE, ranks(activations, activations)).status == "clear"


def test_without_an_optimizer_it_is_not_applicable() -> None:
    text = ranks(SYNCED.replace("[update]", "        "), SYNCED.replace("[update]", "        "))
    result = outcome(RULE, text)
    assert result.status == "not-applicable"
    assert "optimizer" in result.reason


def test_without_sizes_it_is_not_applicable() -> None:
    result = outcome(RULE, ranks(SYNCED, SYNCED), metadata="nowhere")
    assert result.status == "not-applicable"
    assert "sizes" in result.reason


def test_without_communication_it_is_not_applicable() -> None:
    text = "\n".join(line for line in ranks(SYNCED, SYNCED).splitlines() if "nccl" not in line)
    assert outcome(RULE, text).status == "not-applicable"


def test_communication_bound_does_not_claim_it_again() -> None:
    slow = """
        rank# step     |1
              host     [fwd]          [fwd]        [update]     [sync......]
              autograd      [bwd][ar]      [bwd][ar]
              gpu      [fwd..][bwd....]                [fwd..][bwd....]
              nccl                     [ar............]                [ar.]
    """
    text = ranks(slow, slow)
    assert finding(RULE, text).cost_ms > 10
    assert outcome("communication-bound", text, settings={"min_exposed": 0.05}).status == "clear"


def test_one_lost_event_of_one_rank_hides_nothing() -> None:
    """A damaged kernel is dropped, and with it an AllReduce that all other ranks show."""
    lost = SYNCED.replace("[bwd][ar]      [bwd][ar]", "[bwd][ar]      [bwd]").replace(
        "[ar.]                [ar.]", "[ar.]"
    )
    whole = in_row(ranks(SYNCED, SYNCED, SYNCED))
    damaged = in_row(ranks(SYNCED, SYNCED, SYNCED), ranks(SYNCED, SYNCED, lost))
    assert finding(RULE, damaged).cost_ms == pytest.approx(finding(RULE, whole).cost_ms, rel=0.3)
