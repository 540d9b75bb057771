"""What rules ask of device memory. R = ranks, S = steps."""

from __future__ import annotations

import msgspec
import numpy as np

from tb_ddp_doctor.facts import record_again
from tb_ddp_doctor.facts.facts import Facts, MissingFactError, fact, needs_device
from tb_ddp_doctor.facts.setting import setting
from tb_ddp_doctor.trace.model import Ints


class MemoryUse(msgspec.Struct, frozen=True, eq=False):
    """Columns of `digest.Memory`, shape (R, S), bytes; 0 where a step does not show it."""

    peak_allocated: Ints
    reserved_at_peak: Ints
    peak_reserved: Ints
    scattered: Ints
    unusable: Ints
    released: Ints
    #: What each rank's device has, shape (R,); 0 where it is not known.
    capacity: Ints


@fact
def _memory(facts: Facts) -> MemoryUse:
    job = facts.job
    needs_device(job)
    if not any(len(digest.memory.time_ns) for digest in job.digests):
        raise MissingFactError(record_again.no_memory(setting(job)))

    def column(name: str) -> Ints:
        values = [
            getattr(digest.memory, name)[index] for digest, index in zip(job.digests, job.step_index, strict=True)
        ]
        known: Ints = np.maximum(np.stack(values), 0)
        return known

    return MemoryUse(
        **{name: column(name) for name in MemoryUse.__struct_fields__ if name != "capacity"},
        capacity=np.array([digest.device_bytes for digest in job.digests], np.int64),
    )
