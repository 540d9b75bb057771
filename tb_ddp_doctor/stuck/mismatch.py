"""Whether the ranks of a collective came with the same: kind, number of elements, element type."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from math import prod
from typing import Literal, NamedTuple

from tb_ddp_doctor.stuck.calls import Call, Came, Op

Difference = Literal["collective", "size", "dtype"]

#: Collectives whose ranks send as much as they like to each other, or of which only one has the input or the output.
_ANY_INPUT = {"scatter", "all_gather", "all_gather_v", "barrier", "all_reduce_barrier", "split", "new_window"}
_ANY_OUTPUT = {"gather", "reduce_scatter", "reduce_scatter_v", "barrier", "all_reduce_barrier", "split", "new_window"}
#: Sizes differ between ranks by design; only their sums over all ranks are equal.
_EXCHANGED = {"all_to_all", "alltoall", "all_to_all_single", "all_to_all_v_single", "alltoall_base"}
#: Element types of what a rank does not pass on.
_NO_DTYPE = {"barrier", "all_reduce_barrier", "split", "new_window", "scatter", "gather"}


class Mismatch(NamedTuple):
    """Ranks that came to a collective with something else than the others."""

    call: Call
    difference: Difference
    #: The odd ones, ascending: the fewer; all, where no side is smaller.
    ranks: tuple[int, ...]
    #: What each side came with, in words, by its ranks; the larger side first.
    sides: tuple[tuple[tuple[int, ...], str], ...]


def mismatch(call: Call) -> Mismatch | None:
    """How the ranks of a call differ; None where they do not, or where that is no fault."""
    ops = list(call.ops.values())
    return (
        _differing(call, "collective", ((op, op.operation.kind) for op in ops))
        or _differing(call, "size", ((op, _elements(op)) for op in ops))
        or _exchanged(call)
        or _differing(call, "dtype", ((op, _dtypes(op)) for op in ops))
    )


def _differing(call: Call, difference: Difference, ops: Iterable[tuple[Op, str]]) -> Mismatch | None:
    sides: defaultdict[str, list[int]] = defaultdict(list)
    for op, what in ops:
        sides[what].append(op.rank)
    if len(sides) < 2:
        return None
    ordered = sorted(((tuple(sorted(ranks)), what) for what, ranks in sides.items()), key=lambda side: -len(side[0]))
    tied = len(ordered[0][0]) == len(ordered[1][0])
    odd = ordered if tied else ordered[1:]
    return Mismatch(call, difference, tuple(sorted(rank for ranks, _ in odd for rank in ranks)), tuple(ordered))


def _elements(op: Op) -> str:
    """The numbers of elements that must be the same on all ranks; shapes may differ."""
    kind = op.operation.kind
    if kind in _EXCHANGED:
        return ""
    inputs = "" if kind in _ANY_INPUT else " + ".join(f"{prod(size):,}" for size in op.shape.inputs)
    outputs = "" if kind in _ANY_OUTPUT else " + ".join(f"{prod(size):,}" for size in op.shape.outputs)
    return f"{inputs} elements" if inputs == outputs else f"{inputs} elements in, {outputs} out"


def _exchanged(call: Call) -> Mismatch | None:
    """An all-to-all in which more is sent than received: it does not tell which rank is wrong."""
    ops = list(call.ops.values())
    if ops[0].operation.kind not in _EXCHANGED or any(came is not Came.ENQUEUED for came in call.came.values()):
        return None
    sent = sum(prod(size) for op in ops for size in op.shape.inputs)
    received = sum(prod(size) for op in ops for size in op.shape.outputs)
    if sent == received or not all(op.shape.inputs and op.shape.outputs for op in ops):
        return None
    what = f"{sent:,} elements sent in all, {received:,} received"
    return Mismatch(call, "size", tuple(sorted(call.ops)), ((tuple(sorted(call.ops)), what),))


def _dtypes(op: Op) -> str:
    if op.operation.kind in _NO_DTYPE:
        return ""
    return " and ".join(dict.fromkeys((*op.shape.input_dtypes, *op.shape.output_dtypes)))


def swapped(mismatch: Mismatch, calls: Iterable[Call]) -> bool:
    """Whether two ranks of a mismatch come to the same collectives of the group, in another order."""
    kinds: defaultdict[int, Counter[tuple[str, str]]] = defaultdict(Counter)
    for call in calls:
        if call.group is mismatch.call.group and call.sequence >= mismatch.call.sequence:
            for rank, op in call.ops.items():
                kinds[rank][op.operation.kind, _elements(op)] += 1
    sides = [kinds[ranks[0]] for ranks, _ in mismatch.sides[:2]]
    first = [mismatch.call.ops[ranks[0]] for ranks, _ in mismatch.sides[:2]]
    if len(sides) < 2:
        return False
    keys = [(op.operation.kind, _elements(op)) for op in first]
    return sides[0][keys[1]] > 0 and sides[1][keys[0]] > 0
