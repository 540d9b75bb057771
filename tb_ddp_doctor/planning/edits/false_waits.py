"""Removes waits that a record only seems to show: a kernel of a backward pass that starts as an AllReduce ends.

DDP awaits the AllReduces of gradients at the end of the pass. A kernel within the pass that begins just as one ends
does so by chance, and with other transfers it would not. The device's idle time before it stays, as work of its row.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from tb_ddp_doctor.planning.edits.other_buckets import SentPasses
from tb_ddp_doctor.planning.edits.recorded_rows import RecordedRows


def without_false_waits(tracks: RecordedRows, sent: SentPasses) -> RecordedRows:
    """The tracks, in which no row awaits an AllReduce of gradients before its pass has launched the last one."""
    table, nothing = tracks.table, len(tracks.part_table.rank) - 1
    launched = np.full(nothing + 1, -1)
    launching = np.flatnonzero(table.launches >= 0)
    launched[table.launches[launching]] = launching
    until = np.full(nothing + 1, -1)
    until[sent.parts] = launched[sent.parts].max(axis=1)[:, None]
    early = np.flatnonzero(np.arange(len(table.rank)) <= until[table.awaits])
    begins = np.where(
        np.diff(table.rank, prepend=-1) != 0,
        tracks.frame.device_start_ns[table.rank],
        np.append(0, tracks.done_ns[:-1]),
    )
    awaited = tracks.end_ns[table.awaits[early]] + table.delay_ns[early]
    device, awaits, delay = table.device_ns.copy(), table.awaits.copy(), table.delay_ns.copy()
    device[early] += np.maximum(awaited - begins[early], 0)
    awaits[early], delay[early] = nothing, 0
    return replace(tracks, table=replace(table, device_ns=device, awaits=awaits, delay_ns=delay))
