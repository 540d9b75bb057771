"""Collectives whose kernel a record has lost: their step stays, and who is slow is said as with the whole record."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from traces import MS, ranks, read

from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.digest.plausible import without
from tb_ddp_doctor.engine import examine
from tb_ddp_doctor.job.build import build
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.trace.model import RankTrace
from tb_ddp_doctor.trace.names import is_communication_kernel

#: Two AllReduces a step: one beside compute, and one that all wait for.
USUAL = """
    rank# step |1
          host [f][b][ar][c][ar][upd]
          gpu  [f...][b*4.......][c*4.......]                      [upd]
          nccl                   [ar@2.]     [ar@4................]
"""
SLOW = """
    rank# step |1
          host [f][b][ar][c][ar][upd]
          gpu  [f...][b*4.......][c*4.......................]      [upd]
          nccl                   [ar@2.]                     [ar@4]
"""
HIDDEN = """
    rank# step |1
          host [f][b][ar][c][upd]
          gpu  [f...][b*4.......][c*4.......][upd]
          nccl                   [ar@2.]
"""
INNOCENT, STRAGGLER = 2, 1
STEPS = 5


def whole(text: str = USUAL, slow: str = SLOW) -> dict[int, RankTrace]:
    return read(ranks(text, slow, text, text, steps=STEPS))


def lacking(trace: RankTrace, which: Iterable[int]) -> RankTrace:
    """The trace without some of its communication kernels, by their order."""
    names = np.array([is_communication_kernel(text) for text in trace.strings])
    rows = np.flatnonzero(names[trace.events.name])
    rows = rows[np.argsort(trace.events.start_ns[rows])]
    lost = np.zeros(len(trace.events), np.bool_)
    lost[rows[[*which]]] = True
    return without(trace, lost, ())


def joined(traces: dict[int, RankTrace], lost: dict[int, Iterable[int]]) -> Job:
    each = {rank: digest(lacking(trace, lost.get(rank, ()))) for rank, trace in traces.items()}
    return build("drawn", each, {rank: f"host{rank}" for rank in each}, len(each))


def collectives(found: RankDigest) -> list[tuple[int, int, int]]:
    """Step, arrival and end of each, ms."""
    table = found.collectives
    columns = (table.step, np.rint(table.arrival_ns / MS), np.rint(table.end_ns / MS))
    return [(int(a), int(b), int(c)) for a, b, c in zip(*columns, strict=True)]


@pytest.mark.parametrize("rank", [INNOCENT, STRAGGLER])
@pytest.mark.parametrize("which", [0, 5, 2 * STEPS - 1])
def test_one_lost_kernel_takes_no_step_from_the_job(rank: int, which: int) -> None:
    traces = whole()
    before, after = joined(traces, {}), joined(traces, {rank: [which]})
    assert after.steps.tolist() == before.steps.tolist() == [1, 2, 3, 4, 5]
    assert not after.damaged and not sum(after.matched.unmatched)
    assert np.abs(after.budget.owner_ns - before.budget.owner_ns).max() < 0.1 * MS
    (note,) = [one.message for one in after.warnings]
    assert note == (
        "1 communication kernel is missing: when it ran is taken from its launch and from what waited for it."
    )
    found, known = examine(after), examine(before)
    assert found.verdict == known.verdict == "straggler"
    assert [(one.rule, one.ranks) for one in found.findings] == [(one.rule, one.ranks) for one in known.findings]
    assert found.findings[0].cost_ms == pytest.approx(known.findings[0].cost_ms, abs=0.1)


def test_its_begin_is_the_end_of_what_it_waited_for_and_its_end_the_begin_of_what_waited_for_it() -> None:
    (trace,) = read(ranks(USUAL, steps=2)).values()
    known = collectives(digest(trace))
    assert collectives(digest(lacking(trace, [1]))) == known
    assert collectives(digest(lacking(trace, [0]))) == known


def test_what_nothing_waited_for_lasts_as_long_as_its_like() -> None:
    (trace,) = read(ranks(HIDDEN, steps=3)).values()
    assert collectives(digest(lacking(trace, [1]))) == collectives(digest(trace))


def test_a_sync_that_the_cpu_is_held_in_tells_its_end() -> None:
    synced = """
        rank# step |1
              host [f][b][ar][sync...............]
              gpu  [f...][b*4.......]
              nccl                   [ar@2.......]
    """
    (trace,) = read(ranks(synced, steps=3)).values()
    for step in (0, 1):
        found, known = collectives(digest(lacking(trace, [step]))), collectives(digest(trace))
        assert found == known


@pytest.mark.parametrize("lost", [range(4), [8, 9], [9]])
def test_of_many_lost_ones_and_of_those_behind_the_end_of_the_record_nothing_is_made_up(lost: Iterable[int]) -> None:
    """The last one of the record has nothing behind it in the other drawing: it may never have ended."""
    (trace,) = read(ranks(USUAL.replace("[upd]", "     ") if 9 in lost else USUAL, steps=STEPS)).values()
    kept = 2 * STEPS - len([*lost])
    assert len(digest(lacking(trace, lost)).collectives) == kept
