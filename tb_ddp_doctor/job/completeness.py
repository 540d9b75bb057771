"""Which ranks and steps take part in a comparison: those with a record as complete as that of their peers.

Kineto writes the host's events first, so a file that is cut has steps and operators without a kernel: beside whole
ranks it looks like the slowest of all. What its record does show is used: a step is whole if the device's events are
there of it and of the step before, at whose end its window begins. A rank with too few whole steps is left out.

Ranks may differ: stages of a pipeline, ranks of subgroups, ranks that do more work, jobs without a device. So a rank is
held against what its own host launched first, and against others only in what all of them have in common. Ranks of
reinforcement learning are held against those of their role.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from statistics import median_low

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.digest.numbering import chosen_of, different, numbered
from tb_ddp_doctor.digest.steps import FIRST_PART
from tb_ddp_doctor.job import job_kind
from tb_ddp_doctor.job.calls import Calls
from tb_ddp_doctor.job.collectives import UNEVEN
from tb_ddp_doctor.storage.constant import joined
from tb_ddp_doctor.trace.model import Ints
from tb_ddp_doctor.trace.names import is_communication_kernel
from tb_ddp_doctor.trace.program_names import Program

#: Launches without a kernel, in addition to the share that is usual in the job (captures of CUDA graphs run none).
MOST_LOST = 0.1
#: Collectives of all ranks that a rank has of those that its peers have: all, but for single damaged events.
LEAST_COLLECTIVES = 0.9
#: Launches that the last step of a file that is cut has of those of its like: all.
LEAST_OF_LAST = 0.98
#: Kernels without a launch, in addition to the share that is usual in the job, and fewer are single damaged events.
MOST_UNLAUNCHED = 0.01
LEAST_UNLAUNCHED = 3
#: Calls of collectives that a rank may have, whatever the others have; and beyond, as many times theirs: ranks of other
#: roles, as stages of a pipeline, have up to ten times as many.
SURE_COLLECTIVES, TIMES_AS_MANY = 10_000, 20
#: Events of the CPU that a step has of those of its like; 97 % at least in jobs of ours and of others.
LEAST_CALLS = 0.95
#: Fewer events are no loss: a rank whose step has so few more or less does something else.
_FEWEST_CALLS = 3
#: Events that are out of order in a step, as multiple of what a step of the job usually has: most recorders have none.
MOST_TIMES_OUT_OF_ORDER = 4
#: Launching and ending the shortest kernel takes a GPU 700 ns and more; of so many kernels the mean tells.
_SHORTEST_KERNEL_NS, _LEAST_KERNELS = 200.0, 10
#: Ranks wait for each other in every step, so none takes so many times as long as another.
MOST_TIMES = 100
#: A rank of which less than this share of the collectives of all ranks has a kind and size that most ranks have is of
#: another job, if of the median of the other ranks at least so many have.
LEAST_LIKE = 0.5
MOST_LIKE = 0.9
#: A rank of which a smaller share of the kernels has names of other ranks' kernels has other names, not other work.
LEAST_NAMED = 0.1
#: By how much the number of kernels and their time differ at most where ranks do the same work.
AS_MUCH_WORK = 0.1
#: With fewer ranks, nobody knows which one differs.
LEAST_PEERS = 3
#: A rank of which less is whole is left out rather than all other steps of the job.
LEAST_STEPS = 2
LEAST_SHARE = 0.5
#: The same of a rank whose clock was set once: at best half of its steps are before that, or after it.
LEAST_SIDE = 0.25
#: A time that is measured to the nanosecond is not the same on two ranks; of drawn and rounded ones it may be.
_MICROSECOND_NS = 1000

Mask = NDArray[np.bool_]


class Damage(msgspec.Struct, frozen=True):
    """What a rank's record lacks."""

    #: The steps that are not whole; all steps if None.
    steps: frozenset[int] | None
    #: The end of a sentence.
    reason: str
    #: Whether the rank's clock was set once, and these steps are not on the side of that instant that is used.
    is_other_side: bool = False
    #: Whether calls of collectives are all that the record lacks, so that its kernels can be counted.
    of_collectives: bool = False


