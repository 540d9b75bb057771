"""The native scanner: it agrees with the msgspec reader on whatever is JSON, and survives whatever is not.

`test_reader.py` runs for both readers; here stands what only one of them has, and what takes both.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import re
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import Raw
from test_reader import COPY, EVENTS, KERNEL, LAUNCH, OP, messages, names, op, trace

from tb_ddp_doctor.storage import native_library
from tb_ddp_doctor.trace import native, reader
from tb_ddp_doctor.trace.args import integer
from tb_ddp_doctor.trace.columns import COMM_TYPES, EVENT_TYPES, FRAME_TYPES, MEMORY_TYPES
from tb_ddp_doctor.trace.model import SHORTEST_FRAME_NS, Category, RankTrace, TraceError
from tb_ddp_doctor.trace.times import nanoseconds

pytestmark = pytest.mark.skipif(not native.is_available(), reason="there was no C compiler: the scanner was not built")

ROOT = Path(__file__).parents[1]
DEMO = sorted((ROOT / "demo_logs").rglob("*.pt.trace.json.gz"))


def by(name: str, text: str | bytes, *sizes: int) -> RankTrace:
    """A text, read by one of the readers in blocks of these sizes, over and over."""
    data = text.encode() if isinstance(text, str) else text
    with mock.patch.dict(os.environ, DDP_DOCTOR_READER=name):
        return reader.decode(blocks(data, *sizes), "rank0")


def blocks(data: bytes, *sizes: int) -> list[bytes]:
    cut, at = [], 0
    while at < len(data):
        size = sizes[len(cut) % len(sizes)] if sizes else len(data)
        cut.append(data[at : at + size])
        at += size
    return cut


def rows(of: RankTrace) -> list[tuple[object, ...]]:
    """Events and their metadata with strings for their numbers: readers may number them differently."""
    texts = np.array([*of.strings, None], object)
    threads = [*of.threads]
    events = {name: getattr(of.events, name).tolist() for name in of.events.__struct_fields__}
    events |= {name: texts[events[name]].tolist() for name in ("name", "shape", "types", "values")}
    events["thread"] = [threads[index] for index in events["thread"]]
    comms = {name: getattr(of.comms, name).tolist() for name in of.comms.__struct_fields__}
    comms |= {name: texts[comms[name]].tolist() for name in ("collective", "group", "group_ranks", "dtype")}
    memory = [getattr(of.memory, name).tolist() for name in of.memory.__struct_fields__ if name != "thread"]
    memory.append([of.threads[thread] for thread in of.memory.thread.tolist()])
    frames = {name: getattr(of.frames, name).tolist() for name in of.frames.__struct_fields__}
    frames["name"], frames["thread"] = texts[frames["name"]].tolist(), [threads[index] for index in frames["thread"]]
    tables = (events.values(), comms.values(), memory, frames.values())
    return [row for table in tables for row in zip(*table, strict=True)]


def assert_agreement(text: str | bytes, *sizes: int) -> None:
    expected, got = by("msgspec", text), by("native", text, *sizes)
    assert rows(got) == rows(expected)
    assert (got.header, got.dropped) == (expected.header, expected.dropped)
    assert bool(got.warnings) == bool(expected.warnings)


# -- agreement


@pytest.mark.parametrize("path", DEMO, ids=lambda path: f"{path.parent.name}-{path.name.partition('.')[0]}")
def test_both_readers_agree_on_the_demo(path: Path) -> None:
    read = []
    for name in ("msgspec", "native"):
        with mock.patch.dict(os.environ, DDP_DOCTOR_READER=name):
            read.append(reader.read(path))
    expected, got = read
    assert rows(got) == rows(expected)
    assert (got.header, got.dropped, got.warnings) == (expected.header, expected.dropped, expected.warnings)


def test_both_readers_keep_words_of_collectives_that_are_no_utf_8() -> None:
    args = b'{"Collective name": "allreduce", "Process Group Name": "t\xffp", "dtype": "Flo\xe1t"}'
    event = b'{"ph": "X", "cat": "kernel", "name": "nccl", "pid": 0, "tid": 7, "ts": 1, "dur": 1, "args": %b}' % args
    assert_agreement(b'{"traceEvents": [%b]}' % event)


SPACE = st.sampled_from(["", "", "", " ", "\n", "\t ", "\r\n    "])
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
WORD = st.sampled_from(["X", "cpu_op", "kernel", "0", "128", "-7", "stream 7", "1.0", "1e3", "007", "0x0", ""])
STRING = st.tuples(st.one_of(WORD, TEXT), st.booleans()).map(lambda drawn: json.dumps(drawn[0], ensure_ascii=drawn[1]))
WHOLE = st.one_of(st.integers(-5, 300), st.integers(-(2**70), 2**70), st.sampled_from([2**31, 2**63, -(2**63) - 1]))
NUMBER = st.one_of(
    WHOLE.map(str),
    st.tuples(WHOLE, st.from_regex(r"\.[0-9]{1,10}", fullmatch=True)).map(lambda parts: f"{parts[0]}{parts[1]}"),
    st.from_regex(r"-?(0|[1-9][0-9]{0,3})(\.[0-9]{1,2})?[eE][+-]?[0-9]{1,2}", fullmatch=True),
)
#: Times of a trace, mostly.
TIME = st.one_of(
    st.from_regex(r"(0|[1-9][0-9]{0,15})(\.[0-9]{1,6})?", fullmatch=True),
    st.from_regex(r"(0|[1-9][0-9]{0,5})(\.[0-9]{1,6})?([eE][+-]?[0-9]{1,2})?", fullmatch=True),
    NUMBER,
    NUMBER.map(json.dumps),
    st.sampled_from(["null", '"NaN"', '""', "[1]", "-0", "-0.0", '"+5"', '"5."', '".5"', '"e5"', "9" * 70]),
)


def values(depth: int = 2) -> st.SearchStrategy[str]:
    """JSON values, with space wherever it may stand."""
    scalars = st.one_of(NUMBER, STRING, st.sampled_from(["null", "true", "false", "[]", "{}", "[[2, 3], []]"]))
    if not depth:
        return scalars
    inner = values(depth - 1)
    return st.one_of(scalars, scalars, st.builds(array, st.lists(inner, max_size=3), SPACE), objects(STRING, inner))


def array(items: list[str], space: str) -> str:
    return f"[{space}" + f"{space},{space}".join(items) + f"{space}]"


def join(members: list[tuple[str, str]], space: str) -> str:
    return (
        f"{{{space}" + f"{space},{space}".join(f"{key}{space}:{space}{value}" for key, value in members) + f"{space}}}"
    )


def objects(keys: st.SearchStrategy[str], inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.builds(join, st.lists(st.tuples(keys, inner), max_size=3), SPACE)


ARGUMENTS = [
    "device", "stream", "correlation", "bytes", "grid", "Input Dims", "Collective name", "Process Group Name",
    "Process Group Ranks", "Group size", "In msg nelems", "Out msg nelems", "dtype", "Seq", "Concrete Inputs", "Ev Idx",
    "Src Rank", "Dst Rank", "Bytes", "Device Id", "Device Type", "Total Allocated", "Total Reserved", "Addr",
    "Sequence number", "kernel_file", "func", "datatype", "count", "seq", "process_group", "process_group_ranks",
    "algo", "proto", "n_channels", "graph id", "graph node id",
]  # fmt: skip
CONCRETE = st.lists(STRING, max_size=3).map(lambda inputs: array(inputs, " "))
PYTHON_FILE = st.sampled_from(['"/a/b.py"', '"b.py"', '"\\u0061.py"', '"/a/\\n.py"', '"\\ud83d.py"'])
SPELLED = {"Concrete Inputs": CONCRETE, "kernel_file": PYTHON_FILE}
ARGUMENT = st.sampled_from(ARGUMENTS).flatmap(
    lambda key: st.tuples(st.just(json.dumps(key)), st.one_of(values(), NUMBER, SPELLED.get(key, NUMBER)))
)
ARGS = st.builds(join, st.lists(ARGUMENT, max_size=6), SPACE)


@st.composite
def drawn_events(draw: st.DrawFn) -> str:
    """An event: mostly sane, its members in any order, some of them missing or odd."""
    categories = [*reader.native.CATEGORIES, *["cpu_instant_event", "python_function"] * 2, "Python", "ac2g", ""]
    members = {
        "ph": st.sampled_from(['"X"'] * 6 + ['"i"', '"i"', '""', "7"]),
        "cat": st.sampled_from([json.dumps(category) for category in categories]),
        "name": st.one_of(
            STRING,
            STRING,
            st.sampled_from(['"record_param_comms"', '"[memory]"', '"ProfilerStep#3"', '"nn.Module: A_0"', "null"]),
        ),
        "pid": st.one_of(st.sampled_from(["1", '"1"']), values(0)),
        "tid": st.one_of(st.sampled_from(["7", '"7"', '"stream 7"']), values(0)),
        "ts": TIME,
        "dur": TIME,
        "args": st.one_of(ARGS, ARGS, values(1)),
        "more": values(),
    }
    chosen = [(json.dumps(key), draw(value)) for key, value in members.items() if draw(st.integers(0, 15))]
    twice = draw(st.lists(st.sampled_from(chosen), max_size=1)) if chosen else []
    return join(draw(st.permutations(chosen + twice)), draw(SPACE))


@st.composite
def drawn_memory(draw: st.DrawFn) -> str:
    """What an allocator did, with arguments in any order, some of them odd."""
    number = st.one_of(st.integers(-5, 2**40).map(str), NUMBER, NUMBER.map(json.dumps), values(0))
    keys = draw(st.permutations(["Bytes", "Device Id", "Device Type", "Total Allocated", "Total Reserved", "Addr"]))
    args = join([(json.dumps(key), draw(number)) for key in keys[draw(st.integers(0, 6)) :]], draw(SPACE))
    members = {"ph": '"i"', "cat": '"cpu_instant_event"', "name": '"[memory]"', "ts": draw(TIME), "args": args}
    members |= {"tid": draw(st.sampled_from(["7", '"7"', "8"]))}
    return join([(json.dumps(key), members[key]) for key in draw(st.permutations([*members]))], draw(SPACE))


SIZES = st.lists(st.integers(1, 200), min_size=1, max_size=4)


@settings(max_examples=100)
@given(st.lists(drawn_events(), max_size=6), SPACE, SIZES)
@example(['{"ph":"X","cat":"overhead","name":"record_param_comms","ts":0,"dur":0,"args":0}'], "", [1])
def test_both_readers_agree_on_what_is_json(events: list[str], space: str, sizes: list[int]) -> None:
    assert_agreement(trace(f"{space},{space}".join(events) or OP, tail=', "baseTimeNanoseconds": 5'), *sizes)


@given(st.lists(st.one_of(drawn_memory(), drawn_events()), min_size=1, max_size=6), SIZES)
def test_both_readers_agree_on_memory(events: list[str], sizes: list[int]) -> None:
    assert_agreement(trace(", ".join(events), tail=', "baseTimeNanoseconds": 5'), *sizes)


@pytest.mark.parametrize("literal", [
    "0", "1.5", "0.0005", "0.00049999", "1.0015", "3000000000000000", "3000000000000000.0004", "3000000000000000.0005",
    "1e15", "3e15", "3.0000000000000001e15", "10000000000000000", "1000000000000000000", "12345678901234567890",
    "0.00000000000000000001", "1e-400", "1e400",
    "0e999", "-0", "-0.0001", "-1", '"12.345"', '"+5"', '".5"', '"5."', '"."', '""', '"-"', '"1e"', '"1.2.3"', '"e5"',
    "1.7908570261234567e15", "9" * 64, "0." + "0" * 62, "0." + "0" * 63, "null", "true", "NaN", "[1]", '"NaN"',
])  # fmt: skip
def test_both_readers_agree_on_times(literal: str) -> None:
    text = trace(op(literal), op(dur=literal), OP)
    assert rows(by("native", text)) == rows(by("msgspec", text))


def test_space_between_members_may_change_from_event_to_event() -> None:
    assert_agreement(trace(OP, OP, OP.replace('"pid": ', '"pid":'), OP, OP.replace('"pid": ', '"pid":  ')) + " " * 64)


def test_what_events_repeat_may_change_between_any_two_of_them() -> None:
    """The scanner compares these members with the last event's before it reads them."""
    heads = ['"ph": "X", "cat": "cpu_op"', '"ph": "X", "cat": "kernel"', '"ph": "X", "cat": "other"', '"ph": "X"',
             '"ph": "i", "cat": "cpu_op"', '"ph": "i"', '"cat": "kernel", "ph": "X"', '"cat": "", "ph": "X"',
             '"ph": "X", "cat": "kernel", "cat": "cpu_op"', '"cat": "other", "cat": "cpu_op", "ph": "i", "ph": "X"',
             '"ph": "X", "cat": 5', '"ph": 5, "cat": "cpu_op"', '"ph": "X", "cat": "cpu_op", "cat": 5']  # fmt: skip
    threads = ['"pid": 1, "tid": 2', '"tid": 2, "pid": 1', '"pid": 1, "tid": 22', '"pid": "1", "tid": "2"', '"pid": 1',
               '"pid": null, "tid": null', '"pid": 1, "tid": 2, "tid": 3', '"pid": [1], "tid": 2', '"tid": {}',
               f'"pid": 1, "tid": "{"long " * 40}"', '"pid": 1, "tid": 2.5']  # fmt: skip
    rest = '"args": {"device": 0, "correlation": 7, "grid": [4], "Input Dims": [[2]]}'
    events = [
        f'{{{head}, "name": "a", {thread}, "ts": 1.5, "dur": 2.5, {rest}}}' for head in heads for thread in threads
    ]
    events += [f'{{{thread}, "name": "a", {head}, "ts": 1.5, {rest}}}' for head in heads for thread in threads]
    order = np.random.default_rng(7).integers(0, len(events), 3000)
    assert_agreement(trace(*(events[index] for index in order)))
    assert_agreement(trace(*(events[index] for index in order)), 1000)


