"""Graph breaks whose gaps wait for the GPU are found with their cost."""

from __future__ import annotations

import pytest
from traces import finding, job, outcome, ranks, step_ms

from tb_ddp_doctor import engine

RULE = "graph-breaks"
OPTIONS = {"names": {f"aten::region{code}": f"Torch-Compiled Region: {code}/0" for code in range(2)}}
FAULTY = """
    rank# step     |1
          host     [region0][item.......]     [region1]
          autograd                                     [bwd]
          gpu       [region0............]      [region1....][bwd.......]
          nccl                                                 [ar...]
"""
#: Two modules that are compiled each, one after the other.
HEALTHY = """
    rank# step     |1
          host     [region0][region1]
          autograd                   [bwd]
          gpu       [region0............][region1....][bwd.......]
          nccl                                           [ar...]
"""


def test_a_break_that_waits_for_the_gpu_is_found_with_its_cost() -> None:
    found = finding(RULE, ranks(FAULTY, FAULTY), **OPTIONS)
    assert found.cost_ms == pytest.approx(step_ms(ranks(FAULTY, FAULTY)) - step_ms(ranks(HEALTHY, HEALTHY)), rel=0.25)
    assert found.title == "Graph breaks end compiled regions, and the CPU waits for the GPU: 1.0 a step."


#: Steps that end with a value of the updated model: that of a rank whose function breaks, and those of ranks that wait.
BREAKS = """
    rank# step     |1
          host     [region0][item.......]     [region1]          [opt][item.......]
          autograd                                     [bwd.][ar]
          gpu       [region0...........]       [region1...][bwd.......]      [opt]
          nccl                                                         [ar..]
"""
WAITS = """
    rank# step     |1
          host     [region0][region1]          [opt][item.........................]
          autograd                   [bwd.][ar]
          gpu       [region0...........][region1...][bwd.......]             [opt]
          nccl                                                  [ar.........]
"""


def test_a_rank_whose_function_alone_breaks_is_named() -> None:
    """As where rank 0 prints the loss within the compiled function."""
    diagnosis = engine.examine(job(ranks(BREAKS, WAITS, WAITS), **OPTIONS))
    found = next(one for one in diagnosis.findings if one.rule == RULE)
    assert found.ranks == (0,)
    assert found.cost_ms == pytest.approx(7, abs=1.5)
    assert found.title == "Graph breaks end compiled regions, and the CPU waits for the GPU: 1.0 a step on rank 0."
    assert all(one.rule != "straggler" for one in diagnosis.findings if one.severity != "info")


def broken(parts: int, pause: str = "....") -> str:
    """So many regions in a row, and Python between them that takes the CPU longer than the GPU needs for a region."""
    lane = "".join(f"[r{code}]{pause}" for code in range(parts)).replace(".", " ")
    return f"""
    rank# step     |1
          host     {lane}
          autograd {" " * len(lane)}[bwd]
          gpu       {lane}[bwd.......]
          nccl     {" " * len(lane)}     [ar...]
    """


def test_many_breaks_in_a_row_need_no_wait() -> None:
    options = {"names": {f"aten::r{code}": f"Torch-Compiled Region: {code}/0" for code in range(9)}}
    text = broken(9)
    found = finding(RULE, ranks(text, text), **options)
    whole = broken(9, pause="")
    assert found.cost_ms == pytest.approx(step_ms(ranks(text, text)) - step_ms(ranks(whole, whole)), rel=0.25)
    assert found.title == "Graph breaks end compiled regions, and the CPU runs Python: 8.0 a step."
    assert outcome(RULE, ranks(broken(6), broken(6)), **options).status == "clear"
    again = {name: region.replace("5", "1") for name, region in options["names"].items()}
    assert outcome(RULE, ranks(text, text), names=again).status == "clear"


def test_looking_compiled_code_up_and_compiling_it_are_no_breaks() -> None:
    """The code behind a break has its guards evaluated, and is compiled, without the break as well."""
    options = {"names": {f"aten::r{code}": f"Torch-Compiled Region: {code}/0" for code in range(9)}}
    lane = "".join(f"[r{code}][look]" for code in range(9))
    drawn = f"""
    rank# step     |1
          host     {lane}
          autograd {" " * len(lane)}[bwd]
          gpu       {lane.replace("[look]", "      ")}[bwd.......]
          nccl     {" " * len(lane)}     [ar...]
    """
    for does in ("TorchDynamo Cache Lookup", "_compile.compile_inner (dynamo_timed)"):
        names = {**options["names"], "aten::look": does}
        assert outcome(RULE, ranks(drawn, drawn), names=names).status == "clear", does
    assert finding(RULE, ranks(drawn, drawn), **options).cost_ms > 40  # any other operator is one


def test_compiled_modules_in_a_row_are_clear() -> None:
    assert outcome(RULE, ranks(HEALTHY, HEALTHY), **OPTIONS).status == "clear"


def test_the_same_region_again_is_no_break() -> None:
    names = {f"aten::region{code}": "Torch-Compiled Region: 0/0" for code in range(2)}
    assert outcome(RULE, ranks(FAULTY, FAULTY), names=names).status == "clear"


def test_reading_the_loss_between_two_steps_of_a_model_of_several_compiled_modules_is_no_break() -> None:
    drawn = """
        rank# step     |1
              host     [region0][region1]     [update][item.............]
              autograd                   [bwd]
              gpu       [region0............][region1....][bwd.......]
              nccl                                           [ar...]
    """
    assert outcome(RULE, ranks(drawn, drawn), **OPTIONS).status == "clear"


def test_reading_a_value_after_a_model_has_gone_backward_is_no_break() -> None:
    """As a GAN's discriminator and generator do, each compiled."""
    drawn = """
        rank# step     |1
              host     [region0]     [item.............][region1]     [update]
              autograd          [bwd]                            [bwd]
              gpu       [region0.......][bwd......]      [region1....][bwd.......]
    """
    assert outcome(RULE, ranks(drawn, drawn), **OPTIONS).status == "clear"
