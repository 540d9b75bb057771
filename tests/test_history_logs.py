"""Step times in the logs of other programs, drawn as these print them."""

from __future__ import annotations

import json
import os
import random
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary as Scalars

import tb_ddp_doctor
from tb_ddp_doctor.cli import main
from tb_ddp_doctor.history.job import JobHistory
from tb_ddp_doctor.history.logs import points as points_module
from tb_ddp_doctor.history.logs.find import log_files, read_hours, read_log
from tb_ddp_doctor.history.logs.points import LoggedStep, job_of
from tb_ddp_doctor.history.sentences import headline
from tb_ddp_doctor.history.summary import Summary, summarise
from tb_ddp_doctor.workers import pool
from tb_ddp_doctor.workers.limits import Limits

START_S = 1_790_000_000.0
#: Lines of a log, steps from one to the next, and the line from which on steps take longer.
LINES, EVERY, SLOWED = 400, 10, 200


def step_s(line: int) -> float:
    """A step's time: 2 s, from the slowed line on 2.2 s, with 1 % of noise."""
    return (2.2 if line > SLOWED else 2.0) * random.Random(line).gauss(1, 0.01)


def stamp(seconds: float, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    return time.strftime(form, time.localtime(seconds))


def lines(write: Callable[[int, float, float], str]) -> str:
    """The lines of a log: of step, time and the mean time of a step."""
    now, found = START_S, []
    for line in range(1, LINES + 1):
        now += EVERY * step_s(line)
        found.append(write(EVERY * line, now, step_s(line)))
    return "\n".join([*found, ""])


def megatron(step: int, at_s: float, mean_s: float) -> str:
    """Of `training_log` in NVIDIA/Megatron-LM, megatron/training/training.py, as torchrun prints the last rank's."""
    return (
        f" [{stamp(at_s)}] iteration {step:8d}/{500000:8d} | consumed samples: {256 * step:12d} | elapsed time per "
        f"iteration (ms): {mean_s * 1000:.1f} | throughput per GPU (TFLOP/s/GPU): 401.3 | learning rate: 1.0E-04 |"
    )


def old_megatron(step: int, _: float, mean_s: float) -> str:
    """Before 2023, and in Megatron-DeepSpeed: without a clock."""
    return (
        f" iteration {step:8d}/{500000:8d} | consumed samples: {step:12d} | elapsed time per iteration (ms): "
        f"{mean_s * 1000:.1f} | learning rate: 1.000E-04 | lm loss: 2.1E+00 |"
    )


def titan(step: int, at_s: float, _: float) -> str:
    """Of `MetricsProcessor.log` and `init_logger` in pytorch/torchtitan, with the colours of a terminal."""
    milliseconds = int(at_s % 1 * 1000)
    return (
        f"[rank0]:[titan] {stamp(at_s)},{milliseconds:03d} - root - INFO - \x1b[31mstep: {step:2}  \x1b[32mloss:  7.1  "
        f"\x1b[38;2;180;60;0mgrad_norm:  1.2  \x1b[38;2;54;234;195mmemory: 30.02GiB(31.60%)  \x1b[34mtps: 3,234  "
        f"\x1b[36mtflops: 100.1  \x1b[35mmfu: 10.1%\x1b[39m"
    )


def records(*events: Event) -> bytes:
    """An event file; checksums are not read."""
    data = [event.SerializeToString() for event in events]
    return b"".join(struct.pack("<QL", len(one), 0) + one + bytes(4) for one in data)


def scalars(tag: str) -> Iterator[Event]:
    """As torch.utils.tensorboard's SummaryWriter writes them."""
    now = START_S
    for line in range(1, LINES + 1):
        now += EVERY * step_s(line)
        value = Scalars.Value(tag=tag, simple_value=step_s(line))
        yield Event(wall_time=now, step=EVERY * line, summary=Scalars(value=[value]))


def summary(path: Path, since: int | None = None) -> Summary:
    job, _ = read_hours(path, None, since)
    assert job is not None
    return summarise(job)


def assert_slowed(found: Summary) -> None:
    (event,) = found.events
    assert (event.kind, event.level) == ("change", "job")
    assert event.first_step == pytest.approx(EVERY * SLOWED, abs=100)
    assert event.added_ms == pytest.approx(200, rel=0.1)
    assert event.cost_s == pytest.approx(EVERY * SLOWED * 0.2, rel=0.1)
    assert found.last_step == LINES * EVERY
    assert found.median_step_ms == pytest.approx(2100, rel=0.06)


@pytest.mark.parametrize(
    ("write", "program"), [(megatron, "Megatron-LM"), (old_megatron, "Megatron-LM"), (titan, "torchtitan")]
)
def test_a_change_is_found_in_a_log(tmp_path: Path, write: Callable[[int, float, float], str], program: str) -> None:
    log = tmp_path / "train.log"
    log.write_text("using world size: 64, data-parallel size: 8\n" + lines(write))
    found = summary(tmp_path)
    assert_slowed(found)
    assert found.logged_by is not None
    assert (found.logged_by.program, found.logged_by.path) == (program, str(log))
    assert (found.logged_by.steps_a_line, found.ranks) == (EVERY, 64)
    assert summary(log) == found
    assert summary(log, since=3000).events == ()


@pytest.mark.parametrize("tag", ["iteration-time", "loss"])
def test_a_change_is_found_in_scalars(tmp_path: Path, tag: str) -> None:
    """By Megatron's tag of a step's time, and by when a loss was written."""
    file = tmp_path / "events.out.tfevents.1790000000.host"
    other = Event(step=1, wall_time=START_S, summary=Scalars(value=[Scalars.Value(tag="text")]))
    file.write_bytes(records(Event(file_version="brain.Event:2"), other, *scalars(tag)) + b"torn")
    found = summary(tmp_path)
    assert_slowed(found)
    assert found.logged_by is not None
    assert (found.logged_by.program, found.ranks) == ("TensorBoard", 0)


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def wandb_item(name: str, value: float, *, as_json: bool) -> bytes:
    """A value as wandb 0.31 writes it, and as newer ones may: a double in field 6."""
    written = field(16, json.dumps(value).encode()) if as_json else b"\x31" + struct.pack("<d", value)
    return field(1, field(2, name.encode()) + written)


def piece(data: bytes, kind: int) -> bytes:
    return struct.pack("<IHB", zlib.crc32(data, zlib.crc32(bytes([kind]))), len(data), kind) + data


def wandb_file(*rows: dict[str, float], as_json: bool = True) -> bytes:
    """A run's file as wandb writes it (checked against one of wandb 0.31), the summary's record before each row."""
    data = b":W&B\xe1\xbe\0"
    for row in rows:
        items = b"".join(wandb_item(name, value, as_json=as_json) for name, value in row.items())
        for record in (field(3, items), field(2, items)):
            kind, room = 1, 32768 - len(data) % 32768
            if room < 7:
                data, room = data + bytes(room), 32768
            if len(record) > room - 7:
                data, record, kind = data + piece(record[: room - 7], 2), record[room - 7 :], 4
            data += piece(record, kind)
    return data


@pytest.mark.parametrize("as_json", [True, False])
def test_a_change_is_found_in_a_run_of_wandb(tmp_path: Path, as_json: bool) -> None:
    rows: list[dict[str, float]] = []
    now = START_S
    for line in range(1, LINES + 1):
        now += EVERY * step_s(line)
        rows.append({"train/loss": 1.0, "_step": 2 * line, "_timestamp": now, "train/global_step": EVERY * line})
        rows.append({"eval/loss": 1.0, "_step": 2 * line + 1, "_timestamp": now + 1})
    file = tmp_path / "wandb" / "run-20260101_000000-abc" / "run-abc.wandb"
    file.parent.mkdir(parents=True)
    file.write_bytes(wandb_file(*rows, as_json=as_json) + b"torn")
    found = summary(tmp_path)
    assert_slowed(found)
    assert found.logged_by is not None
    assert found.logged_by.program == "W&B"


def test_a_change_is_found_in_metrics_of_lightning(tmp_path: Path) -> None:
    """Of CSVLogger with ThroughputMonitor: the s trained so far, in the rows of training alone."""
    now, rows = 0.0, ["epoch,step,train_loss,train|time,val_loss"]
    for line in range(1, LINES + 1):
        now += EVERY * step_s(line)
        rows += [f"0,{EVERY * line - 1},,{now},", f"0,{EVERY * line - 1},0.7,,", f"0,{EVERY * line - 1},,,0.8"]
    (tmp_path / "lightning_logs" / "version_0").mkdir(parents=True)
    (tmp_path / "lightning_logs" / "version_0" / "metrics.csv").write_text("\n".join(rows))
    assert_slowed(summary(tmp_path))


def test_a_change_is_found_in_the_state_of_a_trainer(tmp_path: Path) -> None:
    """Of transformers' Trainer.log with include_num_input_tokens_seen, which adds speed_metrics("train", ...)."""
    now, entries = 0.0, []
    for line in range(1, LINES + 1):
        now += EVERY * step_s(line)
        entries.append({"loss": 1.0, "step": EVERY * line, "train_runtime": now, "train_tokens_per_second": 100.0})
        entries.append({"eval_loss": 1.0, "eval_runtime": 3.0, "step": EVERY * line})
    entries.append({"train_loss": 1.0, "train_runtime": 2 * now, "step": EVERY * LINES})
    (tmp_path / "trainer_state.json").write_text(json.dumps({"global_step": 4000, "log_history": entries}))
    found = summary(tmp_path)
    assert_slowed(found)
    assert " h after the start)" in headline(found)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("metrics.csv", "epoch,step,train_loss\n0,1,0.5\n0,2,0.5\n"),
        ("metrics.csv", "step,train|time\nx,y\n1\n\x00"),
        ("trainer_state.json", '{"log_history": [{"step": 1, "loss": 1.0}, {"step": 2}]}'),
        ("trainer_state.json", '{"log_history": 5}'),
        ("run-a.wandb", "no run"),
    ],
)
def test_logs_without_a_clock_are_passed_over(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert read_hours(tmp_path) == (None, [])


def of(points: list[LoggedStep]) -> JobHistory:
    job = job_of(points, "a program", Path("a.log"))
    assert job is not None
    return job


def test_what_lies_between_lines_is_no_step() -> None:
    """Megatron's timer stands still while it saves and evaluates; the clock goes on."""
    points = [LoggedStep(10 * n, START_S + 20 * n + (60 if n > 5 else 0), 2.0) for n in range(1, 11)]
    found = summarise(of(points))
    assert found.median_step_ms == pytest.approx(2000)
    assert found.account.time_s["between steps"] == pytest.approx(60)
    assert found.account.goodput == pytest.approx(200 / 260)


def test_a_restart_trains_steps_again() -> None:
    points = [LoggedStep(10 * n, START_S + 20 * n) for n in range(1, 11)]
    again = [LoggedStep(10 * n, START_S + 1000 + 20 * n) for n in range(8, 21)]
    found = summarise(of([*points, *again]))
    assert (found.restarts, found.trained_again, found.first_step, found.last_step) == (1, 20, 11, 200)


def test_lines_at_odd_steps_keep_the_time_in_all() -> None:
    points = [LoggedStep(step, START_S + 2.0 * step) for step in (10, 20, 25, 30, 40, 70, 80)]
    found = summarise(of(points))
    assert (found.first_step, found.last_step) == (11, 80)
    assert found.median_step_ms == pytest.approx(2000)
    assert sum(found.account.time_s.values()) == pytest.approx(140)


def test_several_lines_about_one_step_are_one() -> None:
    points = [LoggedStep(step, START_S + 2.0 * step + late) for step in range(1, 50) for late in (0, 0.5)]
    assert summarise(of(points)).median_step_ms == pytest.approx(2000)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.builds(LoggedStep, st.integers(-3, 99) | st.integers(-3, 1 << 51), st.floats(), st.floats()), max_size=12
    )
)
def test_any_numbers_are_taken(points: list[LoggedStep]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(points_module, "_MOST_COLUMNS", 1 << 10)
        job = job_of(points, "a program", Path("a.log"))
    if job is not None:
        summarise(job)


def test_a_log_that_cannot_be_read_costs_itself_and_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is a pipe, and one of which more is made than may be."""
    (tmp_path / "good.log").write_text(lines(megatron))
    os.mkfifo(tmp_path / "pipe.log")
    job, problems = read_hours(tmp_path)
    assert job is not None
    assert problems == [f"{tmp_path / 'pipe.log'} cannot be read (it is no plain file)."]
    monkeypatch.setattr(pool, "limits_for", lambda *_: Limits(60, 60, 1 << 30, answer_bytes=9))
    job, problems = read_hours(tmp_path / "good.log")
    assert job is None
    (problem,) = problems
    assert problem.startswith(f"{tmp_path / 'good.log'} is left out: Reading it takes more than 1,024 MiB of memory")


@settings(max_examples=30, deadline=None)
@given(data=st.binary(max_size=300), cut=st.integers(0, 400))
def test_any_bytes_are_taken(tmp_path_factory: pytest.TempPathFactory, data: bytes, cut: int) -> None:
    folder = tmp_path_factory.mktemp("logs")
    (folder / "events.out.tfevents.1").write_bytes(records(*list(scalars("loss"))[:9])[:cut] + data)
    rows = [{"loss": 1.0, "_step": step, "_timestamp": START_S + step} for step in range(9)]
    (folder / "a.wandb").write_bytes(wandb_file(*rows)[:cut] + data)
    (folder / "metrics.csv").write_bytes(b"step,train|time\n1,2\n" + data)
    (folder / "trainer_state.json").write_bytes(data)
    (folder / "a.log").write_bytes(megatron(1, START_S, 2.0).encode()[:cut] + data)
    for files in log_files(folder):
        read_log(files)


@pytest.mark.parametrize(("named", "is_said"), [([13] * 8 + [2, 3], True), (list(range(10)), False), ([13] * 3, False)])
def test_the_rank_that_straggler_reports_name_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], named: list[int], is_said: bool
) -> None:
    """Of StragglerDetector.report in NVIDIA/Megatron-LM, megatron/core/utils.py and README_STRAGGLER.md."""
    reports = [
        f" 0: INFO:megatron.core.utils:[{stamp(START_S)}] | MnRtt/Rnk: 3453.00ms/8 | MxRtt/Rnk: 3798.30ms/{rank} | "
        "MnPwr/Rnk: 601796W/8 | MxPwr/Rnk: 683801W/18 | MnTmp/Rnk: 52C/0"
        for rank in named
    ]
    log = tmp_path / "train.log"
    log.write_text("\n".join([lines(megatron), *reports]))
    assert main(["history", str(log), "--no-cache"]) == 0
    said = (
        "Rank 13 is the slowest in 8 of 10 straggler reports, 10 % slower than the fastest." in capsys.readouterr().out
    )
    assert said == is_said


def test_the_rank_with_the_lowest_of_nvrxs_scores_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of StragglerDetectionCallback in NVIDIA/nvidia-resiliency-ext: many ranks, few, and one without a score."""

    def scores(*of_ranks: tuple[int, str]) -> list[str]:
        return [f"  Rank={rank} Node=node{rank // 8} Score={score}" for rank, score in of_ranks]

    worst, best = [" Worst performing 2/512 ranks:"], [" Best performing 2/512 ranks:"]
    of_itself = ["GPU individual performance:", *scores((7, "0.10"), (8, "1.00")), ""]
    many = ["GPU relative performance:", *worst, *scores((76, "0.80"), (3, "0.97")), *best, *scores((9, "1.00"))]
    few = ["GPU relative performance:", *scores((5, "0.00"), (76, "0.80"), (1, "1.00"))]
    other = ["GPU relative performance:", *scores((2, "0.95"), (1, "1.00"))]
    warning = "STRAGGLER DETECTION WARNING: Some GPUs have worse relative performance. Affected ranks: [76]"
    log = tmp_path / "train.log"
    reports = [*many, *of_itself, *few, warning, *many, *few, *many, *other, *scores((4, "0.01")), *few]
    log.write_text("\n".join([lines(megatron), *reports]))
    assert main(["history", str(log), "--no-cache"]) == 0
    out = capsys.readouterr().out
    assert "Rank 76 is the slowest in 6 of 7 straggler reports, 25 % slower than the fastest." in out


def test_the_command_reads_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "train.log"
    log.write_text(lines(megatron))
    (tmp_path / "short.log").write_text("\n".join(lines(titan).splitlines()[:5]))
    assert main(["history", str(tmp_path), "--no-cache", "--gpu-hour", "2"]) == 0
    printed = capsys.readouterr()
    first, headline, *_ = printed.out.splitlines()
    assert first.startswith("4,000 steps (1 to 4,000), 2.3 h, ")
    assert "All ranks are " in headline
    assert " slower since step " in headline
    assert " hours of the job." in printed.out
    assert f"Read from {log} (Megatron-LM), means of 10 steps each" in printed.out
    assert "short.log has step times of torchtitan too" in printed.err
    assert main(["history", str(log), "--no-cache", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["summary"]["logged_by"]["steps_a_line"] == 10
    assert tb_ddp_doctor.hours(log, cache=False).summary.steps == 4000
    (tmp_path / "empty.log").write_text("nothing")
    assert main(["history", str(tmp_path / "empty.log"), "--no-cache"]) == 2
