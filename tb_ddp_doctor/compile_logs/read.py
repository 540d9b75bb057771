"""Reads the logs of TORCH_TRACE: why functions were compiled again, and why graphs were broken.

A record is a line of JSON behind a prefix, and lines of payload that begin with a tab (torch 2.5 to 2.13):

    V1127 08:00:46.711000 28192 torch/_dynamo/guards.py:5400] {"artifact": {"name": "recompile_reasons", ...},
        "rank": 3, "frame_id": 0, "frame_compile_id": 1, "attempt": 0, "has_payload": "8b6c77063b1ec946"}
    <tab>0/0: tensor 'x' size mismatch at index 0. expected 4, actual 6
    V1127 08:00:46.937000 28192 ...] {"compilation_metrics": {"compile_id": "0/1", "co_name": "forward",
        "co_filename": "/job/train.py", "co_firstlineno": 6, "start_time": 1795766446.7, ...}, "frame_id": 0, ...}

Supported: the artifacts `recompile_reasons` and `dynamo_graph_break_reason`, and compilation metrics, which name the
function and the time. All other records are passed over unread. Everything is untrusted: of all files together no more
than `_MOST_BYTES` are read, and what is kept is short.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from tb_ddp_doctor.compile_logs.model import CompileReason
from tb_ddp_doctor.storage.message import REFUSALS

#: Of all files together; a rank of a large job has some 100 MB.
_MOST_BYTES = 2 << 30
#: Of a line; of a payload's lines that are kept; of a text that is shown.
_LONGEST_LINE, _MOST_LINES, _MOST_LETTERS = 1 << 20, 64, 300
#: Reasons of one rank.
_MOST_REASONS = 4096
#: A record's line: the rank where torch.distributed is set up, the process, and JSON.
_RECORD = re.compile(rb"(?:\[rank(\d{1,7})\]:)?V\d{4} [\d:.]{8,20} (\d{1,10}) [^\]]{0,4096}\] (\{.*)", re.DOTALL)
_RECOMPILE, _BREAK, _METRICS = b'"recompile_reasons"', b'"dynamo_graph_break_reason"', b'{"compilation_metrics"'
#: The compilation whose guard failed: "0/1: ...".
_OF_COMPILATION = re.compile(r"(?:\d+/)?\d+/\d+: ")
_PLACE = re.compile(r"Graph break in user code at (.{1,4096}):(\d{1,9})")
#: A guard's source, behind the guard: "scale == 1.0    # y = y*scale  # train.py:9 in forward".
_OF_GUARD = re.compile(r"\s+#\s(?:.*#\s(\S{1,300}:\d{1,9}) in .*)?.*")
_RANK_OF_NAME = re.compile(r"_rank_(\d{1,7})_")
_NS = 1_000_000_000
#: The end of this century, s.
_LATEST_S = 4_102_444_800.0


class _Compilation(msgspec.Struct):
    """What the metrics of a compilation say."""

    function: str = ""
    place: str = ""
    start_ns: int = 0
    duration_ns: int = 0


class _Reason(msgspec.Struct):
    kind: str
    compilation: str
    place: str
    reason: str
    hint: str


class _Read(msgspec.Struct):
    """What is known of a file while it is read."""

    rank: int | None
    reasons: list[_Reason]
    compilations: dict[str, _Compilation]


def read_logs(paths: Iterable[Path], ranks_of_pids: Mapping[str, int]) -> tuple[CompileReason, ...]:
    """The reasons in some files, in the order of time within each; those of a process whose rank is not known, of none.

    A file's rank is what its name or its records say, else that of the process that wrote it.
    """
    remaining = _MOST_BYTES
    reasons: list[CompileReason] = []
    for path in paths:
        try:
            with path.open("rb") as file:
                reasons += _reasons(file, _rank_in(path.name), ranks_of_pids, remaining)
                remaining -= file.tell()
        except OSError:
            continue
        if remaining <= 0:
            break
    return tuple(reasons)


def _rank_in(name: str) -> int | None:
    said = _RANK_OF_NAME.search(name)
    return int(said[1]) if said else None


def _reasons(file: BinaryIO, rank: int | None, ranks_of_pids: Mapping[str, int], most: int) -> list[CompileReason]:
    read = _Read(rank, [], {})
    line = _next_line(file)
    while line and file.tell() <= most and len(read.reasons) < _MOST_REASONS:
        said = _RECORD.match(line) if line.startswith((b"V", b"[")) else None
        if said is None or not any(key in line for key in (_RECOMPILE, _BREAK, _METRICS)):
            line = _next_line(file)
            continue
        if read.rank is None:
            read.rank = int(said[1]) if said[1] else ranks_of_pids.get(said[2].decode())
        payload: list[str] = []
        line = _next_line(file)
        while line.startswith(b"\t"):
            if len(payload) < _MOST_LINES:
                payload.append(line[1:].decode("utf-8", "replace").rstrip("\r\n"))
            line = _next_line(file)
        _take(read, said[3], payload)
    return [*_complete(read)]


def _next_line(file: BinaryIO) -> bytes:
    """A line, of one that is too long the beginning; b"" at the end."""
    line = file.readline(_LONGEST_LINE)
    rest = line
    while len(rest) == _LONGEST_LINE and not rest.endswith(b"\n"):
        rest = file.readline(_LONGEST_LINE)
    return line


def _take(read: _Read, text: bytes, payload: list[str]) -> None:
    try:
        record = msgspec.json.decode(text)
    except REFUSALS:
        return
    if isinstance(rank := record.get("rank"), int) and not isinstance(rank, bool) and read.rank is None:
        read.rank = rank
    compilation = f"{record.get('frame_id')}/{record.get('frame_compile_id')}"
    if isinstance(metrics := record.get("compilation_metrics"), dict):
        read.compilations[compilation] = _of_metrics(metrics)
    elif _RECOMPILE in text and (recompiled := _recompiled(payload)):
        place, reason = recompiled
        read.reasons.append(_Reason("recompile", compilation, place, reason, ""))
    elif _BREAK in text and (broken := _broken(payload)):
        place, reason, hint = broken
        read.reasons.append(_Reason("graph-break", compilation, place, reason, hint))


def _of_metrics(metrics: Mapping[str, Any]) -> _Compilation:
    file, line, name = (metrics.get(key) for key in ("co_filename", "co_firstlineno", "co_name"))
    return _Compilation(
        _short(name) if isinstance(name, str) else "",
        _short(f"{_own(file)}:{line}") if isinstance(file, str) and isinstance(line, int) else "",
        _ns(metrics.get("start_time")),
        _ns(metrics.get("entire_frame_compile_time_s")),
    )


def _ns(seconds: Any) -> int:
    is_time = isinstance(seconds, float | int) and not isinstance(seconds, bool) and 0 < seconds < _LATEST_S
    return int(seconds * _NS) if is_time else 0


def _recompiled(payload: list[str]) -> tuple[str, str] | None:
    """The place, where one is named, and the guard that failed for the last that was compiled: that of a line, or of
    the first text of a JSON list.
    """
    text = "\n".join(payload)
    if text.lstrip().startswith("["):
        try:
            texts = msgspec.json.decode(text, type=list[str])
        except REFUSALS:
            return None
        text = texts[0] if texts else ""
    first = next((line for line in text.splitlines() if _OF_COMPILATION.match(line)), "")
    guard = _OF_COMPILATION.sub("", first, 1).strip()
    source = _OF_GUARD.search(guard)
    reason = guard[: source.start()] if source else guard
    return (_short((source and source[1]) or ""), _short(reason)) if reason else None


def _broken(payload: list[str]) -> tuple[str, str, str] | None:
    """Where a graph breaks, why, and torch's advice."""
    place = _PLACE.match(payload[0]) if payload else None
    at = next(
        (number for number, line in enumerate(payload) if line.startswith(("Graph Break Reason:", "Reason:"))), -1
    )
    if place is None or at < 0:
        return None
    reason = payload[at].partition(":")[2].strip()
    # Since torch 2.7 the first line says where it was noticed, and a paragraph of its own says what is not supported.
    own = next((number for number in range(at + 1, len(payload)) if payload[number].strip()), -1)
    if own > at + 1 and not payload[own].startswith("User code"):
        reason = payload[own].strip()
    hints = (line.strip().partition("Hint:")[2].strip() for line in payload if line.strip().startswith("Hint:"))
    return _short(f"{_own(place[1])}:{place[2]}"), _short(reason), _short(next(hints, ""))


def _own(file: str) -> str:
    return re.split(r"[/\\]", file)[-1]


def _short(text: str) -> str:
    return text[:_MOST_LETTERS]


def _complete(read: _Read) -> Iterator[CompileReason]:
    if read.rank is None:
        return
    seen: set[tuple[str, str, str]] = set()
    for one in read.reasons:
        # A function that breaks is begun again, and its break is said each time.
        key = (one.kind, one.compilation, one.place)
        if key in seen:
            continue
        seen.add(key)
        of = read.compilations.get(one.compilation, _Compilation())
        kind: Any = one.kind
        place = one.place or of.place
        yield CompileReason(kind, read.rank, of.function, place, one.reason, one.hint, of.start_ns, of.duration_ns)
