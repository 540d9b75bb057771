"""Reading traces: each test draws the smallest file that shows one thing that real files do."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from tb_ddp_doctor.storage import time_limit
from tb_ddp_doctor.trace import document, events, native, stream
from tb_ddp_doctor.trace.model import Category, RankTrace, TraceError
from tb_ddp_doctor.trace.reader import decode, read
from tb_ddp_doctor.trace.times import MAX_NS, UNUSABLE, nanoseconds


@pytest.fixture(scope="module", autouse=True, params=["native", "msgspec"])
def each_reader(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test here is one of both readers."""
    if request.param == "native" and not native.is_available():
        pytest.skip("there was no C compiler: the scanner was not built")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DDP_DOCTOR_READER", request.param)
        yield


OP = (
    '{"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 2, "ts": 10.500, "dur": 2.250,'
    ' "args": {"Sequence number": 54, "Fwd thread id": 0}}'
)
LAUNCH = (
    '{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 2, "ts": 11.000, "dur": 1.000,'
    ' "args": {"cbid": 211, "correlation": 77}}'
)
KERNEL = (
    '{"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 20.001, "dur": 5.000,'
    ' "args": {"device": 0, "stream": 7, "correlation": 77, "grid": [4, 1, 1]}}'
)
COPY = (
    '{"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)", "pid": 0, "tid": 7, "ts": 30.000,'
    ' "dur": 1.000, "args": {"device": 0, "stream": 7, "correlation": 78, "bytes": 128}}'
)
EVENTS = (OP, LAUNCH, KERNEL, COPY)


def trace(*lines: str, head: str = "", tail: str = "") -> str:
    """A trace's text: events, with members (each with its comma) before and after them."""
    return f'{{{head}"traceEvents": [\n{", ".join(lines)}\n]{tail}}}'


def op(ts: str = "1.000", dur: str = "1.000", name: str = "aten::add", more: str = "") -> str:
    return f'{{"ph": "X", "cat": "cpu_op", "name": "{name}", "pid": 1, "tid": 1, "ts": {ts}, "dur": {dur}{more}}}'


def of(text: str | bytes, block: int = 1 << 20) -> RankTrace:
    """A text, got in blocks of so many bytes."""
    data = text.encode() if isinstance(text, str) else text
    return decode((data[at : at + block] for at in range(0, len(data), block)), "rank0")


def names(of_trace: RankTrace) -> list[str]:
    return [of_trace.strings[index] for index in of_trace.events.name]


def messages(of_trace: RankTrace) -> list[str]:
    assert all(warning.file == "rank0" for warning in of_trace.warnings)
    return [warning.message for warning in of_trace.warnings]


# -- columns


def test_every_column_of_every_category() -> None:
    got = of(trace(*EVENTS))
    assert names(got) == ["aten::add", "cudaLaunchKernel", "gemm", "Memcpy HtoD (Pageable -> Device)"]
    assert got.events.category.tolist() == [Category.OP, Category.RUNTIME, Category.KERNEL, Category.MEMCPY]
    assert got.events.start_ns.tolist() == [10_500, 11_000, 20_001, 30_000]
    assert got.events.duration_ns.tolist() == [2_250, 1_000, 5_000, 1_000]
    assert [got.threads[index] for index in got.events.thread] == [("1", "2"), ("1", "2"), ("0", "7"), ("0", "7")]
    assert got.events.device.tolist() == [-1, -1, 0, 0]
    assert got.events.stream.tolist() == [-1, -1, 7, 7]
    assert got.events.correlation.tolist() == [-1, 77, 77, 78]
    assert got.events.bytes.tolist() == [-1, -1, -1, 128]
    assert got.events.sequence.tolist() == [54, -1, -1, -1]
    assert [index if index < 0 else got.strings[index] for index in got.events.shape] == [-1, -1, "[4, 1, 1]", -1]
    assert not got.warnings and not got.dropped


def test_types_of_columns_are_those_of_the_model() -> None:
    for got in (of(trace()), of(trace(*EVENTS))):
        columns = {name: getattr(got.events, name).dtype for name in got.events.__struct_fields__}
        assert columns.pop("category") == np.int8
        assert {name for name, dtype in columns.items() if dtype == np.int32} == {
            "name",
            "thread",
            "device",
            "shape",
            "occupancy",
            "types",
            "values",
            "graph",
        }
        assert {name for name, dtype in columns.items() if dtype == np.int64} == columns.keys() - {
            "name", "thread", "device", "shape", "occupancy", "types", "values", "graph",
        }  # fmt: skip


def test_a_trace_without_events_is_a_trace() -> None:
    assert len(of(trace()).events) == 0
    assert len(of('{"traceEvents":[]}').comms) == 0


def test_input_dims_are_kept_on_one_line_whatever_the_layout() -> None:
    dense = of(trace(op(more=', "args": {"Input Dims": [[24, 1024], []]}')))
    indented = of(trace(op(more=', "args": {"Input Dims": [\n  [\n    24,\n    1024\n  ],\n  []\n ]}')))
    assert dense.strings[dense.events.shape[0]] == indented.strings[indented.events.shape[0]] == "[[24, 1024], []]"


def test_dropped_events_are_counted_by_category() -> None:
    frame = '{"ph": "X", "cat": "python_function", "name": "f", "pid": 1, "tid": 1, "ts": 1, "dur": 1}'
    flow = '{"ph": "s", "id": 1, "pid": 1, "tid": 1, "ts": 1, "cat": "ac2g", "name": "ac2g"}'
    named = '{"name": "process_name", "ph": "M", "ts": 1, "pid": 1, "tid": 0, "args": {"name": "python"}}'
    got = of(trace(frame, OP, frame, flow, named))
    assert got.dropped == {"python_function": 2, "ac2g": 1, "M": 1}
    assert names(got) == ["aten::add"]


