"""Steps that lack their CUDA graph, or capture it again, are found with their cost."""

from __future__ import annotations

import pytest
from traces import finding, in_row, job, outcome, ranks

from tb_ddp_doctor import engine

RULE = "cuda-graph-breaks"
GRAPH = """
    rank# step     |1
          host     [graph]
          autograd        [bwd]
          gpu       [graph*20............]
          nccl                            [ar..]
"""
CAPTURES = """
    rank# step     |1
          host     [capture.........................][graph]
          autograd                                          [bwd]
          gpu                                         [graph*20............]
          nccl                                                              [ar..]
"""
EAGER = """
    rank# step     |1
          host     [k1..][k2..][k3..][k4..][k5..][k6..][k7..][k8..]
          autograd                                                 [bwd]
          gpu       [k1] [k2]  [k3]  [k4]  [k5]  [k6]  [k7]  [k8]
          nccl                                                          [ar..]
"""


def job_of(odd: str, *, at: tuple[int, ...] = (2, 4), steps: int = 5) -> str:
    """Steps of two ranks, of which some are drawn as `odd`; steps count from 1."""
    return in_row(*(ranks(*[odd if step in at else GRAPH] * 2, steps=1) for step in range(1, steps + 1)))


def test_a_graph_that_is_captured_again_is_found_with_its_cost() -> None:
    found = finding(RULE, job_of(CAPTURES))
    assert (found.steps, found.ranks, found.cause) == ((2, 4), (0, 1), "capture")
    assert found.cost_ms == pytest.approx(34 * 2 / 5, rel=0.1)
    assert found.title == "A CUDA graph is captured again in 2 of 5 steps."


def test_a_graph_that_is_captured_in_every_step_costs_its_captures() -> None:
    """Shapes change all the time: no step shows what the CPU does without a capture."""
    found = finding(RULE, job_of(CAPTURES, at=(1, 2, 3, 4, 5)))
    assert found.cost_ms == pytest.approx(34, rel=0.1)
    assert found.title == "A CUDA graph is captured again in 5 of 5 steps."


def test_the_capture_of_inductors_graphs_compiles_nothing() -> None:
    """`CUDAGraphNode.record` has the mark of Dynamo's phases."""
    captures = CAPTURES.replace("[graph]", "[more.......][graph]").replace("[bwd]", "             [bwd]")
    captures = captures.replace("[graph*20............]", "             [graph*20............]")
    captures = captures.replace("[ar..]", "             [ar..]")
    within = "          within   [record.......................................]\n"
    captures = captures.replace("          autograd", f"{within}          autograd")
    names = {"aten::record": "CUDAGraphNode.record (dynamo_timed)"}
    diagnosis = engine.examine(job(job_of(captures), names=names))
    found = diagnosis.findings[0]
    assert (found.rule, found.cause) == (RULE, "capture")
    assert found.cost_ms == pytest.approx(47 * 2 / 5, rel=0.1)


def test_a_capture_that_a_sync_exposes_is_no_fault_of_the_sync() -> None:
    """Each step reads a value at its end. Without that the CPU would run ahead, and capture while the GPU works."""
    steps = []
    for step in range(1, 7):
        odd = "[capture.................................]" if step == 4 else ""
        gap = " " * len(odd)
        steps.append(
            ranks(
                *[
                    f"""
        rank# step     |1
              host     {odd}[graph][item................]
              gpu      {gap} [graph*20...............]
        """
                ]
                * 2,
                steps=1,
            )
        )
    verdict = engine.examine(job(in_row(*steps)))
    found = verdict.findings[0]
    assert (found.rule, found.cause, found.steps) == (RULE, "capture", (4,))
    # The sync has what the GPU idles after it in every step, some 3 ms.
    assert all(one.cost_ms < 3 for one in verdict.findings if one.rule == "host-sync")
    assert found.cost_ms == pytest.approx(41 / 6, rel=0.1)


