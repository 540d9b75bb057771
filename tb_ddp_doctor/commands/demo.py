"""Open TensorBoard on two small jobs that come with the package."""

from __future__ import annotations

import argparse
import sys
import threading

from rich.console import Console

from tb_ddp_doctor.demo import FOLDER


def run(options: argparse.Namespace, errors: Console) -> int:  # noqa: ARG001 - as all commands
    """Serve until Ctrl-C; with --where print the log directory alone. Raises ValueError where TensorBoard cannot."""
    if options.where:
        sys.stdout.write(f"{FOLDER}\n")
        return 0
    from tensorboard import program

    port = [] if options.port is None else ["--port", str(options.port)]
    board = program.TensorBoard()
    board.configure(argv=["tensorboard", "--logdir", str(FOLDER), "--load_fast", "false", *port])
    try:
        address = board.launch()
    except program.TensorBoardServerException as error:
        raise ValueError(f"TensorBoard does not start: {error}") from None
    sys.stdout.write(
        f"{address}#ddp_doctor shows two jobs: straggler_cpu has a rank that sleeps in each step, zero_workers a "
        "DataLoader without workers.\n"
        f"The same in the terminal: ddp-doctor diagnose {FOLDER}\n"
        "Ctrl-C ends it.\n"
    )
    sys.stdout.flush()
    threading.Event().wait()
    return 0
