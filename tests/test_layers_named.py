"""Findings say in which of the model's modules, or guessed layers, the time lies that they are about."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from traces import MS, job, ranks

from tb_ddp_doctor.facts import Facts
from tb_ddp_doctor.facts.modules import ModuleMemoryTree, ModulePart, ModuleTree, module_tree
from tb_ddp_doctor.rules import CATALOGUE
from tb_ddp_doctor.rules.support import stage_layers
from tb_ddp_doctor.rules.support.base import run
from tb_ddp_doctor.rules.support.layers import at_peak, behind, where

HEALTHY = """
    rank# step |1
          gpu  [fwd....][bwd.]
          nccl                [ar........]
"""
SLOW_DEVICE = """
    rank# step |1
          gpu  [fwd........][bwd.]
          nccl                    [ar....]
"""
NAMES = ("layers", "layers.0", "layers.0.mlp", "layers.1", "layers.2", "head")


def tree(
    *own: Mapping[str, float], part: ModulePart = ModulePart.BACKWARD, guessed: int = 0, names: tuple[str, ...] = NAMES
) -> ModuleTree:
    """Modules with each rank's own times, ms."""
    path = ("", *names)
    parent = np.array([-1, *(path.index(name.rpartition(".")[0]) for name in names)])
    level = np.array([0, *(name.count(".") + 1 for name in names)])
    times = np.zeros((len(own), len(path), len(ModulePart)))
    for rank, of in enumerate(own):
        for name, time in of.items():
            times[rank, path.index(name), part] = time * MS
    whole = times.copy()
    for module in range(len(path) - 1, 0, -1):
        whole[:, parent[module]] += whole[:, module]
    places = (np.arange(len(path)),) * len(own)
    return ModuleTree("repeats" if guessed else "stacks", guessed, parent, path, level, times, whole, places)


def said(guessed: int = 0, **own: float) -> str:
    of = {name.replace("_", "."): time for name, time in own.items()}
    one = tree(of, guessed=guessed)
    return str(where(one, one.own_ns[0].sum(axis=1)))


def test_a_time_in_one_module_is_said_with_its_path() -> None:
    assert said(layers_0_mlp=93, head=7) == "93 % is in layers.0.mlp"


def test_a_time_in_all_layers_is_said_with_how_long_each_takes() -> None:
    assert (
        said(layers_0=2.9, layers_1=3.1, layers_2=3.0, head=1)
        == "90 % is in all 3 modules of layers, 2.9 to 3.1 ms each"
    )


def test_a_time_in_some_modules_names_the_longest() -> None:
    assert said(layers_0=30, layers_2=4, head=30) == "most is in layers (34.0 ms) and head (30.0 ms)"


def test_a_time_outside_of_all_modules_is_said() -> None:
    one = tree({"": 9, "head": 1})
    assert str(where(one, one.own_ns[0].sum(axis=1))) == "90 % is outside the model's layers"


def test_that_layers_are_guessed_is_said() -> None:
    names = tuple(f"layer {number}" for number in range(1, 5))
    one = tree(dict.fromkeys(names, 2), names=names, guessed=46)
    assert str(where(one, one.own_ns[0].sum(axis=1))) == "100 % is in all 4 layers, 2.0 ms each (layers are guessed)"


@pytest.mark.parametrize("own", [{}, {"head": -3}])
def test_no_time_lies_nowhere(own: Mapping[str, float]) -> None:
    one = tree(own)
    assert str(where(one, one.own_ns[0].sum(axis=1))) == ""


def test_work_that_no_other_rank_has_is_outside_of_their_layers() -> None:
    both = {"layers.0": 5, "": 1}
    found = str(behind(tree(both, both, {**both, "": 41}), 2, np.array([0, 1]), 40 * MS))
    assert found == (
        " Of its longer compute, 100 % is outside the model's layers, where no other rank computes longer than 1.0 ms."
    )


def test_a_rank_that_is_slow_by_other_than_compute_has_no_modules() -> None:
    both = {"layers.0": 5}
    assert not behind(tree(both, {"layers.0": 6}), 1, np.array([0]), 40 * MS)


def test_a_straggler_is_said_to_be_slow_in_the_module_that_takes_longer() -> None:
    facts = Facts(job(ranks(HEALTHY, HEALTHY, SLOW_DEVICE, steps=3)))
    usual = {"layers.0": 2, "layers.1": 2}
    known = facts.replaced(module_tree, tree(usual, usual, {**usual, "layers.1": 6}))
    _, found = run(dataclasses.replace(CATALOGUE["straggler"]), known)
    assert found
    assert "Of its longer compute, 100 % is in layers.1." in found.faults[0].why


