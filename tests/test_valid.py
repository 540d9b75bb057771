"""Digests that anybody may have written: with right types and checksums, and columns that are none."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter
from pathlib import Path

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray
from soak import HEALTHY, SLOW
from traces import ranks, write
from traces import read as drawn

from tb_ddp_doctor import cache, engine
from tb_ddp_doctor.cache import Cache, digest_version, read_digest
from tb_ddp_doctor.digest import valid
from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.digest.model import ModuleKernels, ModulePaths, ModuleTimes, RankDigest
from tb_ddp_doctor.discover.runs import discover
from tb_ddp_doctor.findings import FileWarning
from tb_ddp_doctor.storage.column_file import StoreError, dump
from tb_ddp_doctor.storage.column_table import empty
from tb_ddp_doctor.storage.whole_file import written_whole
from tb_ddp_doctor.view.details import DETAILS


def made(rank: int = 0) -> RankDigest:
    return digest(drawn(ranks(HEALTHY, SLOW))[rank])


def written(path: Path, value: RankDigest) -> Path:
    with written_whole(path) as file:
        dump(value, digest_version(), file)
    return path


def test_what_the_doctor_makes_is_valid() -> None:
    for rank in range(2):
        valid.check(made(rank))


def test_every_index_says_what_it_points_into() -> None:
    """A new column of indices is to be named in `valid.INTO`, or a file may let it point anywhere."""
    known = {path for paths in valid.INTO.values() for path in paths.split()}
    indices = {column.path for column in valid.columns() if column.dtype == np.int32 and column.members is None}
    assert indices <= known
    assert known <= {column.path for column in valid.columns()}


def with_modules(one: RankDigest, parent: NDArray[np.int64]) -> RankDigest:
    """With modules in each other: the one around each."""
    around = parent.astype(np.int32)
    return replace(
        one, modules=replace(one.modules, paths=ModulePaths(around, np.zeros_like(around), parent.astype(np.int64)))
    )


def with_kernels_of(one: RankDigest, row: int) -> RankDigest:
    """With a kernel of a row of times, of which there are none."""
    indices, numbers = [np.full(1, row, np.int32)] * 4, [np.ones(1, np.int64)] * 5
    return replace(
        one, modules=replace(one.modules, times=empty(ModuleTimes), kernels=ModuleKernels(*indices, *numbers))
    )


HARMS: dict[str, Callable[[RankDigest], RankDigest]] = {
    "it points to entry 1,000,000 of": lambda one: replace(
        one, kernels=replace(one.kernels, name=np.full_like(one.kernels.name, 1_000_000))
    ),
    "it points to entry -1 of": lambda one: replace(
        one, collectives=replace(one.collectives, kind=np.full_like(one.collectives.kind, -1))
    ),
    "it points to entry 99 of 3 steps": lambda one: replace(
        one, pieces=replace(one.pieces, step=np.full_like(one.pieces.step, 99))
    ),
    "of 8 RankOwner": lambda one: replace(one, pieces=replace(one.pieces, owner=np.full_like(one.pieces.owner, 8))),
    "the columns of pieces have 0 to": lambda one: replace(
        one, pieces=replace(one.pieces, end_ns=np.empty(0, np.int64))
    ),
    "the columns of steps have 3 to 4 values": lambda one: replace(
        one, work=replace(one.work, loader_ns=np.zeros(4, np.int64))
    ),
    "work.owner_ns has 2 columns": lambda one: replace(
        one, work=replace(one.work, owner_ns=np.zeros((3, 2), np.int64))
    ),
    "it has numbers of more than 62 bits": lambda one: replace(
        one, steps=replace(one.steps, end_ns=np.full(3, np.iinfo(np.int64).max))
    ),
    # Paths of 2 GB.
    "it has 60,001 modules": lambda one: with_modules(one, np.arange(-1, 60_000)),
    "its header has a text of 1,025 letters": lambda one: replace(one, device="N" * 1025),
    "its modules lie 25 deep in each other": lambda one: with_modules(one, np.arange(-1, 25)),
    "its modules are no tree": lambda one: with_modules(one, np.array([-1, 1])),
    "it points to entry 7 of 0 times of modules": lambda one: with_kernels_of(one, 7),
    "start_ns is a column of float64": lambda one: replace(
        one, steps=replace(one.steps, start_ns=np.zeros(3, np.float64))
    ),
}


@pytest.mark.parametrize("said", HARMS)
def test_a_digest_whose_columns_do_not_fit_costs_its_rank(tmp_path: Path, said: str) -> None:
    path = written(tmp_path / "rank0.pt.trace.json.digest", HARMS[said](made(0)))
    written(tmp_path / "rank1.pt.trace.json.digest", made(1))
    with pytest.raises(StoreError, match=re.escape(said)):
        read_digest(path)
    diagnosis = engine.diagnose(discover(tmp_path)[0], reading=engine.Reading(Cache())).diagnosis
    assert diagnosis.ranks == (1,)
    (warning,) = [one for one in diagnosis.warnings if one.file == str(path)]
    assert warning.message.startswith("Rank 0 is left out: It is damaged: ")


def test_tables_made_of_a_trace_that_do_not_fit_cost_its_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a reader would hand them back that a file had taken over."""
    write(tmp_path, ranks(HEALTHY, SLOW))
    bad, read_right = HARMS["it points to entry 1,000,000 of"], cache.digest
    monkeypatch.setattr(
        cache,
        "digest",
        lambda trace, ends=None: (bad if trace.header.rank == 0 else lambda one: one)(read_right(trace, ends)),
    )
    with ThreadPoolExecutor(1) as executor:
        diagnosis = engine.diagnose(discover(tmp_path)[0], reading=engine.Reading(Cache(), executor)).diagnosis
    assert diagnosis.ranks == (1,)
    (warning,) = [one for one in diagnosis.warnings if one.message.startswith("Rank 0 is left out")]
    assert "the tables made of it do not fit each other: it points to entry 1,000,000 of" in warning.message


