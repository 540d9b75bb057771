"""Jobs of three ranks on CPUs over gloo that hang on purpose, and dump what torch's Flight Recorder has of them.

    python gloo_hang.py FOLDER FAULT...

`test_stuck_gloo` runs it: all jobs side by side, their ranks forked once torch is imported. The dumps of a fault are in
`FOLDER/FAULT`. gloo is recorded since torch 2.13 (collectives only); of other sizes on one rank gloo dies.
"""

from __future__ import annotations

import datetime as dt
import os
import pickle
import signal
import sys
import threading
import time
from pathlib import Path

#: The exit status where torch is absent or does not record gloo.
NO_RECORDER = 77
WORLD = 3
#: Until all ranks have dumped, no collective may time out, on a busy machine either.
TIMEOUT_S = 600


def hang(rank: int, fault: str) -> None:
    """Enqueue what this rank enqueues until the job hangs."""
    import torch
    from torch import distributed

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


def run(folder: Path, fault: str, rank: int) -> None:
    """Be one rank of a job, to the dump and the end of this process."""
    from torch import distributed
    from torch._C import _distributed_c10d

    signal.alarm(TIMEOUT_S)  # nothing stays behind
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}.store",
        rank=rank,
        world_size=WORLD,
        timeout=dt.timedelta(seconds=TIMEOUT_S),
    )
    thread = threading.Thread(target=hang, args=(rank, fault), daemon=True)
    thread.start()
    # Three collectives of all ranks, that of the pair, and the one that hangs.
    enqueued = 3 + (rank < 2) + 1
    while thread.is_alive() and len(pickle.loads(_distributed_c10d._dump_fr_trace())["entries"]) < enqueued:
        time.sleep(0.05)
    (folder / f".rank{rank}").write_bytes(_distributed_c10d._dump_fr_trace())
    (folder / f".rank{rank}").rename(folder / f"gloo_trace_rank_{rank}")
    # Nobody leaves before all have dumped: what a rank does that is alone is another fault.
    while len(list(folder.glob("gloo_trace_rank_*"))) < WORLD:
        time.sleep(0.05)
    os._exit(0)


def main() -> int:
    os.environ["TORCH_FR_BUFFER_SIZE"] = "100"
    try:
        from torch._C import _distributed_c10d
    except ImportError:
        return NO_RECORDER
    if not hasattr(_distributed_c10d, "_dump_fr_trace"):
        return NO_RECORDER
    # The Flight Recorder asks for Python's stacks, for which torch imports its compiler: once here, not in each rank.
    import torch._inductor.standalone_compile  # noqa: F401

    ranks = []
    for fault in sys.argv[2:]:
        folder = Path(sys.argv[1]) / fault
        folder.mkdir()
        for rank in range(WORLD):
            ranks.append(os.fork())
            if not ranks[-1]:
                run(folder, fault, rank)
    return max(os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks)


if __name__ == "__main__":
    sys.exit(main())
