"""How right the doctor is on simulated jobs whose ranks depend on each other by more than AllReduces.

    python benchmarks/classes_dependent.py [--jobs 3] [--seed 1] [--only KIND] [--keep DIR]

Pipelines, experts, hybrid sharding, ring attention, tensor parallelism without metadata, barriers and optimizers on the
CPU, as `programs` plays them: from what such a job does, not from how the doctor judges one. Each is drawn `--jobs`
times, with random sizes, ranks and lengths of its fault. A job is right where the verdict is one that is true, the
findings above info on slow ranks name exactly the true ranks, no other finding is above info, and all costs come within
10 % of the step of what the fault costs: the step less that of the same job without it. Kinds named healthy_* must be
healthy. No answer may contradict itself (`consistency`). Exits with 1 if a kind has fewer than nine in ten right.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from consistency import broken
from programs import Job, Program, Work

from tb_ddp_doctor import engine
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.discover.runs import discover
from tb_ddp_doctor.findings import Severity

SLOW = ("straggler", "load-imbalance", "moe-imbalance")
FIRST, STEPS = 5, 4
RANDOM = random.Random


@dataclass
class Drawn:
    """A job of a kind."""

    ranks: int
    program: Callable[[Program], None]
    #: Verdicts that are true; "healthy" alone without a fault.
    rules: tuple[str, ...] = ("healthy",)
    slow: tuple[int, ...] | None = None
    #: The fault, as options of `Job`; and the same job without it, where that is another program.
    fault: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    without: Callable[[Program], None] | None = None
    hidden: bool = False


def slow_device(rank: int, factor: float) -> dict[str, Any]:
    return {"factor": lambda r, step: factor if r == rank else 1.0}


def pausing(rank: int, us: float) -> dict[str, Any]:
    return {"pause": lambda r, step: us if r == rank else 0.0}


def either(rng: random.Random, rank: int) -> dict[str, Any]:
    return slow_device(rank, rng.uniform(1.4, 2)) if rng.random() < 0.5 else pausing(rank, rng.uniform(30e3, 70e3))


def update(p: Program, us: float, after: Sequence[Work] = ()) -> Work:
    """The optimizer's kernels, of which the last one is returned."""
    p.begin("Optimizer.step#AdamW.step")
    kernels = [p.kernel("adam", us, op="aten::_fused_adamw_", after=after) for _ in range(6)]
    p.finish()
    return kernels[-1]


# Pipelines.


def pipeline(
    stages: int,
    turns: int,
    *,
    layers: Sequence[int],
    kernel: float,
    tensor: int = 1,
    batched: bool = True,
    read: bool = False,
) -> Callable[[Program], None]:
    """1F1B: each stage runs ahead by what lies after it, then alternates; stages of `tensor` ranks."""

    def program(p: Program) -> None:
        stage, lane = divmod(p.rank, tensor)
        group = f"pp{lane}"
        ranks = [s * tensor + lane for s in range(stages)]
        before, after = p.rank - tensor, p.rank + tensor
        inside = [stage * tensor + t for t in range(tensor)]
        ready: list[Work] = []

        def block(op: str, scale: float) -> None:
            nonlocal ready
            for _ in range(layers[stage]):
                for name in ("gemm_qkv", "flash", "gemm_mlp"):
                    last = p.kernel(f"{name}_{op}", kernel * scale, op=f"aten::{name}", after=ready)
                    ready = []
                if tensor > 1:
                    ready = [
                        p.collective("allreduce", f"tp{stage}", inside, 60.0, stream=30, elements=1 << 22, after=[last])
                    ]
            p.last[7] = last

        def exchange(*ends: tuple[str, int]) -> None:
            nonlocal ready
            ends = tuple((way, peer) for way, peer in ends if 0 <= peer < stages * tensor)
            sent_after = [p.last[7]] if 7 in p.last else []
            if not ends:
                return
            if batched:
                ready = [p.messages(ends, group, ranks, 40.0, stream=20, after=sent_after + ready)]
                return
            for way, peer in ends:
                forward = (way == "s") == (peer > p.rank)
                # One stream for each direction and neighbour, as separate groups have.
                stream = 20 + 2 * forward + (peer > p.rank)
                work = p.messages(
                    [(way, peer)],
                    f"{group}{'f' if forward else 'b'}{min(peer, p.rank)}",
                    sorted((peer, p.rank)),
                    40.0,
                    stream=stream,
                    after=sent_after if way == "s" else [],
                    batched=False,
                )
                if way == "r":
                    ready = [*ready, work]

        p.op("aten::zero_", 30)
        p.kernel("fill", 20)
        warm = min(stages - stage - 1, turns)
        p.pause(p.job.pause_us(p.rank, p.step))
        for _ in range(warm):
            exchange(("r", before))
            block("fwd", 1)
            exchange(("s", after))
        if turns > warm:
            exchange(("r", before))
        for turn in range(turns - warm):
            block("fwd", 1)
            exchange(("s", after), ("r", after))
            block("bwd", 2)
            if turn == turns - warm - 1:
                exchange(("s", before))
            else:
                exchange(("s", before), ("r", before))
        for _ in range(warm):
            exchange(("r", after))
            block("bwd", 2)
            exchange(("s", before))
        last = update(p, 100)
        if read:
            p.blocks_until(last)

    return program


