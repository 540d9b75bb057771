"""From the dumps of a job to what is said of it."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from tb_ddp_doctor.findings import Confidence, FileWarning, FixParts
from tb_ddp_doctor.flight.model import COMPLETED, Dump, Ints
from tb_ddp_doctor.stuck import model, text
from tb_ddp_doctor.stuck.calls import Came, DumpedCalls, JobGroup, Op, Reached
from tb_ddp_doctor.stuck.roots import Root, reaching, roots
from tb_ddp_doctor.stuck.trusted import trusted
from tb_ddp_doctor.stuck.waits import JobWaits

#: A wait that was no longer than this when the dumps were written, s, and within the timeout, may just be a slow rank:
#: an input pipeline or a compilation takes as long.
LATE_S = 30.0
#: A wait by the time of the file that is this many timeouts long is no wait, but the age of a copy.
_COPIED = 20
#: A rank that comes this much later than usual to a collective that then completes, s, is said to.
_SAID_LATE_S = 10.0
#: More steps than any rank is from a root.
_FAR = 1 << 30
#: Half characters, as names in a dump may have that are no UTF-8.
_NO_TEXT = re.compile("[\ud800-\udfff]")


def build(
    name: str, dumps: Sequence[Dump], warnings: Sequence[FileWarning] = (), traces: Sequence[str] = ()
) -> model.StuckRun:
    """What the dumps of a job, one a rank, say of it."""
    whole, left_out = trusted(dumps)
    calls = DumpedCalls(whole)
    waits = JobWaits(calls)
    job_roots = roots(waits)
    late = [root for root in job_roots if _is_late(root, waits)]
    sure = [root for root in job_roots if root not in late]
    verdict = _verdict(calls, sure, late, waits)
    kept = job_roots if verdict == "unknown" else sure
    findings = tuple(_finding(root, f"{root.cause}:{i}", waits, verdict) for i, root in enumerate(kept, 1))
    missing = tuple(sorted({*range(calls.world_size), *(dump.rank for dump in dumps)} - set(calls.dumps)))
    return model.StuckRun(
        name=_encodable(name),
        world_size=calls.world_size,
        ranks=tuple(calls.dumps),
        missing_ranks=missing,
        hosts=tuple(_encodable(dump.host) for dump in calls.dumps.values()),
        verdict=verdict,
        headline=_headline(verdict, kept, late, waits, missing),
        findings=findings,
        waits=tuple(_ways(kept, waits)) if kept else (),
        groups=tuple(_progress(calls)),
        library=next((dump.library for dump in calls.dumps.values() if dump.library), ""),
        warnings=tuple(
            FileWarning(_encodable(one.file), _encodable(one.message), one.kind)
            for one in (*warnings, *left_out, *_doubts(_encodable(name), calls, missing))
        ),
        traces=tuple(traces),
    )


def _verdict(calls: DumpedCalls, sure: Sequence[Root], late: Sequence[Root], waits: JobWaits) -> model.Verdict:
    if any(root.cause != "stalled" or _timed_out(root, waits) for root in sure):
        return "stuck"
    if sure:
        return "unknown"
    if late:
        return "late"
    recorded = any(len(dump.entries) or dump.status for dump in calls.dumps.values())
    pending = any(calls.ops.values())
    return "unknown" if not recorded or (pending and _unknown(calls)) else "healthy"


def _headline(
    verdict: model.Verdict, job_roots: Sequence[Root], late: Sequence[Root], waits: JobWaits, missing: Sequence[int]
) -> str:
    calls = waits.calls
    match verdict:
        case "stuck":
            others = [rank for root in job_roots[1:] for rank in root.ranks]
            more = f" {_faults(len(job_roots) - 1)} beside it: {text.ranks(others)}." if others else ""
            return f"Stuck: {text.title(job_roots[0])}{more}"
        case "late":
            root = late[0]
            waited = text.seconds(_waited_at_most(root, waits) or 0.0)
            limit = f" of {text.seconds(root.op.timeout_ms / 1e3)}" if root.op.timeout_ms > 0 else ""
            wait = f"The wait was at most {waited}{limit} when the dumps were written."
            return f"Not stuck so far: {text.title(root)} {wait}"
        case "unknown" if job_roots:
            return f"Unknown: {text.title(job_roots[0])} It may be stuck, or the dumps were written while it ran."
        case "unknown":
            return "Unknown: the dumps do not show what the job waits for."
        case _:
            pending = sum(map(bool, calls.ops.values()))
            seen = f"{len(calls.dumps)} of {calls.world_size} ranks"
            if pending:
                return f"No rank is stuck: what is pending on {pending} of {seen} is on its way."
            return (
                f"No rank is stuck: {seen} completed all that they enqueued."
                if not missing
                else (f"No rank with a dump is stuck: {seen} completed all that they enqueued.")
            )


def _faults(count: int) -> str:
    return "One more fault" if count == 1 else f"{count} more faults"


def _finding(root: Root, id_: str, waits: JobWaits, verdict: model.Verdict) -> model.StuckFinding:
    calls = waits.calls
    waiting = tuple(sorted((reaching(waits, root.ranks) - set(root.ranks)) & set(calls.dumps)))
    hosts = tuple(dict.fromkeys(calls.dumps[rank].host for rank in root.ranks if rank in calls.dumps))
    hosts = tuple(_encodable(host) for host in hosts if host)
    oldest, waited = _oldest(root), _waited_at_most(root, waits)
    fix = _encodable(text.fix(root, hosts))
    return model.StuckFinding(
        id=id_,
        cause=root.cause,
        severity="critical" if verdict == "stuck" else "info",
        confidence=_confidence(root),
        ranks=root.ranks,
        hosts=hosts,
        title=_encodable(text.title(root)),
        why=_encodable(text.why(root, waiting, calls.world_size, oldest, waited)),
        fix=fix,
        fix_parts=FixParts.of(fix),
        call=_call(root, calls),
        states=tuple(_states(root, calls)),
        waiting=waiting,
        since_ns=oldest.created_ns if oldest.created_ns > 0 else None,
        waited_at_most_s=waited,
    )


def _confidence(root: Root) -> Confidence:
    if root.is_sure:
        return "high"
    return "low" if root.cause == "stalled" or (root.cause == "no-dump" and root.op.is_p2p) else "medium"


def _call(root: Root, calls: DumpedCalls) -> model.StuckCall:
    op = root.op
    return model.StuckCall(
        kind=_encodable(text.kind(op)),
        backend=op.operation.backend,
        group=_encodable(op.group.name),
        description=_encodable(op.group.description),
        ranks=op.group.ranks,
        sequence=op.sequence,
        input_sizes=op.shape.inputs,
        output_sizes=op.shape.outputs,
        dtypes=tuple(dict.fromkeys(map(_encodable, (*op.shape.input_dtypes, *op.shape.output_dtypes)))),
        site=_site(op, calls),
        timeout_s=op.timeout_ms / 1e3 if op.timeout_ms > 0 else None,
    )


def _site(op: Op, calls: DumpedCalls) -> model.CallSite | None:
    stacks = calls.dumps[op.rank].stacks
    stack = stacks[op.stack] if op.stack >= 0 else ()
    frame = next((frame for frame in stack if not frame.is_library), stack[0] if stack else None)
    return model.CallSite(_encodable(frame.file), frame.line, _encodable(frame.function)) if frame else None


def _states(root: Root, calls: DumpedCalls) -> Iterator[model.RankState]:
    call = root.call
    for rank in call.group.ranks if call else sorted({*root.ranks, root.op.rank, root.op.partner} - {-1}):
        dump = calls.dumps.get(rank)
        op = call.ops.get(rank) if call else (root.op if rank == root.op.rank else None)
        if call:
            came = call.came.get(rank, Came.UNKNOWN)
        else:
            came = Came.ENQUEUED if op else Came.NO_DUMP if dump is None else Came.ABSENT
        yield model.RankState(
            rank=rank,
            host=_encodable(dump.host) if dump else "",
            came=came.value,
            enqueued_ns=op.created_ns if op and op.created_ns > 0 else None,
            last_sign_ns=dump.last_sign_ns if dump and dump.last_sign_ns > 0 else None,
        )


def _waiting_ops(root: Root, waits: JobWaits) -> list[Op]:
    """The ops in which ranks wait for a root; its own where none does."""
    targets = set(root.ranks)
    ops = [wait.op for own in waits.of.values() for wait in own if targets & set(wait.targets)]
    return ops or [root.op]


def _oldest(root: Root) -> Op:
    """The op that waits longest where the fault shows; the fault's own where no other is pending there."""
    there = [op for rank, op in root.call.ops.items() if rank not in root.ranks] if root.call else [root.op]
    known = [op for op in there or [root.op] if op.created_ns > 0]
    return min(known, key=lambda op: op.created_ns, default=root.op)


