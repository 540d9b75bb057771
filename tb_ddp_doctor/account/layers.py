"""The model's modules as rows of a table: where in the model a step's time goes, over all ranks."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.facts import Facts
from tb_ddp_doctor.facts.modules import ModulePart, in_order, module_tree
from tb_ddp_doctor.findings import LayerRow, LayerTable

#: A module has a row only if on some rank it takes at least this share of the step.
LEAST_SHARE = 0.001
#: At most this many modules have a row: those with most time.
_MOST_ROWS = 256


def layer_table(facts: Facts) -> LayerTable | None:
    """The modules with most time, parents before their children; None where no trace shows any."""
    tree = facts.get(module_tree)
    if tree is None:
        return None
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
        )
        for module in in_order(tree)
        if listed[module]
    ]
    return LayerTable(named_by=tree.named_by, layer_events=tree.layer_events, rows=tuple(rows))
