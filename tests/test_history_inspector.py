"""Hours of collectives, in lines as the Inspector of NCCL (and RCCL) writes them."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_history_logs import lines, megatron

import tb_ddp_doctor
from tb_ddp_doctor.cli import main
from tb_ddp_doctor.history.collectives import CollectiveHours, collective_hours, read_collectives
from tb_ddp_doctor.history.logs.inspector import read_inspector
from tb_ddp_doctor.workers import pool

START_US = 1_790_000_000 * 10**6
SIZE = 1 << 27


def line(rank: int, call: int, took_us: float, *, kind: str = "AllReduce", ranks: int = 4) -> str:
    """A line of ext-profiler/inspector in NVIDIA/nccl (inspectorCommInfoDump), format v4.0."""
    busbw = SIZE / took_us / 1000 * 2 * (ranks - 1) / ranks
    made = {"coll": kind, "coll_sn": call, "coll_msg_size_bytes": SIZE, "coll_exec_time_us": round(took_us)}
    return json.dumps({
        "header": {"id": "0x7f8c496ae9f661", "rank": rank, "n_ranks": ranks, "nnodes": 2},
        "metadata": {
            "inspector_output_format_version": "v4.0", "git_rev": "", "rec_mechanism": "nccl_profiler_interface",
            "dump_timestamp_us": START_US + call * 1_000_000, "hostname": f"node{rank // 2}", "pid": rank,
        },
        "coll_perf": {**made, "coll_timing_source": "kernel_gpu", "coll_algobw_gbs": 1.0, "coll_busbw_gbs": busbw},
    })  # fmt: skip


def written(folder: Path, calls: int = 1000, *, late: int | None = None, slow_from: int | None = None) -> Path:
    """The files of 4 ranks: calls take 1 ms, 1.25 ms from `slow_from` on; rank `late` arrives 2 ms after the others."""
    noise = random.Random(0)
    took_us = [
        (1250 if slow_from is not None and call >= slow_from else 1000) * noise.gauss(1, 0.01) for call in range(calls)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(4):
        waits = [0.0 if rank == late else 2000.0 if late is not None else noise.uniform(0, 20) for _ in range(calls)]
        text = "\n".join(line(rank, call, took_us[call] + waits[call]) for call in range(calls))
        (folder / f"node{rank // 2}-pid{100 + rank}.log").write_text(text + "\n")
    return folder


def hours(folder: Path) -> CollectiveHours:
    found = read_inspector(folder)
    assert found is not None
    return collective_hours(found)


def test_bandwidth_is_that_of_the_rank_that_waits_for_nobody(tmp_path: Path) -> None:
    found = hours(written(tmp_path / "nccl-inspector-42", late=2))
    (kind,) = found.kinds
    assert (kind.collective, kind.size, kind.ranks, kind.nodes, kind.calls) == ("AllReduce", SIZE, 4, 2, 1000)
    # 128 MiB in 1 ms, 2 * 3 / 4 of it on each link.
    assert kind.busbw_gbs == pytest.approx(SIZE / 1e-3 / 1e9 * 1.5, rel=0.01)
    assert kind.transfer_s == pytest.approx(1.0, rel=0.01)
    assert (found.calls, found.groups, found.changes) == (1000, 1, ())


def test_the_rank_that_arrives_last_is_named(tmp_path: Path) -> None:
    (late,) = hours(written(tmp_path, late=2)).late_ranks
    assert (late.rank, late.host, late.late_share, late.compared) == (2, "node1", 1.0, 1000)
    assert late.wait_ms == pytest.approx(2.0, rel=0.01)
    assert hours(written(tmp_path / "even")).late_ranks == ()


def test_a_change_of_bandwidth_has_its_time_and_cost(tmp_path: Path) -> None:
    (change,) = hours(written(tmp_path, slow_from=600)).changes
    assert change.at_s == pytest.approx(START_US / 1e6 + 600, abs=10)
    assert change.after_gbs / change.before_gbs == pytest.approx(0.8, abs=0.01)
    assert change.cost_s == pytest.approx(400 * 0.25e-3, rel=0.05)
    assert change.hosts == ("node0", "node1")


def test_calls_that_not_all_ranks_have_name_no_late_rank(tmp_path: Path) -> None:
    folder = written(tmp_path, late=2)
    next(folder.glob("*pid103.log")).unlink()
    found = hours(folder)
    assert found.late_ranks == () and found.calls == 1000


def test_other_lines_are_passed_over_and_torn_ones_counted(tmp_path: Path) -> None:
    p2p = '{"header": {}, "metadata": {}, "p2p_perf": {"p2p": "Send"}}\n'
    text = f"{line(0, 1, 1000)}\n{p2p}{line(0, 2, 1000)[:80]}\n{line(0, 3, 1000)}\n{line(9, 4, 1000)}\n"
    (tmp_path / "node0-pid1.log").write_text(text)
    (tmp_path / "node0-pid2.log").write_text("NCCL INFO\n" * 100)
    found = hours(tmp_path)
    assert (found.calls, found.lost_lines) == (2, 2)


def test_files_are_read_in_a_process_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a file makes of the reader ends that process, and is a sentence."""
    written(tmp_path, 20)
    assert read_collectives(tmp_path) == (hours(tmp_path), [])
    asked = []

    def ends(*called: object, **_: object) -> None:
        asked.append(called[1])
        raise pool.CrashError("It takes more than 5 s.")

    monkeypatch.setattr(pool, "call", ends)
    found, (problem,) = read_collectives(tmp_path)
    assert found is None and asked == [tmp_path] and problem.endswith("are left out: It takes more than 5 s.")


