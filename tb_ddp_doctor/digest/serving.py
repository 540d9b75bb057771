"""What a server's iterations work on, from their marks, and what its CPU does between them, from functions' names."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.intervals import Intervals
from tb_ddp_doctor.digest.model import ServingWork, Steps
from tb_ddp_doctor.digest.named_calls import over_named
from tb_ddp_doctor.digest.steps import iterations, within
from tb_ddp_doctor.digest.sums import count, total
from tb_ddp_doctor.trace.program_names import ServerWork, server_function, server_work


def serving_work(host: HostCalls, steps: Steps, busy: Intervals) -> ServingWork:
    """What each step's iterations work on, zeros for a program that marks none; `busy` is when the device is.

    Where no iteration is marked, a server's own Python functions alone say what the CPU does: annotations such as
    "Sample" may be any program's.
    """
    start, _, marks = iterations(host.trace)
    step, every, size = within(start, steps), np.ones(len(start), np.bool_), len(steps)
    prefills, decodes = (
        np.array([getattr(mark, kind) for mark in marks], np.int64) for kind in ("prefills", "decodes")
    )
    work_of = server_work if len(start) else server_function
    serves = len(start) > 0 or _has_functions(host)
    return ServingWork(
        iterations=count(step, every, size),
        prefills=total(step, every, prefills, size),
        decodes=total(step, every, decodes, size),
        idle_ns=_idle(host, steps, busy, work_of) if serves else np.zeros((size, len(ServerWork)), np.int64),
    )


def _has_functions(host: HostCalls) -> bool:
    """Whether any Python function is a server's."""
    strings, used = host.trace.strings, np.unique(host.trace.frames.name).tolist()
    return any(server_function(strings[index]) is not None for index in used)


def _idle(
    host: HostCalls, steps: Steps, busy: Intervals, work_of: Callable[[str], ServerWork | None]
) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Each of `ServerWork`, by `work_of` a name, while the device idles, shape (S, len(ServerWork)), ns.

    What lies within another counts as what is further down in the list, so that sampling within scheduling is sampling.
    """
    idle_ns = np.zeros((len(steps), len(ServerWork)), np.int64)
    taken = busy
    for kind in reversed(ServerWork):
        work = over_named(host, partial(_is, work_of, kind)) - taken
        idle_ns[:, kind] = work.measure(steps.host_start_ns, steps.host_end_ns)
        taken = taken | work
    return idle_ns


def _is(work_of: Callable[[str], ServerWork | None], kind: ServerWork, name: str) -> bool:
    return work_of(name) is kind
