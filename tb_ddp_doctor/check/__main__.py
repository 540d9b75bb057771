"""`torchrun ... -m tb_ddp_doctor.check`: measures all ranks, and the links between them, in about a minute."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.text import Text

from tb_ddp_doctor.calibration.model import Calibration
from tb_ddp_doctor.check.options import add_options
from tb_ddp_doctor.choices import Parser
from tb_ddp_doctor.discover.calibration_name import CALIBRATION_NAME
from tb_ddp_doctor.report.calibration import page, printed
from tb_ddp_doctor.report.escape import printable, printable_json
from tb_ddp_doctor.storage.whole_file import check_output, written_whole


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one rank; returns the exit status.

    0; 1 for `--fail-on`; 2 for options or an environment that nothing can be measured in; 3 if a rank did not answer.
    """
    options = _parser().parse_args(arguments)
    # Read when torch is imported. What its store and gloo say of a rank that does not answer is said in a sentence.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    from tb_ddp_doctor.check.run import LaunchedProcess, Options, run

    # Under a launcher, standard error is shared by all ranks.
    logging.basicConfig(level=logging.WARNING)
    errors = Console(stderr=True, highlight=False)
    launched = LaunchedProcess.here(os.environ)

    def tell(calibration: Calibration) -> int:
        return _print_results(calibration, options, errors)

    chosen = Options(
        backend=options.backend,
        cpu=options.cpu,
        seconds=options.seconds,
        patience_s=options.patience,
        most_bytes=options.max_bytes,
        window_s=options.repeat,
    )
    try:
        if options.html and launched.rank == 0:
            # Now, not after a minute of measuring.
            check_output(options.html)
        return run(launched, chosen, tell)
    except KeyboardInterrupt:
        return 130
    except (OSError, ValueError, RuntimeError) as error:
        errors.print(Text(f"tb_ddp_doctor.check: {printable(str(error).partition(chr(10))[0])}"), soft_wrap=True)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="torchrun ... -m tb_ddp_doctor.check",
        description="Measures what each rank and the links between ranks can do, and names outliers.",
    )
    add_options(parser)
    return parser


def _print_results(calibration: Calibration, options: argparse.Namespace, errors: Console) -> int:
    """Write and print what was found, on the one rank that does; returns the exit status."""
    if options.output:
        path = options.output / CALIBRATION_NAME
        with written_whole(path) as file:
            file.write(msgspec.json.format(msgspec.json.encode(calibration)))
        errors.print(Text(printable(f"{path}: calibration of {calibration.world_size} ranks")), soft_wrap=True)
    if options.html:
        options.html.write_text(page(calibration), encoding="utf-8")
        errors.print(Text(printable(f"{options.html}: the same with pictures")), soft_wrap=True)
    if options.json:
        sys.stdout.buffer.write(printable_json(calibration))
    else:
        printed(Console(highlight=False), calibration)
    sys.stdout.flush()
    if calibration.no_answer:
        return 3
    if options.fail_on is not None and any(one.worse >= options.fail_on / 100 for one in calibration.outliers):
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
