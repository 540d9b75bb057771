"""The parts of a step: the owners of its nanoseconds, the phases of the training loop, and what memory is allocated
for, with all of their words.

Order, words and colours are in `step_parts.toml` alone. The frontend gets them in `frontend/src/step_parts.js`, which
`tests/generate.py` writes.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from tb_ddp_doctor.known_type import known


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
    #: Its colours in the light and in the dark theme.
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


class _Parts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file."""

    #: By name, in the order of precedence.
    owners: dict[str, Owner]
    #: By name, in the loop's order.
    phases: dict[str, PhaseLook]
    #: By name, in the order of `digest.model.MemoryCategory`.
    memory: dict[str, MemoryPart]
    #: Classes of kernels (`digest.model.GpuTime`), as tables name them.
    kernel_classes: dict[str, str]


_PARTS = msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes(), type=known(_Parts))
OWNERS, PHASES, MEMORY, KERNEL_CLASSES = _PARTS.owners, _PARTS.phases, _PARTS.memory, _PARTS.kernel_classes
#: The owners of time in which the GPU idles.
IDLE = tuple(name for name, owner in OWNERS.items() if owner.cpu)