def test_names_and_shapes_may_come_in_any_order() -> None:
    """The scanner guesses them by those before, and compares with the guess before it reads."""
    texts = ['"a"', '"ab"', '"a\\"b"', '"record_param_comms"', '"4"', '""', "4", "42", "null", "4.5", "true", "[4]"]
    shapes = ["[[2]]", "[[2], [3]]", "[ [2]]", "[]", "{}", "4", "42", "null", '"4"', '"42"', '[["]"]]', "[4, 1, 1]"]
    events = [
        f'{{"ph": "X", "cat": "{category}", "name": {name}, "ts": 1.5, "dur": 2.5, "args": {{"{key}": {shape}}}}}'
        for category, key in (("cpu_op", "Input Dims"), ("kernel", "grid"), ("overhead", "grid"))
        for name in [*texts, '"b", "name": "a"']
        for shape in shapes
    ]
    order = np.random.default_rng(7).integers(0, len(events), 4000)
    assert_agreement(trace(*(events[index] for index in order)))
    assert_agreement(trace(*(events[index] for index in order)), 1000)


def test_arguments_may_come_before_what_says_which_are_wanted() -> None:
    args = '"args": {"Input Dims": [[2]], "Collective name": "x", "correlation": 7, "Seq": 3}'
    late = [f"{{{args}, {OP[1:]}", f'{{"ph": "X", "cat": "cpu_op", {args}, {OP[1:]}']
    assert_agreement(trace(*late, *(event.replace("aten::add", "record_param_comms") for event in late)))
    assert_agreement(trace(f'{{"name": "a", "cat": "cpu_op", {args}, {KERNEL[1:]}', f"{{{args}, {LAUNCH[1:]}"))


