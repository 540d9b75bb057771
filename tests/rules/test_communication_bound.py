"""Transfers that no overlap could hide."""

from __future__ import annotations

import pytest
from test_slow_link import calibrated
from test_slow_link import drawn as linked
from traces import MS, finding, in_row, job, lies_in_its_step, outcome, ranks, step_ms

from tb_ddp_doctor import engine

RULE = "communication-bound"
BOUND = """
    rank# step     |1
          host     [fwd]          [sync....................]
          autograd      [bwd][ar]
          gpu      [fwd..][bwd..]
          nccl                [ar..........................]
"""
HIDDEN = """
    rank# step     |1
          host     [fwd]
          autograd      [bwd][ar]
          gpu      [fwd......][bwd..............]
          nccl                     [ar..........]
"""
AFTER = """
    rank# step     |1
          host     [fwd]
          autograd      [bwd][ar]
          gpu      [fwd......][bwd..............]
          nccl                                   [ar............]
"""


def test_transfers_longer_than_compute_are_found_with_what_half_the_bytes_would_give() -> None:
    found = finding(RULE, ranks(BOUND, BOUND))
    assert found.ranks == (0, 1)
    assert found.cost_ms == pytest.approx(15, rel=0.02)
    assert found.severity == "critical"
    assert found.cause is None
    assert found.confidence == "high"


def test_waits_in_calls_without_a_match_may_be_no_transfers() -> None:
    # The second call of each rank is of another kind, so nobody knows how much of it is waiting for the other rank.
    first, second = (
        BOUND.replace("[ar..........................]", f"[ar][{kind}..................]") for kind in ("ag", "rs")
    )
    found = finding(RULE, ranks(first, second))
    assert found.confidence == "low"
    assert "50 % of the calls of collectives have no match on another rank" in found.why


def test_what_a_slow_link_costs_is_slow_links() -> None:
    assert finding("slow-link", linked(10, 10, 40)).ranks == (4, 5)
    assert outcome(RULE, linked(10, 10, 40), settings={"min_exposed": 0.4}).status == "clear"
    assert finding(RULE, linked(40, 40, 40), settings={"min_exposed": 0.4})


def test_float_gradients_are_sent_as_bfloat16() -> None:
    assert "bf16_compress_hook" in finding(RULE, ranks(BOUND, BOUND)).fix


def test_unknown_gradients_are_sent_less_often() -> None:
    fix = finding(RULE, ranks(BOUND, BOUND), metadata="nowhere").fix
    assert "bf16" not in fix and "no_sync" in fix


def test_the_links_seen_and_what_would_hide_the_transfers_are_told() -> None:
    why = finding(RULE, ranks(BOUND, BOUND)).why
    # 4 MB in 30 ms; 14 ms of compute, of which 0.65 may hide something.
    assert "all_reduce reaches a busbw of 0.1 GB/s." in why
    assert f"compute would have to take {30 / (0.65 * 14):.1f} times as long" in why


def test_half_the_bytes_of_messages_of_one_size_take_half_as_long() -> None:
    assert "As bfloat16 it would take 15.0 ms." in finding(RULE, ranks(BOUND, BOUND)).why


def test_latency_is_not_halved() -> None:
    """4 MB take 10 ms and 32 MB 20: 8.6 ms are latency."""
    sizes = BOUND.replace("[ar..........................]", "[ar......][ar@8..............]")
    why = finding(RULE, ranks(sizes, sizes)).why
    assert f"As bfloat16 it would take {30 - 36 / 2 * 10 / 28:.1f} ms." in why


def test_what_is_not_float32_is_not_compressed() -> None:
    assert "As bfloat16" not in finding(RULE, ranks(BOUND, BOUND), metadata="nowhere").why


def test_evidence_is_the_exposed_transfer() -> None:
    text = ranks(BOUND, BOUND)
    (window,) = finding(RULE, text).evidence
    assert window.end_ns - window.start_ns == 27 * MS
    assert lies_in_its_step(window, text)


def test_transfers_that_hide_are_clear() -> None:
    assert outcome(RULE, ranks(HIDDEN, HIDDEN)).status == "clear"


