"""The host waits for the device within the step."""

from __future__ import annotations

import pytest
from traces import check, finding, job, lies_in_its_step, outcome, ranks, step_ms

from tb_ddp_doctor.findings import Finding

RULE = "host-sync"
#: The device runs empty while the value is read, and starves until b and c are launched.
READS = """
    rank# step |1
          host [a][item.........][b....][c]
          gpu  [a.............]  [b]   [c............]
          nccl                                        [ar]
"""
EXPLICIT = READS.replace("[item.........]", "[sync.........]")
#: The value is read at the step's end, with b queued behind it.
LATE = """
    rank# step |1
          host [a][b][item....][c]
          gpu  [a][b..............][c...........]
          nccl                                   [ar]
"""


def test_reading_a_value_is_found_with_its_cost() -> None:
    found = finding(RULE, ranks(READS, READS))
    # 2 ms until the call returns, 3 ms until c is launched.
    assert found.cost_ms == pytest.approx(2 + 3, rel=0.02)
    assert found.cause == "read_back"
    assert found.ranks == (0, 1)
    assert "aten::_local_scalar_dense" in found.title
    assert "1 cudaStreamSynchronize in aten::_local_scalar_dense" in found.why
    assert "set_sync_debug_mode" in found.fix


def test_the_module_that_syncs_is_named() -> None:
    stacks = READS.replace("gpu  [a.....", "python [block.............]\n          gpu  [a.....", 1)
    found = finding(RULE, ranks(stacks, stacks))
    assert "in aten::_local_scalar_dense (the longest in Block_3)" in found.why
    assert "in aten::_local_scalar_dense in Block_3; the GPU is idle" in found.evidence[0].what


def test_launch_bound_does_not_claim_it_again() -> None:
    assert outcome("launch-bound", ranks(READS, READS)).status == "clear"


def test_an_explicit_synchronisation_is_named() -> None:
    found = finding(RULE, ranks(EXPLICIT, EXPLICIT))
    assert found.cause == "explicit"
    assert "outside any op" in found.why
    assert "torch.cuda.synchronize" in found.fix


def test_evidence_is_the_call_and_what_follows() -> None:
    text = ranks(READS, READS)
    (window,) = finding(RULE, text).evidence
    assert window.end_ns - window.start_ns == pytest.approx(15e6 + 6e6, abs=0.1e6)
    assert "aten::_local_scalar_dense" in window.what
    assert lies_in_its_step(window, text)


def test_a_call_with_work_behind_it_is_clear() -> None:
    result = outcome(RULE, ranks(LATE, LATE))
    assert result.status == "clear"
    assert "enough queued work" in result.reason


def test_a_cost_below_the_threshold_is_clear() -> None:
    text = ranks(READS, READS)
    share = 5 / step_ms(text)
    assert outcome(RULE, text, settings={"min_cost": share * 1.03}).status == "clear"
    assert finding(RULE, text, settings={"min_cost": share * 0.97})


def test_a_rank_that_waits_anyway_loses_nothing() -> None:
    slow = """
        rank# step |1
              host [a][b]
              gpu  [a......................][b...........]
              nccl                                        [ar]
    """
    waits = READS.replace("[ar]", "[ar.....]")
    result = check(RULE, ranks(waits, slow.replace("[ar]", "    [ar]")))
    assert not isinstance(result, Finding) or result.cost_ms < 1


def test_no_call_is_clear() -> None:
    result = outcome(RULE, ranks(LATE.replace("item", "read"), LATE.replace("item", "read")))
    assert result.reason == "No call in the steps syncs with the GPU."


def test_cpus_wait_for_no_device() -> None:
    text = """
        rank# step |1
              host [a....][b....]
    """
    assert "CPU only" in outcome(RULE, ranks(text, text)).reason


def test_without_launches_it_is_not_applicable() -> None:
    result = outcome(RULE, "gpu [?a...][?b...]")
    assert result.status == "not-applicable"
    assert "launch" in result.reason


