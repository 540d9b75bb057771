"""A launch that the full queue blocks goes on as a launch leaves the queue; one that is stalled itself does not."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.digest.device_events import DeviceEvents
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.intervals import Intervals
from tb_ddp_doctor.digest.launch_queue import host_stalls
from tb_ddp_doctor.digest.launches import DeviceRows
from tb_ddp_doctor.trace.reader import decode

#: Launches before the long one, µs from one to the next, and how long the long one takes, µs.
LAUNCHES, EVERY_US, LONG_US = 600, 10, 20_000


def blocked_ms(kernel_us: list[int]) -> float:
    """How long the queue blocks the last of 601 launches, when their kernels run one after the other for so long."""
    events: list[dict[str, Any]] = []
    ran_us = 0
    for number, took_us in enumerate(kernel_us):
        call = {"name": "cudaLaunchKernel", "cat": "cuda_runtime", "pid": 1, "tid": 1, "ts": number * EVERY_US}
        length = LONG_US if number == LAUNCHES else 3
        kernel = {"name": "add", "cat": "kernel", "pid": 0, "tid": 7, "ts": max(ran_us, number * EVERY_US + 5)}
        args = {"correlation": number + 1, "device": 0, "stream": 7}
        events += [
            {"ph": "X", **call, "dur": length, "args": args},
            {"ph": "X", **kernel, "dur": took_us, "args": args},
        ]
        ran_us = int(kernel["ts"]) + took_us
    trace = decode([json.dumps({"traceEvents": events}).encode()], "rank0.json")
    host, rows = HostCalls.of(trace), DeviceRows.of(trace.events)
    device = DeviceEvents.of(host, rows.busiest, rows)
    stalls = host_stalls(host, device, Intervals.union(device.start_ns, device.end_ns))
    return float(np.sum(stalls.full_queue.end - stalls.full_queue.start)) / 1e6


#: Kernels that take until after the long launch: 26 ms at least.
SHORT = [100] * (LAUNCHES + 1)


def test_a_launch_goes_on_as_one_leaves_the_full_queue() -> None:
    assert blocked_ms(SHORT) == pytest.approx(LONG_US / 1e3, abs=0.1)


def test_a_launch_that_goes_on_while_nothing_ends_is_stalled_itself() -> None:
    """The device awaits another rank all the while: a kernel of 40 ms stands for its collective."""
    assert blocked_ms([*SHORT[:50], 40_000, *SHORT[51:]]) == 0


def test_a_kernel_that_ends_a_millisecond_before_does_not_let_the_launch_go_on() -> None:
    """It ends at 25 ms; the launch at 26 ms."""
    ends_at_us = LAUNCHES * EVERY_US + LONG_US - 1_000
    began_us = 5 + 100 * 50
    assert blocked_ms([*SHORT[:50], ends_at_us - began_us, 40_000, *SHORT[52:]]) == 0
    on_time = ends_at_us - began_us + 900
    assert blocked_ms([*SHORT[:50], on_time, 40_000, *SHORT[52:]]) == pytest.approx(LONG_US / 1e3, abs=0.1)


#: A host that launches kernels of 300 µs, one of which leaves the full queue for each that enters it.
QUEUE, KERNEL_US, STEP = 1_024, 300, 60


def full_queue(steps: int, *, before: int) -> bytes:
    """A record of a queue that is always full; of the launches before it, `before` have a kernel in it."""
    events: list[dict[str, Any]] = []
    for number in range(-before, steps * STEP):
        leaves_us = KERNEL_US * (number + 1)
        args = {"correlation": number + QUEUE + 1, "device": 0, "stream": 7}
        start = {"ph": "X", "ts": leaves_us + KERNEL_US * (QUEUE - 1), "dur": KERNEL_US, "args": args}
        events.append({"name": "add", "cat": "kernel", "pid": 0, "tid": 7, **start})
        if number >= 0:
            call = {"ph": "X", "ts": leaves_us - KERNEL_US + 20, "dur": KERNEL_US - 10, "args": args}
            events.append({"name": "cudaLaunchKernel", "cat": "cuda_runtime", "pid": 1, "tid": 1, **call})
    for step in range(steps):
        mark = {"ph": "X", "ts": KERNEL_US * STEP * step, "dur": KERNEL_US * STEP}
        events.append({"name": f"ProfilerStep#{step}", "cat": "user_annotation", "pid": 1, "tid": 1, **mark})
    return json.dumps({"traceEvents": events}).encode()


@pytest.mark.parametrize("before", [QUEUE, 0])
def test_where_the_queue_is_always_full_most_launches_are_blocked(before: int) -> None:
    """Whether kernels that were launched before the record are in it or not (with too few launches in warmup)."""
    trace = decode([full_queue(6, before=before)], "rank0.json")
    host, rows = HostCalls.of(trace), DeviceRows.of(trace.events)
    device = DeviceEvents.of(host, rows.busiest, rows)
    stalls = host_stalls(host, device, Intervals.union(device.start_ns, device.end_ns))
    blocked = float(np.sum(stalls.full_queue.end - stalls.full_queue.start)) / 1e6
    assert blocked == pytest.approx(6 * STEP * (KERNEL_US - 30) / 1e3, rel=0.1)


def test_a_device_that_is_busy_when_the_record_begins_is_not_idle_in_the_first_step() -> None:
    found = digest(decode([full_queue(6, before=0)], "rank0.json"))
    length_ms = (found.steps.end_ns - found.steps.start_ns) / 1e6
    assert length_ms.tolist() == pytest.approx([STEP * KERNEL_US / 1e3] * 6, rel=0.02)
