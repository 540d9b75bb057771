"""What the traces cannot tell is `unknown`, with the reason: accelerators, programs and files that are not known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from traces import draw, ranks

from tb_ddp_doctor import engine
from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.facts import unrecognised
from tb_ddp_doctor.findings import Diagnosis
from tb_ddp_doctor.job import job_kind
from tb_ddp_doctor.job.build import build
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.rules import CATALOGUE
from tb_ddp_doctor.trace.reader import decode

HEALTHY = """
    rank# step     |1
          host     [fwd..]
          autograd        [bwd.......]
          gpu      [fwd..........][bwd.]
          nccl                [ar.......]
"""
SERVER = """
    rank0 host   [own_execute_1..................][own_execute_2..................][own_execute_3..................]
          within   [reshape_and_cache]               [reshape_and_cache]               [reshape_and_cache]
          gpu        [attend.................]         [attend.................]         [attend.................]
"""

Change = Callable[[dict[str, Any]], dict[str, Any] | None]


def changed(text: str, change: Change, **options: Any) -> Job:
    """The drawn job with each event changed, or left out."""
    digests = {}
    for rank, data in draw(text, **options).items():
        trace = msgspec.json.decode(data)
        trace["traceEvents"] = [kept for event in trace["traceEvents"] if (kept := change(event))]
        digests[rank] = digest(decode([msgspec.json.encode(trace)], f"rank{rank}.json"))
    return build("drawn", digests, {}, next(iter(digests.values())).header.world_size)


def diagnosed(text: str, change: Change = lambda event: event, **options: Any) -> Diagnosis:
    return engine.examine(changed(text, change, **options))


def statuses(diagnosis: Diagnosis) -> dict[str, str]:
    return {outcome.rule: outcome.status for outcome in diagnosis.outcomes}


def test_a_whole_healthy_job_is_healthy() -> None:
    job = changed(ranks(HEALTHY, HEALTHY), lambda event: event)
    assert unrecognised.reason(job) is None
    assert engine.examine(job).verdict == "healthy"


# ------------------------------------------------------------------------------------------------------ accelerators


@pytest.mark.parametrize("category", ["mtia_ccp_events", "hpu_op"])
def test_an_accelerator_that_is_not_known_is_said_with_its_busy_time(category: str) -> None:
    found = diagnosed(
        ranks(HEALTHY), lambda event: event | {"cat": category} if event["cat"] == "kernel" else event, world_size=1
    )
    assert found.verdict == "unknown"
    assert f"9 events of {category} (0.1 s busy)" in found.headline
    assert ("MTIA" in found.headline, "Gaudi" in found.headline) == ("mtia" in category, "hpu" in category)


def test_a_category_that_nobody_knows_is_said_where_no_device_event_is_left() -> None:
    found = diagnosed(
        ranks(HEALTHY), lambda event: event | {"cat": "npu_task"} if event["cat"] == "kernel" else event, world_size=1
    )
    assert found.verdict == "unknown"
    assert "9 events of npu_task" in found.headline


def test_launches_without_any_device_event_are_said() -> None:
    found = diagnosed(ranks(HEALTHY, HEALTHY), lambda event: None if event["cat"] == "kernel" else event)
    assert found.verdict == "unknown"
    assert found.headline.startswith("The GPU events are missing: the traces show 9 launch calls and no kernel.")


# ----------------------------------------------------------------------------------------------------------- captures

CAPTURE = """
    rank0 host   [warm][a][b][c][d][e][f][g]
          gpu     [warm]
          gpu2         [a][b][c][d][e][f][g]
