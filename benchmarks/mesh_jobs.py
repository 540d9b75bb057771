"""Plays jobs of several dimensions of parallelism, and writes them as Kineto traces.

A small discrete-event model. The host of a rank launches its operations one after the other, `LAUNCH_US` each, and
waits for its device at the end of each step. A device runs the operations of each stream in order:

- A kernel starts once it is launched and the one before it on the compute stream has ended.
- A collective starts, and so arrives, once the kernels launched before it have ended. It ends on all ranks of its group
  `us` after the last of them has arrived. Compute waits for it, at once or at a later `Wait`.
- A host that completes a gradient launches nothing for it.
- A host that syncs launches nothing until its device has computed what was launched before.
- A kernel of messages (`batch_isend_irecv`) ends when the last of its messages has moved; each moves once the kernels
  at both of its ends have arrived.

Ranks are numbered as Megatron-LM numbers them: tp varies fastest, then cp, ep within dp, dp, and pp slowest. With
HSDP, dp is dp_shard within dp_replicate. All times are us.
"""

from __future__ import annotations

import gzip
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

#: What the host needs to launch an operation; and from there to the device.
LAUNCH_US, LATENCY_US = 12.0, 6.0
#: What the training loop does between two steps.
BETWEEN_US = 300.0
#: Relative standard deviation of a kernel's time, and of what the host needs for a launch.
NOISE = 0.01
_MAIN, _AUTOGRAD = 1, 2
_COMPUTE = 7
#: A longer list is cut short by torch.
_LISTED = 30
#: The elements of a message between stages, and of an all-to-all per rank; any number will do.
_ELEMENTS = 1 << 20
#: Elements of an AllReduce of the loss.
LOSS = (1, 1)

GEMM = "nvjet_tst_192x128_64x5_2x1_v_bz_coopB_TNT"
GROUPED = "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<>>>()"
FLASH = "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>(flash::Flash_fwd_params)"
FLASH_BACKWARD = "void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128>>()"
NORM = "void transformer_engine::normalization::ln_fwd_tuned_kernel<>()"
ADAM = "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>>()"
_KERNEL_OF = {
    "allreduce": "AllReduce_Sum_bf16",
    "_allgather_base": "AllGather",
    "_reduce_scatter_base": "ReduceScatter_Sum_bf16",
    "all_to_allv": "SendRecv",
    "message": "SendRecv",
}


