"""`ddp-doctor`: the doctor without TensorBoard."""

from __future__ import annotations

import argparse
import gc
import importlib
import io
import os
import sys
from collections.abc import Sequence

from tb_ddp_doctor.commands.answers import answered
from tb_ddp_doctor.commands.options import DESCRIPTION, WHERE_TO_BEGIN, parser
from tb_ddp_doctor.commands.output import Errors, complain, reason

#: What a command makes it mostly keeps: to look for garbage among it every 700 objects takes a tenth of its time.
_OBJECTS_BETWEEN_COLLECTIONS = 100_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status.

    0; 1 for `--fail-on...`; 2 for input that cannot be diagnosed; 3 for `--fail-on` where the traces cannot tell.
    """
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    options = parser().parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that knows fewer letters shows question marks.
            stream.reconfigure(errors="replace")
    errors = Errors()
    if sys.stdout is None:
        complain(errors, "standard output is closed: there is nowhere to print to.")
        return 2
    if options.command is None:
        sys.stdout.write(f"{DESCRIPTION}\n\n{WHERE_TO_BEGIN}\nddp-doctor --help lists all commands.\n")
        return 0
    try:
        status = answered(options, errors, lambda: _run(options, errors))
        sys.stdout.flush()
    except KeyboardInterrupt:
        complain(errors, "stopped.")
        return 130
    except BrokenPipeError:
        return _end_quietly()
    except SystemExit as exit_:
        # rich's own answer to a broken pipe, while it handles that: since 15 it exits with 1.
        if isinstance(exit_.__context__, BrokenPipeError):
            return _end_quietly()
        raise
    except (OSError, ValueError) as error:
        complain(errors, reason(error))
        return 2
    return status


def _run(options: argparse.Namespace, errors: Errors) -> int:
    """Run the command, of all that there are the only one that is imported."""
    from tb_ddp_doctor.workers import process_setup  # noqa: F401 - before anything imports numpy

    status: int = importlib.import_module(f"tb_ddp_doctor.commands.{options.command}").run(options, errors)
    return status


def _end_quietly() -> int:
    """Whoever reads the output has seen enough; what is left must not be flushed to them at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())
