"""Sums of rows or parts by rank and step, and medians over comparable ranks and steps.

R = ranks, S = steps of the job. A cell is one rank in one step. An item is a row or a part of a schedule; N items.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.trace.model import Flags, Floats, Indices, Ints

#: Indices of some items, or a slice for all items.
Some: TypeAlias = slice | Ints


class Cells(msgspec.Struct, frozen=True, eq=False):
    """The cell of each item, so that items can be summed by rank and step, and shares of cells applied to items.

    Each rank has one more cell at its end, for the steps that the job leaves out. With 2 steps, the cells of rank 0 are
    0, 1 and 2, and those of rank 1 are 3, 4 and 5; an item of rank 1 in the first step has cell 3.
    """

    #: The cell of each item, shape (N,).
    cell: Indices
    #: Ranks and steps, (R, S).
    shape: tuple[int, int]
    #: Whether a change applies to the steps that the job leaves out too, with the mean of its shares; else they stay as
    #: recorded.
    changes_left_out: bool = True

    @classmethod
    def of(cls, rank: Indices, step: Indices, shape: tuple[int, int], *, changes_left_out: bool = True) -> Cells:
        """The cells of items, given each item's rank and step; -1 is a step that the job leaves out."""
        ranks, steps = shape
        cell = rank * np.int32(steps + 1) + np.where(step >= 0, step, np.int32(steps))
        return cls(cell.astype(np.int32, copy=False), (ranks, steps), changes_left_out)

    def sum(self, values: Ints, items: Indices | None = None) -> Ints:
        """Sums of the items' values by rank and step, shape (R, S); `items` are their indices, None for all items."""
        return self._total(values, items).astype(np.int64)

    def of_each(self, share: Floats) -> Floats:
        """For each item, the share of its cell; `share` has the shape (R, S)."""
        return self.padded(share).ravel()[self.cell]

    def chosen(self, flags: Flags) -> Flags:
        """Flags the items of the flagged cells; `flags` has the shape (R, S)."""
        return (self.padded(flags.astype(np.float64)) >= 0.5).ravel()[self.cell]

    def with_share(self, share: Floats, items: Indices) -> tuple[Some, Floats]:
        """Places in `items` whose cells have a share that is not 0, and the share at each of these places.

        `share` has the shape (R, S). Where most cells have one, all places are returned, as a slice.
        """
        shares = self.padded(share).ravel()
        there = shares != 0
        cell = self.cell[items]
        if 2 * np.count_nonzero(there) > len(there):
            return slice(None), shares[cell]
        mine = np.flatnonzero(there[cell])
        return mine, shares[cell[mine]]

    def with_any(self, items: Indices) -> Flags:
        """Flags the cells that some of the items belong to, shape (R, S + 1)."""
        ranks, steps = self.shape
        there = np.zeros(ranks * (steps + 1), np.bool_)
        there[self.cell[items]] = True
        return there.reshape(ranks, steps + 1)

    def spread(self, weights: Ints, amount: Ints, counted: Ints | None = None) -> Ints:
        """Divide the amount of each cell, shape (R, S), among its items in proportion to their weights.

        No item gets more than its weight: of an amount of 6, items of the weights 2 and 1 get 2 and 1. `counted` is how
        much of each weight is in no other item's as well, None for all of it: time of two items side by side counts
        once, and has to be removed from both.
        """
        share = np.minimum(amount / np.maximum(self._total(weights if counted is None else counted), 1), 1)
        return np.rint(weights * self.of_each(share)).astype(np.int64)

    def padded(self, share: Floats) -> Floats:
        """Shares by rank and step, shape (R, S), with a column for the steps that the job leaves out, (R, S + 1)."""
        left_out = share.mean(axis=1, keepdims=True) if self.changes_left_out else np.zeros((len(share), 1))
        return np.concatenate((share, left_out), axis=1)

    def _total(self, values: Ints, items: Indices | None = None) -> Floats:
        ranks, steps = self.shape
        cell = self.cell if items is None else self.cell[items]
        total = np.bincount(cell, weights=values, minlength=ranks * (steps + 1)).astype(np.float64, copy=False)
        return total.reshape(ranks, steps + 1)[:, :steps]


