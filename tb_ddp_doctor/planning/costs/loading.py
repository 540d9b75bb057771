"""Predicts how often a DataLoader with another number of workers delivers a batch.

With num_workers=0 the trace shows how long loading a batch takes; with workers a capture's record does
(`Doctor.watch(model, loader)`). W workers deliver a batch in 1/W of that time.
"""

from __future__ import annotations

import msgspec

from tb_ddp_doctor import wording
from tb_ddp_doctor.evidence.model import Loading
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.planning.costs.messages import Case
from tb_ddp_doctor.planning.refusal import CannotPlanError

#: Workers share cores and the disk, so each may take longer than one worker alone: the factor of its time. If the
#: record has several workers, the factor is that of additional ones.
_SHARED: dict[Case, float] = {"likely": 1.0, "quickest": 1.0, "slowest": 1.5}


class Loads(msgspec.Struct, frozen=True):
    """How long a worker takes to load a batch, ns; 0 workers stands for the training process itself."""

    batch_ns: float
    workers: int

    def every_ns(self, workers: int, case: Case) -> float:
        """The time from batch to batch with some workers, ns."""
        shared = _SHARED[case] if workers > max(self.workers, 1) else 1.0
        return self.batch_ns * shared / max(workers, 1)

    @property
    def basis(self) -> str:
        """How it is known, for users."""
        if not self.workers:
            return f"a batch takes {wording.decimals(self.batch_ns / 1e6, 1)} ms in the training process"
        return (
            f"a batch takes {wording.decimals(self.batch_ns / 1e6, 1)} ms in each of {self.workers} workers, as "
            "the capture recorded"
        )


def loads(job: Job) -> Loads:
    """The loading times of the slowest rank. Raises CannotPlanError if the record does not show them."""
    kinds = {digest.loader for digest in job.digests if digest.loader}
    if not kinds:
        raise CannotPlanError("No DataLoader is in the trace: record its enumerate(DataLoader) annotation.")
    if kinds == {"single_process"}:
        return Loads(float(job.work(lambda work: work.loader_ns).mean()), 0)
    seen = [job.rank_evidence[rank].loading for rank in job.ranks.tolist() if rank in job.rank_evidence]
    known = [one for one in seen if one is not None and one.workers > 0 and one.median_ms > 0]
    if not known:
        waits = float(job.work(lambda work: work.loader_ns).mean()) / 1e6
        raise CannotPlanError(
            "The DataLoader's workers load outside of what is traced, so how long a batch takes, and in how many "
            "workers, is not known: capture with Doctor.watch(model, loader), or record with num_workers=0. The "
            f"training process is in the loader for {wording.decimals(waits, 1)} ms a step, which is all that more "
            "workers could save."
        )
    slowest: Loading = max(known, key=lambda one: one.median_ms / one.workers)
    return Loads(slowest.median_ms * 1e6, slowest.workers)
