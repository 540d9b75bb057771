"""A finding in one number: who or what costs how much of the step."""

from __future__ import annotations

from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.rules.support import text
from tb_ddp_doctor.rules.support.base import Fault, Rule

#: Of ranks on more nodes only the ranks are named.
_MOST_NODES = 2


def headline(rule: Rule, fault: Fault, cost_ns: float, job: Job) -> str:
    """Such as "Rank 5 (node2) costs 43.0 ms of 148 ms a step (29 %)."; of what costs nothing, the title."""
    if cost_ns <= 0 or not job.step_ns:
        return fault.title
    subject = rule.subject or text.capital(_who(fault.ranks, job))
    verb = "cost" if not rule.subject and len(fault.ranks) > 1 else "costs"
    share = text.percent(cost_ns / job.step_ns)
    return f"{subject} {verb} {text.ms(cost_ns)} of {text.ms(job.step_ns)} a step ({share})."


def _who(numbers: tuple[int, ...], job: Job) -> str:
    """Ranks and their nodes, such as "rank 5 (node2)"."""
    node_of = dict(zip(job.ranks.tolist(), job.nodes, strict=True))
    nodes = {node_of[rank] for rank in numbers if rank in node_of} - {""}
    where = f" ({text.listing(sorted(nodes))})" if 0 < len(nodes) <= _MOST_NODES else ""
    return f"{text.ranks(numbers)}{where}"
