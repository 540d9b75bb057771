"""Snapshots of `torch.cuda.memory`."""

from __future__ import annotations

import re
import zlib

from tb_ddp_doctor.discover.recorder import Beside

_KEYS = (b"segments", b"device_traces")
_NAME = re.compile(r".*\.(?:pickle|pkl)(?:\.gz)?", re.IGNORECASE | re.DOTALL)
_GZIP = b"\x1f\x8b"


class MemorySnapshots(Beside):
    """Pickles of `torch.cuda.memory._snapshot()`; torchtitan's are `memory_snapshot/step_10/rank0_snapshot.pickle`."""

    name = "torch.cuda.memory"
    head_bytes = 4096
    within = "memory"
    depth = 3

    def matches(self, name: str) -> bool:
        return _NAME.fullmatch(name) is not None

    def begins(self, head: bytes) -> bool:
        if head.startswith(_GZIP):
            try:
                head = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, self.head_bytes)
            except zlib.error:
                return False
        return head.startswith(b"\x80") and any(key in head for key in _KEYS)
