"""What the host calls: the runtime and the driver, and the profiler's own work, named as Kineto names them."""

from __future__ import annotations

import re

from tb_ddp_doctor.nsys import database as tables
from tb_ddp_doctor.trace.model import Category
from tb_ddp_doctor.trace.nsys.rows import EventRows, Memo

#: Kineto's names of the profiler's own work, by the end of Nsight Systems'.
_OVERHEADS = {
    "DRIVER_COMPILER": "Driver Compiler",
    "BUFFER_FLUSH": "Buffer Flush",
    "INSTRUMENTATION": "Instrumentation",
    "RESOURCE": "Resource",
    "RUNTIME_TRIGGERED_MODULE_LOADING": "Runtime Triggered Module Loading",
    "LAZY_FUNCTION_LOADING": "Lazy Function Loading",
    "COMMAND_BUFFER_FULL": "Command Buffer Full",
}
#: Calls that Kineto leaves out, since they tell nothing.
_LEFT_OUT = {
    "cudaGetDevice", "cudaSetDevice", "cudaGetLastError", "cudaEventCreate", "cudaEventCreateWithFlags",
    "cudaEventDestroy",
}  # fmt: skip
_VERSION = re.compile(r"_v\d+$")


def add_runtime(rows: EventRows) -> None:
    """Calls of the runtime and the driver."""
    table = tables.RUNTIME
    if not rows.has(table, "start", "end", "globalTid", "correlationId", "nameId"):
        return
    texts, left_out = rows.names(_call), rows.strings[""]
    columns = ("globalTid", "coalesce(correlationId, -1)", "nameId")
    for start, length, thread, correlation, text in rows.integers(table, columns, rows.of_threads):
        name = texts.of(text)
        kept = name != left_out
        rows.add(
            Category.RUNTIME,
            start[kept],
            length[kept],
            name=name[kept],
            thread=rows.of_host(thread[kept]),
            correlation=correlation[kept],
        )


def add_overhead(rows: EventRows) -> None:
    """What the profiler takes for itself."""
    table = tables.OVERHEAD
    if not rows.has(table, "start", "end", "globalTid", "overheadType"):
        return
    labels = rows.database.labels("ENUM_CUPTI_OVERHEAD_TYPE")

    def named(kind: int) -> int:
        label = labels.get(kind, "")
        return rows.strings[next((name for end, name in _OVERHEADS.items() if label.endswith(end)), "Unknown")]

    kinds = Memo(named)
    for start, length, thread, kind in rows.integers(table, ("globalTid", "overheadType"), rows.of_threads):
        rows.add(Category.OVERHEAD, start, length, name=kinds.of(kind), thread=rows.of_host(thread))


def _call(name: str) -> str:
    """A call's name without its version; "" for one that is left out."""
    name = _VERSION.sub("", name)
    return "" if name in _LEFT_OUT else name
