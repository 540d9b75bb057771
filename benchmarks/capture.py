"""What captures cost a job, and whether ranks agree on their steps.

    python benchmarks/capture.py [--steps 300] [--every 100]
    python benchmarks/capture.py --tries 50
    python benchmarks/capture.py --accuse [--busy 2]

The first prints what `Doctor.step()` takes outside of captures, and the steps of one process on the CPU with and
without captures in turn. The second runs so many jobs of four processes over gloo with random delays; each has a
scheduled and a requested capture. In half of the jobs ranks train together (DDP), in half of them each by itself. The
third captures three jobs of four processes over gloo 15 times each, on two cores beside so many processes that never
sleep: a healthy job, one in which a rank sleeps in each step as long as its work takes, and one in which it works twice
as much. It fails if more than one capture of the healthy job accuses with high or medium confidence, or if not at least
half of those of another job accuse that rank so: by itself, or because captures agree on it more than noise explains.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from tb_ddp_doctor.cache import Cache  # noqa: E402
from tb_ddp_doctor.capture import Doctor  # noqa: E402
from tb_ddp_doctor.capture.directory import CaptureVerdict, capture_folders, read_json  # noqa: E402
from tb_ddp_doctor.capture.requests import Mailbox, Request  # noqa: E402

CALLS = 100_000
#: Of the 15 captures of a job on busy cores so many have to have a verdict.
_FEWEST_VERDICTS = 10


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300, help="steps of a training (default: %(default)s)")
    parser.add_argument("--every", type=int, default=100, help="how often 3 are captured (default: %(default)s)")
    parser.add_argument("--tries", type=int, help="jobs of four processes that agree on steps")
    parser.add_argument("--accuse", action="store_true", help="captures of healthy and slow jobs on two busy cores")
    parser.add_argument("--busy", type=int, default=2, help="processes beside them that never sleep")
    options = parser.parse_args()
    if options.accuse:
        return accuse(options.busy)
    if options.tries:
        return agree(options.tries)
    calls()
    cost(options.steps, options.every)
    return 0


def calls() -> None:
    """Time `step()` outside of captures, with its thread running, call by call."""
    with tempfile.TemporaryDirectory() as folder:
        doctor = Doctor(folder, every=10 * CALLS)
        doctor.step()
        took = timed(doctor.step)
        nothing = timed(lambda: None)
        doctor.close()
    for name, times in (("step()", took), ("an empty call", nothing)):
        percentiles = statistics.quantiles(times, n=100)
        print(f"{name}: median {statistics.median(times) / 1e3:.2f} us, p99 {percentiles[98] / 1e3:.2f} us")


def timed(call: Callable[[], None]) -> list[int]:
    """How long each of many calls takes, ns, with the clock's own time."""
    now = time.perf_counter_ns
    took = []
    for _ in range(CALLS):
        began = now()
        call()
        took.append(now() - began)
    return took