MEMORY = (
    '{"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1, "tid": 1, "ts": 10.125, "args": '
    '{"Total Reserved": 4096, "Total Allocated": 1024, "Bytes": -512, "Device Id": 0, "Device Type": 1, "Addr": 7}}'
)


def test_what_allocators_did_has_a_table_of_its_own() -> None:
    other = MEMORY.replace("[memory]", "another instant")
    whole = MEMORY.replace('"i"', '"X"')
    got = of(trace(OP, MEMORY, other, whole, tail=', "baseTimeNanoseconds": 1000000'))
    assert {name: getattr(got.memory, name).tolist() for name in got.memory.__struct_fields__} == {
        "time_ns": [1_010_125],
        "device_type": [1],
        "device": [0],
        "bytes": [-512],
        "allocated": [1024],
        "reserved": [4096],
        "address": [7],
        "thread": [got.threads.index(("1", "1"))],
    }
    assert names(got) == ["aten::add"]
    assert got.dropped == {"cpu_instant_event": 2}
    assert not got.warnings


def test_an_allocators_numbers_may_be_missing_or_odd() -> None:
    bare = MEMORY.replace('"Total Reserved": 4096, "Total Allocated": 1024, ', "")
    got = of(
        trace(bare, MEMORY.replace("4096", '"4096"'), MEMORY.replace("1024", "[]"), MEMORY.replace("10.125", "-1"))
    )
    assert got.memory.allocated.tolist() == [-1, 1024, -1]
    assert got.memory.reserved.tolist() == [-1, 4096, 4096]
    said = messages(got)
    assert len(said) == 2
    assert any("1 event from byte" in text and "arguments of the wrong type" in text for text in said)
    assert any("no usable time" in text for text in said)


@pytest.mark.parametrize("category", ["python_function", "Python"])
def test_python_functions_that_last_and_calls_of_modules_are_kept(category: str) -> None:
    def frame(name: str, length: float) -> str:
        return op(name=name, dur=str(length)).replace("cpu_op", category)

    modules = [frame("nn.Module: A_0", 2), frame("nn.Module: A_0", -1)]
    got = of(trace(frame("train.py(4): step", 100), frame("short", 99.999), OP, *modules))
    assert [got.strings[index] for index in got.frames.name] == ["train.py(4): step", "nn.Module: A_0"]
    assert (got.frames.start_ns.tolist(), got.frames.duration_ns.tolist()) == ([1_000, 1_000], [100_000, 2_000])
    assert [got.threads[index] for index in got.frames.thread] == [("1", "1"), ("1", "1")]
    assert got.dropped == {category: 2}
    assert not got.warnings


def test_the_size_of_a_devices_memory() -> None:
    devices = (
        '"deviceProperties": [{"id": 0, "name": "H200", "totalGlobalMem": 150}, {"id": 1, "totalGlobalMem": "x"}], '
    )
    assert of(trace(head=devices)).header.device_bytes == {0: 150}
    huge = devices.replace("150", "9" * 30)
    assert of(trace(head=huge)).header.device_bytes == {}


def test_categories_of_2021() -> None:
    old = [
        '{"ph": "X", "cat": "Operator", "name": "aten::add", "pid": 9, "tid": "9", "ts": 1, "dur": 1,'
        ' "args": {"Input Dims": [[2]], "external id": 3}}',
        '{"ph": "X", "cat": "Operator", "name": "ProfilerStep#5", "pid": 9, "tid": "9", "ts": 1, "dur": 9}',
        '{"ph": "X", "cat": "Operator", "name": "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",'
        ' "pid": 9, "tid": 9, "ts": 1, "dur": 9}',
        '{"ph": "X", "cat": "Kernel", "name": "gemm", "pid": 0, "tid": "stream 7", "ts": 3, "dur": 1,'
        ' "args": {"device": 0, "stream": 7, "correlation": 4, "external id": 3}}',
        '{"ph": "X", "cat": "Runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": "9", "ts": 2, "dur": 1,'
        ' "args": {"correlation": 4}}',
    ]
    got = of(trace(*old))
    assert got.events.category.tolist() == [
        Category.OP, Category.ANNOTATION, Category.ANNOTATION, Category.KERNEL, Category.RUNTIME,
    ]  # fmt: skip
    assert got.threads == (("9", "9"), ("0", "stream 7"))
    assert got.events.correlation.tolist() == [-1, -1, -1, 4, 4]


@pytest.mark.parametrize(("pid", "tid", "thread"), [
    ("1", '"main"', ("1", "main")), ('""', "null", ("", "")), ("-1", "1.5", ("-1", "1.5")),
])  # fmt: skip
def test_pid_and_tid_of_any_type(pid: str, tid: str, thread: tuple[str, str]) -> None:
    got = of(trace(f'{{"ph": "X", "cat": "cpu_op", "name": "a", "pid": {pid}, "tid": {tid}, "ts": 1, "dur": 1}}'))
    assert got.threads == (thread,)


def test_a_thread_that_is_number_and_text_is_one() -> None:
    got = of(trace(op(), op().replace('"tid": 1', '"tid": "1"')))
    assert got.threads == (("1", "1"),)
    assert got.events.thread.tolist() == [0, 0]


def test_numbers_in_text_count() -> None:
    got = of(trace(COPY.replace('"bytes": 128', '"bytes": "128"').replace('"stream": 7', '"stream": "7"')))
    assert (got.events.bytes[0], got.events.stream[0]) == (128, 7)
    assert not got.warnings


