"""The gradients of a job and the AllReduces that send them: which backward passes send, and what in which order.

A pass sends its gradients if the AllReduces that it launches have as many elements as the gradients that it completes.
Passes under `no_sync` launch none.

G = gradients of a pass.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from tb_ddp_doctor import record_again
from tb_ddp_doctor.digest.model import Collectives, RankDigest
from tb_ddp_doctor.facts.setting import setting
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.planning.refusal import CannotPlanError
from tb_ddp_doctor.trace.model import Ints


class SendingPass(msgspec.Struct, frozen=True, eq=False):
    """A rank's backward pass whose gradients are sent."""

    #: Indices of the rank and of the step in its digest.
    rank: int
    own_step: int
    #: Rows in the rank's `Gradients`, shape (G,), and in its `Collectives`, both in order.
    gradients: Ints
    collectives: Ints


class SentGradients(msgspec.Struct, frozen=True, eq=False):
    """What all ranks send in each pass."""

    passes: tuple[SendingPass, ...]
    #: Elements of the gradients of a pass in the order in which they become ready, shape (G,); bytes of an element.
    elements: Ints
    element_bytes: int
    #: As torch names it, such as Float.
    dtype: str
    #: Index of the last gradient of each recorded bucket, None where the buckets are in another order.
    recorded: Ints | None
    #: Module of each gradient, "" where it is not known.
    modules: tuple[str, ...]
    #: Ranks that send to each other.
    group_size: int

    @property
    def bytes(self) -> Ints:
        """Of each gradient, shape (G,)."""
        sizes: Ints = self.elements * self.element_bytes
        return sizes


def sent_gradients(job: Job) -> SentGradients:
    """The gradients that the job's backward passes send. Raises CannotPlanError."""
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
    """Those of the AllReduces of a pass, all of one group and dtype, that have the gradients' elements; else none."""
    if not len(launched) or (elements <= 0).any():
        return launched[:0]
    family = calls.group[launched].astype(np.int64) * (int(calls.dtype.max()) + 1) + calls.dtype[launched]
    for one in np.unique(family).tolist():
        chosen: Ints = launched[family == one]
        if int(calls.elements[chosen].sum()) == int(elements.sum()):
            return chosen
    return launched[:0]


def _recorded(sent: Ints, elements: Ints) -> Ints | None:
    """The last gradient of each bucket, from elements of AllReduces and of gradients in order; None if none fits."""
    ends, wanted = np.cumsum(elements), np.cumsum(sent)
    last: Ints = np.searchsorted(ends, wanted)
    return last if np.array_equal(ends[np.minimum(last, len(ends) - 1)], wanted) else None


def _why_none(job: Job) -> str:
    """Why no pass sends its gradients, as far as the traces tell."""
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
