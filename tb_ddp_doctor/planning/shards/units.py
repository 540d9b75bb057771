"""Finds the units of a model that are sharded together, and when each is computed in the passes of a record.

- In a record of DistributedDataParallel, the units are the layers whose gradients' sizes repeat, and the rest is a root
  unit: as with `fully_shard` of each block and of the model. Backward shows when each unit is computed. Forward is
  assumed to compute them in the reverse order, and in the same shares of its time.
- In a record of FSDP, the units are those that it gathers. With several copies of the states (HSDP), what each unit's
  ReduceScatter leaves is reduced among these by an AllReduce.

U = units in the order in which backward completes them, P = passes of the chosen ranks. Times are ns on the common
clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from tb_ddp_doctor import record_again
from tb_ddp_doctor.facts.sharding import of_shards
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.job.setting import setting
from tb_ddp_doctor.planning.buckets import MIB, BucketLimits, last_of_buckets
from tb_ddp_doctor.planning.edits.recorded_rows import RecordedRows
from tb_ddp_doctor.planning.layers import repeated_layers
from tb_ddp_doctor.planning.record import PlanRecord
from tb_ddp_doctor.planning.refusal import CannotPlanError
from tb_ddp_doctor.trace.model import Flags, Ints
from tb_ddp_doctor.trace.names import Phase

#: Size of units if layers do not repeat and the user names no size, MiB: that of DDP's buckets.
_UNIT_MIB = 25.0

#: A part that work waits for has no kernel beside it for longer than this, ns: kernels follow each other in less.
_AWAITED_NS = 20_000


class Units(msgspec.Struct, frozen=True, eq=False):
    """The units of a record, and when they are computed.

    One pass with two blocks and a root; backward completes block 1 first; times in ms:

        unit             block 1  block 0  root
        elements             100      100    20
        forward_ns            15       12    10
        backward_ns           20       25    28
        ready_ns              25       28    30
    """

    #: Index of each pass's rank among the chosen ones, shape (P,).
    rank: Ints
    #: Index of its step in the rank's digest, shape (P,).
    own_step: Ints
    #: Index of its step in the job, shape (P,).
    step: Ints
    #: Number of the pass, from 0: the same one on all ranks that take part in it; shape (P,).
    number: Ints
    #: The same of what copies of the states do together: the same number on all ranks of all copies; shape (P,).
    number_of_copies: Ints
    #: When the host begins each unit's forward, shape (P, U).
    forward_ns: Ints
    #: When the host begins each unit's backward, shape (P, U).
    backward_ns: Ints
    #: When the host may launch a gather of the unit before its forward, shape (P, U).
    before_forward_ns: Ints
    #: When the host may launch a gather of the unit before its backward, shape (P, U).
    before_backward_ns: Ints
    #: When the host has each unit's gradients, shape (P, U).
    ready_ns: Ints
    #: When the device is done with all that was launched before that, shape (P, U).
    done_ns: Ints
    #: When the host begins what comes after backward, shape (P,).
    after_ns: Ints
    #: Elements of each unit, shape (U,).
    elements: Ints
    #: Whether the last unit is the root, which stays gathered after forward.
    has_root: bool
    #: Bytes of an element as it is gathered.
    parameter_bytes: int
    #: Bytes of an element's gradient as it is sent.
    gradient_bytes: int
    #: How long the host takes to launch an AllReduce, 0 if the record has none.
    launching_ns: int
    #: The recorded parts that gather and send the units, shape (P, recorded).
    parts: Ints
    #: The recorded parts that reduce each unit's shard among the copies of the states (HSDP), shape (P, U); (P, 0)
    #: where there is one copy.
    reduces: Ints
    #: Whether the states are sharded in the record.
    is_sharded: bool
    #: Whether the record gathers units again in backward.
    regathers: bool
    #: How many units ahead the record gathers, in forward and in backward.
    ahead: tuple[int, int]


def units(record: PlanRecord, unit_mib: float | None = None) -> Units:
    """The units of a record; `unit_mib` is their size if the user names one. Raises CannotPlanError."""
    gather, _ = of_shards(record.job)
    if gather[record.job.call_step >= 0].any():
        return _of_fsdp(record)
    return _of_ddp(record, unit_mib)


def merged(recorded: Units, unit_mib: float) -> Units | None:
    """Units of at least so many MiB, of neighbours that the record gathers one by one; the root stays alone.

    A unit of several is gathered before the first of them is computed, in forward and in backward, and its gradients
    are ready with the last one's. None if no unit is smaller.
    """
    size = recorded.elements * recorded.parameter_bytes
    blocks = len(size) - recorded.has_root
    lasts, total = [], 0
    for unit in range(blocks):
        total += int(size[unit])
        if total >= unit_mib * MIB or unit == blocks - 1:
            lasts.append(unit)
            total = 0
    if len(lasts) == blocks:
        return None
    last = np.array([*lasts, *([len(size) - 1] if recorded.has_root else [])])
    first = np.append(0, last[:-1] + 1)
    return msgspec.structs.replace(
        recorded,
        forward_ns=recorded.forward_ns[:, last],
        backward_ns=recorded.backward_ns[:, first],
        before_forward_ns=recorded.before_forward_ns[:, last],
        before_backward_ns=recorded.before_backward_ns[:, first],
        ready_ns=recorded.ready_ns[:, last],
        done_ns=recorded.done_ns[:, last],
        elements=np.add.reduceat(recorded.elements, first),
    )


def _of_ddp(record: PlanRecord, unit_mib: float | None) -> Units:
    """The units of a record of DistributedDataParallel. Raises CannotPlanError."""
    sent, gradients = record.sent, record.gradients
    elements = gradients.elements
    lasts = repeated_layers(elements) if unit_mib is None else np.empty(0, np.int64)
    has_layers = len(lasts) > 1
    if has_layers:
        before, lasts = lasts[:-1], lasts[1:]
    else:
        lasts = last_of_buckets(gradients.bytes, BucketLimits.of_cap(unit_mib or _UNIT_MIB))
        before = np.append(-1, lasts[:-1])
    total = np.append(0, np.cumsum(elements))
    size = total[lasts + 1] - total[before + 1]
    has_root = has_layers and int(size.sum()) < int(total[-1])
    if has_root:
        lasts, before = np.append(lasts, len(elements) - 1), np.append(before, len(elements) - 1)
        size = np.append(size, total[-1] - size.sum())
    passes = [one for one in gradients.passes if one.rank in set(record.ranks.tolist())]
    of_steps = {(one.rank, one.own_step) for one in passes}
    wanted = {(rank, int(step)) for rank in record.ranks.tolist() for step in record.job.step_index[rank]}
    if len(of_steps) < len(passes) or not wanted <= of_steps or _accumulates(record):
        raise CannotPlanError(
            "Some steps have several backward passes, or none: record steps of one backward pass, and use those."
        )
    begins, forward = np.array([_forward(record, one.rank, one.own_step) for one in passes]).T
    ready = sent.ready_ns
    starts = np.minimum(begins + forward, ready[:, 0])
    edges = np.column_stack([starts, ready])
    #: The share of backward that comes after each unit: the share of forward that comes before it.
    remaining = (edges[:, -1:] - edges[:, lasts + 1]) / np.maximum(edges[:, -1:] - edges[:, :1], 1)
    at = begins[:, None] + np.rint(forward[:, None] * remaining).astype(np.int64)
    parts = record.tracks.part_table
    last = sent.parts[:, -1]
    return Units(
        rank=sent.rank,
        own_step=parts.own_step[last].astype(np.int64),
        step=parts.step[last].astype(np.int64),
        number=(number := np.unique(parts.collective[last], return_inverse=True)[1]),
        number_of_copies=number,
        forward_ns=at,
        backward_ns=edges[:, before + 1],
        before_forward_ns=at,
        before_backward_ns=edges[:, before + 1],
        ready_ns=ready[:, lasts],
        done_ns=sent.done_ns[:, lasts],
        after_ns=_after(record.tracks, sent.rank, ready[:, -1], sent.parts),
        elements=size,
        has_root=has_root,
        parameter_bytes=gradients.element_bytes,
        gradient_bytes=gradients.element_bytes,
        launching_ns=int(np.median(sent.launching_ns)),
        parts=sent.parts,
        reduces=sent.parts[:, :0],
        is_sharded=False,
        regathers=False,
        ahead=(0, 0),
    )


def _accumulates(record: PlanRecord) -> bool:
    """Whether steps have more than one backward pass."""
    digest = record.job.digests[0]
    return len(np.unique(digest.gradients.backward[digest.gradients.backward >= 0])) > len(digest.steps)


def _forward(record: PlanRecord, rank: int, own_step: int) -> tuple[int, int]:
    """When a rank's host begins forward in a step, on the common clock, and how long forward takes it, ns."""
    digest = record.job.digests[rank]
    host = digest.work.phases.host_ns[own_step]
    start = record.common(rank, digest.steps.host_start_ns[own_step : own_step + 1])[0]
    if not host[Phase.FORWARD]:
        raise CannotPlanError(
            f"Where the forward pass ends is not in the trace. {record_again.operators(setting(record.job))}"
        )
    return int(start + host[Phase.LOADING]), int(host[Phase.FORWARD])