def draw_pipeline(rng: random.Random, kind: str, tensor: int = 1) -> Drawn:
    stages = rng.choice([3, 4, 8] if tensor == 1 else [2, 4])
    turns = stages * rng.choice([4, 5])
    layers = [3] * stages
    kernel = rng.uniform(100, 250) * 4 / stages
    options = {"kernel": kernel, "tensor": tensor, "batched": rng.random() < 0.7, "read": rng.random() < 0.5}
    even = pipeline(stages, turns, layers=layers, **options)
    told = {"options": {"messages_told": rng.choice(["host", "kernel"])}}
    ranks = stages * tensor
    slow = rng.randrange(ranks)
    if kind == "healthy":
        return Drawn(ranks, even, **told)
    if kind == "slow_device":
        return Drawn(ranks, even, SLOW, (slow,), slow_device(slow, rng.uniform(1.3, 2)), **told)
    if kind == "pause":
        return Drawn(ranks, even, SLOW, (slow,), pausing(slow, rng.uniform(30e3, 70e3)), **told)
    long = slow // tensor
    layers = [3 + 2 * (s == long) for s in range(stages)]
    these = tuple(long * tensor + t for t in range(tensor))
    return Drawn(
        ranks,
        pipeline(stages, turns, layers=layers, **options),
        ("pipeline-bubble", *SLOW),
        these,
        without=even,
        **told,
    )


# Experts.


def experts(
    ranks: int, layers: int, kernel: float, tokens: Callable[[int, int, int], float]
) -> Callable[[Program], None]:
    """Layers of attention and experts, one group of experts on each rank; `tokens(rank, step, layer)` is the share of
    the mean that a rank's experts get.
    """
    everyone = list(range(ranks))

    def program(p: Program) -> None:
        ready: list[Work] = []
        p.pause(p.job.pause_us(p.rank, p.step))

        def layer(number: int, scale: float, op: str) -> None:
            nonlocal ready
            share = tokens(p.rank, p.step, number)
            for name in ("gemm_qkv", "flash", "router"):
                last = p.kernel(f"{name}_{op}", kernel * scale, op=f"aten::{name}", after=ready)
                ready = []
            sizes = int(1e6 * tokens(p.rank, p.step, number + 100)), int(1e6 * share)
            there = p.collective("all_to_allv", "ep", everyone, 150, stream=20, after=[last], sizes=sizes)
            last = p.kernel(f"grouped_gemm_{op}", 3 * kernel * scale * share, op="aten::_grouped_mm", after=[there])
            back = p.collective("all_to_allv", "ep", everyone, 150, stream=20, after=[last], sizes=sizes[::-1])
            ready = [back]

        for number in range(layers):
            layer(number, 1, "fwd")
        sums = []
        for number in reversed(range(layers)):
            layer(number, 2, "bwd")
            last = p.kernel("add", 10, op="aten::add", after=ready)
            ready = []
            sums.append(p.collective("allreduce", "dp", everyone, 200, stream=24, after=[last]))
        update(p, 100, sums)

    return program


