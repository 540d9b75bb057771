"""Makes the two jobs that the wheel brings for `ddp-doctor demo`: those of demo_logs, without what few read.

    python tests/make_demo.py

Flows between events, ids of the profiler's own and short ops that launch nothing take over half of a file. Verdicts
and costs stay (tests/test_demo.py). The bytes are the same wherever this runs with the same zlib.
"""

from __future__ import annotations

import gzip
import json
from bisect import bisect_right
from collections import defaultdict
from pathlib import Path
from typing import Any

from tb_ddp_doctor.demo import FOLDER, JOBS

ROOT = Path(__file__).parents[1]
#: Of an event's arguments what no rule asks for.
_UNUSED = {
    "Ev Idx", "Record function id", "Fwd thread id", "External id", "Sequence number", "context", "queued", "cbid",
    "Input Strides", "Concrete Inputs", "memory bandwidth (GB/s)", "registers per thread", "shared memory",
    "blocks per SM", "warps per SM", "python id",
}  # fmt: skip
#: Runtime calls that neither launch nor wait.
_QUESTIONS = {
    "cudaThreadExchangeStreamCaptureMode", "cudaEventQuery", "cudaGetErrorString", "cudaStreamIsCapturing",
    "cudaGetFuncBySymbol", "cudaPeekAtLastError", "cudaDeviceGetAttribute", "cudaPointerGetAttributes",
    "cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
}  # fmt: skip
#: An op that takes less, has no op within and launches nothing, is a view or a look at sizes, µs.
_SHORT_US = 12.0


def smaller(trace: dict[str, Any]) -> dict[str, Any]:
    """The trace without flows, unused arguments and short ops that launch nothing."""
    events = trace["traceEvents"]
    kept = [event for event in events if event["ph"] not in "stf" and event.get("name") not in _QUESTIONS]
    starts: defaultdict[Any, list[float]] = defaultdict(list)
    for event in kept:
        if event.get("cat") in ("cpu_op", "cuda_runtime", "cuda_driver"):
            starts[event["tid"]].append(event["ts"])
    for times in starts.values():
        times.sort()
    return {**trace, "traceEvents": [_lighter(event) for event in kept if not _is_short(event, starts)]}


def _is_short(event: dict[str, Any], starts: dict[Any, list[float]]) -> bool:
    if event.get("cat") != "cpu_op" or event["dur"] >= _SHORT_US or "Collective name" in event.get("args", {}):
        return False
    times = starts[event["tid"]]
    return bisect_right(times, event["ts"] + event["dur"]) - bisect_right(times, event["ts"]) == 0


def _lighter(event: dict[str, Any]) -> dict[str, Any]:
    args = {name: value for name, value in event.get("args", {}).items() if name not in _UNUSED}
    return {**event, "args": args} if "args" in event else event


def main() -> None:
    for name in JOBS:
        folder = FOLDER / name
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted((ROOT / "demo_logs" / name).iterdir()):
            made = smaller(json.loads(gzip.decompress(path.read_bytes())))
            text = json.dumps(made, separators=(",", ":")).encode()
            (folder / path.name).write_bytes(gzip.compress(text, 9, mtime=0))


if __name__ == "__main__":
    main()
