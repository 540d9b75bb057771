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
from tb_ddp_doctor.history.logs.inspector import inspector_files, read_inspector
from tb_ddp_doctor.workers import pool

START_US = 1_790_000_000 * 10**6
SIZE = 1 << 27
#: Of a transfer.
SENT = 1 << 23


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


def transfer(rank: int, peer: int, call: int, took_us: float, *, kind: str, ranks: int = 4) -> str:
    """A line of one end of a transfer (inspectorCompletedP2p), format v4.4."""
    made = {"p2p": kind, "p2p_sn": call, "p2p_peer": peer, "p2p_msg_size_bytes": SENT}
    bandwidth = SENT / took_us / 1000
    return json.dumps({
        "header": {"id": "0x51", "comm_name": "pp", "rank": rank, "n_ranks": ranks, "nnodes": 2},
        "metadata": {
            "inspector_output_format_version": "v4.4", "git_rev": "", "rec_mechanism": "nccl_profiler_interface",
            "dump_timestamp_us": START_US + call * 500_000, "hostname": f"node{rank // 2}", "pid": rank,
        },
        "p2p_perf": {
            **made, "p2p_exec_time_us": round(took_us), "p2p_timing_source": "kernel_gpu",
            "p2p_algobw_gbs": bandwidth, "p2p_busbw_gbs": bandwidth,
        },
    })  # fmt: skip


def pipelined(folder: Path, calls: int = 800, *, slow_from: int | None = None, wait_us: float = 3000) -> Path:
    """Ranks 0 to 3 send 8 MiB to the next in 0.4 ms; who receives is there `wait_us` before who sends.

    From transfer `slow_from` on those from rank 1 to 2, the only ones between nodes, take 0.8 ms.
    """
    noise = random.Random(1)
    of_rank: dict[int, list[str]] = {rank: [] for rank in range(4)}
    for call in range(calls):
        for sender in range(3):
            is_slow = sender == 1 and slow_from is not None and call >= slow_from
            took_us = (800 if is_slow else 400) * noise.gauss(1, 0.01)
            # Receives and sends of a rank are counted together: rank 1 receives number 2 * call, and sends the next.
            of_rank[sender].append(transfer(sender, sender + 1, 2 * call + 1, took_us, kind="Send"))
            of_rank[sender + 1].append(transfer(sender + 1, sender, 2 * call, took_us + wait_us, kind="Recv"))
    folder.mkdir(parents=True, exist_ok=True)
    for rank, written_lines in of_rank.items():
        (folder / f"node{rank // 2}-pid{100 + rank}.log").write_text("\n".join(written_lines) + "\n")
    return folder


def hours(folder: Path) -> CollectiveHours:
    found = read_inspector(inspector_files(folder))
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
    proxy = json.dumps({**json.loads(line(0, 1, 1000)), "coll_perf": None, "proxy_op": {"total_us": 5}}) + "\n"
    text = f"{20 * proxy}{line(0, 1, 1000)}\n{line(0, 2, 1000)[:80]}\n{line(0, 3, 1000)}\n{line(9, 4, 1000)}\n"
    (tmp_path / "node0-pid1.log").write_text(text)
    (tmp_path / "node0-pid2.log").write_text("NCCL INFO\n" * 100)
    found = hours(tmp_path)
    assert (found.calls, found.lost_lines) == (2, 2)


def test_a_transfer_is_the_send_and_the_receive_of_it(tmp_path: Path) -> None:
    """Its bandwidth is that of the end that waits for nobody, and the other end's longer time is waiting."""
    found = hours(pipelined(tmp_path))
    assert (found.calls, found.groups, found.transfers) == (0, 0, 3 * 800)
    of_ranks = {(peer.sender, peer.receiver): peer for peer in found.peers}
    assert set(of_ranks) == {(0, 1), (1, 2), (2, 3)}
    for peer in found.peers:
        # 8 MiB in 0.4 ms.
        assert peer.busbw_gbs == pytest.approx(SENT / 0.4e-3 / 1e9, rel=0.01)
        assert (peer.transfers, peer.size, peer.ranks, peer.sender_last_share) == (800, SENT, 4, 1.0)
        assert peer.wait_ms == pytest.approx(3.0, rel=0.01)
        assert peer.transfer_s == pytest.approx(800 * 0.4e-3, rel=0.01)
    assert (of_ranks[1, 2].sender_host, of_ranks[1, 2].receiver_host) == ("node0", "node1")
    # Within a node and between nodes. A stage that waits for the one before it is no late rank.
    assert sorted((kind.collective, kind.ranks, kind.nodes, kind.calls) for kind in found.kinds) == [
        ("Send/Recv", 2, 1, 1600),
        ("Send/Recv", 2, 2, 800),
    ]
    assert found.late_ranks == () and found.changes == ()


