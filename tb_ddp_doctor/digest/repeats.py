"""Finds what repeats in a sequence: the layers of a model, in the order of its operators or of its gradients' sizes.

The sequence is cut before every occurrence of a short word, and of all words the one is taken that makes the shortest
description: each different piece is written once, and each repeat refers to it. Pieces need not be the same: blocks of
a ResNet are of two kinds, those that halve the image and the others. In

    stem | conv relu conv add | conv relu conv down add | conv relu conv add | pool

every block but the first ends where "add" ends; cut there, 16 operators are 2 kinds of pieces and 3 references. Cut
before "conv" they would be 7 pieces of 4 kinds, and "conv relu conv add | conv ..." cut elsewhere loses the first block
or the last one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from functools import lru_cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.vocabulary import Mask
from tb_ddp_doctor.storage.column_table import ColumnTable
from tb_ddp_doctor.trace.model import Ints

Hashes = NDArray[np.uint64]
#: Lengths of the words to cut before.
_WORDS = (1, 2, 4, 8)
#: Words whose cuts are looked at closely, those with the shortest descriptions.
_MOST_WORDS = 4
#: Sequences that are longer are not searched: time grows with length, and no model has as many operators.
MOST_TOKENS = 1 << 16
#: Sequences whose repeats a process keeps, at most 200 KB each.
_REMEMBERED = 32
#: A piece is a repeat if it shares this much of its tokens with the commonest piece. One that occurs several times may
#: differ more, but not be shorter than this part of it.
_ALIKE = 0.6
_SHORTEST = 0.5
#: Lengths of pieces that are looked for before the first cut and behind the last one.
_KINDS = 8
#: An odd number with many bits set, as multiplications modulo 2 ** 64 need.
_BASE = 0x9E3779B97F4A7C15
#: Shifts and factors of SplitMix64.
_MIX, _LAST_SHIFT = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)), 31
_NOTHING = (np.empty(0, np.int64), np.empty(0, np.int64))


class SequenceRepeats(ColumnTable, frozen=True, eq=False):
    """The repeats in a sequence, in order; shape (repeats,)."""

    #: Index of the first token of each, and of the one after its last.
    first: Ints
    end: Ints
    #: How many of them have the same tokens: those of the commonest kind.
    same: int


def repeats(tokens: Ints, last: Collection[int] = ()) -> SequenceRepeats:
    """The pieces that repeat in a sequence of tokens, none where nothing does.

    Where cuts at several places are as good, they are put behind a token of `last`, or else as early as can be.
    """
    if not 2 <= len(tokens) <= MOST_TOKENS:
        return SequenceRepeats(*_NOTHING, 0)
    ends = np.isin(tokens, list(last)) if last else np.zeros(len(tokens), np.bool_)
    # By their first places tokens are the same on all ranks, whose files number names differently.
    _, first, which = np.unique(tokens, return_index=True, return_inverse=True)
    by_place = np.argsort(np.argsort(first))[which.reshape(-1)].astype(np.uint16)
    return _remembered(by_place.tobytes(), ends.tobytes())


@lru_cache(_REMEMBERED)
def _remembered(numbers: bytes, last: bytes) -> SequenceRepeats:
    """The repeats of a sequence, as bytes: all ranks have the same, and so have the passes of a step."""
    tokens, ends = np.frombuffer(numbers, np.uint16).astype(np.int64), np.frombuffer(last, np.bool_)
    text = _Text.of(tokens)
    moved = [cut for cuts in _words(text) if (cut := _moved(text, cuts, ends))]
    if not moved:
        return SequenceRepeats(*_NOTHING, 0)
    described = [_length(tokens, cut) for cut in moved]
    best = min(range(len(moved)), key=lambda at: (described[at], moved[at].elsewhere, int(moved[at].first[0])))
    cut, (kept, same) = moved[best], _same_tokens(tokens, moved[best])
    return SequenceRepeats(cut.first[kept], cut.end[kept], same)


class _Cut(msgspec.Struct, frozen=True, eq=False):
    """A sequence cut into pieces that follow each other; shape (pieces,)."""

    first: Ints
    end: Ints
    #: The same number for pieces with the same tokens.
    text: Hashes
    #: Whether not all pieces end with a token that pieces are to end with.
    elsewhere: bool


class _Text(msgspec.Struct, frozen=True, eq=False):
    """A sequence whose stretches can be compared by a number each."""

    length: int
    #: Sums of the tokens' random numbers times powers of a base, up to each token; shape (length + 1,).
    sums: Hashes
    #: Powers of the inverse of the base, shape (length + 1,).
    inverse: Hashes

    @classmethod
    def of(cls, tokens: Ints) -> _Text:
        """Of tokens that are numbered from 0 on."""
        values = _mixed(int(tokens.max()) + 1)[tokens]
        powers = _powers(_BASE, len(tokens))
        sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(values * powers[:-1], dtype=np.uint64)))
        return cls(len(tokens), sums, _powers(pow(_BASE, -1, 1 << 64), len(tokens)))

    def stretch(self, first: Ints, end: Ints) -> Hashes:
        """A number that is the same for stretches with the same tokens."""
        return (self.sums[end] - self.sums[first]) * self.inverse[first]


def _mixed(count: int) -> Hashes:
    """Numbers that seem random, the same ones in each run, shape (count,), as SplitMix64 makes them.

    numpy.random would do, but takes 20 ms to import.
    """
    value = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_BASE)
    for shift, factor in _MIX:
        value = (value ^ (value >> np.uint64(shift))) * np.uint64(factor)
    mixed: Hashes = value ^ (value >> np.uint64(_LAST_SHIFT))
    return mixed


def _powers(base: int, count: int) -> Hashes:
    factors = np.full(count + 1, base, np.uint64)
    factors[0] = 1
    return np.cumprod(factors, dtype=np.uint64)


def _words(text: _Text) -> list[Ints]:
    """The places of each of the words that repeat whose cuts make the shortest descriptions."""
    costs, places, words = [], [], 0
    for size in _WORDS:
        if size >= text.length:
            break
        at = np.arange(text.length - size + 1)
        word = text.stretch(at, at + size)
        order = np.argsort(word, kind="stable")
        begins = np.flatnonzero(np.append(True, word[order][1:] != word[order][:-1]))
        ends = np.append(begins[1:], len(order))
        several = ends - begins > 1
        begins, ends = begins[several], ends[several]
        if len(begins):
            costs.append(_costs(text, order, begins, ends))
            places.append((words, order, begins, ends))
            words += len(begins)
    if not costs:
        return []
    known, best = set(), []
    for index in np.argsort(np.concatenate(costs), kind="stable").tolist():
        before, order, begins, ends = next(one for one in reversed(places) if one[0] <= index)
        cuts = order[begins[index - before] : ends[index - before]]
        # Words that lie in the same piece have cuts at the same distances.
        key = np.diff(cuts).tobytes()
        if key not in known:
            known.add(key)
            best.append(cuts)
        if len(best) == _MOST_WORDS:
            break
    return best


def _costs(text: _Text, order: Ints, begins: Ints, ends: Ints) -> Ints:
    """Length of the description of the sequence, cut at each word's places `order[begins:ends]`."""
    group = np.repeat(np.arange(len(begins)), ends - begins)
    at = order[np.arange(len(group)) + np.repeat(begins - np.cumsum(ends - begins) + (ends - begins), ends - begins)]
    inside = group[1:] == group[:-1]
    first, end, group = at[:-1][inside], at[1:][inside], group[1:][inside]
    piece = text.stretch(first, end)
    sort = np.lexsort((piece, group))
    new = np.ones(len(sort), np.bool_)
    new[1:] = (piece[sort][1:] != piece[sort][:-1]) | (group[sort][1:] != group[sort][:-1])
    written = np.bincount(group[sort][new], (end - first)[sort][new], len(begins))
    outside = text.length - (order[ends - 1] - order[begins])
    costs: Ints = written.astype(np.int64) + (ends - begins - 1) + outside
    return costs


