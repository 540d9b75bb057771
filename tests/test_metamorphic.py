"""Whatever happens to the events of one innocent rank: no rank is accused for it, and no fault becomes healthy.

Each variant removes, doubles or renames some events of one rank of a drawn job, or shifts all of them, or a part of
those of its GPU or of its CPU, drawn from a fixed seed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray
from traces import MS, ranks, read

from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.digest.launches import is_on_device
from tb_ddp_doctor.engine import examine
from tb_ddp_doctor.findings import Diagnosis, Severity
from tb_ddp_doctor.job.build import build
from tb_ddp_doctor.trace.model import CommArgs, Events, RankTrace

USUAL = """
    rank# step |1
          host [a][b][c][d][e][f]
          gpu  [a...][b*4.][c*4.][d*4.][e...][f*4.]
          nccl                                     [ar@2................]
"""
SLOW = """
    rank# step |1
          host [a][b][c][d][e][f]
          gpu  [a...][b*4.][c*4.......][d*4.......][e...][f*4.]
          nccl                                                 [ar@2....]
"""
STRAGGLER = ranks(USUAL, SLOW, USUAL, USUAL, steps=5)
HEALTHY = ranks(*[USUAL.replace("[ar@2................]", "[ar@2....]")] * 4, steps=5)
#: Not the straggler.
INNOCENT = 2
Random = np.random.Generator
Rows = NDArray[np.int64]
Change = Callable[[RankTrace, Rows, Random], RankTrace]


def taken(trace: RankTrace, rows: Rows) -> RankTrace:
    """The trace with these rows of its events, in this order."""
    place = np.full(len(trace.events), -1, np.int64)
    place[rows] = np.arange(len(rows))
    kept = place[trace.comms.event] >= 0
    comms = {name: getattr(trace.comms, name)[kept] for name in CommArgs.__struct_fields__}
    comms["event"] = place[comms["event"]]
    events = Events(*(getattr(trace.events, name)[rows] for name in Events.__struct_fields__))
    return replace(trace, events=events, comms=CommArgs(**comms))


def removed(trace: RankTrace, rows: Rows, _: Random) -> RankTrace:
    return taken(trace, np.setdiff1d(np.arange(len(trace.events)), rows))


def doubled(trace: RankTrace, rows: Rows, _: Random) -> RankTrace:
    return taken(trace, np.concatenate((rows, np.arange(len(trace.events)))))


def shifted(trace: RankTrace, _: Rows, random: Random) -> RankTrace:
    """All of the rank's events, as on a clock of its own."""
    start = trace.events.start_ns + int(random.choice([-1, 1]) * 10 ** random.uniform(0, 4) * MS)
    return replace(trace, events=replace(trace.events, start_ns=start))


def gpu_shifted(trace: RankTrace, _: Rows, random: Random) -> RankTrace:
    """A part of what the GPU does, while its CPU's events stay."""
    return part_shifted(trace, np.flatnonzero(is_on_device(trace.events)), random)


def cpu_shifted(trace: RankTrace, _: Rows, random: Random) -> RankTrace:
    """A part of what the CPU does, while its GPU's events stay."""
    return part_shifted(trace, np.flatnonzero(~is_on_device(trace.events)), random)


def part_shifted(trace: RankTrace, rows: Rows, random: Random) -> RankTrace:
    """A share of these events, or all in a window, shifted by 1 to 300 ms."""
    start = trace.events.start_ns.copy()
    if random.integers(2):
        rows = rows[random.random(len(rows)) < random.random()]
    else:
        at = random.uniform(start.min(), start.max())
        rows = rows[np.abs(start[rows] - at) < random.uniform(1, 60) * MS]
    start[rows] += int(random.choice([-1, 1]) * 10 ** random.uniform(0, 2.5) * MS)
    return replace(trace, events=replace(trace.events, start_ns=start))


def renamed(trace: RankTrace, rows: Rows, _: Random) -> RankTrace:
    name = trace.events.name.copy()
    name[rows] = len(trace.strings)
    return replace(trace, strings=(*trace.strings, "renamed"), events=replace(trace.events, name=name))


def chosen(trace: RankTrace, random: Random) -> Rows:
    """One event, or a share of one category, or all in a window."""
    events = trace.events
    match random.integers(3):
        case 0:
            return random.integers(len(events), size=1)
        case 1:
            rows = np.flatnonzero(events.category == random.choice(np.unique(events.category)))
            return rows[random.random(len(rows)) < random.random()]
        case _:
            at = random.uniform(events.start_ns.min(), events.start_ns.max())
            return np.flatnonzero(np.abs(events.start_ns - at) < random.uniform(1, 60) * MS)


@cache
def whole(text: str) -> dict[int, RankTrace]:
    return read(text)


def examined(text: str, change: Change, seed: int) -> Diagnosis:
    random = np.random.default_rng(seed)
    traces = dict(whole(text))
    traces[INNOCENT] = change(traces[INNOCENT], chosen(traces[INNOCENT], random), random)
    each = {rank: digest(trace) for rank, trace in traces.items()}
    return examine(build("drawn", each, {rank: f"host{rank}" for rank in each}, len(each)))


def accused(diagnosis: Diagnosis) -> set[int]:
    loud = [finding for finding in diagnosis.findings if finding.severity != Severity.INFO.label]
    return {rank for finding in loud if len(finding.ranks) < len(diagnosis.ranks) for rank in finding.ranks}


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize("change", [removed, doubled, shifted, gpu_shifted, cpu_shifted, renamed])
def test_the_straggler_stays_the_only_one_accused(change: Change, seed: int) -> None:
    diagnosis = examined(STRAGGLER, change, seed)
    assert diagnosis.verdict == "straggler"
    assert accused(diagnosis) == {1}


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize("change", [removed, doubled, shifted, gpu_shifted, cpu_shifted, renamed])
def test_nobody_is_accused_in_a_healthy_job(change: Change, seed: int) -> None:
    diagnosis = examined(HEALTHY, change, 100 + seed)
    assert diagnosis.verdict in ("healthy", "unknown")
    assert not accused(diagnosis)
