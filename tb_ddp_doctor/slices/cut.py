"""Cuts slices out of a job: chosen ranks, a window on the common clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np

from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.digest.model import RankOwner
from tb_ddp_doctor.discover.names import DIGEST_SUFFIX
from tb_ddp_doctor.discover.own_files import of_ranks
from tb_ddp_doctor.engine import Result
from tb_ddp_doctor.evidence.model import RankEvidence
from tb_ddp_doctor.facts.traffic import measured
from tb_ddp_doctor.findings import Evidence, Finding
from tb_ddp_doctor.job.collectives import EARLIEST, LATEST
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.slices import pick
from tb_ddp_doctor.slices.declared import Seen, allocations_of, declared, event_args
from tb_ddp_doctor.slices.model import Collective, Label, RankSlice, Slice, SliceError, SliceGpu, SliceMemory
from tb_ddp_doctor.storage.message import MessageError
from tb_ddp_doctor.storage.paths import FilePath
from tb_ddp_doctor.trace.model import Indices, Ints, NotJsonError, RankTrace, TraceError
from tb_ddp_doctor.trace.own_slice import SliceClock
from tb_ddp_doctor.workers import pool

#: Ranks of one slice: a screen shows no more, and each costs the reading of its columns.
MOST_RANKS = 16
#: Events of one slice, all ranks together, not counting the launches of those on the device.
MOST_EVENTS = 10_000
#: Ranks that are shown of a finding in a larger job: the affected, and who waits for them.
SHOWN_RANKS = 8
#: What is shown around a window is a quarter of it, within these limits.
LEAST_MARGIN_NS = 500_000
MOST_MARGIN_NS = 20_000_000
_ALWAYS = (0, int(np.iinfo(np.int64).max) // 2)


class SliceWindow(msgspec.Struct, frozen=True):
    """Where to look: ranks, and a stretch of time on the common clock."""

    ranks: tuple[int, ...]
    start_ns: int
    end_ns: int


def window(job: Job, finding: Finding, evidence: Evidence) -> SliceWindow:
    """Where a piece of evidence is seen, with the ranks that matter: those affected, then those that wait longest."""
    start, end = on_common_clock(job, evidence.rank, np.array([evidence.start_ns, evidence.end_ns])).tolist()
    if len(job.ranks) <= SHOWN_RANKS:
        return SliceWindow(tuple(job.ranks.tolist()), start, end)
    numbers = job.ranks.tolist()
    step = job.steps.tolist().index(evidence.step)
    waits = np.argsort(-job.budget.of("wait")[:, step], kind="stable")
    affected = finding.ranks[: SHOWN_RANKS // 2] if len(finding.ranks) < len(numbers) else ()
    by_interest = dict.fromkeys((evidence.rank, *affected, *(numbers[i] for i in waits)))
    return SliceWindow(tuple(sorted(list(by_interest)[:SHOWN_RANKS])), start, end)


def with_margin(seen: SliceWindow) -> SliceWindow:
    """A window with some of what is around it."""
    margin = min(max((seen.end_ns - seen.start_ns) // 4, LEAST_MARGIN_NS), MOST_MARGIN_NS)
    return SliceWindow(seen.ranks, max(seen.start_ns - margin, 0), seen.end_ns + margin)


def on_common_clock(job: Job, rank: int, busy_ns: Ints) -> Ints:
    """Instants of a rank's own clock on the common one."""
    return busy_ns - job.clock.correction(rank_index(job, rank), busy_ns)


