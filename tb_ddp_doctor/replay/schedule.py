"""Makes a job's `Schedule`: the rows and collectives of all ranks, in the order in which a replay plays them.

1. `tracks.py` joins the tracks and collectives of all ranks.
2. `order.py` puts them in an order. Each rank plays its rows one after the other; a collective starts when its last
   rank has arrived. This order does not depend on how long anything takes, so it is computed once for all changes.
3. Here the columns are put in that order and cut into rounds. A round is played over all ranks at once, so a job of
   4,096 ranks takes as many numpy calls as one of four.

Times are ns on the common clock. R = ranks, S = steps of the job; rows and parts are those of all ranks, joined; a part
is one rank's share of a collective.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.model import CpuTime
from tb_ddp_doctor.digest.rounds import SHARED_ROUND
from tb_ddp_doctor.digest.track import BEFORE
from tb_ddp_doctor.job.beginnings import beginnings
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.job.rl_roles import between_roles, only_generate
from tb_ddp_doctor.replay.asynchronous import apart
from tb_ddp_doctor.replay.comparable import comparable
from tb_ddp_doctor.replay.guests import with_guests
from tb_ddp_doctor.replay.hand_overs import HandOvers, hand_overs
from tb_ddp_doctor.replay.host_meetings import with_host_meetings
from tb_ddp_doctor.replay.model import (
    GUEST,
    PartIndex,
    Parts,
    RankIndex,
    Round,
    RowIndex,
    Schedule,
    Some,
    Spent,
    StepFrame,
    StepIndex,
    TrackRows,
)
from tb_ddp_doctor.replay.order import Order, PlayedTogether, ordered
from tb_ddp_doctor.replay.own_requests import own_requests
from tb_ddp_doctor.replay.tied_tracks import TiedTracks, with_hand_overs
from tb_ddp_doctor.replay.tracks import RecordedTracks, Tracks, awaited, families, orders, recorded_parts, sequences
from tb_ddp_doctor.storage.column_file import give_back
from tb_ddp_doctor.storage.constant import has_one_value, is_constant
from tb_ddp_doctor.trace.model import Flags, Indices, Ints


def schedule(job: Job, *, tied: bool = True) -> Schedule:
    """The schedule of a job as it was recorded, `tied` with the hand-overs between its roles.

    Raises CircularWaitError if ranks wait for each other in a circle.
    """
    in_order = _schedule(job, None)
    if tied and (ties := hand_overs(job, in_order)):
        in_order = _schedule(job, ties)
    for digest in job.digests:
        give_back(digest.track)
    return in_order


def _schedule(job: Job, ties: HandOvers | None) -> Schedule:
    """The schedule of a job with some hand-overs between its roles."""
    recorded = RecordedTracks(job.digests)
    family, every_family = families(job.calls)
    parts, between = recorded_parts(job, recorded, family), between_roles(job)
    nobody = np.zeros(len(job.ranks), np.bool_)
    if ties and ties.asynchronous.any():
        arrival_ns = job.calls.column("arrival_ns")
        arrival_ns = arrival_ns - job.clock.correction(job.calls.rank, arrival_ns)
        parts = apart(parts, between & ties.asynchronous[job.calls.rank], arrival_ns)
    parts = with_host_meetings(job, parts)
    tracks, parts = with_guests(job, recorded, parts)
    if ties:
        tracks, parts = with_hand_overs(tracks, parts, ties)
    host_start_ns, device_start_ns = _starts(job)
    requests = own_requests(job)
    sequence = sequences(parts, every_family, job.step_index, between, only_generate(job))
    compared = comparable(job, sequence, shares_requests=requests is None)
    frame = StepFrame(
        families=every_family,
        host_start_ns=host_start_ns,
        device_start_ns=device_start_ns,
        beginnings=beginnings(job.digests, job.clock),
        repeats=all(digest.has_steps for digest in job.digests),
        most_steps=max(len(digest.steps) for digest in job.digests),
        step_index=job.step_index,
        left_out_meet=_left_out_meet(job),
        sequence=compared.same,
        but_for_length=compared.but_for_length,
        length=compared.length,
        work=compared.work,
        requests=requests,
        order=orders(tracks, parts, every_family, job.step_index),
        calls=job.row_calls,
        sending_ns=ties.sending_by_step(tracks, job.step_index) if ties else np.zeros(job.step_index.shape, np.int64),
        asynchronous=ties.asynchronous if ties else nobody,
        ahead=ties.ahead if ties else nobody,
    )
    awaits = awaited(tracks, parts, job.calls)
    if isinstance(tracks, TiedTracks):
        awaits = tracks.after_pauses(awaits, len(parts.rank) - 1)
    order = ordered(tracks, parts, awaits)
    # From here on only the ordered parts and the schedule are needed: the memory of the others is given back.
    parts = _completing(parts, order)
    return _scheduled(tracks, parts, awaits, order, frame)


def _left_out_meet(job: Job) -> bool:
    """Whether ranks meet in the steps that the job leaves out, or wait there for what others do, as in the round that a
    record begins within: True if the job leaves out none.
    """
    leaves_out = any(len(digest.steps) > len(job.steps) for digest in job.digests)
    in_rounds = any(digest.contents.steps_from == SHARED_ROUND for digest in job.digests)
    return not leaves_out or in_rounds or bool((~np.isin(job.matched.step, job.steps)).any())


def scheduled(tracks: Tracks, parts: Parts, awaits: Indices, frame: StepFrame) -> Schedule:
    """The schedule of some tracks and parts, for example those of a what-if change that replaces collectives.

    `awaits` is the part that each row awaits. Raises CircularWaitError if ranks wait for each other in a circle.
    """
    order = ordered(tracks, parts, awaits)
    return _scheduled(tracks, _completing(parts, order), awaits, order, frame)


def _scheduled(tracks: Tracks, parts: Parts, awaits: Indices, order: Order, frame: StepFrame) -> Schedule:
    """The schedule of some tracks whose order is known; `parts` are in that order already."""
    rows = _rows(tracks, awaits, frame, parts, order)
    return Schedule(
        rows=rows,
        parts=parts,
        rounds=tuple(_rounds(order.plan, rows, parts)),
        spent=_spent(tracks, places(order.rows), rows),
        frame=frame,
        recorded=places(order.rows)[tracks.recorded()],
    )


def _starts(job: Job) -> tuple[Ints, Ints]:
    """When each rank's host and device begin the first step of its record, shape (R,) each, ns on the common clock."""
    begin = np.array([(digest.steps.host_start_ns[0], digest.steps.start_ns[0]) for digest in job.digests], np.int64)
    common = begin - job.clock.correction(np.arange(len(begin))[:, None], begin)
    return common[:, 0], common[:, 1]