Damages = dict[int, list[Damage]]


def damages(digests: Mapping[int, RankDigest], calls: Calls, world_size: int | None) -> Damages:
    """What the record of each rank lacks, by rank; ranks that lack nothing are absent. `calls` are of all ranks."""
    every: Damages = {}
    if len(digests) < 2:
        return every
    _note(every, _copies(digests))
    _note(every, _other_kind(digests))
    _note(every, _few_steps(digests))
    _note(every, _far_more(digests))
    _note(every, _other_names(digests))
    _note(every, _too_fast(digests))
    peers = {rank: digest for rank, digest in digests.items() if rank not in every}
    if not peers:
        return every
    for same_role in _by_role(peers):
        for check in (_lost_kernels, _lost_launches, _lost_calls, _out_of_order, _ended_early, _other_lengths):
            _note(every, check(same_role))
    of_peers = calls if len(peers) == len(digests) else Calls(tuple(peers.values()))
    of_all = _of_all_ranks(of_peers, world_size or 0)
    _note(every, _lost_collectives(peers, of_peers, of_all, world_size))
    _note(every, _other_collectives(peers, of_peers, of_all))
    return every


def whole_steps(digest: RankDigest, damaged: Iterable[Damage]) -> frozenset[int]:
    """The numbers of the steps that are whole."""
    steps = frozenset(digest.steps.number.tolist()) - {FIRST_PART}
    for damage in damaged:
        steps -= steps if damage.steps is None else damage.steps
    return steps


def serving(digests: Mapping[int, RankDigest], damaged: Damages) -> dict[int, frozenset[int]]:
    """The whole steps of each rank that has enough of them."""
    whole = {rank: whole_steps(digest, damaged.get(rank, ())) for rank, digest in digests.items()}
    median = float(np.median([len(steps) for rank, steps in whole.items() if steps] or [0]))
    enough = {
        rank: steps
        for rank, steps in whole.items()
        if steps and (rank not in damaged or len(steps) >= max(LEAST_STEPS, _least_share(damaged[rank]) * median))
    }
    if enough:
        return enough
    # Where nobody's record is whole, the job is what is there.
    partly = {rank: steps for rank, steps in whole.items() if steps}
    return partly or {rank: whole_steps(digest, ()) for rank, digest in digests.items() if _is_known(rank, damaged)}


def _least_share(damaged: Iterable[Damage]) -> float:
    """The share of the steps of most ranks that a rank must have whole to take part."""
    return LEAST_SIDE if any(damage.is_other_side for damage in damaged) else LEAST_SHARE


def _is_known(rank: int, damaged: Damages) -> bool:
    """Whether some step of the rank tells something."""
    everything = all(damage.steps is None for each in damaged.values() for damage in each)
    return everything or all(damage.steps is not None for damage in damaged.get(rank, ()))


def _by_role(digests: Mapping[int, RankDigest]) -> list[dict[int, RankDigest]]:
    """The ranks of each role of reinforcement learning, all ranks of any other job: programs of other roles differ in
    what they call and how long their steps are.
    """
    if job_kind.program_of(digests.values()) is not Program.RL:
        return [dict(digests)]
    roles: dict[str, dict[int, RankDigest]] = {}
    for rank, digest in digests.items():
        roles.setdefault(job_kind.role(digest), {})[rank] = digest
    return list(roles.values())


def _note(noted: Damages, damages: Mapping[int, Damage]) -> None:
    for rank, damage in damages.items():
        noted.setdefault(rank, []).append(damage)


def _copies(digests: Mapping[int, RankDigest]) -> dict[int, Damage]:
    """Ranks with the event times of another one: one file with another's content."""
    damaged: dict[int, Damage] = {}
    for ranks in same_times(digests):
        own = max(ranks, key=lambda rank: _names_process(digests[rank]))
        if len(ranks) == 2 or len(ranks) <= LEAST_SHARE * len(digests):
            reason = f"it has the event times of {digests[own].file} (rank {own}): one is a copy"
            damaged |= {rank: Damage(None, reason) for rank in ranks if rank != own}
    return damaged


