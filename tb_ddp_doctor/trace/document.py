"""One trace's JSON, cut into batches of events while its bytes arrive.

Supported: an object with "traceEvents" anywhere in it, whatever its line layout, and a bare list of events.
Ignored: whatever follows the end of a bare list.

A block is cut where an event seems to end ("}, {"), and decoding is the check: text that was cut inside a string or
a nested object never decodes as a list of events. A block that does not decode goes to `events.Salvage`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from tb_ddp_doctor.trace.events import (
    LOOK_AHEAD,
    MAX_ITEM_BYTES,
    SEEMING_END,
    RawEvent,
    Salvage,
    SalvagedTo,
    decode_block,
    last_boundary,
    may_be_incomplete,
    reason,
    scan,
    size,
    to_text,
)
from tb_ddp_doctor.trace.losses import Loss, Losses
from tb_ddp_doctor.trace.model import NotJsonError, TraceError
from tb_ddp_doctor.trace.stream import StreamCutError

#: More than an event's boundary takes: one may go on in the next block.
_OVERLAP = 64
#: Torch breaks one at most. Each costs all the text before it, for the line that an error names, and what follows.
_MAX_BROKEN_MEMBERS = 32
_EVENT = re.compile(rb'[},]\s*(\{\s*"ph"\s*:)')
_LIST_END = re.compile(rb"\}\s*\]\s*[,}]")
_MEMBER = re.compile(r'[\s,]*"([^"\\]*(?:\\.[^"\\]*)*)"\s*:\s*')
_NEXT_MEMBER = re.compile(r',\s*"')
_EVENTS = re.compile(r'(?<!\\)"traceEvents"\s*:\s*\[')
_SPACE = " \t\r\n"


class Document:
    """The events of one JSON text, and the other members of its top-level object.

    `members` is complete when `batches` is exhausted.
    """

    def __init__(self, blocks: Iterable[memoryview | bytes], losses: Losses) -> None:
        self.members: dict[str, Any] = {}
        self._blocks = iter(blocks)
        self._losses = losses
        self._buffer = b""
        #: Byte position of the buffer's start in the text.
        self._position = 0
        #: Up to where the buffer is known to hold no boundary.
        self._searched = 0
        #: How long the buffer has to be before another look at it is worth it.
        self._wanted = 0
        self._salvage = Salvage(losses)
        self._stream_problem = ""

    def batches(self) -> Iterator[tuple[int, list[RawEvent]]]:
        """Events in file order, each batch with the byte position where it begins.

        TraceError, before the first batch but for bare lists, for a text that is no trace.
        """
        is_list = self._open()
        has_events, reached = False, SalvagedTo.MORE
        while reached is SalvagedTo.MORE:
            position = self._position
            events, reached = self._next()
            if reached is SalvagedTo.LIST_END and self._goes_on():
                reached = SalvagedTo.MORE
            has_events = has_events or any(event.ph for event in events)
            yield position, events
        if is_list and not has_events:
            raise TraceError("It is a JSON list, but not of trace events.")
        if reached is SalvagedTo.CUT:
            problem = self._salvage.given_up or self._stream_problem or "the JSON ends within its events"
            self._losses.add(Loss.CUT, self._position, problem)
        elif not is_list and not self._close():
            end = self._position + len(self._buffer)
            self._losses.add(Loss.CUT, end, self._stream_problem or "the JSON ends within its metadata")
        elif self._stream_problem:
            self._losses.add(Loss.STREAM, self._position + len(self._buffer), self._stream_problem)

    def _more(self, wanted: int = 0) -> bool:
        """Append blocks, one at least, until the buffer has `wanted` bytes; False at the end of the text."""
        parts, length = [self._buffer], len(self._buffer)
        try:
            for block in self._blocks:
                parts.append(bytes(block))
                length += len(block)
                if length >= wanted:
                    return True
        except StreamCutError as problem:
            self._stream_problem = str(problem)
        finally:
            self._buffer = b"".join(parts)
        return False

    def _drop(self, count: int) -> None:
        self._buffer = self._buffer[count:]
        self._position += count
        self._searched = 0

    def _open(self) -> bool:
        """Read up to the first event; whether the text is a bare list."""
        growing = True
        while growing:
            # Twice as much each time, or long metadata would be scanned once for each of its blocks.
            growing = self._more(max(_OVERLAP, 2 * len(self._buffer)))
            text = to_text(self._buffer)
            start = len(text) - len(text.lstrip(_SPACE + "\ufeff"))
            if text.startswith("{", start):
                at = self._head(text, start + 1)
                if at is not None:
                    self._drop(size(text[:at]))
                    return False
            elif text.startswith("[", start):
                self._drop(size(text[: start + 1]))
                return True
            elif start < len(text):
                raise NotJsonError("It is not JSON.")
            if len(text) > MAX_ITEM_BYTES:
                raise TraceError(f'It has no "traceEvents" in its first {MAX_ITEM_BYTES >> 20} MiB.')
        if self._buffer.strip():
            raise TraceError('It is cut off before its "traceEvents".')
        raise TraceError(f"{self._stream_problem}." if self._stream_problem else "The file is empty.")

    def _head(self, text: str, at: int) -> int | None:
        """Take the members before the events; where the events begin, or None if they have not arrived."""
        self.members = {}
        broken = 0
        while True:
            key = _MEMBER.match(text, at)
            if key and key[1] == "traceEvents" and key.end() < len(text):
                if text[key.end()] == "[":
                    return key.end() + 1
                raise TraceError('Its "traceEvents" is not a list.')
            if not key and text[at:].lstrip(_SPACE).startswith("}"):
                raise TraceError('It is JSON without "traceEvents", so no trace of torch.profiler.')
            try:
                if not key:
                    raise ValueError("it is not JSON")
                self.members[key[1]], at = scan(text, key.end())
            except ValueError as error:
                # Broken, if the events are seen behind it; else perhaps only incomplete.
                events = _EVENTS.search(text, at)
                if not events:
                    return None
                self._losses.add(Loss.HEADER, size(text[:at]), reason(error))
                broken += 1
                if broken == _MAX_BROKEN_MEMBERS:
                    return events.end()
                following = _NEXT_MEMBER.search(text, at + 1)
                at = following.start() if following else len(text)

    def _next(self) -> tuple[list[RawEvent], SalvagedTo]:
        """The events of the next block, and where that leaves the text."""
        growing = self._more(self._wanted)
        self._wanted = 0
        cut = None
        for cut in self._cuts():
            events = decode_block(self._buffer[:cut])
            if events is not None:
                self._drop(cut)
                return events, SalvagedTo.MORE
        if cut is None and growing and len(self._buffer) <= MAX_ITEM_BYTES:
            self._searched = len(self._buffer)
            return [], SalvagedTo.MORE
        events, used, reached = self._salvage.events(self._buffer, self._position, final=not growing)
        self._drop(used)
        # Twice as much next time, or an event of many blocks would be scanned once for each.
        self._wanted = 2 * len(self._buffer)
        self._searched = len(self._buffer)
        return events, reached

    def _cuts(self) -> Iterator[int]:
        """Ends of events to try a cut at: the last that seems one, then the first that seems the list's last."""
        cut = last_boundary(self._buffer, max(0, self._searched - _OVERLAP))
        if cut:
            yield cut
            last = _LIST_END.search(self._buffer)
            if last:
                yield last.start() + 1

    def _goes_on(self) -> bool:
        """Whether events follow what seems the end of their list; then the buffer begins with one of them."""
        self._more(LOOK_AHEAD)
        event = _EVENT.search(self._buffer)
        if event:
            self._losses.add(Loss.BROKEN, self._position, SEEMING_END)
            self._drop(event.start(1))
        return bool(event)

    def _close(self) -> bool:
        """Take the members after the events, as far as they are whole; whether the text has its end."""
        while len(self._buffer) <= MAX_ITEM_BYTES and self._more(2 * len(self._buffer)):
            pass
        text = to_text(self._buffer)
        at = 1
        broken = 0
        while broken < _MAX_BROKEN_MEMBERS and (key := _MEMBER.match(text, at)):
            try:
                self.members[key[1]], at = scan(text, key.end())
            except ValueError as error:
                following = _NEXT_MEMBER.search(text, key.end())
                if may_be_incomplete(error, text) or not following:
                    return False
                self._losses.add(Loss.HEADER, self._position + size(text[:at]), reason(error))
                broken += 1
                at = following.start()
        rest = text[at:].strip(_SPACE + ",")
        if rest.startswith("}"):
            if after := rest[1:].strip(_SPACE):
                end = self._position + size(text) - size(text[at:].lstrip(_SPACE + ",")) + 1
                self._losses.add(Loss.AFTER_END, end, f"{size(after):,} bytes")
            return True
        if not rest.endswith("}"):
            return False
        # Torch ends with "traceName", the file's own path, in which it escapes no quote.
        self._losses.add(Loss.HEADER, self._position + size(text[:at]), "it is not JSON")
        return True