def test_damage_in_what_is_passed_over_costs_at_most_its_event() -> None:
    """Text that no column wants is read only as far as telling its end takes: some of these events are kept."""
    odd = ['[1 2, "a"]', "[nul]", '["a" b]', '["a"b", 1]', "[1", '["\\"', "1-2"]
    bad = [op(name=f"b{index}", more=f', "args": {{"Input Strides": {text}}}') for index, text in enumerate(odd)]
    got = by("native", trace(*(text for one in bad for text in (one, OP, OP))))
    assert names(got).count("aten::add") >= 2 * len(bad) - 2


LITERAL = st.from_regex(r"[+-]?[0-9]{0,22}(\.[0-9]{0,12})?([eE][+-]?[0-9]{1,2})?", fullmatch=True).map(json.dumps)


@given(st.lists(LITERAL, min_size=1, max_size=50))
def test_times_are_those_of_the_msgspec_reader(literals: list[str]) -> None:
    """In bulk: the digits at which a fast way gives up are many."""
    expected = nanoseconds([Raw(literal.encode()) for literal in literals])
    got = by("native", trace(*(op(literal) for literal in literals)))
    assert got.events.start_ns.tolist() == expected[expected >= 0].tolist()


@given(st.lists(st.one_of(NUMBER, NUMBER.map(json.dumps), STRING), min_size=1, max_size=50))
def test_integers_are_those_of_the_msgspec_reader(literals: list[str]) -> None:
    got = by("native", trace(*(COPY.replace('"bytes": 128', f'"bytes": {literal}') for literal in literals)))
    # Beyond 2 ** 62 they are missing: sums of two would not fit.
    expected = [number if abs(number) <= 1 << 62 else -1 for number in (integer(text.encode()) for text in literals)]
    assert got.events.bytes.tolist() == expected


