"""Plays small programs of ranks against each other, and writes what happened as Kineto traces.

A program is what one rank's CPU does, call by call: launch a kernel, send, receive, take part in a collective, wait for
the device, pause. A `Job` plays the programs of all ranks step by step:

- The CPU runs ahead of the device until the launch queue is full or a call waits.
- Kernels of a stream run in order, after their launch and after the events that their stream was told to await.
- A collective ends when its last rank has arrived and the data is there. A send or receive ends when both sides have
  arrived: sends are rendezvous. A batch of sends and receives is one kernel, which ends when all its partners have.
- A host collective (gloo) blocks the CPU in the same way, and no kernel runs for it.

Times are us. Nothing here knows how the doctor judges a job.
"""

from __future__ import annotations

import gzip
import json
import random
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: Launches that the queue of a device holds, and how long after its launch a kernel can start.
QUEUE = 1024
LATENCY = 6.0
#: What a launch costs the CPU within its operator.
LAUNCH = 6.0
COMPUTE = 7


@dataclass(eq=False)
class Work:
    """Something on a device."""

    name: str
    stream: int
    duration: float
    #: What the stream awaits before it.
    after: list[Work]
    launch: float = 0.0
    #: Key of the meeting, and with how many it meets; None for compute.
    meets: list[tuple[Any, int]] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)
    arrival: float | None = None
    end: float | None = None
    correlation: int = 0


@dataclass
class Call:
    """Something that the CPU does."""

    name: str
    category: str
    length: float
    work: Work | None = None
    #: Waits until these are over; meets others on the host; encloses the calls up to its end.
    awaits: list[Work] = field(default_factory=list)
    meets: tuple[Any, int, float] | None = None
    inside: dict[str, Any] | None = None
    opens: bool = False
    closes: bool = False


