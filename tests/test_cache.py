"""What is kept between runs, and when it is not used."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
import traces
from test_modules import step_of_two_modules
from test_modules import trace as drawn
from test_store import JOB, same

from tb_ddp_doctor import cache as cache_module
from tb_ddp_doctor.cache import Cache, _code, _sources, read_digest, write_digest
from tb_ddp_doctor.digest.model import MEANING
from tb_ddp_doctor.storage.column_file import StoreError
from tb_ddp_doctor.trace import native
from tb_ddp_doctor.trace.model import TraceError


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return next(traces.write(tmp_path / "logs", JOB).iterdir())


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The traces that were read, whole or their heads."""
    paths: list[Path] = []
    for name in ("read", "peek"):
        original = getattr(cache_module, name)

        def spied(path: Path, original: object = original) -> object:
            paths.append(path)
            return original(path)  # type: ignore[operator]

        monkeypatch.setattr(cache_module, name, spied)
    return paths


def files(cache: Cache) -> list[Path]:
    assert cache.directory is not None
    return [path for path in cache.directory.glob("??/*") if path.is_file()]


def test_the_second_time_no_trace_is_opened(cache: Cache, trace: Path, opened: list[Path]) -> None:
    first = cache.digest(trace), cache.peek(trace)
    opened.clear()
    second = cache.digest(trace), cache.peek(trace)
    assert not opened
    assert same(first[0], second[0]) and same(first[1], second[1])


def test_columns_serve_a_digest_that_was_lost(cache: Cache, trace: Path, opened: list[Path]) -> None:
    first = cache.digest(trace)
    for path in files(cache):
        if path.suffix == ".digest":
            path.unlink()
    opened.clear()
    assert same(cache.digest(trace), first)
    assert not opened


def test_a_changed_file_is_read_again(cache: Cache, trace: Path, opened: list[Path]) -> None:
    cache.digest(trace)
    opened.clear()
    trace.write_bytes(traces.draw(JOB.replace("|3", "|4"))[0])
    os.utime(trace, ns=(1, 1))
    assert cache.digest(trace).steps.number.tolist() == [2, 4]
    assert opened == [trace]


@pytest.mark.parametrize("suffix", ["digest", "columns", "head"])
def test_a_damaged_entry_is_rebuilt(cache: Cache, trace: Path, suffix: str) -> None:
    first = cache.digest(trace), cache.peek(trace)
    for path in files(cache):
        if path.suffix in (f".{suffix}", ".digest"):
            path.write_bytes(path.read_bytes()[:-7] + b"garbage")
    assert same((cache.digest(trace), cache.peek(trace))[0], first[0])
    assert same(cache.peek(trace), first[1])