class LargestAt(msgspec.Struct, frozen=True, eq=False):
    """Items grouped by their cell of a table, to raise each cell to the largest value among its items."""

    #: Indices of the items, those of one cell together.
    items: Ints
    #: Where in `items` each cell's begin.
    starts: Ints
    #: The cell of each of these groups, as an index into the flat table.
    cells: Ints

    @classmethod
    def of(cls, row: Indices, column: Indices, shape: tuple[int, int], items: Ints) -> LargestAt:
        """Group items, given the row and column of each of them in a table of this shape."""
        place = row.astype(np.int64) * shape[1] + column
        order = np.argsort(place, kind="stable")
        starts = np.flatnonzero(np.diff(place[order], prepend=-1))
        return cls(items[order], starts, place[order][starts])

    def raise_to(self, table: NDArray[Any], values: Ints) -> None:
        """Raise each cell of a contiguous table to the largest value of its items; `values` has one for each item."""
        if len(self.starts):
            largest, flat = values[self.items], table.reshape(-1)
            if len(self.starts) < len(self.items):
                largest = np.maximum.reduceat(largest, self.starts)
            flat[self.cells] = np.maximum(flat[self.cells], largest)


#: Of more values than this, so many are sampled first.
_SAMPLED = 256


def lower_median(values: NDArray[Any]) -> Any:
    """The lower median over the first axis: of two values the smaller, so that one slow rank of two is not typical."""
    middle = (len(values) - 1) // 2
    if values.ndim == 1 and len(values) > _SAMPLED:
        # If most values are equal, a sample shows which value it is: `np.partition` is slowest with equal values.
        sample = values[:: len(values) // _SAMPLED]
        guess = np.partition(sample, len(sample) // 2)[len(sample) // 2]
        less = int(np.count_nonzero(values < guess))
        if less <= middle < less + int(np.count_nonzero(values == guess)):
            return guess
    return np.partition(values, middle, axis=0)[middle]


def lower_medians(values: NDArray[Any], of: Ints) -> NDArray[Any]:
    """The lower median of each group of values, in ascending order of the groups' numbers in `of`; both (N,)."""
    order = np.lexsort((values, of))
    starts = np.flatnonzero(np.diff(of[order], prepend=-1))
    counts = np.diff(starts, append=len(order))
    medians: NDArray[Any] = values[order][starts + (counts - 1) // 2]
    return medians


def most_of_most(flags: Flags, of: Ints) -> bool:
    """Whether in most groups most values are flagged; `of` numbers the group of each value, both of shape (N,).

    With flags for values below a limit, this is whether the lower median of all groups' `lower_medians` is below that
    limit, without sorting.
    """
    counts, flagged = np.bincount(of), np.bincount(of[flags], minlength=int(of.max()) + 1)
    most = flagged[counts > 0] > (counts[counts > 0] - 1) // 2
    return int(np.count_nonzero(most)) > (len(most) - 1) // 2


def share_at_median(total: NDArray[Any]) -> Floats:
    """Factors that lower each amount to the median of its column; shape (cells, places), as that of the amounts.

    Noise exceeds the median somewhere in every cell, so the columns' medians sum to less than the median cell does.
    What is lowered too far is given back in proportion: no cell gets less than the median cell, or than it had.

        cells    [2, 1]  [1, 2]  [1, 5]      medians of columns [1, 2]; of cells 3
        become   [1, 1]  [1, 2]  [1, 2]      and the first cell [2, 1] again, since it had no more than 3
    """
    capped = np.minimum(total, lower_median(total))
    before, after = total.sum(axis=1), capped.sum(axis=1)
    back = np.maximum(np.minimum(before, lower_median(before)) - after, 0) / np.maximum(before - after, 1)
    # In place: these are the largest tables of a job.
    share: Floats = (total - capped) * back[:, None]
    share += capped
    share /= np.maximum(total, 1, out=capped)
    return share


def share_if_even(total: NDArray[Any], work: Floats) -> Floats:
    """Factors that lower each amount to what the median cell needs for work of 1; both of shape (cells, places).

    `work`, shape (cells,), is what each cell has to do, 1 on average: 30, 60 and 120 ms for work of 0.5, 1 and 1.5
    become 30, 60 and 60 ms. The last cell is slow beside its larger work, and both are taken from it.
    """
    share: Floats = np.minimum(lower_median(total / work[:, None]) / np.maximum(total, 1), 1)
    return share


def of_equal(keys: Ints) -> Iterator[Ints]:
    """The indices of equal keys, one array for each key, in ascending order of the keys."""
    order = np.argsort(keys, kind="stable")
    return iter(np.split(order, np.flatnonzero(np.diff(keys[order])) + 1)) if len(order) else iter(())
