"""How far a job's kernels are from what its device could do: its roofline.

A call of an operator takes at least t* = max(operations / peak, bytes / bandwidth, a launch), with the operations and
compulsory bytes of `digest.operator_work` and the peaks of a calibration, else of the device's data sheet
(`facts.peaks`). What it takes beyond is time above attainable. R = ranks, S = steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import msgspec
import numpy as np
from msgspec.structs import asdict, replace

from tb_ddp_doctor import record_again, wording
from tb_ddp_doctor.calibration.model import bus_factor
from tb_ddp_doctor.digest.model import GpuTime, RankDigest
from tb_ddp_doctor.facts import Facts, MissingFactError, fact
from tb_ddp_doctor.facts.arrivals import matched_traffic
from tb_ddp_doctor.facts.expected import Expected, expected
from tb_ddp_doctor.facts.peaks import Roofs, given, roofs, with_given
from tb_ddp_doctor.facts.traffic import Traffic
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.job.row_calls import RowCalls
from tb_ddp_doctor.job.setting import setting
from tb_ddp_doctor.storage.constant import joined
from tb_ddp_doctor.trace.model import Floats, Indices, Ints
from tb_ddp_doctor.trace.names import Precision

#: The least time that a kernel is taken to need, ns. Chosen, not measured: the shortest fills in the shared traces are
#: below it.
LEAST_NS = 1_000
#: Lengths that a trace does not have leave a range of operations, and so of the least time: a call is modelled where
#: the shorter time is at least this share of the longer one, and takes the shorter one at least.
_NARROW = 0.75
_MEASURED = "as large GEMMs and copies of the calibration reach"
#: The classes whose kernels are modelled.
_Key: TypeAlias = tuple[str, str, str, str, int]
CLASSES = tuple(kind for kind in GpuTime if kind < GpuTime.NOT_MODELLED)


class KernelRoof(msgspec.Struct, frozen=True, eq=False):
    """Calls of one operator with the same inputs and the same longest kernel, on all ranks."""

    name: str
    operator: str
    #: Sizes of the first tensors, as "16x5185x64, 16x64x5185", and the type of the first; "" where that is not told.
    inputs: str
    dtype: str
    kind: GpuTime
    #: In what it multiplies (value of a `Precision`); "" of what multiplies nothing.
    precision: str
    #: Calls, their time, and the least that these would take, ns; mean over ranks and steps.
    count: float
    step_ns: float
    attainable_ns: float
    #: Of one call: operations and compulsory bytes, and what limits it: "compute", "memory" or "launch"; "" if unknown.
    flops: int
    bytes: int
    limit: str
    #: What the device could do at most, operations per second; 0 if unknown.
    peak_flops: float
    #: Whether all that one call reads and writes fits in the L2 cache.
    fits_cache: bool
    #: Whether it multiplies, reads or writes attention scores.
    on_scores: bool
    #: The rank (index) with the longest call, and that call on its own clock.
    rank: int
    start_ns: int
    end_ns: int

    @property
    def above_ns(self) -> float:
        """Time above attainable, ns; mean over ranks and steps."""
        return max(self.step_ns - self.attainable_ns, 0.0)

    @property
    def achieved_flops(self) -> float:
        """Operations per second."""
        return self.flops * self.count / self.step_ns * 1e9 if self.step_ns else 0.0

    @property
    def achieved_bandwidth(self) -> float:
        """Compulsory bytes per second."""
        return self.bytes * self.count / self.step_ns * 1e9 if self.step_ns else 0.0

    @property
    def of_attainable(self) -> float:
        """The share of the attainable speed that is reached, as recorded: beyond 1 where the cache helps."""
        return self.attainable_ns / self.step_ns if self.step_ns else 0.0


class RooflineTimes(msgspec.Struct, frozen=True, eq=False):
    """What each row of the ranks' tracks could take less, one rank's rows after the other's; ns, shape (N,)."""

    #: Above attainable; and all time of what is not modelled.
    above: Ints
    not_modelled: Ints
    #: Of attainable time: reads that fusion avoids for certain, and writes that it may avoid too.
    avoidable: Ints
    possible: Ints
    #: Of recorded time, what fusion takes away: those reads; the writes that hardly anything else needs; other writes.
    fused_reads: Ints
    fused_temporaries: Ints
    fused_writes: Ints


