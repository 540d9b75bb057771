"""What of the optimizer's time is estimated to be of each module: by the elements of its gradients."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from load import DEMO_LOGS
from test_modules import Call, Kernel, op, paths, trace, watched

from tb_ddp_doctor.cli import main
from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.facts.modules import modules, optimizer_ns
from tb_ddp_doctor.trace.reader import decode

NODE = "autograd::engine::evaluate_function: "
ADDS = "torch::autograd::AccumulateGrad"


def trained(*parameters: tuple[str, object], updates_us: int = 20, engine: bool = True) -> bytes:
    """Modules with a parameter each, in the order of forward, given the "Input Dims" of its gradient; an optimizer."""
    count = len(parameters)
    calls: list[Call] = [("user_annotation", "ProfilerStep#1", 0, 60 * count + 100, 1, None)]
    for at, (module, _) in enumerate(parameters):
        calls += [watched(module, 20 * at, 20 * at + 15), op("aten::mm", 20 * at + 2, 20 * at + 10, sequence=at)]
    for at in range(count):
        start = 20 * (count + at)
        calls.append(op(f"{NODE}MmBackward0", start, start + 9, thread=2, sequence=count - 1 - at))
        if engine:
            calls.append(op(f"{NODE}{ADDS}", start + 10, start + 18, thread=2))
        calls.append(op(ADDS, start + 11, start + 17, thread=2))
    start = 40 * count
    calls += [
        ("user_annotation", "Optimizer.step#AdamW.step", start, start + 20, 1, None),
        op("aten::_foreach_add_", start + 1, start + 9),
    ]
    kernels: list[Kernel] = [(2, 1, 3, 8, 7, "gemm")]
    if updates_us:
        kernels.append((start + 2, 1, start + 5, start + 5 + updates_us, 7, "multi_tensor_apply_kernel"))
    told = json.loads(trace(calls, kernels, 1000))
    dims = iter([one for _, one in reversed(parameters)])
    for event in told["traceEvents"]:
        if event["name"] == ADDS:
            event.setdefault("args", {})["Input Dims"] = next(dims)
    return json.dumps(told).encode()


def elements(found: RankDigest) -> dict[str, int]:
    of = paths(found)
    table = found.modules.gradients
    return {of[module]: count for module, count in zip(table.module.tolist(), table.elements.tolist(), strict=True)}


@pytest.mark.parametrize("engine", [True, False])
def test_a_gradient_is_of_the_module_whose_forward_used_the_parameter(engine: bool) -> None:
    """As the engine calls nodes, and as old releases without it."""
    data = trained(("layers.0", [[4, 8]]), ("layers.1", [[8, 8]]), ("head", [[8]]), engine=engine)
    found = digest(decode([data], "rank0.json"))
    assert elements(found) == {"layers.0": 32, "layers.1": 64, "head": 8}
    tree = modules([found])
    spent = optimizer_ns(tree, [found])
    assert spent is not None
    us = dict(zip(tree.path, (spent / 1e3).tolist(), strict=True))
    assert us[""] == pytest.approx(20)
    assert us["layers"] == pytest.approx(20 * 96 / 104)
    assert us["layers.1"] == pytest.approx(20 * 64 / 104)
    assert us["head"] == pytest.approx(20 * 8 / 104)


@pytest.mark.parametrize(
    "dims", [None, "", [], [[]], 7, [[-4, 8]], [["x"]], [[1 << 62, 1 << 62]], {"a": 1}, [[0, 8]], "[" * 4000]
)
def test_sizes_that_make_no_sense_count_nowhere(dims: object) -> None:
    found = digest(decode([trained(("layers.0", [[4, 8]]), ("layers.1", dims))], "rank0.json"))
    counted = elements(found)
    assert counted.pop("layers.0") == 32
    # A tensor without dimensions is one number.
    assert set(counted.values()) <= {1}


def test_without_sizes_or_an_optimizer_there_is_no_estimate() -> None:
    for data in (trained(("layers.0", None)), trained(("layers.0", [[4, 8]]), updates_us=0)):
        found = digest(decode([data], "rank0.json"))
        assert optimizer_ns(modules([found]), [found]) is None


@given(
    st.lists(st.tuples(st.sampled_from(["a", "a.b", "a.b.c", "d"]), st.integers(1, 1 << 40)), min_size=1, max_size=8)
)
def test_the_estimates_of_children_and_own_sum_to_each_module(parameters: list[tuple[str, int]]) -> None:
    found = digest(decode([trained(*((module, [[size]]) for module, size in parameters))], "rank0.json"))
    assert sum(elements(found).values()) == sum(size for _, size in parameters)
    tree = modules([found, found])
    spent = optimizer_ns(tree, [found, found])
    assert spent is not None
    own = spent.copy()
    np.subtract.at(own, tree.parent[1:], spent[1:])
    assert spent[0] == pytest.approx(20_000)
    assert (own >= -1e-6).all()
    sizes = dict.fromkeys(tree.path, 0)
    for module, size in parameters:
        sizes[module] += size
    share = np.array(list(sizes.values())) / sum(sizes.values())
    assert own == pytest.approx(20_000 * share, abs=1e-6)


def test_eight_layers_of_a_demo_have_as_many_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    """0.79 of 7.76 million each; embeddings are of the whole step."""
    assert main(["diagnose", str(DEMO_LOGS / "healthy"), "--json"]) in (0, 1)
    (run,) = msgspec.json.decode(capsys.readouterr().out)["runs"]
    whole, *layers = run["layers"]["rows"]
    assert len(layers) == 8
    assert 0 < whole["optimizer_ms"] < whole["other_ms"] + 0.1
    for layer in layers:
        assert layer["optimizer_ms"] == pytest.approx(whole["optimizer_ms"] * 789_760 / 7_760_384, rel=0.01)


def test_the_terminal_has_it_as_a_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    (tmp_path / "rank0.json").write_bytes(trained(("layers.0", [[4, 8]]), ("layers.1", [[8, 8]])))
    assert main(["diagnose", str(tmp_path), "--layers", "--depth", "1"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    (heads,) = [line for line in lines if line[:1] == ["module"]]
    (layers,) = [line for line in lines if line[:1] == ["layers"]]
    assert layers[heads.index("opt.") - len(heads)] == "0.02"
