"""Jobs of several shapes, drawn from what each rank's streams do: data parallel, sharded, in stages, on many streams.

A rank's program is a list of what it launches in each step, in order. Its streams run on from step to step, so nothing
idles that waits for nobody; a collective ends on all of its ranks at once, its transfer after the last one has arrived.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

#: The rank that computes longer where a job has a straggler, and by how much.
SLOW_RANK, SLOWER = 1, 1.3
RANKS = 4


@dataclass(frozen=True)
class Op:
    """One kernel, copy or call of communication."""

    lane: str
    #: As it is drawn, with its group and size.
    name: str
    #: How long it takes, of communication after all have arrived, ms.
    ms: int
    #: Lanes of whose ops so far it waits for the last.
    after: tuple[str, ...] = ()
    #: What the same call has in common on all ranks that take part; "" where it is no communication.
    meets: str = ""


Program = list[Op]


def gpu(name: str, ms: int, *after: str, lane: str = "gpu") -> Op:
    return Op(lane, name, ms, after)


def comm(name: str, ms: int, *after: str, meets: str, lane: str = "nccl") -> Op:
    return Op(lane, name, ms, after, meets)


def data_parallel(_: int) -> Program:
    return [
        gpu("f*9", 20),
        gpu("b*9", 16),
        comm("ar1@4", 10, "gpu", meets="first"),
        gpu("c*9", 16),
        comm("ar2@1", 7, "gpu", meets="second"),
        gpu("o", 5, "nccl"),
    ]


def sharded(_: int) -> Program:
    """FSDP: gathers before they are of use, and scatters beside the backward pass."""
    return [
        comm("ag1@1", 7, meets="ag1"),
        gpu("a*9", 24, "nccl"),
        comm("ag2@2", 8, meets="ag2"),
        gpu("b*9", 30, "nccl"),
        gpu("c*9", 24),
        comm("rs1@2", 8, "gpu", meets="rs1"),
        gpu("d*9", 30),
        comm("rs2@1", 7, "gpu", meets="rs2"),
    ]


def staged(rank: int) -> Program:
    """Two stages of two ranks, with four micro-batches in turns (1F1B), and an AllReduce in each stage."""
    first = rank < RANKS // 2
    other = (rank + RANKS // 2) % RANKS
    forth = f"{min(rank, other)} forth"
    back = f"{min(rank, other)} back"
    f, b = gpu("f*9", 12, "comm"), gpu("b*9", 20, "comm")
    if first:
        f = gpu("f*9", 12)
        send = comm(f"s{other}@1", 6, "gpu", meets=forth)
        receive = comm(f"r{other}@1", 6, "gpu", meets=back, lane="comm")
        order = [f, send, f, send, receive, b, f, send, receive, b, f, send, receive, b, receive, b]
    else:
        send = comm(f"s{other}@1", 6, "gpu", meets=back)
        receive = comm(f"r{other}@1", 6, "gpu", meets=forth, lane="comm")
        order = [receive, f, b, send] * 4
    group = "one" if first else "two"
    return [*order, comm(f"ar/{group}@1", 10, "gpu", meets=group, lane="comm2"), gpu("o", 5, "comm2")]


def on_many_streams(_: int) -> Program:
    return [
        gpu("pinned", 12, "nccl", lane="copy"),
        gpu("a*9", 20, "nccl"),
        gpu("b*9", 24, "nccl", lane="gpu2"),
        gpu("c*9", 20, "gpu2", "copy"),
        comm("ar1@4", 10, "gpu", meets="first"),
        gpu("d*9", 20, lane="gpu2"),
        gpu("e*9", 20),
        comm("ar2@1", 7, "gpu", "gpu2", meets="second"),
    ]


SHAPES: dict[str, Callable[[int], Program]] = {
    shape.__name__: shape for shape in (data_parallel, sharded, staged, on_many_streams)
}


def drawn(shape: Callable[[int], Program], *, has_straggler: bool, steps: int = 5) -> str:
    """The drawing of a job, as `traces` reads it."""
    programs = [shape(rank) * steps for rank in range(RANKS)]
    if has_straggler:
        programs[SLOW_RANK] = [
            replace(op, ms=round(op.ms * SLOWER)) if op.lane.startswith("gpu") else op for op in programs[SLOW_RANK]
        ]
    times = _times(programs)
    text = []
    for rank, (program, spans) in enumerate(zip(programs, times, strict=True)):
        lanes: defaultdict[str, str] = defaultdict(str)
        size = len(program) // steps
        # The CPU launches a step once the compute stream has done the one before.
        ends = [0] + [max(end for _, end in spans[: size * step]) for step in range(1, steps)]
        for step, at in enumerate(ends):
            begins = min(start for start, _ in spans[size * step : size * (step + 1)])
            lanes["step"] = f"{lanes['step']:<{min(at, begins)}}|{step + 1}"
        for op, (start, end) in zip(program, spans, strict=True):
            lanes[op.lane] = f"{lanes[op.lane]:<{start}}[{op.name:.<{end - start - 2}}]"
        text += [f"rank{rank} {lane} {row}" for lane, row in lanes.items()]
    return "\n".join(text)


def _times(programs: Sequence[Program]) -> list[list[tuple[int, int]]]:
    """When each op starts and ends, ms, by rank and place."""
    ends: dict[tuple[str, int], int] = {}
    while True:
        arrived: defaultdict[tuple[str, int], int] = defaultdict(int)
        times = []
        for program in programs:
            free: defaultdict[str, int] = defaultdict(int)
            calls: defaultdict[str, int] = defaultdict(int)
            spans = []
            for op in program:
                start = max(free[op.lane], *(free[lane] for lane in op.after), 0)
                end = start + op.ms
                if op.meets:
                    call = op.meets, calls[op.meets]
                    calls[op.meets] += 1
                    arrived[call] = max(arrived[call], end)
                    end = max(end, ends.get(call, 0))
                free[op.lane] = end
                spans.append((start, end))
            times.append(spans)
        if arrived == ends:
            return times
        ends = dict(arrived)
