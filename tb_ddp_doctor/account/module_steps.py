"""The slowest step beside the median one, by module and kernel, on the ranks that agree which steps these are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from tb_ddp_doctor.digest.model import RankDigest, Steps
from tb_ddp_doctor.digest.sums import summed
from tb_ddp_doctor.facts.modules import ModuleKernelTable, ModuleTree, kernel_times, module_times, p99_ns
from tb_ddp_doctor.trace.model import Floats, Ints


class ComparedSteps(msgspec.Struct, frozen=True, eq=False):
    """Two steps of a job."""

    #: Their numbers (`Steps.number`).
    slowest: int
    median: int
    #: The ranks (indices) whose digests have the modules' times in both.
    ranks: Ints


def compared_steps(digests: Sequence[RankDigest]) -> ComparedSteps | None:
    """The steps that most ranks have as their slowest and their median one; None where no rank has several steps."""
    pairs = [(digest.modules.slowest_step, digest.modules.median_step) for digest in digests]
    known = Counter(pair for pair in pairs if min(pair) >= 0)
    if not known:
        return None
    # Of pairs that are as frequent the one with the earliest steps, so that the order of ranks does not matter.
    pair = min(known, key=lambda one: (-known[one], one))
    return ComparedSteps(*pair, np.flatnonzero([one == pair for one in pairs]))


class ModuleStepTimes(msgspec.Struct, frozen=True, eq=False):
    """Times of the job's modules and kernels that differ by step, ns, shape (R, M) and (R, K)."""

    steps: ComparedSteps | None
    #: By field of `findings.LayerRow` and `LayerKernel`.
    modules: Mapping[str, Floats]
    kernels: Mapping[str, Floats]

    @classmethod
    def of(cls, digests: Sequence[RankDigest], tree: ModuleTree, table: ModuleKernelTable) -> ModuleStepTimes:
        """Those of a job."""
        every = [digest.modules.kernels for digest in digests]
        kernels = {"p99_ms": kernel_times(table, [one.p99_ns for one in every])}
        modules = {"p99_ms": p99_ns(tree, digests)}
        steps = compared_steps(digests)
        if steps is not None:
            chosen = {
                "slowest_step_ms": kernel_times(table, [one.slowest_ns for one in every])[steps.ranks],
                "median_step_ms": kernel_times(table, [one.median_ns for one in every])[steps.ranks],
            }
            kernels |= chosen
            modules |= {name: module_times(tree, table, times) for name, times in chosen.items()}
        return cls(steps, modules, kernels)

    def of_module(self, module: int) -> dict[str, float]:
        """Fields of a module's row, medians over ranks."""
        return {name: float(np.median(times[:, module])) / 1e6 for name, times in self.modules.items()}

    def of_kernel(self, row: int) -> dict[str, float]:
        """Fields of a kernel's row, medians over ranks."""
        return {name: float(np.median(times[:, row])) / 1e6 for name, times in self.kernels.items()}

    def chosen(self) -> dict[str, int]:
        """Fields of `LayerTable`: which steps, and on how many ranks."""
        steps = self.steps
        if steps is None:
            return {}
        return {"slowest_step": steps.slowest, "median_step": steps.median, "step_ranks": len(steps.ranks)}


def of_step(digest: RankDigest, *, slowest: bool) -> RankDigest:
    """A digest with the modules' times of one of its two steps in place of all; else it is not to be used."""
    modules = digest.modules
    time = modules.kernels.slowest_ns if slowest else modules.kernels.median_ns
    number = modules.slowest_step if slowest else modules.median_step
    at = np.flatnonzero(digest.steps.number == number)[:1]
    return replace(
        digest,
        steps=Steps(*(getattr(digest.steps, name)[at] for name in Steps.__struct_fields__)),
        modules=replace(
            modules,
            times=replace(
                modules.times, total_ns=summed(modules.kernels.of.astype(np.int64), time, len(modules.times))
            ),
            kernels=replace(modules.kernels, total_ns=time),
        ),
    )
