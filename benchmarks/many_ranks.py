"""How long a job of thousands of ranks takes, from its digests to its findings.

    python benchmarks/many_ranks.py [--ranks 4096] [--steps 50] [--calls 64] [--mesh dp=64,tp=8,pp=8]

The digests are made up, written to files and read from them: 8 ranks a node; each step computes for 40 ms and sends 6
AllReduces, of which the last is exposed. Rank 1234 (modulo the ranks) stalls 20 ms on its host in every step; the ranks
of node 77 (modulo the nodes) compute a tenth longer; the kernels are of `--calls` different calls (GEMMs and loops over
elements), 0 for a job whose kernels nobody knows; nodes' clocks are off by up to 5 ms and drift by up to 20 ppm.
Findings must name them. With `--mesh` the AllReduces are those of groups of these dimensions in turn, tp the fastest
and pp the slowest, and the same job of data parallelism alone is timed before it.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tb_ddp_doctor.workers import process_setup  # noqa: F401 - as `ddp-doctor` does, before numpy

import numpy as np  # isort: skip
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_ddp_doctor import wording
from tb_ddp_doctor.cache import Cache, write_digest
from tb_ddp_doctor.digest import track
from tb_ddp_doctor.digest.intervals import Intervals
from tb_ddp_doctor.digest.memory import no_memory
from tb_ddp_doctor.digest.model import (
    AttentionWork,
    Avoidable,
    Blocking,
    Code,
    Collectives,
    CompiledWork,
    CopyWork,
    CpuTime,
    FlopWork,
    GapOps,
    GemmWork,
    GpuTime,
    Gradients,
    GraphWalkWork,
    HostMeetings,
    Kernels,
    KernelWork,
    LaunchDelay,
    LostKernels,
    MessageEnds,
    ModuleBytes,
    ModuleGradients,
    ModuleKernels,
    ModulePaths,
    Modules,
    ModuleSegments,
    ModuleTimes,
    ModuleWork,
    Operators,
    OpStalls,
    OptimizerWork,
    PhaseWork,
    Pieces,
    PointToPoint,
    RankDigest,
    RankOwner,
    RedundantWork,
    Roofline,
    RooflineCalls,
    ServingWork,
    Stalled,
    Steps,
    StepWork,
    TraceContents,
    zeros,
)
from tb_ddp_doctor.digest.row_calls import calls_of_rows
from tb_ddp_doctor.engine import examine
from tb_ddp_doctor.findings import PHASES
from tb_ddp_doctor.job.build import build
from tb_ddp_doctor.storage.column_table import empty
from tb_ddp_doctor.trace.model import Header
from tb_ddp_doctor.trace.names import Precision

MS = 1_000_000
BUCKETS = 6
STRAGGLER, BAD_NODE, NODE = 1234, 77, 8
STRINGS = ("", "all_reduce", "0", "[0, 1, ...]", "Float", "gemm", "[128, 1, 1]", "aten::mm", "aten::gelu", "bfloat16")
STRINGS += (Precision.HALF.value,)
#: Of which dimension each AllReduce of a step is: activations within stages, and gradients.
OF_BUCKETS = ("tp", "tp", "tp", "pp", "dp", "dp")

#: By dimension, the number of each rank's group, shape (ranks,).
Groups = Mapping[str, NDArray[np.int64]]


def groups_of(mesh: Mapping[str, int]) -> Groups:
    """The groups of a mesh whose ranks are numbered with tp the fastest and pp the slowest; none of an empty mesh."""
    sizes = [mesh.get(name, 1) for name in ("pp", "dp", "tp")]
    rank = np.arange(np.prod(sizes))
    pp, dp, tp = np.unravel_index(rank, sizes)
    return {"tp": pp * sizes[1] + dp, "dp": pp * sizes[2] + tp, "pp": dp * sizes[2] + tp} if mesh else {}


def make(
    ranks: int, steps: int, calls: int, seed: int = 0, groups: Groups | None = None
) -> tuple[dict[int, RankDigest], dict[int, str]]:
    """Digests and nodes by rank."""
    rng = np.random.default_rng(seed)
    straggler, bad_node = STRAGGLER % ranks, BAD_NODE % max(ranks // NODE, 1)
    compute = 40 * MS + rng.normal(0, 0.2 * MS, (ranks, steps)).astype(np.int64)
    compute[bad_node * NODE : (bad_node + 1) * NODE] += 4 * MS
    stall = np.zeros((ranks, steps), np.int64)
    stall[straggler] = 20 * MS
    busy = compute + stall
    # Gradients of bucket k are ready when backward, the last two thirds of compute, is (k + 1) / 6 through.
    ready = stall[:, :, None] + compute[:, :, None] * (1 + 2 * (np.arange(BUCKETS) + 1) / BUCKETS) / 3
    all_together, groups = np.zeros(ranks, np.int64), groups or {}
    # A rank starts its next step when its own last AllReduce is done.
    step_start = np.zeros((ranks, steps + 1), np.int64)
    arrival = np.empty((ranks, steps, BUCKETS), np.int64)
    end = np.empty((ranks, steps, BUCKETS), np.int64)
    for step in range(steps):
        done = step_start[:, step]
        for bucket in range(BUCKETS):
            arrival[:, step, bucket] = np.maximum(step_start[:, step] + ready[:, step, bucket], done)
            group = groups.get(OF_BUCKETS[bucket], all_together)
            last = np.zeros(ranks, np.int64)
            np.maximum.at(last, group, arrival[:, step, bucket])
            done = last[group] + 2 * MS
            end[:, step, bucket] = done - rng.integers(0, 20_000, ranks)
        step_start[:, step + 1] = done
    with TemporaryDirectory() as folder:
        each = (
            _digest(rank, ranks, compute[rank], stall[rank], busy[rank], start[:-1], start[1:], *ends)
            for rank, (start, *ends) in enumerate(zip(step_start, arrival, end, strict=True))
        )
        each = (_with_calls(digest, calls) for digest in each)
        each = (_in_groups(digest, rank, groups) for rank, digest in enumerate(each))
        read = {rank: _as_read(digest, Path(folder, f"{rank}.digest")) for rank, digest in enumerate(each)}
    return read, {rank: f"node{rank // NODE}" for rank in range(ranks)}


def _as_read(digest: RankDigest, path: Path) -> RankDigest:
    """A digest as it is read from its file."""
    write_digest(digest, path)
    return Cache().digest(path)


def _digest(rank, ranks, compute, stall, busy, start, finish, arrival, end) -> RankDigest:
    node = np.random.default_rng(rank // NODE)
    offset, drift = node.uniform(-5 * MS, 5 * MS), node.uniform(-20e-6, 20e-6)

    def shown(times):  # on this node's clock
        shifted = times * (1 + drift) + offset if rank >= NODE else times
        return np.rint(shifted).astype(np.int64) + 1_700_000_000 * 10**9

    steps = len(start)
    first, last = shown(start), shown(finish)
    stalled, computed = shown(start + stall), shown(start + busy)
    owners = np.zeros((steps, len(RankOwner)), np.int64)
    owners[:, RankOwner.HOST] = stalled - first
    owners[:, RankOwner.COMPUTE] = computed - stalled
    owners[:, RankOwner.COMMUNICATION] = last - computed
    index = np.arange(steps, dtype=np.int32)
    nothing = np.zeros(steps, np.int64)
    pieces = Pieces(
        np.repeat(index, 3),
        np.stack([first, stalled, computed], 1).ravel(),
        np.stack([stalled, computed, last], 1).ravel(),
        np.tile(np.array([RankOwner.HOST, RankOwner.COMPUTE, RankOwner.COMMUNICATION], np.int32), steps),
    )
    size = steps * BUCKETS

    def constant(value, kind=np.int64):
        return np.full(size, value, kind)

    collectives = Collectives(
        step=np.repeat(index, BUCKETS),
        kind=constant(1, np.int32),
        group=constant(2, np.int32),
        group_ranks=constant(3, np.int32),
        group_size=constant(ranks),
        dtype=constant(4, np.int32),
        elements=np.tile(np.arange(1, BUCKETS + 1) * 1_000_000, steps),
        bytes=np.tile(np.arange(1, BUCKETS + 1) * 4_000_000, steps),
        sequence=constant(-1),
        stream=constant(16),
        arrival_ns=shown(arrival.ravel()),
        end_ns=shown(end.ravel()),
        backward=np.repeat(index, BUCKETS),
        update=np.repeat(index, BUCKETS),
        purpose=constant(0, np.int32),
        algorithm=constant(0, np.int32),
        protocol=constant(0, np.int32),
        channels=constant(-1),
    )
    no_phase = np.zeros((steps, len(PHASES)), np.int64)
    work = StepWork(
        owner_ns=owners,
        phases=PhaseWork(
            host_ns=no_phase,
            device_ns=no_phase,
            exposed_ns=no_phase,
            stalled_ns=np.stack([*[nothing] * (len(PHASES) - 1), stalled - first], axis=1),
        ),
        kernels=KernelWork(nothing + 600, compute, compute * 2 // 3, compute),
        loader_ns=nothing,
        copies=zeros(CopyWork, steps),
        gemms=zeros(GemmWork, steps),
        redundant=zeros(RedundantWork, steps),
        flops=zeros(FlopWork, steps),
        optimizer=zeros(OptimizerWork, steps),
        attention=zeros(AttentionWork, steps),
        recording_ns=nothing,
        graph_walks=zeros(GraphWalkWork, steps),
        serving=zeros(ServingWork, steps),
        compiled=zeros(CompiledWork, steps),
        late_launch_ns=np.zeros((steps, len(LaunchDelay)), np.int64),
    )
    return RankDigest(
        file=f"rank{rank}",
        header=Header(rank=rank, world_size=ranks, has_shapes=True),
        strings=STRINGS,
        has_device=True,
        device="Made-up GPU",
        device_number=0,
        device_bytes=0,
        has_launches=True,
        earlier_kernels=0,
        has_steps=True,
        pid=str(rank),
        loader="",
        lost_kernels=LostKernels(np.arange(steps), nothing + 600 + BUCKETS, nothing, nothing + BUCKETS, *[nothing] * 7),
        steps=Steps(np.arange(steps), first, last, first, last),
        work=work,
        pieces=pieces,
        collectives=collectives,
        kernels=Kernels(
            np.array([5], np.int32),
            np.array([6], np.int32),
            np.array([0], np.int32),
            *(np.array([value]) for value in (600 * steps, int(compute.sum()), 0, 0, 0, 0, 0, 0, 0, 0)),
        ),
        blocking=empty(Blocking),
        op_stalls=empty(OpStalls),
        gap_ops=GapOps(*(np.empty(0, kind) for kind in (np.int32, np.int64, np.int32, np.int32, np.int32))),
        stalled=Stalled(*(np.empty(0, kind) for kind in (np.int32, np.int32, np.int64, np.int64, np.int64))),
        code=Code(*(np.empty(0, kind) for kind in (np.int32, np.int32, np.int64, np.int64))),
        messages=PointToPoint(*(np.empty(0, kind) for kind in (np.int32, np.int32, np.int64, np.int64, np.int64))),
        host_meetings=HostMeetings(*(np.empty(0, kind) for kind in (np.int32, np.int32, np.int64, np.int64))),
        message_ends=MessageEnds(*(np.empty(0, kind) for kind in (np.int32, np.int32, np.int64, np.int32))),
        memory=no_memory(steps),
        operators=Operators(
            np.array([5], np.int32),
            np.array([1], np.int32),
            *(np.array([value]) for value in (600 * steps, 0, int(compute.sum()), 0, 0, 0, 0)),
        ),
        track=_track(start + stall, start, finish, compute, arrival, end, shown),
        roofline=empty(Roofline),
        modules=Modules(
            "",
            ModulePaths(np.array([-1], np.int32), np.array([0], np.int32), np.array([0])),
            empty(ModuleTimes),
            empty(ModuleKernels),
            -1,
            -1,
            empty(ModuleWork),
            empty(ModuleSegments),
            empty(ModuleBytes),
            empty(ModuleGradients),
        ),
        gradients=_gradients(start + stall, compute, shown),
        contents=TraceContents({}, "", "training", {}, "ProfilerStep", 0.0, 0, 600 * steps, 0, ""),
        warnings=(),
    )


def _in_groups(digest: RankDigest, rank: int, groups: Groups) -> RankDigest:
    """A digest whose AllReduces are those of a rank's groups, as Megatron-LM and DeviceMesh describe these."""
    if not groups:
        return digest
    members = {name: tuple(np.flatnonzero(group == group[rank]).tolist()) for name, group in groups.items()}
    names = {name: f"{name}{group[rank]}" for name, group in groups.items()}
    texts = {name: len(digest.strings) + 2 * number for number, name in enumerate(groups)}
    pairs = [text for name in groups for text in (names[name], str(list(members[name])))]
    steps = len(digest.steps)
    group = np.tile(np.array([texts[name] for name in OF_BUCKETS], np.int32), steps)
    size = np.tile(np.array([len(members[name]) for name in OF_BUCKETS]), steps)
    header = replace(
        digest.header,
        groups={names[name]: ranks for name, ranks in members.items()},
        group_descriptions={names[name]: f"mesh_{name}" for name in groups},
    )
    collectives = replace(digest.collectives, group=group, group_ranks=group + 1, group_size=size)
    return replace(digest, header=header, strings=(*digest.strings, *pairs), collectives=collectives)


