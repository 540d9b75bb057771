"""One rank's collectives with their metadata, wherever the file keeps it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import msgspec
import numpy as np

from tb_ddp_doctor.digest.columns import searchsorted
from tb_ddp_doctor.digest.device_events import DeviceEvents
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.model import Collectives, Steps
from tb_ddp_doctor.digest.steps import step_of
from tb_ddp_doctor.digest.vocabulary import Mask, Vocabulary
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Category, Indices, Ints, RankTrace

#: More than any message has; their bytes and the sums of those still fit an int64.
MOST_ELEMENTS = 2**48
#: Of a group.
_MOST_RANKS = 1 << 20
#: Collectives of which one rank gives, or gets, a part of the larger side: NCCL counts the elements of that part.
IN_PARTS = ("all_gather", "reduce_scatter")


class CollectiveLaunches(msgspec.Struct, frozen=True, eq=False):
    """What launched each collective; columns of `Collectives`, in the order of the events."""

    step: Ints
    backward: Ints
    update: Ints


def device_collectives(host: HostCalls, device: DeviceEvents, phase: Ints, words: Vocabulary) -> Collectives:
    """Collectives of the communication kernels; `phase` is what launched each event of the device.

    Metadata is taken from the kernel, else from the `record_param_comms` that encloses the launch; what NCCL chose,
    from the kernel.
    """
    kernels = np.flatnonzero(device.communicates)
    by = _launched_by(host, device, phase == names.Phase.BACKWARD)
    rows = device.row[kernels]
    return _build(host.trace, rows, metadata(host, device, kernels), _of_events(host.trace)[rows], by, words)


def metadata(host: HostCalls, device: DeviceEvents, kernels: Ints) -> Ints:
    """The row of `CommArgs` that tells of each of some kernels: its own, or that of the launch's parent; or -1.

    A kernel of which NCCL's plugin alone tells does not name its process group: there the launch's parent goes first,
    if it names one.
    """
    rows, launch = device.row[kernels], device.launch[kernels]
    of_event, comms = _of_events(host.trace), host.trace.comms
    own = of_event[rows]
    launched = launch >= 0
    enclosed = np.full(len(rows), -1, np.int64)
    around = host.around(launch[launched], enqueues(host))
    enclosed[launched] = np.where(around >= 0, of_event[host.row[around]], -1) if len(host) else -1
    of_plugin = (own >= 0) & (enclosed >= 0)
    alone, parent = own[of_plugin], enclosed[of_plugin]
    of_plugin[of_plugin] = (comms.group[alone] < 0) & (comms.algorithm[alone] >= 0) & (comms.group[parent] >= 0)
    return np.where((own >= 0) & ~of_plugin, own, enclosed)


def _of_events(trace: RankTrace) -> Ints:
    """The row of `CommArgs` of each event; -1 without one."""
    of_event = np.full(len(trace.events), -1, np.int64)
    of_event[trace.comms.event] = np.arange(len(trace.comms))
    return of_event


def enqueues(host: HostCalls) -> Mask:
    """Which calls carry metadata of communication: they enclose its launch."""
    calls = host.index[host.trace.comms.event]
    mask = np.zeros(len(host), np.bool_)
    mask[calls[calls >= 0]] = True
    return mask


def _launched_by(host: HostCalls, device: DeviceEvents, by_backward: Mask) -> CollectiveLaunches:
    """What launched the collectives among the device's events."""
    passes = backward_passes(device, by_backward)
    begun = np.sort(host.start_ns[host.is_annotation & host.named(names.is_optimizer_step)])
    communicates = device.communicates
    instant = device.launch_ns[communicates]
    backward = searchsorted(passes, instant, side="right") - 1
    update = searchsorted(begun, instant, side="right") if len(begun) else np.full(len(instant), -1)
    return CollectiveLaunches(
        step=device.step[communicates],
        backward=np.where(by_backward[communicates], backward, -1),
        update=np.where(device.is_launched[communicates], update, -1),
    )


def backward_passes(device: DeviceEvents, by_backward: Mask) -> Ints:
    """When each backward pass begins: a run of kernels in the order of their launches that backward launched.

    A pass begins with its first launch, which may be that of an all-gather of parameters.
    """
    known = np.flatnonzero(device.is_launched & (device.computes | (device.communicates & by_backward)))
    known = known[np.argsort(device.launch_ns[known], kind="stable")]
    inside = by_backward[known]
    first = np.flatnonzero(inside & ~np.concatenate(([False], inside[:-1])))
    if not len(first):
        return np.empty(0, np.int64)
    # A run of communication alone belongs to the pass before, as an AllReduce that ends with it.
    computes = np.add.reduceat(device.computes[known] & inside, first) > 0
    return device.launch_ns[known[first[computes]]]


def host_collectives(host: HostCalls, steps: Steps, until_ns: int, words: Vocabulary) -> Collectives:
    """Collectives that the CPU carries out, "gloo:*", each of the step in which it starts; the last ends at `until_ns`.

    They run on gloo's own threads, so their metadata stands on the `record_param_comms` of the same ordinal; it is
    used only where as many were enqueued as ran.
    """
    trace, comms = host.trace, host.trace.comms
    chosen = (host.is_operator | host.is_annotation) & host.named(names.is_host_collective)
    rows = np.sort(host.row[chosen])
    rows = rows[np.argsort(trace.events.start_ns[rows], kind="stable")]
    started = trace.events.start_ns[rows]
    step = np.where(started < until_ns, step_of(started, steps.start_ns), -1)
    enqueued = np.argsort(trace.events.start_ns[comms.event], kind="stable")
    paired = len(enqueued) == len(rows)
    unknown = np.full(len(rows), -1, np.int64)
    by = CollectiveLaunches(step, unknown, unknown)
    return _build(trace, rows, enqueued if paired else unknown, unknown, by, words)


