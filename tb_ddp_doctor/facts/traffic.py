"""What communication does: volume, waiting, bandwidth, latency and overlap of each kind of collective in each group.

Matched collectives are measured, each on the rank that arrives last. That rank waits for nobody, so its whole part is
transfer, however well the clocks agree; and what it hides behind compute is what the job hides, while a rank that
waits has nothing left to compute beside the transfer.

Bandwidths are those of nccl-tests: algorithm bandwidth is bytes over time; bus bandwidth is that times the bytes that
each link carries for one of the message, so that it compares with the hardware whatever the number of ranks.

M = matched collectives of the job's steps, R = ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec
import numpy as np

from tb_ddp_doctor.calibration.model import bus_factor
from tb_ddp_doctor.calibration.transfer_fit import TransferFit, transfer_fit
from tb_ddp_doctor.digest.numbering import numbered
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.job.segments import Segments
from tb_ddp_doctor.mesh.homes import Homes, dimensions_of
from tb_ddp_doctor.trace.model import Flags, Ints
from tb_ddp_doctor.trace.names import parallelism

#: All data comes from one rank or goes to one, which may be done before the others are.
_ROOTED = ("broadcast", "reduce", "gather", "scatter")


class Traffic(msgspec.Struct, frozen=True, eq=False):
    """The collectives of one kind in one process group."""

    kind: str
    #: Name of the group, "" where the trace has none.
    group: str
    #: What the group is for, as "TP", by its description; "" where that does not say.
    parallelism: str
    #: Indices of its ranks, as far as they have a trace, and how many it has.
    ranks: Ints
    size: int
    #: Element types, as torch names them.
    dtypes: tuple[str, ...]
    #: Steps of the job.
    steps: int
    #: One value a collective, by first arrival: its row in the job's matched collectives; index of its step; a number
    #: for the ranks that it is among, which of sends and receives are two of the group; bytes (-1 if unknown); from the
    #: last arrival to the end, and the part of that with no compute beside it, ns; waiting of all its ranks together,
    #: ns.
    row: Ints
    step: Ints
    among: Ints
    bytes: Ints
    transfer_ns: Ints
    exposed_ns: Ints
    wait_ns: Ints
    #: Transfer against bytes; None where the bytes are unknown, or all the same.
    line: TransferFit | None

    @property
    def calls(self) -> float:
        """Collectives of a step."""
        return len(self.step) / self.steps

    @property
    def bytes_per_step(self) -> float:
        """0 where they are unknown."""
        return float(self.bytes.sum()) / self.steps if self.has_bytes else 0.0

    @property
    def transfer_per_step_ns(self) -> float:
        return float(self.transfer_ns.sum()) / self.steps

    @property
    def exposed_per_step_ns(self) -> float:
        return float(self.exposed_ns.sum()) / self.steps

    @property
    def wait_per_step_ns(self) -> float:
        """Mean over its ranks."""
        return float(self.wait_ns.sum()) / self.steps / len(self.ranks)

    @property
    def has_bytes(self) -> bool:
        return bool((self.bytes > 0).all())

    @property
    def algorithm_rate(self) -> float:
        """Bytes per second; 0 where the bytes are unknown."""
        return self.bytes_per_step / self.transfer_per_step_ns * 1e9 if self.transfer_per_step_ns > 0 else 0.0

    @property
    def bus_rate(self) -> float:
        """Bytes per second on each link; 0 where the bytes are unknown."""
        return self.algorithm_rate * bus_factor(self.kind, self.size)

    @property
    def hidden_share(self) -> float:
        """Share of the transfer that has compute beside it."""
        return 1 - self.exposed_per_step_ns / self.transfer_per_step_ns if self.transfer_per_step_ns > 0 else 0.0

    @property
    def latency_share(self) -> float:
        """Share of the transfer that alpha takes; 0 without a line."""
        if self.line is None or self.transfer_per_step_ns <= 0:
            return 0.0
        return min(self.line.alpha_ns * self.calls / self.transfer_per_step_ns, 1.0)


def dimensions_of_traffic(job: Job, its: Homes, one: Traffic) -> set[str]:
    """The dimensions that the collectives of one kind and group are of."""
    said = {job.digests[rank].header.group_descriptions.get(one.group, "") for rank in one.ranks.tolist()}
    return dimensions_of(its, job.ranks[one.ranks].tolist(), said, one.kind)


def communication(job: Job) -> tuple[Traffic, ...]:
    """Measure the matched collectives of the job's steps; those that transfer longest come first."""
    rows = np.flatnonzero(np.isin(job.matched.step, job.steps))
    by_group = sorted(_traffic(job, rows), key=lambda one: (-one.transfer_per_step_ns, one.kind, one.group))
    return tuple(by_group)


