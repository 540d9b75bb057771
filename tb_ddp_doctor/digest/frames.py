"""Which Python function the host is in, where stacks were recorded: over time, and while the device has nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.collectives import Vocabulary
from tb_ddp_doctor.digest.launches import enclosing
from tb_ddp_doctor.digest.model import Code, CodeOf, Pieces, RankOwner, Stalled
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Category, Events, Indices, Ints, RankTrace

#: Stalls are looked at every so often, ns, and each at most so many times: a stall is of what it is in at most of them.
_EVERY_NS = 1_000_000
_MOST_LOOKS = 64
#: Stretches of code of each kind that are kept, the longest: a digest stays small.
_MOST_CODE = 2_000


def own_function(trace: RankTrace, instant: Ints, thread: Indices) -> Ints:
    """The innermost function of the user's own code around each instant: an index into `strings`, or -1."""
    return _innermost(trace, instant, thread, names.is_own_code)


def code(trace: RankTrace, rows: Ints, launch: Ints, communicates: NDArray[np.bool_], words: Vocabulary) -> Code:
    """The user's own functions over time, of the host and of the device's events `rows`, launched by the rows `launch`.

    What backward launches, on a thread of autograd's own without Python, is of the function that waits for it.
    """
    if not len(trace.frames):
        nothing, no_words = np.empty(0, np.int64), np.empty(0, np.int32)
        return Code(no_words, no_words, nothing, nothing)
    events = trace.events
    launched = rows[launch >= 0]
    by = launch[launch >= 0]
    function = own_function(trace, events.start_ns[by], events.thread[by])
    waits = own_function(trace, events.start_ns[by], np.full(len(by), _training_thread(trace), np.int32))
    function = np.where(function >= 0, function, waits)
    parts = [_host_code(trace)]
    for kind in (CodeOf.COMPUTE, CodeOf.COMMUNICATION):
        chosen = communicates[launch >= 0] == (kind is CodeOf.COMMUNICATION)
        parts.append(_device_code(events, launched[chosen], function[chosen], kind))
    of, index, start, end = np.concatenate(parts, axis=1)
    return Code(of.astype(np.int32), _texts(trace, index, words), start, end)


def _host_code(trace: RankTrace) -> NDArray[np.int64]:
    """Shape (4, rows): kind, function, start and end on the training thread."""
    frames, thread = trace.frames, _training_thread(trace)
    here = frames.thread == thread
    start, end = frames.start_ns[here], frames.start_ns[here] + frames.duration_ns[here]
    edges = np.unique(np.concatenate((start, end)))
    middle = edges[:-1] + np.diff(edges) // 2
    function = own_function(trace, middle, np.full(len(middle), thread, np.int32))
    return _runs(function, edges[:-1], edges[1:], CodeOf.HOST)


def _device_code(events: Events, rows: Ints, function: Ints, kind: CodeOf) -> NDArray[np.int64]:
    """The same of the device's events: what follows each other and is of one function is one stretch."""
    order = np.argsort(events.start_ns[rows], kind="stable")
    start = events.start_ns[rows][order]
    return _runs(function[order], start, start + events.duration_ns[rows][order], kind)


def _runs(function: Ints, start: Ints, end: Ints, kind: CodeOf) -> NDArray[np.int64]:
    if not len(function):
        return np.empty((4, 0), np.int64)
    first = np.flatnonzero(np.diff(function, prepend=-2))
    run = np.stack(
        (np.full(len(first), kind, np.int64), function[first], start[first], np.maximum.reduceat(end, first))
    )
    run = run[:, run[1] >= 0]
    longest = np.argsort(run[2] - run[3], kind="stable")[:_MOST_CODE]
    return run[:, np.sort(longest)]


def stalled(trace: RankTrace, pieces: Pieces, words: Vocabulary) -> Stalled:
    """What the host does in those pieces in which it is outside operators for long, by stacks and annotations."""
    long = (pieces.owner == RankOwner.HOST) & (pieces.end_ns - pieces.start_ns >= _EVERY_NS)
    start, length = pieces.start_ns[long], (pieces.end_ns - pieces.start_ns)[long]
    looks = np.minimum(length // _EVERY_NS, _MOST_LOOKS)
    piece = np.repeat(np.arange(len(start)), looks)
    ordinal = np.arange(len(piece)) - np.repeat(np.cumsum(looks) - looks, looks)
    share = length[piece] // looks[piece]
    instant = start[piece] + ordinal * share + share // 2
    thread = np.full(len(instant), _training_thread(trace), np.int32)
    doing = np.full(len(instant), -1, np.int64)
    for kind in names.Activity:
        found = _innermost(trace, instant, thread, partial(_does, kind))
        doing = np.where(doing >= 0, doing, found)
    own = own_function(trace, instant, thread)
    known = doing >= 0
    kinds, which = np.unique(np.stack([doing, own])[:, known], axis=1, return_inverse=True)
    which = which.reshape(-1)
    total = np.zeros(kinds.shape[1], np.int64)
    np.add.at(total, which, share[known])
    # The last one of each kind in the order of length is its longest.
    order = np.lexsort((length[piece[known]], which))
    longest = piece[known][order[np.searchsorted(which[order], np.arange(len(total)), side="right") - 1]]
    return Stalled(
        doing=_texts(trace, kinds[0], words),
        own=_texts(trace, kinds[1], words),
        total_ns=total,
        longest_start_ns=start[longest],
        longest_end_ns=start[longest] + length[longest],
    )


def _does(kind: names.Activity, function: str) -> bool:
    return names.activity(function) is kind


def _innermost(trace: RankTrace, instant: Ints, thread: Indices, test: Callable[[str], bool]) -> Ints:
    """The innermost function or annotation that passes around each instant: an index into `strings`, or -1."""
    events, frames = trace.events, trace.frames
    notes = np.flatnonzero(events.category == Category.ANNOTATION)
    passes = np.zeros(len(trace.strings), np.bool_)
    for index in np.unique(np.concatenate((events.name[notes], frames.name))).tolist():
        text = trace.strings[index]
        passes[index] = names.step_number(text) is None and test(text)
    notes = notes[passes[events.name[notes]]]
    calls = np.flatnonzero(passes[frames.name])
    name = np.concatenate((events.name[notes], frames.name[calls]))
    start = np.concatenate((events.start_ns[notes], frames.start_ns[calls]))
    length = np.concatenate((events.duration_ns[notes], frames.duration_ns[calls]))
    on = np.concatenate((events.thread[notes], frames.thread[calls]))
    row = enclosing(start, start + length, on, instant, thread)
    found = np.full(len(instant), -1, np.int64)
    found[row >= 0] = name[row[row >= 0]]
    return found


def _training_thread(trace: RankTrace) -> int:
    """The thread that marks the steps; -1 if none does."""
    events = trace.events
    marks = np.array([names.step_number(text) is not None for text in trace.strings], np.bool_)[events.name]
    rows = np.flatnonzero(marks & (events.category == Category.ANNOTATION))
    return int(events.thread[rows[0]]) if len(rows) else -1


def _texts(trace: RankTrace, indices: Ints, words: Vocabulary) -> Indices:
    return np.array([words.index(trace.strings[i] if i >= 0 else "") for i in indices], np.int32)
