"""Modules as stacks for the viewers of profiles: pprof's protobuf, and collapsed stacks (speedscope, flamegraph.pl).

A stack is the run, the modules from the outermost on by their whole paths, what the time is (forward, backward and so
on), the user's function where stacks were recorded, the operator and the kernel. Its amounts are means over steps of a
rank: time; how often it runs; what it has of the critical path, which leads through all ranks; and, where the traces
have sizes of inputs, time above attainable, FLOPs and bytes. What of the path lies in no kernel is a stack of its own.
pprof has all of them as sample types (`pprof -sample_index=above`), collapsed stacks have one. In pprof the rank is a
label (`pprof -tagfocus rank=3:3`), in collapsed stacks the first frame below the run where there are several ranks.

Of the protobuf (https://github.com/google/pprof/blob/main/proto/profile.proto) sample types, samples with labels,
locations, functions and strings are written; there are no addresses, mappings or lines.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np

from tb_ddp_doctor.account.module_path import path_of
from tb_ddp_doctor.account.module_work import module_work
from tb_ddp_doctor.engine import Result
from tb_ddp_doctor.facts import Facts, MissingFactError
from tb_ddp_doctor.facts.modules import ModuleKernelTable, ModulePart, kernel_table, modules
from tb_ddp_doctor.storage.wire import BYTES, NUMBER, encoded
from tb_ddp_doctor.trace.model import Ints

#: What the time of each part is called in a stack.
NAMES = {
    ModulePart.FORWARD: "forward",
    ModulePart.BACKWARD: "backward",
    ModulePart.RECOMPUTED: "recomputed forward",
    ModulePart.OTHER: "outside forward/backward",
    ModulePart.COMMUNICATION: "exposed communication and wait",
    ModulePart.IDLE: "GPU idle",
}
#: Fields of the messages of profile.proto.
_SAMPLE_TYPE, _SAMPLE, _LOCATION, _FUNCTION, _STRING, _DEFAULT_TYPE = 1, 2, 4, 5, 6, 14
#: What can be asked of a stack: its unit in pprof.
AMOUNTS = {
    "time": "nanoseconds",
    "launches": "count",
    "above": "nanoseconds",
    "flops": "count",
    "bytes": "bytes",
    "critical": "nanoseconds",
}
#: Those that all traces have, and those of traces with the sizes of operators' inputs.
_ALWAYS = ("time", "launches")
_WORK = ("above", "flops", "bytes")
_OUTSIDE = "outside of all kernels"


class ModuleStack(msgspec.Struct, frozen=True):
    """What a kernel of a module takes and does in a step on a rank."""

    #: From the run on.
    frames: tuple[str, ...]
    rank: int
    #: By name, as in `AMOUNTS`: time in ns and how often it runs; and where it is known of the run, time above
    #: attainable in ns, floating-point operations and bytes, and what of a step's critical path lies in it, ns.
    amounts: Mapping[str, int]


def stacks(results: Sequence[Result], rank: int | None) -> list[ModuleStack]:
    """The stacks of the runs whose traces name modules, of all ranks or of one.

    Raises MissingFactError where no run names any, or has the rank.
    """
    parts: list[ModuleStack] = []
    missing = [f"There is no rank {rank} in these runs."]
    for result in results:
        try:
            parts += _of_run(result, rank)
        except MissingFactError as error:
            missing = [str(error)]
    if not parts:
        raise MissingFactError(missing[0])
    return parts


def _of_run(result: Result, rank: int | None) -> Iterator[ModuleStack]:
    tree = modules(result.job.digests)
    frames: list[tuple[str, ...]] = []
    for path, parent in zip(tree.path, tree.parent.tolist(), strict=True):
        frames.append((*frames[parent], path) if parent >= 0 else (result.job.name,))
    table = kernel_table(tree, result.job.digests)
    named = zip(table.function, table.operator, table.kernel, strict=True)
    of_row = [tuple(filter(None, texts)) for texts in named]
    within = zip(table.module.tolist(), table.part.tolist(), of_row, strict=True)
    stack = [(*frames[module], NAMES[ModulePart(part)], *texts) for module, part, texts in within]
    stack.append((*frames[0], _OUTSIDE))
    amounts = _amounts(result, table)
    for row, number in enumerate(result.job.ranks.tolist()):
        if rank in (None, number):
            of_rank = {name: column[row].tolist() for name, column in amounts.items()}
            counts = amounts["time"][row] > 0
            if "critical" in amounts:
                counts |= amounts["critical"][row] > 0
            for at in counts.nonzero()[0].tolist():
                yield ModuleStack(stack[at], number, {name: column[at] for name, column in of_rank.items()})


def _amounts(result: Result, table: ModuleKernelTable) -> dict[str, Ints]:
    """The amounts of each row of the table and, in the last column, of what is in no kernel, shape (R, K + 1)."""
    columns = {"time": table.step_ns, "launches": table.events}
    work = module_work(Facts(result.job))
    if work is not None and work.kernels.bytes.any():
        columns |= dict(zip(_WORK, (work.kernels.above_ns, work.kernels.flops, work.kernels.bytes), strict=True))
    amounts = {name: np.pad(column, ((0, 0), (0, 1))) for name, column in columns.items()}
    path = path_of(result.savings, table) if result.diagnosis.critical_path else None
    if path is not None:
        amounts["critical"] = path.of_ranks(table)
    return {name: column.round().astype(np.int64) for name, column in amounts.items()}


def collapsed(parts: Sequence[ModuleStack], amount: str = "time") -> bytes:
    """The stacks as text: a line for each, frames between semicolons, and one of `AMOUNTS`.

    Stacks without that amount are left out. Raises MissingFactError where it is not known of any.
    """
    several = len({one.rank for one in parts}) > 1
    if not any(amount in one.amounts for one in parts):
        if amount in _WORK:
            sentence = f"No trace has the sizes of operators' inputs (record_shapes=True), and so no {amount}."
        else:
            sentence = "The traces show no critical path."
        raise MissingFactError(sentence)
    lines = []
    for one in parts:
        if not one.amounts.get(amount):
            continue
        run, *others = (_frame(frame) for frame in one.frames)
        between = [f"rank {one.rank}"] if several else []
        lines.append(f"{';'.join((run, *between, *others))} {one.amounts[amount]}\n")
    return "".join(lines).encode(errors="replace")


def _frame(name: str) -> str:
    """A name without what separates frames and lines."""
    return "".join(letter if letter.isprintable() and letter != ";" else "_" for letter in name)


def pprof(parts: Sequence[ModuleStack]) -> bytes:
    """The stacks as pprof reads them, compressed. What is not known of all runs is left out."""
    known = [name for name in AMOUNTS if name in _ALWAYS or (parts and all(name in one.amounts for one in parts))]
    strings: dict[str, int] = {"": 0}

    def text(name: str) -> int:
        return strings.setdefault(name, len(strings))

    places: dict[str, int] = {}
    label, samples = text("rank"), []
    for one in parts:
        # The innermost frame comes first.
        at = [places.setdefault(frame, len(places) + 1) for frame in reversed(one.frames)]
        ids, values = b"".join(map(encoded, at)), b"".join(encoded(one.amounts[name]) for name in known)
        samples.append(_message(_SAMPLE, (1, ids), (2, values), (3, _fields((1, label), (3, one.rank)))))
    kinds = [_message(_SAMPLE_TYPE, (1, text(name)), (2, text(AMOUNTS[name]))) for name in known]
    default = _field(_DEFAULT_TYPE, text("time"))
    locations = [_message(_LOCATION, (1, number), (4, _fields((1, number)))) for number in places.values()]
    functions = [_message(_FUNCTION, (1, number), (2, text(name))) for name, number in places.items()]
    table = [_field(_STRING, name.encode(errors="replace")) for name in strings]
    return gzip.compress(b"".join((*kinds, *samples, *locations, *functions, *table, default)), mtime=0)


def _message(number: int, *fields: tuple[int, int | bytes]) -> bytes:
    return _field(number, _fields(*fields))


def _fields(*fields: tuple[int, int | bytes]) -> bytes:
    return b"".join(_field(number, value) for number, value in fields)


def _field(number: int, value: int | bytes) -> bytes:
    """A field: a number, or bytes that are text, packed numbers or a message."""
    if isinstance(value, int):
        return encoded(number << 3 | NUMBER) + encoded(value)
    return encoded(number << 3 | BYTES) + encoded(len(value)) + value
