"""What a server's iterations work on, from their marks, and what its CPU does between them, from functions' names."""

from __future__ import annotations

from functools import partial

import numpy as np

from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.intervals import Intervals
from tb_ddp_doctor.digest.model import ServingWork, Steps
from tb_ddp_doctor.digest.named_calls import over_named
from tb_ddp_doctor.digest.steps import iterations, within
from tb_ddp_doctor.digest.sums import count, total
from tb_ddp_doctor.trace.program_names import ServerWork, server_work


def serving_work(host: HostCalls, steps: Steps, busy: Intervals) -> ServingWork:
    """What each step's iterations work on, zeros for a program that marks none; `busy` is when the device is."""
    start, _, marks = iterations(host.trace)
    step, every, size = within(start, steps), np.ones(len(start), np.bool_), len(steps)
    prefills, decodes = (
        np.array([getattr(mark, kind) for mark in marks], np.int64) for kind in ("prefills", "decodes")
    )
    return ServingWork(
        iterations=count(step, every, size),
        prefills=total(step, every, prefills, size),
        decodes=total(step, every, decodes, size),
        idle_ns=_idle(host, steps, busy) if len(start) else np.zeros((size, len(ServerWork)), np.int64),
    )


def _idle(host: HostCalls, steps: Steps, busy: Intervals) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Each of `ServerWork` while the device idles, shape (S, len(ServerWork)), ns: what lies within another counts as
    what is further down in the list, so that sampling within scheduling is sampling.
    """
    idle_ns = np.zeros((len(steps), len(ServerWork)), np.int64)
    taken = busy
    for kind in reversed(ServerWork):
        work = over_named(host, partial(_is, kind)) - taken
        idle_ns[:, kind] = work.measure(steps.host_start_ns, steps.host_end_ns)
        taken = taken | work
    return idle_ns


def _is(kind: ServerWork, name: str) -> bool:
    return server_work(name) is kind
