"""Print what completes the command in a shell, by the package shtab."""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec

from rich.console import Console

from tb_ddp_doctor.commands.output import complain


def run(options: argparse.Namespace, errors: Console) -> int:
    """Print the script of a shell; 2 where shtab is not installed."""
    if find_spec("shtab") is None:
        complain(errors, "the package shtab is not installed: pip install 'tb-ddp-doctor[completion]'.")
        return 2
    import shtab

    from tb_ddp_doctor.commands.options import parser

    sys.stdout.write(shtab.complete(parser(), shell=options.shell) + "\n")
    return 0