def test_exposure_below_the_threshold_is_clear() -> None:
    # 27 ms of 30 are exposed beside 14 ms of compute, of which more overlap would hide 0.65 * 14 - 3.
    stays = (27 - (0.65 * 14 - 3)) / step_ms(ranks(BOUND, BOUND))
    assert outcome(RULE, ranks(BOUND, BOUND), settings={"min_exposed": stays * 1.02}).status == "clear"
    assert finding(RULE, ranks(BOUND, BOUND), settings={"min_exposed": stays * 0.98})


def test_what_overlap_would_hide_is_left_to_no_overlap() -> None:
    assert outcome(RULE, ranks(AFTER, AFTER)).status == "clear"
    assert finding("no-overlap", ranks(AFTER, AFTER))


def test_what_is_exposed_is_part_of_the_steps_that_it_is_measured_in() -> None:
    """The median step beside the mean of all, of which two are short, is 27.0 of 36.6 ms."""
    short = """
        rank# step     |1
              host     [fwd]
              autograd [bwd]
              gpu      [fwd]
    """
    bound, other = ranks(BOUND, BOUND, steps=2), ranks(short, short, steps=1)
    title = finding(RULE, in_row(bound, other, bound, other, bound)).title
    assert "27.0 ms of every 41.0 ms is exposed communication" in title


def test_without_communication_it_is_not_applicable() -> None:
    text = "\n".join(line for line in ranks(BOUND, BOUND).splitlines() if "nccl" not in line)
    assert outcome(RULE, text).status == "not-applicable"


def test_one_rank_alone_cannot_tell_transfer_from_waiting() -> None:
    assert outcome(RULE, ranks(BOUND), world_size=2).status == "not-applicable"


def test_missing_ranks_lower_the_confidence() -> None:
    assert finding(RULE, ranks(BOUND, BOUND), world_size=4).confidence == "low"


def test_cpus_may_be_bound_too() -> None:
    text = """
        rank# step |1
              host [fwd...]
              gloo         [ar..............]
    """
    assert finding(RULE, ranks(text, text)).cost_ms == pytest.approx(9, rel=0.02)


def test_one_slow_collective_is_not_every_steps() -> None:
    usual, once = ranks(HIDDEN, HIDDEN, steps=2), ranks(BOUND, BOUND, steps=1)
    assert outcome(RULE, in_row(usual, once, usual)).status == "clear"


def test_with_a_calibration_the_busbw_is_a_share_of_what_it_gave() -> None:
    # 4 MB in 30 ms.
    why = finding(RULE, ranks(BOUND, BOUND), calibration=calibrated(12.6, size=2)).why
    assert "all_reduce reaches a busbw of 0.1 GB/s, 42 % of the 0.3 GB/s that the calibration gave" in why
    other = finding(RULE, ranks(BOUND, BOUND), calibration=calibrated(12.6, size=16)).why
    assert "the calibration has no all_reduce of 2 ranks" in other
    slower = finding(RULE, ranks(BOUND, BOUND), calibration=calibrated(60, size=2)).why
    assert "above the 0.1 GB/s of the calibration, which was measured on other links" in slower


def test_without_a_calibration_it_says_that_the_links_are_unknown() -> None:
    assert "What these links can do is not known" in finding(RULE, ranks(BOUND, BOUND)).why


def test_where_most_ranks_have_no_trace_nobody_knows_who_is_late() -> None:
    assert finding(RULE, ranks(BOUND, BOUND), world_size=4).ranks == (0, 1)
    result = outcome(RULE, ranks(BOUND, BOUND), world_size=8)
    assert result.status == "not-applicable"
    assert "Most ranks of the groups" in result.reason


#: A server of two ranks: an AllReduce of tensor parallelism behind each layer, on the same stream. What awaits it is
#: launched long before.
SERVED = """
    rank# host   [own_context_0_generation_8.......................................]
          within [layer][reduce][layer][reduce][sync...............................]
          gpu     [layer....][reduce...........][layer....][reduce.................]
"""
#: The same with AllReduces that take a fifth as long.
SERVED_FAST = """
    rank# host   [own_context_0_generation_8...........................]
          within [layer][red][layer][red][sync.........................]
          gpu     [layer.................][red][layer.............][red]
"""
ONE_SHOT = {
    "reduce": "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)",
    "red": "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)",
}
NVLS = dict.fromkeys(ONE_SHOT, "multimem_one_shot_all_reduce_kernel")
NCCL = dict.fromkeys(ONE_SHOT, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)")