def test_stacks_name_the_function_that_reads() -> None:
    stacks = (
        READS
        + """
          python [step..............................]
          inner   [report.....]
    """
    )
    found = finding(RULE, ranks(stacks, stacks))
    assert "called by report (tools/report.py:12)" in found.title


def test_functions_of_torch_are_not_named() -> None:
    stacks = (
        READS
        + """
          python [step..............................]
          inner   [call.......]
    """
    )
    assert "called by step (train.py:4)" in finding(RULE, ranks(stacks, stacks)).title
    assert "called by" not in finding(RULE, ranks(READS, READS)).title


def test_a_rank_that_waits_alone_is_a_straggler() -> None:
    alone = """
        rank# step |1
              host [a][item.........][b....][c][ar][sync........]
              gpu  [a.............]  [b]   [c............]
              nccl                                        [ar...]
    """
    usual = """
        rank# step |1
              host [a][b....][c][ar][sync.......................]
              gpu  [a.............][b][c............]
              nccl                                   [ar........]
    """
    text = ranks(usual, alone, usual)
    assert outcome(RULE, text).status == "clear"
    straggler = finding("straggler", text)
    assert (straggler.ranks, straggler.cause) == ((1,), "host")
    assert straggler.cost_ms == pytest.approx(5, rel=0.1)


def test_a_device_that_idles_while_its_host_is_blocked_is_not_clear() -> None:
    """What comes next was launched before the call, so that an earlier launch would not help."""
    text = """
        rank# step |1
              host [fwd][late][sync..............]
              gpu   [fwd]                   [late]
    """
    result = outcome("host-sync", ranks(text, steps=1))
    assert result.status == "not-applicable"
    assert "while its CPU is blocked" in result.reason


UNPLAYED = """
    rank# step |1
          host [aten][sync......]         [pageable................]   [sync.......]
          copy                                   [pageable.........]
          gpu  [k........][k]                                       [k.]             [k][k][k][k][k]
"""


def test_where_steps_are_not_replayed_it_costs_no_more_than_its_calls_leave_the_gpu_idle() -> None:
    # Most launches lie outside of operators, so idle times are compared: 23 ms of them in syncs, most of which await
    # a copy from pageable memory.
    found = finding(RULE, ranks(UNPLAYED, UNPLAYED))
    assert "the GPU then idles 4.0 ms" in found.why
    assert found.cost_ms == pytest.approx(4.0, abs=0.1)


#: Tokens that ranks which generate read back; the GPU idles until the next ones are launched.
READS_TOKENS = """
    rank# step |1
          host   [g1][to.............][g2][to............]
          within      [sync.........]      [sync........]
          gpu     [g1...........]      [g2...........]
"""
UPDATES_ALONE = """
    rank# step |1
          host   [fwd]       [update.....]
          autograd    [bwd..]
          gpu     [fwd.........][bwd.....]
"""


def test_tokens_that_are_read_back_are_no_sync_that_could_go() -> None:
    names = {"aten::g1": "vllm::unified_attention", "aten::g2": "vllm::unified_attention"}
    text = ranks(READS_TOKENS, READS_TOKENS, READS_TOKENS, UPDATES_ALONE)
    assert job(text, names=names).digests[0].contents.program == "serving"
    assert outcome(RULE, text, names=names).status != "fault"


#: The value is read in time, and the CPU then stalls, beside a long kernel.
READS_AND_STALLS = f"""
    rank# step |1
          host [a][item........][b]            [c]
          gpu  [a...........]   [b]             [c{"." * 99}]
          nccl                                  {" " * 102}[ar]
"""


def test_what_a_stall_of_all_cpus_costs_is_not_charged_to_a_sync_before_it() -> None:
    """Without the sync the stall would be hidden behind what was launched before it."""
    text = ranks(READS_AND_STALLS, READS_AND_STALLS)
    result = outcome(RULE, text)
    assert result.status == "clear" and "would hide what CPUs do outside any op" in result.reason
    assert finding("host-stall", text).cost_ms == pytest.approx(12, rel=0.02)
