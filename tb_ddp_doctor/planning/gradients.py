"""Finds the backward passes that send their gradients, and the AllReduces that send them.

A pass sends its gradients if the AllReduces that it launches have together as many elements as the gradients that it
completes. Passes under `no_sync` launch none.

G = gradients of a pass.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from tb_ddp_doctor import record_again
from tb_ddp_doctor.digest.model import Collectives, RankDigest
from tb_ddp_doctor.job import job_kind
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.job.setting import setting
from tb_ddp_doctor.planning.refusal import CannotPlanError
from tb_ddp_doctor.trace.model import Ints


class SendingPass(msgspec.Struct, frozen=True, eq=False):
    """A rank's backward pass whose gradients are sent."""

    #: Index of the rank.
    rank: int
    #: Index of the step in the rank's digest.
    own_step: int
    #: Rows in the rank's `Gradients`, in order, shape (G,).
    gradients: Ints
    #: Rows in the rank's `Collectives` of the AllReduces that send them, in order.
    collectives: Ints


class SentGradients(msgspec.Struct, frozen=True, eq=False):
    """The gradients that ranks send in each pass: the same ones on all ranks."""

    passes: tuple[SendingPass, ...]
    #: Elements of each gradient of a pass, in the order in which they become ready, shape (G,).
    elements: Ints
    #: Bytes of an element.
    element_bytes: int
    #: The elements' type as torch names it, such as Float.
    dtype: str
    #: Index of the last gradient of each recorded bucket; None if the buckets are in another order.
    recorded: Ints | None
    #: Module of each gradient, "" if it is not known.
    modules: tuple[str, ...]
    #: Number of ranks that send to each other.
    group_size: int

    @property
    def bytes(self) -> Ints:
        """Bytes of each gradient, shape (G,)."""
        return self.elements * self.element_bytes


def sent_gradients(job: Job) -> SentGradients:
    """The gradients that the job's backward passes send. Raises CannotPlanError."""
    if not job_kind.trains(job):
        raise CannotPlanError("This program does not train: it has no gradients.")
    if not any(len(digest.gradients) for digest in job.digests):
        raise CannotPlanError(
            "The traces do not show when gradients are ready (no AccumulateGrad of autograd is recorded). "
            f"{record_again.operators(setting(job))}"
        )
    reduces = job.calls.of_gradients
    passes = tuple(
        one
        for rank, digest in enumerate(job.digests)
        for one in _passes(rank, digest, np.flatnonzero(reduces[job.calls.of(rank)]))
    )
    if not passes:
        raise CannotPlanError(_why_none(job))
    digests = job.digests
    elements = digests[passes[0].rank].gradients.elements[passes[0].gradients]
    for one in passes:
        if not np.array_equal(digests[one.rank].gradients.elements[one.gradients], elements):
            raise CannotPlanError(
                "Ranks or steps complete their gradients in different orders, so that no order of buckets suits all."
            )
    first, table = digests[passes[0].rank], digests[passes[0].rank].collectives
    row = int(passes[0].collectives[0])
    return SentGradients(
        passes=passes,
        elements=elements,
        element_bytes=int(table.bytes[row] // table.elements[row]),
        dtype=first.strings[table.dtype[row]],
        recorded=_recorded(table.elements[passes[0].collectives], elements),
        modules=tuple(first.strings[i] for i in first.gradients.module[passes[0].gradients].tolist()),
        group_size=max(int(table.group_size[row]), 1),
    )


def _passes(rank: int, digest: RankDigest, reduces: Ints) -> Iterator[SendingPass]:
    """The sending passes of a rank; `reduces` are its AllReduces of gradients, rows in its `Collectives`."""
    gradients, calls = digest.gradients, digest.collectives
    reduces = reduces[(calls.backward[reduces] >= 0) & (calls.bytes[reduces] > 0) & (calls.step[reduces] >= 0)]
    for number in np.unique(gradients.backward[gradients.backward >= 0]).tolist():
        mine = np.flatnonzero(gradients.backward == number)
        sent = _one_family(calls, reduces[calls.backward[reduces] == number], gradients.elements[mine])
        if len(sent):
            yield SendingPass(rank, int(gradients.step[mine[-1]]), mine, sent)


def _one_family(calls: Collectives, launched: Ints, elements: Ints) -> Ints:
    """The AllReduces of a pass that send its gradients: those of one group and dtype with as many elements; else none.

    `launched` are rows of the AllReduces that the pass launches, `elements` those of its gradients.
    """
    if not len(launched) or (elements <= 0).any():
        return launched[:0]
    family = calls.group[launched].astype(np.int64) * (int(calls.dtype.max()) + 1) + calls.dtype[launched]
    for one in np.unique(family).tolist():
        chosen: Ints = launched[family == one]
        if int(calls.elements[chosen].sum()) == int(elements.sum()):
            return chosen
    return launched[:0]


def _recorded(sent: Ints, elements: Ints) -> Ints | None:
    """The last gradient of each bucket; None if the AllReduces do not end where gradients end.

    `sent` are the elements of the AllReduces, `elements` those of the gradients, both in order.
    """
    ends, wanted = np.cumsum(elements), np.cumsum(sent)
    last: Ints = np.searchsorted(ends, wanted)
    return last if np.array_equal(ends[np.minimum(last, len(ends) - 1)], wanted) else None


def _why_none(job: Job) -> str:
    """A sentence on why no pass sends its gradients, as far as the traces show it."""
    kinds = set(job.calls.text("kind").words)
    if any((digest.gradients.elements <= 0).any() for digest in job.digests):
        return f"The sizes of gradients are not recorded. {record_again.operators(setting(job))}"
    if "reduce_scatter" in kinds:
        return "Gradients are sharded (ReduceScatter), not in DDP's buckets: bucket_cap_mb does not exist for this job."
    if not any((digest.collectives.backward >= 0).any() for digest in job.digests):
        return "No backward pass launches an AllReduce: gradients are not sent by DistributedDataParallel's buckets."
    return (
        "The AllReduces that backward launches do not have as many elements as the gradients that it completes: they "
        "are not DDP's buckets alone. Record a step without other AllReduces in backward."
    )
