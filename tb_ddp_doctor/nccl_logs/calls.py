"""What NCCL's lines say of its calls, and of what it chose for them.

AllReduce: opCount 2a sendbuff 0x... recvbuff 0x... count 1024 datatype 7 op 0 ...
AllReduce: 4096 Bytes -> Algo 1 proto 2 time 28.6
AllReduce: 4096 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..15}
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import TypeAlias

from tb_ddp_doctor.findings import NcclCalls, NcclChoice

#: Kinds and sizes of calls that are kept; real jobs have hundreds.
_MOST_SHOWN = 64
#: Kind, bytes, algorithm, protocol, channels and process group, as `NcclChoice` has them.
Choice: TypeAlias = tuple[str, int, str, str, int, str]
#: Of a text that is kept.
_LONGEST = 200
#: Kind, then count and type of a call, or size and choice. Without a group before "NCCL INFO": it is searched quickly.
EACH_CALL = re.compile(
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


def calls_of(counted: Counter[tuple[bytes, ...]]) -> list[NcclCalls]:
    """The calls made most often, of how often each was logged."""
    times_of: Counter[tuple[str, int]] = Counter()
    for call, times in counted.items():
        if sized := size_of(call):
            times_of[sized] += times
    return [NcclCalls(kind, size, times) for (kind, size), times in times_of.most_common(_MOST_SHOWN)]


def size_of(call: tuple[bytes, ...]) -> tuple[str, int] | None:
    """Kind and bytes of a call."""
    sized = _COUNT.fullmatch(call[1])
    if sized is None or int(sized[2]) >= len(_TYPE_BYTES):
        return None
    return _collective(call[0]), int(sized[1]) * _TYPE_BYTES[int(sized[2])]


def choices_of(counted: Counter[tuple[str, tuple[bytes, ...]]]) -> list[NcclChoice]:
    """The choices made most often, of how often each was logged, by process group."""
    times_of: Counter[Choice] = Counter()
    for (group, (kind, _, choice)), times in counted.items():
        if chosen := _CHOSEN.fullmatch(choice):
            channels = int(chosen[5]) - int(chosen[4]) + 1 if chosen[5] else 0
            times_of[_collective(kind), int(chosen[1]), algorithm(chosen[2]), protocol(chosen[3]), channels, group] += (
                times
            )
    return most_often(times_of)


def most_often(times_of: Mapping[Choice, int]) -> list[NcclChoice]:
    """The choices made most often, of how often each was made."""
    most = Counter(times_of).most_common(_MOST_SHOWN)
    return [NcclChoice(*choice[:-1], times, choice[-1]) for choice, times in most]


def algorithm(said: bytes) -> str:
    """An algorithm as `NcclChoice` has it, of how NCCL spells it: "RING" or 1 as "ring"."""
    return _named(said, _ALGORITHMS)


def protocol(said: bytes) -> str:
    """A protocol as `NcclChoice` has it, of how NCCL spells it: "SIMPLE" or 2 as "Simple"."""
    return _named(said, _PROTOCOLS)


def _named(said: bytes, known: tuple[str, ...]) -> str:
    """An algorithm or protocol, logged by its number or, since 2.24, by its name."""
    if said.isdigit():
        return known[int(said)] if int(said) < len(known) else words(said)
    spelled = said.replace(b"_", b"").lower()
    return next((name for name in known if name.replace(" ", "").lower().encode() == spelled), words(said))


def _collective(name: bytes) -> str:
    """AllReduce as all_reduce."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", words(name)).lower()


def words(text: bytes) -> str:
    """The beginning of what a line says, fit to be shown."""
    decoded = text[:_LONGEST].decode("utf-8", errors="replace").strip()
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in decoded)
