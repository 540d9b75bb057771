"""The modules of the model in two runs, as one tree: where in the model a step became longer or shorter."""

from __future__ import annotations

from collections.abc import Iterator

from tb_ddp_doctor.comparison.model import ModuleChange
from tb_ddp_doctor.findings import LayerRow, LayerTable


def modules(before: LayerTable | None, after: LayerTable | None) -> tuple[ModuleChange, ...]:
    """The modules of both runs by path, each followed by those within it; () where other things name them."""
    if before is None or after is None or before.named_by != after.named_by:
        return ()
    was, now = ({row.path: row for row in table.rows} for table in (before, after))
    return tuple(
        ModuleChange(row.path, row.level, _step_ms(was.get(row.path)), _step_ms(now.get(row.path)))
        for row in _joined(before.rows, after.rows)
    )


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