def test_steps_that_fall_back_to_single_launches_are_found_with_their_cost() -> None:
    found = finding(RULE, job_of(EAGER))
    assert (found.steps, found.cause) == ((2, 4), "eager")
    assert found.cost_ms > 3
    assert found.title.startswith("Kernels are launched one by one instead of in the CUDA graph in 2 of 5 steps")


def test_steps_that_all_launch_their_graph_are_clear() -> None:
    assert outcome(RULE, job_of(GRAPH)).reason == "Every step launches its CUDA graphs, and none captures one."


def test_jobs_without_graphs_are_clear() -> None:
    assert outcome(RULE, ranks(EAGER, EAGER)).status == "clear"


@pytest.mark.parametrize("kernels", [20, 40, 60, 128, 200])
def test_a_graph_that_awaits_a_collective_is_floor_however_many_kernels_it_has(kernels: int) -> None:
    """Rows of a track are cut every 128 launches: a cut at a graph's launch parted it from the AllReduce before it."""
    graph = GRAPH.replace("*20.", f"*{kernels}." if kernels < 100 else f"*{kernels}")
    diagnosis = engine.examine(job(in_row(*(ranks(graph, graph, steps=1) for _ in range(6)))))
    assert diagnosis.verdict == "healthy"
    (floor,) = [line.ms for line in diagnosis.account.lines if line.kind == "floor"]
    assert floor == pytest.approx(diagnosis.step_ms, rel=0.01)


@pytest.mark.parametrize("kernels", [60, 200])
def test_a_captured_graph_of_many_kernels_costs_its_capture(kernels: int) -> None:
    graph, captures = (
        text.replace("*20.", f"*{kernels}." if kernels < 100 else f"*{kernels}") for text in (GRAPH, CAPTURES)
    )
    text = in_row(*(ranks(*[captures if step == 3 else graph] * 2, steps=1) for step in range(1, 6)))
    found = finding(RULE, text)
    assert found.cost_ms == pytest.approx(34 / 5, rel=0.1)
    verdict = engine.examine(job(text))
    assert [one.rule for one in verdict.findings if one.severity != "info"] == [RULE]


def test_a_server_is_told_which_batch_sizes_to_capture() -> None:
    names = {"aten::bwd": "vllm::unified_attention_with_output"}
    text = job_of(EAGER).replace("autograd", "thread2 ")
    found = finding(RULE, text, names=names)
    assert "cudagraph_capture_sizes" in found.fix and "step(example" not in found.fix


def test_what_prepares_a_capture_is_of_it() -> None:
    """`torch.cuda.graph` waits for the device, collects garbage and frees memory before the capture begins."""
    captures = """
        rank# step     |1
              host     [sync..]            [capture.........][graph]
              autograd                                              [bwd]
              gpu                                             [graph*20............]
              nccl                                                                  [ar..]
    """
    whole = finding(RULE, job_of(captures), names={"cudaStreamSynchronize": "cudaDeviceSynchronize"})
    assert whole.cost_ms == pytest.approx((12 + 18) * 2 / 5, rel=0.1)
    assert finding(RULE, job_of(captures)).cost_ms == pytest.approx(18 * 2 / 5, rel=0.1)  # another wait is none of it


def test_what_a_server_idles_while_it_captures_is_no_gap_between_its_iterations() -> None:
    """Without the capture it idles for a millisecond, as servers do."""
    usual = """
        rank# host   [own_context_0_generation_8.]
              within [graph][sync..............]
              gpu      [graph*20..............]
    """
    odd = """
        rank# host   [own_context_0_generation_8..............................................]
              within [sync..]            [capture.........][graph][sync....................]
              gpu                                            [graph*20..............]
    """
    text = in_row(*(ranks(*[odd if step in (3, 6) else usual] * 2, steps=1) for step in range(1, 9)))
    diagnosis = engine.examine(job(text, names={"cudaStreamSynchronize": "cudaDeviceSynchronize"}))
    found = [one.rule for one in diagnosis.findings]
    assert found[0] == RULE and "iteration-gap" not in found
