"""Strings of a digest, and what the names of a trace's events mean: each is asked once, however many events have it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.trace.model import Bytes8, Indices, Ints

Mask = NDArray[np.bool_]


class Vocabulary:
    """Strings of a digest, interned."""

    def __init__(self) -> None:
        self._index: dict[str, int] = {}

    def index(self, text: str) -> int:
        return self._index.setdefault(text, len(self._index))

    def indices(self, texts: Iterable[str]) -> Indices:
        return np.array([self.index(text) for text in texts], np.int32)

    def strings(self) -> tuple[str, ...]:
        return tuple(self._index)


class Names:
    """The names in a column; arrays have shape (strings,), and zeros for strings that are not in the column."""

    def __init__(self, strings: tuple[str, ...], column: Ints | Indices) -> None:
        self._strings = strings
        used = np.zeros(len(strings), np.bool_)
        used[column] = True
        self._used = np.flatnonzero(used).tolist()
        self._kinds: dict[Callable[[str], int], Bytes8] = {}

    def kinds(self, classify: Callable[[str], int]) -> Bytes8:
        """What each name is; of a test, 1 for what passes."""
        classes = self._kinds.get(classify)
        if classes is None:
            classes = np.zeros(len(self._strings), np.int8)
            classes[self._used] = [classify(self._strings[name]) for name in self._used]
            self._kinds[classify] = classes
        return classes

    def among(self, name: Ints | Indices, test: Callable[[str], int]) -> Mask:
        """Which of some names of the column pass, or are of a kind that is not 0."""
        kinds = self.kinds(test)
        # Most tests are of what most traces lack.
        passes: Mask = kinds.astype(np.bool_).take(name) if kinds.any() else np.zeros(len(name), np.bool_)
        return passes
