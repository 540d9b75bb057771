"""Which NVTX range is a step: the one that the user names, or one that repeats as steps do."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Bytes8, Category, Indices, Ints

#: Fewer repetitions are no pattern.
_LEAST = 3
#: Of the times from one repetition to the next, most are within this factor of the median; some steps save or evaluate.
_EVEN, _MOST_EVEN = 2.0, 0.75
#: A range that covers this much of the time between its first start and last end is around whatever a step does.
_AROUND = 0.8
#: Names that people give to steps.
_STEP = re.compile(r"\b(?:train|training|global)?[ _-]?(?:step|iter|iteration|batch)s?\b", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")


class Ranges(NamedTuple):
    """NVTX ranges; each column has shape (ranges,)."""

    name: Indices
    category: Bytes8
    start_ns: Ints
    duration_ns: Ints
    thread: Indices


class StepRanges(NamedTuple):
    """The ranges that are steps, by time."""

    #: Rows of `Ranges`, and the number of each step.
    rows: Ints
    numbers: Ints
    #: What the range is called; "" where it is a step by torch's own name for it.
    name: str


class _Kind(NamedTuple):
    """Ranges of one name, but for its numbers, on one thread."""

    rows: Ints
    name: str
    coverage: float


def chosen_steps(ranges: Ranges, strings: tuple[str, ...], launching: Indices, wanted: str) -> StepRanges | None:
    """The steps; None where nothing repeats. `launching` are the threads of launches, one for each."""
    if not len(ranges.name):
        return None
    texts = {number: strings[number] for number in np.unique(ranges.name).tolist()}
    if wanted:
        matching = [number for number, text in texts.items() if text == wanted or _NUMBER.sub("#", text) == wanted]
        repeating = [_Kind(rows, wanted, 1.0) for rows in _by_thread(ranges, np.array(matching, np.int64))]
        return _numbered(max(repeating, key=lambda kind: len(kind.rows)), ranges, strings) if repeating else None
    marked = np.array([number for number, text in texts.items() if names.is_step(text)], np.int64)
    for rows in _by_thread(ranges, marked):
        return _numbered(_Kind(rows, "", 1.0), ranges, strings)
    kinds = _repeating(ranges, texts, launching)
    if not kinds:
        return None
    # What is named for a step; what goes around all that repeats; what comes first of each repetition.
    return _numbered(
        min(kinds, key=lambda kind: (not _is_named(kind), kind.coverage < _AROUND, len(kind.rows), kind.rows[0])),
        ranges,
        strings,
    )


def _is_named(kind: _Kind) -> bool:
    return bool(_STEP.search(kind.name.replace("#", " ").replace("_", " ")))


def _repeating(ranges: Ranges, texts: dict[int, str], launching: Indices) -> list[_Kind]:
    """Annotations of the thread that launches most that come back regularly, one after the other."""
    if not len(launching):
        return []
    thread = Counter(launching.tolist()).most_common(1)[0][0]
    own = (ranges.thread == thread) & (ranges.category == Category.ANNOTATION)
    by_kind: dict[str, list[int]] = {}
    for number in np.unique(ranges.name[own]).tolist():
        by_kind.setdefault(_NUMBER.sub("#", texts[number]), []).append(number)
    repeating = []
    for name, numbers in by_kind.items():
        rows = _in_order(ranges, own & np.isin(ranges.name, numbers))
        start, end = ranges.start_ns[rows], ranges.start_ns[rows] + ranges.duration_ns[rows]
        if len(rows) >= _LEAST and (end[:-1] <= start[1:]).all() and _is_regular(start):
            coverage = float(ranges.duration_ns[rows].sum() / max(int(end[-1] - start[0]), 1))
            repeating.append(_Kind(rows, name, coverage))
    return repeating


def _is_regular(start: Ints) -> bool:
    apart = np.diff(start)
    median = float(np.median(apart))
    even = (apart >= median / _EVEN) & (apart <= median * _EVEN)
    return median > 0 and float(even.mean()) >= _MOST_EVEN


def _by_thread(ranges: Ranges, names_: Ints) -> list[Ints]:
    """Rows of ranges with these names, in order of time, by thread; the thread with most first."""
    chosen: NDArray[np.bool_] = np.isin(ranges.name, names_)
    threads = Counter(ranges.thread[chosen].tolist())
    return [_in_order(ranges, chosen & (ranges.thread == thread)) for thread, _ in threads.most_common()]


def _in_order(ranges: Ranges, chosen: NDArray[np.bool_]) -> Ints:
    rows = np.flatnonzero(chosen)
    return rows[np.argsort(ranges.start_ns[rows], kind="stable")]


def _numbered(kind: _Kind, ranges: Ranges, strings: tuple[str, ...]) -> StepRanges:
    """Numbers from the names where they count up, else from 0 on."""
    texts = [_NUMBER.findall(strings[ranges.name[row]]) for row in kind.rows.tolist()]
    if all(texts):
        for place in range(min(map(len, texts))):
            said = [int(numbers[place][:18]) for numbers in texts]
            if all(one < other for one, other in pairwise(said)):
                return StepRanges(kind.rows, np.array(said, np.int64), kind.name)
    return StepRanges(kind.rows, np.arange(len(kind.rows)), kind.name)
