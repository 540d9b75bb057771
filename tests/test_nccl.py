"""NCCL's own logs: where they are found, and what is read of them."""

from __future__ import annotations

import os
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from traces import ranks, write

from tb_ddp_doctor import engine, wording
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.digest.numbered_calls import numbered_calls
from tb_ddp_doctor.discover.recorders.nccl_logs import NcclLogs
from tb_ddp_doctor.discover.runs import discover
from tb_ddp_doctor.discover.walk import beside
from tb_ddp_doctor.findings import Diagnosis, NcclCalls, NcclChoice, Network
from tb_ddp_doctor.nccl_logs import lines
from tb_ddp_doctor.nccl_logs import read as reading
from tb_ddp_doctor.nccl_logs.matching import NumberedCalls
from tb_ddp_doctor.nccl_logs.read import read_logs
from tb_ddp_doctor.storage import native_library

REPOSITORY = Path(__file__).parents[1]
BOUND = """
    rank# step     |1
          host     [fwd]
          autograd      [bwd][ar]
          gpu      [fwd..][bwd..]
          nccl                [ar..........................]
"""
#: 2.28, over sockets; `PID` and `RANK` stand for a process.
SOCKETS = """\
vm:PID:PID [0] NCCL INFO NCCL version 2.28.9+cuda13.0
vm:PID:PID [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so
vm:PID:PID [0] NCCL INFO Failed to initialize NET plugin IB
vm:PID:PID [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0> [1]eth1:10.1.0.1<0>
vm:PID:PID [0] NCCL INFO Using network Socket
vm:PID:PID [0] NCCL INFO comm 0x459b93d0 rank RANK nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0
vm:PID:PID [0] NCCL INFO Channel 00/02 : 0 1
vm:PID:PID [0] NCCL INFO 2 coll channels, 2 collnet channels, 0 nvls channels, 2 p2p channels, 2 p2p channels per peer
vm:PID:PID [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0
vm:PID:PID [0] NCCL INFO Channel 01/0 : 0[0] -> 1[0] [send] via NET/Socket/1
"""


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    """A folder with nothing of other tests one above."""
    folder = tmp_path / "above" / "logs"
    folder.mkdir(parents=True)
    return folder


def find_logs(folders: list[Path], run: Path) -> list[Path]:
    return beside([NcclLogs()], folders, run)[NcclLogs]


def log(text: str, rank: int, pid: int) -> str:
    return text.replace("PID", str(pid)).replace("RANK", str(rank))


def read(tmp_path: Path, text: str, *, world_size: int = 2, pids: tuple[str, ...] = ("7",)) -> Network | None:
    (tmp_path / "nccl.log").write_text(text)
    return read_logs(find_logs([tmp_path], tmp_path), pids, world_size)


def seen(tmp_path: Path, *lines: str, **options: int) -> Network:
    """What is read of lines of one process."""
    text = "".join(f"node1:7:9 [0] NCCL INFO {line}\n" for line in ("NCCL version 2.27.3+cuda12.9", *lines))
    found = read(tmp_path, text, **options)
    assert found
    return found


def diagnose(folder: Path) -> Diagnosis:
    (run,) = discover(folder)
    return engine.diagnose(run, reading=engine.Reading(cache=Cache(None))).diagnosis


def test_a_log_says_what_its_ranks_use(tmp_path: Path) -> None:
    text = log(SOCKETS, 0, 7) + log(SOCKETS, 1, 8)
    assert read(tmp_path, text, pids=("7", "8")) == Network(
        version="2.28.9+cuda13.0",
        transports={"NET/Socket": (0, 1)},
        channels=2,
        ring=(0, 1),
        interfaces=("eth0", "eth1"),
        unavailable=("IB",),
        settings={},
        warnings=(),
        lines=20,
    )


