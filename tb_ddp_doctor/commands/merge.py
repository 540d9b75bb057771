"""Write the traces of all ranks as one."""

from __future__ import annotations

import argparse

import msgspec
from rich.console import Console

from tb_ddp_doctor.commands.output import counted, progress, say_written
from tb_ddp_doctor.commands.runs import one_result
from tb_ddp_doctor.slices import cut, files


def run(options: argparse.Namespace, errors: Console) -> int:
    """Write the traces."""
    cache, result = one_result(options, errors)
    ranks = result.job.ranks
    part = cut.cut(result, cache, cut.whole(result.job), most_events=None)
    with progress(errors) as counting:
        parts = counted(part.ranks, counting("Writing", len(ranks)))
        files.save(msgspec.structs.replace(part, ranks=parts), options.output)
    say_written(errors, options.output, f"{len(ranks)} ranks of {result.diagnosis.name}")
    return 0
