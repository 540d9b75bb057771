"""What each operator, call and kernel of the recorded steps takes by itself, summed by name.

The host's own time of an event is its length without the events directly inside it, so that the own times of a thread
sum to what the thread was seen to do. What an operator takes on the device is what was launched directly inside it.
"""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest.collectives import Vocabulary
from tb_ddp_doctor.digest.launches import around
from tb_ddp_doctor.digest.model import Operators, Steps
from tb_ddp_doctor.digest.owners import by_name
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Category, Ints, RankTrace

#: Names kept of the host's and of the device's, the rest is summed: a rank of 4,096 may not cost a megabyte.
MOST = 96
#: The name of all steps: what they spend outside of operators, calls and annotations.
STEP = "ProfilerStep"
_HOST = (Category.OP, Category.ANNOTATION, Category.RUNTIME)


def operators(trace: RankTrace, steps: Steps, rows: Ints, launch: Ints, words: Vocabulary) -> Operators:
    """Sums by name; `rows` are the device's events of the steps, `launch` the row of each one's launch, or -1."""
    tables = [_on_host(trace, steps, rows, launch, words), _on_device(trace, rows, words)]
    return Operators(
        **{column: np.concatenate([getattr(table, column) for table in tables]) for column in Operators.__slots__}
    )


def _on_host(trace: RankTrace, steps: Steps, rows: Ints, launch: Ints, words: Vocabulary) -> Operators:
    events = trace.events
    start = events.start_ns
    chosen = np.isin(events.category, _HOST)
    if len(steps):
        chosen &= (start >= steps.host_start_ns[0]) & (start < steps.host_end_ns[-1])
    else:
        chosen[:] = False
    order = np.flatnonzero(chosen)
    end = start + events.duration_ns
    order = order[np.lexsort((-end[order], start[order], events.thread[order]))]
    outer = around(start[order], end[order], events.thread[order])
    inner = np.flatnonzero(outer >= 0)
    own = events.duration_ns[order]
    # An end may lie a rounding beyond that of what is around.
    np.subtract.at(own, outer[inner], np.minimum(end[order[inner]], end[order[outer[inner]]]) - start[order[inner]])
    place = np.full(len(events), -1, np.int64)
    place[order] = np.arange(len(order))
    launched = np.flatnonzero(launch >= 0)
    by = place[launch[launched]]
    by = np.where(by >= 0, outer[by], -1)
    device = np.zeros(len(order), np.int64)
    np.add.at(device, by[by >= 0], events.duration_ns[rows[launched[by >= 0]]])
    nothing = np.zeros(len(order), np.int64)
    return _summed(trace, order, words, 0, np.maximum(own, 0), device, nothing, nothing, nothing)


def _on_device(trace: RankTrace, rows: Ints, words: Vocabulary) -> Operators:
    events = trace.events
    length = events.duration_ns[rows]
    occupancy = np.clip(events.occupancy[rows], 0, 100)
    estimated = np.where(occupancy > 0, length, 0)
    tensor = np.where(by_name(trace, rows, names.product) == names.Product.TENSOR, length, 0)
    occupied = np.rint(length * (occupancy / 100)).astype(np.int64)
    return _summed(trace, rows, words, 1, np.zeros(len(rows), np.int64), length, estimated, occupied, tensor)


def _summed(
    trace: RankTrace,
    rows: Ints,
    words: Vocabulary,
    on_device: int,
    host_ns: Ints,
    device_ns: Ints,
    estimated_ns: Ints,
    occupied_ns: Ints,
    tensor_ns: Ints,
) -> Operators:
    used, which = _named(trace, rows)
    sums = np.zeros((6, len(used)), np.int64)
    columns = (np.ones(len(rows), np.int64), host_ns, device_ns, estimated_ns, occupied_ns, tensor_ns)
    for summed, values in zip(sums, columns, strict=True):
        np.add.at(summed, which, values)
    # Ranked by the greater of both times, so that neither a busy host nor a busy device is lost.
    order = np.argsort(-np.maximum(sums[1], sums[2]), kind="stable")
    kept, rest = order[:MOST], order[MOST:]
    texts = [used[name] for name in kept]
    told = sums[:, kept]
    if len(rest):
        texts.append("")
        told = np.concatenate((told, sums[:, rest].sum(axis=1, keepdims=True)), axis=1)
    return Operators(
        np.array([words.index(text) for text in texts], np.int32),
        np.full(len(texts), on_device, np.int32),
        *told,
    )


def _named(trace: RankTrace, rows: Ints) -> tuple[list[str], Ints]:
    """The different names of some events, and the index of each one's; all ProfilerSteps have one name."""
    distinct, which = np.unique(trace.events.name[rows], return_inverse=True)
    texts = [trace.strings[name] for name in distinct]
    texts = [STEP if names.step_number(text) is not None else text for text in texts]
    numbers: dict[str, int] = {}
    merged = np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int64)
    return list(numbers), merged[which] if len(merged) else np.empty(0, np.int64)
