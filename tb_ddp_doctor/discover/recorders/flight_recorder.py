"""What a job that hangs leaves: dumps of the Flight Recorder, and what lies beside them.

Names that are looked at end in a number or hold a rank: `nccl_trace_rank_3`, `comm_traces/rank_3`, `_dump_3`,
`anything3`, `node7_nccl_trace_rank_3`, `rank_3.json`, or lie in a folder `rank_3`. A dump is known by its first bytes,
not by its name alone: a pickle of plain data, or JSON, with the recorder's keys.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

from tb_ddp_doctor.discover.recorder import Recorder

#: What a file is: a dump of one rank, `torchfrtrace -j`'s table of all ranks, an answer of NCCL's RAS
#: (`ncclras -f json`), or Python stacks of a rank.
Kind: TypeAlias = Literal["dump", "table", "ras", "stacks"]

RANK = re.compile(r"(?<![a-z])rank[_-]?(?P<rank>\d{1,7})(?!\d)", re.IGNORECASE)
SUFFIX = re.compile(r"\.(?:json|pickle|pkl|bin|dump|trace|txt|pt)$", re.IGNORECASE)
#: Of other tools, with numbers in their names too.
_OTHERS = re.compile(
    r"tfevents|\.pt\.trace\.json|\.(?:gz|zst|npy|npz|safetensors|py|png|html|csv|digest)$", re.IGNORECASE
)
#: What stacks are called, so that what somebody keeps of py-spy beside traces is no job that hangs.
STACKS_SUFFIX = ".stacks.txt"
#: What a table, or an answer of RAS, may be called.
_TEXT = re.compile(r"\.(?:txt|log|out|err|json)$", re.IGNORECASE)
_PICKLE_KEYS = (b"version", b"entries", b"pg_config", b"pg_status", b"comm_lib_version")
_JSON_KEYS = (b'"comm_lib_version"', b'"nccl_version"', b'"pg_config"', b'"collective_seq_id"', b'"nccl_comm_state"')
#: What Kineto's traces have some of these keys in.
_OF_TRACES = b'"distributedInfo"'
_RAS_KEYS = (b'"communicators"', b'"communicators_count"')
#: How stacks begin, or what their first kilobytes hold.
_STACK_MARKS = (b"Python v", b"(most recent call first):")
#: How a table begins, somewhere in the text.
TABLE_BEGINS = re.compile(rb"^Rank \d{1,7}(?: +Rank \d{1,7}| *\r?\n-{6})", re.MULTILINE)


class FlightRecorder(Recorder):
    """Dumps of the Flight Recorder, tables of them, answers of NCCL's RAS, and Python stacks."""

    name = "Flight Recorder"
    head_bytes = 4096

    def matches(self, name: str) -> bool:
        return self.wants(name, "")

    def wants(self, name: str, folder: str) -> bool:
        """Whether a file may be one of these by its name, and that of its folder."""
        if _OTHERS.search(name):
            return False
        stem = SUFFIX.sub("", name)
        return bool(RANK.search(stem) or stem[-1:].isdecimal() or RANK.fullmatch(folder) or _TEXT.search(name))

    def begins(self, head: bytes) -> bool:
        return self.kind("", head) is not None

    def kind(self, name: str, head: bytes) -> Kind | None:
        """What a file of this name is that begins so; None if it is none of these."""
        if any(key in head for key in _RAS_KEYS):
            return "ras"
        if name.endswith(STACKS_SUFFIX) and any(mark in head for mark in _STACK_MARKS):
            return "stacks"
        if head[:1] not in (b"\x80", b"{") and TABLE_BEGINS.search(head):
            return "table"
        is_pickle = head[:1] == b"\x80" and any(key in head for key in _PICKLE_KEYS)
        is_json = head.lstrip()[:1] == b"{" and _OF_TRACES not in head and any(key in head for key in _JSON_KEYS)
        return "dump" if is_pickle or is_json else None
