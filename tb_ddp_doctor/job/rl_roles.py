"""The roles of reinforcement learning: which ranks have which, whether they share GPUs, and sentences on what each does
and waits for.

Pure: a job in, arrays and text out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, islice

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.intervals import Intervals
from tb_ddp_doctor.digest.model import RankDigest, RankOwner
from tb_ddp_doctor.job import job_kind
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.job.segments import joined_by
from tb_ddp_doctor.step_parts import IDLE
from tb_ddp_doctor.trace.model import Flags, Ints
from tb_ddp_doctor.trace.program_names import Program, Role

#: A median of two rollouts says nothing of a tail; and the longest one of a job without a tail takes less than so many
#: times as long as the median one.
_FEWEST_ROLLOUTS, _LONG_TAIL = 3, 1.2
#: Of longer answers come so many times as many kernels, else the GPU is slow, or trains on more tokens.
MORE_KERNELS = 1.1
#: Roles that take turns on a GPU compute at once for no more than this share of what the shorter one computes: both are
#: on one node, with one clock. So many GPUs are tried.
_AT_ONCE, _TRIED = 0.1, 8
#: What a role is called that nothing tells.
NO_NAME = "another role"
_ORDER = {role.value: place for place, role in enumerate(Role)}


def roles(job: Job) -> list[str]:
    """What each rank does in reinforcement learning, as `job_kind.role` calls it; but `Role.REWARD` of ranks that only
    score, also where no annotation says so.

    Those are servers that never get weights, while most ranks that generate get theirs in collectives with ranks that
    train: a reward model stays as it is. And ranks that neither generate nor train, and meet none that do.
    """
    known = [job_kind.role(digest) for digest in job.digests]
    between, matched = between_roles(job), job.matched
    if not between.any():
        return known
    circle = joined_by(matched.segments, matched.rank, len(known))
    apart = ~np.isin(circle, circle[job.calls.rank[between]])
    serves = np.array(known) == Role.ROLLOUT.value
    apart &= (serves & (2 * (apart & serves).sum() < serves.sum())) | (np.array(known) == "")
    marked = ({*digest.contents.roles} - {Role.WEIGHT_SYNC.value} for digest in job.digests)
    return [
        Role.REWARD.value if is_apart and not marks else name
        for name, is_apart, marks in zip(known, apart.tolist(), marked, strict=True)
    ]


def between_roles(job: Job) -> Flags:
    """Which of a job's calls meet calls of ranks of another role of reinforcement learning, shape (N,)."""
    calls = np.zeros(len(job.calls), np.bool_)
    if job_kind.program(job) is Program.RL and len(job.matched):
        _, of_rank = np.unique([job_kind.role(digest) for digest in job.digests], return_inverse=True)
        role, segments = of_rank[job.matched.rank], job.matched.segments
        calls[job.matched.call[segments.each(segments.max(role) != segments.min(role))]] = True
    return calls


def only_generate(job: Job) -> Flags:
    """Which ranks of reinforcement learning generate, beside others that have another role, shape (R,)."""
    return np.array([role == Role.ROLLOUT.value for role in unlike(job)], np.bool_)


def unlike(job: Job) -> list[str]:
    """What each rank does in reinforcement learning; "" where all do the same, and in every other job."""
    each = roles(job)
    return each if job_kind.program(job) is Program.RL and len(set(each)) > 1 else [""] * len(each)


def parts_of_roles(job: Job) -> list[Ints]:
    """The ranks (indices) of each role of reinforcement learning; of a role whose ranks meet in several groups that
    share none, as actor and critic update, those of each group. Ranks of which nothing tells the role, beside others,
    have one together: one that scores answers may run too few kinds of operators to tell.
    """
    names, matched = [job_kind.role(digest) for digest in job.digests], job.matched
    circle = joined_by(matched.segments, matched.rank, len(names)) if len(matched) else np.arange(len(names))
    parts: list[Ints] = []
    for name in sorted(set(names)) if any(names) else []:
        ranks = np.flatnonzero(np.array(names) == name)
        of_circle = [ranks[circle[ranks] == one] for one in np.unique(circle[ranks]).tolist()]
        meets = [one for one in of_circle if len(one) > 1]
        is_apart = name != Role.ROLLOUT.value and len(meets) == len(of_circle)
        parts += of_circle if is_apart else [ranks]
    return parts


def share_gpus(job: Job) -> bool | None:
    """Whether ranks of all roles are on the same GPUs, which then work for one role after the other: those of each role
    are on GPUs of the largest one, no collective joins them, as NCCL takes no GPU twice, and they do not compute at
    once: nodes that no file names have GPUs of equal numbers.

    None where nothing tells: each process sees one GPU alone, as under Ray, so that all have number 0.
    """
    if between_roles(job).any():
        return False
    known = {*job.nodes} - {""}
    only = known.pop() if len(known) == 1 else ""
    gpus: dict[str, dict[tuple[str, int], list[int]]] = {}
    for rank, (digest, node) in enumerate(zip(job.digests, job.nodes, strict=True)):
        of_role = gpus.setdefault(job_kind.role(digest), {})
        of_role.setdefault((node or only, digest.device_number), []).append(rank)
    if {number for each in gpus.values() for _, number in each} == {0}:
        return None
    of_all = max(gpus.values(), key=len)
    if not all(len(each) > 1 and of_all.keys() >= each.keys() for each in gpus.values()):
        return False
    alone = all(len(ranks) == 1 for each in gpus.values() for ranks in each.values())
    shared = ([each[gpu][0] for each in gpus.values() if gpu in each] for gpu in of_all)
    return alone and not _compute_at_once(job, shared)


