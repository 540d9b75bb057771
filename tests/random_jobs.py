"""Random jobs of a few ranks with faults, drawn so that hosts, devices and collectives agree with each other.

In each step of each rank the host loads, launches forward, does something else, launches backward and an AllReduce, and
waits for it. The AllReduce ends on all ranks when the last has arrived and all has been sent.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st


@dataclass(frozen=True)
class Work:
    """What a rank does in a step, ms; each is at least a drawn event's shortest."""

    load: int = 6
    stall: int = 0
    forward: int = 10
    backward: int = 16


@dataclass(frozen=True)
class FaultyJob:
    """A job: the work of each rank in each step, and each step's transfer, ms."""

    #: By rank and step.
    work: tuple[tuple[Work, ...], ...]
    transfer: tuple[int, ...]

    @property
    def drawing(self) -> str:
        """As `traces` reads it."""
        lanes = [{"step": "", "host": "", "gpu": "", "nccl": ""} for _ in self.work]
        for step, transfer in enumerate(self.transfer):
            done = []
            for rank, lane in enumerate(lanes):
                at, work = len(lane["step"]), self.work[rank][step]
                forward = at + work.load
                backward = forward + 5 + work.stall
                lane["host"] = f"{lane['host']:<{at}}{_block('load', work.load)}{_block('fwd', 5)}"
                lane["host"] = f"{lane['host']:<{backward}}{_block('bwd', 5)}{_block('ar', 4)}"
                starts = max(backward, forward + work.forward)
                lane["gpu"] = f"{lane['gpu']:<{forward}}{_block('fwd', work.forward)}"
                lane["gpu"] = f"{lane['gpu']:<{starts}}{_block('bwd', work.backward)}"
                done.append(starts + work.backward)
            end = max(done) + transfer
            for lane, arrived in zip(lanes, done, strict=True):
                at = len(lane["step"])
                lane["nccl"] = f"{lane['nccl']:<{arrived}}{_block('ar', end - arrived)}"
                lane["host"] += _block("sync", end - len(lane["host"]))
                lane["step"] = f"{lane['step']}|{step + 1:<{end - at - 1}}"
        return "\n".join(f"rank{rank} {name} {text}" for rank, lane in enumerate(lanes) for name, text in lane.items())


def _block(name: str, length: int) -> str:
    return f"[{name}{'.' * (length - len(name) - 2)}]"


@st.composite
def faulty_jobs(draw: st.DrawFn) -> FaultyJob:
    """Jobs of two to four ranks and three to five steps, with up to three faults."""
    ranks, steps = draw(st.integers(2, 4)), draw(st.integers(3, 5))
    where = st.tuples(
        st.sampled_from(["load", "stall", "forward", "backward"]),
        st.sets(st.integers(0, ranks - 1), min_size=1),
        st.sets(st.integers(0, steps - 1), min_size=1) | st.just(set(range(steps))),
        st.integers(1, 60),
    )
    more: dict[tuple[str, int, int], int] = {}
    for kind, slow, when, by in draw(st.lists(where, max_size=3)):
        for rank in slow:
            for step in when:
                more[kind, rank, step] = more.get((kind, rank, step), 0) + by
    usual = {"load": 6, "stall": 0, "forward": 10, "backward": 16}
    work = tuple(
        tuple(
            Work(**{kind: ms + more.get((kind, rank, step), 0) for kind, ms in usual.items()}) for step in range(steps)
        )
        for rank in range(ranks)
    )
    transfers = draw(st.lists(st.sampled_from([4, 5, 30]), min_size=steps, max_size=steps) | st.just([4] * steps))
    return FaultyJob(work, tuple(transfers))
