"""Whether a digest that came from elsewhere is one: its columns fit each other, and point to what is there.

A file may have the right types and checksums and still point behind the end of a table, which would be an exception, or
another rank's number, far from where it was read. Times and counts are taken as they are, if sums of them fit 64 bits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple, get_args, get_type_hints

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.digest.module_paths import MOST_LEVELS
from tb_ddp_doctor.digest.modules import MOST_MODULES
from tb_ddp_doctor.storage.array_type import element_type
from tb_ddp_doctor.trace.model import MOST_HEADER_LETTERS, Indices

#: What columns point into: `Steps`, `Collectives` (and `HostMeetings` after them), the rows of `Track` and of
#: `ModuleTimes` and `ModuleKernels` (and `ModuleTimes` after them), `RankDigest.strings`; and those that are flags.
INTO = {
    "steps": (
        "pieces.step collectives.step messages.step track.step gradients.step op_stalls.step gap_ops.step "
        "host_meetings.step"
    ),
    "collectives": "track.awaits track.after track.follows message_ends.call",
    "collectives and host meetings": "track.queue_part track.launches",
    "track": "track.host.row track.queue_row track.needs roofline.rows.row roofline.avoidable.row",
    "calls": "roofline.stretches.call modules.work.call",
    "stretches": "roofline.rows.first roofline.rows.end",
    # Never missing: "" is a string as well.
    "strings of calls": (
        "collectives.kind collectives.group collectives.group_ranks collectives.dtype collectives.purpose "
        "collectives.algorithm collectives.protocol host_meetings.kind"
    ),
    "strings": (
        "kernels.name kernels.shape kernels.inputs operators.name blocking.call blocking.op blocking.own "
        "stalled.doing stalled.own op_stalls.op op_stalls.call op_stalls.kernel gap_ops.kernel gap_ops.before "
        "gap_ops.after message_ends.group code.function gradients.module memory.largest.op roofline.calls.name "
        "roofline.calls.operator roofline.calls.inputs roofline.calls.dtype roofline.calls.precision "
        "memory.largest.module memory.largest.own memory.kept.op memory.kept.own memory.modules.module "
        "modules.paths.name modules.kernels.operator modules.kernels.kernel modules.kernels.function blocking.module "
        "op_stalls.module"
    ),
    "modules": "modules.paths.parent modules.times.module modules.memory.module modules.gradients.module",
    "times of modules": "modules.kernels.of",
    "kernels of modules": "modules.work.of",
    "kernels and times of modules": "modules.segments.of",
    "flags": "messages.sent message_ends.sent operators.on_device modules.times.recomputed",
    # Which backward pass, and how many updates before: numbers without a table.
    "": "collectives.backward collectives.update gradients.backward modules.segments.segment",
}
#: Of `Memory`: columns of a length that no other has, and those of the series.
_ALONE = {"memory.end_allocated"}
_SERIES = {"memory.time_ns", "memory.allocated", "memory.reserved", "memory.series"}
#: Missing is -1; `track.BEFORE`, before all rows, is -2.
_LEAST = -2
_NEVER_MISSING = "strings of calls"
#: Beyond, a sum of two would not fit 64 bits.
_MOST = 1 << 62


class InvalidError(ValueError):
    """A digest that is none. Its text is the end of a sentence."""


class ColumnType(NamedTuple):
    """A column of a digest."""

    #: As "track.host.row".
    path: str
    dtype: np.dtype[Any]
    #: The enumeration that it holds, or whose members are its second axis.
    members: type[Enum] | None


@cache
def columns(kind: type[msgspec.Struct] = RankDigest, before: str = "") -> tuple[ColumnType, ...]:
    """All columns of a digest, in the order of its fields."""
    return tuple(_columns(kind, before))


def _columns(kind: type[msgspec.Struct], before: str) -> Iterator[ColumnType]:
    for name, hint in get_type_hints(kind, include_extras=True).items():
        plain, *more = get_args(hint) if hasattr(hint, "__metadata__") else (hint,)
        if (dtype := element_type(plain)) is not None:
            members = next((one for one in more if isinstance(one, type) and issubclass(one, Enum)), None)
            yield ColumnType(f"{before}{name}", dtype, members)
        elif isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            yield from columns(hint, f"{before}{name}.")


@cache
def _all() -> attrgetter[tuple[NDArray[Any], ...]]:
    return attrgetter(*(column.path for column in columns()))


def check(digest: RankDigest) -> None:
    """Raise InvalidError unless the columns of a digest fit each other and point to what is there."""
    arrays = dict(zip((column.path for column in columns()), _all()(digest), strict=True))
    _check_lengths(digest, arrays)
    sizes = {
        "steps": len(digest.steps),
        "collectives": len(digest.collectives),
        "collectives and host meetings": len(digest.collectives) + len(digest.host_meetings),
        "track": len(digest.track),
        "calls": len(digest.roofline.calls),
        # The end of a row's calls may be that of all.
        "stretches": len(digest.roofline.stretches) + 1,
        "modules": len(digest.modules.paths),
        "times of modules": len(digest.modules.times),
        "kernels of modules": len(digest.modules.kernels),
        "kernels and times of modules": len(digest.modules.kernels) + len(digest.modules.times),
        _NEVER_MISSING: len(digest.strings),
        "strings": len(digest.strings),
        "flags": 2,
    }
    for what, size in sizes.items():
        least = 0 if what == _NEVER_MISSING else _LEAST
        _check_range([arrays[path] for path in INTO[what].split()], size, what, least=least)
    modules = digest.modules
    work = modules.work
    of_modules = (modules.times.module, modules.memory.module, modules.gradients.module)
    if any((column < 0).any() for column in (*of_modules, modules.kernels.of, work.of, work.call, modules.segments.of)):
        raise InvalidError("its modules are no tree")
    rows = digest.roofline.rows
    if (rows.first < 0).any() or (rows.end < rows.first).any():
        raise InvalidError("its rows have no calls")
    _check_tree(modules.paths.parent)
    _check_texts(digest)
    of_kind = defaultdict(list)
    for column in columns():
        if column.members and arrays[column.path].ndim == 1:
            of_kind[column.members].append(arrays[column.path])
    for members, of in of_kind.items():
        _check_range(of, len(members), members.__name__, least=_LEAST)
    numbers = np.concatenate([array.reshape(-1) for array in arrays.values() if array.dtype == np.int64])
    if len(numbers) and not (numbers.min() >= -_MOST and numbers.max() <= _MOST):
        raise InvalidError("it has numbers of more than 62 bits")


def _check_tree(parent: Indices) -> None:
    """Modules are as many, and lie as deep in each other, as a trace's may: a path is as long as it is deep."""
    if len(parent) > MOST_MODULES:
        raise InvalidError(f"it has {len(parent):,} modules")
    if not len(parent) or (parent >= np.arange(len(parent))).any():
        raise InvalidError("its modules are no tree")
    levels = [0]
    for around in parent[1:].tolist():
        levels.append(levels[max(around, 0)] + 1)
    if max(levels) > MOST_LEVELS:
        raise InvalidError(f"its modules lie {max(levels):,} deep in each other")


