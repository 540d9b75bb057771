"""One RankTrace to one RankDigest."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.device_clock import corrected
from tb_ddp_doctor.digest.device_rank import digest_device
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.host_rank import digest_host
from tb_ddp_doctor.digest.launches import DeviceRows
from tb_ddp_doctor.digest.lost_collectives import with_lost_collectives
from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.digest.order import before_launch, broken_order, overlong
from tb_ddp_doctor.digest.plausible import plausible, without_copies
from tb_ddp_doctor.digest.rounds import RoundEnds
from tb_ddp_doctor.digest.set_back import one_side
from tb_ddp_doctor.findings import FileWarning
from tb_ddp_doctor.trace.losses import Loss, Losses
from tb_ddp_doctor.trace.model import RankTrace, TraceError
from tb_ddp_doctor.trace.names import OWN

#: Overruns are said from this share of the device's time on: kernels launched programmatically overlap by design.
_SAID_OVERRUN = 0.01
#: What says what a name means stands in its first letters, even of C++ templates; all names are searched many times.
_MOST_LETTERS = 1 << 14
#: Operators too long to be true that are left out; beyond that the record is damaged as a whole.
_MOST_OVERLONG = 3
_OWN_SLICE = (
    "it is a slice that ddp-doctor wrote for viewers, without process groups and devices: diagnose the traces that it "
    "was cut from."
)


def digest(trace: RankTrace, ends: RoundEnds | None = None) -> RankDigest:
    """Reduce a trace to what the job needs of it. A trace without events gives a digest without steps.

    Its steps are what it marks, or rounds that end at `ends` where the job tells these.

    Raises TraceError for what `ddp-doctor slice` and `merge` write: their ranks are processes of one file, and their
    events lack process groups and devices.
    """
    if trace.dropped.get(OWN):
        raise TraceError(_OWN_SLICE)
    read = without_copies(replace(trace, strings=tuple(text[:_MOST_LETTERS] for text in trace.strings)))
    rows = DeviceRows.of(read.events)
    side = one_side(read, rows)
    if side is not read:
        of_side = _digest(side, DeviceRows.of(side.events), ends)
        return replace(of_side, contents=replace(of_side.contents, clock_set_back=True))
    return _digest(read, rows, ends)


def _digest(read: RankTrace, rows: DeviceRows, ends: RoundEnds | None) -> RankDigest:
    trace = plausible(read, rows)
    if trace is not read:
        rows = DeviceRows.of(trace.events)
    if not len(rows.kernels):
        return digest_host(_calls(trace), is_one_step=ends is not None)
    odd = broken_order(rows)
    right = trace if odd.any() else corrected(trace, rows)
    if right is not trace:
        rows = DeviceRows.of(right.events)
    clipped = _clip_overruns(right, rows)
    host = _calls(clipped)
    grown = with_lost_collectives(clipped, host, rows)
    if grown is not clipped:
        rows, host = DeviceRows.of(grown.events), _calls(grown)
        odd = np.append(odd, np.zeros(len(grown.events) - len(odd), np.bool_))
    return digest_device(host, rows, odd | before_launch(rows), ends)


def _calls(trace: RankTrace) -> HostCalls:
    """The calls of a trace but for single operators that last too long to be true."""
    host = HostCalls.of(trace)
    for _ in range(_MOST_OVERLONG):
        if (call := overlong(host)) < 0:
            break
        losses = Losses()
        losses.add(Loss.IMPOSSIBLE, 0, f"{host.texts(np.array([call]))[0]} ends behind what it begins within", 1)
        (warning,) = losses.warnings(trace.file)
        host = host.without(call, warning)
    return host


def _clip_overruns(trace: RankTrace, rows: DeviceRows) -> RankTrace:
    """End a kernel where the next one of its stream starts: ROCm's durations can overrun it."""
    events, (this, following) = trace.events, rows.neighbours
    gap, length = events.start_ns[following] - events.start_ns[this], events.duration_ns[this]
    over = (gap > 0) & (length > gap)
    if not over.any():
        return trace
    duration = events.duration_ns.copy()
    duration[this[over]] = gap[over]
    excess = int((length - gap)[over].sum())
    warnings = trace.warnings
    if excess > _SAID_OVERRUN * int(duration[rows.row[events.stream[rows.row] >= 0]].sum()):
        message = (
            f"{int(over.sum())} device events overran the next one of their stream, by "
            f"{wording.decimals(excess / 1e6, 1)} ms in all; they were cut there."
        )
        warnings = (*warnings, FileWarning(trace.file, message))
    return replace(trace, events=replace(events, duration_ns=duration), warnings=warnings)
