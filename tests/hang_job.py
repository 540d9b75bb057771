"""Jobs of three ranks on CPUs over gloo that hang: after two steps rank 1 validates for ever, the others all_reduce.

    python hang_job.py LOGDIR ON_HANG_S BUFFER [LOGDIR ON_HANG_S BUFFER ...]

`test_hang` runs it: all jobs side by side, their ranks forked once torch is imported. Each rank has a Doctor; ON_HANG_S
0 is None. BUFFER is how many collectives the Flight Recorder keeps; 0 is none. A rank that is about to hang makes the
file LOGDIR.hangsRANK. Jobs end when somebody kills them, or after two minutes.
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
        if step == 2:
            Path(f"{logdir}.hangs{rank}").touch()
            if rank == 1:
                validate()
        distributed.all_reduce(value)
        doctor.step(step)


def main() -> None:
    import torch.distributed  # noqa: F401 - once, for all ranks

    ranks = []
    for logdir, on_hang_s, buffer in zip(sys.argv[1::3], sys.argv[2::3], sys.argv[3::3], strict=True):
        for rank in range(WORLD):
            ranks.append(os.fork())
            if not ranks[-1]:
                os.environ["TORCH_FR_BUFFER_SIZE"] = buffer
                train(rank, Path(logdir), float(on_hang_s) or None)
                os._exit(0)
    for rank in ranks:
        os.waitpid(rank, 0)


if __name__ == "__main__":
    main()
