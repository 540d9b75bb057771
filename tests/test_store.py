"""Structs of columns on disk."""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import msgspec
import numpy as np
import pytest
import traces
from hypothesis import given
from hypothesis import strategies as st

from tb_ddp_doctor.digest.model import CodeOf, CpuTime, GemmWork, LaunchDelay, RankDigest, RankOwner, Steps, StepWork
from tb_ddp_doctor.findings import FileWarning
from tb_ddp_doctor.storage import column_file
from tb_ddp_doctor.storage.constant import constant, joined
from tb_ddp_doctor.trace.model import Header, Indices, Ints, RankTrace
from tb_ddp_doctor.trace.names import Phase

JOB = """
rank0 step  |2                  |3
      host  [fwd][ar ]          [fwd][ar ]
      gpu    [fwd....]           [fwd....]
      nccl            [ar..]              [ar..]
"""


class Column(msgspec.Struct):
    number: Ints


class HasDevice(msgspec.Struct):
    has_device: bool


class Both(msgspec.Struct):
    few: Column
    many: Column


def same(one: object, other: object) -> bool:
    """Equal, arrays included, with their types."""
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, msgspec.Struct):
        names = one.__struct_fields__
        return type(one) is type(other) and all(same(getattr(one, name), getattr(other, name)) for name in names)
    return one == other


def dumped(path: Path, value: object, version: str = "1") -> Path:
    with path.open("wb") as file:
        column_file.dump(value, version, file)
    return path


