"""One rank of a job on CPUs over gloo that hangs on purpose, and dumps what torch's Flight Recorder has of it.

    TORCH_FR_BUFFER_SIZE=100 RANK=0 WORLD_SIZE=3 python gloo_hang.py STORE FAULT FOLDER

`test_stuck_gloo` runs it. gloo is recorded since torch 2.13 (collectives only); of other sizes on one rank gloo dies.
"""

from __future__ import annotations

import datetime as dt
import os
import sys
import threading
import time
from pathlib import Path

import torch
from torch import distributed
from torch._C import _distributed_c10d

#: After this long each rank dumps, s; until then no collective may time out.
DUMPED_AFTER_S = 4.0
TIMEOUT_S = 60


def hang(rank: int, fault: str) -> None:
    """Enqueue what this rank enqueues until the job hangs."""
    value = torch.ones(64)
    pair = distributed.new_group([0, 1], group_desc="pair")
    for _ in range(3):
        distributed.all_reduce(value)
    if rank < 2:
        distributed.all_reduce(value, group=pair)
    if fault == "missing" and rank != 1:
        distributed.all_reduce(value)
    if fault == "order":
        # Rank 1 calls them in the other order than rank 0; rank 2 is in one of them only.
        for group in (None, pair) if rank == 0 else (pair, None) if rank == 1 else (None,):
            distributed.all_reduce(value, group=group)


def main() -> None:
    store, fault, folder = sys.argv[1:]
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world,
        timeout=dt.timedelta(seconds=TIMEOUT_S),
    )
    threading.Thread(target=hang, args=(rank, fault), daemon=True).start()
    time.sleep(DUMPED_AFTER_S)
    (Path(folder) / f"gloo_trace_rank_{rank}").write_bytes(_distributed_c10d._dump_fr_trace())
    # Nobody leaves before all have dumped: what a rank does that is alone is another fault.
    time.sleep(2)
    os._exit(0)


if __name__ == "__main__":
    main()
