"""See `MoeImbalance`."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from tb_ddp_doctor import wording
from tb_ddp_doctor.facts import Facts, fact
from tb_ddp_doctor.facts.arrivals import Arrivals, Sized
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.exchanges import Exchanges, exchanges
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.findings import Measurement
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.routing import Routing
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support import certainty, naming
from tb_ddp_doctor.rules.support.base import Clear, Fault, Result, Rule, threshold
from tb_ddp_doctor.rules.support.slowness import longest_wait
from tb_ddp_doctor.trace.model import Floats, Ints

#: A rank is named from this share of what the rank with most has beyond the mean.
_NAMED = 0.1
#: The same ranks are slowest in this share of the uneven exchanges where the load is steady.
_STEADY = 0.8
#: So many exchanges are named, those first that ranks wait for longest.
_SHOWN = 4


@fact
def _exchanges(facts: Facts) -> Exchanges:
    return exchanges(facts.job)


class MoeImbalance(Rule):
    """Experts get unequal numbers of tokens, and all ranks wait for those whose experts get most.

    What:
        Jobs with expert parallelism in which some ranks compute longer than the mean between two exchanges of tokens:
        always the same ranks (cause steady), or others from layer to layer and from step to step (moving).
    Why:
        An exchange of tokens (AllToAll, or the dispatch and combine kernels of DeepEP) ends when the rank
        with the most tokens is through: every rank takes as long as the busiest experts.
    Evidence:
        By how much the ranks' compute before an exchange differs; where sizes are recorded, how many more tokens the
        ranks with most get; and whether the same ranks have most. The cost is that of the replay in which the ranks of
        an exchange compute as long as they do on average, and exchange equal parts; the lower end of its interval is
        without faster exchanges, since ranks that share a link move as many tokens over it in all.
    Fix:
        A router with a balancing loss or bias, a capacity limit, copies of busy experts, experts placed by their load.
        On a server, the latter two alone.
    Limits:
        A rank that is slow in all that it computes is a slow rank. AllToAlls with equal sizes (padded to a capacity, or
        of sequence parallelism), of embedding tables and of optimizers deal out no tokens.
    """

    id = "moe-imbalance"
    subject = "Load imbalance of experts"
    of_every_program = True
    looks_again = True
    names_stragglers = True
    refines = ("straggler", "load-imbalance", "communication-bound")

    min_cost: float = threshold(
        0.02, "of the step", "A balanced router keeps the load of experts within a few percent."
    )
    uneven_sizes: float = threshold(
        1.05,
        "times the smallest part",
        "AllToAlls of equal sizes, as of padded or sharded sequences, deal out no load.",
    )

    def check(
        self,
        *,
        frame: Frame,
        whatif: WhatIf,
        arrivals: Arrivals,
        exchanges: Exchanges,
        sized: Sized | None,
        places: Places,
    ) -> Result:
        if whatif.replay is None or not len(whatif.replay.routing.rank):
            return Clear("No exchange of tokens between experts is seen (AllToAll, or dispatch and combine).")
        if exchanges.of:
            return Clear(f"What AllToAlls exchange is {exchanges.of}, not tokens.")
        if len(exchanges.row) and exchanges.most.max() < self.uneven_sizes:
            return Clear("AllToAlls have equal sizes on all ranks: no expert gets more tokens than another.")
        pieces = whatif.replay.routing
        every = np.ones(whatif.shape, np.bool_)
        compute = Change(balanced=every)
        change = compute | Change(transfer_ns=_saved_transfers(exchanges, sized, whatif.shape))
        cost = whatif.cost_ns(change)
        excess = pieces.excess_ns(every)
        of_rank = np.bincount(pieces.rank, excess, len(frame.ranks))
        if cost < self.min_cost * frame.step_ns or not of_rank.any():
            return Clear(f"Balanced experts would save {wording.ms(cost)} a step.")
        fault = _fault(change, cost, excess, pieces, exchanges, frame, arrivals, places)
        return replace(fault, between=(compute, change))


def _saved_transfers(exchanges: Exchanges, sized: Sized | None, shape: tuple[int, ...]) -> Ints | None:
    """What AllToAlls of equal parts would move faster, exposed, shape (R, S), ns; None where sizes are not known.

    An AllToAll takes as long as its largest part. That of equal parts is the smallest one, since each rank sends all of
    its tokens: the larger side of a rank with few is what it sends.
    """
    if not len(exchanges.row) or sized is None:
        return None
    saved = np.zeros(shape, np.int64)
    share = dict(zip(exchanges.row.tolist(), (1 - 1 / exchanges.most).tolist(), strict=True))
    for one in sized.traffic:
        if one.row[0] in share:
            less = np.array([share.get(row, 0.0) for row in one.row.tolist()]) * one.exposed_ns
            saved[one.ranks] += np.rint(np.bincount(one.step, less, shape[1])).astype(np.int64)
    return saved


def _fault(
    change: Change,
    cost_ns: float,
    excess: Floats,
    pieces: Routing,
    exchanges: Exchanges,
    frame: Frame,
    arrivals: Arrivals,
    places: Places,
) -> Fault:
    """The finding that balanced experts make, given what each piece has in excess of the mean, shape (N,), ns."""
    of_rank = np.bincount(pieces.rank, excess, len(frame.ranks))
    hot = np.flatnonzero(of_rank >= _NAMED * of_rank.max())
    uneven = np.unique(pieces.exchange[excess > 0])
    wait, times = _wait_ns(pieces, uneven, frame), _times(pieces, uneven)
    step_has = np.bincount(pieces.step, excess, len(frame.steps)) > 0
    every, size = int(pieces.exchange.max()) + 1, len(frame.steps)
    level, basis = certainty.confidence(frame, cost_ns, int(step_has.sum()))
    worst = _worst(excess)
    is_steady = _steady_share(pieces, excess, frame) >= _STEADY
    named = "; ".join(
        f"step {frame.steps[pieces.step[one]]}, exchange {pieces.ordinal[one] + 1}: rank "
        f"{frame.ranks[pieces.rank[one]]}, {wording.ms(float(excess[one]))} above the mean"
        for one in worst
    )
    who = _who(hot, frame)
    turns = "always the same ranks" if is_steady else "and which rank that is changes from layer to layer"
    first = worst[0]
    return Fault(
        change=change,
        ranks=frame.rank_numbers(hot),
        steps=tuple(int(step) for step in frame.steps[step_has]),
        cause="steady" if is_steady else "moving",
        confidence=level,
        title=f"Experts get unequal loads: ranks wait {wording.ms(wait)} a step for those whose experts have most, "
        f"{who}{'' if is_steady or len(hot) == 1 else ' in turn'}.",
        why=f"Before {wording.decimals(len(uneven) / size, 0)} of {wording.decimals(every / size, 0)} exchanges of "
        f"tokens a step, the slowest rank computes {wording.decimals(times, 1)} times as long as the ranks do on "
        f"average, {turns} ({named}). {_sizes(exchanges)}{basis}",
        fix=_FIX if frame.trains else _OF_SERVERS,
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


def _sizes(exchanges: Exchanges) -> str:
    """How many more tokens the ranks with most get, as a sentence; "" where sizes are not known."""
    if not len(exchanges.row):
        return ""
    most = float(np.median(exchanges.most))
    return (
        f"In the median AllToAll the largest part has {wording.decimals(most, 1)} times the elements of the smallest. "
    )


def _who(hot: Ints, frame: Frame) -> str:
    """The hot ranks, and the places in their groups of experts that they are: "ranks 2 and 6 (all of ep 2)"."""
    ranks, mesh = wording.ranks(frame.rank_numbers(hot)), frame.mesh
    if "ep" not in (one.name for one in mesh.dimensions) or len(hot) == len(frame.ranks):
        return naming.who(hot.tolist(), frame)
    place = mesh.coordinates[:, [one.name for one in mesh.dimensions].index("ep")]
    its = np.unique(place[hot])
    is_all = len(hot) == np.isin(place, its).sum() and its[0] >= 0
    return f"{ranks} ({'all of ' if is_all else ''}ep {wording.listing([str(at) for at in its.tolist()])})"


def _steady_share(pieces: Routing, excess: Floats, frame: Frame) -> float:
    """In what share of the uneven exchanges the rank is slowest that is so most often among the ranks it meets."""
    order = np.lexsort((-excess, pieces.exchange))
    slowest = order[np.flatnonzero(np.diff(pieces.exchange[order], prepend=-1))]
    slowest = slowest[excess[slowest] > 0]
    often = np.bincount(pieces.rank[slowest], minlength=len(frame.ranks))
    # Ranks that meet, by the smallest rank of an exchange.
    least = np.full(int(pieces.exchange.max()) + 1, len(frame.ranks))
    np.minimum.at(least, pieces.exchange, pieces.rank)
    group = least[pieces.exchange[slowest]]
    most = np.zeros(len(frame.ranks) + 1, np.int64)
    np.maximum.at(most, group, often[pieces.rank[slowest]])
    return float(most.sum()) / max(len(slowest), 1)


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

_OF_SERVERS = """\
Place the experts by their measured load, with copies of the busiest ones (EPLB), and again as requests change.

vllm serve ... --enable-expert-parallel --enable-eplb --eplb-config '{"num_redundant_experts": 32}'
python -m sglang.launch_server ... --enable-eplb --ep-num-redundant-experts 32"""
