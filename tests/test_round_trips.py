"""Iterations of a server that nothing marks: each brings copies to the GPU, and its tokens back to the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from traces import finding, in_row, job, outcome, ranks, write

from tb_ddp_doctor import engine
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.digest.round_trips import ROUND_TRIP
from tb_ddp_doctor.discover.runs import discover
from tb_ddp_doctor.findings import Diagnosis
from tb_ddp_doctor.job.model import Job

#: The inputs go in, two layers attend, and the tokens come back.
ITERATION = """
    rank# host [sort][attend][attend][sync..........]
          gpu        [pinned][attend][attend][offload]
"""
#: Two iterations with 24 ms between them, in which the CPU schedules.
GAP = """
    rank# host [sort][attend][attend][sync..........]                        [sort][attend][attend][sync..........]
          gpu        [pinned][attend][attend][offload]                             [pinned][attend][attend][offload]
"""
#: Sizes of experts' batches go back to the CPU within the model.
EXPERTS = """
    rank# host [sort][attend][sync.......]       [attend]       [sync...]
          gpu        [pinned][attend]     [offload]      [attend][offload]
"""
#: A prompt: the same launches, each for much longer.
PREFILL = """
    rank# host [sort][attend][attend][sync..................................]
          gpu        [pinned][attend.......................][attend.........][offload]
"""
#: No request waits for 100 ms.
WAITS = GAP.replace(" " * 24 + "[sort]", " " * 124 + "[sort]").replace(" " * 29 + "[pinned]", " " * 129 + "[pinned]")
NAMES = {"aten::attend": "vllm::unified_attention"}


def served(*texts: str, **options: object) -> Job:
    return job("\n".join(texts), names=NAMES, **options)


def steps_of(found: Job) -> tuple[set[str], int]:
    return {digest.contents.steps_from for digest in found.digests}, len(found.steps)


@pytest.mark.parametrize(("text", "times"), [(ITERATION, 8), (GAP, 4), (EXPERTS, 8)])
def test_each_iteration_begins_with_the_copies_to_the_gpu(text: str, times: int) -> None:
    # Of eight iterations the first one has no copy to the CPU before it, and the end of the last one is not seen.
    assert steps_of(served(ranks(text, text, steps=times))) == ({ROUND_TRIP}, 6)


def test_training_has_no_iterations_of_copies() -> None:
    training = """
        rank# host     [sort][fwd][fwd]                    [update][sync...]
              autograd                [bwd.......]
              gpu            [pinned][fwd][fwd][bwd.......]        [offload]
    """
    found = job(ranks(training, training, steps=8))
    assert steps_of(found)[0] == {"Optimizer.step"}


def in_order(*drawings: str) -> str:
    """Two ranks that do one iteration after the other."""
    return in_row(*[ranks(one, one, steps=1) for one in drawings])


def test_prompts_leave_the_iterations() -> None:
    found = served(in_order(*[ITERATION] * 4, PREFILL, *[ITERATION] * 4))
    assert steps_of(found) == ({ROUND_TRIP}, 7)


def test_what_launches_few_kernels_is_a_part_of_the_iteration_after_it() -> None:
    """As one that asks the GPU whether any request has ended."""
    asks = """
        rank# host [sort]     [sync..........]
              gpu        [pinned][short][offload]
    """
    layers = """
        rank# host [sort][attend]      [sync.........]
              gpu        [pinned][attend*9][offload]
    """
    found = served(in_order(*[layers, layers, asks] * 3))
    assert steps_of(found) == ({ROUND_TRIP}, 5)


def test_a_gap_between_iterations_costs_what_the_cpu_takes() -> None:
    # 23 of 24 ms after every second iteration: one of them is beside the end of the copy.
    assert finding("iteration-gap", ranks(GAP, GAP, steps=8), names=NAMES).cost_ms == pytest.approx(11.5, rel=0.1)
    assert outcome("iteration-gap", ranks(ITERATION, ITERATION, steps=8), names=NAMES).status == "clear"


def test_where_requests_are_awaited_no_gap_is_judged() -> None:
    text = in_order(*[ITERATION] * 4, WAITS, *[ITERATION] * 4)
    assert len(served(text).steps) == 8
    assert outcome("iteration-gap", text, names=NAMES).status == "clear"


def test_ranks_that_read_no_tokens_make_the_trace_one_step(tmp_path: Path) -> None:
    silent = ITERATION.replace("[offload]", "         ")
    write(tmp_path, ranks(ITERATION, silent, steps=8), names=NAMES)
    (run,) = discover(tmp_path)
    found: Diagnosis = engine.diagnose(run, reading=engine.Reading(cache=Cache(None))).diagnosis
    assert (found.kind, found.ranks, len(found.steps)) == ("inference server", (0, 1), 1)