def _after(tracks: RecordedRows, rank: Ints, ready_ns: Ints, parts: Ints) -> Ints:
    """When each pass's host comes to the first work after the last gradient that waits for a collective, ns."""
    begins = ready_ns + 1
    order = np.append(tracks.first, 0)
    for i, (one, ready, mine) in enumerate(zip(rank.tolist(), ready_ns.tolist(), parts, strict=True)):
        rows = slice(order[one], order[one + 1])
        awaits = np.flatnonzero(np.isin(tracks.table.awaits[rows], mine) & (tracks.begin_ns[rows] >= ready))
        if len(awaits):
            begins[i] = max(int(tracks.begin_ns[rows][awaits[0]]), ready + 1)
    return begins


class _Pass(msgspec.Struct, frozen=True, eq=False):
    """The collectives of one pass of FSDP, rows in the rank's `Collectives`, each in order."""

    rank: int
    own_step: int
    #: AllGathers in forward.
    forward: Ints
    #: AllGathers in backward.
    backward: Ints
    #: ReduceScatters.
    scatters: Ints
    #: AllReduces of what they scatter, among the copies of the states (HSDP); empty where there is one copy.
    reduces: Ints


def _of_fsdp(record: PlanRecord) -> Units:
    """The units of a record of FSDP. Raises CannotPlanError."""
    job, tracks = record.job, record.tracks
    passes, elements = _paired_passes(record)
    place = {rank: i for i, rank in enumerate(record.ranks.tolist())}
    rank = np.array([place[one.rank] for one in passes])
    forward, backward, scatter, reduces = (
        np.array(
            [[record.part_of[place[one.rank], row] for row in getattr(one, name)] for one in passes], np.int64
        ).reshape(len(passes), -1)
        for name in ("forward", "backward", "scatters", "reduces")
    )
    launched, (last, parts) = _launched(tracks), (scatter[:, -1], tracks.part_table)
    ready, needs = tracks.issued_ns[launched[scatter]], parts.needs[scatter]
    everything = np.column_stack([forward, backward, scatter])
    computed = _computed(record, passes, rank, forward, backward, ready)
    return Units(
        rank=rank,
        own_step=parts.own_step[last].astype(np.int64),
        step=parts.step[last].astype(np.int64),
        number=(number := np.unique(parts.collective[last], return_inverse=True)[1]),
        number_of_copies=np.unique(parts.collective[reduces[:, -1]], return_inverse=True)[1]
        if reduces.size
        else number,
        forward_ns=computed.forward_ns[:, ::-1],
        backward_ns=computed.backward_ns,
        before_forward_ns=computed.before_forward_ns[:, ::-1],
        before_backward_ns=computed.before_backward_ns,
        ready_ns=ready,
        done_ns=np.where(needs >= 0, tracks.done_ns[needs], tracks.done_ns[launched[scatter]]),
        after_ns=_after(tracks, rank, ready[:, -1], np.column_stack([everything, reduces])),
        elements=elements,
        has_root=backward.shape[1] == forward.shape[1] - 1,
        parameter_bytes=_element(job, passes[0].rank, passes[0].forward[0]),
        gradient_bytes=_element(job, passes[0].rank, passes[0].scatters[0]),
        launching_ns=0,
        parts=everything,
        reduces=reduces,
        is_sharded=True,
        regathers=backward.shape[1] > 0,
        ahead=computed.ahead,
    )


