"""What NCCL says of itself: the logs of NCCL_DEBUG=INFO that lie beside the traces.

Taken are text files with "nccl" in their name, and other `.log`, `.txt`, `.out` and `.err` that hold NCCL's lines (a
job's own output), in the folders of the run's traces, in the run's folder and the one above, and in folders there with
"nccl" in their name. Lines count if a process of the run wrote them, so that the logs of other jobs do no harm.

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

Files are streamed: with NCCL_DEBUG_SUBSYS=COLL,TUNING each call is a line or two, and a log has gigabytes. Such lines
are counted by kind and size, and of lines that say the same one is read. Everything is untrusted: of all files together
no more than `_MOST_BYTES` are read, and what is kept is short.
"""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.discover import nccl_lines
from tb_ddp_doctor.discover.nccl_lines import lines
from tb_ddp_doctor.discover.nccl_matching import Matching, NumberedCalls
from tb_ddp_doctor.findings import NcclCalls, NcclChoice, Network

#: Read at once.
_BLOCK_BYTES = 1 << 22
#: By then a file that is not named for NCCL must have shown a line of it.
_FIRST_LOOK = 1 << 16
_MOST_BYTES = 8 << 30
_MOST_FOLDERS = 256
_READERS = 8
_Process: TypeAlias = tuple[bytes, bytes]
#: Of each list that is kept, and of each text in it.
_MOST_KEPT, _LONGEST = 8, 200
#: Kinds and sizes of calls that are counted, and that are kept; real jobs have hundreds.
_MOST_CALLS, _MOST_SHOWN = 1 << 14, 64
#: Lines that are known to have been read.
_MOST_READ = 1 << 17
_LONGEST_LINE = 1000

_TEXT = (".log", ".txt", ".out", ".err")
_NO_TEXT = (".json", ".gz", ".zst", ".xml", ".so", ".py", ".pb", ".bin", ".pt", ".digest", ".csv", ".whl", ".deb")
_LINE = re.compile(
    rb"^(?:.*?[\s\]>]:?)??(?P<host>[\w.-]+):(?P<pid>\d{1,10}):\d{1,10} \[-?\d+\](?P<rest> .*)$", re.ASCII
)
#: The time that launchers and NCCL_DEBUG_TIMESTAMP_FORMAT write before a line.
_STAMP = re.compile(rb"\[(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,6})?)\]? ")
#: Names in "[0]mlx5_0:1/IB [1]mlx5_1:1/IB" and "[0]eth0:10.0.0.1<0>".
_INTERFACES = re.compile(rb"\[\d+\]([\w.-]{1,32}):")


def find(folders: Iterable[Path], run: Path) -> list[Path]:
    """The files that may be logs of NCCL, for a run whose traces lie in `folders` below `run`."""
    found: dict[Path, None] = {}
    looked: set[Path] = set()
    for folder in [*dict.fromkeys([run, *folders, run.parent])][:_MOST_FOLDERS]:
        for place in (folder, *_named_for_nccl(folder)):
            if place not in looked:
                looked.add(place)
                found.update(dict.fromkeys(_files(place)))
    return list(found)


def read(
    files: Collection[Path], pids: Collection[str], world_size: int, traced: Collection[NumberedCalls] = ()
) -> Network | None:
    """What the processes `pids` of a job of so many ranks wrote there; None if they wrote nothing.

    With the calls that were traced, choices are those of their process groups.
    """
    log = _Log(frozenset(pid.encode() for pid in pids if pid), world_size, Matching(traced))
    # NCCL_DEBUG_FILE names its process with %p; where there are too many, those of other jobs stand back.
    chosen = sorted(files, key=lambda path: not _numbers_in(path.name) & set(pids))
    left = _MOST_BYTES
    with ThreadPoolExecutor(_READERS) as pool:
        for path, begins in zip(chosen, pool.map(_begins_as_log, chosen), strict=True):
            if begins and left > 0:
                for block in _blocks(path, left):
                    left -= len(block)
                    log.take_block(block)
    return log.network()


def _numbers_in(name: str) -> set[str]:
    """The numbers in a file's name, one of which may be a process."""
    return set(re.findall(r"\d+", name))


def _named_for_nccl(folder: Path) -> list[Path]:
    return [
        folder / entry.name for entry in _entries(folder) if "nccl" in entry.name.lower() and _is(entry, folder=True)
    ]


def _files(folder: Path) -> Iterator[Path]:
    for entry in _entries(folder):
        name = entry.name.lower()
        wanted = name.endswith(_TEXT) or ("nccl" in name and not name.endswith(_NO_TEXT))
        if wanted and _is(entry, folder=False):
            yield folder / entry.name


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name)
    except OSError:
        return []


def _is(entry: os.DirEntry[str], *, folder: bool) -> bool:
    """Whether it is a folder, or else a plain file: reading a pipe or a device may never end."""
    try:
        mode = entry.stat().st_mode
    except OSError:
        return False
    return stat.S_ISDIR(mode) if folder else stat.S_ISREG(mode)


