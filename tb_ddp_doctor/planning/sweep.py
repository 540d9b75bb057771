"""Finds runs of the same model with other buckets: measured points beside the predicted curve."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.planning.buckets import bucket_mb_of
from tb_ddp_doctor.planning.gradients import sent_gradients
from tb_ddp_doctor.planning.model import MeasuredStep
from tb_ddp_doctor.planning.refusal import CannotPlanError


def measured(job: Job, others: Mapping[str, Job]) -> tuple[MeasuredStep, ...]:
    """The measured steps of the job, and of other jobs that send the same gradients among as many ranks."""
    return tuple(_measured(job, others))


def _measured(job: Job, others: Mapping[str, Job]) -> Iterator[MeasuredStep]:
    try:
        ours = sent_gradients(job)
    except CannotPlanError:
        return
    for run, other in {job.name: job, **others}.items():
        if other.world_size != job.world_size:
            continue
        try:
            theirs = sent_gradients(other)
        except CannotPlanError:
            continue
        if theirs.recorded is not None and theirs.bytes.tolist() == ours.bytes.tolist():
            size = bucket_mb_of(theirs.bytes, theirs.recorded)
            yield MeasuredStep(run=run, bucket_mb=size, step_ms=other.step_ns / 1e6)
