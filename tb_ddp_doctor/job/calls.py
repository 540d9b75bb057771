"""The collectives of all ranks as one table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.digest.numbering import numbered
from tb_ddp_doctor.digest.steps import FIRST_PART
from tb_ddp_doctor.storage.constant import is_constant, joined
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Flags, Indices, Ints

#: A group that reduces more than this share of its elements outside of backward passes carries activations too
#: (tensor parallelism), not gradients alone.
_MOST_OUTSIDE = 0.2


class Text(msgspec.Struct, frozen=True, eq=False):
    """A text for each of many things, as an index in the distinct ones, each of which stands in `words` once."""

    code: Indices
    words: tuple[str, ...]

    def where(self, chosen: Callable[[str], bool]) -> Flags:
        """Which things have a text that is chosen."""
        of_words = np.array([chosen(word) for word in self.words], np.bool_)
        if is_constant(self.code):
            return np.broadcast_to(of_words[self.code[0]], self.code.shape)
        return of_words[self.code]

    def among(self, chosen: Flags) -> tuple[str, ...]:
        """The texts, but for "", that chosen things have; sorted."""
        there = np.bincount(self.code[chosen], minlength=len(self.words))
        return tuple(sorted(word for word, count in zip(self.words, there.tolist(), strict=True) if word and count))


class Calls:
    """The rows of all ranks' `Collectives`, rank by rank; shape (N,) unless a comment says more."""

    def __init__(self, digests: Sequence[RankDigest]) -> None:
        self._digests = digests
        #: Where each rank's rows begin, and where the last one's end, shape (R + 1,).
        self.first: Ints = np.cumsum([0, *(len(digest.collectives) for digest in digests)])
        self.rank: Indices = np.repeat(np.arange(len(digests), dtype=np.int32), np.diff(self.first))
        self._texts: dict[str, Text] = {}
        self._columns: dict[str, NDArray[Any]] = {}

    def __len__(self) -> int:
        return len(self.rank)

    def of(self, rank: int) -> slice:
        """The rows of a rank (index)."""
        return slice(int(self.first[rank]), int(self.first[rank + 1]))

    def column(self, name: str) -> NDArray[Any]:
        """A column of `Collectives`; it is not to be written to."""
        if name not in self._columns:
            self._columns[name] = joined([getattr(digest.collectives, name) for digest in self._digests])
        return self._columns[name]

    def text(self, name: str) -> Text:
        """A column of texts."""
        if name not in self._texts:
            self._texts[name] = self._text(name)
        return self._texts[name]

    def _text(self, name: str) -> Text:
        sizes = np.array([len(digest.strings) for digest in self._digests])
        first = np.cumsum(sizes) - sizes
        own = self.column(name)
        if is_constant(own) and len({digest.strings[own[0]] for digest in self._digests}) == 1:
            return Text(np.broadcast_to(np.int32(0), own.shape), (self._digests[0].strings[own[0]],))
        string = own + first[self.rank]
        which = numbered(string)
        distinct = np.empty(int(which.max(initial=-1)) + 1, np.int64)
        distinct[which] = string
        words: dict[str, int] = {}
        code = np.empty(len(distinct), np.int32)
        ranks = np.searchsorted(first, distinct, side="right") - 1
        for i, (rank, place) in enumerate(zip(ranks.tolist(), (distinct - first[ranks]).tolist(), strict=True)):
            code[i] = words.setdefault(self._digests[rank].strings[place], len(words))
        return Text(code[which], tuple(words))

    @cached_property
    def in_first_part(self) -> Flags:
        """Which are of a round that their rank's record begins within (`FIRST_PART`)."""
        numbers = [digest.steps.number for digest in self._digests]
        if not any(FIRST_PART in number for number in numbers):
            return np.zeros(len(self), np.bool_)
        cut: Flags = (self.of_own_steps(numbers) == FIRST_PART) & (self.column("step") >= 0)
        return cut

    def of_own_steps(self, columns: Sequence[Ints]) -> Ints:
        """What each call's step has, by a column of each rank's steps; of calls of no step, what some step has."""
        sizes = np.array([len(column) for column in columns])
        first = np.cumsum(sizes) - sizes
        values: Ints = np.concatenate(columns)[first[self.rank] + np.maximum(self.column("step"), 0)]
        return values

    @cached_property
    def between_two(self) -> Flags:
        """Which are sends and receives, which only two ranks take part in.

        NCCL carries out an all-to-all by the same kernel: one without metadata is taken for messages only where the
        host names some.
        """
        kind = self.text("kind")
        has_messages = np.array([len(digest.messages) > 0 for digest in self._digests], np.bool_)
        unnamed = kind.where("send_recv".__eq__) & has_messages[self.rank]
        return kind.where(names.is_point_to_point) | unnamed

    @cached_property
    def of_gradients(self) -> Flags:
        """Which are AllReduces, without those of groups that reduce activations.

        Tensor-parallel layers reduce in the forward pass as in the backward pass, and wait for the result; a group that
        reduces gradients launches them in the backward pass, or all of them after it.
        """
        elements = self.column("elements")
        reduces = self.text("kind").where("all_reduce".__eq__)
        sized = reduces & (self.column("step") >= 0) & (elements > 0)
        inside = sized & (self.column("backward") >= 0)
        group = numbered(self.rank, self.text("group").code)
        total = np.bincount(group[sized], elements[sized], minlength=len(group))
        ours = np.bincount(group[inside], elements[inside], minlength=len(group))
        carries_activations = (ours > 0) & (total - ours > _MOST_OUTSIDE * total)
        return reduces & ~carries_activations[group]


def job_steps(step_index: Ints, rank: Indices, own_step: Indices, sizes: Ints) -> Indices:
    """The job's step (-1 for none) of things of ranks and their own steps, of which each rank has so many.

    `step_index`, shape (R, S), is where each rank has the job's steps; `own_step` is -1 for none.
    """
    steps_of_job = step_index.shape[1]
    if (sizes == steps_of_job).all() and (step_index == np.arange(steps_of_job)).all():
        return own_step
    base = np.cumsum(sizes + 1) - (sizes + 1)
    of_job = np.full(int((sizes + 1).sum()), -1, np.int32)
    of_job[base[:, None] + step_index] = np.arange(step_index.shape[1])
    # What belongs to no step has the one after the last.
    steps: Indices = of_job[base[rank] + np.where(own_step >= 0, own_step, sizes[rank])]
    return steps
