"""What the CPU of a server or a compiled model does beside launching is measured, and said where it costs."""

from __future__ import annotations

import pytest
from traces import digests, finding, in_row, ranks

from tb_ddp_doctor.trace.program_names import ServerWork, server_work

MS = 1_000_000
#: An iteration of a server: its CPU schedules, launches, samples within scheduling's own time, and detokenises.
ITERATION = """
    rank# host   [own_context_0_generation_8................................................]
          within [plan......][attend]             [draw......][text..]
          gpu                [attend.............]
"""
SERVER = {
    "names": {
        "aten::plan": "schedule: allocate_slots",
        "aten::draw": "gpu_model_runner: sample",
        "aten::text": "llm_engine step: process_outputs",
    }
}
COMPILED = """
    rank# step     |1
          host     [guards..........][fwd][guards............][act]
          gpu                         [fwd.....]               [act.....]
"""


def test_a_servers_cpu_is_split_while_the_gpu_idles() -> None:
    text = in_row(*[ranks(ITERATION, steps=1)] * 4)
    work = digests(text, **SERVER)[0].work.serving
    per_iteration = (work.idle_ns / MS).mean(axis=0)
    # Blocks last as long as they are drawn; at the edges of the record an iteration may lack a part.
    assert per_iteration[ServerWork.SAMPLING] == pytest.approx(12, abs=3)
    assert per_iteration[ServerWork.DETOKENISING] == pytest.approx(8, abs=2)
    assert per_iteration[ServerWork.SCHEDULING] == pytest.approx(12, abs=3)


def test_what_runs_while_the_gpu_works_is_left_out() -> None:
    hidden = ITERATION.replace("[attend.............]", "[attend......................................]")
    work = digests(in_row(*[ranks(hidden, steps=1)] * 4), **SERVER)[0].work.serving
    assert not work.idle_ns[:, ServerWork.SAMPLING].any()


def test_a_finding_says_the_split() -> None:
    found = finding("launch-bound", in_row(*[ranks(ITERATION, ITERATION, steps=1)] * 4), **SERVER)
    assert "While the GPU idles, the CPU spends scheduling " in found.why
    assert " an iteration." in found.why and "sampling " in found.why and "detokenising " in found.why


#: The same without marks, by its Python functions.
UNMARKED = """
    rank# step   |1
          host               [attend]
          gpu                [attend.............]
          python [plan......]                     [draw......][own_draw]
"""


def test_without_marks_a_servers_functions_tell_the_split() -> None:
    work = digests(in_row(*[ranks(UNMARKED, steps=1)] * 4), names={"aten::draw": "Sample"})[0].work.serving
    per_step = (work.idle_ns / MS).mean(axis=0)
    assert per_step[ServerWork.SCHEDULING] == pytest.approx(12, abs=3)
    assert per_step[ServerWork.SAMPLING] == pytest.approx(12, abs=3)
    assert not work.iterations.any() and not work.idle_ns[:, ServerWork.DETOKENISING].any()


def test_without_marks_other_programs_annotations_tell_nothing() -> None:
    text = in_row(*[ranks(UNMARKED.replace("python", "within").replace("own_draw", "other..."), steps=1)] * 4)
    work = digests(text, names={"aten::draw": "Sample", "aten::plan": "Preprocess"})[0].work.serving
    assert not work.idle_ns.any()


def test_guards_are_said_with_what_skips_them() -> None:
    found = finding("launch-bound", ranks(COMPILED, COMPILED), names={"aten::guards": "TorchDynamo Cache Lookup"})
    assert "The guards of torch.compile take " in found.why
    assert "skip_guard_eval_unsafe=True" in found.fix


def test_without_guards_nothing_is_said_of_them() -> None:
    found = finding("launch-bound", ranks(COMPILED, COMPILED))
    assert "guards" not in found.why and "skip_guard" not in found.fix


@pytest.mark.parametrize(
    ("name", "work"),
    [
        ("/sgl-workspace/sglang/python/sglang/srt/managers/scheduler.py(1800): get_next_batch_to_run", "SCHEDULING"),
        ("/sgl-workspace/sglang/python/sglang/srt/managers/scheduler.py(2919): _run_batch_inner", ""),
        ("sglang/srt/managers/schedule_batch.py(1400): prepare_for_decode", "SCHEDULING"),
        ("sglang/srt/layers/sampler.py(60): forward", "SAMPLING"),
        ("sglang/srt/managers/detokenizer_manager.py(200): handle_batch_token_id_out", "DETOKENISING"),
        ("vllm/v1/core/sched/scheduler.py(240): schedule", "SCHEDULING"),
        ("vllm/v1/sample/sampler.py(68): forward", "SAMPLING"),
        ("vllm/v1/worker/gpu_model_runner.py(3380): execute_model", ""),
        ("vllm/v1/engine/output_processor.py(400): process_outputs", "DETOKENISING"),
        ("schedule: allocate_slots", "SCHEDULING"),
        ("gpu_model_runner: sample", "SAMPLING"),
        ("gpu_model_runner: forward", ""),
        ("torch/optim/lr_scheduler.py(124): step", ""),
        ("torch/utils/data/sampler.py(165): __iter__", ""),
        ("aten::upsample_nearest2d", ""),
    ],
)  # fmt: skip
def test_work_is_told_by_names(name: str, work: str) -> None:
    found = server_work(name)
    assert (found.name if found is not None else "") == work


def test_a_rank_with_more_guards_is_a_straggler_for_them() -> None:
    slow = """
        rank# step     |1
              host     [look............][region0][look........][region1]          [opt][item.......]
              autograd                                                   [bwd.][ar]
              gpu                         [region0...........]   [region1...][bwd.......]      [opt]
              nccl                                                                       [ar..]
    """
    waits = """
        rank# step     |1
              host     [region0][region1]          [opt][item.......................................]
              autograd                   [bwd.][ar]
              gpu       [region0...........][region1...][bwd.......]                           [opt]
              nccl                                                  [ar.......................]
    """
    found = finding("straggler", ranks(waits, slow, waits), names={"aten::look": "TorchDynamo Cache Lookup"})
    assert found.ranks == (1,)
    assert "The guards of torch.compile take 32.0 ms a step longer on its CPU than on the median rank's" in found.why
