"""The CPU is stalled inside single ops."""

from __future__ import annotations

import json

import pytest
from traces import MS, Finding, check, finding, in_row, lies_in_its_step, outcome, ranks

from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.trace.reader import decode

RULE = "op-stall"
#: Ops take 3 ms, and four of them 42.
PREEMPTED = """
    rank# step |1
          host [a][b][c][d........................................][a][b][c][e........................................]
          gpu  [a][b][c][d]                                        [a][b][c][e]
"""
PREEMPTED_LATER = """
    rank# step |1
          host [a][b][c][f........................................][a][b][c][g........................................]
          gpu  [a][b][c][f]                                        [a][b][c][g]
"""
FIRST_USE = """
    rank# step |1                                                    |2
          host [a][b][c][a][b][x...............................][a][b][a][b][c][a][b][x][a][b]
          gpu  [a][b][c][a][b][x]                               [a][b][a][b][c][a][b][x][a][b]
"""
ONE_OP = """
    rank# step |1
          host [a][b][c][a][b][slow............................][a][b][c]
          gpu  [a][b][c][a][b][slow]                            [a][b][c]
"""
MANY = """
    rank# step |1
          host [a........][b........][c........][d........]
          gpu  [a]        [b]        [c]        [d]
"""


def test_stalls_in_many_different_ops_are_preemption_and_no_launch_overhead() -> None:
    text = in_row(ranks(PREEMPTED, PREEMPTED, steps=1), ranks(PREEMPTED_LATER, PREEMPTED_LATER, steps=1))
    found = finding(RULE, text)
    assert found.cause == "preempted"
    assert "many different ops" in found.why
    assert "CUDA graphs would not help" in found.why
    assert "reduce-overhead" not in found.fix
    assert "cpu.stat" in found.fix
    assert not isinstance(check("launch-bound", text), Finding)


def test_the_module_that_stalls_is_named() -> None:
    stacks = ONE_OP.replace("gpu  [a]", "python          [block.............................]\n          gpu  [a]", 1)
    found = finding(RULE, ranks(stacks, stacks))
    assert "Of their time 100 % is in Block_3." in found.why
    assert "of Block_3" in found.evidence[0].what


def test_stalls_outside_ops_are_preemption_only_where_most_stalls_are_inside() -> None:
    step = """
        rank# step |1
              host [a][b][c][d..............................]                                          [a][e]
              gpu  [a][b][c][d]                                                                        [a][e]
    """
    text = in_row(*(ranks(part, part, steps=1) for part in (step.replace("[d", f"[{op}") for op in "dfgh")))
    found = finding(RULE, text)
    assert found.cause == "preempted"
    assert found.cost_ms == pytest.approx(33, abs=2)
    assert finding("host-stall", text).cost_ms == pytest.approx(42, abs=2)


def test_a_first_use_is_named_as_such() -> None:
    found = finding(RULE, ranks(FIRST_USE, FIRST_USE, steps=1))
    assert found.cause == "first_use"
    assert found.confidence == "low"
    assert found.title.startswith("The GPU idles during a first use: aten::x takes the CPU")
    assert "warmup" in found.fix


def test_an_op_that_stalls_in_every_step_is_named() -> None:
    found = finding(RULE, ranks(ONE_OP, ONE_OP))
    assert found.cause == "op"
    assert "stalled in aten::slow" in found.title
    assert "1 stall a step" in found.title


def test_evidence_is_the_longest_stall() -> None:
    text = ranks(ONE_OP, ONE_OP)
    window = finding(RULE, text).evidence[0]
    assert window.end_ns - window.start_ns == pytest.approx(33_000_000, rel=0.05)
    assert lies_in_its_step(window, text)


def test_many_delays_of_one_length_are_launch_overhead() -> None:
    text = ranks(MANY, MANY)
    assert outcome(RULE, text).status == "clear"
    assert finding("launch-bound", text)


