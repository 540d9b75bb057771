"""Gradients that are reduced more than once before they are used."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.model import Collectives, RankDigest
from tb_ddp_doctor.facts.transfers import exposed_alone, of_gradients
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.trace.model import Ints


@dataclass(frozen=True, slots=True, eq=False)
class Repeats:
    """AllReduces of backward passes whose gradients a later pass reduces again, of R ranks in S steps."""

    #: AllReduces that are repeated, and backward passes that have some, shape (R, S).
    calls: Ints
    passes: Ints
    #: Transfer of them with nothing beside it, shape (R, S), ns.
    exposed_ns: Ints
    #: Longest exposed one: index of its rank, and ns on that rank's own clock; None if none is exposed.
    longest: tuple[int, int, int] | None
    #: What the traces would need for repeats to be seen, a sentence; "" where they have it.
    lack: str = ""


def repeats(job: Job) -> Repeats:
    """Find and measure the repeated AllReduces of every rank and step."""
    calls, passes, exposed = (np.zeros(job.step_index.shape, np.int64) for _ in range(3))
    if lack := _lack(job):
        return Repeats(calls, passes, exposed, None, lack)
    longest: tuple[int, int, int] | None = None
    for rank, (digest, index) in enumerate(zip(job.digests, job.step_index, strict=True)):
        table = digest.collectives
        repeated = _repeated(digest)
        if not repeated.any():
            continue
        size = len(digest.steps)
        calls[rank] = np.bincount(table.step[repeated], minlength=size)[index]
        of_pass = np.unique(np.stack([table.step[repeated], table.backward[repeated]]), axis=1)
        passes[rank] = np.bincount(of_pass[0], minlength=size)[index]
        alone = exposed_alone(job, rank, repeated)
        exposed[rank] = alone.measure(digest.steps.start_ns[index], digest.steps.end_ns[index])
        if len(alone):
            at = int((alone.end - alone.start).argmax())
            if longest is None or alone.end[at] - alone.start[at] > longest[2] - longest[1]:
                longest = (rank, int(alone.start[at]), int(alone.end[at]))
    return Repeats(calls, passes, exposed, longest)


def _lack(job: Job) -> str:
    tables = [digest.collectives for digest in job.digests]
    if not job.has_device:
        return "It is about the device, and these traces hold none (CPU only)."
    if not any((table.backward >= 0).any() for table in tables):
        return "No communication is launched by a backward pass."
    if not any((table.update >= 0).any() for table in tables):
        return "No step of an optimizer is annotated, so what belongs to one update is not known."
    if not any((table.elements > 0).any() for table in tables):
        return "The traces do not tell the sizes of collectives (torch does since 2.2)."
    return ""


def _repeated(digest: RankDigest) -> NDArray[np.bool_]:
    """Which AllReduces a later backward pass repeats, size by size, before the optimizer's next step."""
    table = digest.collectives
    reduces = of_gradients(digest) & (table.step >= 0)
    repeated = np.zeros(len(table), np.bool_)
    for group in np.unique(table.group[reduces]):
        mine = reduces & (table.group == group)
        inside = mine & (table.backward >= 0) & (table.update >= 0) & (table.elements > 0)
        if not inside.any():
            continue
        for rows in _by_update(table, np.flatnonzero(inside)):
            *earlier, last = _by_pass(table, rows)
            sizes = Counter(table.elements[last].tolist())
            for one in earlier:
                repeated[one] = Counter(table.elements[one].tolist()) == sizes
    return repeated


def _by_update(table: Collectives, rows: Ints) -> list[Ints]:
    """Rows with one step of the job and one of the optimizer, of those that several backward passes share."""
    width = int(table.update[rows].max()) + 1
    updates, which = np.unique(table.step[rows].astype(np.int64) * width + table.update[rows], return_inverse=True)
    first = np.full(len(updates), np.iinfo(np.int32).max, np.int64)
    last = np.full(len(updates), -1, np.int64)
    np.minimum.at(first, which, table.backward[rows])
    np.maximum.at(last, which, table.backward[rows])
    return [rows[which == update] for update in np.flatnonzero(last > first)]


def _by_pass(table: Collectives, rows: Ints) -> list[Ints]:
    """Rows of each backward pass, in order."""
    passes = table.backward[rows]
    return [rows[passes == one] for one in np.unique(passes)]