class RankCalls(msgspec.Struct, frozen=True, eq=False):
    """The calls of one rank, K rows of its `RooflineCalls`."""

    digest: RankDigest
    #: None where the device is not known.
    roofs: Roofs | None
    #: The least time of one call, ns; NaN where it is not modelled, shape (K,).
    attainable_ns: Floats
    #: Which of the job's `kernels` each is, shape (K,).
    kernels: Ints


class JobRoofline(msgspec.Struct, frozen=True, eq=False):
    """The roofline of a job."""

    #: Those with most time above attainable first.
    kernels: tuple[KernelRoof, ...]
    times: RooflineTimes
    rows: _JobRows
    #: What each rank's calls may take, by rank; and which of `kernels` each call is, one rank's after the other's.
    ranks: tuple[RankCalls, ...]
    kernel_of: Ints
    #: Name of the device, its peaks, and where they come from; None where they are not known.
    device: str
    roofs: Roofs | None
    #: Sentences on what could not be modelled, and on what to record.
    notes: tuple[str, ...]

    def fused_calls(self) -> Ints:
        """Calls of each rank that fusion would do within others, shape (R,)."""
        return np.array([int(one.digest.roofline.avoidable.calls.sum()) for one in self.ranks], np.int64)

    def times_without(self, removed: Floats | None) -> RooflineTimes:
        """The times of what is left once a share of each call is removed, as `Change.of_calls` has it."""
        return self.times if removed is None else _times(self.rows, removed)

    def above_by_class(self, removed: Floats | None) -> dict[GpuTime, float]:
        """What calls take above attainable, ns, all ranks' together, by class, once a share of each call is removed."""
        tables = [one.digest.roofline.calls for one in self.ranks]
        total, count = (joined([getattr(table, name) for table in tables]) for name in ("total_ns", "count"))
        above = np.fmax(total * self.rows.remains(removed) - self.rows.least_ns * count, 0.0)
        by_kind = np.bincount(self.rows.kind, above, len(GpuTime))
        return {kind: float(by_kind[kind]) for kind in CLASSES}

    def above(self, kinds: Sequence[GpuTime]) -> Ints:
        """What calls of some classes take above attainable, as `RooflineTimes` has it for all."""
        chosen = np.isin(self.rows.kind, kinds).astype(np.float64)
        return self.rows.calls.excess(self.rows.least_ns, chosen).above.astype(np.int64)


class JudgedRoofline(JobRoofline, frozen=True, eq=False):
    """One by which kernels can be judged: its device is known, and some of its kernels are modelled."""

    roofs: Roofs


@fact
def roofline(facts: Facts) -> JobRoofline:
    """The job's roofline: of a job without a device, or of an unknown one, nothing is modelled."""
    job = facts.job
    kernels, ranks = _kernels(job, *_ranks(facts))
    speeds = next((one.roofs for one in ranks if one.roofs), None)
    rows = _JobRows.of(job.row_calls, ranks)
    return JobRoofline(
        kernels=kernels,
        kernel_of=joined([one.kernels for one in ranks]),
        times=_times(rows, None),
        rows=rows,
        ranks=ranks,
        device=job.digests[0].device if job.digests else "",
        roofs=speeds,
        notes=tuple(_notes(job, speeds)),
    )


@fact
def _judged(facts: Facts) -> JudgedRoofline:
    """The job's roofline. Raises MissingFactError where no kernel can be judged by it."""
    known = facts.get(roofline)
    if known.roofs is None or all(one.kind is GpuTime.NOT_MODELLED for one in known.kernels):
        raise MissingFactError(" ".join(known.notes) or "No kernel's FLOPs and bytes are known: record shapes.")
    return JudgedRoofline(**asdict(known))


