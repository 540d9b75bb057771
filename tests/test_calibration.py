"""Calibrations: the fit of alpha and beta, what nccl-tests prints, and files that are none."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
from traces import in_row, ranks, write

from tb_ddp_doctor import engine
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.calibration.fit import alpha_beta
from tb_ddp_doctor.calibration.load import CalibrationError, load
from tb_ddp_doctor.calibration.model import Calibration, Measure, NoAnswer, Pair, Point, curve
from tb_ddp_doctor.calibration.nccl_tests import parse
from tb_ddp_doctor.check.pairs import schedule
from tb_ddp_doctor.discover.recorders.calibrations import Calibrations, preferred
from tb_ddp_doctor.discover.runs import only_run
from tb_ddp_doctor.discover.walk import beside
from tb_ddp_doctor.report import html as report
from tb_ddp_doctor.report.calibration import page

#: What all_reduce_perf -b 1K -e 1M -f 32 prints on two nodes.
PRINTED = """\
# nThread 1 nGpus 1 minBytes 1024 maxBytes 1048576 step: 32(factor) warmup iters: 5 iters: 20 agg iters: 1
# Using devices
#  Rank  0 Group  0 Pid   4242 on      node1 device  0 [0x01] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   4243 on      node2 device  0 [0x01] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        1024           256     float     sum      -1    20.00    0.05    0.05      0    19.80    0.05    0.05      0
       32768          8192     float     sum      -1    22.10    1.48    1.48      0    22.00    1.49    1.49      0
     1048576        262144     float     sum      -1    60.00   17.48   17.48      0    59.00   17.77   17.77      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 6.4
