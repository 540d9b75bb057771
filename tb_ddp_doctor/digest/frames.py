"""Which Python function the host is in, where stacks were recorded, and what it does while the device has nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from tb_ddp_doctor.digest.collectives import Vocabulary
from tb_ddp_doctor.digest.launches import enclosing
from tb_ddp_doctor.digest.model import Pieces, RankOwner, Stalled
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Category, Indices, Ints, RankTrace

#: Stalls are looked at every so often, ns, and each at most so many times: a stall is of what it is in at most of them.
_EVERY_NS = 1_000_000
_MOST_LOOKS = 64


def own_function(trace: RankTrace, instant: Ints, thread: Indices) -> Ints:
    """The innermost function of the user's own code around each instant: an index into `strings`, or -1."""
    return _innermost(trace, instant, thread, names.is_own_code)


def stalled(trace: RankTrace, pieces: Pieces, words: Vocabulary) -> Stalled:
    """What the host does in those pieces in which it is in no operation for long, by stacks and annotations."""
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
