"""What calls read that a call before them wrote, where one kernel could do both: the traffic that fusion avoids.

Loops over elements run on a stream between calls that nothing is fused with: GEMMs, convolutions, attention, kernels
that are not modelled. One of them is taken to read what the last one before it wrote that has as many elements and
bytes, whatever runs between the two:

    stream  [GEMM][layer_norm][cast of a weight][cast][GEMM]
                       |____________________________|         the last cast reads what layer_norm wrote

A fused kernel keeps that on the chip. Whether it has to be written as well depends on who else reads it, which no trace
tells. What backward or the optimizer writes for the next kernel, and what is cast at once, is hardly ever read again;
what forward writes, backward may need.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from tb_ddp_doctor.digest.columns import distinct
from tb_ddp_doctor.digest.least_work import Work
from tb_ddp_doctor.digest.model import Avoidable, GpuTime
from tb_ddp_doctor.digest.sums import summed
from tb_ddp_doctor.digest.vocabulary import Mask
from tb_ddp_doctor.storage.column_table import empty
from tb_ddp_doctor.trace.model import Ints

#: Fewer elements than this take no longer than a launch, whatever they are fused with.
_FEWEST = 1 << 14
#: What one kernel may take over from another: loops over elements, with a reduction, a cast or an index at an end. Of
#: the optimizer only its passes over lists of tensors have `reads`.
FUSED = (GpuTime.ELEMENTWISE, GpuTime.NORM, GpuTime.COPY, GpuTime.EMBEDDING)


class Loop(msgspec.Struct, frozen=True):
    """What calls with the same operator and inputs read and write, as far as another kernel may do it for them."""

    work: Work | None
    #: Elements and bytes of the tensors that it reads.
    reads: tuple[tuple[int, int], ...]
    #: Whether its own backward needs what it wrote.
    is_saved: bool

    @property
    def is_fused(self) -> bool:
        """Whether another kernel may do it as well."""
        return self.work is not None and (bool(self.reads) or (self.work.kind in FUSED and self.work.elements > 0))


class LoopCalls(msgspec.Struct, frozen=True, eq=False):
    """Calls in any order; shape (C,)."""

    #: Which loop each is, an index.
    loop: Ints
    stream: Ints
    step: Ints
    start_ns: Ints
    total_ns: Ints
    #: The row of `Track` that launched it; -1 for none.
    row: Ints
    #: Whether backward or the optimizer launched it.
    is_late: Mask
    #: Whether it computes, as copies from or to the host do not.
    computes: Mask


def avoidable(calls: LoopCalls, loops: Sequence[Loop]) -> Avoidable:
    """What each row of the track would not read and write if its kernels were fused with those before."""
    reader, writer = _handed_over(calls, loops)
    if not len(reader):
        return empty(Avoidable)
    works = [loop.work or Work(GpuTime.NOT_MODELLED, 0, 0, 0) for loop in loops]
    read, written = (np.array([getattr(work, name) for work in works], np.int64) for name in ("read", "written"))
    is_cast = np.array([work.kind == GpuTime.COPY for work in works], np.bool_)
    is_saved = np.array([loop.is_saved for loop in loops], np.bool_)
    of_reader, of_writer = calls.loop[reader], calls.loop[writer]
    per_byte = calls.total_ns / np.maximum(read + written, 1)[calls.loop]
    # An index reads a few of the elements: less than it is handed.
    taken = np.minimum(written[of_writer], read[of_reader])
    temporary = calls.is_late[writer] | (~is_saved[of_writer] & (is_cast[of_writer] | is_cast[of_reader]))
    once = np.unique(writer)
    gone = np.isin(once, writer[temporary])
    rows, which = distinct(np.concatenate((calls.row[reader], calls.row[once])), int(calls.row.max()) + 1)
    readers, writers = which[: len(reader)], which[len(reader) :]
    wrote, wrote_ns = written[calls.loop[once]], (per_byte[once] * written[calls.loop[once]]).astype(np.int64)
    return Avoidable(
        row=rows.astype(np.int32),
        read_bytes=summed(readers, taken, len(rows)),
        written_bytes=summed(writers, wrote, len(rows)),
        calls=np.bincount(readers, minlength=len(rows)).astype(np.int64),
        read_ns=summed(readers, (per_byte[reader] * taken).astype(np.int64), len(rows)),
        temporary_ns=summed(writers, wrote_ns * gone, len(rows)),
        written_ns=summed(writers, wrote_ns, len(rows)),
    )


def _handed_over(calls: LoopCalls, loops: Sequence[Loop]) -> tuple[Ints, Ints]:
    """Pairs of calls of which the first one reads what the other one wrote, as indices of `calls`."""
    order = np.lexsort((calls.start_ns, calls.stream))
    loop = calls.loop[order]
    sizes: dict[tuple[int, int], int] = {}
    written = np.array([_written(one, sizes) for one in loops], np.int64)
    known = calls.row[order] >= 0
    at, asked = _asked(loop, known, loops, sizes)
    wrote = np.flatnonzero((written[loop] >= 0) & known)
    if not len(at) or not len(wrote):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    # A call reads before it writes.
    place = np.concatenate((2 * at, 2 * wrote + 1))
    key = _stretches(calls, order, loops)[place >> 1] * len(sizes) + np.concatenate((asked, written[loop[wrote]]))
    by_key = np.argsort(key * (2 * len(loop)) + place, kind="stable")
    place, key = place[by_key], key[by_key]
    last = np.maximum.accumulate(np.where(place & 1, np.arange(len(place)), -1))
    reads = np.flatnonzero((place & 1 == 0) & (last >= 0))
    reads = reads[key[last[reads]] == key[reads]]
    reader, writer = place[reads] >> 1, place[last[reads]] >> 1
    # One reduction does not follow another within a kernel.
    reduces = np.array([one.work is not None and one.work.kind == GpuTime.NORM for one in loops], np.bool_)
    kept = ~(reduces[loop[reader]] & reduces[loop[writer]])
    return order[reader[kept]], order[writer[kept]]


def _stretches(calls: LoopCalls, order: Ints, loops: Sequence[Loop]) -> Ints:
    """The number of the stretch between two calls that nothing is fused with, of each call in this order."""
    fused = np.array([one.is_fused for one in loops], np.bool_)
    stream, step = calls.stream[order], calls.step[order]
    ends = ~fused[calls.loop[order]] & calls.computes[order]
    ends[1:] |= (stream[1:] != stream[:-1]) | (step[1:] != step[:-1])
    return np.cumsum(ends)


def _asked(loop: Ints, known: Mask, loops: Sequence[Loop], sizes: dict[tuple[int, int], int]) -> tuple[Ints, Ints]:
    """The sizes that known calls read which some call writes: places in `loop`, and the number of each size."""
    read = [sorted({sizes[size] for size in one.reads if size in sizes}) if one.is_fused else [] for one in loops]
    counts = np.where(known, np.array([*map(len, read)], np.int64)[loop], 0)
    at = np.repeat(np.arange(len(loop)), counts)
    within = np.arange(len(at)) - np.repeat(np.cumsum(counts) - counts, counts)
    flat = np.array([size for some in read for size in some] or [0], np.int64)
    first = np.cumsum([0, *map(len, read)])
    return at, flat[first[loop[at]] + within]


def _written(loop: Loop, sizes: dict[tuple[int, int], int]) -> int:
    """The number of the size of what a loop writes; -1 of what is too small, or no loop."""
    if not loop.is_fused or loop.work is None or loop.work.elements < _FEWEST or not loop.work.written:
        return -1
    return sizes.setdefault((loop.work.elements, loop.work.written), len(sizes))