def balanced(rank: int, step: int, layer: int) -> float:
    return 1 + 0.02 * (random.Random(rank * 7919 + step * 131 + layer).random() - 0.5)


def draw_experts(rng: random.Random, kind: str) -> Drawn:
    ranks, layers, kernel = rng.choice([4, 8]), rng.choice([6, 10]), rng.uniform(150, 400)
    slow, times, seed = rng.randrange(ranks), rng.uniform(1.6, 2.5), rng.random()
    even = experts(ranks, layers, kernel, balanced)
    if kind == "healthy":
        return Drawn(ranks, even)
    if kind == "straggler":
        return Drawn(ranks, even, SLOW, (slow,), either(rng, slow))
    if kind == "hot":
        hot = experts(ranks, layers, kernel, lambda r, s, n: times if r == slow else balanced(r, s, n))
        return Drawn(ranks, hot, SLOW, (slow,), without=even)

    if kind == "skewed":
        # Tokens are dealt out anew in each layer, as many in all.
        spread = rng.uniform(0.3, 0.6)

        def skewed(rank: int, step: int, layer: int) -> float:
            dealt = random.Random(f"{seed}{step}{layer}")
            shares = [dealt.lognormvariate(0, spread) for _ in range(ranks)]
            return shares[rank] * ranks / sum(shares)

        return Drawn(ranks, experts(ranks, layers, kernel, skewed), SLOW, None, without=even)

    def imbalanced(rank: int, step: int, layer: int) -> float:
        turn = random.Random(f"{seed}{step}{layer}").randrange(ranks)
        return times if rank == turn else balanced(rank, step, layer)

    return Drawn(ranks, experts(ranks, layers, kernel, imbalanced), SLOW, None, without=even)


# Hybrid sharding.


def hybrid(replicas: int, shards: int, layers: int, kernel: float, transfer: float) -> Callable[[Program], None]:
    """FSDP within `shards` ranks, AllReduces of what is scattered between replicas, on a stream of their own."""

    def program(p: Program) -> None:
        replica, shard = divmod(p.rank, shards)
        within = [replica * shards + s for s in range(shards)]
        between = [r * shards + shard for r in range(replicas)]
        mine, other = f"shard{replica}", f"replica{shard}"
        p.pause(p.job.pause_us(p.rank, p.step))

        def gather(after: Sequence[Work]) -> Work:
            return p.collective("_allgather_base", mine, within, transfer, stream=20, after=after)

        # Parameters are gathered once they are updated.
        ahead = gather(list(p.last.values()))
        computed: list[Work] = []
        for number in range(layers):
            here, ahead = ahead, gather(computed[-2:-1]) if number + 1 < layers else ahead
            for name in ("gemm_qkv", "flash", "gemm_mlp"):
                last = p.kernel(f"{name}_fwd", kernel, op=f"aten::{name}", after=[here])
            computed.append(last)
        p.begin("autograd::engine::evaluate_function: MmBackward0", "cpu_op")
        ahead = gather(computed[-1:])
        sums = []
        for number in range(layers):
            here, ahead = ahead, gather(computed[-2:-1]) if number + 1 < layers else ahead
            for name in ("gemm_qkv", "flash", "gemm_mlp"):
                last = p.kernel(f"{name}_bwd", 2 * kernel, op=f"aten::{name}", after=[here])
            computed.append(last)
            scattered = p.collective("_reduce_scatter_base", mine, within, transfer, stream=21, after=[last])
            sums.append(p.collective("allreduce", other, between, transfer, stream=24, after=[scattered]))
        p.finish()
        p.last[7] = update(p, 80, sums)

    return program


def draw_hybrid(rng: random.Random, kind: str) -> Drawn:
    replicas, shards = rng.choice([(2, 4), (2, 2), (4, 2)])
    program = hybrid(replicas, shards, rng.choice([6, 12]), rng.uniform(150, 400), rng.uniform(100, 400))
    ranks = replicas * shards
    slow = rng.randrange(ranks)
    if kind == "healthy":
        return Drawn(ranks, program)
    return Drawn(ranks, program, SLOW, (slow,), either(rng, slow))


