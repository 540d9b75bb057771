"""Real jobs of four gloo ranks on one machine, one of which becomes slower midway: is it named, and with which step?

    python benchmarks/history_slowed.py [RUNS]

A rank is slowed as clusters slow one: by other processes of a higher priority (`nice`), or by a control group that
gives it a fifth of a core (version 1, as root). A run is right where the one change of a rank is of this rank, and
begins within 2 % of the steps of where it was slowed. Needs torch.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

STEPS, SLOWED_FROM, RANKS = 2_000, 1_100, 4
_WORK = 60_000
_GROUP = Path("/sys/fs/cgroup/cpu/ddp_doctor_history")


def niced() -> None:
    """Let the other ranks go first: they want more cores than there are."""
    os.nice(10)


def in_a_group() -> None:
    """Take a fifth of a core from here on. Raises OSError without control groups."""
    _GROUP.mkdir(exist_ok=True)
    (_GROUP / "cpu.cfs_period_us").write_text("20000")
    (_GROUP / "cpu.cfs_quota_us").write_text("4000")
    (_GROUP / "tasks").write_text(str(os.getpid()))


WAYS: dict[str, Callable[[], None]] = {"nice 10": niced, "a fifth of a core": in_a_group}


def train(logdir: str, way: str, slow_rank: int) -> None:
    """One rank of the job."""
    import torch
    import torch.distributed as dist

    from tb_ddp_doctor.capture import Doctor

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    doctor, gradient = Doctor(logdir, history=True), torch.ones(1_000)
    for step in range(STEPS):
        if step == SLOWED_FROM and dist.get_rank() == slow_rank:
            WAYS[way]()
        sum(range(_WORK))
        doctor.waits()
        dist.all_reduce(gradient)
        doctor.step(step)
    doctor.close()
    dist.destroy_process_group()


def played(logdir: Path, way: str, slow_rank: int) -> None:
    """Run the job. Raises CalledProcessError where a rank fails."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(RANKS), "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, __file__, "train", str(logdir), way, str(slow_rank)]
    ranks = [subprocess.Popen(command, env={**os.environ, **job, "RANK": str(rank)}) for rank in range(RANKS)]
    for rank in ranks:
        if rank.wait():
            raise subprocess.CalledProcessError(rank.returncode, command)


def main(runs: int) -> None:
    """Print what is said of each run."""
    from tb_ddp_doctor.history.read import history_files
    from tb_ddp_doctor.history.summary import summarise
    from tb_ddp_doctor.history.windows import read_job

    right = 0
    for run in range(runs):
        way, slow_rank = [*WAYS][run % len(WAYS)], run % RANKS
        with tempfile.TemporaryDirectory() as folder:
            begun = time.perf_counter()
            played(Path(folder), way, slow_rank)
            took = time.perf_counter() - begun
            job, _ = read_job(history_files(Path(folder)))
        events = summarise(job).events if job else ()
        of_ranks = [
            (event.ranks, event.first_step) for event in events if event.kind == "change" and event.level == "rank"
        ]
        is_right = [ranks for ranks, _ in of_ranks] == [(slow_rank,)]
        is_right = is_right and abs(of_ranks[0][1] - SLOWED_FROM) <= 0.02 * STEPS
        right += is_right
        print(f"{way} on rank {slow_rank} from step {SLOWED_FROM}: {of_ranks}; {took:.0f} s", flush=True)
    print(f"{right} of {runs} right")


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"]:
        train(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 8)
