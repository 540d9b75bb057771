"""What the host of a rank does, joined once: its operators, annotations and runtime calls as a call tree.

A call's parent is the latest-starting call of its thread that still runs when it starts. Where calls are nested, as
they are but for roundings, the parent holds all of it, and the calls around an instant are a chain of parents.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import msgspec
import numpy as np
from msgspec.structs import replace

from tb_ddp_doctor.digest.columns import searchsorted
from tb_ddp_doctor.digest.intervals import Intervals
from tb_ddp_doctor.digest.nesting import around, first_chosen, outermost
from tb_ddp_doctor.digest.vocabulary import Mask, Names
from tb_ddp_doctor.findings import FileWarning
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Bytes8, Category, Indices, Ints, RankTrace

_CATEGORIES = (Category.OP, Category.ANNOTATION, Category.RUNTIME)
#: Columns of calls that do not depend on other calls.
_COLUMNS = ("row", "thread", "start_ns", "end_ns", "category", "name", "trains")
#: Bits of a sortable key for the time since the first event: three days; the others are for the thread.
_TIME_BITS = 48
#: Kernels that are launched programmatically overlap by microseconds, and clocks are aligned as well, ns.
OVERLAP_NS = 100_000
#: Times of old traces are whole microseconds: which of two calls in one came first is not told, ns.
ROUNDED_NS = 2_000


class HostCalls(msgspec.Struct, frozen=True, eq=False, dict=True):
    """Operators, annotations and runtime calls, by thread, start, and length, the longest first; shape (calls,)."""

    trace: RankTrace
    names: Names
    #: Row in `trace.events`.
    row: Ints
    thread: Indices
    start_ns: Ints
    end_ns: Ints
    #: A `Category`.
    category: Bytes8
    #: Index into `trace.strings`; searched for often, and so an int64, as numpy takes by.
    name: Ints
    #: Index of the call around it; -1 for none.
    parent: Ints
    #: Whether it lies on a thread that trains, which is one with operators or steps, or, where there are no operators,
    #: one that launches: NCCL's watchdog polls events and pin-memory threads allocate, whatever the training does.
    trains: Mask

    @classmethod
    def of(cls, trace: RankTrace) -> HostCalls:
        """The calls of a trace."""
        events = trace.events
        rows = np.flatnonzero(one_of(events.category, _CATEGORIES))
        rows = rows[_order(events.thread[rows], events.start_ns[rows], events.duration_ns[rows])]
        thread, start = events.thread[rows], events.start_ns[rows]
        category, name = events.category[rows], events.name[rows].astype(np.int64)
        end = start + events.duration_ns[rows]
        known = Names(trace.strings, name)
        notes = np.flatnonzero(category == Category.ANNOTATION)
        training = np.zeros(len(trace.threads), np.bool_)
        begins = _begins(thread)
        if len(rows):
            training[thread[begins]] = np.logical_or.reduceat(category == Category.OP, begins)
        has_operators = training.any()
        training[thread[notes[known.among(name[notes], names.is_step)]]] = True
        if not has_operators:
            calls = np.flatnonzero(category == Category.RUNTIME)
            training[thread[calls[known.among(name[calls], names.launches_work)]]] = True
        return cls(trace, known, rows, thread, start, end, category, name, around(start, end, thread), training[thread])

    def training_process(self) -> str:
        """The process whose threads train; "" where none is known to."""
        training = self.trains.argmax() if self.trains.any() else -1
        return self.trace.threads[self.thread[training]][0] if training >= 0 else ""

    def without(self, call: int, warning: FileWarning) -> HostCalls:
        """The same but for one call, whose children have its parent, with a warning that says so."""
        columns = {column: np.delete(getattr(self, column), call) for column in _COLUMNS}
        trace = replace(self.trace, warnings=(*self.trace.warnings, warning))
        parent = around(columns["start_ns"], columns["end_ns"], columns["thread"])
        return HostCalls(trace=trace, names=Names(trace.strings, columns["name"]), parent=parent, **columns)

    def __len__(self) -> int:
        return len(self.row)

    @cached_property
    def length_ns(self) -> Ints:
        """How long each takes."""
        return self.end_ns - self.start_ns

    @cached_property
    def is_operator(self) -> Mask:
        """Which are operators."""
        return one_of(self.category, (Category.OP,))

    @cached_property
    def is_annotation(self) -> Mask:
        """Which are annotations."""
        return one_of(self.category, (Category.ANNOTATION,))

    @cached_property
    def is_runtime(self) -> Mask:
        """Which are calls of the runtime or driver."""
        return one_of(self.category, (Category.RUNTIME,))

    @cached_property
    def shape(self) -> Indices:
        """Index into `trace.strings` of what operators are given; -1 where that is not told."""
        return self.trace.events.shape[self.row]

    @cached_property
    def kernel_file(self) -> Indices:
        """Index into `trace.strings` of the kernel of torch.compile's that operators launch, with its file; else -1."""
        return np.where(self.is_operator, self.trace.events.occupancy[self.row], -1)

    @cached_property
    def crossing(self) -> Ints:
        """The operators and annotations that end behind the one within which they begin, by their indices."""
        # The runtime's calls are timed by another clock than the host's other events. Dynamo leaves the annotations of
        # its phases when it leaves the phase, wherever it entered them.
        timed = self.trains & ~self.is_runtime & ~(self.is_annotation & self.named(names.is_phase_of_compiling))
        inside = np.flatnonzero(timed & (self.parent >= 0) & ~self.is_nested)
        parent = self.parent[inside]
        crosses = timed[parent] & (self.end_ns[inside] - self.end_ns[parent] > OVERLAP_NS)
        crosses &= self.end_ns[parent] - self.start_ns[inside] > ROUNDED_NS
        return inside[crosses]

    @cached_property
    def recorded_ns(self) -> Ints:
        """Starts of all calls of the training threads, ascending."""
        return np.sort(self.start_ns[self.trains], kind="stable")

    @cached_property
    def training_thread(self) -> int:
        """The thread that marks the steps; -1 if none does."""
        marks = np.flatnonzero(self.is_annotation)
        marks = marks[self.names.among(self.name[marks], names.is_step)]
        return int(self.thread[marks[self.row[marks].argmin()]]) if len(marks) else -1

    @cached_property
    def threads(self) -> list[int]:
        """The threads with calls."""
        return [int(thread) for thread in self.thread[_begins(self.thread)]]

    @cached_property
    def is_nested(self) -> Mask:
        """Which have a parent that holds all of them."""
        return (self.parent >= 0) & (self.end_ns <= self.end_ns.take(self.parent))

    @cached_property
    def index(self) -> Ints:
        """The call of each row of `trace.events`; -1 for what is no call."""
        index = np.full(len(self.trace.events), -1, np.int64)
        index[self.row] = np.arange(len(self.row))
        return index

    def named(self, test: Callable[[str], int]) -> Mask:
        """Which have a name that passes, or is of a kind that is not 0."""
        is_named = self._named.get(test)
        if is_named is None:
            is_named = self._named[test] = self.names.among(self.name, test)
        return is_named

    @cached_property
    def _named(self) -> dict[Callable[[str], int], Mask]:
        return {}

    def texts(self, calls: Ints) -> list[str]:
        """Names of some calls, "" for -1."""
        return [self.trace.strings[self.name[call]] if call >= 0 else "" for call in calls.tolist()]

    def around(self, calls: Ints, chosen: Mask) -> Ints:
        """The innermost of the chosen calls around each of some calls, itself not; -1 for none."""
        return self._chosen(self.parent[calls], self.start_ns[calls], chosen)

    def innermost(self, instant: Ints, thread: int, chosen: Mask) -> Ints:
        """The innermost of the chosen calls of a thread at each instant; -1 for none."""
        first, last = np.searchsorted(self.thread, np.array((thread, thread + 1), self.thread.dtype))
        at = first - 1 + searchsorted(self.start_ns[first:last], instant, side="right")
        return self._chosen(np.where(at >= first, at, -1), instant, chosen)

    def _chosen(self, at: Ints, instant: Ints, chosen: Mask) -> Ints:
        """From some calls outwards, the first that is chosen and runs at an instant."""
        return first_chosen(at, instant, self.parent, self.end_ns, chosen)

    def over(self, chosen: Mask) -> Intervals:
        """The time that the chosen calls cover."""
        calls = self.outermost(chosen)
        return Intervals.union(self.start_ns[calls], self.end_ns[calls])

    def outermost(self, chosen: Mask) -> Ints:
        """The chosen calls but for those that a chosen parent holds; they cover the same time."""
        return outermost(self.end_ns, self.parent, chosen)


