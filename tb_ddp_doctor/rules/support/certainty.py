"""How sure a finding is, and why."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.unrecognised import MOST_UNMATCHED
from tb_ddp_doctor.findings import Confidence
from tb_ddp_doctor.wording import listing, ms, percent, steps_seen

#: One level of confidence less.
LOWER: Mapping[Confidence, Confidence] = {"high": "medium", "medium": "low", "low": "low"}
#: Where a rank of good luck stands among its peers, by how long its threads waited for a core.
_LUCKY = 0.25
#: How long Linux lets a thread run while others wait for its core, ns.
_SLICE_NS = 3e6


class CoreWait(NamedTuple):
    """What waiting for CPU cores may add to a slow rank's step, ns."""

    #: How long threads of the affected rank waited that waited longest.
    waited_ns: float
    #: How much longer that is than a lucky peer would have waited for as much work; never below 0.
    longer_ns: float
    #: By how much the mean steps of two ranks differ by chance, where the threads of both wait that long.
    noise_ns: float


def core_wait(frame: Frame, affected: Sequence[int] = ()) -> CoreWait:
    """What waiting for CPU cores may add to the steps of `affected` rank indices (all if empty).

    On busy cores the threads of all ranks wait, so only a difference makes one rank slower than another. The peers are
    the ranks that are not affected, and the lucky one waits longer than a quarter of them: the further apart they are,
    the more is chance. A rank that runs for longer also waits for longer, which is no bad luck: where it is known how
    long threads ran, the wait for each ns that they ran counts. Without peers all of the waiting counts.

    Ranks that wait equally long in sum may still differ: the sum is over all threads, and only some of them delay the
    step. A thread that waits lets each other one on its core run for a slice, so it waits for u ns at a time: a slice,
    times the wait for each ns that its rank's threads run. A wait of w ns comes in about w / u turns, so the waits of
    single steps scatter by sqrt(w u), and the means of n steps of two ranks differ by sqrt((w1 + w2) u / n). Where both
    ranks wait for 60 ms a step and run for 30 ms, that is 15 ms for 3 steps, and 6 ms for 20 steps.
    """
    waited, ran = frame.core_wait_ns, frame.core_run_ns
    rows = np.array(affected, np.int64) if len(affected) else np.arange(len(waited))
    peers = np.setdiff1d(np.arange(len(waited)), rows)
    slow = rows[np.argmax(waited[rows])]
    most = float(waited[slow])
    # Where nobody knows for how long threads ran, all ran equally long.
    of_run = waited / ran * ran[slow] if ran.all() else waited
    lowest = float(np.quantile(of_run[peers], _LUCKY, method="lower")) if len(peers) else 0.0
    turn = _SLICE_NS * (max(most / float(ran[slow]), 1.0) if ran.all() else 1.0)
    noise = math.sqrt((most + lowest) * turn / max(len(frame.steps), 1)) if len(peers) else 0.0
    return CoreWait(most, max(most - lowest, 0.0), noise)


def confidence(
    frame: Frame,
    cost_ns: float,
    seen: int,
    affected: Sequence[int] = (),
    *,
    on_host: bool = False,
    of_transfer: bool = False,
    is_counted: bool = False,
) -> tuple[Confidence, str]:
    """How sure a finding is, and the sentence that says why.

    `seen` is in how many steps the fault shows; `affected` are rank indices (all if empty). Each of these takes one
    level away: fewer than three steps; a clock skew of over a third of the cost (on one host, ends of collectives that
    are as far apart); and for faults of the host, recording that may itself be a quarter of the cost. Ranks without a
    usable trace take two away from faults of transfer, and so do calls without a match on another rank: if all ranks
    wait in each call as long as in the next, that wait counts as transfer. Collectives that the record of an affected
    rank lacks take one level if other ranks are in them for a quarter of the cost, and two for half of it: the rank may
    have waited there. Where the CPU computes, and for faults of the host, waiting for CPU cores that may explain a
    quarter of the cost (`core_wait`) takes one level away, and for half of it two: then that alone may be the fault. No
    waiting makes a fault that `is_counted`, such as more operators.
    """
    doubts = []
    if not frame.has_steps:
        doubts.append("the trace has no ProfilerSteps")
    elif len(frame.steps) < 3:
        doubts.append("few steps were traced")
    if frame.residual_ns > cost_ns / 3:
        doubts.append(f"the cost is not much above the {frame.setting.skew} (±{ms(frame.residual_ns)})")
    recording = float((frame.recording_ns[list(affected)] if len(affected) else frame.recording_ns).max())
    if on_host and recording > cost_ns / 4:
        doubts.append(f"recording alone slows the CPU by about {ms(recording)} a step")
    missing = of_transfer and frame.missing_ranks > 0
    if missing:
        doubts.append("straggler wait for ranks without a trace is only estimated from transfers")
    unmatched = of_transfer and frame.unmatched_share > MOST_UNMATCHED
    if unmatched:
        share = percent(frame.unmatched_share)
        doubts.append(
            f"{share} of the calls of collectives have no match on another rank, so their waits count as transfer"
        )
    lost_ns = float((frame.lost_calls_ns[list(affected)] if len(affected) else frame.lost_calls_ns).max(initial=0.0))
    if lost_ns > cost_ns / 4:
        doubts.append(f"a record lacks calls of collectives in which other ranks are for {ms(lost_ns)} a step")
    waits = core_wait(frame, affected)
    explained = max(waits.longer_ns, waits.noise_ns) if (on_host or not frame.has_device) and not is_counted else 0.0
    if explained > cost_ns / 4:
        doubts.append(_of_cores(waits, 0 < len(affected) < len(frame.ranks)))
    lost = len(doubts) + missing + unmatched + (lost_ns > cost_ns / 2) + (explained > cost_ns / 2)
    level: Confidence = ("high", "medium", "low")[min(lost, 2)]
    basis = f"Seen in {steps_seen(seen, len(frame.steps))}"
    doubt = f"; but {listing(doubts)}" if doubts else ""
    return level, f"{basis}{doubt}."


def _of_cores(waits: CoreWait, has_peers: bool) -> str:
    if waits.noise_ns > waits.longer_ns:
        alone = f"which alone makes ranks differ by about {ms(waits.noise_ns)}"
        return f"threads of the ranks waited {ms(waits.waited_ns)} a step for CPU cores that others had, {alone}"
    longer = " longer than those of other ranks" if has_peers else ""
    return f"threads of a rank waited {ms(waits.longer_ns)} a step{longer} for a CPU core that others had"
