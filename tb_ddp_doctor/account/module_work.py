"""What the operators of the model's modules have to do: floating-point operations, bytes, and time above attainable.

R = ranks, M = modules (`ModuleTree.path`), K = rows of the table of their kernels (`ModuleKernelTable`).
"""

from __future__ import annotations

import msgspec
import numpy as np

from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.facts import Facts
from tb_ddp_doctor.facts.modules import kernel_table, module_tree, with_children
from tb_ddp_doctor.facts.roofline import RankCalls, roofline
from tb_ddp_doctor.trace.model import Floats


class WorkAmounts(msgspec.Struct, frozen=True, eq=False):
    """The work of modules or kernels in a step, mean over steps; NaN where nothing of it is modelled."""

    #: Floating-point operations, and compulsory bytes (each tensor read or written once); shape (R, M) or (R, K).
    flops: Floats
    bytes: Floats
    #: Time beyond what the device needs for both, ns; NaN also where the device's peaks are not known.
    above_ns: Floats


class ModuleWorkTable(msgspec.Struct, frozen=True, eq=False):
    """The work of the model's modules and of their kernels."""

    #: With all modules within each.
    modules: WorkAmounts
    #: Of each kernel without modules within its own. A call of several kernels counts for its longest one.
    kernels: WorkAmounts


def module_work(facts: Facts) -> ModuleWorkTable | None:
    """The work of the model's modules; None where no trace has modules and sizes of operators' inputs."""
    tree = facts.get(module_tree)
    digests = facts.job.digests
    if tree is None or not any(len(digest.modules.work) for digest in digests):
        return None
    table = kernel_table(digests)
    amounts = np.zeros((4, len(digests), len(table.kernel)))
    for rank, (one, row_of) in enumerate(zip(facts.get(roofline).ranks, table.row_of, strict=True)):
        work = one.digest.modules.work
        np.add.at(amounts[:, rank].T, row_of[work.of], _amounts(one).T)
    parts = amounts.reshape(-1, len(table.kernel))
    own = np.zeros((len(parts), len(tree.path)))
    np.add.at(own.T, table.module, parts.T)
    modules = with_children(tree, own.reshape(4, len(digests), -1))
    return ModuleWorkTable(_where_modelled(modules), _where_modelled(amounts))


def _where_modelled(amounts: Floats) -> WorkAmounts:
    """The amounts, given FLOPs, bytes, time above attainable, and time that is modelled."""
    flops, moved, above, modelled = amounts
    has_work = (flops > 0) | (moved > 0)
    return WorkAmounts(
        flops=np.where(has_work, flops, np.nan),
        bytes=np.where(has_work, moved, np.nan),
        above_ns=np.where(modelled > 0, above, np.nan),
    )


def _amounts(one: RankCalls) -> Floats:
    """FLOPs, bytes, time above attainable and modelled time of each row of `ModuleWork` in a step, shape (4, rows)."""
    digest = one.digest
    work, calls = digest.modules.work, digest.roofline.calls
    count, took = work.count.astype(np.float64), np.maximum(work.ns, 0).astype(np.float64)
    least = one.attainable_ns[work.call] * count
    is_modelled = ~np.isnan(least)
    above = np.where(is_modelled, np.maximum(took - least, 0.0), 0.0) * _side_by_side(digest, took)
    moved = calls.read_bytes[work.call] + calls.written_bytes[work.call]
    rows = np.stack((calls.flops[work.call] * count, moved * count, above, np.where(is_modelled, took, 0.0)))
    return rows / max(len(digest.steps), 1)


def _side_by_side(digest: RankDigest, took: Floats) -> Floats:
    """How much the calls of each row of `ModuleWork` count, 0 to 1: less where kernels run beside each other.

    Of these, the first to start has the time, so that the calls of a module may take longer than the module.
    """
    modules = digest.modules
    of = modules.kernels.of[modules.work.of]
    calls_ns = np.bincount(of, took, len(modules.times))
    factor = np.minimum(modules.times.total_ns / np.maximum(calls_ns, 1.0), 1.0)
    share: Floats = np.maximum(factor, 0.0)[of]
    return share
