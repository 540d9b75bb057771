"""What slices say about their events, whatever the format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from tb_ddp_doctor.slices.model import Collective, RankSlice, Slice, SliceArgs
from tb_ddp_doctor.storage.message import REFUSALS
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.args import MISSING, CommunicationArgs, DeviceArgs, MemoryArgs, OpArgs, RuntimeArgs, spelled
from tb_ddp_doctor.trace.model import Category

#: Longer text is cut.
_MOST_LETTERS = 400
#: Names of templated kernels, groups of ranks and shapes are longer. Digests take no more of a text.
_MOST_READ = 1 << 14

#: JSON stands as it is spelled.
Args = dict[str, str | int | msgspec.Raw]


def label(text: str) -> str:
    """Text from a trace as any format can hold it: of bounded length, and without half characters."""
    return text[:_MOST_LETTERS].encode(errors="replace").decode()


def whole(text: str) -> str:
    """Text from a trace as any format can hold it, all that is read of it again."""
    return text[:_MOST_READ].encode(errors="replace").decode()


class WholeTexts(dict[int, str]):
    """The texts of a vocabulary by index, as any format can hold them, each made when it is first asked for."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = strings

    def __missing__(self, index: int) -> str:
        text = self[index] = whole(self._strings[index])
        return text


def process(rank: int, node: str) -> str:
    """The name of a rank's process."""
    return label(f"rank {rank} ({node})" if node else f"rank {rank}")


class Spelled(dict[int, str | msgspec.Raw]):
    """The arguments of a vocabulary that are JSON, by index; what is none, or too long, as a label."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = strings

    def __missing__(self, index: int) -> str | msgspec.Raw:
        text = self._strings[index]
        value: str | msgspec.Raw = label(text)
        if len(text) <= _MOST_READ:
            try:
                msgspec.json.decode(text)
            except REFUSALS:
                pass
            else:
                value = msgspec.Raw(text.encode())
        self[index] = value
        return value


class KernelFiles(dict[int, str]):
    """The files of functions by their index in a vocabulary; "" for what is none."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = strings

    def __missing__(self, index: int) -> str:
        function = names.source(self._strings[index]) if 0 <= index < len(self._strings) else None
        file = self[index] = whole(function[0]) if function else ""
        return file


def args_of(part: RankSlice, collectives: dict[int, Collective]) -> Callable[[int], Args]:
    """What an event carries, by its index: all that the reader keeps, under its names in traces, and what the doctor
    knows of it.
    """
    category, collective = part.category.tolist(), part.collective.tolist()
    start, end = part.start_ns.tolist(), part.end_ns.tolist()
    texts, module = WholeTexts(part.strings), part.module.tolist()
    recorded, communication, comm = _recorded(part), _of_communication(part, texts), part.args.comm.tolist()

    def args(i: int) -> Args:
        values = recorded(i, category[i])
        if comm[i] >= 0:
            values |= communication(comm[i])
        if module[i] >= 0:
            values["module"] = label(part.modules[module[i]])
        matched = collectives.get(collective[i])
        if matched:
            values |= {
                "collective": collective[i],
                "kind": label(matched.kind),
                "group": label(matched.group),
                "message_bytes": matched.bytes,
                "last_rank_to_arrive": matched.last_rank,
                "wait_ns": min(max(matched.last_ns - start[i], 0), end[i] - start[i]),
            }
        return values

    return args


class _Columns(msgspec.Struct, frozen=True):
    """Columns of `SliceArgs`, each with the argument that it comes from."""

    numbers: dict[str, str] = {}
    #: Whose texts are JSON.
    texts: dict[str, str] = {}
    #: Of what launches a kernel that torch.compile generated: its function, and the argument that has its file.
    function: dict[str, str] = {}


def _arguments(kind: type[Any], **fields: str) -> dict[str, str]:
    return {column: spelled(kind, field) for column, field in fields.items()}


