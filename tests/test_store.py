"""Dataclasses of columns on disk."""

from __future__ import annotations

import dataclasses
from enum import IntEnum
from pathlib import Path
from typing import Annotated

import numpy as np
import pytest
import traces
from hypothesis import given
from hypothesis import strategies as st

from tb_ddp_doctor.digest.model import CodeOf, CpuTime, GemmWork, RankDigest, RankOwner, Starved, Steps, StepWork
from tb_ddp_doctor.findings import FileWarning
from tb_ddp_doctor.storage import column_file
from tb_ddp_doctor.trace.model import Header, Indices, Ints, RankTrace
from tb_ddp_doctor.trace.names import Phase

JOB = """
rank0 step  |2                  |3
      host  [fwd][ar ]          [fwd][ar ]
      gpu    [fwd....]           [fwd....]
      nccl            [ar..]              [ar..]
"""


def same(one: object, other: object) -> bool:
    """Equal, arrays included, with their types."""
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and np.array_equal(one, other)
    if dataclasses.is_dataclass(one):
        fields = dataclasses.fields(one)
        return type(one) is type(other) and all(same(getattr(one, f.name), getattr(other, f.name)) for f in fields)
    return one == other


def dumped(path: Path, value: object, version: str = "1") -> Path:
    with path.open("wb") as file:
        column_file.dump(value, version, file)
    return path


def test_a_trace_comes_back_as_it_was(tmp_path: Path) -> None:
    trace = traces.read(JOB)[0]
    assert same(column_file.load(RankTrace, "1", dumped(tmp_path / "x", trace)), trace)


def test_a_digest_comes_back_as_it_was(tmp_path: Path) -> None:
    digest = traces.digests(JOB)[0]
    assert same(column_file.load(RankDigest, "1", dumped(tmp_path / "x", digest)), digest)


def test_what_is_loaded_is_mapped_and_cannot_be_changed(tmp_path: Path) -> None:
    steps = column_file.load(Steps, "1", dumped(tmp_path / "x", traces.digests(JOB)[0].steps))
    assert isinstance(steps.start_ns.base, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        steps.start_ns[0] = 1


def test_empty_columns_come_back_with_their_types(tmp_path: Path) -> None:
    empty = Steps(*(np.empty(0, np.int64) for _ in range(5)))
    assert same(column_file.load(Steps, "1", dumped(tmp_path / "x", empty)), empty)


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
    path = dumped(tmp_path_factory.mktemp("store") / "x", traces.digests(JOB)[0])
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans(), "cut off"):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    else:
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    with pytest.raises(column_file.StoreError):
        column_file.load(RankDigest, "1", path)


class Kind(IntEnum):
    ONE = 0
    TWO = 1


@dataclasses.dataclass
class Inner:
    bytes: Ints


@dataclasses.dataclass
class Stored:
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
    for enumeration in (RankOwner, Starved, CpuTime, CodeOf, Phase):
        assert enumeration in set(column_file.named_in(RankDigest))
