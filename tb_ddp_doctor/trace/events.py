"""The event as it is decoded, and the two ways to decode it: strictly in blocks, leniently one by one."""

from __future__ import annotations

import json
import re
from enum import Enum
from typing import Any

import msgspec
from msgspec import Raw

from tb_ddp_doctor.storage.message import REFUSALS
from tb_ddp_doctor.trace.losses import Loss, Losses

#: Larger events, and larger metadata before or after the events, are not read: they would cost 100 times their size.
MAX_ITEM_BYTES = 16 << 20
#: How much behind the end of the list is searched for events, which would mean that it is not the end.
LOOK_AHEAD = 1 << 16
#: What is then told.
SEEMING_END = "the list of events seems to end"

#: "}" of an event, and "," and "{" that begin the next.
_BOUNDARY = re.compile(rb"\}\s*,\s*\{")
#: Braces to look at for a boundary, from the end of a block: many times those of an event.
_BRACES = 1000
#: Bytes that one broken event makes slow to read.
_WINDOW = 1 << 14
_SEPARATOR = re.compile(r"[\s,]*")
#: The start of an event as every known writer spells it, for finding one again after text that is no JSON.
_EVENT_START = re.compile(r'[},]\s*(\{\s*"(?:ph|cat|name|ts|dur|pid|tid|args)"\s*:)')
#: The same behind what seems the end of the list: only a phase is sure enough.
_EVENT_BEYOND_END = re.compile(r'[},]\s*(\{\s*"ph"\s*:)')
_LAST_EVENT_END = re.compile(r'\}\s*(\])\s*(?:,\s*"|\}\s*$)')
#: Half characters: from invalid UTF-8 by way of `to_text`, or spelled as escapes.
NO_TEXT = re.compile("[\ud800-\udfff]")
#: More than _EVENT_START can match of a start that goes on in the next block.
_OVERLAP = 64
#: A token that the text's end cuts is refused at its start: "-Infinity", an escape.
_LONGEST_TOKEN = 16

#: How often text may be read again, on average: files that are damaged by accident need it twice at most.
_TIMES_AGAIN = 16
#: Seeming events in a row of which none is one, 10 us each: then what follows is given up. Traces exist whose Python
#: functions are all broken, a few hundred thousand of them, by paths of Windows (pytorch #98432).
MOST_REFUSED = 1_000_000
#: Of text that nests too deeply, about half the levels: what begins within them does so too, or nearly.
_DEEP = re.compile(r"(?:[^\[{]*[\[{]){1,400}")