def _moved(text: _Text, cuts: Ints, last: Mask) -> _Cut | None:
    """The shortest of the descriptions with all cuts moved to each place of a piece; None where no piece repeats.

    `last` are the tokens to end with.
    """
    lengths = np.diff(cuts)
    shortest = int(lengths.min())
    shift = np.arange(max(1 - shortest, -int(cuts[0])), min(shortest, text.length - int(cuts[-1]) + 1))
    # Shapes (shifts, cuts) and (shifts, pieces).
    place = cuts + shift[:, None]
    piece = text.stretch(place[:, :-1], place[:, 1:])
    common = [length for length, _ in Counter(lengths.tolist()).most_common(_KINDS)]
    before = _outside(text, piece, [(place[:, 0] - length, place[:, 0]) for length in common])
    behind = _outside(text, piece, [(place[:, -1], place[:, -1] + length) for length in common])
    order = np.argsort(piece, axis=1, kind="stable")
    ascending = np.take_along_axis(piece, order, axis=1)
    new = np.ones(piece.shape, np.bool_)
    new[:, 1:] = ascending[:, 1:] != ascending[:, :-1]
    count = len(lengths) + (before > 0) + (behind > 0)
    outside = text.length - int(cuts[-1] - cuts[0]) - before - behind
    described = np.where(new, lengths[order], 0).sum(axis=1) + count + outside
    elsewhere = ~last[place[:, 1:] - 1].all(axis=1)
    # One of its kind is no repeat.
    several = new.sum(axis=1) < count
    if not several.any():
        return None
    described[~several] = text.length + 1
    best = int(np.lexsort((shift, elsewhere, described))[0])
    at = place[best]
    if before[best]:
        at = np.append(at[0] - before[best], at)
    if behind[best]:
        at = np.append(at, at[-1] + behind[best])
    return _Cut(at[:-1], at[1:], text.stretch(at[:-1], at[1:]), bool(elsewhere[best]))


