"""From files to a diagnosis, whatever the files are like."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import pytest
from traces import BEGINS_EARLY, BEGINS_LATE, draw, in_row, ranks, write

from tb_ddp_doctor import engine, examination
from tb_ddp_doctor.account import assemble
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.discover.runs import Run, discover
from tb_ddp_doctor.engine import Reading, RunError
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.findings import PHASES, Diagnosis, Evidence
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules import CATALOGUE
from tb_ddp_doctor.rules.support.base import Fault, Result, Rule, threshold

HEALTHY = """
    rank# step |1
          gpu  [fwd....][bwd.]
          nccl                [ar........]
"""
SLOW = """
    rank# step |1
          gpu  [fwd........][bwd.]
          nccl                    [ar....]
"""
JOB = ranks(HEALTHY, SLOW, HEALTHY)


def only_run(folder: Path) -> Run:
    (run,) = discover(folder)
    return run


def diagnose(folder: Path, executor: Executor | None = None, **options: Any) -> Diagnosis:
    reading = Reading(cache=Cache(None), executor=executor)
    return engine.diagnose(only_run(folder), reading=reading, **options).diagnosis


def said(diagnosis: Diagnosis, file: str) -> str:
    return " ".join(warning.message for warning in diagnosis.warnings if file in warning.file)


def test_a_drawn_job_is_diagnosed_from_its_files(tmp_path: Path) -> None:
    diagnosis = diagnose(write(tmp_path / "job", JOB))
    assert (diagnosis.name, diagnosis.verdict) == ("job", "straggler")
    assert (diagnosis.ranks, diagnosis.world_size, diagnosis.missing_ranks) == ((0, 1, 2), 3, ())
    assert diagnosis.steps == (1, 2, 3)
    assert diagnosis.headline == "Rank 1 (host1) costs 4.0 ms of 27.0 ms a step (15 %)."
    assert [outcome.rule for outcome in diagnosis.outcomes] == list(CATALOGUE)


def test_a_rule_may_find_several_faults(tmp_path: Path) -> None:
    usual = """
        rank# step |1
              host [fwd]
              gpu  [fwd....][bwd.]
              nccl                [ar............]
    """
    throttled = """
        rank# step |1
              host [fwd]
              gpu  [fwd........][bwd.]
              nccl                    [ar........]
    """
    late = """
        rank# step |1
              host             [fwd]
              gpu              [fwd....][bwd.]
              nccl                            [ar]
    """
    diagnosis = diagnose(write(tmp_path, ranks(usual, throttled, usual, late, usual)))
    stragglers = [finding for finding in diagnosis.findings if finding.rule == "straggler"]
    assert [(finding.cause, finding.ranks) for finding in stragglers] == [("host", (3,)), ("slow_device", (1,))]
    assert diagnosis.headline == f"Rank 3 (host3) costs 9.0 ms of {diagnosis.step_ms:.1f} ms a step (29 %)."
    (outcome,) = (outcome for outcome in diagnosis.outcomes if outcome.rule == "straggler")
    assert outcome.reason == " ".join(finding.title for finding in stragglers)


def test_the_phases_sum_to_the_step(tmp_path: Path) -> None:
    text = """
        rank# step |1
              host [load..][ddp.][step]
              gpu          [ddp......][step...]
              nccl                             [ar....]
    """
    diagnosis = diagnose(write(tmp_path, ranks(text, text)))
    for phases in diagnosis.phases_ms.values():
        assert list(phases) == list(PHASES)
        assert sum(phases.values()) == pytest.approx(diagnosis.step_ms)
    assert diagnosis.host_phases_ms["1"]["loading"] == 8


def test_the_budget_sums_to_the_step(tmp_path: Path) -> None:
    diagnosis = diagnose(write(tmp_path, JOB))
    for budget in diagnosis.budget_ms.values():
        assert sum(budget.values()) == pytest.approx(diagnosis.step_ms)


def test_progress_counts_every_file(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    diagnose(write(tmp_path, JOB), progress=lambda done, total, _: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


# --------------------------------------------------------------------------------------------------- bad files


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not json",
        b"[1, 2]",
        b"\x1f\x8b",
        b'{"distributedInfo": {"rank": 3}, "traceEvents": []}',
        b'{"distributedInfo": {"rank": 3}, "traceEvents": 7}',
        b'{"distributedInfo": {"rank": 3}, "schemaVersion": 1}',
        b'{"distributedInfo": {"rank": 3}, "traceEvents": [7, null, {"ph": "X", "cat": "kernel", "ts": "x"}]}',
    ],
)
def test_a_bad_file_costs_that_file_alone_and_is_named(tmp_path: Path, content: bytes) -> None:
    folder = write(tmp_path, ranks(HEALTHY, SLOW, HEALTHY, HEALTHY))
    (folder / "host3_103.1700000000000000000.pt.trace.json").write_bytes(content)
    diagnosis = diagnose(folder)
    assert diagnosis.verdict == "straggler"
    assert (diagnosis.ranks, diagnosis.missing_ranks) == ((0, 1, 2), (3,))
    assert "Rank 3 is left out" in said(diagnosis, "host3_103")


def test_a_file_that_is_cut_off_is_diagnosed_as_far_as_it_goes(tmp_path: Path) -> None:
    folder = write(tmp_path, ranks(HEALTHY, SLOW, steps=5))
    (cut,) = folder.glob("host1_*")
    cut.write_bytes(cut.read_bytes()[:-200])
    diagnosis = diagnose(folder)
    assert diagnosis.ranks == (0, 1)
    assert said(diagnosis, "host1_")


def test_only_bad_files_are_a_run_error_that_names_them(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"rank{rank}.pt.trace.json").write_bytes(b"not json")
    with pytest.raises(RunError, match=r"rank0\.pt\.trace\.json.*rank1\.pt\.trace\.json"):
        diagnose(tmp_path)


def test_a_run_without_a_whole_step_says_why(tmp_path: Path) -> None:
    unlinked = """
        rank# step |1
              gpu  [?fwd....]
    """
    with pytest.raises(RunError, match="No kernel can be joined to its launch"):
        diagnose(write(tmp_path, ranks(unlinked, unlinked)))


class Failing(Executor):
    """Runs in place; fails for the file of one rank."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:  # type: ignore[override]
        future: Future[Any] = Future()
        if "host1_" in str(args[0]):
            future.set_exception(self._error)
        else:
            future.set_result(fn(*args, **kwargs))
        return future


