"""Memory, clocks and garbage collection recorded beside the steps, and what is said of them."""

from __future__ import annotations

import gc
import re
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from test_history import only
from test_history_summary import QUIET, START_NS, drawn
from whole_history import whole

from tb_ddp_doctor.capture import Doctor
from tb_ddp_doctor.capture.samplers import GarbageWatch, GpuStepWatch, LoadingWatch, device_of_this_thread, memory
from tb_ddp_doctor.capture.step_history import StepHistory
from tb_ddp_doctor.history import blocks
from tb_ddp_doctor.history.blocks import QUANTITIES, SAMPLE_ROW
from tb_ddp_doctor.history.read import RankHistory, history_files
from tb_ddp_doctor.history.sentences import sentence
from tb_ddp_doctor.history.summary import Summary, summarise
from tb_ddp_doctor.history.windows import read_job
from tb_ddp_doctor.history.write import StepRecorder

#: A sample a minute, over the 4,000 steps of one second that a drawing has.
MINUTES = 66


def samples(quantity: str, values: NDArray[np.float64], at_s: NDArray[np.float64] | None = None) -> NDArray[np.void]:
    rows = np.zeros(len(values), dtype=SAMPLE_ROW)
    rows["at_ns"] = START_NS + 1e9 * (60.0 * np.arange(len(values)) if at_s is None else at_s)
    rows["quantity"] = QUANTITIES.index(quantity)
    rows["value"] = values
    return rows


def summary(files: list[RankHistory], of_ranks: dict[int, NDArray[np.void]]) -> Summary:
    return summarise(msgspec.structs.replace(whole(files), samples=of_ranks))


def grown() -> list[RankHistory]:
    """Four ranks whose steps become 100 ms longer in all."""
    files = drawn(QUIET)
    ramp = np.linspace(0, 100_000, 4000)
    for file in files:
        (stretch,) = file.stretches
        assert stretch.busy_us is not None
        steps_us, busy_us = (stretch.steps_us + ramp).astype(np.uint32), (stretch.busy_us + ramp).astype(np.uint32)
        file.stretches[:] = [stretch._replace(steps_us=steps_us, busy_us=busy_us)]
    return files


def test_memory_that_grows_with_a_drift_is_said() -> None:
    noise = np.random.default_rng(0).normal(0, 1e6, MINUTES)
    memory = samples("process memory", 2e9 + 6e6 * np.arange(MINUTES) + noise)
    still = samples("reserved memory", np.full(MINUTES, 5e9))
    found = summary(grown(), {0: np.concatenate([memory, still])})
    (event,) = found.events
    (said,) = event.together
    assert (said.quantity, said.rank) == ("process memory", 0)
    assert said.after - said.before == pytest.approx(6e6 * 4200 / 60, rel=0.05)
    assert ", process memory grows with it: 360 MB an hour (rank 0): " in sentence(event, found, None)


def test_noise_of_memory_is_not_said() -> None:
    noise = np.random.default_rng(0).normal(2e9, 1e8, MINUTES)
    found = summary(grown(), {0: samples("allocated memory", noise), 1: samples("process memory", noise[:5])})
    assert [event.together for event in found.events] == [()]


def test_a_clock_that_falls_with_a_rank_is_said() -> None:
    clock = np.where(np.arange(MINUTES) < 34, 1980.0, 1410.0)
    noisy = np.random.default_rng(0).normal(600, 50, MINUTES)
    rows = np.concatenate([samples("SM clock", clock), samples("power", noisy)])
    # It grows all the time.
    rows = np.concatenate([rows, samples("process memory", 2e9 + 6e6 * np.arange(MINUTES))])
    steady = samples("SM clock", np.full(MINUTES, 1980.0))
    found = summary(drawn(QUIET + "b ....................####################"), {0: steady, 3: rows})
    (event,) = found.events
    assert "SM clock changes with it: 1,980 MHz before, 1,410 MHz since (rank 3): " in sentence(event, found, None)
    assert [one.quantity for one in event.together] == ["SM clock"]


def test_loading_that_takes_longer_with_a_rank_is_said() -> None:
    noise = np.random.default_rng(0).normal(1, 0.01, MINUTES)
    slower = samples("loading time", np.where(np.arange(MINUTES) < 34, 0.012, 0.172) * noise)
    job = drawn(QUIET + "b ....................####################")
    found = summary(job, {3: slower})
    (event,) = found.events
    said = sentence(event, found, None)
    assert re.search(r", loading time changes with it: 1\d\.\d ms before, 17\d\.\d ms since \(rank 3\): ", said)
    # A tenth of a millisecond explains nothing.
    assert summary(job, {3: samples("loading time", np.repeat([1e-5, 1e-4], 33))}).events[0].together == ()


def test_batches_are_timed_while_they_are_awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]

    def loader() -> Iterator[int]:
        for number in range(3):
            now[0] += 10_000_000
            yield number

    watch = LoadingWatch()
    assert watch.sample() == {}
    with monkeypatch.context() as clock:
        clock.setattr("tb_ddp_doctor.capture.samplers.time.monotonic_ns", lambda: now[0])
        for _ in watch.timed(loader()):
            now[0] += 20_000_000
    assert watch.sample() == {"loading time": 0.01}
    assert watch.sample() == {}
    assert list(Doctor(tmp_path, scratch=tmp_path).batches([1, 2])) == [1, 2]
    doctor = Doctor(tmp_path, history=True, scratch=tmp_path)
    assert list(doctor.batches([1, 2])) == [1, 2]
    assert doctor._history is not None and set(doctor._history._loading.sample()) == {"loading time"}