def test_communication_that_is_exposed_is_said_to_be_launched_in_a_module() -> None:
    drawn = """
        rank# step |1
              gpu  [fwd][bwd]
              nccl           [ar@40..............................]
    """
    facts = Facts(job(ranks(drawn, drawn, steps=3)))
    known = facts.replaced(module_tree, tree({"head": 30}, {"head": 30}, part=ModulePart.COMMUNICATION))
    _, found = run(CATALOGUE["communication-bound"], known)
    assert found
    assert "Of all communication with nothing beside it, 100 % is in head." in found.faults[0].why


def stages(*layers: int, head: float = 0.0, each: float = 2.0, guessed: int = 0) -> ModuleTree:
    """A rank for each stage, with so many layers of `each` ms; the last one has a head too."""
    names, of = [], []
    for first, count in zip(np.cumsum([0, *layers]).tolist(), layers, strict=False):
        numbers = range(1, count + 1) if guessed else range(first, first + count)
        mine = [f"layer {number}" if guessed else f"layers.{number}" for number in numbers]
        names += [name for name in mine if name not in names]
        of.append(dict.fromkeys(mine, each))
    of[-1]["head"] = head
    paths = ("head", *names) if guessed else ("head", "layers", *names)
    return tree(*of, guessed=guessed, names=paths)


@pytest.mark.parametrize("guessed", [0, 40])
def test_the_split_that_balances_stages_is_said(guessed: int) -> None:
    ranks = [np.array([rank]) for rank in range(3)]
    sentence = stage_layers.said(stages(8, 8, 8, head=6, guessed=guessed), ranks)
    assert sentence.startswith(" The stages have 8, 8, 8 layers")
    assert "with 9, 9, 6 the longest would compute 18.0 ms a step instead of 22.0 ms." in sentence
    assert ("guessed" in sentence) == bool(guessed)
    assert stage_layers.said(stages(8, 8, 8, guessed=guessed), ranks) == ""
    assert stage_layers.said(None, ranks) == ""


@given(st.lists(st.integers(1, 12), min_size=3, max_size=6), st.floats(0, 30))
def test_a_balanced_split_has_all_layers_and_no_longer_stage(layers: list[int], head: float) -> None:
    split = stage_layers.layer_split(stages(*layers, head=head), [np.array([rank]) for rank in range(len(layers))])
    assert split is not None and split.now == tuple(layers)
    assert sum(split.then) == sum(layers) and min(split.then) >= 1
    assert split.then_ns <= split.now_ns * (1 + 1e-9)


def test_modules_of_other_kinds_are_no_layers_of_a_stage() -> None:
    names = ("Net_0", "Net_0.Embedding_0", *(f"Net_0.Block_{number}" for number in range(6)), "Net_0.Linear_16")
    first = {"Net_0.Embedding_0": 1.0} | {f"Net_0.Block_{number}": 3.0 for number in range(4)}
    second = {"Net_0.Linear_16": 1.0} | {f"Net_0.Block_{number}": 3.0 for number in (4, 5)}
    split = stage_layers.layer_split(tree(first, second, names=names), [np.array([0]), np.array([1])])
    assert split is not None
    assert (split.now, split.then) == ((4, 2), (3, 3))


def test_modules_of_one_kind_hold_a_time_beside_others() -> None:
    names = ("Net_0", "Net_0.Embedding_0", *(f"Net_0.Block_{number}" for number in range(4)), "Net_0.Linear_16")
    one = tree({"Net_0.Embedding_0": 1} | {f"Net_0.Block_{number}": 5 for number in range(4)}, names=names)
    assert str(where(one, one.own_ns[0].sum(axis=1))) == "95 % is in all 4 Block modules of Net_0, 5.0 ms each"


def test_what_modules_hold_at_the_peak_is_said_in_bytes() -> None:
    one = tree({})
    peak = np.zeros((1, len(one.path)))
    peak[0, one.path.index("layers.0.mlp")], peak[0, 0] = 6e9, 2e9
    memory = ModuleMemoryTree(peak, peak, peak)
    assert at_peak(one, memory, 0) == " Modules allocate 75 % of what is allocated; of that, 100 % is in layers.0.mlp."
    peak[0, 0] = 100e9
    assert at_peak(one, memory, 0) == "", "hardly anything is of modules"
    peak[0] = np.nan
    assert at_peak(one, memory, 0) == "", "not recorded on this rank"


def test_what_is_said_keeps_the_paths_of_its_modules() -> None:
    one = tree({"layers.0.mlp": 93, "head": 7})
    assert where(one, one.own_ns[0].sum(axis=1)).modules == ("layers.0.mlp",)
    some = tree({"layers.0": 50, "head": 40, "layers.1": 10})
    said = where(some, some.own_ns[0].sum(axis=1)).within("Of that, ", ".")
    assert all(path in str(said) for path in said.modules) and said.modules
    assert where(one, np.zeros(len(one.path))).modules == ()
