"""Which ranks and steps take part in a comparison: those with a record as complete as that of their peers.

Kineto writes the host's events first, so a file that is cut has steps and operators without a kernel: beside whole
ranks it looks like the slowest of all. What its record does show is used: a step is whole if the device's events are
there of it and of the step before, at whose end its window begins. A rank with too few whole steps is left out.

Ranks may differ: stages of a pipeline, ranks of subgroups, ranks that do more work, jobs without a device. So a rank is
held against what its own host launched first, and against others only in what all of them have in common.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.job.clock import ClockFit, Floats
from tb_ddp_doctor.job.collectives import ENDS_APART, Matched
from tb_ddp_doctor.job.numbering import numbered
from tb_ddp_doctor.trace.model import Ints

#: Launches without a kernel, in addition to the share that is usual in the job (captures of CUDA graphs run none).
MOST_LOST = 0.1
#: Collectives of all ranks that a rank has of those that its peers have: all, but for single damaged events.
LEAST_COLLECTIVES = 0.9
#: Launches that the last step of a file that is cut has of those of its like: all.
LEAST_OF_LAST = 0.98
#: Ranks wait for each other in every step, so none takes so many times as long as another.
MOST_TIMES = 100
#: Ends of one collective that are further apart are on clocks that jump, ns, as NTP makes them from 128 ms on; and as
#: many times the usual spread.
JUMP_NS = 20_000_000
JUMP_RESIDUALS = 20
#: A rank of which less is whole is left out rather than all other steps of the job.
LEAST_STEPS = 2
LEAST_SHARE = 0.5
#: A time that is measured to the nanosecond is not the same on two ranks; of drawn and rounded ones it may be.
_MICROSECOND_NS = 1000

Mask = NDArray[np.bool_]


class Damage(msgspec.Struct, frozen=True):
    """What a rank's record lacks."""

    #: The steps that are not whole; all steps if None.
    steps: frozenset[int] | None
    #: The end of a sentence.
    reason: str


Damages = dict[int, list[Damage]]


def damages(digests: Mapping[int, RankDigest], world_size: int | None) -> Damages:
    """What the record of each rank lacks, by rank; ranks that lack nothing are absent."""
    found: Damages = {}
    if len(digests) < 2:
        return found
    _note(found, _copies(digests))
    _note(found, _other_kind(digests))
    peers = {rank: digest for rank, digest in digests.items() if rank not in found}
    for check in (_lost_kernels, _ended_early, _too_long):
        _note(found, check(peers))
    _note(found, _lost_collectives(peers, world_size))
    return found


def whole_steps(digest: RankDigest, found: Iterable[Damage]) -> frozenset[int]:
    """The numbers of the steps that are whole."""
    steps = frozenset(digest.steps.number.tolist())
    for damage in found:
        steps -= steps if damage.steps is None else damage.steps
    return steps


def serving(digests: Mapping[int, RankDigest], found: Damages) -> dict[int, frozenset[int]]:
    """The whole steps of each rank that has enough of them."""
    whole = {rank: whole_steps(digest, found.get(rank, ())) for rank, digest in digests.items()}
    usual = float(np.median([len(steps) for rank, steps in whole.items() if steps] or [0]))
    enough = {
        rank: steps
        for rank, steps in whole.items()
        if steps and (rank not in found or len(steps) >= max(LEAST_STEPS, LEAST_SHARE * usual))
    }
    if enough:
        return enough
    # Where nobody's record is whole, the job is what is there.
    partly = {rank: steps for rank, steps in whole.items() if steps}
    return partly or {rank: whole_steps(digest, ()) for rank, digest in digests.items() if _is_known(rank, found)}


def _is_known(rank: int, found: Damages) -> bool:
    """Whether some step of the rank tells something."""
    everything = all(damage.steps is None for each in found.values() for damage in each)
    return everything or all(damage.steps is not None for damage in found.get(rank, ()))


