"""Strings of a digest, and what the names of a trace's events mean: each is asked once, however many events have it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.trace.model import Bytes8, Indices, Ints

Mask = NDArray[np.bool_]

#: Other ranks have the same names: answers to so many questions about names of so many letters at most are kept.
_KEPT, _MOST_KEPT_LETTERS = 1 << 16, 1 << 12


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
        used = np.zeros(len(strings), np.bool_)
        used[column] = True
        self._strings = len(strings)
        self._used = np.flatnonzero(used)
        self._texts = [strings[name] for name in self._used.tolist()]
        self._can_be_kept = max(map(len, self._texts), default=0) <= _MOST_KEPT_LETTERS
        self._kinds: dict[Callable[[str], int], Bytes8] = {}

    def kinds(self, classify: Callable[[str], int]) -> Bytes8:
        """What each name is; of a test, 1 for what passes."""
        classes = self._kinds.get(classify)
        if classes is None:
            classes = np.zeros(self._strings, np.int8)
            asked = partial(_kept_class_of, classify) if self._can_be_kept else classify
            classes[self._used] = [*map(asked, self._texts)]
            self._kinds[classify] = classes
        return classes

    def among(self, name: Ints | Indices, test: Callable[[str], int]) -> Mask:
        """Which of some names of the column pass, or are of a kind that is not 0."""
        kinds = self.kinds(test)
        # Most tests are of what most traces lack.
        return kinds.astype(np.bool_).take(name) if kinds.any() else np.zeros(len(name), np.bool_)


@lru_cache(_KEPT)
def _kept_class_of(classify: Callable[[str], int], name: str) -> int:
    return classify(name)