# Sharding.


def sharded(ranks: int, layers: int, kernel: float, transfer: float, *, prefetch: bool) -> Callable[[Program], None]:
    """FSDP: parameters of the next layer are gathered while this one computes, or only once it has computed."""
    everyone = list(range(ranks))

    def program(p: Program) -> None:
        def gather(after: Sequence[Work]) -> Work:
            return p.collective("_allgather_base", "fsdp", everyone, transfer, stream=20, after=after)

        def compute(here: Work, op: str, times: float) -> Work:
            for name in ("gemm_qkv", "flash", "gemm_mlp"):
                last = p.kernel(f"{name}_{op}", times * kernel, op=f"aten::{name}", after=[here])
            return last

        p.pause(p.job.pause_us(p.rank, p.step))
        last = [p.last[7]] if 7 in p.last else []
        ahead = gather(last)
        before = last
        for number in range(layers):
            here = ahead
            if prefetch and number + 1 < layers:
                ahead = gather(before)
            before = [compute(here, "fwd", 1)]
            if not prefetch and number + 1 < layers:
                ahead = gather(before)
        sums = []
        for number in range(layers):
            p.begin("autograd::engine::evaluate_function: MmBackward0", "cpu_op")
            # The last layer's parameters are still there.
            if number and not prefetch:
                ahead = gather(before)
            here = ahead
            if prefetch and number + 1 < layers:
                ahead = gather(before)
            before = [compute(here, "bwd", 2)]
            sums.append(p.collective("_reduce_scatter_base", "fsdp", everyone, transfer, stream=21, after=before))
            p.finish()
        p.last[7] = update(p, 80, sums)

    return program


def draw_sharded(rng: random.Random, kind: str) -> Drawn:
    ranks, layers, kernel = rng.choice([4, 8]), rng.choice([6, 12]), rng.uniform(150, 400)
    sizes = (ranks, layers, kernel, 3 * kernel * rng.uniform(0.3, 0.85))
    healthy = sharded(*sizes, prefetch=True)
    if kind == "healthy":
        return Drawn(ranks, healthy)
    return Drawn(ranks, sharded(*sizes, prefetch=False), ("sharding-wait",), None, without=healthy)


# Ring attention.


def ring(ranks: int, layers: int, kernel: float, transfer: float) -> Callable[[Program], None]:
    """Each rank passes keys and values on, ranks - 1 times a layer, and computes with what it has meanwhile."""
    everyone = list(range(ranks))

    def program(p: Program) -> None:
        behind, ahead = (p.rank - 1) % ranks, (p.rank + 1) % ranks
        p.pause(p.job.pause_us(p.rank, p.step))

        def layer(op: str, scale: float) -> None:
            last = p.kernel(f"gemm_qkv_{op}", kernel * scale, op="aten::gemm_qkv")
            ready: list[Work] = [last]
            for turn in range(ranks):
                passed = None
                if turn + 1 < ranks:
                    ends = [("s", ahead), ("r", behind)]
                    passed = p.messages(ends, "cp", everyone, transfer, stream=20, after=ready)
                last = p.kernel(f"flash_{op}", kernel * scale, op="aten::flash", after=ready)
                ready = [passed] if passed else []
            p.kernel(f"gemm_mlp_{op}", 2 * kernel * scale, op="aten::gemm_mlp")

        for _ in range(layers):
            layer("fwd", 1)
        sums = []
        for _ in range(layers):
            layer("bwd", 2)
            last = p.kernel("add", 10, op="aten::add")
            sums.append(p.collective("allreduce", "dp", everyone, 150, stream=24, after=[last]))
        update(p, 80, sums)

    return program


def draw_ring(rng: random.Random, kind: str) -> Drawn:
    ranks = rng.choice([4, 8])
    kernel = rng.uniform(150, 350)
    program = ring(ranks, rng.choice([3, 5]), kernel, kernel * rng.uniform(0.4, 1.1))
    slow = rng.randrange(ranks)
    if kind == "healthy":
        return Drawn(ranks, program)
    return Drawn(ranks, program, SLOW, (slow,), either(rng, slow))


