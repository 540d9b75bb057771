"""The floor, opened: each of its lines from a drawn job that has only that; lines sum to the floor."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from traces import job, ranks

from tb_ddp_doctor import api, engine
from tb_ddp_doctor.account import floor
from tb_ddp_doctor.facts import Facts
from tb_ddp_doctor.facts.roofline import LinkSpeed, roofline
from tb_ddp_doctor.facts.traffic import communication
from tb_ddp_doctor.findings import Account, Diagnosis, FloorKind

DEMO = Path(__file__).parents[1] / "demo_logs"
#: Rows of bfloat16: 134.2 MB. Read and written once, that takes 80.1 us at the 3.35 TB/s of an H100.
SIZES, LEAST_US = [16384, 4096], 2 * 2 * 16384 * 4096 / 3.35e6
H100 = "NVIDIA H100 80GB HBM3"
#: Operator, and how long its kernel takes, us.
Op = tuple[str, float]
#: Sizes and types of its inputs in place of `SIZES`, by operator, and their values.
Given = dict[str, tuple[list[list[int]], list[str]] | tuple[list[list[int]], list[str], list[str]]]


def account(folder: Path, *ops: Op, device: str = H100, shapes: bool = True, inputs: Given | None = None) -> Account:
    """The account of a rank that runs these operators on rows of `SIZES`, in each of three steps."""
    return diagnosis(folder, *ops, device=device, shapes=shapes, inputs=inputs).account


def diagnosis(
    folder: Path, *ops: Op, device: str = H100, shapes: bool = True, inputs: Given | None = None
) -> Diagnosis:
    """The diagnosis of such a rank."""
    events: list[dict[str, Any]] = []

    def add(category: str, name: str, at: float, length: float, tid: int, **args: Any) -> None:
        place = {"ph": "X", "cat": category, "name": name, "ts": at, "dur": length, "pid": 1, "tid": tid}
        events.append({**place, "args": args})

    done, number = 0.0, 0
    step_us = sum(length for _, length in ops) + 200
    for step in range(4):
        begin = step * step_us
        add("user_annotation", f"ProfilerStep#{step}", begin, step_us - 1, 1)
        done = max(done, begin)
        for index, (name, length) in enumerate(ops):
            at = begin + 10 * index
            dims, types, *values = (inputs or {}).get(name, ([SIZES, []], ["c10::BFloat16", "Scalar"]))
            texts = values[0] if values else [""] * (len(dims) - 1) + ["-1"]
            given = {"Input Dims": dims, "Input type": types, "Concrete Inputs": texts}
            add("cpu_op", name, at, 8, 1, **(given if shapes else {}))
            number += 1
            add("cuda_runtime", "cudaLaunchKernel", at + 2, 4, 1, correlation=number)
            done = max(done, at + 8)
            add(
                "kernel",
                f"void {name}_kernel<c10::BFloat16>()",
                done,
                length,
                7,
                device=0,
                stream=7,
                correlation=number,
            )
            done += length
    head = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": device, "numSms": 132, "computeMajor": 9}]}
    text = json.dumps({**head, "distributedInfo": {"rank": 0, "world_size": 1}, "traceEvents": events})
    (folder / "rank0.pt.trace.json").write_text(text)
    return api.diagnose(folder, cache=None)[0]


def us(account: Account, kind: FloorKind) -> float:
    """A line of the floor, us a step."""
    return 1e3 * next(line.ms for line in account.floor_lines if line.kind == kind)


def sums(account: Account) -> bool:
    return sum(line.total_ns for line in account.floor_lines) == account.line("floor").total_ns


def test_a_kernel_far_above_its_roofline_is_below_attainable(tmp_path: Path) -> None:
    found = account(tmp_path, ("aten::_softmax", 320), ("aten::_softmax", 320))
    assert us(found, "below-attainable") == pytest.approx(2 * (320 - LEAST_US), abs=1)
    assert us(found, "avoidable-traffic") == us(found, "not-modelled") == 0
    line = next(line for line in found.floor_lines if line.kind == "below-attainable")
    assert [*line.by_class] == ["normalisation and reduction"]
    assert line.by_class["normalisation and reduction"] == pytest.approx(line.ms)
    assert sums(found)


def test_what_the_kernel_before_wrote_need_not_be_read(tmp_path: Path) -> None:
    # Both run as fast as memory lets; fused they would neither write nor read what lies between them.
    found = account(tmp_path, ("aten::gelu", LEAST_US), ("aten::relu", LEAST_US))
    assert us(found, "below-attainable") == pytest.approx(0, abs=0.2)
    assert us(found, "avoidable-traffic") == pytest.approx(LEAST_US / 2, abs=1)
    line = next(line for line in found.floor_lines if line.kind == "avoidable-traffic")
    assert 1e3 * line.range_ms[1] == pytest.approx(LEAST_US, abs=1)
    assert sums(found)


def test_kernels_without_shapes_are_not_modelled(tmp_path: Path) -> None:
    found = account(tmp_path, ("aten::gelu", 400), shapes=False)
    assert us(found, "not-modelled") == pytest.approx(400, abs=1)
    assert us(found, "below-attainable") == us(found, "avoidable-traffic") == 0
    line = next(line for line in found.floor_lines if line.kind == "not-modelled")
    assert "record_shapes=True" in line.note
    assert sums(found)


def test_an_operator_that_no_table_has_is_not_modelled(tmp_path: Path) -> None:
    found = account(tmp_path, ("mine::secret", 400), ("aten::gelu", LEAST_US))
    assert us(found, "not-modelled") == pytest.approx(400, abs=1)


def test_of_an_unknown_device_nothing_is_modelled(tmp_path: Path) -> None:
    found = account(tmp_path, ("aten::gelu", 400), device="Some GPU")
    assert us(found, "not-modelled") == pytest.approx(400, abs=1)
    assert any("Some GPU" in line.note for line in found.floor_lines)
    assert sums(found)


def test_what_a_fault_removes_is_not_charged_again(tmp_path: Path) -> None:
    # 64 heads of 1,024 queries: the softmax's scores are what fused attention never writes; gelu has its own 100 us.
    inputs: Given = {
        "aten::bmm": ([[64, 1024, 64], [64, 64, 1024]], ["c10::BFloat16"] * 2),
        "aten::baddbmm": ([[64, 1024, 64], [64, 1024, 1024], [64, 1024, 64]], ["c10::BFloat16"] * 3),
        "aten::_softmax": ([[64, 1024, 1024], []], ["c10::BFloat16", "Scalar"]),
    }
    ops = [("aten::bmm", 50), ("aten::_softmax", 900), ("aten::baddbmm", 50), ("aten::gelu", LEAST_US + 100)]
    whole = diagnosis(tmp_path, *ops, inputs=inputs)
    found, charged = whole.account, whole.findings[0]
    assert charged.rule == "unfused-attention"
    # In fused attention the GEMMs, 50 us each, read and write no scores: 8.6 GFLOP, at 35 % of 989 TFLOPS 25 us, and a
    # sixth more to compute the scores again.
    fused_ms = 2 * 1.17 * 2 * 64 * 1024 * 1024 * 64 / (0.35 * 989e12) * 1e3
    assert charged.cost_ms == pytest.approx(0.9 + 0.1 - fused_ms, rel=0.02)
    assert charged.range_ms[0] < charged.cost_ms < charged.range_ms[1]
    # 268.4 MB in 0.9 ms.
    assert "softmax of 64x1024x1024, 0.90 ms in 1 call, 298 GB/s (8.9 %); bmm of 64x1024x64" in charged.why
    line = next(line for line in found.floor_lines if line.kind == "below-attainable")
    # The products take 46 us each at the least; what fused attention saves of theirs is charged to the other lines too.
    assert line.by_class == pytest.approx({"elementwise": 0.100, "GEMM": 0.007}, abs=0.005)
    assert sums(found)


#: The last AllReduce of 8 million values of 4 bytes is exposed for 2 ms.
EXPOSED = """
    rank# step |1
          host [fwd][bwd]
          gpu  [fwd................][bwd...............]
          nccl           [ar@8....]                     []