@pytest.mark.parametrize(
    ("line", "transport"),
    [
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read", "P2P"),
        ("Channel 00/0 : 0[d6000] -> 2[de000] via P2P/IPC comm 0x9bbf3b0 nRanks 4096", "P2P"),
        ("Channel 15/0 : 2[2] -> 1[1] via P2P/direct pointer", "P2P"),
        ("Channel 02 : 3[3] -> 0[0] via SHM/direct/direct", "SHM"),
        ("Channel 00 : 0[1e0] -> 1[1e0] [receive] via NET/Socket/0", "NET/Socket"),
        ("Channel 05/0 : 6[6] -> 13[5] [send] via NET/IB/6/GDRDMA", "NET/IB/GDRDMA"),
        ("Channel 05/0 : 6[6] -> 13[5] [send] via NET/IB/6(3)/GDRDMA(PCI)/Shared", "NET/IB/GDRDMA"),
        ("Channel 00/0 : 1[0] -> 2[0] [receive] via NET/IBext_v8/1", "NET/IBext_v8"),
        ("Channel 01/1 : 7[3] -> 3[3] [receive] via NET/AWS Libfabric/1/GDRDMA/Shared", "NET/AWS Libfabric/GDRDMA"),
        ("Ring 00 : 0 -> 1 [send] via NET/Socket/0", "NET/Socket"),
    ],
)
def test_transports_of_all_versions_are_known(tmp_path: Path, line: str, transport: str) -> None:
    assert list(seen(tmp_path, line).transports) == [transport]


def test_ranks_are_those_of_the_communicator_of_all_ranks(tmp_path: Path) -> None:
    found = seen(
        tmp_path,
        "comm 0x1 rank 5 nranks 8 cudaDev 5 nvmlDev 5 busId 1 commId 0x2 - Init COMPLETE",
        "ncclCommSplit comm 0x3 rank 1 nranks 4 cudaDev 5 nvmlDev 5 busId 1 - Init COMPLETE",
        "Channel 00/0 : 1[5] -> 2[6] via P2P/CUMEM",
        world_size=8,
    )
    assert found.transports == {"P2P": (5,)}


@pytest.mark.parametrize(
    ("line", "settings"),
    [
        ("NCCL_IB_DISABLE set by environment to 1.", {"NCCL_IB_DISABLE": "1"}),
        ("NCCL_SOCKET_IFNAME set to eth0", {"NCCL_SOCKET_IFNAME": "eth0"}),
    ],
)
def test_settings_are_kept(tmp_path: Path, line: str, settings: dict[str, str]) -> None:
    assert seen(tmp_path, line).settings == settings


@pytest.mark.parametrize(
    ("prefix", "kind"),
    [
        ("[1,3]<stdout>:", "mpirun"),
        ("[2026-04-28 14:14:48] ", "a time stamp"),
        ("\x1b[36m(Worker pid=1)\x1b[0m ", "Ray"),
    ],
)
def test_what_a_launcher_writes_before_a_line_is_passed_over(tmp_path: Path, prefix: str, kind: str) -> None:
    found = read(tmp_path, "".join(prefix + line + "\n" for line in log(SOCKETS, 0, 7).splitlines()))
    assert found and found.transports == {"NET/Socket": (0,)}, kind


def test_warnings_are_kept_once_and_short(tmp_path: Path) -> None:
    line = "node1:7:9 [0] misc/socket.cc:50 NCCL WARN Call to connect\x1b[31m failed " + "x" * 500 + "\n"
    found = read(tmp_path, log(SOCKETS, 0, 7) + 3 * line)
    assert found and len(found.warnings) == 1
    assert found.warnings[0].startswith("Call to connect\N{REPLACEMENT CHARACTER}[31m failed x")
    assert len(found.warnings[0]) <= 200


def test_other_jobs_are_passed_over(tmp_path: Path) -> None:
    assert read(tmp_path, log(SOCKETS, 0, 8)) is None
    found = read(tmp_path, log(SOCKETS, 0, 8).replace("NET/Socket/", "NET/IB/") + log(SOCKETS, 0, 7))
    assert found and list(found.transports) == ["NET/Socket"]


@pytest.mark.parametrize(
    "place",
    [
        "job/nccl.vm.7.log",
        "job/nccl.vm.7",
        "job/train.out",
        "job/nccl_logs/vm_7.txt",
        "nccl_logs/nccl_vm_7.txt",
        "nccl.vm.7.log",
    ],
)
def test_logs_are_found_beside_the_traces_and_one_above(tmp_path: Path, place: str) -> None:
    path = tmp_path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("epoch 1\n" + log(SOCKETS, 0, 7))
    (tmp_path / "job").mkdir(exist_ok=True)
    assert find_logs([tmp_path / "job"], tmp_path / "job") == [path]
    assert read_logs([path], {"7"}, 2)