def test_a_folder_without_the_inspectors_files_has_none(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(line(0, 1, 1000))
    assert read_inspector(tmp_path) is None and read_collectives(tmp_path) == (None, [])


def test_the_command_says_it_beside_step_times_or_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path / "inspector", late=2, slow_from=600)
    assert main(["history", str(tmp_path), "--fail-on", "1"]) == 0
    first, change, late = capsys.readouterr().out.splitlines()
    assert first.startswith(
        "Collectives, by the Inspector: 1,000 calls in 1 group. AllReduce of 134 MB in 4 ranks on 2 nodes: "
    )
    assert re.search(r"\(node0 and node1\): busbw 20 % lower since .* GB/s since, 10\d\.\d ms in all\.$", change)
    assert (
        late
        == "Rank 2 of a group of 4 on node1 arrives last in 100 % of 1,000 collectives; the first then waits 2.0 ms."
    )
    assert main(["history", str(tmp_path), "--openmetrics"]) == 0
    assert (
        'ddp_doctor_busbw_bytes_per_second{collective="AllReduce",bytes="134217728",ranks="4"'
        in capsys.readouterr().out
    )
    assert main(["history", str(tmp_path), "--markdown"]) == 0
    assert "\n- Collectives, by the Inspector: " in capsys.readouterr().out
    assert main(["history", str(tmp_path), "--webhook"]) == 0
    assert "arrives last" in json.loads(capsys.readouterr().out)["text"]
    (tmp_path / "train.log").write_text(lines(megatron))
    assert main(["history", str(tmp_path), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["summary"]["logged_by"]["program"] == "Megatron-LM"
    assert answer["collectives"]["late_ranks"][0]["rank"] == 2
    found = tb_ddp_doctor.hours(tmp_path).collectives
    assert found is not None and found.late_ranks[0].rank == 2


@settings(max_examples=60, deadline=None)
@given(written_lines=st.lists(st.binary(max_size=80) | st.builds(
    lambda rank, call, took, cut: line(rank, call, took)[:cut].encode(),
    st.integers(-1, 5), st.integers(-1, 2**70), st.floats(1, 1e18), st.integers(0, 500),
), max_size=30))  # fmt: skip
def test_any_lines_are_read_without_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, written_lines: list[bytes]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    (folder / "a-pid1.jsonl").write_bytes(b"\n".join(written_lines))
    found = read_inspector(folder)
    if found is not None:
        with np.errstate(all="raise"):
            collective_hours(found)
