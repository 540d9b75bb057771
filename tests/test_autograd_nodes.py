"""What backward does is of the module or function that called its operator in forward."""

from __future__ import annotations

import json
from collections.abc import Iterable

import numpy as np

from tb_ddp_doctor.digest.autograd_nodes import nodes
from tb_ddp_doctor.digest.frames import own_function
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.trace.model import RankTrace
from tb_ddp_doctor.trace.reader import decode

RUNS = "autograd::engine::evaluate_function: "
ACCUMULATES = f"{RUNS}torch::autograd::AccumulateGrad"
#: Category, name, first and last µs, thread, sequence number.
Call = tuple[str, str, int, int, int, int | None]
FORWARD: list[Call] = [
    ("user_annotation", "ProfilerStep#1", 0, 100, 1, None),
    ("user_annotation", "nn.Module: a", 1, 9, 1, None),
    ("cpu_op", "aten::linear", 2, 8, 1, 28),
    ("cpu_op", "aten::addmm", 4, 7, 1, 29),
    ("user_annotation", "nn.Module: b", 10, 19, 1, None),
    ("cpu_op", "aten::view", 11, 12, 1, 30),
    ("cpu_op", "aten::relu", 13, 18, 1, 30),
    ("cpu_op", "aten::mean", 20, 21, 1, 31),
]


def trace(calls: Iterable[Call]) -> RankTrace:
    events = [
        {"ph": "X", "cat": category, "name": name, "ts": start, "dur": end - start, "pid": 1, "tid": thread}
        | ({} if number is None else {"args": {"Sequence number": number}})
        for category, name, start, end, thread, number in calls
    ]
    return decode([json.dumps({"traceEvents": events}).encode()], "rank0.json")


def modules(*backward: Call) -> list[str]:
    """The module around each of some operators of backward, after the same forward."""
    read = trace([*FORWARD, *backward])
    host = HostCalls.of(read)
    names = [name for _, name, *_ in backward]
    calls = np.array([host.texts(np.arange(len(host))).index(name) for name in names])
    return [read.strings[i] if i >= 0 else "" for i in own_function(host, host.start_ns[calls], host.thread[calls])]


def test_a_node_is_of_the_module_of_the_operator_with_its_number() -> None:
    on_autograds_thread = [
        ("cpu_op", f"{RUNS}MeanBackward0", 30, 39, 2, 31),
        ("cpu_op", f"{RUNS}ReluBackward0", 40, 49, 2, 30),
        ("cpu_op", f"{RUNS}AddmmBackward0", 50, 59, 2, 29),
        ("cpu_op", "aten::mm", 52, 55, 2, None),
        ("cpu_op", ACCUMULATES, 60, 69, 2, None),
    ]
    expected = ["", "nn.Module: b", "nn.Module: a", "nn.Module: a", "nn.Module: a"]
    assert modules(*on_autograds_thread) == expected
    assert modules(*((*call[:4], 1, call[5]) for call in on_autograds_thread)) == expected


def test_numbers_of_another_thread_are_within_a_node_that_is_known() -> None:
    """A reentrant checkpoint computes forward again on autograd's thread, which counts for itself."""
    assert (
        modules(
            ("cpu_op", f"{RUNS}CheckpointFunctionBackward", 30, 60, 2, 29),
            ("cpu_op", "aten::tanh", 35, 36, 2, 30),
            ("cpu_op", f"{RUNS}TanhBackward0", 40, 45, 2, 30),
        )
        == ["nn.Module: a"] * 3
    )


def test_nodes_of_operators_that_were_not_recorded_have_no_module() -> None:
    assert modules(
        ("cpu_op", ACCUMULATES, 30, 31, 2, None),
        ("cpu_op", f"{RUNS}SinBackward0", 32, 39, 2, 7),
        ("cpu_op", f"{RUNS}CosBackward0", 40, 49, 2, 4711),
    ) == ["", "", ""]


def test_an_operator_after_a_node_did_not_make_it() -> None:
    """As in a process that profiles twice and counts anew."""
    late = ("cpu_op", "aten::sin", 70, 71, 1, 40)
    assert modules(("cpu_op", f"{RUNS}SinBackward0", 32, 39, 2, 40), late)[0] == ""


def test_the_operator_that_starts_last_made_the_node() -> None:
    host = HostCalls.of(trace([*FORWARD, ("cpu_op", f"{RUNS}ReluBackward0", 30, 39, 1, 30)]))
    node, operator = nodes(host)
    assert (host.texts(node), host.texts(operator)) == ([f"{RUNS}ReluBackward0"], ["aten::relu"])


def test_nodes_in_a_row_are_one_stretch_of_a_module() -> None:
    """What hooks do between two of them is the module's; what the optimizer does is not."""
    read = trace(
        [
            *FORWARD,
            ("cpu_op", f"{RUNS}AddmmBackward0", 30, 35, 1, 29),
            ("cpu_op", ACCUMULATES, 38, 40, 1, None),
            ("user_annotation", "Optimizer.step#SGD.step", 50, 60, 1, None),
            ("cpu_op", ACCUMULATES, 70, 75, 1, None),
        ]
    )
    host = HostCalls.of(read)
    instants = np.array([36_000, 45_000, 55_000, 72_000])
    found = own_function(host, instants, np.full(4, host.training_thread, np.int32))
    assert [read.strings[i] if i >= 0 else "" for i in found] == ["nn.Module: a", "", "", "nn.Module: a"]
