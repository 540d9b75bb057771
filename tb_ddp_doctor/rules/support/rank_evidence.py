"""What is known of a rank beside its trace, as sentences that follow what its trace shows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.calibration.model import Measure
from tb_ddp_doctor.evidence.model import RankEvidence
from tb_ddp_doctor.facts.expected import Expected

#: Of the check's outliers of one rank.
_MOST_OUTLIERS = 2


def of_gpu(rank: int, known: Sequence[RankEvidence]) -> str:
    """How the GPU of a rank (index) runs, beside the others'; "" where nobody knows."""
    gpu = known[rank].gpu
    if gpu is None:
        return ""
    parts = []
    if gpu.sm_mhz is not None:
        highest = "" if gpu.max_sm_mhz is None else f" of {wording.whole(gpu.max_sm_mhz)}"
        others = [one.gpu.sm_mhz for i, one in enumerate(known) if i != rank and one.gpu and one.gpu.sm_mhz is not None]
        median = f" (median of the other ranks: {wording.whole(np.median(others))})" if others else ""
        parts.append(f"{wording.whole(gpu.sm_mhz)}{highest} MHz{median}")
    if gpu.power_w is not None:
        limit = "" if gpu.power_limit_w is None else f" of {wording.whole(gpu.power_limit_w)}"
        parts.append(f"{wording.whole(gpu.power_w)}{limit} W")
    if gpu.temperature_c is not None:
        parts.append(f"{wording.decimals(gpu.temperature_c, 0)} °C")
    reasons = f"throttled ({wording.listing(gpu.throttled)})" if gpu.throttled else "not throttled"
    return f" By {gpu.source}, its GPU is {reasons}: {', '.join(parts)}." if parts or gpu.throttled else ""


def of_check(rank: int, expected: Expected | None, size: int) -> str:
    """What the check measured of a rank (its number) in a job of so many ranks; "" without a check of as many."""
    if expected is None or expected.calibration.source != "check" or expected.calibration.world_size != size:
        return ""
    worse = [one for one in expected.calibration.outliers if rank in one.ranks]
    if worse:
        return f" The check found the same without the job: {' '.join(one.sentence for one in worse[:_MOST_OUTLIERS])}"
    measured = [one.name for one in expected.calibration.measures if _of(one, rank) is not None]
    if not measured:
        return ""
    return f" The check found nothing slow of it without the job ({wording.listing(measured)})."


def _of(measure: Measure, rank: int) -> float | None:
    return measure.values[rank] if rank < len(measure.values) else None


def of_loading(rank: int, known: Sequence[RankEvidence]) -> str:
    """How long the DataLoader's workers of a rank (index) take; "" where nobody knows."""
    loading = known[rank].loading
    if loading is None or loading.workers < 1:
        return ""
    each = wording.ms(loading.median_ms * 1e6 / loading.workers)
    return (
        f" In its workers a batch takes {wording.ms(loading.median_ms * 1e6)} (median of {loading.batches}; at most "
        f"{wording.ms(loading.longest_ms * 1e6)}): {loading.workers} of them deliver one every {each}."
    )


def of_stack(ranks: Sequence[int], known: Sequence[RankEvidence]) -> str:
    """Where the main thread of the first of some ranks (indices) was that somebody looked at; "" for none."""
    looked = next((known[rank] for rank in ranks if known[rank].stack), None)
    return f" When py-spy looked ({looked.stack_source}), its main thread was in {looked.stack}." if looked else ""
