"""TensorBoard shows every verdict of a start, whichever child is done first."""

from __future__ import annotations

import contextlib
import multiprocessing
import random
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tb_ddp_doctor.capture import scalars
from tb_ddp_doctor.capture.directory import CaptureFolder, CaptureVerdict, write_json

STEPS = range(100, 2000, 100)


def decide(logdir: Path, step: int) -> None:
    verdict = CaptureVerdict(step, "", "", (), (), {"step_ms": step / 10}, began_s=1e9 + step, text=f"of step {step}")
    write_json(CaptureFolder.of(logdir, step).verdict, verdict)


def events(logdir: Path) -> EventAccumulator:
    return EventAccumulator(str(logdir / "ddp_doctor"), size_guidance={"tensors": 0}).Reload()


def shown(logdir: Path, tag: str = "step_ms") -> list[int]:
    """Steps in the order in which TensorBoard reads them."""
    return [point.step for point in events(logdir).Tensors(f"ddp_doctor/{tag}")]


def shown_where_earlier_steps_purge_later_ones(logdir: Path) -> list[int]:
    """As TensorBoard's data server has it."""
    kept: list[int] = []
    for step in shown(logdir):
        kept = [other for other in kept if other < step] + [step]
    return kept


def test_each_verdict_is_a_point_with_number_and_text(tmp_path: Path) -> None:
    for step in STEPS:
        decide(tmp_path, step)
        scalars.publish(tmp_path)
        scalars.publish(tmp_path)
    assert shown(tmp_path) == shown(tmp_path, "verdict") == list(STEPS)
    point = events(tmp_path).Tensors("ddp_doctor/step_ms")[-1]
    assert (point.wall_time, point.tensor_proto.float_val[0]) == (1e9 + STEPS[-1], STEPS[-1] / 10)
    assert events(tmp_path).Tensors("ddp_doctor/verdict")[3].tensor_proto.string_val[0] == b"of step 400"


def test_tensorboard_that_runs_meanwhile_sees_each_point(tmp_path: Path) -> None:
    decide(tmp_path, 100)
    scalars.publish(tmp_path)
    running = events(tmp_path)
    for step in STEPS[1:]:
        decide(tmp_path, step)
        scalars.publish(tmp_path)
        running.Reload()
    assert [point.step for point in running.Tensors("ddp_doctor/step_ms")] == list(STEPS)


@pytest.mark.parametrize("seed", range(5))
def test_children_that_are_done_in_any_order_lose_no_point(tmp_path: Path, seed: int) -> None:
    """Two at a time, as a rank has them; some end without a verdict."""
    draw = random.Random(seed)
    waiting, running, decided = list(STEPS), {}, []
    while waiting or running:
        while waiting and len(running) < 2:
            step = waiting.pop(0)
            running[step] = contextlib.ExitStack()
            running[step].enter_context(scalars.pending(CaptureFolder.of(tmp_path, step)))
        step = draw.choice(list(running))
        if draw.random() < 0.9:
            decide(tmp_path, step)
            decided.append(step)
        running.pop(step).close()
        scalars.publish(tmp_path)
    assert shown(tmp_path) == sorted(decided)


def test_a_verdict_that_comes_late_takes_no_point_away(tmp_path: Path) -> None:
    """Another rank diagnoses once the first one is known to be missing."""
    for step in (100, 300, 400, 200, 500):
        decide(tmp_path, step)
        scalars.publish(tmp_path)
    assert sorted(set(shown(tmp_path))) == [100, 200, 300, 400, 500]
    assert shown_where_earlier_steps_purge_later_ones(tmp_path) == [100, 200, 300, 400, 500]


def test_a_child_that_was_killed_holds_up_nobody(tmp_path: Path) -> None:
    folder = CaptureFolder.of(tmp_path, 100)
    folder.path.mkdir()
    (folder.path / "verdict.pending").touch()
    decide(tmp_path, 200)
    scalars.publish(tmp_path)
    assert shown(tmp_path) == [200]


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_half_a_point_at_the_end_of_the_file_is_written_again(tmp_path: Path, cut: int) -> None:
    for step in (100, 200):
        decide(tmp_path, step)
        scalars.publish(tmp_path)
    (file,) = (tmp_path / "ddp_doctor").iterdir()
    file.write_bytes(file.read_bytes()[:-cut])
    decide(tmp_path, 300)
    scalars.publish(tmp_path)
    assert shown(tmp_path) == [100, 200, 300]


def test_processes_that_publish_at_once_write_each_point_once(tmp_path: Path) -> None:
    for step in STEPS:
        decide(tmp_path, step)
    context = multiprocessing.get_context("spawn")
    children = [context.Process(target=scalars.publish, args=(tmp_path,)) for _ in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert shown(tmp_path) == list(STEPS)
