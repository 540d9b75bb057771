"""Jobs that compute on CPUs and communicate over gloo: drawn, and captured on the spot from real ones."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tb_ddp_doctor import engine
from tb_ddp_doctor.cli import main
from tb_ddp_doctor.config.read import Settings
from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.digest.model import RankDigest, RankOwner
from tb_ddp_doctor.discover.runs import discover
from tb_ddp_doctor.evidence.model import RankEvidence
from tb_ddp_doctor.findings import OWNERS, Finding
from tb_ddp_doctor.job.build import build
from tb_ddp_doctor.trace.reader import decode, read

MS = 1_000_000
_MAIN, _GLOO = 1, 2


# ------------------------------------------------------------------------------------------------ one rank, drawn


def rank(*events: tuple[str, str, int, int, int], dims: dict[str, Any] | None = None, groups: int = 1) -> RankDigest:
    """A rank with one step of 100 ms, from (category, name, thread, first ms, last ms); `dims` by name."""
    listed = [
        {
            "ph": "X",
            "cat": category,
            "name": name,
            "pid": 1,
            "tid": thread,
            "ts": start * 1000,
            "dur": (end - start) * 1000,
            "args": {"Input Dims": dims[name]} if dims and name in dims else {},
        }
        for category, name, thread, start, end in (("user_annotation", "ProfilerStep#1", _MAIN, 0, 100), *events)
    ]
    configured = [{"pg_name": str(group), "ranks": [0, 1]} for group in range(groups)]
    about = {"rank": 0, "world_size": 2, "pg_config": configured}
    return digest(decode([msgspec.json.encode({"distributedInfo": about, "traceEvents": listed})], "rank0"))


def owned(of: RankDigest) -> dict[str, int]:
    """Milliseconds by owner, those that own some."""
    (row,) = of.work.owner_ns.tolist()
    assert sum(row) == 100 * MS
    return {owner.name.lower(): row[owner] // MS for owner in RankOwner if row[owner]}


def op(name: str, start: int, end: int, thread: int = _MAIN) -> tuple[str, str, int, int, int]:
    return ("cpu_op", name, thread, start, end)


def gloo(start: int, end: int) -> tuple[str, str, int, int, int]:
    return ("user_annotation", "gloo:all_reduce", _GLOO, start, end)


NODE = "autograd::engine::evaluate_function: ReduceBackward"


def test_a_thread_that_awaits_a_collective_outside_of_operators_does_not_compute() -> None:
    """As DDP does at the end of its backward pass."""
    drawn = rank(op("aten::mm", 0, 20), op("c10d::allreduce_", 20, 21), op("aten::mm", 21, 40), gloo(21, 90))
    assert owned(drawn) == {"compute": 39, "communication": 50, "dispatch": 1, "host": 10}


def test_a_node_of_autograd_that_awaits_a_collective_does_not_compute() -> None:
    drawn = rank(op(NODE, 10, 90), op("c10d::allreduce_", 20, 22), gloo(22, 80))
    assert owned(drawn) == {"compute": 20, "communication": 58, "dispatch": 2, "host": 20}


def test_what_computes_within_such_a_node_computes() -> None:
    drawn = rank(op(NODE, 10, 90), op("c10d::allreduce_", 20, 22), op("aten::mm", 30, 50), gloo(22, 80))
    assert owned(drawn) == {"compute": 40, "communication": 38, "dispatch": 2, "host": 20}


def test_a_tensor_that_awaits_itself_does_not_compute() -> None:
    drawn = rank(op("aten::add", 0, 90), op("_c10d_functional::wait_tensor", 5, 85), gloo(0, 80))
    assert owned(drawn) == {"compute": 5, "communication": 80, "dispatch": 5, "host": 10}


def test_a_call_on_another_thread_is_not_within_an_operator() -> None:
    drawn = rank(op("aten::mm", 0, 90), op("c10d::allreduce_", 20, 22, thread=_GLOO + 1), gloo(22, 80))
    assert owned(drawn) == {"compute": 88, "dispatch": 2, "host": 10}


def test_operators_are_kernels_with_as_many_blocks_as_elements() -> None:
    drawn = rank(
        op("aten::mm", 0, 20), op("aten::mm", 20, 40), op("aten::view", 40, 50), dims={"aten::mm": [[2, 3], [3, 4]]}
    )
    kernels = drawn.kernels
    assert [drawn.strings[i] for i in kernels.name] == ["aten::mm"]
    assert [drawn.strings[i] for i in kernels.shape] == ["[18]"]
    assert kernels.count.tolist() == [2]
    assert kernels.total_ns.tolist() == [40 * MS]


def test_several_process_groups_are_told_since_gloo_does_not_name_them() -> None:
    assert not rank(gloo(0, 10)).warnings
    assert not rank(op("aten::mm", 0, 10), groups=2).warnings
    (warning,) = rank(gloo(0, 10), groups=2).warnings
    assert "in 2 process groups" in warning.message


def test_no_waiting_for_cores_makes_a_rank_call_more_operators() -> None:
    """Where the same operators take longer, waiting for a core may be why."""
    dims = {"aten::mm": [[64, 64], [64, 64]]}

    def drawn(until: int, calls: int, **waited: float) -> Finding:
        """Rank 1 computes until then, in so many calls, and the others wait for it."""
        usual = rank(op("aten::mm", 0, 20), gloo(20, 95), dims=dims)
        each = until // calls
        slow = rank(*(op("aten::mm", i * each, (i + 1) * each) for i in range(calls)), gloo(until, 95), dims=dims)
        built = build("drawn", {0: usual, 1: slow, 2: usual}, dict.fromkeys(range(3), "host"), 3)
        return engine.examine(replace(built, rank_evidence={1: RankEvidence(**waited)})).findings[0]

    for calls, cause, lowered in ((4, "more_work", False), (1, "slow_device", True)):
        finding = drawn(80, calls)
        assert (finding.rule, finding.ranks, finding.cause) == ("straggler", (1,), cause)
        assert (drawn(80, calls, core_wait_ms=60.0).confidence != finding.confidence) == lowered


# ------------------------------------------------------------------------------------------------ real jobs

_JOB = Path(__file__).with_name("gloo_job.py")
_RANKS = 2
#: What `gloo_job` injects.
FAULT_MS = 150.0
#: A capture of which the machine takes more than this in a step says nothing of the rules, ms (`taken_ms`).
_DISTURBED_MS = FAULT_MS / 10
#: So often at most is a scenario captured until no rank is killed, and the machine leaves it alone.
_TRIES = 3
#: What `gloo_job` returns is this and a signal where a rank was killed.
_KILLED = 128
#: A healthy job's ranks differ on few cores, beside whatever else runs there: faults here are much larger.
_OF_A_BUSY_MACHINE = {
    "straggler": {"min_excess": 0.25},
    "load-imbalance": {"min_cost": 0.25},
    "host-stall": {"min_share": 0.25},
    "communication-bound": {"min_exposed": 0.5},
}


def ran_job(folder: Path, outs: dict[str, Path]) -> int:
    """What `gloo_job.py` returns that captures each scenario into its directory, from within `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    # Python stacks name the script by its path.
    script = Path(shutil.copy(_JOB, folder))
    wanted = [str(part) for scenario in outs.items() for part in scenario]
    environment = os.environ | {
        "WORLD_SIZE": str(_RANKS),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        # Else torch takes the script's directory off its path.
        "PYTHONSAFEPATH": "1",
    }
    command = [sys.executable, str(script), str(folder / "store"), *wanted]
    ran = subprocess.run(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=300, check=False
    )
    print(ran.stderr)  # noqa: T201
    return ran.returncode


def capture(folder: Path, *scenarios: str) -> dict[str, Path]:
    """Run the job of `gloo_job.py`, from within `folder`, and return the directory of each scenario.

    Where a rank was killed, the job runs again: torch's recorder of Python stacks ends by SIGSEGV now and then.
    """
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs PyTorch: pip install -e '.[test,torch]'")
    for attempt in range(1, _TRIES + 1):
        here = folder / str(attempt)
        outs = {scenario: here / scenario for scenario in scenarios}
        code = ran_job(here, outs)
        if code <= _KILLED:
            break
    assert code == 0, f"the job returned {code}, see what it said"
    return outs


def taken_ms(out: Path) -> float:
    """What the machine took from the ranks of a capture, in a step of all: how long threads waited for a core, and the
    CPU time beyond the quickest step of that rank, whose work is the same in each.
    """
    taken = 0.0
    for number in range(_RANKS):
        steps = json.loads(out.with_name(f"{out.name}.rank{number}").read_text())
        least = min(cpu for cpu, _ in steps)
        taken += sum(cpu - least + waited for cpu, waited in steps) / len(steps) / MS
    return taken


class Captures:
    """Scenarios, captured together when the first of them is asked for."""

    def __init__(self, folder: Path, *scenarios: str) -> None:
        self._folder = folder
        self._outs = capture(folder / "0", *scenarios)

    def check(self, scenario: str, check: Callable[[Path], None]) -> None:
        """Check a scenario. What fails is captured again; where the machine took a good part of what a fault costs, the
        ranks did something else than they were to do, and nothing is known of the rules.
        """
        undisturbed = 0
        for attempt in range(1, _TRIES + 1):
            out = self._outs[scenario]
            try:
                return check(out)
            except AssertionError as error:
                undisturbed += taken_ms(out) < _DISTURBED_MS
                if undisturbed == 2:
                    raise
                print(f"{scenario}: the machine took {taken_ms(out):.0f} ms a step. {error}")  # noqa: T201
            if attempt < _TRIES:
                self._outs |= capture(self._folder / f"{scenario}{attempt}", scenario)
        return None


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> tuple[Captures, Captures]:
    """All at once, since no other test may run meanwhile: plain ones, and those of a script with quotes in its path.

    Torch escapes no quote in the names of Python functions, nor in the file's own path.
    """
    folder = tmp_path_factory.mktemp("gloo")
    scenarios = ("healthy", "straggler", "more-work", "stall", "wait-in-backward", "find-unused", "stall+stack")
    quoted = ("straggler+stack", "stall+stack", "collect+stack")
    return Captures(folder, *scenarios), Captures(folder / 'of "stacks"', *quoted)


@pytest.fixture(scope="module")
def plain(captures: tuple[Captures, Captures]) -> Captures:
    return captures[0]


@pytest.fixture(scope="module")
def stacks(captures: tuple[Captures, Captures]) -> Captures:
    return captures[1]


def diagnose(folder: Path, settings: Settings | None = None) -> engine.Result:
    """The diagnosis of a captured run, after what holds for every one."""
    (run,) = discover(folder)
    result = engine.diagnose(run, settings=settings)
    diagnosis, budget = result.diagnosis, result.job.budget
    assert diagnosis.ranks == (0, 1)
    assert diagnosis.world_size == _RANKS
    assert not result.job.has_device
    assert (budget.owner_ns >= 0).all()
    assert (budget.owner_ns.sum(axis=2) == budget.window_ns).all()
    assert not any(result.job.matched.unmatched)
    assert not [outcome for outcome in diagnosis.outcomes if outcome.status == "error"]
    return result


def unexpected(result: engine.Result) -> list[str]:
    """Warnings that a whole capture should not give; on a busy machine the profiler starts slowly, and ranks begin a
    step apart, which is no fault of the reader.
    """
    said = [warning.message for warning in result.diagnosis.warnings]
    of_a_busy_machine = ("the profiler's own start", "the ranks begin it", "Ranks begin the same step")
    return [message for message in said if not any(words in message for words in of_a_busy_machine)]


def worst(result: engine.Result) -> Finding:
    finding = result.diagnosis.findings[0]
    assert result.diagnosis.verdict == finding.rule
    return finding


def mean_ms(result: engine.Result, rank_number: int, owner: str) -> float:
    return result.diagnosis.budget_ms[str(rank_number)][owner]


def is_healthy(folder: Path) -> None:
    result = diagnose(folder, _OF_A_BUSY_MACHINE)
    assert not unexpected(result)
    # On a busy machine gloo's transfers differ from step to step, which no rule explains.
    verdict = result.diagnosis.verdict
    assert verdict in ("healthy", "unexplained") or worst(result).cost_ms < taken_ms(folder), result.diagnosis.headline


def straggles_by_sleeping(folder: Path) -> None:
    result = diagnose(folder)
    finding = worst(result)
    assert (finding.rule, finding.cause, finding.ranks) == ("straggler", "host", (1,))
    # A busy machine lets it sleep for longer.
    slept = mean_ms(result, 1, "host")
    assert slept > FAULT_MS
    assert finding.cost_ms == pytest.approx(slept, rel=0.25)
    assert mean_ms(result, 0, "wait") == pytest.approx(slept, rel=0.25)
    assert mean_ms(result, 0, "compute") < 0.5 * slept


def has_more_work(folder: Path) -> None:
    result = diagnose(folder)
    finding = worst(result)
    assert (finding.rule, finding.cause, finding.ranks) == ("straggler", "more_work", (1,))
    assert "operators on larger tensors" in finding.why
    more = mean_ms(result, 1, "compute") - mean_ms(result, 0, "compute")
    assert finding.cost_ms == pytest.approx(more, rel=0.25)


def waits_for_its_loader(folder: Path) -> None:
    result = diagnose(folder)
    finding = worst(result)
    assert (finding.rule, finding.cause, finding.ranks) == ("dataloader-stall", "single_process", (0, 1))
    assert finding.cost_ms == pytest.approx(FAULT_MS, rel=0.25)
    assert all(mean_ms(result, number, "input") > FAULT_MS for number in range(_RANKS))
    assert "pin_memory" not in finding.fix


def searches_for_unused_parameters(folder: Path) -> None:
    found = {finding.rule: finding for finding in diagnose(folder, _OF_A_BUSY_MACHINE).diagnosis.findings}
    assert found["find-unused-parameters"].severity == "info"
    assert found["find-unused-parameters"].ranks == (0, 1)


@pytest.mark.alone
def test_a_search_for_unused_parameters_is_seen_and_costs_nothing(plain: Captures) -> None:
    plain.check("find-unused", searches_for_unused_parameters)


def test_a_healthy_job_is_healthy(plain: Captures) -> None:
    plain.check("healthy", is_healthy)


def test_a_rank_that_sleeps_is_a_straggler(plain: Captures) -> None:
    plain.check("straggler", straggles_by_sleeping)


def test_a_rank_with_more_work_is_a_straggler(plain: Captures) -> None:
    plain.check("more-work", has_more_work)


def test_a_loader_in_the_training_process_stalls_all_ranks(plain: Captures) -> None:
    plain.check("stall", waits_for_its_loader)


def test_waiting_within_the_backward_pass_is_waiting(plain: Captures) -> None:
    plain.check("wait-in-backward", straggles_by_sleeping)


def test_a_straggler_is_found_in_stacks_with_quotes(stacks: Captures) -> None:
    stacks.check("straggler+stack", straggles_by_sleeping)


def test_a_stall_is_found_in_stacks_with_quotes(stacks: Captures) -> None:
    stacks.check("stall+stack", waits_for_its_loader)


def test_stacks_tell_the_line_of_the_code(plain: Captures) -> None:
    def check(folder: Path) -> None:
        source = worst(diagnose(folder)).evidence[0].source
        assert source and (Path(source.file).name, source.function) == (_JOB.name, "__getitem__")
        assert _JOB.read_text().splitlines()[source.line - 1].strip().startswith("def __getitem__(")

    plain.check("stall+stack", check)


def test_stacks_tell_what_a_straggler_does(stacks: Captures) -> None:
    def check(folder: Path) -> None:
        why = worst(diagnose(folder)).why
        assert "sleeping" in why and "<built-in function sleep>" in why

    stacks.check("straggler+stack", check)


def test_stacks_tell_that_garbage_is_collected(stacks: Captures) -> None:
    def check(folder: Path) -> None:
        finding = worst(diagnose(folder))
        assert (finding.rule, finding.cause) == ("host-stall", "garbage_collection")
        # The last collection ends when it does.
        assert finding.cost_ms > 0.75 * FAULT_MS

    stacks.check("collect+stack", check)


def test_quotes_in_stacks_cost_no_more_than_those_functions(stacks: Captures) -> None:
    def check(folder: Path) -> None:
        for file in sorted(folder.iterdir()):
            data = file.read_bytes()
            with pytest.raises(ValueError, match="malformed"):
                msgspec.json.decode(data)
            trace = read(file)
            assert trace.header.has_stacks
            assert trace.header.rank is not None
            functions = data.count(b'"cat": "python_function"')
            broken = data.count(b'"name": "' + bytes(folder.parent))
            assert 0 < broken < functions
            assert trace.dropped["python_function"] + len(trace.frames) == functions - broken
            said = " ".join(warning.message for warning in trace.warnings)
            assert f"{broken} events skipped" in said
            assert "cut off" not in said

    stacks.check("straggler+stack", check)


def test_the_command_line_says_the_same(plain: Captures, capsys: pytest.CaptureFixture[str]) -> None:
    def check(folder: Path) -> None:
        assert main(["diagnose", str(folder), "--json", "--fail-on", "critical", "--no-cache"]) == 1
        (run,) = msgspec.json.decode(capsys.readouterr().out)["runs"]
        assert run["verdict"] == "straggler"
        assert all(list(budget) == list(OWNERS) for budget in run["budget_ms"].values())
        steps = [sum(budget.values()) for budget in run["budget_ms"].values()]
        assert sum(steps) / len(steps) == pytest.approx(run["step_ms"])
        assert main(["diagnose", str(folder), "--no-cache"]) == 0
        assert "device idle" not in capsys.readouterr().out.lower()

    plain.check("straggler", check)