def _waited_at_most(root: Root, waits: JobWaits) -> float | None:
    """How long the rank that waits longest had waited at most, s; None where the time of its file cannot be it."""
    dumps = waits.calls.dumps
    bounds = [
        ((dumps[op.rank].modified_ns - op.created_ns) / 1e9, op.timeout_ms / 1e3 if op.timeout_ms > 0 else 600.0)
        for op in _waiting_ops(root, waits)
        if op.created_ns > 0
    ]
    if not bounds:
        return None
    bound, timeout = max(bounds)
    return bound if 0 <= bound < _COPIED * timeout else None


def _is_late(root: Root, waits: JobWaits) -> bool:
    """Whether a rank may just be slow. What is incomplete beside partners that completed it, or differs, is not."""
    if root.cause not in ("missing", "no-dump", "stalled", "not-started", "p2p-circle"):
        return False
    waited = _waited_at_most(root, waits)
    limit = root.op.timeout_ms / 1e3 if root.op.timeout_ms > 0 else LATE_S
    return waited is not None and waited < min(LATE_S, limit)


def _timed_out(root: Root, waits: JobWaits) -> bool:
    waited = _waited_at_most(root, waits)
    return waited is not None and 0 < root.op.timeout_ms / 1e3 <= waited


def _unknown(calls: DumpedCalls) -> bool:
    return any(Came.UNKNOWN in call.came.values() for call in calls.calls.values())