def _with_calls(digest: RankDigest, calls: int) -> RankDigest:
    """The digest with a roofline of so many calls, in every row of its track that has device work."""
    if not calls:
        return digest
    index, busy = np.arange(calls), np.flatnonzero(digest.track.device_ns > 0)
    rows = len(busy)
    product, one = index % 2 == 0, np.ones(calls, np.int64)
    sizes = [f"{24_576 + 8 * size}x256, 256x{768 + 8 * size}" for size in range(calls)]
    device_ns = digest.track.device_ns[busy]
    per_call = np.repeat(device_ns // calls, calls)
    total = np.full(calls, int((device_ns // calls).sum()))
    table = RooflineCalls(
        *(np.where(product, *names).astype(np.int32) for names in ((5, 5), (7, 8))),
        (len(STRINGS) + index).astype(np.int32),
        np.full(calls, 9, np.int32),
        np.where(product, 10, 0).astype(np.int32),
        np.where(product, GpuTime.GEMM, GpuTime.ELEMENTWISE).astype(np.int32),
        *(one * rows, one * rows, total, one * 0, one * 0, one * 0, one * 0),
        *[np.where(product, 2 * 24_576 * 256 * 768, 0)] * 2,
        *(one * 12_582_912, one * 37_748_736),
        *(np.full(calls, digest.steps.start_ns[0]), np.full(calls, digest.steps.start_ns[0] + 100_000)),
    )
    # Rows begin some calls sooner or later in each step, as those of real jobs do.
    begins = np.arange(1, rows) * calls
    inner = np.diff(digest.track.step[busy]) == 0
    begins[inner] += np.random.default_rng(digest.header.rank).integers(-calls // 8, calls // 8 + 1, int(inner.sum()))
    row, call = np.searchsorted(begins, np.arange(rows * calls), side="right"), np.tile(index, rows)
    avoidable = Avoidable(busy.astype(np.int32), *[np.full(rows, 1_000_000)] * 2, *[np.full(rows, 300)] * 4)
    tables = calls_of_rows(busy[row], digest.track.step[busy[row]], call, call, per_call)
    work = Roofline(table, *tables, avoidable)
    return replace(digest, roofline=work, strings=(*STRINGS, *sizes), device="NVIDIA H200")


def _gradients(begin, compute, shown) -> Gradients:
    """One gradient for each bucket, ready as its kernel is launched, and done with it."""
    marks = begin[:, None] + compute[:, None] * (1 + 2 * np.arange(1, BUCKETS + 1) / BUCKETS) / 3
    steps, launched = len(begin), begin[:, None] + np.arange(1, BUCKETS + 1) * MS // 20
    index = np.repeat(np.arange(steps, dtype=np.int32), BUCKETS)
    return Gradients(
        step=index,
        backward=index,
        elements=np.tile(np.arange(1, BUCKETS + 1) * 1_000_000, steps),
        ready_ns=shown(launched.ravel()),
        done_ns=shown(marks.ravel()),
        launching_ns=np.full(index.size, MS // 50),
        module=np.zeros(index.size, np.int32),
    )


def _track(begin, start, finish, compute, arrival, end, shown) -> track.Track:
    """The host stalls, launches forward, a kernel for each bucket and its AllReduce within 1 ms, and awaits the end."""
    marks = begin[:, None] + compute[:, None] * (1 + 2 * np.arange(-1, BUCKETS + 1) / BUCKETS) / 3
    marks[:, 0] = begin + MS // 10
    launched = begin[:, None] + np.arange(BUCKETS + 1) * MS // 20
    nothing = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))
    stalled = begin - start > MS
    waiting = Intervals(shown(begin + MS), shown(np.minimum(end[:, -1] + MS // 1000, finish)))
    stalls = Intervals(shown(start[stalled]), shown(begin[stalled] - 1))
    steps = Steps(np.arange(len(start)), shown(start), shown(finish), shown(start), shown(finish))
    compute, stream = np.full(launched.size, 7), np.full(arrival.size, 20)
    rows, _ = track.track(
        steps,
        track.DeviceWork(
            shown(marks[:, :-1].ravel()),
            shown(marks[:, 1:].ravel()),
            shown(launched.ravel()),
            np.full(launched.size, 7),
        ),
        track.Communication(
            shown(arrival.ravel()),
            shown(end.ravel()),
            shown(launched[:, 1:].ravel() + MS // 50),
            stream,
            np.zeros(arrival.size, np.bool_),
        ),
        track.HostTime(
            tuple({CpuTime.SYNC: waiting, CpuTime.STALL: stalls}.get(kind, nothing) for kind in CpuTime)[
                : CpuTime.RECORDING
            ],
            nothing,
            np.empty(0, np.int64),
            0,
        ),
    )
    return rows


def timed(ranks: int, steps: int, calls: int, groups: Groups) -> float:
    """Make a job up, diagnose it, and print how long that took and what is found; returns the CPU time, s."""
    digests, nodes = make(ranks, steps, calls, groups=groups)
    before = resource.getrusage(resource.RUSAGE_SELF)
    began = time.perf_counter()
    job = build("made up", digests, nodes, ranks)
    built = time.perf_counter()
    diagnosis = examine(job)
    ended = time.perf_counter()
    after = resource.getrusage(resource.RUSAGE_SELF)
    took = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{ranks} ranks x {steps} steps, {len(job.matched)} collectives matched")
    print(
        f"job {built - began:.2f} s, rules {ended - built:.2f} s, in all {ended - began:.2f} s wall, {took:.2f} s CPU"
    )
    print(f"peak memory {after.ru_maxrss / 2**20:.2f} GiB, of which the digests {before.ru_maxrss / 2**20:.2f} GiB")
    print(f"clock residual {diagnosis.clock.residual_us:.1f} us")
    if diagnosis.mesh:
        print("mesh", *(f"{one.name} {one.size}" for one in diagnosis.mesh.dimensions))
    for finding in diagnosis.findings:
        print(
            f"{finding.severity} {finding.rule} {finding.cause or ''} {finding.cost_ms:.1f} ms, "
            f"{wording.ranks(finding.ranks)}"
        )
    return took


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Time a job of many ranks, from digests to findings.")
    parser.add_argument("--ranks", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--calls", type=int, default=64)
    parser.add_argument(
        "--mesh", default="", help="ranks along each dimension, as dp=64,tp=8,pp=8, in place of --ranks"
    )
    options = parser.parse_args(arguments)
    pairs = [one.split("=") for one in options.mesh.split(",") if one]
    groups = groups_of({name: int(size) for name, size in pairs})
    ranks = len(groups["dp"]) if groups else options.ranks
    print(f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, numpy {np.__version__}")
    alone = timed(ranks, options.steps, options.calls, {})
    if groups:
        print()
        print(f"{timed(ranks, options.steps, options.calls, groups) / alone:.2f} times the CPU time of one dimension")


if __name__ == "__main__":
    main()
