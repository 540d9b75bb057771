"""Traces of random events, for properties that hold of any trace."""

from __future__ import annotations

import os

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.job.build import build
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.storage.column_table import column_types
from tb_ddp_doctor.trace.model import Category, CommArgs, Events, Frames, Header, MemoryEvents, RankTrace

#: Of properties of whole jobs. Some 25 tests draw such jobs, each test others: several hundred in all are read and
#: diagnosed in CI. Before a release each test sees ten times as many (docs/releasing.md).
OF_JOBS = settings(max_examples=int(os.environ.get("DDP_DOCTOR_EXAMPLES", "30")), deadline=None)

NAMES = (
    "ProfilerStep#1",
    "ProfilerStep#2",
    "ProfilerStep#3",
    "aten::add",
    "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
    "cudaLaunchKernel",
    "cudaStreamSynchronize",
    "cudaMalloc",
    "gemm",
    "ncclDevKernel_AllReduce",
    "Memcpy HtoD (Pageable -> Device)",
    "autograd::engine::evaluate_function: X",
    "gloo:all_reduce",
    "record_param_comms",
    "Optimizer.step#AdamW.step",
    "aten::bmm",
    "aten::_softmax",
    "aten::convolution_backward",
    "aten::_scaled_dot_product_flash_attention_backward",
    "volta_sgemm_128x32_nt",
    "volta_fp16_sgemm_fp16_128x32_nn",
)
#: Raw "Input Dims": of attention's products and softmax, of a convolution, and what makes no sense.
SHAPES = (
    "[[8, 64, 16], [8, 16, 64]]",
    "[[2, 4, 64, 64], [], []]",
    "[[8, 64, 64], [8, 64, 16]]",
    "[[2, 8, 16, 16], [2, 4, 32, 32], [8, 4, 3, 3]]",
    "[[0, 0, 0], [0, 0, 0], [0, 0]]",
    "[[9223372036854775807, -1, 3], [3], [[1], [2]]]",
    "[[",
)
#: Python functions: of the user's own, of torch, of Python.
FUNCTIONS = ("train.py(4): step", "net.py(7): forward", "torch/nn/module.py(1): call", "<built-in function collect>")
HEADER = Header(has_shapes=True, devices={0: "NVIDIA H200"}, multiprocessors={0: 132}, capabilities={0: 9.0})
#: Events of a kind: category and names that it may have.
KINDS = {
    Category.ANNOTATION: (0, 1, 2, 4, 12, 14),
    Category.OP: (3, 11, 12, 13, 15, 16, 17, 18),
    Category.RUNTIME: (5, 6, 7),
    Category.KERNEL: (8, 9, 19, 20),
    Category.MEMCPY: (10,),
    Category.MEMSET: (8,),
    Category.OVERHEAD: (3,),
}
EVENT = st.sampled_from(list(KINDS)).flatmap(
    lambda category: st.tuples(
        st.just(int(category)),
        st.sampled_from(KINDS[category]),
        st.integers(0, 60),
        st.integers(0, 25),
        st.integers(0, 2),
        st.integers(-1, 5),
    )
)