class Program:
    """What one rank does in one step."""

    def __init__(self, job: Job, rank: int, step: int) -> None:
        self.job, self.rank, self.step = job, rank, step
        self.calls: list[Call] = []

    @property
    def last(self) -> dict[int, Work]:
        return self.job.last[self.rank]

    def pause(self, us: float) -> None:
        """The CPU is outside of any operator."""
        if us > 0:
            self.calls.append(Call("", "", us))

    def op(self, name: str, us: float) -> None:
        """An operator that launches nothing."""
        self.calls.append(Call(name, "cpu_op", us))

    def begin(self, name: str, category: str = "user_annotation") -> None:
        self.calls.append(Call(name, category, 1.0, opens=True))

    def finish(self) -> None:
        self.calls.append(Call("", "", 1.0, closes=True))

    def kernel(
        self,
        name: str,
        us: float,
        *,
        op: str = "aten::mm",
        cost: float = 20.0,
        stream: int = COMPUTE,
        after: Sequence[Work] = (),
    ) -> Work:
        # No kernel takes the same time twice.
        us *= self.job.factor(self.rank, self.step) * self.job.rng.gauss(1, 0.01)
        work = Work(name, stream, us, list(after))
        self.calls.append(Call(op, "cpu_op", cost, work))
        return work

    def blocks_until(self, *works: Work, call: str = "cudaStreamSynchronize", op: str = "aten::item") -> None:
        """The CPU waits until all of it is over."""
        self.calls.append(Call(call, op, 4.0, awaits=list(works)))

    def collective(
        self,
        kind: str,
        group: str,
        ranks: Sequence[int],
        us: float,
        *,
        stream: int,
        elements: int = 1 << 20,
        after: Sequence[Work] = (),
        sizes: tuple[int, int] | None = None,
        metadata: bool = True,
    ) -> Work:
        number = self.job.count(self.rank, ("collective", group))
        name = {
            "allreduce": "AllReduce_Sum_bf16_RING_LL",
            "_allgather_base": "AllGather_RING_LL",
            "_reduce_scatter_base": "ReduceScatter_Sum_bf16_RING_LL",
            "all_to_all_single": "SendRecv",
            "all_to_allv": "SendRecv",
        }[kind]
        into, out = sizes or (elements, elements)
        about = (
            {
                "Collective name": kind,
                "Process Group Name": group,
                "Process Group Ranks": str(list(ranks)),
                "Group size": len(ranks),
                "In msg nelems": into,
                "Out msg nelems": out,
                "dtype": "BFloat16",
                "Process Group Description": group,
            }
            if metadata
            else {}
        )
        us *= self.job.transfer(self.rank, self.step, kind)
        work = Work(
            f"ncclDevKernel_{name}(ncclDevKernelArgsStorage<4096ul>)",
            stream,
            us,
            list(after),
            meets=[((group, number), len(ranks))],
        )
        work.about = about
        self.calls.append(Call("record_param_comms", "cpu_op", 40.0, work, inside=about))
        return work

    def messages(
        self,
        ends: Sequence[tuple[str, int]],
        group: str,
        ranks: Sequence[int],
        us: float,
        *,
        stream: int,
        elements: int = 1 << 22,
        after: Sequence[Work] = (),
        batched: bool = True,
    ) -> Work:
        """Sends ("s", peer) and receives ("r", peer), in one kernel."""
        meets = []
        told = []
        for way, peer in ends:
            pair = (self.rank, peer) if way == "s" else (peer, self.rank)
            number = self.job.count(self.rank, ("message", group, *pair))
            meets.append(((group, *pair, number), 2))
            told.append(
                {
                    "Collective name": "send" if way == "s" else "recv",
                    "Process Group Name": group,
                    "Process Group Ranks": str(list(ranks)),
                    "Group size": len(ranks),
                    "In msg nelems": elements,
                    "Out msg nelems": elements,
                    "dtype": "BFloat16",
                    ("Dst Rank" if way == "s" else "Src Rank"): peer,
                }
            )
        us *= self.job.transfer(self.rank, self.step, "message")
        work = Work("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", stream, us, list(after), meets=meets)
        style = self.job.messages_told
        if batched:
            # Each message is enqueued by itself; one launch follows, which nothing encloses.
            for about in told:
                if style != "annotation":
                    self.calls.append(Call("record_param_comms", "cpu_op", 12.0, inside=about))
            self.calls.append(Call("nccl:coalesced", "user_annotation", 25.0, work))
        else:
            assert len(told) == 1
            work.about = told[0] if style == "kernel" else {}
            self.calls.append(Call("record_param_comms", "cpu_op", 30.0, work, inside=told[0]))
        return work

    def host_collective(self, name: str, group: str, ranks: Sequence[int], us: float) -> None:
        # The operator hands it to gloo's thread; the wait for it is no event.
        self.op(f"c10d::{name.removeprefix('gloo:')}", 20.0)
        number = self.job.count(self.rank, ("host", group))
        self.calls.append(Call(name, "user_annotation", 10.0, meets=(("host", group, number), len(ranks), us)))

    def wait_on_device(self, work: Work) -> None:
        """The compute stream awaits it."""
        self.job.pending[self.rank].append(work)


