from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from traces import finding, job, lies_in_its_step, outcome, repeat

from tb_ddp_doctor.account.witnesses import Witnesses
from tb_ddp_doctor.facts import Facts
from tb_ddp_doctor.facts.arrivals import arrivals, stages
from tb_ddp_doctor.facts.frame import frame
from tb_ddp_doctor.facts.pipeline import pipeline
from tb_ddp_doctor.facts.without_faults import whatif
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.mesh.mesh import Mesh, mesh
from tb_ddp_doctor.rules.pipeline_bubble import PipelineBubble
from tb_ddp_doctor.rules.support.straggler_fixes import fix

RULE = "pipeline-bubble"
#: Two stages and six micro-batches, one forward and one backward pass in turn: a step of seven turns.
MANY = """
    rank0 step |1
          gpu  [fwd][fwd]          [bwd....][fwd][bwd....][fwd][bwd....][fwd][bwd....][fwd][bwd....]     [bwd....]
          nccl      [s1][s1][r1.........]  [r1]  [s1]     [r1] [s1]     [r1] [s1]     [r1] [s1]    [r1...]
    rank1 step |1
          gpu       [fwd][bwd....][fwd][bwd....][fwd][bwd....][fwd][bwd....][fwd][bwd....][fwd][bwd....]
          nccl [r0.][r0]          [s0] [r0]     [s0] [r0]     [s0] [r0]     [s0] [r0]     [s0]          [s0]
"""
#: Two stages, two micro-batches, all forward passes first: a turn is 5 + 9 ms, and a step (2 + 2 - 1) of them.
GPIPE = """
    rank0 step |1
          gpu  [fwd][fwd]               [bwd....][bwd....]
          nccl      [s1][s1][r1........][r1]
    rank1 step |1
          gpu       [fwd][fwd][bwd....][bwd....]
          nccl [r0.][r0]                [s0]     [s0]
"""
#: The same in turns of one forward and one backward pass, with four micro-batches: a step of five turns.
ONE_FORWARD_ONE_BACKWARD = """
    rank0 step |1
          gpu  [fwd][fwd]          [bwd....][fwd][bwd....][fwd][bwd....]     [bwd....]
          nccl      [s1][s1]     [r1..]    [r1]  [s1]     [r1] [s1]    [r1..]
    rank1 step |1
          gpu       [fwd][bwd....][fwd][bwd....][fwd][bwd....][fwd][bwd....]
          nccl [r0.][r0]          [s0] [r0]     [s0] [r0]     [s0]          [s0]
"""
#: Backward is split (ZB-H1): gradients of weights are computed after those of activations are sent.
ZERO_BUBBLE = """
    rank0 step     |1
          host     [fwd][fwd]                  [fwd]
          autograd                        [bwd]        [wgt][bwd]     [bwd][wgt][wgt]
          gpu      [fwd][fwd]             [bwd][fwd]   [wgt][bwd]     [bwd][wgt][wgt]
          nccl          [s1] [s1][r1.....]    [r1..][s1]      [r1....]
    rank1 step     |1
          host              [fwd]     [fwd]             [fwd]
          autograd               [bwd]     [bwd] [wgt]       [bwd] [wgt][wgt]
          gpu               [fwd][bwd][fwd][bwd] [wgt]  [fwd][bwd] [wgt][wgt]
          nccl      [r0....][r0.]     [s0]      [s0][r0]          [s0]
"""
#: The same with the first stage one micro-batch further ahead (ZB-H2).
FURTHER_AHEAD = ZERO_BUBBLE.replace(
    "host     [fwd][fwd]                  [fwd]", "host     [fwd][fwd][fwd]                  "
).replace(
    "[fwd][fwd]             [bwd][fwd]   [wgt][bwd]     [bwd]",
    "[fwd][fwd][fwd]        [bwd]        [wgt][bwd]     [bwd]",
).replace(
    "     [s1] [s1][r1.....]    [r1..][s1]      [r1....]",
    "     [s1] [s1][s1][r1.]    [r1.......]     [r1....]",
)  # fmt: skip
#: The second stage computes twice as long as the first: a step of 90 ms, where even stages would take 75.
UNEVEN = """
    rank0 step |1
          gpu  [fwd][fwd][fwd][fwd]                                   [bwd]     [bwd]     [bwd]     [bwd]
          nccl      [s1] [s1] [s1] [s1][r1...........................]     [r1.]     [r1.]     [r1.]
    rank1 step |1
          gpu       [fwd.....][fwd.....][fwd.....][fwd.....][bwd.....][bwd.....][bwd.....][bwd.....]
          nccl [r0.][r0][r0][r0]                                      [s0]      [s0]      [s0]      [s0]
"""