class _Computed(msgspec.Struct, frozen=True, eq=False):
    """When the host begins units, and may launch their gathers; as in `Units`, but forward in the order of forward."""

    forward_ns: Ints
    backward_ns: Ints
    before_forward_ns: Ints
    before_backward_ns: Ints
    ahead: tuple[int, int]


def _computed(
    record: PlanRecord, passes: Sequence[_Pass], rank: Ints, forward: Ints, backward: Ints, ready_ns: Ints
) -> _Computed:
    """When the passes compute their units.

    `rank` is the index of each pass's rank among the chosen ones, shape (P,); `forward` and `backward` are the parts
    that gather the units, shape (P, U).
    """
    at, gate = record.tracks.issued_ns[_launched(record.tracks)], _gates(record.tracks)
    ahead = _ahead(at[forward], gate[forward]), max(int((passes[0].backward < passes[0].scatters[0]).sum()) - 1, 0)
    count = backward.shape[1]
    latest = np.minimum(at[backward[:, 0]], ready_ns[:, 0]) if count else ready_ns[:, 0]
    begun = _unblocked(record.tracks, rank, _forward_gates(at[forward], gate[forward], ahead[0], latest))
    # The last unit takes as long as those before it.
    over = begun[:, -1] + np.rint(np.median(np.diff(begun, axis=1), axis=1) if begun.shape[1] > 1 else 0).astype(
        np.int64
    )
    again = _backward_gates(at[backward], gate[backward], ahead[1], ready_ns, over)
    before = again.copy()
    before[:, :count] = _before(at[backward], again[:, :count], ahead[1])
    return _Computed(begun, again, _before(at[forward], begun, ahead[0]), before, ahead)