def clock_jumps(ranks: Sequence[int], digests: Sequence[RankDigest], matched: Matched, clock: ClockFit) -> Damages:
    """Ranks whose clocks jump: from some step on, all collectives end as far from where those of other ranks do."""
    found: Damages = {}
    apart, step = _ends_apart(matched, clock)
    if not len(step) or not all(digest.has_device for digest in digests):
        return found
    # Most collectives end apart on a clock that jumps: what is usual shows in most ranks, or where ends are closest.
    in_most_ranks = float(np.median(np.nanmedian(np.abs(apart), axis=1)))
    where_closest = float(np.quantile(np.nanmax(np.abs(apart), axis=1), 0.1))
    limit = max(JUMP_NS, JUMP_RESIDUALS * min(in_most_ranks, where_closest))
    far = np.flatnonzero(np.nanmax(np.abs(apart), axis=0, initial=0) > limit)
    if not len(far):
        return found
    numbers = np.unique(step)
    latest = np.stack([np.nanmax(apart[step == number], axis=0, initial=-np.inf) for number in numbers])
    earliest = np.stack([np.nanmin(apart[step == number], axis=0, initial=np.inf) for number in numbers])
    known = np.isfinite(latest)
    differs = latest - earliest >= limit / 2
    # Calls of different groups that are taken for one, for want of their names, differ on several ranks.
    within = differs & (differs.sum(axis=1, keepdims=True) == 1)
    for index in far.tolist():
        clean = known[:, index] & ~differs[:, index]
        shift = (latest[clean, index] + earliest[clean, index]) / 2
        odd = within[:, index] & bool(len(shift))
        odd[clean] |= _shifted(shift, limit)
        number = digests[index].steps.number
        steps = np.isin(number, numbers[odd])
        if steps.any():
            # It may jump after the last collective of the step before, or go on behind the first of the next.
            steps |= _before(steps) | _after(steps)
            reason = "its clock jumps relative to those of other ranks"
            found[ranks[index]] = [Damage(frozenset(number[steps].tolist()), reason)]
    return found


def _ends_apart(matched: Matched, clock: ClockFit) -> tuple[Floats, Ints]:
    """How much later each collective ends than on most ranks, shape (M, R), nan where absent; and its step.

    Without those that some rank may end before the others have arrived.
    """
    own = matched.end_ns
    end = np.where(matched.present, own - clock.correction(np.arange(own.shape[1]), own) - clock.origin_ns, np.nan)
    judged = np.flatnonzero([kind not in ENDS_APART for kind in matched.kind])
    apart: Floats = (end - np.nanmedian(end, axis=1, keepdims=True))[judged]
    return apart, matched.step[judged]