def _build(
    trace: RankTrace, rows: Ints, meta: Ints, own: Ints, by: CollectiveLaunches, words: Vocabulary
) -> Collectives:
    """The collectives that run as some events: of each, the row of `CommArgs` that tells of it, and its event's own."""
    events, comms = trace.events, trace.comms
    known = meta >= 0

    def pick(column: Ints | Indices, of: Ints = meta) -> Ints:
        picked = np.full(len(rows), -1, np.int64)
        picked[of >= 0] = column[of[of >= 0]]
        return picked

    def text(column: Ints, read: Callable[[str], str] = str) -> Indices:
        values = column.tolist()
        known = {i: words.index(read(trace.strings[i]) if i >= 0 else "") for i in dict.fromkeys(values)}
        return np.array([known[i] for i in values], np.int32)

    spelled = pick(comms.collective)
    named = np.where(spelled >= 0, spelled, events.name[rows]).tolist()
    kind_of = {name: names.collective(trace.strings[name]) for name in set(named)}
    group_ranks, group_size = pick(comms.group_ranks), pick(comms.group_size)
    elements = np.maximum(pick(comms.elements_in), pick(comms.elements_out))
    count = pick(comms.count)
    if len(of_plugin := np.flatnonzero((count >= 0) & (elements < 0))):
        unsized = of_plugin[group_size[of_plugin] < 0]
        group_size[unsized] = _listed(trace, group_ranks[unsized])
        shares = np.array([kind_of[named[i]] in IN_PARTS for i in of_plugin.tolist()], np.bool_)
        elements[of_plugin] = _counted(count[of_plugin], shares, group_size[of_plugin])
    shaped = np.full(len(rows), -1, np.int64)
    shaped[known] = events.shape[comms.event[meta[known]]]
    shaped = np.where(shaped >= 0, shaped, events.shape[rows])
    for i in np.flatnonzero((elements < 0) & (shaped >= 0)):
        # A kernel's shape is its grid, which says nothing of the message.
        if known[i] or events.category[rows[i]] != Category.KERNEL:
            elements[i] = count_elements(trace.strings[shaped[i]])
    dtype = pick(comms.dtype)
    size = np.array([names.element_bytes(trace.strings[d]) if d >= 0 else -1 for d in dtype.tolist()], np.int64)
    order = np.argsort(events.start_ns[rows], kind="stable")
    columns = Collectives(
        step=by.step.astype(np.int32),
        kind=np.array([words.index(kind_of[name]) for name in named], np.int32),
        group=text(pick(comms.group), _group_name),
        group_ranks=text(group_ranks),
        group_size=group_size,
        dtype=text(dtype, names.torch_dtype),
        elements=elements,
        bytes=np.where((elements >= 0) & (elements <= MOST_ELEMENTS) & (size > 0), elements * size, -1),
        sequence=pick(comms.sequence),
        stream=events.stream[rows].astype(np.int64),
        arrival_ns=events.start_ns[rows],
        end_ns=events.start_ns[rows] + events.duration_ns[rows],
        backward=by.backward.astype(np.int32),
        update=by.update.astype(np.int32),
        purpose=np.full(len(rows), words.index(""), np.int32),
        algorithm=text(pick(comms.algorithm, own)),
        protocol=text(pick(comms.protocol, own)),
        channels=pick(comms.channels, own),
    )
    return Collectives(*(getattr(columns, name)[order] for name in Collectives.__struct_fields__))


def _listed(trace: RankTrace, group_ranks: Ints) -> Ints:
    """How many ranks each group lists in a text such as "[0, 1]"; -1 where it lists none, or not all."""
    size = {i: len(ranks_in(trace.strings[i])) or -1 if i >= 0 else -1 for i in dict.fromkeys(group_ranks.tolist())}
    return np.array([size[i] for i in group_ranks.tolist()], np.int64)


def ranks_in(text: str) -> list[int]:
    """The ranks of a group such as "[0, 1]"; none where the text is shortened or makes no sense."""
    try:
        listed = json.loads(text)
    except (ValueError, RecursionError):
        return []
    is_ranks = isinstance(listed, list) and all(isinstance(rank, int) and 0 <= rank < _MOST_RANKS for rank in listed)
    return listed if is_ranks else []


def _group_name(text: str) -> str:
    """A process group's name, which the CUPTI monitor writes as a list with its description: ["dp", ""]."""
    if not text.startswith("["):
        return text
    try:
        listed = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return listed[0] if isinstance(listed, list) and listed and isinstance(listed[0], str) else text


def _counted(count: Ints, shares: Mask, group_size: Ints) -> Ints:
    """Elements of the larger side by NCCL's count, which is one rank's share where each has one; -1 if unknown."""
    known = (count >= 0) & (count <= MOST_ELEMENTS) & ((group_size > 0) & (group_size <= _MOST_RANKS) | ~shares)
    return np.where(known, count * np.where(shares, group_size, 1), -1)


def count_elements(dims: str) -> int:
    """Elements in the tensors of a raw "Input Dims" text such as [[[4, 2048]], []]; -1 where it makes no sense."""
    try:
        total = _elements(json.loads(dims))
    except (ValueError, RecursionError):
        return -1
    return total if 0 < total <= MOST_ELEMENTS else -1


def _elements(shapes: object) -> int:
    if not isinstance(shapes, list) or not shapes:
        return 0
    if all(isinstance(size, int) and size >= 0 for size in shapes):
        return math.prod(shapes)
    return sum(_elements(shape) for shape in shapes)