def test_an_unexpected_exception_costs_that_file_alone(tmp_path: Path) -> None:
    folder = write(tmp_path, ranks(HEALTHY, HEALTHY, SLOW, HEALTHY))
    diagnosis = diagnose(folder, Failing(ZeroDivisionError("oh")))
    assert (diagnosis.verdict, diagnosis.ranks) == ("straggler", (0, 2, 3))
    assert "the doctor's fault" in said(diagnosis, "host1_") and "ZeroDivisionError: oh" in said(diagnosis, "host1_")


class Deadly(Cache):
    """Its process dies of the file of rank 1."""

    def digest(self, path: Path) -> Any:
        if "host1_" in str(path):
            os._exit(1)
        return super().digest(path)


def test_a_process_that_dies_costs_that_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tb_ddp_doctor.workers.pool._WORTH_PROCESSES", 0)
    folder = write(tmp_path, ranks(HEALTHY, HEALTHY, SLOW, HEALTHY))
    diagnosis = engine.diagnose(only_run(folder), reading=Reading(cache=Deadly(None))).diagnosis
    assert (diagnosis.verdict, diagnosis.ranks) == ("straggler", (0, 2, 3))
    assert "Rank 1 is left out" in said(diagnosis, "host1_")


# ------------------------------------------------------------------------------------------------------- ranks


def test_the_rank_in_the_file_beats_the_one_in_its_name(tmp_path: Path) -> None:
    for rank, data in draw(ranks(HEALTHY, SLOW)).items():
        # Behind the head that discovery reads, the file says otherwise than its name.
        body = data.replace(b'"distributedInfo"', b'"later"', 1)[:-1]
        info = f', "distributedInfo": {{"rank": {rank}, "world_size": 2}}, "tail": "{"x" * 70_000}"}}'
        (tmp_path / f"rank{1 - rank}.pt.trace.json").write_bytes(body + info.encode())
    diagnosis = diagnose(tmp_path)
    assert diagnosis.ranks == (0, 1)
    assert diagnosis.findings[0].ranks == (1,)


