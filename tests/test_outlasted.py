"""A collective that one rank ends long after all others: a wrong digit, or a rank that is truly the last to end it."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace
from traces import MS, in_row, ranks, read

from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.job.build import build
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.trace.names import is_communication_kernel

USUAL = """
    rank# step |1
          host [f][b][ar][upd]
          gpu  [f...][b*4.......]                    [upd]
          nccl                   [ar@4..............]
"""
#: Ends it 3 ms after the others, and then goes on.
LAST = """
    rank# step |1
          host [f][b][ar][upd]
          gpu  [f...][b*4.......]                       [upd]
          nccl                   [ar@4.................]
"""


def joined(third: str = USUAL, moved: int | None = None) -> Job:
    """Rank 2's third step is drawn so; of its collectives one is 3 ms late if asked for."""
    before, after = (ranks(*[USUAL] * 4, steps=steps) for steps in (2, 3))
    each = {}
    for rank, trace in read(in_row(before, ranks(USUAL, USUAL, third, USUAL, steps=1), after)).items():
        start = trace.events.start_ns.copy()
        communicates = np.array([is_communication_kernel(text) for text in trace.strings])[trace.events.name]
        if rank == 2 and moved is not None:
            start[np.flatnonzero(communicates)[moved]] += 3 * MS
        each[rank] = digest(replace(trace, events=replace(trace.events, start_ns=start)))
    return build("drawn", each, {rank: f"host{rank}" for rank in each}, len(each))


def test_a_collective_that_runs_on_behind_what_waited_for_it_costs_its_rank_that_step() -> None:
    job = joined(moved=2)
    assert job.ranks.tolist() == [0, 1, 2, 3] and job.steps.tolist() == [1, 2, 5, 6]
    (warning,) = [one.message for one in job.warnings if one.file == "rank2.json"]
    assert "1 of its collectives ends apart from those of all other ranks" in warning


def test_a_rank_that_is_the_last_to_end_a_collective_stays() -> None:
    for job in (joined(LAST), joined()):
        assert job.steps.tolist() == [1, 2, 3, 4, 5, 6] and not job.warnings
