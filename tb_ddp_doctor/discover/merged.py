"""Files into which a tool merged the traces of several ranks: what tells their events apart.

Such a tool changes the numbers of processes, so that those of two ranks do not meet, each in its own way:

    TraceLens (TraceFuse)    203194584               rank * 100,000,000 + pid, of devices and of Kineto's own (-1) too
    SGLang (merge_profiles)  "[TP01-EP01] 3194584"   the rank in its groups, and the pid
    RTP-LLM                  "[WR03] 3194584"        the rank of all, and the pid

vLLM writes a trace for each rank, and has no tool that merges them (up to 0.32).

A file is looked through for them where its beginning has such a label, events that name their rank, or none of Kineto's
own keys: whoever merges writes the file anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tb_ddp_doctor.discover.names import natural

#: What each rank's numbers are moved by, and the largest number that a process has (Linux).
_APART, _LARGEST = 100_000_000, 1 << 22
_NUMBERED = "rank "
_LABELLED = re.compile(r"\[([A-Za-z]{2,8}\d{1,7}(?:-[A-Za-z]{2,8}\d{1,7}){0,8})\] (.*)", re.DOTALL)
_LABEL = re.compile(rb'"pid"\s*:\s*"\[[A-Za-z]{2,8}\d')
_EVENT_OF_RANK = re.compile(rb'"args"\s*:\s*\{[^{}]{0,4096}"rank"\s*:\s*\d')
_PID = re.compile(rb'"pid"\s*:\s*(?:"(\[[^"\\\n]{1,100})"|(\d{1,18})(?=\D))')
#: Of a pid, with its key, no more is in the chunk before.
_OVERLAP = 256
#: Text that is looked through, where the beginning tells that ranks were merged, and where it does not.
_MOST_BYTES, _LEAST_BYTES = 1 << 30, 1 << 27
#: Processes in all: no merged file has as many.
_MOST_PIDS = 1 << 16


def part(pid: str) -> str:
    """The part of a merged file that a process is of: "rank 2", "TP01-EP01"; "" for none."""
    if match := _LABELLED.fullmatch(pid):
        return match[1]
    return f"{_NUMBERED}{(int(pid) + 1) // _APART}" if _is_numbered(pid) else ""


def own_pid(pid: str) -> str:
    """The number that the process had in its rank's own trace."""
    if match := _LABELLED.fullmatch(pid):
        return match[2]
    return str((int(pid) + 1) % _APART - 1) if _is_numbered(pid) else pid


def rank(part: str) -> int | None:
    """The rank that a part says it is of; None of labels, which have its place in each group."""
    return int(part.removeprefix(_NUMBERED)) if part.startswith(_NUMBERED) else None


def may_be(head: bytes) -> bool:
    """Whether several ranks may have been merged into a trace that begins so."""
    return not (b'"schemaVersion"' in head or b'"distributedInfo"' in head) or _is_marked(head)


def _is_marked(head: bytes) -> bool:
    return bool(_LABEL.search(head) or _EVENT_OF_RANK.search(head))


def parts(head: bytes, chunks: Iterable[bytes]) -> tuple[str, ...]:
    """The parts of a trace by its text, in order; none where it holds one rank. `head` is its beginning."""
    if not may_be(head):
        return ()
    remaining, pids = _MOST_BYTES if _is_marked(head) else _LEAST_BYTES, set[tuple[bytes, bytes]]()
    rest = b""
    for chunk in chunks:
        text = rest + chunk
        pids.update(_PID.findall(text))
        rest, remaining = text[-_OVERLAP:], remaining - len(chunk)
        if len(pids) > _MOST_PIDS:
            return ()
        if remaining <= 0:
            break
    labelled = {part(label.decode("utf-8", "replace")) for label, _ in pids if label} - {""}
    labels = labelled or {part(number.decode()) for _, number in pids if number}
    # Other recorders make numbers of their own, beyond those of processes.
    return tuple(sorted(labels, key=natural)) if len(labels) > 1 and "" not in labels else ()


def _is_numbered(pid: str) -> bool:
    """Whether it may be a process of a merged file; Kineto's own overhead is process -1."""
    if pid == "-1":
        return True
    return pid.isascii() and pid.isdecimal() and len(pid) <= 18 and (int(pid) + 1) % _APART <= _LARGEST + 1