def _paired_passes(record: PlanRecord) -> tuple[list[_Pass], Ints]:
    """The passes of all played ranks, and the elements of their units in the order of backward.

    Raises CannotPlanError unless each pass gathers and scatters the same units, each once.
    """
    shards = ranks_of_shards(record.job)
    passes = [one for rank in record.ranks.tolist() for one in _passes(record, rank, shards)]
    shapes = {(len(one.forward), len(one.backward), len(one.scatters)) for one in passes}
    if len(passes) != len(record.ranks) * len(record.job.steps) or len(shapes) != 1:
        raise _unpaired()
    count, again, scatters = shapes.pop()
    copies = record.job.world_size // max(shards, 1)
    if copies > 1 and any(len(one.reduces) != scatters for one in passes):
        raise CannotPlanError(
            f"This job shards among {shards} ranks and has {copies} copies (HSDP), but its steps do not have one "
            "AllReduce between copies for each ReduceScatter: record steps that reduce the gradients of every unit."
        )
    table = record.job.digests[passes[0].rank].collectives
    elements = table.elements[passes[0].scatters]
    if (
        count != scatters
        or again > count
        or not np.array_equal(table.elements[passes[0].forward][::-1], elements)
        or not np.array_equal(table.elements[passes[0].backward], elements[:again])
        or (elements <= 0).any()
    ):
        raise _unpaired()
    return passes, elements


