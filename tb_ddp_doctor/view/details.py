"""The numbers behind the tab's further views, made when one is opened; times in ms, one row per rank where not said.

What the page draws first is in `views`; these are larger, or seldom asked for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from tb_ddp_doctor.calibration.model import bus_factor
from tb_ddp_doctor.digest.intervals import Intervals
from tb_ddp_doctor.engine import Result
from tb_ddp_doctor.facts import Facts
from tb_ddp_doctor.facts.iterations import workloads
from tb_ddp_doctor.facts.links import SLOW_TIMES, Link, links
from tb_ddp_doctor.facts.roofline import KernelRoof, LinkSpeed, roofline
from tb_ddp_doctor.facts.traffic import Traffic, communication, measured
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.job.operator_times import OperatorTimes, operators
from tb_ddp_doctor.slices.cut import on_common_clock
from tb_ddp_doctor.slices.event_text import label
from tb_ddp_doctor.step_parts import IDLE, KERNEL_CLASSES
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Ints
from tb_ddp_doctor.view.history import history
from tb_ddp_doctor.view.layers import layers
from tb_ddp_doctor.view.messages import sent
from tb_ddp_doctor.view.nodes import nodes

#: More points than this cover each other, in all and of one kind and group.
_POINTS, _LEAST_POINTS = 20_000, 100
#: A transfer is an outlier if the line, or for one size the median, misses it by so many typical misses, and by half.
_OUTLIER_MISSES, _OUTLIER_SHARE = 4.0, 0.5
#: Memory curves sent: the ranks with the highest peaks.
_CURVES = 64
#: Rows of the roofline that are sent.
_KERNELS = 400
#: Those of them that are drawn, by what is allocated.
_PICTURES = 8


def _operations(result: Result) -> dict[str, Any]:
    """Sums by name: the mean of a rank's step over the steps of all ranks; occupancy and tensor cores as shares."""
    job = result.job
    spent = operators(job)
    steps = max(sum(len(digest.steps) for digest in job.digests), 1)
    device_ns = np.maximum(spent.device_ns, 1)
    return {
        "ranks": len(job.ranks),
        # The table is the mean over all recorded steps; other views compare fewer.
        "recorded_steps": max(len(digest.steps) for digest in job.digests),
        "compared_steps": len(job.steps),
        "names": [label(name) for name in spent.names],
        "on_device": spent.on_device.tolist(),
        "is_annotation": (2 * spent.annotated > spent.count).tolist(),
        "named_by": spent.ranks.tolist(),
        "calls": _rounded(spent.count / steps),
        "host_ms": _rounded(spent.host_ns / steps / 1e6),
        "device_ms": _rounded(spent.device_ns / steps / 1e6),
        "mean_us": _rounded(
            np.where(spent.on_device, spent.device_ns, spent.host_ns) / np.maximum(spent.count, 1) / 1e3
        ),
        "occupancy": [
            round(occupied / estimated, 4) if estimated else None
            for occupied, estimated in zip(spent.occupied_ns.tolist(), spent.estimated_ns.tolist(), strict=True)
        ],
        "tensor": _rounded(spent.tensor_ns / device_ns),
        "most_ms": _rounded(spent.most_ns / 1e6),
        "most_rank": spent.most_rank.tolist(),
        "wait_ms": _waits_in(job, spent),
    }


def _waits_in(job: Job, spent: OperatorTimes) -> list[float | None]:
    """How much of each kernel's time in a step is straggler wait, ms; None of kernels that do not communicate.

    Of all recorded steps, as the kernels' times are. Waits are known by the kind of collective. If several kernels are
    of a kind, each has its share of the kind's time.
    """
    steps = max(sum(len(digest.steps) for digest in job.digests), 1)
    recorded = np.unique(np.concatenate([digest.steps.number for digest in job.digests]))
    rows = np.flatnonzero(np.isin(job.matched.step, recorded))
    waits: defaultdict[str, float] = defaultdict(float)
    for row, wait_ns in zip(rows.tolist(), measured(job, rows)[2].tolist(), strict=True):
        waits[job.matched.kind[row]] += wait_ns / steps / 1e6
    taken = spent.device_ns / steps / 1e6
    kinds = [
        names.collective(name) if on_device and names.is_communication_kernel(name) else ""
        for name, on_device in zip(spent.names, spent.on_device.tolist(), strict=True)
    ]
    totals: defaultdict[str, float] = defaultdict(float)
    for kind, ms in zip(kinds, taken.tolist(), strict=True):
        totals[kind] += ms
    return [
        round(ms * min(waits[kind] / totals[kind], 1.0), 3) if kind and kind in waits and totals[kind] else None
        for kind, ms in zip(kinds, taken.tolist(), strict=True)
    ]


