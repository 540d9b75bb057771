"""NCCL's RAS: what `ncclras -f json` answered while the job was stuck (NCCL 2.28 and later).

Only communicators of all ranks are read, for in others ranks have other numbers. Ranks that RAS misses are the evidence
that no dump can give: whether their processes still answer.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec

from tb_ddp_doctor.storage.message import REFUSALS
from tb_ddp_doctor.storage.paths import FilePath

_MAX_BYTES = 1 << 26
#: NCCL 2.28 writes no comma there.
_LACKING_COMMA = re.compile(rb'("nvml_dev":\s*-?\d+)(\s*"status")')


class RasRank(NamedTuple):
    """What RAS says of a rank."""

    rank: int
    host: str
    pid: int
    #: "missing" (its process did not answer), "dead" (for long), "error" (an asynchronous error), "aborted", "running".
    state: str


def read(path: FilePath, world_size: int) -> list[RasRank]:
    """The ranks of the communicators of all ranks, each once, the worst that is said of it. Raises ValueError."""
    try:
        size = path.stat().st_size
        if size > _MAX_BYTES:
            raise ValueError("Left out: it is too large for an answer of NCCL's RAS.")
        with path.open("rb") as file:
            data = file.read(size)
        answer = msgspec.json.decode(_LACKING_COMMA.sub(rb"\1,\2", data))
    except (OSError, *REFUSALS) as error:
        raise ValueError(f"Left out: it cannot be read as an answer of NCCL's RAS ({error}).") from None
    worst: dict[int, RasRank] = {}
    communicators = answer.get("communicators") if isinstance(answer, dict) else None
    if not isinstance(communicators, list) or not all(isinstance(one, dict) for one in communicators):
        raise ValueError("Left out: it is no answer of NCCL's RAS: it lists no communicators.")
    for one in communicators:
        if one.get("size") != world_size:
            continue
        for key, is_missing in (("missing_ranks", True), ("ranks", False)):
            members = one.get(key)
            for member in members if isinstance(members, list) else ():
                if isinstance(member, dict) and _is_rank(member.get("rank"), world_size):
                    member_rank = _rank(member, is_missing)
                    before = worst.get(member_rank.rank)
                    if before is None or _WORST.index(member_rank.state) < _WORST.index(before.state):
                        worst[member_rank.rank] = member_rank
    return [worst[rank] for rank in sorted(worst)]


_WORST = ("dead", "missing", "error", "aborted", "running")


def _is_rank(value: Any, world_size: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < world_size


def _rank(member: dict[str, Any], is_missing: bool) -> RasRank:
    status = member.get("status")
    status = status if isinstance(status, dict) else {}
    if is_missing:
        state = "dead" if status.get("considered_dead", member.get("considered_dead")) else "missing"
    elif status.get("async_error"):
        state = "error"
    else:
        state = "aborted" if status.get("abort_flag") else "running"
    host, pid = member.get("host"), member.get("pid")
    pid = pid if isinstance(pid, int) and 0 <= pid < 1 << 31 else -1
    return RasRank(member["rank"], str(host)[:200] if host else "", pid, state)