def test_two_files_of_one_rank_are_said(tmp_path: Path) -> None:
    for name, data in zip("ab", (draw(ranks(HEALTHY, SLOW))[0],) * 2, strict=True):
        body = data.replace(b'"distributedInfo"', b'"later"', 1)[:-1]
        info = f', "distributedInfo": {{"rank": 0, "world_size": 2}}, "tail": "{"x" * 70_000}"}}'
        (tmp_path / f"{name}.pt.trace.json").write_bytes(body + info.encode())
    diagnosis = diagnose(tmp_path)
    assert diagnosis.ranks == (0,)
    assert "claims rank 0" in said(diagnosis, "b.pt.trace")


def test_missing_ranks_are_said(tmp_path: Path) -> None:
    diagnosis = diagnose(write(tmp_path, JOB, world_size=5))
    assert diagnosis.missing_ranks == (3, 4)
    assert "2 of 5 ranks have no usable trace here (3, 4)" in said(diagnosis, diagnosis.name)


def test_a_healthy_part_of_a_job_is_not_called_healthy(tmp_path: Path) -> None:
    diagnosis = diagnose(write(tmp_path, ranks(HEALTHY, HEALTHY), world_size=4))
    assert diagnosis.verdict == "healthy"
    assert diagnosis.headline.startswith("No fault found in these traces, but 2 of 4 ranks have no usable trace here")


