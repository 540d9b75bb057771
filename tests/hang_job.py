"""A job of three ranks on CPUs over gloo that hangs: after two steps rank 1 validates for ever, the others all_reduce.

    python hang_job.py LOGDIR ON_HANG_S

`test_hang` runs it. Each rank has a Doctor; ON_HANG_S 0 is None. It ends when somebody kills it, or after two minutes.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from pathlib import Path

WORLD = 3
LIFE_S = 120


def validate() -> None:
    while True:
        time.sleep(0.1)


def train(rank: int, logdir: Path, on_hang_s: float | None) -> None:
    import torch
    from torch import distributed

    from tb_ddp_doctor.capture import Doctor

    logging.basicConfig(level=logging.INFO)
    signal.alarm(LIFE_S)
    distributed.init_process_group("gloo", init_method=f"file://{logdir}.store", rank=rank, world_size=WORLD)
    doctor = Doctor(logdir, on_hang_s=on_hang_s)
    value = torch.ones(64)
    for step in range(3):
        if step == 2 and rank == 1:
            validate()
        distributed.all_reduce(value)
        doctor.step(step)


def main() -> None:
    import torch.distributed  # noqa: F401 - once, for all ranks

    logdir, on_hang_s = Path(sys.argv[1]), float(sys.argv[2]) or None
    ranks = []
    for rank in range(WORLD):
        ranks.append(os.fork())
        if not ranks[-1]:
            train(rank, logdir, on_hang_s)
            os._exit(0)
    for rank in ranks:
        os.waitpid(rank, 0)


if __name__ == "__main__":
    main()
