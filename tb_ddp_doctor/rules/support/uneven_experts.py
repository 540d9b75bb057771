"""Experts that get unequal numbers of tokens, while another rank has most of them from layer to layer."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.facts.arrivals import Arrivals
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.findings import Measurement
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.routing import Routing
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support import certainty
from tb_ddp_doctor.rules.support.base import Fault
from tb_ddp_doctor.rules.support.slowness import longest_wait
from tb_ddp_doctor.trace.model import Floats, Ints

#: A rank is named from this share of what the rank with most has beyond the mean.
_NAMED = 0.1
#: So many exchanges are named, those first that ranks wait for longest.
_SHOWN = 4


def balanced(whatif: WhatIf) -> Change:
    """What goes if all ranks compute equally long between exchanges of tokens; nothing where none are exchanged."""
    if whatif.replay is None or not len(whatif.replay.routing.rank):
        return Change()
    return Change(balanced=np.ones(whatif.shape, np.bool_))


def fault(
    change: Change, cost_ns: float, whatif: WhatIf, frame: Frame, arrivals: Arrivals, places: Places
) -> Fault | None:
    """The finding that a change of `balanced` and what it saves make; None where no exchange is uneven."""
    if whatif.replay is None or change.balanced is None:
        return None
    pieces = whatif.replay.routing
    excess = pieces.excess_ns(change.balanced)
    of_rank = np.bincount(pieces.rank, excess, len(frame.ranks))
    if not of_rank.any():
        return None
    hot = np.flatnonzero(of_rank >= _NAMED * of_rank.max())
    uneven = np.unique(pieces.exchange[excess > 0])
    wait, times = _wait_ns(pieces, uneven, frame), _times(pieces, uneven)
    step_has = np.bincount(pieces.step, excess, len(frame.steps)) > 0
    exchanges, size = int(pieces.exchange.max()) + 1, len(frame.steps)
    level, basis = certainty.confidence(frame, cost_ns, int(step_has.sum()))
    worst = _worst(excess)
    named = "; ".join(
        f"step {frame.steps[pieces.step[one]]}, exchange {pieces.ordinal[one] + 1}: rank "
        f"{frame.ranks[pieces.rank[one]]}, {wording.ms(float(excess[one]))} above the mean"
        for one in worst
    )
    first = worst[0]
    return Fault(
        change=change,
        ranks=frame.rank_numbers(hot),
        steps=tuple(int(step) for step in frame.steps[step_has]),
        cause="experts",
        confidence=level,
        subject="Load imbalance of experts",
        title=f"Experts get unequal loads: ranks wait {wording.ms(wait)} a step for the one whose experts have most, "
        f"{wording.ranks(frame.rank_numbers(hot))}{' in turn' if len(hot) > 1 else ''}.",
        why=f"Before {len(uneven) / size:.0f} of {exchanges / size:.0f} exchanges of tokens a step, the slowest rank "
        f"computes {times:.1f} times as long as the ranks do on average, and which rank that is changes from layer to "
        f"layer ({named}). {basis}",
        fix=_FIX,
        evidence=(
            places.window(
                int(pieces.rank[first]), int(pieces.step[first]), "The step with the most uneven exchange, whole."
            ),
            *longest_wait(hot, frame, arrivals, places),
        ),
        measurements=(
            Measurement("straggler wait before uneven exchanges of tokens", wait / 1e6, "ms"),
            Measurement("slowest rank over the mean, in uneven exchanges", times, "times"),
            *(
                Measurement(
                    f"above the mean before exchange {pieces.ordinal[one] + 1}",
                    float(excess[one]) / 1e6,
                    "ms",
                    frame.rank_numbers(pieces.rank[[one]]),
                    (int(frame.steps[pieces.step[one]]),),
                )
                for one in worst
            ),
        ),
    )


def _most(pieces: Routing) -> Ints:
    """The longest work before each exchange, by exchange."""
    most = np.zeros(int(pieces.exchange.max()) + 1, np.int64)
    np.maximum.at(most, pieces.exchange, pieces.work_ns)
    return most


def _wait_ns(pieces: Routing, uneven: Ints, frame: Frame) -> float:
    """How long ranks wait for the slowest one before uneven exchanges, mean over ranks and steps."""
    waits = (_most(pieces)[pieces.exchange] - pieces.work_ns)[np.isin(pieces.exchange, uneven)]
    return float(waits.sum()) / (len(frame.ranks) * len(frame.steps))


def _times(pieces: Routing, uneven: Ints) -> float:
    """How many times as long as the mean the slowest rank computes before an uneven exchange, the median of these."""
    mean = np.bincount(pieces.exchange, pieces.work_ns) / np.maximum(np.bincount(pieces.exchange), 1)
    return float(np.median(_most(pieces)[uneven] / np.maximum(mean[uneven], 1)))


def _worst(excess: Floats) -> list[int]:
    """The pieces that are furthest above their mean."""
    return [int(one) for one in np.argsort(-excess, kind="stable")[:_SHOWN] if excess[one] > 0]


_FIX = """\
Spread the tokens evenly over the experts, or the experts evenly over the ranks: an auxiliary loss or a bias that \
balances the router, a capacity limit for each expert, copies of the busiest experts, and experts placed by measured \
load (EPLB).

# Megatron-LM
--moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 1e-2
--moe-expert-capacity-factor 1.25  # tokens beyond it are dropped
# DeepSeek-V3's way: a bias for each expert, moved by its load
--moe-router-enable-expert-bias --moe-router-bias-update-rate 1e-3"""
