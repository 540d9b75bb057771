"""The slowest step beside the median one, percentiles over steps, and two runs compared down to kernels."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_module_kernels import random_digest
from test_modules import Call, Kernel, of_run, read, step_of_two_modules, with_mlp_until

import tb_ddp_doctor
from tb_ddp_doctor.account.module_steps import compared_steps, of_step
from tb_ddp_doctor.cli import main
from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.facts.modules import modules


def of_steps(*lengths: int) -> tuple[list[Call], list[Kernel]]:
    """Steps of 100 with two modules each; the second one's product takes as long as is given."""
    calls: list[Call] = []
    kernels: list[Kernel] = []
    for number, length in enumerate(lengths):
        at = 100 * number
        calls += step_of_two_modules(number)
        kernels += [(at + 2, 1, at + 10, at + 15, 7, "relu"), (at + 7, 1, at + 15, at + 15 + length, 7, "gemm")]
    return calls, kernels


def of_gemm(found: RankDigest) -> tuple[int, int, int]:
    """µs of the product: p99, in the slowest step, in the median one."""
    kernels = found.modules.kernels
    row = next(i for i in range(len(kernels)) if found.strings[kernels.kernel[i]] == "gemm" and kernels.events[i])
    return tuple(int(column[row]) // 1000 for column in (kernels.p99_ns, kernels.slowest_ns, kernels.median_ns))  # type: ignore[return-value]


def test_the_slowest_step_and_the_median_one_have_their_own_times() -> None:
    found = read(*of_steps(50, 51, 70, 49, 50))
    # Windows end where the step's own events end: the step after a long one is shorter by as much.
    length = found.steps.end_ns - found.steps.start_ns
    assert found.steps.number[length.argmax()] == found.modules.slowest_step == 2
    assert of_gemm(found)[:2] == (70, 70)
    median = int(np.flatnonzero(found.steps.number == found.modules.median_step)[0])
    assert of_gemm(found)[2] == (50, 51, 70, 49, 50)[median]


def test_one_step_has_no_other_beside_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = read(*of_steps(50))
    assert (found.modules.slowest_step, found.modules.median_step) == (-1, -1)
    assert of_gemm(found) == (50, 0, 0)
    job = of_run(tmp_path, *map(with_mlp_until, (40, 42)))
    assert main(["diagnose", job, "--layers", "--slowest-step"]) == 0
    assert "One step alone is recorded of each rank" in " ".join(capsys.readouterr().out.split())


def test_a_first_step_that_is_far_longer_is_not_the_slowest() -> None:
    calls, kernels = of_steps(80, 50, 55, 50)
    # Before its first kernel the first step idles for long.
    kernels = [(at, on, start + 300, end + 300, stream, name) for at, on, start, end, stream, name in kernels[2:]]
    kernels = [(2, 1, 10, 15, 7, "relu"), (7, 1, 15, 330, 7, "gemm"), *kernels]
    found = read(calls, kernels)
    length = found.steps.end_ns - found.steps.start_ns
    assert length.argmax() == 0 and found.modules.slowest_step == 1


@given(st.integers(0, 1 << 30))
def test_a_step_of_a_digest_sums_to_its_length(seed: int) -> None:
    found = random_digest(seed)
    if found.modules.slowest_step < 0 or not found.modules.named_by:
        return
    for slowest in (True, False):
        number = found.modules.slowest_step if slowest else found.modules.median_step
        at = int(np.flatnonzero(found.steps.number == number)[0])
        tree = modules([of_step(found, slowest=slowest)])
        assert tree.step_ns[0, 0].sum() == found.steps.end_ns[at] - found.steps.start_ns[at]
    assert (found.modules.kernels.p99_ns >= found.modules.kernels.median_ns).all() or len(found.steps) > 1


def test_ranks_that_have_another_slowest_step_are_left_out() -> None:
    one, other = read(*of_steps(50, 51, 70, 49)), read(*of_steps(50, 80, 51, 49))
    steps = compared_steps([one, other, one])
    assert steps is not None
    assert (steps.slowest, steps.ranks.tolist()) == (2, [0, 2])
    assert compared_steps([read(*of_steps(50))]) is None


def test_the_terminal_and_the_json_compare_the_slowest_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fast, slow = of_steps(50, 51, 70, 49, 50), of_steps(50, 51, 74, 49, 50)
    job = of_run(tmp_path, fast, slow, of_steps(50, 80, 51, 49, 50))
    assert main(["diagnose", job, "--layers", "--slowest-step", "--kernels"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "(slowest) of the median rank, ms; by part, what it is more" in said
    assert "step 2 more" in said and "Of 1 of 3 ranks other steps are the slowest and the median one." in said
    assert main(["diagnose", job, "--layers", "--slowest-step", "--rank", "2"]) == 0
    assert "step 1 more" in " ".join(capsys.readouterr().out.split())
    assert main(["diagnose", job, "--json"]) == 0
    table = msgspec.json.decode(capsys.readouterr().out)["runs"][0]["layers"]
    assert (table["slowest_step"], table["step_ranks"]) == (2, 2)
    (module,) = [row for row in table["rows"] if row["path"] == "b"]
    assert module["slowest_step_ms"] == pytest.approx(7.2) and module["median_step_ms"] == pytest.approx(5, abs=0.3)
    assert module["p99_ms"] == pytest.approx(7.4), "of three ranks the median"
    (kernel,) = [one for one in table["kernels"] if one["kernel"] == "gemm" and one["part"] != "idle"]
    assert (kernel["slowest_step_ms"], kernel["p99_ms"]) == (module["slowest_step_ms"], module["p99_ms"])


def test_two_runs_are_compared_down_to_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = []
    for run, end in (("one", 40), ("two", 60)):
        (tmp_path / run).mkdir()
        folders.append(of_run(tmp_path / run, with_mlp_until(end)))
    assert main(["compare", *folders, "--layers", "--depth", "3", "--kernels"]) == 0
    assert "aten::mm: gemm 2.00 4.00 +2.00 +2.00" in " ".join(capsys.readouterr().out.split())
    assert main(["compare", *folders, "--layers", "--bottom-up"]) == 0
    assert "layers.0.mlp 2.00 4.00 +2.00 +2.00" in " ".join(capsys.readouterr().out.split())
    assert main(["compare", *folders, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)["module_kernels"][0]
    assert (first["path"], first["part"], first["kernel"]) == ("layers.0.mlp", "forward", "gemm")
    assert (first["before_ms"], first["after_ms"]) == (2.0, 4.0)


def test_markdown_has_the_kernels_with_most_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = of_run(tmp_path, *map(with_mlp_until, (40, 42, 60)))
    assert main(["diagnose", job, "--markdown"]) == 0
    assert "| layers.0.mlp | forward | aten::mm | gemm | 2.20 | 1.0 | 4.00 | 2 |" in capsys.readouterr().out
    (diagnosis,) = tb_ddp_doctor.diagnose(job, cache=None)
    assert diagnosis.to_pandas("layer_kernels").p99_ms[0] == 2.2
