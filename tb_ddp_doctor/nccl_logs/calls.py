"""What NCCL's lines say of its calls, and of what it chose for them.

AllReduce: opCount 2a sendbuff 0x... recvbuff 0x... count 1024 datatype 7 op 0 ...
AllReduce: 4096 Bytes -> Algo 1 proto 2 time 28.6
AllReduce: 4096 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..15}
"""

from __future__ import annotations

import re
from collections import Counter

from tb_ddp_doctor.findings import NcclCalls, NcclChoice

#: Kinds and sizes of calls that are kept; real jobs have hundreds.
_MOST_SHOWN = 64
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
    times_of: Counter[tuple[str, int, str, str, int, str]] = Counter()
    for (group, (kind, _, choice)), times in counted.items():
        if chosen := _CHOSEN.fullmatch(choice):
            channels = int(chosen[5]) - int(chosen[4]) + 1 if chosen[5] else 0
            algorithm, protocol = _named(chosen[2], _ALGORITHMS), _named(chosen[3], _PROTOCOLS)
            times_of[_collective(kind), int(chosen[1]), algorithm, protocol, channels, group] += times
    return [
        NcclChoice(kind, size, algorithm, protocol, channels, times, group)
        for (kind, size, algorithm, protocol, channels, group), times in times_of.most_common(_MOST_SHOWN)
    ]


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