@pytest.fixture(params=[1, 1 << 14], ids=["every column is large", "most are small"])
def large(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What large tables are."""
    monkeypatch.setattr(column_file, "_LARGE", request.param)


@pytest.mark.usefixtures("large")
def test_a_trace_comes_back_as_it_was(tmp_path: Path) -> None:
    trace = traces.read(JOB)[0]
    assert same(column_file.load(RankTrace, "1", dumped(tmp_path / "x", trace)), trace)


@pytest.mark.usefixtures("large")
def test_a_digest_comes_back_as_it_was(tmp_path: Path) -> None:
    digest = traces.digests(JOB)[0]
    assert same(column_file.load(RankDigest, "1", dumped(tmp_path / "x", digest)), digest)


def test_small_tables_are_read_and_large_ones_mapped_and_none_can_be_changed(tmp_path: Path) -> None:
    many = np.arange(column_file._LARGE)
    both = column_file.load(Both, "1", dumped(tmp_path / "x", Both(Column(many[:9]), Column(many))))
    assert not mapped(both.few.number)
    assert mapped(both.many.number)
    for column in (both.few.number, both.many.number):
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 1


def test_what_was_given_back_is_there_when_it_is_looked_at_again(tmp_path: Path) -> None:
    path = dumped(tmp_path / "x", Both(Column(np.arange(9)), Column(np.arange(1 << 20))))
    both = column_file.load(Both, "1", path)
    held = resident(path)
    column_file.give_back(both.few)
    assert resident(path) == held > 8000
    column_file.give_back(both.many)
    assert resident(path) == 0
    assert np.array_equal(both.many.number, np.arange(1 << 20))
    column_file.give_back(Column(np.arange(9)))


def test_plain_fields_are_told_without_a_look_at_the_columns(tmp_path: Path) -> None:
    path = dumped(tmp_path / "x", traces.digests(JOB)[0])
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert column_file.described(path, HasDevice).has_device is True
    with pytest.raises(column_file.StoreError, match="checksum"):
        column_file.load(RankDigest, "1", path)


def mapped(column: np.ndarray) -> bool:
    """Whether a column is a view of a file that is mapped."""
    owner: object = column
    while isinstance(owner, np.ndarray) and not isinstance(owner, np.memmap):
        owner = owner.base
    return isinstance(owner, np.memmap)


def resident(path: Path) -> int:
    """How much of a file's map this process has in memory, KiB (Linux)."""
    maps = Path("/proc/self/smaps").read_text()
    return int(maps[maps.index(str(path)) :].partition("Rss:")[2].split()[0])


def test_empty_columns_come_back_with_their_types(tmp_path: Path) -> None:
    empty = Steps(*(np.empty(0, np.int64) for _ in range(5)))
    assert same(column_file.load(Steps, "1", dumped(tmp_path / "x", empty)), empty)


def test_a_column_of_one_value_is_kept_once(tmp_path: Path) -> None:
    steps = Steps(np.arange(40_000), *(np.full(40_000, i) for i in range(4)))
    path = dumped(tmp_path / "x", steps)
    assert path.stat().st_size < steps.number.nbytes + 2 * 4096
    loaded = column_file.load(Steps, "1", path)
    assert same(loaded, steps)
    assert loaded.end_ns is column_file.load(Steps, "1", dumped(tmp_path / "y", loaded)).end_ns
    with pytest.raises(ValueError, match="read-only"):
        loaded.end_ns[0] = 1


def test_a_damaged_shape_of_one_value_takes_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = dumped(tmp_path / "x", Steps(np.arange(9), *(np.full(9, i) for i in range(4))))
    monkeypatch.setattr(column_file, "_LONGEST_CONSTANT", 8)
    with pytest.raises(column_file.StoreError, match="constant column"):
        column_file.load(Steps, "1", path)


@given(
    st.lists(st.tuples(st.integers(-1, 1), st.integers(1, 3), st.booleans()), min_size=1), st.sampled_from(["i4", "?"])
)
def test_columns_of_one_value_are_joined_like_any_others(pieces: list[tuple[int, int, bool]], kind: str) -> None:
    dtype = np.dtype(kind)
    columns = [
        constant(kind, (size,), dtype.type(value).tobytes()) if once else np.full(size, value, dtype)
        for value, size, once in pieces
    ]
    expected = np.concatenate(columns)
    assert joined(columns).dtype == expected.dtype
    assert joined(columns).tolist() == expected.tolist()


def test_another_version_is_refused(tmp_path: Path) -> None:
    path = dumped(tmp_path / "x", traces.digests(JOB)[0], version="1")
    with pytest.raises(column_file.StoreError, match="version 1"):
        column_file.load(RankDigest, "2", path)


def test_another_kind_is_refused(tmp_path: Path) -> None:
    path = dumped(tmp_path / "x", traces.digests(JOB)[0])
    with pytest.raises(column_file.StoreError, match="not a RankTrace"):
        column_file.load(RankTrace, "1", path)


@pytest.mark.parametrize("content", [b"", b"{", b"ddpdoc\x00\x01", bytes(1000)])
def test_something_else_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(column_file.StoreError):
        column_file.load(RankDigest, "1", tmp_path / "x")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(column_file.StoreError):
        column_file.load(RankDigest, "1", tmp_path / "x")


@given(data=st.data())
def test_any_damage_is_noticed(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(column_file, "_LARGE", data.draw(st.sampled_from([1 << 8, 1 << 14]), "large"))
        path = dumped(tmp_path_factory.mktemp("store") / "x", traces.digests(JOB)[0])
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans(), "cut off"):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    else:
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    with pytest.raises(column_file.StoreError):
        column_file.load(RankDigest, "1", path)


@given(st.binary(max_size=40), st.integers(0, 1 << 64))
def test_lengths_that_no_file_has_are_refused(rest: bytes, length: int) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, "x")
        path.write_bytes(b"ddpdoc\x00\x01" + length.to_bytes(9, "little")[:8] + rest)
        with pytest.raises(column_file.StoreError):
            column_file.load(RankDigest, "1", path)


class Kind(IntEnum):
    ONE = 0
    TWO = 1


class Inner(msgspec.Struct):
    bytes: Ints


class Stored(msgspec.Struct):
    kind: Annotated[Indices, Kind]
    inner: Inner


def test_the_layout_is_of_fields_types_and_enumerations(monkeypatch: pytest.MonkeyPatch) -> None:
    def layout() -> str:
        column_file.layout.cache_clear()
        return column_file.layout(Stored)

    found = {layout()}
    monkeypatch.setitem(Stored.__annotations__, "more", "Ints")
    found.add(layout())
    monkeypatch.setitem(Inner.__annotations__, "bytes", "Indices")
    found.add(layout())
    monkeypatch.setitem(Kind._member_map_, "THREE", Kind.TWO)
    found.add(layout())
    assert len(found) == 4
    monkeypatch.undo()
    assert layout() in found


def test_the_layout_of_a_digest_names_all_that_is_in_it() -> None:
    for kind in (StepWork, GemmWork, Header, FileWarning):
        assert kind in set(column_file.named_in(RankDigest))
    for enumeration in (RankOwner, LaunchDelay, CpuTime, CodeOf, Phase):
        assert enumeration in set(column_file.named_in(RankDigest))