# Tensor parallelism whose kernels carry no metadata.


def tensor(replicas: int, width: int, layers: int, kernel: float) -> Callable[[Program], None]:
    """Layers that reduce activations between neighbours, and gradients between replicas."""

    def program(p: Program) -> None:
        replica, lane = divmod(p.rank, width)
        within = [replica * width + t for t in range(width)]
        between = [r * width + lane for r in range(replicas)]
        p.pause(p.job.pause_us(p.rank, p.step))
        ready: list[Work] = []
        sums = []
        for op, scale in (("fwd", 1), ("bwd", 2)):
            for _ in range(layers):
                for names in (("gemm_qkv", "flash"), ("gemm_up", "gemm_down")):
                    for name in names:
                        last = p.kernel(f"{name}_{op}", kernel * scale, op=f"aten::{name}", after=ready)
                        ready = []
                    ready = [
                        p.collective("allreduce", f"tp{replica}", within, 50, stream=20, after=[last], metadata=False)
                    ]
                if op == "bwd":
                    sums.append(
                        p.collective("allreduce", f"dp{lane}", between, 300, stream=24, after=[last], metadata=False)
                    )
        update(p, 80, [*sums, *ready])

    return program


def draw_tensor(rng: random.Random, kind: str) -> Drawn:
    replicas, width = rng.choice([(2, 2), (4, 2), (2, 4)])
    program = tensor(replicas, width, rng.choice([6, 10]), rng.uniform(120, 300))
    slow = rng.randrange(replicas * width)
    if kind == "healthy":
        return Drawn(replicas * width, program)
    return Drawn(replicas * width, program, SLOW, (slow,), either(rng, slow))


# Ranks that meet on the CPU.


def data_parallel(p: Program, layers: int, kernel: float) -> list[Work]:
    """Forward, backward and its AllReduces."""
    everyone = list(range(p.job.ranks))
    for _ in range(layers):
        for name in ("gemm_qkv", "flash", "gemm_mlp"):
            p.kernel(f"{name}_fwd", kernel, op=f"aten::{name}")
    sums = []
    for _ in range(layers):
        for name in ("gemm_qkv", "flash", "gemm_mlp"):
            last = p.kernel(f"{name}_bwd", 2 * kernel, op=f"aten::{name}")
        sums.append(p.collective("allreduce", "0", everyone, 200, stream=20, after=[last]))
    return sums


def barrier(layers: int, kernel: float) -> Callable[[Program], None]:
    """DDP, with a barrier of gloo at the end of each step."""

    def program(p: Program) -> None:
        sums = data_parallel(p, layers, kernel)
        last = update(p, 80, sums)
        p.blocks_until(last)
        p.pause(p.job.pause_us(p.rank, p.step))
        p.host_collective("gloo:barrier", "host", range(p.job.ranks), 200)

    return program


def on_cpu(
    layers: int, kernel: float, update: float, slower: Callable[[int], float] = lambda rank: 1.0
) -> Callable[[Program], None]:
    """Gradients are copied to the CPU, which updates, and copies the parameters back."""

    def program(p: Program) -> None:
        sums = data_parallel(p, layers, kernel)
        out = p.kernel("Memcpy DtoH (Device -> Pinned)", 400, op="aten::copy_", after=sums)
        p.blocks_until(out, op="aten::copy_")
        p.begin("Optimizer.step#CPUAdam.step")
        for _ in range(8):
            p.op("aten::_fused_adamw_", update / 8 * slower(p.rank))
        p.finish()
        p.kernel("Memcpy HtoD (Pinned -> Device)", 400, op="aten::copy_")

    return program


def draw_barrier(rng: random.Random, kind: str) -> Drawn:
    ranks = rng.choice([4, 8])
    program = barrier(rng.choice([6, 10]), rng.uniform(150, 400))
    slow = rng.randrange(ranks)
    if kind == "healthy":
        return Drawn(ranks, program)
    return Drawn(ranks, program, SLOW, (slow,), pausing(slow, rng.uniform(20e3, 60e3)))


