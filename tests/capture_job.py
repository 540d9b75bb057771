"""Jobs of four processes over gloo that train with a Doctor, one after the other, each with a fault of its own.

    python capture_job.py FOLDER SCENARIO [SCENARIO ...]

Torch is imported once, and ranks are forked from there. FOLDER/SCENARIO gets what each rank says (`rank0.log`), their
exit codes (`exits`), and the log directory (`job`). `test_capture_gloo` and `benchmarks/capture.py` run it.
"""

from __future__ import annotations

import copy
import logging
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path

import torch
import torch._inductor.config  # torch's profiler looks at it: once here, and not in each rank
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from tb_ddp_doctor.capture import Doctor
from tb_ddp_doctor.capture.directory import CaptureFolder

RANKS = 4
#: Every so many steps of some 10 ms, so many are captured.
EVERY, STEPS = 12, 3
#: The last of them are due to be captured when the training ends.
STEPS_TRAINED = 2 * EVERY + 1
#: Of the jobs that benchmarks/capture.py has agree on steps: one scheduled capture, and time for one on request.
AGREEING_EVERY, AGREEING_STEPS = 100, 198
#: Of the jobs whose accusations benchmarks/capture.py counts: captures, steps from one to the next, width and batch of
#: the model. A step takes each rank some 20 ms of a core.
ACCUSING_CAPTURES, ACCUSING_EVERY, WIDTH, BATCH = 15, 100, 256, 384
#: The rank that is slow there, where one is.
SLOW_RANK = 2
#: For whatever comes at all on a machine that does much else, s.
LONGEST_S = 600.0
HANG_S = 2.0
#: The ranks of each start of a job that is started more than once in one log directory.
STARTS = {"again": (4, 2)}
#: How often jobs are captured that are not captured every `EVERY` steps.
EVERY_OF = {"requests": None, "together": AGREEING_EVERY, "apart": AGREEING_EVERY, "busy": ACCUSING_EVERY}
#: How long ranks of jobs on two busy cores await each other: those whose digests are late skip a capture, s.
BUSY_PATIENCE_S = 30.0
#: How long a rank that diagnoses awaits others where nobody else will report, s.
PATIENCE_S = {("missing", 0): 1.0, ("missing", 2): 1.0, ("faults", 0): 1.0}


def steps_of(rank: int, kind: str, folder: Path) -> Iterator[int]:
    """The global steps that a rank trains, with the delays and the end that its scenario gives it."""
    delays = random.Random(f"{folder.name} {rank}")
    first = skipped = 0
    if (kind, rank) == ("faults", 2):  # starts late
        time.sleep(0.3)
        skipped = 4
    if (kind, rank) == ("missing", 2):  # resumes elsewhere
        first = 1000
    trained = AGREEING_STEPS if kind in ("together", "apart") else STEPS_TRAINED
    if kind == "busy":
        trained = ACCUSING_CAPTURES * ACCUSING_EVERY + STEPS + 1
    for step in range(first + skipped, first + trained) if kind != "requests" else until_told(folder):
        if kind != "busy":
            time.sleep(delays.uniform(0.0, 0.02))
        FAULTS.get((kind, rank, step), FAULTS.get((kind, None, step), lambda *_: None))(rank, folder)
        yield step


def until_told(folder: Path) -> Iterator[int]:
    """Steps until there is a file "stop", for all ranks alike."""
    began = time.monotonic()
    for step in range(sys.maxsize):
        told = torch.tensor(float((folder / "stop").exists() or time.monotonic() - began > LONGEST_S))
        distributed.all_reduce(told)
        if told > 0:
            return
        yield step


def hang(_rank: int, _folder: Path) -> None:
    time.sleep(HANG_S)