def test_steps_are_timed_on_the_gpu_by_events_that_nobody_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Steps of 20 ms, of which the GPU has always two to go."""
    recorded: list[Any] = []

    class FakeEvent:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.number = len(recorded)
            recorded.append(self)

        def query(self) -> bool:
            return self.number < len(recorded) - 2

        def elapsed_time(self, later: FakeEvent) -> float:
            assert later.query()
            return 20.0 * (later.number - self.number)

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(Event=FakeEvent)))
    watch = GpuStepWatch()
    for _ in range(10):
        watch.end()
    # Two are still to go, and the one before them ends the last step that is timed.
    assert [event.number for event in watch._events] == [7, 8, 9]
    assert watch.sample() == {"GPU time of a step": pytest.approx(0.02)}
    assert watch.sample() == {}
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    history = StepHistory(["gpu_time"])
    history._gpu_steps = watch
    history.mark_gpu_step()
    assert history._gpu_steps is None and "steps are not timed on the GPU" in caplog.text


def with_long_steps(collected: list[int]) -> tuple[list[RankHistory], dict[int, NDArray[np.void]]]:
    """Rank 1 has a step that is 400 ms longer every 100 steps; it collects garbage in these steps."""
    files = drawn(QUIET)
    added = 400_000 * (np.arange(4000) % 100 == 7)
    for file in files:
        (stretch,) = file.stretches
        assert stretch.busy_us is not None
        busy_us = stretch.busy_us + added if file.rank == 1 else stretch.busy_us
        file.stretches[:] = [stretch._replace(steps_us=(stretch.steps_us + added).astype(np.uint32), busy_us=busy_us)]
    begins_s = np.concatenate(([0], np.cumsum(files[1].stretches[0].steps_us / 1e6)))
    at_s = begins_s[collected] + 0.1
    return files, {1: samples("garbage", np.full(len(at_s), 0.38), at_s)}


def test_garbage_in_long_steps_is_said() -> None:
    found = summary(*with_long_steps(list(range(7, 4000, 100))))
    (event,) = found.events
    assert (event.kind, event.every, event.garbage_share) == ("period", 100, 1.0)
    assert ", Python collects garbage in 100 % of them: " in sentence(event, found, None)


@pytest.mark.parametrize("collected", [[], list(range(9, 4000, 100)), list(range(4000))])
def test_garbage_in_other_steps_or_in_most_explains_nothing(collected: list[int]) -> None:
    (event,) = summary(*with_long_steps(collected)).events
    assert event.garbage_share is None


def test_samples_are_read_as_they_were_recorded(tmp_path: Path) -> None:
    job = StepRecorder(tmp_path, 1, 4, "n", max_bytes=None, samplers=[lambda: {"power": 700.0}, lambda: {}[0]])
    for step in range(5):
        job.end(step)
    job._look()
    job.sample("garbage", 0.25, 5)
    job.close()
    rows = only(tmp_path).samples
    assert [(QUANTITIES[row["quantity"]], float(row["value"])) for row in rows] == [("power", 700), ("garbage", 0.25)]
    found, problems = read_job(history_files(tmp_path))
    assert found is not None
    assert problems == []
    np.testing.assert_array_equal(found.samples[1], rows)


def test_a_damaged_block_of_samples_costs_itself(tmp_path: Path) -> None:
    block = blocks.samples_block(samples("power", np.full(3, 700.0)))
    data = blocks.file_head(1, 4, START_NS, "n") + block[:-1] + b"x" + block
    (tmp_path / "a.steps").write_bytes(data)
    read = only(tmp_path)
    assert (len(read.samples), read.lost_bytes) == (3, len(block))


def test_a_doctor_records_what_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(ValueError, match="record"):
        Doctor(tmp_path, record=["clocks"])  # type: ignore[list-item]
    doctor = Doctor(tmp_path, record=["memory", "gpu", "garbage"])
    watches = len(gc.callbacks)
    for step in range(5):
        doctor.step(step)
    assert len(gc.callbacks) == watches + 1
    assert doctor._history is not None and doctor._history.recorder is not None
    doctor._history.recorder._look()
    doctor.close()
    assert len(gc.callbacks) == watches
    rows = only(tmp_path).samples
    memory = rows[rows["quantity"] == QUANTITIES.index("process memory")]
    assert memory["value"][0] > 1e6


def test_memory_is_of_the_gpu_that_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """The current device is a thread's own: on the recorder's it is GPU 0, on every rank."""
    current = threading.local()
    cuda = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        current_device=lambda: getattr(current, "device", 0),
        memory_allocated=lambda device: 100.0 * device,
        memory_reserved=lambda device: 200.0 * device,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    current.device = 3
    with ThreadPoolExecutor(1) as recorder:
        found = recorder.submit(memory, device_of_this_thread()).result()
    assert (found["allocated memory"], found["reserved memory"]) == (300, 600)


def test_collections_of_a_millisecond_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]
    monkeypatch.setattr("tb_ddp_doctor.capture.samplers.time.monotonic_ns", lambda: now[0])
    noted: list[tuple[str, float, int]] = []
    watch = GarbageWatch(lambda *row: noted.append(row))
    for took_ns in (2_000_000, 10_000):
        now[0] += 5
        watch._collects("start", {})
        now[0] += took_ns
        watch._collects("stop", {})
    assert noted == [("garbage", 0.002, 5)]
