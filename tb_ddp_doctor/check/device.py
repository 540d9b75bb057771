"""What a rank computes on: its GPU, or the CPU."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import torch

#: Work is enqueued for about so long before the device is waited for, s.
_BATCH_S = 0.005
_MOST_OF_A_BATCH = 10_000


class Device:
    """A rank's device, and how to wait for it."""

    def __init__(self, local_rank: int, *, cpu: bool) -> None:
        self.is_gpu = not cpu and torch.cuda.is_available()
        self.torch = (
            torch.device("cuda", local_rank % torch.cuda.device_count()) if self.is_gpu else torch.device("cpu")
        )
        if self.is_gpu:
            torch.cuda.set_device(self.torch)

    @property
    def name(self) -> str:
        return torch.cuda.get_device_name(self.torch) if self.is_gpu else _cpu()

    def wait(self) -> None:
        """Return when all that was enqueued is done."""
        if self.is_gpu:
            torch.cuda.synchronize(self.torch)

    def free_bytes(self) -> int:
        """Memory that is free now, of the device or of the machine."""
        return torch.cuda.mem_get_info(self.torch)[0] if self.is_gpu else int(psutil.virtual_memory().available)

    def rate(self, run: Callable[[], object], window_s: float) -> Callable[[], float]:
        """What tells how often a second something runs, each time that it is called, in a window."""
        run()
        self.wait()
        begun = time.perf_counter()
        run()
        self.wait()
        batch = min(max(round(_BATCH_S / max(time.perf_counter() - begun, 1e-9)), 1), _MOST_OF_A_BATCH)

        def window() -> float:
            done, begun = 0, time.perf_counter()
            while (took := time.perf_counter() - begun) < window_s:
                for _ in range(batch):
                    run()
                self.wait()
                done += batch
            return done / took

        return window


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