def same_times(digests: Mapping[int, RankDigest]) -> list[list[int]]:
    """Groups of ranks whose events have the same times; where most have, the job is made of copies of one trace."""
    spans = {
        rank: (int(digest.steps.start_ns[0]), int(digest.steps.end_ns[-1]))
        for rank, digest in digests.items()
        if len(digest.steps)
    }
    often = Counter(spans.values())
    same: dict[bytes, list[int]] = {}
    for rank in (rank for rank, span in spans.items() if often[span] > 1):
        steps = digests[rank].steps
        times = (steps.start_ns, steps.end_ns, digests[rank].pieces.start_ns)
        same.setdefault(b"".join(column.tobytes() for column in times), []).append(rank)
    return [ranks for ranks in same.values() if len(ranks) > 1 and _are_copies([digests[rank] for rank in ranks])]


def _are_copies(digests: Sequence[RankDigest]) -> bool:
    """Whether those with equal times are of one process, or have times as only measuring gives them."""
    pid = digests[0].pid
    one_process = bool(pid) and all(digest.pid == pid for digest in digests)
    return one_process or bool((digests[0].steps.end_ns[:-1] % _MICROSECOND_NS).any())


def _names_process(digest: RankDigest) -> bool:
    """Whether the file's name has the process that its events are of, as torch's names do."""
    name = PurePath(digest.file).name
    return bool(digest.pid) and re.search(rf"(?<!\d){re.escape(digest.pid)}(?!\d)", name) is not None


def _other_kind(digests: Mapping[int, RankDigest]) -> dict[int, Damage]:
    """Ranks without device events or steps, where others have them."""
    damaged = {}
    device = any(digest.has_device for digest in digests.values())
    steps = sum(digest.has_steps for digest in digests.values()) * 2 >= len(digests)
    for rank, digest in digests.items():
        if device and not digest.has_device:
            damaged[rank] = Damage(None, "its trace has no GPU events, but those of other ranks have")
        elif steps and not digest.has_steps:
            damaged[rank] = Damage(None, "it has no ProfilerStep, but other ranks have")
    return damaged


