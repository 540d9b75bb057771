"""Gives the effect that each field of a question has on the steps.

Fitted and assumed inputs have a range. A case says which value of it is used: the likely one, or the one that makes the
step the quickest or the slowest. R = played ranks, S = steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from tb_ddp_doctor.calibration.model import Calibration
from tb_ddp_doctor.digest.model import CpuTime
from tb_ddp_doctor.planning import ranks
from tb_ddp_doctor.planning.costs import devices
from tb_ddp_doctor.planning.costs.loading import loads
from tb_ddp_doctor.planning.costs.messages import Case, Messages
from tb_ddp_doctor.planning.effect import Effect, Factor
from tb_ddp_doctor.planning.mesh import effect as mesh
from tb_ddp_doctor.planning.model import Question
from tb_ddp_doctor.planning.record import PlanRecord
from tb_ddp_doctor.planning.refusal import CannotPlanError
from tb_ddp_doctor.planning.shards.steps import DTYPE_BYTES
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.model import Family, Parts
from tb_ddp_doctor.trace.model import Floats, Ints
from tb_ddp_doctor.trace.names import Phase

#: A larger factor for the speed of links is refused as a mistake.
_MOST_TIMES = 1e6
#: A larger bucket is refused as a mistake: no model has so many gradients.
MOST_BUCKET_MIB = 1e9
#: The share of the CPU's time in ops and launches that replaying a CUDA graph saves.
_GRAPH_SAVES: dict[Case, float] = {"likely": 0.9, "quickest": 1.0, "slowest": 0.5}
#: Copies from pageable memory, bytes per ns: the CPU moves them to a pinned buffer first, one core at a time.
_PAGEABLE_RATE: dict[Case, float] = {"likely": 6.0, "quickest": 12.0, "slowest": 3.0}


def messages(record: PlanRecord, case: Case) -> Messages:
    """How long AllReduces of gradients take by size. Raises CannotPlanError."""
    return record.messages.of(case)


def slowdown(record: PlanRecord, case: Case) -> float:
    """The share by which kernels take longer beside communication than alone."""
    measured = record.slowdown
    return {"likely": measured.share, "quickest": measured.least, "slowest": measured.most}[case]


def of(
    record: PlanRecord, question: Question, case: Case, calibration: Calibration | None, *, resharded: bool
) -> Effect:
    """The effect of a question. Raises CannotPlanError.

    `calibration` has the links that the question asks for. `resharded` says that the steps already have the collectives
    that the question asks for.
    """
    effect = Effect()
    if question.links is not None:
        effect |= _links(question.links)
    if question.dtype is not None and not resharded:
        effect |= _dtype(record, question.dtype, case)
    if question.mesh is not None:
        effect |= mesh.effect(record, question, case, calibration)
    elif question.ranks is not None:
        effect |= ranks.effect(record, question.ranks, case, calibration, strong=question.strong)
    elif calibration is not None:
        effect |= calibrated(record, calibration, case)
    if question.graphs:
        effect |= _without(record, CpuTime.WORK, _GRAPH_SAVES[case])
    if question.device is not None:
        effect |= Effect(device=devices.factor(record.job, question.device, case)[record.ranks])
    if question.pin_memory is not None:
        effect |= _pinning(record, case, pinned=question.pin_memory)
    return effect


def _without(record: PlanRecord, kind: CpuTime, share: float) -> Effect:
    """Less of one kind of host time on all ranks: a share of it is removed."""
    shape = (len(record.ranks), len(record.job.steps))
    return Effect(Change({kind: np.broadcast_to(np.float64(share), shape)}))


def _links(times: float) -> Effect:
    """Links that are some times as fast as now."""
    if not 0 < times < _MOST_TIMES:
        raise CannotPlanError("--links takes a number above 0: how many times as fast transfers are.")
    return Effect(factors=(lambda parts: np.full(len(parts.rank), 1 / times),), pace=times)


def calibrated(record: PlanRecord, calibration: Calibration, case: Case) -> Effect:
    """The links of a calibration: collectives take as long as its fit says. Raises CannotPlanError."""
    families, pace = record.families, 1.0
    longer: list[Callable[[Ints], Floats] | None] = []
    for family in families:
        recorded, curve = (
            _of_family(record, family, case),
            calibration.curve(family.kind, family.group_size, within_node=False),
        )
        if recorded is None:
            longer.append(None)
            continue
        if curve is None or curve.fit is None or curve.fit.algbw_gbs <= 0:
            raise CannotPlanError(
                f"The calibration has no {family.kind} of {family.group_size} ranks over several sizes, which this job "
                "has: measure it with torchrun ... -m tb_ddp_doctor.check on as many ranks."
            )
        # 1 GB/s is one byte per nanosecond.
        longer.append(partial(_at_fit, recorded, curve.fit.alpha_us * 1e3, 1 / curve.fit.algbw_gbs))
        if family.of_gradients or pace == 1.0:
            pace = recorded.beta_ns * curve.fit.algbw_gbs if recorded.beta_ns > 0 else 1.0
    return Effect(factors=(_by_size(longer),), pace=pace)


def _at_fit(recorded: Messages, alpha_ns: float, beta_ns: float, size: Ints) -> Floats:
    """The factor of transfers that then take alpha + beta * size."""
    return (alpha_ns + beta_ns * size) / np.maximum(recorded.time_ns(size), 1)


def _by_size(longer: Sequence[Callable[[Ints], Floats] | None]) -> Factor:
    """The factor of each part, given that of messages of each family by their bytes; None for 1."""

    def factor(parts: Parts) -> Floats:
        times = np.ones(len(parts.rank))
        for index, of_size in enumerate(longer):
            mine = (parts.family == index) & (parts.bytes > 0)
            if of_size is not None and mine.any():
                times[mine] = of_size(parts.bytes[mine])
        return times

    return factor


def _dtype(record: PlanRecord, dtype: str, case: Case) -> Effect:
    """Gradients sent as another dtype: bytes in proportion to its size, with the same latency."""
    if dtype not in DTYPE_BYTES:
        raise CannotPlanError(f"There is no dtype {dtype!r} for gradients; there are: {', '.join(DTYPE_BYTES)}.")
    families = record.families
    if not any(one.of_gradients for one in families):
        raise CannotPlanError("No AllReduce sends gradients in this record.")
    ratio = DTYPE_BYTES[dtype] / _element_bytes(record)
    takes = [_of_family(record, one, case) if one.of_gradients else None for one in families]
    return Effect(factors=(_by_size([partial(_resized, known, ratio) if known else None for known in takes]),))


def _resized(recorded: Messages, ratio: float, size: Ints) -> Floats:
    """The factor of transfers of so many times their bytes."""
    return recorded.time_ns((size * ratio).astype(np.float64)) / np.maximum(recorded.time_ns(size), 1)


def _of_family(record: PlanRecord, family: Family, case: Case) -> Messages | None:
    of_family = record.messages_of(family)
    return of_family and of_family.of(case)


def _element_bytes(record: PlanRecord) -> float:
    """Size of an element of the gradients that are sent, bytes. Raises CannotPlanError."""
    calls, chosen = record.job.calls, record.sends_gradients
    size, elements = calls.column("bytes")[chosen], calls.column("elements")[chosen]
    known = (size > 0) & (elements > 0)
    if not known.any():
        raise CannotPlanError("The trace does not tell how many bytes an AllReduce sends, nor in which dtype.")
    return float(np.median(size[known] / elements[known]))


def _pinning(record: PlanRecord, case: Case, *, pinned: bool) -> Effect:
    """Batches copied from pinned memory instead of pageable, or the reverse, by the bytes that the steps copy."""
    copies = record.job.work(lambda work: work.copies)
    if pinned:
        raise CannotPlanError(
            "What pinned memory saves is the cost of the finding pageable-memcpy: ask for it with --fixed."
            if copies.pageable_bytes.any()
            else "The steps copy nothing from pageable memory."
        )
    if not copies.pinned_bytes.any():
        raise CannotPlanError("The steps copy nothing from pinned memory.")
    longer = np.maximum(copies.pinned_bytes / _PAGEABLE_RATE[case] - copies.pinned_ns, 0)
    need = np.maximum(record.whatif.device_ns, 1)
    return Effect(device=(1 + longer / need)[record.ranks])


def loading(record: PlanRecord, workers: int, case: Case) -> tuple[Effect, float]:
    """The effect of never waiting for a batch, and the time from batch to batch that some workers need, ns."""
    if workers < 0:
        raise CannotPlanError("--workers takes a whole number from 0 on.")
    known = loads(record.job)
    every_ns = known.every_ns(workers, case)
    if workers == 0 and not known.workers:
        return Effect(), 0.0
    if workers == 0:
        # Without workers the training process loads each batch itself, besides its other work.
        whatif = record.whatif
        every_ns += sum(float(whatif.host_ns(kind).mean()) for kind in CpuTime if kind is not CpuTime.INPUT)
    return _without(record, CpuTime.INPUT, 1.0), every_ns


def without_gradients(record: PlanRecord) -> Effect:
    """The effect of backward passes under no_sync: no AllReduce of gradients. Raises CannotPlanError."""
    sends = [one.of_gradients for one in record.families]
    if not any(sends):
        raise CannotPlanError("No AllReduce sends gradients in this record, so accumulating saves none.")
    times = np.array([0.0 if one else 1.0 for one in sends])
    return Effect(factors=(lambda parts: times[parts.family],))


def accumulated_ns(record: PlanRecord, passes: int, step_ns: float, without_ns: float) -> float:
    """The mean step of some passes that accumulate gradients, ns. Raises CannotPlanError.

    `step_ns` is a step that sends its gradients, as the last pass does; `without_ns` one that sends none, as the others
    do. Only the last pass runs the optimizer.
    """
    if passes < 1:
        raise CannotPlanError("--accumulate takes a whole number from 1 on.")
    digest = record.job.digests[0]
    sending = np.unique(digest.gradients.backward[digest.gradients.backward >= 0])
    if len(sending) > len(digest.steps):
        raise CannotPlanError(
            "The job accumulated gradients while it was recorded: record steps of one backward pass, and use those."
        )
    phases = record.job.work(lambda work: work.phases)
    updates = float((phases.device_ns - phases.exposed_ns)[:, :, Phase.OPTIMIZER].mean())
    return (step_ns + (passes - 1) * max(without_ns - updates, 0.0)) / passes
