"""Snapshots of `torch.cuda.memory`."""

from __future__ import annotations

from tb_ddp_doctor.discover.recorder import Beside

_KEYS = (b"segments", b"device_traces")


class MemorySnapshots(Beside):
    """Pickles of `torch.cuda.memory._snapshot()`; torchtitan's are `memory_snapshot/step_10/rank0_snapshot.pickle`."""

    name = "torch.cuda.memory"
    head_bytes = 4096
    within = "memory"
    depth = 3

    def matches(self, name: str) -> bool:
        return name.lower().endswith((".pickle", ".pkl"))

    def begins(self, head: bytes) -> bool:
        return head.startswith(b"\x80") and any(key in head for key in _KEYS)
