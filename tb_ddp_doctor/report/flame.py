"""Modules as stacks for the viewers of profiles: pprof's protobuf, and collapsed stacks (speedscope, flamegraph.pl).

A stack is the run, the modules from the outermost on by their whole paths, what the time is (forward, backward and so
on), the user's function where stacks were recorded, the operator and the kernel. Its value is the mean time in a step
in ns, of a rank. In pprof the rank is a label (`pprof -tagfocus rank=3:3`), in collapsed stacks the first frame below
the run where there are several ranks.

Of the protobuf (https://github.com/google/pprof/blob/main/proto/profile.proto) sample types, samples with labels,
locations, functions and strings are written; there are no addresses, mappings or lines.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence

import msgspec

from tb_ddp_doctor.engine import Result
from tb_ddp_doctor.facts import MissingFactError
from tb_ddp_doctor.facts.modules import ModulePart, kernel_table, modules
from tb_ddp_doctor.storage.wire import BYTES, NUMBER, encoded

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
_SAMPLE_TYPE, _SAMPLE, _LOCATION, _FUNCTION, _STRING = 1, 2, 4, 5, 6


class PartTime(msgspec.Struct, frozen=True):
    """The time of a kernel of a module on a rank."""

    #: From the run on.
    frames: tuple[str, ...]
    rank: int
    ns: int


def stacks(results: Sequence[Result], rank: int | None) -> list[PartTime]:
    """The stacks of the runs whose traces name modules, of all ranks or of one.

    Raises MissingFactError where no run names any, or has the rank.
    """
    parts: list[PartTime] = []
    missing = [f"There is no rank {rank} in these runs."]
    for result in results:
        try:
            parts += _of_run(result, rank)
        except MissingFactError as error:
            missing = [str(error)]
    if not parts:
        raise MissingFactError(missing[0])
    return parts


def _of_run(result: Result, rank: int | None) -> Iterator[PartTime]:
    tree = modules(result.job.digests)
    frames: list[tuple[str, ...]] = []
    for path, parent in zip(tree.path, tree.parent.tolist(), strict=True):
        frames.append((*frames[parent], path) if parent >= 0 else (result.job.name,))
    table = kernel_table(result.job.digests)
    named = zip(table.function, table.operator, table.kernel, strict=True)
    of_row = [tuple(filter(None, texts)) for texts in named]
    within = zip(table.module.tolist(), table.part.tolist(), of_row, strict=True)
    stack = [(*frames[module], NAMES[ModulePart(part)], *texts) for module, part, texts in within]
    for row, number in enumerate(result.job.ranks.tolist()):
        if rank in (None, number):
            times = table.step_ns[row].round().astype(int)
            for kernel in times.nonzero()[0].tolist():
                yield PartTime(stack[kernel], number, int(times[kernel]))


def collapsed(parts: Sequence[PartTime]) -> bytes:
    """The stacks as text: a line for each, frames between semicolons, and the time in ns."""
    several = len({one.rank for one in parts}) > 1
    lines = []
    for one in parts:
        run, *others = (_frame(frame) for frame in one.frames)
        between = [f"rank {one.rank}"] if several else []
        lines.append(f"{';'.join((run, *between, *others))} {one.ns}\n")
    return "".join(lines).encode(errors="replace")


def _frame(name: str) -> str:
    """A name without what separates frames and lines."""
    return "".join(letter if letter.isprintable() and letter != ";" else "_" for letter in name)


def pprof(parts: Sequence[PartTime]) -> bytes:
    """The stacks as pprof reads them, compressed."""
    strings: dict[str, int] = {"": 0}

    def text(name: str) -> int:
        return strings.setdefault(name, len(strings))

    places: dict[str, int] = {}
    label, samples = text("rank"), []
    for one in parts:
        # The innermost frame comes first.
        at = [places.setdefault(frame, len(places) + 1) for frame in reversed(one.frames)]
        ids, values = b"".join(map(encoded, at)), encoded(one.ns)
        samples.append(_message(_SAMPLE, (1, ids), (2, values), (3, _fields((1, label), (3, one.rank)))))
    kind = _message(_SAMPLE_TYPE, (1, text("time of a step")), (2, text("nanoseconds")))
    locations = [_message(_LOCATION, (1, number), (4, _fields((1, number)))) for number in places.values()]
    functions = [_message(_FUNCTION, (1, number), (2, text(name))) for name, number in places.items()]
    table = [_field(_STRING, name.encode(errors="replace")) for name in strings]
    return gzip.compress(b"".join((kind, *samples, *locations, *functions, *table)), mtime=0)


def _message(number: int, *fields: tuple[int, int | bytes]) -> bytes:
    return _field(number, _fields(*fields))


def _fields(*fields: tuple[int, int | bytes]) -> bytes:
    return b"".join(_field(number, value) for number, value in fields)


def _field(number: int, value: int | bytes) -> bytes:
    """A field: a number, or bytes that are text, packed numbers or a message."""
    if isinstance(value, int):
        return encoded(number << 3 | NUMBER) + encoded(value)
    return encoded(number << 3 | BYTES) + encoded(len(value)) + value