def _passes(record: PlanRecord, rank: int, shards: int) -> Iterator[_Pass]:
    """The passes of a rank, one in each of the job's steps that has collectives of shards.

    Forward gathers each unit once, and backward scatters each once: further gathers are those of backward.
    """
    job, table = record.job, record.job.digests[rank].collectives
    here = job.calls.of(rank)
    step = job.call_step[here]
    gather, scatter = (chosen[here] & (step >= 0) for chosen in of_shards(job))
    reduce, group = _between_copies(job, rank, shards), job.calls.text("group").code[here].astype(np.int64)
    for each in np.unique(step[gather | scatter]).tolist():
        gathers, scatters = (np.flatnonzero(chosen & (step == each)) for chosen in (gather, scatter))
        if len(gathers) and len(scatters):
            count = len(scatters)
            after = np.flatnonzero(reduce & (step == each))
            reduces = _of_one_group(after[after > scatters[0]], group, count)
            yield _Pass(rank, int(table.step[gathers[0]]), gathers[:count], gathers[count:], scatters, reduces)


def _between_copies(job: Job, rank: int, shards: int) -> Flags:
    """Which of a rank's calls are AllReduces among as many ranks as there are copies of the states; none for one."""
    here = job.calls.of(rank)
    kind = job.calls.text("kind").where("all_reduce".__eq__)[here]
    copies = job.world_size // max(shards, 1)
    reduces: Flags = kind & (job.calls.column("group_size")[here] == copies) & (copies > 1)
    return reduces


def _of_one_group(rows: Ints, group: Ints, count: int) -> Ints:
    """The first `count` of the rows that are of one process group; none if no group has so many, or several have.

    Further ones of that group come after backward, such as the AllReduce of a loss.
    """
    sizes = np.bincount(group[rows], minlength=1)
    many = np.flatnonzero(sizes >= count)
    if len(many) > 1:
        many = np.flatnonzero(sizes == count)
    return rows[group[rows] == many[0]][:count] if len(many) == 1 else rows[:0]


def ranks_of_shards(job: Job) -> int:
    """How many ranks store one copy of the states: those of the groups that gather."""
    gather, _ = of_shards(job)
    size = job.calls.column("group_size")[gather & (job.call_step >= 0)]
    known = size[size > 0]
    return int(np.median(known)) if len(known) else job.world_size


def _unpaired() -> CannotPlanError:
    return CannotPlanError(
        "The AllGathers and ReduceScatters of the steps do not pair up as one forward and one backward pass of FSDP "
        "has them: record steps of one pass each, without activation checkpointing of sharded units."
    )


def _launched(tracks: RecordedRows) -> Ints:
    """The row that launches each part; row 0 if none does."""
    row = np.zeros(len(tracks.part_table.rank), np.int64)
    launching = np.flatnonzero(tracks.table.launches >= 0)
    row[tracks.table.launches[launching]] = launching
    return row


def _gates(tracks: RecordedRows) -> Ints:
    """When the host begins the work that waits for each part, ns; -1 where the record shows no such work.

    It shows none for a part that is over before the work begins. A kernel may start just then by chance: so a part that
    always has a kernel beside it is waited for by none.
    """
    at = np.full(len(tracks.part_table.rank), -1)
    awaiting = np.flatnonzero(tracks.table.awaits < len(at) - 1)[::-1]
    at[tracks.table.awaits[awaiting]] = tracks.begin_ns[awaiting]
    return np.where(tracks.part_table.exposed_ns > _AWAITED_NS, at, -1)


def _forward_gates(launched_ns: Ints, gate_ns: Ints, ahead: int, over_ns: Ints) -> Ints:
    """When the host begins each unit's forward, in their order, shape (P, U), ns.

    Where no work is seen to wait for a unit's gather, that is when it has launched the gather `ahead` units on. The
    last units have none: each takes as long as the median of those before it. `over_ns` is when forward is over at the
    latest, shape (P,).

        gather 0, gather 1, unit 0, gather 2, unit 1, gather 3, unit 2, unit 3    1 ahead: unit 1 is behind gather 2
    """
    count = launched_ns.shape[1]
    known = max(count - ahead, 1)
    guess = np.repeat(launched_ns[:, -1:] + 1, count, axis=1)
    guess[:, :known] = launched_ns[:, count - known :] + 1
    each = np.median(np.diff(guess[:, :known], axis=1), axis=1) if known > 1 else np.zeros(len(guess))
    guess[:, known:] = guess[:, known - 1 : known] + np.rint(each[:, None] * np.arange(1, count - known + 1))
    begin = np.where(gate_ns >= 0, gate_ns, guess)
    # A kernel that begins by chance when a gather is over is not the unit's, if its gathers ahead come after it.
    begin[:, :known] = np.maximum(begin, guess)[:, :known]
    begin = np.maximum(np.minimum(begin, over_ns[:, None]), launched_ns + 1)
    return _in_order(begin)


