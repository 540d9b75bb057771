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
from tb_ddp_doctor.trace.model import Category
from tb_ddp_doctor.trace.nsys.nccl import Call
from tb_ddp_doctor.trace.nsys.rows import Rows, ints

#: NVTX's numbers of ranges that are pushed and popped, and of those that are started and ended.
_RANGES = (59, 60)
#: What `emit_nvtx` appends to the name of an operator or `record_function`.
_SUFFIX = re.compile(r", (?:seq|op_id|sizes) = ")
_SIZES = re.compile(r", sizes = (\[.*?\])(?:, input_op_ids = |$)")
_OPERATOR = re.compile(r"::|Backward\d*$|^(?:detach_?|record_param_comms)$")


def add_ranges(rows: Rows) -> list[Call]:
    """Operators and annotations; returns NCCL's calls, which are neither."""
    calls: list[Call] = []
    table = tables.NVTX
    if not rows.has(table, "start", "end", "globalTid", "eventType", "text", "textId"):
        return []
    payloads = Payloads(rows.database) if has_payloads(rows.database) else None
    told = ("jsonText", "binaryData") if payloads else ("NULL", "NULL")
    named = _RangeNames(rows.strings, rows.shapes)
    where = f"{rows.of_threads} AND eventType IN {_RANGES} AND end IS NOT NULL"
    for block in rows.blocks(table, ("globalTid", "text", "textId", *told), where):
        start, length, thread = map(ints, block[:3])
        threads = rows.of_host(thread)
        texts = _texts(rows, *block[3:5])
        told_before = len(calls)
        is_nccl = np.array([text.startswith("nccl") for text in texts], np.bool_)
        for at in np.flatnonzero(is_nccl).tolist():
            payload = payloads.read(block[5][at], block[6][at]) if payloads else None
            first = int(start[at])
            calls.append(Call(int(threads[at]), first, first + int(length[at]), texts[at], payload))
        parsed = np.array([named.parse(text) for text in texts], np.int64).reshape(-1, 3)
        is_operator = parsed[:, 1].astype(np.bool_)
        # As in Kineto's traces, a call that says whom it sends to is an operator on the host.
        are_messages = np.array([is_message(call) for call in calls[told_before:]], np.bool_)
        messages = np.flatnonzero(is_nccl)[are_messages]
        parsed[messages, :2] = rows.strings[names.RECORD_PARAM_COMMS], True
        is_operator[messages] = True
        for category, chosen in ((Category.OP, is_operator), (Category.ANNOTATION, ~is_operator & ~is_nccl)):
            rows.add(
                category,
                start[chosen],
                length[chosen],
                name=parsed[chosen, 0],
                thread=threads[chosen],
                shape=parsed[chosen, 2],
            )
    return calls


def is_message(call: Call) -> bool:
    """Whether it is a send or a receive of which the other rank is known."""
    known = call.payload is not None and call.payload.peer >= 0
    return known and names.is_point_to_point(names.collective(call.name))


def _texts(rows: Rows, given: Sequence[Any], registered: Sequence[Any]) -> list[str]:
    """Texts of ranges, which stand there or in the table of strings."""
    known = rows.database.texts(number for number in set(registered) if isinstance(number, int))
    both = zip(given, registered, strict=True)
    return [text if isinstance(text, str) else known.get(number, "") for text, number in both]


class _RangeNames:
    """Names of ranges, without what `emit_nvtx` appends: "aten::add, seq = 5, op_id = 3, sizes = [[2]]"."""

    def __init__(self, strings: Strings, shapes: Shapes) -> None:
        self._strings, self._shapes = strings, shapes
        #: Index, and whether it is an operator, by name and whether anything followed.
        self._known: dict[tuple[str, bool], tuple[int, bool]] = {}

    def parse(self, text: str) -> tuple[int, bool, int]:
        """Index of the name, whether it is an operator, and index of its shapes."""
        suffix = _SUFFIX.search(text)
        name = text[: suffix.start()] if suffix else text
        key = (name, suffix is not None)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = (self._strings[name], bool(suffix and _OPERATOR.search(name)))
        sizes = _SIZES.search(text) if suffix and ", sizes = " in text else None
        return (*known, self._shapes[sizes[1].encode()] if sizes else MISSING)