def test_stalls_of_one_rank_are_the_stragglers_cause() -> None:
    usual = """
        rank# step |1
              host [a][b][c][a][b][slow][a][b][c]
              gpu  [a][b][c][a][b][slow][a][b][c]
              nccl                               [ar............................]
    """
    stalled = """
        rank# step |1
              host [a][b][c][a][b][slow............................][a][b][c]
              gpu  [a][b][c][a][b][slow]                            [a][b][c]
              nccl                                                           [ar]
    """
    text = ranks(usual, usual, stalled, usual)
    assert outcome(RULE, text).status == "clear"
    found = finding("straggler", text)
    assert (found.ranks, found.cause) == ((2,), "host")
    assert "1 stall a step" in found.why
    assert "in aten::slow: that op does something slow on the CPU" in found.why


def test_below_the_threshold_stalls_are_clear() -> None:
    text = ranks(ONE_OP, ONE_OP)
    assert outcome(RULE, text, settings={"min_cost": 0.9}).status == "clear"


def test_cpus_have_no_stalls_inside_ops() -> None:
    text = """
        rank# step |1
              host [a....][b....]
    """
    assert outcome(RULE, ranks(text, text)).status == "not-applicable"


def test_the_launch_that_follows_is_named() -> None:
    found = finding(RULE, ranks(ONE_OP, ONE_OP))
    assert "stalls are followed by the launch of" in found.why
    assert ", before the launch of " in found.evidence[0].what


@pytest.mark.parametrize("steps", [5, 24])
def test_a_rank_that_hardly_stalls_is_not_named(steps: int) -> None:
    """Three ranks stall for 32 of 50 ms in each step, the fourth in one of them."""
    never = ONE_OP.replace("[slow............................]", f"[slow]{' ' * 28}", 1)
    text = in_row(ranks(*[ONE_OP] * 4, steps=1), ranks(ONE_OP, ONE_OP, ONE_OP, never, steps=steps - 1))
    assert finding(RULE, text).ranks == (0, 1, 2)


@pytest.mark.parametrize(
    ("name", "cause", "fix"),
    [
        ("cudaGraphLaunch", "graph_launch", "From CUDA"),
        ("TorchDynamo Cache Lookup", "guards", "skip_guard_eval_unsafe"),
    ],
)
def test_graphs_that_are_launched_slowly_and_guards_have_advice_of_their_own(name: str, cause: str, fix: str) -> None:
    found = finding(RULE, ranks(ONE_OP, ONE_OP), names={"aten::slow": name})
    assert found.cause == cause
    assert fix in found.fix
    assert "CUDA graphs would not help" not in found.why


def test_slow_launches_of_graphs_are_stalls_where_no_operators_are_recorded() -> None:
    """A server whose recorder has no operators replays a graph in each step; its launch takes 27 ms of 48."""
    events: list[dict[str, object]] = []
    for step in range(4):
        host, at = {"ph": "X", "cat": "cuda_runtime", "pid": 1, "tid": 1}, 48_000 * step + 1_000
        events += [
            host | {"name": "cudaGraphLaunch", "ts": at, "dur": 27_000, "args": {"correlation": 2 * step + 1}},
            host | {"name": "cudaStreamSynchronize", "ts": at + 27_100, "dur": 19_950, "args": {"correlation": 0}},
        ]
        on_device = {"device": 0, "stream": 7, "correlation": 2 * step + 1}
        events += [
            {"ph": "X", "cat": "kernel", "name": f"gemm_{node}", "pid": 0, "tid": 7, "dur": 9_900}
            | {"ts": at + 27_000 + 10_000 * node, "args": on_device | {"graph node id": node + 1}}
            for node in range(2)
        ]
    device = [{"id": 0, "name": "Drawn GPU"}]
    text = json.dumps({"deviceProperties": device, "traceEvents": events})
    rank = digest(decode([text.encode()], "rank0.json"))
    assert [rank.strings[index] for index in rank.op_stalls.call.tolist()] == ["cudaGraphLaunch"] * 4
    assert (rank.op_stalls.end_ns - rank.op_stalls.start_ns).tolist() == [27 * MS] * 4