def steps(text: str) -> str:
    return repeat(text, 3)


def of(text: str) -> tuple[Job, Mesh]:
    drawn = job(text)
    return drawn, mesh(drawn)


@pytest.mark.parametrize(("text", "turns"), [(ONE_FORWARD_ONE_BACKWARD, 4), (MANY, 6)])
def test_a_pipeline_that_waits_no_longer_than_it_must_is_clear(text: str, turns: int) -> None:
    ended = outcome(RULE, steps(text))
    assert ended.status == "clear"
    assert f"the bubble of 2 stages and {turns} micro-batches (1F1B) is" in ended.reason


# Equal stages wait (p - 1) / m of their compute: of two with two micro-batches half of 28 ms, with six a sixth of 84.
@pytest.mark.parametrize(
    ("text", "wait_ms", "beyond_ms"), [(GPIPE, [1, 12], [0, 0]), (MANY, [5, 10], [0, 0]), (UNEVEN, [5, 46], [0, 31])]
)
def test_stages_that_wait_for_the_bubble_wait_for_no_slow_stage(
    text: str, wait_ms: list[int], beyond_ms: list[int]
) -> None:
    """What others wait for a rank, without a pipeline and with it."""
    facts = Facts(job(steps(text)))
    without, within = (Witnesses.of(facts.job, facts.get(arrivals), [], one) for one in (None, facts.get(stages)))
    assert np.allclose(without.others_wait_ns, np.array(wait_ms) * 1e6)
    assert np.allclose(within.others_wait_ns, np.array(beyond_ms) * 1e6)


@pytest.mark.parametrize(
    ("text", "turns", "schedule"),
    [(GPIPE, 2, "GPipe"), (ONE_FORWARD_ONE_BACKWARD, 4, "1F1B"), (MANY, 6, "1F1B"), (UNEVEN, 4, "GPipe")],
)
def test_stages_micro_batches_and_the_schedule_are_read(text: str, turns: int, schedule: str) -> None:
    found = pipeline(*of(steps(text)))
    assert found
    assert (found.stages, found.micro_batches, found.schedule) == (2, turns, schedule)
    assert found.stage.tolist() == [0, 1]


def test_a_schedule_that_splits_backward_has_a_third_of_the_bubble() -> None:
    found = pipeline(*of(steps(ZERO_BUBBLE)))
    assert found
    assert (found.stages, found.micro_batches, found.schedule) == (2, 3, "zero-bubble")
    # Nine kernels of 5 ms: (p - 1) / m of 45 ms is 15.
    assert found.bubble_ns(45e6) == pytest.approx(5e6)
    # Without what the last stage computes after its last message it is 1F1B.
    again = pipeline(*of(steps(ZERO_BUBBLE.replace("[wgt][wgt]", "          "))))
    assert again
    assert again.schedule == "1F1B"
    assert again.bubble_ns(45e6) == pytest.approx(15e6)


def test_one_that_is_further_ahead_has_no_bubble() -> None:
    found = pipeline(*of(steps(FURTHER_AHEAD)))
    assert found
    assert (found.micro_batches, found.schedule, found.bubble_ns(45e6)) == (3, "zero-bubble H2", 0)


