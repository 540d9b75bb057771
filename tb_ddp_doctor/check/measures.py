"""What each rank measures by itself, while all others measure the same.

Rates count work that is done, so they compare with data sheets: 2 n^3 FLOP of a GEMM of n x n matrices; each byte of a
copy once where it crosses a link, and twice (read and written) in one memory. All ranks measure in the same windows of
time, so that a rank that gets less of a shared machine is seen to.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil
import torch

from tb_ddp_doctor.capture.gpu import Gpu
from tb_ddp_doctor.check.device import Device, cores

#: Repeats of each measure, and the length of one, s.
WINDOWS, WINDOW_S = 12, 0.1
_GPU_GEMM, _CPU_GEMM = 8192, 384
_GPU_COPY, _CPU_COPY = 1 << 30, 64 << 20
_LINK_COPY = 256 << 20


@dataclass(frozen=True, slots=True)
class Plan:
    """One measure: what it is called, its unit, and how it is taken."""

    name: str
    unit: str
    more_is_better: bool | None
    #: Gives the repeats.
    take: Callable[[], list[float]]


def plans(device: Device) -> Iterator[Plan]:
    """The measures of a rank; the same ones in the same order on all ranks with the same kind of device."""
    for name, dtype in _dtypes(device):
        yield Plan(f"GEMM {name}", "TFLOPS", True, _gemm(device, dtype, tf32=name == "tf32"))
    yield Plan("memory bandwidth", "GB/s", True, _copy(device))
    if device.is_gpu:
        for name, pinned in (("pinned", True), ("pageable", False)):
            yield Plan(f"host to device ({name})", "GB/s", True, _link(device, pinned=pinned, to_device=True))
            yield Plan(f"device to host ({name})", "GB/s", True, _link(device, pinned=pinned, to_device=False))
    yield Plan("launch latency", "µs", False, _launch(device))
    yield Plan("cores", "cores", None, lambda: [cores()])
    yield Plan("CPU clock", "MHz", None, _cpu_clock)
    if device.is_gpu:
        yield Plan("GPU clock under load", "MHz", None, _gpu_clock(device))


def throttled(device: Device) -> tuple[str, ...]:
    """Why the GPU's clock is held down now, as its driver says; empty where it is not, or nothing tells."""
    gpu = Gpu.of_this_thread() if device.is_gpu else None
    if gpu is None:
        return ()
    gpu.look()
    state = gpu.state()
    return state.throttled if state else ()


def _dtypes(device: Device) -> list[tuple[str, torch.dtype]]:
    if not device.is_gpu:
        return [("float32", torch.float32), ("bfloat16", torch.bfloat16)]
    half = [("tf32", torch.float32), ("float16", torch.float16), ("bfloat16", torch.bfloat16)]
    return [("float32", torch.float32), *half]


def _gemm(device: Device, dtype: torch.dtype, *, tf32: bool) -> Callable[[], list[float]]:
    def take() -> list[float]:
        n = _GPU_GEMM if device.is_gpu else _CPU_GEMM
        a, b = (torch.randn(n, n, device=device.torch).to(dtype) for _ in range(2))
        out = torch.empty_like(a)
        with _tf32(tf32):
            rates = device.per_second(lambda: torch.mm(a, b, out=out), WINDOWS, WINDOW_S)
        return [2 * n**3 * rate / 1e12 for rate in rates]

    return take


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _copy(device: Device) -> Callable[[], list[float]]:
    def take() -> list[float]:
        size = min(_GPU_COPY if device.is_gpu else _CPU_COPY, device.free_bytes() // 8)
        source = torch.ones(size, dtype=torch.uint8, device=device.torch)
        target = torch.empty_like(source)
        return [2 * size * rate / 1e9 for rate in device.per_second(lambda: target.copy_(source), WINDOWS, WINDOW_S)]

    return take


def _link(device: Device, *, pinned: bool, to_device: bool) -> Callable[[], list[float]]:
    def take() -> list[float]:
        host = torch.ones(_LINK_COPY, dtype=torch.uint8, pin_memory=pinned)
        there = torch.empty(_LINK_COPY, dtype=torch.uint8, device=device.torch)
        source, target = (host, there) if to_device else (there, host)
        rates = device.per_second(lambda: target.copy_(source, non_blocking=pinned), WINDOWS, WINDOW_S)
        return [_LINK_COPY * rate / 1e9 for rate in rates]

    return take


def _launch(device: Device) -> Callable[[], list[float]]:
    """CPU time that the smallest operator takes to be launched; on a CPU, to run."""

    def take() -> list[float]:
        value = torch.zeros(1, device=device.torch)
        for _ in range(100):
            value.add_(1)
        taken = []
        for _ in range(WINDOWS):
            device.wait()
            # Fewer than a launch queue holds, which would block.
            count, until = 0, time.perf_counter() + WINDOW_S / 4
            spent = 0.0
            while time.perf_counter() < until:
                begun = time.perf_counter()
                for _ in range(500):
                    value.add_(1)
                spent += time.perf_counter() - begun
                count += 500
                device.wait()
            taken.append(spent / count * 1e6)
        return taken

    return take


def _cpu_clock() -> list[float]:
    try:
        # None where the system does not tell, which its types do not know.
        return [float(psutil.cpu_freq().current) or math.nan]
    except (OSError, NotImplementedError, AttributeError):
        return [math.nan]


def _gpu_clock(device: Device) -> Callable[[], list[float]]:
    def take() -> list[float]:
        gpu = Gpu.of_this_thread()
        if gpu is None:
            return [math.nan]
        a = torch.randn(4096, 4096, device=device.torch)
        device.per_second(lambda: torch.mm(a, a), 1, WINDOW_S)
        gpu.look()
        state = gpu.state()
        return [math.nan if state is None or state.sm_mhz is None else state.sm_mhz]

    return take
