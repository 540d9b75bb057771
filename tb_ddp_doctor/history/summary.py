"""What the step times of a job say: what changed, when and on which rank, and where the time of the whole job went."""

from __future__ import annotations

import msgspec
import numpy as np

from tb_ddp_doctor.history.account import JobTime, account, goodput_trend
from tb_ddp_doctor.history.events import Event, events
from tb_ddp_doctor.history.job import JobHistory, LoggedBy


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A job's hours."""

    #: 0 where a log does not say them.
    ranks: int
    nodes: int
    steps: int
    first_step: int
    last_step: int
    begin_s: float
    end_s: float
    #: Whether ranks say when they wait: without, no rank can be named.
    names_ranks: bool
    median_step_ms: float
    p99_step_ms: float
    #: Most costly first.
    events: tuple[Event, ...]
    account: JobTime
    #: The goodput of each eighth of the job's time.
    goodput_trend: tuple[float, ...] = ()
    restarts: int
    trained_again: int
    #: Bytes of files that could not be read, and steps before the first that did not fit into memory.
    lost_bytes: int
    left_out: int
    #: Whose log the step times are from; each line of it is the mean of its steps. None: a `Doctor` recorded each step.
    logged_by: LoggedBy | None = None


def summarise(job: JobHistory) -> Summary:
    """All events of a job's step times, and the account of its time."""
    with np.errstate(all="ignore"):
        pyramid, steps, of_column = job.pyramid, job.pyramid.steps, job.steps_a_column
        median_us = float(np.nanmedian(steps.length_us))
        all_us = np.nan_to_num(steps.length_us)
        known = np.flatnonzero(steps.begins_ns)
        begin_ns, end_ns = int(steps.begins_ns[known[0]]), int(steps.begins_ns[known[-1]])
        end_ns += int(all_us[known[-1]]) * 1000
        whole_s = max((end_ns - begin_ns) / 1e9, float(all_us.sum(dtype=np.float64)) / 1e6)
        return Summary(
            ranks=job.logged_by.ranks if job.logged_by else len(pyramid.ranks),
            nodes=0 if job.logged_by else len(set(pyramid.nodes)),
            steps=int(np.count_nonzero(all_us)) * of_column,
            first_step=pyramid.first_step + int(known[0]) * of_column,
            last_step=pyramid.first_step + (int(known[-1]) + 1) * of_column - 1,
            begin_s=begin_ns / 1e9,
            end_s=end_ns / 1e9,
            names_ranks=pyramid.is_busy and len(pyramid.ranks) > 1,
            median_step_ms=median_us / of_column / 1000,
            p99_step_ms=float(np.nanpercentile(steps.length_us, 99)) / of_column / 1000,
            events=events(pyramid, median_us, of_column, job.samples),
            account=account(job, whole_s, median_us),
            goodput_trend=goodput_trend(job, median_us, begin_ns, end_ns),
            restarts=len(job.restarts),
            trained_again=sum(restart.trained_again for restart in job.restarts),
            lost_bytes=job.lost_bytes,
            left_out=job.left_out,
            logged_by=job.logged_by,
        )