def cost(steps: int, every: int) -> None:
    """The same training with and without captures, in turn, and what a capture takes."""
    import torch

    torch.set_num_threads(1)
    layers = [
        layer for _ in range(24) for layer in (torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.LayerNorm(256))
    ]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters())

    def train(doctor: Doctor | None) -> list[float]:
        took = []
        for n in range(steps):
            began = time.perf_counter()
            optimizer.zero_grad()
            model(torch.ones(32, 256)).square().mean().backward()
            optimizer.step()
            if doctor:
                doctor.step(n)
            took.append((time.perf_counter() - began) * 1e3)
        return took

    train(None)
    plain, captured = [], []
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(3):
            plain.append(train(None))
            doctor = Doctor(Path(folder) / f"job{turn}", every=every, keep="traces")
            captured.append(train(doctor))
            doctor.close(wait_s=120)
        windows = range(every, steps - 3, every)
        for turn, (without, with_) in enumerate(zip(plain, captured, strict=True)):
            usual = statistics.median(without)
            extra = [sum(with_[first - 2 : first + 3]) - 5 * usual for first in windows]
            told = f"{usual:.2f} ms a step without captures, {statistics.median(with_):.2f} with"
            print(f"turn {turn}: {told}; one of 3 steps takes {', '.join(f'{ms:.0f}' for ms in extra)} ms more")
        for kind in ("digest", "gz"):
            sizes = [path.stat().st_size for path in Path(folder).rglob(f"rank0*.{kind}")]
            print(f"bytes a rank and capture, {kind}: {statistics.mean(sizes):,.0f}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = (used.ru_utime + used.ru_stime) / (3 * len(windows))
    print(f"a child takes {seconds:.1f} s of CPU a capture, at the lowest priority")


def agree(tries: int) -> int:
    """How many captures have the same steps on all ranks."""
    same = {"scheduled": 0, "requested": 0}
    with tempfile.TemporaryDirectory() as base:
        names = [f"{'together' if number % 2 else 'apart'}-{number}" for number in range(tries)]
        script = str(ROOT / "tests" / "capture_job.py")
        job = subprocess.Popen([sys.executable, script, base, *names], env={**os.environ, "PYTHONPATH": str(ROOT)})
        for name in names:
            folder = Path(base) / name
            mailbox = Mailbox(folder / "job")
            while not mailbox.is_open():
                time.sleep(0.05)
            time.sleep(random.uniform(0.0, 0.5))
            mailbox.ask(Request(time.time(), "the benchmark", 2))
            while not (folder / "exits").exists():
                time.sleep(0.05)
            for found in capture_folders(folder / "job"):
                cache = Cache(None)
                traced = [tuple(cache.digest(path).steps.number.tolist()) for path in found.path.glob("*.digest")]
                kind = "scheduled" if len(traced[0]) == 3 else "requested"
                same[kind] += len(traced) == 4 and len(set(traced)) == 1
            print(f"{name}: {same} of {names.index(name) + 1}", flush=True)
        job.wait()
    return 0 if set(same.values()) == {tries} else 1


def accuse(busy: int) -> int:
    """What captures on two busy cores say of a healthy job, and of two with a slow rank."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    right = True
    # In sessions of their own, as other users' processes are: Linux shares cores between sessions first.
    never_sleep = [sys.executable, "-c", "while True: pass"]
    beside = [subprocess.Popen(never_sleep, start_new_session=True) for _ in range(busy)]
    try:
        with tempfile.TemporaryDirectory() as base:
            for name in ("busy-healthy", "busy-sleeps", "busy-works"):
                job = [sys.executable, str(ROOT / "tests" / "capture_job.py"), base, name]
                subprocess.run(job, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
                right &= accused(name, Path(base) / name / "job")
    finally:
        for process in beside:
            process.kill()
            process.wait()
    return 0 if right else 1


def accused(name: str, logdir: Path) -> bool:
    """Print what the captures of a job say; whether that is right."""
    from capture_job import SLOW_RANK

    found = [read_json(folder.verdict, CaptureVerdict) for folder in capture_folders(logdir)]
    verdicts = [verdict for verdict in found if verdict is not None]
    for verdict in verdicts:
        print(f"  {verdict.line}")
    sure = [verdict for verdict in verdicts if accuses(verdict)]
    of_it = [verdict for verdict in sure if set(verdict.agreed or verdict.ranks) == {SLOW_RANK}]
    print(
        f"{name}: {len(verdicts)} captures, {len(sure)} sure of a fault, "
        f"{len(of_it)} of them on rank {SLOW_RANK} alone",
        flush=True,
    )
    as_it_should = len(sure) <= 1 if name == "busy-healthy" else 2 * len(of_it) >= len(verdicts)
    # Where cores are busy, ranks whose digests are late skip captures: of few it says nothing.
    return as_it_should and len(verdicts) >= _FEWEST_VERDICTS


def accuses(verdict: CaptureVerdict) -> bool:
    """Whether it is sure of itself, or names ranks that captures agree on."""
    return verdict.confidence in ("high", "medium") or bool(verdict.agreed)


if __name__ == "__main__":
    sys.exit(main())
