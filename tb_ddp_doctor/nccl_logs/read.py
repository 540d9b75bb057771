"""What NCCL says of itself: the logs of NCCL_DEBUG=INFO. Lines count if a process of the run wrote them.

Lines of NCCL 2.4 to 2.28 and of RCCL are known:

    host:pid:tid [dev] NCCL INFO Using network Socket
    host:pid:tid [dev] NCCL INFO ncclCommInitRank comm 0x... rank 0 nranks 4 cudaDev 0 ... - Init COMPLETE
    host:pid:tid [dev] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA
    host:pid:tid [dev] NCCL INFO Channel 00/02 : 0 1 2 3
    host:pid:tid [dev] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
    host:pid:tid [dev] NCCL INFO NCCL_IB_DISABLE set by environment to 1.
    host:pid:tid [dev] NCCL INFO 2 coll channels, 2 collnet channels, 0 nvls channels, 2 p2p channels, ...
    host:pid:tid [dev] NCCL INFO Trees [0] 2/-1/-1->0->-1 [1] -1/-1/-1->0->1
    host:pid:tid [dev] NCCL INFO AllReduce: opCount 2a sendbuff 0x... recvbuff 0x... count 1024 datatype 7 op 0 ...
    host:pid:tid [dev] NCCL INFO AllReduce: 4096 Bytes -> Algo 1 proto 2 time 28.6
    host:pid:tid [dev] NCCL INFO AllReduce: 4096 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..15}
    host:pid:tid [dev] file.cc:99 NCCL WARN message

What NCCL's example profiler plugin wrote counts as such lines (`profile`).

Files are streamed: with NCCL_DEBUG_SUBSYS=COLL,TUNING each call is a line or two, and a log has gigabytes. Such lines
are counted by kind and size, and of lines that say the same one is read. Everything is untrusted: of all files together
no more than `_MOST_BYTES` are read, of lines that all differ so many, and what is kept is short.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.findings import Network
from tb_ddp_doctor.nccl_logs.calls import EACH_CALL, calls_of, choices_of, size_of, words
from tb_ddp_doctor.nccl_logs.lines import CALL, CHOICE, OTHER, communicators, lines, mixed
from tb_ddp_doctor.nccl_logs.matching import Matching, NumberedCalls
from tb_ddp_doctor.nccl_logs.profile import ProfiledCall, begins_profile, profiled
from tb_ddp_doctor.storage.time_limit import beginning

#: Read at once.
_BLOCK_BYTES = 1 << 22
#: By then a file that is not named for NCCL must have shown a line of it.
_FIRST_LOOK = 1 << 16
_MOST_BYTES = 8 << 30
#: Of profiles, each of whose calls is read by itself.
_MOST_PROFILE_BYTES = 1 << 28
_READERS = 8
_Process: TypeAlias = tuple[bytes, bytes]
#: Of each list that is kept.
_MOST_KEPT = 8
#: Kinds and sizes of calls that are counted; real jobs have hundreds.
_MOST_CALLS = 1 << 14
#: Different lines of no call that are read; real jobs have some hundreds of each process.
_MOST_OTHERS = 1 << 14
#: Lines that are known to have been read.
_MOST_READ = 1 << 17
_LONGEST_LINE = 1000
#: Collectives that a call has the smaller side of.
_IN_PARTS = (b"AllGather", b"ReduceScatter")

_LINE = re.compile(
    rb"^(?:.*?[\s\]>]:?)??(?P<host>[\w.-]+):(?P<pid>\d{1,10}):\d{1,10} \[-?\d+\](?P<rest> .*)$", re.ASCII
)
#: The time that launchers and NCCL_DEBUG_TIMESTAMP_FORMAT write before a line.
_STAMP = re.compile(rb"\[(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,6})?)\]? ")
#: Names in "[0]mlx5_0:1/IB [1]mlx5_1:1/IB" and "[0]eth0:10.0.0.1<0>".
_INTERFACES = re.compile(rb"\[\d+\]([\w.-]{1,32}):")


def read_logs(
    files: Collection[Path], pids: Collection[str], world_size: int, traced: Collection[NumberedCalls] = ()
) -> Network | None:
    """What the processes `pids` of a job of so many ranks wrote there; None if they wrote nothing.

    With the calls that were traced, choices are those of their process groups.
    """
    log = _Log(frozenset(pid.encode() for pid in pids if pid), world_size, Matching(traced))
    # NCCL_DEBUG_FILE names its process with %p; where there are too many, those of other jobs stand back.
    chosen = sorted(files, key=lambda path: not set(re.findall(r"\d+", path.name)) & set(pids))
    remaining, of_profiles = _MOST_BYTES, _MOST_PROFILE_BYTES
    with ThreadPoolExecutor(_READERS) as pool:
        for path, content in zip(chosen, pool.map(_content, chosen), strict=True):
            if content is _Content.LOG and remaining > 0:
                for block in _blocks(path, remaining):
                    remaining -= len(block)
                    log.take_block(block)
            elif content is _Content.PROFILE and of_profiles > 0:
                damaged = 0
                for block in _blocks(path, of_profiles):
                    of_profiles -= len(block)
                    damaged += log.take_profile(block)
                if damaged:
                    log.tell(f"{path.name}: {damaged:,} of the calls in this profile are damaged and left out")
    return log.network()


class _Content(Enum):
    LOG = 0
    PROFILE = 1
    OTHER = 2


def _content(path: Path) -> _Content:
    """What the beginning of a file shows: a line of NCCL, or an event of its profiler."""
    try:
        text = beginning(path, _FIRST_LOOK)
    except OSError:
        return _Content.OTHER
    if b"NCCL " in text and b"\0" not in text:
        return _Content.LOG
    return _Content.PROFILE if begins_profile(text) else _Content.OTHER


def _blocks(path: Path, most: int) -> Iterator[bytes]:
    """A file's text in pieces of whole lines."""
    rest = b""
    try:
        with path.open("rb") as file:
            while most > 0 and (data := file.read(min(_BLOCK_BYTES, most))):
                most -= len(data)
                end = data.rfind(b"\n") + 1
                if not end:
                    # Of a line of megabytes the beginning is enough.
                    rest = rest or data[:_LONGEST_LINE]
                    continue
                yield rest + data[:end]
                rest = data[end:]
    except OSError:
        pass
    if rest:
        yield rest


