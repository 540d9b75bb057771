"""What files beside the traces say of the ranks, and the findings that say it."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import traces
from hypothesis import given
from hypothesis import strategies as st
from soak import HEALTHY
from traces import ranks, write

from tb_ddp_doctor import engine
from tb_ddp_doctor.discover.recorder import Beside
from tb_ddp_doctor.discover.recorders.nccl_logs import NcclLogs
from tb_ddp_doctor.discover.runs import discover, only_run
from tb_ddp_doctor.discover.walk import beside
from tb_ddp_doctor.evidence import find as find_module
from tb_ddp_doctor.evidence.find import Rank, find
from tb_ddp_doctor.evidence.model import CaptureRecord, GpuState, Loading, RankEvidence, SeenStack
from tb_ddp_doctor.evidence.texts import dcgm, nvidia_smi, py_spy
from tb_ddp_doctor.rules.support.rank_evidence import of_gpu, of_loading
from tb_ddp_doctor.storage import time_limit

SMI = """
==============NVSMI LOG==============

Timestamp                                 : Wed Aug 26 15:47:19 2026
Driver Version                            : 550.54.15

Attached GPUs                             : 2
GPU 00000000:07:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Clocks Event Reasons
        Idle                              : Not Active
        Applications Clocks Setting       : Active
        SW Power Cap                      : Active
        HW Slowdown                       : Not Active
            HW Thermal Slowdown           : Not Active
            HW Power Brake Slowdown       : Active
        SW Thermal Slowdown               : Not Active
    Temperature
        GPU Current Temp                  : 83 C
        GPU Shutdown Temp                 : 92 C
    GPU Power Readings
        Average Power Draw                : N/A
        Instantaneous Power Draw          : 699.52 W
        Current Power Limit               : 700.00 W
    Clocks
        Graphics                          : 1410 MHz
        SM                                : 1411 MHz
        Memory                            : 2619 MHz
    Max Clocks
        Graphics                          : 1980 MHz
        SM                                : 1980 MHz
    Processes
        GPU instance ID                   : N/A
        Process ID                        : 101
            Type                          : C

GPU 00000000:0A:00.0
    Clocks Throttle Reasons
        SW Power Cap                      : Not Active
    Power Readings
        Power Draw                        : 512.00 W
        Power Limit                       : 700.00 W
    Clocks
        SM                                : 1980 MHz
"""
DMON = """
#Entity   SMCLK   CLEVT     GPUTMP  POWER
ID                          C       W
GPU 0     1590    0x00000004    71      699.8
GPU 1     1980    0x00000001    64      641.2
GPU 0     1410    N/A           73      650.0
"""
EXPORTER = """
# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).
DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-1",device="nvidia0",modelName="H100",Hostname="node0"} 1980
DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-2",device="nvidia0",modelName="H100",Hostname="node1"} 1410
DCGM_FI_DEV_CLOCKS_EVENT_REASONS{gpu="0",UUID="GPU-2",Hostname="node1"} 64
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-2",Hostname="node1"} 91
"""
PY_SPY = """
Process 101: python train.py --lr 1e-3
Python v3.11.4 (/usr/bin/python3.11)

Thread 177 (idle): "Thread-1"
    wait (threading.py:331)
Thread 101 (active+gil): "MainThread"
    augment (data/augment.py:88)
    train_step (train.py:41)
    <module> (train.py:90)

Process 102: python train.py
Python v3.11.4 (/usr/bin/python3.11)

Thread 102 (idle): "MainThread"
    sleep (helper.py:3)
