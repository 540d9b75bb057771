"""Flight Recorder dumps drawn as text, a line for each rank that left one.

    groups: dp=0,1,2,3 tp=0,1
    rank0: all_reduce@dp+  all_reduce@dp:4096  send(1)@pp
    rank1: all_reduce@dp+  40s  all_reduce@dp:4096/Float

Each word is an entry, in the order in which it was enqueued: a collective, or a send or receive with the partner's
place in the group; the group; after a colon the size ("4096", "64x64"); after a slash the element type. "+" at its end
means completed, ">" started, nothing scheduled. "all_reduce@dp*5+" are five. Groups "pp.0" and "pp.1" both have the
description "pp". "40s" is a pause, "lost" empties the ring buffer of all before it, and "active" at the line's end
leaves out what has completed, as torch's dumps on a timeout do.
"""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

from tb_ddp_doctor.flight.load import load
from tb_ddp_doctor.flight.model import Dump
from tb_ddp_doctor.stuck.build import build
from tb_ddp_doctor.stuck.model import StuckRun

START_NS = 1_758_610_505_000_000_000
TIMEOUT_MS = 600_000
_WORD = re.compile(
    r"(?P<kind>\w+?)(?:\((?P<peer>\d+)\))?@(?P<group>[\w.]+)(?::(?P<size>[\dx]+))?(?:/(?P<dtype>\w+))?(?:\*(?P<times>\d+))?"
    r"(?P<state>[+>]?)"
)
_STATES = {"+": "completed", ">": "started", "": "scheduled"}


def drawn(text: str, *, status: bool = True) -> dict[int, dict[str, Any]]:
    """The content of each rank's dump, by rank; without `status` as older recorders wrote it."""
    lines = [line.split("#")[0].split() for line in text.splitlines() if line.strip()]
    groups: dict[str, list[int]] = {}
    found = {}
    for head, *words in lines:
        if head == "groups:":
            groups = {name: [int(rank) for rank in ranks.split(",")] for name, ranks in (w.split("=") for w in words)}
        else:
            rank = int(head.removeprefix("rank").removesuffix(":"))
            found[rank] = _dump(rank, groups, words, status)
    return found


def _dump(rank: int, groups: dict[str, list[int]], words: list[str], status: bool) -> dict[str, Any]:
    numbers = {name: str(number) for number, name in enumerate(groups)}
    entries: list[dict[str, Any]] = []
    counts: dict[tuple[str, bool], int] = {}
    now = START_NS
    lost = 0
    for word in words:
        if word.endswith("s") and word[:-1].isdecimal():
            now += int(word[:-1]) * 10**9
        elif word == "lost":
            lost = len(entries)
        elif word != "active":
            found = _WORD.fullmatch(word)
            assert found, word
            for _ in range(int(found["times"] or 1)):
                now += 10**6
                entries.append(_entry(rank, groups, numbers, found, counts, now, len(entries)))
    by_group = {name: [entry for entry in entries if entry["pg_id"] == int(numbers[name])] for name in groups}
    told = {numbers[name]: _status(own) for name, own in by_group.items() if rank in groups[name]}
    shown = [entry for entry in entries[lost:] if "active" not in words or entry["state"] != "completed"]
    return {
        "version": "2.9",
        "nccl_version": "2.27.3",
        "pg_config": {
            numbers[name]: {"name": numbers[name], "desc": description(name), "ranks": str(ranks)}
            for name, ranks in groups.items()
            if rank in ranks
        },
        **({"pg_status": told} if status else {}),
        "entries": shown,
    }


def _entry(
    rank: int,
    groups: dict[str, list[int]],
    numbers: dict[str, str],
    found: re.Match[str],
    counts: dict[tuple[str, bool], int],
    now: int,
    record: int,
) -> dict[str, Any]:
    name, kind = found["group"], found["kind"]
    is_p2p = found["peer"] is not None
    counts[name, is_p2p] = counts.get((name, is_p2p), 0) + 1
    own = groups[name].index(rank)
    way = {"send": f" {own}->{found['peer']}", "recv": f" {own}<-{found['peer']}"}.get(kind, "")
    size = [int(part) for part in (found["size"] or "1024").split("x")]
    state = _STATES[found["state"]]
    return {
        "record_id": record,
        "pg_id": int(numbers[name]),
        "process_group": (numbers[name], description(name)),
        "collective_seq_id": counts.get((name, False), 0),
        "p2p_seq_id": counts[name, is_p2p] if is_p2p else 0,
        "op_id": counts[name, is_p2p],
        "profiling_name": f"nccl:{kind}{way}",
        "time_created_ns": now,
        "input_sizes": [size],
        "input_dtypes": [found["dtype"] or "Float"],
        "output_sizes": [size],
        "output_dtypes": [found["dtype"] or "Float"],
        "state": state,
        "time_discovered_started_ns": now if state != "scheduled" else None,
        "time_discovered_completed_ns": now + 10**8 if state == "completed" else None,
        "retired": state == "completed",
        "timeout_ms": TIMEOUT_MS,
        "is_p2p": is_p2p,
        "frames": [
            {
                "name": "all_reduce",
                "filename": "/lib/site-packages/torch/distributed/distributed_c10d.py",
                "line": 3000,
            },
            {"name": "train_step", "filename": "/job/train.py", "line": 40 + record},
        ],
    }


def description(group: str) -> str:
    return group.partition(".")[0]


def _status(entries: list[dict[str, Any]]) -> dict[str, int]:
    def sequence(entry: dict[str, Any]) -> int:
        return int(entry["p2p_seq_id"] if entry["is_p2p"] else entry["collective_seq_id"])

    pending = [sequence(entry) for entry in entries if entry["state"] != "completed"]
    last = sequence(entries[-1]) if entries else -1
    return {
        "last_enqueued_collective": last,
        "last_started_collective": -1,
        "last_completed_collective": min(pending) - 1 if pending else last,
    }


def write(folder: Path, text: str, prefix: str = "nccl_trace_rank_", *, status: bool = True) -> Path:
    """The dumps as files."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, content in drawn(text, status=status).items():
        (folder / f"{prefix}{rank}").write_bytes(pickle.dumps(content, protocol=2))
    return folder


def read(folder: Path, text: str, *, status: bool = True) -> list[Dump]:
    """The dumps as the reader has them."""
    write(folder, text, status=status)
    return [load(path, int(path.name.rpartition("_")[2])) for path in sorted(folder.iterdir())]


def examined(folder: Path, text: str, *, status: bool = True) -> StuckRun:
    """What is said of them."""
    return build("job", read(folder, text, status=status))


def faults(run: StuckRun) -> list[tuple[str, tuple[int, ...]]]:
    """The findings, by cause and ranks."""
    return [(finding.cause, finding.ranks) for finding in run.findings]
