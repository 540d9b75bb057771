"""How to record a job once more: by the `Doctor` that it has, or else by torch.profiler in its loop."""

from __future__ import annotations

from tb_ddp_doctor.findings import Setting


def command(*, steps: int | None = None, stacks: bool = False) -> str:
    """What asks a job that has a `Doctor` for a capture of all ranks."""
    return f"ddp-doctor capture LOGDIR{f' --steps {steps}' if steps else ''}{' --stacks' if stacks else ''}"


def with_stacks(setting: Setting, *, shapes: bool = False) -> str:
    """A few steps with Python stacks, which slow the host down and make files several times as large."""
    if setting.has_doctor:
        return command(steps=3, stacks=True)
    options = "record_shapes=True, with_stack=True" if shapes else "with_stack=True"
    return f"with torch.profiler.profile({options}, ...) as prof:\n    ..."