def _device(digest: RankDigest) -> tuple[str, int]:
    """Name and multiprocessors of a rank's device, as `peaks.roofs` takes them; an empty name where there is none."""
    number = next((number for number, name in digest.header.devices.items() if name == digest.device), -1)
    return digest.device if digest.has_device else "", digest.header.multiprocessors.get(number, 0)


def _roofs(device: str, multiprocessors: int, facts: Facts) -> Roofs | None:
    """The peaks of a rank's device: as the user says, else as a calibration measured, else those of the table."""
    if not device:
        return None
    table = roofs(device, multiprocessors)
    return with_given(_as_measured(table, facts.get(expected)), given(facts.job.peaks, device))


def _as_measured(table: Roofs | None, measured: Expected | None) -> Roofs | None:
    """The table's peaks, or None, with those that a calibration measured in their place."""
    if measured is None:
        return table
    rates = {one.value: rate for one in Precision if (rate := measured.gemm_rate(one.value))}
    bandwidth = measured.memory_rate()
    if not rates and not bandwidth:
        return table
    if table is None:
        return Roofs(rates, bandwidth, 0, 0.0, source=_MEASURED) if bandwidth else None
    source = f"{_MEASURED}; else {table.source}"
    return replace(table, flops={**table.flops, **rates}, bandwidth=bandwidth or table.bandwidth, source=source)


def _attainable_ns(digest: RankDigest, known: Roofs | None) -> tuple[Floats, Indices]:
    """The least time of one call of each row, ns, NaN where it is not modelled; and its class, shape (K,) both.

    A call whose operations are known in a range only is not modelled where its ends are times that are far apart. Where
    memory limits it at both ends, they are none.
    """
    calls = digest.roofline.calls
    if known is None or not len(calls) or not known.bandwidth:
        wide = calls.flops < _NARROW * calls.most_flops
        return np.full(len(calls), np.nan), np.where(wide, int(GpuTime.NOT_MODELLED), calls.kind).astype(np.int32)
    rates = np.array([known.flops.get(text, 0.0) for text in digest.strings] or [0.0])[calls.precision]
    moves = (calls.read_bytes + calls.written_bytes) / known.bandwidth

    def takes(flops: Ints) -> Floats:
        result: Floats = np.maximum(np.maximum(moves, flops / np.where(rates > 0, rates, 1.0)) * 1e9, LEAST_NS)
        return result

    least = takes(calls.flops)
    kind = np.where(least < _NARROW * takes(calls.most_flops), int(GpuTime.NOT_MODELLED), calls.kind).astype(np.int32)
    modelled = (kind < GpuTime.NOT_MODELLED) & ((calls.flops == 0) | (rates > 0))
    return np.where(modelled, least, np.nan), kind


def _times(every: _JobRows, removed: Floats | None) -> RooflineTimes:
    """The times of what is left once a share of each of the ranks' calls is removed, shape (K,)."""
    remains = every.remains(removed)
    of_rows = every.calls.excess(every.least_ns, remains)
    known = (every.calls.share > 0) & (every.bandwidth > 0)
    above, unknown = of_rows.above.astype(np.int64), np.where(known, of_rows.unknown, every.device_ns).astype(np.int64)
    remaining = np.maximum(every.device_ns - of_rows.gone - unknown, 0)
    return RooflineTimes(above, unknown, *every.fusible(remaining, above))