class Job:
    """Programs of R ranks, played for so many steps. `program(p)` fills the program of a rank and step."""

    def __init__(
        self,
        ranks: int,
        steps: int,
        program: Callable[[Program], None],
        *,
        factor: Callable[[int, int], float] = lambda rank, step: 1.0,
        pause: Callable[[int, int], float] = lambda rank, step: 0.0,
        transfer: Callable[[int, int, str], float] = lambda rank, step, kind: 1.0,
        messages_told: str = "host",
    ) -> None:
        self.ranks, self.steps = ranks, steps
        self.factor, self.pause_us, self.transfer = factor, pause, transfer
        self.messages_told = messages_told
        self.rng = random.Random(ranks)
        self.counts: defaultdict[tuple[int, Any], int] = defaultdict(int)
        self.last: list[dict[int, Work]] = [{} for _ in range(ranks)]
        self.pending: list[list[Work]] = [[] for _ in range(ranks)]
        self.programs: list[list[Program]] = []
        for rank in range(ranks):
            mine = []
            for step in range(steps):
                one = Program(self, rank, step)
                program(one)
                mine.append(one)
            self.programs.append(mine)
        self._play()

    def count(self, rank: int, what: Any) -> int:
        self.counts[rank, what] += 1
        return self.counts[rank, what]

    def _play(self) -> None:
        players = [_Player(self, rank) for rank in range(self.ranks)]
        meetings: dict[Any, dict[int, float]] = defaultdict(dict)
        progress = True
        while progress:
            progress = False
            for player in players:
                progress |= player.go(meetings)
        stuck = [
            (player.rank, player.at, player.calls[player.at].name if player.at < len(player.calls) else "device")
            for player in players
            if not player.is_over
        ]
        assert not stuck, f"stuck: {stuck[:4]}"
        self.players = players

    def window_ms(self, first: int, last: int) -> float:
        """Mean length of the steps on the device."""
        return (
            sum(p.ends[last] - p.ends[first - 1] for p in self.players) / len(self.players) / (last - first + 1) / 1e3
        )

    def write(
        self, folder: Path, first: int, last: int, *, nodes: int = 8, skew: Mapping[int, float] | None = None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for player in self.players:
            events = player.events(first, last, (skew or {}).get(player.rank, 0.0))
            data = {
                "schemaVersion": 1,
                "deviceProperties": [
                    {"id": 0, "name": "NVIDIA H100", "computeMajor": 9, "computeMinor": 0, "numSms": 132}
                ],
                "distributedInfo": {"backend": "nccl", "rank": player.rank, "world_size": self.ranks},
                "baseTimeNanoseconds": 1_700_000_000_000_000_000,
                "traceEvents": events,
            }
            name = f"node{player.rank // nodes}_{100 + player.rank}.1700000000000000000.pt.trace.json.gz"
            with gzip.open(folder / name, "wb", 1) as file:
                file.write(json.dumps(data).encode())


def _launching(work: Work) -> str:
    if work.name.startswith("Memcpy"):
        return "cudaMemcpyAsync"
    return "cudaLaunchKernelExC" if work.meets else "cudaLaunchKernel"


class _Player:
    """One rank half played."""

    def __init__(self, job: Job, rank: int) -> None:
        self.rank, self.at, self.now = rank, 0, 1000.0 + 3.0 * rank
        self.calls = [call for program in job.programs[rank] for call in [Call("STEP", "", 0.0), *program.calls]]
        self.times: list[tuple[float, float, float]] = []
        self.queued: dict[int, deque[Work]] = defaultdict(deque)
        self.launched: list[Work] = []
        self.stream_end: dict[int, float] = defaultdict(float)
        self.begins: list[float] = []
        self.of_step: list[int] = []
        self.ends: list[float] = []
        self.arrived: set[int] = set()
        self.full: list[tuple[float, float]] = []
        self.done_until = 0

    @property
    def is_over(self) -> bool:
        return self.at >= len(self.calls) and not any(self.queued.values())

    def go(self, meetings: dict[Any, dict[int, float]]) -> bool:
        progress = False
        while True:
            moved = self._host(meetings) | self._device(meetings)
            progress |= moved
            if not moved:
                break
        if self.is_over and not self.ends:
            end = 0.0
            for step in range(len(self.begins)):
                mine = [work.end for work, of in zip(self.launched, self.of_step, strict=True) if of == step]
                end = max([end, *mine])
                self.ends.append(end)
        return progress

    def _host(self, meetings: dict[Any, dict[int, float]]) -> bool:
        moved = False
        while self.at < len(self.calls):
            call = self.calls[self.at]
            start = self.now
            issued = start
            end = start + call.length
            if call.name == "STEP":
                self.begins.append(start)
            if call.awaits:
                if any(work.end is None for work in call.awaits):
                    break
                end = max([end, *(work.end + 4.0 for work in call.awaits)])
            if call.meets:
                key, many, us = call.meets
                meetings[key].setdefault(self.rank, start)
                if len(meetings[key]) < many:
                    break
                end = max(meetings[key].values()) + us
            if call.work:
                issued = start + call.length - LAUNCH
                index = len(self.launched) - QUEUE
                if index >= 0:
                    before = self.launched[index]
                    if before.end is None:
                        break
                    if before.end > issued:
                        # The call waits for a place, and launches then.
                        self.full.append((issued, before.end))
                        end = before.end + LAUNCH
                call.work.launch = end - LAUNCH
                call.work.correlation = len(self.launched) + 1
                self.launched.append(call.work)
                self.of_step.append(len(self.begins) - 1)
                self.queued[call.work.stream].append(call.work)
            self.times.append((start, end, issued))
            self.now = end
            self.at += 1
            moved = True
        return moved

    def _device(self, meetings: dict[Any, dict[int, float]]) -> bool:
        moved = False
        for stream, queue in self.queued.items():
            while queue:
                work = queue[0]
                if work.arrival is None:
                    if any(one.end is None for one in work.after):
                        break
                    start = max(
                        [work.launch + LATENCY, self.stream_end[stream] + 1.5, *(one.end + 2.0 for one in work.after)]
                    )
                    work.arrival = start
                    for key, _ in work.meets:
                        meetings[key][self.rank] = start
                    moved = True
                if any(len(meetings[key]) < many for key, many in work.meets):
                    break
                together = max([work.arrival, *(at for key, _ in work.meets for at in meetings[key].values())])
                work.end = together + work.duration
                self.stream_end[stream] = work.end
                queue.popleft()
                moved = True
        return moved

    def events(self, first: int, last: int, skew: float) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        offset = 5e6 + skew

        def put(
            category: str,
            name: str,
            start: float,
            end: float,
            tid: int,
            args: Mapping[str, Any],
            pid: int | None = None,
        ) -> None:
            found.append(
                {
                    "ph": "X",
                    "cat": category,
                    "name": name,
                    "pid": 100 + self.rank if pid is None else pid,
                    "tid": tid,
                    "ts": round(start + offset, 3),
                    "dur": round(end - start, 3),
                    "args": dict(args),
                }
            )

        begins = [*self.begins, self.now]
        since, until = begins[first], begins[last + 1]
        for step in range(first, last + 1):
            put("user_annotation", f"ProfilerStep#{step}", begins[step], begins[step + 1] - 5, 1, {})
        open_calls: list[tuple[Call, float]] = []
        for call, (start, end, issued) in zip(self.calls, self.times, strict=True):
            if call.opens:
                open_calls.append((call, start))
                continue
            if call.closes:
                begun, at = open_calls.pop()
                if at >= since and end <= until:
                    put(begun.category, begun.name, at, end, 1, {})
                continue
            if start < since or start >= until or call.name in ("", "STEP"):
                continue
            if call.awaits:
                put("cpu_op", call.category, start - 0.5, end + 0.5, 1, {})
                put("cuda_runtime", call.name, start, end, 1, {"correlation": 1_000_000 + len(found)})
                continue
            tid = 3 if call.meets else 1
            put(call.category, call.name, start, end, tid, call.inside or {})
            if call.work:
                put("cuda_runtime", _launching(call.work), issued, end - 0.2, 1, {"correlation": call.work.correlation})
        for work in self.launched:
            if work.end <= since or work.launch >= until:
                continue
            if work.name.startswith("Memcpy"):
                put(
                    "gpu_memcpy",
                    work.name,
                    work.arrival,
                    work.end,
                    work.stream,
                    {"device": 0, "stream": work.stream, "correlation": work.correlation, "bytes": 1 << 26},
                    0,
                )
                continue
            place = {
                "device": 0,
                "stream": work.stream,
                "correlation": work.correlation,
                "grid": [132, 1, 1],
                "block": [256, 1, 1],
            }
            if work.launch >= since and work.about:
                place |= work.about
            put("kernel", work.name, work.arrival, work.end, work.stream, place, 0)
        for start, end in self.full:
            if since <= start < until:
                put("overhead", "Command Buffer Full", start, end, 0, {}, -1)
        return found