@pytest.mark.parametrize(
    "odd", ['"0x0"', "null", "[1]", "1.5", "true", "1e400", "123456789012345678901234567890", str(2**63 - 1)]
)
def test_an_argument_of_the_wrong_type_costs_that_argument(odd: str) -> None:
    got = of(trace(KERNEL, COPY.replace('"stream": 7', f'"stream": {odd}')))
    assert got.events.stream.tolist() == [7, -1]
    assert got.events.bytes.tolist() == [-1, 128]
    [message] = messages(got)
    assert message.startswith("1 event from byte ") and "wrong type" in message


@pytest.mark.parametrize("args", ["null", "[]", "7", '"x"'])
def test_arguments_that_are_no_object_cost_the_arguments(args: str) -> None:
    got = of(trace(COPY, COPY.partition('"args"')[0] + f'"args": {args}}}'))
    assert got.events.bytes.tolist() == [128, -1]


# -- communication

METADATA = (
    '"Collective name": "allreduce", "In msg nelems": 1445888, "Out msg nelems": 1445889, "Group size": 4,'
    ' "dtype": "Float", "Process Group Name": "0", "Process Group Ranks": "[0, 1, ...]"'
)


def comm(got: RankTrace, row: int = 0) -> dict[str, object]:
    texts = ("collective", "group", "group_ranks", "dtype", "algorithm", "protocol")
    columns = {name: int(getattr(got.comms, name)[row]) for name in got.comms.__struct_fields__}
    return columns | {name: got.strings[columns[name]] if columns[name] >= 0 else "" for name in texts}


ALL_REDUCE = {
    "event": 0, "collective": "allreduce", "group": "0", "group_ranks": "[0, 1, ...]", "group_size": 4,
    "elements_in": 1445888, "elements_out": 1445889, "dtype": "Float", "sequence": -1, "peer": -1, "count": -1,
    "algorithm": "", "protocol": "", "channels": -1,
}  # fmt: skip
#: As torch/csrc/profiler/cupti/nccl_profiler.cpp writes them, and torch/profiler/_cupti/comms/hook.py the group.
OF_NCCL = (
    '"func": "AllReduce", "datatype": "ncclFloat32", "algo": "RING", "proto": "LL", "count": 64, "root": 0, '
    '"n_channels": 2, "n_warps": 16, "seq": 7, "rank": 1'
)


def test_metadata_on_the_kernel() -> None:
    got = of(trace(KERNEL.replace('"grid"', f'{METADATA}, "grid"'), KERNEL))
    assert len(got.comms) == 1
    assert comm(got) == ALL_REDUCE


def test_metadata_of_nccls_plugin() -> None:
    group = '"process_group": ["dp", ""], "process_group_ranks": [0, 1]'
    got = of(trace(KERNEL.replace('"grid"', f'{OF_NCCL}, {group}, "grid"')))
    assert comm(got) == {
        "event": 0, "collective": "AllReduce", "group": '["dp", ""]', "group_ranks": "[0, 1]", "group_size": -1,
        "elements_in": -1, "elements_out": -1, "dtype": "ncclFloat32", "sequence": 7, "peer": -1, "count": 64,
        "algorithm": "RING", "protocol": "LL", "channels": 2,
    }  # fmt: skip
    assert not got.warnings


def test_torchs_metadata_goes_before_that_of_nccls_plugin() -> None:
    got = of(trace(KERNEL.replace('"grid"', f'{OF_NCCL}, {METADATA}, "Seq": 3, "grid"')))
    own = {"sequence": 3, "count": 64, "algorithm": "RING", "protocol": "LL", "channels": 2}
    assert comm(got) == ALL_REDUCE | own


def test_metadata_on_the_host() -> None:
    got = of(trace(OP, op(name="record_param_comms", more=f', "args": {{{METADATA}}}')))
    assert comm(got) == ALL_REDUCE | {"event": 1}


def test_record_param_comms_without_metadata_has_a_row() -> None:
    assert comm(of(trace(op(name="record_param_comms")))) == {
        "event": 0, "collective": "", "group": "", "group_ranks": "", "group_size": -1,
        "elements_in": -1, "elements_out": -1, "dtype": "", "sequence": -1, "peer": -1, "count": -1, "algorithm": "",
        "protocol": "", "channels": -1,
    }  # fmt: skip


def test_a_kernel_of_that_name_has_one_row() -> None:
    kernel = KERNEL.replace("gemm", "record_param_comms").replace('"grid"', f'{METADATA}, "grid"')
    assert of(trace(OP, kernel)).comms.event.tolist() == [1]


@pytest.mark.parametrize(("args", "peer"), [
    ('"Collective name": "send", "Dst Rank": 7', 7), ('"Collective name": "recv", "Src Rank": "5"', 5),
    ('"Src Rank": 3, "Dst Rank": 4', 4), ('"Src Rank": 3, "Dst Rank": null', -1), ('"Dst Rank": []', -1),
])  # fmt: skip
def test_the_other_one_of_sends_and_receives(args: str, peer: int) -> None:
    got = of(trace(op(name="record_param_comms", more=f', "args": {{{args}}}')))
    assert got.comms.peer.tolist() == [peer]
    assert not got.warnings


@pytest.mark.parametrize(("args", "sequence"), [
    ('"Seq": 12', 12), ('"Concrete Inputs": ["", "34", "0"]', 34), ('"Concrete Inputs": ["", "", "0"]', -1),
    ('"Concrete Inputs": ["", "[1, 2]"]', -1), ('"Concrete Inputs": [""]', -1), ('"Concrete Inputs": null', -1),
    ('"Concrete Inputs": ["", "9999999999999999999999"]', -1), ('"Seq": 5, "Concrete Inputs": ["", "6"]', 5),
])  # fmt: skip
def test_sequence_number_from_either_place(args: str, sequence: int) -> None:
    got = of(trace(op(name="record_param_comms", more=f', "args": {{{args}}}')))
    assert got.comms.sequence.tolist() == [sequence]


