"""Kernels that the host launched in each ProfilerStep, and those of them that the trace lacks."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest.launches import enclosing
from tb_ddp_doctor.digest.model import LostKernels
from tb_ddp_doctor.digest.owners import named
from tb_ddp_doctor.digest.steps import NO_STEP, step_of
from tb_ddp_doctor.digest.sums import count
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Category, Ints, RankTrace


def lost_kernels(trace: RankTrace, number: Ints, host_start_ns: Ints, host_end_ns: Ints, rows: Ints) -> LostKernels:
    """Of the steps with these numbers and host windows; `rows` are the device's events.

    What is launched inside `record_param_comms` is communication. Launches of CUDA graphs are not counted.
    """
    events = trace.events
    calls = np.flatnonzero((events.category == Category.RUNTIME) & (events.correlation >= 0))
    calls = calls[named(trace, names.launches_kernel)[calls]]
    start = events.start_ns[calls]
    step = np.where(start < host_end_ns[-1], step_of(start, host_start_ns), -1)
    comms = trace.comms.event
    begin = events.start_ns[comms]
    around = enclosing(begin, begin + events.duration_ns[comms], events.thread[comms], start, events.thread[calls])
    communicates = around >= 0
    lost = ~np.isin(events.correlation[calls], events.correlation[rows])
    size = len(number)
    columns = {
        "launches": count(step, np.ones(len(calls), np.bool_), size),
        "lost": count(step, lost, size),
        "communications": count(step, communicates, size),
        "lost_communications": count(step, communicates & lost, size),
    }
    known = number != NO_STEP
    return LostKernels(number=number[known], **{name: column[known] for name, column in columns.items()})


def without_device(number: Ints) -> LostKernels:
    """Of a trace without device events, in which no launch can be missed."""
    return LostKernels(number, *(np.zeros(len(number), np.int64) for _ in range(4)))
