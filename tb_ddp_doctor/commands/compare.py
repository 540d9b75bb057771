"""Show what differs between two runs."""

from __future__ import annotations

import argparse
import sys
from functools import partial

from rich.console import Console

from tb_ddp_doctor import wording
from tb_ddp_doctor.commands.output import complain, print_json
from tb_ddp_doctor.commands.runs import cache_of, diagnosed
from tb_ddp_doctor.comparison.build import compare
from tb_ddp_doctor.comparison.model import Comparison
from tb_ddp_doctor.discover.runs import only_run, with_step_range
from tb_ddp_doctor.report import markdown, terminal
from tb_ddp_doctor.report.layers import LayersAsked, print_compared
from tb_ddp_doctor.storage.reach import Reach


def run(options: argparse.Namespace, errors: Console) -> int:
    """Compare the two runs; 1 for a regression beyond the limit, 2 where one of them cannot be diagnosed."""
    cache = cache_of(options)
    reach = partial(Reach, everywhere=options.everywhere)
    named = [only_run(location, peek=cache.peek, reach=reach) for location in (options.before, options.after)]
    runs = [with_step_range(run, options.step_range) for run in named]
    results = diagnosed(options, errors, cache, runs)
    if len(results) < 2:
        return 2
    comparison = compare(*results)
    if options.json:
        print_json(comparison)
    elif options.markdown:
        sys.stdout.buffer.write(markdown.comparison(comparison).encode("utf-8", errors="replace"))
    else:
        console = Console(highlight=False)
        terminal.compared(console, comparison)
        if options.layers:
            asked = LayersAsked(options.depth, kernels=options.kernels, bottom_up=options.bottom_up)
            print_compared(console, results[0], results[1], asked)
    return 1 if _regressed(comparison, options.fail_on_regression, errors) else 0


def _regressed(comparison: Comparison, limit: float | None, errors: Console) -> bool:
    """Whether the later run is slower than allowed; where it may be by chance it is not, and that is said."""
    if limit is None or comparison.step.change * 100 <= limit:
        return False
    more = wording.percent(comparison.step.change)
    if not comparison.step.tells:
        complain(errors, f"--fail-on-regression: steps take {more} longer, which may be noise: no failure.")
        return False
    complain(errors, f"--fail-on-regression: steps take {more} longer than before, and {limit:g} % are allowed.")
    return True