@pytest.mark.parametrize("kernels", [ONE_SHOT, NVLS, NCCL])
@pytest.mark.parametrize("captured", [False, True])
def test_exposed_allreduces_of_a_server_are_found_with_its_own_fix(kernels: dict[str, str], captured: bool) -> None:
    text = ranks(SERVED, SERVED)
    found = finding(RULE, text, kernels=kernels, captured=captured)
    assert found.title.startswith("Communication is exposed within iterations: ")
    assert found.ranks == (0, 1)
    # Half of what the two AllReduces of 19 and 25 ms expose.
    assert found.cost_ms == pytest.approx((19 + 25) / 2, rel=0.1)
    assert found.why.startswith("It is of all_reduce. Compute of an iteration waits for it")
    assert "allreduce-fusion" in found.fix and "no_sync" not in found.fix
    assert all(lies_in_its_step(window, text, kernels=kernels, captured=captured) for window in found.evidence)


@pytest.mark.parametrize("captured", [False, True])
def test_a_server_whose_communication_is_short_is_clear(captured: bool) -> None:
    result = outcome(RULE, ranks(SERVED_FAST, SERVED_FAST), kernels=ONE_SHOT, captured=captured)
    assert result.status == "clear"


def test_experts_that_tokens_are_sent_to_have_another_fix() -> None:
    kernels = {"reduce": "void deep_ep::internode_ll::combine<true, 10, 7168, 9>(void*, void*)"}
    assert "two-batch-overlap" in finding(RULE, ranks(SERVED, SERVED), kernels=kernels).fix


def test_a_pipeline_on_several_gpus_is_judged_with_advice_of_its_own() -> None:
    text = ranks(*[SERVED.replace("context_0_generation_8", "denoise...............")] * 2)
    found = finding(RULE, text, kernels=NCCL)
    assert found.cost_ms == pytest.approx((19 + 25) / 2, rel=0.1)
    assert "Divide each image over fewer GPUs" in found.fix


def test_what_a_benchmark_sends_is_what_it_measures() -> None:
    repeats = ranks(*[SERVED.replace("context_0_generation_8", "something.............")] * 2, steps=12)
    diagnosis = engine.examine(job(repeats, kernels=NCCL))
    (ended,) = [one for one in diagnosis.outcomes if one.rule == RULE]
    assert (diagnosis.kind, ended.status) == ("benchmark", "not-applicable")
    assert ended.reason == "This program is a benchmark: its communication is what it measures."


def test_what_a_ring_sends_cannot_be_hidden_behind_other_compute() -> None:
    """The next block of attention needs it; AllReduces as long and as exposed could go earlier."""
    ring = ranks(
        """
            rank# step |1
                  host [a][s][b]
                  gpu  [a.]      [b............]
                  nccl [s1r1....]
        """,
        """
            rank# step |1
                  host [a][s][b]
                  gpu  [a.]      [b............]
                  nccl [s0r0....]
        """,
    )
    assert finding(RULE, ring).cost_ms > 0


#: An engine that generates all the time, and a trainer that pauses until it has samples, and trains for 20 ms.
ENGINE = """
    rank# step   |1
          host   [own_generate_sequences...........................................]
          within [layer][reduce][layer][reduce][sync...............................]
          gpu     [layer....][reduce...........][layer....][reduce.................]
"""
WAITS_FOR_SAMPLES = """
    rank# step   |1
          host   [own_update_actor..]
          within [fwd][sync.........]
          gpu     [fwd..............]
"""


def test_engines_whose_allreduces_are_exposed_delay_trainers_that_wait_for_samples() -> None:
    """No trainer overlaps what an engine sends within an iteration; its pauses end with the engine's iterations."""
    text = ranks(ENGINE, ENGINE, WAITS_FOR_SAMPLES, WAITS_FOR_SAMPLES, steps=12)
    found = finding(RULE, text, kernels=NCCL)
    assert found.title.startswith("Communication is exposed within iterations: ")
    assert found.ranks == (0, 1)
    assert found.cost_ms == pytest.approx((19 + 25) / 2, rel=0.15)
    assert "allreduce-fusion" in found.fix and "no_sync" not in found.fix
