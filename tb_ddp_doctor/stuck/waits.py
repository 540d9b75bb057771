"""Who waits for whom: from each rank's pending collectives, sends and receives to the ranks that it waits for.

A rank waits for another in one of these ways, the surer first:

- `absent`: the other never enqueued its part.
- `incomplete`: the other enqueued its part and never completed what its partners completed.
- `mismatch`: the other came with another size, type or collective.
- `not-started`: all enqueued it, and its kernel runs here, but not there (TORCH_NCCL_ENABLE_TIMING tells).
- `queued`: the other enqueued its part, but something older is pending there, so its GPU has not come to it yet.
- `no-dump`: the other left no dump, and nothing else explains the waiting.

What all enqueued and nobody completed, with nothing older pending, says nothing of a single rank (`stalled`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Literal, NamedTuple

from tb_ddp_doctor.stuck.calls import Call, Came, DumpedCalls, Op
from tb_ddp_doctor.stuck.mismatch import Mismatch, mismatch

Why = Literal["absent", "incomplete", "mismatch", "not-started", "queued", "no-dump"]

#: Collectives that a rank completes only once all others have given their part.
NEEDS_ALL = {
    "all_reduce",
    "allreduce_coalesced",
    "all_gather",
    "_all_gather_base",
    "all_gather_single",
    "all_gather_into_tensor_coalesced",
    "ALLGATHER_coalesced",
    "reduce_scatter",
    "_reduce_scatter_base",
    "reduce_scatter_single",
    "reduce_scatter_tensor_coalesced",
    "REDUCE_SCATTER_coalesced",
    "all_reduce_barrier",
    "barrier",
}
#: The same, but from a rank that sends it nothing it needs nothing.
_MAY_NEED_ALL = {"all_to_all", "alltoall", "all_to_all_single", "all_to_all_v_single", "alltoall_base"}


class Wait(NamedTuple):
    """A rank waits for others in one of its pending ops."""

    op: Op
    why: Why
    #: Ascending.
    targets: tuple[int, ...]


class SendReceive(NamedTuple):
    """A send and the receive that it goes to; the other one is None where it was never enqueued."""

    op: Op
    other: Op | None


class JobWaits:
    """The waiting of a job."""

    def __init__(self, calls: DumpedCalls) -> None:
        self.calls = calls
        self.pairs: dict[int, list[SendReceive]] = _pairs(calls)
        #: By rank, the first collective that it enqueued and never completed, while partners did.
        self.incomplete: dict[int, Call] = _incomplete(calls)
        self.mismatches: list[Mismatch] = list(_mismatches(calls, self.pairs))
        #: By rank, in the order in which it enqueued.
        self.of: dict[int, list[Wait]] = {}
        #: Collectives, and receives with their sends, that all enqueued and nobody completed, with nothing older.
        self.stalled: list[Op] = []
        for rank in calls.ops:
            self.of[rank] = (
                sorted(self._sure(rank), key=lambda wait: wait.op.place) or self._queued(rank) or self._silent(rank)
            )

        #: By rank without a dump, what it waits for if it came where its partners did: nothing shows that it did.
        self.assumed: dict[int, set[int]] = self._assumed()

    def _assumed(self) -> dict[int, set[int]]:
        assumed: defaultdict[int, set[int]] = defaultdict(set)
        for call in self.calls.calls.values():
            if silent := call.of(Came.NO_DUMP):
                behind = {*call.of(Came.ABSENT), *(rank for rank in call.ops if rank in self.incomplete)}
                for rank in silent:
                    assumed[rank] |= behind
        return dict(assumed)

    def _sure(self, rank: int) -> Iterator[Wait]:
        """What a rank waits for on ranks that never came, never completed, or came with something else."""
        if rank in self.incomplete:
            return
        odd = {id(op): one for one in self.mismatches for op in one.call.ops.values()}
        for op in self.calls.ops[rank]:
            if op.is_p2p:
                continue
            call = self.calls.calls[op.group, op.sequence]
            if absent := call.of(Came.ABSENT):
                yield Wait(op, "absent", tuple(absent))
            if stopped := [other for other in call.ops if other in self.incomplete]:
                yield Wait(op, "incomplete", tuple(sorted(stopped)))
            if (one := odd.get(id(op))) and rank not in one.ranks:
                yield Wait(op, "mismatch", one.ranks)
        for op, other in self.pairs[rank]:
            if op.partner in self.incomplete:
                yield Wait(op, "incomplete", (op.partner,))
            elif other is None and op.partner in self.calls.dumps:
                yield Wait(op, "absent", (op.partner,))

    def _silent(self, rank: int) -> list[Wait]:
        """What a rank waits for with others that left no dump: they may be there, and may not."""
        if rank in self.incomplete:
            return []
        waits = []
        for op in self.calls.ops[rank]:
            if not op.is_p2p:
                silent = self.calls.calls[op.group, op.sequence].of(Came.NO_DUMP)
            else:
                silent = [op.partner] if op.partner >= 0 and op.partner not in self.calls.dumps else []
            if silent:
                waits.append(Wait(op, "no-dump", tuple(silent)))
        return waits

    def _queued(self, rank: int) -> list[Wait]:
        """Of a rank that waits for nobody in these ways: its oldest op, and those of its partners that are behind."""
        if rank in self.incomplete or not self.calls.ops[rank]:
            return []
        op = self.calls.ops[rank][0]
        parts = self._parts(op)
        if behind := self._behind(op, parts):
            return [behind]
        if op.is_started and (unstarted := [part.rank for part in parts if not part.is_started]):
            return [Wait(op, "not-started", tuple(sorted(unstarted)))]
        if len(parts) == (1 if op.is_p2p else len(op.group.ranks) - 1):
            self.stalled.append(op)
        return []

    def queued_elsewhere(self, rank: int) -> list[Wait]:
        """The same of the oldest op in each other group: a send that is pending may stop nothing behind it."""
        oldest: dict[object, Op] = {}
        for op in self.calls.ops[rank]:
            oldest.setdefault((op.group, op.partner if op.is_p2p else None), op)
        waits = (self._behind(op, self._parts(op)) for op in list(oldest.values())[1:])
        return [wait for wait in waits if wait]

    def _parts(self, op: Op) -> list[Op]:
        """What the partners enqueued of an op."""
        if op.is_p2p:
            other = next((pair.other for pair in self.pairs[op.rank] if pair.op is op), None)
            return [other] if other else []
        ops = self.calls.calls[op.group, op.sequence].ops
        return [other for member, other in ops.items() if member != op.rank]

    def _behind(self, op: Op, parts: Sequence[Op]) -> Wait | None:
        behind = [part.rank for part in parts if _is_behind(self.calls, part)]
        return Wait(op, "queued", tuple(sorted(behind))) if behind else None


def _pairs(calls: DumpedCalls) -> dict[int, list[SendReceive]]:
    """Each rank's pending sends and receives with those of their partners, the oldest with the oldest."""
    pending: defaultdict[tuple[object, int, int, str], list[Op]] = defaultdict(list)
    for ops in calls.ops.values():
        for op in ops:
            if op.is_p2p:
                pending[op.group.name, op.rank, op.partner, op.operation.kind].append(op)
    pairs: dict[int, list[SendReceive]] = {rank: [] for rank in calls.ops}
    for (group, rank, partner, kind), ops in pending.items():
        others = pending.get((group, partner, rank, "recv" if kind == "send" else "send"), [])
        for i, op in enumerate(ops):
            pairs[rank].append(SendReceive(op, others[i] if i < len(others) else None))
    return pairs


