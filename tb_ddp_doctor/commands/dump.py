"""Ask a job that hangs now where its ranks are."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from rich.console import Console

from tb_ddp_doctor.capture.directory import CONTROL_FOLDER
from tb_ddp_doctor.capture.hang import HANG_FOLDER, answers, ask
from tb_ddp_doctor.commands.output import complain
from tb_ddp_doctor.report.escape import printable_lines

_POLL_S = 0.5

_BY_HAND = """\
On each host, for each rank, as the job's user (in a container: --cap-add SYS_PTRACE):

mkdir -p {folder}
py-spy dump --native --pid PID > {folder}/rank_RANK.stacks.txt

Then: ddp-doctor diagnose {folder}"""


def run(options: argparse.Namespace, errors: Console) -> int:
    """Ask, wait for the ranks, and say what to do next; 2 where none answers."""
    logdir = Path(options.logdir)
    folder = logdir / HANG_FOLDER

    def by_hand(sentence: str) -> None:
        complain(errors, sentence)
        sys.stdout.write(f"{printable_lines(_BY_HAND.format(folder=folder))}\n")

    if not logdir.is_dir():
        raise ValueError(f"There is no folder {logdir}: name the one that the job gave its Doctor.")
    if not (logdir / CONTROL_FOLDER).is_dir():
        by_hand(
            f"No job with a Doctor has used {logdir}: name the folder that the job gave its Doctor. Where the job has "
            "none, py-spy shows where each rank is."
        )
        return 2
    request = ask(logdir)
    until = time.monotonic() + options.wait
    ranks, world_size = answers(logdir, request)
    while (world_size is None or len(ranks) < world_size) and time.monotonic() < until:
        time.sleep(_POLL_S)
        ranks, world_size = answers(logdir, request)
    if world_size is None:
        by_hand(
            f"No rank answered within {options.wait:g} s: the job has ended, or all ranks are in C code that keeps "
            "Python's lock (GIL). py-spy shows the latter."
        )
        return 2
    sys.stdout.write(f"{len(ranks)} of {world_size} ranks wrote where they are. Now: ddp-doctor diagnose {folder}\n")
    if silent := sorted(set(range(world_size)) - ranks):
        named = ", ".join(map(str, silent[:16])) + (" ..." if len(silent) > 16 else "")
        by_hand(
            f"Ranks that did not answer: {named}. They have ended, or are in C code that keeps Python's lock (GIL). "
            "py-spy shows the latter."
        )
    return 0
