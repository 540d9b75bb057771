"""How fast NCCL's logs are read, in MB a CPU second: a made log of calls and choices, and a folder of real ones.

python benchmarks/nccl_logs.py [--gigabytes 1] [--logs /work/shared/traces/nccl_logs]

The made log is what NCCL_DEBUG=INFO with NCCL_DEBUG_SUBSYS=COLL,TUNING writes of two processes, two lines for each call
with addresses of its own. The real ones are read as they are, and repeated until there are 100 MB of them.
"""

from __future__ import annotations

import argparse
import random
import re
import tempfile
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from tb_ddp_doctor.nccl_logs.matching import NumberedCalls
from tb_ddp_doctor.nccl_logs.read import read_logs

_PIDS = (7, 8)
_CALLS = 100
_REPEATED_BYTES = 100_000_000


def made(size: int) -> Iterator[str]:
    """Lines of so many bytes in all."""
    chance = random.Random(0)
    kinds = ("AllReduce", "AllGather", "ReduceScatter")
    calls = [(chance.choice(kinds), chance.randrange(1, 1 << 24), chance.choice((7, 9))) for _ in range(_CALLS)]
    number = written = 0
    while written < size:
        kind, count, dtype = calls[number % _CALLS]
        for pid in _PIDS:
            begin = f"vm:{pid}:{pid} [{pid - _PIDS[0]}] NCCL INFO {kind}:"
            buffers = f"sendbuff 0x7f{chance.getrandbits(40):010x} recvbuff 0x7f{chance.getrandbits(40):010x}"
            text = (
                f"{begin} opCount {number:x} {buffers} count {count} datatype {dtype} op 0 root 0 "
                f"comm 0x55d7{pid}40cf0 [nranks=2] stream 0x5581{pid}0\n"
                f"{begin} {4 * count} Bytes -> Algo RING proto SIMPLE channel{{Lo..Hi}}={{0..15}}\n"
            )
            written += len(text)
            yield text
        number += 1


def _traced() -> Iterator[NumberedCalls]:
    """Some steps of the made log, as a trace of them would have it."""
    calls = {number: ("all_reduce", number) for number in range(3 * _CALLS, 6 * _CALLS)}
    yield from (NumberedCalls(str(pid), "default", calls) for pid in _PIDS)


def _measure(name: str, files: Collection[Path], pids: Collection[str]) -> None:
    size = sum(file.stat().st_size for file in files)
    with_lines = sum(file.read_bytes().count(b"\n") for file in files) if size < 1 << 30 else -1
    began = time.process_time()
    found = read_logs(files, pids, len(_PIDS), list(_traced()))
    taken = time.process_time() - began
    assert found is not None
    counted = f"{found.lines:,} lines" + (f" of {with_lines:,}" if with_lines >= 0 else "")
    print(f"{name:16} {size / 1e6:8,.1f} MB {taken:8.3f} CPU s {size / 1e6 / taken:6,.0f} MB a CPU s, {counted}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--logs", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "nccl.log"
        with path.open("w") as file:
            file.writelines(made(int(options.gigabytes * 1e9)))
        _measure("made", [path], [str(pid) for pid in _PIDS])
        if options.logs:
            files = sorted(options.logs.iterdir())
            pids = {number for file in files for number in re.findall(r"\d+", file.stem)}
            _measure("real", files, pids)
            text = b"".join(file.read_bytes() for file in files)
            path.write_bytes(text * (_REPEATED_BYTES // len(text) + 1))
            _measure("real, repeated", [path], pids)


if __name__ == "__main__":
    main()
