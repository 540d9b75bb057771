"""A small DDP job on CPUs over gloo, which captures the scenarios that it is told to, one after the other.

    WORLD_SIZE=2 python gloo_job.py STORE SCENARIO OUT [SCENARIO OUT ...]

Torch is imported once, and ranks are forked from there.
A scenario is one of `SCENARIOS`, with "+stack" for Python stacks. Traces of stacks are plain JSON, others gzip. Beside
OUT, `OUT.rank0` has the rank's CPU time in each traced step, and how long its threads waited for a core, ns.
It returns 1 where a rank raised, 128 + signal where one was killed, like a shell.
It returns 1 where a rank raised, 128 + signal where one was killed, like a shell.
`test_gloo` runs it; by hand it makes traces to look at.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler
from torch.utils.data import DataLoader, Dataset

#: Long against a step of some 20 ms, whatever else the machine does, s.
FAULT_S = 0.15
SCENARIOS = ("healthy", "straggler", "more-work", "stall", "wait-in-backward", "find-unused", "collect")
_SKIPPED, _TRACED = 3, 3
_WIDTH, _BATCH, _LOADED = 256, 384, 4


class Samples(Dataset[torch.Tensor]):
    """As many as the loop takes; loading a batch of them takes `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __len__(self) -> int:
        return _LOADED * (_SKIPPED + _TRACED + 1)

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._seconds:
            time.sleep(self._seconds / _LOADED)
        return torch.ones(_WIDTH)


class ReduceGradient(torch.autograd.Function):
    """Sums the gradient over the ranks on its way back, and waits for it: so do parallel layers."""

    @staticmethod
    def forward(_context: Any, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(_context: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        gradient = gradient.contiguous()
        distributed.all_reduce(gradient)
        return gradient


def train(rank: int, scenario: str, after_step: Callable[[], None]) -> None:
    """A loop of a few steps; `after_step` is called after each."""
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(_WIDTH, _WIDTH), nn.ReLU())]
    searches = scenario == "find-unused"
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.6, find_unused_parameters=searches)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    repeats = _BATCH // _LOADED * (5 if scenario == "more-work" and rank == 1 else 1)
    for few in DataLoader(Samples(FAULT_S if scenario == "stall" else 0.0), batch_size=_LOADED):
        batch = few.repeat(repeats, 1)
        optimizer.zero_grad()
        output = model(batch)
        if scenario == "wait-in-backward":
            output = ReduceGradient.apply(output)
        loss = output.square().mean()
        until = time.perf_counter() + FAULT_S if scenario == "collect" else 0.0
        if rank == 1 and scenario in ("straggler", "wait-in-backward"):
            time.sleep(FAULT_S)
        while time.perf_counter() < until:
            gc.collect()
        loss.backward()
        optimizer.step()
        after_step()


def waited_ns() -> int:
    """How long threads of this process were ready to run so far, but another one or another virtual machine had the
    core; 0 where Linux does not tell.
    """
    waited = 0
    for thread in Path("/proc/self/task").glob("*"):
        with suppress(OSError):  # it has ended since
            waited += int((thread / "schedstat").read_text().split()[1])
    with suppress(OSError):
        stolen_ticks = int(Path("/proc/stat").read_text().split()[8])
        waited += stolen_ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return waited


def capture(rank: int, scenario: str, out: str) -> None:
    """Train and trace the steps after the first."""
    scenario, _, stack = scenario.partition("+")
    assert scenario in SCENARIOS
    seen: list[tuple[int, int]] = []

    def look() -> None:
        seen.append((time.process_time_ns(), waited_ns()))

    def after_step() -> None:
        look()
        profiler.step()
        look()

    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=_SKIPPED - 1, warmup=1, active=_TRACED, repeat=1),
        on_trace_ready=tensorboard_trace_handler(out, worker_name=f"cpu_{rank}", use_gzip=not stack),
        record_shapes=True,
        with_stack=bool(stack),
    ) as profiler:
        train(rank, scenario, after_step)
    begins, ends = seen[1::2], seen[2::2]
    of_steps = [[b - a for a, b in zip(begin, end, strict=True)] for begin, end in zip(begins, ends, strict=False)]
    Path(f"{out}.rank{rank}").write_text(json.dumps(of_steps[_SKIPPED - 1 : _SKIPPED - 1 + _TRACED]))


def be_rank(rank: int, ranks: int, store: str, *wanted: str) -> None:
    """Capture the scenarios, to the end of this process."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", store=distributed.FileStore(store, ranks), rank=rank, world_size=ranks)
    for scenario, out in zip(wanted[::2], wanted[1::2], strict=True):
        distributed.barrier()
        capture(rank, scenario, out)
    distributed.barrier()
    distributed.destroy_process_group()
    # All is written. At the end of the interpreter, threads that torch leaves behind abort it now and then.
    sys.stderr.flush()
    os._exit(0)


def main() -> int:
    ranks, children = int(os.environ["WORLD_SIZE"]), []
    for rank in range(ranks):
        children.append(os.fork())
        if not children[-1]:
            try:
                be_rank(rank, ranks, *sys.argv[1:])
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return max(code if code >= 0 else 128 - code for code in codes)


if __name__ == "__main__":
    sys.exit(main())
