"""Writes the time of every step of a rank while it trains: a few hundred ns a step, flushed once a minute."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.history.blocks import (
    FOLDER,
    LONGEST_US,
    NO_STAGE,
    PHASE_ROW,
    QUANTITIES,
    SAMPLE_ROW,
    SUFFIX,
    file_head,
    phases_block,
    samples_block,
    steps_block,
)

FLUSH_S = 60.0
#: Steps and phases that await a disk that does not answer: more push out the oldest.
_MOST_WAITING = 1 << 20
#: A rank's share of `max_gb` is in so many files at least, of which the oldest is deleted.
_FILES_OF_A_RANK = 8
_log = logging.getLogger(__name__)


class StepRecorder:
    """One rank's step times on their way into a file of its own, which a thread appends to.

    `end` is called once a step by the training. Before each flush `samplers` are called on the thread:
    they return values of quantities by their names. What was flushed survives whatever happens to the process; `close`
    flushes the rest. A disk that fails is said once, and costs the steps that did not fit.
    """

    def __init__(
        self,
        logdir: Path,
        rank: int,
        world_size: int,
        node: str,
        *,
        stage: int | None = None,
        max_bytes: float | None,
        flush_s: float = FLUSH_S,
        samplers: Sequence[Callable[[], Mapping[str, float]]] = (),
    ) -> None:
        self._folder = logdir / FOLDER
        self._who = (rank, world_size, node, NO_STAGE if stage is None else stage)
        self._max_bytes = max_bytes
        self._flush_s = flush_s
        self._samplers = samplers
        self._started_ns = time.time_ns()
        #: Added to the monotonic clock, which no NTP daemon turns back.
        self._to_wall_ns = self._started_ns - time.monotonic_ns()
        #: Number, end, time until waiting and tokens of steps: times in ns of the monotonic clock, 0 for unknown.
        self._ends: deque[tuple[int, int, int, int]] = deque(maxlen=_MOST_WAITING)
        self._phases: deque[tuple[int, int, str]] = deque(maxlen=_MOST_WAITING)
        #: Time on the monotonic clock, ns, name of the quantity, and value.
        self._samples: deque[tuple[int, str, float]] = deque(maxlen=_MOST_WAITING)
        self._waits_ns = self._tokens = 0
        self._last: tuple[int, int] | None = None
        self._file: BinaryIO | None = None
        self._parts = itertools.count()
        self._said = False
        self._turn = threading.Lock()
        self._closed = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="ddp-doctor-history", daemon=True).start()

    def end(self, n: int, is_timed: bool = True) -> None:
        """Step `n` has ended now. One that a profiler slowed down is not timed."""
        now_ns = time.monotonic_ns()
        self._ends.append((n, now_ns if is_timed else -now_ns, self._waits_ns, self._tokens))
        self._waits_ns = self._tokens = 0

    def waits(self) -> None:
        """From now on this step may wait for other ranks; the first call of a step counts."""
        if not self._waits_ns:
            self._waits_ns = time.monotonic_ns()

    def tokens(self, count: int) -> None:
        """So many more tokens are in this step of this rank; what is no number of tokens is left out."""
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            self._tokens += min(max(int(count), 0), LONGEST_US)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What runs within is not part of a step: a checkpoint, an evaluation."""
        begin = time.monotonic_ns()
        try:
            yield
        finally:
            self._phases.append((begin, time.monotonic_ns(), name))

    def sample(self, quantity: str, value: float, at_ns: int | None = None) -> None:
        """Note a value of one of `QUANTITIES`, now or at a time of the monotonic clock."""
        self._samples.append((time.monotonic_ns() if at_ns is None else at_ns, quantity, value))

    def flush(self) -> None:
        """Append what has come since the last flush. Raises OSError."""
        with self._turn:
            blocks = b"".join([*self._step_blocks(), *self._phase_blocks(), *self._sample_blocks()])
            if not blocks:
                return
            file = self._file = self._file or self._next_file()
            file.write(blocks)
            file.flush()
            if self._max_bytes is not None and file.tell() > self._max_bytes / _FILES_OF_A_RANK:
                file.close()
                self._file = None
                self._delete_oldest()

    def close(self) -> None:
        self._closed.set()
        self._try_to_flush()
        with self._turn:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _run(self) -> None:
        while not self._closed.wait(self._flush_s):
            self._look()
            self._try_to_flush()

    def _look(self) -> None:
        """Sample all that was asked for; what cannot be seen is left out."""
        for sampler in self._samplers:
            with contextlib.suppress(Exception):
                for quantity, value in sampler().items():
                    self.sample(quantity, value)

    def _try_to_flush(self) -> None:
        try:
            self.flush()
        except OSError as error:
            if not self._said:
                self._said = True
                _log.warning(
                    "ddp-doctor: the step times of rank %d cannot be written to %s (%s).",
                    self._who[0],
                    self._folder,
                    error.strerror or error,
                )

    def _step_blocks(self) -> Iterator[bytes]:
        """A block for each stretch of steps whose numbers follow one another."""
        rows = [self._ends.popleft() for _ in range(len(self._ends))]
        if self._last is None and rows:
            # When the first step began is not known.
            self._last = (rows[0][0], abs(rows[0][1]))
            rows = rows[1:]
        if not rows or self._last is None:
            return
        numbers, marked_ns, waits_ns, tokens = np.array(rows, dtype=np.int64).T
        ends_ns = np.abs(marked_ns)
        before_ns = np.concatenate(([self._last[1]], ends_ns[:-1]))
        self._last = (int(numbers[-1]), int(ends_ns[-1]))
        edges = [0, *(np.flatnonzero(np.diff(numbers) != 1) + 1).tolist(), len(numbers)]
        for first, last in itertools.pairwise(edges):
            begin_ns = int(before_ns[first])
            # Rounding the ends, not the lengths, adds up to no drift.
            marks_us = (np.concatenate(([begin_ns], ends_ns[first:last])) - begin_ns) // 1000
            steps_us = np.where(marked_ns[first:last] > 0, np.maximum(np.diff(marks_us), 1), 0)
            busy_us = np.maximum(waits_ns[first:last] - before_ns[first:last], 0) // 1000
            begins_ns = before_ns[first:last] + self._to_wall_ns
            yield from _timed_blocks(int(numbers[first]), begins_ns, steps_us, busy_us, tokens[first:last])

    def _phase_blocks(self) -> Iterator[bytes]:
        rows = [self._phases.popleft() for _ in range(len(self._phases))]
        if rows:
            table = np.zeros(len(rows), dtype=PHASE_ROW)
            table["begin_ns"], table["end_ns"] = (
                np.array([row[:2] for row in rows], dtype=np.int64).T + self._to_wall_ns
            )
            table["name"] = [name.encode("utf-8", "replace")[:32] for _, _, name in rows]
            yield phases_block(table)

    def _sample_blocks(self) -> Iterator[bytes]:
        rows = [self._samples.popleft() for _ in range(len(self._samples))]
        if rows:
            table = np.zeros(len(rows), dtype=SAMPLE_ROW)
            table["at_ns"] = np.array([at_ns for at_ns, _, _ in rows]) + self._to_wall_ns
            table["quantity"] = [QUANTITIES.index(name) for _, name, _ in rows]
            table["value"] = [value for *_, value in rows]
            yield samples_block(table)

    def _next_file(self) -> BinaryIO:
        rank, world_size, node, stage = self._who
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"rank{rank:05d}_{self._started_ns:020d}_{next(self._parts):05d}{SUFFIX}"
        file = (self._folder / name).open("xb")
        file.write(file_head(rank, world_size, self._started_ns, node, stage))
        return file

    def _delete_oldest(self) -> None:
        files = sorted(self._folder.glob(f"rank{self._who[0]:05d}_*{SUFFIX}"), key=lambda file: file.name)
        sizes = [file.stat().st_size for file in files]
        while len(files) > 1 and sum(sizes) > (self._max_bytes or 0) * (1 - 1 / _FILES_OF_A_RANK):
            files.pop(0).unlink(missing_ok=True)
            sizes.pop(0)


def _timed_blocks(
    first_step: int, begins_ns: NDArray[Any], steps_us: NDArray[Any], busy_us: NDArray[Any], tokens: NDArray[Any]
) -> Iterator[bytes]:
    """Blocks of the timed steps alone: one that is not timed still takes its time, and a block ends before it."""
    is_timed = np.concatenate(([False], steps_us > 0, [False]))
    edges = np.flatnonzero(np.diff(is_timed))
    for first, last in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        part = slice(first, last)
        busy, counted = (column[part] if column[part].any() else None for column in (busy_us, tokens))
        yield steps_block(first_step + first, int(begins_ns[first]), steps_us[part], busy, counted)
