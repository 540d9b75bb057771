"""What the check takes, as the module and as `ddp-doctor check`."""

from __future__ import annotations

import argparse
from pathlib import Path

from tb_ddp_doctor.choices import flag, number
from tb_ddp_doctor.discover.calibration_name import CALIBRATION_NAME

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help=f"write {CALIBRATION_NAME} there, beside a job's traces"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write a page with pictures, as one file")
    flag(parser, "--json", "print JSON, and nothing else, on standard output")
    parser.add_argument(
        "--fail-on",
        type=number("percent", unit="%"),
        metavar="PCT",
        help="exit with 1 if a rank or a pair is an outlier, by at least so many percent; 0 takes every outlier",
    )
    parser.add_argument(
        "--seconds",
        type=number("seconds", above=True),
        default=30.0,
        metavar="SECONDS",
        help="measure collectives and pairs of ranks for so long (default: %(default)g)",
    )
    parser.add_argument(
        "--patience",
        type=number("seconds", above=True),
        default=30.0,
        metavar="SECONDS",
        help="give up on a rank that is silent for so long (default: %(default)g)",
    )
    parser.add_argument(
        "--max-bytes", type=_bytes, default=1 << 30, metavar="SIZE", help="largest message, such as 64M (default: 1G)"
    )
    parser.add_argument(
        "--repeat",
        type=number("seconds", above=True),
        default=0.2,
        metavar="SECONDS",
        help="length of one repeat of what each rank measures by itself (default: %(default)g)",
    )
    parser.add_argument(
        "--backend",
        metavar="NAME",
        help="torch's backend of collectives: nccl, gloo or mpi (default: nccl on GPUs, else gloo)",
    )
    flag(parser, "--cpu", "measure CPUs where there are GPUs, too")


def command_line(parser: argparse.ArgumentParser, options: argparse.Namespace) -> list[str]:
    """The command line that gives the module these options; `parser` is one that has them."""
    arguments: list[str] = []
    for action in parser._actions:
        value = getattr(options, action.dest, action.default)
        if value != action.default:
            arguments += [action.option_strings[-1], *([] if action.nargs == 0 else [str(value)])]
    return arguments


def _bytes(text: str) -> int:
    unit = _UNITS.get(text[-1:].upper(), 1)
    digits = text[:-1] if unit > 1 else text
    size = int(digits) * unit if digits.isdecimal() else 0
    if not 0 < size <= 1 << 40:
        raise argparse.ArgumentTypeError(f"takes a size up to 1024G, such as 64M, not {text!r}")
    return size
