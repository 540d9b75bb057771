"""The model's modules as rows of a table: where in the model a step's time goes, over all ranks."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.account.module_beside import beside_sentences
from tb_ddp_doctor.account.module_path import ModulePathTimes, path_times
from tb_ddp_doctor.account.module_steps import ModuleStepTimes
from tb_ddp_doctor.account.module_work import module_work
from tb_ddp_doctor.facts import Facts
from tb_ddp_doctor.facts.modules import (
    ModuleBeside,
    ModuleKernelTable,
    ModulePart,
    ModuleTree,
    beside_communication,
    in_order,
    module_kernels,
    module_memory,
    module_tree,
    optimizer_ns,
)
from tb_ddp_doctor.findings import LayerKernel, LayerRow, LayerTable, Source
from tb_ddp_doctor.replay.bindings import Bindings
from tb_ddp_doctor.trace import names

#: A module has a row only if on some rank it takes at least this share of the step.
LEAST_SHARE = 0.001
#: At most this many modules have a row: those with most time.
_MOST_ROWS = 256
#: And at most this many kernels, those with most time or most of the critical path.
_MOST_KERNELS = 256
#: Of a kernel's name.
_MOST_LETTERS = 512


def layer_table(facts: Facts, bindings: Bindings | None) -> LayerTable | None:
    """The modules with most time, parents before their children; None where no trace shows any.

    `bindings` tell the critical path, where there is one.
    """
    tree, table = facts.get(module_tree), facts.get(module_kernels)
    if tree is None or table is None:
        return None
    memory, work = _memory(facts), facts.get(module_work)
    times = path_times(table, facts.job.digests, bindings) if bindings else None
    path = times.of_modules(tree, table) if times else None
    beside, optimizer = beside_communication(tree, facts.job.digests), optimizer_ns(tree, facts.job.digests)
    steps = ModuleStepTimes.of(facts.job.digests, tree, table)
    every = tree.step_ns.sum(axis=2)
    # The median of sums and not the sum of medians, so that a number is some rank's time.
    median, whole, longest = np.median(tree.step_ns, axis=0) / 1e6, np.median(every, axis=0) / 1e6, every.argmax(axis=0)
    most = every.max(axis=0)
    listed = most >= LEAST_SHARE * most[0]
    # If a module is among those with most time, so is its parent: it takes no less, and the sort is stable.
    listed[np.argsort(-most, kind="stable")[_MOST_ROWS:]] = False
    listed[0] = True
    rows = [
        LayerRow(
            path=wording.encodable(tree.path[module]),
            level=int(tree.level[module]),
            step_ms=float(whole[module]),
            **{f"{part.name.lower()}_ms": float(median[module, part]) for part in ModulePart},
            longest_ms=float(every[longest[module], module]) / 1e6,
            longest_rank=int(facts.job.ranks[longest[module]]),
            peak_bytes=memory[0][module] if memory else None,
            allocated_bytes=memory[1][module] if memory else None,
            **(work.modules.fields(module) if work else {}),
            **(_beside(beside, module) if beside else {}),
            **steps.of_module(module),
            critical_ms=None if path is None else float(path[module]) / 1e6,
            optimizer_ms=None if optimizer is None else float(optimizer[module]) / 1e6,
        )
        for module in in_order(tree)
        if listed[module]
    ]
    said = tuple(map(wording.encodable, beside_sentences(tree, beside))) if beside else ()
    kernels = _kernels(facts, tree, table, steps, times)
    return LayerTable(tree.named_by, tree.layer_events, tuple(rows), kernels, said, **steps.chosen())


def _beside(beside: ModuleBeside, module: int) -> dict[str, float]:
    """Fields of a module's row: its time beside communication and how much longer it takes for it, medians of ranks."""
    columns = {"beside_ms": beside.step_ns, "beside_longer_ms": beside.longer_ns}
    return {name: float(np.median(times[:, module].sum(axis=1))) / 1e6 for name, times in columns.items()}


def _memory(facts: Facts) -> list[list[int]]:
    """What each module has allocated at the peak and allocates in a step, the median over the ranks that record it.

    Empty where none does.
    """
    table = facts.get(module_memory)
    if table is None:
        return []
    return [np.nanmedian(column, axis=0).round().astype(int).tolist() for column in (table.peak, table.allocated)]


def _kernels(
    facts: Facts, tree: ModuleTree, table: ModuleKernelTable, steps: ModuleStepTimes, times: ModulePathTimes | None
) -> tuple[LayerKernel, ...]:
    """The kernels with most time, or with most of the critical path, the longest first."""
    step_ms, calls = np.median(table.step_ns, axis=0) / 1e6, np.median(table.events, axis=0)
    longest, work = table.step_ns.argmax(axis=0), facts.get(module_work)
    path = times.of_kernels(table) if times else None
    named = [row for row, texts in enumerate(zip(table.operator, table.kernel, strict=True)) if any(texts)]
    most = step_ms if path is None else np.maximum(step_ms, path / 1e6)
    listed = sorted(sorted(named, key=lambda row: -most[row])[:_MOST_KERNELS])
    return tuple(
        LayerKernel(
            path=wording.encodable(tree.path[table.module[row]]),
            part=ModulePart(int(table.part[row])).name.lower(),
            operator=_short(table.operator[row]),
            kernel=_short(table.kernel[row]),
            source=Source(*source) if (source := names.source(_short(table.function[row]))) else None,
            step_ms=float(step_ms[row]),
            calls=float(calls[row]),
            longest_ms=float(table.step_ns[longest[row], row]) / 1e6,
            longest_rank=int(facts.job.ranks[longest[row]]),
            **(work.kernels.fields(row) if work else {}),
            **steps.of_kernel(row),
            critical_ms=None if path is None else float(path[row]) / 1e6,
        )
        for row in listed
    )


def _short(name: str) -> str:
    """A name as JSON holds it, without the end of one of thousands of letters."""
    return wording.encodable(name[:_MOST_LETTERS])
