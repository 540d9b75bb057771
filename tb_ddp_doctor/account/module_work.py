"""What the operators of the model's modules have to do: floating-point operations, bytes, and time above attainable.

R = ranks, M = modules (`ModuleTree.path`), K = rows of the table of their kernels (`ModuleKernelTable`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.facts import Facts
from tb_ddp_doctor.facts.modules import ModuleKernelTable, module_kernels, module_times, module_tree
from tb_ddp_doctor.facts.roofline import RankCalls, roofline
from tb_ddp_doctor.trace.model import Floats, Ints


class WorkAmounts(msgspec.Struct, frozen=True, eq=False):
    """The work of modules or kernels in a step, mean over steps; shape (R, M) or (R, K) each."""

    #: Floating-point operations, and compulsory bytes (each tensor read or written once).
    flops: Floats
    bytes: Floats
    #: Time beyond what the device needs for both, and all time of calls of which that is known, ns.
    above_ns: Floats
    modelled_ns: Floats

    def fields(self, at: int) -> dict[str, Any]:
        """Fields of a row of a module or kernel: medians over the ranks where they are known, None without any."""
        flops, moved, above, modelled = (
            column[:, at] for column in (self.flops, self.bytes, self.above_ns, self.modelled_ns)
        )
        has_work, is_modelled = (flops > 0) | (moved > 0), modelled > 0
        known = {
            "flops": flops[has_work],
            "moved_bytes": moved[has_work],
            "above_ms": above[is_modelled] / 1e6,
        }
        return {name: float(np.median(values)) if len(values) else None for name, values in known.items()}


class ModuleWorkTable(msgspec.Struct, frozen=True, eq=False):
    """The work of the model's modules and of their kernels."""

    #: With all modules within each.
    modules: WorkAmounts
    #: Of each kernel without modules within its own. A call of several kernels counts for its longest one.
    kernels: WorkAmounts


def module_work(facts: Facts) -> ModuleWorkTable | None:
    """The work of the model's modules; None where no trace has modules and operators' calls."""
    tree, table = facts.get(module_tree), facts.get(module_kernels)
    digests = facts.job.digests
    if tree is None or table is None or not any(len(digest.modules.work) for digest in digests):
        return None
    shape = (len(digests), len(table.kernel))
    steps = np.array([max(len(digest.steps), 1) for digest in digests], np.float64)[:, None]
    cell, rows = _amounts(facts.get(roofline).ranks, table)
    kernels = [np.bincount(cell, column, shape[0] * shape[1]).reshape(shape) / steps for column in rows]
    modules = [module_times(tree, table, column) for column in kernels]
    return ModuleWorkTable(WorkAmounts(*modules), WorkAmounts(*kernels))


def _amounts(ranks: Sequence[RankCalls], table: ModuleKernelTable) -> tuple[Ints, tuple[Floats, ...]]:
    """The rows of `ModuleWork` of all ranks: which cell of (R, K) each is of, and the columns of `WorkAmounts`.

    These are of all steps.
    """
    every, width = [one.digest.modules.work for one in ranks], len(table.kernel)
    cells = [
        rank * width + row_of[work.of] for rank, (work, row_of) in enumerate(zip(every, table.row_of, strict=True))
    ]
    count = np.concatenate([work.count for work in every]).astype(np.float64)
    took = np.maximum(np.concatenate([work.ns for work in every]), 0)
    calls = [one.digest.roofline.calls for one in ranks]
    begins = np.cumsum([0, *map(len, calls)])
    call = np.concatenate([work.call + begin for work, begin in zip(every, begins[:-1].tolist(), strict=True)])
    flops, read, written = (
        np.concatenate([getattr(one, name) for one in calls]) for name in ("flops", "read_bytes", "written_bytes")
    )
    least = np.concatenate([one.attainable_ns for one in ranks])[call] * count
    is_modelled = ~np.isnan(least)
    above = np.where(is_modelled, np.maximum(took - least, 0.0), 0.0)
    above *= np.concatenate([_side_by_side(one.digest) for one in ranks])
    return np.concatenate(cells), (flops[call] * count, (read + written)[call] * count, above, took * is_modelled)


def _side_by_side(digest: RankDigest) -> Floats:
    """How much the calls of each row of `ModuleWork` count, 0 to 1: less where kernels run beside each other.

    Of these, the first to start has the time, so that the calls of a module may take longer than the module.
    """
    modules = digest.modules
    of = modules.kernels.of[modules.work.of]
    calls_ns = np.bincount(of, modules.work.ns, len(modules.times))
    factor: Floats = np.clip(modules.times.total_ns / np.maximum(calls_ns, 1.0), 0.0, 1.0)
    return factor[of]
