"""The ranks at the root of all waiting, and why the job waits for them.

A rank that others wait for is a root where nothing that it waits for itself explains why it did not come. What a rank
waits for does not explain it where a partner that came had the same pending before: a receive that is posted early, or
a collective that runs beside the rest, stops nobody.

Ranks that wait for each other in a circle, with no such root behind them, are one fault together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from tb_ddp_doctor.stuck.calls import Call, Came, Op
from tb_ddp_doctor.stuck.mismatch import Mismatch, swapped
from tb_ddp_doctor.stuck.waits import NEEDS_ALL, JobWaits, Wait, Why

Cause = Literal[
    "missing",
    "no-dump",
    "not-completed",
    "not-started",
    "mismatch",
    "wrong-order",
    "p2p-in-collective",
    "p2p-circle",
    "stalled",
]


class Root(NamedTuple):
    """A fault: ranks that are at the root of waiting, and where it shows."""

    cause: Cause
    #: Ascending.
    ranks: tuple[int, ...]
    #: The oldest op in which a rank waits for them, or their own that is never completed.
    op: Op
    #: The collective of `op`; None for sends and receives.
    call: Call | None
    mismatch: Mismatch | None = None
    #: Of ranks that wait for each other, one wait of each, in the order of the circle.
    circle: tuple[Wait, ...] = ()
    #: Whether it is sure of these ranks, and not only of their number.
    is_sure: bool = True


def roots(waits: JobWaits) -> list[Root]:
    """All independent faults, the one that most ranks wait for first."""
    faults = [*_incomplete(waits), *_mismatched(waits), *_not_started(waits), *_absent(waits)]
    known = {rank for root in faults for rank in root.ranks}
    remaining = set(blocked(waits)) - reaching(waits, known)
    faults += _by_call(waits, "no-dump", _awaited(waits, remaining, "no-dump"))
    known |= {rank for root in faults for rank in root.ranks}
    remaining -= reaching(waits, known)
    faults += [_circle(waits, circle) for circle in _circles(waits, remaining)]
    known |= {rank for root in faults for rank in root.ranks}
    faults += _stalled(waits, known | reaching(waits, known), alone=not faults)
    return sorted(faults, key=lambda root: (-len(reaching(waits, root.ranks)), root.ranks))


def blocked(waits: JobWaits) -> list[int]:
    """The ranks that wait for others, ascending."""
    return [rank for rank, own in waits.of.items() if own]


def reaching(waits: JobWaits, ranks: Iterable[int]) -> set[int]:
    """The ranks that wait for some of these ranks, directly or through others."""
    waiting: defaultdict[int, set[int]] = defaultdict(set)
    for rank, own in waits.of.items():
        for target in {target for wait in own for target in wait.targets}:
            waiting[target].add(rank)
    for rank, targets in waits.assumed.items():
        for target in targets:
            waiting[target].add(rank)
    waiters: set[int] = set()
    ahead = list(ranks)
    while ahead:
        new = waiting[ahead.pop()] - waiters
        waiters |= new
        ahead += new
    return waiters


def _incomplete(waits: JobWaits) -> list[Root]:
    by_call: defaultdict[int, list[int]] = defaultdict(list)
    calls = {id(call): call for call in waits.incomplete.values()}
    for rank, call in waits.incomplete.items():
        by_call[id(call)].append(rank)
    return [
        Root(
            "not-completed",
            tuple(sorted(ranks)),
            calls[key].ops[min(ranks)],
            calls[key],
            is_sure=calls[key].first.operation.kind in NEEDS_ALL,
        )
        for key, ranks in by_call.items()
    ]


def _not_started(waits: JobWaits) -> list[Root]:
    waiting: dict[tuple[int, ...], Wait] = {}
    for own in waits.of.values():
        for wait in own:
            if wait.why == "not-started":
                waiting.setdefault(wait.targets, wait)
    return [
        Root("not-started", ranks, wait.op, None if wait.op.is_p2p else _call(waits, wait.op))
        for ranks, wait in waiting.items()
    ]


def _mismatched(waits: JobWaits) -> list[Root]:
    calls = waits.calls.calls.values()
    mismatched = []
    for one in waits.mismatches:
        op = one.call.ops[one.ranks[0]]
        cause: Cause = "wrong-order" if one.difference == "collective" and swapped(one, calls) else "mismatch"
        mismatched.append(Root(cause, one.ranks, op, None if op.is_p2p else one.call, mismatch=one))
    return mismatched


def _absent(waits: JobWaits) -> list[Root]:
    """Ranks that never came, with nothing that they wait for as the reason."""
    known = set(waits.incomplete) | {rank for one in waits.mismatches for rank in one.ranks}
    # Of what all enqueued and nobody completed, one of its ranks or the network is the reason: see `_stalled`.
    known |= {op.rank for op in waits.stalled} | {
        target for own in waits.of.values() for wait in own if wait.why == "not-started" for target in wait.targets
    }
    missed = {}
    for rank, ops in _awaited(waits, waits.of, "absent").items():
        if rank in known or any(_explains(waits, wait, ops) for wait in waits.of[rank]):
            continue
        if elsewhere := [wait for wait in waits.queued_elsewhere(rank) if _explains(waits, wait, ops)]:
            waits.of[rank] += elsewhere
        else:
            missed[rank] = ops
    return _by_call(waits, "missing", missed)


def _awaited(waits: JobWaits, ranks: Iterable[int], why: Why) -> dict[int, list[Op]]:
    """The ops in which some of the ranks wait for another in this way, by that other."""
    awaited: defaultdict[int, list[Op]] = defaultdict(list)
    for rank in ranks:
        for wait in waits.of[rank]:
            if wait.why == why:
                for target in wait.targets:
                    awaited[target].append(wait.op)
    return awaited


def _by_call(waits: JobWaits, cause: Cause, missed: Mapping[int, Sequence[Op]]) -> list[Root]:
    """A fault for each collective that is missed first, with all ranks that miss it first."""
    together: defaultdict[int, list[int]] = defaultdict(list)
    first: dict[int, Op] = {}
    for rank, ops in missed.items():
        # The oldest in the order of a rank that waits for it: clocks may differ.
        op = first[rank] = min(ops, key=lambda op: (op.is_p2p, op.rank, op.place))
        together[id(op) if op.is_p2p else id(_call(waits, op))].append(rank)
    faults = []
    for ranks in together.values():
        op = first[min(ranks)]
        call = None if op.is_p2p else _call(waits, op)
        faults.append(Root(cause, tuple(sorted(ranks)), op, call, is_sure=cause == "missing" and call is not None))
    return faults


def _call(waits: JobWaits, op: Op) -> Call:
    return waits.calls.calls[op.group, op.sequence]


def _explains(waits: JobWaits, wait: Wait, awaited: Collection[Op]) -> bool:
    """Whether what a rank waits for may be why it did not come to the ops in which others wait for it."""
    missed = [op for op in awaited if not op.is_p2p]
    return not any(
        other.key == wait.op.key and other.place < op.place for op in missed for other in waits.calls.ops[op.rank]
    )


def _circles(waits: JobWaits, remaining: Collection[int]) -> list[list[int]]:
    """Groups of ranks that all wait for each other and for nobody else, each ascending."""
    ahead = {rank: {t for wait in waits.of[rank] for t in wait.targets if t in remaining} for rank in remaining}
    circles: list[list[int]] = []
    for component in _strong(ahead):
        inside = set(component)
        if len(component) > 1 and all(ahead[rank] <= inside for rank in component):
            circles.append(sorted(component))
    return circles


def _strong(ahead: Mapping[int, Collection[int]]) -> list[list[int]]:
    """Strongly connected components (Tarjan's algorithm, without recursion: jobs have thousands of ranks)."""
    number: dict[int, int] = {}
    low: dict[int, int] = {}
    path: list[int] = []
    on_path: set[int] = set()
    components: list[list[int]] = []
    for start in ahead:
        if start in number:
            continue
        work = [(start, iter(sorted(ahead[start])))]
        while work:
            rank, targets = work[-1]
            if rank not in number:
                number[rank] = low[rank] = len(number)
                path.append(rank)
                on_path.add(rank)
            for target in targets:
                if target not in number:
                    work.append((target, iter(sorted(ahead[target]))))
                    break
                if target in on_path:
                    low[rank] = min(low[rank], number[target])
            else:
                work.pop()
                if work:
                    before = work[-1][0]
                    low[before] = min(low[before], low[rank])
                if low[rank] == number[rank]:
                    at = path.index(rank)
                    components.append(path[at:])
                    on_path -= set(path[at:])
                    del path[at:]
    return components


def _circle(waits: JobWaits, ranks: list[int]) -> Root:
    """Ranks that wait for each other, by what they wait in."""
    inside = set(ranks)
    own = [wait for rank in ranks for wait in waits.of[rank] if inside & set(wait.targets)]
    path = _path(waits, ranks)
    p2p = [wait for wait in own if wait.op.is_p2p]
    collective = [wait for wait in own if not wait.op.is_p2p]
    if not collective:
        return Root("p2p-circle", tuple(ranks), path[0].op, None, circle=path, is_sure=False)
    if not p2p:
        op = path[0].op
        return Root("wrong-order", tuple(ranks), op, _call(waits, op), circle=path, is_sure=False)
    for wait in collective:
        odd = sorted({other.op.rank for other in p2p if other.op.group is wait.op.group} & set(wait.targets))
        if odd:
            call = _call(waits, wait.op)
            named = odd if len(call.ops) > 1 else sorted({*odd, *call.ops})
            return Root("p2p-in-collective", tuple(named), wait.op, call, circle=path)
    behind = sorted({target for wait in collective for target in wait.targets if target in inside})
    op = collective[0].op
    if len(behind) == 1:
        return Root("missing", (behind[0],), op, _call(waits, op), circle=path, is_sure=False)
    return Root("wrong-order", tuple(ranks), op, _call(waits, op), circle=path, is_sure=False)


def _path(waits: JobWaits, ranks: list[int]) -> tuple[Wait, ...]:
    """From rank to rank, each to the lowest that it waits for, until a rank comes again: the circle from there on."""
    path: list[Wait] = []
    at: dict[int, int] = {}
    rank = ranks[0]
    while rank not in at:
        at[rank] = len(path)
        wait = next(wait for wait in waits.of[rank] if set(wait.targets) & set(ranks))
        path.append(wait)
        rank = min(set(wait.targets) & set(ranks))
    return tuple(path[at[rank] :])


def _stalled(waits: JobWaits, explained: set[int], *, alone: bool) -> list[Root]:
    """What all enqueued and nobody completed: any of its ranks, or the network between them, can be the reason.

    Beside other faults only where others wait for it: all ranks have something on the way at any time.
    """
    awaited = {target for own in waits.of.values() for wait in own for target in wait.targets}
    stalled: dict[object, Root] = {}
    for op in waits.stalled:
        call = None if op.is_p2p else _call(waits, op)
        ranks = tuple(sorted(call.ops)) if call else tuple(sorted({op.rank, op.partner}))
        if (call and Came.UNKNOWN in call.came.values()) or not explained.isdisjoint(ranks):
            continue
        if alone or not awaited.isdisjoint(ranks):
            stalled.setdefault(id(call) if call else ranks, Root("stalled", ranks, op, call, is_sure=False))
    return list(stalled.values())
