"""How much may be made of one file.

A pickle may name one list a million times in a few megabytes: written out, as columns and tables are, it would be
terabytes.
"""

from __future__ import annotations


class BudgetError(Exception):
    """A file that stands for far more values than it holds. Its text is a sentence for users."""


class ValueBudget:
    """How many values may still be made of a file."""

    def __init__(self, most: int) -> None:
        self._most = self._left = most

    def spend(self, count: int) -> None:
        """Take so many. Raises BudgetError where there are not as many left."""
        self._left -= count
        if self._left < 0:
            raise BudgetError(f"Written out, its shared lists are over {self._most:,} values: it is not read.")