class _Line(NamedTuple):
    """What a line tells of a call, as `EACH_CALL` has it, and the process that wrote it."""

    pid: bytes
    call: tuple[bytes, ...]


class _Log:
    """What the lines of all files say together."""

    def __init__(self, pids: frozenset[bytes], world_size: int, matching: Matching) -> None:
        self._pids = pids
        self._matching = matching
        self._numbers = frozenset(matching.numbers.tolist())
        self._world_size = world_size
        #: By process, as (host, pid): rank in the job, and what its channels go through.
        self._rank: dict[_Process, int] = {}
        self._via: dict[_Process, Counter[str]] = {}
        self._version = ""
        self._channels = 0
        self._ring: tuple[int, ...] = ()
        self._settings: dict[str, str] = {}
        # Sets that keep their order.
        self._interfaces: dict[str, None] = {}
        self._unavailable: dict[str, None] = {}
        self._warnings: dict[str, None] = {}
        self._lines = self._others = 0
        #: Lines of which there is one for each call, as `EACH_CALL` has them.
        self._each: Counter[tuple[bytes, ...]] = Counter()
        #: Choices by process, communicator and what they are.
        self._chosen: Counter[tuple[bytes, int, tuple[bytes, ...]]] = Counter()
        self._tree: dict[int, int] = {}
        #: Calls of profiles, of all ranks that read the same; and the ranks of each communicator.
        self._profiled: Counter[ProfiledCall] = Counter()
        self._ranks_of: dict[int, int] = {}
        #: The time that a line begins with, and a space.
        self._stamp = b""
        #: What the lines that were read tell of calls, by key.
        self._read: dict[int, _Line | None] = {}
        #: The keys of `_read`, ascending.
        self._known = np.empty(0, np.uint64)

    def take_block(self, block: bytes) -> None:
        """Take whole lines: of those that say the same, one is read."""
        rows, total = lines(block)
        self._lines += total
        keys, first, times = np.unique(rows["key"], return_index=True, return_counts=True)
        wanted = self._traced(rows)
        warns = b"NCCL WARN" in block and len(self._warnings) < _MOST_KEPT
        read = np.flatnonzero(self._are_read(keys, rows["kind"][first], rows["key"][wanted], warns))
        read = read[first[read].argsort()]
        seen = rows[first[read]]
        columns = (seen[name].tolist() for name in ("key", "start", "end", "kind"))
        parsed: dict[int, _Line] = {}
        for key, start, end, kind, count in zip(*columns, times[read].tolist(), strict=True):
            if key not in self._read:
                self._others += kind == OTHER
                parsed_line = self._parsed(block[start : min(end, start + _LONGEST_LINE)], kind)
                if len(self._read) < _MOST_READ:
                    self._read[key] = parsed_line
            else:
                parsed_line = self._read[key]
            if parsed_line is not None and (parsed_line.call in self._each or len(self._each) < _MOST_CALLS):
                self._each[parsed_line.call] += count
                parsed[key] = parsed_line
        self._match(rows, wanted, parsed)

    def _are_read(
        self, keys: NDArray[np.uint64], kinds: NDArray[np.uint64], needed: NDArray[np.uint64], warns: bool
    ) -> NDArray[np.bool_]:
        """Which lines of these keys, ascending, are read: once there were enough of a kind, those known or needed."""
        calls_full, others_full = len(self._each) >= _MOST_CALLS, self._others >= _MOST_OTHERS
        full: NDArray[np.bool_] = np.where(kinds == OTHER, others_full and not warns, calls_full)
        if not full.any():
            return ~full
        if len(self._known) != len(self._read):
            self._known = np.sort(np.fromiter(self._read, np.uint64, len(self._read)))
        place = np.minimum(np.searchsorted(self._known, keys), len(self._known) - 1)
        are_read: NDArray[np.bool_] = ~full | (self._known[place] == keys) | np.isin(keys, needed)
        return are_read

    def _traced(self, rows: NDArray[Any]) -> NDArray[np.intp]:
        """The rows of calls with the numbers of traced ones."""
        numbers, own = self._matching.numbers, rows["op_count"]
        if not len(numbers):
            return np.empty(0, np.intp)
        near = np.flatnonzero((rows["kind"] == CALL) & (own >= numbers[0]) & (own <= numbers[-1]))
        return near[np.isin(own[near], numbers)]

    def _match(self, rows: NDArray[Any], wanted: NDArray[np.intp], lines: Mapping[int, _Line]) -> None:
        """Keep the wanted calls, and the choices beside them; `told` goes by key."""
        if not len(wanted):
            return
        calls = rows[["key", "op_count", "communicator"]][wanted].tolist()
        for key, number, communicator in calls:
            if key in lines and (sized := size_of(lines[key].call)):
                self._matching.add(lines[key].pid.decode(), communicator, number, sized)
        choices = np.flatnonzero(rows["kind"] == CHOICE)
        pairs = np.stack([rows["key"][choices], communicators(rows)[choices]])
        _, first, times = np.unique(mixed(*pairs), return_index=True, return_counts=True)
        for key, communicator, count in zip(*pairs[:, first].tolist(), times.tolist(), strict=True):
            if key in lines and len(self._chosen) < _MOST_CALLS:
                self._chosen[lines[key].pid, communicator, lines[key].call] += count

    def _parsed(self, line: bytes, kind: int) -> _Line | None:
        """What a call or a choice is of; None of another line, which is taken, and of other jobs."""
        call = EACH_CALL.search(line) if kind != OTHER else None
        if call is None:
            self.take(line)
            return None
        process = _LINE.match(line)
        return _Line(process["pid"], call.groups(b"")) if process and process["pid"] in self._pids else None

    def take_profile(self, block: bytes) -> int:
        """Take whole lines of a profile; returns how many calls in them are damaged."""
        damaged = 0
        for call in profiled(block):
            if call is None:
                damaged += 1
            elif call.pid in self._pids:
                sized = size_of((call.name, b"%d datatype %d" % (call.elements, call.type), b""))
                if sized and call.number in self._numbers:
                    self._matching.add(call.pid.decode(), call.communicator, call.number, sized)
                like = call._replace(number=0, rank=0)
                if like in self._profiled or len(self._profiled) < _MOST_CALLS:
                    self._profiled[like] += 1
                if call.communicator in self._ranks_of or len(self._ranks_of) < _MOST_CALLS:
                    self._ranks_of[call.communicator] = max(self._ranks_of.get(call.communicator, 0), call.rank + 1)
        return damaged

    def tell(self, text: str) -> None:
        """Keep what there is to say of a file."""
        _keep(self._warnings, text.encode(errors="replace"))

    def _take_profiled(self) -> None:
        """Count the calls of profiles as if they had been logged, now that the sizes of communicators are known.

        A choice is logged with the larger side of a collective.
        """
        for call, times in self._profiled.items():
            said = b"%d datatype %d" % (call.elements, call.type)
            self._each[call.name, said, b""] += times
            sized = size_of((call.name, said, b""))
            if sized and call.algorithm and call.protocol:
                parts = self._ranks_of[call.communicator] if call.name in _IN_PARTS else 1
                choice = b"%d Bytes -> Algo %b proto %b channel{Lo..Hi}={0..%d}" % (
                    sized[1] * parts,
                    call.algorithm,
                    call.protocol,
                    max(call.channels - 1, 0),
                )
                self._each[call.name, b"", choice] += times
                self._chosen[call.pid, call.communicator, (call.name, b"", choice)] += times
        self._profiled.clear()

    def tree(self, process: _Process, said: re.Match[bytes]) -> None:
        """The parent of a rank in the first channel's tree of the job's communicator."""
        rank, parent = int(said[1]), int(said[2])
        if self._rank.get(process, rank) == rank < self._world_size and parent < self._world_size:
            self._tree.setdefault(rank, parent)

    def take(self, line: bytes) -> None:
        parts = _LINE.match(line[:_LONGEST_LINE])
        if parts is None or parts["pid"] not in self._pids:
            return
        stamp = _STAMP.match(line)
        self._stamp = stamp[1] + b" " if stamp else b""
        for pattern, take in _TAKEN:
            if said := pattern.search(parts["rest"]):
                take(self, (parts["host"], parts["pid"]), said)
                return

    def ring(self, _process: _Process, said: re.Match[bytes]) -> None:
        """That of the first channel, as far as it goes through all ranks of the job."""
        ring = tuple(map(int, said[1].split()))
        if sorted(ring) == list(range(self._world_size)):
            self._ring = ring

    def warning(self, _process: _Process, said: re.Match[bytes]) -> None:
        _keep(self._warnings, self._stamp + said[1])

    def communicator(self, process: _Process, said: re.Match[bytes]) -> None:
        """Its rank is the job's if all ranks of the job are in it."""
        if int(said[2]) == self._world_size and int(said[1]) < self._world_size:
            self._rank[process] = int(said[1])

    def channel(self, process: _Process, said: re.Match[bytes]) -> None:
        self._via.setdefault(process, Counter())[_transport(said["via"])] += 1

    def setting(self, _process: _Process, said: re.Match[bytes]) -> None:
        if len(self._settings) < 4 * _MOST_KEPT:
            self._settings[words(said[1])] = words(said[2])

    def channels(self, _process: _Process, said: re.Match[bytes]) -> None:
        self._channels = min(self._channels or int(said[1]), int(said[1]))

    def version(self, _process: _Process, said: re.Match[bytes]) -> None:
        self._version = words(said[1])

    def unavailable(self, _process: _Process, said: re.Match[bytes]) -> None:
        _keep(self._unavailable, said[1] or said[2])

    def interfaces(self, _process: _Process, said: re.Match[bytes]) -> None:
        for name in _INTERFACES.findall(said[1]):
            _keep(self._interfaces, name)

    def network(self) -> Network | None:
        self._take_profiled()
        if not (self._via or self._version or self._each):
            return None
        ranks: dict[str, set[int]] = {}
        for process, via in self._via.items():
            for transport in via:
                ranks.setdefault(transport, set()).update({self._rank[process]} if process in self._rank else ())
        return Network(
            version=self._version,
            transports={transport: tuple(sorted(ranks[transport])) for transport in sorted(ranks)},
            channels=self._channels,
            ring=self._ring,
            interfaces=tuple(self._interfaces),
            unavailable=tuple(self._unavailable),
            settings=self._settings,
            warnings=tuple(self._warnings),
            lines=self._lines,
            calls=tuple(calls_of(self._each)),
            choices=tuple(choices_of(self._grouped())),
            tree=tuple(self._tree[rank] for rank in range(self._world_size)) if self._has_tree() else (),
        )

    def _grouped(self) -> Counter[tuple[str, tuple[bytes, ...]]]:
        """Choices by process group, "" where that is not known, and what they are."""
        groups = self._matching.groups()
        times_of: Counter[tuple[str, tuple[bytes, ...]]] = Counter()
        remaining = Counter({call: times for call, times in self._each.items() if call[2]})
        for (pid, communicator, call), times in self._chosen.items():
            if group := groups.get((pid.decode(), communicator)):
                times_of[group, call] += times
                remaining[call] -= times
        times_of.update({("", call): times for call, times in remaining.items() if times > 0})
        return times_of

    def _has_tree(self) -> bool:
        """Whether each rank of the job has one parent, but the root."""
        return len(self._tree) == self._world_size and list(self._tree.values()).count(-1) == 1


