"""What ran on the devices: kernels, copies and memsets, named as Kineto names them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tb_ddp_doctor.nsys import database as tables
from tb_ddp_doctor.trace.args import MISSING
from tb_ddp_doctor.trace.model import Category, Indices, Ints
from tb_ddp_doctor.trace.nsys.rows import EventRows, Memo

_COLUMNS = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
#: Each column costs a tenth of what a row does: some numbers are packed in one.
_LAUNCHED = ("(deviceId << 32) | streamId", "coalesce(correlationId, -1)")
_COPY_KINDS = {
    0: "Unknown", 1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH",
    10: "PtoP", 11: "HtoD", 12: "DtoH", 13: "DtoD",
}  # fmt: skip
_MEMORY_KINDS = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device Static",
                 6: "Managed Static", 7: "Unknown"}  # fmt: skip


def add_kernels(rows: EventRows) -> None:
    """Kernels, with their grids as shapes."""
    name = next((one for one in ("demangledName", "shortName") if rows.has(tables.KERNEL, one)), "0")
    has_grid = rows.has(tables.KERNEL, "gridX", "gridY", "gridZ")
    grid = "(gridX << 32) | (gridY << 16) | gridZ" if has_grid else "-1"
    grids = Memo(lambda packed: rows.shapes[_grid(packed)])
    _add(rows, Category.KERNEL, tables.KERNEL, name, rows.names().of, shape=(grid, grids.of))


def add_copies(rows: EventRows) -> None:
    """Copies and memsets, named for what they connect."""
    memory = dict(_MEMORY_KINDS)
    for number, label in rows.database.labels("ENUM_CUDA_MEM_KIND").items():
        memory[number] = label.rpartition("KIND_")[2].replace("_", " ").title()

    def copied(key: int) -> int:
        source, target = memory.get(key >> 8 & 0xFF, "Unknown"), memory.get(key & 0xFF, "Unknown")
        return rows.strings[f"Memcpy {_COPY_KINDS.get(key >> 16, 'Unknown')} ({source} -> {target})"]

    def was_set(key: int) -> int:
        return rows.strings[f"Memset ({memory.get(key, 'Unknown')})"]

    copy_key = "(copyKind << 16) | (coalesce(srcKind, 7) << 8) | coalesce(dstKind, 7)"
    set_key = "coalesce(memKind, 7)" if rows.has(tables.MEMSET, "memKind") else "7"
    for category, table, key, named in (
        (Category.MEMCPY, tables.MEMCPY, copy_key, copied),
        (Category.MEMSET, tables.MEMSET, set_key, was_set),
    ):
        if rows.has(table, "bytes"):
            _add(rows, category, table, key, Memo(named).of, bytes=("bytes", None))


def _add(
    rows: EventRows,
    category: Category,
    table: str,
    name: str,
    named: Callable[[Ints], Indices],
    **further: tuple[str, Callable[[Ints], Indices] | None],
) -> None:
    """The rows of a table, each named by what a column holds; further columns by name, with what they become."""
    if not rows.has(table, *_COLUMNS):
        return
    columns = (*_LAUNCHED, name, *(sql for sql, _ in further.values()))
    for start, length, stream, correlation, text, *more in rows.integers(table, columns, rows.of_process):
        rows.add(
            category,
            start,
            length,
            name=named(text),
            thread=rows.of_stream(stream),
            device=stream >> 32,
            stream=np.where(stream < 0, MISSING, stream & 0xFFFFFFFF),
            correlation=correlation,
            **{
                column: change(values) if change else values
                for (column, (_, change)), values in zip(further.items(), more, strict=True)
            },
        )


def _grid(packed: int) -> bytes:
    return f"[{packed >> 32}, {packed >> 16 & 0xFFFF}, {packed & 0xFFFF}]".encode() if packed >= 0 else b""
