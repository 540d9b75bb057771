"""Where a server marks nothing, its kernels tell which iterations read prompts."""

from __future__ import annotations

import json

import pytest
from test_round_trips import GAP, ITERATION
from traces import draw, finding, in_row, job, outcome, ranks

from tb_ddp_doctor import engine
from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.facts.iterations import iterations
from tb_ddp_doctor.job.build import build
from tb_ddp_doctor.trace.reader import decode

NAMES = {"aten::attend": "vllm::unified_attention", "aten::read": "vllm::unified_attention"}
#: Prompts: the same operators, with more for the GPU to do.
PROMPTS = """
    rank# host [sort][read][read][sync................................................]
          gpu        [pinned][read...................][read..................][offload]
"""
#: Both at once.
BOTH = """
    rank# host [sort][attend][read][sync..............................................]
          gpu        [pinned][attend.................][read..................][offload]
"""
#: The kernels of FlashInfer, and of FlashAttention with pages, which attends to both.
TWO = {
    "attend": "void flashinfer::BatchDecodeWithPagedKVCacheKernel<0, 128>(flashinfer::Params)",
    "read": "void flashinfer::BatchPrefillWithPagedKVCacheKernel<flashinfer::Traits<1, 16>>(flashinfer::Params)",
}
ONE = dict.fromkeys(TWO, "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64> >(flash::Params)")
#: An answer that one graph replays.
REPLAYED = """
    rank# host [sort]        [sync.................]
          gpu        [pinned][graph*3.....][offload]
"""


def in_order(*drawings: str) -> str:
    return in_row(*[ranks(one, one, steps=1) for one in drawings])


def kinds(text: str, kernels: dict[str, str]) -> list[str] | None:
    found = iterations(job(text, names=NAMES, kernels=kernels))
    return [*found.kind] if found else None


BURST = in_order(*[ITERATION] * 4, PROMPTS, *[ITERATION] * 4)
#: The first iteration has no copy to the CPU before it, and the end of the last one is not seen.
DECODES = ["decode"] * 3


def test_attention_of_one_query_tells_answers_from_prompts() -> None:
    assert kinds(BURST, TWO) == [*DECODES, "prefill", *DECODES]
    mixed = in_order(*[ITERATION] * 4, BOTH, *[ITERATION] * 4)
    assert kinds(mixed, TWO) == [*DECODES, "mixed", *DECODES]


def test_attention_that_serves_both_tells_nothing() -> None:
    assert kinds(BURST, ONE) is None


def test_what_no_graph_replays_and_takes_longer_reads_prompts() -> None:
    """Requests in decode may get tokens in it as well: no kernel tells."""
    replayed = in_order(*[REPLAYED] * 4, PROMPTS, *[REPLAYED] * 4)
    assert kinds(replayed, ONE) == [*DECODES, "mixed", *DECODES]
    # As short as a replay: a batch that is larger than all that were captured.
    short = in_order(*[REPLAYED] * 4, ITERATION, *[REPLAYED] * 4)
    assert kinds(short, ONE) is None


def test_requests_that_get_answers_after_a_gap_had_begun_before_it() -> None:
    """Nothing reads prompts: no request is new, however long the GPU idles."""
    at = len(in_order(*[ITERATION] * 4).split("\n", maxsplit=1)[0])
    late = "\n".join(row[:at] + " " * 60 + row[at:] for row in in_order(*[ITERATION] * 8).split("\n"))
    assert outcome("iteration-gap", late, names=NAMES, kernels=ONE).status == "clear"
    assert finding("iteration-gap", late, names=NAMES, kernels=TWO).cost_ms * 6 == pytest.approx(60, rel=0.1)


def test_prefill_that_delays_decode_is_found_without_marks() -> None:
    found = finding("prefill-in-decode", BURST, names=NAMES, kernels=TWO)
    assert found.steps == (3,)
    # All of the iteration: its two copies, too, which the requests wait for.
    assert found.cost_ms * 7 == pytest.approx(72, rel=0.05)
    assert found.confidence != "high"
    assert found.why.startswith("Requests in decode get their next token only after ")


def test_prompts_after_a_long_gap_delay_none_for_sure() -> None:
    at = len(in_order(*[ITERATION] * 4).split("\n")[0])
    late = "\n".join(row[:at] + " " * 60 + row[at:] for row in BURST.split("\n"))
    assert outcome("prefill-in-decode", late, names=NAMES, kernels=TWO).status == "clear"
    assert "1 iteration comes late and reads prompts (after step 2): the server may have waited" in (
        engine.examine(job(late, names=NAMES, kernels=TWO)).headline
    )


def test_a_gap_of_less_than_a_millisecond_is_one_in_short_iterations() -> None:
    """Iterations of 1.3 ms; after every second one the CPU schedules for 0.8 ms."""
    found = {}
    for rank, data in draw(ranks(GAP, GAP, steps=8), names=NAMES).items():
        trace = json.loads(data)
        for event in trace["traceEvents"]:
            event.update({time: event[time] / 30 for time in {"ts", "dur"} & event.keys()})
        found[rank] = digest(decode([json.dumps(trace).encode()], f"rank{rank}.json"))
    findings = engine.examine(build("drawn", found, dict.fromkeys(found, "host"), 2)).findings
    (gap,) = (one for one in findings if one.rule == "iteration-gap")
    assert gap.alone_ms == pytest.approx(11.5 / 30, rel=0.15)
