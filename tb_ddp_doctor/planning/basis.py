"""Lists the inputs of a prediction, each measured in the record, fitted to it, or assumed."""

from __future__ import annotations

from collections.abc import Iterator

from tb_ddp_doctor import wording
from tb_ddp_doctor.calibration.model import Calibration
from tb_ddp_doctor.planning.costs.loading import loads
from tb_ddp_doctor.planning.mesh import effect as mesh
from tb_ddp_doctor.planning.model import Question, Rests
from tb_ddp_doctor.planning.ranks import links_of_ranks
from tb_ddp_doctor.planning.record import PlanRecord
from tb_ddp_doctor.planning.shards.steps import asks_of_sharding


def inputs(record: PlanRecord, question: Question, calibration: Calibration | None) -> Iterator[Rests]:
    """The inputs of the answer to a question; `calibration` has the links that the question asks for."""
    job = record.job
    yield Rests(
        "measured",
        "Compute, launches and their order",
        f"{wording.whole(len(job.steps))} steps of {wording.whole(len(job.ranks))} ranks, played again"
        + (f" on {len(record.ranks)} of them" if len(record.ranks) < len(job.ranks) else ""),
    )
    communicates = question.bucket_mb is not None or question.dtype or question.ranks or question.mesh
    if question.ranks and not asks_of_sharding(question):
        yield from links_of_ranks(record, "likely", calibration).rests(question.ranks)
    elif question.mesh:
        yield from mesh.rests(record, question, calibration)
    elif communicates:
        for family in record.families:
            if family.of_gradients and (fit := record.messages_of(family)) is not None:
                yield Rests(fit.basis, f"Time of {family.kind} over bytes", fit.rests_on)
    if question.bucket_mb is not None and not asks_of_sharding(question):
        total = len(record.gradients.elements)
        yield Rests("measured", "When each gradient is ready", f"{total} gradients a pass, {len(job.ranks)} ranks")
        if record.gradients.recorded is None:
            yield Rests("assumed", "Order of the buckets", "by readiness; the recorded ones are in another order")
    if communicates or question.links or question.links_of or question.accumulate:
        yield Rests(record.slowdown.basis, "Kernels beside communication", record.slowdown.rests_on)
    if question.workers is not None:
        yield Rests("measured", "Batches of the DataLoader", loads(job).basis)
    yield from _assumptions(question)


def _assumptions(question: Question) -> Iterator[Rests]:
    """The assumptions that each field of a question brings with it."""
    if question.links:
        yield Rests("assumed", "Links", "transfers as many times as fast, latency included")
    if question.links_of and not question.ranks and not question.mesh:
        yield Rests("measured", "Links", f"alpha and algbw of {question.links_of}, against the job's own")
    if question.dtype:
        yield Rests("assumed", f"{question.dtype} gradients", "bytes in proportion, same latency and convergence")
    if question.ranks:
        how = "the same work in all" if question.strong else "as much work on each rank"
        yield Rests(
            "assumed", "Other numbers of ranks", f"{how}; the quickest of ring, tree and hierarchical, no congestion"
        )
    if question.accumulate:
        yield Rests("assumed", "Accumulation", "the passes before the last one under no_sync")
    if question.workers is not None:
        yield Rests(
            "assumed", "DataLoader workers", "each loads as fast as now (to 1.5 times as long); a core for each"
        )
    if question.pin_memory is not None:
        yield Rests("assumed", "Pageable copies", "6 GB/s (3 to 12), as one core moves them")
    if question.graphs:
        yield Rests("assumed", "CUDA graphs", "90 % of the CPU's time in ops and launches goes (50 to 100 %)")
    if question.device:
        yield Rests("assumed", question.device, "kernels scale with the data sheets' limits; links and CPU stay")