def _begins_as_log(path: Path) -> bool:
    """Whether the beginning of a file has a line of NCCL."""
    try:
        with path.open("rb") as file:
            text = file.read(_FIRST_LOOK)
    except OSError:
        return False
    return b"NCCL " in text and b"\0" not in text


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


class _Told(NamedTuple):
    """What a line tells of a call, as `_EACH_CALL` has it, and the process that wrote it."""

    pid: bytes
    call: tuple[bytes, ...]


class _Log:
    """What the lines of all files say together."""

    def __init__(self, pids: frozenset[bytes], world_size: int, matching: Matching) -> None:
        self._pids = pids
        self._matching = matching
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
        self._lines = 0
        #: Lines of which there is one for each call, as `_EACH_CALL` has them.
        self._each: Counter[tuple[bytes, ...]] = Counter()
        #: Choices by process, communicator and what they are.
        self._chosen: Counter[tuple[bytes, int, tuple[bytes, ...]]] = Counter()
        self._tree: dict[int, int] = {}
        #: The time that a line begins with, and a space.
        self._stamp = b""
        #: What the lines that were read tell of calls, by key.
        self._read: dict[int, _Told | None] = {}

    def take_block(self, block: bytes) -> None:
        """Take whole lines: of those that say the same, one is read."""
        rows, total = lines(block)
        self._lines += total
        different, first, times = np.unique(rows["key"], return_index=True, return_counts=True)
        told: dict[int, _Told] = {}
        for at in first.argsort().tolist():
            key, row = int(different[at]), rows[first[at]]
            if key not in self._read:
                start, end = int(row["start"]), int(row["end"])
                found = self._told(block[start : min(end, start + _LONGEST_LINE)], int(row["kind"]))
                if len(self._read) < _MOST_READ:
                    self._read[key] = found
            else:
                found = self._read[key]
            if found is not None and (found.call in self._each or len(self._each) < _MOST_CALLS):
                self._each[found.call] += int(times[at])
                told[key] = found
        if len(self._matching.numbers):
            self._match(rows, told)

    def _match(self, rows: NDArray[Any], told: Mapping[int, _Told]) -> None:
        """Keep calls with the numbers of traced ones, and the choices beside them; `told` goes by key."""
        numbers, own = self._matching.numbers, rows["op_count"]
        wanted = np.flatnonzero((rows["kind"] == nccl_lines.CALL) & (own >= numbers[0]) & (own <= numbers[-1]))
        wanted = wanted[np.isin(own[wanted], numbers)]
        if not len(wanted):
            return
        calls = rows[["key", "op_count", "communicator"]][wanted].tolist()
        for key, number, communicator in calls:
            if key in told and (sized := _size(told[key].call)):
                self._matching.add(told[key].pid.decode(), communicator, number, sized)
        choices = np.flatnonzero(rows["kind"] == nccl_lines.CHOICE)
        pairs = np.stack([rows["key"][choices], nccl_lines.communicators(rows)[choices]])
        _, first, times = np.unique(nccl_lines.mixed(*pairs), return_index=True, return_counts=True)
        for key, communicator, count in zip(*pairs[:, first].tolist(), times.tolist(), strict=True):
            if key in told and len(self._chosen) < _MOST_CALLS:
                self._chosen[told[key].pid, communicator, told[key].call] += count

    def _told(self, line: bytes, kind: int) -> _Told | None:
        """What a call or a choice is of; None of another line, which is taken, and of other jobs."""
        found = _EACH_CALL.search(line) if kind != nccl_lines.OTHER else None
        if found is None:
            self.take(line)
            return None
        process = _LINE.match(line)
        return _Told(process["pid"], found.groups(b"")) if process and process["pid"] in self._pids else None

    def tree(self, process: _Process, said: re.Match[bytes]) -> None:
        """The parent of a rank in the first channel's tree of the job's communicator."""
        rank, parent = int(said[1]), int(said[2])
        if self._rank.get(process, rank) == rank < self._world_size and parent < self._world_size:
            self._tree.setdefault(rank, parent)

    def take(self, line: bytes) -> None:
        found = _LINE.match(line[:_LONGEST_LINE])
        if found is None or found["pid"] not in self._pids:
            return
        stamp = _STAMP.match(line)
        self._stamp = stamp[1] + b" " if stamp else b""
        for pattern, take in _TAKEN:
            if said := pattern.search(found["rest"]):
                take(self, (found["host"], found["pid"]), said)
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
            self._settings[_words(said[1])] = _words(said[2])

    def channels(self, _process: _Process, said: re.Match[bytes]) -> None:
        self._channels = max(self._channels, int(said[1]))

    def version(self, _process: _Process, said: re.Match[bytes]) -> None:
        self._version = _words(said[1])

    def unavailable(self, _process: _Process, said: re.Match[bytes]) -> None:
        _keep(self._unavailable, said[1] or said[2])

    def interfaces(self, _process: _Process, said: re.Match[bytes]) -> None:
        for name in _INTERFACES.findall(said[1]):
            _keep(self._interfaces, name)

    def network(self) -> Network | None:
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
            calls=tuple(_calls(self._each)),
            choices=tuple(_choices(self._grouped())),
            tree=tuple(self._tree[rank] for rank in range(self._world_size)) if self._has_tree() else (),
        )

    def _grouped(self) -> Counter[tuple[str, tuple[bytes, ...]]]:
        """Choices by process group, "" where that is not known, and what they are."""
        groups = self._matching.groups()
        found: Counter[tuple[str, tuple[bytes, ...]]] = Counter()
        left = Counter({call: times for call, times in self._each.items() if call[2]})
        for (pid, communicator, call), times in self._chosen.items():
            if group := groups.get((pid.decode(), communicator)):
                found[group, call] += times
                left[call] -= times
        found.update({("", call): times for call, times in left.items() if times > 0})
        return found

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