def test_logs_in_the_folders_of_ranks_are_found(tmp_path: Path) -> None:
    folders = [tmp_path / "job" / f"rank_{rank}" for rank in range(2)]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "nccl.log").touch()
    assert len(find_logs(folders, tmp_path / "job")) == 2


@pytest.mark.parametrize(
    "name", ["trace.json", "nccl.json", "libnccl.so", "nccl_topo.xml", ".nccl.log", "model.bin", "nccl.trace.json.gz"]
)
def test_other_files_are_not_opened(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(log(SOCKETS, 0, 7))
    assert find_logs([tmp_path], tmp_path) == []


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "nccl.log")
    assert find_logs([tmp_path], tmp_path) == []


def test_a_large_file_is_read_to_its_end(tmp_path: Path) -> None:
    late = "node1:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
    found = read(tmp_path, log(SOCKETS, 0, 7) + "x" * 9_000_000 + "\n" + late)
    assert found and list(found.transports) == ["NET/Socket", "P2P"]


CALL = (
    "AllReduce: opCount {:x} sendbuff 0x7f recvbuff 0x7f count 1024 datatype {} op 0 root 0 comm 0x5 [nranks=4] "
    "stream 0x6"
)


@pytest.mark.parametrize("among", [0, 3])
def test_each_call_is_counted(tmp_path: Path, among: int) -> None:
    lines = [CALL.format(number, 7) for number in range(5)] + [CALL.format(6, 9)] + ["Using network Socket"] * among
    found = seen(tmp_path, *lines)
    assert found.calls == (NcclCalls("all_reduce", 4096, 5), NcclCalls("all_reduce", 2048, 1))
    assert found.lines == 7 + among
    others = "".join(f"node1:8:9 [0] NCCL INFO {line}\n" for line in lines)
    mine = "".join(f"[2026-05-22 10:00:00] node1:7:9 [0] NCCL INFO {line}\n" for line in lines)
    mixed = read(tmp_path, others + mine)
    assert mixed and mixed.calls == found.calls


@pytest.mark.parametrize(
    ("line", "choice"),
    [
        ("AllGather: 37756928 Bytes -> Algo 1 proto 2 time 2860.2", ("all_gather", 37756928, "ring", "Simple", 0)),
        ("4096 Bytes -> Algo 0 proto 0 time 6.8", ("", 4096, "tree", "LL", 0)),
        (
            "AllReduce: 65536 Bytes -> Algo TREE proto LL128 channel{Lo..Hi}={0..1}",
            ("all_reduce", 65536, "tree", "LL128", 2),
        ),
        (
            "ReduceScatter: 8 Bytes -> Algo NVLS_TREE proto Simple channel{Lo..Hi}={0..15}",
            ("reduce_scatter", 8, "NVLS tree", "Simple", 16),
        ),
    ],
)
def test_what_nccl_chose_is_read(tmp_path: Path, line: str, choice: tuple[str, int, str, str, int]) -> None:
    assert seen(tmp_path, line, line).choices == (NcclChoice(*choice, 2),)


def test_the_tree_of_the_job_is_read(tmp_path: Path) -> None:
    trees = ("1/-1/-1->0->-1", "2/3/-1->1->0", "-1/-1/-1->2->1", "-1/-1/-1->3->1")
    text = "".join(
        f"vm:{rank}:1 [0] NCCL INFO comm 0x1 rank {rank} nranks 4 cudaDev 0\n"
        f"vm:{rank}:1 [0] NCCL INFO Trees [0] {tree} [1] -1/-1/-1->{rank}->-1\n"
        for rank, tree in enumerate(trees)
    )
    found = read(tmp_path, "vm:0:1 [0] NCCL INFO NCCL version 2.27\n" + text, world_size=4, pids=("0", "1", "2", "3"))
    assert found and found.tree == (-1, 0, 1, 1)


