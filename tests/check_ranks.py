"""Checks on CPUs over gloo, one after the other: torch is imported once, and ranks are forked from there.

    python check_ranks.py FOLDER CHECKS

CHECKS is JSON: by name, how many ranks, those that never start, and the command's options. FOLDER/NAME gets what each
rank says (`rank0.out`, `rank0.err`), its process (`pid0`) and, once it has ended, its exit status (`exit0`).
`test_check` runs it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # as the command does before it imports torch

import tb_ddp_doctor.check.run  # noqa: F401
from tb_ddp_doctor.check.__main__ import main as check


def be_rank(folder: Path, rank: int, environ: dict[str, str], options: Sequence[str]) -> None:
    """Be a rank of a check, to the end of this process."""
    for descriptor, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / f"rank{rank}.{name}", os.O_WRONLY | os.O_CREAT, 0o600), descriptor)
    os.environ |= environ | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    status = 1
    try:
        status = check(options)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def run(folder: Path, ranks: int, absent: Sequence[int], options: Sequence[str]) -> None:
    """Run a check, to the end of all its ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environ = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    pids = {}
    for rank in sorted({*range(ranks)} - {*absent}):
        pids[rank] = os.fork()
        if not pids[rank]:
            be_rank(folder, rank, environ, options)
        leave(folder / f"pid{rank}", pids[rank])
    for rank, pid in pids.items():
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        leave(folder / f"exit{rank}", status)


def leave(path: Path, number: int) -> None:
    """Write a number for the test, which reads it as soon as there is such a file."""
    unfinished = path.with_name("unfinished")
    unfinished.write_text(str(number))
    unfinished.rename(path)


def main() -> None:
    for name, (ranks, absent, options) in json.loads(sys.argv[2]).items():
        folder = Path(sys.argv[1]) / name
        folder.mkdir()
        run(folder, ranks, absent, options)


if __name__ == "__main__":
    main()