"""
TWO = (Rank(0, "node0", "100"), Rank(1, "node1", "101"))


def test_nvidia_smi_tells_clocks_power_temperature_reasons_and_processes() -> None:
    first, second = nvidia_smi.parse(SMI, "smi.txt")
    reasons = ("power cap", "power brake")
    assert first.state == GpuState("smi.txt", 1411.0, 1980.0, 699.52, 700.0, 83.0, reasons)
    assert (first.number, first.pids) == (0, {"101"})
    assert second.state == GpuState("smi.txt", 1980.0, None, 512.0, 700.0, None, ())
    assert (second.number, second.pids) == (1, frozenset())


def test_dcgmi_dmon_tells_the_lowest_clock_of_each_gpu() -> None:
    first, second = dcgm.parse(DMON, "dmon.txt")
    assert first.state == GpuState("dmon.txt", 1410.0, None, 699.8, None, 73.0, ("power cap",))
    assert second.state == GpuState("dmon.txt", 1980.0, None, 641.2, None, 64.0, ())


def test_dcgms_exporter_tells_hosts() -> None:
    of_node0, of_node1 = dcgm.parse(EXPORTER, "metrics.txt")
    assert (of_node0.host, of_node0.state.sm_mhz) == ("node0", 1980.0)
    assert (of_node1.host, of_node1.state.sm_mhz, of_node1.state.temperature_c) == ("node1", 1410.0, 91.0)
    assert of_node1.state.throttled == ("thermal slowdown (hardware)",)


def test_py_spy_tells_where_main_threads_are() -> None:
    assert list(py_spy.parse(PY_SPY, "")) == [
        SeenStack("101", "augment (data/augment.py:88), called by train_step (train.py:41)"),
        SeenStack("102", "sleep (helper.py:3)"),
    ]


@given(st.text(alphabet=st.sampled_from(sorted({*SMI, *DMON, *EXPORTER, *PY_SPY})), max_size=400))
def test_any_text_is_survived(text: str) -> None:
    for parse in (nvidia_smi.parse, dcgm.parse):
        list(parse(f"GPU 00000000:07:00.0\n{text}\n#Entity SMCLK\nGPU 0 {text}", "a"))
    list(py_spy.parse(f'Process 1: a\nThread 1 (idle): "MainThread"\n{text}', ""))


@pytest.mark.parametrize("parse", [nvidia_smi.parse, dcgm.parse])
def test_numbers_that_no_gpu_has_are_survived(parse: object) -> None:
    nines = "9" * 5000
    text = f"GPU 00000000:07:00.0\n    Clocks\n        SM : {nines} MHz\n        Process ID : {nines}\n"
    text += f'#Entity SMCLK CLEVT\nGPU {nines} {nines} 0x{nines}\nDCGM_FI_DEV_SM_CLOCK{{gpu="{nines}"}} {nines}\n'
    text += 'DCGM_FI_DEV_CLOCKS_EVENT_REASONS{gpu="0"} 1e300\nDCGM_FI_DEV_CLOCKS_EVENT_REASONS{gpu="0"} -5\n'
    assert callable(parse)
    list(parse(text, "a"))


# ------------------------------------------------------------------------------------------------ whose they are


def found(folder: Path, *ranks: Rank, **files: str) -> dict[int, RankEvidence]:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        path = folder / (name.replace("__", "/") + ".txt")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return find([folder], ranks, beside([NcclLogs()], [folder], folder)[NcclLogs])


def test_a_process_tells_whose_a_gpu_and_a_stack_are(tmp_path: Path) -> None:
    known = found(tmp_path / "job", *TWO, smi=SMI, spy=PY_SPY)
    assert set(known) == {1}
    assert known[1].gpu and known[1].gpu.throttled
    assert known[1].stack_source == "spy.txt"


def test_processes_of_one_number_on_two_nodes_tell_nothing(tmp_path: Path) -> None:
    assert found(tmp_path / "job", Rank(0, "node0", "101"), Rank(1, "node1", "101"), smi=SMI, spy=PY_SPY) == {}


def test_the_host_in_a_text_tells_whose_a_gpu_is(tmp_path: Path) -> None:
    known = found(tmp_path / "job", *TWO, metrics=EXPORTER)
    assert [known[rank].gpu.sm_mhz for rank in (0, 1)] == [1980.0, 1410.0]  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["node0", "dcgm_node0", "dmon-node0"])
def test_the_node_in_a_files_name_tells_whose_its_gpus_are_in_order(tmp_path: Path, name: str) -> None:
    ranks = [Rank(rank, f"node{rank // 2}", "") for rank in range(4)]
    known = found(tmp_path / "job", *ranks, **{name: DMON})
    assert {rank: one.gpu.sm_mhz for rank, one in known.items() if one.gpu} == {0: 1410.0, 1: 1980.0}


def test_gpus_of_a_node_with_fewer_ranks_may_be_anybodys(tmp_path: Path) -> None:
    assert found(tmp_path / "job", *TWO, node0=DMON) == {}


def test_a_record_says_what_was_measured_and_comes_first(tmp_path: Path) -> None:
    gpu = GpuState("NVML", 1200.0)
    for rank, claimed in ((0, 1), (1, 1)):
        record = CaptureRecord(claimed, 2, "node1", 101, 10, 3, 0, {}, RankEvidence(gpu=gpu))
        (tmp_path / f"rank{rank}.capture").write_bytes(msgspec.json.encode(record))
    known = found(tmp_path, *TWO, smi=SMI, spy=PY_SPY)
    assert set(known) == {1}
    assert known[1].gpu == gpu
    assert known[1].stack


def test_what_is_none_of_these_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "rank0.capture").write_bytes(b'{"rank": "none"}')
    (tmp_path / "rank1.capture").mkdir()
    (tmp_path / "binary.log").write_bytes(b"NVSMI LOG\0\xff\xfe")
    assert found(tmp_path, *TWO, notes="nothing") == {}


# ------------------------------------------------------------------------------------------------ findings

SLOW_GPU = traces.ranks(
    """
    rank# step |1
          gpu  [fwd...][bwd...]
          nccl                 [ar.......]
    """,
    """
    rank# step |1
          gpu  [fwd........][bwd....]
          nccl                       [ar.]
    """,
)
SLOW_HOST = traces.ranks(
    """
    rank# step |1
          host [fwd][bwd]
          gpu  [fwd.][bwd.]
          nccl             [ar.......]
    """,
    """
    rank# step |1
          host [fwd]       [bwd]
          gpu  [fwd.]      [bwd.]
          nccl                   [ar.]
    """,
)


def why(folder: Path, text: str, known: RankEvidence) -> tuple[str | None, str]:
    """Cause and reason of the straggler of a drawn job, with and without what is known of rank 1."""
    traces.write(folder, text)
    (run,) = discover(folder)
    (before,) = [each for each in engine.diagnose(run).diagnosis.findings if each.rule == "straggler"]
    (folder / "rank1.capture").write_bytes(msgspec.json.encode(CaptureRecord(1, 2, "host1", 101, 1, 3, 0, {}, known)))
    (after,) = [each for each in engine.diagnose(run).diagnosis.findings if each.rule == "straggler"]
    assert (before.cause, before.cost_ms) == (after.cause, after.cost_ms)
    start = next(i for i, pair in enumerate(zip(before.why, after.why, strict=False)) if pair[0] != pair[1])
    return after.cause, after.why[start : start + len(after.why) - len(before.why)]


def test_a_throttled_gpu_is_why_a_rank_is_slow(tmp_path: Path) -> None:
    gpu = GpuState("NVML", 1410.0, 1980.0, 699.5, 700.0, 83.0, ("power cap",))
    cause, said = why(tmp_path / "job", SLOW_GPU, RankEvidence(gpu=gpu, stack="step (train.py:1)"))
    assert cause == "slow_device"
    assert said == "By NVML, its GPU is throttled (power cap): 1,410 of 1,980 MHz, 700 of 700 W, 83 °C. "


def test_py_spy_shows_what_a_slow_host_does(tmp_path: Path) -> None:
    known = RankEvidence(gpu=GpuState("NVML", 1410.0), stack="augment (a.py:8)", stack_source="dump.txt")
    cause, said = why(tmp_path / "job", SLOW_HOST, known)
    assert cause == "host"
    assert said == "When py-spy looked (dump.txt), its main thread was in augment (a.py:8). "


def test_the_clock_is_shown_beside_the_other_ranks() -> None:
    known = [RankEvidence(gpu=GpuState("NVML", mhz, 1980.0)) for mhz in (1980.0, 1400.0, 1960.0)]
    assert (
        of_gpu(1, known) == " By NVML, its GPU is not throttled: 1,400 of 1,980 MHz (median of the other ranks: 1,970)."
    )
    assert of_gpu(0, [RankEvidence()]) == ""


def test_workers_are_told_as_what_they_deliver() -> None:
    known = [RankEvidence(loading=Loading(4, 64, 180.0, 250.0))]
    assert of_loading(0, known) == (
        " In its workers a batch takes 180.0 ms (median of 64; at most 250.0 ms): 4 of them deliver one every 45.0 ms."
    )


SNAPSHOT = {"segments": [], "device_traces": []}
NCCL_LINE = "host1:102:1 [0] NCCL INFO Using network Socket\n"


@pytest.mark.parametrize("name", ["nccl.log", "smi.txt", "rank1_memory_snapshot.pickle", "calibration.json"])
def test_a_file_beside_the_traces_that_never_answers_costs_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """As on a dead mount; and of one path one thread waits, however often it is asked for."""
    monkeypatch.setattr(time_limit, "PATIENCE_S", 0.5)
    folder = write(tmp_path / "job", ranks(HEALTHY, HEALTHY))
    for each, text in {"nccl.log": NCCL_LINE, "smi.txt": SMI, "calibration.json": "{}"}.items():
        (folder / each).write_text(text)
    (folder / "rank1_memory_snapshot.pickle").write_bytes(pickle.dumps(SNAPSHOT))
    opened, never = Path.open, threading.Event()

    def hangs(path: Path, *arguments: Any, **more: Any) -> Any:
        if path.name == name:
            never.wait(60)
        return opened(path, *arguments, **more)

    monkeypatch.setattr(Path, "open", hangs)
    waiting = []
    for _ in range(3):
        diagnosis = engine.diagnose(only_run(str(folder))).diagnosis
        assert diagnosis.ranks == (0, 1)
        # A file with a trace's ending is asked as one, too.
        (said,) = {warning.message for warning in diagnosis.warnings if warning.file == str(folder / name)}
        assert said == "Left out: It did not answer within 0.5 s."
        waiting.append(sum(thread.name.startswith("Thread-") for thread in threading.enumerate()))
    assert waiting[0] == waiting[-1]
    never.set()


def test_a_further_text_is_a_module_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(text: str, source: str) -> Iterator[SeenStack]:
        yield SeenStack(text.split()[1], "wait (loop.py:3)")

    monkeypatch.setattr(find_module, "TEXTS", (SimpleNamespace(MARKS=(b"TRACEBACK",), parse=parse),))
    (tmp_path / "py.txt").write_text("TRACEBACK 102 wait")
    (rank,) = find([tmp_path], [Rank(3, "", "102")], [tmp_path / "py.txt"]).items()
    assert rank == (3, RankEvidence(stack="wait (loop.py:3)", stack_source="py.txt"))


class Notes(Beside):
    name = "notes"
    head_bytes = 4
    within = "note"
    depth = 1

    def matches(self, name: str) -> bool:
        return name.endswith(".note")

    def begins(self, head: bytes) -> bool:
        return head == b"NOTE"


def test_a_further_recorder_says_which_files_beside_traces_are_its(tmp_path: Path) -> None:
    of = {"job/rank_0/a.note": "NOTE 1", "job/notes/b.note": "NOTE 2", "c.note": "NOTE 3"}
    others = {"job/d.note": "no", "job/.e.note": "NOTE", "job/other/f.note": "NOTE", "job/notes/deep/g.note": "NOTE"}
    for name, text in {**of, **others}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    run = tmp_path / "job"
    found = beside([Notes(), NcclLogs()], [run / "rank_0"], run)
    assert sorted(found[Notes]) == sorted(tmp_path / name for name in of)
    assert found[NcclLogs] == []
    assert beside([Notes()], [], run, lambda path: path.name != "b.note") == {Notes: [tmp_path / "c.note"]}