def test_a_warning_has_its_time(tmp_path: Path) -> None:
    line = "[2026-05-22 10:11:12] node1:7:9 [0] misc/socket.cc:50 NCCL WARN Call to connect failed\n"
    found = read(tmp_path, log(SOCKETS, 0, 7) + line)
    assert found and found.warnings == ("2026-05-22 10:11:12 Call to connect failed",)


def test_a_large_file_without_a_line_of_nccl_is_left_after_a_look(tmp_path: Path) -> None:
    assert read(tmp_path, "x" * 100_000 + "\n" + log(SOCKETS, 0, 7)) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0NCCL INFO",
        b"NCCL INFO " * 10_000,
        b"vm:7:7 [0] NCCL INFO Channel 00/0 : " + b"9" * 5_000,
        b"vm:7:7 [0] NCCL INFO comm 0x1 rank 9 nranks 2\nvm:7:7 [0] NCCL INFO Channel 0/0 : 0 -> 1 via \xff\xfe/\n",
        b"vm:7:7 [0] NCCL INFO Channel 00/02 : " + b"0 " * 5_000 + b"\n",
        b"NCCL " + b"]" * 60_000,
        b"NCCL " + b"a:" * 30_000,
        b"vm:7:7 [0] NCCL INFO NCCL version\n",
    ],
)
def test_nonsense_does_no_harm(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "nccl.log").write_bytes(data)
    found = read_logs([tmp_path / "nccl.log"], {"7"}, 2)
    assert found is None or found.ring == ()


def test_a_file_that_is_gone_is_passed_over(tmp_path: Path) -> None:
    assert read_logs([tmp_path / "gone.log"], {"7"}, 2) is None


def test_a_finding_of_communication_says_what_nccl_uses(tmp_path: Path) -> None:
    folder = write(tmp_path / "job", ranks(BOUND, BOUND))
    for rank in range(2):
        (folder / f"nccl.vm.{100 + rank}.log").write_text(log(SOCKETS, rank, 100 + rank))
    diagnosis = diagnose(folder)
    assert diagnosis.network and diagnosis.network.transports == {"NET/Socket": (0, 1)}
    (found,) = [finding for finding in diagnosis.findings if finding.rule == "communication-bound"]
    assert "NCCL fell back to sockets over eth0 and eth1, in 2 channels: it could not use IB." in found.why
    assert found.fix.startswith("First give NCCL a faster transport than sockets")


def test_a_finding_of_communication_says_what_nccl_chose(tmp_path: Path) -> None:
    folder = write(tmp_path / "job", ranks(BOUND, BOUND))
    chosen = "vm:100:1 [0] NCCL INFO AllReduce: 65536 Bytes -> Algo TREE proto LL128 channel{Lo..Hi}={0..1}\n"
    (folder / "nccl.vm.100.log").write_text(log(SOCKETS, 0, 100).replace("2 coll", "16 coll") + chosen)
    (found,) = [finding for finding in diagnose(folder).findings if finding.rule == "communication-bound"]
    assert "For all_reduce NCCL chose tree, LL128, 2 of 16 channels." in found.why


@pytest.mark.parametrize(
    ("size", "chosen", "settings", "said"),
    [
        (64 << 20, "RING proto LL channel{Lo..Hi}={0..15}", "", "for messages of this size Simple is faster. "),
        (
            64 << 20,
            "RING proto 0 channel{Lo..Hi}={0..15}",
            "NCCL_PROTO set by environment to LL.",
            "Simple is faster; NCCL_PROTO=LL is set: unset it. ",
        ),
        (
            64 << 20,
            "RING proto SIMPLE channel{Lo..Hi}={0..1}",
            "NCCL_MAX_NCHANNELS set by environment to 2.",
            "fill all 16 channels: with 2, fewer of the GPU's blocks and links carry them; NCCL_MAX_NCHANNELS=2 is set",
        ),
        (64 << 20, "RING proto SIMPLE channel{Lo..Hi}={0..15}", "", ""),
        (64 << 10, "RING proto LL channel{Lo..Hi}={0..1}", "", ""),
        (64 << 20, "NVLS proto SIMPLE channel{Lo..Hi}={0..7}", "", ""),
    ],
    ids=["LL", "LL that is set", "channels", "usual", "small", "in the switch"],
)
def test_a_choice_that_makes_large_messages_slow_is_explained(
    tmp_path: Path, size: int, chosen: str, settings: str, said: str
) -> None:
    folder = write(tmp_path / "job", ranks(BOUND, BOUND))
    lines = [f"AllReduce: {size} Bytes -> Algo {chosen}", *([settings] if settings else [])]
    text = "".join(f"vm:100:1 [0] NCCL INFO {line}\n" for line in lines)
    (folder / "nccl.vm.100.log").write_text(log(SOCKETS, 0, 100).replace("2 coll", "16 coll") + text)
    (found,) = [finding for finding in diagnose(folder).findings if finding.rule == "communication-bound"]
    assert said in found.why
    assert ("Simple is faster" in found.why, "fill all" in found.why) == ("Simple" in said, "fill all" in said)