def trace(events: list[tuple[int, int, int, int, int, int]], *, device: bool) -> RankTrace:
    """Random events (category, name, start, duration, thread or stream, correlation) as a rank's trace."""
    is_device = {int(Category.KERNEL), int(Category.MEMCPY), int(Category.MEMSET)}
    rows = [event for event in events if device or event[0] not in is_device]
    table = np.array(rows, np.int64).reshape(-1, 6)
    on_device = np.isin(table[:, 0], list(is_device))
    comms = np.flatnonzero(table[:, 1] == NAMES.index("record_param_comms"))
    nothing = np.full(len(comms), -1)
    # As good as random, and small when the others are.
    varied = table[:, 2] + table[:, 3]
    # Each operator has a function around it.
    calls = np.flatnonzero(table[:, 0] == int(Category.OP))
    return RankTrace(
        file="random.json",
        header=HEADER,
        strings=NAMES + SHAPES + FUNCTIONS,
        threads=(("1", "0"), ("1", "1"), ("1", "2")),
        events=Events(
            name=table[:, 1].astype(np.int32),
            category=table[:, 0].astype(np.int8),
            start_ns=table[:, 2],
            duration_ns=table[:, 3],
            thread=table[:, 4].astype(np.int32),
            device=np.where(on_device, 0, -1).astype(np.int32),
            stream=np.where(on_device, table[:, 4], -1),
            correlation=table[:, 5],
            bytes=np.full(len(table), -1),
            shape=np.where(on_device, -1, len(NAMES) + varied % len(SHAPES)).astype(np.int32),
            occupancy=np.where(on_device, varied % 120, -1).astype(np.int32),
            sequence=np.where(table[:, 0] == int(Category.OP), varied % 8 - 1, -1),
            types=np.full(len(table), -1, np.int32),
            values=np.full(len(table), -1, np.int32),
            graph=np.full(len(table), -1, np.int32),
        ),
        comms=CommArgs(
            comms, *(nothing.astype(dtype) for name, dtype in column_types(CommArgs).items() if name != "event")
        ),
        memory=MemoryEvents(
            time_ns=table[:, 2],
            device_type=np.ones(len(table), np.int32),
            device=np.zeros(len(table), np.int32),
            bytes=table[:, 3],
            allocated=table[:, 3],
            reserved=table[:, 3] + table[:, 5],
            address=table[:, 5],
            thread=table[:, 4].astype(np.int32),
        ),
        frames=Frames(
            name=(len(NAMES + SHAPES) + varied[calls] % len(FUNCTIONS)).astype(np.int32),
            start_ns=table[calls, 2] - 1,
            duration_ns=table[calls, 3] + 2,
            thread=table[calls, 4].astype(np.int32),
        ),
        dropped={},
        warnings=(),
    )


Row = tuple[int, int, int, int, int, int]
#: (name of the device event, when it is launched, when it starts after that, how long it lasts, by backward or not).
LAUNCHED = st.tuples(
    st.sampled_from([8, 8, 9, 9, 10, 19, 20]),
    st.integers(1, 110),
    st.integers(0, 30),
    st.integers(1, 20),
    st.booleans(),
)


def launched(works: list[tuple[int, int, int, int, bool]], others: list[Row]) -> list[Row]:
    """Three steps whose device events have launches, and other events."""
    rows = [(int(Category.ANNOTATION), number, 40 * number, 40, 0, -1) for number in range(3)]
    for number, (name, at, delay, length, backward) in enumerate(works, 10):
        thread = 2 if backward else 0
        category = Category.MEMCPY if name == NAMES.index("Memcpy HtoD (Pageable -> Device)") else Category.KERNEL
        rows.append((int(Category.RUNTIME), 5, at, 1, thread, number))
        rows.append((int(category), name, at + delay, length, (name - 8) % 3, number))
        if name == NAMES.index("ncclDevKernel_AllReduce"):
            rows.append((int(Category.OP), NAMES.index("record_param_comms"), at - 1, 3, thread, -1))
        if backward:
            rows.append((int(Category.OP), 11, at - 1, 3, thread, -1))
    return rows + [row for row in others if row[0] != Category.ANNOTATION or row[1] > 2]


TRACES = st.one_of(
    st.builds(lambda events, device: trace(events, device=device), st.lists(EVENT, max_size=30), st.booleans()),
    st.builds(
        lambda works, others: trace(launched(works, others), device=True),
        st.lists(LAUNCHED, min_size=4, max_size=15),
        st.lists(EVENT, max_size=8),
    ),
)


def joined(ranks: list[RankDigest]) -> Job | None:
    usable = {rank: found for rank, found in enumerate(ranks) if len(found.steps)}
    return build("random", usable, dict.fromkeys(usable, "node"), len(ranks)) if usable else None