class RawEvent(msgspec.Struct, gc=False):
    """What columns need of an event; times and arguments stay as the file spells them."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | float | str | None = None
    tid: int | float | str | None = None
    ts: Raw = Raw(b"null")
    dur: Raw = Raw(b"null")
    args: Raw = Raw(b"{}")


class SalvagedTo(Enum):
    """Where a salvage stopped."""

    #: Within the list: more text may complete what is left.
    MORE = 0
    LIST_END = 1
    #: The text ended within the list.
    CUT = 2


_decode_events = msgspec.json.Decoder(list[RawEvent]).decode
_decode_event = msgspec.json.Decoder(RawEvent).decode
# Floats stay text: times must not be rounded on the way.
_scan = json.JSONDecoder(strict=False, parse_float=str, parse_constant=lambda _: None).raw_decode


def last_boundary(data: bytes, since: int = 0) -> int:
    """Where the last event that seems to be followed by another ends, at `since` or later; 0 where there is none."""
    brace = data.rfind(b"}", since)
    for _ in range(_BRACES):
        if brace < 0:
            break
        if _BOUNDARY.match(data, brace):
            return brace + 1
        brace = data.rfind(b"}", since, brace)
    return 0


def decode_block(block: bytes) -> list[RawEvent] | None:
    """Events of a block, "{...}, {...}" with an optional comma before; None where that is not what it is."""
    try:
        return _decode_events(b"".join((b"[", memoryview(block)[block.startswith(b",") :], b"]")))
    except REFUSALS:
        return None


class NestedTooDeeplyError(ValueError):
    """The scanner gave up, and does not say where."""

    def __init__(self) -> None:
        super().__init__("nested too deeply")


class Patience:
    """Says from where to look for the next start after text that the scanner refused.

    From the refused start, since what seemed its inside may be whole. But text can be made so that each start is
    refused far behind the next: once too much was read again, from where the scanner stood.
    """

    def __init__(self) -> None:
        self._again = 0

    def resume(self, text: str, at: int, error: ValueError, position: int) -> int:
        """A place in `text` for one that was refused at `at`, which has that position in all the text."""
        is_nested = isinstance(error, NestedTooDeeplyError)
        reached = error.pos if isinstance(error, json.JSONDecodeError) else len(text) if is_nested else at
        if self._again + reached - at > _TIMES_AGAIN * (position + reached - at):
            return reached
        self._again += reached - at
        return _DEEP.match(text, at).end() if is_nested else at  # type: ignore[union-attr]


class Positions:
    """Byte positions of places in a text from `to_text`, which are asked for in ascending order."""

    def __init__(self, text: str, start: int) -> None:
        self.text = text
        self._at = 0
        self._position = start

    def __call__(self, at: int) -> int:
        self._position += size(self.text[self._at : at])
        self._at = at
        return self._position


class Salvage:
    """Gets from a block, which need not be cut well or be JSON, every event that is whole.

    An event that the scanner refuses costs the text up to the next thing that looks like the start of an event.
    """

    def __init__(self, losses: Losses) -> None:
        self._losses = losses
        #: After a skip, until an event is seen: what comes may be the inside of the broken one.
        self._lost = False
        self._patience = Patience()
        #: Starts that were refused since the last event.
        self._refused = 0
        #: Why nothing more is read; "" while that is not so.
        self.given_up = ""

    def events(self, block: bytes, position: int, final: bool) -> tuple[list[RawEvent], int, SalvagedTo]:
        """Whole events, the number of bytes that are done with, and where that is.

        `position` is the block's in the whole text; `final` says that nothing follows it.
        """
        events: list[RawEvent] = []
        done, width = 0, _WINDOW
        while True:
            window = block[done : done + width]
            is_last = done + width >= len(block)
            texts, used, reached = self._window(window, position + done, final and is_last)
            events += texts
            done += used
            if reached is not None and (is_last or reached is not SalvagedTo.MORE):
                return events, done, reached
            width = _WINDOW if used else 2 * width

    def _window(self, window: bytes, position: int, final: bool) -> tuple[list[RawEvent], int, SalvagedTo | None]:
        """`events` of a small part of the block: only those parts that need it are read one by one.

        None if the rest had better be read as a smaller part.
        """
        cut = 0 if self._lost else last_boundary(window)
        whole = decode_block(window[:cut]) if cut else None
        if whole is not None:
            self._refused = 0
            return whole, cut, SalvagedTo.MORE
        events: list[RawEvent] = []
        positions = Positions(to_text(window), position)
        at, reached = self._one_by_one(events, positions, final)
        return events, positions(at) - position, reached

    def _one_by_one(self, events: list[RawEvent], positions: Positions, final: bool) -> tuple[int, SalvagedTo | None]:
        """Append a text's events as the lenient scanner finds them; where it stopped, and why."""
        text = positions.text
        at = 0
        while True:
            at = _SEPARATOR.match(text, at).end()  # type: ignore[union-attr]
            if at == len(text):
                return at, SalvagedTo.CUT if final else SalvagedTo.MORE
            if text[at] == "]" and not self._lost:
                past_end = _EVENT_BEYOND_END.search(text, at, at + LOOK_AHEAD)
                if not past_end:
                    return at, SalvagedTo.LIST_END
                self._losses.add(Loss.BROKEN, positions(at), SEEMING_END)
                at = past_end.start(1)
            try:
                if text[at] != "{":
                    raise ValueError("no event stands there")
                value, end = scan(text, at)
            except ValueError as error:
                goes_on = self._skip(text, at, error, positions, final)
                if isinstance(goes_on, SalvagedTo):
                    return at, goes_on
                at = goes_on
                if len(text) > _WINDOW:  # an error costs all the text before it, whose lines it counts
                    return at, None
                continue
            event = self._event(text[at:end], value, positions(at))
            if event and (event.ph or not self._lost):
                events.append(event)
                self._lost = False
                self._refused = 0
            at = end

    def _skip(self, text: str, at: int, error: ValueError, positions: Positions, final: bool) -> int | SalvagedTo:
        """Where to go on after text that the scanner refuses at `at`, or why not."""
        may_wait = not final and len(text) - at <= MAX_ITEM_BYTES
        if may_wait and may_be_incomplete(error, text):
            return SalvagedTo.MORE
        is_event = text[at] == "{" or not self._lost
        since = self._patience.resume(text, at, error, positions(at))
        goes_on = _EVENT_START.search(text, since) or (_LAST_EVENT_END.search(text, since) if final else None)
        if goes_on:
            self._refused += 1
            if self._refused > MOST_REFUSED:
                self.given_up = f"{MOST_REFUSED:,} seeming events in a row are none, so no more was read"
                return SalvagedTo.CUT
        else:
            if final:
                return SalvagedTo.CUT
            if may_wait and is_event:
                return SalvagedTo.MORE
        if is_event:
            detail = reason(error) if len(text) - at <= MAX_ITEM_BYTES else f"longer than {MAX_ITEM_BYTES:,} bytes"
            self._losses.add(Loss.BROKEN, positions(at), detail)
        self._lost = not goes_on or goes_on.re is _EVENT_START
        return goes_on.start(1) if goes_on else max(at + 1, len(text) - _OVERLAP)

    def _event(self, source: str, value: Any, position: int) -> RawEvent | None:
        """One scanned event: as it is spelled where that is JSON, else from what the scanner made of it."""
        try:
            return _decode_event(source.encode("utf-8", "surrogateescape"))
        except msgspec.ValidationError as error:
            kind, detail = Loss.MISTYPED, reason(error)
        except REFUSALS as error:
            detail = reason(error)
            try:
                event = _decode_event(NO_TEXT.sub("\ufffd", json.dumps(value, ensure_ascii=False)))
            except (*REFUSALS, ValueError):
                kind = Loss.BROKEN
            else:
                self._losses.add(Loss.TEXT, position, detail)
                return event
        if not self._lost:
            self._losses.add(kind, position, detail)
        return None


def scan(text: str, at: int) -> tuple[Any, int]:
    """The JSON value at `at` and where it ends, with floats left as text; ValueError where there is none.

    Lenient: control characters in strings pass, NaN and Infinity become None.
    """
    try:
        return _scan(text, at)
    except RecursionError:
        raise NestedTooDeeplyError from None


def may_be_incomplete(error: ValueError, text: str) -> bool:
    """Whether a scanner's error may come from the end of the text alone: it reports where it stands, or a string."""
    if not isinstance(error, json.JSONDecodeError):
        return False
    return error.pos >= len(text) - _LONGEST_TOKEN or error.msg.startswith("Unterminated string")


def to_text(data: bytes) -> str:
    """Bytes as text that `size` takes back to their number, whatever they are."""
    return data.decode("utf-8", "surrogateescape")


def size(text: str) -> int:
    """Bytes of a text from `to_text`."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogateescape"))


def reason(error: Exception) -> str:
    """An error's text, to stand within a sentence."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg[:1].lower()}{error.msg[1:]}".rstrip(": ")
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)