def test_metadata_of_the_wrong_type_costs_that_field() -> None:
    odd = '"Collective name": "allreduce", "Group size": "many", "In msg nelems": null, "Process Group Name": 7'
    got = of(trace(op(name="record_param_comms", more=f', "args": {{{odd}}}')))
    assert comm(got) == {
        "event": 0, "collective": "allreduce", "group": "7", "group_ranks": "", "group_size": -1,
        "elements_in": -1, "elements_out": -1, "dtype": "", "sequence": -1, "peer": -1, "count": -1, "algorithm": "",
        "protocol": "", "channels": -1,
    }  # fmt: skip


# -- time


def ns(*literals: str) -> list[int]:
    return [int(value) for value in nanoseconds([Raw(literal.encode()) for literal in literals])]


def test_three_decimals_beyond_the_precision_of_a_double() -> None:
    assert ns("1790857026123456.789", "1790857026123456.790") == [1790857026123456789, 1790857026123456790]


def test_whole_microseconds() -> None:
    assert ns("1706850122845782", "0") == [1706850122845782000, 0]


def test_any_number_of_decimals_together() -> None:
    assert ns("5", "5.1", "5.12", "5.123", "5.1234", "5.1235", "0.0009") == [5000, 5100, 5120, 5123, 5123, 5124, 1]


@pytest.mark.parametrize(("literal", "expected"), [
    ("1e3", 1_000_000), ("1.5E-3", 2), ('"12.345"', 12_345), ("0.000000000000000000000000000001", 0),
    ("-1", UNUSABLE), ("null", UNUSABLE), ("1e400", UNUSABLE), ('"NaN"', UNUSABLE), ('"inf"', UNUSABLE),
    ("true", UNUSABLE), ("[1]", UNUSABLE), ('""', UNUSABLE), ("", UNUSABLE), ("99999999999999999999999", UNUSABLE),
    ("9" * 5000, UNUSABLE), ("3000000000000000", MAX_NS), ("3000000000000000.001", UNUSABLE),
    ('"1_000"', UNUSABLE), ('" 1 "', UNUSABLE), ('"1 "', UNUSABLE), ('""1""', UNUSABLE), ('"+1."', 1000),
    ('"0e99999999999999999999"', 0), ('"1e-99999999999999999999"', 0), ('"1e99999999999999999999"', UNUSABLE),
])  # fmt: skip
def test_times_that_are_odd(literal: str, expected: int) -> None:
    assert ns(literal) == [expected]
    assert ns("1.000", literal, "2") == [1000, expected, 2000]


