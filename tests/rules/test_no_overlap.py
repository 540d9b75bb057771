"""AllReduce after backward instead of beside it."""

from __future__ import annotations

import pytest
from traces import MS, finding, lies_in_its_step, outcome, ranks, step_ms

RULE = "no-overlap"
AFTER = """
    rank# step     |1
          host     [fwd]          [sync.........................]
          autograd      [bwd][ar]
          gpu      [fwd......][bwd..............]
          nccl                                   [ar............]
"""
BESIDE = """
    rank# step     |1
          host     [fwd]
          autograd      [bwd][ar]
          gpu      [fwd......][bwd..............]
          nccl                     [ar..........]
"""
#: The last 2 of 16 ms have nothing to hide behind.
WITH_A_TAIL = """
    rank# step     |1
          host     [fwd]          [sync...........]
          autograd      [bwd][ar]
          gpu      [fwd......][bwd..............]
          nccl                     [ar............]
"""
LATE_BUCKETS = """
    rank# step     |1
          host     [fwd]
          autograd      [bwd][ar][ar][ar]
          gpu      [fwd......][bwd..............]
          nccl                                   [ar..][ar..][ar]
"""
BY_HAND = """
    rank# step     |1
          host     [fwd]         [ar][ar][ar]
          autograd      [bwd]
          gpu      [fwd......][bwd..............]
          nccl                                   [ar..][ar..][ar]
"""
SEARCHED = """
    rank# step     |1
          host     [fw][walk]
          autograd           [bwd][ar][ar][ar]
          gpu      [fw............][bwd..............]
          nccl                                        [ar..][ar..][ar]
"""
#: Two buckets of 80 MB, of two gradients of 40 MB each. The second one is full when backward is over.
FEW_BUCKETS = """
rank# step     |1
      host     [fwd]
      autograd      [a][grad@10][b][grad@10.......][c][grad@10][d][grad@10.......]
      again                                  [ar1]                          [ar2]
      gpu      [fwd.........][a.............][b...............][c...................][d...................]
      nccl                                                     [ar1@20...]                                 [ar2@20...]
"""
SHORT_BACKWARD = """
    rank# step     |1
          host     [fwd]
          autograd      [bwd][ar][ar][ar]
          gpu      [fwd......][bwd]
          nccl                     [ar........][ar........][ar........]
"""
ACTIVATIONS = """
    rank# step     |1
          host     [fwd][ar]
          autograd           [bwd][ar]
          gpu      [fwd]                 [bwd..............]
          nccl          [ar............]                    [ar............]
"""
NO_BACKWARD = """
    rank# step     |1
          host     [fwd]
          gpu      [fwd......][bwd..............]
          nccl                                   [ar............]
"""
NO_ALLREDUCE = """
    rank# step     |1
          host     [fwd]
          autograd      [bwd]
          gpu      [fwd......][bwd..............]
          nccl                                   [ag............]
"""


def test_allreduce_after_backward_is_found_with_what_overlap_would_hide() -> None:
    found = finding(RULE, ranks(AFTER, AFTER))
    assert found.ranks == (0, 1)
    assert found.cost_ms == pytest.approx(0.65 * 16, rel=0.02)
    assert found.severity == "critical"
    assert found.confidence == "high"


def test_one_bucket_is_named_with_its_size() -> None:
    found = finding(RULE, ranks(AFTER, AFTER))
    assert found.cause == "one_bucket"
    assert "The gradients of 4.0 MB go in one bucket" in found.why
    assert "bucket_cap_mb=1," in found.fix and "gradient_as_bucket_view=True" in found.fix


def test_late_buckets_are_named_with_their_number() -> None:
    found = finding(RULE, ranks(LATE_BUCKETS, LATE_BUCKETS))
    assert found.cause == "late_buckets"
    assert "in 3 AllReduces a step" in found.why


def test_most_gradients_in_one_bucket_are_told() -> None:
    text = LATE_BUCKETS.replace("[ar..][ar..][ar]", "[ar@9........][ar]").replace("[bwd][ar][ar][ar]", "[bwd][ar][ar]")
    found = finding(RULE, ranks(text, text))
    assert found.cause == "one_bucket"
    assert "Of the gradients of 40 MB, 90 % go in one bucket" in found.why