@dataclass(frozen=True)
class Mesh:
    """Ranks along each dimension. Experts are spread over `ep` ranks of dp; HSDP replicates over `replicate` of dp."""

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    replicate: int = 1
    #: Ranks of a node.
    node: int = 8

    @property
    def size(self) -> int:
        return self.dp * self.tp * self.pp * self.cp

    @property
    def dimensions(self) -> dict[str, int]:
        """Ranks along each dimension of two or more, by its name."""
        sharded = {"dp_replicate": self.replicate, "dp_shard": self.dp // self.replicate}
        data = sharded if self.replicate > 1 else {"dp": self.dp}
        every = {**data, "pp": self.pp, "cp": self.cp, "tp": self.tp, "ep": self.ep}
        return {name: size for name, size in every.items() if size > 1}

    def place(self, rank: int) -> dict[str, int]:
        """The coordinates of a rank along each dimension of two or more."""
        tp, cp = rank % self.tp, rank // self.tp % self.cp
        dp, pp = rank // (self.tp * self.cp) % self.dp, rank // (self.tp * self.cp * self.dp)
        shard = self.dp // self.replicate
        places = {"tp": tp, "cp": cp, "dp": dp, "pp": pp, "ep": dp % self.ep}
        places |= {"dp_shard": dp % shard, "dp_replicate": dp // shard}
        return {name: places[name] for name in self.dimensions}

    def where(self, **places: int) -> tuple[int, ...]:
        """The ranks with these coordinates."""
        return tuple(rank for rank, place in enumerate(_places(self)) if places.items() <= place.items())

    def group(self, rank: int, dimension: str) -> tuple[int, ...]:
        """The ranks of the group of a dimension that a rank is in."""
        return _group(self, rank, dimension)

    def groups(self, dimension: str) -> list[tuple[int, ...]]:
        """All groups of a dimension."""
        return _groups(self, dimension)


@cache
def _places(mesh: Mesh) -> list[dict[str, int]]:
    return [mesh.place(rank) for rank in range(mesh.size)]


@cache
def _groups(mesh: Mesh, dimension: str) -> list[tuple[int, ...]]:
    return sorted({mesh.group(rank, dimension) for rank in range(mesh.size)})


@cache
def _group(mesh: Mesh, rank: int, dimension: str) -> tuple[int, ...]:
    place = mesh.place(rank)
    if dimension == "ep":
        # A block of dp, with all else alike.
        apart = mesh.tp * mesh.cp
        return tuple(rank + (other - place["ep"]) * apart for other in range(mesh.ep))
    return mesh.where(**{name: at for name, at in place.items() if name not in (dimension, "ep")})


@dataclass
class Operation:
    """One device operation of a rank, as the host launches it."""

    kind: str
    us: float
    #: forward, backward or optimizer.
    phase: str
    kernel: str = ""
    #: The dimension of a collective's or a message's group.
    dimension: str = ""
    group: tuple[int, ...] = ()
    #: Of a kernel of messages: whether each is sent, the other rank, and what tells it from others of that pair.
    messages: tuple[tuple[bool, int, str], ...] = ()
    elements: tuple[int, int] = (_ELEMENTS, _ELEMENTS)
    splits: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    #: Whether compute waits for it at once; else a `wait` with the same key does.
    blocks: bool = True
    key: str = ""
    #: The layer, and whether its experts compute here.
    layer: int = -1
    #: Of a collective: whether it needs no kernel, and the key of a collective of another stream that it comes after.
    needs_kernels: bool = True
    behind: str = ""


@dataclass(frozen=True)
class Shape:
    """What a step of a job does."""

    mesh: Mesh
    micro_batches: int = 4
    #: Layers of each stage.
    layers: int = 2
    schedule: str = "1f1b"
    #: Of a layer's kernels in forward.
    attention_us: float = 900.0
    mlp_us: float = 1400.0
    #: Share of a layer's compute that each of its tensor parallel collectives, all-to-alls, ring messages takes.
    transfer: float = 0.03
    #: Whether activations are gathered and scattered along the sequence within tp.
    sequence_parallel: bool = False
    #: How gradients and parameters are exchanged within dp: "ddp", "zero1" or "fsdp".
    sharding: str = "ddp"
    #: Whether each step ends with an AllReduce of the loss within dp.
    reports_loss: bool = False
    #: What the host needs to launch an operation.
    launch_us: float = LAUNCH_US


@dataclass
class Faults:
    """What is wrong, as factors and pauses; by default nothing."""

    #: (rank, step, operation) -> factor on a kernel.
    kernel: Callable[[int, int, Operation], float] = lambda *_: 1.0
    #: (group, step, operation) -> factor on what a collective or message moves.
    transfer: Callable[[tuple[int, ...], int, Operation], float] = lambda *_: 1.0
    #: (rank, step) -> how long its host pauses after forward of the first micro-batch.
    pause: Callable[[int, int], float] = lambda *_: 0.0
    #: (rank, step, layer) -> tokens that its experts get, 1 in the mean.
    load: Callable[[int, int, int], float] = lambda *_: 1.0


class Program:
    """The operations of one rank's step, in the order in which its host launches them."""

    def __init__(self, shape: Shape, faults: Faults, rank: int, step: int) -> None:
        self.shape, self.mesh, self.faults = shape, shape.mesh, faults
        self.rank, self.step = rank, step
        self.place = self.mesh.place(rank)
        self.stage = self.place.get("pp", 0)
        self.operations: list[Operation] = []
        self._write()

    def _write(self) -> None:
        if self.shape.sharding == "fsdp":
            self._gather(0, "forward")
        for turn, micro_batch in self._turns():
            (self._forward if turn == "forward" else self._backward)(micro_batch)
        self._end()

    def _turns(self) -> Iterator[tuple[str, int]]:
        """Forward and backward passes of micro-batches, in the order of the schedule."""
        many = self.shape.micro_batches
        warm = many if self.shape.schedule == "gpipe" else min(self.mesh.pp - self.stage - 1, many)
        yield from (("forward", each) for each in range(warm))
        for each in range(many - warm):
            yield "forward", warm + each
            yield "backward", each
        yield from (("backward", each) for each in range(many - warm, many))

    def _add(self, kind: str, us: float, phase: str, **more: Any) -> None:
        self.operations.append(Operation(kind, us, phase, **more))

    def _kernel(self, name: str, us: float, phase: str, layer: int = -1) -> None:
        self._add("kernel", us, phase, kernel=name, layer=layer)

    def _collective(self, kind: str, dimension: str, us: float, phase: str, **more: Any) -> None:
        if dimension in self.place:
            group = self.mesh.group(self.rank, dimension)
            self._add("collective", us, phase, kernel=kind, dimension=dimension, group=group, **more)

    def _message(self, ways: Iterable[tuple[bool, int, str]], dimension: str, phase: str, **more: Any) -> None:
        """One kernel that sends to and receives from some ranks."""
        if several := tuple(ways):
            group = self.mesh.group(self.rank, dimension)
            us = self._transfer_us() if dimension == "cp" else 0.4 * self._transfer_us()
            self._add("message", us, phase, dimension=dimension, group=group, messages=several, **more)

    def _transfer_us(self) -> float:
        return self.shape.transfer * (self.shape.attention_us + self.shape.mlp_us)

    def _neighbour(self, by: int) -> int | None:
        """The rank at the same place of another stage."""
        if not 0 <= self.stage + by < self.mesh.pp:
            return None
        return self.rank + by * self.mesh.size // self.mesh.pp

    def _between_stages(self, sends: bool, micro_batch: int, phase: str) -> None:
        """Activations go to the next stage, gradients come back."""
        other = self._neighbour(1 if sends == (phase == "forward") else -1)
        if other is not None:
            self._message([(sends, other, f"{phase}{micro_batch}")], "pp", phase, blocks=not sends)

    def _forward(self, micro_batch: int) -> None:
        self._between_stages(False, micro_batch, "forward")
        for layer in range(self.shape.layers):
            self._layer(layer, micro_batch, "forward")
        self._between_stages(True, micro_batch, "forward")

    def _backward(self, micro_batch: int) -> None:
        self._between_stages(False, micro_batch, "backward")
        is_last = micro_batch == self.shape.micro_batches - 1
        for layer in reversed(range(self.shape.layers)):
            self._layer(layer, micro_batch, "backward")
            if is_last:
                self._reduce(layer)
        self._between_stages(True, micro_batch, "backward")

    def _layer(self, layer: int, micro_batch: int, phase: str) -> None:
        """Attention, then experts or an MLP; backward takes twice as long."""
        shape, times = self.shape, 1.0 if phase == "forward" else 2.0
        if shape.sharding == "fsdp":
            self._add("wait", 0.0, phase, key=f"gather{layer}{phase}")
            following = layer + 1 if phase == "forward" else layer - 1
            if 0 <= following < shape.layers:
                self._gather(following, phase)
            elif phase == "forward":
                self._gather(layer, "backward")
            elif micro_batch < shape.micro_batches - 1:
                self._gather(0, "forward")
        key = f"{layer}.{micro_batch}.{phase}"
        self._kernel(NORM, 0.05 * shape.attention_us * times, phase)
        self._activations(phase, before=True)
        self._kernel(GEMM, 0.35 * shape.attention_us * times, phase)
        self._ring(key, phase, times)
        self._kernel(GEMM, 0.2 * shape.attention_us * times, phase)
        self._activations(phase, before=False)
        if "ep" in self.place:
            self._experts(layer, phase, times)
            return
        self._activations(phase, before=True)
        self._kernel(GEMM, 0.6 * shape.mlp_us * times, phase)
        self._kernel(GEMM, 0.4 * shape.mlp_us * times, phase)
        self._activations(phase, before=False)

    def _activations(self, phase: str, *, before: bool) -> None:
        us = self._transfer_us()
        if self.shape.sequence_parallel:
            self._collective("_allgather_base" if before else "_reduce_scatter_base", "tp", us, phase)
        elif before == (phase == "backward"):
            self._collective("allreduce", "tp", us, phase)

    def _ring(self, key: str, phase: str, times: float) -> None:
        """Attention, with keys and values sent around the ring of cp beside it."""
        name = FLASH if phase == "forward" else FLASH_BACKWARD
        part = 0.4 * self.shape.attention_us * times / self.mesh.cp
        ring = self.mesh.group(self.rank, "cp") if "cp" in self.place else ()
        for turn in range(self.mesh.cp):
            sends = turn < self.mesh.cp - 1
            if sends:
                at = ring.index(self.rank)
                after, before = ring[(at + 1) % len(ring)], ring[at - 1]
                ways = [(True, after, f"ring{key}{turn}"), (False, before, f"ring{key}{turn}")]
                self._message(ways, "cp", phase, blocks=False, key=f"ring{key}{turn}")
            self._kernel(name, part, phase)
            if sends:
                self._add("wait", 0.0, phase, key=f"ring{key}{turn}")

    def _experts(self, layer: int, phase: str, times: float) -> None:
        """Tokens go to their experts and back; a rank's experts compute as long as they have tokens."""
        group = self.mesh.group(self.rank, "ep")
        loads = [self.faults.load(rank, self.step, layer) for rank in group]
        mine = self.faults.load(self.rank, self.step, layer)
        us = self._transfer_us() * max(loads)
        each = _ELEMENTS // len(group)
        sent = tuple(round(each * load) for load in loads)
        received = (round(each * mine),) * len(group)
        there = {"elements": (sum(sent), sum(received)), "splits": (sent, received)}
        back = {"elements": (sum(received), sum(sent)), "splits": (received, sent)}
        self._collective("all_to_allv", "ep", us, phase, **there)
        self._kernel(GROUPED, 0.6 * self.shape.mlp_us * times * mine, phase, layer)
        self._kernel(GROUPED, 0.4 * self.shape.mlp_us * times * mine, phase, layer)
        self._collective("all_to_allv", "ep", us, phase, **back)

    def _shards(self) -> str:
        return "dp_shard" if self.mesh.replicate > 1 else "dp"

    def _gather(self, layer: int, phase: str) -> None:
        self._collective(
            "_allgather_base", self._shards(), self._transfer_us(), phase, blocks=False, key=f"gather{layer}{phase}"
        )

    def _reduce(self, layer: int) -> None:
        """Gradients of a layer are reduced beside the backward of the layers before it."""
        kind = "allreduce" if self.shape.sharding == "ddp" else "_reduce_scatter_base"
        us = 4 * self._transfer_us()
        self._collective(kind, self._shards(), us, "backward", blocks=False, key=f"reduced{layer}")
        if self.mesh.replicate > 1 and self.shape.sharding != "ddp":
            self._collective("allreduce", "dp_replicate", us / 2, "backward", blocks=False, key=f"replicated{layer}")

    def _end(self) -> None:
        if self.mesh.replicate > 1 and self.shape.sharding == "ddp":
            # Plain data parallelism over both dimensions: within a shard group, then across.
            self._collective("allreduce", "dp_replicate", 4 * self._transfer_us(), "optimizer")
        for layer in range(self.shape.layers):
            self._add("wait", 0.0, "optimizer", key=f"reduced{layer}")
            self._add("wait", 0.0, "optimizer", key=f"replicated{layer}")
        self._kernel(ADAM, 0.3 * self.shape.mlp_us, "optimizer")
        if self.shape.sharding == "zero1":
            self._collective("_allgather_base", self._shards(), 4 * self._transfer_us(), "optimizer")
        if self.shape.reports_loss:
            self._collective("allreduce", self._shards(), 20.0, "optimizer", elements=LOSS)


@dataclass
class Played:
    """When the operations of one rank's step were launched, started and ended, us."""

    operations: list[Operation]
    launch: list[float]
    start: list[float]
    end: list[float]
    #: From where to where the host's step went, and from when its pause was, or None.
    host: tuple[float, float] = (0.0, 0.0)
    pause: tuple[float, float] | None = None
    #: How far it is played: the next operation, when compute is free, when the streams are, and the keys to wait for.
    at: int = 0
    compute: float = 0.0
    streams: dict[str, int] = field(default_factory=dict)
    keys: dict[str, int] = field(default_factory=dict)
    waits: list[int] = field(default_factory=list)


class Job:
    """A job that was played; `steps[s][r]` is what rank r did in step s."""

    def __init__(self, shape: Shape, faults: Faults, steps: int, program: Callable[..., Program] = Program) -> None:
        """`program` writes the operations of a rank's step, as `Program` does, and takes the same arguments."""
        self.shape, self.faults, self._program = shape, faults, program
        self.steps: list[list[Played]] = []
        free = [0.0] * shape.mesh.size
        for step in range(steps):
            self.steps.append(self._play(step, free))
            free = [played.host[1] + BETWEEN_US for played in self.steps[-1]]

    @property
    def step_us(self) -> float:
        """Mean step from the second one on, of all ranks."""
        first, last = self.steps[0], self.steps[-1]
        ranks = range(self.shape.mesh.size)
        return sum(last[r].host[1] - first[r].host[1] for r in ranks) / (len(ranks) * (len(self.steps) - 1))

    def _play(self, step: int, free: Sequence[float]) -> list[Played]:
        ranks = [self._launched(rank, step, free[rank]) for rank in range(self.shape.mesh.size)]
        #: By meeting: of each side that has arrived its rank, operation and time.
        meetings: defaultdict[tuple[Any, ...], dict[int, tuple[int, float]]] = defaultdict(dict)
        ordinals: list[defaultdict[Any, int]] = [defaultdict(int) for _ in ranks]
        left = set(range(len(ranks)))
        while left:
            moved = False
            for rank in sorted(left):
                while self._advance(rank, step, ranks, meetings, ordinals):
                    moved = True
                if ranks[rank].at == len(ranks[rank].operations) and all(end >= 0 for end in ranks[rank].end):
                    left.discard(rank)
            if left and not moved:
                raise RuntimeError(f"deadlock in step {step}: ranks {sorted(left)}")
        for played in ranks:
            begin = played.host[0]
            played.host = (begin, max(played.host[1], *played.end) + 10.0)
        return ranks

    def _launched(self, rank: int, step: int, begin: float) -> Played:
        operations = self._program(self.shape, self.faults, rank, step).operations
        # The same whatever the faults, so that a twin differs by them alone.
        noise = random.Random(f"{rank}:{step}")
        at, launch, pause = begin + 50.0, [], None
        paused = self.faults.pause(rank, step)
        for operation in operations:
            if paused and operation.phase == "backward" and not pause:
                pause = (at, at + paused)
                at += paused
            launch.append(at)
            operation.us *= noise.gauss(1, NOISE) if operation.kind == "kernel" else 1.0
            at += self.shape.launch_us * noise.gauss(1, NOISE) if operation.kind != "wait" else 0.0
        many = len(operations)
        return Played(operations, launch, [-1.0] * many, [-1.0] * many, (begin, at), pause, compute=begin)

    def _advance(
        self,
        rank: int,
        step: int,
        ranks: Sequence[Played],
        meetings: dict[tuple[Any, ...], dict[int, tuple[int, float]]],
        ordinals: Sequence[defaultdict[Any, int]],
    ) -> bool:
        """Start the next operation of a rank; whether that was possible."""
        mine = ranks[rank]
        if mine.at == len(mine.operations):
            return False
        number, operation = mine.at, mine.operations[mine.at]
        if any(mine.end[one] < 0 for one in mine.waits):
            return False
        mine.compute = max([mine.compute, *(mine.end[one] for one in mine.waits)])
        mine.waits = []
        ready = max(mine.launch[number] + LATENCY_US, mine.compute)
        if operation.kind == "gradient":
            mine.start[number] = mine.end[number] = mine.launch[number]
        elif operation.kind == "sync":
            mine.start[number] = mine.launch[number]
            mine.end[number] = max(mine.launch[number] + LAUNCH_US, mine.compute + LATENCY_US)
            late = mine.end[number] - mine.launch[number] - LAUNCH_US
            mine.launch[number + 1 :] = [at + late for at in mine.launch[number + 1 :]]
            mine.host = (mine.host[0], mine.host[1] + late)
        elif operation.kind == "wait":
            mine.waits = [mine.keys[operation.key]] if operation.key in mine.keys else []
            mine.start[number] = mine.end[number] = mine.compute
        elif operation.kind == "kernel":
            us = operation.us * self.faults.kernel(rank, step, operation)
            mine.start[number], mine.end[number] = ready + 1.0, ready + 1.0 + us
            mine.compute = mine.end[number]
        else:
            if not operation.needs_kernels:
                ready = mine.launch[number] + LATENCY_US
            earlier = [
                mine.streams.get(stream_of(operation)),
                mine.keys[operation.behind] if operation.behind else None,
            ]
            if any(one is not None and mine.end[one] < 0 for one in earlier):
                return False
            arrival = max(ready, *(mine.end[one] if one is not None else 0.0 for one in earlier)) + 2.0
            mine.start[number] = arrival
            mine.streams[stream_of(operation)] = number
            mine.keys[operation.key] = number
            mine.waits = [number] if operation.blocks else []
            self._meet(rank, number, arrival, step, ranks, meetings, ordinals[rank])
        mine.at += 1
        return True

    def _meet(
        self,
        rank: int,
        number: int,
        arrival: float,
        step: int,
        ranks: Sequence[Played],
        meetings: dict[tuple[Any, ...], dict[int, tuple[int, float]]],
        ordinals: defaultdict[Any, int],
    ) -> None:
        """Let a collective or the messages of a kernel meet the other ranks' parts; set the ends that follow."""
        operation = ranks[rank].operations[number]
        if operation.kind == "collective":
            ordinals[operation.dimension] += 1
            of_all = meetings[operation.dimension, operation.group, ordinals[operation.dimension]]
            of_all[rank] = number, arrival
            if len(of_all) == len(operation.group):
                us = operation.us * self.faults.transfer(operation.group, step, operation)
                end = max(at for _, at in of_all.values()) + us
                for other, (its, _) in of_all.items():
                    ranks[other].end[its] = end
            return
        for sends, peer, name in operation.messages:
            pair = (rank, peer) if sends else (peer, rank)
            meetings["message", pair, name][rank] = number, arrival
        for one, its in {(rank, number)} | {
            (peer, sides[peer][0])
            for sends, peer, name in operation.messages
            if peer in (sides := meetings["message", (rank, peer) if sends else (peer, rank), name])
        }:
            self._end_messages(one, its, step, ranks, meetings)

    def _end_messages(
        self, rank: int, number: int, step: int, ranks: Sequence[Played], meetings: Mapping[Any, Any]
    ) -> None:
        """Set the end of a kernel of messages if the other sides of all of them have arrived."""
        operation, end = ranks[rank].operations[number], 0.0
        for sends, peer, name in operation.messages:
            pair = (rank, peer) if sends else (peer, rank)
            sides = meetings["message", pair, name]
            if len(sides) < 2:
                return
            us = operation.us * self.faults.transfer(pair, step, operation)
            end = max(end, max(at for _, at in sides.values()) + us)
        ranks[rank].end[number] = end

    # What follows writes traces.

    def traces(self, first: int, naming: str, clock_us: Sequence[float]) -> dict[int, bytes]:
        """The JSON of each rank's trace, as `trace` writes it. `clock_us` is by how much each node's clock is off."""
        of = self.shape.mesh
        return {rank: self.trace(rank, first, naming, clock_us[rank // of.node]) for rank in range(of.size)}

    def trace(self, rank: int, first: int, naming: str, clock_us: float) -> bytes:
        """The JSON of a rank's trace, of the steps from `first` on, by a clock that is off.

        `naming` says what describes the process groups: "megatron", "mesh" (DeviceMesh) or "none".
        """
        events = _Recorded(rank, naming, self.shape.mesh, clock_us)
        for step, ranks in enumerate(self.steps[first:], first):
            events.add_step(step, ranks[rank])
        trace = {
            "schemaVersion": 1,
            "deviceProperties": [_DEVICE],
            "distributedInfo": events.about(),
            "traceEvents": events.list,
        }
        return msgspec.json.encode(trace)


def write(folder: Path, traces: Mapping[int, bytes], mesh: Mesh) -> None:
    """Write traces as torch names them."""
    folder.mkdir(parents=True)
    for rank, trace in traces.items():
        path = folder / f"node{rank // mesh.node}_{1000 + rank}.1700000000000000000.pt.trace.json.gz"
        path.write_bytes(gzip.compress(trace, 1, mtime=0))


_DEVICE = {
    "id": 0,
    "name": "NVIDIA H100 80GB HBM3",
    "totalGlobalMem": 85_000_000_000,
    "computeMajor": 9,
    "computeMinor": 0,
    "numSms": 132,
}
_DESCRIPTIONS = {
    "megatron": {
        "tp": "TENSOR_MODEL_PARALLEL_GROUP",
        "pp": "PIPELINE_MODEL_PARALLEL_GROUP",
        "cp": "CONTEXT_PARALLEL_GROUP",
        "ep": "EXPERT_MODEL_PARALLEL_GROUP",
        "dp": "DATA_PARALLEL_GROUP",
        "dp_shard": "mesh_dp_shard",
        "dp_replicate": "mesh_dp_replicate",
    },
    "mesh": {name: f"mesh_{name}" for name in ("tp", "pp", "cp", "ep", "dp", "dp_shard", "dp_replicate")},
}


def _listed(values: Sequence[int]) -> str:
    """A list as torch writes it, which cuts long ones short."""
    return str(list(values)) if len(values) <= _LISTED else f"[{', '.join(map(str, values[:_LISTED]))}, ...]"


def stream_of(operation: Operation) -> str:
    """The stream of a collective or a message: each communicator has one, and sends and receives have two."""
    if operation.kind != "message" or operation.dimension == "cp":
        return operation.dimension
    (sends, peer, _), *_ = operation.messages
    return f"{operation.dimension}{'to' if sends else 'from'}{peer}"


class _Recorded:
    """The events of a rank's trace, as torch and Kineto write them."""

    def __init__(self, rank: int, naming: str, mesh: Mesh, clock_us: float) -> None:
        self.list: list[dict[str, Any]] = []
        self._rank, self._naming, self._mesh, self._shift_us = rank, naming, mesh, clock_us + 1e6
        self._correlation = 0
        names = [(name, group) for name in mesh.dimensions for group in mesh.groups(name)]
        self._groups = {pair: str(number) for number, pair in enumerate(names, 1)}
        self._streams: dict[str, int] = {}

    def about(self) -> dict[str, Any]:
        """The `distributedInfo` of the trace."""
        said = {"backend": "nccl", "rank": self._rank, "world_size": self._mesh.size}
        if self._naming == "none":
            return said
        described = _DESCRIPTIONS[self._naming]
        own = {
            name: (described[dimension], group)
            for (dimension, group), name in self._groups.items()
            if self._rank in group
        }
        every = {"0": ("default_pg", tuple(range(self._mesh.size))), **own}
        config = [
            {"pg_name": name, "pg_desc": said, "backend_config": "cuda:nccl", "pg_size": len(ranks), "ranks": ranks}
            for name, (said, ranks) in every.items()
        ]
        return said | {"pg_count": len(config), "pg_config": config}

    def add_step(self, number: int, played: Played) -> None:
        """Write one step."""
        begin, end = played.host
        self._add("user_annotation", f"ProfilerStep#{number}", begin, end - begin, _MAIN)
        phases: dict[str, list[tuple[float, float]]] = defaultdict(list)
        last = ""
        for i, operation in enumerate(played.operations):
            if operation.kind == "wait":
                continue
            if operation.kind == "sync":
                self._correlation += 1
                of = {"correlation": self._correlation}
                length = played.end[i] - played.start[i]
                self._add("cpu_op", "aten::item", played.start[i], length, _MAIN)
                self._add("cuda_runtime", "cudaStreamSynchronize", played.start[i] + 1, length - 2, _MAIN, **of)
                continue
            span = (played.launch[i], played.launch[i] + 0.9 * LAUNCH_US)
            if operation.phase == last and phases[last] and (played.pause or (0, 0))[1] != span[0]:
                phases[last][-1] = phases[last][-1][0], span[1]
            else:
                phases[operation.phase].append(span)
            last = operation.phase
            self._add_operation(operation, played, i)
        for start, stop in phases["optimizer"]:
            self._add("user_annotation", "Optimizer.step#AdamW.step", start - 1, stop - start + 1, _MAIN)
        launched = max(at for _, at in [span for spans in phases.values() for span in spans])
        self._correlation += 1
        self._add(
            "cuda_runtime",
            "cudaStreamSynchronize",
            launched + 1,
            end - launched - 2,
            _MAIN,
            correlation=self._correlation,
        )

    def _add_operation(self, operation: Operation, played: Played, i: int) -> None:
        # Schedules send and receive from the training loop, ring attention from its backward.
        if operation.kind == "gradient":
            name, at = "torch::autograd::AccumulateGrad", played.launch[i]
            self._add("cpu_op", f"autograd::engine::evaluate_function: {name}", at, LAUNCH_US - 2, _AUTOGRAD)
            shape = {"Input Dims": [[operation.elements[0]]]}
            self._add("cpu_op", name, at + 0.5, LAUNCH_US - 3, _AUTOGRAD, **shape)
            return
        in_backward = operation.phase == "backward" and not (
            operation.kind == "message" and operation.dimension == "pp"
        )
        at, tid = played.launch[i], _AUTOGRAD if in_backward else _MAIN
        self._correlation += 1
        place: dict[str, Any] = {"device": 0, "correlation": self._correlation}
        length = played.end[i] - played.start[i]
        if in_backward:
            node = "autograd::engine::evaluate_function: " + ("MmBackward0" if operation.kernel else "RecvBackward0")
            self._add("cpu_op", node, at, LAUNCH_US - 2, tid)
        if operation.kind == "kernel":
            self._add("cpu_op", "aten::mm", at + 0.5, LAUNCH_US - 3, tid)
            self._add("cuda_runtime", "cudaLaunchKernel", at + 2, 4, tid, correlation=self._correlation)
            grid = {"grid": [528, 1, 1], "block": [384, 1, 1]}
            self._add("kernel", operation.kernel, played.start[i], length, _COMPUTE, stream=_COMPUTE, **place, **grid)
            return
        stream = self._streams.setdefault(stream_of(operation), 20 + len(self._streams))
        told = self._told(operation)
        for nth, one in enumerate(told):
            self._add("cpu_op", "record_param_comms", at + 0.5 + nth, 0.8 if len(told) > 1 else 9, tid, **one)
        self._add("cuda_runtime", "cudaLaunchKernelExC", at + 4, 4, tid, correlation=self._correlation)
        kind = _KERNEL_OF.get(operation.kernel, "SendRecv")
        name = f"ncclDevKernel_{kind}_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        on_kernel = told[0] if operation.kind == "collective" else {}
        self._add("kernel", name, played.start[i], length, stream, stream=stream, **place, **on_kernel)

    def _told(self, operation: Operation) -> list[dict[str, Any]]:
        """The metadata of a collective, or of each of some messages."""
        group = {
            "Process Group Name": self._groups[operation.dimension, operation.group],
            "Process Group Ranks": _listed(operation.group),
            "Group size": len(operation.group),
            "dtype": "BFloat16",
        }
        if self._naming != "none":
            group["Process Group Description"] = _DESCRIPTIONS[self._naming][operation.dimension]
        size = {"In msg nelems": operation.elements[0], "Out msg nelems": operation.elements[1]}
        if operation.kind == "collective":
            splits = {
                name: _listed(split)
                for name, split in zip(("In split size", "Out split size"), operation.splits, strict=True)
            }
            return [{"Collective name": operation.kernel, **size, **group, **splits}]
        return [
            {"Collective name": "send" if sends else "recv", **size, **group}
            | {"Dst Rank" if sends else "Src Rank": peer}
            for sends, peer, _ in operation.messages
        ]

    def _add(self, category: str, name: str, start: float, length: float, tid: int, **args: Any) -> None:
        device = "stream" in args
        self.list.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": 0 if device else 1000 + self._rank,
                "tid": tid,
                "ts": round(start + self._shift_us, 3),
                "dur": round(length, 3),
                "args": args,
            }
        )
