"""Which iterations of a server read prompts, and which generate answers, from their kernels.

Three things of the hardware and of servers tell it where nothing is marked:

- Attention of one query per request reads the whole cache for it, so that servers have kernels of their own for answers
  (`BatchDecode`, `paged_attention_v2`); prompts have others. An iteration with both does both.
- Answers are a token for each request: the same small kernels each time, so that servers replay them as one CUDA graph.
  Prompts have any length, and are launched kernel by kernel, or in graphs of parts of a layer.
- Prompts are many tokens: their iterations keep the device busy for longer.

    graph launches  [layers 0-31 ..........]                          [layers 0-31 ..........]
    other launches                          [layer 0][layer 1] ...
    compute         4 ms                    11 ms                     4 ms
                    answers                 prompts                   answers
"""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest.device_events import DeviceEvents
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.sums import count, total
from tb_ddp_doctor.trace import names, program_names
from tb_ddp_doctor.trace.model import Flags, Ints

#: One launch of a graph replays an iteration if it has at least this share of its kernels.
_WHOLE = 0.5
#: Iterations outside of graphs read prompts if they compute so many times as long as the median replayed one. A batch
#: that is larger than all that were captured takes little longer than the largest of these.
_LONGER = 1.5


def attended(host: HostCalls, device: DeviceEvents, steps: int) -> tuple[Ints, Ints]:
    """Which of the steps read prompts and which generate answers, as 0 and 1; zeros where that is not clear.

    Where all iterations are replays, some may be replays with prompts. Of steps that are of no clear kind answers are
    expected, which most iterations have.
    """
    one, many = (
        count(device.step, device.computes & device.named(test), steps) > 0
        for test in (program_names.attends_one, program_names.attends_many)
    )
    compute_ns = total(device.step, device.computes, device.length_ns, steps)
    replayed = _replayed(host, device, steps) & ~many
    reads = many & one.any()
    if replayed.any():
        reads |= ~replayed & ~one & (compute_ns > _LONGER * np.median(compute_ns[replayed]))
    answers = one | replayed if reads.any() else one
    if not (answers & ~reads).any():
        return np.zeros(steps, np.int64), np.zeros(steps, np.int64)
    writes = one | ~many | ~one.any()
    return reads.astype(np.int64), writes.astype(np.int64)


def _replayed(host: HostCalls, device: DeviceEvents, steps: int) -> Flags:
    """Which steps are the replay of one CUDA graph, but for a few kernels, shape (S,)."""
    kernels = device.computes | device.communicates
    graph = device.is_launched & kernels & (device.step >= 0)
    graph[graph] = host.named(names.launches_graph)[device.launch[graph]]
    if not graph.any():
        return np.zeros(steps, np.bool_)
    _, which, size = np.unique(device.launch[graph], return_inverse=True, return_counts=True)
    largest = np.zeros(steps, np.int64)
    np.maximum.at(largest, device.step[graph], size[which])
    return np.asarray(largest >= _WHOLE * np.maximum(count(device.step, kernels, steps), 1))