def _traffic(job: Job, rows: Ints) -> Iterator[Traffic]:
    matched = job.matched
    last, transfer, wait = measured(job, rows)
    exposed = np.minimum(_exposed(job, last, transfer, matched.is_of(_ROOTED)[rows]), transfer)
    step = np.searchsorted(job.steps, matched.step[rows])
    family, names, dtypes = _families(job, rows)
    among = _among(job, rows)
    order = np.argsort(family, kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(family[order])) + 1):
        if not len(members):
            continue
        kind, group, _ = names[family[members[0]]]
        mine = rows[members]
        ranks = np.flatnonzero(np.bincount(matched.rank[matched.segments.select(mine)[1]]))
        size, moved = matched.bytes[mine], transfer[members]
        yield Traffic(
            kind=kind,
            group=group,
            parallelism=_parallelism(job, group, ranks),
            ranks=ranks,
            size=max(int(matched.group_size[mine].max()), len(ranks)),
            dtypes=tuple(sorted(dtypes[family[members[0]]])),
            steps=len(job.steps),
            row=mine,
            step=step[members],
            among=among[members],
            bytes=size,
            transfer_ns=moved,
            exposed_ns=exposed[members],
            wait_ns=wait[members],
            line=transfer_fit(size, moved) if (size > 0).all() else None,
        )


def _among(job: Job, rows: Ints) -> Ints:
    """A number for each collective, the same for those among the same ranks, shape (M,)."""
    segments, part = job.matched.segments.select(rows)
    rank = job.matched.rank[part]
    return numbered(segments.min(rank), segments.max(rank), segments.sum(rank), segments.length)


def _parallelism(job: Job, group: str, ranks: Ints) -> str:
    """What most of a group's ranks that say so call it."""
    said = (job.digests[rank].header.group_descriptions.get(group, "") for rank in ranks.tolist())
    kinds = Counter(filter(None, map(parallelism, said)))
    return kinds.most_common(1)[0][0] if kinds else ""


def _families(job: Job, rows: Ints) -> tuple[Ints, list[tuple[str, str, str]], list[set[str]]]:
    """The family of each collective, shape (M,); and of each family its kind, group and ranks, and its dtypes."""
    call = job.matched.call[job.matched.segments.first[rows]]
    texts = [job.calls.text(name) for name in ("kind", "group", "group_ranks", "dtype")]
    codes = [text.code[call] for text in texts]
    family = numbered(*codes[:3])
    of_dtype, order = Segments.grouped(numbered(family, codes[3]))
    one = order[of_dtype.first[:-1]]
    names: list[tuple[str, str, str]] = [("", "", "")] * (int(family.max(initial=-1)) + 1)
    dtypes: list[set[str]] = [set() for _ in names]
    for number, *code in zip(family[one].tolist(), *(codes[i][one].tolist() for i in range(4)), strict=True):
        kind, group, ranks, dtype = (text.words[i] for text, i in zip(texts, code, strict=True))
        names[number] = kind, group, ranks
        dtypes[number].update(filter(None, [dtype]))
    return family, names, dtypes


def measured(job: Job, rows: Ints) -> tuple[Ints, Ints, Ints]:
    """The part that arrives last, transfer, and the waiting of all ranks together: each of shape (M,), ns."""
    matched = job.matched
    segments, part = matched.segments.select(rows)
    met, length = _met_ns(job)[part], matched.end_ns[part] - matched.arrival_ns[part]
    shortest = segments.argmin(met)
    last, transfer = part[shortest], met[shortest]
    wait = segments.sum(length - segments.each(transfer))
    rooted = matched.is_of(_ROOTED)[rows]
    if rooted.any():
        # The shortest part may be the root's, so the clocks must tell who arrived last.
        arrival, arrived = job.waiting.arrival_ns[part], job.waiting.last_ns[rows]
        last = np.where(rooted, job.waiting.last_part[rows], last)
        transfer = np.where(rooted, np.maximum(segments.max(arrival + length) - arrived, 0), transfer)
        wait = np.where(rooted, segments.sum(np.clip(segments.each(arrived) - arrival, 0, length)), wait)
    return last, transfer, wait


def _met_ns(job: Job) -> Ints:
    """How long each part runs from when it has met all the ranks that it meets, shape (P,), ns.

    Of most that is the part's length, since one of the parts arrives last. Two kernels that send and receive may both
    wait for a third, each for another one: their clocks have to say when that arrived. Clocks agree only up to the
    residual. What is within twice that of 0 is taken to be as long as the shortest kernel that the part meets.
    """
    matched = job.matched
    length = matched.end_ns - matched.arrival_ns
    apart = ~matched.segments.each(matched.together)
    if not apart.any():
        return length
    each = matched.segments.each
    shortest = np.full(len(job.calls), np.iinfo(np.int64).max)
    np.minimum.at(shortest, matched.call, each(matched.segments.min(length)))
    met = matched.end_ns - job.waiting.all_traced_arrived_ns[matched.call]
    known = met > 2 * (job.clock.residual_ns or 0)
    return np.where(apart, np.clip(met, np.where(known, 0, shortest[matched.call]), length), length)


def _exposed(job: Job, last: Ints, transfer_ns: Ints, is_rooted: Flags) -> Ints:
    """How long each transfer has no compute beside it on the rank that arrives last, shape (M,), ns.

    A part moves data until it ends, but for those of collectives with a root.
    """
    matched = job.matched
    rank, start = matched.rank[last], np.where(is_rooted, matched.arrival_ns[last], matched.end_ns[last] - transfer_ns)
    begin, end = (job.axis.place(rank, at) for at in (start, start + transfer_ns))
    return job.waiting.exposed.measure(begin, end)
