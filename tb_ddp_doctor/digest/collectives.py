"""One rank's collectives with their metadata, wherever the file keeps it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import numpy as np

from tb_ddp_doctor.digest.launches import enclosing
from tb_ddp_doctor.digest.model import Collectives
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Category, Indices, Ints, RankTrace

#: More than any message has; their bytes and the sums of those still fit an int64.
_MOST_ELEMENTS = 2**48


class Vocabulary:
    """Strings of a digest, interned."""

    def __init__(self) -> None:
        self._index: dict[str, int] = {}

    def index(self, text: str) -> int:
        return self._index.setdefault(text, len(self._index))

    def strings(self) -> tuple[str, ...]:
        return tuple(self._index)


@dataclass(frozen=True, slots=True, eq=False)
class Launched:
    """What launched each collective; columns of `Collectives`, in the order of the kernels."""

    step: Ints
    backward: Ints
    update: Ints


def device_collectives(
    trace: RankTrace, rows: Ints, launch: Ints, launched_by: Launched, words: Vocabulary
) -> Collectives:
    """Collectives of communication kernels `rows`, with the row of each one's launch (-1: unknown).

    Metadata is taken from the kernel, else from the `record_param_comms` that encloses the launch.
    """
    events, comms = trace.events, trace.comms
    own = _rows_of(comms.event, rows, len(events))
    outer = events.start_ns[comms.event]
    launched = launch >= 0
    enclosed = np.full(len(rows), -1, np.int64)
    enclosed[launched] = enclosing(
        outer,
        outer + events.duration_ns[comms.event],
        events.thread[comms.event],
        events.start_ns[launch[launched]],
        events.thread[launch[launched]],
    )
    return _build(trace, rows, np.where(own >= 0, own, enclosed), launched_by, words)


def host_collectives(trace: RankTrace, step_of_start: Ints, rows: Ints, words: Vocabulary) -> Collectives:
    """Collectives that the CPU carries out: `rows` of "gloo:*" events, each with the step in which it starts.

    They run on gloo's own threads, so their metadata stands on the `record_param_comms` of the same ordinal; it is
    used only where as many were enqueued as ran.
    """
    comms = trace.comms
    enqueued = np.argsort(trace.events.start_ns[comms.event], kind="stable")
    paired = len(enqueued) == len(rows)
    unknown = np.full(len(rows), -1, np.int64)
    by = Launched(step_of_start, unknown, unknown)
    return _build(trace, rows, enqueued if paired else unknown, by, words)


def host_collective_rows(trace: RankTrace) -> Ints:
    """Rows of the collectives that the CPU carries out, by time."""
    events = trace.events
    is_collective = np.array([names.is_host_collective(text) for text in trace.strings], np.bool_)
    rows = np.flatnonzero(
        is_collective[events.name] & ((events.category == Category.ANNOTATION) | (events.category == Category.OP))
    )
    return rows[np.argsort(events.start_ns[rows], kind="stable")]


def _rows_of(keys: Ints, wanted: Ints, size: int) -> Ints:
    at = np.full(size, -1, np.int64)
    at[keys] = np.arange(len(keys))
    return at[wanted]


def _build(trace: RankTrace, rows: Ints, meta: Ints, by: Launched, words: Vocabulary) -> Collectives:
    events, comms = trace.events, trace.comms
    known = meta >= 0

    def pick(column: Ints | Indices) -> Ints:
        picked = np.full(len(rows), -1, np.int64)
        picked[known] = column[meta[known]]
        return picked

    def text(column: Ints) -> Indices:
        return np.array([words.index(trace.strings[i] if i >= 0 else "") for i in column], np.int32)

    names_of_rows = [trace.strings[i] for i in events.name[rows]]
    spelled = pick(comms.collective)
    kinds = [
        names.collective(trace.strings[s]) if s >= 0 else names.collective(name)
        for s, name in zip(spelled, names_of_rows, strict=True)
    ]
    elements = np.maximum(pick(comms.elements_in), pick(comms.elements_out))
    shaped = np.full(len(rows), -1, np.int64)
    shaped[known] = events.shape[comms.event[meta[known]]]
    shaped = np.where(shaped >= 0, shaped, events.shape[rows])
    for i in np.flatnonzero((elements < 0) & (shaped >= 0)):
        # A kernel's shape is its grid, which says nothing of the message.
        if known[i] or events.category[rows[i]] != Category.KERNEL:
            elements[i] = count_elements(trace.strings[shaped[i]])
    dtype = pick(comms.dtype)
    size = np.array([names.ELEMENT_BYTES.get(trace.strings[d], -1) if d >= 0 else -1 for d in dtype], np.int64)
    order = np.argsort(events.start_ns[rows], kind="stable")
    columns = Collectives(
        step=by.step.astype(np.int32),
        kind=np.array([words.index(kind) for kind in kinds], np.int32),
        group=text(pick(comms.group)),
        group_ranks=text(pick(comms.group_ranks)),
        group_size=pick(comms.group_size),
        dtype=text(dtype),
        elements=elements,
        bytes=np.where((elements >= 0) & (elements <= _MOST_ELEMENTS) & (size > 0), elements * size, -1),
        sequence=pick(comms.sequence),
        arrival_ns=events.start_ns[rows],
        end_ns=events.start_ns[rows] + events.duration_ns[rows],
        backward=by.backward.astype(np.int32),
        update=by.update.astype(np.int32),
        purpose=np.full(len(rows), words.index(""), np.int32),
    )
    return Collectives(*(getattr(columns, name)[order] for name in Collectives.__slots__))


def count_elements(dims: str) -> int:
    """Elements in the tensors of a raw "Input Dims" text such as [[[4, 2048]], []]; -1 where it makes no sense."""
    try:
        total = _elements(json.loads(dims))
    except (ValueError, RecursionError):
        return -1
    return total if 0 < total <= _MOST_ELEMENTS else -1


def _elements(shapes: object) -> int:
    if not isinstance(shapes, list) or not shapes:
        return 0
    if all(isinstance(size, int) and size >= 0 for size in shapes):
        return math.prod(shapes)
    return sum(_elements(shape) for shape in shapes)
