"""Four processes over gloo that train 2,000 short steps with a Doctor that keeps the time of each.

    python history_job.py LOGDIR

All ranks are killed after step 899, and the job goes on at step 850. Rank 2 sleeps longer from step 1,200 on, rank 1 in
every 50th step. Torch is imported once, and ranks are forked from there. In each step they meet at a barrier, not in a
collective, in which gloo's threads ask for data without a pause: 2 ms of CPU in each step of each rank.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from multiprocessing import Barrier
from multiprocessing.synchronize import Barrier as Meeting
from pathlib import Path

import torch
from torch import distributed

from tb_ddp_doctor.capture import Doctor

RANKS, STEPS, SLOWED_FROM, RARE_EVERY = 4, 2000, 1200, 50
KILLED_AT, RESTARTED_AT = 900, 850
SLOW_RANK, RARE_RANK = 2, 1
#: A step that other processes delay takes some 10 ms longer, seldom 50, and on a busy machine 200.
WORK_S, SLOWED_S, RARE_S = 0.001, 0.0015, 0.4


def train(rank: int, logdir: Path, first: int, last: int, met: Meeting, is_killed: bool) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS))
    torch.set_num_threads(1)
    store = distributed.FileStore(str(logdir / f"store{first}"), RANKS)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    doctor = Doctor(logdir, history=True)
    for step in range(first, last):
        time.sleep(WORK_S)
        if rank == SLOW_RANK and step >= SLOWED_FROM:
            time.sleep(SLOWED_S)
        if rank == RARE_RANK and step % RARE_EVERY == 7:
            time.sleep(RARE_S)
        doctor.waits()
        met.wait()
        doctor.step(step)
    if is_killed:
        assert doctor._history is not None and doctor._history.recorder is not None
        doctor._history.recorder.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    doctor.close()


def main() -> None:
    for first, last in ((0, KILLED_AT), (RESTARTED_AT, STEPS)):
        children, met = [], Barrier(RANKS)
        for rank in range(RANKS):
            child = os.fork()
            if not child:
                train(rank, Path(sys.argv[1]), first, last, met, is_killed=last == KILLED_AT)
                os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)


if __name__ == "__main__":
    main()