def _ways(job_roots: Sequence[Root], waits: JobWaits) -> Iterator[model.RankWait]:
    """Of each rank that waits, the op that leads to a root in the fewest steps, and those that it waits for there."""
    ids = [f"{root.cause}:{i}" for i, root in enumerate(job_roots, 1)]
    ends = {id_: reaching(waits, root.ranks) | set(root.ranks) for id_, root in zip(ids, job_roots, strict=True)}
    distance = _distances({rank for root in job_roots for rank in root.ranks}, waits)
    for rank, own in sorted(waits.of.items()):
        ways = [wait for wait in own if any(target in distance for target in wait.targets)]
        if not ways:
            continue
        nearest = min(ways, key=lambda wait: (min(distance.get(t, _FAR) for t in wait.targets), wait.op.place))
        near = min(distance.get(target, _FAR) for target in nearest.targets)
        for wait in ways:
            targets = tuple(target for target in wait.targets if distance.get(target) == near)
            if wait.op is nearest.op and targets:
                yield model.RankWait(
                    rank=rank,
                    targets=targets,
                    why=wait.why,
                    what=_encodable(text.what(wait.op)),
                    call=_encodable(text.called(wait.op)),
                    kind=_encodable(text.kind(wait.op)),
                    findings=tuple(id_ for id_ in ids if rank in ends[id_]),
                )


def _distances(ends: Iterable[int], waits: JobWaits) -> dict[int, int]:
    """Steps from each rank to the nearest of these, along what it waits for."""
    waiting: dict[int, list[int]] = {}
    for rank, own in waits.of.items():
        for target in {target for wait in own for target in wait.targets}:
            waiting.setdefault(target, []).append(rank)
    distance = dict.fromkeys(ends, 0)
    ahead = deque(distance)
    while ahead:
        at = ahead.popleft()
        for rank in waiting.get(at, ()):
            if rank not in distance:
                distance[rank] = distance[at] + 1
                ahead.append(rank)
    return distance


def _progress(calls: DumpedCalls) -> Iterator[model.GroupProgress]:
    """How far each group's ranks are, groups in the order of their names."""
    groups = {id(group): group for of_rank in calls.groups.values() for group in of_rank.values()}
    for group in sorted(groups.values(), key=_in_order):
        if len(group.ranks) < 2:
            continue
        reached = [calls.reached.get(rank, {}).get(group.name, Reached(-1, -1)) for rank in group.ranks]
        front = max(one.enqueued for one in reached)
        if front < 0:
            continue
        yield model.GroupProgress(
            name=_encodable(group.name),
            description=_encodable(group.description),
            ranks=group.ranks,
            enqueued=tuple(one.enqueued for one in reached),
            completed=tuple(one.completed for one in reached),
            front=front,
        )