def _outside(text: _Text, piece: Hashes, stretches: list[tuple[Ints, Ints]]) -> Ints:
    """For each shift the length of the first stretch that is the same as a piece, 0 for none; shape (shifts,)."""
    outside = np.zeros(len(piece), np.int64)
    for first, end in stretches:
        inside = (first >= 0) & (end <= text.length) & (outside == 0)
        number = text.stretch(np.maximum(first, 0), np.minimum(end, text.length))
        same = inside & (piece == number[:, None]).any(axis=1)
        outside[same] = (end - first)[same]
    return outside


def _length(tokens: Ints, cut: _Cut) -> int:
    """Length of the description where a piece is written as its difference from the commonest one, if that is shorter.

    An operator that is in one layer alone makes that layer no other kind of piece.
    """
    texts, _, count = _kinds(tokens, cut)
    commonest = texts[int(count.argmax())]
    written = len(commonest)
    for text in texts:
        if text is not commonest:
            written += min(len(text), max(len(text), len(commonest)) - _shared_ends(text, commonest) + 1)
    return written + len(cut.text) + len(tokens) - int(cut.end[-1] - cut.first[0])


def _shared_ends(one: list[int], other: list[int]) -> int:
    """How many tokens two pieces share at their beginnings and ends."""
    least = min(len(one), len(other))
    before = next((at for at in range(least) if one[at] != other[at]), least)
    behind = next((at for at in range(least - before) if one[-1 - at] != other[-1 - at]), least - before)
    return before + behind


def _kinds(tokens: Ints, cut: _Cut) -> tuple[list[list[int]], Ints, Ints]:
    """The tokens of each kind of pieces, the kind of each piece, and how many pieces are of each kind."""
    _, which, kind, count = np.unique(cut.text, return_index=True, return_inverse=True, return_counts=True)
    first, end = cut.first[which].tolist(), cut.end[which].tolist()
    texts = [tokens[begin:until].tolist() for begin, until in zip(first, end, strict=True)]
    return texts, kind.reshape(-1), count


def _same_tokens(tokens: Ints, cut: _Cut) -> tuple[Mask, int]:
    """Which pieces are repeats, as the constants say, and how many are of the commonest kind."""
    texts, kind, count = _kinds(tokens, cut)
    commonest = texts[int(count.argmax())]
    kept = np.zeros(len(texts), np.bool_)
    for index, text in enumerate(texts):
        shared = (Counter(text) & Counter(commonest)).total()
        kept[index] = shared >= _ALIKE * max(len(text), len(commonest))
        kept[index] |= count[index] > 1 and len(text) >= _SHORTEST * len(commonest)
    return kept[kind], int(count.max())