def _rows(tracks: Tracks, awaits: Indices, frame: StepFrame, parts: Parts, order: Order) -> TrackRows:
    """The rows in an order; `parts` are in that order already."""
    place, place_of_part = places(order.rows), places(order.parts)
    nothing = len(order.parts) - 1
    own_step, launches = tracks.column("step"), tracks.parts("launches", -1)

    def moved(values: NDArray[Any]) -> NDArray[Any]:
        return _in_order(values, order.rows)

    two = np.array([family.between_two for family in frame.families], np.bool_)
    counted = launches >= 0
    launched = place_of_part[launches[counted]]
    # Guests are calls of other rows. Ranks differ in how many they have.
    counted[counted] = ~two[parts.family[launched]] & (parts.like[launched] != GUEST)
    step, in_record = tracks.job_step(frame.step_index), moved(own_step)
    return TrackRows(
        rank=RankIndex(moved(tracks.rank)),
        own_step=StepIndex(in_record),
        step=StepIndex(in_record if np.array_equal(step, own_step) else moved(step)),
        work_ns=moved(_work(tracks)),
        blocked_by=moved(tracks.column("blocked_by")),
        blocked_ns=moved(tracks.column("blocked_ns")),
        waits=moved(tracks.column("waits")),
        queue_row=RowIndex(moved(renumbered(tracks.rows("queue_row"), place))),
        queue_before=moved(tracks.column("queue_row") == BEFORE),
        queue_tail_ns=moved(tracks.column("queue_tail_ns")),
        queue_part=PartIndex(moved(place_of_part[tracks.parts("queue_part", nothing)])),
        queue_ns=moved(tracks.column("queue_ns")),
        synced=moved(tracks.column("synced")),
        device_ns=moved(tracks.column("device_ns")),
        lead_ns=moved(tracks.column("lead_ns")),
        fed_ns=moved(tracks.column("fed_ns")),
        awaits=PartIndex(moved(place_of_part[awaits])),
        delay_ns=moved(tracks.column("delay_ns")),
        launches=PartIndex(moved(renumbered(launches, place_of_part))),
        between=moved(_since_step(counted, tracks.rank, own_step)),
    )


