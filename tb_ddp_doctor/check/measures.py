"""What each rank measures by itself, in rounds in which all others measure the same.

Rates count work that is done, so they compare with data sheets: 2 n^3 FLOP of a GEMM of n x n matrices; each byte of a
copy once where it crosses a link, and twice (read and written) in one memory.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import torch

from tb_ddp_doctor.calibration.model import MeasureKind
from tb_ddp_doctor.capture.gpu import Gpu
from tb_ddp_doctor.check.cores import cores
from tb_ddp_doctor.check.device import Device

_GPU_GEMM, _CPU_GEMM = 8192, 384
_GPU_COPY, _CPU_COPY = 1 << 30, 64 << 20
_LINK_COPY = 256 << 20


class MeasurePlan(MeasureKind, frozen=True):
    """One measure, and how it is taken."""

    #: Allocates, warms up, and gives what takes one repeat.
    prepare: Callable[[], Callable[[], float]]
    #: Whether one repeat tells all.
    is_constant: bool = False


def plans(device: Device, window_s: float) -> Iterator[MeasurePlan]:
    """The measures of a rank, each repeat as long as the window.

    They are the same ones in the same order on all ranks with the same kind of device.
    """
    for name, dtype in _dtypes(device):
        yield MeasurePlan(f"GEMM {name}", "TFLOPS", True, _gemm(device, window_s, dtype, tf32=name == "tf32"))
    yield MeasurePlan("memory bandwidth", "GB/s", True, _copy(device, window_s))
    if device.is_gpu:
        for name, pinned in (("pinned", True), ("pageable", False)):
            yield MeasurePlan(
                f"host to device ({name})", "GB/s", True, _link(device, window_s, pinned=pinned, to_device=True)
            )
            yield MeasurePlan(
                f"device to host ({name})", "GB/s", True, _link(device, window_s, pinned=pinned, to_device=False)
            )
    yield MeasurePlan("launch latency", "µs", False, _launch(device, window_s))
    yield MeasurePlan("cores", "cores", True, lambda: cores, is_constant=True)
    yield MeasurePlan("CPU clock", "MHz", None, lambda: _cpu_clock, is_constant=True)
    if device.is_gpu:
        yield MeasurePlan(
            "GPU clock under load", "MHz", None, lambda: lambda: _gpu_clock(device, window_s), is_constant=True
        )


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


def _gemm(device: Device, window_s: float, dtype: torch.dtype, *, tf32: bool) -> Callable[[], Callable[[], float]]:
    def prepare() -> Callable[[], float]:
        n = _GPU_GEMM if device.is_gpu else _CPU_GEMM
        a, b = (torch.randn(n, n, device=device.torch).to(dtype) for _ in range(2))
        out = torch.empty_like(a)
        with _tf32(tf32):
            rate = device.rate(lambda: torch.mm(a, b, out=out), window_s)

        def window() -> float:
            with _tf32(tf32):
                return 2 * n**3 * rate() / 1e12

        return window

    return prepare


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _copy(device: Device, window_s: float) -> Callable[[], Callable[[], float]]:
    def prepare() -> Callable[[], float]:
        size = min(_GPU_COPY if device.is_gpu else _CPU_COPY, device.free_bytes() // 8)
        source = torch.ones(size, dtype=torch.uint8, device=device.torch)
        target = torch.empty_like(source)
        rate = device.rate(lambda: target.copy_(source), window_s)
        return lambda: 2 * size * rate() / 1e9

    return prepare


def _link(device: Device, window_s: float, *, pinned: bool, to_device: bool) -> Callable[[], Callable[[], float]]:
    def prepare() -> Callable[[], float]:
        host = torch.ones(_LINK_COPY, dtype=torch.uint8, pin_memory=pinned)
        there = torch.empty(_LINK_COPY, dtype=torch.uint8, device=device.torch)
        source, target = (host, there) if to_device else (there, host)
        rate = device.rate(lambda: target.copy_(source, non_blocking=pinned), window_s)
        return lambda: _LINK_COPY * rate() / 1e9

    return prepare


def _launch(device: Device, window_s: float) -> Callable[[], Callable[[], float]]:
    """CPU time that the smallest operator takes to be launched; on a CPU, to run."""

    def prepare() -> Callable[[], float]:
        value = torch.zeros(1, device=device.torch)
        for _ in range(100):
            value.add_(1)

        def window() -> float:
            device.wait()
            count, spent, until = 0, 0.0, time.perf_counter() + window_s
            while time.perf_counter() < until:
                begun = time.perf_counter()
                # Fewer than a launch queue holds, which would block.
                for _ in range(500):
                    value.add_(1)
                spent += time.perf_counter() - begun
                count += 500
                device.wait()
            return spent / count * 1e6

        return window

    return prepare


def _cpu_clock() -> float:
    try:
        # None where the system does not tell, which its types do not know.
        return float(psutil.cpu_freq().current) or math.nan
    except (OSError, NotImplementedError, AttributeError):
        return math.nan


def _gpu_clock(device: Device, window_s: float) -> float:
    gpu = Gpu.of_this_thread()
    if gpu is None:
        return math.nan
    a = torch.randn(4096, 4096, device=device.torch)
    device.rate(lambda: torch.mm(a, a), window_s)()
    gpu.look()
    state = gpu.state()
    return math.nan if state is None or state.sm_mhz is None else state.sm_mhz