_OF_OP = _Columns(
    _arguments(OpArgs, sequence="sequence"),
    _arguments(OpArgs, shape="dims", types="types", values="values"),
    _arguments(OpArgs, occupancy="kernel_file"),
)
_OF_DEVICE = _Columns(
    _arguments(
        DeviceArgs,
        device="device",
        stream="stream",
        correlation="correlation",
        bytes="bytes",
        occupancy="occupancy",
        sequence="graph_node",
        graph="graph",
    ),
    _arguments(DeviceArgs, shape="grid", types="autograd_phase", values="annotations"),
)
#: By category: some operators became annotations by their names.
_KINDS: dict[int, _Columns] = {
    Category.OP: _OF_OP,
    Category.ANNOTATION: _OF_OP,
    Category.RUNTIME: _Columns(_arguments(RuntimeArgs, correlation="correlation")),
    Category.KERNEL: _OF_DEVICE,
    Category.MEMCPY: _OF_DEVICE,
    Category.MEMSET: _OF_DEVICE,
}


def _recorded(part: RankSlice) -> Callable[[int, int], Args]:
    """The arguments that the trace has, by an event's index and category."""
    columns = {name: getattr(part.args, name).tolist() for name in SliceArgs.__struct_fields__}
    of_category = {
        category: tuple(
            [(name, columns[column]) for column, name in some.items()]
            for some in (kind.numbers, kind.texts, kind.function)
        )
        for category, kind in _KINDS.items()
    }
    json_of, file_of = Spelled(part.strings), KernelFiles(part.strings)

    def args(i: int, category: int) -> Args:
        numbers, texts, functions = of_category.get(category, ((), (), ()))
        values: Args = {name: column[i] for name, column in numbers if column[i] != MISSING}
        values |= {name: json_of[column[i]] for name, column in texts if column[i] >= 0}
        values |= {name: file for name, column in functions if (file := file_of[column[i]])}
        return values

    return args


#: Columns of `CommArgs` with the arguments that they come from: texts, then numbers.
_WORDS = _arguments(
    CommunicationArgs,
    collective="collective",
    group="group",
    group_ranks="group_ranks",
    dtype="dtype",
    algorithm="algorithm",
    protocol="protocol",
)
_SIZES = _arguments(
    CommunicationArgs,
    group_size="group_size",
    elements_in="elements_in",
    elements_out="elements_out",
    sequence="seq",
    count="count",
    channels="channels",
)
_FROM, _TO = (spelled(CommunicationArgs, name) for name in ("source", "destination"))


def _of_communication(part: RankSlice, texts: WholeTexts) -> Callable[[int], Args]:
    """The arguments of communication, by the row in the trace's table of them."""
    comms = part.comms
    words = [(name, getattr(comms, column)) for column, name in _WORDS.items()]
    sizes = [(name, getattr(comms, column)) for column, name in _SIZES.items()]

    def args(row: int) -> Args:
        values: Args = {name: texts[int(column[row])] for name, column in words if column[row] >= 0}
        values |= {name: int(column[row]) for name, column in sizes if column[row] != MISSING}
        if comms.peer[row] != MISSING:
            receives = comms.collective[row] >= 0 and "recv" in texts[int(comms.collective[row])].lower()
            values[_FROM if receives else _TO] = int(comms.peer[row])
        return values

    return args


#: Columns of `SliceAllocations` with the arguments that they come from.
_OF_MEMORY = {
    name: spelled(MemoryArgs, name) for name in ("device_type", "device", "bytes", "allocated", "reserved", "address")
}


def allocations(part: RankSlice) -> Iterator[tuple[int, int, Args]]:
    """The lane, the time and the arguments of each thing that an allocator did."""
    table = part.allocations
    columns = [(name, getattr(table, column).tolist()) for column, name in _OF_MEMORY.items()]
    for i, (lane, time) in enumerate(zip(table.lane.tolist(), table.time_ns.tolist(), strict=True)):
        yield lane, time, {name: column[i] for name, column in columns if column[i] != MISSING}


def left_out(counts: dict[int, int]) -> str:
    """What of the window a slice does not hold, by rank; "" if it holds all of it."""
    some = {rank: count for rank, count in counts.items() if count}
    if not some:
        return ""
    by_rank = ", ".join(f"{count} of rank {rank}" for rank, count in some.items())
    return f"Left out: the {sum(some.values())} shortest events of the window ({by_rank})."


def about(part: Slice) -> str:
    """What the whole slice is."""
    return label(f"{part.run}: all ranks on one clock, aligned at the ends of matched collectives")