def _few_steps(digests: Mapping[int, RankDigest]) -> dict[int, Damage]:
    """Ranks that have far fewer steps than most."""
    counts = {rank: len(digest.steps) for rank, digest in digests.items()}
    median = sorted(counts.values())[len(counts) // 2]
    share = {rank: LEAST_SIDE if digest.contents.clock_set_back else LEAST_SHARE for rank, digest in digests.items()}
    return {
        rank: Damage(None, f"it has {count} step{'s'[: count != 1]}, and other ranks have {median}")
        for rank, count in counts.items()
        if count < min(median, max(LEAST_STEPS, share[rank] * median))
    }


def _far_more(digests: Mapping[int, RankDigest]) -> dict[int, Damage]:
    """Ranks with many times the collectives of the others of a group: matching them would take the square of it.

    Engines with tensor parallelism have a hundred times as many as ranks that train, in groups of their own.
    """
    of_group: dict[tuple[str, str], dict[int, int]] = {}
    for rank, digest in digests.items():
        calls = digest.collectives
        groups, counts = np.unique(np.stack((calls.group, calls.group_ranks)), axis=1, return_counts=True)
        for (group, ranks), count in zip(groups.T.tolist(), counts.tolist(), strict=True):
            of_group.setdefault((digest.strings[group], digest.strings[ranks]), {})[rank] = count
    damaged = {}
    for of_rank in of_group.values():
        median = sorted(of_rank.values())[(len(of_rank) - 1) // 2]
        most = max(SURE_COLLECTIVES, TIMES_AS_MANY * median)
        for rank, count in of_rank.items():
            if count > most:
                damaged[rank] = Damage(None, f"it has {count:,} calls of collectives, and other ranks have {median:,}")
    return damaged


def _other_names(digests: Mapping[int, RankDigest]) -> dict[int, Damage]:
    """Ranks whose kernels have names that no other rank of the same GPU has, where those of the others are alike.

    What a kernel does is told by its name: such a rank would seem to compute no GEMM. One that computes for as long,
    with as many kernels; one that does not may do other work.
    """
    counts: dict[int, dict[str, int]] = {}
    for rank, digest in digests.items():
        table, counted, own = digest.kernels, Counter[int](), Counter[str]()
        for name, count in zip(table.name.tolist(), table.count.tolist(), strict=True):
            counted[name] += count
        # Each name once: one of a megabyte may be that of 60,000 rows.
        for name, count in counted.items():
            if name >= 0 and not is_communication_kernel(digest.strings[name]):
                own[digest.strings[name]] += count
        if own and digest.has_device:
            counts[rank] = own
    devices = {digests[rank].device for rank in counts}
    if len(counts) < LEAST_PEERS or len(devices) > 1:
        return {}
    ranks_of = Counter(name for own in counts.values() for name in own)
    like = {
        rank: sum(count for name, count in own.items() if ranks_of[name] > 1) / max(sum(own.values()), 1)
        for rank, own in counts.items()
    }
    median = median_low([*like.values()])
    odd = [rank for rank, share in like.items() if share < LEAST_NAMED and median >= MOST_LIKE]
    damaged = {}
    for rank in odd:
        work = (digests[rank].kernels.total_ns.sum(), digests[rank].kernels.count.sum())
        theirs = [digests[each].kernels for each in counts if each not in odd]
        beside = (np.median([of.total_ns.sum() for of in theirs]), np.median([of.count.sum() for of in theirs]))
        if np.allclose(work, beside, rtol=AS_MUCH_WORK):
            damaged[rank] = Damage(
                None, f"{_few(like[rank])} of its kernels has a name that another rank's kernels have"
            )
    return damaged


def _lost_kernels(digests: Mapping[int, RankDigest]) -> dict[int, Damage]:
    """Ranks that launched kernels of which the trace has no event."""
    damaged = {}
    for launched, lost, what in (
        ("launches", "lost", "kernel launches have no kernel"),
        ("communications", "lost_communications", "launches of communication have no communication kernel"),
        ("graph_nodes", "lost_graph_nodes", "nodes of replayed CUDA graphs have no kernel"),
    ):
        tables = {rank: digest.lost_kernels for rank, digest in digests.items()}
        counts = {rank: (getattr(table, launched), getattr(table, lost)) for rank, table in tables.items()}
        if not joined([missing for _, missing in counts.values()]).any():
            continue
        shares = [int(missing.sum()) / max(int(calls.sum()), 1) for calls, missing in counts.values()]
        median = median_low(shares or [0.0])
        for rank, (calls, missing) in counts.items():
            lossy = missing > (median + MOST_LOST) * calls
            if rank not in damaged and lossy.any():
                reason = f"{int(missing[lossy].sum()):,} of {int(calls[lossy].sum()):,} {what}"
                damaged[rank] = _and_after(digests[rank], lossy, reason)
    return damaged


def _lost_launches(digests: Mapping[int, RankDigest]) -> dict[int, Damage]:
    """Ranks with kernels in mid-trace of which the trace has no launch."""
    damaged = {}
    tables = {rank: digest.lost_kernels for rank, digest in digests.items()}
    if not joined([table.unlaunched for table in tables.values()]).any():
        return {}
    kernels = {rank: table.unlaunched + table.launches - table.lost for rank, table in tables.items()}
    median = median_low([table.unlaunched.sum() / max(kernels[rank].sum(), 1) for rank, table in tables.items()])
    for rank, table in tables.items():
        lossy = table.unlaunched > np.maximum((median + MOST_UNLAUNCHED) * kernels[rank], LEAST_UNLAUNCHED - 1)
        if lossy.any():
            reason = (
                f"{int(table.unlaunched[lossy].sum()):,} of {int(kernels[rank][lossy].sum()):,} kernels have no launch"
            )
            damaged[rank] = _and_after(digests[rank], lossy, reason)
    return damaged


def _lost_calls(digests: Mapping[int, RankDigest]) -> dict[int, Damage]:
    """Ranks whose CPU has fewer events in a step than in its other steps, or than others have for as many launches.

    Either alone may be so: steps differ, and so do ranks. Both may be so where ranks generate: each has its own
    requests, and a prompt takes more launches and fewer other events than answers that a CUDA graph computes.
    """
    tables = [digest.lost_kernels for digest in digests.values()]
    if not tables or any(map(job_kind.generates, digests.values())):
        return {}
    number, calls, launches = (
        joined([getattr(table, name) for table in tables]) for name in ("number", "calls", "launches")
    )
    if not len(calls) or calls.min() >= LEAST_CALLS * calls.max():
        return {}
    rank = np.repeat(np.arange(len(tables)), [len(table.calls) for table in tables])
    own = _medians(rank, calls)
    median = _medians(number, calls)
    few = (calls < LEAST_CALLS * median) & (median - calls >= _FEWEST_CALLS)
    few &= (calls < LEAST_CALLS * own) | (launches >= LEAST_OF_LAST * _medians(number, launches))
    damaged = {}
    every = list(digests)
    for index in np.unique(rank[few]).tolist():
        digest, lossy = digests[every[index]], few[rank == index]
        reason = f"its CPU has fewer events than other ranks' in step {digest.lost_kernels.number[lossy][0]}"
        damaged[every[index]] = _and_after(digest, lossy, reason)
    return damaged


def _out_of_order(digests: Mapping[int, RankDigest]) -> dict[int, Damage]:
    """Ranks with events whose times contradict each other, in steps with more of them than is usual in the job."""
    damaged = {}
    for name, what in (
        ("out_of_order", "GPU events are out of the order of their launches"),
        ("out_of_turn", "CPU events are out of the order of their thread"),
    ):
        counts = {rank: getattr(digest.lost_kernels, name) for rank, digest in digests.items()}
        if not joined(list(counts.values())).any():
            continue
        number = np.concatenate([digest.lost_kernels.number for digest in digests.values()])
        of_step = np.split(
            _medians(number, np.concatenate([*counts.values()])), np.cumsum([*map(len, counts.values())])
        )
        median = median_low([float(odd.mean()) if len(odd) else 0.0 for odd in counts.values()])
        for (rank, odd), beside in zip(counts.items(), of_step, strict=False):
            lossy = odd > MOST_TIMES_OUT_OF_ORDER * np.maximum(median, beside)
            if rank not in damaged and lossy.any():
                damaged[rank] = _and_after(digests[rank], lossy, f"{int(odd[lossy].sum()):,} of its {what}")
    return damaged


def _ended_early(digests: Mapping[int, RankDigest]) -> dict[int, Damage]:
    """Ranks whose device's events end within a step: those of files that are cut, or end before the host's."""
    damaged = {}
    by_step: dict[int, list[int]] = {}
    for rank, digest in digests.items():
        number, launches = digest.lost_kernels.number, digest.lost_kernels.launches
        if len(launches) and launches[-1] and not any(warning.kind == "lost-end" for warning in digest.warnings):
            continue
        some = np.flatnonzero(launches)
        if not len(some):
            continue
        last = int(some[-1])
        by_step = by_step or _launches(digests)
        later = [n for n in number[last + 1 :].tolist() if median_low(by_step[n]) > 0]
        if not later and not any(warning.kind == "lost-end" for warning in digest.warnings):
            continue
        like = [*launches[:last].tolist(), *(n for n in by_step[int(number[last])] if n != launches[last])]
        lossy = launches == 0
        lossy[last] = bool(later) or (bool(like) and int(launches[last]) < LEAST_OF_LAST * float(np.median(like)))
        if lossy[last]:
            damaged[rank] = _and_after(digest, lossy, f"its GPU events end within step {number[last]}")
    return damaged


def _launches(digests: Mapping[int, RankDigest]) -> dict[int, list[int]]:
    """The launches of each step on all ranks, by its number."""
    by_step: dict[int, list[int]] = {}
    for digest in digests.values():
        table = digest.lost_kernels
        for number, launches in zip(table.number.tolist(), table.launches.tolist(), strict=True):
            by_step.setdefault(number, []).append(launches)
    return by_step


def _too_fast(digests: Mapping[int, RankDigest]) -> dict[int, Damage]:
    """Ranks whose kernels are shorter than any GPU's, beside ranks whose kernels are not: their times are in ms.

    Of two ranks with steps of other lengths, this tells which one is wrong.
    """
    kernels = [digest.kernels for digest in digests.values()]
    last = np.cumsum([len(table.name) for table in kernels])
    total, count = (
        np.diff(np.append(0, np.cumsum(joined([getattr(table, name) for table in kernels])))[np.append(0, last)])
        for name in ("total_ns", "count")
    )
    mean = {
        rank: of_rank_ns / max(of_rank, 1)
        for (rank, digest), of_rank_ns, of_rank in zip(digests.items(), total.tolist(), count.tolist(), strict=True)
        if digest.has_device and of_rank >= _LEAST_KERNELS
    }
    short = [rank for rank, mean_ns in mean.items() if mean_ns < _SHORTEST_KERNEL_NS]
    if len(short) == len(mean):
        return {}
    return {
        rank: Damage(None, f"its kernels take {wording.decimals(mean[rank], 0)} ns on average, and no GPU's do")
        for rank in short
    }


def _other_lengths(digests: Mapping[int, RankDigest]) -> dict[int, Damage]:
    """Ranks with steps that take many times as long as those of other ranks, or as short."""
    steps = [digest.steps for digest in digests.values()]
    if not steps:
        return {}
    number, start, end = (joined([getattr(each, name) for each in steps]) for name in ("number", "start_ns", "end_ns"))
    rank, whole = np.repeat(list(digests), [len(each) for each in steps]), number != FIRST_PART
    rank, number, length = rank[whole], number[whole], (end - start)[whole]
    if not len(length) or (length.max() - 1) // MOST_TIMES < length.min():
        return {}
    median = _medians(number, length)
    damaged = {}
    for odd, how in (
        ((length - 1) // MOST_TIMES >= median, f"over {MOST_TIMES} times as long as on other ranks"),
        (length < median // MOST_TIMES, "less than a hundredth of what it takes on other ranks"),
    ):
        for each in dict.fromkeys(rank[odd].tolist()):
            numbers = number[odd & (rank == each)]
            damaged[each] = Damage(frozenset(numbers.tolist()), f"step {numbers.min()} seems to take {how}")
    return damaged


def _medians(key: Ints, values: Ints) -> Ints:
    """For each value the lower median of those with its key."""
    which = numbered(key)
    order = np.lexsort((values, which))
    count = np.bincount(which)
    median: Ints = values[order[np.cumsum(count) - count + (count - 1) // 2]][which]
    return median


def _of_all_ranks(calls: Calls, world_size: int) -> Mask:
    """Which calls are collectives that all ranks of the job take part in."""
    if world_size < 2:
        return np.zeros(len(calls), np.bool_)
    return (calls.column("step") >= 0) & (calls.column("group_size") >= world_size)


def _lost_collectives(
    digests: Mapping[int, RankDigest], calls: Calls, of_all: Mask, world_size: int | None
) -> dict[int, Damage]:
    """Ranks that lack collectives which all ranks of the job take part in; `of_all` tells which of their calls are."""
    damaged = {}
    steps = [digest.steps for digest in digests.values()]
    number, count = joined([each.number for each in steps]), _collectives_of_all(digests, calls, of_all)
    # No median of counts is above the largest one.
    if len(count) and count.min() < LEAST_COLLECTIVES * count.max():
        lacks = count < LEAST_COLLECTIVES * _medians(number, count)
        rank = np.repeat(list(digests), [len(each) for each in steps])
        for one in dict.fromkeys(rank[lacks].tolist()):
            numbers = digests[one].lost_kernels.number
            lossy = np.isin(numbers, number[lacks & (rank == one)])
            if lossy.any():
                reason = f"it lacks collectives that all other ranks have, in step {int(numbers[lossy][0])}"
                damaged[one] = replace(_and_after(digests[one], lossy, reason), of_collectives=True)
    own = dict(zip(digests, np.diff(calls.first).tolist(), strict=True))
    # A role of reinforcement learning may have none: samples and weights go by queues and files.
    silent = [rank for role in _by_role(digests) if any(own[each] for each in role) for rank in role if not own[rank]]
    if damaged or not silent:
        return damaged
    others = [digest.collectives for rank, digest in digests.items() if rank not in silent]
    unnamed = all(len(table) and bool((table.group_size < 0).all()) for table in others)
    complete = world_size == len(digests) and len({int((table.step >= 0).sum()) for table in others}) == 1
    if others and unnamed and complete and len(others) >= len(silent):
        damaged = {
            rank: Damage(None, "it has no collectives, but all other ranks have the same number", of_collectives=True)
            for rank in silent
        }
    return damaged


def _other_collectives(digests: Mapping[int, RankDigest], calls: Calls, of_all: Mask) -> dict[int, Damage]:
    """Ranks of which most collectives of all ranks are of a kind and size that most other ranks do not have.

    An AllToAll may have another size on each rank, always the largest one where the busiest experts are.
    """
    if len(digests) < LEAST_PEERS:
        return {}
    chosen = chosen_of(of_all)
    sizes = np.where(calls.text("kind").where(UNEVEN.__contains__), -1, calls.column("elements"))
    what = (calls.text("kind").code, calls.text("dtype").code, sizes)
    kind, rank = numbered(*(column[chosen] for column in what)), calls.rank[chosen]
    of_rank = different(kind * len(digests) + rank)
    common = 2 * np.bincount(of_rank // len(digests)) > len(digests)
    total = np.bincount(rank, minlength=len(digests))
    shared = total if common.all() else np.bincount(rank[common[kind]], minlength=len(digests))
    like = {each: shared[i] / total[i] for i, each in enumerate(digests) if total[i]}
    return {
        rank: Damage(None, f"of its collectives over all ranks, {_few(share)} is in kind and size as on other ranks")
        for rank, share in like.items()
        if share < LEAST_LIKE
        and median_low([other for each, other in like.items() if each != rank] or [0.0]) >= MOST_LIKE
    }


def _few(share: float) -> str:
    return f"{wording.decimals(share * 100, 0)} %" if share else "none"


def _collectives_of_all(digests: Mapping[int, RankDigest], calls: Calls, of_all: Mask) -> Ints:
    """How many collectives of the whole job each step of each rank has, rank by rank, shape (steps of all ranks,).

    Sends and receives in its group are none.
    """
    ends = [digest.message_ends for digest in digests.values()]
    messages = joined([table.call for table in ends])
    if len(messages):
        of_all = of_all.copy()
        of_all[messages + np.repeat(calls.first[:-1], [len(table) for table in ends])] = False
    sizes = np.array([len(digest.steps) for digest in digests.values()])
    first = np.cumsum(sizes) - sizes
    chosen = chosen_of(of_all)
    place = first[calls.rank[chosen]] + calls.column("step")[chosen]
    return np.bincount(place, minlength=int(sizes.sum()))


def _and_after(digest: RankDigest, lossy: Mask, reason: str) -> Damage:
    """Damage of some steps of the record, and of each that follows one: where its window begins is not known."""
    return Damage(frozenset(digest.lost_kernels.number[lossy | after(lossy)].tolist()), reason)


def after(chosen: Mask) -> Mask:
    """The steps that follow chosen ones."""
    return np.concatenate(([False], chosen[:-1]))