def _backward_gates(launched_ns: Ints, gate_ns: Ints, ahead: int, ready_ns: Ints, over_ns: Ints) -> Ints:
    """When the host begins each unit's backward, in their order, shape (P, U), ns.

    Where no work is seen to wait for a unit's gather, that is after the gradients of the unit before are sent and the
    gather `ahead` units on is launched. `launched_ns` and `gate_ns` have only the units that are gathered again;
    `over_ns` is when forward is over, shape (P,).
    """
    begin = np.column_stack([np.minimum(over_ns, ready_ns[:, 0] - 1), ready_ns[:, :-1]]) + 1
    again = launched_ns.shape[1]
    following = launched_ns[:, ahead:] + 1
    begin[:, : following.shape[1]] = np.maximum(begin[:, : following.shape[1]], following)
    begin[:, :again] = np.maximum(begin[:, :again], np.maximum(gate_ns, launched_ns + 1))
    return _in_order(begin)


def _unblocked(tracks: RecordedRows, rank: Ints, at_ns: Ints) -> Ints:
    """Times of the hosts of some ranks, shape (P, U), ns; those within a call that blocks the host moved to its end."""
    free: Ints = at_ns.copy()
    for one, (index, times) in enumerate(zip(rank.tolist(), at_ns, strict=True)):
        rows = slice(tracks.first[index], tracks.first[index + 1])
        begin, issued = tracks.begin_ns[rows], tracks.issued_ns[rows]
        row = np.maximum(np.searchsorted(begin, times, side="right") - 1, 0)
        following = np.append(begin, times.max())[row + 1]
        free[one] = np.where(times > issued[row], np.maximum(following, times), times)
    return free


def _in_order(at_ns: Ints) -> Ints:
    """Times of units, shape (P, U), none of them before that of an earlier unit."""
    return np.maximum.accumulate(at_ns, axis=1)


def _element(job: Job, rank: int, row: int) -> int:
    table = job.digests[rank].collectives
    return max(int(table.bytes[row] // table.elements[row]), 1)


def _before(launched_ns: Ints, gate_ns: Ints, ahead: int) -> Ints:
    """When the host may launch each unit's gather before it computes the unit, in their order, ns.

    That is when it launches the gather of the unit that comes `ahead` units earlier.
    """
    before = gate_ns.copy()
    count = max(launched_ns.shape[1] - ahead, 0)
    before[:, :count] = launched_ns[:, ahead:]
    before[:, :1] = launched_ns[:, :1]
    earliest: Ints = np.minimum(before, gate_ns)
    return earliest


def _ahead(launched_ns: Ints, gate_ns: Ints) -> int:
    """How many units ahead forward gathers: the median number of further gathers launched before a unit is computed.

    Units count for which work is seen to wait. The last ones have no further gathers.
    """
    known, count = gate_ns >= 0, launched_ns.shape[1]
    further = (launched_ns[:, None, :] > launched_ns[:, :, None]) & (launched_ns[:, None, :] <= gate_ns[:, :, None])
    ahead = int(np.median(further[:, :1].sum(axis=2)[known[:, :1]])) if known[:, 0].any() else 0
    for _ in range(count):
        known[:, max(count - ahead, 1) :] = False
        median = int(np.median(further.sum(axis=2)[known])) if known.any() else 0
        if median >= ahead:
            return ahead
        ahead = median
    return ahead