def _shifted(shift_ns: Floats, limit_ns: float) -> Mask:
    """Which steps are on the other side of a jump: all before one or all after it, by the same time."""
    far = np.abs(shift_ns - np.sort(shift_ns)[(len(shift_ns) - 1) // 2]) > limit_ns if len(shift_ns) else shift_ns > 0
    is_jump = far.any() and np.ptp(shift_ns[far]) < limit_ns and np.diff(far).sum() == 1
    return far if is_jump else np.zeros_like(far)


def _note(found: Damages, damages: Mapping[int, Damage]) -> None:
    for rank, damage in damages.items():
        found.setdefault(rank, []).append(damage)


def _copies(digests: Mapping[int, RankDigest]) -> dict[int, Damage]:
    """Ranks with the event times of another one: one file with another's content."""
    found: dict[int, Damage] = {}
    for ranks in same_times(digests):
        own = max(ranks, key=lambda rank: _names_process(digests[rank]))
        if len(ranks) == 2 or len(ranks) <= LEAST_SHARE * len(digests):
            reason = f"it has the event times of {digests[own].file} (rank {own}): one is a copy"
            found |= {rank: Damage(None, reason) for rank in ranks if rank != own}
    return found


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
    found = {}
    device = any(digest.has_device for digest in digests.values())
    steps = sum(digest.has_steps for digest in digests.values()) * 2 >= len(digests)
    for rank, digest in digests.items():
        if device and not digest.has_device:
            found[rank] = Damage(None, "its trace has no GPU events, but those of other ranks have")
        elif steps and not digest.has_steps:
            found[rank] = Damage(None, "it has no ProfilerStep, but other ranks have")
    return found


def _lost_kernels(digests: Mapping[int, RankDigest]) -> dict[int, Damage]:
    """Ranks that launched kernels of which the trace has no event."""
    found = {}
    for launched, lost, what in (
        ("launches", "lost", "kernel launches"),
        ("communications", "lost_communications", "launches of communication"),
    ):
        tables = {rank: digest.lost_kernels for rank, digest in digests.items()}
        counts = {rank: (getattr(table, launched), getattr(table, lost)) for rank, table in tables.items()}
        if not any(missing.any() for _, missing in counts.values()):
            continue
        shares = [int(missing.sum()) / max(int(calls.sum()), 1) for calls, missing in counts.values()]
        usual = _lower_median(shares or [0.0])
        for rank, (calls, missing) in counts.items():
            lossy = missing > (usual + MOST_LOST) * calls
            if rank not in found and lossy.any():
                reason = f"{int(missing[lossy].sum()):,} of {int(calls[lossy].sum()):,} {what} have no kernel"
                found[rank] = _and_after(digests[rank], lossy, reason)
    return found


def _ended_early(digests: Mapping[int, RankDigest]) -> dict[int, Damage]:
    """Ranks whose device's events end within a step: those of files that are cut, or end before the host's."""
    found = {}
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
        later = [n for n in number[last + 1 :].tolist() if _lower_median(by_step[n]) > 0]
        if not later and not any(warning.kind == "lost-end" for warning in digest.warnings):
            continue
        like = [*launches[:last].tolist(), *(n for n in by_step[int(number[last])] if n != launches[last])]
        lossy = launches == 0
        lossy[last] = bool(later) or (bool(like) and int(launches[last]) < LEAST_OF_LAST * float(np.median(like)))
        if lossy[last]:
            found[rank] = _and_after(digest, lossy, f"its GPU events end within step {number[last]}")
    return found


def _launches(digests: Mapping[int, RankDigest]) -> dict[int, list[int]]:
    """The launches of each step on all ranks, by its number."""
    by_step: dict[int, list[int]] = {}
    for digest in digests.values():
        table = digest.lost_kernels
        for number, launches in zip(table.number.tolist(), table.launches.tolist(), strict=True):
            by_step.setdefault(number, []).append(launches)
    return by_step


def _too_long(digests: Mapping[int, RankDigest]) -> dict[int, Damage]:
    """Ranks with steps that take many times as long as those of other ranks."""
    steps = [digest.steps for digest in digests.values()]
    if not steps:
        return {}
    number = np.concatenate([each.number for each in steps])
    length = np.concatenate([each.end_ns - each.start_ns for each in steps])
    rank = np.repeat(list(digests), [len(each) for each in steps])
    is_long = (length - 1) // MOST_TIMES >= _usual(number, length)
    return {
        each: Damage(
            frozenset(number[is_long & (rank == each)].tolist()),
            f"step {number[is_long & (rank == each)].min()} seems to take over {MOST_TIMES} times as long as on other "
            "ranks",
        )
        for each in dict.fromkeys(rank[is_long].tolist())
    }


def _usual(key: Ints, values: Ints) -> Ints:
    """For each value the lower median of those with its key."""
    which = numbered(key)
    order = np.lexsort((values, which))
    count = np.bincount(which)
    usual: Ints = values[order[np.cumsum(count) - count + (count - 1) // 2]][which]
    return usual


def _lost_collectives(digests: Mapping[int, RankDigest], world_size: int | None) -> dict[int, Damage]:
    """Ranks that lack collectives which all ranks of the job take part in."""
    found = {}
    counts = [_collectives_of_all(digest, world_size or 0) for digest in digests.values()]
    if not counts:
        return {}
    number, count = np.concatenate([digest.steps.number for digest in digests.values()]), np.concatenate(counts)
    lacks = count < LEAST_COLLECTIVES * _usual(number, count)
    rank = np.repeat(list(digests), [len(own) for own in counts])
    for each in dict.fromkeys(rank[lacks].tolist()):
        numbers = digests[each].lost_kernels.number
        lossy = np.isin(numbers, number[lacks & (rank == each)])
        if lossy.any():
            reason = f"it lacks collectives of all ranks in step {int(numbers[lossy][0])}"
            found[each] = _and_after(digests[each], lossy, reason)
    silent = [rank for rank, digest in digests.items() if not len(digest.collectives)]
    if found or not silent:
        return found
    others = [digest.collectives for rank, digest in digests.items() if rank not in silent]
    unnamed = all(len(table) and bool((table.group_size < 0).all()) for table in others)
    complete = world_size == len(digests) and len({int((table.step >= 0).sum()) for table in others}) == 1
    if others and unnamed and complete and len(others) >= len(silent):
        found = {
            rank: Damage(None, "it has no collectives, but all other ranks have the same number") for rank in silent
        }
    return found


def _collectives_of_all(digest: RankDigest, world_size: int) -> Ints:
    """How many collectives of the whole job each step of a rank has."""
    table = digest.collectives
    chosen = table.step[(table.step >= 0) & (table.group_size >= world_size) & (world_size > 1)]
    return np.bincount(chosen, minlength=len(digest.steps))


def _lower_median(values: Sequence[float]) -> float:
    """Of two ranks, that of the one that has less."""
    return sorted(values)[(len(values) - 1) // 2]


def _and_after(digest: RankDigest, lossy: Mask, reason: str) -> Damage:
    """Damage of some steps of the record, and of each that follows one: where its window begins is not known."""
    return Damage(frozenset(digest.lost_kernels.number[lossy | _after(lossy)].tolist()), reason)


def _after(chosen: Mask) -> Mask:
    return np.concatenate(([False], chosen[:-1]))


def _before(chosen: Mask) -> Mask:
    return np.concatenate((chosen[1:], [False]))
