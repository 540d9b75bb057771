"""What a server's iterations work on, from marks or kernels, and what its CPU does between them, from functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from tb_ddp_doctor.digest.columns import searchsorted
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.intervals import Intervals
from tb_ddp_doctor.digest.model import ServingWork, Steps
from tb_ddp_doctor.digest.named_calls import over_named
from tb_ddp_doctor.digest.steps import iterations, within
from tb_ddp_doctor.digest.sums import count, total
from tb_ddp_doctor.trace.model import Ints
from tb_ddp_doctor.trace.program_names import (
    ServerWork,
    blocks,
    checks_itself_idle,
    loops,
    server_function,
    server_work,
    sleeps,
    takes_requests,
)


def serving_work(host: HostCalls, steps: Steps, busy: Intervals, by_kernels: tuple[Ints, Ints]) -> ServingWork:
    """What each step's iterations work on, zeros for a program that does not serve; `busy` is when the device is.

    Where no iteration is marked, kernels tell which read prompts and which answer (`by_kernels`, as `attended` has
    it), and a server's own Python functions alone say what the CPU does: annotations such as "Sample" may be any
    program's.
    """
    start, end, marks = iterations(host.trace)
    step, every, size = within(start, steps), np.ones(len(start), np.bool_), len(steps)
    # What the first sync of a record awaits belongs to no step, but the mark may begin there.
    step = np.where(step < 0, within(end - 1, steps), step)
    prefills, decodes = (
        total(step, every, np.array([getattr(mark, kind) for mark in marks], np.int64), size)
        for kind in ("prefills", "decodes")
    )
    reads, writes = ((prefills > 0).astype(np.int64), (decodes > 0).astype(np.int64)) if marks else by_kernels
    work_of = server_work if marks else server_function
    serves = len(marks) > 0 or _has_functions(host)
    return ServingWork(
        iterations=count(step, every, size),
        prefills=prefills,
        decodes=decodes,
        reads=reads,
        writes=writes,
        idle_ns=_idle(host, steps, busy, work_of) if serves else np.zeros((size, len(ServerWork)), np.int64),
    )


def _has_functions(host: HostCalls) -> bool:
    """Whether any Python function is a server's."""
    strings, used = host.trace.strings, np.unique(host.trace.frames.name).tolist()
    tests = (server_function, takes_requests, checks_itself_idle, loops)
    return any(test(strings[index]) not in (None, False) for index in used for test in tests)


def _idle(
    host: HostCalls, steps: Steps, busy: Intervals, work_of: Callable[[str], ServerWork | None]
) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Each of `ServerWork`, by `work_of` a name, while the device idles, shape (S, len(ServerWork)), ns.

    What lies within another counts as what is further down in the list, so that sampling within scheduling is sampling.
    """
    idle_ns = np.zeros((len(steps), len(ServerWork)), np.int64)
    taken = busy
    for kind in reversed(ServerWork):
        waits = kind is ServerWork.WAITING
        work = (_waiting(host) if waits else over_named(host, partial(_is, work_of, kind))) - taken
        idle_ns[:, kind] = work.measure(steps.host_start_ns, steps.host_end_ns)
        taken = taken | work
    return idle_ns


def _waiting(host: HostCalls) -> Intervals:
    """When the server waits for requests, as its Python functions tell it.

    It is blocked in a function that takes requests, it sleeps in its loop, or it looks for requests again and again:
    then it waits from one check of itself to the next, if it launches nothing between.

        server functions  [take requests.........][schedule]    [idle check] [idle check] [idle check]  [schedule]
        built-in             [acquire..........]
        waits                ^^^^^^^^^^^^^^^^^^^                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    """
    checks = over_named(host, checks_itself_idle)
    launches = np.sort(host.start_ns[host.is_runtime])
    idle = np.diff(searchsorted(launches, checks.start)) == 0
    return (
        (over_named(host, takes_requests) & over_named(host, blocks))
        | (over_named(host, loops) & over_named(host, sleeps))
        | Intervals.union(np.append(checks.start, checks.start[:-1][idle]), np.append(checks.end, checks.end[1:][idle]))
    )


def _is(work_of: Callable[[str], ServerWork | None], kind: ServerWork, name: str) -> bool:
    return work_of(name) is kind