@given(st.lists(st.tuples(st.integers(0, MAX_NS // 1000 - 1), st.from_regex(r"(\.[0-9]{1,12})?", fullmatch=True))))
def test_times_equal_decimal_arithmetic(parts: list[tuple[int, str]]) -> None:
    literals = [f"{whole}{fraction}" for whole, fraction in parts]
    assert ns(*literals) == [int(Decimal(literal) * 1000 + Decimal("0.5")) for literal in literals]


@given(st.lists(st.one_of(st.floats(), st.integers(), st.text(max_size=20), st.none()), min_size=1))
def test_times_of_any_json_fit_an_int64(values: list[object]) -> None:
    got = ns(*(json.dumps(value) for value in values))
    assert all(UNUSABLE <= value <= MAX_NS for value in got)


def test_events_without_a_usable_time_are_dropped_and_told() -> None:
    no_duration = '{"ph": "X", "cat": "cpu_op", "name": "b", "ts": 1}'
    got = of(trace(OP, op("-5.000"), op(dur="-1"), no_duration, op("1e300"), KERNEL))
    assert names(got) == ["aten::add", "gemm"]
    [message] = messages(got)
    assert message.startswith("4 events skipped from byte ") and "no usable time (ts -5.000" in message


# -- layout and header


@pytest.mark.parametrize("layout", [
    '{"schemaVersion": 1, "baseTimeNanoseconds": 7000, "traceEvents": [%s]}',
    '{\n  "traceEvents": [\n  %s\n  ],\n  "traceName": "a",\n  "baseTimeNanoseconds": 7000\n}\n',
    '\ufeff {"traceEvents":[%s],"deviceProperties":[{"id":0},{"id":1}],"baseTimeNanoseconds":7000}',
    '{"INFO": ["\\"traceEvents\\": [", "}]"], "baseTimeNanoseconds": 7000, "traceEvents": [%s], "INFO": ["}]"]}',
    '{"a": {"b": [{"c": 1}, {"traceEvents": 1}]}, "traceEvents": [%s], "b": [{"x": []}], "baseTimeNanoseconds": 7000}',
])  # fmt: skip
@pytest.mark.parametrize("block", [1, 7, 64, 1 << 20])
def test_every_layout_in_blocks_of_every_size(layout: str, block: int) -> None:
    for separator in (", ", ",\n  ", ",", " ,\n"):
        got = of(layout % separator.join(EVENTS), block)
        assert got.events.start_ns.tolist() == [17_500, 18_000, 27_001, 37_000]
        assert got.header.base_ns == 7000
        assert not got.warnings


def test_one_key_per_line() -> None:
    text = json.dumps({"traceEvents": [json.loads(event) for event in EVENTS], "baseTimeNanoseconds": 1}, indent=2)
    assert of(text, 50).events.start_ns.tolist() == [10_501, 11_001, 20_002, 30_001]


@pytest.mark.parametrize("block", [1, 30, 1 << 20])
def test_a_bare_list_of_events(block: int) -> None:
    assert len(of(f"[{OP},\n{KERNEL}]", block).events) == 2
    assert not of(f"[{OP}]", block).warnings


@pytest.mark.parametrize("block", [100, 1000, 1 << 20])
def test_boundaries_and_ends_within_strings_and_nested_lists(block: int) -> None:
    tricky = op(
        name='a}, {\\"ph\\": \\"X\\"}], \\"traceEvents\\": [',
        more=', "args": {"list": [{"name": 1}, {"name": 2}], "x": [{"ph": []}]}',
    )
    got = of(trace(*[OP, tricky] * 40, tail=', "deviceProperties": [{"id": 0, "name": "H200"}, {"id": 1}]'), block)
    assert len(got.events) == 80
    assert not got.warnings
    assert got.header.devices == {0: "H200", 1: ""}


def test_what_a_file_says_of_itself() -> None:
    distributed = (
        '"distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 4, "pg_config":'
        ' [{"pg_name": "0", "ranks": [0, 1, 2, 3]}, {"pg_name": "dp", "ranks": [1, 3]}]}, '
    )
    header = of(
        trace(
            head=distributed + '"record_shapes": 1, "host_name": "node1", ',
            tail=', "with_stack": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}]',
        )
    ).header
    assert (header.rank, header.world_size, header.backend, header.host) == (3, 4, "nccl", "node1")
    assert header.groups == {"0": (0, 1, 2, 3), "dp": (1, 3)}
    assert header.devices == {0: "NVIDIA H200"}
    assert header.has_shapes and header.has_stacks


def test_header_values_of_the_wrong_type_are_missing() -> None:
    header = of(
        trace(
            head='"distributedInfo": {"rank": "3", "world_size": true, "backend": 5,'
            ' "pg_config": [7, {"pg_name": []}]}, '
            '"deviceProperties": {"id": 0}, "host_name": null, "record_shapes": "yes", '
        )
    ).header
    assert (header.rank, header.world_size, header.backend, header.groups) == (None, None, "", {})
    assert (header.devices, header.host, header.has_shapes) == ({}, "", False)


def test_texts_of_the_header_are_cut() -> None:
    """Sentences repeat them."""
    long = "N" * 100_000
    group = f'{{"pg_name": "{long}", "pg_desc": "{long}"}}'
    header = of(
        trace(
            head=f'"distributedInfo": {{"backend": "{long}", "pg_config": [{group}]}}, '
            f'"deviceProperties": [{{"id": 0, "name": "{long}"}}], "host_name": "{long}", '
        )
    ).header
    texts = (header.backend, header.devices[0], header.host, *header.groups, *header.group_descriptions.values())
    assert {*map(len, texts)} == {1024} and len(texts) == 5


@pytest.mark.parametrize("base", ['"soon"', "-1", "1e18", "99999999999999999999", "null", "[]", "true"])
def test_an_unusable_base_is_ignored_and_told(base: str) -> None:
    got = of(trace(OP, tail=f', "baseTimeNanoseconds": {base}'))
    assert got.events.start_ns.tolist() == [10_500]
    assert "baseTimeNanoseconds" in messages(got)[0]


def test_a_broken_header_costs_that_member() -> None:
    text = trace(OP, head='"a": "x"y", "baseTimeNanoseconds": 7000, ', tail=', "b": \\, "host_name": "node1"')
    got = of(text)
    assert got.events.start_ns.tolist() == [17_500]
    assert got.header.host == "node1"
    assert any("metadata at byte" in message for message in messages(got))


# -- no trace


@pytest.mark.parametrize(("text", "sentence"), [
    ("", "The file is empty."), (" \n ", "The file is empty."), ("hello", "It is not JSON."), ("7", "It is not JSON."),
    ('{"a": 1}', 'It is JSON without "traceEvents", so no trace of torch.profiler.'),
    ("{}", 'It is JSON without "traceEvents", so no trace of torch.profiler.'),
    ('{"traceEvents": null}', 'Its "traceEvents" is not a list.'),
    ("[]", "It is a JSON list, but not of trace events."),
    ("[1, 2]", "It is a JSON list, but not of trace events."),
    ('[{"a": 1}]', "It is a JSON list, but not of trace events."),
    ('{"schemaVersion": 1, "dev', 'It is cut off before its "traceEvents".'),
    ("\0" * 100, "It is not JSON."), ("{" * 100_000, 'It is cut off before its "traceEvents".'),
])  # fmt: skip
def test_text_that_is_no_trace(text: str, sentence: str) -> None:
    for block in (1 << 20, 3):
        with pytest.raises(TraceError) as caught:
            of(text[: 20 if block == 3 and len(text) > 1000 else None], block)
        assert str(caught.value) == sentence


def test_paths_that_are_no_trace(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="does not exist"):
        read(tmp_path / "none.json")
    with pytest.raises(TraceError, match="directory"):
        read(tmp_path)
    with pytest.raises(TraceError, match="cannot be opened"):
        read("a\0b")
    (tmp_path / "empty.json.gz").write_bytes(b"")
    with pytest.raises(TraceError, match="empty"):
        read(tmp_path / "empty.json.gz")
    (tmp_path / "zeros.json.gz").write_bytes(gzip.compress(b""))
    with pytest.raises(TraceError, match="empty"):
        read(tmp_path / "zeros.json.gz")


# -- broken text


def broken(bad: str | bytes, block: int = 1 << 20) -> RankTrace:
    """A trace of 20 good events with a bad one in the middle."""
    text = trace(*[OP] * 10, "BAD", *[KERNEL] * 10, tail=', "baseTimeNanoseconds": 1000000')
    return of(text.encode().replace(b"BAD", bad.encode() if isinstance(bad, str) else bad), block)


@pytest.mark.parametrize("block", [40, 500, 1 << 20])
@pytest.mark.parametrize("bad", [
    op(name='<frozen "x">'), op(name='C:\\Users'), op(dur="inf"), op(more=","), op(more=', "args": {"a": nan}'),
    op(more=', "args": {"a": [1, 2}'), op(more=', "args": ' + "[" * 3000 + "]" * 3000), op()[:-1], op()[1:], "{}}",
    op(name='"'), op(name='a", "b'),
], ids=range(12))  # fmt: skip
def test_a_broken_event_costs_no_other(bad: str, block: int) -> None:
    got = broken(bad, block)
    assert len(got.events) in (20, 21)
    assert names(got).count("gemm") == 10
    assert got.header.base_ns == 1_000_000
    assert 1 <= len(got.warnings) <= 2
    assert "skipped from byte " in messages(got)[0]


def test_the_warning_says_where_and_what() -> None:
    bad = op(name="C:\\Users")
    got = broken(bad)
    position = trace(*[OP] * 10, bad).index(bad)
    assert messages(got) == [f"1 event skipped from byte {position:,} on: invalid \\escape"]


def test_one_warning_for_many_broken_events() -> None:
    got = of(trace(*[op(name="\\q"), OP] * 30), 1000)
    assert len(got.events) == 30
    [message] = messages(got)
    assert message.startswith("30 events skipped from byte 18 on: ")


@pytest.mark.parametrize("last", [op(name="\\q"), op(name='"')])
@pytest.mark.parametrize("block", [50, 1 << 20])
def test_a_broken_last_event_costs_no_metadata(last: str, block: int) -> None:
    got = of(trace(OP, last, tail=', "baseTimeNanoseconds": 1000'), block)
    assert got.events.start_ns.tolist() == [11_500]
    assert len(got.warnings) == 1


def test_a_quote_in_the_name_of_the_file_is_no_cut() -> None:
    read_trace = of(trace(OP, head='"with_stack": 1, ', tail=', "traceName": "/logs/of "stacks"/rank0.json" '))
    assert len(read_trace.events) == 1
    assert read_trace.header.has_stacks
    (message,) = messages(read_trace)
    assert message.startswith("metadata at byte")


def test_a_comma_before_the_end_of_the_list() -> None:
    assert len(of('{"traceEvents": [' + OP + ', ], "host_name": "a"}').events) == 1


@pytest.mark.parametrize(("raw", "name"), [
    (b"a\xff\xfeb", "a\ufffd\ufffdb"), (b"a\x01b", "a\x01b"), (b"a\nb", "a\nb"), (b"a\\ud800b", "a\ufffdb"),
    ("\u00e9".encode(), "\u00e9"),
])  # fmt: skip
def test_names_that_are_no_valid_text_are_kept(raw: bytes, name: str) -> None:
    text = trace(OP, op("1790857026123456.789", name="NAME"), tail=', "x": 1').encode().replace(b"NAME", raw)
    got = of(text)
    assert names(got) == ["aten::add", name]
    assert got.events.start_ns[1] == 1790857026123456789
    assert len(got.warnings) == (name != "\u00e9")


@pytest.mark.parametrize("bad", [
    '{"ph": "X", "cat": "cpu_op", "name": 7, "ts": 1, "dur": 1}',
    '{"ph": "X", "cat": ["cpu_op"], "name": "a", "ts": 1, "dur": 1}',
    '{"ph": "X", "cat": "cpu_op", "name": "a", "pid": {}, "ts": 1, "dur": 1}',
])  # fmt: skip
def test_an_event_of_the_wrong_type_costs_that_event(bad: str) -> None:
    got = broken(bad)
    assert len(got.events) == 20
    [message] = messages(got)
    assert message.startswith("1 event skipped from byte ") and "wrong types" in message


@pytest.mark.parametrize("block", [40, 1 << 20])
@pytest.mark.parametrize("bad", ["null", "[]", "17", '"text"', "[", "]", "]]", "{", "}", "nonsense", "[{}, {}]"])
def test_what_is_no_event_costs_at_most_one(bad: str, block: int) -> None:
    got = broken(bad, block)
    assert len(got.events) >= 19
    assert got.header.base_ns == 1_000_000
    assert "skipped from byte " in messages(got)[0]


def test_an_end_of_the_list_that_is_none_is_told() -> None:
    got = of(trace(OP, OP + "]", KERNEL, tail=', "baseTimeNanoseconds": 1000'), 60)
    assert (len(got.events), got.header.base_ns) == (3, 1000)
    assert "the list of events seems to end" in messages(got)[0]


def test_an_event_that_is_larger_than_any_sane_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (events, document):
        monkeypatch.setattr(module, "MAX_ITEM_BYTES", 10_000)
    got = broken(op(name="x" * 50_000), block=1000)
    assert len(got.events) == 20
    assert messages(got)[0].startswith("1 event skipped from byte ")
    got = broken(op(name="x" * 8_000), block=1000)
    assert (len(got.events), got.warnings) == (21, ())


DEEP = '{"ph": "X", "args": [0,'
HOSTILE = {
    "seeming ends": (OP, f", {OP}], {OP}"),
    "nested too deeply": (DEEP, DEEP),
    "refused at the end of each level": ("", f"{DEEP * 900} x, "),
    "levels as long as a window": ("", DEEP + f"{op()}, " * 300),
    "a start that never ends": (f"{DEEP} {op()}, " * 900, f'x, {{"ph": "{"z" * 30}" "'),
    "broken members before the list": ('], "a": 1', ', "a": x'),
}


@pytest.mark.parametrize(("head", "repeated"), HOSTILE.values(), ids=HOSTILE.keys())
def test_text_that_is_made_to_be_read_over_and_over_is_read_some_times(
    head: str, repeated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts characters that a decoder reads, not time; an error counts lines before it, 30 times as fast."""
    work = 0
    scan_once, decode_once = events._scan, events.decode_block

    def scan(text: str, at: int) -> tuple[object, int]:
        nonlocal work
        try:
            value, end = scan_once(text, at)
        except RecursionError:
            work += len(text) - at
            raise
        except json.JSONDecodeError as error:
            work += error.pos - at + error.pos // 30
            raise
        work += end - at
        return value, end

    def decode_block(block: bytes) -> list[events.RawEvent] | None:
        nonlocal work
        work += len(block)
        return decode_once(block)

    monkeypatch.setattr(events, "_scan", scan)
    for module in (events, document):
        monkeypatch.setattr(module, "decode_block", decode_block)
        monkeypatch.setattr(module, "MAX_ITEM_BYTES", 1 << 17)
    text = f'{{"traceEvents": [{head}{repeated * (500_000 // len(repeated))}'
    assert of(text, 1 << 14).warnings
    assert work < 40 * len(text)


def test_what_is_broken_all_over_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each start costs 10 us, also where none is one: the scanner in C needs no such limit."""
    monkeypatch.setenv("DDP_DOCTOR_READER", "msgspec")
    monkeypatch.setattr(events, "MOST_REFUSED", 50)
    broken = ', {"ph": x'
    got = of(f'{{"traceEvents": [{op()}{broken * 40}, {op()}{broken * 40}, {op()}]}}')
    assert len(names(got)) == 3
    got = of(f'{{"traceEvents": [{op()}{broken * 60}, {op()}]}}')
    assert len(names(got)) == 1
    assert "50 seeming events in a row are none, so no more was read" in " ".join(messages(got))


def test_many_names() -> None:
    got = of(trace(*(op(name=f"n{i}") for i in range(20_000))), 1 << 16)
    assert len(set(names(got))) == 20_000


# -- cut off

SMALL = trace(*EVENTS, head='"schemaVersion": 1, ', tail=', "deviceProperties": [{"id": 0, "name": "H200"}]')


def cuts() -> Iterator[tuple[int, RankTrace]]:
    for length in range(len(SMALL)):
        try:
            yield length, of(SMALL[:length])
        except TraceError as error:
            assert length < SMALL.index("{", 1) and str(error).endswith(".")


def test_a_text_cut_at_any_byte_gives_every_whole_event() -> None:
    ends = [SMALL.index(event) + len(event) for event in EVENTS]
    for length, got in cuts():
        assert len(got.events) == sum(end <= length for end in ends)
        [message] = [text for text in messages(got) if text.startswith("cut off at byte ")]
        assert ("within its metadata" in message) == (length > SMALL.index("]", ends[-1]))


def test_a_gzip_file_cut_at_any_byte_gives_ever_more(tmp_path: Path) -> None:
    whole = gzip.compress(trace(*(op(f"{i * i}.125") for i in range(100)), head='"a": 1, ').encode())
    path, last = tmp_path / "cut.json.gz", 0
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        try:
            found = read(path)
        except TraceError:
            assert not last
            continue
        assert len(found.events) >= last
        assert found.events.start_ns.tolist() == [i * i * 1000 + 125 for i in range(len(found.events))]
        [warning] = found.warnings
        assert "The gzip data is cut off" in warning.message
        last = len(found.events)
    assert last == 100


def test_gzip_members_joined(tmp_path: Path) -> None:
    text = trace(*EVENTS).encode()
    (tmp_path / "joined.json").write_bytes(gzip.compress(text[:150]) + gzip.compress(text[150:]))
    found = read(tmp_path / "joined.json", name="rank 0")
    assert (found.file, len(found.events), found.warnings) == ("rank 0", 4, ())


@pytest.mark.parametrize(("damage", "events", "said"), [
    (lambda gz: gz + b"rubbish", 4, "followed by bytes that are no gzip"), (lambda gz: gz + b"\0" * 512, 4, None),
    (lambda gz: gz[:-8] + b"abcdefgh", 4, "damaged"), (lambda gz: gz[:-4], 4, "cut off"),
    (lambda gz: gz[:60] + bytes(9) + gz[69:], 0, None),
], ids=["trailing-rubbish", "padding", "checksum", "no-trailer", "flipped"])  # fmt: skip
def test_a_damaged_gzip_file_gives_what_it_holds(tmp_path: Path, damage, events: int, said: str | None) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "damaged.gz"
    path.write_bytes(damage(gzip.compress(trace(*EVENTS).encode())))
    try:
        found = read(path)
    except TraceError:
        assert events == 0
        return
    assert len(found.events) >= events
    if said:
        assert [said in warning.message for warning in found.warnings] == [True]


def test_plain_and_gzip_are_told_apart_by_content(tmp_path: Path) -> None:
    (tmp_path / "plain.json.gz").write_text(SMALL)
    (tmp_path / "packed.json").write_bytes(gzip.compress(SMALL.encode()))
    assert len(read(tmp_path / "plain.json.gz").events) == len(read(tmp_path / "packed.json").events) == 4


def test_gzip_that_becomes_far_larger_is_read_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred times as large as no trace becomes; what is small all the same is read."""
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(trace(*[op()] * 20_000).encode()))
    assert not read(path).warnings
    monkeypatch.setattr(stream, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(stream, "SURE_BYTES", 10_000)
    monkeypatch.setattr(stream, "MOST_RATIO", 10)
    found = read(path)
    assert 0 < len(found.events) < 20_000
    assert f"the limit of {max(10_000, 10 * path.stat().st_size):,} bytes" in found.warnings[0].message


def test_reading_stops_at_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "CHUNK_BYTES", 1000)
    text = trace(*[OP] * 1000)
    for name, data in (("bomb.json.gz", gzip.compress(text.encode())), ("large.json", text.encode())):
        (tmp_path / name).write_bytes(data)
        found = read(tmp_path / name, max_bytes=50_000)
        assert len(found.events) == (50_000 - len(trace())) // len(OP + ", ")
        assert "the limit of 50,000 bytes" in found.warnings[0].message


# -- anything


@settings(max_examples=150)
@given(st.data())
def test_corruption_never_raises_anything_but_trace_error(data: st.DataObject) -> None:
    text = bytearray(trace(*EVENTS * 3, head='"a": {"b": [1]}, ', tail=', "baseTimeNanoseconds": 5').encode())
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(text) - 1))
        junk = data.draw(st.one_of(st.binary(max_size=4), st.sampled_from([b'"', b"{", b"}", b"]", b"},{", b"\\"])))
        text[at : at + data.draw(st.integers(0, 30))] = junk
        if not text:
            return
    try:
        got = of(bytes(text), data.draw(st.sampled_from([1 << 20, 200, 13])))
    except TraceError:
        return
    assert len({len(getattr(got.events, name)) for name in got.events.__struct_fields__}) == 1
    assert np.all(got.events.start_ns >= 0) and np.all(got.events.duration_ns >= 0)
    assert np.all(got.comms.event < len(got.events))


@settings(max_examples=100)
@given(st.integers(1, 300), st.integers(0, 40), st.integers(0, 11))
def test_one_corrupt_byte_costs_few_events(block: int, offset: int, which: int) -> None:
    lines = [op(f"{i}.000", name=f"n{i}") for i in range(12)]
    lines[which] = lines[which][:offset] + "\x00" + lines[which][offset + 1 :]
    got = of(trace(*lines), block)
    assert {f"n{i}" for i in range(12) if i not in (which, which + 1)} <= set(names(got)) | {f"n{which - 1}"}


#: With what does not answer; what does is quicker, on a busy machine too, s.
IMPATIENT_S = 2.0


class Stalls(io.BytesIO):
    """A file that gives so many bytes and then none, and does not say that there are no more."""

    def __init__(self, data: bytes, given: int) -> None:
        super().__init__(data[:given])
        self.has_answered = threading.Event()

    def read(self, size: int | None = -1, /) -> bytes:
        if found := super().read(size):
            return found
        threading.Event().wait(60)
        self.has_answered.set()
        return b""


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_that_stalls_gives_what_came_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    """But for what was under way."""
    text = trace(*(op(ts=f"{i}.000") for i in range(20_000)), head='"schemaVersion": 1, ').encode()
    data = gzip.compress(text, 0) if packed else text
    monkeypatch.setattr(time_limit, "READ_PATIENCE_S", IMPATIENT_S)
    monkeypatch.setattr(stream, "_READ_BYTES", 1 << 16)
    monkeypatch.setattr(stream, "CHUNK_BYTES", 1 << 14)
    stalls = Stalls(data, len(data) // 2)
    monkeypatch.setattr(stream, "_opened", lambda _: stalls)
    found = read(tmp_path / "rank0.pt.trace.json")
    assert not stalls.has_answered.is_set()
    assert 4_000 < len(found.events) <= 10_000
    assert {warning.kind for warning in found.warnings} == {"lost-end"}
    assert any("it did not answer within 2 s" in warning.message for warning in found.warnings)


@pytest.mark.parametrize("in_memory", [1.0, 0.5, 0.0])
def test_a_file_is_read_whole_however_much_of_it_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: float
) -> None:
    rolls = random.Random(0)

    def preadv(file: int, buffers: list[memoryview], offset: int, _flags: int) -> int:
        assert offset == -1, "from where the file is"
        if rolls.random() >= in_memory:
            raise BlockingIOError
        return os.readv(file, [memoryview(buffers[0])[: rolls.randrange(1, 5000)]])

    monkeypatch.setattr(os, "preadv", preadv, raising=False)
    monkeypatch.setattr(stream, "_READ_BYTES", 1 << 12)
    path = tmp_path / "file"
    path.write_bytes(rolls.randbytes(100_000))
    with stream.open_trace(path) as file:
        assert b"".join(bytes(chunk) for chunk in stream.chunks(file)) == path.read_bytes()


def test_a_file_that_stalls_at_once_is_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limit, "READ_PATIENCE_S", IMPATIENT_S)
    monkeypatch.setattr(stream, "_opened", lambda _: Stalls(b"", 0))
    with pytest.raises(TraceError, match=r"it did not answer within 2 s"):
        read(tmp_path / "rank0.pt.trace.json")


def test_patience_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDP_DOCTOR_PATIENCE", "0.01")
    monkeypatch.setattr(stream, "_opened", lambda _: threading.Event().wait(60))
    with pytest.raises(TraceError, match=r"it did not answer within 0\.1 s\.$"):
        read(tmp_path / "rank0.pt.trace.json")


def test_a_file_that_does_not_open_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limit, "PATIENCE_S", IMPATIENT_S)
    monkeypatch.setattr(stream, "_opened", lambda _: threading.Event().wait(60))
    with pytest.raises(TraceError, match=r"cannot be opened: it did not answer within 2 s\.$"):
        read(tmp_path / "rank0.pt.trace.json")
