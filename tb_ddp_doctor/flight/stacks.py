"""Where the main thread of a rank was in Python: what a `Doctor`, `py-spy dump` or `faulthandler` wrote, as text.

    Process 123: python train.py               Current thread 0x00007f (most recent call first):
    Python v3.11.7                               File "train.py", line 8 in step
    Thread 0x1 (idle): "MainThread"            Thread 0x00007e (most recent call first):
        wait (threading.py:10)                   File "threading.py", line 10 in wait

Read is one process a file. faulthandler names no threads: it lists the newest first, so the main thread is the last.
Lines of anything else are passed over, so a rank's whole log may hold them; the last stacks of a file count.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tb_ddp_doctor.flight.model import StackFrame
from tb_ddp_doctor.storage import time_limit
from tb_ddp_doctor.storage.paths import FilePath
from tb_ddp_doctor.storage.time_limit import within

#: Of a file.
MOST_BYTES = 1 << 20
_PY_SPY_THREAD = re.compile(r"Thread \S{1,40} \([\w +,-]{1,40}\)(?:: \"(?P<name>.{0,200}?)\")?\s*")
_PY_SPY_FRAME = re.compile(r"    (?P<function>\S.{0,200}?) \((?P<file>[^()]{1,400}):(?P<line>\d{1,7})\)\s*")
_FAULT_THREAD = re.compile(
    r"(?:Current thread|Thread) 0x[0-9a-f]{1,16}(?: \[.{0,40}\])? \(most recent call first\):\s*"
)
_FAULT_FRAME = re.compile(r'  File "(?P<file>.{1,400})", line (?P<line>\d{1,7}) in (?P<function>.{1,200}?)\s*')
_HEAD = re.compile(r"# ddp-doctor: rank (?P<rank>\d{1,7}) of (?P<world>\d{1,7}) on (?P<host>\S{1,200}), .*")
_MOST_FRAMES = 200
#: No job has more.
_MOST_RANKS = 1 << 17


class Stack(NamedTuple):
    """The main thread of one rank."""

    file: str
    rank: int
    #: "" and 0 where the file does not say them.
    host: str
    world_size: int
    #: The innermost first.
    frames: tuple[StackFrame, ...]


def read(path: FilePath, rank: int | None) -> Stack | None:
    """`parse` of a file. Raises OSError."""

    def beginning() -> bytes:
        with path.open("rb") as file:
            return file.read(MOST_BYTES)

    return parse(within(time_limit.PATIENCE_S, beginning).decode("utf-8", errors="replace"), str(path), rank)


def parse(text: str, file: str, rank: int | None) -> Stack | None:
    """The main thread in a text; `rank` is what the file's name says. None where there is no stack, or no rank."""
    main: list[StackFrame] = []
    frames: list[StackFrame] = []
    host, world_size, is_main = "", 0, False
    for line in text.splitlines():
        if (head := _HEAD.fullmatch(line)) and int(head["rank"]) < int(head["world"]) <= _MOST_RANKS:
            rank, world_size, host = int(head["rank"]), int(head["world"]), head["host"]
        elif thread := _PY_SPY_THREAD.fullmatch(line):
            is_main, frames = thread["name"] == "MainThread", []
        elif _FAULT_THREAD.fullmatch(line):
            is_main, frames = True, []  # unless another one follows
        elif (frame := _PY_SPY_FRAME.fullmatch(line) or _FAULT_FRAME.fullmatch(line)) and len(frames) < _MOST_FRAMES:
            frames.append(StackFrame(frame["file"], int(frame["line"]), frame["function"]))
            if is_main:
                main = frames
    if not main or rank is None or rank >= _MOST_RANKS:
        return None
    return Stack(file, rank, host, world_size, tuple(main))
