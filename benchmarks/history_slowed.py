"""Real gloo jobs of two ranks, one of which gets less of its core from a step on: is it named, with the step?

    python benchmarks/history_slowed.py [RUNS] [--first SEED] [--priority]

Each rank is pinned to a core of its own, so that ranks do not slow each other. From a drawn step on a process that only
computes shares the core of a drawn rank (`nice`: both with a drawn niceness), or a control group allows the rank a
drawn share of its core (`cgroup`: version 1, as root). A run is quiet, without either, one time in five.

The truth is measured by each rank itself, not assumed: how long its work takes in each step, and how much CPU time it
gets meanwhile. A run is right where a change of the drawn rank is said to begin within 2 % of the steps of where it was
slowed. Any machine slows ranks at other times as well, so a change that is said of a rank is a false one only where the
rank's own measurement contradicts it: the median of its work from there to the rank's next change is longer than that
from its last change to there by something else than was said, by more than a quarter and 0.5 ms. A run in which the
work of the drawn rank did not become longer by at least 3 % and 0.5 ms is not counted as slowed. --priority, as root,
lets the job go before other processes. Needs torch, and idle cores.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

STEPS, RANKS = 800, 2
#: Work of a step: counts so far, some 12 ms. Linux gives processes slices of 3 ms and more: of shorter steps a few are
#: slowed by whole slices, and most not at all.
_WORK = 750_000
_GROUP = Path("/sys/fs/cgroup/cpu/ddp_doctor_history")
#: A drawn rank that became slower by less was not slowed.
_LEAST_SHARE, _LEAST_MS = 0.03, 0.5
#: A change begins within this share of the steps, and adds what was measured within this share.
_NEAR, _WITHIN = 0.02, 0.25


class Plan(NamedTuple):
    """What happens to which rank, from which step on."""

    way: str
    slow_rank: int
    at: int
    #: Of `nice`, of the rank and of the process beside it; of `cgroup`, per cent of a core.
    nice: int = 0
    beside: int = 0
    percent: int = 0


class Change(NamedTuple):
    """A change of a rank, as the history says it."""

    rank: int
    step: int
    added_ms: float


class Verdict(NamedTuple):
    """A run held against what its ranks measured."""

    is_slowed: bool
    #: Whether the drawn rank is said to be slower from about the drawn step on.
    named: bool
    #: Changes of ranks that are said, and those that the ranks' own measurements contradict.
    changes: int
    contradicted: int
    text: str


def drawn(seed: int) -> Plan:
    """The plan of a run."""
    draw = random.Random(seed)
    way = ("nice", "cgroup", "nice", "cgroup", "quiet")[seed % 5]
    slow_rank, at = draw.randrange(RANKS), draw.randrange(240, 560)
    if way == "nice":
        # A weight is 1.25 times that of the next niceness: these take 10 % to half of the core.
        nice = draw.choice((0, 5))
        return Plan(way, slow_rank, at, nice, nice + draw.choice((0, 3, 6, 10)))
    return Plan(way, slow_rank, at, percent=draw.choice((40, 60, 80))) if way == "cgroup" else Plan(way, slow_rank, at)


def slow_down(plan: Plan, core: int) -> None:
    """Make this rank slower from now on. Raises OSError without control groups."""
    if plan.way == "cgroup":
        _GROUP.mkdir(exist_ok=True)
        # A quota is a millisecond at least; periods of a step or so, so that each step has its share.
        (_GROUP / "cpu.cfs_period_us").write_text("4000")
        (_GROUP / "cpu.cfs_quota_us").write_text(str(40 * plan.percent))
        (_GROUP / "tasks").write_text(str(os.getpid()))
    elif plan.way == "nice":
        base, parent = os.getpriority(os.PRIO_PROCESS, 0), os.getpid()
        os.setpriority(os.PRIO_PROCESS, 0, base + plan.nice)
        if not os.fork():
            os.setpriority(os.PRIO_PROCESS, 0, base + plan.beside)
            os.sched_setaffinity(0, {core})
            while os.getppid() == parent:
                sum(range(10_000))
            os._exit(0)


def train(logdir: Path, plan: Plan) -> None:
    """One rank of the job: writes what its work took, wall and CPU ms of each step, beside the step times."""
    import torch
    import torch.distributed as dist

    from tb_ddp_doctor.capture import Doctor

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    core = sorted(os.sched_getaffinity(0))[rank]
    os.sched_setaffinity(0, {core})
    doctor, gradient = Doctor(logdir, history=True), torch.ones(1_000)
    measured = np.zeros((STEPS, 2))
    for step in range(STEPS):
        if step == plan.at and rank == plan.slow_rank:
            slow_down(plan, core)
        begun = time.perf_counter(), time.thread_time()
        sum(range(_WORK))
        measured[step] = (time.perf_counter() - begun[0]) * 1e3, (time.thread_time() - begun[1]) * 1e3
        doctor.waits()
        dist.all_reduce(gradient)
        doctor.step(step)
    doctor.close()
    np.save(logdir / f"work{rank}.npy", measured)
    # Where the other rank still closes its connections, destroying the group may wait for it: leave at once.
    os._exit(0)


def played(logdir: Path, plan: Plan) -> list[np.ndarray]:
    """Run the job; what each rank measured. Raises CalledProcessError where a rank fails."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(RANKS), "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, __file__, "train", str(logdir), json.dumps(plan)]
    ranks = [subprocess.Popen(command, env={**os.environ, **job, "RANK": str(rank)}) for rank in range(RANKS)]
    for rank in ranks:
        if rank.wait():
            raise subprocess.CalledProcessError(rank.returncode, command)
    return [np.load(logdir / f"work{rank}.npy") for rank in range(RANKS)]