def one_of(category: Bytes8, wanted: tuple[Category, ...]) -> Mask:
    """Which categories are among some: `np.isin` takes ten times as long."""
    is_chosen = np.zeros(len(category), np.bool_)
    for kind in wanted:
        is_chosen |= category == int(kind)  # of an enumeration's own type numpy makes an int64, and of the column too
    return is_chosen


def _begins(thread: Indices) -> Ints:
    """Where the calls of each thread begin."""
    others = np.ones(len(thread), np.bool_)
    others[1:] = thread[1:] != thread[:-1]
    return np.flatnonzero(others)


def _order(thread: Indices, start_ns: Ints, length_ns: Ints) -> Ints:
    """The order by thread, start, and length, the longest first: as `np.lexsort`, for times that are nearly sorted."""
    if not len(start_ns):
        return np.empty(0, np.int64)
    first = int(start_ns.min())
    if (int(start_ns.max()) - first) >> _TIME_BITS or int(thread.max()) >> (62 - _TIME_BITS):
        return np.lexsort((-length_ns, start_ns, thread))
    key = (thread.astype(np.int64) << _TIME_BITS) | (start_ns - first)
    order = np.argsort(key, kind="stable")
    ascending = key[order]
    same = ascending[1:] == ascending[:-1]
    tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
    rows = order[tied]
    order[tied] = rows[np.lexsort((-length_ns[rows], key[rows]))]
    return order
