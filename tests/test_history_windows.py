"""Step times that are read some steps of all ranks at a time, and what is kept of them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from whole_history import step_grid, whole

from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.history import blocks, windows
from tb_ddp_doctor.history.job import JobHistory
from tb_ddp_doctor.history.pyramid import Pyramid, joined, reduced
from tb_ddp_doctor.history.read import history_files, read_history
from tb_ddp_doctor.history.summary import summarise
from tb_ddp_doctor.history.windows import read_job

START_NS = 1_790_000_000 * 10**9
WINDOW = 128


@pytest.fixture(autouse=True)
def _short_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "_WINDOW", WINDOW)


def written(
    folder: Path, rank: int, first: int, busy_us: NDArray[np.float64], *, ranks: int = 3, begin_ns: int = START_NS
) -> None:
    """A file of a rank's steps from `first` on, a block for ten steps, with a phase in the last step of each block."""
    (folder / blocks.FOLDER).mkdir(exist_ok=True)
    data = blocks.file_head(rank, ranks, begin_ns, f"node{rank // 2}")
    for at in range(0, len(busy_us), 10):
        part = busy_us[at : at + 10]
        now_ns = begin_ns + at * 10**9
        data += blocks.steps_block(first + at, now_ns, np.full(len(part), 1_000_000), part)
        end_ns = now_ns + len(part) * 10**9
        data += blocks.phases_block(np.array([(end_ns - 10**8, end_ns, b"evaluation")], dtype=blocks.PHASE_ROW))
    (folder / blocks.FOLDER / f"rank{rank:05d}_{begin_ns:020d}{blocks.SUFFIX}").write_bytes(data)


def job(folder: Path, steps: int = 300) -> Path:
    random = np.random.default_rng(0)
    for rank in range(3):
        written(folder, rank, 40, random.uniform(500_000, 800_000, steps) // 1)
    return folder


def in_memory(folder: Path) -> JobHistory:
    return whole(read for file in history_files(folder) if (read := read_history(file)))


def read(folder: Path, keep: windows.Keep | None = None, since: int | None = None) -> JobHistory:
    found, problems = read_job(history_files(folder), keep, since)
    assert found is not None
    assert problems == []
    return found


def assert_same(one: Pyramid, other: Pyramid) -> None:
    for left, right in ((one.steps, other.steps), (one, other)):
        for name in left.__struct_fields__:
            if isinstance(getattr(left, name), np.ndarray) and not name.startswith("sampled"):
                np.testing.assert_array_equal(getattr(left, name), getattr(right, name), err_msg=name)


def test_windows_make_what_all_steps_at_once_do(tmp_path: Path) -> None:
    whole = in_memory(job(tmp_path))
    found = read(tmp_path)
    assert found.pyramid.width == 64
    assert_same(found.pyramid, reduced_at(tmp_path, 64))
    assert msgspec.structs.replace(found, pyramid=whole.pyramid) == whole


def reduced_at(folder: Path, width: int) -> Pyramid:
    return reduced(step_grid(read for file in history_files(folder) if (read := read_history(file))), width)


def test_a_short_job_has_the_bins_that_it_has_in_memory(tmp_path: Path) -> None:
    found = read(job(tmp_path, 40))
    assert found.pyramid.width == 8
    assert_same(found.pyramid, in_memory(tmp_path).pyramid)


def test_what_is_before_the_last_steps_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path / "cache")
    job(tmp_path)
    first = read(tmp_path, cache)
    asked = []
    whole = windows.read_portion
    monkeypatch.setattr(windows, "read_portion", lambda *a, **k: asked.append((a[1:], k)) or whole(*a, **k))
    again = read(tmp_path, cache)
    assert_same(first.pyramid, again.pyramid)
    # The heads of three files, and their steps of the last window.
    assert len(asked) == 6