def test_a_digest_tells_of_no_file_but_itself(tmp_path: Path) -> None:
    path = tmp_path / "rank0.pt.trace.json.digest"
    told = FileWarning("/etc/passwd", "Rank 1 is left out.", "lost-end")
    written(path, replace(made(0), file="/etc/passwd", warnings=(told,)))
    written(tmp_path / "rank1.pt.trace.json.digest", made(1))
    read = read_digest(path)
    assert (read.file, [warning.file for warning in read.warnings]) == (str(path), [str(path)])
    result = engine.diagnose(discover(tmp_path)[0], reading=engine.Reading(Cache()))
    assert "passwd" not in str(msgspec.json.encode(result.diagnosis))
    assert "passwd" not in str([make(result) for make in DETAILS.values()])


@pytest.mark.parametrize(("dtype", "shape"), [("|O", [1]), ("<i8", [-1]), ("<i8", [1 << 60]), ("|V8", [1]), ("x", [1])])
def test_an_index_with_columns_that_are_none_is_refused(tmp_path: Path, dtype: str, shape: list[int]) -> None:
    from tb_ddp_doctor.storage import column_file

    one = made()
    packed = column_file._Columns(b"\0" * 64, np.empty(0, np.uint8))
    with pytest.raises((ValueError, TypeError)):
        packed.column(dtype, shape, 0, False)
    assert len(attrgetter("steps.number")(one)) == 3


def test_a_digest_that_is_shortened_while_it_is_looked_at_ends_nothing(tmp_path: Path) -> None:
    """Of a map, a page behind the end of the file is a SIGBUS: the process would be gone here."""
    one = made()
    many = 1 << 16
    code = type(one.code)(np.zeros(many, np.int32), np.zeros(many, np.int32), *(np.arange(many) for _ in range(2)))
    path = written(tmp_path / "a.digest", replace(one, code=code))
    found = read_digest(path)
    os.truncate(path, 100)
    assert int(found.code.end_ns.sum()) == many * (many - 1) // 2
