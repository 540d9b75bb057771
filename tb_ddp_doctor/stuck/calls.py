"""What the dumps of all ranks say together: who came to which collective, and who completed it.

A collective is one call of a group with one sequence number: each rank counts its own, so ranks that run the same
program agree on them. Sends and receives are counted too, but each rank has others: they are paired between sender and
receiver, oldest with oldest.

What a dump does not show is not concluded from it. A rank that shows no entry of a call has completed it, or never
came, or lost the entry (its ring buffer was overrun, or what had completed was not written): `Came.UNKNOWN` where the
group's counters do not tell which.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np

from tb_ddp_doctor.flight.model import COMPLETED, STARTED, Dump, Operation, Shape

_COALESCED = "coalesced"
#: What torch calls the group of all ranks.
_DEFAULT = "default_pg"


class Came(Enum):
    """How far a rank is with a collective."""

    COMPLETED = "completed"
    ENQUEUED = "enqueued"
    #: It never enqueued the collective.
    ABSENT = "absent"
    #: Its dump does not tell.
    UNKNOWN = "unknown"
    #: It left no dump that can be read.
    NO_DUMP = "no dump"


class JobGroup(msgspec.Struct, frozen=True, eq=False):
    """A process group of the job; there is one object for each."""

    name: str
    description: str
    #: Global ranks, ascending.
    ranks: tuple[int, ...]


class Op(msgspec.Struct, frozen=True, eq=False):
    """An entry that a rank enqueued and did not complete."""

    rank: int
    #: Its place in the order in which the rank enqueued.
    place: int
    group: JobGroup
    sequence: int
    operation: Operation
    shape: Shape
    is_p2p: bool
    #: Whether its kernel is known to run, which is recorded with TORCH_NCCL_ENABLE_TIMING only.
    is_started: bool
    created_ns: int
    #: -1 where it is not recorded.
    timeout_ms: int
    #: Index into the dump's `stacks`; -1 without.
    stack: int

    @property
    def key(self) -> tuple[object, ...]:
        """The same for what other ranks of the same role enqueue at this point of the program."""
        return (self.group.description, self.operation, self.sequence)

    @property
    def partner(self) -> int:
        """The global rank at the other end of a send or receive; -1 where the group does not tell."""
        place = self.operation.target if self.operation.kind == "send" else self.operation.source
        return self.group.ranks[place] if 0 <= place < len(self.group.ranks) else -1


class Reached(NamedTuple):
    """The newest sequence numbers of a group's collectives on a rank; -1: none known."""

    enqueued: int
    completed: int


class Call(msgspec.Struct, frozen=True, eq=False):
    """A collective that some rank enqueued and did not complete."""

    group: JobGroup
    sequence: int
    #: By rank, those that came and did not complete it.
    ops: Mapping[int, Op]
    #: By rank of the group, all of them.
    came: Mapping[int, Came]

    def of(self, came: Came) -> list[int]:
        """The ranks that are so far with it, ascending."""
        return [rank for rank in self.group.ranks if self.came[rank] is came]

    @property
    def first(self) -> Op:
        """The op of its lowest rank."""
        return self.ops[min(self.ops)]


