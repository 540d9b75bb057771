"""DDP's walks of the autograd graph for parameters that a step does not use."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.model import GraphWalkWork, Steps
from tb_ddp_doctor.digest.steps import within
from tb_ddp_doctor.digest.sums import count, total
from tb_ddp_doctor.trace import names


def graph_walks(host: HostCalls, steps: Steps) -> GraphWalkWork:
    """The walks, by the step in whose host window each starts."""
    walks = np.flatnonzero(host.is_operator & host.named(names.is_graph_walk))
    step = within(host.start_ns[walks], steps)
    every, size = np.ones(len(walks), np.bool_), len(steps)
    return GraphWalkWork(
        graph_walks=count(step, every, size),
        graph_walk_ns=total(step, every, host.length_ns[walks], size),
    )
