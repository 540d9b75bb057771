"""How long the dumps of a large job that is stuck take, from files to findings.

    python benchmarks/stuck.py [--ranks 1024] [--entries 2000]

The dumps are made up: groups of 8 for tensor parallelism, data parallelism across them, a group of all, stacks of 8
frames, everything completed but the last calls. Rank 700 (modulo the ranks) stops on its CPU: findings must name it.
"""

from __future__ import annotations

import argparse
import json
import pickle
import sys
import tempfile
from pathlib import Path
from typing import Any

from cost import cost

TP, STUCK, PENDING = 8, 700, 12
FRAMES = [{"name": f"function_{i}", "filename": f"/job/module_{i}.py", "line": 10 * i} for i in range(8)]


def dump(rank: int, ranks: int, entries: int, stuck: int) -> dict[str, Any]:
    """What one rank recorded."""
    row, place = rank // TP, rank % TP
    groups = {
        "0": ("default_pg", list(range(ranks))),
        str(1 + row): ("TENSOR_MODEL_PARALLEL_GROUP", list(range(row * TP, row * TP + TP))),
        str(1 + ranks // TP + place): ("DATA_PARALLEL_GROUP", list(range(place, ranks, TP))),
    }
    names = list(groups)
    first = 500_000
    # All are pending from the last PENDING calls on; the rank that is stuck never enqueued them.
    made = [
        {
            "frames": [dict(frame) for frame in FRAMES],
            "record_id": first + i,
            "pg_id": i % 3,
            "process_group": (names[i % 3], groups[names[i % 3]][0]),
            "collective_seq_id": (first + i) // 3,
            "p2p_seq_id": 0,
            "op_id": (first + i) // 3,
            "profiling_name": "nccl:all_reduce" if i % 3 else "nccl:_all_gather_base",
            "time_created_ns": 1_758_610_505_000_000_000 + i * 1_000_000,
            "input_sizes": [[4096 + i % 7, 1, 5120]],
            "input_dtypes": ["BFloat16"],
            "output_sizes": [[4096 + i % 7, 1, 5120]],
            "output_dtypes": ["BFloat16"],
            "state": "scheduled" if i >= entries - PENDING else "completed",
            "time_discovered_started_ns": 1_758_610_505_000_000_000 + i * 1_000_000 + 7,
            "time_discovered_completed_ns": 1_758_610_505_000_000_000 + i * 1_000_000 + 9,
            "retired": True,
            "timeout_ms": 600_000,
            "is_p2p": False,
        }
        for i in range(entries - PENDING if rank == stuck else entries)
    ]
    config = {name: {"name": name, "desc": desc, "ranks": str(members)} for name, (desc, members) in groups.items()}
    return {"version": "2.9", "nccl_version": "2.27.3", "pg_config": config, "pg_status": {}, "entries": made}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--entries", type=int, default=2000)
    options = parser.parse_args()
    stuck = STUCK % options.ranks
    with tempfile.TemporaryDirectory() as folder:
        size = 0
        for rank in range(options.ranks):
            data = pickle.dumps(dump(rank, options.ranks, options.entries, stuck), protocol=2)
            (Path(folder) / f"nccl_trace_rank_{rank}").write_bytes(data)
            size += len(data)
        print(f"{options.ranks} dumps of {options.entries} entries, {size / 1e6:.0f} MB")
        took = cost([sys.executable, "-m", "tb_ddp_doctor.cli", "diagnose", "--no-cache", "--json", folder])
    print(f"{took.wall_s:.1f} s wall, {took.cpu_s:.1f} s CPU of all processes, {took.peak_gib:.2f} GiB in the largest")
    (job,) = json.loads(took.output)["stuck"]
    print(job["headline"])
    assert [finding["ranks"] for finding in job["findings"]] == [[stuck]]


if __name__ == "__main__":
    main()