def test_without_logs_nothing_is_said(tmp_path: Path) -> None:
    diagnosis = diagnose(write(tmp_path / "job", ranks(BOUND, BOUND)))
    assert diagnosis.network is None
    (found,) = [finding for finding in diagnosis.findings if finding.rule == "communication-bound"]
    assert "By its log" not in found.why and "sockets" not in found.fix


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (["NCCL_IB_DISABLE set by environment to 1."], "NCCL uses sockets, since NCCL_IB_DISABLE is set"),
        (["NCCL_IB_DISABLE set by environment to 0."], "NCCL fell back to sockets"),
        (["NET/IB : No device found."], "NCCL fell back to sockets: it could not use IB"),
    ],
)
def test_it_is_said_why_sockets_are_used(tmp_path: Path, lines: list[str], sentence: str) -> None:
    found = seen(tmp_path, *lines, "Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0")
    assert wording.network(found) == f"By its log, {sentence}. "


def test_what_is_no_fault_is_said_too(tmp_path: Path) -> None:
    found = seen(
        tmp_path,
        "NET/IB : Using [0]mlx5_0:1/IB/SHARP [RO]; OOB eth0:10.0.0.1<0>",
        "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
        "Channel 00/0 : 1[1] -> 8[0] [send] via NET/IB/0/GDRDMA",
    )
    assert wording.network(found) == "By its log, NCCL uses NET/IB/GDRDMA and P2P over mlx5_0. "


def test_real_logs_belong_to_the_processes_of_their_job() -> None:
    found = diagnose(REPOSITORY / "demo_logs" / "healthy").network
    assert found and found.transports == {"NET/Socket": (0, 1, 2, 3)}
    assert (found.version, found.channels, found.ring) == ("2.28.9+cuda13.0", 2, (0, 1, 2, 3))
    assert (found.unavailable, found.settings["NCCL_IB_DISABLE"]) == (("IB",), "1")


def test_a_slow_link_says_what_its_ranks_alone_use(tmp_path: Path) -> None:
    texts = []
    for group, (length, rest) in enumerate([(10, 15), (10, 15), (25, 0)]):
        block = f"[ar/g{group}@8".ljust(length - 1, ".") + "]"
        texts += 2 * [f"rank# step |1\n gpu [fwd]\n nccl      {block}[ar{'.' * rest}]\n"]
    folder = write(tmp_path / "job", ranks(*texts))
    for rank in range(6):
        via = "SHM/direct/direct" if rank > 3 else "P2P/CUMEM"
        line = f"vm:{100 + rank}:1 [0] NCCL INFO "
        said = (f"comm 0x1 rank {rank} nranks 6 cudaDev 0", f"Channel 00/0 : {rank}[0] -> 1[0] via {via}")
        (folder / f"nccl.{rank}.log").write_text("".join(f"{line}{what}\n" for what in said))
    (found,) = [finding for finding in diagnose(folder).findings if finding.rule == "slow-link"]
    assert "By NCCL's log only they use SHM." in found.why


STEPS = "".join(f"vm:7:9 [0] NCCL INFO {CALL.format(number, 7)}\r\n" for number in range(20, 23))