@pytest.mark.parametrize("literal", [
    "0", "-0", "-7", "2147483647", "2147483648", "-2147483649", "9223372036854775807", "9223372036854775808",
    "-9223372036854775808", "1.0", "1e3", "1.5", '"7"', '"-0"', '"007"', '" 7"', '"+7"', '"1.0"', '""', "{}",
])  # fmt: skip
def test_both_readers_agree_on_integers(literal: str) -> None:
    arguments = ", ".join(
        f'"{key}": {literal}' for key in ("device", "stream", "correlation", "bytes", "Seq", "Group size")
    )
    kernel = KERNEL.partition('"args"')[0] + f'"args": {{{arguments}, "Collective name": "x"}}}}'
    assert_agreement(trace(KERNEL, kernel, COPY))


# -- damage


@settings(max_examples=250)
@given(st.data())
@example(None)
def test_damage_costs_no_event_beyond_its_neighbours(data: st.DataObject | None) -> None:
    """Text replaced within event `which` leaves those that neither hold it nor stand beside it."""
    lines = [op(f"{index}.000", name=f"n{index}") for index in range(12)]
    which, junk, sizes = 3, b'"', [50]
    start, length = 20, 4
    if data:
        which = data.draw(st.integers(0, 11))
        start = data.draw(st.integers(0, len(lines[which]) - 1))
        length = data.draw(st.integers(0, 30))
        tokens = [b'"', b"{", b"}", b"]", b"[", b"},{", b"\\", b'"ph":', b"nan", b"\xff", b"\0", b"],"]
        junk = data.draw(st.one_of(st.binary(max_size=6), st.sampled_from(tokens)))
        sizes = data.draw(SIZES)
    encoded = [line.encode() for line in lines]
    encoded[which] = encoded[which][:start] + junk + encoded[which][start + length :]
    text = b'{"traceEvents": [' + b", ".join(encoded) + b'], "host_name": "a"}'
    kept = set(names(by("native", text, *sizes)))
    assert {f"n{index}" for index in range(12) if abs(index - which) > 1} <= kept


