"""Events of a trace as torch writes them, for tests of what is not drawn (traces), and who reads a trace."""

from __future__ import annotations

from typing import Any

from tb_ddp_doctor.trace import native

#: What DDP_DOCTOR_READER may be here.
READERS = ["native", "msgspec"] if native.is_available() else ["msgspec"]


def event(category: str, name: str, start: float, length: float, tid: int, /, **args: Any) -> dict[str, Any]:
    """An event of process 1, on a thread or stream; µs."""
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "ts": start,
        "dur": length,
        "pid": 1,
        "tid": tid,
        "args": args,
    }
