"""Captures of jobs without a Doctor, by Dynolog's daemons: the command for each node, and the configuration it sends.

The options and keys are those of `dyno gputrace` (facebookincubator/dynolog, cli/src/main.rs and commands/gputrace.rs).
"""

from __future__ import annotations

import shlex
from pathlib import Path

#: dyno stops at 3 processes by default: a node has more.
_PROCESSES = 1024
#: All ranks begin at the next multiple of it. Over the nodes, requests arrive seconds apart.
ROUNDUP = 1000


def instructions(logdir: Path, steps: int, *, stacks: bool, memory: bool) -> str:
    """What to type, and the configuration that Kineto gets of it, as text."""
    # Dynolog adds the process to the name; with the host before it, ranks of all nodes have names of their own.
    files = f"{logdir.absolute()}/libkineto_trace_"
    options = ["--record-shapes", *(["--with-stacks"] if stacks else []), *(["--profile-memory"] if memory else [])]
    command = [
        'dyno gputrace --job-id "${SLURM_JOB_ID:-0}"',
        f'--log-file {shlex.quote(files)}"$(hostname)".json',
        f"--iterations {steps} --profile-start-iteration-roundup {ROUNDUP} --process-limit {_PROCESSES}",
        " ".join(options),
    ]
    configuration = {
        "ACTIVITIES_LOG_FILE": f"{files}HOST.json",
        "PROFILE_START_ITERATION": 0,
        "PROFILE_START_ITERATION_ROUNDUP": ROUNDUP,
        "ACTIVITIES_ITERATIONS": steps,
        "PROFILE_REPORT_INPUT_SHAPES": "true",
        "PROFILE_PROFILE_MEMORY": str(memory).lower(),
        "PROFILE_WITH_STACK": str(stacks).lower(),
    }
    return "\n".join(
        [
            "# On every node: dynolog --enable_ipc_monitor. In the job's environment, before it starts:",
            "export KINETO_USE_DAEMON=1",
            "",
            f"# While it trains, on every node. Ranks record {steps} iterations from the next multiple of {ROUNDUP}",
            "# on: they count calls of optimizer.step(), which must be as many on each.",
            " \\\n    ".join(command),
            "",
            "# What that sends to Kineto:",
            *(f"#   {name}={value}" for name, value in configuration.items()),
            "",
            f"# Then: ddp-doctor diagnose {shlex.quote(str(logdir))}",
        ]
    )