def cut(
    result: Result, cache: Cache, chosen: SliceWindow, most_events: int | None = MOST_EVENTS, *, own_code: bool = False
) -> Slice:
    """What the chosen ranks did, as far as their traces are here; SliceError where none is.

    `most_events` None leaves nothing out, not even what lies outside of the window, and is not limited to a few ranks,
    which then must all have traces. With `own_code`, of Python functions only the user's own are there.
    """
    job = result.job
    indices = [rank_index(job, rank) for rank in chosen.ranks]
    if not indices:
        raise SliceError("Which ranks? Name at least one.")
    if most_events is not None and len(indices) > MOST_RANKS:
        raise SliceError(f"A slice holds at most {MOST_RANKS} ranks; {len(indices)} were asked for.")
    if chosen.start_ns >= chosen.end_ns:
        raise SliceError("The window ends before it starts.")
    digested = [index for index in indices if result.files[index].suffix == DIGEST_SUFFIX]
    if digested and (most_events is None or len(digested) == len(indices)):
        raise SliceError(
            f"Rank {job.ranks[digested[0]]} was read from a digest, which has no events: name the directory that has "
            "the traces."
        )
    indices = [index for index in indices if index not in digested]
    most = None if most_events is None else max(most_events // len(indices), 1)

    def ranks() -> Iterator[RankSlice]:
        for index in indices:
            yield _rank(result, cache, index, chosen, most, own_code)

    return Slice(
        run=job.name,
        start_ns=chosen.start_ns,
        end_ns=chosen.end_ns,
        ranks=ranks() if most is None else tuple(ranks()),
        labels=_labels(result, chosen),
        collectives=_collectives(job, chosen),
        own=of_ranks(
            tuple(int(job.ranks[index]) for index in indices),
            tuple(job.nodes[index] for index in indices),
            job.world_size,
        ),
    )


def whole(job: Job) -> SliceWindow:
    """All steps of a job."""
    digests = enumerate(job.digests)
    edges = [
        on_common_clock(job, int(job.ranks[i]), np.array([digest.steps.host_start_ns[0], digest.steps.end_ns[-1]]))
        for i, digest in digests
    ]
    start, end = np.stack(edges).T
    return SliceWindow(tuple(job.ranks.tolist()), int(start.min()), int(end.max()))


def rank_index(job: Job, rank: int) -> int:
    """The row of a rank in the job; SliceError where it has none."""
    rows = np.flatnonzero(job.ranks == rank)
    if not len(rows):
        raise SliceError(f"The run has no rank {rank}.")
    return int(rows[0])


def _rank(result: Result, cache: Cache, index: int, chosen: SliceWindow, most: int | None, own_code: bool) -> RankSlice:
    job, rank, digest = result.job, int(result.job.ranks[index]), result.job.digests[index]
    trace = _read_again(result, cache, index)
    edges = _ALWAYS if most is None else (chosen.start_ns, chosen.end_ns)
    start, end = (_on_own_clock(job, index, instant) for instant in edges)
    picked = pick.pick(trace, start, end, most, own_code)
    owner = pick.owners(trace, picked, digest.has_device)
    # A page shows no single allocations, and what has gaps is no trace again.
    allocations = np.empty(0, np.int64) if own_code or picked.left_out else pick.allocations(trace, start, end, most)
    lanes = pick.lanes(trace, picked, owner, trace.memory.thread[allocations])
    collective = _matches(job, index, picked, owner)

    def common(busy_ns: Ints) -> Ints:
        # No trace format has a time before zero; only traces without an epoch come near it.
        shifted: Ints = np.maximum(busy_ns - job.clock.correction(index, busy_ns), 0)
        return shifted

    order, ends, depth = pick.nest(lanes.of_event, common(picked.start_ns), common(picked.end_ns))
    args = event_args(trace, picked.row[order])
    starts = common(picked.start_ns[order])
    of = cache.event_modules(result.files[index], trace, digest).of_rows(picked.row)
    seen = Seen(picked, order, starts, ends, start, end, is_whole=most is None)
    return RankSlice(
        rank=rank,
        node=job.nodes[index],
        lanes=lanes.drawn,
        strings=trace.strings,
        lane=lanes.of_event[order],
        depth=depth,
        start_ns=starts,
        end_ns=ends,
        name=picked.name[order],
        category=picked.category[order],
        owner=owner[order],
        correlation=_joined(args.correlation),
        args=args,
        comms=trace.comms,
        collective=collective[order],
        modules=of.paths,
        module=of.module[order],
        memory=_memory(trace, start, end, common),
        gpu=_gpu(job.rank_evidence.get(rank, RankEvidence()), start, end, common),
        allocations=allocations_of(trace, allocations, lanes.of_allocation, common),
        declared=declared(rank, trace, digest, lanes.threads, _clock(job, index), seen),
        steps_end_ns=int(common(digest.steps.host_end_ns[-1:])[0]),
        left_out=picked.left_out,
    )


def _memory(trace: RankTrace, start_ns: int, end_ns: int, common: Callable[[Ints], Ints]) -> SliceMemory:
    memory = pick.memory(trace, start_ns, end_ns)
    return SliceMemory(common(memory.time_ns), memory.allocated, memory.reserved)


def _gpu(evidence: RankEvidence, start_ns: int, end_ns: int, common: Callable[[Ints], Ints]) -> SliceGpu:
    looks = pick.looks(evidence.gpu_looks, start_ns, end_ns)
    return SliceGpu(common(looks.time_ns), looks.sm_mhz, looks.power_w)


def _read_again(result: Result, cache: Cache, index: int) -> RankTrace:
    try:
        return _columns(cache, result.files[index])
    except (TraceError, MessageError, OSError, pool.CrashError) as error:
        raise SliceError(
            f"The trace of rank {result.job.ranks[index]} cannot be read again, so its events cannot be shown: {error}"
        ) from None


def _clock(job: Job, index: int) -> SliceClock:
    """What takes a rank's own instants to the common clock."""
    return SliceClock(float(job.clock.offset_ns[index]), float(job.clock.drift[index]), job.clock.origin_ns)


def _columns(cache: Cache, path: FilePath) -> RankTrace:
    """The columns of a trace, kept or read in a process of its own. Raises TraceError, OSError and pool.CrashError."""
    kept = cache.kept_columns(path, checked=False)
    if kept is None:
        size, raises = path.stat().st_size, (TraceError, NotJsonError)
        kept = pool.call(cache.keep_columns, path, size, gives=RankTrace | None, raises=raises)
    return kept or cache.columns(path, checked=False)


def _on_own_clock(job: Job, index: int, common_ns: int) -> int:
    """The instant of a rank's own clock: two steps reach it, since clocks drift by less than a thousandth."""
    instant = np.array([common_ns])
    own = instant
    for _ in range(2):
        own = instant + job.clock.correction(index, own)
    return int(own[0])


def _joined(correlation: Ints) -> Ints:
    """Correlations that two events or more have; -1 elsewhere."""
    _, which, count = np.unique(correlation, return_inverse=True, return_counts=True)
    return np.where(count[which] > 1, correlation, -1)


def _matches(job: Job, index: int, picked: pick.Picked, owner: Indices) -> Ints:
    """The row among the job's matched collectives of each event; an arrival is the start of a rank's kernel."""
    mine = np.flatnonzero(job.matched.rank == index)
    row_of = np.full(len(picked.row), -1)
    arrival = job.matched.arrival_ns[mine]
    order = np.argsort(arrival, kind="stable")
    if not len(order):
        return row_of
    communicates = np.flatnonzero(owner == RankOwner.COMMUNICATION)
    start = picked.start_ns[communicates]
    place = np.minimum(np.searchsorted(arrival[order], start), len(order) - 1)
    same = arrival[order[place]] == start
    row_of[communicates[same]] = job.matched.segments.index[mine[order[place[same]]]]
    return row_of


def _collectives(job: Job, chosen: SliceWindow) -> dict[int, Collective]:
    """What is known of the matched collectives that touch a window."""
    last_ns = job.waiting.last_ns
    matched = job.matched
    if not len(matched):
        return {}
    first_ns = matched.segments.min(job.waiting.arrival_ns)
    longest_ns = matched.segments.max(matched.end_ns - matched.arrival_ns)
    rows = np.flatnonzero((first_ns < chosen.end_ns) & (first_ns + longest_ns >= chosen.start_ns))
    segments, part = matched.segments.select(rows)
    arrives_ns, rank = job.waiting.arrival_ns[part], job.ranks[matched.rank[part]]
    shown = np.isin(rank, chosen.ranks)
    shown_first = rank[segments.argmin(np.where(shown, arrives_ns, LATEST))]
    shown_last = rank[segments.argmax(np.where(shown, arrives_ns, EARLIEST))]
    _, transfer_ns, _ = measured(job, rows)
    size = np.maximum(matched.group_size[rows], matched.parts[rows])
    return {
        row: Collective(
            kind=matched.kind[row],
            group=matched.group[row],
            bytes=int(matched.bytes[row]),
            last_rank=int(job.ranks[job.waiting.last[row]]),
            last_ns=int(last_ns[row]),
            transfer_ns=int(transfer_ns[i]),
            size=int(size[i]),
            shown_first=int(shown_first[i]),
            shown_last=int(shown_last[i]),
        )
        for i, row in enumerate(rows.tolist())
    }


def _labels(result: Result, chosen: SliceWindow) -> tuple[Label, ...]:
    """The evidence that lies in a window, on the ranks that are shown."""
    labels = []
    for finding in result.diagnosis.all_findings:
        for evidence in _of(finding.evidence, chosen.ranks):
            instants = np.array([evidence.start_ns, evidence.end_ns])
            start, end = on_common_clock(result.job, evidence.rank, instants).tolist()
            if start < chosen.end_ns and end > chosen.start_ns:
                code = f"{source.file}:{source.line} {source.function}" if (source := evidence.source) else ""
                labels.append(Label(finding.rule, evidence.rank, max(start, 0), max(end, 0), evidence.what, code))
    return tuple(labels)


def _of(evidence: Sequence[Evidence], ranks: Sequence[int]) -> Iterator[Evidence]:
    shown = set(ranks)
    return (item for item in evidence if item.rank in shown)
