"""What is known of a rank beside its trace, and the record of a capture that carries it."""

from __future__ import annotations

from typing import Annotated

import msgspec

#: Files that the doctor's own captures leave beside traces (`CaptureRecord`, as JSON).
RECORD_SUFFIX = ".capture"


class GpuState(msgspec.Struct, frozen=True):
    """How a rank's GPU runs, as its driver says; None where that was not told."""

    #: "NVML", "amdsmi", or the name of a file.
    source: str
    #: SM clock, the lowest that was seen, and the highest that the GPU has, MHz.
    sm_mhz: float | None = None
    max_sm_mhz: float | None = None
    #: The highest that were seen: watts, and degrees Celsius.
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    #: Why the clock is lowered, in words: "power cap", "thermal slowdown (hardware)"; idle clocks are none.
    throttled: tuple[str, ...] = ()


class GpuLook(msgspec.Struct, frozen=True, array_like=True):
    """One look at a rank's GPU while it was recorded; None where the driver did not say it."""

    #: Since the epoch, as traces have it.
    at_ns: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
    sm_mhz: float | None = None
    power_w: float | None = None


class SeenGpu(msgspec.Struct, frozen=True):
    """A GPU in somebody's file, and what tells whose it is."""

    state: GpuState
    #: As the driver counts the GPUs of the node.
    number: int
    #: "" where the file does not say it.
    host: str
    #: The processes that run on it, as far as they are listed.
    pids: frozenset[str] = frozenset()


class SeenStack(msgspec.Struct, frozen=True):
    """Where a process was when somebody looked."""

    pid: str
    #: "read (io.py:41), called by step (train.py:8)"
    stack: str


class Loading(msgspec.Struct, frozen=True):
    """How long the DataLoader's workers of a rank take for the batches around the captured steps."""

    workers: int
    batches: int
    #: Of one batch, in one worker.
    median_ms: float
    longest_ms: float


class RankEvidence(msgspec.Struct, frozen=True):
    """What is known of one rank beside its trace."""

    gpu: GpuState | None = None
    #: In order of time: a capture looks at the GPU several times a second.
    gpu_looks: tuple[GpuLook, ...] = ()
    loading: Loading | None = None
    #: Where its main thread was when somebody looked, as py_spy has it, and in which file that is; "" for nowhere.
    stack: str = ""
    stack_source: str = ""
    #: The log directory of the doctor's own `Doctor` that captured it; "" if none did.
    logdir: str = ""
    #: How long its threads together were ready to run without a core, ms a step; None where nobody counted.
    core_wait_ms: float | None = None
    #: How long its threads together ran, ms a step; None where nobody counted.
    core_run_ms: float | None = None


class CaptureRecord(msgspec.Struct, frozen=True):
    """What a rank says of its part in a capture."""

    rank: int
    world_size: int
    node: str
    pid: int
    #: The first step, and how many.
    step: int
    steps: int
    #: When it was captured, ns since the epoch.
    captured_ns: int
    #: Sizes of the files that were written for it, in the same folder, by name.
    files: dict[str, int]
    evidence: RankEvidence = RankEvidence()
    #: The job, the same when it is started again, and the start; "" in records of earlier releases.
    job: str = ""
    start: str = ""
