"""Ask a job that trains for a capture, and print its verdict."""

from __future__ import annotations

import argparse
import sys
import time

from rich.console import Console
from rich.text import Text

from tb_ddp_doctor.capture.command import CaptureError, cancel, capture
from tb_ddp_doctor.capture.requests import Request, asked_by
from tb_ddp_doctor.capture.windows import parse_ranks
from tb_ddp_doctor.commands.output import complain
from tb_ddp_doctor.report.escape import printable, printable_lines

#: Iterations that are enough.
_DYNOLOG_STEPS = 3


def run(options: argparse.Namespace, errors: Console) -> int:
    """Ask, wait and print; 2 where no verdict comes."""
    ranks = None if options.ranks is None else parse_ranks(options.ranks)
    if options.dynolog:
        from tb_ddp_doctor.capture.dynolog import instructions

        if ranks is not None:
            raise ValueError("--dynolog captures all ranks of a node: --ranks needs a Doctor in the job.")
        steps = options.steps or _DYNOLOG_STEPS
        code = instructions(options.logdir, steps, stacks=options.stacks, memory=options.memory)
        sys.stdout.write(f"{printable_lines(code)}\n")
        return 0
    console = Console(highlight=False)

    def say(code: str) -> None:
        console.print(Text(printable(code)), soft_wrap=True)

    request = Request(time.time(), asked_by(), options.steps, ranks, options.stacks, options.memory)
    try:
        if options.cancel:
            cancel(options.logdir, say)
        else:
            capture(options.logdir, request, options.wait, say)
    except CaptureError as error:
        complain(errors, str(error))
        return 2
    return 0
