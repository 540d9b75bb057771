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
    host:pid:tid [dev] file.cc:99 NCCL WARN message

Everything in them is untrusted: of each file only the beginning is read, of all files together no more than
`_MOST_BYTES`, and what is kept is short.
"""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

from tb_ddp_doctor.findings import Network

#: Of a file; NCCL speaks when the job starts. A node's eight ranks fill less than a megabyte.
_MOST_OF_A_FILE = 1 << 20
#: By then a file that is not named for NCCL must have shown a line of it.
_FIRST_LOOK = 1 << 16
_MOST_BYTES = 64 << 20
_MOST_FOLDERS = 256
_READERS = 8
_Process: TypeAlias = tuple[bytes, bytes]
#: Of each list that is kept, and of each text in it.
_MOST_KEPT, _LONGEST = 8, 200
_LONGEST_LINE = 1000

_TEXT = (".log", ".txt", ".out", ".err")
_NO_TEXT = (".json", ".gz", ".zst", ".xml", ".so", ".py", ".pb", ".bin", ".pt", ".digest", ".csv", ".whl", ".deb")
_LINE = re.compile(
    rb"^(?:.*?[\s\]>]:?)??(?P<host>[\w.-]+):(?P<pid>\d{1,10}):\d{1,10} \[-?\d+\](?P<rest> .*)$", re.ASCII
)
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


def read(files: Collection[Path], pids: Collection[str], world_size: int) -> Network | None:
    """What the processes `pids` of a job of so many ranks wrote there; None if they wrote nothing."""
    share = max(min(_MOST_OF_A_FILE, _MOST_BYTES // max(len(files), 1)), _FIRST_LOOK)
    log = _Log(frozenset(pid.encode() for pid in pids if pid), world_size)
    # NCCL_DEBUG_FILE names its process with %p; where there are too many, those of other jobs stand back.
    chosen = sorted(files, key=lambda path: not _numbers_in(path.name) & set(pids))[: _MOST_BYTES // share]
    with ThreadPoolExecutor(_READERS) as pool:
        for text in pool.map(lambda path: _text(path, share), chosen):
            for line in text.splitlines():
                log.take(line)
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


def _text(path: Path, most: int) -> bytes:
    """The beginning of a file that has lines of NCCL; nothing of any other."""
    try:
        with path.open("rb") as file:
            text = file.read(_FIRST_LOOK)
            if b"NCCL " not in text or b"\0" in text:
                return b""
            return text + file.read(most - len(text))
    except OSError:
        return b""


class _Log:
    """What the lines of all files say together."""

    def __init__(self, pids: frozenset[bytes], world_size: int) -> None:
        self._pids = pids
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

    def take(self, line: bytes) -> None:
        found = _LINE.match(line[:_LONGEST_LINE])
        if found is None or found["pid"] not in self._pids:
            return
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
        _keep(self._warnings, said[1])

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
        if not self._via and not self._version:
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
        )


#: The first that a line matches takes it.
_TAKEN = (
    (re.compile(rb"NCCL WARN (.*)"), _Log.warning),
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
