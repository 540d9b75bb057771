"""What small collectives outside of the backward pass are for, as far as the trace shows it.

DDP sends its buffers in forward (`broadcast_buffers`), `clip_grad_norm_` adds up the ranks' norms before the optimizer,
and training loops reduce a loss or a metric. Each is small, so what it takes is latency and waiting for the last rank.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tb_ddp_doctor.digest import owners
from tb_ddp_doctor.digest.collectives import Vocabulary
from tb_ddp_doctor.digest.model import Collectives
from tb_ddp_doctor.digest.phases import HostPhases
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Category, Ints, RankTrace

#: Elements of a reduced norm or metric at most.
_FEW_ELEMENTS = 1024

BUFFERS = "broadcast of DDP's buffers in forward (broadcast_buffers)"
NORM = "all_reduce of the gradient norm (clip_grad_norm_)"
METRIC = "all_reduce of a few bytes outside backward (a metric or a loss)"


def with_purposes(
    trace: RankTrace, found: Collectives, rows: Ints, launch: Ints, host: HostPhases, words: Vocabulary
) -> Collectives:
    """The collectives of the kernels `rows`, launched by the rows `launch` (-1: unknown), with what each is for."""
    events = trace.events
    by = launch[np.argsort(events.start_ns[rows], kind="stable")]
    instant = np.where(by >= 0, events.start_ns[by], 0)
    phase = np.where(by >= 0, host.at(instant), -1)
    text = np.array(words.strings())
    kind = text[found.kind] if len(found) else np.empty(0, str)
    few = (found.elements > 0) & (found.elements <= _FEW_ELEMENTS) & (kind == "all_reduce")
    few &= np.isin(phase, (names.Phase.OTHER, names.Phase.OPTIMIZER))
    norms = np.sort(events.start_ns[(events.category == Category.OP) & owners.named(trace, names.takes_norm)])
    # A norm of gradients is taken between the backward pass and the collective.
    passes = host.of(names.Phase.BACKWARD)
    done = np.searchsorted(passes.start, instant)
    since = np.append(passes.end, 0)[done - 1]
    of_norm = few & (done > 0) & (np.searchsorted(norms, instant) > np.searchsorted(norms, since))
    purpose = found.purpose.copy()
    purpose[(kind == "broadcast") & (phase == names.Phase.FORWARD)] = words.index(BUFFERS)
    # Without a backward pass nothing tells what comes outside of it.
    purpose[few & (len(passes) > 0)] = words.index(METRIC)
    purpose[of_norm] = words.index(NORM)
    return replace(found, purpose=purpose)