@settings(max_examples=250)
@given(st.data())
def test_no_bytes_crash_it(data: st.DataObject) -> None:
    text = bytearray(trace(*EVENTS * 3, head='"a": {"b": [1]}, ', tail=', "baseTimeNanoseconds": 5').encode())
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(text)))
        junk = data.draw(st.one_of(st.binary(max_size=4), st.sampled_from([b'"', b"{", b"}", b"]", b"},{", b"\\"])))
        text[at : at + data.draw(st.integers(0, 30))] = junk
    try:
        got = by("native", bytes(text), *data.draw(SIZES))
    except TraceError:
        return
    assert len({len(getattr(got.events, name)) for name in got.events.__struct_fields__}) == 1
    assert len({len(getattr(got.comms, name)) for name in got.comms.__struct_fields__}) == 1
    assert np.all(got.events.start_ns >= 0) and np.all(got.events.duration_ns >= 0)
    assert np.all(got.comms.event < len(got.events))


@pytest.mark.parametrize("sizes", [(1,), (7, 1, 300), (1 << 20,)])
def test_text_that_begins_events_over_and_over_is_read_in_no_more_than_its_depth(sizes: tuple[int, ...]) -> None:
    nested = '{"ph": "X", "args": [0' + ',{"ph":[0' * 3000
    got = by("native", trace(OP, nested + "x", OP), *sizes)
    assert len(got.events) == 2
    assert "nested too deeply" in messages(got)[0]


def test_the_kinds_of_loss_are_told_with_position_and_count() -> None:
    bad = [op(name='a"b'), op().replace('"aten::add"', "7"), op("-1"), COPY.replace('"bytes": 128', '"bytes": []')]
    text = trace(bad[0], OP, *bad[1:], *bad[1:], bad[0], OP)
    at = [text.index(event) for event in bad]
    assert messages(by("native", text)) == [
        f"2 events skipped from byte {at[0]} on: expecting ',' delimiter",
        f"2 events skipped from byte {at[1]} on, whose fields have the wrong types:"
        " a phase, category or name that is no text",
        f"2 events skipped from byte {at[2]} on: no usable time (ts -1, dur 1.000)",
        f"2 events from byte {at[3]} on have arguments of the wrong type, which were ignored (bytes is [])",
    ]


