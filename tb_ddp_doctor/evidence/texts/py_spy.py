"""`py-spy dump --pid ...`: where the threads of a process were when somebody looked."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tb_ddp_doctor.evidence.model import SeenStack

MARKS = (b"Python v",)
_PROCESS = re.compile(r"Process (\d{1,10}): .*")
_THREAD = re.compile(r"Thread \S{1,32} \([\w +,-]{1,40}\)(?:: \"(?P<name>.{0,200}?)\")?\s*")
_FRAME = re.compile(r"    (?P<function>[^()]{1,200}) \((?P<place>[^()]{1,400}:\d{1,7})\)\s*")


def parse(text: str, _source: str) -> Iterator[SeenStack]:
    """Where the main thread of each process was."""
    pid, is_main, frames = "", False, list[str]()
    for line in [*text.splitlines(), "Process 0: the end"]:
        if process := _PROCESS.fullmatch(line):
            if pid and frames:
                yield SeenStack(pid, ", called by ".join(frames))
            pid, is_main, frames = process[1], False, []
        elif thread := _THREAD.fullmatch(line):
            is_main = thread["name"] == "MainThread"
        elif is_main and len(frames) < 2 and (frame := _FRAME.fullmatch(line)):
            frames.append(f"{frame['function']} ({frame['place']})")
