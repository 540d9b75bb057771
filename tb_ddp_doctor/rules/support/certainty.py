"""How sure a finding is, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.unrecognised import MOST_UNMATCHED
from tb_ddp_doctor.findings import Confidence
from tb_ddp_doctor.wording import listing, ms, percent, steps_seen

#: One level of confidence less.
LOWER: Mapping[Confidence, Confidence] = {"high": "medium", "medium": "low", "low": "low"}
#: Where a rank of good luck stands among its peers, by how long its threads waited for a core.
_LUCKY = 0.25


def unlucky_ns(frame: Frame, affected: Sequence[int] = ()) -> float:
    """How much longer threads of a rank waited for a core in a step than those of a lucky peer, ns; never below 0.

    Of `affected` rank indices (all if empty) it is that of the rank that waited longest. On busy cores the threads of
    all ranks wait, so only the difference makes one rank slower than another. The peers are the ranks that are not
    affected, and the lucky one waits longer than a quarter of them: the further apart they are, the more is chance.
    Without peers all of the waiting counts.
    """
    waited = frame.core_wait_ns
    rows = np.array(affected, np.int64) if len(affected) else np.arange(len(waited))
    peers = np.setdiff1d(np.arange(len(waited)), rows)
    usual = float(np.quantile(waited[peers], _LUCKY, method="lower")) if len(peers) else 0.0
    return max(float(waited[rows].max()) - usual, 0.0)


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
    have waited there. Where the CPU computes, and for faults of the host, ranks whose threads waited for a core for a
    quarter of the cost longer than their peers (`unlucky_ns`) take one level away, and for half of it two: then that
    alone may be the fault. No waiting makes a fault that `is_counted`, such as more operators.
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
    waited = unlucky_ns(frame, affected) if (on_host or not frame.has_device) and not is_counted else 0.0
    if waited > cost_ns / 4:
        longer = " longer than those of other ranks" if 0 < len(affected) < len(frame.ranks) else ""
        doubts.append(f"threads of a rank waited {ms(waited)} a step{longer} for a CPU core that others had")
    lost = len(doubts) + missing + unmatched + (lost_ns > cost_ns / 2) + (waited > cost_ns / 2)
    level: Confidence = ("high", "medium", "low")[min(lost, 2)]
    basis = f"Seen in {steps_seen(seen, len(frame.steps))}"
    doubt = f"; but {listing(doubts)}" if doubts else ""
    return level, f"{basis}{doubt}."