def _incomplete(calls: DumpedCalls) -> dict[int, Call]:
    """Ranks that never completed what partners completed, by the first such collective in their order.

    A rank completes an all_reduce only once all others have sent: a partner that completed it proves that all have, so
    what keeps a rank from completing it is its own GPU (or its own watchdog). Of an all-to-all it is only likely: a
    partner needs nothing of a rank that sends it nothing.
    """
    incomplete: dict[int, Call] = {}
    for call in calls.calls.values():
        kind = call.first.operation.kind
        if _was_completed(call) and (kind in NEEDS_ALL or (kind in _MAY_NEED_ALL and _is_few(call))):
            _add(incomplete, call)
    return incomplete


def _is_few(call: Call) -> bool:
    """Whether at least as many have completed a call as have not."""
    return 2 * len(call.ops) <= len(call.group.ranks)


def _add(calls: dict[int, Call], call: Call) -> None:
    for rank, op in call.ops.items():
        before = calls.get(rank)
        if before is None or op.place < before.ops[rank].place:
            calls[rank] = call


def _was_completed(call: Call) -> bool:
    """Whether all came, and some completed it."""
    came = set(call.came.values())
    return Came.COMPLETED in came and not came & {Came.ABSENT, Came.NO_DUMP, Came.UNKNOWN}


def _mismatches(calls: DumpedCalls, pairs: Mapping[int, list[SendReceive]]) -> Iterator[Mismatch]:
    """The first of each group: after it the ranks count apart. And a send that is not as large as its receive."""
    done = set()
    for call in sorted(calls.calls.values(), key=lambda call: call.sequence):
        if call.group not in done and (first := mismatch(call)):
            done.add(call.group)
            yield first
    for op, other in (pair for of_rank in pairs.values() for pair in of_rank):
        # Only of the oldest on both sides it is sure that they are a pair.
        if op.operation.kind != "send" or other is None or _is_behind(calls, op) or _is_behind(calls, other):
            continue
        sent, received = elements(op), elements(other)
        if sent != received and min(sent, received) > 0:
            ends = {op.rank: op, other.rank: other}
            call = Call(op.group, op.sequence, ends, dict.fromkeys(ends, Came.ENQUEUED))
            sides = (((op.rank,), f"{sent:,} elements sent"), ((other.rank,), f"{received:,} expected"))
            yield Mismatch(call, "size", tuple(sorted(ends)), sides)


def _is_behind(calls: DumpedCalls, op: Op) -> bool:
    """Whether something older is pending on the rank of an op."""
    return calls.ops[op.rank][0].place < op.place


def elements(op: Op) -> int:
    """How many elements a send or receive moves."""
    return sum(prod(size) for size in (op.shape.inputs or op.shape.outputs))