def test_gradients_that_are_reduced_after_backward_by_hand_are_told() -> None:
    found = finding(RULE, ranks(BY_HAND, BY_HAND))
    assert found.cause == "after_backward"
    assert "3 AllReduces a step, and the backward pass launches none of them" in found.why
    assert found.fix.startswith("Let the backward pass send gradients")


def test_gradients_of_one_compiled_graph_are_ready_together() -> None:
    compiled = """
        rank# step     |1
              host     [fwd]
              autograd      [bwd][grad@1][grad@1][grad@1][ar][ar][ar]
              gpu      [fwd......][bwd............................]
              nccl                                                 [ar..][ar..][ar]
    """
    found = finding(RULE, ranks(compiled, compiled))
    assert found.cause == "ready_at_end"
    assert "3 AllReduces a step, and are ready together, when backward has ended" in found.why
    assert "torch.compile(DistributedDataParallel(" in found.fix and "bucket_cap_mb" not in found.fix


def test_gradients_that_become_ready_layer_by_layer_are_not_of_one_graph() -> None:
    layers = """
        rank# step     |1
              host     [fwd]
              autograd      [b0][grad@1][b1][grad@1][b2][grad@1][ar][ar][ar]
              gpu      [fwd......][b0.......][b1......][b2........]
              nccl                                                 [ar..][ar..][ar]
    """
    assert finding(RULE, ranks(layers, layers)).cause == "late_buckets"


def test_a_search_for_unused_parameters_is_told() -> None:
    found = finding(RULE, ranks(SEARCHED, SEARCHED))
    assert found.cause == "unused_search"
    assert found.fix.startswith("Turn the search for unused parameters off")


def test_where_gradients_accumulate_only_the_passes_that_send_can_hide_it() -> None:
    """Half of the backward passes send nothing: 3 ms are hidden of the 10 that one takes, not of 20."""
    accumulated = """
        rank# step     |1
              host     [fwd]     [fwd]
              autograd      [bwd]     [bwd][ar]
              gpu      [fwd.][bwd.....][fwd.][bwd.....]
              nccl                                  [ar.............]
    """
    assert outcome(RULE, ranks(accumulated, accumulated)).status == "clear"


def test_what_slow_links_take_longer_is_slow_links() -> None:
    def after(group: int, length: int) -> str:
        sent = f"[ar/g{group}@8{'.' * (length - 9)}]"
        return f"""
            rank# step     |1
                  host     [fwd]
                  autograd      [bwd]
                  gpu      [fwd......][bwd...................]
                  nccl                                        {sent}[ar{"." * (30 - length)}]
        """

    pairs = ranks(*(after(group, length) for group, length in enumerate((10, 10, 30)) for _ in range(2)))
    assert finding("slow-link", pairs).cost_ms == pytest.approx(20, rel=0.02)
    assert finding(RULE, pairs).cost_ms == pytest.approx(0.65 * (10 + 4), rel=0.05)


def test_a_large_last_bucket_costs_what_one_of_its_largest_gradient_would_not() -> None:
    found = finding(RULE, ranks(FEW_BUCKETS, FEW_BUCKETS))
    assert (found.cause, found.ranks) == ("few_buckets", (0, 1))
    assert found.cost_ms == pytest.approx(11 / 2, rel=0.01)
    assert "It has 80 MB, and is full only when backward is over." in found.why
    assert "bucket_cap_mb=" in found.fix


def test_a_last_bucket_of_one_gradient_cannot_be_smaller() -> None:
    one = FEW_BUCKETS.replace("[c][grad@10]", "[c]         ")
    assert outcome(RULE, ranks(one, one)).status == "clear"


def test_a_last_bucket_of_the_usual_size_is_clear() -> None:
    small = FEW_BUCKETS.replace("@10", "@3.").replace("@20", "@6.")
    assert outcome(RULE, ranks(small, small)).status == "clear"


def test_a_last_bucket_that_exposes_nothing_costs_nothing() -> None:
    """Other compute hides it all: there is nothing to divide a saving by."""
    hidden = FEW_BUCKETS.replace("[d...................]", "[d.................................]")
    assert outcome(RULE, ranks(hidden, hidden), settings={"min_cost": 0.0}).status == "clear"