def _compute_at_once(job: Job, shared: Iterable[Sequence[int]]) -> bool:
    """Whether ranks (indices) of some GPU compute at once, so that they have one each."""
    for ranks in islice(shared, _TRIED):
        computes = [_computing(job.digests[rank]) for rank in ranks]
        for one, other in combinations(computes, 2):
            if (one & other).total > _AT_ONCE * min(one.total, other.total):
                return True
    return False


def _computing(digest: RankDigest) -> Intervals:
    """When a rank computes, on its clock."""
    pieces = digest.pieces
    rows = np.flatnonzero(pieces.owner == RankOwner.COMPUTE)
    return Intervals.union(pieces.start_ns[rows], pieces.end_ns[rows])


def of_roles(job: Job, *, has_tail: bool = False) -> str | None:
    """The roles of an RL job and what each waits for; None of any other job. A long tail is said, too, unless a finding
    tells it (`has_tail`).

    Such as "Roles: rollout on ranks 0 and 1 (computes 50 % of the step, waits for update 30 %, transfers 5 %, idles
    15 %); update on ranks 2 and 3 (...)." Where the same ranks do all in turn, the share of the step that each role
    takes instead.
    """
    if job_kind.program(job) is not Program.RL:
        return None
    by_rank = roles(job)
    if len(set(by_rank) - {""}) > 1:
        different = sorted(set(by_rank), key=lambda name: _ORDER.get(name, len(_ORDER)))
        parts = [_of_ranks(job, name, np.array(by_rank)) for name in different]
        said = f"This job does reinforcement learning. Roles: {'; '.join(parts)}."
        said += " All roles are on the same GPUs, in turn." if share_gpus(job) else ""
        return said + ("" if has_tail else _long_tail(job, by_rank)) + _weight_sync(job)
    return f"This job does reinforcement learning, all ranks in turn.{_in_turn(job)}"


def _of_ranks(job: Job, name: str, roles: NDArray[np.str_]) -> str:
    """One role: its ranks, and how much of the step they compute, wait for other ranks and which role's, and idle."""
    mine = roles == name
    window = max(float(job.budget.window_ns[mine].mean()), 1.0)

    def share(*owners: str) -> str:
        return wording.percent(sum(float(job.budget.of(owner)[mine].mean()) for owner in owners) / window)

    return (
        f"{name or NO_NAME} on {wording.ranks(job.ranks[mine].tolist())} (computes {share('compute', 'copy')} of the "
        f"step, waits for {_waits_for(job, name, roles)} {share('wait')}, transfers {share('transfer')}, "
        f"idles {share(*IDLE)})"
    )


def _waits_for(job: Job, name: str, roles: NDArray[np.str_]) -> str:
    """Whom a role's ranks wait for in collectives: "update", or "other ranks" where no role has most of it."""
    waiting = roles[job.calls.rank[job.matched.call]] == name
    last = roles[job.matched.segments.each(job.waiting.last)]
    waited = {role: int(job.waiting.exposed_ns[waiting & (last == role)].sum()) for role in set(roles.tolist())}
    most = max(waited, key=lambda role: waited[role])
    is_most = most and most != name and 2 * waited[most] > sum(waited.values())
    return most if is_most else "other ranks"


def _long_tail(job: Job, roles: list[str]) -> str:
    """How much longer the longest rollout of a step computes than the median one; "" where they are about as long."""
    busy = job.budget.of("compute") + job.budget.of("copy")
    rollouts = np.array([role == Role.ROLLOUT.value for role in roles], np.bool_)
    of_rollouts, kernels = busy[rollouts], job.work(lambda work: work.kernels.kernels)[rollouts]
    if len(of_rollouts) < _FEWEST_ROLLOUTS:
        return ""
    longest, median = float(of_rollouts.max(axis=0).mean()), float(np.median(of_rollouts, axis=0).mean())
    most = float(np.take_along_axis(kernels, of_rollouts.argmax(axis=0)[None], axis=0).mean())
    if longest < _LONG_TAIL * median or most < MORE_KERNELS * float(np.median(kernels, axis=0).mean()):
        return ""
    ranks = len(set(of_rollouts.argmax(axis=0).tolist()))
    whose = "always that of one rank" if ranks == 1 else f"in turn on {ranks} ranks"
    return (
        f" Generation has a long tail: in each step the longest rollout computes {wording.ms(longest)} on average, the "
        f"median one {wording.ms(median)}; the longest is {whose}."
    )


def _weight_sync(job: Job) -> str:
    """What share of the record annotations of weight sync take, on the ranks that have them; "" without any."""
    synced = [digest for digest in job.digests if digest.contents.roles.get(Role.WEIGHT_SYNC.value)]
    if not synced:
        return ""
    recorded = sum(one.contents.recorded_ns for one in synced)
    takes = sum(one.contents.roles[Role.WEIGHT_SYNC.value] for one in synced)
    return f" Weight sync takes {wording.percent(min(takes / max(recorded, 1.0), 1.0))} of the record."


def _in_turn(job: Job) -> str:
    """What share of the host's time each role takes where annotations tell: " Rollout takes 60 %, update 30 %."."""
    total = sum(digest.contents.recorded_ns for digest in job.digests)
    times = {
        name: sum(digest.contents.roles.get(name, 0) for digest in job.digests) / max(total, 1.0) for name in _ORDER
    }
    said = [f"{name} {wording.percent(min(share, 1.0))}" for name, share in times.items() if share > 0]
    return f" Of the record: {wording.listing(said)}." if said else ""