def draw_on_cpu(rng: random.Random, kind: str) -> Drawn:
    ranks, layers, kernel, update = (
        rng.choice([4, 8]),
        rng.choice([6, 10]),
        rng.uniform(150, 400),
        rng.uniform(8e3, 15e3),
    )
    even = on_cpu(layers, kernel, update)
    slow = rng.randrange(ranks)
    if kind == "healthy":
        return Drawn(ranks, even)
    factor = rng.uniform(2, 3)
    return Drawn(
        ranks, on_cpu(layers, kernel, update, lambda r: factor if r == slow else 1), SLOW, (slow,), without=even
    )


# Faults of all ranks that lie behind each other.


def accumulating(
    passes: int, layers: int, ops: int, kernel: float, cost: float, transfer: float, *, each: bool
) -> Callable[[Program], None]:
    """DDP that accumulates gradients over some backward passes, of layers of `ops` operators that take the CPU `cost`
    and the device `kernel`; the gradients are reduced in each pass, or in the last alone.
    """

    def program(p: Program) -> None:
        everyone = list(range(p.job.ranks))
        sums: list[Work] = []
        for micro in range(passes):
            p.pause(p.job.pause_us(p.rank, p.step) / passes)
            for _ in range(layers * ops):
                p.kernel("gemm_fwd", kernel, op="aten::addmm", cost=cost)
            for _ in range(layers):
                for _ in range(ops):
                    p.begin("autograd::engine::evaluate_function: AddmmBackward0", "cpu_op")
                    last = p.kernel("gemm_bwd", 2 * kernel, op="aten::mm", cost=2 * cost)
                    p.finish()
                if each or micro == passes - 1:
                    # DDP's hook runs in the backward pass.
                    p.begin("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", "cpu_op")
                    sums.append(p.collective("allreduce", "0", everyone, transfer, stream=20, after=[last]))
                    p.finish()
            # The next pass adds to gradients that are reduced.
            p.kernel("fill", 5, op="aten::zeros", cost=cost, after=sums[-1:])
        update(p, 40, sums)

    return program


def draw_accumulating(rng: random.Random, kind: str) -> Drawn:
    ranks, passes, layers = rng.choice([4, 8]), rng.choice([2, 4]), rng.choice([6, 12])
    ops, kernel = rng.choice([6, 10]), rng.uniform(8, 15)
    slow, fast = rng.uniform(30, 50), 3.0
    # A layer's backward pass hides it once the CPU is fast, or communication would be a fault of the twin too.
    transfer = 2 * kernel * ops * rng.uniform(0.6, 1.0)
    sizes = (passes, layers, ops, kernel)
    if kind == "healthy":
        return Drawn(ranks, accumulating(passes, layers, ops, 8 * kernel, 20.0, 2 * kernel * ops, each=False))
    healthy = accumulating(*sizes, fast, transfer, each=False)
    program = accumulating(*sizes, slow, transfer, each=True)
    return Drawn(ranks, program, ("launch-bound", "redundant-allreduce"), None, without=healthy)


