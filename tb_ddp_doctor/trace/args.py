"""Arguments of events, decoded by a struct for each category: only the fields that a column needs.

Fields come as integers, numbers in text ("128") or something else ("0x0", null) depending on vendor and release.
Numbers in text count as numbers; a field of another type is missing, and costs the event's other fields nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Raw

from tb_ddp_doctor.storage.message import REFUSALS

MISSING = -1
ABSENT = Raw(b"")

Int64: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Int32: TypeAlias = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]


class DeviceArgs(msgspec.Struct, gc=False):
    """Of kernels, copies and memsets."""

    device: Int32 = MISSING
    stream: Int64 = MISSING
    correlation: Int64 = MISSING
    bytes: Int64 = MISSING
    grid: Raw = ABSENT
    occupancy: Int32 = msgspec.field(default=MISSING, name="est. achieved occupancy %")
    #: What `mark_kernels` of torch.cuda was given: a list, or the members of one annotation among the arguments.
    annotations: Raw = msgspec.field(default=ABSENT, name="annotation")
    annotated_name: Raw = msgspec.field(default=ABSENT, name="name")
    annotated_text: Raw = msgspec.field(default=ABSENT, name="str")
    autograd_phase: Raw = ABSENT
    #: Of what a CUDA graph replays: the graph, and the node of it.
    graph: Int32 = msgspec.field(default=MISSING, name="graph id")
    graph_node: Int64 = msgspec.field(default=MISSING, name="graph node id")
    #: Tells whether the event has `CommunicationArgs`.
    collective: Raw = msgspec.field(default=ABSENT, name="Collective name")
    func: Raw = ABSENT
    #: Of a copy that the CUPTI monitor calls "Memcpy": "HtoD", "pinned" and "device".
    copy_kind: Raw = msgspec.field(default=ABSENT, name="copy kind")
    copy_source: Raw = msgspec.field(default=ABSENT, name="src kind")
    copy_destination: Raw = msgspec.field(default=ABSENT, name="dst kind")

    def host_memory(self) -> Raw:
        """The host's memory of a copy, as "pinned"; of one between devices where it comes from."""
        return self.copy_destination if bytes(self.copy_kind) == b'"DtoH"' else self.copy_source

    def annotation(self) -> Raw:
        """What names the part of the model that a kernel of a graph is of; ABSENT where nothing does."""
        spelled = (self.annotations, self.annotated_name, self.annotated_text)
        return next((raw for raw in spelled if bytes(raw)), ABSENT)


class RuntimeArgs(msgspec.Struct, gc=False):
    """Of runtime and driver calls."""

    correlation: Int64 = MISSING


class OpArgs(msgspec.Struct, gc=False):
    """Of operators."""

    dims: Raw = msgspec.field(default=ABSENT, name="Input Dims")
    types: Raw = msgspec.field(default=ABSENT, name="Input type")
    values: Raw = msgspec.field(default=ABSENT, name="Concrete Inputs")
    sequence: Int64 = msgspec.field(default=MISSING, name="Sequence number")
    #: Of the launch of a kernel that torch.compile generated, the file that holds it.
    kernel_file: Raw = ABSENT


class MemoryArgs(msgspec.Struct, gc=False):
    """Of what an allocator did."""

    device_type: Int32 = msgspec.field(default=MISSING, name="Device Type")
    device: Int32 = msgspec.field(default=MISSING, name="Device Id")
    bytes: Int64 = msgspec.field(default=MISSING, name="Bytes")
    allocated: Int64 = msgspec.field(default=MISSING, name="Total Allocated")
    reserved: Int64 = msgspec.field(default=MISSING, name="Total Reserved")
    address: Int64 = msgspec.field(default=MISSING, name="Addr")