def _check_texts(digest: RankDigest) -> None:
    """What a trace's header says is no longer than the reader lets it be."""
    header = digest.header
    named = (*header.devices.values(), *header.groups, *header.group_descriptions, *header.group_descriptions.values())
    texts = (digest.device, digest.loader, digest.modules.named_by, header.host, header.backend, *named)
    longest = max(map(len, texts))
    if longest > MOST_HEADER_LETTERS:
        raise InvalidError(f"its header has a text of {longest:,} letters")


def _check_range(arrays: list[NDArray[Any]], size: int, what: str, *, least: int) -> None:
    values = np.concatenate(arrays)
    wrong = values[(values < least) | (values >= size)]
    if len(wrong):
        raise InvalidError(f"it points to entry {wrong[0]:,} of {size:,} {what}")


def _check_lengths(digest: RankDigest, arrays: dict[str, NDArray[Any]]) -> None:
    """Columns of a table are as long as each other, those of steps as many as there are steps."""
    lengths: defaultdict[str, set[int]] = defaultdict(set)
    steps = len(digest.steps)
    for column in columns():
        array, table = arrays[column.path], column.path.rpartition(".")[0]
        if array.dtype != column.dtype or array.ndim not in (1, 2):
            raise InvalidError(f"{column.path} is no column of {column.dtype}")
        if array.ndim == 2 and (column.members is None or array.shape[1] != len(column.members)):
            raise InvalidError(f"{column.path} has {array.shape[1]} columns")
        if column.path in _SERIES:
            table = "series"
        elif table == "memory" or table.partition(".")[0] == "work":
            table = "steps"
        if column.path not in _ALONE:
            lengths[table].add(array.shape[0])
    lengths["steps"].add(steps)
    for table, rows in lengths.items():
        if len(rows) > 1:
            raise InvalidError(f"the columns of {table} have {min(rows):,} to {max(rows):,} values")
