"""What slices say about their events, whatever the format."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tb_ddp_doctor.slices.model import CATEGORY_NAMES, Collective, RankSlice, Slice

#: Longer names, of templated kernels for example, are cut.
_MOST_LETTERS = 400

Args = dict[str, str | int]


def label(text: str) -> str:
    """Text from a trace as any format can hold it: of bounded length, and without half characters."""
    return text[:_MOST_LETTERS].encode(errors="replace").decode()


class Labels(dict[int, str]):
    """The labels of a vocabulary's texts by index, each made when it is first asked for."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = strings

    def __missing__(self, index: int) -> str:
        text = self[index] = label(self._strings[index])
        return text


def process(rank: int, node: str) -> str:
    """The name of a rank's process."""
    return label(f"rank {rank} ({node})" if node else f"rank {rank}")


def args_of(part: RankSlice, collectives: dict[int, Collective]) -> Callable[[int], Args]:
    """What an event carries, by its index."""
    category, shape, size = part.category.tolist(), part.shape.tolist(), part.bytes.tolist()
    correlation, collective = part.correlation.tolist(), part.collective.tolist()
    start, end = part.start_ns.tolist(), part.end_ns.tolist()
    labels, module = Labels(part.strings), part.module.tolist()

    def args(i: int) -> Args:
        values: Args = {"category": CATEGORY_NAMES[category[i]]}
        if shape[i] >= 0:
            values["shape"] = labels[shape[i]]
        if size[i] >= 0:
            values["bytes"] = size[i]
        if correlation[i] >= 0:
            values["correlation"] = correlation[i]
        if module[i] >= 0:
            values["module"] = label(part.modules[module[i]])
        matched = collectives.get(collective[i])
        if matched:
            values |= {
                "collective": collective[i],
                "kind": label(matched.kind),
                "group": label(matched.group),
                "message_bytes": matched.bytes,
                "last_rank_to_arrive": matched.last_rank,
                "wait_ns": min(max(matched.last_ns - start[i], 0), end[i] - start[i]),
            }
        return values

    return args


def left_out(counts: dict[int, int]) -> str:
    """What of the window a slice does not hold, by rank; "" if it holds all of it."""
    some = {rank: count for rank, count in counts.items() if count}
    if not some:
        return ""
    by_rank = ", ".join(f"{count} of rank {rank}" for rank, count in some.items())
    return f"Left out: the {sum(some.values())} shortest events of the window ({by_rank})."


def about(part: Slice) -> str:
    """What the whole slice is."""
    return label(f"{part.run}: all ranks on one clock, aligned at the ends of matched collectives")