def judged(logdir: Path, plan: Plan, measured: list[np.ndarray]) -> Verdict:
    """What the history says of a run, held against what its ranks measured."""
    from tb_ddp_doctor.history.read import history_files
    from tb_ddp_doctor.history.summary import summarise
    from tb_ddp_doctor.history.windows import read_job

    before, after = ([np.median(part, axis=0) for part in parts] for parts in _halves(measured, plan.at))
    of_ranks = ", ".join(
        f"rank {rank} {one[0]:.2f} to {other[0]:.2f} ms (CPU {one[1]:.2f} to {other[1]:.2f})"
        for rank, (one, other) in enumerate(zip(before, after, strict=True))
    )
    job, _ = read_job(history_files(logdir))
    events = [event for event in (summarise(job).events if job else ()) if event.kind == "change"]
    changes = [Change(event.ranks[0], event.first_step, event.added_ms) for event in events if event.level == "rank"]
    added = (after[plan.slow_rank] - before[plan.slow_rank])[0]
    is_slowed = plan.way != "quiet" and added >= max(_LEAST_MS, _LEAST_SHARE * before[plan.slow_rank][0])
    mine = [one for one in changes if one.rank == plan.slow_rank and one.added_ms > 0]
    named = any(abs(one.step - plan.at) <= _NEAR * STEPS for one in mine)
    contradicted = [one for one in changes if not _is_measured(one, changes, measured[one.rank][:, 0])]
    said = "; ".join(
        f"rank {one.rank} {one.added_ms:+.2f} ms from {one.step}{' (FALSE)' if one in contradicted else ''}"
        for one in sorted(changes, key=lambda one: one.step)
    )
    return Verdict(is_slowed, named, len(changes), len(contradicted), f"{of_ranks}; said: {said or 'nothing'}")


def _is_measured(change: Change, changes: list[Change], work_ms: np.ndarray) -> bool:
    """Whether the rank's work became that much longer there, from its change before to its next one."""
    at = sorted({0, STEPS, *(one.step for one in changes if one.rank == change.rank)})
    place = at.index(change.step)
    before, after = work_ms[at[place - 1] : change.step], work_ms[change.step : at[place + 1]]
    if not len(before) or not len(after):
        return False
    true = float(np.median(after) - np.median(before))
    return abs(change.added_ms - true) <= max(_LEAST_MS, _WITHIN * abs(true))


def _halves(measured: list[np.ndarray], at: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    return [steps[:at] for steps in measured], [steps[at:] for steps in measured]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("runs", type=int, nargs="?", default=20)
    arguments.add_argument("--first", type=int, default=0, metavar="SEED", help="the first seed")
    arguments.add_argument("--priority", action="store_true", help="go before other processes (nice -15)")
    options = arguments.parse_args()
    if options.priority:
        os.setpriority(os.PRIO_PROCESS, 0, -15)
    if len(os.sched_getaffinity(0)) < RANKS:
        sys.exit("This needs a core for each rank.")
    verdicts = []
    for seed in range(options.first, options.first + options.runs):
        plan = drawn(seed)
        with tempfile.TemporaryDirectory() as folder:
            verdicts.append(one := judged(Path(folder), plan, played(Path(folder), plan)))
        said = ("named" if one.named else "NOT named") if one.is_slowed else "not slowed"
        print(f"{seed} {plan.way} of rank {plan.slow_rank} from {plan.at}: {said}; {one.text}", flush=True)
    slowed = [one for one in verdicts if one.is_slowed]
    changes, contradicted = sum(one.changes for one in verdicts), sum(one.contradicted for one in verdicts)
    print(f"{sum(one.named for one in slowed)} of {len(slowed)} slowed ranks named with the step")
    print(f"{changes - contradicted} of {changes} changes of ranks are as the ranks measured")
    if _GROUP.is_dir():
        _GROUP.rmdir()


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"]:
        train(Path(sys.argv[2]), Plan(*json.loads(sys.argv[3])))
    else:
        main()