@pytest.mark.parametrize("job", [ranks(HEALTHY, HEALTHY, HEALTHY, steps=6), JOB], ids=["healthy", "slow"])
@pytest.mark.parametrize(
    ("damage", "how"),
    [
        (lambda data: data[: len(data) * 9 // 10], "1 file is incomplete"),
        (lambda data: data[: len(data) * 9 // 10] + bytes(500), "1 file is incomplete"),
        (lambda data: b"{", "1 file is unreadable"),
    ],
    ids=["cut", "zeros", "garbage"],
)
def test_a_heading_says_that_files_are_incomplete(
    tmp_path: Path, job: str, damage: Callable[[bytes], bytes], how: str
) -> None:
    folder = write(tmp_path / "job", job)
    half = sorted(folder.glob("*.json"))[2]
    half.write_bytes(damage(half.read_bytes()))
    diagnosis = diagnose(folder)
    assert diagnosis.incomplete == (str(half),)
    if diagnosis.verdict == "healthy":
        assert diagnosis.headline.startswith("No fault found in these traces, but ")
        assert how in diagnosis.headline
    else:
        assert diagnosis.headline == f"Rank 1 (host1) costs 4.0 ms of 27.0 ms a step (15 %). {how}."


def test_ranks_that_share_no_collective_are_not_called_healthy(tmp_path: Path) -> None:
    alone = """
        rank# step |1
              gpu  [fwd......]
    """
    diagnosis = diagnose(write(tmp_path, ranks(alone, alone)))
    assert diagnosis.verdict == "healthy"
    assert "no collective could be matched" in diagnosis.headline


def test_one_rank_alone_is_diagnosed_without_waits(tmp_path: Path) -> None:
    diagnosis = diagnose(write(tmp_path, ranks(SLOW), world_size=4))
    assert diagnosis.budget_ms["0"]["wait"] == 0
    assert diagnosis.clock.residual_us is None
    status = {outcome.rule: outcome.status for outcome in diagnosis.outcomes}
    assert status["straggler"] == status["no-overlap"] == "not-applicable"


def test_rank_numbers_may_have_gaps(tmp_path: Path) -> None:
    text = ranks(HEALTHY, HEALTHY, HEALTHY, SLOW)
    without = "\n".join(line for line in text.splitlines() if not line.startswith(("rank0", "rank2")))
    diagnosis = diagnose(write(tmp_path, without, world_size=4))
    assert (diagnosis.ranks, diagnosis.missing_ranks) == ((1, 3), (0, 2))
    assert diagnosis.findings[0].ranks == (3,)
    assert list(diagnosis.budget_ms) == ["1", "3"]


def test_two_world_sizes_in_one_job_are_said(tmp_path: Path) -> None:
    folder = write(tmp_path, ranks(HEALTHY, SLOW))
    (odd,) = folder.glob("host1_*")
    odd.write_bytes(odd.read_bytes().replace(b'"world_size":2', b'"world_size":4'))
    diagnosis = diagnose(folder)
    assert diagnosis.ranks == (0, 1)
    assert "disagree about the world size" in " ".join(warning.message for warning in diagnosis.warnings)


@pytest.mark.parametrize(("rank", "size"), [(1, 10**9 - 1), (10**9 - 1, 2), (10**30, 10**30)])
def test_numbers_that_no_job_has_cost_neither_time_nor_memory(tmp_path: Path, rank: int, size: int) -> None:
    folder = write(tmp_path, ranks(HEALTHY, SLOW))
    (odd,) = folder.glob("host1_*")
    claim = f'"rank":{rank},"world_size":{size}'.encode()
    odd.write_bytes(re.sub(rb'"rank":1,"world_size":2', claim, odd.read_bytes()))
    (diagnosis,) = [
        engine.diagnose(run, reading=Reading(cache=Cache(None))).diagnosis
        for run in discover(folder)
        if any("host0_" in file.path.name for file in run.files)
    ]
    assert diagnosis.ranks[0] == 0
    assert len(diagnosis.missing_ranks) <= 2


@pytest.mark.parametrize("said", ["-4", '"4"', "2.5", "[4]", "1000000000", "true"])
def test_a_world_size_that_is_none_is_said(tmp_path: Path, said: str) -> None:
    folder = write(tmp_path, ranks(HEALTHY, SLOW, HEALTHY))
    (odd,) = folder.glob("host0_*")
    odd.write_bytes(odd.read_bytes().replace(b'"world_size":3', f'"world_size":{said}'.encode()))
    diagnosis = diagnose(folder)
    assert (diagnosis.ranks, diagnosis.world_size, diagnosis.missing_ranks) == ((0, 1, 2), 3, ())
    assert any(
        "world" in warning.message and "ignored" in warning.message
        for warning in diagnosis.warnings
        if warning.file == str(odd)
    )


@pytest.mark.parametrize(("rank", "size"), [(1_048_575, 1_048_576), (1_048_575, 2), (100_000, 100_001), (4_000, 2)])
def test_a_rank_far_beyond_the_job_is_left_out_and_said(tmp_path: Path, rank: int, size: int) -> None:
    folder = write(tmp_path, ranks(HEALTHY, SLOW, HEALTHY))
    (odd,) = folder.glob("host2_*")
    claim = f'"rank":{rank},"world_size":{size}'.encode()
    odd.write_bytes(re.sub(rb'"rank":2,"world_size":3', claim, odd.read_bytes()))
    diagnosis = diagnose(folder)
    assert (diagnosis.ranks, diagnosis.world_size, diagnosis.missing_ranks) == ((0, 1), 3, (2,))
    assert diagnosis.findings[0].ranks == (1,)
    assert f"Left out: it claims rank {rank:,}" in said(diagnosis, "host2_")
    assert len(msgspec.json.encode(diagnosis)) < 100_000


def test_one_file_with_the_content_of_another_is_said(tmp_path: Path) -> None:
    folder = write(tmp_path, ranks(HEALTHY, SLOW, HEALTHY))
    (straggler,), (other,) = folder.glob("host1_*"), folder.glob("host2_*")
    other.write_bytes(straggler.read_bytes())
    diagnosis = diagnose(folder)
    assert (diagnosis.ranks, diagnosis.missing_ranks) == ((0, 1), (2,))
    assert "rank 1 is also claimed by" in said(diagnosis, "host")
    other.write_bytes(straggler.read_bytes().replace(b'"rank":1', b'"rank":2'))
    diagnosis = diagnose(folder)
    assert (diagnosis.ranks, diagnosis.missing_ranks, diagnosis.findings[0].ranks) == ((0, 1), (2,), (1,))
    assert "one is a copy" in said(diagnosis, "host2_")


def test_what_follows_the_end_of_the_json_is_said(tmp_path: Path) -> None:
    folder = write(tmp_path, ranks(HEALTHY, SLOW, HEALTHY))
    (odd,) = folder.glob("host0_*")
    size = len(odd.read_bytes())
    odd.write_bytes(odd.read_bytes() + b'\n{"more": 1}\n')
    diagnosis = diagnose(folder)
    assert diagnosis.ranks == (0, 1, 2) and not diagnosis.incomplete
    assert said(diagnosis, "host0_") == f"what follows the end of the JSON at byte {size:,} was ignored: 11 bytes"


def no_kernels(data: bytes) -> bytes:
    trace = msgspec.json.decode(data)
    trace["traceEvents"] = [event for event in trace["traceEvents"] if event["cat"] != "kernel"]
    return msgspec.json.encode(trace)


def test_a_rank_without_device_events_is_missing_and_its_file_named(tmp_path: Path) -> None:
    folder = write(tmp_path, ranks(HEALTHY, SLOW, HEALTHY, HEALTHY))
    (odd,) = folder.glob("host3_*")
    odd.write_bytes(no_kernels(odd.read_bytes()))
    diagnosis = diagnose(folder)
    assert (diagnosis.missing_ranks, diagnosis.incomplete) == ((3,), (str(odd),))
    assert "its trace has no GPU events" in said(diagnosis, "host3_")
    assert diagnosis.headline == "Rank 1 (host1) costs 4.0 ms of 27.0 ms a step (15 %). 1 file is damaged."


# ------------------------------------------------------------------------------------------------------- steps


def test_a_trace_without_steps_is_one_step_and_says_so(tmp_path: Path) -> None:
    text = "\n".join(line for line in JOB.splitlines() if "|" not in line)
    diagnosis = diagnose(write(tmp_path, text))
    assert diagnosis.steps == (0,)
    assert "prof.step()" in said(diagnosis, diagnosis.name)


def test_cpus_alone_are_diagnosed(tmp_path: Path) -> None:
    fast = """
        rank# step |1
              host [fwd......]
              gloo            [ar........]
    """
    slow = """
        rank# step |1
              host [fwd..........]
              gloo                [ar....]
    """
    diagnosis = diagnose(write(tmp_path, ranks(fast, slow)))
    assert (diagnosis.verdict, diagnosis.findings[0].ranks) == ("straggler", (1,))


def first_step(tmp_path: Path, *drawings: str) -> Diagnosis:
    """A healthy job whose ranks' first step is drawn apart."""
    return diagnose(write(tmp_path, in_row(ranks(*drawings, steps=1), ranks(*[HEALTHY] * len(drawings), steps=4))))


def test_a_first_step_that_the_profilers_start_holds_is_left_out(tmp_path: Path) -> None:
    starting = """
        rank# step |1
              host [flush.................][fwd][bwd]
              gpu                          [fwd....][bwd.]
              nccl                                        [ar........]
    """
    diagnosis = first_step(tmp_path, starting, starting)
    assert diagnosis.steps == (2, 3, 4, 5)
    assert "Step 1 is left out: the start of the profiler blocks the CPU" in said(diagnosis, diagnosis.name)


#: At the end of each step the CPUs wait for their GPUs, and are then outside any op.
ENDS_IDLE = """
    rank# step |1
          host [fwd][bwd][sync......]            [log]
          gpu   [fwd.....][bwd.]
          nccl                  [ar.]
"""


def test_a_first_step_without_the_idle_that_other_steps_begin_with_is_left_out(tmp_path: Path) -> None:
    diagnosis = diagnose(write(tmp_path, ranks(ENDS_IDLE, ENDS_IDLE, steps=5)))
    assert diagnosis.steps == (2, 3, 4, 5)
    assert "Step 1 is left out: before each of the other steps the GPUs idle for 17.0 ms" in said(diagnosis, "")
    assert (diagnosis.verdict, diagnosis.findings[0].cost_ms) == ("host-stall", pytest.approx(12, abs=1))


def test_a_first_step_stays_where_one_step_of_two_others_begins_idle(tmp_path: Path) -> None:
    usual, pauses = (ENDS_IDLE.replace("            [log]", f"{'':{ms}}[log]") for ms in (0, 36))
    diagnosis = diagnose(write(tmp_path, in_row(*[ranks(one, one, steps=1) for one in (usual, pauses, usual)])))
    assert diagnosis.steps == (1, 2, 3)


def test_a_first_step_that_ranks_begin_apart_is_left_out(tmp_path: Path) -> None:
    diagnosis = first_step(tmp_path / "late", BEGINS_EARLY, BEGINS_LATE)
    assert diagnosis.steps == (2, 3, 4, 5)
    assert "the ranks begin it 12.0 ms apart" in said(diagnosis, diagnosis.name)
    # Twelve milliseconds do not explain another forty.
    longer = [
        text.replace("[bwd.]", f"[bwd.{'.' * 40}]").replace("[ar", f"{' ' * 40}[ar")
        for text in (BEGINS_EARLY, BEGINS_LATE)
    ]
    assert first_step(tmp_path / "longer", *longer).steps == (1, 2, 3, 4, 5)


#: Rank 0 begins each step, the first one too, 8 ms after rank 1, which is through with the last as much sooner.
LATE_IN_EACH_STEP = """
    rank0 step         |1{more}                        |2                        |3
          host         [fwd]{more}    [sync...]        [fwd]    [sync...]        [fwd]    [sync...]
          gpu          [fwd{long}....]                 [fwd....]                 [fwd....]
          nccl                 {more} [ar.....]                 [ar.....]                 [ar.....]
    rank1 step |1{more}                        |2                        |3                        |4
          host [fwd]{more}    [sync...........][fwd]    [sync...........][fwd]    [sync...........]      [no]
          gpu  [fwd{long}....]                 [fwd....]                 [fwd....]
          nccl         {more} [ar.............]         [ar.............]         [ar.............]
"""


def test_a_first_step_longer_than_by_what_ranks_begin_apart_is_kept(tmp_path: Path) -> None:
    alike = diagnose(write(tmp_path / "alike", LATE_IN_EACH_STEP.format(more="", long="")))
    assert "the ranks begin it 8.0 ms apart" in said(alike, alike.name)
    longer = diagnose(write(tmp_path / "longer", LATE_IN_EACH_STEP.format(more=" " * 20, long="." * 20)))
    assert longer.steps == (1, 2, 3)


def accumulates(rank: int, begins: tuple[int, ...], meets: tuple[int, ...]) -> str:
    """A rank whose steps begin so, ms, compute 18 ms, and in each third wait until so for the other's gradients."""
    lanes = {lane: [" "] * 220 for lane in ("step", "host", "gpu", "nccl")}

    def draw(lane: str, at: int, text: str) -> None:
        lanes[lane][at : at + len(text)] = text

    for number, begin in enumerate(begins, start=1):
        draw("step", begin, f"|{number}")
        draw("host", begin, "[fwd.............]")
        draw("gpu", begin + 1, "[fwd............]")
    for begin, end in zip(begins[2::3], meets, strict=True):
        draw("host", begin + 18, f"[sync{'.' * (end - begin - 24)}]")
        draw("nccl", begin + 18, f"[ar{'.' * (end - begin - 22)}]")
    return f"rank{rank} " + "".join(f"{lane:>5} {''.join(drawn).rstrip()}\n" for lane, drawn in lanes.items())


def test_steps_that_accumulate_are_left_out_until_ranks_that_begin_apart_meet(tmp_path: Path) -> None:
    """Rank 0 stalls 12 ms at the end of each step; what it stalled before the record delays the first meeting, too."""
    late = accumulates(0, (12, 42, 72, 108, 138, 168), (96, 192))
    early = accumulates(1, (0, 18, 36, 96, 114, 132), (96, 192))
    diagnosis = diagnose(write(tmp_path, late + early))
    assert diagnosis.steps == (4, 5, 6)
    assert "lasts until step 3, the first in which ranks wait for each other" in said(diagnosis, diagnosis.name)
    assert diagnosis.findings[0].ranks == (0,)


def test_a_ranks_fault_in_its_first_step_is_a_fault(tmp_path: Path) -> None:
    slow = """
        rank# step |1
              host [fwd]                     [bwd]
              gpu   [fwd....]                 [bwd.]
              nccl                                  [ar......]
    """
    waits = """
        rank# step |1
              host [fwd][bwd]
              gpu   [fwd....][bwd.]
              nccl                 [ar.......................]
    """
    text = in_row(ranks(slow, waits, waits, steps=1), ranks(SLOW, HEALTHY, HEALTHY, steps=2))
    diagnosis = diagnose(write(tmp_path, text))
    assert diagnosis.steps == (1, 2, 3)
    assert (diagnosis.verdict, diagnosis.findings[0].ranks) == ("straggler", (0,))


def test_a_first_step_is_left_out_whose_work_was_launched_before(tmp_path: Path) -> None:
    rest = """
        rank# step |1
              gpu  [?forward][bwd]
              nccl                [ar]
    """
    diagnosis = first_step(tmp_path, rest, rest)
    assert diagnosis.steps == (2, 3, 4, 5)
    assert "part of its work was launched before the trace" in said(diagnosis, diagnosis.name)


def test_a_first_step_with_less_to_do_is_a_step_of_the_job(tmp_path: Path) -> None:
    """All that runs in it was launched in it: nothing of it came before the record."""
    less = """
        rank# step |1
              host [bwd]
              gpu  [bwd]
              nccl      [ar]
    """
    diagnosis = first_step(tmp_path, less, less)
    assert diagnosis.steps == (1, 2, 3, 4, 5)
    assert "launched before the trace" not in said(diagnosis, diagnosis.name)


def test_a_rank_that_stopped_early_leaves_the_steps_that_all_have(tmp_path: Path) -> None:
    long, short = ranks(HEALTHY, SLOW, steps=5), ranks(HEALTHY, SLOW, steps=3)
    text = "\n".join(
        line for text, rank in ((long, "rank0"), (short, "rank1")) for line in text.splitlines() if rank in line
    )
    assert diagnose(write(tmp_path, text)).steps == (1, 2, 3)


def from_step_11(text: str, which: str) -> str:
    """The drawn ranks with ten added to the numbers of their steps."""
    return re.sub(rf"(?m)^rank[{which}] step.*$", lambda line: re.sub(r"\|(\d) ", r"|1\1", line[0]), text)


#: The drawn steps are recorded ten steps later.
LATER_MS = 10.0 * HEALTHY.splitlines()[3].index("]")


def test_a_rank_that_shares_no_step_is_left_out_and_said(tmp_path: Path) -> None:
    text = from_step_11(ranks(HEALTHY, SLOW, HEALTHY), "2")
    diagnosis = diagnose(write(tmp_path, text, clock_ms={2: LATER_MS}))
    assert (diagnosis.ranks, diagnosis.missing_ranks) == ((0, 1), (2,))
    assert "shares no step" in said(diagnosis, "host2_")


def test_ranks_in_pairs_of_other_steps_keep_all_steps_of_one_pair(tmp_path: Path) -> None:
    text = from_step_11(ranks(HEALTHY, SLOW, HEALTHY, HEALTHY, steps=3), "23")
    diagnosis = diagnose(write(tmp_path, text, clock_ms={2: LATER_MS, 3: LATER_MS}))
    assert (diagnosis.ranks, diagnosis.steps) == ((0, 1), (1, 2, 3))


# ------------------------------------------------------------------------------------------------------- rules


class Raising(Rule):
    id = "raising"

    def check(self, *, frame: Frame) -> Result:
        raise RuntimeError("no idea")


class Costly(Rule):
    """Would save its share of the step on the device."""

    id = "costly"
    share: float = threshold(0.9, "of the step", "It says so.")

    def check(self, *, frame: Frame, whatif: WhatIf) -> Result:
        change = Change(device_ns=np.full(whatif.shape, round(self.share * frame.step_ns)))
        return Fault(change, "high", "It costs.", "So.", "Fix.", (Evidence(0, 1, 0, 1, "It."),), ranks=(0,), steps=(1,))


class Special(Costly):
    """Would save the same, and is to be charged with it."""

    id = "special"
    refines = "general"


class General(Costly):
    id = "general"


class Telling(Costly):
    id = "significant"
    only_informs = True


def test_a_rule_that_raises_ends_as_an_error_and_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "CATALOGUE", {"raising": Raising(), **CATALOGUE})
    diagnosis = diagnose(write(tmp_path, JOB))
    assert diagnosis.verdict == "straggler"
    (error,) = [outcome for outcome in diagnosis.outcomes if outcome.status == "error"]
    assert (error.rule, error.reason) == ("raising", "The rule failed (RuntimeError: no idea).")


def test_a_rule_that_raised_is_not_called_healthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "CATALOGUE", {"raising": Raising()})
    diagnosis = diagnose(write(tmp_path, ranks(HEALTHY, HEALTHY)))
    assert diagnosis.verdict == "healthy"
    assert "1 of 1 rules on faults failed" in diagnosis.headline


def test_what_no_rule_explains_is_not_called_healthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "CATALOGUE", {})
    diagnosis = diagnose(write(tmp_path, JOB))
    assert diagnosis.verdict == "unexplained"
    assert diagnosis.headline.startswith("4.0 ms of every 27.0 ms (15 %) is unexplained: mostly kernels that take")
    assert "on rank 1, in every step" in diagnosis.headline
    unexplained = diagnosis.account.unexplained
    assert unexplained is not None and (unexplained.owner, unexplained.ranks) == ("compute", (1,))
    assert diagnosis.account.line("unexplained").ms == pytest.approx(4, rel=0.01)


def test_what_is_unexplained_while_no_gpu_idles_is_communications(tmp_path: Path) -> None:
    """A CPU that launched earlier would save time, but no GPU waits for it: neither is it launch-bound nor idle."""
    text = """
        rank# step |1
              host [a][b]
              gpu  [a...][b......]
              nccl               [ar...]
    """
    diagnosis = diagnose(write(tmp_path, ranks(text, text)))
    assert not diagnosis.findings
    assert "is unexplained: mostly communication that takes longer" in diagnosis.headline


def shares(folder: Path, monkeypatch: pytest.MonkeyPatch, *rules: Rule) -> dict[str, tuple[float, float, str]]:
    """By rule: what it is charged with, and what its fix alone would save, as shares of the step; and its severity."""
    monkeypatch.setattr(examination, "CATALOGUE", {str(i): rule for i, rule in enumerate(rules)})
    found = diagnose(write(folder, JOB))
    return {
        f"{each.rule} {i}": (
            round(each.cost_ms / found.step_ms, 2),
            round(each.alone_ms / found.step_ms, 2),
            each.severity,
        )
        for i, each in enumerate(found.findings)
    }


def test_costs_never_add_up_to_more_than_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    charged = list(shares(tmp_path, monkeypatch, Costly(0.7), Costly(0.6), Costly(0.5)).values())
    assert sum(cost for cost, _, _ in charged) <= 1
    assert charged[0][0] == charged[0][1]
    assert all(cost < alone for cost, alone, _ in charged[1:])


def test_what_two_would_give_back_is_charged_to_the_more_special_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    charged = shares(tmp_path, monkeypatch, General(0.9), Special(0.8))
    assert list(charged) == ["special 0", "general 1"]
    special, general = charged.values()
    assert special[0] == special[1] < general[1]
    assert general[0] < general[1]


def test_what_only_informs_is_no_alarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    charged = shares(tmp_path, monkeypatch, Costly(0.3), Telling(0.2))
    assert charged["significant 1"][2] == "info" and charged["significant 1"][0] > 0.1
    assert diagnose(tmp_path).verdict == "costly"


def test_the_verdict_is_the_costliest_finding_above_info(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    healthy = ranks(HEALTHY, HEALTHY)
    monkeypatch.setattr(examination, "CATALOGUE", {"costly": Costly(0.029)})
    assert diagnose(write(tmp_path, healthy)).verdict == "healthy"
    monkeypatch.setattr(examination, "CATALOGUE", {"costly": Costly(0.031)})
    assert diagnose(write(tmp_path, healthy)).verdict == "costly"


def test_settings_set_a_threshold_and_are_shown(tmp_path: Path) -> None:
    diagnosis = diagnose(write(tmp_path, JOB), settings={"straggler": {"min_excess": 0.1}})
    assert {limit.name: limit.value for limit in diagnosis.findings[0].thresholds}["min_excess"] == 0.1
    assert diagnose(tmp_path, settings={"straggler": {"min_excess": 0.5}}).verdict == "unexplained"


@pytest.mark.parametrize("settings", [{"straggle": {"min_excess": 1.0}}, {"straggler": {"excess": 1.0}}])
def test_settings_that_name_nothing_are_refused(tmp_path: Path, settings: dict[str, dict[str, float]]) -> None:
    with pytest.raises(ValueError, match=r"There is no rule 'straggle'|has no threshold 'excess'"):
        diagnose(write(tmp_path, JOB), settings=settings)


def test_a_name_that_is_no_text_can_still_be_encoded(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/b\xffd"))
    diagnosis = diagnose(write(folder, JOB))
    assert msgspec.json.decode(msgspec.json.encode(diagnosis))["name"] == "b\\udcffd"


@pytest.mark.parametrize(("module", "stage"), [(engine, "build"), (examination, "assemble")])
def test_a_job_that_cannot_be_joined_or_examined_is_a_run_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, stage: str
) -> None:
    def fail(*_: object) -> None:
        raise IndexError("out of bounds")

    monkeypatch.setattr(module, stage, fail)
    with pytest.raises(RunError, match=r"the doctor's fault.*IndexError: out of bounds"):
        diagnose(write(tmp_path, JOB))


def test_a_path_that_fails_takes_nothing_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
        rank# step |1
              host [fwd][bwd]
              gpu  [fwd....][bwd.]
    """
    folder = write(tmp_path / "job", ranks(text, text))
    whole = diagnose(folder)
    assert [step.step for step in whole.critical_path] == [1, 2, 3]

    def fail(*_: object) -> None:
        raise IndexError

    monkeypatch.setattr(assemble, "critical_path", fail)
    assert diagnose(folder) == msgspec.structs.replace(whole, critical_path=())
