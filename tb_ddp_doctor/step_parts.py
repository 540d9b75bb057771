"""The parts of a step: the owners of its nanoseconds, the phases of the training loop, and what memory is allocated
for, with all of their words.

Order, words and colours are here alone. The frontend gets them in `frontend/src/step_parts.js`, which
`tests/generate.py` writes.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """What a nanosecond of a step belongs to."""

    #: Heading and legend, as docs/glossary.md has it.
    title: str
    #: When a nanosecond belongs to it.
    when: str
    #: The subject of "... rose from 2.1 to 4.2 ms a step".
    spent: str
    #: What a step has more of that takes longer than others, "mostly ...".
    excess: str
    #: While the GPU idles, what "the CPU ..."; "" where the GPU is busy.
    cpu: str = ""
    #: `when` and `excess` in a job without a GPU (docs/cpu.md); "" where they are the same.
    when_on_cpu: str = ""
    excess_on_cpu: str = ""
    #: Its colours in the light and in the dark theme. They stay apart for the colour-blind, also in phases:
    #: frontend/test/colours.test.js measures it.
    light: str
    dark: str
    #: The ink of numbers on it.
    ink: str = "on-owner"


class PhaseLook(msgspec.Struct, frozen=True, kw_only=True):
    """What a training loop is at (`trace.names.Phase`)."""

    when: str
    #: The same in a job without a GPU; "" where it is the same.
    when_on_cpu: str = ""
    #: The end of "most of it is ...".
    within: str
    #: The owner whose colour it has.
    colour: str


class MemoryPart(msgspec.Struct, frozen=True, kw_only=True):
    """What allocated memory is for (`digest.model.MemoryCategory`)."""

    title: str
    when: str
    #: The owner whose colour it has.
    colour: str


#: By name, in the order of precedence.
OWNERS: Mapping[str, Owner] = {
    "compute": Owner(
        title="compute",
        when="a kernel runs that is not communication",
        spent="Compute",
        excess="kernels that take longer than in comparable steps and ranks",
        when_on_cpu="an operator runs that is not communication",
        excess_on_cpu="operators that take longer than in comparable steps and ranks",
        light="#21489c",
        dark="#4d7de8",
    ),
    "copy": Owner(
        title="copy",
        when="only copies or memsets run",
        spent="Exposed copies",
        excess="copies that take longer than in comparable steps and ranks",
        light="#4f6b0c",
        dark="#c5e0c2",
    ),
    "wait": Owner(
        title="straggler wait",
        when="only communication runs, and some rank has not arrived",
        spent="Straggler wait",
        excess="straggler wait",
        light="#e6731f",
        dark="#e9a346",
        ink="on-light",
    ),
    "transfer": Owner(
        title="exposed communication",
        when="only communication runs, and all ranks have arrived",
        spent="Exposed communication",
        excess="communication that takes longer than comparable calls",
        light="#008080",
        dark="#58c3a2",
    ),
    "input": Owner(
        title="input",
        when="GPU idle, CPU in the DataLoader's __next__",
        spent="Waiting for the DataLoader",
        excess="GPU idle, waiting for the DataLoader",
        when_on_cpu="CPU in the DataLoader's __next__",
        excess_on_cpu="waiting for the DataLoader",
        cpu="is in the DataLoader's __next__",
        light="#8058e2",
        dark="#8895c4",
    ),
    "sync": Owner(
        title="sync",
        when="GPU idle, CPU in cuda*Synchronize, .item() or another blocking call",
        spent="Idle in sync calls",
        excess="GPU idle, CPU in a sync call",
        when_on_cpu="CPU in a blocking call",
        excess_on_cpu="the CPU in a blocking call",
        cpu="is in a sync call",
        light="#831567",
        dark="#d8abf6",
    ),
    "alloc": Owner(
        title="allocation",
        when="GPU idle, CPU in cudaMalloc or cudaFree",
        spent="Idle in cudaMalloc and cudaFree",
        excess="GPU idle, CPU in cudaMalloc or cudaFree",
        when_on_cpu="CPU allocates device memory",
        excess_on_cpu="the CPU allocating device memory",
        cpu="allocates device memory",
        light="#52361c",
        dark="#be8403",
    ),
    "dispatch": Owner(
        title="launch-bound (CPU overhead)",
        when="GPU idle, CPU in an operator or a launch",
        spent="Idle, launch-bound,",
        excess="GPU idle, launch-bound (CPU overhead)",
        when_on_cpu="CPU in a call that starts or awaits a collective, with none running",
        excess_on_cpu="the CPU in calls that start or await a collective, with none running",
        cpu="is inside ops and launch calls",
        light="#d2bf1a",
        dark="#f5d660",
        ink="on-light",
    ),
    "host": Owner(
        title="CPU outside any op",
        when="GPU idle, CPU outside any op (Python, I/O, GC)",
        spent="Idle with the CPU outside any op",
        excess="GPU idle, CPU outside any op (Python, I/O, GC)",
        when_on_cpu="CPU outside any op (Python, I/O, GC), or without a core",
        excess_on_cpu="the CPU outside any op (Python, I/O, GC), or without a core",
        cpu="is outside any op (Python, logging, garbage collection, I/O)",
        light="#d42e59",
        dark="#d85278",
    ),
}
#: The owners of time in which the GPU idles.
IDLE = tuple(name for name, owner in OWNERS.items() if owner.cpu)

#: By name, in the loop's order.
PHASES: Mapping[str, PhaseLook] = {
    "loading": PhaseLook(
        when="waiting for a batch, or copying it to the GPU",
        when_on_cpu="waiting for a batch",
        within="in data loading",
        colour="input",
    ),
    "forward": PhaseLook(
        when="forward, and the GPU work it launched",
        when_on_cpu="forward",
        within="in the forward pass",
        colour="compute",
    ),
    "backward": PhaseLook(
        when="backward, and the GPU work it launched, with the collectives of gradients",
        when_on_cpu="backward, with the collectives of gradients",
        within="in the backward pass",
        colour="transfer",
    ),
    "optimizer": PhaseLook(
        when="the optimizer's step, and the GPU work it launched",
        when_on_cpu="the optimizer's step",
        within="in the optimizer's step",
        colour="dispatch",
    ),
    "other": PhaseLook(
        when="outside forward/backward/optimizer, in the training loop",
        within="outside forward/backward/optimizer, in the training loop",
        colour="alloc",
    ),
}

#: By name, in the order of `digest.model.MemoryCategory`.
MEMORY: Mapping[str, MemoryPart] = {
    "parameters": MemoryPart(
        title="parameters", when="as many bytes as the gradients, allocated before the steps", colour="compute"
    ),
    "gradients": MemoryPart(title="gradients", when="allocated in backward, and not released in it", colour="transfer"),
    "optimizer_states": MemoryPart(
        title="optimizer states", when="what the optimizer keeps for each parameter (Adam: two tensors)", colour="sync"
    ),
    "activations": MemoryPart(
        title="activations", when="allocated in loading or forward, and kept for backward", colour="dispatch"
    ),
    "temporary": MemoryPart(title="temporary", when="allocated and released within one phase", colour="copy"),
    "communication": MemoryPart(
        title="communication buffers", when="DDP's buckets, gathered parameters, gradients to scatter", colour="input"
    ),
    "other": MemoryPart(
        title="other", when="buffers, workspaces, frozen parameters, and what else stays", colour="alloc"
    ),
}


#: Classes of kernels (`digest.model.GpuTime`), as tables name them.
KERNEL_CLASSES: Mapping[str, str] = {
    "gemm": "GEMM",
    "convolution": "convolution",
    "attention": "attention",
    "norm": "normalisation and reduction",
    "elementwise": "elementwise",
    "copy": "copy and cast",
    "optimizer": "optimizer",
    "embedding": "embedding and index",
    "other": "other",
}