def _in_order(group: JobGroup) -> tuple[bool, int, str]:
    number = group.name.isdecimal() and len(group.name) < 10
    return (not number, int(group.name) if number else 0, group.name)


def _doubts(name: str, calls: DumpedCalls, missing: Sequence[int]) -> Iterator[FileWarning]:
    """What the dumps cannot tell."""
    if missing:
        yield FileWarning(
            name, f"{len(missing)} of {calls.world_size} ranks left no dump that can be read: {text.ranks(missing)}."
        )
    unknown = sorted(
        {rank for call in calls.calls.values() for rank, came in call.came.items() if came is Came.UNKNOWN}
    )
    if unknown:
        yield FileWarning(
            name,
            f"The dumps of {text.ranks(unknown)} do not tell whether they came to some collectives in which others "
            "wait: nothing is concluded from that.",
        )
    overrun = [rank for rank, dump in calls.dumps.items() if dump.is_overrun]
    if overrun:
        yield FileWarning(
            name,
            f"The ring buffers of {text.ranks(overrun)} were overrun: older entries are lost. "
            "TORCH_FR_BUFFER_SIZE sets their length.",
        )
    if calls.dumps and not calls.has_ranks:
        yield FileWarning(
            name,
            "The dumps do not list the ranks of groups (gloo's do not): those that used a group are taken, so a rank "
            "that never came to any call of a group is not missed there.",
        )
    versions = sorted({dump.version for dump in calls.dumps.values()})
    if len(versions) > 1:
        yield FileWarning(name, f"The dumps are of different versions of the recorder: {', '.join(versions)}.")
    yield from _late_arrivals(name, calls)


def _late_arrivals(name: str, calls: DumpedCalls) -> Iterator[FileWarning]:
    """Ranks that came late to a collective that completed, against their own usual lateness: clocks may differ."""
    groups: dict[int, tuple[JobGroup, dict[int, tuple[Ints, Ints]]]] = {}
    for rank, dump in calls.dumps.items():
        entries = dump.entries
        done = ~entries.is_p2p & (entries.state == COMPLETED) & (entries.created_ns > 0)
        for number in np.unique(entries.group[done]).tolist():
            group = calls.groups[rank][dump.group_names[number]]
            own = done & (entries.group == number)
            sequence, at = np.unique(entries.sequence[own], return_index=True)
            groups.setdefault(id(group), (group, {}))[1][rank] = (sequence, entries.created_ns[own][at])
    worst: tuple[float, str] | None = None
    for group, by_rank in groups.values():
        late = _latest(by_rank)
        if late and late[0] >= _SAID_LATE_S and (worst is None or late[0] > worst[0]):
            seconds, rank, number = late
            of = group.description or f"group {group.name}"
            came = f"{text.ranks([rank]).capitalize()} came {text.seconds(seconds)} later than usual"
            worst = (seconds, f"{came} to collective {number} of {of}, which then completed: slow, and not stuck.")
    if worst:
        yield FileWarning(name, worst[1])


def _latest(by_rank: Mapping[int, tuple[Ints, Ints]]) -> tuple[float, int, int] | None:
    """The largest lateness of a rank against its usual one, s, with the rank and the sequence number."""
    if len(by_rank) < 2:
        return None
    shared = next(iter(by_rank.values()))[0]
    for sequence, _ in by_rank.values():
        shared = shared[np.isin(shared, sequence)]
    if len(shared) < 3:
        return None
    ranks = list(by_rank)
    created = np.stack([at[np.searchsorted(sequence, shared)] for sequence, at in by_rank.values()])
    apart = (created - np.median(created, axis=0)) / 1e9
    apart -= np.median(apart, axis=1, keepdims=True)
    row, column = np.unravel_index(int(apart.argmax()), apart.shape)
    return float(apart[row, column]), ranks[int(row)], int(shared[column])


def _encodable(value: str) -> str:
    return _NO_TEXT.sub("\N{REPLACEMENT CHARACTER}", value)