"""


def captured(text: str, *calls: str, ran: tuple[str, ...] = ("warm",), world_size: int = 1) -> Diagnosis:
    """The drawn job in which only some kernels ran, with more runtime calls at its end."""
    digests = {}
    for rank, data in draw(text, world_size=world_size).items():
        trace = msgspec.json.decode(data)
        events = [e for e in trace["traceEvents"] if e["cat"] != "kernel" or e["name"].removesuffix("_kernel") in ran]
        last = max(event["ts"] + event["dur"] for event in events)
        made = {"ph": "X", "cat": "cuda_runtime", "pid": 100 + rank, "tid": 1, "dur": 5, "args": {"correlation": 9999}}
        events += [made | {"name": name, "ts": last + 10 * place} for place, name in enumerate(calls, 1)]
        digests[rank] = digest(decode([msgspec.json.encode(trace | {"traceEvents": events})], f"rank{rank}.json"))
    return engine.examine(build("drawn", digests, {}, world_size))


def test_the_capture_of_a_graph_is_no_step() -> None:
    found = captured(CAPTURE, "cudaStreamEndCapture", "cudaGraphInstantiate")
    assert found.verdict == "unknown"
    assert found.headline.startswith("The traces show the capture of a CUDA graph, and no step: 7 of 8 kernel launches")
    assert statuses(found)["launch-bound"] == "not-applicable"


def test_a_graph_that_is_launched_too_is_in_a_step() -> None:
    found = captured(CAPTURE, "cudaStreamEndCapture", "cudaGraphLaunch", "cudaStreamSynchronize")
    assert "capture" not in found.headline


def test_launches_whose_kernels_are_lost_are_no_capture() -> None:
    assert "capture" not in captured(CAPTURE).headline


def test_a_small_graph_captured_beside_work_that_runs_is_no_record_of_it() -> None:
    found = captured(CAPTURE, "cudaStreamEndCapture", ran=("warm", "a", "b", "c", "d", "e", "f"))
    assert "capture" not in found.headline


# ------------------------------------------------------------------------------------------------------------- ranks


def test_one_rank_of_many_cannot_split_its_communication() -> None:
    alone = """
        rank# step     |1
              autograd [bwd.......]
              gpu      [bwd..]
              nccl            [ar.............]
    """
    found = diagnosed(ranks(alone), world_size=8)
    assert (
        found.headline
        == "71 % of the step is exposed communication; one rank of 8 cannot separate straggler wait from transfer."
    )
    assert found.verdict == "unknown"


def test_copies_without_a_kernel_are_of_a_gpu_that_is_not_seen() -> None:
    """Of a bandwidth test, all of it was a stall of the CPU outside any op."""
    found = diagnosed("rank0 host [a]             [sync]\n      gpu  [pinned][pinned][pinned]", world_size=1)
    assert found.verdict == "unknown"
    assert "the traces show 3 copies of a GPU and no kernel" in found.headline


def test_most_ranks_missing_is_unknown() -> None:
    found = diagnosed(ranks(HEALTHY, HEALTHY), world_size=8)
    assert found.verdict == "unknown"
    assert found.headline == "6 of 8 ranks have no trace here: straggler wait for them is not known."


def test_half_of_the_ranks_are_enough() -> None:
    assert diagnosed(ranks(HEALTHY, HEALTHY), world_size=4).verdict == "healthy"


# ---------------------------------------------------------------------------------------------- programs of their own


def test_a_server_is_not_advised_like_training() -> None:
    found = diagnosed(SERVER, world_size=1)
    assert found.verdict in {
        "unknown",
        *(rule.id for rule in CATALOGUE.values() if rule.of_every_program or rule.of_servers),
    }
    assert "This program serves requests and does not train. In 3 iterations of " in found.headline
    assert "each a ## execute_# ##" in found.headline
    assert found.steps == (0, 1, 2)
    of_training = ("dataloader-stall", "host-stall", "unfused-optimizer", "host-sync", "find-unused-parameters")
    assert {statuses(found)[rule] for rule in of_training} == {"not-applicable"}
    advice = " ".join(finding.fix for finding in found.findings)
    assert not any(word in advice for word in ("gc.", "DataLoader", "optim", "train("))


def test_a_fault_of_every_program_is_found_in_a_server_and_speaks_of_iterations() -> None:
    starved = """
        rank0 host   [own_execute_1..................][own_execute_2..................][own_execute_3..................]
              within [reshape_and_cache][b][c]        [reshape_and_cache][b][c]        [reshape_and_cache][b][c]
              gpu                       [b][c]                           [b][c]                           [b][c]
    """
    found = diagnosed(starved, world_size=1)
    assert found.verdict == "launch-bound"
    assert "This program serves requests and does not train." in found.headline
    assert "optim" not in found.findings[0].fix


def test_what_has_a_backward_pass_trains_whatever_its_kernels_are_called() -> None:
    text = """
        rank# step     |1
              host     [reshape_and_cache]
              autograd                    [bwd.......]
              gpu      [fwd......................][bwd.]
    """
    assert job_kind.trains(changed(ranks(text), lambda event: event))


def test_forward_passes_alone_are_no_training() -> None:
    job = changed(
        "host " + "".join(f"[op{i:02}]" for i in range(25)) + "\ngpu " + "[kernel....]" * 5,
        lambda event: event,
        world_size=1,
    )
    assert job_kind.kind(job) == "inference"
    assert not job_kind.trains(job)


def test_a_loader_that_feeds_forward_passes_is_judged() -> None:
    operators = "".join(f"[op{i:02}]" for i in range(25))
    text = f"""
        rank# step |1
              host [load{"." * 94}]{operators}
              gpu  {" " * 100}[kernel{"." * 142}]
    """
    job = changed(ranks(text), lambda event: event, world_size=1)
    assert job_kind.kind(job) == "inference"
    found = engine.examine(job)
    assert found.verdict == "dataloader-stall"
    assert "does not train" in found.headline
    assert "training" not in found.findings[0].fix


def test_how_to_trace_a_server_is_said_in_its_own_terms() -> None:
    once = """
        rank0 host   [own_execute_1..................]
              within   [reshape_and_cache]
              gpu        [attend.................]
    """
    (quality,) = [one for one in diagnosed(once, world_size=1).findings if one.rule == "trace-quality"]
    assert "start_profile" in quality.fix
    assert not any(word in quality.fix for word in ("loader", "prof.step", "train("))


def graph_launches(*, copies: bool) -> Job:
    """Four launches of a graph, with a copy between each two or without."""
    host, gpu = "[pinned][go][reshape_and_cache]", "[pinned][go......]            "
    if not copies:
        host, gpu = host.replace("[pinned]", "        "), gpu.replace("[pinned]", "        ")
    text = f"rank0 host {host * 4}\n      gpu  {gpu * 4}"

    def launch(event: dict[str, Any]) -> dict[str, Any]:
        return event | {"name": "cudaGraphLaunch"} if event["name"] == "cudaLaunchKernel" else event

    return changed(text, launch, world_size=1)


def test_launches_of_a_graph_serve_as_steps_where_each_is_fed() -> None:
    job = graph_launches(copies=True)
    assert job.digests[0].contents.steps_from == "graph launch"
    assert job.steps.tolist() == [0, 1, 2]


def test_launches_of_parts_of_one_iteration_are_no_steps() -> None:
    assert graph_launches(copies=False).digests[0].contents.steps_from == ""


# ------------------------------------------------------------------------------------------------------ sampled files


def sampled(event: dict[str, Any]) -> dict[str, Any]:
    """The runtime's numbers as where most of its calls were left out."""
    if "correlation" in event["args"]:
        event["args"]["correlation"] *= 300
    return event


def test_sampled_traces_are_said_and_holes_are_no_stall() -> None:
    text = """
        rank# step |1
              host [fwd]                          [bwd]
              gpu   [fwd*20.............]          [bwd*20..........................]
              nccl                                                                   [ar...]
    """
    whole, found = diagnosed(ranks(text, text)), diagnosed(ranks(text, text), sampled)
    assert whole.verdict == "host-stall"
    assert found.verdict == "unknown"
    assert statuses(found)["host-stall"] == "not-applicable"
    assert found.headline.startswith("The traces are sampled or filtered: about 97 % of the runtime's calls")
