"""The kernels of the model's modules on some ranks, from which the tab makes its trees: all times are sums of these."""

from __future__ import annotations

from typing import Any

import numpy as np

from tb_ddp_doctor.account.module_path import path_of
from tb_ddp_doctor.engine import Result
from tb_ddp_doctor.facts import MissingFactError
from tb_ddp_doctor.facts.modules import BUSY, ModuleKernelTable, ModulePart, kernel_table, modules
from tb_ddp_doctor.slices.event_text import label
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Ints

#: Ranks that are sent: those that compute longest, and as many others, evenly spread over how long they compute.
_RANKS = 64
#: Rows that are sent by name, those with most time; others are rows of their module and part without a name.
_ROWS = 4096


def layers(result: Result) -> dict[str, Any]:
    """Columns of K kernels, with indices into `paths`, `texts` and `sources`, and their times on R ranks.

    `ms` has shape (R, K), `calls` (K,), a median over all ranks. `critical_ms` is what each has of the critical path in
    a step, shape (K,), `critical_outside_ms` what of it lies in no kernel; null without a path. No rows where the
    traces show no modules.
    """
    job = result.job
    try:
        tree = modules(job.digests)
    except MissingFactError:
        return {"ranks": [], "kernels": 0}
    table = _shortened(kernel_table(tree, job.digests))
    sent = _spread(table.step_ns[:, np.isin(table.part, BUSY)].sum(axis=1))
    texts: dict[str, int] = {"": 0}
    sources: dict[str, int] = {"": -1}
    for function in table.function:
        if names.source(function):
            sources.setdefault(function, len(sources) - 1)
    return {
        "ranks": job.ranks[sent].tolist(),
        "all_ranks": len(job.ranks),
        "kernels": len(table.kernel),
        "parts": [part.name.lower() for part in ModulePart],
        "paths": [label(path) for path in tree.path],
        "parent": tree.parent.tolist(),
        "module": table.module.tolist(),
        "part": table.part.tolist(),
        "operator": [texts.setdefault(label(name), len(texts)) for name in table.operator],
        "kernel": [texts.setdefault(label(name), len(texts)) for name in table.kernel],
        "source": [sources.get(function, -1) for function in table.function],
        "texts": list(texts),
        "sources": [_source(function) for function in list(sources)[1:]],
        "calls": np.round(np.median(table.events, axis=0), 2).tolist(),
        "ms": np.round(table.step_ns[sent] / 1e6, 5).tolist(),
        **_path(result, table),
    }


def _path(result: Result, table: ModuleKernelTable) -> dict[str, Any]:
    """What of the critical path lies in the rows, and in none of them: whole ns, so that they sum to the path."""
    path = path_of(result.savings, table) if result.diagnosis.critical_path else None
    if path is None:
        return {"critical_ms": None, "critical_outside_ms": None}
    until_ns = np.rint(np.cumsum(np.append(path.of_kernels(table), path.outside_ns)))
    *kernels, outside = np.round(np.diff(until_ns, prepend=0.0) / 1e6, 6).tolist()
    return {"critical_ms": kernels, "critical_outside_ms": outside}


def _source(function: str) -> dict[str, Any]:
    file, line, name = names.source(function) or ("", 0, "")
    return {"file": label(file), "line": line, "function": label(name)}


def _spread(busy_ns: Ints) -> Ints:
    """Indices, ascending, of the ranks that are sent, given how long each computes."""
    if len(busy_ns) <= _RANKS:
        return np.arange(len(busy_ns))
    order = np.argsort(-busy_ns, kind="stable")
    even = np.linspace(0, len(order) - 1, _RANKS // 2).astype(np.int64)
    return np.unique(np.append(order[: _RANKS // 2], order[even]))


def _shortened(table: ModuleKernelTable) -> ModuleKernelTable:
    """The table without the names of the rows with least time, which are summed for each module and part."""
    if len(table.kernel) <= _ROWS:
        return table
    shape = (int(table.module.max()) + 1, len(ModulePart))
    rest, which = np.unique(
        np.ravel_multi_index((table.module[_ROWS:], table.part[_ROWS:]), shape), return_inverse=True
    )
    row_of = np.append(np.arange(_ROWS), _ROWS + which)
    module, part = np.unravel_index(rest, shape)
    step_ns, events = (np.zeros((len(table.step_ns), len(rest))) for _ in range(2))
    np.add.at(step_ns.T, which, table.step_ns[:, _ROWS:].T)
    np.add.at(events.T, which, table.events[:, _ROWS:].T)
    nameless = ("",) * len(rest)
    return ModuleKernelTable(
        module=np.append(table.module[:_ROWS], module),
        part=np.append(table.part[:_ROWS], part),
        operator=table.operator[:_ROWS] + nameless,
        kernel=table.kernel[:_ROWS] + nameless,
        function=table.function[:_ROWS] + nameless,
        step_ns=np.append(table.step_ns[:, :_ROWS], step_ns, axis=1),
        events=np.append(table.events[:, :_ROWS], events, axis=1),
        row_of=tuple(row_of[rows] for rows in table.row_of),
    )