@pytest.mark.parametrize(
    "text",
    [
        log(SOCKETS, 0, 7),
        STEPS,
        "\x1b[36m(Worker pid=1)\x1b[0m " + STEPS + "epoch 1\n\nvm:7:9 [0] NCCL INFO AllReduce: opCount x count\n",
        "vm:7:9 [0] NCCL INFO AllReduce: 8 Bytes -> Algo 1 proto 2 time 3\nvm:7:9 [0] NCCL INFO 8 Bytes -> Algo 1",
        "".join(f"[2026-05-22 10:11:{second}] vm:7:9 [0] a.cc:5 NCCL WARN late\n" for second in (12, 13)),
        "NCCL INFO \nNCCL WARN \nNCCL\nNCCL INFORM x\n" + "x" * 2000 + " NCCL INFO late\n",
        "vm:7:9 [0] NCCL INFO Send: opCount 1 sendbuff 0x1 recvbuff (nil) acc (nil) count 8 datatype 7 op 0 comm 0x5\n",
    ],
)
def test_the_native_reader_finds_what_python_finds(text: str) -> None:
    finds_the_same(text.encode())


#: Words of lines, in any order: what separates them, how far a line is read, and how many of its words count.
WORDS = (
    b"NCCL", b"INFO", b"WARN", b"opCount", b"count", b"datatype", b"comm", b"Bytes", b"via", b"AllReduce:", b"vm:7:9",
    b"[0]", b"0x5", b"0x", b"1f", b"FF", b"-1", b"0xffffffffffffffffff", b"(nil)", b"\xff", b"x" * 980, b"w " * 46,
    b"NCCL INFO", b"vm:7:9 [0] NCCL INFO", b"vm:7:9 [0] a.cc:5 NCCL WARN", b"AllReduce: opCount 1f sendbuff 0x1",
    b"count 8 datatype 7", b"comm 0x5 [nranks=2]",
)  # fmt: skip
SPACES = (b" ", b" ", b"  ", b"\t", b"\r", b"\x1b", b"\0", b"\x1f", b"\n", b"\n", b"\n\n", b"")


@given(st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(SPACES)), max_size=60))
def test_the_native_reader_finds_what_python_finds_in_any_text(words: list[tuple[bytes, bytes]]) -> None:
    finds_the_same(b"".join(chain.from_iterable(words)))


def finds_the_same(text: bytes) -> None:
    if native_library.load() is None:
        pytest.skip("there was no C compiler: the library was not built")
    native, python = lines.lines(text), lines._in_python(text)
    assert native.total == python.total
    for column in ("start", "end", "op_count", "communicator", "kind"):
        assert native.rows[column].tolist() == python.rows[column].tolist(), column
    for column in ("key", "process"):
        same = [[one == other for other in rows[column]] for rows in (native.rows, python.rows) for one in rows[column]]
        assert same[: len(native.rows)] == same[len(native.rows) :], column


def test_without_the_library_the_same_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = read(tmp_path, log(SOCKETS, 0, 7) + STEPS)
    assert expected and expected.calls == (NcclCalls("all_reduce", 4096, 3),)
    monkeypatch.setattr(native_library, "with_functions", lambda _: None)
    assert read(tmp_path, log(SOCKETS, 0, 7) + STEPS) == expected


def test_lines_that_all_differ_are_counted_and_few_of_them_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_MOST_CALLS", 2)
    monkeypatch.setattr(reading, "_MOST_OTHERS", 3)
    monkeypatch.setattr(reading, "_BLOCK_BYTES", 512)
    calls = [f"vm:7:9 [0] NCCL INFO {CALL.format(number, 7)}\n" for number in range(9)]
    others = [f"vm:7:9 [0] NCCL INFO NET/IB: posted {number}\n" for number in range(40)]
    different = [line.replace(" count 1024 ", f" count {i} ") for i, line in enumerate(calls)]
    assert different != calls
    path = tmp_path / "nccl.log"
    path.write_text("".join(calls + different + others + ["vm:7:9 [0] a.cc:5 NCCL WARN late\n"] + calls))
    found = read_logs([path], {"7"}, 2)
    assert found and found.lines == 68 and found.warnings == ("late",)
    assert found.calls[0].times == 18


