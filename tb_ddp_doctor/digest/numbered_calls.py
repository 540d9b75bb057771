"""A rank's collectives by process group and number, as NCCL's log would name them."""

from __future__ import annotations

from collections import defaultdict

from tb_ddp_doctor.digest.collectives import IN_PARTS
from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.nccl_logs.matching import Call, NumberedCalls


def numbered_calls(digest: RankDigest) -> list[NumberedCalls]:
    """The collectives that have a number and a size, by group.

    NCCL logs what one rank gives or gets of `IN_PARTS`, digests have the larger side.
    """
    table, text = digest.collectives, digest.strings
    by_group: defaultdict[str, dict[int, Call]] = defaultdict(dict)
    columns = (table.kind, table.group, table.group_size, table.bytes, table.sequence)
    for kind, group, ranks, size, number in zip(*(column.tolist() for column in columns), strict=True):
        if number >= 0 and size >= 0:
            divided = size // ranks if text[kind] in IN_PARTS and ranks > 0 else size
            by_group[text[group]][number] = (text[kind], divided)
    return [NumberedCalls(digest.pid, group, calls) for group, calls in by_group.items()]