def test_a_job_that_goes_on_is_read_from_where_it_was(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    job(tmp_path)
    read(tmp_path, cache)
    for file in history_files(tmp_path):
        more = blocks.steps_block(340, START_NS + 300 * 10**9, np.full(90, 1_000_000), np.full(90, 600_000))
        file.write_bytes(file.read_bytes() + more)
    assert_same(read(tmp_path, cache).pyramid, read(tmp_path).pyramid)
    assert len(read(tmp_path, cache).pyramid.steps.length_us) == 390


def test_a_restart_goes_on_in_the_same_pyramid(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    job(tmp_path)
    read(tmp_path, cache)
    for rank in range(3):
        written(tmp_path, rank, 300, np.full(200, 700_000.0), begin_ns=START_NS + 400 * 10**9)
    found = read(tmp_path, cache)
    assert_same(found.pyramid, reduced_at(tmp_path, 64))
    assert [restart.trained_again for restart in found.restarts] == [40]


def test_from_a_step_on(tmp_path: Path) -> None:
    assert read(job(tmp_path), since=200).pyramid.first_step == 200
    assert read_job(history_files(tmp_path), since=1000)[0] is None


def test_a_hole_of_step_numbers_takes_no_memory(tmp_path: Path) -> None:
    job(tmp_path)
    for rank in range(3):
        written(tmp_path, rank, 2**40, np.full(100, 700_000.0), begin_ns=START_NS + 400 * 10**9)
    found = read(tmp_path)
    assert (found.pyramid.first_step, len(found.pyramid.steps.length_us)) == (2**40, 100)
    assert found.left_out == 300 and msgspec.json.encode(summarise(found))


def test_a_file_whose_step_numbers_jump_all_over_is_read_in_part(tmp_path: Path) -> None:
    """Each hole has the files read again: 45,000 in a file of 1.6 MB took minutes."""
    (tmp_path / blocks.FOLDER).mkdir()
    holes = [
        blocks.steps_block(at * 1000, START_NS + at * 10**9, np.full(1, 1_000_000), None)
        for at in range(windows._MOST_HOLES + 9)
    ]
    file = tmp_path / blocks.FOLDER / f"rank0{blocks.SUFFIX}"
    file.write_bytes(blocks.file_head(0, 1, START_NS, "node0") + b"".join(holes))
    found, problems = read_job([file])
    assert found and found.pyramid.first_step == windows._MOST_HOLES * 1000
    assert problems == ["The numbers of steps jump more than 256 times: later steps are not read."]


def test_a_damaged_block_is_counted_once(tmp_path: Path) -> None:
    job(tmp_path)
    (file, *_) = history_files(tmp_path)
    data = bytearray(file.read_bytes())
    # The block of steps 160 to 169, on the edge of the first window.
    at = data.index(b"DDPb", 128 + 12 * (32 + 80 + 32 + 48))
    data[at + 40] ^= 1
    file.write_bytes(data)
    assert read(tmp_path).lost_bytes == in_memory(tmp_path).lost_bytes == 32 + 80


def test_large_jobs_are_read_by_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "_WORTH_PROCESSES", 0)
    monkeypatch.setattr(windows, "_WINDOW", 1 << 15)
    assert_same(read(job(tmp_path)).pyramid, in_memory(tmp_path).pyramid)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 5), st.integers(1, 60), st.integers(0, 60), st.integers(0, 2**32 - 1))
def test_columns_of_steps_are_those_of_their_definitions(ranks: int, count: int, cut: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    busy = random.uniform(100, 200, (ranks, count)).astype(np.float32)
    busy[random.random(busy.shape) < 0.1] = np.nan
    busy[random.random(busy.shape) < 0.05] *= 9
    nodes = tuple(f"node{rank // 2}" for rank in range(ranks))
    stages, steps_us, begins_ns = np.full(ranks, blocks.NO_STAGE), np.full(count, 300.0), np.arange(1, count + 1)
    grid = windows.StepGrid(np.arange(ranks), nodes, stages, 0, busy, True, steps_us, begins_ns, (), (), 0.0, 0, 0)
    found = reduced(grid, 4)
    for column, values in enumerate(busy.T):
        known = values[~np.isnan(values)]
        if not len(known):
            assert found.steps.largest_row[column] == -1
            continue
        row = found.steps.largest_row[column]
        assert values[row] == found.steps.largest_us[column] == known.max()
        assert found.steps.median_us[column] == np.sort(known)[(len(known) - 1) // 2]
        rest = np.delete(values, row)
        elsewhere = values[[node != nodes[row] for node in nodes]]
        for others, told in ((rest, found.steps.second_us), (elsewhere, found.steps.other_node_us)):
            largest = np.nan if np.isnan(others).all() else np.nanmax(others)
            assert told[column] == largest or np.isnan([told[column], largest]).all()
    at = min(cut, count - 1) // 4 * 4
    if at:
        halves = [
            reduced(windows.StepGrid(*_cut(grid, slice(0, at))), 4),
            reduced(windows.StepGrid(*_cut(grid, slice(at, None))), 4),
        ]
        one = joined(halves)
        np.testing.assert_array_equal(one.steps.largest_us, found.steps.largest_us)
        np.testing.assert_array_equal(one.median_us, found.median_us)
        np.testing.assert_array_equal(one.sampled, found.sampled)


def _cut(grid: windows.StepGrid, part: slice) -> tuple[object, ...]:
    fields = msgspec.structs.asdict(grid)
    fields["busy_us"] = grid.busy_us[:, part]
    for name in ("step_us", "begins_ns"):
        fields[name] = fields[name][part]
    return tuple(fields.values())