def _communication(result: Result) -> dict[str, Any]:
    """Matched collectives as points, by kind and group, and nodes beside each other.

    Points have bytes, transfer in us, their step, and when the last rank arrives, us after the first step's start.
    """
    job = result.job
    measured = communication(job)
    compared = links(job, measured)
    slowest, speed = _slowest(job, measured, compared), LinkSpeed.of(job)
    most = max(_POINTS // max(len(measured), 1), _LEAST_POINTS)
    workload = Facts(job).get(workloads).number
    steps = max(len(job.steps), 1)
    origin_ns = _origin(job)
    return {
        "families": [
            _family(job, traffic, slowest.get(index), _outliers(traffic, workload), most, origin_ns)
            | _possible(speed, traffic)
            for index, traffic in enumerate(measured)
        ],
        "sent": list(_sent(job)),
        "nodes": [
            {
                "name": label(node.name),
                "ranks": job.ranks[node.ranks].tolist(),
                "calls": round(node.calls / steps, 2),
                "last": round(node.last / node.calls, 4) if node.calls else 0.0,
                "waited_for_ms": round(node.waited_for_ns / 1e6, 4),
                "waits_ms": round(node.waits_ns / 1e6, 4),
                "slowdown": None if node.slowdown is None else round(node.slowdown, 3),
                "stands_out": node.stands_out,
            }
            for node in nodes(job, compared)
        ],
    }


def _slowest(job: Job, measured: Sequence[Traffic], compared: Iterable[Link]) -> dict[int, Link]:
    """The link of each kind and group that has one, by its index: of sends and receives, that of the slowest pair."""
    index = np.full(len(job.matched), -1)
    for number, traffic in enumerate(measured):
        index[traffic.row] = number
    ascending = sorted(compared, key=lambda link: link.slowdown)
    return {int(index[link.traffic.row[0]]): link for link in ascending}


def _sent(job: Job) -> Iterator[tuple[int, int, float, float | None, float | None]]:
    """Sender, receiver; transfers, bytes and us in which both have some running, all in a step."""
    steps = max(len(job.steps), 1)
    for one in sent(job):
        us = None if one.running_ns is None else round(one.running_ns / steps / 1e3, 4)
        size = None if one.bytes is None else round(one.bytes / steps, 1)
        yield one.sender, one.receiver, round(one.count / steps, 2), size, us


def _family(job: Job, traffic: Traffic, link: Link | None, outlier: Ints, most: int, origin_ns: int) -> dict[str, Any]:
    """One kind and group; of more than `most` collectives every so-many-th is a point, and as many outliers."""
    calls = len(traffic.step)
    even = np.linspace(0, calls - 1, min(calls, most)).astype(np.int64)
    shown = np.union1d(even, np.flatnonzero(outlier)[:most])
    names = [job.nodes[rank] for rank in traffic.ranks.tolist()]
    line = traffic.line
    wait_us = traffic.wait_ns / 1e3 / max(len(traffic.ranks), 1)
    return {
        "kind": label(traffic.kind),
        "group": label(traffic.group),
        "parallelism": traffic.parallelism,
        "ranks": job.ranks[traffic.ranks].tolist(),
        "nodes": [label(name) for name in dict.fromkeys(names) if name],
        "size": traffic.size,
        "bus_factor": bus_factor(traffic.kind, traffic.size),
        "calls": calls,
        "mean_bytes": round(float(traffic.bytes.mean()), 1) if traffic.has_bytes else None,
        "mean_transfer_us": round(float(traffic.transfer_ns.mean()) / 1e3, 4),
        "mean_wait_us": round(float(wait_us.mean()), 4),
        "far": int(outlier.sum()),
        "peers": link.peers if link else 0,
        "slowdown": round(link.slowdown, 3) if link else None,
        "is_slow": link is not None and link.slowdown >= SLOW_TIMES,
        "alpha_us": line.alpha_ns / 1e3 if line else None,
        "us_per_byte": line.beta_ns / 1e3 if line else None,
        "significant": line is not None and line.is_significant,
        "step": job.steps[traffic.step[shown]].tolist(),
        "last_us": _rounded((job.waiting.last_ns[traffic.row[shown]] - origin_ns) / 1e3),
        "bytes": traffic.bytes[shown].tolist(),
        "transfer_us": _rounded(traffic.transfer_ns[shown] / 1e3),
        "wait_us": _rounded(wait_us[shown]),
        "outlier": outlier[shown].tolist(),
    }


def _possible(speed: LinkSpeed, traffic: Traffic) -> dict[str, Any]:
    """The busbw that a kind and group could have, bytes per second, and who says so."""
    rate, source = speed.bus_rate(traffic) or (None, "")
    return {"possible_bus_rate": rate, "possible_by": source}


def _outliers(traffic: Traffic, workload: Ints) -> Ints:
    """Which transfers take far longer than others of their size, shape (M,), 0 or 1.

    Without sizes they are compared within steps of the same `workload`, shape (S,), and not at all where that is -1.
    """
    transfer = traffic.transfer_ns.astype(np.float64)
    size = traffic.bytes if traffic.has_bytes else workload[traffic.step]
    distinct, which = np.unique(size, return_inverse=True)
    expected = np.zeros(len(size))
    for i in range(len(distinct) if len(distinct) <= len(size) // 3 else 0):
        expected[which == i] = np.median(transfer[which == i])
    if not expected.any():
        line = traffic.line
        expected[:] = line.alpha_ns + size * line.beta_ns if line else np.median(transfer)
    missed = transfer - expected
    typical = float(np.median(np.abs(missed)))
    far = (missed > _OUTLIER_MISSES * typical) & (missed > _OUTLIER_SHARE * expected) & (size >= 0)
    return far.astype(np.int64)


def _memory(result: Result) -> dict[str, Any]:
    """Bytes allocated, in all and by category, and reserved over time, of the ranks with most.

    Times are ms of the common clock from the first step's start.
    """
    job = result.job
    recorded = [i for i, digest in enumerate(job.digests) if len(digest.memory.time_ns)]
    peaks = {i: int(job.digests[i].memory.reserved.max()) for i in recorded}
    by_peak = sorted(recorded, key=lambda i: -peaks[i])
    shown, fullest = sorted(by_peak[:_CURVES]), by_peak[:_PICTURES]
    origin = _origin(job)
    return {
        "ranks_told": len(recorded),
        "curves": [
            {
                "rank": int(job.ranks[i]),
                "node": label(job.nodes[i]),
                "device_bytes": job.digests[i].device_bytes,
                "time_ms": _rounded(
                    (on_common_clock(job, int(job.ranks[i]), job.digests[i].memory.time_ns) - origin) / 1e6
                ),
                "allocated": job.digests[i].memory.allocated.tolist(),
                "reserved": job.digests[i].memory.reserved.tolist(),
                # Of those that have a picture.
                "categories": job.digests[i].memory.series.T.tolist() if i in fullest else [],
            }
            for i in shown
        ],
    }


def _origin(job: Job) -> int:
    """The first step's start on the common clock, ns: the origin of `views`."""
    return min(
        int(on_common_clock(job, int(job.ranks[i]), job.budget.start_ns[i]).min()) for i in range(len(job.ranks))
    )


def _ranks(result: Result) -> dict[str, Any]:
    """Compute, communication and their overlap of each rank, mean over the steps.

    Communication counts from a rank's own arrival, as other tools do; `moving_ms` and `hidden_ms` are without waiting.
    """
    job = result.job
    of = job.budget.of
    communicates, moves = np.zeros_like(job.budget.start_ns), np.zeros_like(job.budget.start_ns)
    for i, (digest, start, length) in enumerate(
        zip(job.digests, job.budget.start_ns, job.budget.window_ns, strict=True)
    ):
        table = digest.collectives
        communicates[i] = Intervals.union(table.arrival_ns, table.end_ns).measure(start, start + length)
        moves[i] = job.moving(i).measure(start, start + length)
    return {
        "ranks": job.ranks.tolist(),
        "nodes": [label(node) for node in job.nodes],
        "step_ms": _mean_ms(job.budget.window_ns),
        "busy_ms": _mean_ms(job.budget.busy_ns),
        "compute_ms": _mean_ms(of("compute")),
        "copy_ms": _mean_ms(of("copy")),
        "communication_ms": _mean_ms(communicates),
        "moving_ms": _mean_ms(moves),
        "hidden_ms": _mean_ms(np.maximum(moves - of("transfer"), 0)),
        "wait_ms": _mean_ms(of("wait")),
        "transfer_ms": _mean_ms(of("transfer")),
        "idle_ms": _mean_ms(np.sum([of(owner) for owner in IDLE], axis=0)),
    }


def _quality(result: Result) -> dict[str, Any]:
    """What was read of each rank, and how well."""
    job = result.job
    drift = np.abs(
        [
            int(np.ptp(job.clock.correction(i, np.array([start.min(), start.max()]))))
            for i, start in enumerate(job.budget.start_ns)
        ]
    )
    matched = job.matched.of_rank()
    return {
        "files": [
            {
                "rank": rank,
                "node": label(node),
                "file": label(digest.file),
                "steps": digest.steps.number.tolist(),
                "device": label(digest.device),
                "launches": digest.has_launches,
                "shapes": digest.header.has_shapes,
                "stacks": digest.header.has_stacks,
                "memory": len(digest.memory.time_ns) > 0,
                "collectives": len(digest.collectives),
                "matched": int(matched[i]),
                "drift_us": round(float(drift[i]) / 1e3, 3),
            }
            for i, (rank, node, digest) in enumerate(zip(job.ranks.tolist(), job.nodes, job.digests, strict=True))
        ],
    }


def _mean_ms(values: Ints) -> list[float]:
    return _rounded(values.mean(axis=1) / 1e6)


def _rounded(values: Any) -> list[float]:
    rounded: list[float] = np.round(values, 4).tolist()
    return rounded


def _compute(result: Result) -> dict[str, Any]:
    """The roofline: kernels with most time above attainable first, per step, mean over ranks and steps."""
    job = result.job
    measured = Facts(job).get(roofline)
    kernels, roofs = measured.kernels[:_KERNELS], measured.roofs
    return {
        "device": label(measured.device),
        "bandwidth": roofs.bandwidth if roofs else 0.0,
        "peaks": {name: rate for name, rate in roofs.flops.items() if rate} if roofs else {},
        "notes": list(measured.notes),
        "left_out": len(measured.kernels) - len(kernels),
        "kernels": [
            {
                "name": label(one.name),
                "operator": label(one.operator),
                "inputs": label(one.inputs),
                "dtype": label(one.dtype),
                "kind": KERNEL_CLASSES.get(one.kind.name.lower(), "not modelled"),
                "calls": round(one.count, 2),
                "ms": round(one.step_ns / 1e6, 4),
                "attainable_ms": round(one.attainable_ns / 1e6, 4) if one.limit else None,
                "flops": one.flops,
                "bytes": one.bytes,
                "limit": one.limit,
                "flops_per_s": one.achieved_flops,
                "bytes_per_s": one.achieved_bandwidth,
                "peak_flops": one.peak_flops,
                "fits_cache": one.fits_cache,
                "rank": int(job.ranks[one.rank]),
                "from_us": _since_us(job, one, one.start_ns),
                "to_us": _since_us(job, one, one.end_ns),
            }
            for one in kernels
        ],
    }


def _since_us(job: Job, one: KernelRoof, at_ns: int) -> float:
    """When something is on the common clock, us after the first step's start."""
    at = on_common_clock(job, int(job.ranks[one.rank]), np.array([at_ns]))
    return round((int(at[0]) - _origin(job)) / 1e3, 3)


#: What the route `detail` has, by name.
DETAILS: dict[str, Callable[[Result], dict[str, Any]]] = {
    "operators": _operations,
    "compute": _compute,
    "layers": layers,
    "communication": _communication,
    "memory": _memory,
    "ranks": _ranks,
    "quality": _quality,
    "history": history,
}
