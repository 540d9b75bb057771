"""Whatever happens to the events of one innocent rank: no rank is accused for it, and no fault becomes healthy.

Each variant removes, doubles or renames some events of one rank of a drawn job, or shifts all of them, or a part of
those of its GPU or of its CPU, drawn from a fixed seed. Jobs are of four shapes (`job_shapes`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from job_shapes import RANKS, SHAPES, SLOW_RANK, drawn
from msgspec.structs import replace
from numpy.typing import NDArray
from traces import MS, read

from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.digest.launches import is_on_device
from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.engine import examine
from tb_ddp_doctor.findings import Diagnosis, Severity
from tb_ddp_doctor.job.build import build
from tb_ddp_doctor.trace.model import CommArgs, Events, RankTrace

#: By how much each rank's clock is ahead, so that no two files have the same times.
CLOCK_MS = {1: 0.371, 2: 2.113, 3: -0.702}
INNOCENT = [rank for rank in range(RANKS) if rank != SLOW_RANK]
#: Without all of its ranks' traces, a job in stages has waits that nobody can explain; and it has a bubble.
NO_FAULT = {"staged": ("healthy", "unknown", "unexplained", "pipeline-bubble")}
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


CHANGES = (removed, doubled, shifted, gpu_shifted, cpu_shifted, renamed)


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
def whole(shape: str, has_straggler: bool) -> dict[int, tuple[RankTrace, RankDigest]]:
    traces = read(drawn(SHAPES[shape], has_straggler=has_straggler), clock_ms=CLOCK_MS)
    return {rank: (trace, digest(trace)) for rank, trace in traces.items()}


def examined(shape: str, has_straggler: bool, change: Change, rank: int, seed: int) -> Diagnosis:
    """The diagnosis of a job in which events of this rank changed."""
    random = np.random.default_rng(seed)
    each = {rank: made for rank, (_, made) in whole(shape, has_straggler).items()}
    trace, _ = whole(shape, has_straggler)[rank]
    each[rank] = digest(change(trace, chosen(trace, random), random))
    return examine(build("drawn", each, {rank: f"host{rank}" for rank in each}, len(each)))


def accused(diagnosis: Diagnosis) -> set[int]:
    """The ranks that findings above info name; a stage of a pipeline is not a rank."""
    loud = [finding for finding in diagnosis.findings if finding.severity != Severity.INFO.label]
    of_ranks = [finding for finding in loud if finding.rule != "pipeline-bubble"]
    return {rank for finding in of_ranks if len(finding.ranks) < len(diagnosis.ranks) for rank in finding.ranks}


@pytest.mark.parametrize("shape", SHAPES)
def test_whole_jobs_are_as_they_were_drawn(shape: str) -> None:
    for has_straggler in (True, False):
        each = {rank: made for rank, (_, made) in whole(shape, has_straggler).items()}
        diagnosis = examine(build("drawn", each, {rank: f"host{rank}" for rank in each}, len(each)))
        assert diagnosis.ranks == tuple(range(RANKS)) and not diagnosis.incomplete
        assert accused(diagnosis) == ({SLOW_RANK} if has_straggler else set())
        assert diagnosis.verdict == ("straggler" if has_straggler else NO_FAULT.get(shape, ("healthy",))[-1])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_straggler_stays_the_only_one_accused(shape: str, change: Change, seed: int) -> None:
    rank = INNOCENT[seed % len(INNOCENT)]
    diagnosis = examined(shape, True, change, rank, seed)
    assert diagnosis.verdict not in ("healthy", "unknown")
    assert accused(diagnosis) <= {SLOW_RANK}
    # Of the two ranks of a stage, none is known to be the slow one without the other.
    if shape != "staged" or rank in diagnosis.ranks:
        assert accused(diagnosis) == {SLOW_RANK}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("shape", SHAPES)
def test_nobody_is_accused_in_a_healthy_job(shape: str, change: Change, seed: int) -> None:
    diagnosis = examined(shape, False, change, seed % RANKS, 100 + seed)
    assert diagnosis.verdict in NO_FAULT.get(shape, ("healthy", "unknown"))
    assert not accused(diagnosis)


def test_one_step_of_a_damaged_rank_accuses_nobody() -> None:
    """What is left of its record, out of order in other steps, is slow once."""
    diagnosis = examined("on_many_streams", True, gpu_shifted, 0, 48)
    assert any("is damaged, and is used for steps" in warning.message for warning in diagnosis.warnings)
    assert ("load-imbalance", "info") in {(finding.rule, finding.severity) for finding in diagnosis.findings}
    assert accused(diagnosis) == {SLOW_RANK} and diagnosis.verdict == "straggler"