def test_the_modules_of_events_are_worked_out_once(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tmp_path / "rank0.pt.trace.json"
    trace.write_bytes(drawn(step_of_two_modules(1), (), 1000))
    columns, digest = cache.columns(trace), cache.digest(trace)
    first = cache.event_modules(trace, columns, digest)
    assert first.paths == ("a", "b") and len(first.module) == len(columns.events)
    (entry,) = [path for path in files(cache) if path.suffix == ".modules"]
    worked_out: list[Path] = []
    original = cache_module.event_modules
    monkeypatch.setattr(cache_module, "event_modules", lambda *columns: worked_out.append(trace) or original(*columns))
    assert same(cache.event_modules(trace, columns, digest), first)
    assert not worked_out
    data = bytearray(entry.read_bytes())
    data[-1] ^= 0xFF
    entry.write_bytes(data)
    assert same(cache.event_modules(trace, columns, digest), first)
    assert worked_out


def test_others_may_read_what_is_kept(cache: Cache, trace: Path) -> None:
    cache.digest(trace)
    umask = os.umask(0o022)
    os.umask(umask)
    assert {path.stat().st_mode & 0o777 for path in files(cache)} == {0o666 & ~umask}


def test_nothing_is_written_beside_the_trace(cache: Cache, trace: Path) -> None:
    cache.digest(trace)
    assert list(trace.parent.iterdir()) == [trace]


def test_without_a_directory_nothing_is_kept(trace: Path, opened: list[Path]) -> None:
    Cache(None).digest(trace)
    Cache(None).digest(trace)
    assert opened == [trace, trace]


def test_a_directory_that_cannot_be_written_is_no_cache(tmp_path: Path, trace: Path) -> None:
    (tmp_path / "file").write_text("")
    assert len(Cache(tmp_path / "file" / "cache").digest(trace).steps)


def test_a_full_disk_leaves_nothing_half_written(cache: Cache, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache_module, "dump", full)
    assert len(cache.digest(trace).steps)
    assert not files(cache)


def test_what_is_no_trace_stays_an_error(cache: Cache, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("no")
    with pytest.raises(TraceError):
        cache.digest(tmp_path / "x.json")


def test_a_file_that_changes_while_it_is_read_is_not_kept(
    cache: Cache, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = cache_module.read

    def growing(path: Path) -> object:
        found = original(path)
        path.write_bytes(path.read_bytes() + b" ")
        return found

    monkeypatch.setattr(cache_module, "read", growing)
    cache.digest(trace)
    assert not files(cache)


def test_trimming_removes_what_was_used_longest_ago(tmp_path: Path) -> None:
    rank = JOB.replace("rank0", "rank{}")
    logs = traces.write(tmp_path / "logs", "".join(rank.format(number) for number in range(3)))
    cache = Cache(tmp_path / "cache")
    entries: list[list[Path]] = []
    for age, path in enumerate(sorted(logs.iterdir(), reverse=True)):
        before = set(files(cache)) if entries else set()
        cache.digest(path)
        entries.append(sorted(set(files(cache)) - before))
        for entry in entries[-1]:
            os.utime(entry, (entry.stat().st_mtime - 1000 * age,) * 2)
    size = sum(path.stat().st_size for path in files(cache))
    Cache(cache.directory, size * 3 // 4).trim()
    newest, middle, oldest = entries
    assert set(newest + middle) <= set(files(cache)) < set(newest + middle + oldest)


def test_what_is_used_is_kept_longer(cache: Cache, trace: Path) -> None:
    cache.digest(trace)
    for path in files(cache):
        os.utime(path, (1, 1))
    cache.digest(trace)
    assert any(path.stat().st_mtime > 1 for path in files(cache) if path.suffix == ".digest")


def use(directory: Path, trace: Path) -> int:
    return len(Cache(directory).digest(trace).steps)


def test_several_processes_share_a_directory(cache: Cache, trace: Path) -> None:
    assert cache.directory is not None
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        assert pool.starmap(use, [(cache.directory, trace)] * 12) == [2] * 12
    assert {path.suffix for path in files(cache)} == {".digest", ".columns"}


def test_another_code_finds_nothing(
    cache: Cache, trace: Path, opened: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.digest(trace)
    monkeypatch.setattr("tb_ddp_doctor.cache._code", lambda: "changed")
    cache.digest(trace)
    assert opened == [trace, trace]


def test_all_code_that_makes_a_digest_counts() -> None:
    """Every file of ours that reading and digesting import, in folders within folders too, and the native library."""
    code = (
        "import sys, tb_ddp_doctor.nsys.processes, tb_ddp_doctor.trace.nsys.read, tb_ddp_doctor.discover.head\n"
        "import tb_ddp_doctor.trace.reader, tb_ddp_doctor.digest.build\n"
        "print(*(one.__file__ for name, one in sys.modules.items() if name.startswith('tb_ddp_doctor.')), sep='\\n')"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    imported = {Path(line) for line in printed.splitlines()}
    assert any(path.name == "read.py" for path in imported)
    counted = set(_sources())
    # One only says what options take; the version stands in an entry's name itself.
    assert {path.name for path in imported - counted} <= {"choices.py", "version.py"}
    if native.is_available():
        assert any(path.stem == "_scanner" for path in counted)


def test_another_native_library_or_table_is_other_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "trace" / "nsys"
    folder.mkdir(parents=True)
    (folder / "read.py").write_text("1")
    monkeypatch.setattr("tb_ddp_doctor.cache.__file__", str(tmp_path / "cache.py"))
    seen = set()
    library, table = tmp_path / "trace" / "_scanner.so", tmp_path / "step_parts.toml"
    for path in (folder / "read.py", library, tmp_path / "findings.py", table):
        path.write_text("2")
        _code.cache_clear()
        seen.add(_code())
    monkeypatch.undo()
    _code.cache_clear()
    assert len(seen) == 4


def test_a_digest_file_of_another_meaning_is_refused(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rank0.digest"
    write_digest(Cache(None).digest(trace), path)
    assert len(read_digest(path).steps) == 2
    monkeypatch.setattr("tb_ddp_doctor.cache.MEANING", MEANING + 1)
    with pytest.raises(StoreError, match=rf"of version {MEANING}\."):
        read_digest(path)


def test_entries_are_looked_at_only_where_some_were_added_or_the_limit_fell(cache: Cache, trace: Path) -> None:
    assert cache.directory is not None
    cache.digest(trace)
    cache.trim()
    late = cache.directory / "00" / f"{0:064x}.digest"
    late.parent.mkdir(exist_ok=True)
    late.write_bytes(bytes(1000))
    os.utime(late, (1, 1))
    size = sum(path.stat().st_size for path in files(cache))
    small = Cache(cache.directory, size - 1)
    small.trim(grew=False)
    assert not late.exists()
    late.write_bytes(bytes(1000))
    os.utime(late, (1, 1))
    small.trim(grew=False)
    assert late.exists()
    small.trim()
    assert not late.exists()


def test_entries_that_are_too_young_are_looked_at_again(cache: Cache, trace: Path) -> None:
    cache.digest(trace)
    nothing = Cache(cache.directory, 0)
    nothing.trim()
    entries = files(cache)
    assert entries
    for path in entries[1:]:
        os.utime(path, (1, 1))
    nothing.trim(grew=False)
    assert files(cache) == entries[:1]
