"""Sets a device's clock right beside its host's.

Kineto converts the device's times to the host's clock, and is at times off by milliseconds: then idle time of the
device is charged to what the host does at another time. Two things cannot be, and tell by how much the device is

- early: work that starts before its launch. A synchronisation of the device that blocked ends when the work does, so
  the time from the work's end to the synchronisation's tells more exactly how early it is;
- late: work that ends after a synchronisation of the device that began behind its launch. Memory that is given back
  synchronises too, if that call blocks.

Host and device agree to microseconds where they agree.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.columns import searchsorted
from tb_ddp_doctor.digest.host_calls import one_of
from tb_ddp_doctor.digest.launches import DeviceRows
from tb_ddp_doctor.digest.vocabulary import Mask, Names
from tb_ddp_doctor.findings import FileWarning
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Category, Ints, RankTrace

#: From so much on, ns; and seen of as many events, since one event may be damaged alone.
_OFF_NS = 1_000_000
_SEEN = 3
#: A synchronisation that lasts so long, ns, awaits work; others return within microseconds.
_BLOCKS_NS = 200_000
#: From a launch to its start on an idle device at the least, ns: 4 to 9 µs in jobs of ours, most 5 or 6. Where the
#: least comes near this, the device was idle, and this tells the clock more exactly than how soon the host wakes up.
_LAUNCH_NS = 5_000
_NEAR_NS = 100_000


def corrected(trace: RankTrace, rows: DeviceRows) -> RankTrace:
    """The trace with its device's events moved, and a note, if their clock is off beside the host's."""
    late_ns = _late_ns(trace, rows)
    if not late_ns:
        return trace
    start = trace.events.start_ns.copy()
    start[rows.row] -= late_ns
    how = "late" if late_ns > 0 else "early"
    message = (
        f"The GPU's clock is {wording.decimals(abs(late_ns) / 1e6, 1)} ms {how} beside the CPU's: its events "
        "are moved by that."
    )
    return replace(
        trace,
        events=replace(trace.events, start_ns=start),
        warnings=(*trace.warnings, FileWarning(trace.file, message)),
    )


def _late_ns(trace: RankTrace, rows: DeviceRows) -> int:
    """By how much the device's clock is late; negative if it is early, 0 if nothing shows that it is either."""
    events, joined = trace.events, rows.launch >= 0
    row, launch = rows.row[joined], rows.launch[joined]
    if len(row) < _SEEN or len(rows.busy_ns) > 1:
        return 0
    launched, start = events.start_ns[launch], events.start_ns[row]
    ahead = start - launched
    after, lasts = _after_synchronisation(trace, launched, start + events.duration_ns[row])
    if _often(ahead < -_OFF_NS):
        early = -int(ahead.min())
        # One that began when the work was done did not wait for it, whatever kept it.
        awaited = -after[(lasts >= _BLOCKS_NS) & (after + lasts + early > 0)]
        late = -max(early, int(awaited.min()) if len(awaited) else 0)
    elif _often(after > _OFF_NS):
        late = int(after.max())
    else:
        return 0
    least = int(ahead.min()) - late
    return late + least - _LAUNCH_NS if least < _NEAR_NS else late


def _often(seen: Mask) -> bool:
    """Whether as many events show something as are enough."""
    return int(np.count_nonzero(seen)) >= _SEEN


def _after_synchronisation(trace: RankTrace, launched_ns: Ints, end_ns: Ints) -> tuple[Ints, Ints]:
    """How long after the next synchronisation of the device each event ends, and how long that lasts, ns.

    Of the events that were launched before one began.
    """
    events = trace.events
    calls = np.flatnonzero(one_of(events.category, (Category.RUNTIME,)))
    called = events.name[calls]
    of = Names(trace.strings, called)
    frees = of.among(called, names.frees_memory) & (events.duration_ns[calls] >= _BLOCKS_NS)
    calls = calls[of.among(called, names.awaits_device) | frees]
    calls = calls[np.argsort(events.start_ns[calls], kind="stable")]
    begin, length = events.start_ns[calls], events.duration_ns[calls]
    following = searchsorted(begin, launched_ns)
    known = following < len(calls)
    call = following[known]
    return end_ns[known] - begin[call] - length[call], length[call]