KINDS: dict[str, Callable[[random.Random], Drawn]] = {
    "healthy_pipeline": lambda rng: draw_pipeline(rng, "healthy"),
    "pipeline_slow_device": lambda rng: draw_pipeline(rng, "slow_device"),
    "pipeline_pause": lambda rng: draw_pipeline(rng, "pause"),
    "pipeline_uneven": lambda rng: draw_pipeline(rng, "uneven"),
    "healthy_pipeline_tensor": lambda rng: draw_pipeline(rng, "healthy", 2),
    "pipeline_tensor_slow_device": lambda rng: draw_pipeline(rng, "slow_device", 2),
    "pipeline_tensor_pause": lambda rng: draw_pipeline(rng, "pause", 2),
    "healthy_experts": lambda rng: draw_experts(rng, "healthy"),
    "experts_straggler": lambda rng: draw_experts(rng, "straggler"),
    "experts_hot": lambda rng: draw_experts(rng, "hot"),
    "experts_imbalance": lambda rng: draw_experts(rng, "imbalance"),
    "experts_skewed": lambda rng: draw_experts(rng, "skewed"),
    "healthy_hybrid": lambda rng: draw_hybrid(rng, "healthy"),
    "hybrid_slow": lambda rng: draw_hybrid(rng, "slow"),
    "healthy_sharded": lambda rng: draw_sharded(rng, "healthy"),
    "sharded_without_prefetch": lambda rng: draw_sharded(rng, "late"),
    "healthy_ring": lambda rng: draw_ring(rng, "healthy"),
    "ring_slow": lambda rng: draw_ring(rng, "slow"),
    "healthy_tensor": lambda rng: draw_tensor(rng, "healthy"),
    "tensor_slow": lambda rng: draw_tensor(rng, "slow"),
    "healthy_accumulating": lambda rng: draw_accumulating(rng, "healthy"),
    "redundant_launch_bound": lambda rng: draw_accumulating(rng, "redundant"),
    "healthy_barrier": lambda rng: draw_barrier(rng, "healthy"),
    "barrier_late": lambda rng: draw_barrier(rng, "late"),
    "healthy_on_cpu": lambda rng: draw_on_cpu(rng, "healthy"),
    "on_cpu_slow": lambda rng: draw_on_cpu(rng, "slow"),
}


def grade(drawn: Drawn, folder: Path) -> tuple[bool, str]:
    """Whether the doctor is right, and what it said."""
    number = FIRST + STEPS + 2
    played = Job(drawn.ranks, number, drawn.program, **drawn.options, **drawn.fault)
    played.write(folder, FIRST, FIRST + STEPS - 1)
    step = played.window_ms(FIRST, FIRST + STEPS - 1)
    true = 0.0
    if drawn.rules != ("healthy",):
        twin = Job(drawn.ranks, number, drawn.without or drawn.program, **drawn.options)
        true = step - twin.window_ms(FIRST, FIRST + STEPS - 1)
    (run,) = discover(folder)
    result = engine.diagnose(run, reading=engine.Reading(cache=Cache(None))).diagnosis
    loud = [finding for finding in result.findings if finding.severity != Severity.INFO.label]
    said = sum(finding.cost_ms for finding in result.findings)
    wrong = list(broken(result))
    rules = drawn.rules
    # What costs less need not be found.
    is_small = true < 0.08 * step
    if result.verdict not in (*rules, "healthy" if is_small else ""):
        wrong.append(f"verdict {result.verdict}")
    if rules != ("healthy",):
        named = {rank for finding in loud if finding.rule in drawn.rules for rank in finding.ranks}
        if drawn.slow is not None and named != set(drawn.slow) and not (is_small and not named):
            wrong.append(f"ranks {sorted(named)} for {drawn.slow}")
        if abs(said - true) > 0.1 * step:
            wrong.append(f"cost {said:.1f} for {true:.1f}")
    if false := [finding.rule for finding in loud if finding.rule not in drawn.rules]:
        wrong.append(f"false {false}")
    found = [(f.rule, list(f.ranks), round(f.cost_ms, 1)) for f in loud]
    return not wrong, f"step {step:.1f} ms, true {true:.1f}: {result.verdict} {found}; {'; '.join(wrong)}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="jobs of the kinds that begin so alone")
    parser.add_argument("--keep", type=Path, help="where traces stay")
    options = parser.parse_args(arguments)
    folder = options.keep or Path(tempfile.mkdtemp())
    missed = False
    try:
        for kind, draw in KINDS.items():
            if options.only and not kind.startswith(options.only):
                continue
            right = 0
            for job in range(options.jobs):
                here = folder / f"{kind}-{options.seed}-{job}"
                is_right, said = grade(draw(random.Random(f"{options.seed}:{kind}:{job}")), here)
                right += is_right
                if not is_right:
                    print(f"  {here.name}: {said}")
                if not options.keep:
                    shutil.rmtree(here)
            print(f"{kind}: {right} of {options.jobs}", flush=True)
            missed |= right < 0.9 * options.jobs
    finally:
        if not options.keep:
            shutil.rmtree(folder)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