class _JobRows(msgspec.Struct, frozen=True, eq=False):
    """All ranks' rows and calls, N and K of them (see `RowCalls`)."""

    calls: RowCalls
    #: How long the device needs for each row, ns, and its bandwidth, bytes per second, 0 if unknown; shape (N,).
    device_ns: Ints
    bandwidth: Floats
    #: The least time of each call, ns, NaN where it is not modelled; and its class; shape (K,).
    least_ns: Floats
    kind: Indices
    ranks: tuple[RankCalls, ...]

    @classmethod
    def of(cls, calls: RowCalls, ranks: tuple[RankCalls, ...]) -> _JobRows:
        """The rows of some ranks that have these calls."""
        digests = [one.digest for one in ranks]
        bandwidth = np.array([one.roofs.bandwidth if one.roofs is not None else 0.0 for one in ranks])
        return cls(
            calls=calls,
            device_ns=np.maximum(joined([digest.track.device_ns for digest in digests]), 0),
            bandwidth=np.repeat(bandwidth, np.diff(calls.begins)),
            least_ns=joined([one.attainable_ns for one in ranks]),
            kind=joined([digest.roofline.calls.kind for digest in digests]),
            ranks=ranks,
        )

    def remains(self, removed: Floats | None) -> Floats:
        """What is left of each call once a share of it is removed, shape (K,)."""
        return np.ones(len(self.least_ns)) if removed is None else 1.0 - removed

    def fusible(self, remaining: Ints, above: Ints) -> tuple[Ints, ...]:
        """What fusion takes away of each row, as the last five of `RooflineTimes` have it, shape (N,) each.

        That is at most the row's `remaining` time, of which some is `above` attainable.
        """
        every = [one.digest.roofline.avoidable for one in self.ranks]
        row = joined([one.row for one in every]) + np.repeat(self.calls.begins[:-1], [len(one) for one in every])
        counts = self.calls.counts * (self.bandwidth > 0)

        def of_rows(name: str) -> Floats:
            moved: Floats = np.bincount(row, joined([getattr(one, name) for one in every]), len(remaining)) * counts
            return moved

        def one_after_the_other(amounts: Sequence[Floats], most: Ints) -> Iterator[Ints]:
            for amount in amounts:
                taken = np.minimum(amount, most).astype(np.int64)
                most = most - taken
                yield taken

        least = [of_rows(name) / np.maximum(self.bandwidth, 1.0) * 1e9 for name in ("read_bytes", "written_bytes")]
        read, temporary, written = (of_rows(name) for name in ("read_ns", "temporary_ns", "written_ns"))
        at_least = np.maximum(remaining - above, 0)
        took = (read, temporary, np.maximum(written - temporary, 0))
        return *one_after_the_other(least, at_least), *one_after_the_other(took, remaining)


def _ranks(facts: Facts) -> tuple[list[_Key], list[RankCalls]]:
    """What all ranks call, and each rank's calls, with their places among these.

    Most ranks of a job call the same in the same order: they share what is worked out of it.
    """
    places: dict[_Key, int] = {}
    speeds: dict[tuple[str, int], Roofs | None] = {}
    same: dict[tuple[object, ...], tuple[Floats, Ints]] = {}
    ranks = []
    for digest in facts.job.digests:
        device = _device(digest)
        if device not in speeds:
            speeds[device] = _roofs(*device, facts)
        columns = (getattr(digest.roofline.calls, name).tobytes() for name in _OF_PROGRAM)
        program = (device, digest.strings, *columns)
        if program not in same:
            attainable, kind = _attainable_ns(digest, speeds[device])
            numbers = [places.setdefault(key, len(places)) for key in _keys(digest, kind)]
            same[program] = attainable, np.array(numbers, np.int64)
        ranks.append(RankCalls(digest, speeds[device], *same[program]))
    return list(places), ranks


#: The columns of `RooflineCalls` that are equal on ranks that call the same.
_OF_PROGRAM = (
    *("name", "operator", "inputs", "dtype", "kind", "precision"),
    *("flops", "most_flops", "read_bytes", "written_bytes"),
)


def _keys(digest: RankDigest, kind: Indices) -> Iterator[_Key]:
    """What each of a rank's calls is known by on all ranks: longest kernel, operator, inputs, type and class."""
    calls, text = digest.roofline.calls, digest.strings
    columns = (calls.name, calls.operator, calls.inputs, calls.dtype)
    return zip(*([text[index] for index in column.tolist()] for column in columns), kind.tolist(), strict=True)


def _kernels(
    job: Job, keys: Sequence[_Key], ranks: Sequence[RankCalls]
) -> tuple[tuple[KernelRoof, ...], tuple[RankCalls, ...]]:
    """The calls of each key on all ranks, most time above attainable first; and the ranks, with places among these."""
    if not keys:
        return (), tuple(ranks)
    made = _summed(keys, ranks, job)
    order = sorted(
        range(len(made)),
        key=lambda i: (-made[i].above_ns, -made[i].step_ns, made[i].name, made[i].operator, made[i].inputs),
    )
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return tuple(made[i] for i in order), tuple(replace(one, kernels=place[one.kernels]) for one in ranks)