def _completing(parts: Parts, order: Order) -> Parts:
    """The parts in the order in which they complete, with their references to parts and rows renumbered."""
    columns: dict[str, Any] = {name: _in_order(getattr(parts, name), order.parts) for name in Parts.__struct_fields__}
    columns["after"] = places(order.parts)[columns["after"]]
    columns["needs"] = renumbered(columns["needs"], places(order.rows))
    return Parts(**columns)


def _in_order(values: NDArray[Any], order: Ints) -> NDArray[Any]:
    """A column in an order. A column with one value only is stored as that value, broadcast."""
    if is_constant(values):
        return values
    return np.broadcast_to(values[:1].copy(), values.shape) if has_one_value(values) else values[order]


def _since_step(launches: Flags, rank: Indices, step: Indices) -> Indices:
    """For each row, how many earlier rows of the same rank and step launch something.

    All of the shape (rows,), rank by rank and by time; `launches` flags the rows that launch something.
    """
    before: Ints = np.cumsum(launches) - launches
    first = np.flatnonzero((np.diff(rank, prepend=-1) != 0) | (np.diff(step, prepend=-1) != 0))
    return (before - np.repeat(before[first], np.diff(first, append=len(before)))).astype(np.int32)


def _work(tracks: Tracks) -> Ints:
    """How long the host works in each row, ns, without what blocks it at the row's end."""
    work = np.zeros(len(tracks.rank), np.int64)
    for kind in CpuTime:
        row, ns = tracks.host_times(kind)
        work[row] += ns
    return work


def _spent(tracks: Tracks, place: Indices, rows: TrackRows) -> dict[CpuTime, Spent]:
    """For each kind of work, the rows in which hosts spend time on it; `place` is the place of each row in `rows`."""
    spent = {}
    for kind in CpuTime:
        row, ns = tracks.host_times(kind)
        # A full column: as quick as sorting where few rows have such time, ten times as quick where all rows have.
        host_ns = np.zeros(len(place) if len(row) else 0, np.int64)
        host_ns[place[row]] = ns
        working = np.flatnonzero(host_ns).astype(np.int32)
        blocking = np.flatnonzero(rows.blocked_by == kind).astype(np.int32)
        spent[kind] = Spent(RowIndex(working), host_ns[working], RowIndex(blocking))
    return spent


def places(chosen: Ints, size: int | None = None) -> Indices:
    """For each of `size` items, its place among the chosen ones, -1 if it is not chosen; [2, 0, 1] gives [1, 2, 0].

    Without `size`, all items are chosen: this is the inverse of an order.
    """
    place = np.full(len(chosen) if size is None else size, -1, np.int32)
    place[chosen] = np.arange(len(chosen), dtype=np.int32)
    return place


def renumbered(indices: Indices, place: Indices) -> Indices:
    """Indices of items as their places; -1 stays."""
    return np.where(indices >= 0, place[indices], -1).astype(np.int32, copy=False) if len(place) else indices


