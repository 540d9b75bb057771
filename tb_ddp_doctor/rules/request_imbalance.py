"""See `RequestImbalance`."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.facts.arrivals import Arrivals
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.findings import Measurement
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support import certainty, naming
from tb_ddp_doctor.rules.support.base import Clear, Fault, NotApplicable, Result, Rule, threshold
from tb_ddp_doctor.rules.support.slowness import longest_wait
from tb_ddp_doctor.trace.model import Ints

#: A rank is named from this share of what the rank with most has above an even share.
_NAMED = 0.2
#: The same ranks have most in this share of the iterations where the load is steady.
_STEADY = 0.8


class RequestImbalance(Rule):
    """Ranks of data-parallel attention have unequal numbers of requests, and those with few wait for those with most.

    What:
        Servers in which each rank attends to requests of its own and all share their experts (data-parallel attention
        of vLLM, SGLang and TensorRT-LLM): some ranks have more requests, or longer ones, than the mean rank. A rank
        without any runs dummy batches, since others need its experts. Always the same ranks (cause steady), or others
        from iteration to iteration (moving).
    Why:
        All ranks meet before and after the experts of each layer: an iteration takes as long as the rank with most to
        attend to.
    Evidence:
        How many requests each rank has, where marks count them, and how long its attention takes above an even share.
        The cost is that of the replay in which attention takes every rank as long as it does on average, and in
        iterations that read prompts all work between the exchanges. GEMMs of answers stay: they read their weights,
        however few requests there are.
    Fix:
        A router that sends each request to the rank with the fewest tokens.
    Limits:
        Needs marks that count requests, or attention that alone takes longer on some rank. Attention is known by the
        names of its kernels. Stages of a pipeline always have different requests.
    """

    id = "request-imbalance"
    subject = "An uneven spread of requests over data-parallel ranks"
    of_every_program = True
    looks_again = True
    names_stragglers = True
    refines = ("moe-imbalance", "straggler", "load-imbalance", "communication-bound")

    min_cost: float = threshold(
        0.05, "of the iteration", "Requests end and come all the time: a router keeps ranks within a few percent."
    )

    def check(self, *, frame: Frame, whatif: WhatIf, arrivals: Arrivals, places: Places) -> Result:
        if whatif.replay is None:
            return NotApplicable("Steps cannot be replayed, so it is not known what unequal requests cost.")
        requests, spread = whatif.replay.schedule.frame.requests, whatif.replay.spread
        if requests is None or spread is None:
            return Clear("All ranks work on the same requests, or this job serves none.")
        change = Change(even_requests=True)
        cost = whatif.cost_ns(change)
        above = np.maximum(whatif.for_more_work_ns, 0)
        if cost < self.min_cost * frame.step_ns or not above.any():
            return Clear(f"Evenly spread requests would save {wording.ms(cost)} an iteration.")
        of_rank = above.mean(axis=1)
        most = np.flatnonzero(of_rank >= _NAMED * of_rank.max())
        has = above.max(axis=0) > 0
        is_steady = _same(above[:, has])
        level, basis = certainty.confidence(frame, cost, int(has.sum()))
        rank, step = divmod(int(above.argmax()), above.shape[1])
        who, turn = naming.who(most.tolist(), frame), "" if is_steady or len(most) == 1 else " in turn"
        return Fault(
            change=change,
            ranks=frame.rank_numbers(most),
            steps=tuple(frame.steps[has].tolist()),
            cause="steady" if is_steady else "moving",
            confidence=level,
            title=f"Requests are spread unevenly over data-parallel ranks: the other ranks wait for {who}{turn}.",
            why=f"{_counted(requests.number, most, frame)}Their GPUs work up to {wording.ms(float(of_rank.max()))} an "
            f"iteration longer than with an even share. {basis}",
            fix=_FIX,
            evidence=(
                places.window(rank, step, "The iteration in which a rank has most above an even share."),
                *longest_wait(most, frame, arrivals, places),
            ),
            measurements=tuple(_measured(frame, one, float(of_rank[one])) for one in most.tolist()),
        )


def _measured(frame: Frame, rank: int, above_ns: float) -> Measurement:
    numbers = frame.rank_numbers(np.array([rank]))
    return Measurement("above an even share of requests", above_ns / 1e6, "ms", numbers, frame.all_steps)


def _same(above_ns: Ints) -> bool:
    """Whether the same ranks are far above an even share in most iterations, given shape (R, S)."""
    often = (above_ns >= _NAMED * above_ns.max(axis=0)).mean(axis=1)
    return bool(((often >= _STEADY) | (often <= 1 - _STEADY)).all())


def _counted(number: Ints, most: Ints, frame: Frame) -> str:
    """How many requests ranks have, a sentence and a space; "" where no mark has numbers."""
    if not number.any():
        return ""
    rest = np.setdiff1d(np.arange(len(number)), most)
    mean = wording.decimals(float(number[most].mean()), 0)
    said = f"{wording.capital(wording.ranks(frame.rank_numbers(most)))} {'has' if len(most) == 1 else 'have'} {mean} "
    said += f"requests {'' if len(most) == 1 else 'each '}on average"
    if not len(rest):
        return f"{said}. "
    none = rest[~number[rest].any(axis=1)]
    if len(none) == len(rest):
        return f"{said}, {wording.ranks(frame.rank_numbers(none))} none. "
    return f"{said}, the others {wording.decimals(float(number[rest].mean()), 0)}. "


_FIX = """\
Send each request to the rank with the fewest tokens in flight, not to the next one in turn, and let one router see \
the load of all ranks.

vllm serve ... --data-parallel-size 8 --enable-expert-parallel  # one endpoint: its balancer counts requests by rank
python -m sglang.launch_server ... --enable-dp-attention --load-balance-method total_tokens
# TensorRT-LLM's attention_dp_config: {enable_balance: true}"""