#: Kind, then count and type of a call, or size and choice. Without a group before "NCCL INFO": it is searched quickly.
_EACH_CALL = re.compile(
    rb"NCCL INFO (?:(\w+): )?(?:opCount \w+ sendbuff \S+ recvbuff \S+ (?:acc \S+ )?count (\d+ datatype \d+)"
    rb"|(\d+ Bytes -> Algo \w+ proto \w+(?: +channel\{Lo\.\.Hi\}=\{\d+\.\.\d+\})?))"
)
_COUNT = re.compile(rb"(\d{1,18}) datatype (\d{1,2})")
_CHOSEN = re.compile(
    rb"(\d{1,18}) Bytes -> Algo (\w{1,20}) proto (\w{1,20})(?: +channel\{Lo\.\.Hi\}=\{(\d{1,4})\.\.(\d{1,4})\})?"
)
#: ncclDataType_t: bytes of int8, uint8, int32, uint32, int64, uint64, half, float, double, bfloat16, two 8-bit floats.
_TYPE_BYTES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)
_ALGORITHMS = ("tree", "ring", "CollNet direct", "CollNet chain", "NVLS", "NVLS tree", "PAT")
_PROTOCOLS = ("LL", "LL128", "Simple")


def _calls(counted: Counter[tuple[bytes, ...]]) -> list[NcclCalls]:
    found: Counter[tuple[str, int]] = Counter()
    for call, times in counted.items():
        if sized := _size(call):
            found[sized] += times
    return [NcclCalls(kind, size, times) for (kind, size), times in found.most_common(_MOST_SHOWN)]


def _size(call: tuple[bytes, ...]) -> tuple[str, int] | None:
    """Kind and bytes of a call."""
    sized = _COUNT.fullmatch(call[1])
    if sized is None or int(sized[2]) >= len(_TYPE_BYTES):
        return None
    return _collective(call[0]), int(sized[1]) * _TYPE_BYTES[int(sized[2])]


def _choices(counted: Counter[tuple[str, tuple[bytes, ...]]]) -> list[NcclChoice]:
    found: Counter[tuple[str, int, str, str, int, str]] = Counter()
    for (group, (kind, _, choice)), times in counted.items():
        if chosen := _CHOSEN.fullmatch(choice):
            channels = int(chosen[5]) - int(chosen[4]) + 1 if chosen[5] else 0
            algorithm, protocol = _named(chosen[2], _ALGORITHMS), _named(chosen[3], _PROTOCOLS)
            found[_collective(kind), int(chosen[1]), algorithm, protocol, channels, group] += times
    return [
        NcclChoice(kind, size, algorithm, protocol, channels, times, group)
        for (kind, size, algorithm, protocol, channels, group), times in found.most_common(_MOST_SHOWN)
    ]


def _named(said: bytes, known: tuple[str, ...]) -> str:
    """An algorithm or protocol, logged by its number or, since 2.24, by its name."""
    if said.isdigit():
        return known[int(said)] if int(said) < len(known) else _words(said)
    spelled = said.replace(b"_", b"").lower()
    return next((name for name in known if name.replace(" ", "").lower().encode() == spelled), _words(said))


def _collective(name: bytes) -> str:
    """AllReduce as all_reduce."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", _words(name)).lower()


def _transport(via: bytes) -> str:
    """What a channel goes through, without numbers: "P2P", "SHM", "NET/Socket", "NET/IB/GDRDMA" ..."""
    parts = via.split(b" comm ")[0].split(b"/")
    kind = _words(parts[0])[:16]
    if kind == "NET" and len(parts) > 1:
        kind = f"NET/{_words(parts[1])[:32]}"
        return f"{kind}/GDRDMA" if any(part.startswith(b"GDRDMA") for part in parts[2:]) else kind
    return kind


def _keep(kept: dict[str, None], text: bytes) -> None:
    if len(kept) < _MOST_KEPT:
        kept[_words(text)] = None


def _words(text: bytes) -> str:
    decoded = text[:_LONGEST].decode("utf-8", errors="replace").strip()
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in decoded)
