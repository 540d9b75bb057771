"""Many small collectives, whose latency takes as long as their bytes."""

from __future__ import annotations

import pytest
from traces import finding, findings, job, lies_in_its_step, outcome, ranks

from tb_ddp_doctor.facts.traffic import communication

RULE = "small-collectives"


def drawn(collectives: str, compute: str) -> str:
    wait = " [sync" + "." * (max(len(collectives) - 5, len(compute)) - 7) + "]"
    return f"""
        rank# step     |1
              host     [fwd]     {wait}
              autograd      [bwd]
              gpu      [fwd][bwd{"." * (len(compute) - 5)}]
              nccl          {collectives}
    """


#: Alpha is 3.7 ms, beta 0.08 ms per million bytes: eleven of 4 MB take 4 ms each, two of 32 MB 6 ms.
SMALL = "[ar]" * 11 + "[ar@8]" * 2
EXPOSED = drawn(SMALL, "[bwd]")
HIDDEN = drawn(SMALL, "[bwd" + "." * 60 + "]")
#: Few calls beside compute that is longer, and no sync: the CPU is ahead.
FEW = """
    rank# step     |1
          host     [fwd]
          autograd      [bwd]
          gpu      [fwd][bwd....................................]
          nccl          [ar@8][ar@8][ar@8][ar@8]
"""
#: Alpha is nothing: 4 MB take 4 ms, 32 MB 32 ms.
LARGE = "[ar]" * 6 + ("[ar@8" + "." * 26 + "]") * 6


def test_exposed_latency_is_found_with_its_cost() -> None:
    found = finding(RULE, ranks(EXPOSED, EXPOSED))
    alpha = 4 - 2 * 4 / 28
    # All bytes fit into one large message.
    assert found.cost_ms == pytest.approx(12 * alpha, rel=0.02)
    assert found.severity == "critical"
    assert "13 all_reduce a step" in found.title
    assert "bucket_cap_mb=25" in found.fix


def test_hidden_latency_costs_nothing() -> None:
    found = finding(RULE, ranks(HIDDEN, HIDDEN))
    assert found.severity == "info"
    assert found.cost_ms == 0


def test_evidence_is_exposed_transfer() -> None:
    text = ranks(EXPOSED, EXPOSED)
    (window,) = finding(RULE, text).evidence
    assert lies_in_its_step(window, text)


def test_large_messages_are_clear() -> None:
    text = ranks(drawn(LARGE, "[bwd]"), drawn(LARGE, "[bwd]"))
    result = outcome(RULE, text)
    assert result.status == "clear"
    assert "Latency takes" in result.reason


def test_few_calls_are_clear() -> None:
    assert outcome(RULE, ranks(FEW, FEW)).status == "clear"
    assert outcome(RULE, ranks(EXPOSED, EXPOSED), settings={"min_calls": 14.0}).status == "clear"
    assert finding(RULE, ranks(EXPOSED, EXPOSED), settings={"min_calls": 13.0})


def test_latency_below_the_threshold_is_clear() -> None:
    (traffic,) = communication(job(ranks(EXPOSED, EXPOSED)))
    limit = traffic.latency_share
    assert outcome(RULE, ranks(EXPOSED, EXPOSED), settings={"min_latency": limit * 1.01}).status == "clear"
    assert finding(RULE, ranks(EXPOSED, EXPOSED), settings={"min_latency": limit * 0.99})


def test_like_sizes_cannot_be_judged() -> None:
    alike = drawn("[ar]" * 13, "[bwd]")
    result = outcome(RULE, ranks(alike, alike))
    assert result.status == "not-applicable"
    assert "similar sizes" in result.reason


def test_without_sizes_it_is_not_applicable() -> None:
    result = outcome(RULE, ranks(EXPOSED, EXPOSED), metadata="nowhere")
    assert result.status == "not-applicable"
    assert "sizes" in result.reason


def test_one_rank_alone_is_not_applicable() -> None:
    assert outcome(RULE, ranks(EXPOSED), world_size=2).status == "not-applicable"


def tiny(calls: int) -> str:
    """So many AllReduces a step, 4 ms each: nothing shorter can be drawn."""
    return f"""
        rank# step |1
              gpu  [fwd......]{" " * 4 * calls}[bwd]
              nccl            {"[ar]" * calls}
    """


def test_very_many_short_calls_are_found_without_sizes_or_partners() -> None:
    text = ranks(tiny(120))
    found = finding(RULE, text, metadata="nowhere", world_size=2, settings={"tiny": 5000.0})
    assert found.cause == "unsized"
    assert "120 calls of all_reduce a step, and half of them take 4.0 ms or less" in found.title


def test_longer_calls_without_sizes_are_not_judged() -> None:
    assert outcome(RULE, ranks(tiny(120)), metadata="nowhere", world_size=2).status == "not-applicable"


def test_a_broadcast_in_forward_is_ddps_buffers() -> None:
    text = """
        rank# step     |1
              host     [ddp....]          [update]
              within   [bc][fwd]
              autograd          [bwd][ar]
              gpu                [fwd][bwd]
              nccl     [bc......]          [ar....]
    """
    found = finding(RULE, ranks(text, text))
    assert found.cause == "buffers"
    assert found.title.startswith("The broadcast of DDP's buffers in forward (broadcast_buffers) runs once a step")
    assert found.cost_ms == pytest.approx(9, abs=1)
    assert "broadcast_buffers=False" in found.fix


def test_a_broadcast_in_a_group_that_adds_up_no_gradients_is_no_buffers() -> None:
    """It is of other weights, as those that reinforcement learning sends to the ranks that generate."""
    text = """
        rank# step     |1
              host     [ddp]          [update]
              within   [bc][fwd]
              autograd          [bwd][ar]
              gpu                [fwd][bwd]
              comm     [bc/sync.]
              nccl                         [ar/data]
    """
    assert outcome(RULE, ranks(text, text)).status != "finding"


AFTER_BACKWARD = """
    rank# step     |1
          host     [ddp]                [norm][ar_small][update]
          within   [fwd]
          autograd      [bwd][ar_large]
          gpu      [fwd][bwd]                               [up]
          nccl               [ar_large]       [ar_small@0..]
"""


def test_a_tiny_all_reduce_after_backward_is_a_metric() -> None:
    text = AFTER_BACKWARD.replace("[norm]", "      ")
    (found,) = findings(RULE, ranks(text, text))
    assert found.cause == "metric"
    assert "a metric or a loss" in found.title


def test_a_tiny_all_reduce_after_the_norms_of_gradients_is_clip_grad_norm() -> None:
    (found,) = findings(RULE, ranks(AFTER_BACKWARD, AFTER_BACKWARD), dims={"norm": [[8]]})
    assert found.cause == "gradient_norm"
    assert "clip_grad_norm_" in found.title


def test_a_large_all_reduce_after_backward_is_no_metric() -> None:
    text = AFTER_BACKWARD.replace("@0", "..")
    assert not isinstance(findings(RULE, ranks(text, text)), tuple)
