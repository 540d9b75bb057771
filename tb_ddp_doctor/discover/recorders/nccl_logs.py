"""NCCL's logs (NCCL_DEBUG=INFO), and other texts that say something of ranks: nvidia-smi, DCGM, py-spy."""

from __future__ import annotations

import re

from tb_ddp_doctor.discover.recorder import Beside
from tb_ddp_doctor.discover.recorders.torch_traces import is_torch_trace

_TEXT = (".log", ".txt", ".out", ".err")
_NO_TEXT = (".json", ".gz", ".zst", ".xml", ".so", ".py", ".pb", ".bin", ".pt", ".digest", ".csv", ".whl", ".deb")
#: What NCCL's example profiler plugin calls its files: $NCCL_PROFILE_DUMP_FILE, the communicator and its rank.
_PROFILE = re.compile(r"[_-][0-9a-f]{1,20}[_-]\d{1,7}\.json$")


class NcclLogs(Beside):
    """Files with "nccl" in their name, and other `.log`, `.txt`, `.out` and `.err`, such as a job's own output.

    And what NCCL's example profiler plugin wrote.
    """

    name = "NCCL"
    within = "nccl"
    depth = 1

    def matches(self, name: str) -> bool:
        name = name.lower()
        if is_torch_trace(name):
            return False
        is_text = name.endswith(_TEXT) or ("nccl" in name and not name.endswith(_NO_TEXT))
        return is_text or _PROFILE.search(name) is not None