class DumpedCalls:
    """All dumps of a job, joined."""

    def __init__(self, dumps: Sequence[Dump]) -> None:
        self.dumps = {dump.rank: dump for dump in sorted(dumps, key=lambda dump: dump.rank)}
        #: By the group's name on a rank: names of different groups can be the same (torch's split groups).
        self.groups: dict[int, dict[str, JobGroup]] = self._groups()
        #: What each rank has enqueued and not completed, in that order.
        self.ops: dict[int, list[Op]] = {rank: list(self._ops(dump)) for rank, dump in self.dumps.items()}
        self._by_call: dict[int, dict[tuple[JobGroup, int], Op]] = {
            rank: {(op.group, op.sequence): op for op in ops if not op.is_p2p} for rank, ops in self.ops.items()
        }

        self._pending = {rank: {group for group, _ in by_call} for rank, by_call in self._by_call.items()}

    @cached_property
    def world_size(self) -> int:
        """Ranks that the job has, as far as groups and dumps name them."""
        named = [rank for groups in self.groups.values() for group in groups.values() for rank in group.ranks[-1:]]
        return max([*named, *self.dumps], default=-1) + 1

    @cached_property
    def has_ranks(self) -> bool:
        """Whether the dumps list the ranks of groups (NCCL's do, gloo's do not)."""
        return any(group.ranks for dump in self.dumps.values() for group in dump.groups.values())

    @cached_property
    def calls(self) -> dict[tuple[JobGroup, int], Call]:
        """Every collective that some rank has not completed."""
        ops: defaultdict[tuple[JobGroup, int], dict[int, Op]] = defaultdict(dict)
        for rank, by_call in self._by_call.items():
            for key, op in by_call.items():
                ops[key][rank] = op
        return {key: Call(*key, rank_ops, self._all_came(*key, rank_ops)) for key, rank_ops in ops.items()}

    @cached_property
    def reached(self) -> dict[int, dict[str, Reached]]:
        """How far each rank is with the collectives of each group, by rank and name of the group."""
        return {rank: self._reached(dump) for rank, dump in self.dumps.items()}

    @cached_property
    def p2p_groups(self) -> frozenset[JobGroup]:
        """Groups with sends or receives, whose counters in `Dump.status` count those too."""
        groups = set()
        for rank, dump in self.dumps.items():
            numbers = np.unique(dump.entries.group[dump.entries.is_p2p]).tolist()
            groups |= {self.groups[rank][dump.group_names[number]] for number in numbers}
        return frozenset(groups)

    def _all_came(self, group: JobGroup, sequence: int, ops: Mapping[int, Op]) -> dict[int, Came]:
        came = {rank: Came.ENQUEUED if rank in ops else self._came(rank, group, sequence) for rank in group.ranks}
        others = [rank for rank in group.ranks if came[rank] is not Came.UNKNOWN]
        # Nobody completes most collectives without all others: of several that came, one would have completed it too.
        if len(ops) > 1 and not any(came[rank] is Came.COMPLETED for rank in others):
            alone = {rank for rank in group.ranks if came[rank] is Came.UNKNOWN and not self.dumps[rank].is_overrun}
            came |= dict.fromkeys(alone, Came.ABSENT)
        return came

    def _came(self, rank: int, group: JobGroup, sequence: int) -> Came:
        dump = self.dumps.get(rank)
        if dump is None:
            return Came.NO_DUMP
        reached = self.reached[rank].get(group.name, Reached(-1, -1))
        if sequence <= reached.completed:
            return Came.COMPLETED
        if sequence <= reached.enqueued:
            # What is newer than an entry that is there, and not pending, has completed out of order.
            return Came.COMPLETED if group in self._pending[rank] else Came.UNKNOWN
        return Came.ABSENT if self._is_whole(dump, group) else Came.UNKNOWN

    def _is_whole(self, dump: Dump, group: JobGroup) -> bool:
        """Whether a dump surely shows the newest collective of a group that the rank enqueued."""
        if group.name in dump.status and group not in self.p2p_groups:
            return True
        if not dump.keeps_completed:
            return False
        # A ring buffer keeps what is newest.
        return not dump.is_overrun or group.name in dump.group_names

    def _reached(self, dump: Dump) -> dict[str, Reached]:
        entries, reached = dump.entries, {}
        collective = ~entries.is_p2p
        for number, name in enumerate(dump.group_names):
            own = collective & (entries.group == number)
            done = entries.state[own] == COMPLETED
            sequence = entries.sequence[own]
            enqueued = int(sequence.max(initial=-1))
            pending = sequence[~done]
            completed = int(pending.min()) - 1 if len(pending) else enqueued
            reached[name] = Reached(enqueued, completed)
        for name, status in dump.status.items():
            group = self.groups[dump.rank].get(name)
            if group is None or group in self.p2p_groups:
                continue
            before = reached.get(name, Reached(-1, -1))
            pending = before.enqueued > before.completed
            completed = before.completed if pending else max(status.completed, before.completed)
            reached[name] = Reached(max(status.enqueued, before.enqueued), completed)
        return reached

    def _groups(self) -> dict[int, dict[str, JobGroup]]:
        known: dict[tuple[str, str, tuple[int, ...]], JobGroup] = {}
        users: defaultdict[str, set[int]] = defaultdict(set)
        world: set[int] = set(self.dumps)
        for rank, dump in self.dumps.items():
            for name, group in dump.groups.items():
                world |= set(group.ranks)
                if not group.ranks:
                    users[name].add(rank)
        groups: dict[int, dict[str, JobGroup]] = {}
        for rank, dump in self.dumps.items():
            groups[rank] = {}
            for name in dict.fromkeys((*dump.groups, *dump.group_names)):
                said = dump.groups.get(name)
                ranks = said.ranks if said and said.ranks else ()
                description = said.description if said else ""
                if not ranks:
                    ranks = tuple(sorted(world if description == _DEFAULT else users[name] | {rank}))
                key = (name, description, ranks)
                groups[rank][name] = known.setdefault(key, JobGroup(*key))
        return groups

    def _ops(self, dump: Dump) -> Iterable[Op]:
        entries, groups = dump.entries, self.groups[dump.rank]
        pending = np.flatnonzero(entries.state != COMPLETED).tolist()
        of_members = {
            (int(entries.group[i]), int(entries.sequence[i]))
            for i in pending
            if dump.operations[entries.operation[i]].kind != _COALESCED
        }
        for i in pending:
            operation = dump.operations[entries.operation[i]]
            if operation.kind == _COALESCED and (int(entries.group[i]), int(entries.sequence[i])) in of_members:
                continue
            group = groups[dump.group_names[entries.group[i]]]
            if len(group.ranks) < 2:
                continue
            yield Op(
                rank=dump.rank,
                place=i,
                group=group,
                sequence=int(entries.sequence[i]),
                operation=operation,
                shape=dump.shapes[entries.shape[i]],
                is_p2p=bool(entries.is_p2p[i]),
                is_started=int(entries.state[i]) == STARTED,
                created_ns=int(entries.created_ns[i]),
                timeout_ms=int(entries.timeout_ms[i]),
                stack=int(entries.stack[i]),
            )