# -- memory


def test_columns_outlive_each_other_and_the_scanner() -> None:
    got = by("native", trace(*EVENTS * 3000))
    starts = got.events.start_ns
    expected = starts.tolist()
    del got
    gc.collect()
    again = by("native", trace(*EVENTS * 3000))
    assert starts.tolist() == expected == again.events.start_ns.tolist()
    starts[:] = 7
    assert starts.flags.writeable and again.events.start_ns.tolist() == expected


def test_more_different_names_than_may_be_are_skipped_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "MAX_STRINGS", 10)
    got = by("native", trace(*(op(name=f"n{index}") for index in range(30)), op(name="n1")))
    assert names(got) == [*(f"n{index}" for index in range(8)), "n1"]
    assert "22 events skipped" in messages(got)[0] and "more different names" in messages(got)[0]


def test_more_different_categories_than_may_be_are_counted_together() -> None:
    got = by("native", trace(*(op().replace("cpu_op", f"c{index}") for index in range(2000)), OP))
    assert names(got) == ["aten::add"]
    assert sum(got.dropped.values()) == 2000
    assert len(got.dropped) < 1100 and got.dropped["unknown"] > 900


def test_names_that_are_the_same_text_in_two_spellings_are_one() -> None:
    got = by("native", trace(op(name="a/b"), op(name="a\\/b"), op(name="\\u0061/b"), op(name="c")))
    assert got.strings == ("record_param_comms", "[memory]", "a/b", "c")
    assert names(got) == ["a/b", "a/b", "a/b", "c"]


# -- which reader


def test_the_native_reader_is_chosen_where_it_was_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DDP_DOCTOR_READER", raising=False)
    assert reader.name() == "native"
    monkeypatch.setattr(native, "is_available", lambda: False)
    assert reader.name() == "msgspec"
    assert len(reader.decode([trace(OP).encode()], "rank0").events) == 1


def test_the_environment_chooses(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("DDP_DOCTOR_READER", "msgspec")
    with caplog.at_level(logging.DEBUG, logger=reader.__name__):
        reader.decode([trace(OP).encode()], "rank0")
    assert "msgspec" in caplog.text


@pytest.mark.parametrize("asked", ["native", "fastest"])
def test_a_reader_that_is_not_to_be_had_is_told(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    monkeypatch.setenv("DDP_DOCTOR_READER", asked)
    monkeypatch.setattr(native, "is_available", lambda: False)
    with pytest.raises(TraceError, match=f'asks for "{asked}"'):
        reader.decode([trace(OP).encode()], "rank0")


def test_a_library_that_does_not_fit_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trace").mkdir()
    monkeypatch.setattr(native_library, "__file__", str(tmp_path / "storage" / "native_library.py"))
    (tmp_path / "trace" / "_scanner.so").write_bytes(b"no library")
    native_library.load.cache_clear()
    try:
        assert not native.is_available()
    finally:
        native_library.load.cache_clear()


# -- the C side


def enumerators(prefix: str) -> list[str]:
    """Names of an enumeration in scanner.h, in order, in small letters."""
    header = (ROOT / "native" / "scanner.h").read_text()
    enumeration = re.search(rf"enum {prefix} \{{(.*?)\}};", header, re.DOTALL)
    assert enumeration
    return [
        name.lower()
        for name in re.findall(r"^\s*(?:SCANNER|EVENT|COMM|MEMORY|FRAME)_(\w+),", enumeration[1], re.MULTILINE)
    ]


def test_the_header_and_the_model_name_the_same_things_in_the_same_order() -> None:
    assert enumerators("scanner_category") == [*(category.name.lower() for category in Category), "instant", "frame"]
    assert enumerators("scanner_event_column") == [name.removesuffix("_ns") for name in EVENT_TYPES]
    assert enumerators("scanner_comm_column") == [*COMM_TYPES]
    assert enumerators("scanner_frame_column") == [name.removesuffix("_ns") for name in FRAME_TYPES]
    assert f"SCANNER_SHORTEST_FRAME = {SHORTEST_FRAME_NS} " in (ROOT / "native" / "scanner.h").read_text()
    assert enumerators("scanner_memory_column") == [name.removesuffix("_ns") for name in MEMORY_TYPES]
