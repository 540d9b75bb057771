"""The headline of a finding: who or what costs how much of the step."""

from __future__ import annotations

from collections.abc import Sequence

from tb_ddp_doctor import wording
from tb_ddp_doctor.findings import Headline
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.mesh.mesh import Mesh
from tb_ddp_doctor.rules.support.base import Fault, Rule

#: Nodes are named only if the ranks lie on at most this many.
_MOST_NODES = 2
#: If a fix alone saves less than this, "nothing" is said, ns.
_SAID_NS = 50_000


def headline(rule: Rule, fault: Fault, cost_ns: float, job: Job, mesh: Mesh | None = None) -> Headline | None:
    """What a fault costs, such as "Rank 5 (node2) costs 43.0 ms of 148.0 ms a step (29 %)."; None if nothing.

    `cost_ns` is the mean over steps. The mesh, if given, tells where in it the ranks are. If only one of several steps
    shows the fault, the headline adds "seen once in 6 steps", since one occurrence does not show how often it comes.
    """
    if cost_ns <= 0 or not job.step_ns:
        return None
    subject = fault.subject or rule.subject
    who = _who(fault.ranks, job, mesh) if fault.ranks else "the job"
    if fault.subject and 0 < len(fault.ranks) < len(job.ranks):
        subject = f"{subject} on {who}"
    return Headline(
        subject=subject or wording.capital(who),
        verb="cost" if not subject and len(fault.ranks) > 1 else "costs",
        cost=wording.ms(cost_ns),
        step=wording.ms(job.step_ns),
        share=wording.percent(cost_ns / job.step_ns),
        often=f"seen once in {len(job.steps)} steps" if is_seen_once(rule, fault.steps, len(job.steps)) else "",
    )


def opportunity(fault: Fault, least_ns: float, most_ns: float) -> str:
    """What an opportunity would save, such as "18.3 of 50.0 ms are elementwise kernels that fusion would shorten by
    6 to 11 ms (torch.compile)."; the title of a fault.
    """
    if not fault.remedy:
        return fault.title
    saved = wording.interval(least_ns / 1e6, most_ns / 1e6)
    return f"{fault.title.removesuffix('.')} by {saved} ms ({fault.remedy})."


def is_seen_once(rule: Rule, steps: Sequence[int], recorded: int) -> bool:
    """Whether only one of several recorded steps shows a fault; never for tracing, which slows every traced step."""
    return len(steps) == 1 < recorded and not rule.is_of_tracing


def together(others: Sequence[str], saved_ns: float, alone_ns: float) -> str:
    """A sentence on why a finding's fix alone saves little: which others bind first, and what all of them save."""
    alone = wording.ms(alone_ns) if alone_ns >= _SAID_NS else "nothing"
    first = f"{wording.listing(others)} {'binds' if len(others) == 1 else 'bind'} first"
    return f"Alone its fix saves {alone}, since {first}; together they save {wording.ms(saved_ns)}."


def _who(numbers: tuple[int, ...], job: Job, mesh: Mesh | None) -> str:
    """Ranks, their nodes, and their place in the mesh: "rank 5 (node2)", "rank 5 (dp 1, tp 1, node2)", "ranks 16-31
    (all of pp 1)".
    """
    index = {rank: i for i, rank in enumerate(job.ranks.tolist())}
    affected = [index[rank] for rank in numbers if rank in index]
    nodes = sorted({job.nodes[i] for i in affected} - {""})
    where = nodes if len(nodes) <= _MOST_NODES else []
    if mesh and len(affected) == 1 and (place := mesh.place(affected[0])):
        where = [place, *where]
    elif mesh and (shared := mesh.shared(affected)):
        return f"{wording.ranks(numbers)} (all of {shared})"
    named = ", ".join(where) if len(affected) == 1 else wording.listing(where)
    return f"{wording.ranks(numbers)} ({named})" if where else wording.ranks(numbers)
