"""Layers that nothing names are guessed from operators that repeat: forward, backward and on all ranks alike."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from test_modules import RUNS, STEP, Call, Kernel, of_run, op, paths, read, times, watched

from tb_ddp_doctor.cli import main
from tb_ddp_doctor.digest.modules import MOST_MODULES

LAYER = ("aten::layer_norm", "aten::linear", "aten::gelu", "aten::linear", "aten::add")


def forward(start: int, layers: int, before: Sequence[str] = ("aten::embedding",), first: int = 0) -> list[Call]:
    """A pass of layers from a time on, an operator in each µs; sequence numbers count from `first`."""
    names = [*before, *LAYER * layers, "aten::cross_entropy_loss"]
    return [op(name, start + at, start + at + 1, sequence=first + at) for at, name in enumerate(names)]


def backward(start: int, made: Sequence[Call]) -> list[Call]:
    """The nodes of a pass's operators, the last one's first, a node of 2 µs for each."""
    return [
        op(f"{RUNS}Backward0", start + 2 * at, start + 2 * at + 2, thread=2, sequence=call[5])
        for at, call in enumerate(reversed(made))
    ]


def computed(calls: Sequence[Call]) -> dict[tuple[str, str], int]:
    """Time of operators by layer and phase, µs."""
    step: Call = ("user_annotation", "ProfilerStep#1", 0, 200, 1, None)
    found = times(read([step, *calls]))
    return {(path, phase): time for (path, phase, kind), time in found.items() if kind == "compute"}


def test_layers_have_the_same_number_forward_and_backward() -> None:
    made = forward(1, 4)
    found = computed([*made, *backward(40, made)])
    for number in range(1, 5):
        assert found[f"layer {number}", "forward"] == 5
        assert found[f"layer {number}", "backward"] == 10
    # The embedding and the loss, which are in no layer.
    assert (found["", "forward"], found["", "backward"]) == (2, 4)


def test_layers_of_each_micro_batch_are_the_same_ones() -> None:
    """The second and the third micro-batch run forward after each other, as the first stages of a pipeline do."""
    one, two, three = forward(1, 3), forward(60, 3, first=100), forward(80, 3, first=200)
    found = computed([*one, *backward(20, one), *two, *three, *backward(110, two), *backward(150, three)])
    assert found["layer 1", "forward"] == found["layer 3", "forward"] == 15
    assert ("layer 4", "forward") not in found


def test_a_layer_is_both_of_its_halves() -> None:
    """They begin and end with the same operators; one of them has attention."""
    attention = ("aten::native_layer_norm", "aten::addmm", "aten::view", "aten::_softmax", "aten::addmm", "aten::add")
    mlp = ("aten::native_layer_norm", "aten::addmm", "aten::gelu", "aten::addmm", "aten::add")
    found = computed([op(name, at, at + 1, sequence=at) for at, name in enumerate((attention + mlp) * 4, 1)])
    assert {path for path, _ in found} - {""} == {f"layer {number}" for number in range(1, 5)}
    assert {time for (path, _), time in found.items() if path} == {11}


def test_layers_of_which_some_have_no_attention_are_layers() -> None:
    """As in models whose layers have attention or a recurrence, with one of attention at the end."""
    kinds = [("aten::rms_norm", "aten::mm", kind, "aten::mm", "aten::add") for kind in ("scan", "aten::_softmax")]
    names = [name for kind in (0, 1, 0, 1, 1) for name in kinds[kind]]
    found = computed([op(name, at, at + 1, sequence=at) for at, name in enumerate(names, 1)])
    assert {path for path, _ in found} - {""} == {f"layer {number}" for number in range(1, 6)}


def test_what_wraps_the_model_is_no_layer_and_what_it_calls_is() -> None:
    made = forward(2, 4)
    found = computed([op("DistributedDataParallel.forward", 1, 24), *made, *backward(40, made)])
    assert found["layer 4", "forward"] == 5


def test_an_operator_that_takes_most_of_the_time_is_no_wrapper() -> None:
    """The first linear layer waits for a core: what it calls is not what repeats."""
    made = [call if call[2] < 3 else (*call[:2], call[2] + 60, call[3] + 60, *call[4:]) for call in forward(1, 4)]
    slow = op("aten::linear", 3, 64, sequence=3)
    calls = [*made[:2], slow, op("aten::addmm", 4, 63, sequence=3), *made[3:]]
    found = computed([*calls, *backward(100, made)])
    assert found["layer 1", "forward"] == 65
    assert found["layer 4", "forward"] == 5


def test_the_preparation_of_data_has_no_layers() -> None:
    copies = [op("aten::to" if at % 2 else "aten::div", at, at + 1, sequence=at) for at in range(1, 21)]
    product = op("aten::mm", 21, 22, sequence=21)
    assert read([STEP, *copies, product, *backward(40, [product])]).modules.named_by == ""


def test_names_go_before_guesses() -> None:
    made = forward(2, 4)
    found = read([STEP, watched("net", 1, 24), *made, *backward(40, made)])
    assert found.modules.named_by == "Doctor.watch"
    assert paths(found) == ["", "net"]


def test_more_layers_than_are_kept_count_for_the_whole_step() -> None:
    made = forward(1, MOST_MODULES + 10)
    step: Call = ("user_annotation", "ProfilerStep#1", 0, 20_000, 1, None)
    found = read([step, *made, *backward(3000, made)])
    assert len(found.modules.paths) == MOST_MODULES


def test_the_terminal_says_that_layers_are_guesses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = forward(1, 4)
    calls = [STEP, *made, *backward(40, made)]

    def kernels(late: int) -> list[Kernel]:
        return [(call[2], 1, call[2] + late, call[2] + late + 1, 7, "gemm") for call in made]

    job = of_run(tmp_path, (calls, kernels(30)), (calls, kernels(31)))
    assert main(["diagnose", job, "--layers"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Layers by their time in a step of the median rank, ms (guessed: repeats of 5 kernels)" in said
    assert "layer 4 0.50" in said