#: The first that a line matches takes it.
_TAKEN = (
    (re.compile(rb"NCCL WARN (.*)"), _Log.warning),
    (re.compile(rb"\bTrees? \[0\] [-\d/]+->(\d{1,7})->(-?\d{1,7})\b"), _Log.tree),
    (re.compile(rb"\bcomm 0x[0-9a-f]+ rank (\d{1,7}) n[rR]anks (\d{1,7})\b"), _Log.communicator),
    (
        re.compile(rb"(?:Channel|Ring) \d+(?:/\d+)? : \d+(?:\[\w+\])? -> \d+(?:\[\w+\])?.* via (?P<via>[^\r\n]+)"),
        _Log.channel,
    ),
    (re.compile(rb"Channel 0+/\d+ : ([\d ]+)$"), _Log.ring),
    (re.compile(rb"\b(NCCL_[A-Z0-9_]{1,40}) set (?:by environment )?to (\S{1,60}?)\.?\s*$"), _Log.setting),
    (re.compile(rb"\b(\d{1,4}) coll channels"), _Log.channels),
    (re.compile(rb"\b[NR]CCL version ([\w.+-]{1,40})"), _Log.version),
    (re.compile(rb"NET/(\w+) ?: No device found|Failed to initialize NET plugin (\w+)"), _Log.unavailable),
    (re.compile(rb"NET/\w+ : Using (.{1,400})"), _Log.interfaces),
)


def _transport(via: bytes) -> str:
    """What a channel goes through, without numbers: "P2P", "SHM", "NET/Socket", "NET/IB/GDRDMA" ..."""
    parts = via.split(b" comm ")[0].split(b"/")
    kind = words(parts[0])[:16]
    if kind == "NET" and len(parts) > 1:
        kind = f"NET/{words(parts[1])[:32]}"
        return f"{kind}/GDRDMA" if any(part.startswith(b"GDRDMA") for part in parts[2:]) else kind
    return kind


def _keep(kept: dict[str, None], text: bytes) -> None:
    if len(kept) < _MOST_KEPT:
        kept[words(text)] = None