def test_a_loss_on_the_last_stage_is_that_of_every_schedule_but_a_v() -> None:
    text = steps(ONE_FORWARD_ONE_BACKWARD)
    first, last = text.splitlines()[:3], text.splitlines()[3:]
    named = "\n".join([*first, *(line.replace("[bwd....]", "[loss...]") for line in last)])
    for kernels, schedule in (({"loss": "fused_cross_entropy_kernel"}, "1F1B"), ({}, "1F1B")):
        drawn = job(named, kernels=kernels)
        found = pipeline(drawn, mesh(drawn))
        assert found and (found.micro_batches, found.schedule) == (4, schedule)
    # The same kernels on the first stage alone: a V, whose messages do not show which.
    swapped = "\n".join([*(line.replace("[bwd....]", "[loss...]") for line in first), *last])
    drawn = job(swapped, kernels={"loss": "fused_cross_entropy_kernel"})
    found = pipeline(drawn, mesh(drawn))
    assert found and (found.micro_batches, found.schedule) == (2, "V-shaped")


def test_few_micro_batches_make_a_large_bubble() -> None:
    text = steps(GPIPE)
    found = finding(RULE, text)
    assert found.cause == "few_micro_batches"
    # A third of such a step is bubble, half of 28 ms of compute; twice the micro-batches would halve it.
    assert "the bubble of 2 stages and 2 micro-batches (GPipe) is 14.0 ms" in found.title
    assert found.cost_ms == pytest.approx(14 / 2, abs=0.5)
    (window,) = found.evidence
    assert lies_in_its_step(window, text)


AS_MUCH = """
    rank0 step |1
          gpu  [fwd....][bwd....]
          nccl                   [ar]
    rank1 step |1
          gpu  [fwd....][bwd....]
          nccl                   [ar]
"""


def played(*ranks: list[tuple[str, str, int, int]]) -> str:
    """A step whose CPUs launch all at once, so that it can be replayed: name, lane, start and end of each event, ms."""
    lines = []
    for rank, events in enumerate(ranks):
        lanes = dict.fromkeys(("gpu", "nccl"), "")
        for name, lane, start, end in events:
            lanes[lane] = lanes[lane].ljust(start) + f"[{name}".ljust(end - start - 1, ".") + "]"
        host = "".join(f"[{name}]" for name, *_ in events)
        host += "[sync".ljust(max(end for *_, end in events) - len(host) - 1, ".") + "]"
        lines += [f"rank{rank} step |1", f"host {host}", *(f"{lane:<4} {drawn}" for lane, drawn in lanes.items())]
    return repeat("\n".join(line if line[:4] == "rank" else f"      {line}" for line in lines), 3)


def two_stages() -> str:
    """Two micro-batches, forward passes of 20 ms and backward passes of 40."""
    fwd, bwd = ("fwd", "gpu"), ("bwd", "gpu")
    first = [
        (*fwd, 0, 20),
        ("s1", "nccl", 20, 24),
        (*fwd, 20, 40),
        ("s1", "nccl", 40, 44),
        ("r1", "nccl", 44, 108),
        (*bwd, 108, 148),
        ("r1", "nccl", 108, 148),
        (*bwd, 148, 188),
    ]
    second = [
        ("r0", "nccl", 0, 24),
        (*fwd, 24, 44),
        ("r0", "nccl", 24, 44),
        (*fwd, 44, 64),
        (*bwd, 64, 104),
        ("s0", "nccl", 104, 108),
        (*bwd, 104, 144),
        ("s0", "nccl", 144, 148),
    ]
    return played(first, second)


def test_the_bubble_of_steps_that_are_replayed_costs_what_more_micro_batches_save() -> None:
    text = two_stages()
    assert Facts(job(text)).get(whatif).plays
    found = finding(RULE, text)
    # 120 ms of compute and half of it bubble, of which twice the micro-batches leave half.
    assert (found.cause, found.severity) == ("few_micro_batches", "major")
    assert found.cost_ms == pytest.approx(60 / 2, abs=2)


