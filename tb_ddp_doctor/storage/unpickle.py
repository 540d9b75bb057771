"""A pickle of plain data, and of nothing else.

Only the opcodes that build dicts, lists, tuples, text and numbers are taken; all others, above all those that name or
call something (GLOBAL, REDUCE, BUILD, OBJ, EXT, PERSID), are refused before anything is built. So nothing in a file can
run. The C unpickler reads what passes, with a `find_class` that refuses everything as a second lock.

Three more things that a hostile file can do are refused here:

- a memo index so large that the unpickler would reserve gigabytes for it;
- a number with more digits than any counter or time has;
- a dict whose keys are tuples, or numbers of more than 8 bytes. Whoever writes these chooses their hash, and 100,000
  keys of one hash take minutes. The hash of a text has a secret in it, and of smaller numbers 17 at most have one hash.
"""

from __future__ import annotations

import io
import pickle  # what passes the check below holds no code
import re
from functools import cache
from typing import Any, NamedTuple, NoReturn

#: Opcodes that push one value which may be a key, each with its arguments: numbers, None, flags; what is in the memo.
_PUSH = (
    rb"K.|M..|J....|G.{8}|[N\x88\x89]"
    rb"|\x8a(?:\x08.{8}|\x00|\x01.|\x02..|\x03...|\x04.{4}|\x05.{5}|\x06.{6}|\x07.{7})"
)
_GET = rb"h.|j..[\x00-\x3f]\x00"
#: Those that put the last value into the memo, of at most 4 Mi places: by number, since protocol 4 without.
_PUT, _MEMOIZE, _MEMOIZED = rb"q.|r..[\x00-\x3f]\x00", rb"\x94", b"\x94"
#: The version, and a frame, which only hints how much to read at once.
_IDLE = rb"\x80.|\x95.{8}"
#: The first bytes of those that push nothing.
_NO_PUSH = frozenset(b"qr\x94\x80\x95")
#: A number of 9 bytes, the longest that is read.
_LONG = re.compile(rb"\x8a\x09.{9}", re.DOTALL)
#: The first bytes of opcodes with a number or a place behind them, and how long the longest of these is.
_WITH_NUMBERS, _LONGEST = frozenset(b"KMJG\x8ahjqr\x80\x95"), 11
#: Opcodes before a text: its length follows in as many bytes.
_TEXT = {ord("X"): 4, 0x8C: 1}
_MARK, _STOP = ord("("), ord(".")
#: Opcodes that push an empty dict, list or tuple, and how many values those take that make a tuple of them.
_EMPTY, _TUPLES = frozenset(b"}])"), {0x85: 1, 0x86: 2, 0x87: 3}
_BUFFER_BYTES = 1 << 20
#: Whether a value on the stack may be a key. Dicts and lists may stay: nothing hashes them.
_KEY, _NO_KEY = 1, 0
_KEYS, _NO_KEYS = bytes([_KEY]), bytes([_NO_KEY])
#: Opcodes that take all since the last mark, and what they leave: items of a dict, of a list; a dict, a list, a tuple.
_FROM_MARK = {ord("u"): b"", ord("e"): b"", ord("d"): _KEYS, ord("l"): _KEYS, ord("t"): _NO_KEYS}


class _Grammar(NamedTuple):
    """How opcodes of a protocol are told apart."""

    #: One of those without text, and many that only push values or put them into the memo.
    opcode: re.Pattern[bytes]
    run: re.Pattern[bytes]
    #: A whole dict or list whose values are such, or lists of such: most of a file.
    flat: re.Pattern[bytes]