def test_transfers_that_become_slower_name_the_link(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (change,) = hours(pipelined(tmp_path, slow_from=500)).changes
    assert (change.collective, change.sender, change.receiver, change.hosts) == ("Send/Recv", 1, 2, ("node0", "node1"))
    assert change.at_s == pytest.approx(START_US / 1e6 + 500, abs=10)
    assert change.after_gbs / change.before_gbs == pytest.approx(0.5, abs=0.01)
    assert change.cost_s == pytest.approx(300 * 0.4e-3, rel=0.05)
    assert main(["history", str(tmp_path)]) == 0
    said, slower = capsys.readouterr().out.splitlines()
    assert said.startswith(
        "Collectives, by the Inspector: 2,400 transfers between two ranks. Send/Recv of 8.4 MB in 2 "
    )
    assert slower.startswith("Send/Recv of 8.4 MB from rank 1 to 2 (node0 and node1): busbw 50 % lower since ")


def test_transfers_of_which_an_end_was_lost_are_counted_once(tmp_path: Path) -> None:
    """Without as many receives as sends nobody knows which belong together: the sends stand for the transfers."""
    pipelined(tmp_path)
    receiver = tmp_path / "node1-pid102.log"
    kept = [text for text in receiver.read_text().splitlines() if '"p2p_sn": 40,' not in text]
    receiver.write_text("\n".join(kept) + "\n")
    (tmp_path / "node0-pid100.log").unlink()
    of_ranks = {(peer.sender, peer.receiver): peer for peer in hours(tmp_path).peers}
    one_end = of_ranks[1, 2]
    assert (one_end.transfers, one_end.wait_ms, one_end.sender_last_share) == (800, None, None)
    # Of rank 0 there is no file: what its neighbour receives is left, with its waiting.
    assert of_ranks[0, 1].transfers == 800 and of_ranks[0, 1].sender_host == ""
    assert of_ranks[2, 3].wait_ms == pytest.approx(3.0, rel=0.01)


def test_groups_have_their_bandwidth_and_waits_over_time(tmp_path: Path) -> None:
    written(tmp_path / "dp", late=2, slow_from=500)
    found = hours(pipelined(tmp_path / "pp", calls=1000).parent)
    assert [one.transfer_s for one in found.over_time] == sorted(
        (one.transfer_s for one in found.over_time), reverse=True
    )
    (reduced,) = (one for one in found.over_time if one.collective == "AllReduce")
    bins = len(found.edges_s) - 1
    assert {len(reduced.busbw_gbs), len(reduced.low_gbs), len(reduced.wait_ms)} == {bins}
    whole = SIZE / 1e-3 / 1e9 * 1.5
    assert reduced.busbw_gbs[bins // 4] == pytest.approx(whole, rel=0.02)
    assert reduced.busbw_gbs[3 * bins // 4] == pytest.approx(0.8 * whole, rel=0.02)
    assert reduced.wait_ms[bins // 4] == pytest.approx(2.0, rel=0.02)
    assert (reduced.hosts, reduced.ranks, reduced.nodes, reduced.calls) == (("node0", "node1"), 4, 2, 1000)
    assert {(one.sender, one.receiver) for one in found.over_time} == {(None, None), (0, 1), (1, 2), (2, 3)}


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
    assert (
        found is None
        and asked == [tuple(inspector_files(tmp_path))]
        and problem.endswith("are left out: It takes more than 5 s.")
    )


def test_a_folder_without_the_inspectors_files_has_none(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(line(0, 1, 1000))
    assert read_inspector(inspector_files(tmp_path)) is None and read_collectives(tmp_path) == (None, [])


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
) | st.builds(
    lambda rank, peer, call, took, kind: transfer(rank, peer, call, took, kind=kind).encode(),
    st.integers(-1, 5), st.integers(-1, 5), st.integers(-1, 2**70), st.floats(1, 1e18),
    st.sampled_from(["Send", "Recv"]),
), max_size=30))  # fmt: skip
def test_any_lines_are_read_without_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, written_lines: list[bytes]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    (folder / "a-pid1.jsonl").write_bytes(b"\n".join(written_lines))
    found = read_inspector(inspector_files(folder))
    if found is not None:
        with np.errstate(all="raise"):
            collective_hours(found)
