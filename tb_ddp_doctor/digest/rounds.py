"""The steps of reinforcement learning where no ProfilerStep marks them: rounds, from its roles' annotations.

    rollout  [generate][sync]   [generate][sync]   [generate][sync]
    update             [sync][up]         [sync][up]         [sync]
                            |0                 |1                 |

All ranks take part in a weight sync at once, so that a round that ends with one is the same on all of them. A process
that does all roles in turn, without a mark of the sync, begins a round with each rollout.

Where nothing is marked, the trace of one rank alone does not show which of its collectives send weights. The job tells
it then, from the traces of all ranks (`job.rl_rounds`), and each trace is digested again.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from tb_ddp_doctor.digest.device_events import DeviceEvents
from tb_ddp_doctor.digest.steps import FIRST_PART, outermost
from tb_ddp_doctor.trace import role_names
from tb_ddp_doctor.trace.model import Category, Ints, RankTrace
from tb_ddp_doctor.trace.program_names import Role

#: What serves as the mark of a round.
ROUND = "round of rollout and update"
#: The same where the job tells the rounds of all its ranks: equal numbers are the same round.
SHARED_ROUND = "round of rollout and update that all ranks share"
#: When the last collective of each weight sync starts on a rank's device, or else when a round ends on its host, ns, by
#: time. Fewer than two mark no round: the whole trace is one step.
RoundEnds: TypeAlias = tuple[int, ...]


def rounds(trace: RankTrace) -> tuple[Ints, Ints, Ints] | None:
    """Numbers, starts and ends (ns) of the rounds, by time; None where annotations tell none that is whole.

    Annotations of one role that follow each other, as those of a sync's parts do, are one turn.
    """
    rows = np.flatnonzero(trace.events.category == int(Category.ANNOTATION))
    of_text = role_names.roles(trace.strings[name] for name in set(trace.events.name[rows].tolist()))
    rows = rows[[trace.strings[name] in of_text for name in trace.events.name[rows].tolist()]]
    rows, start, end = outermost(trace, rows)
    roles = [of_text[trace.strings[name]] for name in trace.events.name[rows].tolist()]
    turns = [first for first, role in enumerate(roles) if not first or roles[first - 1] is not role]
    last = [*(first - 1 for first in turns[1:]), len(roles) - 1]
    syncs = end[[until for first, until in zip(turns, last, strict=False) if roles[first] is Role.WEIGHT_SYNC]]
    begins = syncs if len(syncs) else start[[first for first in turns if roles[first] is Role.ROLLOUT]]
    if len(begins) < 2:
        return None
    return np.arange(len(begins) - 1), begins[:-1], begins[1:]


def rounds_between(device: DeviceEvents, begin_ns: int, ends: RoundEnds) -> tuple[Ints, Ints, Ints] | None:
    """Numbers, starts and ends (ns) on the host of the rounds between some ends; None where there is none.

    A round that ends with a collective does so when the host has launched that. What the record holds before the first
    end, from `begin_ns` on, is `FIRST_PART`.
    """
    if len(ends) < 2:
        return None
    rows = np.flatnonzero(device.communicates & device.is_launched)
    launched = dict(
        zip(device.start_ns[rows].tolist(), (device.launch_ns + device.launch_length_ns)[rows].tolist(), strict=True)
    )
    instant = np.array([launched.get(one, one - 1) + 1 for one in ends], np.int64)
    start = np.append(min(begin_ns, int(instant[0])), instant[:-1])
    return np.append(FIRST_PART, np.arange(len(instant) - 1)), start, instant