"""


@pytest.mark.parametrize("noise", [0.01, 0.05])
@pytest.mark.parametrize(("alpha_us", "gbs"), [(5, 400), (20, 12), (150, 1.2)])
def test_the_fit_finds_alpha_and_beta_within_2_percent(alpha_us: float, gbs: float, noise: float) -> None:
    sizes = 2 ** np.arange(10, 31)
    random = np.random.default_rng(round(alpha_us * gbs))
    errors = []
    for _ in range(20):
        drawn = (alpha_us + sizes / gbs / 1e3) * (1 + noise * random.standard_normal((30, len(sizes))))
        # Some repeats are held up, as on any machine.
        drawn[random.random(drawn.shape) < 0.02] *= 10
        found = alpha_beta(sizes, np.median(drawn, axis=0))
        assert found
        errors.append([found.alpha_us / alpha_us - 1, found.beta_us * gbs * 1e3 - 1])
        assert found.r2 > 0.99 and found.mean_error < 0.03 and found.max_error < 0.12
    assert np.abs(errors).max() < 0.02


def test_a_line_is_not_fitted_to_one_size_or_to_what_is_no_time() -> None:
    assert alpha_beta([1024, 1024], [1, 2]) is None
    assert alpha_beta([1024, 2048], [np.nan, 2]) is None
    assert alpha_beta([], []) is None


def test_neither_latency_nor_time_per_byte_is_negative() -> None:
    falling = alpha_beta([1, 10, 100], [9, 6, 3])
    assert falling and falling.beta_us == 0 and falling.alpha_us > 0
    steep = alpha_beta([10, 100, 1000], [1, 100, 10_000])
    assert steep and steep.alpha_us == 0 and steep.beta_us > 0


def points(**time_us: float) -> list[Point]:
    return [Point(bytes=int(size[1:]), count=1, time_us=us, low_us=us, high_us=us) for size, us in time_us.items()]


def test_between_and_beyond_measured_sizes_the_points_tell() -> None:
    found = curve("all_reduce", "world", range(2), 2, points(_1000=10, _100000=100))
    assert found.time_us([1, 1000, 10_000, 100_000, 1_000_000]).tolist() == pytest.approx(
        [10, 10, 31.6, 100, 1000], rel=1e-3
    )


def test_output_of_nccl_tests_is_a_calibration() -> None:
    found = parse(PRINTED)
    assert found
    assert (found.source, found.world_size, found.nodes) == ("nccl-tests", 2, ("node1", "node2"))
    assert found.device == "NVIDIA H100 80GB HBM3"
    (one,) = found.curves
    assert (one.kind, one.size) == ("all_reduce", 2)
    assert [(point.bytes, point.time_us) for point in one.points] == [(1024, 20), (32768, 22.1), (1048576, 60)]
    assert found.curve("all_reduce", 2, within_node=False) is one
    assert found.curve("all_reduce", 4, within_node=False) is None


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("1024 256 float sum -1 20.0 1.0 1.75 0", "all_reduce"),
        ("1024 256 float sum -1 20.0 1.0 0.875 0", "reduce_scatter"),
        ("1024 256 float none -1 20.0 1.0 0.875 0", "all_gather"),
        ("1024 256 float none 0 20.0 1.0 1.0 0", "broadcast"),
        ("1024 256 float sum 0 20.0 1.0 1.0 0", "reduce"),
    ],
)
def test_a_collective_without_a_name_is_known_by_its_ratio(line: str, kind: str) -> None:
    found = parse(line)
    assert found and found.curves[0].kind == kind
    if kind.startswith("all"):
        assert found.world_size == 8


def test_the_files_name_tells_the_collective() -> None:
    found = parse("1024 256 float none -1 20.0 1.0 0.875 0 1 1 1 0", "alltoall_perf.8.txt")
    assert found and found.curves[0].kind == "all_to_all"


def test_a_calibration_is_found_beside_the_logs(tmp_path: Path) -> None:
    def chosen() -> Path | None:
        return preferred(beside([Calibrations()], [tmp_path / "absent"], tmp_path)[Calibrations])

    assert chosen() is None
    (tmp_path / "all_reduce_perf.txt").write_text(PRINTED)
    assert chosen() == tmp_path / "all_reduce_perf.txt"
    assert load(tmp_path / "all_reduce_perf.txt").world_size == 2
    written = msgspec.json.encode(Calibration(source="check", world_size=1))
    (tmp_path / "calibration.json").write_bytes(written)
    assert chosen() == tmp_path / "calibration.json"
    assert load(tmp_path / "calibration.json") == Calibration(source="check", world_size=1)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no results",
        b"{",
        b"{}",
        b'{"source": "check", "world_size": 1, "schema_version": 99}',
        b'{"source": "check", "world_size": "many"}',
        b'{"source": "check", "world_size": 2, "curves": [{"kind": "a", "scope": "world", "ranks": [], "size": 2, '
        b'"points": []}]}',
        b'{"source": "check", "world_size": 2, "curves": ' + b"[" * 100_000,
        b"\x1f\x8b\x00\xff" * 100,
    ],
)  # fmt: skip
def test_a_file_that_is_no_calibration_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "calibration.json"
    path.write_bytes(content)
    with pytest.raises(CalibrationError, match=r"calibration\.json"):
        load(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="No such file"):
        load(tmp_path / "calibration.json")


def test_the_engine_takes_the_calibration_beside_the_traces(tmp_path: Path) -> None:
    folder = write(tmp_path / "job", in_row(ranks("rank# step |1\n gpu [fwd..]", "rank# step |1\n gpu [fwd..]")))
    run = only_run(str(folder))
    assert engine.diagnose(run, reading=engine.Reading(cache=Cache(None))).job.calibration is None
    (folder / "calibration.json").write_bytes(msgspec.json.encode(Calibration(source="check", world_size=2)))
    found = engine.diagnose(only_run(str(folder)), reading=engine.Reading(cache=Cache(None)))
    assert found.job.calibration == Calibration(source="check", world_size=2)
    assert not [warning for warning in found.diagnosis.warnings if "calibration" in warning.file]
    named = Calibration(source="nccl-tests", world_size=4)
    reading = engine.Reading(cache=Cache(None), calibration=named)
    assert engine.diagnose(run, reading=reading).job.calibration is named
    (folder / "calibration.json").write_text("{")
    broken = engine.diagnose(run, reading=engine.Reading(cache=Cache(None)))
    (warning,) = [one for one in broken.diagnosis.warnings if "calibration" in one.file]
    assert warning.message.startswith("It is no calibration.json: ")


def test_the_report_shows_the_calibration_that_a_job_was_compared_with(tmp_path: Path) -> None:
    folder = write(tmp_path / "job", ranks("rank# step |1    |2\n gpu [fwd] [fwd]\n host [fwd] [fwd]"))
    pair = Pair(ranks=(0, 1), within_node=False, latency_us=3, gbs=20)
    measured = Calibration(source="check", world_size=2, device="<b>CPU</b>", nodes=("a", "b"), pairs=(pair,))
    reading = engine.Reading(cache=Cache(None), calibration=measured)
    text = report.page([engine.diagnose(only_run(str(folder)), reading=reading)], str(folder))
    (told,) = re.findall(r'<template data-calibration-of="job">(.*?)</template>', text, re.DOTALL)
    assert "2 ranks on 2 nodes, &lt;b&gt;CPU&lt;/b&gt;." in told and told.count("<svg") == 1
    # The report's policy allows its style sheet alone.
    assert "style=" not in told and "<style" not in told
    assert "<template" not in report.page([engine.diagnose(only_run(str(folder)))], str(folder))


def test_a_page_shows_curves_pairs_and_ranks_and_obeys_no_name_in_them() -> None:
    hostile = "<script>alert(1)</script>\x1b[31m"
    measure = Measure(name="GEMM", unit="TFLOPS", more_is_better=True, values=(1.0, None), spreads=(0.1, None))
    pair = Pair(ranks=(0, 1), within_node=False, latency_us=3, gbs=20)
    found = Calibration(
        source="check",
        world_size=2,
        device=hostile,
        nodes=(hostile, "b"),
        measures=(measure,),
        curves=(curve("all_reduce", "world", (0, 1), 2, points(_1024=10, _4096=11, _65536=40)),),
        pairs=(pair,),
        no_answer=(NoAnswer(rank=1, phase="GEMM"),),
    )
    text = page(found)
    assert text.count("<svg") == 2 and "<script" not in text and "\x1b" not in text
    assert "No answer in &#x27;GEMM&#x27; from rank 1 on b" in text and "1 ±10 %" in text
    # Of more ranks than a matrix can show, it shows nodes.
    nodes = [f"node{rank // 8}" for rank in range(512)]
    pairs = [
        Pair(ranks=ranks, within_node=False, latency_us=1, gbs=9) for round_ in schedule(nodes) for ranks in round_
    ]
    many = Calibration(source="check", world_size=512, nodes=tuple(nodes), pairs=tuple(pairs))
    assert page(many).count("<rect") < 64 * 64