class CommunicationArgs(msgspec.Struct, gc=False):
    """Of communication kernels and `record_param_comms`: raw, since releases differ in what is text.

    The last ones are NCCL's own, on kernels: torch's profiler plugin for NCCL hands them to the CUPTI monitor, which
    adds them to the arguments (torch/csrc/profiler/cupti/nccl_profiler.cpp, torch/profiler/_cupti/monitor_trace.py, and
    for the process group comms/hook.py).
    """

    collective: Raw = msgspec.field(default=ABSENT, name="Collective name")
    group: Raw = msgspec.field(default=ABSENT, name="Process Group Name")
    group_ranks: Raw = msgspec.field(default=ABSENT, name="Process Group Ranks")
    group_size: Raw = msgspec.field(default=ABSENT, name="Group size")
    elements_in: Raw = msgspec.field(default=ABSENT, name="In msg nelems")
    elements_out: Raw = msgspec.field(default=ABSENT, name="Out msg nelems")
    dtype: Raw = msgspec.field(default=ABSENT, name="dtype")
    seq: Raw = msgspec.field(default=ABSENT, name="Seq")
    inputs: Raw = msgspec.field(default=ABSENT, name="Concrete Inputs")
    source: Raw = msgspec.field(default=ABSENT, name="Src Rank")
    destination: Raw = msgspec.field(default=ABSENT, name="Dst Rank")
    func: Raw = ABSENT
    datatype: Raw = ABSENT
    count: Raw = ABSENT
    nccl_seq: Raw = msgspec.field(default=ABSENT, name="seq")
    process_group: Raw = ABSENT
    process_group_ranks: Raw = ABSENT
    algorithm: Raw = msgspec.field(default=ABSENT, name="algo")
    protocol: Raw = msgspec.field(default=ABSENT, name="proto")
    channels: Raw = msgspec.field(default=ABSENT, name="n_channels")

    def words(self) -> tuple[Raw, ...]:
        """Collective, process group, its ranks and the type, as torch's metadata or else NCCL's plugin spells them."""
        return (
            _either(self.collective, self.func),
            _either(self.group, self.process_group),
            _either(self.group_ranks, self.process_group_ranks),
            _either(self.dtype, self.datatype),
        )

    def peer(self) -> int:
        """Whom a send goes to, or a receive comes from."""
        return integer(self.destination if bytes(self.destination) else self.source)

    def sequence(self) -> int:
        """The call's number, which torch writes as "Seq", Megatron-era traces as text in "Concrete Inputs"[1]."""
        number = integer(_either(self.seq, self.nccl_seq))
        if number == MISSING and (inputs := value(self.inputs, list[Any])) and len(inputs) > 1:
            number = integer(msgspec.json.encode(inputs[1])) if isinstance(inputs[1], str) else MISSING
        return number


def _either(raw: Raw, other: Raw) -> Raw:
    """An argument, or the one that stands for it where it is absent."""
    return raw if bytes(raw) else other


Args = TypeVar("Args", DeviceArgs, RuntimeArgs, OpArgs, MemoryArgs, CommunicationArgs)


def decode_args(kind: type[Args], raws: Sequence[Raw], odd: Callable[[str], None]) -> list[Args]:
    """Arguments of events of one category; `odd` is told of each that has a field of the wrong type."""
    try:
        # One call for all: a call for each would cost three times as much.
        return list(_DECODERS[kind](b"".join((b"[", b",".join(raws), b"]"))))
    except REFUSALS:
        return [_decode_one(kind, raw, odd) for raw in raws]


def _decode_one(kind: type[Args], raw: Raw, odd: Callable[[str], None]) -> Args:
    try:
        return msgspec.json.decode(raw, type=kind, strict=False)
    except REFUSALS as error:
        odd(str(error))
    members = value(raw, dict[str, Raw]) or {}
    fields = ((field.name, value(members.get(field.encode_name, ABSENT), field.type)) for field in _FIELDS[kind])
    return kind(**{name: known for name, known in fields if known is not None})


_KINDS: tuple[type[Any], ...] = (DeviceArgs, RuntimeArgs, OpArgs, MemoryArgs, CommunicationArgs)
_DECODERS = {kind: msgspec.json.Decoder(list[kind], strict=False).decode for kind in _KINDS}  # type: ignore[valid-type]
_FIELDS = {kind: msgspec.structs.fields(kind) for kind in _KINDS}


def spelled(kind: type[Any], field: str) -> str:
    """What a trace calls an argument, by its field in a struct."""
    return _NAMES[kind][field]


_NAMES = {kind: {field.name: field.encode_name for field in fields} for kind, fields in _FIELDS.items()}
#: Names of all arguments that a column needs, short ones first.
ARGUMENTS = tuple(
    sorted(
        {field.encode_name.encode() for fields in _FIELDS.values() for field in fields},
        key=lambda name: (len(name), name),
    )
)


def value(raw: Raw | bytes | str, kind: Any = Any) -> Any:
    """A JSON value of some type; None where there is none."""
    try:
        return msgspec.json.decode(raw, type=kind, strict=False)
    except REFUSALS:
        return None


def integer(raw: Raw | bytes) -> int:
    """A JSON integer or its text; MISSING for anything else."""
    number = value(raw, Int64)
    return MISSING if number is None else int(number)


def text(raw: Raw) -> str | None:
    """A JSON string's text, or any other value as it is spelled; None where there is none."""
    spelled = bytes(raw).decode("utf-8", "replace")
    known = value(spelled)
    return known if known is None or isinstance(known, str) else spelled
