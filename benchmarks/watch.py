"""What a model that is watched costs between captures, by what is called in a step, and by whole steps.

    python benchmarks/watch.py [--calls 2000] [--repeats 200] [--steps 40]

A GPT of 8 blocks is trained on one CPU thread: as it is, and with `Doctor.watch` to depth 2 and 4 after a capture,
whose marks are removed. The noise of whole steps is a few percent, more than the bar (0.5 % of a step of 50 ms). So
what can cost anything is timed by itself: a call of a module that was marked against one of a module that never was, in
turns, the lowest quartile of the repeats; the hook of the gradient, which there is only with a history; and `step()`.
Times the calls in a step, this is the cost of a step. Exit status 1 if it is more than the bar.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from tb_ddp_doctor.capture import Doctor  # noqa: E402

#: Of a step of so many ms a watched model may cost so much.
STEP_MS, MOST = 50.0, 0.005
DEPTHS = (2, 4)


class Nothing(torch.nn.Module):
    """A module whose call does nothing else."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value


@dataclass(frozen=True, slots=True)
class Costs:
    """What is called in a step of a watched model, and what a call costs more than without `watch`."""

    depth: int
    #: Calls of modules that captures mark.
    modules: int
    module_ns: float
    gradient_ns: float
    step_ns: float

    @property
    def of_step_ns(self) -> float:
        return self.modules * max(self.module_ns, 0) + self.gradient_ns + self.step_ns


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000, help="calls that are timed together (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=200, help="of these (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=40, help="whole steps in turns; 0 for none (default: %(default)s)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    worst = 0.0
    for depth in DEPTHS:
        found = costs(depth, options.calls, options.repeats)
        share = found.of_step_ns / (STEP_MS * 1e6)
        worst = max(worst, share)
        print(
            f"depth {depth}: {found.modules} calls of modules {found.module_ns:+.1f} ns each, the gradient's hook "
            f"{found.gradient_ns:.0f} ns, step() {found.step_ns:.0f} ns: {share:.4%} of a step of {STEP_MS:.0f} ms"
        )
    if options.steps:
        whole_steps(options.steps)
    return int(worst > MOST)


def gpt() -> torch.nn.Module:
    """Blocks of attention's and the MLP's linear layers, on a CPU tens of ms a step."""
    width = 256

    def half(wide: int) -> torch.nn.Module:
        return torch.nn.Sequential(
            torch.nn.LayerNorm(width), torch.nn.Linear(width, wide), torch.nn.GELU(), torch.nn.Linear(wide, width)
        )

    return torch.nn.Sequential(*(torch.nn.Sequential(half(3 * width), half(4 * width)) for _ in range(8)))


def watched(folder: str, model: torch.nn.Module, depth: int) -> Doctor:
    """A Doctor with a history that watches a model, and had a capture: hooks were there, and were removed."""
    doctor = Doctor(folder, history=True)
    doctor.watch(model, depth=depth)
    assert doctor._watched is not None
    doctor._watched.start()
    model(torch.zeros(1, 256))
    doctor._watched.stop()
    return doctor


def costs(depth: int, calls: int, repeats: int) -> Costs:
    """What a step of a watched model calls, timed call by call."""
    value = torch.zeros(1)
    # A Doctor's thread may still write into it.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        model, plain = gpt(), Nothing()
        # As deep as the deepest that is marked: captures put hooks on it and take them off again.
        marked = Nothing()
        model.append(marked)
        doctor = watched(folder, model, depth)
        try:
            assert doctor._watched is not None
            modules = len(doctor._watched.modules()) - 1
            difference = lowest(repeats, calls, lambda: marked(value), lambda: plain(value))
            gradient = lowest(repeats, calls, doctor.waits, lambda: None)
            step = lowest(repeats, calls, doctor.step, lambda: None)
        finally:
            doctor.close()
    return Costs(depth, modules, difference, gradient, step)


def lowest(repeats: int, calls: int, one: Callable[[], object], other: Callable[[], object]) -> float:
    """How much longer a call takes than another one, ns: the lowest quartiles of both, timed in turns."""
    took: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for call, times in zip((one, other), took, strict=True):
            began = time.perf_counter_ns()
            for _ in range(calls):
                call()
            times.append((time.perf_counter_ns() - began) / calls)
    first, second = (statistics.quantiles(times, n=4)[0] for times in took)
    return first - second


def whole_steps(steps: int) -> None:
    """Print the CPU time of whole steps, in turns: without a Doctor, and watched to each depth."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        models = {0: gpt(), **{depth: gpt() for depth in DEPTHS}}
        doctors = {depth: watched(f"{folder}/{depth}", models[depth], depth) for depth in DEPTHS}
        took: dict[int, list[float]] = {depth: [] for depth in models}
        batch = torch.randn(128, 256)
        for _ in range(steps):
            for depth, model in models.items():
                began = time.process_time_ns()
                model(batch).square().mean().backward()
                if depth:
                    doctors[depth].step()
                took[depth].append((time.process_time_ns() - began) / 1e6)
        for doctor in doctors.values():
            doctor.close()
    for depth, times in took.items():
        low, middle, high = statistics.quantiles(times[steps // 10 :], n=4)
        name = f"depth {depth}" if depth else "without"
        print(f"whole steps, {name}: {middle:.2f} ms of CPU, quartiles {low:.2f} and {high:.2f}")


if __name__ == "__main__":
    sys.exit(main())
