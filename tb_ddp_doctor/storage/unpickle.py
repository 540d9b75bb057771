"""A pickle of plain data, and of nothing else.

Only the opcodes that build dicts, lists, tuples, text and numbers are taken; all others, above all those that name or
call something (GLOBAL, REDUCE, BUILD, OBJ, EXT, PERSID), are refused before anything is built. So nothing in a file can
run. The C unpickler reads what passes, with a `find_class` that refuses everything as a second lock.

Two more things that a hostile file can do are refused here: a memo index so large that the unpickler would reserve
gigabytes for it, and a number with more digits than any counter or time has.
"""

from __future__ import annotations

import io
import pickle  # what passes the check above holds no code
import re
from typing import Any, NoReturn

#: Opcodes of fixed length with their arguments; a memo has at most 4 Mi places.
_FIXED = re.compile(
    rb"(?:"
    rb"[Kqh\x80]."  # the memo and the smallest numbers, which are most
    rb"|[\x85-\x89Nteausld\]\)\}\(\x94]+"  # tuples, None, bools, containers, marks, memoise
    rb"|M..|J....|G.{8}|[rj]..[\x00-\x3f]\x00"  # numbers, floats, more of the memo
    rb"|\x8a(?:\x08.{8}|\x00|\x01.|\x02..|\x03...|\x04.{4}|\x05.{5}|\x06.{6}|\x07.{7}|\x09.{9})"  # LONG1
    rb"|\x95.{8}"  # a frame, which only hints how much to read at once
    rb"){1,256}",
    re.DOTALL,
)
#: Opcodes before a text: its length follows in as many bytes.
_TEXT = {ord("X"): 4, 0x8C: 1}
_STOP = ord(".")
_BUFFER_BYTES = 1 << 20


class PickleError(Exception):
    """A file that is no pickle of plain data. Its text is a sentence for users."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise PickleError(f"It names {module}.{name}: only plain data is read.")

    def persistent_load(self, _pid: Any) -> NoReturn:
        raise PickleError("It refers to something outside of itself.")


def loads(data: bytes) -> Any:
    """What a pickle of plain data holds. Raises PickleError for any other."""
    check(data)
    try:
        # Buffered: of a bare BytesIO the unpickler reads each opcode by a call of its own, three times as slow.
        return _Unpickler(io.BufferedReader(io.BytesIO(data), _BUFFER_BYTES)).load()
    except PickleError:
        raise
    except Exception as error:
        raise PickleError(f"It is damaged ({type(error).__name__}).") from error


def check(data: bytes) -> None:
    """Raise PickleError unless all opcodes build plain data."""
    at, end = 0, len(data)
    while at < end:
        if fixed := _FIXED.match(data, at):
            at = fixed.end()
            continue
        opcode = data[at]
        if opcode == _STOP:
            return
        width = _TEXT.get(opcode)
        if width is None:
            raise PickleError(f"It holds more than plain data (opcode {opcode:#04x} at byte {at:,}): it is not read.")
        length = int.from_bytes(data[at + 1 : at + 1 + width], "little")
        at += 1 + width + length
    raise PickleError("It is cut off.")