def _summed(keys: Sequence[_Key], ranks: Sequence[RankCalls], job: Job) -> list[KernelRoof]:
    """The calls of each key on all ranks, as rules get them."""
    number, cells = joined([one.kernels for one in ranks]), max(sum(len(digest.steps) for digest in job.digests), 1)
    tables = [one.digest.roofline.calls for one in ranks]
    count, total, start, end = (
        np.concatenate([getattr(table, column) for table in tables])
        for column in ("count", "total_ns", "longest_start_ns", "longest_end_ns")
    )
    least = np.concatenate([one.attainable_ns for one in ranks])
    least = np.where(np.isnan(least), total, least * count)
    counts, totals, leasts = (np.bincount(number, column, len(keys)) / cells for column in (count, total, least))
    # Of each key the longest call, the first of several.
    order = np.lexsort((start - end, number))
    longest = order[np.searchsorted(number[order], np.arange(len(keys)))]
    begins = job.row_calls.calls_begin
    at = np.searchsorted(begins, longest, side="right") - 1
    places = zip(at.tolist(), (longest - begins[at]).tolist(), strict=True)
    amounts = zip(counts.tolist(), totals.tolist(), leasts.tolist(), strict=True)
    return [
        _kernel(key, ranks[rank], rank, index, *amount)
        for key, (rank, index), amount in zip(keys, places, amounts, strict=True)
    ]


def _kernel(
    key: _Key, one: RankCalls, rank: int, index: int, count: float, step_ns: float, attainable_ns: float
) -> KernelRoof:
    """Calls of one key, by the row of the rank with the longest; their sums are means over ranks and steps."""
    name, operator, inputs, dtype, kind = key
    calls, known = one.digest.roofline.calls, one.roofs
    flops, moved = int(calls.flops[index]), int(calls.read_bytes[index] + calls.written_bytes[index])
    precision = one.digest.strings[calls.precision[index]]
    peak = known.flops.get(precision, 0.0) if known else 0.0
    bandwidth = known.bandwidth if known else 0.0
    return KernelRoof(
        name=name,
        operator=operator,
        inputs=inputs,
        dtype=dtype,
        kind=GpuTime(kind) if kind in GpuTime.__members__.values() else GpuTime.NOT_MODELLED,
        count=count,
        step_ns=step_ns,
        attainable_ns=attainable_ns,
        precision=precision,
        flops=flops,
        bytes=moved,
        limit=_limit(flops, moved, peak, bandwidth),
        peak_flops=peak,
        fits_cache=bool(known and 0 < moved <= known.cache),
        on_scores=2 * int(calls.score_products_ns[index] + calls.score_passes_ns[index]) > int(calls.total_ns[index]),
        rank=rank,
        start_ns=int(calls.longest_start_ns[index]),
        end_ns=int(calls.longest_end_ns[index]),
    )


def _limit(flops: int, moved: int, peak: float, bandwidth: float) -> str:
    """What limits a call: operations, bytes, or the time of a launch; "" where that is not known."""
    if not bandwidth or not (flops or moved):
        return ""
    computes, moves = flops / peak * 1e9 if peak else 0.0, moved / bandwidth * 1e9
    if max(computes, moves) < LEAST_NS:
        return "launch"
    return "compute" if computes > moves else "memory"


def _notes(job: Job, known: Roofs | None) -> list[str]:
    """What keeps kernels from being modelled, and what to record."""
    device = next((digest.device for digest in job.digests if digest.device), "")
    if not job.has_device:
        return ["These traces have no GPU, so nothing is modelled."]
    if known is None:
        named = device or "the GPU (the traces do not name it)"
        return [
            f"The peaks of {named} are not known: set them with --peaks half=TFLOPS,memory=TB/s, or measure them with "
            "torchrun ... -m tb_ddp_doctor.check."
        ]
    notes = []
    if not any(digest.header.has_shapes for digest in job.digests):
        notes.append(record_again.no_shapes(setting(job)))
    if known.part < 1:
        notes.append(
            f"The job sees {wording.percent(known.part)} of the multiprocessors of {device}: the GPU is shared (MIG or "
            "MPS), and its memory's bandwidth with it."
        )
    return [*notes, *_sharing(job)]