def test_a_stage_with_more_work_gets_fewer_layers_and_a_replica_of_it_other_samples() -> None:
    stages, replicas = (Facts(job(text)).get(frame) for text in (two_stages(), steps(AS_MUCH)))
    assert "move layers from the longest stage" in fix("more_work", [1], stages)
    assert "DistributedSampler" in fix("more_work", [0, 1], stages)
    assert "DistributedSampler" in fix("more_work", [1], replicas)


def test_a_stage_that_computes_longer_makes_all_wait() -> None:
    found = finding(RULE, steps(UNEVEN))
    assert (found.cause, found.ranks) == ("uneven_stages", (1,))
    assert "The longest stage, rank 1, computes 80.0 ms" in found.why
    assert "it runs as many kernels as the median stage" in found.why
    # Sends hide 4 ms of what the stages wait.
    assert found.cost_ms == pytest.approx(90 - 75, abs=4)


def test_messages_of_one_batch_are_counted_on_the_host() -> None:
    """A kernel that moves several messages carries no metadata, and neither does one of an all-to-all."""
    text = steps(GPIPE)
    assert finding(RULE, text, metadata="host").cause == "few_micro_batches"
    assert "there is no pipeline" in outcome(RULE, text, metadata="nowhere").reason


def test_what_stages_wait_is_left_out_of_communication_bound() -> None:
    waiting = """
        rank0 step |1
              gpu  [fwd]                              [bwd]
              nccl      [s1][r1......................]     [ar]
        rank1 step |1
              gpu       [fwd]                         [bwd]
              nccl [r0.]     [s0]                          [ar]
    """
    ended = outcome("communication-bound", steps(waiting))
    assert "4.0 ms of 4.0 ms of communication are exposed in the median step" in ended.reason


def test_a_ring_that_passes_on_is_no_pipeline() -> None:
    ring = """
        rank0 step |1
              gpu  [fwd....][fwd....]
              nccl [s1][r2] [s1][r2]
        rank1 step |1
              gpu  [fwd....][fwd....]
              nccl [s2][r0] [s2][r0]
        rank2 step |1
              gpu  [fwd....][fwd....]
              nccl [s0][r1] [s0][r1]
    """
    ended = outcome(RULE, steps(ring))
    assert (ended.status, "there is no pipeline" in ended.reason) == ("clear", True)


def test_transfers_around_a_ring_are_communication() -> None:
    """As of ring attention: both sides have arrived, and nothing runs beside them."""
    ring = """
        rank0 step |1
              host [fwd][s1r2][bwd]
              gpu  [fwd......]                          [bwd......]
              nccl            [s1r2....................]
        rank1 step |1
              host [fwd][s2r0][bwd]
              gpu  [fwd......]                          [bwd......]
              nccl            [s2r0....................]
        rank2 step |1
              host [fwd][s0r1][bwd]
              gpu  [fwd......]                          [bwd......]
              nccl            [s0r1....................]
    """
    found = finding("communication-bound", steps(ring))
    assert "26.0 ms of every 48.0 ms is exposed communication" in found.title


def test_a_job_that_reduces_gradients_is_no_pipeline() -> None:
    assert "there is no pipeline" in outcome(RULE, steps(AS_MUCH)).reason


def test_four_stages() -> None:
    """One micro-batch through four stages of 8 ms: each computes for 16 of 64 ms."""
    text = """
        rank0 step |1
              gpu  [fwd...]                                        [bwd...]
              nccl         [s1][r1................................]
        rank1 step |1
              gpu          [fwd...]                        [bwd...]
              nccl [r0....]        [s2][r2................]        [s0]
        rank2 step |1
              gpu                  [fwd...]        [bwd...]
              nccl [r1............]        [s3][r3]        [s1]
        rank3 step |1
              gpu                          [fwd...][bwd...]
              nccl [r2....................]                [s2]
    """
    found = pipeline(*of(steps(text)))
    assert found and (found.stages, found.micro_batches) == (4, 1)
    result = finding(RULE, steps(text))
    assert result.cause == "few_micro_batches"
    assert "the bubble of 4 stages and 1 micro-batch is 48.0 ms" in result.title
    assert result.cost_ms == pytest.approx(24, abs=3)