"""


def drawn(text: str, **options: Any) -> Account:
    """The account of two ranks of one node that each do this in three steps."""
    return engine.examine(job(ranks(text, text), nodes={0: "node", 1: "node"}, **options)).account


def test_exposed_communication_slower_than_the_links_is_below_link_speed() -> None:
    text = EXPOSED.replace("[]", "[ar@8]")
    found = drawn(text, device={"name": H100, "computeMajor": 9, "numSms": 132})
    # Ring AllReduce of two ranks: 32 MB cross each link of 450 GB/s once in each direction.
    line = us(found, "below-link-speed")
    exposed_us, least_us = 6_000, 32e6 / 450e9 * 1e6
    assert line == pytest.approx(exposed_us - least_us, rel=0.02)
    assert us(found, "below-attainable") == us(found, "avoidable-traffic") == 0
    assert sums(found)


@pytest.mark.parametrize(("heads", "longest", "modelled"), [(6, 512, True), (6, 16384, False)])
def test_unknown_lengths_matter_only_where_they_change_the_least_time(
    tmp_path: Path, heads: int, longest: int, modelled: bool
) -> None:
    """Of 127 sequences in 16,384 rows memory limits short ones whatever their lengths are: 4 x 25.2 MB at 3.35 TB/s.

    Of up to 512 rows each they have at most 16,384 x 256.5 scores a head: 12.9 GFLOP, 13 us of 989 TFLOPS.
    """
    rows, name = [16384, heads, 128], "flash_attn_3::fwd"
    dims = [rows] * 3 + [[]] * 4 + [[128], [128]] + [[]] * 18
    types = ["c10::BFloat16"] * 3 + [""] * 4 + ["int", "int"] + ["Scalar"] * 18
    values = [""] * 12 + [str(longest)] * 2 + [""] * 10 + ["True", "-1", "0"]
    found = account(tmp_path, (name, 400), inputs={name: (dims, types, values)})
    least = (4 * 2 * 16384 * heads * 128 + 4 * heads * 16384) / 3.35e6
    expected = (400 - least, 0) if modelled else (0, 400)
    assert (us(found, "below-attainable"), us(found, "not-modelled")) == pytest.approx(expected, abs=1)
    assert sums(found)


def test_links_that_nobody_knows_are_not_judged() -> None:
    found = drawn(EXPOSED.replace("[]", "[ar@8]"), device={"name": "NVIDIA L4", "computeMajor": 8, "numSms": 58})
    assert us(found, "below-link-speed") == 0
    assert any(line.note.startswith("Not judged") for line in found.floor_lines)
    assert sums(found)


def test_the_possible_bus_bandwidth_is_that_of_the_table_within_a_node() -> None:
    text = EXPOSED.replace("[]", "[ar@8]")
    device = {"name": H100, "computeMajor": 9, "numSms": 132}
    one = job(ranks(text, text), nodes={0: "node", 1: "node"}, device=device)
    (traffic, *_) = communication(one)
    assert LinkSpeed.of(one).bus_rate(traffic) == (450e9, "table")
    apart = job(ranks(text, text), nodes={0: "node", 1: "other"}, device=device)
    assert LinkSpeed.of(apart).bus_rate(traffic) is None


def test_kernels_that_no_row_of_the_replay_has_are_not_modelled() -> None:
    # One graph that computes for 80 of 100 ms is a row of 2 ms that ends late; 3 % is the record's edge.
    whole = SimpleNamespace(
        job=SimpleNamespace(budget=SimpleNamespace(of=lambda _: np.array([[80, 100]]))),
        whatif=SimpleNamespace(device_ns=np.array([[2, 97]])),
    )
    assert floor._outside_ns(whole) == 78  # type: ignore[arg-type]


def test_ranks_that_share_a_gpu_are_said() -> None:
    text = """
        rank# step |1
              gpu  [fwd.............]
              nccl             [ar]
    """
    one = job(ranks(text, text), nodes={0: "node", 1: "node"}, device={"name": H100, "computeMajor": 9})
    assert "share GPU" not in " ".join(Facts(one).get(roofline).notes)
    seen = [replace(digest, header=replace(digest.header, devices={0: H100, 1: H100})) for digest in one.digests]
    notes = Facts(replace(one, digests=tuple(seen))).get(roofline).notes
    assert "Ranks 0 and 1 share GPU 0 of node: each of them has a part of its peak" in " ".join(notes)


@pytest.mark.parametrize("name", ["four_workers", "no_overlap"])
def test_lines_of_real_jobs_sum_to_their_floor(name: str) -> None:
    found = api.diagnose(DEMO / name)[0].account
    assert sums(found)
    assert us(found, "below-attainable") > 10_000
    # All but copies from the host.
    assert us(found, "not-modelled") < 0.02 * sum(1e3 * line.ms for line in found.floor_lines)