def die(_rank: int, _folder: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop(_rank: int, _folder: Path) -> None:
    """Train no more, and stay for a while."""
    time.sleep(1.0)
    os._exit(0)


def await_the_end(rank: int, folder: Path) -> None:
    (folder / f"recording{rank}").touch()
    time.sleep(LONGEST_S)


def await_reports(_rank: int, folder: Path) -> None:
    """Go on once two other ranks have reported, so that the rank that diagnoses awaits only one that never will."""
    captured = CaptureFolder.of(folder / "job", EVERY)
    while not all(captured.record(rank).exists() for rank in (1, 2)):
        time.sleep(0.05)


#: What a rank (None: each) does within a step, by scenario.
FAULTS: dict[tuple[str, int | None, int], Callable[[int, Path], None]] = {
    ("faults", 1, 5): hang,
    ("faults", 3, EVERY + 1): die,
    ("faults", 0, EVERY + STEPS - 1): await_reports,
    ("missing", 3, 6): stop,
    ("terminated", None, EVERY + 1): await_the_end,
}


class SlowSamples(Dataset[torch.Tensor]):
    """Eight of them take 40 ms."""

    def __len__(self) -> int:
        return 8 * 2 * STEPS_TRAINED

    def __getitem__(self, _index: int) -> torch.Tensor:
        time.sleep(0.005)
        return torch.ones(64)


class SleepingLayer(nn.Module):
    def forward(self, value: torch.Tensor) -> torch.Tensor:
        time.sleep(0.15)
        return value


def slowed(rank: int, scenario: str, model: nn.Module, batch: torch.Tensor) -> Callable[[], None]:
    """What a rank does beyond the others in each step: it makes its step twice as long, asleep or at work."""
    if rank != SLOW_RANK or scenario not in ("busy-sleeps", "busy-works"):
        return lambda: None
    began = time.perf_counter()

    def double() -> None:
        nonlocal began
        seconds = time.perf_counter() - began
        until = began + 2 * seconds
        if scenario == "busy-sleeps":
            time.sleep(seconds)
        while time.perf_counter() < until:
            model(batch).square().mean().backward()
        began = time.perf_counter()

    return double


def train(rank: int, scenario: str, folder: Path) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model: nn.Module = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3)))
    if scenario == "watched" and rank == 1:
        model.add_module("readout", SleepingLayer())
    # Ranks with faults of their own train alone: with DDP the others would wait for them, Doctor or not.
    kind = scenario.split("-", maxsplit=1)[0]
    if kind == "busy":
        model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())))
    extra = slowed(rank, scenario, copy.deepcopy(model), torch.ones(BATCH, WIDTH))
    if kind in ("scheduled", "requests", "together", "watched", "again", "busy"):
        size = int(os.environ["WORLD_SIZE"])
        store = distributed.FileStore(str(folder / f"store{size}"), size)
        distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    doctor = Doctor(
        "/proc/doctor" if kind == "unwritable" else folder / "job",
        every=EVERY_OF.get(kind, EVERY),
        steps=STEPS,
        keep="traces" if scenario == "scheduled-kept" else "digests",
        scratch=folder,
        poll_s=0.1,
        margin_s=0.5 if kind in ("together", "apart") else 1.0,
        patience_s=BUSY_PATIENCE_S if kind == "busy" else PATIENCE_S.get((kind, rank), LONGEST_S),
    )
    if kind == "missing" and rank == 1:  # as on a full disk: no file may grow beyond this
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
        sys.dont_write_bytecode = True  # nor any byte code, which Python would keep as it is cut
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    batches: Iterator[torch.Tensor] = repeat(torch.ones(8, 64))
    if kind == "busy":
        batches = repeat(torch.ones(BATCH, WIDTH))
    if kind == "watched":
        loader = DataLoader(SlowSamples(), batch_size=8, num_workers=2)
        doctor.watch(model, loader)
        batches = iter(loader)
    for step in steps_of(rank, kind, folder):
        optimizer.zero_grad()
        extra()
        model(next(batches)).square().mean().backward()
        optimizer.step()
        doctor.step(step)
    doctor.close(wait_s=LONGEST_S)
    if distributed.is_initialized():
        distributed.barrier()


def run(folder: Path, scenario: str, size: int) -> list[int]:
    """Train on so many ranks; returns how each of them ended, as `os.waitstatus_to_exitcode`."""
    pids = []
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            log = os.open(folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "GLOO_SOCKET_IFNAME": "lo"}
            logging.basicConfig(format="%(message)s")
            try:
                train(rank, scenario, folder)
            except BaseException:
                logging.exception("the rank failed")
                os._exit(1)
            os._exit(0)
        (folder / f"pid{rank}").write_text(str(pid))
        pids.append(pid)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def main() -> None:
    base, *scenarios = sys.argv[1:]
    for scenario in scenarios:
        folder = Path(base) / scenario
        folder.mkdir(parents=True)
        exits = [code for size in STARTS.get(scenario, (RANKS,)) for code in run(folder, scenario, size)]
        (folder / "unfinished").write_text(" ".join(map(str, exits)))
        (folder / "unfinished").rename(folder / "exits")


if __name__ == "__main__":
    main()
