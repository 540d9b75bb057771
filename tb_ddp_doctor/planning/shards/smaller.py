"""Splits the units of a record of FSDP: which gradients a unit has tells its parts, and when backward computes each.

    unit 0 of the record    [grad a][grad b][grad c][grad d][reduce-scatter 0]      4 + 4 + 4 + 4 MiB
    units of 8 MiB          [grad a][grad b]        [grad c][grad d]
                                            [reduce-scatter 0]      [reduce-scatter 1]

Forward is assumed to compute the parts in the reverse order, with the same shares of the unit's time.

P = passes, U = units of the record, G = gradients of a pass; as in `units.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.planning.buckets import MIB
from tb_ddp_doctor.planning.record import PlanRecord
from tb_ddp_doctor.planning.refusal import CannotPlanError
from tb_ddp_doctor.planning.shards.units import Units
from tb_ddp_doctor.trace.model import Ints

#: Gradients are those of a unit if they have this share of its elements or more: the rest is padding.
_ALL = 0.98


class _Part(msgspec.Struct, frozen=True):
    """A new unit: a part of a recorded one, or all of it."""

    #: The recorded unit.
    unit: int
    #: Its last gradient, by number in the pass; -1 for the part that ends with the recorded unit.
    last: int
    #: The last gradient of the part before it in the same unit; -1 if it is the first part.
    before: int
    elements: int


def split(record: PlanRecord, recorded: Units, unit_mib: float) -> Units:
    """Units of at least so many MiB, parts of the recorded ones; the root stays whole. Raises CannotPlanError."""
    elements, ready, done = _gradients(record, recorded)
    least = unit_mib * MIB / recorded.parameter_bytes
    blocks = len(recorded.elements) - recorded.has_root
    parts: list[_Part] = []
    for unit, (first, last) in enumerate(_of_units(recorded, blocks, elements, ready[0])):
        parts += _parts(unit, int(recorded.elements[unit]), elements[first : last + 1], first, least)
    if len(parts) == blocks:
        size = wording.size(float(recorded.elements[:blocks].min()) * recorded.parameter_bytes)
        raise CannotPlanError(f"No unit of this record, of {size} or more, has several parts of {unit_mib:g} MiB.")
    if recorded.has_root:
        parts.append(_Part(blocks, -1, -1, int(recorded.elements[-1])))
    return msgspec.structs.replace(recorded, **_columns(recorded, parts, ready, done))


def _gradients(record: PlanRecord, recorded: Units) -> tuple[Ints, Ints, Ints]:
    """The elements of a pass's gradients, (G,), and when each pass's host has them and its device is done, (P, G).

    Times are ns on the common clock. Raises CannotPlanError where the record does not show the same ones in each pass.
    """
    rows, size = [], []
    for rank, step in zip(recorded.rank.tolist(), recorded.own_step.tolist(), strict=True):
        gradients = record.job.digests[int(record.ranks[rank])].gradients
        mine = np.flatnonzero(gradients.step == step)
        rows.append((int(record.ranks[rank]), gradients, mine))
        size.append(gradients.elements[mine])
    if not len(size[0]) or (size[0] <= 0).any() or any(not np.array_equal(one, size[0]) for one in size):
        least = wording.size(float(recorded.elements.min()) * recorded.parameter_bytes)
        raise CannotPlanError(
            f"The units of this record have {least} or more, and what parts of a unit compute is not in it: the "
            "sizes of gradients tell, which record_shapes=True records. Larger units can be planned."
        )
    ready, done = (
        np.stack([record.common(rank, getattr(gradients, name)[mine]) for rank, gradients, mine in rows])
        for name in ("ready_ns", "done_ns")
    )
    return size[0], ready, done


def _of_units(recorded: Units, blocks: int, elements: Ints, ready_ns: Ints) -> Iterator[tuple[int, int]]:
    """The first and the last gradient of each unit but the root, as numbers in the pass.

    They follow each other, have as many elements as the unit but for padding, and are those that the host has closest
    to the launch of the unit's reduce-scatter. Between two units may be gradients of the root. `elements` and
    `ready_ns` are those of the gradients of the first pass. Raises CannotPlanError if no gradients have as many.
    """
    total, begin = np.append(0, np.cumsum(elements)), 0
    for unit in range(blocks):
        whole = int(recorded.elements[unit])
        first = np.arange(begin, len(elements))
        last = np.searchsorted(total, total[first] + whole, side="right") - 2
        fits = (last >= first) & (total[last + 1] - total[first] >= _ALL * whole)
        if not fits.any():
            raise CannotPlanError(
                "The gradients before a ReduceScatter are not those of its unit: what parts of a unit compute is not "
                "known. Larger units can be planned."
            )
        apart = np.abs(ready_ns[last[fits]] - recorded.ready_ns[0, unit])
        best = int(np.argmin(apart))
        yield int(first[fits][best]), int(last[fits][best])
        begin = int(last[fits][best]) + 1


def _parts(unit: int, whole: int, elements: Ints, first: int, least: float) -> Iterator[_Part]:
    """The parts of `least` elements or more of a unit of `whole`, in the order of backward.

    `elements` are those of the unit's gradients, of which the first has the number `first` in the pass.
    """
    total, before, done = 0, -1, 0
    remaining = int(elements.sum())
    for number, size in enumerate(elements.tolist(), first):
        total += size
        remaining -= size
        if total >= least and remaining >= least:
            yield _Part(unit, number, before, total)
            done, before, total = done + total, number, 0
    # The last part has the padding too.
    yield _Part(unit, -1, before, whole - done)


def _columns(recorded: Units, parts: Sequence[_Part], ready: Ints, done: Ints) -> dict[str, Ints]:
    """The columns of `Units` for these parts."""
    unit = np.array([part.unit for part in parts])
    last, before = (np.array([getattr(part, name) for part in parts]) for name in ("last", "before"))
    is_first, is_last = before < 0, last < 0
    begins = np.where(is_first, recorded.backward_ns[:, unit], ready[:, before] + 1)
    ends = np.where(is_last, recorded.ready_ns[:, unit], ready[:, last])
    # Where each recorded unit's forward ends: where that of the next one begins, or backward.
    over = np.column_stack([recorded.backward_ns[:, 0], recorded.forward_ns[:, :-1]])
    start, length = recorded.forward_ns, np.maximum(over - recorded.forward_ns, 0)
    backward = np.maximum(recorded.ready_ns - recorded.backward_ns, 1)
    after = np.maximum(recorded.ready_ns[:, unit] - ends, 0) / backward[:, unit]
    at = start[:, unit] + np.rint(np.minimum(after, 1.0) * length[:, unit]).astype(np.int64)
    return {
        "elements": np.array([part.elements for part in parts]),
        "backward_ns": begins,
        "before_backward_ns": np.where(is_first, recorded.before_backward_ns[:, unit], begins),
        "ready_ns": ends,
        "done_ns": np.where(is_last, recorded.done_ns[:, unit], done[:, last]),
        "forward_ns": np.where(is_last, start[:, unit], at),
        "before_forward_ns": np.where(is_last, recorded.before_forward_ns[:, unit], at),
    }
