"""What the names of files and folders tell: worker, span, rank, host."""

from __future__ import annotations

import re

#: What `ddp-doctor digest` adds to a trace's name.
DIGEST_SUFFIX = ".digest"
TORCH_NAME = re.compile(r"(?P<worker>.+?)(?:\.(?P<span>\d+))?\.pt\.trace\.(?:json|pftrace)(?:\.gz)?", re.DOTALL)
#: Kineto's traces, as JSON or in Perfetto's format.
TRACE_NAME = re.compile(r"(?P<worker>.+?)(?:\.trace)?\.(?:json|pftrace|perfetto-trace)(?:\.gz)?", re.DOTALL)
PACKETS_NAME = re.compile(r".+\.(?:pftrace|perfetto-trace)(?:\.gz)?", re.DOTALL)
#: How JSON begins, and no packet: torch's exporter up to 2.13 writes it whatever the file is called.
_JSON = re.compile(rb"[ \t\r]*[{\[]")
#: Traces that are packed in a way that is not read, and archives.
PACKED_NAME = re.compile(r".+(?:\.(?:json|pftrace)\.(?:zst|xz|bz2|lz4|zip|7z)|\.tar(?:\.\w+)?|\.tgz|\.zip)", re.DOTALL)
#: "rank3" that is the rank in the job, not one within a node or a group.
_RANK_IN_NAME = re.compile(
    r"(?<![a-z])(?P<other>(?:local|node|group|[tpdec]p)[_-]?)?rank[_-]?(?P<rank>\d{1,7})", re.IGNORECASE
)
#: A capture of `capture.Doctor`, from this step on: two of them are never one, whichever ranks they have.
CAPTURE_FOLDER = re.compile(r"step_(\d{1,18})", re.ASCII)
#: Captures of the second, third ... start of a job in one log directory.
START_FOLDER = re.compile(r"start_(\d{1,9})", re.ASCII)
#: What a run is called for its profiler cycle, where a folder has several.
CYCLE_FOLDER = re.compile(r"span_(\d{1,18})", re.ASCII)
_KINETO_RANK = re.compile(r"kineto[_-](?P<rank>\d{1,7})$", re.IGNORECASE)
RANK_FOLDER = re.compile(r"(?:global[_-]?)?rank[_-]?(?P<rank>\d{1,7})", re.IGNORECASE)
#: Torch's own worker name, "<host>_<pid>"; Dynolog's is "libkineto_trace_<host>_<pid>".
_HOST_AND_PID = re.compile(r"(?:libkineto_trace_)?(?P<host>.+)_(?P<number>\d+)", re.DOTALL)
#: Python's `time.time()`, for which SGLang names a profile's files: "1742973425.12-TP-0", "merged-1742973425.12".
_SECONDS_IN_NAME = re.compile(r"(?<![\d.])(?P<seconds>[1-9]\d{9})\.(?P<fraction>\d{1,9})(?![\d.])")
_WORD = re.compile(r"[^\W\d_]+")
_BRACKETED_HOST = re.compile(r"\[(?P<host>[^\]]+)\]-\[\d+\]")


def has_packets(name: str, text: bytes) -> bool:
    """Whether a file is in Perfetto's format, by its name and by what its text begins with."""
    return bool(PACKETS_NAME.fullmatch(name)) and not _JSON.match(text)


def rank_in_name(worker: str) -> int | None:
    """The rank that a file's name claims."""
    named = next((match for match in _RANK_IN_NAME.finditer(worker) if not match["other"]), None)
    named = named or _KINETO_RANK.search(worker)
    return int(named["rank"]) if named else None


def host_in_name(worker: str) -> str:
    """The host of torch's `host_pid`, Dynolog's `libkineto_trace_host_pid` and of `[host]-[pid]-rank0`, else ""."""
    if match := _BRACKETED_HOST.match(worker):
        return match["host"]
    match = _HOST_AND_PID.fullmatch(worker)
    return match["host"] if match and rank_in_name(worker) is None else ""


def time_in_name(worker: str) -> tuple[int | None, str]:
    """When the profile began for whose time a file is named, ns since 1970, and the name without; None if for none."""
    match = _SECONDS_IN_NAME.search(worker)
    rest = f"{worker[: match.start()]}{worker[match.end() :]}".strip("-_.") if match else ""
    return (int(match["seconds"] + match["fraction"].ljust(9, "0")), rest) if match and rest else (None, worker)


def words(worker: str) -> frozenset[str]:
    """What a name says beside numbers: {"TP", "DECODE"} of "TP-0-DECODE"; the same for all ranks of one recording."""
    return frozenset(_WORD.findall(worker))


def is_dynolog(worker: str) -> bool:
    """Whether a file was asked for by Dynolog's daemon, which names it for host and process."""
    return worker.startswith("libkineto_trace_")


def names_process(worker: str, process: str, rank: int) -> bool:
    """Whether the number in `host_number` is the process that the trace is of, or its rank: then the rest is a host.

    Any other number may count anything, and the rest be any word: `worker_3`, `attempt_0`.
    """
    match = _HOST_AND_PID.fullmatch(worker)
    return match is None or match["number"] in (process, str(rank))


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key under which "node10" follows "node9"."""
    return tuple((1, int(part), "") if part.isdecimal() else (0, 0, part) for part in re.split(r"(\d+)", text))


def span_time_ns(span: str) -> int | None:
    """The time that a span's digits are, in ns, s, ms or us since the epoch; None for a counter such as a batch."""
    value = int(span or 0)
    for ns_per_unit in (1, 10**3, 10**6, 10**9):
        # 2001 to 2286, the years in which seconds since the epoch have ten digits.
        if 10**9 <= value * ns_per_unit // 10**9 < 10**10:
            return value * ns_per_unit
    return None


def is_remote(path: str) -> bool:
    """Whether it is a URI, such as "s3://bucket/logs"."""
    return bool(re.match(r"[a-zA-Z][0-9a-zA-Z.]*://", path))


def trace_name(name: str) -> str:
    """The name of the trace that a file is, or is the digest of."""
    return name.removesuffix(DIGEST_SUFFIX)
