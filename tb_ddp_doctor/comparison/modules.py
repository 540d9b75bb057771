"""The modules of the model in two runs, as one tree: where in the model a step became longer or shorter."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.comparison.model import ModuleChange, ModuleKernelChange
from tb_ddp_doctor.engine import Result
from tb_ddp_doctor.facts.modules import ModulePart, kernel_table
from tb_ddp_doctor.facts.modules import modules as tree_of
from tb_ddp_doctor.findings import LayerRow, LayerTable, Source
from tb_ddp_doctor.trace import names

#: Kernels that are kept, those whose time differs most, and letters of a name.
_MOST_KERNELS, _MOST_LETTERS = 256, 512


def modules(before: LayerTable | None, after: LayerTable | None) -> tuple[ModuleChange, ...]:
    """The modules of both runs by path, each followed by those within it; () where other things name them."""
    if before is None or after is None or before.named_by != after.named_by:
        return ()
    was, now = ({row.path: row for row in table.rows} for table in (before, after))
    return tuple(
        ModuleChange(row.path, row.level, _step_ms(was.get(row.path)), _step_ms(now.get(row.path)))
        for row in _joined(before.rows, after.rows)
    )


def module_kernels(before: Result, after: Result) -> tuple[ModuleKernelChange, ...]:
    """The kernels of both runs' modules whose times differ most; () where other things name the modules."""
    if not modules(before.diagnosis.layers, after.diagnosis.layers):
        return ()
    digests, size = (*before.job.digests, *after.job.digests), len(before.job.digests)
    tree = tree_of(digests)
    table = kernel_table(tree, digests)
    was, now = (np.median(rows, axis=0) / 1e6 for rows in (table.step_ns[:size], table.step_ns[size:]))
    order = np.argsort(-np.abs(now - was), kind="stable")
    named = (row for row in order.tolist() if table.operator[row] or table.kernel[row])
    changed = (row for row in named if was[row] != now[row])
    return tuple(
        ModuleKernelChange(
            path=wording.encodable(tree.path[table.module[row]]),
            part=ModulePart(int(table.part[row])).name.lower(),
            operator=_short(table.operator[row]),
            kernel=_short(table.kernel[row]),
            source=Source(*source) if (source := names.source(_short(table.function[row]))) else None,
            before_ms=float(was[row]),
            after_ms=float(now[row]),
        )
        for row in islice(changed, _MOST_KERNELS)
    )


def _short(name: str) -> str:
    return wording.encodable(name[:_MOST_LETTERS])


def _step_ms(row: LayerRow | None) -> float:
    return 0.0 if row is None else row.step_ms


def _joined(before: tuple[LayerRow, ...], after: tuple[LayerRow, ...]) -> Iterator[LayerRow]:
    """The later run's rows in their order; within a module, then, those that only the earlier run has there.

    after   whole, a, a.x, b        joined   whole, a, a.x, a.y, b, c
    before  whole, a, a.y, c
    """
    within: dict[str, dict[str, LayerRow]] = {}
    for rows in (after, before):
        around: list[str] = []
        for row in rows:
            del around[row.level :]
            if around:
                within.setdefault(around[-1], {}).setdefault(row.path, row)
            around.append(row.path)
    ahead = [after[0]]
    while ahead:
        row = ahead.pop()
        yield row
        ahead += reversed(within.pop(row.path, {}).values())
