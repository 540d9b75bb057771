"""Amounts of many things by rank and step, and medians over ranks and steps that can be compared.

R = ranks, S = steps of the job.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.trace.model import Flags, Floats, Indices, Ints

#: Indices, or a slice for all.
Some: TypeAlias = slice | Ints


class Cells(msgspec.Struct, frozen=True, eq=False):
    """To which rank and step of the job things belong, as one index; each rank has one more cell, for the steps that
    the job leaves out.
    """

    cell: Indices
    shape: tuple[int, int]
    #: Whether the steps that the job leaves out are changed as its other steps are, or stay as recorded.
    changes_left_out: bool = True

    @classmethod
    def of(cls, rank: Indices, step: Indices, shape: tuple[int, int], *, changes_left_out: bool = True) -> Cells:
        """From the rank of each thing and its step, -1 for none of the job's."""
        ranks, steps = shape
        cell = rank * np.int32(steps + 1) + np.where(step >= 0, step, np.int32(steps))
        return cls(cell.astype(np.int32, copy=False), (ranks, steps), changes_left_out)

    def sum(self, values: Ints, things: Indices | None = None) -> Ints:
        """Of one value of each thing, or of some things, shape (R, S)."""
        total: Ints = self._total(values, things).astype(np.int64)
        return total

    def of_each(self, share: Floats, things: Indices | None = None) -> Floats:
        """The share, shape (R, S), of the cell of each thing, or of some things."""
        shares: Floats = self.padded(share).ravel()[self.cell if things is None else self.cell[things]]
        return shares

    def chosen(self, flags: Flags) -> Flags:
        """Which things are of a chosen cell, shape (R, S)."""
        of_each: Flags = (self.padded(flags.astype(np.float64)) >= 0.5).ravel()[self.cell]
        return of_each

    def with_some(self, share: Floats, things: Indices) -> tuple[Some, Floats]:
        """Which of some things are of a cell that has a share, shape (R, S), and the share of each of these."""
        shares = self.padded(share).ravel()
        there = shares != 0
        cell = self.cell[things]
        if 2 * np.count_nonzero(there) > len(there):
            return slice(None), shares[cell]
        mine = np.flatnonzero(there[cell])
        return mine, shares[cell[mine]]

    def hold(self, things: Indices) -> Flags:
        """Which cells some of these things belong to, shape (R, S + 1)."""
        ranks, steps = self.shape
        there = np.zeros(ranks * (steps + 1), np.bool_)
        there[self.cell[things]] = True
        return there.reshape(ranks, steps + 1)

    def spread(self, weights: Ints, amount: Ints) -> Ints:
        """Amounts of shape (R, S) over what each cell consists of, by weight; never more than the weight."""
        share = np.minimum(amount / np.maximum(self._total(weights), 1), 1)
        spread: Ints = np.rint(weights * self.of_each(share)).astype(np.int64)
        return spread

    def padded(self, share: Floats) -> Floats:
        """A share by rank and step, shape (R, S), and that of the steps that the job leaves out, shape (R, S + 1)."""
        left_out = share.mean(axis=1, keepdims=True) if self.changes_left_out else np.zeros((len(share), 1))
        return np.concatenate((share, left_out), axis=1)

    def _total(self, values: Ints, things: Indices | None = None) -> Floats:
        ranks, steps = self.shape
        cell = self.cell if things is None else self.cell[things]
        total = np.bincount(cell, weights=values, minlength=ranks * (steps + 1)).astype(np.float64, copy=False)
        return total.reshape(ranks, steps + 1)[:, :steps]


class LargestAt(msgspec.Struct, frozen=True, eq=False):
    """Things by their place in a table, for the largest value of each."""

    #: Things, those of one place together; where each place's begin; the places, row by row.
    things: Ints
    starts: Ints
    places: Ints

    @classmethod
    def of(cls, row: Indices, column: Indices, shape: tuple[int, int], things: Ints) -> LargestAt:
        """From the row and column of each of some things in a table of a shape."""
        place = row.astype(np.int64) * shape[1] + column
        order = np.argsort(place, kind="stable")
        starts = np.flatnonzero(np.diff(place[order], prepend=-1))
        return cls(things[order], starts, place[order][starts])

    def raise_to(self, table: NDArray[Any], values: Ints) -> None:
        """Raise the table, which is contiguous, to the largest value of each place."""
        if len(self.starts):
            largest, flat = values[self.things], table.reshape(-1)
            if len(self.starts) < len(self.things):
                largest = np.maximum.reduceat(largest, self.starts)
            flat[self.places] = np.maximum(flat[self.places], largest)


#: Of more values than these, as many are looked at first.
_SAMPLED = 256


def lower_median(values: NDArray[Any]) -> Any:
    """The lower median over the first axis, so that of two the better one is typical."""
    middle = (len(values) - 1) // 2
    if values.ndim == 1 and len(values) > _SAMPLED:
        # Where most values are one, a sample tells which. Of such values a selection takes longer than of any others.
        sample = values[:: len(values) // _SAMPLED]
        guess = np.partition(sample, len(sample) // 2)[len(sample) // 2]
        less = int(np.count_nonzero(values < guess))
        if less <= middle < less + int(np.count_nonzero(values == guess)):
            return guess
    return np.partition(values, middle, axis=0)[middle]


def lower_medians(values: NDArray[Any], of: Ints) -> NDArray[Any]:
    """The lower median of the values of each number in `of`, by number; both of shape (N,)."""
    order = np.lexsort((values, of))
    starts = np.flatnonzero(np.diff(of[order], prepend=-1))
    counts = np.diff(starts, append=len(order))
    medians: NDArray[Any] = values[order][starts + (counts - 1) // 2]
    return medians


def most_of_most(flags: Flags, of: Ints) -> bool:
    """Whether most values of most numbers in `of` are flagged, both of shape (N,).

    If the flags say which values are below a limit, this says whether the lower median of all `lower_medians` is, and
    sorts nothing.
    """
    counts, flagged = np.bincount(of), np.bincount(of[flags], minlength=int(of.max()) + 1)
    most = flagged[counts > 0] > (counts[counts > 0] - 1) // 2
    return int(np.count_nonzero(most)) > (len(most) - 1) // 2


def share_at_median(total: NDArray[Any]) -> Floats:
    """By what to multiply amounts of shape (cells, places) so that none is above its place's median.

    Noise is above the median somewhere in every cell, and the medians of places sum to less than the median cell. So
    no cell is left with less than that, or than it had.
    """
    capped = np.minimum(total, lower_median(total))
    had, has = total.sum(axis=1), capped.sum(axis=1)
    back = np.maximum(np.minimum(had, lower_median(had)) - has, 0) / np.maximum(had - has, 1)
    # In place: these are the largest tables of a job.
    share: Floats = (total - capped) * back[:, None]
    share += capped
    share /= np.maximum(total, 1, out=capped)
    return share


def of_equal(keys: Ints) -> Iterator[Ints]:
    """Indices of equal keys, key by key."""
    order = np.argsort(keys, kind="stable")
    return iter(np.split(order, np.flatnonzero(np.diff(keys[order])) + 1)) if len(order) else iter(())
