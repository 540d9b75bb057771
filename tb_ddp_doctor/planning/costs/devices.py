"""The effect of another device: a kernel's time scales with the device's limit that bounds it.

GEMMs on tensor cores are limited by the device's half-precision peak, float32 GEMMs by its float32 peak, and all
else by its memory's bandwidth (the roofline of Williams et al. 2009; Habitat, ATC'21, scales kernels likewise).
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.facts.peaks import Peaks, limits
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.planning.refusal import CannotPlanError

#: The range of the prediction: Habitat's predictions by wave scaling were 11.8 % off on average, so twice that.
_OFF = {"likely": 1.0, "quickest": 0.8, "slowest": 1.25}


def factor(job: Job, device: str, case: Literal["likely", "quickest", "slowest"]) -> NDArray[np.float64]:
    """The factor of each rank's device work on another device, shape (all ranks, S). Raises CannotPlanError."""
    now, then = _known(job.device), _known(device)
    gemms, kernels = job.work(lambda work: work.gemms), job.work(lambda work: work.kernels)
    tensor, single = gemms.tensor_ns, gemms.float32_ns + gemms.misaligned_ns
    other = np.maximum(kernels.kernel_ns - tensor - single, 0)
    takes = tensor * now.half / then.half + single * now.float32 / then.float32 + other * now.bandwidth / then.bandwidth
    times: NDArray[np.float64] = takes / np.maximum(tensor + single + other, 1)
    return times * _OFF[case]


def _known(device: str) -> Peaks:
    peaks = limits(device)
    if peaks is None:
        raise CannotPlanError(f"What {device or 'the device of this record'} can do at most is not known.")
    return peaks