#: Three ranks with two chunks of layers each: the last stage sends activations to the first one, which goes on.
INTERLEAVED = """
    rank0 step |1
          gpu  [a.]        [d.]                                    [g.]        [j.]
          nccl     [s1]    [r2]    [s1]                [r1]            [s2][r1]
    rank1 step |1
          gpu          [b.]            [e.]            [h.]        [k.]
          nccl     [r0]    [s2]    [r0]    [s2]    [r2]    [s0][r2]        [s0]
    rank2 step |1
          gpu              [c.]            [f.][g.]            [l.]
          nccl         [r1]    [s0]    [r1]        [s1]    [r0]    [s1]
"""


def test_stages_of_several_chunks_are_interleaved() -> None:
    found = pipeline(*of(steps(INTERLEAVED)))
    assert found
    assert (found.stages, found.micro_batches, found.schedule) == (3, 2, "interleaved 1F1B")


def test_context_parallelism_of_two_beside_stages_is_no_longer_pipeline() -> None:
    """Two stages of two ranks each, which exchange keys and values at once."""
    first = """
        rank#  step  |1
               gpu   [fwd....][fwd....]             [bwd....]
               nccl  [sTWINrTWIN]      [sNEXT][rNEXT]
    """
    last = """
        rank#  step  |1
               gpu                           [fwd....][bwd....]
               nccl                    [rNEXT][sTWINrTWIN]     [sNEXT]
    """
    text = "".join(
        (first if rank < 2 else last)
        .replace("#", str(rank))
        .replace("TWIN", str(rank ^ 1))
        .replace("NEXT", str(rank ^ 2))
        for rank in range(4)
    )
    found = pipeline(*of(steps(text)))
    assert found
    assert (found.stages, found.micro_batches, found.stage.tolist()) == (2, 1, [0, 0, 1, 1])


def test_a_longer_stage_with_more_kernels_has_more_layers() -> None:
    found = finding(RULE, steps(UNEVEN.replace("[fwd.....][", "[fwd*2..][")))
    assert "it runs 25 % more kernels than the median stage (layers, the embedding or the head)" in found.why


@pytest.mark.parametrize(("exchanges", "waits_ns"), [(0, 0.0), (2, 7.0)])
def test_waits_for_uneven_experts_are_no_part_of_the_bubble(exchanges: int, waits_ns: float) -> None:
    whatif: Any = SimpleNamespace(
        replay=SimpleNamespace(routing=SimpleNamespace(rank=np.zeros(exchanges))),
        busy_ns=np.full((4, 3), 10),
        shape=(4, 3),
        cost_ns=lambda change: 7.0 if change.balanced.all() else 0.0,
    )
    assert PipelineBubble()._waits_for_slow_ranks(whatif) == waits_ns


#: The tokens of a batch go back to the first stage, which only then begins with the next batch.
ONE_BATCH = """
    rank0 step |1
          host [fwd][s1][r1][sync........................................................]
          gpu  [fwd.........................]
          nccl                               [s1][r1.....................................]
    rank1 step |1
          host [r0][fwd][s0][sync........................................................]
          gpu                                    [fwd.........................]
          nccl [r0..............................]                              [s0......]
"""


def test_a_server_with_one_batch_in_flight_has_advice_of_servers() -> None:
    found = finding(RULE, repeat(ONE_BATCH, 4), kernels={"fwd": "flashinfer::BatchDecodeWithPagedKVCacheKernel<1>"})
    assert found.cause == "few_micro_batches"
    assert "2 stages and 1 batch in flight" in found.title
    assert "micro-batch" not in found.title + found.why
    assert "vllm serve" in found.fix and "torch.distributed.pipelining" not in found.fix
