"""FBGEMM's lookups: how wide rows are, from forward and backward together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tb_ddp_doctor.digest.embedding_lookups import embedding_lookups
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.operator_inputs import LookupSizes
from tb_ddp_doctor.trace.reader import decode

FORWARD = "fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function"
BACKWARD = "torch::autograd::CppNode<SplitLookupFunction_rowwise_adagrad_Op>"
#: Name and what it is given.
Call = tuple[str, dict[str, Any]]


def lookup(features: int, weights: int, rows: int, *, lookups: int = 5000, unified: int = 0, values: str = "") -> Call:
    """256 samples of some features, with the momentum of so many rows; `values` are total and largest width."""
    places = [("int", [features]), ("long", [features])]
    given: list[tuple[str, list[int]]] = [("float", [0]), ("c10::Half", [weights]), ("c10::Half", [unified])]
    given += [("c10::Half", [0, 0]), *places, ("int", [features + 1]), ("Scalar", []), ("Scalar", [])]
    given += [("long", [features + 1]), ("Scalar", []), ("long", [lookups]), ("long", [256 * features + 1])]
    given += [("Scalar", []), ("", []), ("", []), ("int", [0]), *[("Scalar", [])] * 3]
    given += [("float", [rows]), ("float", [0]), *places, *[("Scalar", [])] * 5]
    texts = [*[""] * 7, *(values.split() or ["", ""]), *[""] * (len(given) - 9)]
    return FORWARD, {
        "Input Dims": [sizes for _, sizes in given],
        "Input type": [kind for kind, _ in given],
        "Concrete Inputs": texts,
    }


def gradient(*sizes: int) -> Call:
    return BACKWARD, {"Input Dims": [[*sizes]], "Input type": ["float"]}


def known(*calls: Call) -> list[LookupSizes | None]:
    """What is known of calls that follow one another."""
    marks: list[dict[str, Any]] = [{"cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 1000}]
    marks += [
        {"cat": "cpu_op", "name": name, "ts": 10 * at + 10, "dur": 5, "args": args}
        for at, (name, args) in enumerate(calls)
    ]
    events = [{"ph": "X", "pid": 1, "tid": 1, **mark} for mark in marks]
    host = HostCalls.of(decode([json.dumps({"traceEvents": events}).encode()], "rank0.json"))
    found = embedding_lookups(host)
    starts = {
        int(host.start_ns[call]) // 10_000 - 1: found.at(which)
        for call, which in zip(found.call, found.which, strict=True)
    }
    return [starts.get(at) for at in range(len(calls))]


def widths(found: Sequence[LookupSizes | None]) -> list[int]:
    return [one.width if one else 0 for one in found]


def test_one_table_is_known_by_its_rows() -> None:
    (found,) = known(lookup(1, 64 * 1000, 1000))
    assert found == LookupSizes(
        lookups=5000,
        samples=256,
        features=1,
        rows=1000,
        width=64,
        element=2,
        index=8,
        is_weighted=False,
        is_certain=True,
    )


def test_several_tables_are_as_wide_as_the_gradient_says() -> None:
    three = lookup(3, 64 * 1000, 1000)
    assert widths(known(three, gradient(256, 3 * 64))) == [64, 64]
    # The mean over rows is 64, that over tables is not: widths differ.
    assert widths(known(three, gradient(256, 3 * 64 + 8))) == [0, 0]
    assert widths(known(three)) == [0]


def test_recorded_values_say_whether_widths_are_equal() -> None:
    assert widths(known(lookup(3, 64 * 1000, 0, values="192 64"))) == [64]
    assert widths(known(lookup(3, 64 * 1000, 1000, values="144 64"), gradient(256, 144))) == [0, 0]


def test_backward_goes_with_the_last_lookup_that_fits() -> None:
    first, second = lookup(1, 64 * 1000, 1000, lookups=10), lookup(1, 64 * 1000, 1000, lookups=20)
    found = known(first, second, gradient(256, 64), gradient(256, 64), gradient(256, 64))
    assert [one and one.lookups for one in found] == [10, 20, 20, 10, None]
    assert found[2] is not None and found[2].made == 4


@pytest.mark.parametrize(
    "call",
    [lookup(1, 64 * 1000, 1000, unified=8), lookup(1, 64 * 1000 + 1, 1000), lookup(1, 0, 1000), (FORWARD, {})],
)
def test_other_lookups_are_not_known(call: Call) -> None:
    assert widths(known(call, gradient(256, 64))) == [0, 0]
