"""NVTX ranges: operators of torch's `emit_nvtx`, NCCL's calls, and annotations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from tb_ddp_doctor.nsys import database as tables
from tb_ddp_doctor.nsys.payloads import Payloads, has_payloads
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.args import MISSING
from tb_ddp_doctor.trace.columns import Shapes, Strings
from tb_ddp_doctor.trace.model import Category, Ints
from tb_ddp_doctor.trace.nsys.nccl import NcclRange
from tb_ddp_doctor.trace.nsys.rows import EventRows, ints

#: NVTX's numbers of ranges that are pushed and popped, and of those that are started and ended.
_RANGES = (59, 60)
#: What `emit_nvtx` appends to the name of an operator or `record_function`: "aten::add, seq = 5, op_id = 3".
_SUFFIX = re.compile(rb", (?:seq|op_id|sizes) = ")
_SUFFIXES = (b"seq = ", b"op_id = ", b"sizes = ")
_SIZES = re.compile(rb", sizes = (\[.*?\])(?:, input_op_ids = |$)")
_OPERATOR = re.compile(r"::|Backward\d*$|^(?:detach_?|record_param_comms)$")


def add_ranges(rows: EventRows) -> list[NcclRange]:
    """Operators and annotations; returns NCCL's calls, which are neither."""
    calls: list[NcclRange] = []
    table = tables.NVTX
    if not rows.has(table, "start", "end", "globalTid", "eventType", "text", "textId"):
        return []
    payloads = Payloads(rows.database) if has_payloads(rows.database) else None
    payload_columns = ("jsonText", "binaryData") if payloads else ()
    kinds = _Kinds(rows.strings)
    where = f"{rows.of_threads} AND eventType IN {_RANGES} AND end IS NOT NULL"
    # As bytes: of most texts only the name becomes a string, once.
    for block in rows.blocks(table, ("globalTid", "CAST(text AS BLOB)", "textId", *payload_columns), where):
        columns = list(zip(*block, strict=True))
        start, length, thread = map(ints, columns[:3])
        threads = rows.of_host(thread)
        texts = _texts(rows, *columns[3:5])
        kind, shape = kinds.parse(texts, rows.shapes)
        name, is_operator, is_nccl = (np.array(column)[kind] for column in zip(*kinds.rows, strict=True))
        for at in np.flatnonzero(is_nccl).tolist():
            payload = payloads.read(columns[5][at], columns[6][at]) if payloads else None
            first = int(start[at])
            call = NcclRange(
                int(threads[at]), first, first + int(length[at]), texts[at].decode("utf-8", "replace"), payload
            )
            calls.append(call)
            # As in Kineto's traces, a call that says whom it sends to is an operator on the host.
            if is_message(call):
                name[at], is_operator[at] = rows.strings[names.RECORD_PARAM_COMMS], True
        for category, chosen in ((Category.OP, is_operator), (Category.ANNOTATION, ~is_operator & ~is_nccl)):
            rows.add(
                category,
                start[chosen],
                length[chosen],
                name=name[chosen],
                thread=threads[chosen],
                shape=shape[chosen],
            )
    return calls


def is_message(call: NcclRange) -> bool:
    """Whether it is a send or a receive of which the other rank is known."""
    known = call.payload is not None and call.payload.peer >= 0
    return known and names.is_point_to_point(names.collective(call.name))


def _texts(rows: EventRows, given: Sequence[Any], registered: Sequence[Any]) -> list[bytes]:
    """Texts of ranges, which stand there or in the table of strings."""
    known = rows.database.texts(number for number in set(registered) if isinstance(number, int))
    texts = {number: text.encode() for number, text in known.items()}
    both = zip(given, registered, strict=True)
    return [text if text is not None else texts.get(number, b"") for text, number in both]


class _Kinds(dict[tuple[bytes, bool], int]):
    """Number of what a range is, growing: by its name, and whether `emit_nvtx` appended something."""

    def __init__(self, strings: Strings) -> None:
        super().__init__()
        self._strings = strings
        #: By number: index of the name, whether it is an operator, whether a call of NCCL.
        self.rows: list[tuple[int, bool, bool]] = []

    def __missing__(self, key: tuple[bytes, bool]) -> int:
        name, is_followed = key[0].decode("utf-8", "replace"), key[1]
        is_operator = is_followed and _OPERATOR.search(name) is not None
        self.rows.append((self._strings[name], is_operator, name.startswith("nccl")))
        self[key] = number = len(self)
        return number

    def parse(self, texts: Sequence[bytes], shapes: Shapes) -> tuple[Ints, Ints]:
        """The numbers of texts, and the indices of the shapes in them."""
        numbers, shape = [], np.full(len(texts), MISSING)
        for at, text in enumerate(texts):
            name, _, rest = text.partition(b", ")
            is_followed = rest.startswith(_SUFFIXES)
            if rest and not is_followed and (suffix := _SUFFIX.search(text)):
                name, is_followed = text[: suffix.start()], True
            numbers.append(self[name, is_followed])
            if b"sizes = " in rest and is_followed and (sizes := _SIZES.search(text)):
                shape[at] = shapes[sizes[1]]
        return np.array(numbers), shape
