"""What small collectives outside of the backward pass are for, as far as the trace shows it.

DDP sends its buffers in forward (`broadcast_buffers`), `clip_grad_norm_` adds up the ranks' norms before the optimizer,
and training loops reduce a loss or a metric. Each is small, so what it takes is latency and waiting for the last rank.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from tb_ddp_doctor.digest.device_events import DeviceEvents
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.model import BUFFERS, METRIC, NORM, Collectives
from tb_ddp_doctor.digest.phases import HostPhases
from tb_ddp_doctor.digest.vocabulary import Vocabulary
from tb_ddp_doctor.trace import names

#: Elements of a reduced norm or metric at most.
_FEW_ELEMENTS = 1024


def with_purposes(
    host: HostCalls, device: DeviceEvents, collectives: Collectives, phases: HostPhases, words: Vocabulary
) -> Collectives:
    """The collectives of a device's kernels with what each is for."""
    kernels = device.by_start[device.communicates[device.by_start]]
    launched = device.is_launched[kernels]
    instant = np.where(launched, device.launch_ns[kernels], 0)
    phase = np.where(launched, phases.at(instant), -1)
    text = np.array(words.strings())
    kind = text[collectives.kind] if len(collectives) else np.empty(0, str)
    few = (collectives.elements > 0) & (collectives.elements <= _FEW_ELEMENTS) & (kind == "all_reduce")
    few &= np.isin(phase, (names.Phase.OTHER, names.Phase.OPTIMIZER))
    norms = np.sort(host.start_ns[host.is_operator & host.named(names.takes_norm)])
    # A norm of gradients is taken between the backward pass and the collective.
    passes = phases.of(names.Phase.BACKWARD)
    done = np.searchsorted(passes.start, instant)
    since = np.append(passes.end, 0)[done - 1]
    of_norm = few & (done > 0) & (np.searchsorted(norms, instant) > np.searchsorted(norms, since))
    purpose = collectives.purpose.copy()
    # DDP sends them in the group, and on its stream, in which it adds up gradients: no other group's are buffers.
    group = np.stack((collectives.group, collectives.group_ranks, collectives.stream))
    adds_up = np.unique(group[:, (kind == "all_reduce") & (collectives.backward >= 0)], axis=1)
    of_ddp = (group[:, :, None] == adds_up[:, None, :]).all(axis=0).any(axis=1)
    purpose[(kind == "broadcast") & (phase == names.Phase.FORWARD) & of_ddp] = words.index(BUFFERS)
    # Without a backward pass nothing tells what comes outside of it.
    purpose[few & (len(passes) > 0)] = words.index(METRIC)
    purpose[of_norm] = words.index(NORM)
    return replace(collectives, purpose=purpose)
