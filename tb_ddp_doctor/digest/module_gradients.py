"""How many elements the gradients of each of a rank's modules have, which is what an optimizer has to update of it.

autograd adds to a parameter's gradient ("torch::autograd::AccumulateGrad") right behind the node that made it, and that
node is of the module whose forward used the parameter:

    backward  [AddmmBackward0][AccumulateGrad [4096, 1024]][TBackward0] ...
              of layers.3.mlp  of layers.3.mlp: 4,194,304 elements
"""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest.collectives import count_elements
from tb_ddp_doctor.digest.columns import distinct
from tb_ddp_doctor.digest.model import ModuleGradients, Steps
from tb_ddp_doctor.digest.module_paths import ROOT, ModuleCalls
from tb_ddp_doctor.digest.steps import within
from tb_ddp_doctor.digest.sums import summed
from tb_ddp_doctor.storage.column_table import empty
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Ints


def module_gradients(calls: ModuleCalls, steps: Steps, place: Ints, modules: int) -> ModuleGradients:
    """The gradients of the modules that are kept; `place` is which of them each module of `calls` counts for.

    Empty unless the trace has shapes and names modules.
    """
    host = calls.host
    adds = np.flatnonzero(host.is_operator & host.named(names.accumulates_gradient))
    adds = adds[within(host.start_ns[adds], steps) >= 0]
    if len(calls.table) <= ROOT + 1 or not len(adds):
        return empty(ModuleGradients)
    shapes, which = distinct(host.shape[adds] + 1, len(host.trace.strings) + 1)
    texts = (host.trace.strings[shape - 1] if shape else "" for shape in shapes.tolist())
    elements = np.array([count_elements(text) for text in texts], np.int64)[which]
    adds, elements = adds[elements > 0], elements[elements > 0]
    # An addition counts for the node before it (`autograd_nodes.nodes`), and so it does to `at`.
    total = summed(place[calls.at(host.start_ns[adds], host.thread[adds])], elements, modules)
    used = np.flatnonzero(total)
    return ModuleGradients(used.astype(np.int32), total[used])
