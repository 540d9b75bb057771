"""Which dumps can be held against others: those that say the same as their own counters, and as what others completed.

A dump that is empty, older than the others, or lacks entries accuses whom it is of: its rank "never came". Left out is

- a dump without the groups' ranks or counters that most others have;
- one whose pending entries are not those between its counters of completed and enqueued collectives (`pg_status`);
- one with gaps in its record numbers, where it keeps what has completed;
- one without anything, where several ranks completed collectives of its groups;
- one without a collective that several ranks completed, and that nobody completes without all;
- one whose counter of a group is further behind those of several ranks than NCCL lets any rank run ahead;
- the only one that says that a collective completed in which several others wait.

Two with the same entries are said: one is a copy, and nothing tells which. Where as many dumps or more would be left
out as stay, they are of a recorder that writes otherwise: all stay.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tb_ddp_doctor.findings import FileWarning
from tb_ddp_doctor.flight.model import COMPLETED, Dump, Flags, GroupStatus
from tb_ddp_doctor.stuck.waits import NEEDS_ALL

#: What one rank says alone of the others may be its own damage; what several say is not.
_WITNESSES = 2
#: NCCL's buffers hold so many steps between two neighbours (NCCL_STEPS), and every collective is a step at least: even
#: of broadcasts, which complete without those behind, no rank completes more before the rank beside it came.
_STEPS_AHEAD = 8
#: Parts of ranks in pending collectives that a dump may have, whatever the others have; and beyond, as many times
#: those of the median dump. A job of 100,000 ranks with ten collectives pending has a million.
_SURE_PARTS = 500_000
_TIMES_AS_MANY = 4
#: A group as all its ranks name it.
_Key = tuple[str, str, tuple[int, ...]]


def trusted(dumps: Sequence[Dump]) -> tuple[list[Dump], list[FileWarning]]:
    """The dumps that can be held against each other, and a warning for each that cannot."""
    doubts: dict[int, str] = {}
    for check in (_without_what_others_have, _silent, _against_own_counters, _against_others, _far_behind):
        remaining = [dump for dump in dumps if dump.rank not in doubts]
        doubts |= dict(check(remaining))
    copies = list(_copies(dumps))
    if 2 * len(doubts) >= len(dumps):
        return list(dumps), copies
    left_out = [
        FileWarning(dump.file, f"Left out: {doubts[dump.rank]}. Nothing is concluded from it.")
        for dump in dumps
        if dump.rank in doubts
    ]
    return [dump for dump in dumps if dump.rank not in doubts], [*left_out, *copies]


def light(dumps: Sequence[Dump]) -> tuple[list[Dump], list[FileWarning]]:
    """The dumps without those that claim far more than the others, and a warning for each of these.

    Whether each rank of a group came is found for each of its pending collectives, so that a file of 200 KB that names
    100,000 ranks and 1,000 of these would take gigabytes. Ranks of one job are in groups of like sizes.
    """
    parts = [_parts_of_pending(dump) for dump in dumps]
    most = max(_SURE_PARTS, _TIMES_AS_MANY * sorted(parts)[(len(parts) - 1) // 2]) if parts else 0
    warnings = [
        FileWarning(
            dump.file,
            f"Left out: it counts {many:,} parts of ranks in pending collectives, far more than the other dumps. "
            "Nothing is concluded from it.",
        )
        for dump, many in zip(dumps, parts, strict=True)
        if many > most
    ]
    return [dump for dump, many in zip(dumps, parts, strict=True) if many <= most], warnings


def _parts_of_pending(dump: Dump) -> int:
    """The ranks of the groups of its pending entries, counted for each entry, and of all its groups."""
    sizes = np.array(
        [len(dump.groups[name].ranks) if name in dump.groups else 0 for name in dump.group_names], np.int64
    )
    pending = dump.entries.group[dump.entries.state != COMPLETED]
    return int(sizes[pending].sum()) + sum(len(group.ranks) for group in dump.groups.values())


def _without_what_others_have(dumps: Sequence[Dump]) -> Iterator[tuple[int, str]]:
    listed = [any(group.ranks for group in dump.groups.values()) for dump in dumps]
    counted = [bool(dump.status) for dump in dumps]
    for dump, lists, counts in zip(dumps, listed, counted, strict=True):
        if not lists and 2 * sum(listed) > len(dumps):
            yield dump.rank, "it lists no ranks of its process groups, and other dumps do"
        elif not counts and 2 * sum(counted) > len(dumps):
            yield dump.rank, "it has no counters of its process groups (pg_status), and other dumps have"


def _silent(dumps: Sequence[Dump]) -> Iterator[tuple[int, str]]:
    used = [
        rank
        for dump in dumps
        for name, status in dump.status.items()
        if status.completed > 0 and name in dump.groups
        for rank in dump.groups[name].ranks
        if rank != dump.rank
    ]
    witnesses = Counter(used)
    for dump in dumps:
        counted = any(status.enqueued >= 0 for status in dump.status.values())
        if not len(dump.entries) and dump.status and not counted and witnesses[dump.rank] >= _WITNESSES:
            yield dump.rank, "it counts no collective, and other ranks completed some of its groups"


def _copies(dumps: Sequence[Dump]) -> Iterator[FileWarning]:
    same: defaultdict[bytes, list[Dump]] = defaultdict(list)
    for dump in dumps:
        # A time that is measured to the nanosecond is not the same on two ranks.
        if (dump.entries.created_ns % 1000 > 0).any():
            same[dump.entries.created_ns.tobytes() + dump.entries.record.tobytes()].append(dump)
    for first, *others in same.values():
        for dump in others:
            message = f"The dumps of ranks {first.rank} and {dump.rank} have the same entries: one is a copy."
            yield FileWarning(dump.file, message)


def _against_own_counters(dumps: Sequence[Dump]) -> Iterator[tuple[int, str]]:
    with_messages = _with_messages(dumps)
    for dump in dumps:
        entries = dump.entries
        unlisted = [name for name in dump.group_names if dump.groups and not dump.groups.get(name)]
        if unlisted:
            yield dump.rank, f"it has entries of a process group that it does not list ({unlisted[0]})"
        elif dump.keeps_completed and len(entries) and (np.diff(entries.record) > 1).any() and entries.record[0] >= 0:
            yield dump.rank, "entries are missing between its first and its last"
        elif name := next((name for name in dump.status if name not in with_messages and _differs(dump, name)), None):
            yield dump.rank, f"its entries are not those that it counts (pg_status) of process group {name}"


def _differs(dump: Dump, name: str) -> bool:
    """Whether the entries of a group are not those that its counters say are pending."""
    entries, status = dump.entries, dump.status[name]
    own = _collectives(dump, name)
    pending = set(entries.sequence[own & (entries.state != COMPLETED)].tolist())
    newest = int(entries.sequence[own].max(initial=-1))
    if any(number <= status.completed for number in pending) or (pending and newest > status.enqueued):
        return True
    if dump.is_overrun:
        # The ring buffer keeps what is newest.
        return newest >= 0 and newest < status.enqueued
    shown = pending | set(entries.sequence[own & (entries.state == COMPLETED)].tolist())
    # Counters may be as far apart as 64 bits let them.
    waiting = status.enqueued - status.completed
    numbers = range(status.completed + 1, status.enqueued + 1)
    return waiting > len(shown) or any(number not in shown for number in numbers)


def _against_others(dumps: Sequence[Dump]) -> Iterator[tuple[int, str]]:
    """Dumps without what others completed, and those alone in what they completed."""
    completed: defaultdict[_Key, dict[int, int]] = defaultdict(dict)
    enqueued: defaultdict[_Key, dict[int, int]] = defaultdict(dict)
    for dump in dumps:
        needs_all = np.array([operation.kind in NEEDS_ALL for operation in dump.operations], np.bool_)
        for name, group in dump.groups.items():
            own = _collectives(dump, name)
            if not group.ranks or (dump.is_cut and not own.any()):
                continue
            key = (group.name, group.description, group.ranks)
            done = own & (dump.entries.state == COMPLETED)
            done[done] = needs_all[dump.entries.operation[done]]
            status = dump.status.get(name, GroupStatus(-1, -1))
            enqueued[key][dump.rank] = max(int(dump.entries.sequence[own].max(initial=-1)), status.enqueued)
            completed[key][dump.rank] = int(dump.entries.sequence[done].max(initial=-1))
    for key, by_rank in completed.items():
        yield from _odd(key, by_rank, enqueued[key])


def _far_behind(dumps: Sequence[Dump]) -> Iterator[tuple[int, str]]:
    """Dumps that count less in a group than others can have completed without them.

    A recorder that keeps only what is pending shows nothing of what completed but these counters.
    """
    with_messages = _with_messages(dumps)
    counted: defaultdict[_Key, dict[int, GroupStatus]] = defaultdict(dict)
    for dump in dumps:
        for name, status in dump.status.items():
            group = dump.groups.get(name)
            if group and group.ranks and name not in with_messages:
                counted[group.name, group.description, group.ranks][dump.rank] = status
    for key, by_rank in counted.items():
        newest = sorted((status.completed for status in by_rank.values()), reverse=True)
        if len(newest) <= _WITNESSES:
            continue
        sure = newest[_WITNESSES - 1]
        for rank, status in by_rank.items():
            if status.enqueued < sure - _STEPS_AHEAD * len(key[2]):
                of = key[1] or f"group {key[0]}"
                yield rank, f"it counts {max(status.enqueued, 0):,} collectives of {of}, and others completed {sure:,}"


def _with_messages(dumps: Sequence[Dump]) -> set[str]:
    """The groups in which ranks send messages, which their counters count too: they differ between ranks."""
    return {
        dump.group_names[number]
        for dump in dumps
        for number in np.unique(dump.entries.group[dump.entries.is_p2p]).tolist()
    }


def _odd(key: _Key, completed: Mapping[int, int], enqueued: Mapping[int, int]) -> Iterator[tuple[int, str]]:
    of = key[1] or f"group {key[0]}"
    newest = sorted(completed.values(), reverse=True)
    if len(newest) <= _WITNESSES:
        return
    sure = newest[_WITNESSES - 1]
    for rank, number in enqueued.items():
        if number < sure:
            yield rank, f"it lacks collective {sure} of {of}, which other ranks completed with it"
    if newest[0] > sure and sum(number >= newest[0] for number in enqueued.values()) > _WITNESSES:
        rank = next(rank for rank, number in completed.items() if number == newest[0])
        yield rank, f"it alone says that collective {newest[0]} of {of} completed, in which other ranks wait"


def _collectives(dump: Dump, name: str) -> Flags:
    number = dump.group_names.index(name) if name in dump.group_names else -1
    of_group: Flags = (dump.entries.group == number) & ~dump.entries.is_p2p
    return of_group
