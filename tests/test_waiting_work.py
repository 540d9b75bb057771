"""A device that idles although work for it is launched."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from traces import MS, ranks, read

from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.digest.launches import is_on_device
from tb_ddp_doctor.trace.model import RankTrace

AHEAD = """
    rank# step |1
          host [a][b][c]
          gpu     [a.....][b.....][c.....]
"""


def later(trace: RankTrace, ms: int, *, with_cpu: bool) -> RankTrace:
    """The last kernel, and all that the CPU does from its launch on, so much later."""
    events = trace.events
    last = int(np.flatnonzero(is_on_device(events))[events.start_ns[is_on_device(events)].argmax()])
    launch = events.start_ns[(events.correlation == events.correlation[last]) & ~is_on_device(events)].min()
    moved = (events.start_ns >= launch) & ~is_on_device(events) if with_cpu else np.zeros(len(events), np.bool_)
    moved[last] = True
    return replace(trace, events=replace(events, start_ns=events.start_ns + moved * ms * MS))


@pytest.mark.parametrize(("ms", "with_cpu", "is_said"), [(300, False, True), (300, True, False), (60, False, False)])
def test_idle_time_before_launched_work_is_said(ms: int, with_cpu: bool, is_said: bool) -> None:
    found = digest(later(read(ranks(AHEAD))[0], ms, with_cpu=with_cpu))
    said = [one.message for one in found.warnings if "although work for it is launched" in one.message]
    assert bool(said) == is_said
    assert all(one.startswith(f"The GPU idles for {ms}.0 ms") for one in said)