def test_a_backward_pass_too_short_to_hide_anything_is_not_its_fault() -> None:
    result = outcome(RULE, ranks(SHORT_BACKWARD, SHORT_BACKWARD))
    assert result.status == "clear"
    assert "too short to hide 36.0 ms of AllReduce" in result.reason
    assert finding(RULE, ranks(SHORT_BACKWARD, SHORT_BACKWARD), settings={"min_backward": 5 / 36 * 0.99})
    assert finding("communication-bound", ranks(SHORT_BACKWARD, SHORT_BACKWARD))


def test_activations_are_no_gradients() -> None:
    """Tensor-parallel layers reduce in both passes, and have to wait for it."""
    assert outcome(RULE, ranks(ACTIVATIONS, ACTIVATIONS)).reason == "There is no AllReduce."


def test_evidence_is_the_exposed_transfer() -> None:
    text = ranks(AFTER, AFTER)
    (window,) = finding(RULE, text).evidence
    assert window.end_ns - window.start_ns == 16 * MS
    assert lies_in_its_step(window, text)


def test_allreduce_beside_backward_is_clear() -> None:
    assert outcome(RULE, ranks(BESIDE, BESIDE)).status == "clear"


def test_hiding_a_little_more_than_the_threshold_is_clear() -> None:
    text = ranks(WITH_A_TAIL, WITH_A_TAIL)
    hidden = 14 / 16
    assert outcome(RULE, text, settings={"max_hidden": hidden * 0.98, "achievable": 1}).status == "clear"
    assert finding(RULE, text, settings={"max_hidden": hidden * 1.02, "achievable": 1}).cost_ms == pytest.approx(
        2, rel=0.01
    )


def test_a_saving_below_the_threshold_is_clear() -> None:
    share = 0.65 * 16 / step_ms(ranks(AFTER, AFTER))
    assert outcome(RULE, ranks(AFTER, AFTER), settings={"min_cost": share * 1.02}).status == "clear"
    assert finding(RULE, ranks(AFTER, AFTER), settings={"min_cost": share * 0.98})


def test_without_allreduce_it_is_clear() -> None:
    assert outcome(RULE, ranks(NO_ALLREDUCE, NO_ALLREDUCE)).reason == "There is no AllReduce."


def test_without_a_backward_pass_it_is_not_applicable() -> None:
    result = outcome(RULE, ranks(NO_BACKWARD, NO_BACKWARD))
    assert result.status == "not-applicable"
    assert "No kernel was launched by a backward pass" in result.reason


def test_without_communication_it_is_not_applicable() -> None:
    text = "\n".join(line for line in ranks(AFTER, AFTER).splitlines() if "nccl" not in line)
    result = outcome(RULE, text)
    assert result.status == "not-applicable"
    assert "No communication" in result.reason


def test_one_rank_alone_cannot_tell_transfer_from_waiting() -> None:
    result = outcome(RULE, ranks(AFTER), world_size=2)
    assert result.status == "not-applicable"
    assert "straggler wait and transfer cannot be separated" in result.reason


def test_cpus_have_no_kernels_to_hide_behind() -> None:
    text = """
        rank# step |1
              host [fwd.......]
              gloo             [ar....]
    """
    result = outcome(RULE, ranks(text, text))
    assert result.status == "not-applicable"
    assert "CPU only" in result.reason


def test_missing_ranks_lower_the_confidence() -> None:
    found = finding(RULE, ranks(AFTER, AFTER), world_size=4)
    assert found.confidence == "low"
    assert "straggler wait for ranks without a trace is only estimated from transfers" in found.why


def test_where_all_wait_for_a_rank_without_a_trace_nothing_shows_what_would_hide() -> None:
    """The first AllReduce takes far longer than its like: on no rank with a trace could it have hidden."""
    waiting = """
        rank# step     |1
              host     [fwd]
              autograd      [bwd][ar][ar][ar]
              gpu      [fwd......][bwd.........]
              nccl                              [ar@8..................][ar@8][ar@8]
    """
    result = outcome(RULE, ranks(waiting, waiting), world_size=3)
    assert result.status == "not-applicable"
    assert "wait for one without" in result.reason
    assert finding(RULE, ranks(waiting, waiting))
