"""Collectives of many sizes, and ranks that send to each other in pairs, timed on one rank.

All ranks of a group call these functions together. Whatever depends on time (how often a size is repeated, which size
is the last) is agreed by an AllReduce, so that no rank calls a collective that another one does not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from statistics import median

import msgspec
import torch
from torch import distributed

from tb_ddp_doctor.check.device import Device

KINDS = ("all_reduce", "all_gather", "reduce_scatter")
SMALLEST, LARGEST = 1 << 10, 1 << 30
#: From size to size.
_STEP = 4
_REPEATS, _FEWEST = 20, 3
_ELEMENT = 4
#: As torch 2.13 calls them, and as those before it do.
_ALL_GATHER = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
_REDUCE_SCATTER = getattr(distributed, "reduce_scatter_single", None) or distributed.reduce_scatter_tensor
#: Of the free memory that collectives may take; ranks of a node share it.
_SHARE_OF_MEMORY = 0.1
_PINGS, _PONGS_S = 20, 0.4


class Timed(msgspec.Struct, frozen=True):
    """The repeats of one size on this rank."""

    bytes: int
    times_s: list[float]


def largest(device: Device, ranks_of_node: int, asked: int) -> int:
    """Largest size that memory allows here, in bytes."""
    room = device.free_bytes() * _SHARE_OF_MEMORY / (1 if device.is_gpu else ranks_of_node)
    return int(min(asked, room))


def timed(
    kind: str, group: distributed.ProcessGroup | None, device: Device, most_bytes: int, budget_s: float
) -> Iterator[Timed]:
    """Time one kind of collective by ascending size, as far as the time goes. All ranks get the same sizes."""
    ranks = distributed.get_world_size(group)
    size, begun = SMALLEST, time.perf_counter()
    sizes = [SMALLEST * _STEP**k for k in range(32) if SMALLEST * _STEP**k <= max(most_bytes, SMALLEST)]
    for size in sizes:
        # Each rank of a group gets a whole number of elements.
        count = math.ceil(size / _ELEMENT / ranks) * ranks
        run = _collective(kind, group, device, count, ranks)
        run()
        device.wait()
        remaining = budget_s - (time.perf_counter() - begun)
        one, remaining = _agreed(_once(run, device), remaining, group, device)
        fit = int(remaining / (len(sizes) - sizes.index(size)) / max(one, 1e-9))
        if size > SMALLEST and remaining < _FEWEST * one:
            return
        yield Timed(count * _ELEMENT, [_once(run, device) for _ in range(min(max(fit, _FEWEST), _REPEATS))])


def _once(run: Callable[[], object], device: Device) -> float:
    begun = time.perf_counter()
    run()
    device.wait()
    return time.perf_counter() - begun


def _agreed(
    took_s: float, left_s: float, group: distributed.ProcessGroup | None, device: Device
) -> tuple[float, float]:
    """The longest time that a rank took, and the least that is left to one."""
    values = torch.tensor([took_s, -left_s], dtype=torch.float64, device=device.torch)
    distributed.all_reduce(values, op=distributed.ReduceOp.MAX, group=group)
    longest, least = values.tolist()
    return longest, -least


def _collective(
    kind: str, group: distributed.ProcessGroup | None, device: Device, count: int, ranks: int
) -> Callable[[], object]:
    whole = torch.zeros(count, device=device.torch)
    part = torch.zeros(count // ranks, device=device.torch)
    if kind == "all_reduce":
        return lambda: distributed.all_reduce(whole, group=group)
    if kind == "all_gather":
        return lambda: _ALL_GATHER(whole, part, group=group)
    return lambda: _REDUCE_SCATTER(part, whole, group=group)


def ping_pong(rank: int, peer: int, device: Device, most_bytes: int) -> tuple[float, float]:
    """Send to a peer and back: one way's time of 1 KB, µs, and bandwidth with large messages, GB/s."""
    small = torch.zeros(SMALLEST // _ELEMENT, device=device.torch)
    _there_and_back(small, rank, peer, device)
    latency = median(_there_and_back(small, rank, peer, device) for _ in range(_PINGS)) / 2
    large = torch.zeros(max(most_bytes // _ELEMENT, 1), device=device.torch)
    first = _there_and_back(large, rank, peer, device)
    # The lower rank says how often: both must agree.
    count = torch.tensor([min(max(round(_PONGS_S / first), 2), 2 * _PINGS)], device=device.torch)
    if rank < peer:
        distributed.send(count, peer)
    else:
        distributed.recv(count, peer)
    times = [_there_and_back(large, rank, peer, device) for _ in range(int(count.item()))]
    return latency * 1e6, large.numel() * _ELEMENT / (median(times) / 2) / 1e9


def _there_and_back(value: torch.Tensor, rank: int, peer: int, device: Device) -> float:
    begun = time.perf_counter()
    if rank < peer:
        distributed.send(value, peer)
        distributed.recv(value, peer)
    else:
        distributed.recv(value, peer)
        distributed.send(value, peer)
    device.wait()
    return time.perf_counter() - begun