def _rounds(plan: Sequence[PlayedTogether], rows: TrackRows, parts: Parts) -> Iterator[Round]:
    """The rounds of a plan, each with what `play.py` has to do in it.

    All columns are searched once for all rounds: a long record has thousands of rounds of few rows each.
    """
    edges = np.array([(*_edges(each.rows), *_edges(each.completed)) for each in plan], np.int64).reshape(-1, 4)
    launching = np.flatnonzero(rows.launches >= 0)
    launched = rows.launches[launching]
    some = np.searchsorted(launching, edges[:, :2])
    needing = _any(parts.needs[launched] >= 0, some)
    waits = zip(*_waits(rows, len(parts.rank) - 1, edges[:, :2]), needing, strict=True)
    start, size, mine = _collectives(parts.collective, edges[:, 2], edges[:, 3])
    rank, row, part, after = (_Column(values) for values in (rows.rank, launching, launched, parts.after))
    stretches = zip(plan, edges.tolist(), some.tolist(), mine.tolist(), waits, strict=True)
    for each, now, those, collectives, (gated, queued, blocked, needs) in stretches:
        yield Round(
            rows=each.rows,
            ranks=rank.some(now[0], now[1]),
            gated=gated,
            queued=queued,
            blocked=blocked,
            launching=row.some(those[0], those[1], less=now[0]),
            launched=part.some(those[0], those[1]),
            needing=needs,
            completed=each.completed,
            after=after.some(now[2], now[3]),
            starts=start[slice(*collectives)] - now[2],
            sizes=size[slice(*collectives)],
        )


def _waits(rows: TrackRows, nothing: int, edges: Ints) -> tuple[list[bool], list[bool], list[bool]]:
    """Of each round's rows, whether some await a part, wait for a place in a launch queue, and end blocked.

    `nothing` is the index of the part that stands for none.
    """
    queued = (rows.queue_row >= 0) | rows.queue_before | (rows.queue_part < nothing)
    return _any(rows.awaits < nothing, edges), _any(queued, edges), _any(rows.blocked_by >= 0, edges)


def _edges(stretch: slice) -> tuple[int, int]:
    return stretch.start, stretch.stop


def _any(flags: Flags, edges: Ints) -> list[bool]:
    """Whether some flag of each stretch is set, given where each begins and ends, shape (stretches, 2)."""
    before = np.zeros(len(flags) + 1, np.int32)
    np.cumsum(flags, out=before[1:])
    set_in: list[bool] = (before[edges[:, 1]] > before[edges[:, 0]]).tolist()
    return set_in


def _collectives(collective: Indices, begun: Ints, over: Ints) -> tuple[Ints, Ints, Ints]:
    """Where each collective's parts begin, how many they are, and which of these collectives are of each round.

    `begun` and `over` are where the completed parts of each round begin and end. The last array has shape (rounds, 2).
    """
    begins = np.diff(collective, prepend=-1) != 0
    completing = begun < over
    begins[begun[completing]] = collective[begun[completing]] != -1
    start = np.flatnonzero(begins)
    mine = np.searchsorted(start, np.stack((begun, over), axis=1))
    size, some = np.diff(start, append=len(collective)), mine[:, 0] < mine[:, 1]
    last = mine[some, 1] - 1
    size[last] = over[some] - start[last]
    return start, size, mine


class _Column:
    """A column of indices, of which stretches are asked for."""

    def __init__(self, values: NDArray[np.integer[Any]]) -> None:
        self._values = values
        #: How many indices up to each one are not one more than the index before.
        self._jumps = np.cumsum(np.diff(values, prepend=values[:1]) != 1, dtype=np.int32)

    def some(self, first: int, until: int, less: int = 0) -> Some:
        """Some of the indices less a number, as a slice where each is one more than the one before."""
        if first == until:
            return slice(0, 0)
        if self._jumps[first] == self._jumps[until - 1]:
            begin = int(self._values[first]) - less
            return slice(begin, begin + until - first)
        return self._values[first:until] - less if less else self._values[first:until]
