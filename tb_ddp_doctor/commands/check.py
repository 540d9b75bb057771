"""Measure what the ranks of this machine, and the links between them, can do: `tb_ddp_doctor.check` on each rank."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec

from rich.console import Console

from tb_ddp_doctor.check.options import add_options, command_line
from tb_ddp_doctor.commands.output import complain

#: The program of a rank.
PROGRAM = (sys.executable, "-m", "tb_ddp_doctor.check")
#: When the first rank has ended, all has been said: the others get so long, s.
_LAST_S = 10.0


def run(options: argparse.Namespace, errors: Console) -> int:
    """Start the ranks and wait for them; the exit status is that of the first one, which reports."""
    if find_spec("torch") is None:
        complain(errors, "PyTorch is not installed here: the check runs in the environment of your job.")
        return 2
    parser = argparse.ArgumentParser()
    add_options(parser)
    command = [*PROGRAM, *command_line(parser, options)]
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        environment = environments(os.environ, options.ranks)
        ranks.extend(subprocess.Popen(command, env=one) for one in environment)  # noqa: S603 - our own module
        return ranks[0].wait()
    except KeyboardInterrupt:
        # The ranks have got it too.
        return 128 + signal.SIGINT
    finally:
        for rank in ranks:
            with contextlib.suppress(subprocess.TimeoutExpired):
                rank.wait(timeout=_LAST_S)
            rank.kill()
            rank.wait()


def environments(given: Mapping[str, str], ranks: int) -> Iterator[Mapping[str, str]]:
    """The environment of each rank, as torchrun makes it on one machine."""
    if ranks == 1:
        yield given
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for rank in range(ranks):
        yield {
            # As torchrun says: several ranks with a thread for each core would slow each other down.
            "OMP_NUM_THREADS": "1",
            **given,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
            "GROUP_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
