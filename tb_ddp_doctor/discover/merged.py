"""Files into which a tool merged the traces of several ranks: what tells their events apart.

Such a tool changes the numbers of processes, so that those of two ranks do not meet, each in its own way:

    TraceLens (TraceFuse)    203194584               rank * 100,000,000 + pid, of devices and of Kineto's own (-1) too
    SGLang (merge_profiles)  "[TP01-EP01] 3194584"   the rank in its groups, and the pid
    RTP-LLM                  "[WR03] 3194584"        the rank of all, and the pid
    transformer-nuggets      3                       one number for all of a trace, and a name: "Rank 3", "before"

The last one also puts traces side by side that are not of one job, for the eye: what is named otherwise than for a
rank is a capture of its own.

vLLM writes a trace for each rank, and has no tool that merges them (up to 0.32).

A file is looked through for them where its beginning has such a label, events that name their rank, or none of Kineto's
own keys: whoever merges writes the file anew.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from tb_ddp_doctor.discover.names import natural

#: What each rank's numbers are moved by, and the largest number that a process has (Linux).
_APART, _LARGEST = 100_000_000, 1 << 22
_NUMBERED = "rank "
_LABELLED = re.compile(r"\[([A-Za-z]{2,8}\d{1,7}(?:-[A-Za-z]{2,8}\d{1,7}){0,8})\] (.*)", re.DOTALL)
_LABEL = re.compile(rb'"pid"\s*:\s*"\[[A-Za-z]{2,8}\d')
_EVENT_OF_RANK = re.compile(rb'"args"\s*:\s*\{[^{}]{0,4096}"rank"\s*:\s*\d')
_PID = re.compile(rb'"pid"\s*:\s*(?:"(\[[^"\\\n]{1,100})"|(\d{1,18})(?=\D))')
#: Work of a process, as Kineto orders its keys, and the name that a process was given.
_WORK = re.compile(rb'"cat"\s*:\s*"(cpu_op|kernel)"\s*,[^{}]{1,400}?"pid"\s*:\s*(\d{1,18})\s*,')
_NAME = re.compile(
    rb'"process_name"\s*,\s*"pid"\s*:\s*(\d{1,4})\s*,[^{}]{0,64}"args"\s*:\s*\{\s*"name"\s*:\s*'
    rb'("(?:[^"\\\n]|\\.){1,160}")'
)
#: The category of each file that ddp-doctor wrote, which says itself what it holds.
_OWN = b'"ddp-doctor"'
#: Of a name or a pid, with its key, no more is in the chunk before.
_OVERLAP = 512
#: Text that is looked through, where the beginning tells that ranks were merged, and where it does not.
_MOST_BYTES, _LEAST_BYTES = 1 << 30, 1 << 27
#: Processes in all: no merged file has as many; the digits of those that are numbered anew, and what is kept of a name.
_MOST_PIDS, _MOST_DIGITS, _MOST_NAME = 1 << 16, 4, 100
_NAMED = re.compile(r"part (\d{1,4}): (.*)", re.DOTALL)
_IN_PART = re.compile(r"\[(part \d{1,4}: .*)\] (.*)", re.DOTALL)
_RANK = re.compile(r"(?i:(?:global )?rank)[ _:#-]?(\d{1,7})")


def part(number: int, name: str) -> str:
    """The part of that number and name."""
    return f"part {number}: {name[:_MOST_NAME]}"


def pid_in_part(part: str, pid: str) -> str:
    """The number of a process of a part, where those of other parts may have the same."""
    return f"[{part}] {pid}"


def is_of(pid: str, part: str) -> bool:
    """Whether a process is of a part: "rank 2", "TP01-EP01", "part 2: before"."""
    if named := _NAMED.fullmatch(part):
        return pid == named[1] or pid.startswith(pid_in_part(part, ""))
    return _label(pid) == part


def own_pid(pid: str) -> str:
    """The number that the process had in its rank's own trace, as far as it still tells."""
    if match := _LABELLED.fullmatch(pid) or _IN_PART.fullmatch(pid):
        return match[2]
    return str((int(pid) + 1) % _APART - 1) if _is_numbered(pid) else pid