def _sharing(job: Job) -> Iterator[str]:
    """Sentences on ranks that compute on one GPU at the same time: none of them can reach its peak.

    They have one node and one device number, on a node where each sees several GPUs: of a rank that sees one GPU, as
    with CUDA_VISIBLE_DEVICES, its number says nothing.
    """
    of_devices: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for rank, digest in enumerate(job.digests):
        if job.nodes[rank] and digest.has_device and len(digest.header.devices) > 1:
            of_devices[job.nodes[rank], digest.device_number].append(rank)
    for (node, number), several in of_devices.items():
        start, end = job.budget.start_ns[several], job.budget.start_ns[several] + job.budget.window_ns[several]
        if len(several) > 1 and (start.max(axis=0) < end.min(axis=0)).any():
            named = wording.ranks([int(rank) for rank in job.ranks[several]])
            yield (
                f"{wording.capital(named)} share GPU {number} of {node}: each of them has a part of its peak, which "
                "the trace does not tell."
            )


class LinkSpeed(msgspec.Struct, frozen=True, eq=False):
    """What a job's links can do: as a calibration measured it, else the table's bandwidth between GPUs of a node."""

    measured: Expected | None
    #: None where the device has no links in the table.
    table: Roofs | None
    #: Node of each rank (index) of the job, "" where unknown.
    nodes: Sequence[str]

    @classmethod
    def of(cls, job: Job) -> LinkSpeed:
        """That of a job."""
        measured = None if job.calibration is None else Expected(job.calibration, job.nodes)
        return cls(measured, next((each for each in map(_table_roofs, job.digests) if each), None), job.nodes)

    def transfer_ns(self, traffic: Traffic) -> Floats | None:
        """How long each of these collectives takes at that speed; None where it is not known."""
        least = self.measured.transfer_ns(traffic) if self.measured else None
        return self._by_table(traffic) if least is None else least

    def bus_rate(self, traffic: Traffic) -> tuple[float, str] | None:
        """The busbw that these could have, bytes per second, and "calibration" or "table" for its source."""
        measured = self.measured.bus_rate(traffic) if self.measured else None
        if measured is not None:
            return measured, "calibration"
        return None if self._by_table(traffic) is None or self.table is None else (self.table.link, "table")

    def _by_table(self, traffic: Traffic) -> Floats | None:
        places = {self.nodes[rank] for rank in traffic.ranks.tolist()}
        if self.table is None or not self.table.link or not traffic.has_bytes or len(places) != 1 or "" in places:
            return None
        factor = bus_factor(traffic.kind, traffic.size)
        return traffic.bytes.astype(np.float64) * factor / self.table.link * 1e9


def link_excess(facts: Facts) -> Ints | None:
    """Exposed communication beyond what the links would need, shape (R, S), ns; None where their speed is not known.

    Of each rank and step, its exposed transfer times the share of all its transfer beyond the links' speed.
    """
    job = facts.job
    traffic = facts.get(matched_traffic)
    speed = LinkSpeed.of(job)
    shape = job.step_index.shape
    moves, excess, known = np.zeros(shape), np.zeros(shape), False
    for one in traffic:
        takes = np.bincount(one.step, one.transfer_ns, one.steps).astype(np.float64)
        moves[one.ranks] += takes
        least = speed.transfer_ns(one)
        if least is not None:
            known = True
            needs = np.bincount(one.step, np.minimum(least, one.transfer_ns), one.steps)
            excess[one.ranks] += takes - needs
    if not known:
        return None
    share = np.clip(excess / np.maximum(moves, 1.0), 0.0, 1.0)
    return np.rint(share * job.budget.of("transfer")).astype(np.int64)


def _table_roofs(digest: RankDigest) -> Roofs | None:
    return roofs(digest.device, 0) if digest.has_device else None
