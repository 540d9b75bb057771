"""NCCL's lines in a block of a log: which of them say the same, and which calls they tell.

Read by the native library (native/nccl_lines.h), some 100 times as fast as line by line in Python; without it by the
latter, which finds the same lines with other keys.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char_p, c_size_t, c_void_p
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.storage import native_library

# From here to `_SHORTEST`: native/nccl_lines.h.
OTHER, CALL, CHOICE = range(3)
ROW = np.dtype([(name, "<u8") for name in ("start", "end", "key", "process", "op_count", "communicator", "kind")])
_SHORTEST = 10

_LONGEST = 1000
#: Words of a line that are looked at, and numbers in hexadecimal digits.
_MOST_WORDS = 48
_WORD = re.compile(rb"[^\0- ]+")
_HEXADECIMAL = re.compile(rb"(?:0x(?=.))?([0-9a-f]*)", re.DOTALL)
_MASK = (1 << 64) - 1

_PROTOTYPES: native_library.Prototypes = {
    "nccl_lines": (c_size_t, [c_char_p, c_size_t, c_void_p, c_size_t, POINTER(c_size_t)]),
}


class Lines(NamedTuple):
    """What a block holds."""

    #: Those of NCCL, as `ROW`: where each begins and ends, a key that is the same for lines that say the same, and one
    #: for lines of the same thread; of calls also how many the communicator had before, and its address (0: not said).
    rows: NDArray[Any]
    #: All lines, whoever wrote them.
    total: int


def lines(block: bytes) -> Lines:
    """NCCL's lines of a block of whole lines."""
    library = native_library.with_functions(_PROTOTYPES)
    if library is None:
        return _in_python(block)
    rows = np.empty(len(block) // _SHORTEST + 1, ROW)
    count = c_size_t()
    lines_read = library.nccl_lines(block, len(block), rows.ctypes.data, len(rows), byref(count))
    return Lines(rows[:lines_read], count.value)


def communicators(rows: NDArray[Any]) -> NDArray[np.uint64]:
    """The communicator of the last call of each line's thread; 0 without one."""
    order = np.argsort(rows["process"], kind="stable")
    process, is_call = rows["process"][order], rows["kind"][order] == CALL
    place = np.arange(len(rows))
    last = np.maximum.accumulate(np.where(is_call, place, -1))
    known = (last >= 0) & (process[last] == process)
    communicator = np.zeros(len(rows), np.uint64)
    communicator[order] = np.where(known, rows["communicator"][order][last], 0)
    return communicator


def mixed(one: NDArray[np.uint64], other: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A key for each pair, of which the first is a key itself."""
    return np.asarray(one ^ (other * np.uint64(0xFF51AFD7ED558CCD)), np.uint64)


def _in_python(block: bytes) -> Lines:
    rows = []
    texts = block.split(b"\n")
    texts = texts[:-1] if not texts[-1] else texts
    at = 0
    for text in texts:
        row = _row(text[:_LONGEST]) if b"NCCL" in text[:_LONGEST] else None
        if row is not None:
            rows.append((at, at + len(text), *row))
        at += len(text) + 1
    return Lines(np.array(rows, ROW), len(texts))


def _row(text: bytes) -> tuple[int, int, int, int, int] | None:
    """Key, process, number of calls before, communicator and kind; None if the line is none of NCCL's.

    As `read_line` in native/nccl_lines.c has it.
    """
    matches = list(islice(_WORD.finditer(text), _MOST_WORDS))
    words = [word[0] for word in matches]
    nccl = _place(words, 0, b"NCCL")
    level = _at(words, nccl + 1)
    if nccl < 0 or level not in (b"INFO", b"WARN"):
        return None
    first, said = nccl - (3 if level == b"WARN" else 2), nccl + 2
    process = hash(words[first]) & _MASK if first >= 0 else 0
    if _at(words, said + 1) == b"opCount":
        count = _place(words, said + 3, b"count")
        if count > 0 and _at(words, count + 2) == b"datatype" and count + 3 < len(words):
            communicator = _place(words, count, b"comm")
            address = _at(words, communicator + 1) if communicator > 0 else b""
            sent = text[matches[count + 1].start() : matches[count + 3].end()]
            key = hash((process, words[said], sent)) & _MASK
            return key, process, _hexadecimal(words[said + 2]), _hexadecimal(address), CALL
    via = _place(words, said, b"via")
    same = (process, text[matches[via].start() :]) if via >= 0 else text[matches[first].start() if first >= 0 else 0 :]
    return hash(same) & _MASK, process, 0, 0, CHOICE if b"Bytes" in words[said : said + 3] else OTHER


def _place(words: Sequence[bytes], first: int, word: bytes) -> int:
    """Where a word stands, from a place on; -1 where it does not."""
    try:
        return words.index(word, first)
    except ValueError:
        return -1


def _at(words: Sequence[bytes], place: int) -> bytes:
    return words[place] if place < len(words) else b""


def _hexadecimal(word: bytes) -> int:
    """A number of 64 bits; 0 for what is none."""
    digits = _HEXADECIMAL.fullmatch(word)
    return int(digits[1] or b"0", 16) & _MASK if digits else 0