def test_calls_of_sends_and_of_rccl_are_counted(tmp_path: Path) -> None:
    said = "Recv: opCount 1 sendbuff (nil) recvbuff 0x1 acc (nil) count 8 datatype 7 op 0 root 1 comm 0x5 [nranks=2]"
    assert seen(tmp_path, said).calls == (NcclCalls("recv", 32, 1),)


def _logged(communicator: int, algorithm: str, sizes: list[int]) -> str:
    """Calls of a process, all at once, each with what NCCL chose for it."""
    return "".join(
        f"vm:7:9 [0] NCCL INFO AllReduce: opCount {number:x} sendbuff 0x1 recvbuff 0x1 count {size} datatype 7 op 0 "
        f"root 0 comm {communicator:#x} [nranks=2] stream 0x6\n"
        f"vm:7:9 [0] NCCL INFO AllReduce: {4 * size} Bytes -> Algo {algorithm} proto LL128 channel{{Lo..Hi}}={{0..1}}\n"
        for number, size in enumerate(sizes)
    )


@pytest.mark.parametrize("has_library", [True, False])
def test_calls_are_matched_to_collectives_by_their_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_library: bool
) -> None:
    if not has_library:
        monkeypatch.setattr(native_library, "with_functions", lambda _: None)
    inside, across = [1, 2, 3, 5] * 9, [2, 1, 5, 3] * 9
    path = tmp_path / "nccl.log"
    path.write_text(_logged(0xA0, "RING", inside) + _logged(0xB0, "TREE", across))
    are_matched([path], inside, across)


def are_matched(files: list[Path], inside: list[int], across: list[int]) -> None:
    """Of AllReduces of two groups, so many elements each, NCCL says of one that it chose rings, of the other trees."""
    # torch counts from 1; of the trace's window only the middle is recorded.
    traced = [
        NumberedCalls("7", group, {number: ("all_reduce", 4 * sizes[number - 1]) for number in range(20, 30)})
        for group, sizes in (("inside", inside), ("across", across))
    ]
    found = read_logs(files, {"7"}, 4, traced)
    assert found
    assert {(choice.group, choice.algorithm) for choice in found.choices} == {("inside", "ring"), ("across", "tree")}
    assert sum(choice.times for choice in found.choices) == len(inside) + len(across)


def test_a_group_that_no_communicator_fits_alone_is_not_matched(tmp_path: Path) -> None:
    path = tmp_path / "nccl.log"
    path.write_text(_logged(0xA0, "RING", [1, 2, 3]) + _logged(0xB0, "TREE", [1, 2, 3]))
    both = NumberedCalls("7", "either", {1: ("all_reduce", 4), 2: ("all_reduce", 8)})
    neither = NumberedCalls("7", "neither", {1: ("all_reduce", 400), 2: ("all_gather", 8)})
    found = read_logs([path], {"7"}, 4, [both, neither])
    assert found and {choice.group for choice in found.choices} == {""}


def test_a_finding_says_what_nccl_chose_for_its_group(tmp_path: Path) -> None:
    folder = write(tmp_path / "job", ranks(BOUND, BOUND), sequence=True)
    pid, last, elements = last_call(folder)
    # Another communicator has more calls of this kind and size, at other numbers.
    text = _logged(0xA0, "TREE", [elements] * (last + 1)) + _logged(0xB0, "RING", [5] * (last + 20) + [elements] * 100)
    text = "vm:7:9 [0] NCCL INFO 16 coll channels\n" + text
    (folder / "nccl.vm.log").write_text(text.replace("vm:7:", f"vm:{pid}:"))
    (found,) = [finding for finding in diagnose(folder).findings if finding.rule == "communication-bound"]
    assert "For all_reduce NCCL chose tree, LL128, 2 of 16 channels." in found.why


def last_call(folder: Path) -> tuple[str, int, int]:
    """The process of a job's first rank, the number of its last collective, and how many elements that has."""
    (run,) = discover(folder)
    digest = engine.diagnose(run, reading=engine.Reading(cache=Cache(None))).job.digests[0]
    (traced,) = numbered_calls(digest)
    last = max(traced.calls)
    return digest.pid, last, traced.calls[last][1] // 4