def rank(part: str) -> int | None:
    """The rank that a part says it is of; None of labels, which have its place in each group, and of captures."""
    if named := _NAMED.fullmatch(part):
        of_rank = _RANK.fullmatch(named[2].strip())
        return int(of_rank[1]) if of_rank else None
    return int(part.removeprefix(_NUMBERED)) if part.startswith(_NUMBERED) else None


def are_captures(parts: Sequence[str]) -> bool:
    """Whether the parts of a file are captures of their own, and no ranks of one job."""
    named = [part for part in parts if _NAMED.fullmatch(part)]
    return bool(named) and len({rank(part) for part in named} - {None}) < len(parts)


def capture_names(parts: Sequence[str]) -> list[str]:
    """What captures are called as runs: by their names, with their numbers where several have one name, or none."""
    named = [(one[1], one[2].replace("/", "_")) for one in map(_NAMED.fullmatch, parts) if one]
    shared = Counter(name for _, name in named)
    return [name if name and shared[name] == 1 else f"{name or 'part'} {number}" for number, name in named]


def have_labels(pids: Iterable[str]) -> bool:
    """Whether the numbers of processes tell the ranks that they are of."""
    labels = [_label(pid) for pid in pids]
    return "" not in labels and len(set(labels)) == len(labels)


def _label(pid: str) -> str:
    """The part that the number of a process tells; "" for none."""
    if match := _LABELLED.fullmatch(pid):
        return match[1]
    return f"{_NUMBERED}{(int(pid) + 1) // _APART}" if _is_numbered(pid) else ""


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
    work, names = set[tuple[bytes, bytes]](), dict[bytes, bytes]()
    rest, is_own = b"", False
    for chunk in chunks:
        text = rest + chunk
        is_own = is_own or _OWN in text
        pids.update(_PID.findall(text))
        work.update(_WORK.findall(text))
        names.update(_NAME.findall(text))
        rest, remaining = text[-_OVERLAP:], remaining - len(chunk)
        if max(len(pids), len(work)) > _MOST_PIDS:
            return ()
        if remaining <= 0:
            break
    if not is_own and (whole := _whole(work, names)):
        return whole
    labelled = {_label(label.decode("utf-8", "replace")) for label, _ in pids if label} - {""}
    labels = labelled or {_label(number.decode()) for _, number in pids if number}
    # Other recorders make numbers of their own, beyond those of processes.
    return tuple(sorted(labels, key=natural)) if len(labels) > 1 and "" not in labels else ()


def _whole(work: set[tuple[bytes, bytes]], names: Mapping[bytes, bytes]) -> tuple[str, ...]:
    """The parts of a file in which several processes have operators and kernels: Kineto gives GPUs their own."""
    small = [(kind, int(pid)) for kind, pid in work if len(pid) <= _MOST_DIGITS]
    with_operators, with_kernels = ({pid for kind, pid in small if kind == one} for one in (b"cpu_op", b"kernel"))
    named = {int(pid): _unquoted(name) for pid, name in names.items()}
    whole = sorted(with_operators & with_kernels)
    return tuple(part(number, named.get(number, "")) for number in whole) if len(whole) > 1 else ()


def _unquoted(text: bytes) -> str:
    try:
        return msgspec.json.decode(text, type=str)
    except msgspec.DecodeError:
        return text.decode("utf-8", "replace")


def _is_numbered(pid: str) -> bool:
    """Whether it may be a process of a merged file; Kineto's own overhead is process -1."""
    if pid == "-1":
        return True
    return pid.isascii() and pid.isdecimal() and len(pid) <= 18 and (int(pid) + 1) % _APART <= _LARGEST + 1
