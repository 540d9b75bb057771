"""How to record a job once more, with the recorder that it has: its `Doctor`, Nsight Systems, or torch.profiler."""

from __future__ import annotations

import shlex

from tb_ddp_doctor.findings import Setting

#: What records a job with Nsight Systems and makes of it what is read here; goes before the options of one recording.
NSYS = "nsys profile --trace=cuda,nvtx"
NSYS_OUTPUT = "-o /logs/job/node_%h torchrun ... train.py"
NSYS_EXPORT = "nsys export --type sqlite --include-json true /logs/job/node_<host>.nsys-rep"


def command(
    setting: Setting, *, ranks: str = "", steps: int | None = None, stacks: bool = False, memory: bool = False
) -> str:
    """What asks a job that has a `Doctor` for a capture: of all ranks, or of those in `ranks`."""
    options = f"{f' --ranks {ranks}' if ranks else ''}{f' --steps {steps}' if steps else ''}"
    return f"ddp-doctor capture {_logdir(setting)}{options}{' --stacks' * stacks}{' --memory' * memory}"


def _logdir(setting: Setting) -> str:
    """The `Doctor`'s log directory as a shell takes it; a word for it where it is unknown or no shell should see it."""
    return shlex.quote(setting.logdir) if setting.logdir.isprintable() and setting.logdir else "LOGDIR"


def with_stacks(setting: Setting, *, shapes: bool = False, serves: bool = False) -> str:
    """A few steps with Python stacks, which slow the host down and make files several times as large; `serves` says
    that a server runs them.
    """
    if setting.has_doctor:
        return command(setting, steps=3, stacks=True)
    if setting.recorder == "nsys":
        return (
            f"{NSYS} --python-sampling=true {NSYS_OUTPUT}\n"
            "# Nsight Systems itself shows these stacks; evidence here is named by NVTX ranges:\n"
            'with torch.cuda.nvtx.range("logging"):\n    ...'
        )
    if serves:
        return of_server(steps=5, stacks=True, shapes=shapes)
    options = "record_shapes=True, with_stack=True" if shapes else "with_stack=True"
    return f"with torch.profiler.profile({options}, ...) as prof:\n    ..."


def of_server(*, steps: int, stacks: bool, shapes: bool) -> str:
    """How SGLang and vLLM record some iterations."""
    on, shaped = ("true" if one else "false" for one in (stacks, shapes))
    asked = f'{{"num_steps": {steps}, "with_stack": {on}, "record_shapes": {shaped}}}'
    options = f'"torch_profiler_with_stack": {on}, "torch_profiler_record_shapes": {shaped}'
    return (
        f"# SGLang\ncurl -X POST http://localhost:30000/start_profile -d '{asked}'\n"
        f'# vLLM\nvllm serve ... --profiler-config \'{{"profiler": "torch", {options}, ...}}\''
    )


def stacks_in_words(setting: Setting) -> str:
    """How a recording gets what names the user's own code; the end of "capture ..."."""
    if setting.has_doctor:
        return f"with {command(setting, stacks=True)}"
    if setting.recorder == "nsys":
        return "with NVTX ranges around the parts of the training loop, which evidence then names"
    return "with profile(..., with_stack=True)"


def no_shapes(setting: Setting) -> str:
    """Sentences for jobs without the shapes of operators' inputs."""
    how = {
        "nsys": "record the loop within torch.autograd.profiler.emit_nvtx(record_shapes=True)",
        "profiler": "record with profile(record_shapes=True)",
    }[setting.recorder]
    return f"The traces have no operator shapes: {how}."


def operators(setting: Setting) -> str:
    """A sentence that says how the CPU's operators, with the sizes of gradients, get into a recording."""
    if setting.recorder == "nsys":
        return (
            "Record the training loop within torch.autograd.profiler.emit_nvtx(record_shapes=True), which makes "
            "operators NVTX ranges with their shapes."
        )
    return (
        "Record the CPU's operators with torch.profiler, with ProfilerActivity.CPU and record_shapes=True: the sizes "
        "of gradients, and when each is ready, are then in the trace."
    )


def launches(setting: Setting) -> str:
    """A sentence that says how the launches of kernels get into a recording."""
    if setting.recorder == "nsys":
        return f"Record with {NSYS}."
    return "Record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]."


def to_measure_memory(setting: Setting) -> str:
    """What to do to have the allocator's events; the end of a sentence."""
    if setting.has_doctor:
        return f"{command(setting, memory=True)} measures them"
    return "trace some steps with torch.profiler.profile(profile_memory=True) to measure them"


def no_memory(setting: Setting) -> str:
    """Sentences for jobs without the allocator's events."""
    if setting.has_doctor:
        how = f"capture with {command(setting, memory=True)}"
    elif setting.recorder == "nsys":
        how = "Nsight Systems does not record them. Trace some steps with torch.profiler.profile(profile_memory=True)"
    else:
        how = "capture with profile(..., profile_memory=True)"
    return f"The traces have no allocator events: {how}."