@cache
def _grammar(put: bytes) -> _Grammar:
    push, put = rb"(?:" + _GET + b"|" + _PUSH + b")", rb"(?:" + put + b")"
    value = rb"(?:" + push + put + b"?)"
    values = rb"\]" + put + rb"?(?:\(" + value + rb"{0,256}e)?"
    items = rb"\}" + put + rb"?\((?:" + value + rb"(?:" + values + b"|" + value + b")){0,64}u"
    any_of = b"|".join((push, put, _IDLE))
    return _Grammar(
        re.compile(rb"[\](}ue]|" + any_of, re.DOTALL),
        re.compile(rb"(?:" + any_of + rb"){1,256}", re.DOTALL),
        re.compile(rb"(?:" + items + b"|" + values + b")" + put + b"?", re.DOTALL),
    )


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
    """Raise PickleError unless all opcodes build plain data, with text and numbers as keys."""
    at, end = 0, len(data)
    grammar = _grammar(_MEMOIZE if data[:1] == b"\x80" and data[1:2] >= b"\x04" else _PUT)
    stack = _Stack()
    while at < end:
        opcode = data[at]
        if opcode in _EMPTY and (flat := grammar.flat.match(data, at)):
            at = flat.end()
            stack.flat(grammar.opcode.findall(flat[0]))
        elif run := grammar.run.match(data, at):
            at = run.end()
            stack.run(grammar.opcode.findall(run[0]))
        elif opcode == _STOP:
            return
        elif (width := _TEXT.get(opcode)) is not None:
            at += 1 + width + int.from_bytes(data[at + 1 : at + 1 + width], "little")
            stack.values.append(_KEY)
        elif long := _LONG.match(data, at):
            at = long.end()
            stack.values.append(_NO_KEY)
        elif stack.takes(opcode):
            at += 1
        elif opcode in _WITH_NUMBERS and end - at < _LONGEST:
            break
        else:
            raise PickleError(f"It holds more than plain data (opcode {opcode:#04x} at byte {at:,}): it is not read.")
    raise PickleError("It is cut off.")


class _Stack:
    """What the unpickler's stack would hold: of each value, whether it may be a key."""

    def __init__(self) -> None:
        self.values = bytearray()
        self._marks: list[int] = []
        #: Values that were put into the memo without a number.
        self._memoized = 0
        #: The opcodes that get what may be no key from the memo.
        self._no_keys: set[bytes] = set()

    def flat(self, opcodes: list[bytes]) -> None:
        """Do what the opcodes of a flat dict or list do."""
        if self._no_keys.isdisjoint(opcodes):
            self._memoized += opcodes.count(_MEMOIZED)
            self.values.append(_KEY)
            return
        for opcode in opcodes:
            if not self.takes(opcode[0]):
                self._does(opcode)

    def run(self, opcodes: list[bytes]) -> None:
        """Do what opcodes do that push a value each, or put the last one into the memo."""
        puts_no_key = self.values[-1:] == _NO_KEYS and opcodes[0][0] in _NO_PUSH
        if puts_no_key or not self._no_keys.isdisjoint(opcodes):
            for opcode in opcodes:
                self._does(opcode)
        else:
            self._memoized += opcodes.count(_MEMOIZED)
            self.values += _KEYS * sum([opcode[0] not in _NO_PUSH for opcode in opcodes])

    def _does(self, opcode: bytes) -> None:
        """Do what one of them does."""
        if opcode[0] not in _NO_PUSH:
            self.values.append(_NO_KEY if opcode in self._no_keys else _KEY)
        elif opcode == _MEMOIZED or opcode[0] in b"qr":
            number = self._memoized if opcode == _MEMOIZED else int.from_bytes(opcode[1:], "little")
            self._memoized += opcode == _MEMOIZED
            if self.values[-1:] == _NO_KEYS:
                self._no_keys.add(b"j" + number.to_bytes(4, "little"))
                if number < 256:
                    self._no_keys.add(b"h" + bytes([number]))

    def takes(self, opcode: int) -> bool:
        """Do what an opcode without arguments does; whether it is one that builds plain data."""
        values = self.values
        if opcode == _MARK:
            self._marks.append(len(values))
        elif opcode in _EMPTY:
            values.append(_NO_KEY if opcode == ord(")") else _KEY)
        elif opcode == ord("s"):
            _check_keys(values[-2:-1])
            del values[-2:]
        elif opcode == ord("a"):
            del values[-1:]
        elif (count := _TUPLES.get(opcode)) is not None:
            values[-count:] = _NO_KEYS
        elif opcode in _FROM_MARK:
            if not self._marks:
                raise PickleError("It is damaged: it closes what it never opened.")
            first = self._marks.pop()
            if opcode in b"ud":
                _check_keys(values[first::2])
            values[first:] = _FROM_MARK[opcode]
        else:
            return False
        return True


def _check_keys(values: bytearray) -> None:
    if _NO_KEY in values:
        raise PickleError("It has a dict whose keys are no text and no number of 64 bits: it is not read.")
