"""How to get the Python stacks that name the user's own code in evidence."""

from __future__ import annotations

from tb_ddp_doctor import record_again
from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.job.setting import setting
from tb_ddp_doctor.trace import names

SENTENCE = "The traces have no Python stacks, so evidence names no file and line"
_RANGES = """\
with torch.cuda.nvtx.range("logging"):  # around what the CPU does between ops
    log(loss)

# or by the capture helper: steps, forward, backward, optimizer and modules
doctor = tb_ddp_doctor.capture.Doctor("logs/my_job", nvtx=True)
doctor.watch(model)"""
_CODE = """\
from torch.profiler import ProfilerActivity, profile, schedule
from torch.profiler import tensorboard_trace_handler as handler

with profile(
    activities={activities},
    # few steps: stacks slow the host down and make files several times as large
    schedule=schedule(wait=5, warmup=2, active=3, repeat=1),
    with_stack=True,
    on_trace_ready=handler(logdir, use_gzip=True),
) as prof:
    for batch in loader:
        train(batch)
        prof.step()"""


def lacking(job: Job) -> bool:
    """Whether no trace of a job has stacks."""
    return not any(digest.header.has_stacks or _names_functions(digest) for digest in job.digests)


def _names_functions(digest: RankDigest) -> bool:
    """Whether it has functions of the user's own: no modules that `Doctor.watch` marks, and no compiled kernels."""
    functions = {digest.strings[name] for name in set(digest.code.function.tolist())}
    return any(not (names.is_module(function) or names.is_generated(function)) for function in functions)


def advice(job: Job) -> str:
    """A sentence and, after an empty line, code; "" where some trace has stacks."""
    if not lacking(job):
        return ""
    its = setting(job)
    if its.has_doctor:
        return f"{SENTENCE}. Capture some steps with them:\n\n{record_again.command(its, steps=3, stacks=True)}"
    if its.recorder == "nsys":
        return f"{SENTENCE}. Name parts of the training loop by NVTX ranges, which evidence then shows:\n\n{_RANGES}"
    activities = "[ProfilerActivity.CPU, ProfilerActivity.CUDA]" if job.has_device else "[ProfilerActivity.CPU]"
    return f"{SENTENCE}. Record some steps with them:\n\n{_CODE.format(activities=activities)}"
