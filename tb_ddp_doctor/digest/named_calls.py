"""When calls and Python functions of some names run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.intervals import Intervals
from tb_ddp_doctor.digest.vocabulary import Names


def over_named(host: HostCalls, test: Callable[[str], bool]) -> Intervals:
    """When operators and annotations of some names run on the training threads, or Python functions on any."""
    calls = host.trains & (host.is_operator | host.is_annotation) & host.named(test)
    frames = host.trace.frames
    functions = Names(host.trace.strings, frames.name).among(frames.name, test)
    return Intervals.union(
        np.concatenate((host.start_ns[calls], frames.start_ns[functions])),
        np.concatenate((host.end_ns[calls], frames.start_ns[functions] + frames.duration_ns[functions])),
    )
